"""Group independent kernels into launches: one dispatch runs the workgroups of several kernels.

A launch costs more than running a small kernel. Each kernel joins the earliest launch after the launches that it
depends on, as long as the launch stays small. A kernel that fills the device alone gains nothing from sharing.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tracegrad.kernels.form import Kernel
from tracegrad.kernels.fuse import MAX_BUFFERS, Cluster, Schedule
from tracegrad.kernels.tiling import WORKGROUP_BYTES, Tiling, workgroup_bytes
from tracegrad.tuning import ALONE, FULL, KEPT_ALIVE, MAX_MEMBERS

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

    def takes(self, other: Launch) -> bool:
        """Return whether the members of `other` can join. Large kernels share a launch only with equal kernels."""
        kernels = [*self.kernels, *other.kernels]
        large = [k for k in kernels if k.work >= ALONE]
        return (
            len(self.kernels) > 0 < len(other.kernels)
            and len(kernels) <= MAX_MEMBERS
            and (not large or all(k is large[0] for k in kernels))
            and self.workgroups + other.workgroups <= FULL
            and sum([len(k.slots) for k in kernels]) <= MAX_SLOTS
            and len(self.arrays | other.arrays) <= MAX_BUFFERS
            and workgroup_bytes([*self.tilings, *other.tilings]) <= WORKGROUP_BYTES
        )

    def add(self, other: Launch) -> None:
        """Add the members of another launch. Lists are made anew, since launches can share them."""
        self.clusters = [*self.clusters, *other.clusters]
        self.kernels = [*self.kernels, *other.kernels]
        self.tilings = [*self.tilings, *other.tilings]
        self.arrays = self.arrays | other.arrays

    def become(self, others: Sequence[Launch]) -> None:
        """Take the kernels of other launches, one for each cluster."""
        self.kernels = [k for x in others for k in x.kernels]
        self.tilings = [t for x in others for t in x.tilings]
        self.sized = [k for x in others for k in x.sized]
        assert len(self.kernels) == len(self.tilings) == len(self.sized) == len(self.clusters)

    def sort(self, number: Mapping[int, int]) -> None:
        """Sort members by length, the longest first, so that short ones fill gaps; equal members become neighbours.

        number: id of a kernel -> the number of its function.
        """
        order = sorted(range(len(self.kernels)), key=lambda k: (-self.kernels[k].work, number[id(self.kernels[k])]))
        if order:
            self.clusters, self.kernels = [self.clusters[k] for k in order], [self.kernels[k] for k in order]
            self.tilings = [self.tilings[k] for k in order]
            self.sized = [self.sized[k] for k in order] if self.sized else []


def group_launches(schedule: Schedule, alone: Iterable[Launch]) -> list[Launch]:
    """Return the launches in order, given one for each cluster in the schedule's order. They join each other here."""
    launches: list[Launch] = []
    launch_of: dict[int, Launch] = {}
    position: dict[int, int] = {}
    for c, own in zip(schedule.clusters, alone, strict=True):
        needed = [launch_of[id(d)] for d in schedule.before_cluster(c) if id(d) in launch_of]
        earliest = max((position[id(launch)] + 1 for launch in needed), default=0)
        # Joining a later launch would keep large inputs alive longer.
        reads_much = sum([schedule.storage.nodes[s].size for s in temporaries_of(schedule, c)]) > KEPT_ALIVE
        near = launches[earliest : earliest + 1 if reads_much else None]
        launch = next((x for x in near if x.takes(own)), None)
        if launch is not None:
            launch.add(own)
        else:  # a new launch, placed early: the inputs can be freed sooner than with a launch at the end
            launch = own
            launches.insert(earliest, launch)
            position.update((id(launches[k]), k) for k in range(earliest, len(launches)))
        launch_of[id(c)] = launch
    return launches


def temporaries_of(schedule: Schedule, c: Cluster) -> set[int]:
    """Return the temporaries that a cluster reads; their memory is freed after the last reader."""
    storage = schedule.storage
    stored = {part for t in c.computes for s in storage.reads[t.serial].stored for part in storage.packed(s)}
    return {s for s in stored if s not in storage.array}
