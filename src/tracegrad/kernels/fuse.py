"""Fusing: merge a producer into its consumer where every read is at the consumer's own point or own row.

A cluster is the stored nodes that one kernel computes. This one rule gives products their bias, activation and
residual; softmax, layer norm and their gradients one row kernel each; and the optimizer one kernel, in place.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from tracegrad.ir.graph import postorder
from tracegrad.ir.nodes import Tensor
from tracegrad.kernels.form import Limit
from tracegrad.kernels.reads import array_of, region_of, trailing
from tracegrad.kernels.storage import COMPUTED, DEEPEST, Storage
from tracegrad.kernels.tails import End, Ends
from tracegrad.kernels.triangles import Triangles
from tracegrad.tuning import ONE_GROUP, RECOMPUTED

# Reasons why two clusters do not fit together.
OTHER_POINTS = "they compute different numbers of points"
OTHER_ROWS = "they fold rows of different shapes"
TWO_FOLDS = "a kernel has one product, one scatter, or folds of one shape"
OPERANDS = "a product, a scatter or a sum of columns reads its operands at other points than it computes"
SCAN = "a scan runs many kernels"
LONG_ROW = "the threads that fold one long row are too few for all of its points"


@dataclass(eq=False, slots=True)
class Cluster:
    """Stored nodes computed by one kernel, over `rows` points that fold `length` points each.

    kind: "points" (folds nothing), "rows" (folds over trailing axes), "columns" (over others), "product", "scatter",
          "scan".
    """

    kind: str
    nodes: list[Tensor]
    rows: int
    length: int
    members: int  # bit set of `nodes`, by their positions among the stored nodes
    ancestors: int = 0  # bit set of all nodes that the cluster depends on, through whole clusters
    outs: list[Tensor] = field(default_factory=list[Tensor])  # nodes that other clusters or the program's caller read
    scalars: list[Tensor] = field(default_factory=list[Tensor])  # nodes of another kernel, recomputed here
    runs: bool = True  # False if every reader recomputes the nodes
    depth: int = 0  # how many ops are inlined into each other, at most
    limits: tuple[Limit, ...] = ()  # of a product
    ends: tuple[End, ...] = ()

    @property
    def computes(self) -> list[Tensor]:
        """All nodes that the kernel computes: the scalars that it recomputes, then its own."""
        return [*self.scalars, *self.nodes]

    @property
    def main(self) -> Tensor:
        """The node that gives the kernel its form."""
        return next((t for t in self.nodes if t.prim.family in COMPUTED), self.nodes[-1])


def own_point(size: int, q: int | None, c: Cluster, inner: bool) -> bool:
    """Return whether a value of `size`, read at e // q (see `reads`), is read at the reader's own point or own row.

    inner: whether the reader computes at every folded point of a row, not once a row.
    """
    if not inner or c.length == 1:
        return q == 1 and size == c.rows
    return (size == c.rows * c.length and q == 1) or (size == c.rows and q == c.length)


REFUSED = {"points": OTHER_POINTS, "rows": OTHER_ROWS, "columns": TWO_FOLDS}  # where two clusters of a kind differ


def _domain(c: Cluster) -> tuple[object, ...]:
    """Return what two clusters of one kind must have in common."""
    return c.rows, c.length, (c.main.inputs[0].shape, c.main.axes) if c.kind == "columns" else None


def common_domain(a: Cluster, b: Cluster) -> tuple[str, int, int] | str:
    """Return kind, rows and length of the merged cluster, or the rule that forbids merging the two."""
    if a.kind == b.kind and a.kind in REFUSED:
        return (a.kind, a.rows, a.length) if _domain(a) == _domain(b) else REFUSED[a.kind]
    if "scan" in (a.kind, b.kind):
        return SCAN
    if "points" not in (a.kind, b.kind):
        return TWO_FOLDS
    p, f = (a, b) if a.kind == "points" else (b, a)
    if f.kind == "rows" and p is b and f.rows == 1 and p.rows > ONE_GROUP:
        return LONG_ROW
    if f.kind != "rows" and p is a:
        return OPERANDS
    fitting = (f.rows, f.rows * f.length) if f.kind == "rows" else (f.rows,)
    return (f.kind, f.rows, f.length) if p.rows in fitting else OTHER_POINTS


MAX_BUFFERS = 8  # storage buffers that a kernel can bind on every WebGPU device

# Reasons why two clusters over the same points do not merge.
COMPARED = "the value is compared with itself, so all its readers must load the same number"
PACKED = "the value is read as a part of an array, from memory"
ELSEWHERE = "the value is read at other points than the reader's own"
BETWEEN = "a third kernel runs between them"
OVERWRITTEN = "the kernel would read elements of a state that it has overwritten"
CROWDED = f"the kernel would touch more than {MAX_BUFFERS} arrays"
NESTED = f"the kernel would nest more than {DEEPEST} ops"


class Schedule:
    """Clusters of a graph, in an order in which they can run.

    refused: serials of a stored node and its reader -> the rule that kept the two in different kernels.
    """

    def __init__(self, storage: Storage) -> None:
        """Fuse the clusters of a `storage` that passes.place has settled."""
        self.storage, self.reads = storage, storage.reads
        self.bit = {t.serial: 1 << k for k, t in enumerate(storage.members)}
        self.owner: dict[int, Cluster] = {}
        self.refused: dict[tuple[int, int], str] = {}
        self._fuse()
        last_first = [self.owner[t.serial] for t in reversed(storage.members)]
        self.clusters = list(postorder(last_first, lambda c: reversed([*self.before_cluster(c)])))
        self._recompute_scalars()
        self._mark_outs()
        roots = {t.serial for t in storage.graph.roots}
        triangles = Triangles(storage.order, roots)
        for c in self.clusters:
            c.limits = triangles.left_out(c.main, c.outs) if c.kind == "product" else ()
        if storage.graph.ends:
            ends = Ends(storage.order, roots, storage.graph.ends, storage.stored)
            for c in self.clusters:
                c.ends = ends.of(c.kind, c.rows, c.nodes, c.outs)

    # merging
    def _fuse(self) -> None:
        clusters: dict[int, Cluster] = {}  # by id, in order
        assert self.storage.sequence is not None
        for t in self.storage.sequence:
            c = self._single(t)
            clusters[id(c)] = c
            self.owner[t.serial] = c
            for serial in sorted(self.reads[t.serial].stored, reverse=True):
                producer, consumer = self.owner.get(serial), self.owner[t.serial]
                if producer is None or producer is consumer:  # a pack or an item, or already in this kernel
                    continue
                merged = self._merge(producer, consumer)
                if isinstance(merged, str):
                    self.refused[serial, t.serial] = merged
                else:
                    self._adopt(merged, (producer, consumer), clusters)

    def _single(self, t: Tensor) -> Cluster:
        ancestors = 0
        for s in self.storage.before[t.serial]:
            c = self.owner[s]
            ancestors |= c.ancestors | c.members
        kind, rows, length = "points", t.size, 1
        if t.prim.family == "fold":
            kind = "rows" if trailing(t) else "columns"
            length = t.inputs[0].size // max(t.size, 1)
        elif t.prim.family == "product":
            kind, length = "product", t.inputs[0].shape[-1]
        elif t.prim.family == "scan":
            kind, rows = "scan", 0  # never merged: readers load its items from memory
        elif t.prim.family == "scatter":
            kind, length = "scatter", t.inputs[0].shape[t.axis]
        return Cluster(kind, [t], rows, length, self.bit[t.serial], ancestors, depth=self.storage.stored[t.serial])

    def _merge(self, a: Cluster, b: Cluster) -> Cluster | str:
        """Return `a` and its reader `b` as one cluster, or the rule that forbids merging."""
        domain = common_domain(a, b)
        if isinstance(domain, str):
            return domain
        kind, rows, length = domain
        merged = Cluster(kind, sorted(a.nodes + b.nodes, key=lambda t: t.serial), rows, length, a.members | b.members)
        refused = self._misread(a, b, merged)
        if refused:
            return refused
        if self._reenters(a, b):
            return BETWEEN
        if not self._writes_in_place(merged):
            return OVERWRITTEN
        if self._is_crowded(merged):
            return CROWDED
        merged.depth = a.depth + b.depth if a.depth + b.depth <= DEEPEST else self._depth(merged)
        if merged.depth > max(a.depth, b.depth, DEEPEST):
            return NESTED
        merged.ancestors = (a.ancestors | b.ancestors) & ~merged.members
        return merged

    def _misread(self, a: Cluster, b: Cluster, merged: Cluster) -> str:
        """Return the rule by which `b` must load a value of `a` from memory, or ""."""
        mine = {t.serial: t for t in a.nodes}
        for t in b.nodes:
            if not self.storage.once.isdisjoint(mine.keys() & self.reads[t.serial].stored.keys()):
                return COMPARED
            if not mine.keys().isdisjoint(self.storage.parts_read(t)):
                return PACKED
            inner = t.prim.family == "fold" or (merged.length > 1 and merged.kind == "rows" and t.size != merged.rows)
            for serial, qs in self.reads[t.serial].stored.items():
                if serial in mine and any(not own_point(mine[serial].size, q, merged, inner) for q in qs):
                    return ELSEWHERE
        return ""

    def _reenters(self, a: Cluster, b: Cluster) -> bool:
        """Return whether a path leaves `a` and reaches `b` through another cluster."""
        for t in b.nodes:
            for s in self.storage.before[t.serial]:
                d = self.owner[s]
                if d is not a and d is not b and d.ancestors & a.members:
                    return True
        return False

    def _writes_in_place(self, c: Cluster) -> bool:
        """Return whether the kernel reads each array that it overwrites only at the point it writes."""
        names = {self.storage.writes[t.serial]: t.size for t in c.nodes if t.serial in self.storage.writes}
        if not names:
            return True
        for t in c.nodes:
            for leaf, qs in self.reads[t.serial].leaves.values():
                size = names.get(region_of(leaf))
                if size is not None and (qs != {1} or leaf.size != size or t.size != size):
                    return False
        return True

    def arrays(self, c: Cluster, written: Iterable[Tensor]) -> set[str]:
        """Return the arrays that a kernel touches if it writes these nodes; temporaries of one type share one."""
        found, own = {self.storage.array_name(t.serial) for t in written}, {t.serial for t in c.computes}
        for t in c.computes:
            found |= {array_of(leaf) for leaf, _ in self.reads[t.serial].leaves.values()}
            found |= {self.storage.array_name(s) for s in self.reads[t.serial].stored if s not in own}
        return found | {array_of(self.storage.nodes[x.tail.end]) for x in c.ends}

    def _is_crowded(self, c: Cluster) -> bool:
        return len(self.arrays(c, c.nodes)) > MAX_BUFFERS

    def _depth(self, c: Cluster) -> int:
        """Return the depth to which ops of a cluster are inlined into each other."""
        depth: dict[int, int] = {}
        deepest = 0
        for t in c.computes:
            own = self.storage.stored[t.serial] + max([depth.get(s, 0) for s in self.reads[t.serial].stored], default=0)
            deepest = max(deepest, own)
            depth[t.serial] = 0 if t.prim.family in COMPUTED else own
        return deepest

    def _adopt(self, merged: Cluster, parts: Sequence[Cluster], clusters: dict[int, Cluster]) -> None:
        """Replace the clusters `parts` by `merged`, and tell all others that depend on the parts."""
        for c in parts:
            del clusters[id(c)]
        clusters[id(merged)] = merged
        for t in merged.nodes:
            self.owner[t.serial] = merged
        members, ancestors = merged.members, merged.ancestors | merged.members
        for c in clusters.values():
            if c.ancestors & members and c is not merged:
                c.ancestors |= ancestors

    # order and outputs
    def before_cluster(self, c: Cluster) -> Iterator[Cluster]:
        """Yield the clusters that must run before `c`; after `_mark_outs`, only clusters that run at all."""
        own = {t.serial for t in c.computes}
        for t in c.computes:
            for s in self.storage.before[t.serial]:
                if s not in own and self.owner[s].runs:
                    yield self.owner[s]

    def _recompute_scalars(self) -> None:
        """Let a kernel of many points recompute the short fold that it waits for, in every workgroup.

        So the optimizer's kernel, which needs the norm of the gradients, runs beside the kernel that computes the norm.
        """
        for c in self.clusters:
            if c.kind != "points" or c.rows == 1:
                continue
            wanted = {s for t in c.nodes for s in self.reads[t.serial].stored if s in self.storage.stored}
            makers = {self.owner[s].main.serial: self.owner[s] for s in wanted}
            short = [d for d in makers.values() if d.kind == "rows" and d.rows == 1 and d.length <= RECOMPUTED]
            if short:
                d = max(short, key=lambda d: d.nodes[-1].serial)
                c.scalars = self._behind(wanted, d)
                if any(t.size > 1 for t in c.scalars) or not self._may_recompute(c):
                    c.scalars = []

    def _behind(self, wanted: set[int], d: Cluster) -> list[Tensor]:
        """Return the nodes of `d` that `wanted` need."""
        needed = set(wanted)
        for t in reversed(d.nodes):
            if t.serial in needed:
                needed |= self.reads[t.serial].stored.keys()
        return [t for t in d.nodes if t.serial in needed]

    def _may_recompute(self, c: Cluster) -> bool:
        """Return whether the scalars of `c` can be recomputed in its kernel.

        Their inputs must not change before or while the kernel runs. The kernel must not also read a scalar from
        memory, as a part of a pack: its memory is not written yet.
        """
        own = {t.serial for t in c.scalars}
        if any(not own.isdisjoint(self.storage.parts_read(t)) for t in c.nodes):
            return False
        changed = set(self.storage.writes.values())
        leaves = (region_of(leaf) for t in c.scalars for leaf, _ in self.reads[t.serial].leaves.values())
        fits = not self._is_crowded(c) and self._depth(c) <= DEEPEST
        return fits and not any(name in changed for name in leaves)

    def _mark_outs(self) -> None:
        read_elsewhere: set[int] = set()
        for t in self.storage.order:
            if t.prim.family == "pack":
                read_elsewhere.update(self.storage.packed(t.serial))
        for serial, reads in self.reads.items():
            for s in reads.stored:
                maker, reader = self.owner.get(s, self.owner[serial]), self.owner[serial]
                if maker is not reader and not any(t.serial == s for t in reader.scalars):
                    read_elsewhere.add(s)
        for c in self.clusters:
            c.outs = [t for t in c.nodes if t.serial in self.storage.roots or t.serial in read_elsewhere]
            c.runs = bool(c.outs) or c.kind == "scan"
        self.clusters = [c for c in self.clusters if c.runs]
