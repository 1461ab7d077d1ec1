"""A scan as it is compiled: its body is a plan of its own, whose launches run again and again at places that move.

A carry has a *ring* of places. Where the new value is computed from the old one point by point, and nothing else reads
that, they share one place. Else there are two, in turns; or one for each iteration, if all values are wanted, as a
gradient does. No value is ever copied from one iteration to the next.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import field
from typing import TYPE_CHECKING, Any

from tracegrad.compiler.layout import Place
from tracegrad.ir import Graph, Tensor, bind, graft, toposort
from tracegrad.kernels.reads import base, reads_of
from tracegrad.kernels.storage import Storage, analyse
from tracegrad.kernels.stored import COMPUTED
from tracegrad.lazy import dataclass
from tracegrad.passes.place import COMPUTING, place_results, settled
from tracegrad.prims.leaves import LEAF, LITERAL
from tracegrad.program import Move
from tracegrad.transforms.loops import Body

if TYPE_CHECKING:
    from tracegrad.compiler.layout import Filling
    from tracegrad.compiler.places import Plan


@dataclass(slots=True)
class Block:
    """Memory of a scan among the temporaries around it. `starts`: written before the scan runs, by whom."""

    key: int
    storage: str
    size: int
    starts: Tensor | None = None
    items: tuple[int, ...] = ()  # the results that lie in it
    place: Place = field(default_factory=lambda: Place("", 0))


@dataclass(slots=True)
class ScanPlan:
    """A scan and the plan of its body."""

    scan: Tensor
    leaves: tuple[Tensor, ...]  # of the body, in the order of the scan's inputs
    rings: tuple[int, ...]  # how many places each carry has
    same: dict[int, tuple[int, bool]]  # item -> the carry whose values it is, and whether the new ones
    roots: dict[int, Tensor]  # item, or carry, that has no place yet -> what computes it
    plan: Plan
    blocks: dict[int, Block] = field(default_factory=dict[int, Block])

    @property
    def body(self) -> Body:
        """Of the scan."""
        return self.scan.attrs["body"]

    @property
    def length(self) -> int:
        """How many iterations."""
        return self.scan.attrs["length"]

    @property
    def results(self) -> set[int]:
        """Serials of the body's values that lie in the scan's memory, not in that of an iteration."""
        return {base(t).serial for t in self.roots.values()}

    def make_blocks(self) -> None:
        """What memory the scan needs; its body's temporaries have their places."""
        n = len(self.rings)
        for k, ring in enumerate(self.rings):
            leaf = self.leaves[k]
            items = (k, *(item for item, (carry, _) in self.same.items() if carry == k))
            starts = self.scan.inputs[k]
            self.blocks[k] = Block(leaf.serial, leaf.dtype.storage, ring * leaf.size, starts, items)
        for item, t in self.roots.items():
            if item >= n:
                self.blocks[item] = Block(base(t).serial, t.dtype.storage, self.length * t.size, None, (item,))
        for k, (array, size) in enumerate(self.plan.temporaries.items()):
            self.blocks[-1 - k] = Block(-(self.scan.serial * 64 + k), array.split(".")[1], size)

    def result(self, item: int) -> Place:
        """Where a result lies."""
        n = len(self.rings)
        if item in self.same:
            carry, new = self.same[item]
            # forwards all values of a carry begin with the first, and the new ones one later; backwards they end so
            return self.blocks[carry].place.at((new != self.scan.attrs["reverse"]) * self.leaves[carry].size)
        place = self.blocks[item].place
        return place if item >= n else place.at(self.slot(item, self.length) * self.leaves[item].size)

    def slot(self, carry: int, iteration: int) -> int:
        """Which place of its ring a carry is read from in an iteration; the first is number 0."""
        if self.rings[carry] == self.length + 1 and self.scan.attrs["reverse"]:
            return self.length - iteration
        return iteration % self.rings[carry]

    def settle(self, around: Plan, depth: int, constants: Filling) -> None:
        """Places for everything in the body; those around it are known."""
        plan, n = self.plan, len(self.rings)
        arrays = {array: self.blocks[-1 - k].place for k, array in enumerate(plan.temporaries)}

        def moved(place: Place) -> Place:
            return arrays[place.array].at(place.offset)

        plan.places |= {serial: moved(place) for serial, place in plan.places.items()}
        for inner in plan.scans.values():
            for block in inner.blocks.values():
                block.place = moved(block.place)
        for t in plan.storage.order:
            if t.prim is LITERAL:
                plan.places[t.serial] = constants.add("const", str(t.serial), t.type)
        for k, leaf in enumerate(self.leaves):
            if k < n:
                plan.places[leaf.serial] = self.carried(k, 0, depth)
            else:
                place = around.places[base(self.scan.inputs[k]).serial]
                is_x = k < n + len(self.body.xs)
                plan.places[leaf.serial] = self.along(place, leaf.size, depth) if is_x else place
        for item, t in self.roots.items():
            at = self.carried(item, 1, depth) if item < n else self.along(self.blocks[item].place, t.size, depth)
            plan.places[base(t).serial] = at

    def carried(self, carry: int, later: int, depth: int) -> Place:
        """The place of a carry that moves with the iterations; `later`: of its new value."""
        place, size, ring = self.blocks[carry].place, self.leaves[carry].size, self.rings[carry]
        first = self.slot(carry, later)
        if ring == 1:
            return place
        if ring == self.length + 1:
            return place.at(first * size, Move(depth, -size if self.scan.attrs["reverse"] else size, self.length))
        return place.at(first * size, Move(depth, size - 2 * first * size, ring))

    def along(self, place: Place, size: int, depth: int) -> Place:
        """The place of one element after the other of an array."""
        if self.scan.attrs["reverse"]:
            return place.at((self.length - 1) * size, Move(depth, -size, self.length))
        return place.at(0, Move(depth, size, self.length))


def iteration(scan: Tensor, arrays: Sequence[str], precision: str) -> tuple[ScanPlan, Storage]:
    """A scan without its plan yet, and what one iteration stores. `arrays`: where the inputs lie."""
    body: Body = scan.attrs["body"]
    n, length = len(body.new), scan.attrs["length"]
    same: dict[int, tuple[int, bool]] = {}
    for k, t in enumerate(body.each):
        for new, values in ((False, body.carries), (True, body.new)):
            carry = next((c for c, x in enumerate(values) if x is t), None)
            if carry is not None and n + k not in same:
                same[n + k] = (carry, new)
    all_wanted = {carry for carry, _ in same.values()}
    rings = [length + 1 if k in all_wanted else 1 if in_place(body, k) else 2 for k in range(n)]
    names = [f"carry.{k}" if k < n and rings[k] == 1 else array for k, array in enumerate(arrays)]
    leaves = tuple([bind(LEAF, role="inner", name=name, type=t.type) for t, name in zip(body.leaves, names)])
    roots = graft(body.roots, {old.serial: new for old, new in zip(body.leaves, leaves)})
    kept = {k: t for k, t in enumerate(roots) if k not in same}
    written = {names[k]: t for k, t in kept.items() if k < n and rings[k] == 1}
    outputs = {str(k): t for k, t in kept.items() if k >= n or rings[k] != 1}
    storage = settled(analyse(place_results(Graph(outputs, {}, written, precision))))
    graph = storage.graph
    placed = {k: graph.outputs[str(k)] if str(k) in graph.outputs else graph.writes[names[k]] for k in kept}
    return ScanPlan(scan, leaves, tuple(rings), same, placed, None), storage  # pyright: ignore[reportArgumentType]


def in_place(body: Body, carry: int) -> bool:
    """May the new value of a carry be written over the old one?"""
    leaf, new = body.carries[carry], base(body.new[carry])
    if new.prim.family not in COMPUTING or any(base(t) is new for k, t in enumerate(body.roots) if k != carry):
        return False
    stack = [t for k, t in enumerate(body.roots) if k != carry]
    seen: set[int] = {new.serial}
    while stack:  # does anything but the new value need the old one?
        t = stack.pop()
        if t is leaf:
            return False
        if t.serial not in seen:
            seen.add(t.serial)
            stack.extend(t.inputs)
    stored = {t.serial for t in toposort([new]) if t.prim.family in COMPUTED}
    reads: dict[int, Any] = reads_of(new, stored).leaves
    return leaf.serial not in reads or (leaf.size == new.size and reads[leaf.serial][1] == {1})


def blocks_of(plan: Plan) -> Iterator[tuple[ScanPlan, Block]]:
    """All memory of the scans of a plan."""
    for scan in plan.scans.values():
        for block in scan.blocks.values():
            yield scan, block
