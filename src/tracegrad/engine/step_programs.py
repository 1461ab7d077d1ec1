"""The programs of a training's step: one, or one for each choice of sizes that calls have made."""

from __future__ import annotations

import threading
from collections import OrderedDict

from tracegrad.compiler.build import Built, StepSource
from tracegrad.compiler.dispatches import blamed_lines
from tracegrad.compiler.sizes import FreeSizes, Sizes
from tracegrad.hypers import PREFIX
from tracegrad.program import Field, Program
from tracegrad.runtime.base import Session, load_on

UNLOADED = -1
AUX, CAPTURE = "aux.", "capture."  # of output names


class StepProgram:
    """A program, as the worker runs it. Loaded and unloaded on the worker's thread only."""

    __slots__ = ("at_once", "built", "commits", "handle", "hyper", "inputs", "sizes", "source", "tells_more")
    inputs: tuple[Field, ...]
    hyper: tuple[Field, ...]

    def __init__(self, built: Built, sizes: Sizes = (), source: StepSource | None = None) -> None:
        """sizes, source: where calls choose sizes, those of this program and what it was built from."""
        self.sizes, self.source, self.handle = sizes, source, UNLOADED
        self.commits = False  # a step that is not applied changes nothing, and nor do those behind it
        self.take(built)

    @property
    def program(self) -> Program:
        """As plain data."""
        return self.built.program

    def take(self, built: Built) -> None:
        """Be this program from now on."""
        self.built = built
        self.at_once = 1  # runs worth one batch
        fields = built.program.inputs
        self.tells_more = any(f.name.startswith((AUX, CAPTURE)) for f in built.program.outputs)  # than the loss
        self.hyper = tuple(f for f in fields if f.name.startswith(PREFIX))
        self.inputs = tuple(f for f in fields if not f.name.startswith(PREFIX))

    def load(self, session: Session) -> int:
        """Its handle."""
        if self.handle == UNLOADED:
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

    Calls make them, each on the thread that it comes from. The lock is never held while waiting for the worker.
    """

    def __init__(self, free: FreeSizes, capacity: int) -> None:
        self.free, self.capacity, self.lock = free, capacity, threading.Lock()
        self.kept: OrderedDict[Sizes, StepProgram] = OrderedDict()

    @property
    def latest(self) -> StepProgram | None:
        """The one used last."""
        kept = list(self.kept.values())
        return kept[-1] if kept else None

    def of(self, source: StepSource, sizes: Sizes) -> tuple[StepProgram, list[StepProgram]]:
        """The program for some sizes, built if need be, and those that are dropped for it. With the lock held."""
        dropped: list[StepProgram] = []
        program = self.kept.get(sizes)
        if program is None:
            program = StepProgram(self.built(source, sizes), sizes, source)
            while len(self.kept) >= self.capacity:
                dropped.append(self.kept.popitem(last=False)[1])
            self.kept[sizes] = program
        self.kept.move_to_end(sizes)
        return program, dropped

    def update(self, session: Session, program: StepProgram, source: StepSource) -> None:
        """Have `program` be what `source` gives: it was built from another while the training went over to that."""
        if program.source is not source:
            program.unload(session)
            program.take(self.built(source, program.sizes))
            program.source = source

    def clear(self, session: Session) -> None:
        """Drop all. On the worker's thread."""
        with self.lock:
            dropped = list(self.kept.values())
            self.kept.clear()
        for program in dropped:
            program.unload(session)

    def built(self, source: StepSource, sizes: Sizes) -> Built:
        """The step compiled for some sizes."""
        return source._replace(inputs=self.free.sized(sizes)).traced().compiled()
