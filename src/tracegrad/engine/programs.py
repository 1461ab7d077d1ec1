"""The programs of a step or forward: one; or one for each size of calls, many of which can share a program."""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tracegrad.arrays import np
from tracegrad.compiler.build import Built, ForwardSource, ProgramSource, at_sizes, traced_first
from tracegrad.compiler.dispatches import blamed_lines
from tracegrad.compiler.inputtypes import FreeSizes, Sizes
from tracegrad.engine import reference
from tracegrad.engine.inputs import blank
from tracegrad.errors import call_site
from tracegrad.hypers import PREFIX
from tracegrad.kernels.form import UnsizedError
from tracegrad.program import Field, Program
from tracegrad.runtime.base import DeviceInfo, Session, load_on
from tracegrad.sites import PATCH

if TYPE_CHECKING:
    from tracegrad.compiler.sized import Family

UNLOADED = -1
TOO_OFTEN = 8  # dropped programs that are built again before a warning says so
AUX, CAPTURE = "aux.", "capture."  # prefixes of output names
Direct = Callable[[Mapping[str, Any]], dict[str, Any] | None]


class RunProgram:
    """A program in the form that the worker runs. Loaded and unloaded on the worker's thread only."""

    __slots__ = (
        "at_once", "base", "built", "commits", "direct", "fed", "handle", "hyper", "indexed", "inputs", "numbers",
        "patched", "sizes", "source", "tells_more", "unpatched", "version",
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
        self.fed: RunProgram | None = None  # the program that makes its own batches; see training/placing.py
        self.take(built)

    @property
    def program(self) -> Program:
        """The program as plain data."""
        return self.built.program

    @property
    def step(self) -> RunProgram:
        """The program that follows the source of a step."""
        return self

    def given(self, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the graph's inputs are in a run on `arrays`."""
        return arrays

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
        self.indexed = any("range" in f.spec for f in self.inputs)  # are inputs used as indices?

    def load(self, session: Session) -> int:
        """Return the program's handle, after loading it."""
        if self.handle == UNLOADED and self.base is not None:
            self.handle = session.load(self.program, self.base.load(session))
        elif self.handle == UNLOADED:
            with blamed_lines(self.built.graph, self.program):
                self.handle = load_on(session, self.program)
        return self.handle

    def unload(self, session: Session) -> None:
        """Free what only this program uses."""
        if self.handle != UNLOADED:
            session.unload(self.handle)
        self.handle = UNLOADED
        for other in (self.patched, self.fed):
            if other is not None:
                other.unload(session)


def numbers_of(built: Built) -> dict[str, Any]:
    """Return the inputs of a program at a size that follow the size, as arrays."""
    return {name: np.asarray(value, dtype) for name, (dtype, value) in built.numbers.items()}


class Shared:
    """What calls share whose sizes differ in one name alone: a program for all of them, once there are many."""

    __slots__ = ("base", "family", "name", "refused", "seen")

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: set[int] = set()  # sizes of the name
        self.refused = ""  # why there is no program for all of them
        self.family: Family | None = None
        self.base: RunProgram | None = None  # the family's program, at its capacity

    @property
    def capacity(self) -> int:
        """The largest size that the program serves; 0 without one."""
        return self.base.program.capacity if self.base else 0

    def build(self, source: ProgramSource, sizes: Sizes, most: int, gpu: bool, version: object) -> None:
        """Make the program for sizes up to `most`, or a few more. Raise UnsizedError if there is none."""
        self.family = family_of(source, sizes, self.name, most, gpu)
        self.base = RunProgram(self.family.built, version=version)


class SizedPrograms:
    """The programs of a step or forward by the sizes of calls, the least recently used first.

    Each call adds its program, on its own thread. The lock is never held while waiting for the worker.
    """

    def __init__(self, free: FreeSizes, capacity: int, own: int, own_on_gpu: int = 0, version: object = None) -> None:
        """own: how many sizes of a name get programs of their own before others share one.

        own_on_gpu: the same on a GPU that is not a software adapter, if it is larger.
        """
        self.free, self.capacity, self.version = free, capacity, version
        self.own, self.own_on_gpu = own, own_on_gpu
        self.lock = threading.RLock()  # a signal handler may take a step while this thread holds it
        self.kept: OrderedDict[Sizes, RunProgram] = OrderedDict()
        self.seen: set[Sizes] = set()
        self._gone: set[Sizes] = set()  # sizes whose programs were dropped for others
        self._again = 0  # how many of these were built again
        self._shared: OrderedDict[tuple[str, Sizes], Shared] = OrderedDict()  # by the name, and all other sizes
        self._why: dict[str, str] = {}  # names -> the reason why no program serves many of their sizes

    @property
    def latest(self) -> RunProgram | None:
        """The program used last."""
        kept = list(self.kept.values())
        return kept[-1] if kept else None

    @property
    def note(self) -> str:
        """Return why each size has a program of its own; "" if one can serve many."""
        why = self._why or {s.name: s.refused for s in self._shared.values() if s.refused}
        which = "size" if len(why) == len(self.free.axes) else next(iter(why), "")
        return f"compiled for each {which}: {next(iter(why.values()))}" if why else ""

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
            program = self._of_many(given, sizes, info, dropped) or self.built(given, sizes)
            self._warn_if_dropped(sizes)
            while len(self.kept) >= self.capacity:
                gone, other = self.kept.popitem(last=False)
                self._gone |= {gone} if other.base is None else set()  # one of many sizes is cheap to make again
                dropped.append(other)
        self.kept.pop(sizes, None)  # not `move_to_end`: a signal handler may have dropped it
        self.kept[sizes] = program
        return program, dropped

    def _warn_if_dropped(self, sizes: Sizes) -> None:
        """Warn once if the same sizes are compiled again and again."""
        self._again += sizes in self._gone
        self._gone.discard(sizes)
        if self._again == TOO_OFTEN and (site := call_site()):
            self._again += 1
            text = (
                f"calls choose among {len(self.seen)} sizes, each of which has a program of its own, and "
                f"max_cached_shapes={self.capacity} programs are kept. So the same sizes are compiled again and again: "
                "pass a larger max_cached_shapes, or pad inputs to a few sizes"
            )
            warnings.warn_explicit(text, RuntimeWarning, site.file, site.line)

    def _of_many(
        self, source: ProgramSource, sizes: Sizes, info: Callable[[], DeviceInfo], dropped: list[RunProgram]
    ) -> RunProgram | None:
        """Return a program for many sizes of one name, at these; None if they get a program of their own.

        A size beyond the capacity replaces the program by one of at least twice the capacity.
        """
        if reference.enabled():
            return None
        for name, size in sizes:
            key = (name, tuple([(n, at) for n, at in sizes if n != name]))
            shared = self._shared.setdefault(key, Shared(name))
            shared.seen.add(size)
            few = len(shared.seen) <= self.own
            if few or shared.refused or name in self._why or not (device := info()).resizes:
                continue
            if device.gpu and not device.software and len(shared.seen) <= self.own_on_gpu:
                continue
            if size > shared.capacity:
                most = max(2 * shared.capacity, *shared.seen)
                dropped += self._forgotten(shared)
                try:
                    shared.build(source, sizes, most, device.gpu, self.version)
                except UnsizedError as e:
                    shared.refused = str(e)
                    if all(at > 1 for _, at in key[1]):  # one row can be broadcast, which tells nothing of others
                        self._why[name] = shared.refused
                    continue
                dropped += self._beyond(shared)
            self._shared[key] = self._shared.pop(key, shared)
            built = shared.family.at(size) if shared.family else None
            if built is not None:
                return RunProgram(built, source, sizes, shared.base, self.version)
        return None

    def _beyond(self, new: Shared) -> list[RunProgram]:
        """Return the programs that go because there are too many for many sizes."""
        made = [s for s in self._shared.values() if s.base is not None and s is not new]
        return [p for s in made[: max(0, len(made) + 1 - self.capacity)] for p in self._forgotten(s)]

    def _forgotten(self, shared: Shared) -> list[RunProgram]:
        """Return the programs that go with one for many sizes."""
        base, shared.base, shared.family = shared.base, None, None
        gone = [sizes for sizes, p in self.kept.items() if base is not None and p.base is base]
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
            dropped = [p for shared in self._shared.values() for p in self._forgotten(shared)]
            dropped += self.kept.values()
            self.kept.clear()
            self._why.clear()
        return dropped

    def built(self, source: ProgramSource, sizes: Sizes) -> RunProgram:
        """Return a program compiled for some sizes."""
        at = at_sizes(source, sizes)
        first = isinstance(at, ForwardSource) and len(self.seen) == 1  # a step was traced when it was compiled
        traced = traced_first(at) if first else at.traced()
        return RunProgram(traced.compiled(), source, sizes, version=self.version)


def family_of(source: ProgramSource, sizes: Sizes, name: str, most: int, gpu: bool = False) -> Family:
    """Return the program for sizes of `name` up to `most`, or a few more, with all other `sizes` as they are.

    gpu:    as for `build_family`.
    Raises: UnsizedError if each size must have a program of its own.
    """
    from tracegrad.compiler.sized import build_family  # most processes see few sizes, and need no import

    def at(size: int) -> ProgramSource:
        return at_sizes(source, tuple([(n, size if n == name else fixed) for n, fixed in sizes]))

    return build_family(at, most, gpu)
