"""Keep the examples of a `fit` on a GPU if that is faster, and take steps whose batches are made there."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tracegrad.arrays import Array, np
from tracegrad.compiler.build import Built
from tracegrad.compiler.feed import PREFIX, ROWS, data_of, fed, make_feed
from tracegrad.engine.inputs import check_inputs
from tracegrad.engine.pending import Pending, resolved
from tracegrad.engine.results import StepResult
from tracegrad.engine.run_program import UNLOADED, RunProgram
from tracegrad.engine.stepper import Stepper
from tracegrad.engine.steps import StepCall
from tracegrad.errors import AbortedError, DeviceError, InputError, TracegradError
from tracegrad.program import Field, with_rows
from tracegrad.runtime import tab
from tracegrad.runtime.base import DeviceInfo, Session
from tracegrad.runtime.memory import to_storage
from tracegrad.training.data import Rows
from tracegrad.training.training import Training
from tracegrad.tuning import FED_FROM, FED_MOST, FED_TOTAL

log = logging.getLogger("tracegrad")


class FedProgram(RunProgram):
    """A step's program that makes its batches on the device: a run gets the indices of rows instead of inputs."""

    __slots__ = ("_made", "_of", "arrays")

    def __init__(self, step: RunProgram, arrays: Mapping[str, Array]) -> None:
        self._of, self._made, self.arrays = step, step.built, arrays
        super().__init__(self._behind_feed())

    @property
    def step(self) -> RunProgram:
        """The step's program, without the feed that makes its batch."""
        return self._of

    def given(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return the batch of a run."""
        return {name: x[arrays[ROWS]] for name, x in self.arrays.items()}

    def load(self, session: Session) -> int:
        """Return the handle; first follow the step, if it was compiled again."""
        if self._made is not self._of.built:
            self.unload(session)
            self._made = self._of.built
            self.take(self._behind_feed())
        return super().load(session)

    def takes(self, arrays: Mapping[str, Array]) -> bool:
        """Return whether this program can also make batches of these examples."""
        return [x.shape for x in arrays.values()] == [x.shape for x in self.arrays.values()]

    def _behind_feed(self) -> Built:
        step = self._made.program
        count = len(next(iter(self.arrays.values())))
        return self._made._replace(program=fed(step, make_feed(step, self.arrays, count)))


class Placed:
    """The examples of a `fit`, by input name, in persistent arrays on the device of its training, until `end`."""

    def __init__(self, train: Training, data: Rows, fields: Sequence[Field], changing: bool) -> None:
        """fields: the inputs of a step on one batch. changing: hooks could change the arrays between epochs.

        Raises InputError for arrays that a batch could not be made of.
        """
        count = len(next(iter(data.arrays.values())))
        self.train, self.data, self.changing = train, data, changing
        self._fields = [_of_all(f, count) for f in fields]
        self._arrays = self._checked()
        self._program, self._handle = data_of({f.name: f.type for f in self._fields}), UNLOADED
        self._fed: list[FedProgram] = []

    def begin(self, session: Session) -> None:
        """Allocate the arrays, and write them. Raises DeviceError if another `fit` has put its own there."""
        if self.train.placed:
            raise DeviceError("another fit of this training keeps its examples on the device")
        self._handle = session.load(self._program)
        self._write(session)
        self.train.placed = True

    def renew(self) -> None:
        """Write the arrays again, before an epoch, if hooks could have changed them. Raises InputError if invalid."""
        if self.changing:
            self.train.worker.call(self._write_again)

    def _write_again(self, session: Session) -> None:
        self._arrays = self._checked()
        for program in self._fed:
            program.arrays = self._arrays
        self._write(session)

    def _write(self, session: Session) -> None:
        for f in self._fields:
            session.write(PREFIX + f.name, to_storage(self._arrays[f.name], f.dtype))

    def _checked(self) -> dict[str, Array]:
        return check_inputs(self._fields, self.data.arrays, "fit", copied=np.ascontiguousarray)

    def end(self) -> None:
        """Free the arrays. The programs stay compiled."""
        with contextlib.suppress(AbortedError, DeviceError):  # a training that was closed has freed them
            self.train.worker.call(self._free)

    def _free(self, session: Session) -> None:
        self.train.placed = False
        for program in self._fed:
            program.unload(session)
        session.unload(self._handle)

    def step(self, loss: str, rows: Array) -> Pending[StepResult] | None:
        """Queue a step on these rows, as `CompiledTraining.step` does. None if the host must make the batch."""
        train = self.train
        if (refusal := train.worker.refusal) is not None:
            return resolved(refusal, "step")
        stepper = train.store.steppers[loss]
        program = self._of(_program(train, stepper, self.data.arrays, len(rows)))
        if program is None:
            return None
        pending: Pending[StepResult] = train.worker.pending("step")
        call = StepCall(stepper, stepper.knobs, pending, 1, "step", program)
        pending.owner = train
        train.worker.enqueue(call.runs([{ROWS: rows.astype(np.int32)}]), pending)
        return pending

    def _of(self, step: RunProgram) -> RunProgram | None:
        """Return the program that makes batches of these examples; None if the step's program serves many sizes."""
        known = step.fed
        if step.base is not None or known in self._fed:
            return known
        if not isinstance(known, FedProgram) or not known.takes(self._arrays):
            known = step.fed = FedProgram(step, self._arrays)
        known.arrays = self._arrays
        self._fed.append(known)
        return known


def _of_all(f: Field, count: int) -> Field:
    """Return the input for all examples. Raise InputError if only some rows of a batch are indices."""
    n = f.shape[0]
    for spec in (f.spec, *f.spec.get("others", ())):
        if spec.get("box", [[0, n - 1]])[0] != [0, n - 1]:
            raise InputError(f"{f.name}: rows of a batch have different limits")
    return replace(f, shape=(count, *f.shape[1:]), spec=with_rows(f.spec, n, count))


def placed(train: Training, data: Rows, steps: int, changing: bool) -> Placed | None:
    """Put the examples on the device, and return them; None where the host should make the batches.

    steps: the number of steps to come. changing: as for `Placed`.
    """
    batch = sum(x[:1].nbytes for x in data.arrays.values()) * data.size
    whole = sum(x.nbytes for x in data.arrays.values())
    once = steps < 2 * len(data)  # then uploading the examples saves nothing
    if once or batch < FED_FROM or steps * batch < FED_TOTAL or whole > FED_MOST or not gathers(train.device):
        return None
    try:
        programs = [_program(train, s, data.arrays, data.size) for s in train.store.steppers.values()]
        fields = {f.name: f for program in programs for f in program.inputs}
        examples = Placed(train, data, [*fields.values()], changing)
        train.worker.call(examples.begin)
    except TracegradError as e:  # a step will report wrong inputs; any other problem only costs time
        log.info("the host makes the batches of fit: %s", e)
        return None
    return examples


def gathers(device: DeviceInfo) -> bool:
    """Return whether a device makes batches faster than the host."""
    return device.name == "webgpu" and not device.software and not tab.IN_TAB


def _program(train: Training, stepper: Stepper, arrays: Mapping[str, Any], size: int) -> RunProgram:
    """Return the program of a step on a batch of this size."""
    if stepper.sized is None:
        return stepper.main
    given = {n: np.broadcast_to(arrays[n][:1], (size, *arrays[n].shape[1:])) for n in stepper.source.inputs}
    return train.store.program_for(stepper, given, "step")[0]
