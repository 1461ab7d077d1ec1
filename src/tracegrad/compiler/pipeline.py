"""Compile a graph to a Program: passes, schedule and kernels, places for every value, and assembly."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from typing import Any

from tracegrad import ambient
from tracegrad.compiler.assemble import assemble
from tracegrad.compiler.debug import Watch
from tracegrad.compiler.layout import Persistent
from tracegrad.compiler.places import make_plan
from tracegrad.dtypes import TensorType
from tracegrad.graph import Graph
from tracegrad.kernels.storage import Storage, analyse
from tracegrad.passes.expand import expand_composites
from tracegrad.passes.lift import out_of_loops
from tracegrad.passes.place import place_results, settled
from tracegrad.passes.recompute import recompute
from tracegrad.passes.scans import Pass, everywhere, stray_leaves
from tracegrad.passes.simplify import simplify
from tracegrad.passes.split import split_fixed, split_long
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
