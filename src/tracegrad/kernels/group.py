"""Group independent kernels into launches: one dispatch runs the workgroups of several kernels.

A launch costs more than running a small kernel. Each kernel joins the earliest launch after all that it needs, as long
as the launch stays small: a launch that fills the device by itself gains nothing from company.

Then some launches move to a later one. For example, the gradient of a bias is read only by the norm of all gradients,
and its sum leaves most of a device idle. So the sums of several layers share a launch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from tracegrad.kernels.clusters import Cluster
from tracegrad.kernels.form import Kernel
from tracegrad.kernels.fuse import MAX_BUFFERS, Schedule
from tracegrad.kernels.reads import array_of
from tracegrad.kernels.tiling import WORKGROUP_BYTES, Tiling, workgroup_bytes
from tracegrad.tuning import ALONE, BESIDE, FULL, FULL_BESIDE, KEPT_ALIVE, MAX_MEMBERS, POSTPONED

MAX_SLOTS = 64  # offsets that a dispatch can pass: 1 KiB of uniforms


@dataclass(slots=True)
class Launch:
    """Clusters that run side by side in one dispatch; or one scan, which has no kernel."""

    clusters: list[Cluster] = field(default_factory=list[Cluster])
    kernels: list[Kernel] = field(default_factory=list[Kernel])
    tilings: list[Tiling] = field(default_factory=list[Tiling])
    arrays: set[str] = field(default_factory=set[str])
    sized: list[Kernel] = field(default_factory=list[Kernel])  # the kernels whose extents depend on the size of a run

    @property
    def workgroups(self) -> int:
        """The number of workgroups of all members together."""
        return sum([t.workgroups for t in self.tilings])

    @property
    def large(self) -> bool:
        """True if some kernel keeps a device busy for long."""
        return any(k.work >= ALONE for k in self.kernels)

    def takes(self, other: Launch, beside: bool = False) -> bool:
        """Return whether the members of `other` fit in. beside: accept `BESIDE` work next to large ones."""
        kernels = [*self.kernels, *other.kernels]
        large = [k for k in kernels if k.work >= ALONE]
        return (
            len(self.kernels) > 0 < len(other.kernels)
            and len(kernels) <= MAX_MEMBERS
            and (not large or all(k.work >= (BESIDE if beside else ALONE) for k in kernels))
            and all(k is large[0] for k in large)
            and self.workgroups + other.workgroups <= (FULL_BESIDE if large and beside else FULL)
            and sum([len(k.slots) for k in kernels]) <= MAX_SLOTS
            and len(self.arrays | other.arrays) <= MAX_BUFFERS
            and workgroup_bytes([*self.tilings, *other.tilings]) <= WORKGROUP_BYTES
        )

    def add(self, other: Launch) -> None:
        """Add the members of another launch."""
        self.clusters += other.clusters
        self.kernels += other.kernels
        self.tilings += other.tilings
        self.arrays |= other.arrays

    def sort(self, number: Mapping[int, int]) -> None:
        """Sort long members first, so that short ones fill the gaps; equal members, which share a function, adjoin.

        number: id of a kernel -> the number of its function.
        """
        order = sorted(range(len(self.kernels)), key=lambda k: (-self.kernels[k].work, number[id(self.kernels[k])]))
        if order:
            self.clusters, self.kernels = [self.clusters[k] for k in order], [self.kernels[k] for k in order]
            self.tilings = [self.tilings[k] for k in order]


def group_launches(
    schedule: Schedule, formed: Mapping[int, tuple[Kernel, Tiling]], apart: bool = False
) -> list[Launch]:
    """Return the launches in order. formed: id of a cluster -> its kernel and tiling.

    A cluster without a kernel gets a launch of its own; with `apart`, every cluster does.
    """
    launches: list[Launch] = []
    launch_of: dict[int, Launch] = {}
    position: dict[int, int] = {}
    for c in schedule.clusters:
        needed = [launch_of[id(d)] for d in schedule.before_cluster(c) if id(d) in launch_of]
        earliest = max((position[id(launch)] + 1 for launch in needed), default=0)
        kernel, tiling = formed.get(id(c), (None, None))
        own = Launch([c], [kernel] if kernel else [], [tiling] if tiling else [], arrays_of(schedule, c))
        # Joining a later launch would keep large inputs alive longer; only `postpone` knows which live on anyway.
        reads_much = sum([schedule.storage.nodes[s].size for s in temporaries_of(schedule, c)]) > KEPT_ALIVE
        near = launches[earliest : earliest + 1 if reads_much else None] if not apart else []
        launch = next((x for x in near if x.takes(own)), None)
        if launch is not None:
            launch.add(own)
        else:  # a new launch, placed early: the inputs can be freed sooner than with a launch at the end
            launch = own
            launches.insert(earliest, launch)
            position.update((id(launches[k]), k) for k in range(earliest, len(launches)))
        launch_of[id(c)] = launch
    return launches


def postpone(schedule: Schedule, launches: Sequence[Launch]) -> list[Launch]:
    """Move launches that nothing needs soon into later ones that have room, if little memory lives longer for it.

    The last launch moves first: when a sum of parts moves, the launch that computes the parts can move too. A launch
    without large kernels takes precedence. Products use so many registers that few other threads run beside them:
    beside one, a sum of 25 MB took an H200 32 us, twice as long as elsewhere.
    """
    later, left = _Later(schedule, launches), dict(enumerate(launches))
    for k in reversed(range(len(launches))):
        j = later.place(k, left)
        if j is not None:
            later.position.update((id(c), j) for c in launches[k].clusters)
            launches[j].add(left.pop(k))
    return list(left.values())


class _Later:
    """The later launches that a launch can join, by what waits for its results and by how long its inputs live."""

    def __init__(self, schedule: Schedule, launches: Sequence[Launch]) -> None:
        self.schedule, self.launches = schedule, launches
        self.position = {id(c): k for k, launch in enumerate(launches) for c in launch.clusters}
        self.waiting: dict[int, list[Cluster]] = {}  # id of a cluster -> the clusters that run after it
        self.readers: dict[int, list[Cluster]] = {}  # serial of a temporary -> its readers
        for c in schedule.clusters:
            for d in schedule.before_cluster(c):
                self.waiting.setdefault(id(d), []).append(c)
            for s in temporaries_of(schedule, c):
                self.readers.setdefault(s, []).append(c)
        storage = schedule.storage
        self.most = POSTPONED * max((t.size for t in storage.members if t.serial not in storage.array), default=0)

    def place(self, k: int, left: Mapping[int, Launch]) -> int | None:
        """Return which of the launches that are `left` launch `k` joins; None if it stays."""
        launch = self.launches[k]
        able = (j for j in self._in_reach(k) if j in left and left[j].takes(launch, beside=True))
        first = next(able, None)
        if first is None or launch.large:
            return first
        return next((j for j in (first, *able) if not left[j].large), first)

    def _in_reach(self, k: int) -> Iterator[int]:
        """Yield the launches after `k`, until one needs its results, or too much memory would live longer."""
        clusters, storage = self.launches[k].clusters, self.schedule.storage
        after = [self.position[id(d)] for c in clusters for d in self.waiting.get(id(c), ())]
        read = set[int]().union(*(temporaries_of(self.schedule, c) for c in clusters))
        ends = [(max(self.position[id(c)] for c in self.readers[s]), storage.nodes[s].size) for s in read]
        made = sum(t.size for c in clusters for t in c.outs if t.serial not in storage.array)
        for j in range(k + 1, min(after, default=len(self.launches))):
            if sum(size for last, size in ends if last < j) - made > self.most:
                return
            yield j


def temporaries_of(schedule: Schedule, c: Cluster) -> set[int]:
    """Return the temporaries that a cluster reads; their memory is freed after the last reader."""
    storage = schedule.storage
    stored = {part for t in c.computes for s in storage.reads[t.serial].stored for part in storage.packed(s)}
    return {s for s in stored if s not in storage.array}


def arrays_of(schedule: Schedule, c: Cluster) -> set[str]:
    """Return the names of the memory arrays a cluster touches; temporaries of one type count as one."""
    storage = schedule.storage
    out = {storage.array_name(t.serial) for t in c.outs}
    own = {t.serial for t in c.computes}
    for t in c.computes:
        reads = storage.reads[t.serial]
        out |= {array_of(leaf) for leaf, _ in reads.leaves.values()}
        out |= {storage.array_name(s) for s in reads.stored if s not in own}
    return out
