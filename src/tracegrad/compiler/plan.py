"""The decisions about a graph before assembly: launches, places, and a plan of each scan's body.

The body of a scan is a plan of its own, whose launches run repeatedly at places that move.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracegrad.compiler.layout import Filling, Lifetime, Place
from tracegrad.hypers import PREFIX
from tracegrad.ir.graph import Graph, reached
from tracegrad.ir.nodes import Tensor, bind, graft, toposort
from tracegrad.kernels.fuse import Schedule
from tracegrad.kernels.group import Launch
from tracegrad.kernels.reads import base, reads_of
from tracegrad.kernels.storage import COMPUTED, Storage, analyse
from tracegrad.loops import BY_SIZE, Move, Until
from tracegrad.passes.place import COMPUTING, place_results, settled
from tracegrad.prims.leaves import LEAF, LITERAL
from tracegrad.transforms.loops import Body


@dataclass(slots=True)
class Plan:
    """Everything decided about one optimized graph; `assemble` turns it into a Program."""

    schedule: Schedule
    launches: list[Launch]
    externals: dict[int, list[Tensor]]  # id of a cluster -> the values it reads from memory, in slot order
    places: dict[int, Place] = field(default_factory=dict[int, Place])  # serial -> place
    inputs: Filling = field(default_factory=Filling)
    outputs: Filling = field(default_factory=Filling)
    constants: Filling = field(default_factory=Filling)
    temporaries: dict[str, int] = field(default_factory=dict[str, int])  # array -> size
    lifetimes: list[Lifetime] = field(default_factory=list[Lifetime])
    pack_of: dict[int, int] = field(default_factory=dict[int, int])  # serial of a temporary -> serial of its pack
    scans: dict[int, ScanPlan] = field(default_factory=dict[int, "ScanPlan"])  # id of a cluster -> its scan, planned

    @property
    def storage(self) -> Storage:
        """The storage of the graph."""
        return self.schedule.storage

    def items_of(self, scan: ScanPlan) -> list[Tensor]:
        """Return the results of a scan that the graph reads."""
        return [t for t in self.storage.order if t.prim.family == "item" and t.inputs[0] is scan.scan]

    def nested(self) -> Iterator[Plan]:
        """Yield this plan and the plans of all bodies in it."""
        yield self
        for scan in self.scans.values():
            yield from scan.plan.nested()

    def dispatched(self) -> Iterator[tuple[Plan, Launch]]:
        """Yield the launch behind each dispatch of the Program, and the launch's plan."""
        for launch in self.launches:
            if launch.scan is None:
                yield self, launch
            else:
                yield from self.scans[id(launch.scan)].plan.dispatched()

    @property
    def sizes(self) -> dict[str, int]:
        """Elements of every array that is not persistent."""
        return self.inputs.sizes | self.outputs.sizes | self.constants.sizes | self.temporaries


@dataclass(slots=True)
class Block:
    """Memory of a scan among the temporaries around it. `starts`: the initial value that is written before the scan."""

    key: int
    storage: str
    size: int
    starts: Tensor | None = None
    items: tuple[int, ...] = ()  # the results stored in the block
    place: Place = field(default_factory=lambda: Place("", 0))


@dataclass(slots=True)
class ScanPlan:
    """A scan and the plan of its body."""

    scan: Tensor
    leaves: tuple[Tensor, ...]  # leaves of the body, in the order of the scan's inputs
    rings: tuple[int, ...]  # how many places each carry has
    same: dict[int, tuple[int, bool]]  # item -> the carry whose values it holds, and whether these are the new values
    roots: dict[int, Tensor]  # item or carry that is not in `same` -> the node that computes it
    plan: Plan
    blocks: dict[int, Block] = field(default_factory=dict[int, Block])
    # iterations for each unit of a run's size, if they depend on it; `length` is their number at the capacity
    per: int = 0

    @property
    def body(self) -> Body:
        """The body of the scan."""
        return self.scan.attrs["body"]

    @property
    def xs(self) -> range:
        """The numbers of the leaves that are another element of an array in each iteration."""
        return range(len(self.rings), len(self.rings) + len(self.body.xs))

    @property
    def length(self) -> int:
        """The number of iterations."""
        return self.scan.attrs["length"]

    @property
    def reverse(self) -> bool:
        """Whether the last element comes first."""
        return self.scan.attrs["reverse"]

    @property
    def results(self) -> set[int]:
        """Serials of the body's values that are in the scan's memory, not in that of one iteration."""
        return {base(t).serial for t in self.roots.values()}

    def until(self, around: Plan) -> Until | None:
        """Return which elements count; None if a run could not leave out the others."""
        found, whole = self.scan.attrs.get("until"), self.length + 1
        read = {t.attrs["index"] for t in around.items_of(self)}
        if found is None or any(ring == whole and (self.reverse or k in read) for k, ring in enumerate(self.rings)):
            return None  # the place of a first or last value depends on the number of iterations
        return Until(PREFIX + found, 2 if 2 in self.rings else 1, self.reverse)

    def make_blocks(self) -> None:
        """Make the blocks of memory that the scan needs. The body's temporaries must have places."""
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
        """Return the place of a result."""
        n = len(self.rings)
        if item in self.same:
            carry, new = self.same[item]
            # forwards, the old values begin at place 0 and the new ones at place 1; if reversed, the other way round
            return self.blocks[carry].place.at((new != self.reverse) * self.leaves[carry].size)
        return self.blocks[item].place if item >= n else self.end(item)

    def start(self, carry: int) -> Place:
        """Return the place of a carry before the first iteration. If reversed, it depends on the size of a run."""
        # runs end with the capacity's last iteration, so a run shorter by an odd number begins at the other place
        return self.edge(carry, 0, self.reverse, self.length % 2)

    def end(self, carry: int) -> Place:
        """Return the place of a carry after the last iteration. It depends on the size of a run, unless reversed."""
        return self.edge(carry, self.length, not self.reverse, 0)

    def edge(self, carry: int, iteration: int, follows: bool, odd: int) -> Place:
        """Return the place of a carry before an iteration. follows: the place depends on the size of a run.

        odd: the number of the place, 0 or 1, from which runs of all sizes start to alternate.
        """
        place, size, ring = self.blocks[carry].place, self.leaves[carry].size, self.rings[carry]
        if not self.per or not follows or ring == 1:
            return place.at(self.slot(carry, iteration) * size)
        if ring != 2:
            return place.at(0, Move(BY_SIZE, self.per * size, self.length + 1))
        return place.at(odd * size, Move(BY_SIZE, size - 2 * odd * size, 2)) if self.per % 2 else place

    def slot(self, carry: int, iteration: int) -> int:
        """Return the number of the place in the ring from which an iteration reads a carry; the first is 0."""
        if self.rings[carry] == self.length + 1 and self.reverse:
            return self.length - iteration
        return iteration % self.rings[carry]

    def settle(self, around: Plan, depth: int, constants: Filling) -> None:
        """Give everything in the body a place. The scan's blocks and the plan around it must have theirs."""
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
                plan.places[leaf.serial] = self.along(place, leaf.size, depth) if k in self.xs else place
        for item, t in self.roots.items():
            at = self.carried(item, 1, depth) if item < n else self.along(self.blocks[item].place, t.size, depth)
            plan.places[base(t).serial] = at

    def carried(self, carry: int, later: int, depth: int) -> Place:
        """Return the place of a carry, which moves with the iterations; later: 1 for the new value, 0 for the old."""
        place, size, ring = self.blocks[carry].place, self.leaves[carry].size, self.rings[carry]
        first = self.slot(carry, later)
        if ring == 1:
            return place
        if ring == self.length + 1:
            return place.at(first * size, Move(depth, -size if self.reverse else size, self.length))
        return place.at(first * size, Move(depth, size - 2 * first * size, ring))

    def along(self, place: Place, size: int, depth: int) -> Place:
        """Return the place of an array's elements, one for each iteration."""
        if self.reverse:
            return place.at((self.length - 1) * size, Move(depth, -size, self.length))
        return place.at(0, Move(depth, size, self.length))


def blocks_of(plan: Plan) -> Iterator[tuple[ScanPlan, Block]]:
    """Yield each block of the scans of a plan, after its scan."""
    for scan in plan.scans.values():
        for block in scan.blocks.values():
            yield scan, block


def iteration(scan: Tensor, arrays: Sequence[str], precision: str) -> tuple[ScanPlan, Storage]:
    """Return a `ScanPlan` whose `plan` is still missing, and the storage of one iteration. arrays: those of the inputs.

    A carry has a *ring* of places. If the new value is computed from the old one point by point, and nothing else reads
    the old one, both share one place. Otherwise the carry has two places in turns; or one for the initial value and one
    for each iteration, if all are needed, for instance for a gradient. No value is ever copied from one iteration to
    the next.
    """
    body: Body = scan.attrs["body"]
    n, length = len(body.new), scan.attrs["length"]
    carried = {
        t.serial: (carry, new)
        for new, values in ((True, body.new), (False, body.carries))
        for carry, t in reversed([*enumerate(values)])  # of equal values, the first counts
    }
    same = {n + k: carried[t.serial] for k, t in enumerate(body.each) if t.serial in carried}
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
    """Return whether the new value of a carry can overwrite the old one."""
    leaf, new = body.carries[carry], base(body.new[carry])
    if new.prim.family not in COMPUTING or any(base(t) is new for k, t in enumerate(body.roots) if k != carry):
        return False
    others = [t for k, t in enumerate(body.roots) if k != carry]
    if any(t is leaf for t in reached(others, lambda t: () if t is new else t.inputs)):
        return False  # another node needs the old value
    stored = {t.serial for t in toposort([new]) if t.prim.family in COMPUTED}
    reads: dict[int, Any] = reads_of(new, stored).leaves
    return leaf.serial not in reads or (leaf.size == new.size and reads[leaf.serial][1] == {1})
