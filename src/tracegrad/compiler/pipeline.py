"""Compile a graph to a Program: passes, schedule and kernels, places for every value, and assembly.

`rounded` writes the roundings of precision="f16" into a graph, to find the cause of wrong numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import wraps
from typing import Any

from tracegrad import ambient
from tracegrad.compiler.assemble import assemble
from tracegrad.compiler.debug import Watch
from tracegrad.compiler.layout import Persistent
from tracegrad.compiler.places import make_plan, plan_launches
from tracegrad.dtypes import TensorType
from tracegrad.graph import Graph
from tracegrad.ir import Tensor, bind, rewrite, toposort
from tracegrad.kernels.storage import Storage, analyse
from tracegrad.passes.expand import expand_composites
from tracegrad.passes.lift import out_of_loops
from tracegrad.passes.place import place_results, settled
from tracegrad.passes.recompute import recompute
from tracegrad.passes.scans import Pass, everywhere, in_bodies, stray_leaves
from tracegrad.passes.simplify import simplify
from tracegrad.passes.split import split_fixed, split_long
from tracegrad.prims.elementwise import HALF
from tracegrad.program import Program


@ambient.restored
def make_program(
    graph: Graph,
    persistent: Persistent,
    specs: Mapping[str, Mapping[str, Any]],
    meta: Mapping[str, Any],
    declared: Mapping[str, TensorType] | None = None,
    results: Mapping[str, Mapping[str, Any]] | None = None,
) -> Program:
    """Return the Program of a graph.

    specs:    plain data to attach to input fields, by name.
    declared: inputs that the program takes even if nothing reads them.
    results:  plain data to attach to output fields, by name.
    """
    watch = Watch(graph)
    plan = make_plan(optimize(graph, watch), persistent, declared)
    program = replace(assemble(plan, persistent, specs, meta, results), graph=graph)
    watch.program(program, [launch.kernels for _, launch in plan.dispatched()])
    return program


def optimize(graph: Graph, watch: Watch | None = None, open_size: int = 0) -> Storage:
    """Run all passes in order and return the storage: primitives only, and every result has a place.

    open_size: the size of a batch that calls choose, if there is one. No other axis is a multiple of it. A sum that
               grows with the batch is not split, because its parts would come before the axes of its result, and so
               before the batch. For the same reason nothing leaves a loop: the values of all iterations would.
    """
    lifts = () if open_size else (lift,)
    passes: tuple[Callable[[Graph], Graph], ...] = (
        of_roots(expand_composites),
        of_roots(simplify),
        *lifts,
        of_roots(split_fixed(open_size) if open_size else split_long),
        of_roots(simplify),
        place_results,
    )
    for run in passes:
        graph = run(graph)
        if watch is not None:
            watch.graph(f"after {run.__name__}", graph)
    storage = settled(recompute(analyse(graph)))
    stray = stray_leaves(storage.graph.roots)
    assert not stray, f"a pass moved values out of the loop that computes them: {', '.join(map(str, stray))}"
    if watch is not None and storage.graph is not graph:
        watch.graph("after recompute", storage.graph)
    return storage


def lift(graph: Graph) -> Graph:
    """Lift work out of loops."""
    return graph.with_roots(out_of_loops(graph.roots))


def of_roots(run: Pass) -> Callable[[Graph], Graph]:
    """Return a pass over roots as a pass over a graph and the bodies in it."""

    @wraps(run)
    def over(graph: Graph) -> Graph:
        return graph.with_roots(everywhere(graph.roots, run))

    return over


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
