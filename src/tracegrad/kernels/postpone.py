"""Launches that nobody waits for run later, beside others, and so cost no launch of their own.

Grouping puts every kernel where it can first run. The gradient of a bias is not read before the norm of all gradients,
though, and its sums leave most of a device idle: those of several layers share a launch. So do the gradients of the
weights of q, k and v, even where each keeps a device busy: three launches end three times, with processors that wait.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tracegrad.kernels.clusters import Cluster
from tracegrad.kernels.fuse import Schedule
from tracegrad.kernels.group import Launch, temporaries_of

KEPT = 0.4  # of the largest temporary: how much a launch may keep alive by running later


class _Readers:
    """Who waits for whom, and what lives for it."""

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.after: dict[int, list[Cluster]] = {id(c): [] for c in schedule.clusters}
        self.reads = {id(c): temporaries_of(schedule, c) for c in schedule.clusters}
        self.readers: dict[int, list[Cluster]] = {}  # serial of a temporary -> who reads it
        for c in schedule.clusters:
            for d in schedule.before_cluster(c):
                self.after[id(d)].append(c)
            for s in self.reads[id(c)]:
                self.readers.setdefault(s, []).append(c)
        sizes = [t.size for t in schedule.members if t.serial not in schedule.array]
        self.most = KEPT * max(sizes, default=0)

    def of(self, launch: Launch) -> list[Cluster]:
        """Those that wait for a launch, each once."""
        return list({id(d): d for c in launch.clusters for d in self.after[id(c)]}.values())

    def read_by(self, clusters: Iterable[Cluster]) -> set[int]:
        """The temporaries that some clusters read."""
        return set[int]().union(*(self.reads[id(c)] for c in clusters))

    def made(self, launch: Launch) -> int:
        """Elements of temporaries that a launch computes."""
        return sum(t.size for c in launch.clusters for t in c.outs if t.serial not in self.schedule.array)

    def ends(self, clusters: Iterable[Cluster], position: Mapping[int, int]) -> list[tuple[int, int]]:
        """Of each temporary that some clusters read, which launch reads it last, and its elements."""
        last = {s: max(position[id(c)] for c in self.readers[s]) for s in self.read_by(clusters)}
        return [(k, self.schedule.nodes[s].size) for s, k in last.items()]


def postpone(schedule: Schedule, launches: Sequence[Launch]) -> list[Launch]:
    """Each launch, from the last on, joins another that has room for all of it before anyone needs its results, if
    that keeps little more alive: the next without large kernels, else the next. (From the last on, because the sum of
    some parts that is postponed lets what makes the parts be postponed too. Beside large kernels threads are few, as
    those need many registers: a sum of 25 MB took an H200 32 us there, twice as long as elsewhere.)
    """
    readers = _Readers(schedule)
    launches = _gathered(readers, list(launches))
    position = _positions(launches)
    out: dict[int, Launch] = dict(enumerate(launches))
    for k in reversed(range(len(launches))):
        launch, beside = launches[k], -1
        until = min((position[id(d)] for d in readers.of(launch)), default=len(launches))
        ends, made = readers.ends(launch.clusters, position), readers.made(launch)
        for j in range(k + 1, until):
            if _kept(ends, j) - made > readers.most:
                break
            if j in out and (beside < 0 or not launches[j].large) and launches[j].takes(launch, beside=True):
                beside = j
                if launch.large or not launches[j].large:
                    break
        if beside >= 0:
            position.update((id(c), beside) for c in launch.clusters)
            launches[beside].add(launch)
            del out[k]
    return list(out.values())


def _gathered(readers: _Readers, launches: list[Launch]) -> list[Launch]:
    """Equal large kernels that read one temporary, such as the gradients of the weights of q, k and v, share the launch
    of the last of them. Who waits for the others' results comes behind it: until then all of them live.
    """
    for launch in reversed(launches[:]):
        if len(launch.kernels) != 1 or not launch.large:
            continue
        position = _positions(launches)
        waiting, read = readers.of(launch), readers.read_by(launch.clusters)
        for j in range(launches.index(launch) + 1, len(launches)):
            other = launches[j]
            equal = any(k is launch.kernels[0] for k in other.kernels)
            if not equal or read.isdisjoint(readers.read_by(other.clusters)):
                continue
            early = [c for c in waiting if position[id(c)] <= j]
            waited = any(position[id(d)] <= j for c in early for d in readers.after[id(c)])
            if waited or any(c.kind == "scan" for c in early):
                break
            kept = _kept(readers.ends([*launch.clusters, *early], position), j) + readers.made(other)
            if kept <= readers.most and other.takes(launch, beside=True):
                other.add(launch)
                launches[j + 1 : j + 1] = [launches[position[id(c)]].pop(c, readers.schedule) for c in early]
                launches = [x for x in launches if x is not launch and x.clusters]
                break
    return launches


def _kept(ends: Iterable[tuple[int, int]], j: int) -> int:
    """How many elements would live longer if those who read them ran in launch number `j`."""
    return sum(size for last, size in ends if last < j)


def _positions(launches: Sequence[Launch]) -> dict[int, int]:
    """id of a cluster -> the number of its launch."""
    return {id(c): k for k, launch in enumerate(launches) for c in launch.clusters}
