"""A training at one moment, as plain data: all that a bit-exact resume needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tracegrad.compiler.persistent import HALTED
from tracegrad.engine import bounds, freezing, params
from tracegrad.engine.knobs import Knobs, Rate
from tracegrad.engine.stepper import Stepper
from tracegrad.program import Field, Program
from tracegrad.runtime.base import Session

Array = Any


class Snapshot(NamedTuple):
    """What saving, hashing and exporting read, and what loading restores."""

    params: Mapping[str, Array]
    states: Mapping[str, Array]  # whole buffers, by the name of the state
    step: int
    seed: int
    knobs: Knobs  # with the step at which the schedule's own step 1 fell; None: not yet
    optimizer: Mapping[str, Any]  # its spec
    program: Program
    frozen: tuple[str, ...] = ()  # parameters that steps leave alone, by `train.freeze`


def take(session: Session, stepper: Stepper) -> Snapshot:
    """The state after the last step; on the worker's thread."""
    program, knobs = stepper.program, stepper.knobs
    return Snapshot(
        params=params.download(session, program, program.params),
        states=params.download(session, program, states_of(program)),
        step=stepper.counter,
        seed=stepper.seed,
        knobs=Knobs(Rate(knobs.rate.schedule, knobs.rate.start), knobs.values),
        optimizer=stepper.source.optimizer.spec(),
        program=program,
        frozen=tuple(stepper.frozen),
    )


def take_all(session: Session, stepper: Stepper) -> list[Snapshot]:
    """One for each loss."""
    return [take(session, one) for one in stepper.together]


def restore(session: Session, stepper: Stepper, snapshot: Snapshot) -> None:
    """Go on from a snapshot of the same program; on the worker's thread."""
    program = stepper.program
    for fields, arrays in ((program.params, snapshot.params), (states_of(program), snapshot.states)):
        params.upload(session, program, fields, arrays)
        bounds.tell(session, program, bounds.written(program, fields, arrays))
    stepper.seed, stepper.knobs = snapshot.seed, snapshot.knobs
    stepper.freeze(session, snapshot.frozen)
    stepper.restart(session, snapshot.step)


def restore_all(session: Session, stepper: Stepper, snapshots: Sequence[Snapshot]) -> None:
    """The same for each loss."""
    for one, snapshot in zip(stepper.together, snapshots, strict=True):
        restore(session, one, snapshot)


def states_of(program: Program) -> tuple[Field, ...]:
    """What a snapshot holds besides parameters."""
    own = (HALTED, bounds.array_of(program), *freezing.arrays(program))
    return tuple(f for f in program.states if f.name not in own)
