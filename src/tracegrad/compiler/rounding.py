"""Write the roundings of precision="f16" into a graph, to find the cause of wrong numbers."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from tracegrad.compiler.pipeline import optimize
from tracegrad.compiler.places import plan_launches
from tracegrad.graph import Graph
from tracegrad.ir import Tensor, bind, rewrite, toposort
from tracegrad.kernels.storage import analyse
from tracegrad.passes.scans import everywhere, in_bodies
from tracegrad.prims.elementwise import HALF


def rounded(graph: Graph) -> Graph:
    """Return the optimized graph with an explicit rounding where a kernel stores in half precision.

    In bodies of scans, a rounding stands wherever a kernel might store: fusing of bodies is not considered.
    """
    storage = optimize(graph)
    halves = storage.halves & {t.serial for c in plan_launches(storage, {}).schedule.clusters for t in c.outs}
    roots = in_bodies(_with_halves(storage.graph.roots, halves), lambda inner: everywhere(inner, _all_rounded))
    return replace(storage.graph.with_roots(roots), precision="f32")


def _all_rounded(roots: Sequence[Tensor]) -> list[Tensor]:
    body = Graph({str(k): t for k, t in enumerate(roots)}, precision="f16")
    return _with_halves(roots, analyse(body).halves)


def _with_halves(roots: Sequence[Tensor], halves: Set[int]) -> list[Tensor]:
    serials = iter(toposort(roots))  # a rewrite visits the nodes in this order, and renumbers them
    return rewrite(roots, lambda t, _: bind(HALF, t) if next(serials).serial in halves else None)
