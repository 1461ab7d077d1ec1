"""Plan the launches of a program, and the places of leaves, results and temporaries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracegrad.compiler.layout import Beside, Filling, Lifetime, Persistent, Place, share_memory
from tracegrad.compiler.plan import Plan, ScanPlan, blocks_of, iteration
from tracegrad.dtypes import TensorType, f16, f32
from tracegrad.hypers import PREFIX
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.kernels.form import Kernel, UnsizedError
from tracegrad.kernels.fuse import MAX_BUFFERS, Schedule
from tracegrad.kernels.group import Launch, Member, group_launches
from tracegrad.kernels.lower import external_order, lower
from tracegrad.kernels.reads import array_of, base
from tracegrad.kernels.storage import Storage
from tracegrad.kernels.tiling import WORKGROUP_BYTES, Tiling, choose_tiling, workgroup_bytes
from tracegrad.prims.leaves import LEAF, LITERAL
from tracegrad.tuning import TEMP_ARRAYS

Key = tuple[Any, ...]  # of a kernel: equal for two clusters of one form


def make_plan(storage: Storage, persistent: Persistent, declared: Mapping[str, TensorType] | None = None) -> Plan:
    """Return the plan of an optimized graph. `declared` inputs get a place even if nothing reads them."""
    plan = plan_kernels(storage, {})
    place_inputs(plan, persistent, declared or {})
    share_launches(plan, {})
    place_values(plan, persistent)
    return plan


def place_inputs(plan: Plan, persistent: Persistent, declared: Mapping[str, TensorType]) -> None:
    """Place leaves and `declared` inputs."""
    # first, because a feed writes only the declared inputs, and they must be adjacent
    for name, type_ in declared.items():
        plan.inputs.add("input", name, type_)
    place_leaves(plan, persistent)


def place_values(plan: Plan, persistent: Persistent) -> None:
    """Place everything but inputs. Kernels must share their launches already."""
    place_outputs(plan, plan.storage.graph, persistent)
    place_temporaries(plan, set())
    place_bodies(plan, 0, plan.constants)


def share_launches(plan: Plan, sized: Mapping[int, Member]) -> None:
    """Let kernels of a plan share launches, also in the plans of loops.

    Members are sorted by length, the longest first, so that short ones fill gaps. Equal members become neighbours.

    sized: id of a cluster -> the member that takes its place, if the size of a run sets extents of kernels. These do
           not change which kernels share launches. So `compiler/dispatches.py` finds this out from the graph alone.
    Raises: UnsizedError if such kernels need too much memory together.
    """
    for p in plan.nested():
        alone = [sized.get(id(m.cluster), m) for launch in p.launches for m in launch.members]
        number = {id(m.kernel): k for k, m in reversed([*enumerate(alone)])}  # of equal kernels, the first counts
        p.launches = group_launches(p.schedule, p.launches)
        for launch in p.launches:
            members = [sized.get(id(m.cluster), m) for m in launch.members]
            if workgroup_bytes([m.tiling for m in members]) > WORKGROUP_BYTES:
                raise UnsizedError("kernels that share a launch need too much memory of a workgroup")
            launch.members = sorted(members, key=lambda m: (-m.kernel.work, number[id(m.kernel)]))


def plan_kernels(storage: Storage, forms: dict[Key, tuple[Kernel, Tiling]], open_size: int = 0) -> Plan:
    """Plan schedule and kernels, each with a launch of its own. Clusters of equal form are lowered once.

    forms: the known ones. open_size: as for `optimize`.
    """
    schedule = Schedule(storage)
    externals: dict[int, list[Tensor]] = {}
    launches: list[Launch] = []
    scans: dict[int, ScanPlan] = {}
    for c in schedule.clusters:
        arrays = schedule.arrays(c, c.outs)
        if c.kind == "scan":
            launches.append(Launch([], arrays, c))
            externals[id(c)] = [base(x) for x in c.main.inputs]
            names = [array_at(storage, x) for x in externals[id(c)]]
            scans[id(c)], inner = iteration(c.main, names, storage.graph.precision)
            scans[id(c)].plan = plan_kernels(inner, forms, open_size)
            grows = open_size and scans[id(c)].length % open_size == 0
            scans[id(c)].per = scans[id(c)].length // open_size if grows else 0
            continue
        externals[id(c)], key = external_order(c, storage)
        if key not in forms:
            kernel = lower(c, externals[id(c)], storage)
            forms[key] = kernel, choose_tiling(kernel, open_size)
        launches.append(Launch([Member(c, *forms[key])], arrays))
    return Plan(schedule, launches, externals, scans=scans)


def array_at(storage: Storage, t: Tensor) -> str:
    """Return the array of a leaf or a stored value."""
    return array_of(t) if t.prim.family == "leaf" else storage.array_name(t.serial)


def place_leaves(plan: Plan, persistent: Persistent) -> None:
    """Place leaves: parameters and states at their fixed places, inputs and constants one after the other."""
    for t in plan.storage.order:
        if t.prim is LITERAL:
            plan.places[t.serial] = plan.constants.add("const", str(t.serial), t.type)
        elif t.prim is LEAF:
            role, name = t.attrs["role"], t.attrs["name"]
            if role in ("param", "frozen"):
                plan.places[t.serial] = persistent.place(name)
            elif role == "state":
                plan.places[t.serial] = persistent.place_of_state(name)
            else:
                name = PREFIX + name if role == "hyper" else name
                plan.places[t.serial] = plan.inputs.places.get(name) or plan.inputs.add("input", name, t.type)


def place_outputs(plan: Plan, graph: Graph, persistent: Persistent) -> None:
    """Place a new state over the old one, and other outputs one after the other unless they have a place already."""
    for name, t in graph.writes.items():
        place_parts(plan, base(t), persistent.place_of_state(name))
    for name, t in graph.results.items():
        serial = base(t).serial
        if serial in plan.places:
            plan.outputs.places[name], plan.outputs.types[name] = plan.places[serial], t.type
        else:
            plan.places[serial] = plan.outputs.add("output", name, t.type)


def place_parts(plan: Plan, t: Tensor, place: Place) -> None:
    """Place a value; the parts of a pack follow one another."""
    plan.places[t.serial] = place
    if t.prim.family == "pack":
        at = place.offset
        for x in t.inputs:
            place_parts(plan, base(x), Place(place.array, at))
            at += x.size


class Lifetimes:
    """The lifetimes, in launches, of all values of a plan that have no place yet; a pack counts as one value."""

    def __init__(self, plan: Plan, elsewhere: set[int]) -> None:
        """elsewhere: serials that need no place."""
        s = plan.storage
        self.plan = plan
        self.found: dict[str, list[Lifetime]] = {}  # by array
        self.launch_of = {id(c): k for k, launch in enumerate(plan.launches) for c in launch.clusters}
        self.last: dict[int, int] = {}  # serial -> the last launch that reads it
        for c in plan.schedule.clusters:
            for t in plan.externals[id(c)]:
                self.last[t.serial] = max(self.last.get(t.serial, 0), self.launch_of[id(c)])
        self.packs = [t for t in s.order if t.prim.family == "pack" and t.serial not in plan.places]
        # nodes whose memory is part of another node's
        self.inside = {x for t in self.packs for x in s.packed(t.serial)} | elsewhere

    def written(self, serial: int) -> int:
        """Return the launch that computes a value."""
        return self.launch_of[id(self.plan.schedule.owner[serial])]

    def add(self, key: int, storage: str, size: int, written: Sequence[int], ends: Sequence[int]) -> None:
        """Add the lifetime from the first of `written` to the last of `ends`."""
        whole = size + size % 2 if storage == f16.storage else size  # bindings must be whole words
        lifetime = Lifetime(key, max(whole, 1), min(written), max(*written, *ends))
        self.found.setdefault(f"temp.{storage}", []).append(lifetime)

    def add_value(self, t: Tensor, parts: Sequence[int]) -> None:
        """Add a value. parts: the serials that it consists of."""
        ends = [self.last.get(x, 0) for x in (t.serial, *parts)]
        self.add(t.serial, self.plan.storage.held_as(t.serial), t.size, [self.written(x) for x in parts], ends)

    def add_blocks(self, cluster: int, scan: ScanPlan) -> None:
        """Add the blocks of a scan. A block lives from its initial value to the last read of the items in it."""
        items = self.plan.items_of(scan)
        for block in scan.blocks.values():
            starts = [] if block.starts is None else [base(block.starts).serial]
            self.inside.update(starts)
            written = [self.launch_of[cluster], *map(self.written, starts)]
            ends = [self.last.get(t.serial, 0) for t in items if t.attrs["index"] in block.items]
            self.add(block.key, block.storage, block.size, written, [0, *ends])

    def add_all(self) -> None:
        """Add the lifetimes of blocks of scans, of packs, and of values that clusters store."""
        for cluster, scan in self.plan.scans.items():
            self.add_blocks(cluster, scan)
        for t in self.packs:
            self.add_value(t, self.plan.storage.packed(t.serial))
        for t in [t for c in self.plan.schedule.clusters for t in c.outs]:
            if t.serial not in self.plan.places and t.serial not in self.inside:
                self.add_value(t, [t.serial])


def place_temporaries(plan: Plan, elsewhere: set[int]) -> None:
    """Place everything that has no place yet by its lifetime. elsewhere: serials that need no place."""
    for scan in plan.scans.values():
        place_temporaries(scan.plan, scan.results)
        scan.make_blocks()
    lifetimes = Lifetimes(plan, elsewhere)
    lifetimes.add_all()
    blocks = {block.key: block for _, block in blocks_of(plan)}
    plan.pack_of.update((part, t.serial) for t in lifetimes.packs for part in plan.storage.packed(t.serial))
    beside = touched_beside(plan)
    for array, found in lifetimes.found.items():
        several = array == f"temp.{f32.storage}" and not elsewhere
        most = TEMP_ARRAYS + 1 - len(lifetimes.found) if several else 1
        places, sizes = share_memory(found, array, beside, most)
        plan.temporaries |= sizes
        plan.lifetimes += found
        for key, place in places.items():
            if key in blocks:
                plan.places[key] = blocks[key].place = place
            else:
                place_parts(plan, plan.storage.nodes[key], place)


def touched_beside(plan: Plan) -> Beside:
    """Return which values launches touch together; a pack counts as one value."""
    whole = plan.pack_of
    apart, together, crowded = dict[int, set[int]](), dict[int, set[int]](), set[int]()
    room: list[tuple[set[int], int]] = []
    for launch in plan.launches:
        written = {whole.get(t.serial, t.serial) for c in launch.clusters for t in c.outs}
        read = {whole.get(t.serial, t.serial) for c in launch.clusters for t in plan.externals[id(c)]} - written
        for key in written:
            apart.setdefault(key, set()).update(read)
            together.setdefault(key, set()).update(written - {key})
        for key in read:
            apart.setdefault(key, set()).update(written)
            together.setdefault(key, set())
        others = {plan.places[key].array for key in written | read if key in plan.places}
        if len(others) + TEMP_ARRAYS > MAX_BUFFERS:
            crowded |= written | read
        temporaries = {key for key in written | read if key not in plan.places}
        kinds = {plan.storage.held_as(key) for key in temporaries}  # each type has arrays of its own
        room.append((temporaries, MAX_BUFFERS - len(others) - len(kinds) + 1))
    return Beside(apart, together, crowded, room)


def place_bodies(plan: Plan, depth: int, constants: Filling) -> None:
    """Place initial values and results of the scans of a plan, and everything in their bodies."""
    for scan in plan.scans.values():
        for k, block in scan.blocks.items():
            if block.starts is not None:
                plan.places[base(block.starts).serial] = scan.start(k)
        for t in plan.items_of(scan):
            plan.places[t.serial] = scan.result(t.attrs["index"])
    for scan in plan.scans.values():  # after all results have places, because another scan can iterate over them
        scan.settle(plan, depth, constants)
        place_bodies(scan.plan, depth + 1, constants)
