"""Group independent kernels into launches: one dispatch runs the workgroups of several kernels.

A launch costs more than running a small kernel. Each kernel joins the earliest launch after the launches that it
depends on, as long as the launch stays small. A kernel that fills the device alone gains nothing from sharing.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import NamedTuple

from tracegrad.kernels.form import Kernel
from tracegrad.kernels.fuse import MAX_BUFFERS, Cluster, Schedule
from tracegrad.kernels.tiling import WORKGROUP_BYTES, Tiling, workgroup_bytes
from tracegrad.tuning import ALONE, FULL, KEPT_ALIVE, MAX_MEMBERS

MAX_SLOTS = 64  # offsets that a dispatch can pass: 1 KiB of uniforms


class Member(NamedTuple):
    """A kernel of a launch, and the cluster that it computes."""

    cluster: Cluster
    kernel: Kernel
    tiling: Tiling
    sized: Kernel | None = None  # the same kernel with extents that the size of a run sets, if it sets any


@dataclass(slots=True)
class Launch:
    """Kernels that run side by side in one dispatch; or one scan, which has no kernel."""

    members: list[Member]
    arrays: set[str]
    scan: Cluster | None = None

    @property
    def clusters(self) -> list[Cluster]:
        """The clusters that the launch computes."""
        return [m.cluster for m in self.members] if self.scan is None else [self.scan]

    @property
    def workgroups(self) -> int:
        """The number of workgroups of all members together."""
        return sum([m.tiling.workgroups for m in self.members])

    def takes(self, other: Launch) -> bool:
        """Return whether the members of `other` can join. Large kernels share a launch only with equal kernels."""
        members = [*self.members, *other.members]
        large = [m.kernel for m in members if m.kernel.work >= ALONE]
        return (
            self.scan is None is other.scan
            and len(members) <= MAX_MEMBERS
            and (not large or all(m.kernel is large[0] for m in members))
            and self.workgroups + other.workgroups <= FULL
            and sum([len(m.kernel.slots) for m in members]) <= MAX_SLOTS
            and len(self.arrays | other.arrays) <= MAX_BUFFERS
            and workgroup_bytes([m.tiling for m in members]) <= WORKGROUP_BYTES
        )

    def add(self, other: Launch) -> None:
        """Add the members of another launch."""
        self.members += other.members
        self.arrays |= other.arrays


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
