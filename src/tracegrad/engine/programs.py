"""The programs of a step or forward: one; or one for each size of calls, many of which can share a program."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tracegrad.arrays import np
from tracegrad.compiler.build import Built, ForwardSource, ProgramSource, at_sizes, traced_first
from tracegrad.compiler.dispatches import blamed_lines
from tracegrad.compiler.inputtypes import FreeSizes, Sizes
from tracegrad.engine import reference
from tracegrad.engine.inputs import blank
from tracegrad.hypers import PREFIX
from tracegrad.kernels.form import UnsizedError
from tracegrad.program import Field, Program
from tracegrad.runtime.base import DeviceInfo, Session, load_on
from tracegrad.sites import PATCH

if TYPE_CHECKING:
    from tracegrad.compiler.sized import Family

UNLOADED = -1
AUX, CAPTURE = "aux.", "capture."  # prefixes of output names
Direct = Callable[[Mapping[str, Any]], dict[str, Any] | None]


class RunProgram:
    """A program in the form that the worker runs. Loaded and unloaded on the worker's thread only."""

    __slots__ = (
        "at_once", "base", "built", "commits", "direct", "handle", "hyper", "inputs", "numbers", "patched", "sizes",
        "source", "tells_more", "unpatched", "version",
    )  # fmt: skip
    inputs: tuple[Field, ...]
    hyper: tuple[Field, ...]

    def __init__(
        self,
        built: Built,
        source: ProgramSource | None = None,
        sizes: Sizes = (),
        base: RunProgram | None = None,
        version: object = None,
    ) -> None:
        """Make a program that is not loaded.

        source, sizes: if calls choose sizes, those of this program, and the source it was built from.
        base:          the program at its capacity, if this program is the same at another size.
        version:       of the model, for a forward.
        """
        self.source, self.sizes, self.base, self.version = source, sizes, base, version
        self.handle = UNLOADED
        self.commits = False  # false: a step that is not applied changes nothing, and neither do later ones
        self.direct: Direct | None = None  # see `runtime.doors.Door`
        self.patched: RunProgram | None = None  # the program with its patch sites, made at the first run that patches
        self.take(built)

    @property
    def program(self) -> Program:
        """The program as plain data."""
        return self.built.program

    def take(self, built: Built) -> None:
        """Become this program from now on."""
        self.built = built
        self.at_once = 1  # runs that are worth one batch
        self.numbers = numbers_of(built)  # inputs that follow the size
        fields = built.program.inputs
        self.tells_more = any(f.name.startswith((AUX, CAPTURE)) for f in built.program.outputs)  # more than the loss
        self.hyper = tuple(f for f in fields if f.name.startswith(PREFIX) and f.name not in built.numbers)
        self.unpatched = blank([f for f in fields if f.name.startswith(PATCH)])  # inputs of unpatched sites
        self.inputs = tuple(f for f in fields if not f.name.startswith((PREFIX, PATCH)))

    def load(self, session: Session, store: Any = None) -> int:
        """Return the program's handle, after loading it. store: of parameters to write before a run of a forward."""
        if self.base is not None:
            like = self.base.load(session, store)
            if self.handle == UNLOADED:
                self.handle = session.load(self.program, like)
            return self.handle
        new = self.handle == UNLOADED
        if new:
            with blamed_lines(self.built.graph, self.program):
                self.handle = load_on(session, self.program)
        if store is not None:
            store.write(session, self.program, new)
        return self.handle

    def unload(self, session: Session, store: Any = None) -> None:
        """Free what only this program uses."""
        if self.handle != UNLOADED:
            if store is not None and self.base is None:
                store.release(session, self.program)
            session.unload(self.handle)
        self.handle = UNLOADED
        if self.patched is not None:
            self.patched.unload(session, store)


def numbers_of(built: Built) -> dict[str, Any]:
    """Return the inputs of a program at a size that follow the size, as arrays."""
    return {name: np.asarray(value, dtype) for name, (dtype, value) in built.numbers.items()}


class SizedPrograms:
    """The programs of a step or forward by the sizes of calls, the least recently used first.

    Each call adds its program, on its own thread. The lock is never held while waiting for the worker.
    """

    def __init__(self, free: FreeSizes, capacity: int, own: int, version: object = None) -> None:
        """own: how many sizes get programs of their own before others share one."""
        self.free, self.capacity, self.own, self.version = free, capacity, own, version
        self.lock = threading.RLock()  # a signal handler may take a step while this thread holds it
        self.kept: OrderedDict[Sizes, RunProgram] = OrderedDict()
        self.seen: set[Sizes] = set()
        self._family: Family | None = None
        self._base: RunProgram | None = None  # the family's program, at its capacity
        self._why = ""  # the reason why there is no program for many sizes

    @property
    def latest(self) -> RunProgram | None:
        """The program used last."""
        kept = list(self.kept.values())
        return kept[-1] if kept else None

    @property
    def note(self) -> str:
        """Return why each size has a program of its own; "" if one can serve many."""
        return f"compiled for each size: {self._why}" if self._why else ""

    def of(
        self, sizes: Sizes, source: Callable[[], ProgramSource], info: Callable[[], DeviceInfo]
    ) -> tuple[RunProgram, list[RunProgram]]:
        """Return the program for some sizes, built if needed, and the programs dropped for it. With a lock held.

        source, info: return what a new program is built from, and for which device.
        """
        dropped: list[RunProgram] = []
        program = self.kept.get(sizes)
        if program is None:
            self.seen.add(sizes)
            given = source()
            program = self._shared(given, sizes, info, dropped) or self.built(given, sizes)
            while len(self.kept) >= self.capacity:
                dropped.append(self.kept.popitem(last=False)[1])
        self.kept.pop(sizes, None)  # not `move_to_end`: a signal handler may have dropped it
        self.kept[sizes] = program
        return program, dropped

    def _shared(
        self, source: ProgramSource, sizes: Sizes, info: Callable[[], DeviceInfo], dropped: list[RunProgram]
    ) -> RunProgram | None:
        """Return the program for many sizes, at this one; None if the size gets a program of its own.

        A size beyond the capacity replaces the program by one of at least twice the capacity.
        """
        if len(sizes) != 1 or len(self.seen) <= self.own or reference.enabled():
            return None
        device, ((_, size),) = info(), sizes
        if not device.resizes:
            return None
        if not self._why and (self._base is None or size > self._base.program.capacity):
            before = self._base.program.capacity if self._base else 0
            dropped += self._forgotten()
            try:
                self._family = family_of(source, max(2 * before, *[n for ((_, n),) in self.seen]), device.gpu)
                self._base = RunProgram(self._family.built, version=self.version)
            except UnsizedError as e:
                self._why, self._family = str(e), None
        built = self._family.at(size) if self._family else None
        return RunProgram(built, source, sizes, self._base, self.version) if built is not None else None

    def _forgotten(self) -> list[RunProgram]:
        """Return the programs that go with the program for many sizes."""
        base, self._base = self._base, None
        gone = [sizes for sizes, p in self.kept.items() if p.base is not None]
        return [*map(self.kept.pop, gone), *([base] if base else [])]

    def update(self, session: Session, program: RunProgram, source: ProgramSource) -> None:
        """Rebuild `program` from `source`, if it was built from another while the training changed its source."""
        if program.source is not source:
            program.unload(session)
            program.base, program.source = None, source
            program.take(self.built(source, program.sizes).built)

    def drop(self) -> list[RunProgram]:
        """Drop all programs, and return them."""
        with self.lock:
            dropped = [*self._forgotten(), *self.kept.values()]
            self.kept.clear()
            self._family, self._why = None, ""
        return dropped

    def built(self, source: ProgramSource, sizes: Sizes) -> RunProgram:
        """Return a program compiled for some sizes."""
        at = at_sizes(source, sizes)
        first = isinstance(at, ForwardSource) and len(self.seen) == 1  # a step was traced when it was compiled
        traced = traced_first(at) if first else at.traced()
        return RunProgram(traced.compiled(), source, sizes, version=self.version)


def family_of(source: ProgramSource, most: int, gpu: bool = False) -> Family:
    """Return the program for sizes up to `most`, or a few more. Raise UnsizedError if each size must have its own.

    gpu: as for `build_family`.
    """
    from tracegrad.compiler.sized import build_family  # most processes see few sizes, and need no import

    return build_family(lambda size: at_sizes(source, source.free.all(size)), most, gpu)
