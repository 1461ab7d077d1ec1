"""Compare traces at several sizes, node by node. They must be equal, except for values that may depend on sizes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.kernels.form import UnsizedError
from tracegrad.transforms.loops import Body, graph_of

Numbers = dict[int, int]  # serial of a node -> its number, which is equal in all traces


class Comparison:
    """A comparison of traces. A subclass says what can differ."""

    def same(self, node: Tensor, name: str, values: Sequence[Any]) -> bool:
        """Return whether an attribute, or the type, of a node can have these values, one in each trace.

        node: of the first trace.
        """
        raise NotImplementedError

    def nodes_of(self, graph: Graph, numbers: Numbers, trace: int) -> list[Tensor]:
        """Return the nodes of the graph of a trace that are compared. Leaves of a body have their numbers already."""
        return unnumbered(graph, numbers)

    def check(self, graphs: Sequence[Graph]) -> None:
        """Raise UnsizedError, with the line, for the first difference between traces."""
        self._check(graphs, [{} for _ in graphs])

    def _check(self, graphs: Sequence[Graph], numbers: Sequence[Numbers]) -> None:
        nodes = [self.nodes_of(g, seen, k) for k, (g, seen) in enumerate(zip(graphs, numbers))]
        for same in aligned(graphs, nodes, numbers):
            node = same[0]
            bodies = [name for name, value in node.attrs.items() if isinstance(value, Body)]
            for name in bodies:
                self.bodies(node, [t.attrs[name] for t in same])
            plain = [(name, [t.attrs[name] for t in same]) for name in node.attrs if name not in bodies]
            if not all(self.same(node, name, values) for name, values in (*plain, ("type", [t.type for t in same]))):
                raise _differ(same)

    def bodies(self, loop: Tensor, bodies: Sequence[Body]) -> None:
        """Raise UnsizedError for the first difference between the bodies of a loop."""
        leaves = zip(*[b.leaves for b in bodies])
        if not _equal([b.counts for b in bodies]) or not all(
            self.same(same[0], "type", [t.type for t in same]) for same in leaves
        ):
            raise UnsizedError("a loop has another body at other sizes")
        self._check([graph_of(b) for b in bodies], [numbered(b) for b in bodies])


def aligned(
    graphs: Sequence[Graph], nodes: Sequence[Sequence[Tensor]], numbers: Sequence[Numbers]
) -> Iterator[tuple[Tensor, ...]]:
    """Yield the nodes at the same place in all traces, and number them.

    nodes:   the nodes of each graph to compare.
    numbers: for each graph, the numbers that some nodes have already, such as `numbered` leaves.
    Raises:  UnsizedError, with the line, for the first node that another trace computes differently, and for results
             that are other nodes.
    """
    for count, same in enumerate(zip(*nodes)):
        for t, seen in zip(same, numbers):
            seen[t.serial] = count
        if not _equal([(t.prim, t.attrs.keys(), [seen[x.serial] for x in t.inputs]) for t, seen in zip(same, numbers)]):
            raise _differ(same)
        yield same
    if not _equal([len(n) for n in nodes]):
        raise UnsizedError("other nodes are computed at other sizes")
    if not _equal([_roots(g, seen) for g, seen in zip(graphs, numbers)]):
        raise UnsizedError("other values are results at other sizes")


def unnumbered(graph: Graph, numbers: Numbers) -> list[Tensor]:
    """Return the nodes of a graph that have no number yet."""
    return [t for t in graph.nodes if t.serial not in numbers]


def numbered(body: Body) -> Numbers:
    """Return a number for each leaf of a body, by serial. No other node gets one of these numbers."""
    return {t.serial: -1 - k for k, t in enumerate(body.leaves)}


def _differ(same: Sequence[Tensor]) -> UnsizedError:
    first, *others = same
    where = f", {first.site.short}" if first.site else ""
    types = " and ".join([str(t.type) for t in others if t.type != first.type])
    how = f"is {first.type}, and {types} at other sizes" if types else "computes differently at other sizes"
    return UnsizedError(f"{first.prim.name}{where}, {how}")


def _equal(values: Sequence[Any]) -> bool:
    return all(v == values[0] for v in values)


def _roots(graph: Graph, numbers: Numbers) -> list[tuple[str, str, int]]:
    """Return kind, name and number of each root of a graph."""
    parts = {"output": graph.outputs, "capture": graph.captures, "write": graph.writes}
    return [(kind, name, numbers[t.serial]) for kind, part in parts.items() for name, t in part.items()]
