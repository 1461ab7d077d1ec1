"""Snapshots: a training at one moment, as plain data with everything a bit-exact resume needs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from tracegrad.compiler.persistent import HALTED
from tracegrad.engine import bounds, params
from tracegrad.engine.knobs import Knobs, Rate
from tracegrad.engine.stepper import Stepper
from tracegrad.program import Field, Program
from tracegrad.runtime.base import Session

Array = Any


class Snapshot(NamedTuple):
    """The data that saving, hashing and exporting read, and loading restores."""

    params: Mapping[str, Array]
    states: Mapping[str, Array]  # whole buffers, by the name of the state
    step: int
    seed: int
    knobs: Knobs  # with the training step that was the schedule's step 1, or None if there was none yet
    optimizer: Mapping[str, Any]  # its spec
    program: Program
    frozen: tuple[str, ...] = ()  # parameters frozen by `train.freeze`


def take(session: Session, stepper: Stepper) -> Snapshot:
    """Return the state after the last step; on the worker's thread."""
    program = stepper.program
    return settings(stepper)._replace(
        params=params.download(session, program, program.params),
        states=params.download(session, program, states_of(program)),
    )


def settings(stepper: Stepper) -> Snapshot:
    """Return the state without arrays."""
    program, knobs = stepper.program, stepper.knobs
    return Snapshot(
        params={},
        states={},
        step=stepper.counter,
        seed=stepper.seed,
        knobs=Knobs(Rate(knobs.rate.schedule, knobs.rate.start), knobs.values),
        optimizer=stepper.source.optimizer.spec(),
        program=program,
        frozen=tuple(stepper.frozen),
    )


def take_all(session: Session, stepper: Stepper) -> list[Snapshot]:
    """Return one snapshot for each loss."""
    return [take(session, one) for one in stepper.together]


def restore(session: Session, stepper: Stepper, snapshot: Snapshot) -> None:
    """Continue from a snapshot of the same program; on the worker's thread."""
    program = stepper.program
    for fields, arrays in ((program.params, snapshot.params), (states_of(program), snapshot.states)):
        params.upload(session, program, fields, arrays)
        bounds.tell(session, program, bounds.written(program, fields, arrays))
    settle(session, stepper, snapshot)


def settle(session: Session, stepper: Stepper, snapshot: Snapshot) -> None:
    """Continue with all of a snapshot but its arrays."""
    stepper.seed, stepper.knobs = snapshot.seed, snapshot.knobs
    stepper.freeze(session, snapshot.frozen)
    stepper.restart(session, snapshot.step)


def restore_all(session: Session, stepper: Stepper, snapshots: Sequence[Snapshot]) -> None:
    """Continue from one snapshot for each loss."""
    for one, snapshot in zip(stepper.together, snapshots, strict=True):
        restore(session, one, snapshot)


def states_of(program: Program) -> tuple[Field, ...]:
    """Return the states in a snapshot, besides parameters."""
    own = (HALTED, bounds.array_of(program), *params.mask_arrays(program))
    return tuple(f for f in program.states if f.name not in own)
