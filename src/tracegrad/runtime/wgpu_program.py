"""A Program on a wgpu device: its arrays, pipelines and bind groups, and the memory of its batches, each built once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from typing import Any

from tracegrad.arrays import np
from tracegrad.kernel_source import KernelSource
from tracegrad.loops import BY_SIZE
from tracegrad.program import PERSISTENT, Dispatch, Program
from tracegrad.runtime.process import processors
from tracegrad.runtime.wgpu_calls import BoundDispatch, Commands, Copy
from tracegrad.runtime.wgpu_rings import (
    ALIGN,
    Array,
    BatchMemory,
    Inputs,
    Outputs,
    Stagings,
    depth_of,
    plan_inputs,
    plan_outputs,
)
from tracegrad.runtime.wgpu_shared import COPY_DST, MAP_READ, UNIFORM, Shared
from tracegrad.tuning import COMPILERS


@dataclass(slots=True, eq=False)
class Loaded:
    """A program ready to run, with at most `depth` runs in a batch."""

    program: Program
    shared: Shared
    depth: int
    inputs: Inputs = field(init=False)
    outputs: Outputs = field(init=False)
    arrays: list[Array] = field(default_factory=list[Array])
    dispatched: tuple[BoundDispatch, ...] = ()  # launches of a batch's first run, without empty grids
    places: dict[int, int] = field(default_factory=dict[int, int])  # number of an unrolled dispatch -> of its launch
    bound: tuple[tuple[Any, tuple[int, ...]], ...] = ()  # for each launch: its group's layout, and the arrays in it
    groups: dict[tuple[int, tuple[int, ...], int], Any] = field(default_factory=dict[Any, Any])
    runs: list[Any] = field(default_factory=list[Any])  # launches of the k-th run of a batch, prepared
    memories: list[BatchMemory] = field(default_factory=list[BatchMemory])  # all memories of this size made so far
    stagings: Stagings = field(default_factory=Stagings)  # of all sizes
    uniform: Any = None
    lender: Loaded | None = None  # the program that owns the arrays, if another one does
    released: bool = False

    @property
    def alive(self) -> bool:
        """Return whether the program can still be submitted."""
        return not self.released and (self.lender is None or self.lender.alive)

    def release(self) -> None:
        """Free what only this program uses; it must not be submitted again."""
        self.released = True
        own = self.arrays if self.lender is None else []
        for b, a in zip(self.program.buffers, own, strict=False):  # fewer arrays if building failed
            if b.role in PERSISTENT:
                a.users -= 1
                if a.users:
                    continue
                del self.shared.arrays[a.name]
            a.buffer.destroy()
        if self.lender is None:
            self.stagings.destroy()
        if self.uniform is not None:
            self.uniform.destroy()
        self.runs, self.dispatched, self.memories, self.arrays, self.groups = [], (), [], [], {}

    def take_memory(self) -> BatchMemory:
        """Return memory that no batch under way uses; new memory if all is in use."""
        size = (self.lender or self).outputs.bytes(self.depth)
        staging = self.stagings.take(self.inputs, lambda: self.shared.allocate("outputs", size, MAP_READ | COPY_DST))
        found = next((x for x in self.memories if x.staging is staging), None)
        if found is None:
            found = BatchMemory(self.inputs, staging)
            self.memories.append(found)
        return found

    def commands(self, memory: BatchMemory, runs: int) -> Any:
        """Return the prepared commands of a batch of `runs` runs in this memory."""
        if runs not in memory.prepared:
            launches = [self._prepared(k) for k in range(runs)]
            commands = Commands(memory.writes(runs), launches, list(self._copies(memory, runs)))
            memory.prepared[runs] = self.shared.calls.prepared(commands)
        return memory.prepared[runs]

    def _prepared(self, run: int) -> Any:
        """Return the launches of the `run`-th run of a batch."""
        if not self.runs:
            self.runs.append(self.shared.calls.prepare(self.dispatched))
        while len(self.runs) <= run:
            launches = [
                x._replace(group=self.group(layout, ids, len(self.runs)))
                for x, (layout, ids) in zip(self.dispatched, self.bound, strict=True)
            ]
            self.runs.append(self.shared.calls.prepare(launches))
        return self.runs[run]

    def _copies(self, memory: BatchMemory, runs: int) -> Iterator[Copy]:
        """Yield the copies of the outputs of `runs` runs."""
        at = 0
        for d in self.outputs.deliveries:
            size = d.bytes(runs)
            if size:
                yield Copy(d.array.buffer, d.start, memory.results, at, size)
            at += size

    def group(self, layout: Any, ids: tuple[int, ...], run: int) -> Any:
        """Return the bind group of arrays in the `run`-th run of a batch; all runs share it if no array has parts."""
        arrays = [self.arrays[k] for k in ids]
        key = (id(layout), ids, run if any(a.stride for a in arrays) else 0)
        if key not in self.groups:
            self.groups[key] = self.shared.group(layout, [a.part(run) for a in arrays])
        return self.groups[key]

    def place(self, numbers: Iterable[tuple[int, ...]]) -> tuple[Any, dict[tuple[int, ...], int]]:
        """Return a bind group with the numbers of all dispatches, or None, and the byte where each one's begin."""
        known = dict.fromkeys(n for n in numbers if n)
        if not known:
            return None, {}
        span = 16 * (max(map(len, known)) // 4 + 1)  # always room for one more: the first workgroup's number, 0
        stride = ALIGN * -(-span // ALIGN)
        table = np.zeros((len(known), stride // 4), np.int32)
        for row, own in zip(table, known):
            row[: len(own)] = own
        self.uniform = self.shared.allocate("offsets", table.nbytes, UNIFORM | COPY_DST)
        self.shared.calls.write(self.uniform, 0, table)
        part = {"buffer": self.uniform, "offset": 0, "size": span}
        return self.shared.group(self.shared.offsets_layout(), [part]), {own: stride * k for k, own in enumerate(known)}


def offsets_of_kernels(program: Program) -> dict[int, tuple[int, ...]]:
    """Return, by number, the offsets of kernels that are always launched with the same ones."""
    given: dict[int, set[tuple[int, ...]]] = {}
    follow: set[int] = set()
    for d in program.unrolled():
        given.setdefault(d.kernel, set()).add(d.offsets)
        follow |= {d.kernel} if d.moves else set()  # other sizes of a run have other offsets
    same = {k: offsets for k, (offsets, *others) in given.items() if not others and k not in follow}
    return {k: offsets for k, offsets in same.items() if program.kernels[k].slots}


class Compiling:
    """The kernels of a program, compiled in parallel: a driver takes 10 to 300 ms for a new one.

    Products and launches of several kernels take longest, so they come first. Texts are generated one by one, in this
    order.
    """

    def __init__(self, program: Program, shared: Shared) -> None:
        for kernel in program.kernels:
            shared.layout(kernel)
        shared.offsets_layout()
        constant = offsets_of_kernels(program)

        def made(number: int) -> tuple[KernelSource, Any]:
            kernel = program.kernels[number]
            if number in constant:
                kernel = kernel.with_offsets(constant[number])
            return kernel, shared.pipeline(kernel)

        self._program, self._shared = program, shared
        used = {d.kernel: program.kernels[d.kernel] for d in program.dispatches}
        self._order = sorted(used, key=lambda k: (used[k].workgroup_memory, used[k].slots), reverse=True)
        self._pool = ThreadPoolExecutor(max(1, min(COMPILERS, len(used), processors())))
        self._made = self._pool.map(made, self._order)

    def also(self, kernel: KernelSource) -> Future[Any]:
        """Return a future of the pipeline of one more kernel, which is compiled after those of the program."""
        self._shared.layout(kernel)
        return self._pool.submit(self._shared.pipeline, kernel)

    def result(self) -> tuple[Program, list[Any]]:
        """Return the program with the compiled kernels, and their pipelines. Raises CompileError."""
        with self._pool:
            found = dict(zip(self._order, self._made, strict=True))
        sources = tuple([found[n][0] if n in found else k for n, k in enumerate(self._program.kernels)])
        dispatches = [
            d if sources[d.kernel].slots else replace(d, offsets=(), moves=()) for d in self._program.dispatches
        ]
        program = replace(self._program, kernels=sources, dispatches=tuple(dispatches))
        return program, [pipeline for _, pipeline in found.values()]

    def stop(self) -> None:
        """Start no more compilations, and wait for the rest."""
        self._pool.shutdown(cancel_futures=True)


def build(program: Program, shared: Shared, meanwhile: Callable[[Callable[[KernelSource], Any]], None]) -> Loaded:
    """Load `program`: arrays, pipelines, bind groups. On failure, free its arrays.

    meanwhile: the work of this thread during compilation; its argument compiles one more kernel.
    """
    loaded = Loaded(program, shared, depth_of(program))
    compiling = Compiling(program, shared)
    try:
        for b in program.buffers:
            loaded.arrays.append(shared.array(b, loaded.depth))
        meanwhile(compiling.also)
        loaded.program, held = compiling.result()
        _launch(loaded)
        loaded.inputs = plan_inputs(program, loaded.arrays, loaded.depth)
        loaded.outputs = plan_outputs(program, loaded.arrays)
        del held  # the launches hold the pipelines now
    except BaseException:
        compiling.stop()
        loaded.release()
        raise
    return loaded


def resized(program: Program, like: Loaded) -> Loaded:
    """Return a loaded program at another size: it uses the arrays and pipelines of `like`, which must live longer."""
    now = replace(like.program, size=program.size, inputs=program.inputs, outputs=program.outputs)
    loaded = Loaded(now, like.shared, like.depth, arrays=like.arrays, stagings=like.stagings, lender=like)
    launched = now.launched()
    follow = {k for k, d in enumerate(launched) if _follows(now, d)}
    found: list[tuple[int, BoundDispatch, tuple[int, ...]]] = []  # place, and the numbers that depend on the size
    for k, (number, at) in zip(now.kept(), now.order(), strict=True):
        if k in like.places:
            x, d = like.dispatched[like.places[k]], launched[number]
            own = _numbers(now, d.moved(at, now.size), now.size) if number in follow else ()
            found.append((like.places[k], x if x.grid == d.grid else x._replace(grid=d.grid), own))
    group, places = loaded.place(own for *_, own in found)
    loaded.dispatched = tuple([x._replace(offsets=group, at=places[own]) if own else x for _, x, own in found])
    loaded.bound, loaded.groups = tuple([like.bound[n] for n, *_ in found]), like.groups
    loaded.inputs = plan_inputs(program, like.arrays, loaded.depth)
    loaded.outputs = plan_outputs(program, like.arrays)
    return loaded


def _launch(loaded: Loaded) -> None:
    """Build every dispatch with its pipeline and bind groups; equal groups and equal offsets are shared."""
    program, shared = loaded.program, loaded.shared
    dispatches = list(program.unrolled())
    numbers = [_numbers(program, d, program.size) for d in dispatches]
    offsets_group, places = loaded.place(numbers)
    launches: list[BoundDispatch] = []
    bound: list[tuple[Any, tuple[int, ...]]] = []
    for k, (d, own) in enumerate(zip(dispatches, numbers)):
        if not all(d.grid):
            continue
        loaded.places[k] = len(launches)
        kernel = program.kernels[d.kernel]
        layout = shared.layout(kernel)
        group = loaded.group(layout, d.buffers, 0)
        here = offsets_group if kernel.slots else None
        launches.append(BoundDispatch(shared.pipeline(kernel), group, here, places.get(own, 0), d.grid))
        bound.append((layout, d.buffers))
    loaded.dispatched, loaded.bound = tuple(launches), tuple(bound)


def _follows(program: Program, d: Dispatch) -> bool:
    """Return whether the numbers that a dispatch reads depend on the size of a run."""
    moves = any(move.depth == BY_SIZE for _, move in d.moves)
    return bool(d.offsets) and (moves or program.kernels[d.kernel].capacity > 0)


def _numbers(program: Program, d: Dispatch, size: int) -> tuple[int, ...]:
    """Return the numbers that a dispatch reads from the uniform buffer, in a run of some size."""
    return program.kernels[d.kernel].numbers(d.offsets, size) if d.offsets else ()
