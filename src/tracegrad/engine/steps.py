"""Training steps on the worker's thread. A step is numbered when submitted; if not applied, the error says why."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tracegrad.arrays import handed_out, np
from tracegrad.compiler.layout import HALTED
from tracegrad.compiler.step_graph import SKIPPED
from tracegrad.dtypes import whole
from tracegrad.engine import bounds, reference
from tracegrad.engine.knobs import Knobs
from tracegrad.engine.pending import Pending
from tracegrad.engine.reference import blame
from tracegrad.engine.results import Aborted, Aux, Captures, CompletedStep, Failed, Loss, StepResult, failure
from tracegrad.engine.run_program import AUX, CAPTURE, RunProgram
from tracegrad.engine.stepper import Stepper, by_role
from tracegrad.errors import DeviceError, InputError, NonFiniteError
from tracegrad.ir.states import STATE
from tracegrad.program import Field
from tracegrad.refusals import shown
from tracegrad.runtime import tab
from tracegrad.runtime.base import Session

NONE = Captures()
MOST_STEPS = 1_000_000  # of one call, which takes some 400 bytes for each


@dataclass(slots=True, eq=False)
class StepCall:
    """One call of `step` or `run_steps`: `n` steps that resolve one Pending."""

    stepper: Stepper
    knobs: Knobs
    pending: Pending[StepResult]
    n: int
    what: str
    program: RunProgram
    losses: list[float] = field(default_factory=list[float])
    skipped: int = 0

    def runs(self, each: Iterable[Mapping[str, Any]]) -> list[StepRun]:
        """Return the runs of this call, one for each of its steps, whose inputs these are."""
        return [StepRun(self, k, arrays, self.pending, self.program) for k, arrays in enumerate(each)]


@dataclass(slots=True, eq=False)
class StepRun:
    """One training step, for the worker's queue. `run_program.Run` documents each method."""

    call: StepCall
    index: int
    arrays: Mapping[str, Any]  # kept until the result is known, because a replay and the search for a NaN need them
    pending: Pending[StepResult]
    of: RunProgram
    step: int = 0  # its number, once it has begun
    checked: reference.Checked | None = None
    differs: str = ""  # how the step differs from the reference

    def begin(self, session: Session) -> tuple[int, Mapping[str, Any]] | None:
        """Number the step, and return its handle and inputs with hyperparameters. Return None if the call has ended."""
        self.step = 0
        if self.pending.done():
            return None  # an earlier step of the same call failed
        stepper = self.call.stepper
        if stepper.replaced:
            self.pending.resolve(Aborted(stepper.replaced))
            return None
        inputs, self.step, self.checked = stepper.begin(session, self.of, self.arrays, self.call.knobs)
        return self.of.handle, inputs

    def finish(self, session: Session, outputs: Mapping[str, Any]) -> bool:
        """Count the step, and resolve the call after its last step. Return False if the step must not count."""
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
            if self.of.tells_more:
                outputs = self.of.of_room(outputs)
                captures, aux = captures_of(outputs), Aux(_named(AUX, outputs))
            losses = handed_out(np.asarray(call.losses, np.float32))
            self.pending.resolve(CompletedStep(captures, Loss(loss), aux, self.step, losses, call.skipped))
        return True

    def recover(self, session: Session, outputs: dict[str, Any]) -> None:
        """If the loss is finite, try the step again without bounds. Unless that works, fail the call.

        The error names the op at fault. Later steps can run afterwards.
        A step that differed from the reference is undone without a second try.
        """
        call = self.call
        if self.checked is not None and self.differs:
            self._undo(session, self.checked)
            return
        loss = float(outputs["loss"])
        overflows = ""
        if np.isfinite(loss) and tab.can_wait():
            tried = self._tried(session)
            if tried is None:
                return
            overflows = tried
        try:
            hyper = call.knobs.upload(self.of.hyper, self.step, call.stepper.stream)
            inputs = by_role("input", self.of.given(self.arrays))
            env = {**call.stepper.read(session), **inputs, **hyper}
            found = f"The update overflows in {overflows}" if overflows else blame(self.of.graph, env)
        except Exception as e:  # the step failed for its own reason; a failure of the search must not hide it
            found = f"the first op to blame could not be found: {type(e).__name__}: {e}"
        finally:
            call.stepper.rewind(session)
        what = f"the loss is {loss}"
        if np.isfinite(loss):
            what = f"the loss is {loss:.6g}, but {self._odd(overflows)} is not finite"
        head = f"{call.what}: step {self.step}: {what}; nothing was changed"
        if call.n > 1:
            head += f" (step {self.index + 1} of {call.n}; those before it were applied, those after it not run)"
        self.pending.resolve(Failed(NonFiniteError(f"{head}\n{found}")))

    def _tried(self, session: Session) -> str | None:
        """Run the step again without bounds, then in a unit in which no square of a finite gradient overflows.

        Return None if the step was applied. Else nothing was changed; return the arrays that would not be finite, or ""
        if a gradient is not finite.
        """
        stepper = self.call.stepper
        graph = self.of.built.graph
        before = reference.written(session, stepper.program, graph)
        overflows = ""
        for knobs in (self.call.knobs, self.call.knobs.wide()):
            stepper.rewind(session)
            bounds.lift(session, stepper.program)
            inputs, self.step, self.checked = stepper.begin(session, self.of, self.arrays, knobs)
            outputs = session.run(self.of.handle, [inputs]).outputs()[0]
            if not outputs[HALTED]:
                after = reference.written(session, stepper.program, graph)
                overflows = bounds.not_finite(stepper.program, after)
                if not overflows:
                    bounds.tell(session, stepper.program, bounds.measured(after))
                    self._take(session, outputs)
                    return None
            stepper.in_flight -= 1
            if overflows:
                break
        for name, values in before.items():
            session.write(name, values)
        bounds.tell(session, stepper.program, bounds.measured(before))
        return overflows

    def _odd(self, overflows: str) -> str:
        """Describe what is not finite in a step that was not applied, although its loss is finite."""
        if overflows:
            return "what the update would write"
        # Under bounds a trial checks the gradient only. Otherwise, it checks the update's writes as well.
        looked = tab.can_wait() and bounds.bounded(self.call.stepper.program)
        writes = any(name.startswith(STATE) for name in self.of.built.graph.writes)
        state = ", or the new value of a state," if writes else ""
        return f"a gradient{state}" if looked else f"a gradient{state}, or a value that the update computes from it,"

    def _take(self, session: Session, outputs: dict[str, Any]) -> None:
        if not self.finish(session, outputs) and self.checked is not None:
            self._undo(session, self.checked)

    def _undo(self, session: Session, checked: reference.Checked) -> None:
        """Undo the step: the device's results differ from the reference."""
        call = self.call
        found = checked.blame(session)
        call.stepper.rewind(session)
        head = f"{call.what}: step {self.step}: {self.differs} (TRACEGRAD_CHECK); nothing was changed"
        self.pending.resolve(Failed(DeviceError(f"{head}\n{found}")))

    def fail(self, error: BaseException) -> None:
        """Resolve the call with the error, and give the step's number back unless later steps are under way."""
        if self.step:
            self.call.stepper.lost(self.step)
        self.pending.resolve(failure(error, self.call.what))


def captures_of(outputs: Mapping[str, Any]) -> Captures:
    """Return the captures among the outputs of a run."""
    return Captures(_named(CAPTURE, outputs))


def _named(kind: str, outputs: Mapping[str, Any]) -> dict[str, Any]:
    return {name.removeprefix(kind): handed_out(x) for name, x in outputs.items() if name.startswith(kind)}


def split_steps(arrays: Mapping[str, Any], fields: tuple[Field, ...], n: int) -> Iterator[dict[str, Any]]:
    """Yield the inputs of each of n steps: element k of an added axis 0, or the whole array."""
    ranks = {f.name: len(f.shape) for f in fields}
    for k in range(n):
        yield {name: x[k] if x.ndim > ranks[name] else x for name, x in arrays.items()}


def number_of_steps(n: object) -> int:
    """Return `n` of `run_steps`. Raise InputError unless it is an integer from 1 to MOST_STEPS."""
    count = whole(n)
    if count is None or not 1 <= count <= MOST_STEPS:
        hint = "; the number of steps comes first, as in run_steps(10, batch)" if not isinstance(n, int) else ""
        raise InputError.here(f"run_steps: n must be an integer from 1 to {MOST_STEPS}, got {shown(n)}{hint}")
    return count
