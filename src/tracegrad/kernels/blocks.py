"""Cut the kernels of a loop into independent blocks, so that a GPU runs all iterations in one launch.

A loop over a batch of sequences computes each sequence by itself. A workgroup then runs every iteration of one block of
sequences, and no workgroup waits for another. Indices prove that blocks are independent. In every value that the loop
writes, element `e` belongs to block `e // step % count`. The kernels of a block access only its elements of the value.
A small loop whose sequences need each other, or that has only one, is a single block.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from tracegrad import tuning
from tracegrad.dtypes import f32
from tracegrad.kernels.axes import Replaced
from tracegrad.kernels.expr import Atom, Guard, Index, Space, Value, Var, names_of, walk
from tracegrad.kernels.form import Axis, Fold, Kernel, Statement, Store
from tracegrad.kernels.tiling import WORKGROUP_BYTES, BlockShape, Tiling, columns, workgroup_bytes

BLOCK = "block"  # the variable that holds a block's number
ONE = Axis("", 1)  # of a kernel that has no axes


class Span(NamedTuple):
    """The memory of one slot in all iterations: its place in the first iteration, and its moves."""

    array: int
    dtype: str  # of the array
    offset: int
    size: int
    written: bool
    move: tuple[int, int] = (0, 1)  # step and ring in this loop
    outer: tuple[tuple[int, int, int], ...] = ()  # depth, step and ring in loops around it

    def at(self, t: int) -> int:
        """Return the offset in the array at which the slot's memory begins in iteration `t`."""
        step, ring = self.move
        return self.offset + step * (t % ring)

    @property
    def steps(self) -> list[int]:
        """The steps other than 0 by which the memory moves, in this loop and in loops around it."""
        return [step for step in (self.move[0], *(step for _, step, _ in self.outer)) if step]

    @property
    def begin(self) -> int:
        """The least offset at which the memory begins in any iteration."""
        return self.offset + sum(min(0, s * (ring - 1)) for s, ring in (self.move, *(x[1:] for x in self.outer)))

    @property
    def end(self) -> int:
        """The largest offset at which the memory ends in any iteration."""
        far = sum(max(0, s * (ring - 1)) for s, ring in (self.move, *(x[1:] for x in self.outer)))
        return self.offset + far + self.size

    def follows(self, other: Span, later: int, iterations: range) -> bool:
        """Return whether this memory begins in iteration t + `later` where `other` does in t, for t in `iterations`."""
        return self.outer == other.outer and all(self.at(t + later) == other.at(t) for t in iterations)

    def meets(self, other: Span) -> bool:
        """Return whether one slot writes memory that the other reads or writes."""
        apart = self.array != other.array or self.end <= other.begin or other.end <= self.begin
        return not apart and (self.written or other.written)


class Part(NamedTuple):
    """A kernel of a loop, restricted to one block, whose number is the variable `block`."""

    kernel: Kernel
    tiling: Tiling
    fixed: frozenset[int]  # slots whose elements are the same in all iterations
    copies: Mapping[int, Copy]  # slots that workgroup memory mirrors


class Blocks(NamedTuple):
    """The kernels of a loop for each of `number` blocks.

    mirrored: elements of workgroup memory by array; empty if kernels pass on what they write through storage.
    """

    number: int
    parts: Sequence[Part]
    mirrored: Mapping[str, int]

    @property
    def tilings(self) -> list[Tiling]:
        """The tiling of each kernel."""
        return [part.tiling for part in self.parts]


def blocks_of(kernels: Sequence[Kernel], spans: Sequence[Sequence[Span]], times: Sequence[int]) -> Blocks | None:
    """Return the kernels of a loop in blocks, or None if blocks are not independent or would be too large.

    spans: of each kernel, the memory of its slots. times: how often each runs in an iteration.
    """
    if not all(map(_simple, kernels)):
        return None
    shared = [[any(s.meets(x) for own in spans for x in own) for s in own] for own in spans]
    for count in _counts(kernels):
        found = _cut(count, kernels, spans, shared)
        tilings = tuple(map(in_workgroup, found or ()))
        if not found or _too_large(found, tilings, times):
            continue
        fixed = [
            frozenset(k for k, s in enumerate(own) if not (s.steps or both[k])) for own, both in zip(spans, shared)
        ]
        return Blocks(count, [Part(*part, {}) for part in zip(found, tilings, fixed)], {})
    return None


def _too_large(kernels: Sequence[Kernel], tilings: Sequence[Tiling], times: Sequence[int]) -> bool:
    """Return whether the kernels of a block have too little memory, or take longer than their launches would."""
    rows = sum(k.work * n for k, t, n in zip(kernels, tilings, times) if t.kind != "block")  # no operands in registers
    long = max(k.work for k in kernels) > tuning.MOST_FOLDED or rows >= tuning.BLOCK_WORK * sum(times)
    return long or workgroup_bytes(tilings) > WORKGROUP_BYTES


def _simple(kernel: Kernel) -> bool:
    """Return whether a kernel can be cut into blocks: it has no limits, no uniform folds and no scatter."""
    limits = kernel.product.limits if kernel.product else ()
    return not limits and not kernel.uniform and kernel.scatter is None


def _counts(kernels: Sequence[Kernel]) -> list[int]:
    """Return the numbers of blocks to try, the largest first.

    Numbers that leave too few points come later. Numbers that leave most of a large GPU idle come last.
    """
    sizes = {a.size for k in kernels for a in k.outer}
    counts = {1} | sizes | {n // tuning.LOOP_THREADS for n in sizes if n % tuning.LOOP_THREADS == 0}
    fewest = min(k.rows for k in kernels)

    def order(count: int) -> tuple[bool, bool, int]:
        return count < tuning.FEWEST_BLOCKS, fewest // count < tuning.BLOCK_POINTS, -count

    return sorted((n for n in counts if n <= tuning.MOST_BLOCKS), key=order)


def _cut(
    count: int, kernels: Sequence[Kernel], spans: Sequence[Sequence[Span]], shared: Sequence[Sequence[bool]]
) -> tuple[Kernel, ...] | None:
    """Return the kernels restricted to one of `count` blocks along an axis of each; None if no axes will do."""
    chosen: list[Kernel] = []
    known: list[tuple[Span, tuple[int, int]]] = []  # memory that the loop writes, and how it is divided

    def place(k: int) -> bool:
        if k == len(kernels):
            return True
        for axis in kernels[k].outer or (ONE,):
            if axis.size % count:
                continue
            kernel = restricted(kernels[k], axis, count)
            own = _division(kernel, count, spans[k], shared[k])
            if own is None or any(a.meets(b) and x != y for a, x in own for b, y in (*known, *own)):
                continue
            chosen.append(kernel)
            known.extend(own)
            if place(k + 1):
                return True
            chosen.pop()
            del known[len(known) - len(own) :]
        return False

    return tuple(chosen) if place(0) else None


def restricted(kernel: Kernel, axis: Axis, count: int) -> Kernel:
    """Return the kernel for one of `count` equal parts of an axis; `block` is the number of the part."""
    part = axis.size // count
    space = Space()
    inside = space.var(BLOCK, count) * part + space.var(axis.name, part)
    values = Replaced(space, {axis.name: inside})
    outer = tuple([Axis(a.name, part) if a == axis else a for a in kernel.outer])
    return replace(kernel, outer=outer, body=body_of(kernel, values))


def body_of(kernel: Kernel, values: Replaced) -> tuple[Statement, ...]:
    """Return the statements of a kernel, rebuilt. Products become plain folds of their terms."""
    return tuple(
        [values.store(s) if isinstance(s, Store) else Fold(s.local, s.prim, values.value(s.value)) for s in kernel.body]
    )


def steps_of(kernel: Kernel) -> dict[int, int]:
    """Return for each slot the elements from one block to the next; all of them where indices name no block."""
    return {slot: index.strides.get(BLOCK, kernel.slots[slot].size) for slot, index, _ in accesses(kernel)}


def _division(
    kernel: Kernel, count: int, spans: Sequence[Span], shared: Sequence[bool]
) -> list[tuple[Span, tuple[int, int]]] | None:
    """Return how a restricted kernel divides the memory that the loop writes; None if it may access other blocks.

    A division is (step, offset of the value within the pattern of `step * count` elements).
    """
    steps: dict[int, int] = {}
    for slot, index, guards in accesses(kernel):
        if not shared[slot]:
            continue
        step = index.strides.get(BLOCK, 1)  # without a block in the index: right for a single block only
        if step <= 0 or steps.setdefault(slot, step) != step or not _stays(index, guards, step, count):
            return None
    found: list[tuple[Span, tuple[int, int]]] = []
    for slot, step in steps.items():
        span = spans[slot]
        if any(move % (step * count) for move in span.steps):
            return None
        found.append((span, (step, span.offset % (step * count))))
    return found


def accesses(kernel: Kernel) -> Iterator[tuple[int, Index, tuple[Guard, ...]]]:
    """Yield the slot, index and guards of every load and store."""
    roots = [s.value for s in kernel.body]
    for s in kernel.body:
        if isinstance(s, Store):
            yield s.slot, s.index, ()
    found = list(walk(roots))
    parents = [(v, x) for v in found for x in v.args]
    guarded = {x for v, x in parents if v.op == "inside"}
    bare = {x for v, x in parents if v.op != "inside"} | set(roots)
    bare |= {v for v in found if v.op == "load" and v not in guarded}  # values inside of indices have no parent
    for v in found:
        if v.op == "load" and v in bare:
            yield v.arg[0], v.arg[1], ()
    for v, x in parents:
        if v.op == "inside" and x.op == "load":
            yield x.arg[0], x.arg[1], v.arg


def _stays(index: Index, guards: Sequence[Guard], step: int, count: int) -> bool:
    """Return whether `index // step % count` is the number of the block wherever the guards hold."""
    block = index.space.var(BLOCK, count)
    return any(x // step % count is block for x in (index, bounded(index, guards)))


def bounded(index: Index, guards: Sequence[Guard]) -> Index:
    """Return an index in which guarded parts have the bounds of their guards."""
    for k, g in enumerate(guards):
        first, c = g.index.terms[0]
        times = dict(index.terms).get(first, 0) // c
        rest = index - g.index * times
        if times and len(rest.terms) < len(index.terms):
            index = rest + (index.space.var(f"guarded{k}_{g.hi - g.lo}", g.hi - g.lo) + g.lo) * times
    return index


def in_workgroup(kernel: Kernel) -> Tiling:
    """Return the tiling of a kernel all of whose points one workgroup computes."""
    rows, threads = int(kernel.rows), tuning.LOOP_THREADS
    folds = kernel.folds
    if not folds:
        return Tiling("points", -(-rows // threads), threads=threads)
    lanes = 1
    while rows * lanes < threads and lanes * tuning.SHORTEST_LANE <= kernel.length:
        lanes *= 2
    by_rows = Tiling("rows", -(-rows * lanes // threads), lanes, columns(kernel) and lanes > 1, lanes, threads)
    inner = any(s.inner for s in kernel.stores)
    if len(folds) > 1 or kernel.length < tuning.COOPERATE_FROM or inner:
        return by_rows
    chunk = -(-int(kernel.length) // lanes)
    shape = BlockShape(rows, lanes, chunk + -chunk % 4, len(gathered(kernel)))
    tiling = Tiling("block", 1, threads=threads, block=shape)
    return tiling if workgroup_bytes([tiling]) <= WORKGROUP_BYTES else by_rows


def gathered(kernel: Kernel) -> list[Value]:
    """Return the loads of folds that are the same for all rows: a workgroup reads them together."""
    outer = {a.name for a in kernel.outer if a.size > 1}
    return [v for v in _folded_loads(kernel) if not _variables(v) & outer]


def kept(kernel: Kernel, fixed: Set[int]) -> list[Value]:
    """Return the folded loads that a thread keeps from iteration to iteration, without the loads of `gathered`.

    The loads read `fixed` slots, at elements that do not depend on the block.
    """
    together = gathered(kernel)
    loads = [v for v in _folded_loads(kernel) if _slots(v) <= fixed and BLOCK not in _variables(v)]
    return [v for v in loads if v not in together]


def _slots(load: Value) -> set[int]:
    """Return the slots that a load reads, also for its index."""
    return {v.arg[0] for v in walk([load]) if v.op == "load"}


def _folded_loads(kernel: Kernel) -> list[Value]:
    """Return the f32 values that folds load without guards."""
    roots = [s.value for s in kernel.folds]
    values = list(walk(roots))
    bare = {x for v in values for x in v.args if v.op == "map"}.union(roots)
    return [v for v in values if v.op == "load" and v in bare and v.dtype is f32]


def _variables(load: Value) -> set[str]:
    """Return the variables that the index of a load depends on."""
    return names_of(atom for atom, _ in load.arg[1].terms)


# Values that a loop passes from kernel to kernel, and to the next iteration, stay in workgroup memory. A barrier for
# storage waits until all processors can see written values, which takes longer than most kernels of a loop. If a block
# reads everything that its loop writes from workgroup memory, barriers for that memory are enough. Everything is still
# written to storage as well, for readers after the loop.
ARRAYS = {"f32": "wf", "i32": "wi"}  # workgroup arrays by the type of their elements
LOOKED_AT = 3  # iterations in which places are compared: places move by a fixed step, or alternate between two


class Copy(NamedTuple):
    """The place of a slot's block in workgroup memory. A value for the next iteration has two copies, used in turn."""

    array: str
    begin: int
    size: int
    copies: int
    later: int = 1  # 0: the copy that the previous iteration wrote

    def at(self, t: str) -> str:
        """Return the code of the index in `array` at which the block begins in iteration `t`."""
        turn = f" + ({t} + {self.later}) % 2 * {self.size}" if self.copies > 1 else ""
        return f"{self.begin}{turn}"


Written = tuple[int, int]  # the number of a kernel and of its slot


def with_mirrors(blocks: Blocks, spans: Sequence[Sequence[Span]], length: int) -> Blocks:
    """Return the blocks with loads from workgroup memory.

    Return the same blocks if the values do not all fit, or if a source of a read is not certain.
    length: the number of iterations.
    """
    sources = _sources(blocks, spans, length)
    if sources is None:
        return blocks
    carried = {w for (k, _), w in sources.items() if w[0] >= k}
    places: dict[Written, Copy] = {}
    sizes: dict[str, int] = {}
    for k, slot in dict.fromkeys(sources.values()):
        span = spans[k][slot]
        array, size, copies = ARRAYS[span.dtype], span.size // blocks.number, 1 + ((k, slot) in carried)
        places[k, slot] = Copy(array, sizes.get(array, 0), size, copies)
        sizes[array] = sizes.get(array, 0) + size * copies
    if workgroup_bytes(blocks.tilings) + 4 * sum(sizes.values()) > WORKGROUP_BYTES:
        return blocks
    of: list[dict[int, Copy]] = [{slot: c for (j, slot), c in places.items() if j == k} for k in range(len(spans))]
    for (k, slot), w in sources.items():
        of[k][slot] = places[w]._replace(later=int(w[0] < k))
    parts: list[Part] = []
    for k, part in enumerate(blocks.parts):
        values = Replaced(Space(), {}, partial(_element, {s for j, s in sources if j == k}))
        parts.append(part._replace(kernel=replace(part.kernel, body=body_of(part.kernel, values)), copies=of[k]))
    return Blocks(blocks.number, parts, sizes)


def _sources(blocks: Blocks, spans: Sequence[Sequence[Span]], length: int) -> dict[Written, Written] | None:
    """Return, for each slot that reads memory of the loop, the kernel and slot that wrote it.

    None if workgroup memory cannot serve one of these reads, or if two kernels write the same memory.
    """
    everything = [(k, slot, s) for k, own in enumerate(spans) for slot, s in enumerate(own)]
    written = [(k, slot, s) for k, slot, s in everything if s.written]
    if any(a.meets(b) for n, (*_, a) in enumerate(written) for *_, b in written[:n]):
        return None  # two kernels write an element: only a barrier for storage keeps their order
    steps = [steps_of(part.kernel) for part in blocks.parts]
    found: dict[Written, Written] = {}
    for k, slot, s in everything:
        met = [(j, other, w) for j, other, w in written if s.meets(w)]
        if s.written or not met:
            continue
        if len(met) > 1:
            return None
        ((j, other, w),) = met
        whole = all(steps[n].get(m) == x.size // blocks.number for n, m, x in ((k, slot, s), (j, other, w)))
        later = int(j >= k)
        handed = s.follows(w, later, range(min(length - later, LOOKED_AT)))
        if not (whole and handed and s.size == w.size and s.dtype in ARRAYS):
            return None
        found[k, slot] = j, other
    return found


def _element(own: Set[int], slot: int, index: Index) -> Index:
    """Return the index of an element in a slot, relative to the block if the slot is in `own`."""
    return local(index) if slot in own else index


def local(index: Index) -> Index:
    """Return an index counted from the beginning of its block."""
    block: dict[Atom, int] = {a: c for a, c in index.terms if isinstance(a, Var) and a.name == BLOCK}
    return index - index.space.index(block, 0)
