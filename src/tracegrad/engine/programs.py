"""The programs of a step or forward, by the sizes that calls choose. Many sizes can share a program."""

from __future__ import annotations

import threading
import warnings
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import TYPE_CHECKING

from tracegrad.compiler.build import ForwardSource, ProgramSource, at_sizes, traced_first
from tracegrad.compiler.inputtypes import FreeSizes, Sizes
from tracegrad.engine import reference
from tracegrad.engine.run_program import RunProgram
from tracegrad.errors import call_site
from tracegrad.runtime.base import DeviceInfo, Session
from tracegrad.tuning import OWN_RUNS, ROOM_RUNS, SHARED_SIZES

if TYPE_CHECKING:
    from tracegrad.engine.room_programs import RoomPrograms

TOO_OFTEN = 8  # dropped programs that are built again before a warning says so


class SizedPrograms:
    """The programs of a step or forward by the sizes of calls, the least recently used first.

    Each call compiles a missing program on the caller's thread. The lock is never held while waiting for the worker.
    """

    def __init__(self, free: FreeSizes, capacity: int, own: int, own_on_gpu: int = 0, version: object = None) -> None:
        """own: how many sizes get programs of their own before all further sizes share one.

        own_on_gpu: the same on a GPU that is not a software adapter, if it is larger.
        """
        self.free, self.capacity, self.version = free, capacity, version
        self.own, self.own_on_gpu = own, own_on_gpu
        self.lock = threading.RLock()  # a signal handler may take a step while this thread holds it
        self.kept: OrderedDict[Sizes, RunProgram] = OrderedDict()
        self.seen: set[Sizes] = set()
        self._runs: Counter[Sizes] = Counter()  # of sizes in larger rooms
        self._gone: set[Sizes] = set()  # sizes whose programs were dropped for others
        self._again = 0  # how many of these were built again
        self._rooms: RoomPrograms | None = None
        self._choosing = False
        self._between: list[RunProgram] = []  # built by signal handlers, within a choice

    @property
    def latest(self) -> RunProgram | None:
        """The program used last."""
        kept = list(self.kept.values())
        return kept[-1] if kept else None

    @property
    def note(self) -> str:
        """Return why each size has a program of its own; "" if one can serve many."""
        if self._rooms is None or self._rooms.serves:
            return ""
        names, refused = list(self.free.axes), self._rooms.refused.items()
        why = {names[kind.index(0)]: text for kind, text in refused if max(kind) == 0}  # where one size varies
        which = "size" if len(why) == len(names) else next(iter(why), "")
        return f"compiled for each {which}: {next(iter(why.values()))}" if why else ""

    def of(
        self, sizes: Sizes, source: Callable[[], ProgramSource], info: Callable[[], DeviceInfo]
    ) -> tuple[RunProgram, list[RunProgram]]:
        """Return the program for some sizes, built if needed, and the programs dropped for it.

        Called with a lock held.

        source, info: return what a new program is built from, and for which device.
        """
        if self._choosing:  # a signal handler interrupted a choice of this thread, so `kept` must not change
            program = self.kept.get(sizes)
            if program is None:
                program = self.built(source(), sizes)
                self._between.append(program)
            return program, []
        self._choosing = True
        try:
            program, dropped = self._chosen(sizes, source, info)
        finally:
            self._choosing = False
        between, self._between = self._between, []
        return program, dropped + between

    def _chosen(
        self, sizes: Sizes, source: Callable[[], ProgramSource], info: Callable[[], DeviceInfo]
    ) -> tuple[RunProgram, list[RunProgram]]:
        """Do the work of `of`. No other choice is in progress on this thread."""
        dropped: list[RunProgram] = []
        before = program = self.kept.get(sizes)
        often = self._worth_another(sizes, before)
        if program is None or often:
            self.seen.add(sizes)
            given = source()
            own = often and self._runs[sizes] >= OWN_RUNS
            shared = None
            if not own:
                shared = self._of_many(given, sizes, info, dropped)
            program = shared or self.built(given, sizes)
            if not (shared or own):
                self._warn_if_dropped(sizes)
            dropped += [before] if before and self.kept.pop(sizes, None) else []
            dropped += self._least_used(*((1, 0) if program.base is None else (0, 1)))
        self.kept.pop(sizes, None)
        self.kept[sizes] = program
        return program, dropped

    def _worth_another(self, sizes: Sizes, program: RunProgram | None) -> bool:
        """Count a run in arrays larger than its sizes. Return whether its runs are worth a program of smaller arrays.

        Each further program needs twice as many runs, because programs can be dropped for others.
        """
        if sizes not in self._runs or (program is not None and not program.room):
            return False
        self._runs[sizes] += 1
        runs = self._runs[sizes]
        return runs == ROOM_RUNS or (runs >= OWN_RUNS and not runs & (runs - 1))

    def _least_used(self, more_own: int = 0, more_cheap: int = 0) -> list[RunProgram]:
        """Drop the least recently used programs of too many, where some more are about to be kept.

        `capacity` counts those with memory of their own. Others are cheap, so none drops one with memory of its own.
        """
        own = [sizes for sizes, p in self.kept.items() if p.base is None or p.patched or p.fed]
        cheap = [sizes for sizes in self.kept if sizes not in own]
        own = own[: max(0, len(own) + more_own - self.capacity)]
        cheap = cheap[: max(0, len(cheap) + more_cheap - SHARED_SIZES)]
        self._gone |= {sizes for sizes in own if self.kept[sizes].base is None}
        return [self.kept.pop(sizes) for sizes in (*own, *cheap)]

    def patched(self, program: RunProgram, source: ForwardSource) -> tuple[RunProgram, list[RunProgram]]:
        """Return the program with patch sites that belongs to `program`, and those dropped for its memory.

        Called with a lock held.
        """
        dropped: list[RunProgram] = []
        if program.patched is None:
            program.patched = self.built(source._replace(patching=True), program.sizes)
            program.patched.commits = program.commits
            dropped = [] if self._choosing else self._least_used()
        return program.patched, dropped

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
        """Return a program for many sizes, set up for `sizes`; None if `sizes` get a program of their own."""
        if reference.enabled() or len(self.seen) <= self.own or (device := info()).sizes == "one":
            return None
        if self._rooms is None:
            from tracegrad.engine.room_programs import RoomPrograms  # most processes see few sizes, and need no import

            own_here = max(self.own, self.own_on_gpu if device.gpu and not device.software else 0)
            self._rooms = RoomPrograms(2 * self.capacity, self.own, own_here, self.version)
        program, gone = self._rooms.of(source, sizes, self.seen, self._runs[sizes], device)
        dropped += [p for base in gone for p in self._emptied(base)]
        if program and program.room:
            self._runs[sizes] = self._runs[sizes] or 1
        return program

    def _emptied(self, base: RunProgram) -> list[RunProgram]:
        """Drop the program `base` and all programs that run on it, and return them."""
        gone = [sizes for sizes, p in self.kept.items() if p.base is base]
        return [*map(self.kept.pop, gone), base]

    def update(self, session: Session, program: RunProgram, source: ProgramSource) -> None:
        """Rebuild `program` from `source` if the training has changed its source since `program` was built."""
        if program.source is not source:
            program.unload(session)
            program.base, program.source, program.room, program.results = None, source, {}, {}
            program.take(self.built(source, program.sizes).built)

    def drop(self) -> list[RunProgram]:
        """Drop all programs, and return them."""
        with self.lock:
            dropped = [p for base in (self._rooms.drop() if self._rooms else ()) for p in self._emptied(base)]
            dropped += self.kept.values()
            self.kept.clear()
            self._runs.clear()
        return dropped

    def built(self, source: ProgramSource, sizes: Sizes) -> RunProgram:
        """Return a program compiled for some sizes."""
        at = at_sizes(source, sizes)
        first = isinstance(at, ForwardSource) and len(self.seen) == 1  # a step was traced when it was compiled
        traced = traced_first(at) if first else at.traced()
        return RunProgram(traced.compiled(), source, sizes, version=self.version)
