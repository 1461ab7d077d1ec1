"""Runs of a forward on the worker's thread, and the programs that they run: one for each choice of sizes."""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracegrad.compiler.build import Built
from tracegrad.compiler.dispatches import blamed_lines
from tracegrad.compiler.inputtypes import Sizes
from tracegrad.engine import indexcheck, params, reference
from tracegrad.engine.call_sizes import Growing, numbers_of
from tracegrad.engine.forward_source import ForwardSource
from tracegrad.engine.inputs import blank
from tracegrad.engine.knobs import Knobs, Rate
from tracegrad.engine.pending import Pending
from tracegrad.engine.results import Aborted, CompletedRun, Failed, RunResult, failure, output_of
from tracegrad.engine.stepper import by_role
from tracegrad.engine.steps import captures_of
from tracegrad.engine.stores import ParameterStore
from tracegrad.errors import DeviceError, InputError
from tracegrad.hypers import PREFIX
from tracegrad.program import Field
from tracegrad.runtime.base import Session, load_on
from tracegrad.sites import PATCH
from tracegrad.tuning import HANDED_OVER_FROM


@dataclass(slots=True, eq=False)
class ForwardProgram:
    """The program of one choice of sizes."""

    built: Built
    version: object
    handle: int | None = None  # used by the worker only: loaded at the first run
    at_once: int = 1  # runs that are worth one batch
    direct: Callable[[Mapping[str, Any]], dict[str, Any] | None] | None = None  # see `runtime.base.Door`
    inputs: tuple[Field, ...] = ()
    hyper: tuple[Field, ...] = ()
    commits: bool = False  # the program writes states
    patched: ForwardProgram | None = None  # the program with its patch sites, made at the first run that patches
    unpatched: dict[str, Any] = field(default_factory=dict[str, Any])  # of a `patched`: inputs of unpatched sites
    family: ForwardProgram | None = None  # the program at its capacity, if this program is the same at another size
    numbers: dict[str, Any] = field(default_factory=dict[str, Any])  # inputs that follow the size

    def __post_init__(self) -> None:
        fields, self.commits = self.built.program.inputs, bool(self.built.graph.writes)
        self.hyper = tuple(f for f in fields if f.name.startswith(PREFIX) and f.name not in self.built.numbers)
        self.numbers = numbers_of(self.built)
        self.unpatched = blank([f for f in fields if f.name.startswith(PATCH)])
        self.inputs = tuple(f for f in fields if not f.name.startswith((PREFIX, PATCH)))

    def load(self, session: Session, store: ParameterStore) -> int:
        """Return the handle of the program, after loading it with its parameters. On the worker's thread."""
        if self.family is not None:
            like = self.family.load(session, store)
            if self.handle is None:
                self.handle = session.load(self.built.program, like)
            return self.handle
        new = self.handle is None
        if self.handle is None:
            with blamed_lines(self.built.graph, self.built.program):
                self.handle = load_on(session, self.built.program)
        store.write(session, self.built.program, new)
        return self.handle


class Shared(Growing):
    """The sizes of one version of the model. base: the program for many sizes, at its capacity."""

    def __init__(self, version: object, most: int) -> None:
        super().__init__(most)
        self.version = version
        self.base: ForwardProgram | None = None


class ForwardPrograms:
    """The programs of a forward by size, the least recently used first. Called with the owner's lock held."""

    def __init__(self, source: ForwardSource, store: ParameterStore, capacity: int):
        self.source, self.store, self.closed = source, store, ""
        self._capacity = capacity
        self._kept: OrderedDict[Sizes, ForwardProgram] = OrderedDict()
        self._shares: Shared | None = None
        self.runs = 0

    @property
    def sizes(self) -> list[Sizes]:
        """Return the sizes whose programs are kept."""
        return list(self._kept)

    @property
    def latest(self) -> ForwardProgram | None:
        """Return the program used last, if its model is still current."""
        known = [p for p in self._kept.values() if p.version is self.store.version]
        return known[-1] if known else None

    def of(self, size: Sizes) -> ForwardProgram:
        """Return the program for some sizes; build it if needed, and drop others for it."""
        version = self.store.version
        dropped: list[ForwardProgram] = []
        if any(p.version is not version for p in list(self._kept.values())):
            self._kept.clear()  # their session is closed, and with it their programs
        program = self._kept.get(size)
        if program is None:
            program = self._shared(size, version, dropped) or self._made(size, version)
            while len(self._kept) >= self._capacity:
                dropped.append(self._kept.popitem(last=False)[1])
        self._kept.pop(size, None)
        self._kept[size] = program
        self._unload(dropped)
        return program

    def with_patches(self, program: ForwardProgram) -> ForwardProgram:
        """Return the program with patch sites that belongs to `program`."""
        if program.patched is None:
            program.patched = self._made(next(n for n, p in self._kept.items() if p is program), program.version, True)
        return program.patched

    def _shared(self, sizes: Sizes, version: object, dropped: list[ForwardProgram]) -> ForwardProgram | None:
        """Return the program for many sizes, at one of them; None if a size gets a program of its own.

        The first size does, because most forwards see no other. A size beyond the capacity replaces the program by one
        of at least twice the capacity.
        """
        if len(sizes) != 1 or not self.store.worker.info.resizes or indexcheck.enabled():
            return None
        ((_, size),) = sizes
        if self._shares is None or self._shares.version is not version:
            self._shares = Shared(version, size)
            return None
        known, gpu, model = self._shares, self.store.worker.info.gpu, self.store.model
        if not known.serves(size):
            dropped += self._forget(known)
        built = known.at(size, lambda most: self.source.family(model, most, self.store.layout, gpu))
        if known.base is None and known.family is not None:
            known.base = ForwardProgram(known.family.built, version)
        return ForwardProgram(built, version, family=known.base) if built is not None else None

    @property
    def note(self) -> str:
        """Return why each size has a program of its own; "" if one can serve many."""
        return self._shares.note if self._shares else ""

    def _forget(self, known: Shared) -> list[ForwardProgram]:
        """Return the programs that go with a program to be replaced by one for larger sizes."""
        if known.base is None:
            return []
        gone, base = [n for n, p in self._kept.items() if p.family is known.base], known.base
        known.base = None
        return [*(self._kept.pop(n) for n in gone), base]

    def hyper(self, program: ForwardProgram) -> dict[str, Any]:
        """Return the hot values of a run: the training's, else the defaults. Each run has its own random numbers."""
        if not program.hyper:
            return dict(program.numbers)
        knobs = self.store.knobs
        values = {**program.built.program.meta.get("hyper", {}), **knobs.values}
        # A separate rate: only training steps decide where a schedule begins.
        hyper = Knobs(Rate(knobs.rate.schedule), values).upload(program.hyper, self.runs, self.store.seed)
        return {**hyper, **program.numbers}

    def close(self, unload: bool) -> None:
        """Drop all programs. unload: free them on the device too, after the runs queued so far."""
        dropped = list(self._kept.values())
        if self._shares is not None and self._shares.base is not None:
            dropped.append(self._shares.base)
        self._kept.clear()
        self._shares = None
        if unload:
            self._unload(dropped)

    def _made(self, size: Sizes, version: object, patching: bool = False) -> ForwardProgram:
        built = self.source.built(self.store.model, size, self.store.layout, patching)
        if "patches" in self.source.types and any(s.kind == "patch" for s in built.sites):
            raise InputError.here("an input of a forward with patch sites cannot be named 'patches': rename it")
        return ForwardProgram(built, version)

    def _unload(self, programs: Sequence[ForwardProgram]) -> None:
        def unload(session: Session) -> None:
            for program in [p for pair in programs for p in (pair, pair.patched) if p is not None]:
                if program.handle is not None and program.version is self.store.version:
                    if program.family is None:
                        self.store.release(session, program.built.program)
                    session.unload(program.handle)
                program.handle = None

        if programs:
            self.store.worker.post(unload)


@dataclass(slots=True, eq=False)
class ForwardRun:
    """One forward, in the form that the worker runs; `batches.Run` documents each method."""

    owner: ForwardPrograms
    of: ForwardProgram
    arrays: Mapping[str, Any]
    pending: Pending[RunResult]
    checked: reference.Checked | None = None  # under TRACEGRAD_CHECK
    differs: str = ""  # how the run differs from the reference
    began: float = 0.0  # on the worker's thread

    def computed(self) -> bool:
        """Compute on the caller's thread. Return False if nothing was done, because the worker should do it."""
        program, store = self.of, self.owner.store
        if program.direct is None or store.unwritten or indexcheck.enabled():
            return False
        try:
            outputs = program.direct(self.arrays)
            if outputs is None:
                return False
            self._complete(outputs)
        except Exception as e:
            self.fail(e)
        return True

    def begin(self, session: Session) -> tuple[int, Mapping[str, Any]] | None:
        """Load the program if needed, and return its handle and inputs."""
        if self._displaced():
            return None
        handle = self.of.load(session, self.owner.store)
        self.began = time.perf_counter()
        if indexcheck.enabled():
            self.checked = self._checked(session)
        return handle, self.arrays

    def _checked(self, session: Session) -> reference.Checked:
        program, arrays = self.of.built.program, self.arrays
        values = params.download(session, program, program.params)
        env = by_role("param", values) | by_role("frozen", values) | by_role("input", arrays) | by_role("patch", arrays)
        env |= by_role("state", params.download(session, program, program.model_states))
        return reference.checked(session, self.of.built, arrays, env | dict(arrays))

    def finish(self, session: Session, outputs: dict[str, Any]) -> bool:
        """Resolve the call."""
        self.differs = self.checked.differs(session, outputs) if self.checked is not None else ""
        if self.differs:
            return False
        if not self._displaced():
            self._look_for_direct(session)
            self._complete(outputs)
        return True

    def _complete(self, outputs: dict[str, Any]) -> None:
        self.pending.resolve(CompletedRun(captures_of(outputs), output_of(outputs, self.of.built.structure)))

    def _look_for_direct(self, session: Session) -> None:
        """Let short runs be computed on their caller's thread: handing them over takes longer than some of them."""
        program = self.of
        if (
            session.door is None
            or self.checked is not None
            or 1e6 * (time.perf_counter() - self.began) > HANDED_OVER_FROM
        ):
            program.direct = None
        elif program.direct is None and program.handle is not None:
            program.direct = session.door.direct(program.handle)

    def recover(self, session: Session, outputs: dict[str, Any]) -> None:
        """Undo the run's writes to states: the device's results differ from the reference."""
        assert self.checked is not None
        found = self.checked.blame(session)
        self.pending.resolve(Failed(DeviceError(f"run: {self.differs} (TRACEGRAD_CHECK)\n{found}")))

    def fail(self, error: BaseException) -> None:
        """Take the error that the run raised."""
        self.pending.resolve(failure(error, "run"))

    def _displaced(self) -> bool:
        if self.owner.closed:
            self.pending.resolve(Aborted(self.owner.closed))
        elif self.of.version is not self.owner.store.version:
            self.pending.resolve(Aborted("displaced by replace_model"))
        return self.pending.done()
