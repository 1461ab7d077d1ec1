"""The programs of a training's step: one; or one for each size of calls, many of which can share a program."""

from __future__ import annotations

import threading
from collections import OrderedDict
from functools import partial
from typing import TYPE_CHECKING

from tracegrad.compiler.build import Built, StepSource, TracedStep, trace_training
from tracegrad.compiler.dispatches import blamed_lines
from tracegrad.compiler.inputtypes import FreeSizes, Sizes
from tracegrad.engine.call_sizes import Growing, numbers_of
from tracegrad.hypers import PREFIX
from tracegrad.ir import Graph
from tracegrad.program import Field, Program
from tracegrad.runtime.base import Session, load_on
from tracegrad.tuning import OWN_SIZES

if TYPE_CHECKING:
    from tracegrad.compiler.sized import Family

UNLOADED = -1
AUX, CAPTURE = "aux.", "capture."  # prefixes of output names


class StepProgram:
    """A program in the form that the worker runs. Loaded and unloaded on the worker's thread only."""

    __slots__ = (
        "at_once",
        "base",
        "built",
        "commits",
        "handle",
        "hyper",
        "inputs",
        "numbers",
        "sizes",
        "source",
        "tells_more",
    )
    inputs: tuple[Field, ...]
    hyper: tuple[Field, ...]

    def __init__(self, built: Built, sizes: Sizes = (), source: StepSource | None = None) -> None:
        """sizes, source: if calls choose sizes, those of this program, and the source it was built from."""
        self.sizes, self.source, self.handle = sizes, source, UNLOADED
        self.base: StepProgram | None = None  # the program at its capacity, if this program is the same at another size
        self.commits = False  # false: a step that is not applied changes nothing, and neither do later ones
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
        self.inputs = tuple(f for f in fields if not f.name.startswith(PREFIX))

    def load(self, session: Session) -> int:
        """Return the program's handle, after loading it."""
        if self.base is not None:
            like = self.base.load(session)
            if self.handle == UNLOADED:
                self.handle = session.load(self.program, like)
        elif self.handle == UNLOADED:
            with blamed_lines(self.built.graph, self.program):
                self.handle = load_on(session, self.program)
        return self.handle

    def unload(self, session: Session) -> None:
        """Free what only this program uses."""
        if self.handle != UNLOADED:
            session.unload(self.handle)
        self.handle = UNLOADED


class SizedPrograms:
    """The programs of a step by the sizes of calls, the least recently used first.

    Each call adds its program, on its own thread. The lock is never held while waiting for the worker.
    """

    def __init__(self, free: FreeSizes, capacity: int) -> None:
        self.free, self.capacity = free, capacity
        self.lock = threading.RLock()  # a signal handler may take a step while this thread holds it
        self.kept: OrderedDict[Sizes, StepProgram] = OrderedDict()
        self.seen: set[Sizes] = set()
        self._growing: Growing | None = None
        self._base: StepProgram | None = None

    @property
    def latest(self) -> StepProgram | None:
        """The program used last."""
        kept = list(self.kept.values())
        return kept[-1] if kept else None

    @property
    def note(self) -> str:
        """Return why each size has a program of its own; "" if one can serve many."""
        return self._growing.note if self._growing else ""

    def of(self, source: StepSource, sizes: Sizes, shares: bool) -> tuple[StepProgram, list[StepProgram]]:
        """Return the program for some sizes, built if needed, and the programs dropped for it. With the lock held.

        shares: on this device one program can serve many sizes.
        """
        dropped: list[StepProgram] = []
        program = self.kept.get(sizes)
        if program is None:
            self.seen.add(sizes)
            shares = shares and len(self.free.axes) == 1 and len(self.seen) > OWN_SIZES
            program = self._shared(source, sizes, dropped) if shares else None
            program = program or StepProgram(self.built(source, sizes), sizes, source)
            while len(self.kept) >= self.capacity:
                dropped.append(self.kept.popitem(last=False)[1])
        self.kept.pop(sizes, None)  # not `move_to_end`: a signal handler may have dropped it
        self.kept[sizes] = program
        return program, dropped

    def _shared(self, source: StepSource, sizes: Sizes, dropped: list[StepProgram]) -> StepProgram | None:
        """Return the program for many sizes, at this one; None if the size gets a program of its own."""
        ((_, size),) = sizes
        known = self._growing = self._growing or Growing(max(n for ((_, n),) in self.seen))
        if not known.serves(size):
            dropped += self._forgotten()
        built = known.at(size, partial(family_of, source))
        if self._base is None and known.family is not None:
            self._base = StepProgram(known.family.built)
        if built is None:
            return None
        program = StepProgram(built, sizes, source)
        program.base = self._base
        return program

    def _forgotten(self) -> list[StepProgram]:
        """Return the programs that go with the program for many sizes."""
        base, self._base = self._base, None
        gone = [sizes for sizes, p in self.kept.items() if p.base is not None]
        return [*map(self.kept.pop, gone), *([base] if base else [])]

    def update(self, session: Session, program: StepProgram, source: StepSource) -> None:
        """Rebuild `program` from `source`, if it was built from another while the training changed its source."""
        if program.source is not source:
            program.unload(session)
            program.base = None
            program.take(self.built(source, program.sizes))
            program.source = source

    def clear(self, session: Session) -> None:
        """Drop all programs. On the worker's thread."""
        with self.lock:
            dropped = [*self._forgotten(), *self.kept.values()]
            self.kept.clear()
            self._growing = None
        for program in dropped:
            program.unload(session)

    def built(self, source: StepSource, sizes: Sizes) -> Built:
        """Return the step compiled for some sizes."""
        return source._replace(inputs=self.free.sized(sizes)).traced().compiled()


def family_of(source: StepSource, most: int) -> Family:
    """Return the program for sizes up to `most`, or a few more. Raise UnsizedError if each size must have its own."""
    from tracegrad.compiler.sized import Source, build_family  # most trainings see few sizes, and need no import

    free = source.free

    def traced_at(size: int) -> TracedStep:
        return source._replace(inputs=free.sized(free.all(size))).traced()

    def seen_at(size: int) -> Graph:
        return trace_training(source.model, source.loss, free.sized(free.all(size)))

    return build_family(Source(traced_at, seen_at), most)
