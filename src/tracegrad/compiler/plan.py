"""The decisions about a graph before assembly: launches, places, and a plan of each scan's body."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from tracegrad.compiler.layout import Filling, Lifetime, Place
from tracegrad.ir import Tensor
from tracegrad.kernels.fuse import Schedule
from tracegrad.kernels.group import Launch
from tracegrad.kernels.reads import base
from tracegrad.kernels.storage import Storage
from tracegrad.prims.leaves import LITERAL
from tracegrad.program import Move
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
            scan = self.scans.get(id(launch.clusters[0]))
            if scan is None:
                yield self, launch
            else:
                yield from scan.plan.dispatched()

    @property
    def sizes(self) -> dict[str, int]:
        """Elements of every array that is not persistent."""
        return self.inputs.sizes | self.outputs.sizes | self.constants.sizes | self.temporaries


@dataclass(slots=True)
class Block:
    """Memory of a scan among the temporaries around it. `starts`: the nodes that write it before the scan runs."""

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
    same: dict[int, tuple[int, bool]]  # item -> the carry whose values it holds, and whether they are the new ones
    roots: dict[int, Tensor]  # item or carry without a place yet -> the node that computes it
    plan: Plan
    blocks: dict[int, Block] = field(default_factory=dict[int, Block])

    @property
    def body(self) -> Body:
        """The body of the scan."""
        return self.scan.attrs["body"]

    @property
    def length(self) -> int:
        """The number of iterations."""
        return self.scan.attrs["length"]

    @property
    def results(self) -> set[int]:
        """Serials of the body's values that are in the scan's memory, not in that of one iteration."""
        return {base(t).serial for t in self.roots.values()}

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
            # forwards, all values of a carry begin with the first, and the new values one later; backwards, the reverse
            return self.blocks[carry].place.at((new != self.scan.attrs["reverse"]) * self.leaves[carry].size)
        place = self.blocks[item].place
        return place if item >= n else place.at(self.slot(item, self.length) * self.leaves[item].size)

    def slot(self, carry: int, iteration: int) -> int:
        """Return the number of the place in the ring from which an iteration reads a carry; the first is 0."""
        if self.rings[carry] == self.length + 1 and self.scan.attrs["reverse"]:
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
                is_x = k < n + len(self.body.xs)
                plan.places[leaf.serial] = self.along(place, leaf.size, depth) if is_x else place
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
            return place.at(first * size, Move(depth, -size if self.scan.attrs["reverse"] else size, self.length))
        return place.at(first * size, Move(depth, size - 2 * first * size, ring))

    def along(self, place: Place, size: int, depth: int) -> Place:
        """Return the place of an array's elements, one for each iteration."""
        if self.scan.attrs["reverse"]:
            return place.at((self.length - 1) * size, Move(depth, -size, self.length))
        return place.at(0, Move(depth, size, self.length))


def blocks_of(plan: Plan) -> Iterator[tuple[ScanPlan, Block]]:
    """Yield all blocks of the scans of a plan."""
    for scan in plan.scans.values():
        for block in scan.blocks.values():
            yield scan, block
