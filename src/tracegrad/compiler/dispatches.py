"""What each dispatch of a Program does and costs, and the user's lines it came from.

A Program is the same wherever it was compiled, so it knows no lines. Planning is deterministic: the plan made again
from the graph has the launches of the Program, in its order.
"""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace

from tracegrad.compiler.places import plan_launches
from tracegrad.compiler.plan import optimize
from tracegrad.errors import CompileError, Site
from tracegrad.ir import Graph, Tensor
from tracegrad.kernels.clusters import Cluster
from tracegrad.kernels.costs import Cost, cost_of
from tracegrad.kernels.form import Kernel
from tracegrad.program import Program

SHOWN = 4  # lines of a kernel, in an error
COUNTED = "bytes and FLOP: what must be done at least, every element of memory and every value counted once"


@dataclass(frozen=True, slots=True)
class DispatchInfo:
    """One dispatch of a program."""

    number: int
    times: int  # that it runs in a step: 1 outside of loops
    kernel: int  # index into Program.kernels
    label: str
    workgroups: int  # each time
    cost: Cost  # of all times together
    sites: tuple[Site, ...]  # the user's lines, sorted
    forms: tuple[Kernel, ...] = field(repr=False)  # of the kernels that run side by side in it

    @property
    def what(self) -> str:
        """`matmul+tanh x 128`: the label, and how often it runs if that is more than once."""
        return self.label if self.times == 1 else f"{self.label} x {self.times}"

    @property
    def lines(self) -> str:
        """`model.py:14, model.py:20`"""
        return ", ".join(dict.fromkeys(site.short for site in self.sites))


def dispatches_of(graph: Graph, program: Program) -> tuple[DispatchInfo, ...]:
    """The dispatches of the program that `graph` was compiled to, in order."""
    launches = list(plan_launches(optimize(graph), {}).dispatched())
    assert len(launches) == len(program.dispatches), "planning the graph again gave another program"
    times = Counter(run_order(program))
    costs: dict[int, Cost] = {}  # clusters of equal form share a kernel
    out: list[DispatchInfo] = []
    for number, ((plan, launch), d) in enumerate(zip(launches, program.dispatches)):
        cost = Cost()
        for c, kernel in zip(launch.clusters, launch.kernels):
            if id(kernel) not in costs:
                costs[id(kernel)] = cost_of(kernel, [t.size for t in plan.externals[id(c)]])
            cost += costs[id(kernel)]
        sites = sorted(set[Site]().union(*(sites_of(c, plan.externals[id(c)]) for c in launch.clusters)))
        label = program.kernels[d.kernel].label
        forms = tuple(launch.kernels)
        workgroups, n = d.grid[0] * d.grid[1], times[number]
        out.append(DispatchInfo(number, n, d.kernel, label, workgroups, cost.repeated(n), tuple(sites), forms))
    return tuple(out)


@contextlib.contextmanager
def blamed_lines(graph: Graph, program: Program) -> Generator[None, None, None]:
    """A CompileError that names a kernel of `program` gets the lines that the kernel came from."""
    try:
        yield
    except CompileError as e:
        if e.kernel is None:
            raise
        sites = next(d.sites for d in dispatches_of(graph, program) if d.kernel == e.kernel)
        raise CompileError("\n".join([str(e), *(site.describe() for site in sites[:SHOWN])])) from e


def run_order(program: Program) -> list[int]:
    """Numbers of the dispatches in the order they run: those in loops again and again."""
    numbered = tuple(replace(d, kernel=k) for k, d in enumerate(program.dispatches))
    return [d.kernel for d in replace(program, dispatches=numbered).unrolled()]


def sites_of(c: Cluster, externals: Iterable[Tensor]) -> set[Site]:
    """The lines of everything a cluster computes, what was inlined into it included."""
    seen = {t.serial for t in externals}
    found: set[Site | None] = set()
    stack = list(c.computes)
    while stack:
        t = stack.pop()
        if t.serial not in seen:
            seen.add(t.serial)
            found.add(t.site)
            stack.extend(t.inputs)
    return {site for site in found if site is not None}
