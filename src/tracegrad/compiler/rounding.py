"""What precision="f16" computes, as a graph that says itself where it rounds. For looking for what went wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracegrad.compiler.places import plan_launches
from tracegrad.compiler.plan import optimize
from tracegrad.ir import Graph, Tensor, bind, rewrite, toposort
from tracegrad.kernels.halves import delivered_parts, half_nodes
from tracegrad.kernels.reads import base
from tracegrad.kernels.stored import stored_nodes
from tracegrad.passes.scans import everywhere, in_bodies
from tracegrad.prims.elementwise import HALF


def rounded(graph: Graph) -> Graph:
    """The optimized graph with a rounding of its own where a kernel stores in half precision.

    In bodies of scans, wherever one might: what is merged there is not looked at.
    """
    schedule = plan_launches(optimize(graph), {}).schedule
    halves = schedule.halves.intersection(t.serial for c in schedule.clusters for t in c.outs)
    roots = in_bodies(_with_halves(schedule.graph.roots, halves), lambda inner: everywhere(inner, _all_rounded))
    return replace(schedule.graph.with_roots(roots), precision="f32")


def _all_rounded(roots: Sequence[Tensor]) -> list[Tensor]:
    order = toposort(roots)
    delivered = [base(t) for t in roots]
    stored = stored_nodes(order, [*delivered, *delivered_parts(order)])
    return _with_halves(roots, half_nodes(order, stored, {t.serial for t in delivered}))


def _with_halves(roots: Sequence[Tensor], halves: set[int]) -> list[Tensor]:
    serials = iter(toposort(roots))  # a rewrite goes over the nodes in this order, and gives them new ones
    return rewrite(roots, lambda t, _: bind(HALF, t) if next(serials).serial in halves else None)
