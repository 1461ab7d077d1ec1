"""Report what each dispatch of a Program does and costs, and the user's lines it came from.

A Program is the same wherever it is compiled, so it contains no source lines. Planning is deterministic: planning the
graph again gives the launches of the Program, in its order. Passes copy the site of a node to the nodes that replace
it. So planning a copy of the graph, in which every node has its own site object, shows which nodes each launch
computes.
"""

from __future__ import annotations

import contextlib
from bisect import bisect_right
from collections import Counter
from collections.abc import Generator, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, islice
from typing import NamedTuple

from tracegrad.compiler.layout import Persistent
from tracegrad.compiler.pipeline import optimize
from tracegrad.compiler.places import make_plan
from tracegrad.compiler.plan import Plan
from tracegrad.errors import CompileError, Site
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.kernels.costs import Cost, computed_by, cost_of
from tracegrad.kernels.form import Kernel
from tracegrad.kernels.fuse import Cluster
from tracegrad.kernels.group import Launch
from tracegrad.program import Program

NOWHERE = Site("", 0)  # the site of nodes without a line
SHOWN = 4  # most lines that an error names for a kernel
COUNTED = "bytes and FLOP: what must be done at least, every element of memory and every value counted once"


@dataclass(frozen=True, slots=True)
class DispatchInfo:
    """One dispatch of a program."""

    number: int
    times: int  # runs per step: 1 outside of loops
    kernel: int  # index into Program.kernels
    label: str
    workgroups: int  # per run
    cost: Cost  # of all runs together
    sites: tuple[Site, ...]  # the user's lines, sorted
    forms: tuple[Kernel, ...] = field(repr=False)  # of the kernels that run side by side in the dispatch

    @property
    def what(self) -> str:
        """Return `matmul+tanh x 128`: the label, and how often it runs if more than once."""
        return self.label if self.times == 1 else f"{self.label} x {self.times}"

    @property
    def lines(self) -> str:
        """Return `model.py:14, model.py:20`."""
        return ", ".join(dict.fromkeys(site.short for site in self.sites))


class Planned(NamedTuple):
    """The plan of a program, made again from its graph.

    launches: the launch behind each dispatch, with its plan.
    starts:   number of the first dispatch of each launch of the plan, then of all dispatches. A scan can have many.
    numbers:  id of a cluster of the plan -> numbers of its dispatches.
    origins:  id of a site -> the node of the graph that has the site.
    """

    plan: Plan
    launches: tuple[tuple[Plan, Launch], ...]
    starts: tuple[int, ...]
    numbers: Mapping[int, range]
    origins: Mapping[int, Tensor]

    @staticmethod
    def of(graph: Graph, program: Program) -> Planned:
        """Plan the program that `graph` was compiled to."""
        marked, origins = _marked(graph)
        declared = {f.name: f.type for f in program.inputs}
        size = program.capacity
        plan = make_plan(optimize(marked, open_size=size), Persistent.of(program), declared)
        launches = tuple(plan.dispatched())
        expected = sum(program.kernels[d.kernel].launches for d in program.dispatches)
        assert len(launches) == expected, "planning the graph again gave another program"
        many = [len([*plan.scans[id(x.scan)].plan.dispatched()]) if x.scan else 1 for x in plan.launches]
        starts = tuple(accumulate(many, initial=0))
        numbers = {id(c): range(at, at + n) for x, at, n in zip(plan.launches, starts, many) for c in x.clusters}
        return Planned(plan, launches, starts, numbers, origins)

    def origin(self, t: Tensor) -> Tensor | None:
        """Return the node of the graph that a node of the plan comes from; None in the body of a scan."""
        return self.origins.get(id(t.site))

    def label(self, c: Cluster) -> str:
        """Describe what a cluster computes, by the names of its ops."""
        launch = self.plan.launches[bisect_right(self.starts, self.numbers[id(c)][0]) - 1]
        return next((m.kernel.label for m in launch.members if m.cluster is c), "scan")

    def computed(self, c: Cluster) -> list[Tensor]:
        """Return all nodes that a cluster computes, inlined nodes included."""
        return computed_by(c, self.plan.externals[id(c)])


def _marked(graph: Graph) -> tuple[Graph, dict[int, Tensor]]:
    """Return the same graph with a site of its own for each node, and the node by id of the site.

    Nodes keep their serials. The plan follows their order, and bodies of loops, which are not copied, take part in it.
    """
    new: dict[int, Tensor] = {}
    origins: dict[int, Tensor] = {}
    for t in graph.nodes:
        site = Site(*(t.site or NOWHERE))
        new[t.serial] = Tensor(t.prim, tuple([new[x.serial] for x in t.inputs]), t.attrs, t.type, site, t.serial)
        origins[id(site)] = t
    return graph.with_roots([new[t.serial] for t in graph.roots]), origins


def dispatches_of(graph: Graph, program: Program) -> tuple[DispatchInfo, ...]:
    """Return the dispatches of the program that `graph` was compiled to, in order."""
    launches = iter(Planned.of(graph, program).launches)
    times = Counter(number for number, _ in program.order())
    at = partial(at_size, program)
    costs: dict[int, Cost] = {}  # clusters of equal form share a kernel
    out: list[DispatchInfo] = []
    for number, d in enumerate(program.launched()):
        source, cost, sites, forms = program.kernels[d.kernel], Cost(), set[Site](), list[Kernel]()
        inside = {turn.launch: turn.nest.count(turn.number) for turn in source.turns}
        for k, (plan, launch) in enumerate(islice(launches, source.launches)):
            for c, kernel, *_ in launch.members:
                forms.append(kernel)
                if id(kernel) not in costs:
                    costs[id(kernel)] = cost_of(c, plan.externals[id(c)], plan.storage, at)
                cost += costs[id(kernel)].repeated(inside.get(k, 1))
                sites |= sites_of(c, plan.externals[id(c)])
        workgroups, n = d.grid[0] * d.grid[1], times[number]
        own = cost.repeated(n * (at(source.turns[0].nest.iterations) if source.turns else 1))
        out.append(DispatchInfo(number, n, d.kernel, source.label, workgroups, own, tuple(sorted(sites)), tuple(forms)))
    return tuple(out)


def at_size(program: Program, n: int) -> int:
    """Return `n` at the size of the program: multiples of the capacity, which is a prime, scale with the size."""
    return n // program.capacity * program.size if program.capacity and n % program.capacity == 0 else n


@contextlib.contextmanager
def blamed_lines(graph: Graph, program: Program) -> Generator[None, None, None]:
    """In the block, add to each CompileError that names a kernel the user's lines that the kernel came from."""
    try:
        yield
    except CompileError as e:
        if e.kernel is None:
            raise
        sites = blamed(graph, program)[e.kernel]
        raise CompileError("\n".join([str(e), *(site.describe() for site in sites)])) from e


def blamed(graph: Graph, program: Program) -> dict[int, tuple[Site, ...]]:
    """Return the lines to name in an error of each kernel of `program`, by the kernel's number."""
    return {d.kernel: d.sites[:SHOWN] for d in reversed(dispatches_of(graph, program))}


def sites_of(c: Cluster, externals: Iterable[Tensor]) -> set[Site]:
    """Return the lines of all nodes that a cluster computes, inlined nodes included."""
    return {t.site for t in computed_by(c, externals) if t.site is not None and t.site != NOWHERE}
