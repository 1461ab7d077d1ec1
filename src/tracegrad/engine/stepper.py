"""One model in training: its programs, its progress, and snapshots of it.

A snapshot is the state of a training at one moment, as plain data: all that a bit-exact resume needs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from tracegrad.arrays import Array, np
from tracegrad.compiler.build import Built, StepSource, TracedProgram
from tracegrad.compiler.dispatches import blamed_lines
from tracegrad.compiler.layout import HALTED
from tracegrad.dtypes import DTYPES
from tracegrad.engine import bounds, params, reference
from tracegrad.engine.drives import beside
from tracegrad.engine.knobs import Knobs, Rate
from tracegrad.engine.programs import SizedPrograms
from tracegrad.engine.run_program import RunProgram
from tracegrad.lr import as_schedule, restarted
from tracegrad.program import DRAWN, Buffer, Field, Program
from tracegrad.runtime.base import Session, Timings
from tracegrad.tuning import OWN_SIZES, OWN_SIZES_ON_GPU

WORD = 2**32 - 1
COPY_OF_PARAMS = "params"  # a Buffer.fill, and the name of the array that it copies


@dataclass(slots=True, eq=False)
class Stepper:
    """One model in training: its program, and its progress. Changed on the worker's thread only."""

    source: StepSource
    main: RunProgram  # the step's program; if calls choose sizes, one that computes nothing and holds the arrays
    seed: int
    knobs: Knobs  # values for the next step; a queued step keeps those of its call
    first: Callable[[], Mapping[str, Any]] | None = None  # returns the parameters, drawn while pipelines are compiled
    sized: SizedPrograms | None = None  # programs of the sizes that calls chose
    counter: int = 0  # steps applied
    submitted: int = 0  # number of the last step submitted, if all steps in flight are applied
    in_flight: int = 0
    replaced: str = ""  # the reason why no more of its work is done
    frozen: tuple[str, ...] = ()  # parameters that steps do not change
    together: list[Stepper] = field(default_factory=list["Stepper"])  # the steppers of all losses, including this one
    number: int = 0  # index of this stepper among them

    def __post_init__(self) -> None:
        self.together = [self]

    @staticmethod
    def all_of(traced: Sequence[tuple[StepSource, TracedProgram]], seed: int, most_sizes: int) -> list[Stepper]:
        """Return the steppers of the losses of one model."""
        together = [Stepper.of(*pair, seed, most_sizes, draws=k == 0) for k, pair in enumerate(traced)]
        for k, stepper in enumerate(together):
            stepper.together, stepper.number = together, k
        return together

    @staticmethod
    def of(source: StepSource, traced: TracedProgram, seed: int, most_sizes: int = 8, draws: bool = True) -> Stepper:
        """Return a compiled stepper at step 0, without a session.

        most_sizes: programs kept if calls choose sizes. draws: also draw the first parameters.
        """
        free = source.free
        built = traced.arrays() if free.axes else traced.compiled()
        sized = SizedPrograms(free, most_sizes, OWN_SIZES, OWN_SIZES_ON_GPU) if free.axes else None
        values = {**built.program.meta.get("hyper", {}), **source.optimizer.hyper}
        # drawn on another thread while pipelines are compiled
        first = beside(partial(params.drawn, params.drawable(built.program), seed)) if draws else None
        rate = Rate(as_schedule(source.optimizer.lr))
        return Stepper(source, RunProgram(built), seed, Knobs(rate, values), first, sized)

    @property
    def stream(self) -> int:
        """The seed of this loss's random numbers in steps: the training's for the first loss, else its own."""
        return stream_of(self.seed, self.number)

    @property
    def built(self) -> Built:
        """The compiled step; if calls choose sizes, the program that only holds the arrays all steps share."""
        return self.main.built

    @property
    def program(self) -> Program:
        """The program of `built`."""
        return self.main.program

    @property
    def latest(self) -> RunProgram:
        """The program to inspect: if calls choose sizes, that of the sizes used last."""
        return (self.sized and self.sized.latest) or self.main

    def begin(
        self, session: Session, program: RunProgram, arrays: Mapping[str, Any], knobs: Knobs
    ) -> tuple[dict[str, Any], int, reference.Checked | None]:
        """Return the inputs of the next step, its number, and under TRACEGRAD_CHECK what to compare it with."""
        step = self.submitted + 1
        checked = None
        if self.sized is not None:
            self.sized.update(session, program.step, self.source)
        program.load(session)
        hyper = knobs.upload(program.hyper, step, self.stream)
        inputs = {**program.in_room(arrays), **hyper, **program.numbers}
        if reference.enabled():
            env = {**self.read(session), **by_role("input", program.given(arrays)), **hyper}
            checked = reference.checked(session, program.built, inputs, env)
        self.submitted = step
        self.in_flight += 1
        return inputs, step, checked

    def applied(self, step: int) -> None:
        """Record that the step was applied."""
        self.counter = step
        self.in_flight -= 1

    def lost(self, step: int) -> None:
        """Record a step without a result. The next step gets its number, unless later steps are in flight."""
        self.in_flight -= 1
        if not self.in_flight:
            self.submitted = self.counter
        elif step == self.submitted:
            self.submitted -= 1

    def rewind(self, session: Session) -> None:
        """Forget steps submitted since the last applied one: the next step is number `counter + 1`."""
        for stepper in self.together:
            stepper.submitted, stepper.in_flight = stepper.counter, 0
        session.write(HALTED, np.zeros(1, np.int32))

    def restart(self, session: Session, counter: int) -> None:
        """Set the number of applied steps to `counter`, and forget steps in flight, as `rewind` does."""
        self.counter = counter
        self.rewind(session)

    def timings(
        self, session: Session, program: RunProgram, arrays: Mapping[str, Any], knobs: Knobs, runs: int
    ) -> Timings:
        """Time the next step without applying it: a halted device computes a step, and keeps its old values.

        Gradients are not protected by the halt, so they are read before and written back.
        """
        step = self.counter + 1
        kept = [b.name for b in self.program.buffers if b.role == "grad" or b.name == HALTED]
        before = {name: session.read(name) for name in kept}
        try:
            hyper = knobs.upload(program.hyper, step, self.stream)
            session.write(HALTED, np.ones(1, np.int32))
            return session.timings(program.load(session), {**program.in_room(arrays), **hyper, **program.numbers}, runs)
        finally:
            for name, x in before.items():
                session.write(name, x)

    def install(self, session: Session) -> None:
        """Load the programs; write the first parameters, and the arrays filled with a copy of them."""
        for stepper in self.together:
            stepper.main.load(session)
            bounds.tell(session, stepper.program, bounds.filled(stepper.program))
        self.draw(session)
        for stepper in self.together:
            stepper.freeze(session, stepper.frozen)
            stepper._fill(session, [b for b in stepper.program.buffers if b.fill == COPY_OF_PARAMS])

    def take_over(self, session: Session, source: StepSource, built: Built) -> None:
        """Continue with another program of the same model, which has these arrays and perhaps more."""
        had = {b.name for b in self.program.buffers}
        before = bounds.known(session, self.program)
        with blamed_lines(built.graph, built.program):
            new = session.load(built.program)
        self.main.unload(session)
        self.main.take(built)
        self.source, self.main.handle = source, new
        if self.sized is not None:
            for program in self.sized.drop():
                program.unload(session)
        self.freeze(session, self.frozen)
        bounds.tell(session, self.program, bounds.filled(self.program) | before)
        self._fill(session, [b for b in self.program.buffers if b.fill == COPY_OF_PARAMS and b.name not in had])

    def freeze(self, session: Session, frozen: Sequence[str]) -> None:
        """Freeze these parameters and no others, from the next step on. Has no effect on a program without masks."""
        self.frozen = tuple(frozen)
        params.write_masks(session, self.program, self.frozen)

    def draw(self, session: Session) -> None:
        """Draw the parameters and states from the seed, and write them."""
        fields, first, self.first = params.drawable(self.program), self.first, None
        arrays = first() if first else params.drawn(fields, self.seed)
        params.upload(session, self.program, fields, arrays)
        for program in [stepper.program for stepper in self.together]:
            bounds.tell(session, program, bounds.written(program, params.drawable(program), arrays))

    def upload(self, session: Session, arrays: Mapping[str, Any]) -> None:
        """Write some parameters, by name."""
        fields = self.program.params
        params.upload(session, self.program, fields, arrays)
        for program in [stepper.program for stepper in self.together]:
            before = bounds.known(session, program)
            new = bounds.written(program, program.params, arrays)
            bounds.tell(session, program, {name: max(x, before[name]) for name, x in new.items()})

    def clear(self, session: Session) -> None:
        """Reset every optimizer array to its initial values, and the step to 0."""
        own = (bounds.array_of(self.program), *params.masks(self.program))
        kept = [b for b in self.program.buffers if b.role == "state" and b.fill != DRAWN]
        self._fill(session, [b for b in kept if b.name not in own])
        self.restart(session, 0)

    def _fill(self, session: Session, buffers: Sequence[Buffer]) -> None:
        for b in buffers:
            copied = b.fill == COPY_OF_PARAMS
            x = self._run(session.read(COPY_OF_PARAMS)) if copied else np.full(b.size, b.fill, DTYPES[b.dtype].numpy)
            session.write(b.name, x)
            bounds.tell(session, self.program, {b.name: bounds.largest(x)})

    def reset(self, session: Session, parameters: bool, optimizer: bool, seed: int) -> None:
        """Do what `CompiledTraining.reset` documents."""
        for stepper in self.together:
            if seed != stepper.seed:
                stepper.seed, stepper.first = seed, None
        if parameters:
            self.draw(session)
        for stepper in self.together if optimizer else ():
            knobs = stepper.knobs
            stepper.clear(session)
            stepper.knobs = Knobs(Rate(restarted(knobs.rate.schedule)), knobs.values)

    def read(self, session: Session) -> dict[str, Any]:
        """Return all persistent values by role and name of the graph's leaves: parameters, arenas, optimizer arrays."""
        program = self.program
        out: dict[str, Any] = {}
        for name, x in params.download(session, program, program.params).items():
            out[f"param.{name}"] = out[f"frozen.{name}"] = x
        for name, x in params.download(session, program, program.states).items():
            out[f"state.{name}"] = x
        for k in dict.fromkeys(f.buffer for f in program.params):
            out[f"state.{program.buffers[k].name}"] = session.read(program.buffers[k].name)
        if COPY_OF_PARAMS in (program.buffers[f.buffer].name for f in program.trained):
            out[f"state.{COPY_OF_PARAMS}"] = self._run(out[f"state.{COPY_OF_PARAMS}"])
        return out

    def _run(self, x: Any) -> Any:
        return reference.own_run(self.program, x)


def stream_of(seed: int, number: int) -> int:
    """Return a seed for the loss of this number, from 0 on: the finalizer of MurmurHash3, in its 32-bit variant."""
    if not number:
        return seed
    x = (seed + 0x9E3779B9 * number) & WORD
    x = (x ^ x >> 16) * 0x85EBCA6B & WORD
    x = (x ^ x >> 13) * 0xC2B2AE35 & WORD
    return x ^ x >> 16


def by_role(role: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arrays under the names that the reference uses, such as "param.W"."""
    return {f"{role}.{name}": x for name, x in arrays.items()}


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
    """Return the state without arrays. A schedule that begins at a step that was not applied has not begun."""
    program, knobs, start = stepper.program, stepper.knobs, stepper.knobs.rate.start
    return Snapshot(
        params={},
        states={},
        step=stepper.counter,
        seed=stepper.seed,
        knobs=Knobs(Rate(knobs.rate.schedule, start if start and start <= stepper.counter else None), knobs.values),
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
    """Continue with a snapshot's step, seed, hyperparameters and schedule; its arrays are restored elsewhere."""
    stepper.seed, stepper.knobs = snapshot.seed, snapshot.knobs
    stepper.freeze(session, snapshot.frozen)
    stepper.restart(session, snapshot.step)


def restore_all(session: Session, stepper: Stepper, snapshots: Sequence[Snapshot]) -> None:
    """Continue from one snapshot for each loss."""
    for one, snapshot in zip(stepper.together, snapshots, strict=True):
        restore(session, one, snapshot)


def states_of(program: Program) -> tuple[Field, ...]:
    """Return the states in a snapshot, besides parameters."""
    own = (HALTED, bounds.array_of(program), *params.masks(program))
    return tuple(f for f in program.states if f.name not in own)
