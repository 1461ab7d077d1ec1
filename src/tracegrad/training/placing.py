"""Examples of a `fit` that stay on a GPU: whether they do, and steps on them."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

from tracegrad.arrays import Array, np
from tracegrad.compiler.feed import ROWS
from tracegrad.engine.examples import Examples
from tracegrad.engine.pending import Pending, resolved
from tracegrad.engine.programs import RunProgram
from tracegrad.engine.results import StepResult
from tracegrad.engine.stepper import Stepper
from tracegrad.engine.steps import StepCall
from tracegrad.errors import AbortedError, DeviceError, TracegradError
from tracegrad.runtime import tab
from tracegrad.runtime.base import DeviceInfo, Session
from tracegrad.training.data import Rows
from tracegrad.training.training import Training
from tracegrad.tuning import FED_FROM, FED_MOST, FED_TOTAL

log = logging.getLogger("tracegrad")


class Placed:
    """Examples on the device of a training, until `end`."""

    def __init__(self, train: Training, data: Rows, examples: Examples, changing: bool) -> None:
        """changing: hooks could change the arrays between epochs."""
        self.train, self.data, self.examples, self.changing = train, data, examples, changing

    def renew(self) -> None:
        """Write the arrays again, before an epoch, if hooks could have changed them."""
        if self.changing:
            self.train.worker.call(self.examples.write)

    def end(self) -> None:
        """Free the arrays."""
        with contextlib.suppress(AbortedError, DeviceError):  # a training that was closed has freed them
            self.train.worker.call(self._free)

    def _free(self, session: Session) -> None:
        self.train.placed = False
        self.examples.end(session)

    def step(self, loss: str, rows: Array) -> Pending[StepResult] | None:
        """Queue a step on these rows, as `CompiledTraining.step` does. None if the host must make the batch."""
        train = self.train
        if (refusal := train.worker.refusal) is not None:
            return resolved(refusal, "step")
        stepper = train.store.steppers[loss]
        program = self.examples.of(_program(train, stepper, self.data.arrays, len(rows)))
        if program is None:
            return None
        pending: Pending[StepResult] = train.worker.pending("step")
        call = StepCall(stepper, stepper.knobs, pending, 1, "step", program)
        pending.owner = train
        train.worker.enqueue([call.run(0, {ROWS: rows.astype(np.int32)})], pending)
        return pending


def placed(train: Training, data: Rows, steps: int, changing: bool) -> Placed | None:
    """Put the examples on the device, and return them; None where the host should make the batches.

    steps: how many there will be. changing: as for `Placed`.
    """
    batch = sum(x[:1].nbytes for x in data.arrays.values()) * data.size
    whole = sum(x.nbytes for x in data.arrays.values())
    once = steps < 2 * len(data)  # that would upload as much
    if once or batch < FED_FROM or steps * batch < FED_TOTAL or whole > FED_MOST or not gathers(train.device):
        return None
    try:
        programs = [_program(train, s, data.arrays, data.size) for s in train.store.steppers.values()]
        fields = {f.name: f for program in programs for f in program.inputs}
        examples = Examples([*fields.values()], data.arrays)
        train.worker.call(lambda session: _begin(train, examples, session))
    except TracegradError as e:  # what is wrong with the inputs, a step will say; what else there is, costs time only
        log.info("the host makes the batches of fit: %s", e)
        return None
    return Placed(train, data, examples, changing)


def _begin(train: Training, examples: Examples, session: Session) -> None:
    """Put the examples on the device. Raises DeviceError if another `fit` has put its own there."""
    if train.placed:
        raise DeviceError("another fit of this training keeps its examples on the device")
    examples.begin(session)
    train.placed = True


def gathers(device: DeviceInfo) -> bool:
    """Return whether a device makes batches faster than the host."""
    return device.name == "webgpu" and not device.software and not tab.IN_TAB


def _program(train: Training, stepper: Stepper, arrays: Mapping[str, Any], size: int) -> RunProgram:
    """Return the program of a step on a batch of this size."""
    if stepper.sized is None:
        return stepper.main
    given = {n: np.broadcast_to(arrays[n][:1], (size, *arrays[n].shape[1:])) for n in stepper.source.inputs}
    return train.store.program_for(stepper, given, "step")[0]
