"""Keep what a loop hands on in workgroup memory: from one kernel to the next, and from one iteration to the next.

A barrier for storage waits until every processor could see what was written, which takes longer than most kernels of a
loop. If a block reads everything that its loop writes from workgroup memory, barriers for that memory are enough.
Everything is still written to storage as well, for readers after the loop.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from tracegrad.kernels.blocks import BLOCK, Blocks, Span, body_of, steps_of
from tracegrad.kernels.expr import Atom, Index, Space, Value, Var
from tracegrad.kernels.tiling import WORKGROUP_BYTES, workgroup_bytes
from tracegrad.kernels.unroll import Replaced

ARRAYS = {"f32": "wf", "i32": "wi"}  # workgroup arrays by the type of their elements
LOOKED_AT = 3  # iterations in which places are compared: they move by a fixed step, or there and back


class Copy(NamedTuple):
    """Where a slot's part of a block is in workgroup memory. Of a value for the next iteration there are two copies."""

    array: str
    begin: int
    size: int
    copies: int
    later: int = 1  # 0: as the iteration before left it

    def at(self, t: str) -> str:
        """Return where it begins in iteration `t`, as code."""
        turn = f" + ({t} + {self.later}) % 2 * {self.size}" if self.copies > 1 else ""
        return f"{self.begin}{turn}"


class Mirrors(NamedTuple):
    """Of each kernel, the slots that are in workgroup memory, too; and the elements of each array."""

    of: tuple[Mapping[int, Copy], ...]
    sizes: Mapping[str, int]


Written = tuple[int, int]  # the number of a kernel and of its slot


def with_mirrors(blocks: Blocks, spans: Sequence[Sequence[Span]], length: int) -> tuple[Blocks, Mirrors | None]:
    """Return the blocks with loads from workgroup memory, and what is there; or as they are, if not all can be.

    length: the number of iterations.
    """
    sources = _sources(blocks, spans, length)
    if sources is None:
        return blocks, None
    carried = {w for (k, _), w in sources.items() if w[0] >= k}
    places: dict[Written, Copy] = {}
    sizes: dict[str, int] = {}
    for k, slot in dict.fromkeys(sources.values()):
        span = spans[k][slot]
        array, size, copies = ARRAYS[span.dtype], span.size // blocks.number, 1 + ((k, slot) in carried)
        places[k, slot] = Copy(array, sizes.get(array, 0), size, copies)
        sizes[array] = sizes.get(array, 0) + size * copies
    if workgroup_bytes(blocks.tilings) + 4 * sum(sizes.values()) > WORKGROUP_BYTES:
        return blocks, None
    of: list[dict[int, Copy]] = [{slot: c for (j, slot), c in places.items() if j == k} for k in range(len(spans))]
    for (k, slot), w in sources.items():
        of[k][slot] = places[w]._replace(later=int(w[0] < k))
    kernels = tuple(
        replace(kernel, body=body_of(kernel, _Local({slot for j, slot in sources if j == k})))
        for k, kernel in enumerate(blocks.kernels)
    )
    return blocks._replace(kernels=kernels), Mirrors(tuple(of), sizes)


def _sources(blocks: Blocks, spans: Sequence[Sequence[Span]], length: int) -> dict[Written, Written] | None:
    """Return who writes what each slot reads of the memory that the loop writes; None if that is not plain."""
    everything = [(k, slot, s) for k, own in enumerate(spans) for slot, s in enumerate(own)]
    written = [(k, slot, s) for k, slot, s in everything if s.written]
    if any(a.meets(b) for n, (*_, a) in enumerate(written) for *_, b in written[:n]):
        return None  # two kernels write an element: only a barrier for storage keeps their order
    steps = [steps_of(kernel) for kernel in blocks.kernels]
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


class _Local(Replaced):
    """Values whose loads from some slots count from the begin of the block."""

    def __init__(self, slots: set[int]) -> None:
        super().__init__(Space(), {})
        self.slots = slots

    def rebuilt(self, v: Value, args: tuple[Value, ...]) -> Value:
        if v.op != "load" or v.arg[0] not in self.slots:
            return super().rebuilt(v, args)
        return self.space.load(v.arg[0], local(self.index(v.arg[1])), v.dtype)


def local(index: Index) -> Index:
    """Return an index counted from the begin of its block."""
    block: dict[Atom, int] = {a: c for a, c in index.terms if isinstance(a, Var) and a.name == BLOCK}
    return index - index.space.index(block, 0)
