"""Launches that nobody waits for run later, beside others, and so cost no launch of their own.

Grouping puts every kernel where it can first run. The gradient of a bias is not read before the norm of all gradients,
though, and its sums leave most of a device idle: those of several layers share a launch. So do the gradients of the
weights of q, k and v.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracegrad.kernels.clusters import Cluster
from tracegrad.kernels.fuse import Schedule
from tracegrad.kernels.group import Launch, temporaries_of

KEPT = 0.4  # of the largest temporary: how much a launch may keep alive by running later


def postpone(schedule: Schedule, launches: Sequence[Launch]) -> list[Launch]:
    """Each launch, from the last on, joins the next that has room for all of it before anyone needs its results, if
    that keeps little more alive. (From the last on, because the sum of some parts that is postponed lets what makes
    the parts be postponed too.)
    """
    position = {id(c): k for k, launch in enumerate(launches) for c in launch.clusters}
    after: dict[int, list[Cluster]] = {id(c): [] for c in schedule.clusters}
    readers: dict[int, list[Cluster]] = {}  # serial of a temporary -> who reads it
    reads = {id(c): temporaries_of(schedule, c) for c in schedule.clusters}
    for c in schedule.clusters:
        for d in schedule.before_cluster(c):
            after[id(d)].append(c)
        for s in reads[id(c)]:
            readers.setdefault(s, []).append(c)
    largest = max((t.size for t in schedule.members if t.serial not in schedule.array), default=0)
    out: dict[int, Launch] = dict(enumerate(launches))
    for k in reversed(range(len(launches))):
        launch = launches[k]
        until = min((position[id(d)] for c in launch.clusters for d in after[id(c)]), default=len(launches))
        read = set[int]().union(*(reads[id(c)] for c in launch.clusters))
        dies = {s: max(position[id(c)] for c in readers[s]) for s in read}
        made = sum(t.size for c in launch.clusters for t in c.outs if t.serial not in schedule.array)
        for j in range(k + 1, until):
            if sum(schedule.nodes[s].size for s, last in dies.items() if last < j) - made > KEPT * largest:
                break
            if j in out and launches[j].takes(launch, beside=True):
                position.update((id(c), j) for c in launch.clusters)
                launches[j].add(launch)
                del out[k]
                break
    return list(out.values())
