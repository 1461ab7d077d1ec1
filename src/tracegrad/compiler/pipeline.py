"""Compile a graph to a Program: passes, schedule and kernels, places for every value, and assembly.

`rounded` writes the roundings of precision="f16" into a graph, to find the cause of wrong numbers. The work is printed
to stderr if TRACEGRAD_DEBUG is set; each level adds to the levels below it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import replace
from functools import wraps
from typing import Any

from tracegrad import tuning
from tracegrad.compiler.assemble import assemble
from tracegrad.compiler.layout import Persistent
from tracegrad.compiler.places import make_plan, plan_kernels
from tracegrad.dtypes import TensorType
from tracegrad.errors import InputError
from tracegrad.ir import ambient
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor, bind, rewrite, toposort
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
) -> Program:
    """Return the Program of a graph.

    specs:    plain data to attach to input fields, by name.
    declared: inputs that the program takes even if nothing reads them.
    """
    watch = Watch(graph)
    plan = make_plan(optimize(graph, watch), persistent, declared)
    program = replace(assemble(plan, persistent, specs, meta), graph=graph)
    watch.program(program)
    return program


def optimize(graph: Graph, watch: Watch | None = None, open_size: int = 0) -> Storage:
    """Run all passes in order and return the storage: primitives only, and every result has a place.

    open_size: the size of a batch that calls choose, if there is one. No other axis is a multiple of it. A sum that
               grows with the batch is not split, because its parts would come before the axes of its result, and so
               before the batch. On a CPU, where loops end, products are not split either.
    """
    most = tuning.OPEN_PARTS if graph.ends is None else 1
    passes: tuple[Callable[[Graph], Graph], ...] = (
        of_roots(expand_composites),
        of_roots(simplify),
        lift,
        of_roots(split_fixed(open_size, most) if open_size else split_long),
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
    halves = storage.halves & {t.serial for c in plan_kernels(storage, {}).schedule.clusters for t in c.outs}
    roots = in_bodies(_with_halves(storage.graph.roots, halves), lambda inner: everywhere(inner, _all_rounded))
    return replace(storage.graph.with_roots(roots), precision="f32")


def _all_rounded(roots: Sequence[Tensor]) -> list[Tensor]:
    body = Graph({str(k): t for k, t in enumerate(roots)}, precision="f16")
    return _with_halves(roots, analyse(body).halves)


def _with_halves(roots: Sequence[Tensor], halves: Set[int]) -> list[Tensor]:
    serials = iter(toposort(roots))  # a rewrite visits the nodes in this order, and gives them new serials
    return rewrite(roots, lambda t, _: bind(HALF, t) if next(serials).serial in halves else None)


VARIABLE = "TRACEGRAD_DEBUG"
COMPILE, TABLE, FORMS, SOURCES, PASSES = range(1, 6)


def level() -> int:
    """Return the level in TRACEGRAD_DEBUG; 0 unless it is set. Raises: InputError if it is not a number."""
    text = os.environ.get(VARIABLE, "")
    try:
        return int(text or 0)
    except ValueError:
        raise InputError(f"{VARIABLE} must be a number from 0 to {PASSES}, got {text!r}") from None


class Watch:
    """Prints one compile as far as TRACEGRAD_DEBUG requests; reads the variable once."""

    __slots__ = ("level", "nodes", "started")

    def __init__(self, graph: Graph) -> None:
        self.level = level()
        if self.level:
            self.started, self.nodes = time.perf_counter(), len(graph)
            self.graph("traced", graph)

    def graph(self, after: str, graph: Graph) -> None:
        """Print the graph after a pass."""
        if self.level >= PASSES:
            say(f"graph {after}, {len(graph)} nodes:\n{graph}")

    def program(self, program: Program) -> None:
        """Print the finished program."""
        if not self.level:
            return
        ms = 1e3 * (time.perf_counter() - self.started)
        size = sum(b.bytes for b in program.buffers)
        say(
            f"{program.meta.get('kind', 'program')}: {self.nodes} nodes, {len(program.kernels)} kernels, "
            f"{len(program.dispatches)} dispatches, {size:,} bytes, compiled in {ms:.1f} ms"
        )
        if self.level >= TABLE:
            say(table(program))
        for number, kernel in enumerate(program.kernels):
            if self.level >= FORMS:
                from tracegrad.kernels.show import show_kernel

                say("\n".join([f"form of kernel {number}", *map(show_kernel, kernel.forms)]))
            if self.level >= SOURCES:
                say(f"WGSL of kernel {number}, {kernel.label}\n{kernel.wgsl}")


def table(program: Program) -> str:
    """Return one line per kernel: its dispatches, their workgroups, arrays, offsets, workgroup memory and name."""
    rows: list[tuple[str, ...]] = [("kernel", "runs", "workgroups", "arrays", "slots", "shared", "what")]
    for number, k in enumerate(program.kernels):
        launches = [d for d in program.dispatches if d.kernel == number]
        groups = sum(d.grid[0] * d.grid[1] for d in launches)
        numbers = (number, len(launches), groups, len(k.bindings), k.slots, k.workgroup_memory)
        rows.append((*map(str, numbers), k.label))
    widths = [max(len(row[c]) for row in rows) for c in range(6)]
    return "\n".join("  ".join([*(f"{x:>{w}}" for x, w in zip(row, widths)), row[6]]) for row in rows)


def say(text: str) -> None:
    """Print one message; its first line begins with the name of the library."""
    print(f"tracegrad: {text}", file=sys.stderr)
