"""Runs of a forward on the worker's thread, and the programs of its current model."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tracegrad.compiler.build import ForwardSource, at_sizes
from tracegrad.compiler.inputtypes import Sizes
from tracegrad.engine import params, reference
from tracegrad.engine.knobs import Knobs, Rate
from tracegrad.engine.pending import Pending
from tracegrad.engine.programs import SizedPrograms
from tracegrad.engine.results import Aborted, Captures, CompletedRun, Failed, RunResult, failure, output_of
from tracegrad.engine.run_program import UNLOADED, RunProgram
from tracegrad.engine.stepper import by_role
from tracegrad.engine.steps import captures_of
from tracegrad.engine.stores import ParameterStore
from tracegrad.errors import DeviceError
from tracegrad.runtime.base import Session
from tracegrad.runtime.copy_pool import CopyPool
from tracegrad.tuning import HANDED_OVER_FROM

NO_CAPTURES = Captures()


class ForwardPrograms:
    """The programs of a forward. Its methods are called with the owner's lock held."""

    def __init__(self, source: ForwardSource, store: ParameterStore, capacity: int):
        self.source, self.store, self.closed = source, store, ""
        self.free = source.free
        self.runs = 0
        self.copies = CopyPool()
        self._capacity = capacity
        self.sized = self._none()  # of the model that ran last

    def _none(self) -> SizedPrograms:
        # The first size has a program of its own, because most forwards see no other.
        return SizedPrograms(self.free, self._capacity, own=1, version=self.store.version)

    @property
    def current(self) -> SizedPrograms:
        """The programs of the current model. Those of an earlier model ended when its session was closed."""
        if self.sized.version is not self.store.version:
            self.sized = self._none()
        return self.sized

    def now(self) -> ForwardSource:
        """Return the source with the current model."""
        return self.source._replace(model=self.store.model, like=self.store.layout)

    def at(self, sizes: Sizes) -> ForwardSource:
        """Return the source with the current model, at some sizes."""
        return at_sizes(self.now(), sizes)

    def of(self, sizes: Sizes) -> RunProgram:
        """Return the program for some sizes. Build it if needed, and drop the least recently used ones."""
        program, dropped = self.current.of(sizes, self.now, lambda: self.store.worker.info)
        program.commits = bool(program.built.graph.writes)
        self.store.drop(dropped)
        return program

    def with_patches(self, program: RunProgram) -> RunProgram:
        """Return the program with patch sites that belongs to `program`."""
        patched, dropped = self.current.patched(program, self.now())
        self.store.drop(dropped)
        return patched

    def hyper(self, program: RunProgram) -> dict[str, Any]:
        """Return a run's hyperparameters (the training's, else the defaults) and size-dependent constants.

        The number of the run is its step, so each run draws its own random numbers.
        """
        if not program.hyper:
            return dict(program.numbers)
        knobs = self.store.knobs
        values = {**program.built.program.meta.get("hyper", {}), **knobs.values}
        # A copy of the learning rate: only training steps set the step at which a schedule begins.
        hyper = Knobs(Rate(knobs.rate.schedule), values).upload(program.hyper, self.runs, self.store.seed)
        return {**hyper, **program.numbers}

    def close(self, unload: bool) -> None:
        """Drop all programs. unload: free them on the device too, after the runs queued so far."""
        dropped = self.sized.drop()
        self.copies.clear()
        if unload:
            self.store.drop(dropped)


@dataclass(slots=True, eq=False)
class ForwardRun:
    """One run of a forward, for the worker's queue. `run_program.Run` documents each method."""

    owner: ForwardPrograms
    of: RunProgram
    arrays: Mapping[str, Any]
    pending: Pending[RunResult]
    checked: reference.Checked | None = None  # under TRACEGRAD_CHECK
    differs: str = ""  # how the run differs from the reference
    began: float = 0.0  # on the worker's thread

    def computed(self) -> bool:
        """Compute the run on the caller's thread, if possible. Return False if the worker must compute it."""
        program = self.of
        if program.direct is None or reference.enabled():
            return False
        try:
            outputs = program.direct(program.in_room(self.arrays))
            if outputs is None:
                return False
            self._complete(outputs)
        except Exception as e:
            self.fail(e)
        return True

    def keep(self) -> None:
        """Copy the inputs, which can be the caller's arrays: the worker reads them later."""
        self.arrays = {name: self.owner.copies.copied(x) for name, x in self.arrays.items()}

    def begin(self, session: Session) -> tuple[int, Mapping[str, Any]] | None:
        """Load the program if needed, and return its handle and inputs. Return None if the run was aborted."""
        if self._displaced():
            return None
        handle = self.of.load(session)
        self.began = time.perf_counter()
        if reference.enabled():
            self.checked = self._checked(session)
        return handle, self.of.in_room(self.arrays)

    def _checked(self, session: Session) -> reference.Checked:
        program, arrays = self.of.built.program, self.arrays
        values = params.download(session, program, program.params)
        env = by_role("param", values) | by_role("frozen", values) | by_role("input", arrays) | by_role("patch", arrays)
        env |= by_role("state", params.download(session, program, program.model_states))
        return reference.checked(session, self.of.built, arrays, env | dict(arrays))

    def finish(self, session: Session, outputs: dict[str, Any]) -> bool:
        """Resolve the call. Return False if the outputs differ from the reference's."""
        self.differs = self.checked.differs(session, outputs) if self.checked is not None else ""
        if self.differs:
            return False
        if not self._displaced():
            self._look_for_direct(session)
            self._complete(outputs)
        return True

    def _complete(self, outputs: Mapping[str, Any]) -> None:
        outputs = self.of.of_room(outputs)
        captures = captures_of(outputs) if self.of.tells_more else NO_CAPTURES
        self.pending.resolve(CompletedRun(captures, output_of(outputs, self.of.built.structure)))

    def _look_for_direct(self, session: Session) -> None:
        """Allow short runs on their caller's thread, because passing them to the worker can take longer."""
        program = self.of
        if (
            session.door is None
            or self.checked is not None
            or 1e6 * (time.perf_counter() - self.began) > HANDED_OVER_FROM
        ):
            program.direct = None
        elif program.direct is None and program.handle != UNLOADED:
            program.direct = session.door.direct(program.handle)

    def recover(self, session: Session, outputs: dict[str, Any]) -> None:
        """Undo the run's writes to states, and fail the call: the device's results differ from the reference."""
        assert self.checked is not None
        found = self.checked.blame(session)
        self.pending.resolve(Failed(DeviceError(f"run: {self.differs} (TRACEGRAD_CHECK)\n{found}")))

    def fail(self, error: BaseException) -> None:
        """Resolve the call with the error that the run raised."""
        self.pending.resolve(failure(error, "run"))

    def _displaced(self) -> bool:
        if self.owner.closed:
            self.pending.resolve(Aborted(self.owner.closed))
        elif self.of.version is not self.owner.store.version:
            self.pending.resolve(Aborted("displaced by replace_model"))
        return self.pending.done()
