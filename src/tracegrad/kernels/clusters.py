"""Clusters: the stored nodes that one kernel computes, and the rule that says which clusters can merge."""

from __future__ import annotations

from dataclasses import dataclass, field

from tracegrad.ir import Tensor
from tracegrad.kernels.form import Limit
from tracegrad.kernels.stored import COMPUTED

# Reasons why two clusters do not fit together.
OTHER_POINTS = "they compute different numbers of points"
OTHER_ROWS = "they fold rows of different shapes"
TWO_FOLDS = "a kernel has one product, one scatter, or folds of one shape"
OPERANDS = "a product, a scatter or a sum of columns reads its operands at other points than it computes"
SCAN = "a scan runs many kernels"


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
    members: int  # bit set of serial positions
    ancestors: int = 0  # bit set of all nodes that the cluster depends on, through whole clusters
    outs: list[Tensor] = field(default_factory=list[Tensor])  # nodes that other clusters or the program's caller read
    scalars: list[Tensor] = field(default_factory=list[Tensor])  # nodes of another kernel, recomputed here
    runs: bool = True  # False where every reader recomputes the nodes
    depth: int = 0  # of inlined ops, at most
    limits: tuple[Limit, ...] = ()  # of a product

    @property
    def computes(self) -> list[Tensor]:
        """All nodes that the kernel computes: the scalars that it recomputes, then its own."""
        return [*self.scalars, *self.nodes]

    @property
    def main(self) -> Tensor:
        """The node that gives the kernel its form."""
        return next((t for t in self.nodes if t.prim.family in COMPUTED), self.nodes[-1])


def own_point(size: int, q: int | None, c: Cluster, inner: bool) -> bool:
    """Return whether a value of `size`, read at e // q, is read at the reader's own point or own row."""
    if not inner:
        return q == 1 and size == c.rows
    if c.length == 1:
        return q == 1 and size == c.rows
    return (size == c.rows * c.length and q == 1) or (size == c.rows and q == c.length)


def columns_of(c: Cluster) -> object:
    return c.main.inputs[0].shape, c.main.axes


def common_domain(a: Cluster, b: Cluster) -> tuple[str, int, int] | str:
    """Return kind, rows and length of the merged cluster, or the rule by which the two do not fit."""
    kinds = {a.kind, b.kind}
    if kinds == {"points"}:
        return ("points", a.rows, 1) if a.rows == b.rows else OTHER_POINTS
    if kinds == {"rows"}:
        return ("rows", a.rows, a.length) if (a.rows, a.length) == (b.rows, b.length) else OTHER_ROWS
    if kinds == {"columns"} and columns_of(a) == columns_of(b):
        return "columns", a.rows, a.length
    if "scan" in kinds:
        return SCAN
    if "points" not in kinds:
        return TWO_FOLDS
    p, f = (a, b) if a.kind == "points" else (b, a)
    if f.kind == "rows":
        return (f.kind, f.rows, f.length) if p.rows in (f.rows, f.rows * f.length) else OTHER_POINTS
    if p is a:
        return OPERANDS
    return (f.kind, f.rows, f.length) if p.rows == f.rows else OTHER_POINTS
