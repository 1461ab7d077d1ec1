"""Training steps on the worker's thread: numbered when submitted, counted when applied, explained when not."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from tracegrad.arrays import handed_out, np
from tracegrad.compiler.build import SKIPPED, Built, StepSource, TracedStep
from tracegrad.compiler.dispatches import blamed_lines
from tracegrad.compiler.persistent import HALTED
from tracegrad.dtypes import DTYPES
from tracegrad.engine import bounds, freezing, indexcheck, params, reference
from tracegrad.engine.drives import beside
from tracegrad.engine.knobs import Knobs, Rate
from tracegrad.engine.nonfinite import blame
from tracegrad.engine.results import Aborted, Aux, Captures, CompletedStep, Failed, Pending, StepResult, failure
from tracegrad.errors import DeviceError, InputError, NonFiniteError
from tracegrad.hypers import PREFIX
from tracegrad.lr import as_schedule, restarted
from tracegrad.program import DRAWN, Buffer, Field, Program
from tracegrad.refusals import shown
from tracegrad.runtime import tab
from tracegrad.runtime.base import Session, Timings
from tracegrad.shapes import whole
from tracegrad.states import STATE

AUX, CAPTURE = "aux.", "capture."  # of output names
NONE = Captures()
COPY_OF_PARAMS = "params"  # a Buffer.fill, and the name of the array it stands for


@dataclass(slots=True, eq=False)
class Stepper:
    """One model being trained: its program, and where it stands. Changed on the worker's thread only."""

    source: StepSource
    built: Built
    seed: int
    knobs: Knobs  # of the next step; a queued step keeps those that its call found
    first: Callable[[], Mapping[str, Any]] | None = None  # gives the parameters, drawn while pipelines are compiled
    handle: int = -1
    at_once: int = 1  # runs worth one batch
    counter: int = 0  # steps applied
    submitted: int = 0  # number of the last step submitted, if all those in flight are applied
    in_flight: int = 0
    replaced: str = ""  # why no more of its work is done
    frozen: tuple[str, ...] = ()  # parameters that steps leave alone
    inputs: tuple[Field, ...] = ()
    hyper: tuple[Field, ...] = ()
    tells_more: bool = False  # than the loss
    commits: bool = False  # a step that is not applied changes nothing, and nor do those behind it

    @staticmethod
    def of(source: StepSource, traced: TracedStep, seed: int) -> Stepper:
        """A stepper at step 0, compiled; it has no session yet."""
        built = traced.compiled()
        values = {**built.program.meta.get("hyper", {}), **source.optimizer.hyper}
        first = beside(partial(params.drawn, params.drawable(built.program), seed))  # pipelines are compiled meanwhile
        return Stepper(source, built, seed, Knobs(Rate(as_schedule(source.optimizer.lr)), values), first)

    def __post_init__(self) -> None:
        self.tells_more = any(f.name.startswith((AUX, CAPTURE)) for f in self.program.outputs)
        self.hyper = tuple(f for f in self.program.inputs if f.name.startswith(PREFIX))
        self.inputs = tuple(f for f in self.program.inputs if not f.name.startswith(PREFIX))

    @property
    def program(self) -> Program:
        """The compiled step."""
        return self.built.program

    def begin(
        self, session: Session, arrays: Mapping[str, Any], knobs: Knobs
    ) -> tuple[dict[str, Any], int, reference.Checked | None]:
        """The inputs of the next step, its number, and under TRACEGRAD_CHECK what it is compared by."""
        step = self.submitted + 1
        checked = None
        try:
            hyper = knobs.upload(self.hyper, step, self.seed)
            inputs = {**arrays, **hyper}
            if indexcheck.enabled():
                env = {**self.read(session), **by_role("input", arrays), **hyper}
                checked = reference.checked(session, self.built, inputs, env)
        except BaseException:
            knobs.rate.rewind(step)
            raise
        self.submitted = step
        self.in_flight += 1
        return inputs, step, checked

    def applied(self, step: int) -> None:
        """The step's result is in."""
        self.counter = step
        self.in_flight -= 1

    def lost(self, step: int) -> bool:
        """A step gave no result; those behind it keep their numbers. Will another step get this one's number?"""
        self.in_flight -= 1
        if not self.in_flight:
            self.submitted = self.counter
        elif step == self.submitted:
            self.submitted -= 1
        return self.submitted < step

    def rewind(self, session: Session) -> None:
        """Nothing of what was submitted since the last applied step counts: the next is number `counter + 1`."""
        self.submitted, self.in_flight = self.counter, 0
        session.write(HALTED, np.zeros(1, np.int32))

    def restart(self, session: Session, counter: int) -> None:
        """Stand at `counter` applied steps; nothing is in flight."""
        self.counter = counter
        self.rewind(session)

    def timings(self, session: Session, arrays: Mapping[str, Any], knobs: Knobs, runs: int) -> Timings:
        """Time the next step without doing it: a halted device computes all of it, and keeps what it has.

        Gradients are kept from no step, so they are read before and written back.
        """
        step = self.counter + 1
        kept = [b.name for b in self.program.buffers if b.role == "grad" or b.name == HALTED]
        before = {name: session.read(name) for name in kept}
        try:
            hyper = knobs.upload(self.hyper, step, self.seed)
            session.write(HALTED, np.ones(1, np.int32))
            return session.timings(self.handle, {**arrays, **hyper}, runs)
        finally:
            knobs.rate.rewind(step)
            for name, x in before.items():
                session.write(name, x)

    def install(self, session: Session) -> None:
        """Load the program, and write the first parameters and what is filled with a copy of them."""
        with blamed_lines(self.built.graph, self.program):
            self.handle = session.load(self.program)
        bounds.tell(session, self.program, bounds.filled(self.program))
        self.draw(session)
        self._fill(session, [b for b in self.program.buffers if b.fill == COPY_OF_PARAMS])

    def take_over(self, session: Session, source: StepSource, built: Built) -> None:
        """Go on with another program of the same model, whose arrays are these and perhaps more."""
        had = {b.name for b in self.program.buffers}
        before = bounds.known(session, self.program)
        with blamed_lines(built.graph, built.program):
            new = session.load(built.program)
        session.unload(self.handle)
        self.source, self.built, self.handle, self.at_once = source, built, new, 1
        self.__post_init__()
        self.freeze(session, self.frozen)
        bounds.tell(session, self.program, bounds.filled(self.program) | before)
        self._fill(session, [b for b in self.program.buffers if b.fill == COPY_OF_PARAMS and b.name not in had])

    def freeze(self, session: Session, frozen: Sequence[str]) -> None:
        """From the next step on, leave alone these parameters and no other. The program has masks, or none is named."""
        self.frozen = tuple(frozen)
        freezing.write(session, self.program, self.frozen)

    def draw(self, session: Session) -> None:
        """Draw the parameters and states from the seed, and write them."""
        fields, first, self.first = params.drawable(self.program), self.first, None
        arrays = first() if first else params.drawn(fields, self.seed)
        params.upload(session, self.program, fields, arrays)
        bounds.tell(session, self.program, bounds.written(self.program, fields, arrays))

    def upload(self, session: Session, arrays: Mapping[str, Any]) -> None:
        """Write some parameters, by name."""
        fields = self.program.params
        params.upload(session, self.program, fields, arrays)
        before = bounds.known(session, self.program)
        new = bounds.written(self.program, fields, arrays)
        bounds.tell(session, self.program, {name: max(x, before[name]) for name, x in new.items()})

    def clear(self, session: Session) -> None:
        """Every optimizer array as it was at first, and no step done."""
        own = (bounds.array_of(self.program), *freezing.arrays(self.program))
        kept = [b for b in self.program.buffers if b.role == "state" and b.fill != DRAWN]
        self._fill(session, [b for b in kept if b.name not in own])
        self.restart(session, 0)

    def _fill(self, session: Session, buffers: Sequence[Buffer]) -> None:
        for b in buffers:
            copied = b.fill == COPY_OF_PARAMS
            x = session.read(COPY_OF_PARAMS) if copied else np.full(b.size, b.fill, DTYPES[b.dtype].numpy)
            session.write(b.name, x)
            bounds.tell(session, self.program, {b.name: bounds.largest(x)})

    def reset(self, session: Session, parameters: bool, optimizer: bool) -> None:
        """See `CompiledTraining.reset`."""
        knobs = self.knobs
        if parameters:
            self.draw(session)
        if optimizer:
            self.clear(session)
            self.knobs = Knobs(Rate(restarted(knobs.rate.schedule)), knobs.values)

    def read(self, session: Session) -> dict[str, Any]:
        """All persistent values by role and name of the graph's leaves: parameters, arenas, optimizer arrays."""
        program = self.program
        out: dict[str, Any] = {}
        for name, x in params.download(session, program, program.params).items():
            out[f"param.{name}"] = out[f"frozen.{name}"] = x
        for name, x in params.download(session, program, program.states).items():
            out[f"state.{name}"] = x
        for k in dict.fromkeys(f.buffer for f in program.params):
            out[f"state.{program.buffers[k].name}"] = session.read(program.buffers[k].name)
        return out


@dataclass(slots=True, eq=False)
class StepCall:
    """One call of `step` or `run_steps`: `n` steps that resolve one Pending."""

    stepper: Stepper
    knobs: Knobs
    pending: Pending[StepResult]
    n: int
    what: str
    losses: list[float] = field(default_factory=list[float])
    skipped: int = 0

    def runs(self, arrays: Callable[[int], Mapping[str, Any]]) -> list[StepRun]:
        """The runs of this call; `arrays(k)` are the inputs of the k-th."""
        return [self.run(k, arrays(k)) for k in range(self.n)]

    def run(self, k: int, arrays: Mapping[str, Any]) -> StepRun:
        """The k-th of them."""
        return StepRun(self, k, arrays, self.pending, self.stepper)


@dataclass(slots=True, eq=False)
class StepRun:
    """One step, as the worker runs it; `batches.Run` has the meaning of each method."""

    call: StepCall
    index: int
    arrays: Mapping[str, Any]  # kept until the result is known: a replay and the search for a NaN need them
    pending: Pending[StepResult]
    of: Stepper
    step: int = 0  # its number, once it has begun
    checked: reference.Checked | None = None
    differs: str = ""  # from the reference, and how

    def begin(self, session: Session) -> tuple[int, Mapping[str, Any]] | None:
        """Number the step, and add the hyperparameters to its inputs."""
        self.step = 0
        if self.pending.done():
            return None  # an earlier step of the same call failed
        stepper = self.of
        if stepper.replaced:
            self.pending.resolve(Aborted(stepper.replaced))
            return None
        inputs, self.step, self.checked = stepper.begin(session, self.arrays, self.call.knobs)
        return stepper.handle, inputs

    def finish(self, session: Session, outputs: dict[str, Any]) -> bool:
        """Count the step, and resolve the call behind its last one."""
        if outputs[HALTED]:
            return False
        self.differs = self.checked.differs(session, outputs) if self.checked is not None else ""
        if self.differs:
            return False
        call = self.call
        call.stepper.applied(self.step)
        loss = float(outputs["loss"])
        call.losses.append(loss)
        call.skipped += int(outputs.get(SKIPPED, 0))
        if self.index == call.n - 1:
            captures, aux = NONE, Aux()
            if call.stepper.tells_more:
                captures, aux = captures_of(outputs), Aux(_named(AUX, outputs))
            losses = handed_out(np.asarray(call.losses, np.float32))
            self.pending.resolve(CompletedStep(captures, loss, aux, self.step, losses, call.skipped))
        return True

    def recover(self, session: Session, outputs: dict[str, Any]) -> None:
        """Name the op that went wrong, and let the steps behind run."""
        call = self.call
        if self.checked is not None and self.differs:
            self._undo(session, self.checked)
            return
        call.knobs.rate.rewind(self.step)
        loss = float(outputs["loss"])
        overflows = ""
        if np.isfinite(loss) and tab.can_wait():
            tried = self._tried(session)
            if tried is None:
                return
            overflows = tried
        try:
            hyper = call.knobs.upload(call.stepper.hyper, self.step, call.stepper.seed)
            inputs = by_role("input", self.arrays)
            env = {**call.stepper.read(session), **inputs, **hyper}
            found = f"The update overflows in {overflows}" if overflows else blame(call.stepper.built.graph, env)
        except Exception as e:  # the step failed for its own reason; that the search failed too must not hide it
            found = f"the first op to blame could not be found: {type(e).__name__}: {e}"
        finally:
            call.knobs.rate.rewind(self.step)
            call.stepper.rewind(session)
        what = f"the loss is {loss}"
        if np.isfinite(loss):
            what = f"the loss is {loss:.6g}, but {self._odd(overflows)} is not finite"
        head = f"{call.what}: step {self.step}: {what}; nothing was changed by it"
        if call.n > 1:
            head += f" (step {self.index + 1} of {call.n}; those before it were applied, those after it not run)"
        self.pending.resolve(Failed(NonFiniteError(f"{head}\n{found}")))

    def _tried(self, session: Session) -> str | None:
        """Do the step whatever the bounds say, then in the unit in which no square of a finite gradient overflows.

        None: it is done. Else nothing was changed, and these arrays would not be finite; "" if a gradient is not.
        """
        stepper = self.call.stepper
        before = reference.written(session, stepper.program, stepper.built.graph)
        overflows = ""
        for knobs in (self.call.knobs, self.call.knobs.wide()):
            stepper.rewind(session)
            bounds.lift(session, stepper.program)
            inputs, self.step, self.checked = stepper.begin(session, self.arrays, knobs)
            outputs = session.run(stepper.handle, [inputs]).outputs()[0]
            if not outputs[HALTED]:
                after = reference.written(session, stepper.program, stepper.built.graph)
                overflows = bounds.not_finite(stepper.program, after)
                if not overflows:
                    bounds.tell(session, stepper.program, bounds.measured(after))
                    self._take(session, outputs)
                    return None
            knobs.rate.rewind(self.step)
            stepper.in_flight -= 1
            if overflows:
                break
        for name, values in before.items():
            session.write(name, values)
        bounds.tell(session, stepper.program, bounds.measured(before))
        return overflows

    def _odd(self, overflows: str) -> str:
        """What is not finite in a step that was not applied, though its loss is finite."""
        if overflows:
            return "what the update would write"
        # Under bounds a trial looks at the gradient only. Otherwise, it looks at what the update writes as well.
        looked = tab.can_wait() and bounds.bounded(self.call.stepper.program)
        writes = any(name.startswith(STATE) for name in self.call.stepper.built.graph.writes)
        state = ", or the new value of a state," if writes else ""
        return f"a gradient{state}" if looked else f"a gradient{state}, or what the update makes of it,"

    def _take(self, session: Session, outputs: dict[str, Any]) -> None:
        if not self.finish(session, outputs) and self.checked is not None:
            self._undo(session, self.checked)

    def _undo(self, session: Session, checked: reference.Checked) -> None:
        """The device computed something else than the reference: the step does not count."""
        call = self.call
        found = checked.blame(session)
        call.knobs.rate.rewind(self.step)
        call.stepper.rewind(session)
        head = f"{call.what}: step {self.step}: {self.differs} (TRACEGRAD_CHECK); nothing was changed by it"
        self.pending.resolve(Failed(DeviceError(f"{head}\n{found}")))

    def fail(self, error: BaseException) -> None:
        """Give the number back, where no other step of a higher number is under way."""
        if self.step and self.of.lost(self.step):
            self.call.knobs.rate.rewind(self.step)
        self.pending.resolve(failure(error, self.call.what))


def by_role(role: str, arrays: Mapping[str, Any]) -> dict[str, Any]:
    """The names that the reference's environment gives them."""
    return {f"{role}.{name}": x for name, x in arrays.items()}


def captures_of(outputs: Mapping[str, Any]) -> Captures:
    """The captures among the outputs of a run."""
    return Captures(_named(CAPTURE, outputs))


def _named(kind: str, outputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(kind): handed_out(x) for name, x in outputs.items() if name.startswith(kind)}


def split_steps(arrays: Mapping[str, Any], fields: tuple[Field, ...], n: int) -> Callable[[int], dict[str, Any]]:
    """Inputs of the k-th of `n` steps: those with a leading axis are split, the others used again."""
    ranks = {f.name: len(f.shape) for f in fields}

    def at(k: int) -> dict[str, Any]:
        return {name: x[k] if x.ndim > ranks[name] else x for name, x in arrays.items()}

    return at


def number_of_steps(n: object) -> int:
    """`n` of `run_steps`; InputError unless it is an integer of at least 1."""
    count = whole(n)
    if count is None or count < 1:
        hint = "; the number of steps comes first, as in run_steps(10, batch)" if not isinstance(n, int) else ""
        raise InputError.here(f"run_steps: n must be an integer of at least 1, got {shown(n)}{hint}")
    return count
