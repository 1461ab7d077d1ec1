"""Launches that nobody waits for run later, beside others, and so cost no launch of their own.

Grouping puts every kernel where it can first run. The gradient of a bias is not read before the norm of all gradients,
though, and its sums leave most of a device idle: those of several layers share a launch.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracegrad.kernels.fuse import Cluster, Schedule
from tracegrad.kernels.group import Launch

KEPT = 2**18  # elements that a kernel may keep alive by running later


def postpone(schedule: Schedule, launches: Sequence[Launch]) -> list[Launch]:
    """Each launch, from the first on, joins the next that has room for all of it before anyone needs its results."""
    position = {id(c): k for k, launch in enumerate(launches) for c in launch.clusters}
    needed: dict[int, int] = {}  # id of a cluster -> the first launch that must come after it
    for c in schedule.clusters:
        for d in schedule.before_cluster(c):
            needed[id(d)] = min(needed.get(id(d), len(launches)), position[id(c)])
    out: dict[int, Launch] = dict(enumerate(launches))
    for k, launch in enumerate(launches):
        if any(_kept(schedule, c) > KEPT for c in launch.clusters):
            continue
        until = min(needed.get(id(c), len(launches)) for c in launch.clusters)
        later = next((j for j in range(k + 1, until) if launches[j].takes(launch)), None)
        if later is not None:
            launches[later].add(launch)
            del out[k]
    return list(out.values())


def _kept(schedule: Schedule, c: Cluster) -> int:
    """Elements of the temporaries that a cluster reads."""
    stored = {s for t in c.computes for s in schedule.reads[t.serial].stored}
    return sum(schedule.nodes[s].size for s in stored if s not in schedule.array)
