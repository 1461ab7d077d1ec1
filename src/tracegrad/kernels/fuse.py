"""Fusing: merge a producer into its consumer where every read is at the consumer's own point or own row.

This one rule gives products their bias, activation and residual; softmax, layer norm and their gradients one row
kernel each; and the optimizer one kernel, in place.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from tracegrad.choices import computed_once
from tracegrad.dtypes import f16
from tracegrad.ir import Graph, Tensor, toposort
from tracegrad.kernels.clusters import Cluster, array_of, columns_of, common_domain, own_point
from tracegrad.kernels.halves import delivered_parts, half_nodes
from tracegrad.kernels.reads import Reads, base, reads_of, trailing
from tracegrad.kernels.stored import COMPUTED, DEEPEST, stored_nodes
from tracegrad.kernels.triangles import Triangles

T = TypeVar("T")

RECOMPUTED = 2048  # elements of a fold that every workgroup may compute again: eight a thread
MAX_BUFFERS = 8  # storage buffers that every WebGPU device lets a kernel touch


class EntangledError(Exception):
    """New states and what reads them need each other's old values: no order of in-place writes is right."""


class Schedule:
    """Clusters of a graph, in an order in which they can run."""

    def __init__(self, graph: Graph) -> None:
        """`graph` is placed: see passes.place. Raises EntangledError if its writes must go through copies."""
        self.graph = graph
        self.order = toposort(graph.roots)
        self.nodes = {t.serial: t for t in self.order}
        self.array = placed_arrays(graph)  # serial -> the named array it is computed into; all others are temporary
        self.writes = {base(t).serial: name for name, t in graph.writes.items() if t.prim.family != "pack"}
        self.roots = {base(t).serial for t in graph.roots if t.prim.family != "pack" and t.size}
        parts = delivered_parts(self.order)
        delivered = [*(self.nodes[s] for s in self.roots), *parts]
        self.once = computed_once(self.order, delivered)
        self.stored = stored_nodes(self.order, delivered)
        roots = {base(t).serial for t in graph.roots}
        self.halves = half_nodes(self.order, self.stored, roots) if graph.precision == "f16" else set[int]()
        self.members = [t for t in self.order if t.serial in self.stored]
        self.bit = {t.serial: 1 << k for k, t in enumerate(self.members)}
        self.reads: dict[int, Reads] = {t.serial: reads_of(t, self.stored) for t in self.members}
        self.owner: dict[int, Cluster] = {}
        self.before = self._orderings()
        self._fuse()
        self.clusters = self._sorted()
        self._recompute_scalars()
        self._mark_outs()
        triangles = Triangles(self.order, {t.serial for t in graph.roots})
        for c in self.clusters:
            c.limits = triangles.left_out(c.main, c.outs) if c.kind == "product" else ()

    def array_name(self, serial: int) -> str:
        """The array a stored node or a pack lies in."""
        return self.array.get(serial) or f"temp.{self.storage(serial)}"

    def storage(self, serial: int) -> str:
        """How memory holds the elements of a stored node or a pack."""
        return f16.storage if serial in self.halves else self.nodes[serial].dtype.storage

    # dependencies
    def packed(self, serial: int) -> list[int]:
        """The stored nodes behind a serial: itself, or the parts of a pack."""
        if serial in self.stored:
            return [serial]
        return [s for x in self.nodes[serial].inputs for s in self.packed(base(x).serial)]

    def parts_read(self, t: Tensor) -> list[int]:
        """What a stored node reads as parts of packs: from memory, where they are not before their kernel has run."""
        return [part for s in self.reads[t.serial].stored if s not in self.stored for part in self.packed(s)]

    def _orderings(self) -> dict[int, list[int]]:
        """What must run before each stored node: what it reads or waits for, and whoever reads what it overwrites."""
        before = {
            s: [p for r in (*reads.stored, *sorted(reads.waits)) for p in self.packed(r)]
            for s, reads in self.reads.items()
        }
        for serial, name in self.writes.items():
            before[serial] += [
                s
                for s, reads in self.reads.items()
                if s != serial and any(array_of(leaf) == name for leaf, _ in reads.leaves.values())
            ]
        return before

    # merging
    def _fuse(self) -> None:
        clusters: dict[int, Cluster] = {}  # by id, in order
        for t in self._in_order():
            c = self._single(t)
            clusters[id(c)] = c
            self.owner[t.serial] = c
            for serial in sorted(self.reads[t.serial].stored, reverse=True):
                if serial not in self.stored:
                    continue
                producer, consumer = self.owner[serial], self.owner[t.serial]
                merged = self._merge(producer, consumer) if producer is not consumer else None
                if merged is not None:
                    self._adopt(merged, (producer, consumer), clusters)
        self._merge_siblings(clusters)

    def _in_order(self) -> list[Tensor]:
        """Stored nodes, each after everything that must run before it."""
        serials = _postorder([t.serial for t in self.members], lambda s: reversed(self.before[s]))
        return [self.nodes[s] for s in serials]

    def _single(self, t: Tensor) -> Cluster:
        ancestors = 0
        for s in self.before[t.serial]:
            c = self.owner[s]
            ancestors |= c.ancestors | c.members
        kind, rows, length = "points", t.size, 1
        if t.prim.family == "fold":
            kind = "rows" if trailing(t) else "columns"
            length = t.inputs[0].size // max(t.size, 1)
        elif t.prim.family == "product":
            kind, length = "product", t.attrs.get("part", t.inputs[0].shape[-1])
        elif t.prim.family == "scan":
            kind, rows = "scan", 0  # never merged: others read its items, which lie in memory
        elif t.prim.family == "scatter":
            kind, length = "scatter", t.inputs[0].shape[t.axis]
        return Cluster(kind, [t], rows, length, self.bit[t.serial], ancestors, depth=self.stored[t.serial])

    def _merge(self, a: Cluster, b: Cluster) -> Cluster | None:
        """`a` and its reader `b` as one cluster, or None if a rule forbids it."""
        domain = common_domain(a, b)
        if domain is None:
            return None
        merged = Cluster(
            *domain[:1], sorted(a.nodes + b.nodes, key=lambda t: t.serial), *domain[1:], a.members | b.members
        )
        if not self._reads_own_points(a, b, merged) or self._reenters(a, b):
            return None
        if not self._writes_in_place(merged) or self._buffers(merged) > MAX_BUFFERS:
            return None
        merged.depth = a.depth + b.depth if a.depth + b.depth <= DEEPEST else self._depth(merged)
        if merged.depth > max(a.depth, b.depth, DEEPEST):
            return None
        merged.ancestors = (a.ancestors | b.ancestors) & ~merged.members
        return merged

    def _reads_own_points(self, a: Cluster, b: Cluster, merged: Cluster) -> bool:
        mine = {t.serial: t for t in a.nodes}
        for t in b.nodes:
            if not self.once.isdisjoint(mine.keys() & self.reads[t.serial].stored.keys()):
                return False
            if not mine.keys().isdisjoint(self.parts_read(t)):
                return False
            inner = t.prim.family == "fold" or (merged.length > 1 and merged.kind == "rows" and t.size != merged.rows)
            for serial, qs in self.reads[t.serial].stored.items():
                if serial in mine and any(not own_point(mine[serial].size, q, merged, inner) for q in qs):
                    return False
        return True

    def _reenters(self, a: Cluster, b: Cluster) -> bool:
        """True if a path leaves `a` and comes back to `b` through another cluster."""
        for t in b.nodes:
            for s in self.before[t.serial]:
                d = self.owner[s]
                if d is not a and d is not b and d.ancestors & a.members:
                    return True
        return False

    def _writes_in_place(self, c: Cluster) -> bool:
        """A kernel that overwrites an array may read it only at the point it writes."""
        names = {self.writes[t.serial]: t.size for t in c.nodes if t.serial in self.writes}
        if not names:
            return True
        for t in c.nodes:
            for leaf, qs in self.reads[t.serial].leaves.values():
                size = names.get(array_of(leaf))
                if size is not None and (qs != {1} or leaf.size != size or t.size != size):
                    return False
        return True

    def _buffers(self, c: Cluster) -> int:
        """How many memory arrays the kernel touches; temporaries of one type share one."""
        arrays: set[str] = set()
        for t in c.nodes:
            arrays.add(self.array_name(t.serial))
        for t in c.computes:
            arrays.update(array_of(leaf) for leaf, _ in self.reads[t.serial].leaves.values())
            arrays.update(self.array_name(s) for s in self.reads[t.serial].stored)
        return len(arrays)

    def _depth(self, c: Cluster) -> int:
        """How deep ops are inlined into each other."""
        depth: dict[int, int] = {}
        deepest = 0
        for t in c.computes:
            own = self.stored[t.serial] + max([depth.get(s, 0) for s in self.reads[t.serial].stored], default=0)
            deepest = max(deepest, own)
            depth[t.serial] = 0 if t.prim.family in COMPUTED else own
        return deepest

    def _adopt(self, merged: Cluster, parts: Sequence[Cluster], clusters: dict[int, Cluster]) -> None:
        """Put `merged` in the place of its parts."""
        for c in parts:
            del clusters[id(c)]
        clusters[id(merged)] = merged
        for t in merged.nodes:
            self.owner[t.serial] = merged
        members, ancestors = merged.members, merged.ancestors | merged.members
        for c in clusters.values():
            if c.ancestors & members and c is not merged:
                c.ancestors |= ancestors

    def _merge_siblings(self, clusters: dict[int, Cluster]) -> None:
        """Kernels over the same points that read the same values share their loads, e.g. Adam's two moments, or the
        gradients of a norm's gain and bias."""
        alike: dict[object, list[Cluster]] = {}
        for c in clusters.values():
            if c.kind == "points":
                alike.setdefault(c.rows, []).append(c)
            elif c.kind == "columns":
                alike.setdefault(columns_of(c), []).append(c)
        sources = {id(c): self._sources(c) for found in alike.values() if len(found) > 1 for c in found}
        for found in alike.values():
            for k in range(len(found)):
                for j in range(k + 1, len(found)):
                    a, b = self.owner[found[k].nodes[0].serial], self.owner[found[j].nodes[0].serial]
                    if a is b or sources[id(a)].isdisjoint(sources[id(b)]):
                        continue
                    if a.ancestors & b.members:
                        a, b = b, a
                    merged = self._merge(a, b)
                    if merged is not None:
                        sources[id(merged)] = sources[id(a)] | sources[id(b)]
                        self._adopt(merged, (a, b), clusters)

    def _sources(self, c: Cluster) -> set[int]:
        """What it computes, or reads, that is larger than a scalar."""
        stored = {s for t in c.nodes for s in self.reads[t.serial].stored if self.nodes[s].size > 1}
        leaves = {s for t in c.nodes for s, (leaf, _) in self.reads[t.serial].leaves.items() if leaf.size > 1}
        return stored | leaves | {t.serial for t in c.nodes}

    # order and outputs
    def _sorted(self) -> list[Cluster]:
        try:
            return _postorder([self.owner[t.serial] for t in self.members], self.before_cluster)
        except EntangledError:
            raise AssertionError("fusing made a cycle") from None

    def before_cluster(self, c: Cluster) -> Iterator[Cluster]:
        """The clusters that must run before `c`: of those that run, after `_mark_outs`."""
        own = {t.serial for t in c.computes}
        for t in c.computes:
            for s in self.before[t.serial]:
                if s not in own and self.owner[s].runs:
                    yield self.owner[s]

    def _recompute_scalars(self) -> None:
        """A kernel of many points computes the short fold it waits for once more, in every workgroup.

        So the optimizer's kernel, which needs the norm of the gradients, runs beside the one that makes it.
        """
        for c in self.clusters:
            if c.kind != "points" or c.rows == 1:
                continue
            wanted = {s for t in c.nodes for s in self.reads[t.serial].stored if s in self.stored}
            makers = {self.owner[s].main.serial: self.owner[s] for s in wanted}
            short = [d for d in makers.values() if d.kind == "rows" and d.rows == 1 and d.length <= RECOMPUTED]
            if short:
                d = max(short, key=lambda d: d.nodes[-1].serial)
                c.scalars = self._behind(wanted, d)
                if any(t.size > 1 for t in c.scalars) or not self._may_recompute(c):
                    c.scalars = []

    def _behind(self, wanted: set[int], d: Cluster) -> list[Tensor]:
        """The nodes of `d` that `wanted` need."""
        needed = set(wanted)
        for t in reversed(d.nodes):
            if t.serial in needed:
                needed |= self.reads[t.serial].stored.keys()
        return [t for t in d.nodes if t.serial in needed]

    def _may_recompute(self, c: Cluster) -> bool:
        """Nothing that the scalars are made of may change before or while the kernel runs, and none may be read from
        memory besides, as a part of a pack: there it would not be yet."""
        own = {t.serial for t in c.scalars}
        if any(not own.isdisjoint(self.parts_read(t)) for t in c.nodes):
            return False
        changed = set(self.writes.values())
        leaves = (array_of(leaf) for t in c.scalars for leaf, _ in self.reads[t.serial].leaves.values())
        fits = self._buffers(c) <= MAX_BUFFERS and self._depth(c) <= DEEPEST
        return fits and not any(name in changed for name in leaves)

    def _mark_outs(self) -> None:
        read_elsewhere: set[int] = set()
        for t in self.order:
            if t.prim.family == "pack":
                read_elsewhere.update(s for x in t.inputs for s in self.packed(base(x).serial))
        for serial, reads in self.reads.items():
            for s in reads.stored:
                reader = self.owner[serial]
                if s in self.stored and self.owner[s] is not reader and not any(t.serial == s for t in reader.scalars):
                    read_elsewhere.add(s)
        for c in self.clusters:
            c.outs = [t for t in c.nodes if t.serial in self.roots or t.serial in read_elsewhere]
            c.runs = bool(c.outs) or c.kind == "scan"
        self.clusters = [c for c in self.clusters if c.runs]


def _postorder(roots: Sequence[T], before: Callable[[T], Iterable[T]]) -> list[T]:
    """Each after those before it. Raises EntangledError if one is before itself."""
    done: set[T] = set()
    open_: set[T] = set()
    out: list[T] = []
    stack = [(x, False) for x in reversed(roots)]
    while stack:
        x, ready = stack.pop()
        if x in done:
            continue
        if ready:
            done.add(x)
            out.append(x)
        elif x in open_:
            raise EntangledError
        else:
            open_.add(x)
            stack.append((x, True))
            stack.extend((y, False) for y in reversed([*before(x)]) if y not in done)
    return out


def placed_arrays(graph: Graph) -> dict[int, str]:
    """Serials of the values that must be computed into a named array: results, new state, and parts of packed state."""
    out = {base(t).serial: f"output.{t.dtype.storage}" for t in graph.results.values()}
    for name, t in graph.writes.items():
        out[base(t).serial] = name
        if t.prim.family == "pack":
            out |= {base(x).serial: name for x in t.inputs}
    return out
