"""Explanations of why a value is stored or inlined, which rules merged or split its kernels, and its place."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate

from tracegrad.compiler.dispatches import Planned
from tracegrad.errors import MissingNameError, Site
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.kernels.fuse import PACKED, SCAN, Cluster
from tracegrad.kernels.reads import base
from tracegrad.kernels.storage import BY_COST, LOAD
from tracegrad.program import Program
from tracegrad.refusals import absent

POINT = "each point reads its own"
ROW = "each row reads its own"
SIBLING = "they read the same values"
NOWHERE = "none, because every reader is in the same kernel"
GONE = "the passes removed it: it is a constant, or equal to another value, or nothing needs it"
SEEN_THROUGH = ("view", "formula")  # families skipped when a node was compiled to several values


@dataclass(frozen=True, slots=True)
class Value:
    """One value of the compiled graph.

    rule:     why the value is stored or inlined. If cost decides: the cost of an element, and the number of reads.
    computes: the dispatches that compute the value, with their kernels.
    merged:   neighbours in the same kernel, and the rule that joined them.
    refused:  neighbours in other kernels, and the rule that kept them apart.
    reads:    for a leaf, the dispatches that read it.
    memory:   array[begin:end] and the lifetime; "" if the value is inlined.
    """

    name: str
    stored: bool
    rule: str
    computes: tuple[str, ...]
    merged: tuple[str, ...]
    refused: tuple[str, ...]
    reads: tuple[str, ...]
    memory: str
    site: Site | None

    @property
    def why(self) -> str:
        """A text such as "stored: the program delivers it": `stored` or `inlined`, and the rule."""
        return f"{'stored' if self.stored else 'inlined'}: {self.rule}"

    def __str__(self) -> str:
        lines = [self.name, f"  {self.why}"]
        lines += [f"  computed by {x}" for x in self.computes]
        lines += [f"  merged with {x}" for x in self.merged]
        lines += [f"  apart from {x}" for x in self.refused]
        lines += [f"  read by {x}" for x in self.reads]
        lines += [f"  memory: {self.memory}"] if self.memory else []
        return "\n".join([*lines, *([self.site.describe()] if self.site else [])])


@dataclass(frozen=True, slots=True, repr=False)
class Why:
    """The values that a node was compiled to, as text to print: several for a composite, none for a removed node."""

    node: str
    values: tuple[Value, ...]

    def __str__(self) -> str:
        if not self.values:
            return f"{self.node}\n  {GONE}"
        single = [v.name for v in self.values] == [self.node]
        return "\n\n".join([*([] if single else [f"{self.node}, compiled to"]), *map(str, self.values)])

    __repr__ = __str__


def why(graph: Graph, program: Program, wanted: str | Tensor) -> Why:
    """Explain a node or a name; see `CompiledTraining.why`."""
    node = node_of(graph, program, wanted)
    answers = Answers(graph, program)
    found = [t for t in answers.storage.order if answers.planned.origin(t) is node]
    shown = [t for t in found if t.prim.family not in SEEN_THROUGH] or [base(t) for t in found[-1:]]
    return Why(f"%{answers.number[node.serial]} {node.name} {node.type}", tuple(map(answers.value, shown)))


def node_of(graph: Graph, program: Program, wanted: str | Tensor) -> Tensor:
    """Return the node for a name, a number such as `%12`, or a node. Raises MissingNameError if there is none."""
    if isinstance(wanted, Tensor):
        if any(t is wanted for t in graph.nodes):
            return wanted
        raise MissingNameError.here(f"{wanted!r} is not a node of this graph; take one from `graph`, or pass a name")
    named = names_of(graph, program)
    if not isinstance(wanted, str) or wanted not in named:  # pyright: ignore[reportUnnecessaryIsInstance]
        hint = f"; numbers are those of print(graph), from '%0' to '%{len(graph) - 1}'"
        raise absent("the graph", str(wanted), [n for n in named if not n.startswith("%")], hint=hint)
    return named[wanted]


def names_of(graph: Graph, program: Program) -> dict[str, Tensor]:
    """Return the nodes by name and number. If names are equal, results win, then captures, states and leaves."""
    leaves = {t.name: t for t in graph.leaves("param", "frozen", "input", "state", "hyper")}
    parts: dict[int, Tensor] = {}  # offset -> part of the gradient
    if "grads" in graph.writes:
        packed = graph.writes["grads"].inputs
        parts = {at: base(t) for at, t in zip(accumulate([t.size for t in packed], initial=0), packed) if t.size}
    trained = [f for f in program.params if f.spec.get("trainable", True) and f.offset in parts]
    gradients = {f"grads.{f.name}": parts[f.offset] for f in trained}
    numbers = {f"%{k}": t for k, t in enumerate(graph.nodes)}
    named: dict[str, Tensor] = {}
    for part in (graph.outputs, graph.captures, graph.writes, leaves, gradients, numbers):
        for name, t in part.items():
            named.setdefault(name, t)
    return named


class Answers:
    """Explains the values of a program, from a plan that is made again for this purpose."""

    def __init__(self, graph: Graph, program: Program) -> None:
        self.program, self.planned = program, Planned.of(graph, program)
        self.storage, self.schedule = self.planned.plan.storage, self.planned.plan.schedule
        self.number = {t.serial: k for k, t in enumerate(graph.nodes)}
        self.computing: dict[int, list[Cluster]] = {}  # serial -> the kernels that compute it, inlined or not
        self.reading: dict[int, list[Cluster]] = {}  # serial of a leaf -> the kernels that load it
        for c in self.schedule.clusters:
            for t in self.planned.computed(c):
                self.computing.setdefault(t.serial, []).append(c)
            for t in self.planned.plan.externals[id(c)]:
                if t.prim.family == "leaf":
                    self.reading.setdefault(t.serial, []).append(c)
        self.apart: dict[int, dict[str, None]] = {}  # serial -> the kernels before and behind its own, and the rule
        for serial, reads in self.storage.reads.items():
            for part in sorted({part for s in reads.stored for part in self.storage.packed(s)}):
                self.neighbours(part, serial)

    def neighbours(self, maker: int, reader: int) -> None:
        """Record the rule that kept the kernels of two stored values apart. `reader` reads `maker`."""
        a, b = self.schedule.owner[maker], self.schedule.owner[reader]
        if a is not b and id(a) in self.planned.numbers and id(b) in self.planned.numbers:
            rule = self.schedule.refused.get((maker, reader), SCAN if "scan" in (a.kind, b.kind) else PACKED)
            self.apart.setdefault(maker, {})[f"{self.dispatch(b)}, which reads it: {rule}"] = None
            self.apart.setdefault(reader, {})[f"{self.dispatch(a)}, which it reads: {rule}"] = None

    def values(self) -> Iterator[Value]:
        """Yield every value that a kernel computes, except views and constants."""
        for t in self.storage.order:
            if t.prim.family not in (*SEEN_THROUGH, "leaf", "pack", "item"):
                yield self.value(t)

    def name(self, t: Tensor) -> str:
        """Return the number of the node that the value comes from, and its name and type."""
        node = self.planned.origin(t)
        return f"{t.name} {t.type}" if node is None else f"%{self.number[node.serial]} {t.name} {t.type}"

    def value(self, t: Tensor) -> Value:
        """Return the explanation of one value."""
        storage, node = self.storage, self.planned.origin(t)
        stored = t.serial in storage.stored or t.prim.family in ("leaf", "pack", "item")
        rule = storage.rules.rule[t.serial]
        if rule in BY_COST:
            n, cost = len(storage.rules.readers[t.serial]), storage.rules.cost[t.serial]
            rule += f" (an element costs {cost}, a load {LOAD}; read {'once' if n == 1 else f'{n} times'})"
        computes = tuple(self.dispatch(c) for c in self.computing.get(t.serial, ()))
        merged, refused = tuple(self.merged(t)), tuple(self.apart.get(t.serial, ()))
        reads = tuple(map(self.dispatch, self.reading.get(t.serial, ())))
        memory, site = self.memory(t) if stored else "", t.site if node is None else node.site
        return Value(self.name(t), stored, rule, computes, merged, refused, reads, memory, site)

    def dispatch(self, c: Cluster) -> str:
        """Return the dispatches of a cluster as text, such as `dispatch 3, kernel 2 (matmul+add)`."""
        numbers = self.planned.numbers[id(c)]
        if len(numbers) > 1:
            return f"dispatches {numbers[0]} to {numbers[-1]} (scan)"
        kernel = self.program.dispatches[numbers[0]].kernel
        return f"dispatch {numbers[0]}, kernel {kernel} ({self.planned.label(c)})"

    def merged(self, t: Tensor) -> Iterator[str]:
        """Yield the kernel's other values that `t` reads, that read `t`, or that read what `t` reads; with the rule."""
        owner, reads = self.schedule.owner.get(t.serial), self.storage.reads
        if owner is None:
            return
        rule, own = ROW if owner.kind == "rows" else POINT, reads[t.serial]
        for x in owner.nodes:
            other = reads[x.serial]
            if t.serial in other.stored or x.serial in own.stored:
                yield f"{self.name(x)}: {rule}"
            elif x is not t and not (own.stored.keys() | own.leaves).isdisjoint(other.stored.keys() | other.leaves):
                yield f"{self.name(x)}: {SIBLING}"

    def memory(self, t: Tensor) -> str:
        """Return the place of a value in memory, and its lifetime."""
        plan = self.planned.plan
        if t.prim.family == "scan":
            items = [x for x in self.storage.order if x.prim.family == "item" and x.inputs[0] is t]
            return ", ".join(map(self.memory, items))
        if t.serial not in plan.places:
            return NOWHERE
        place = plan.places[t.serial]
        text = f"{place.array}[{place.offset}:{place.offset + t.size}]"
        life = next((x for x in plan.lifetimes if x.key == plan.pack_of.get(t.serial, t.serial)), None)
        if life is None:
            return text
        first, last = self.planned.starts[life.first], self.planned.starts[life.last]
        return f"{text}, from dispatch {first} to {last}"
