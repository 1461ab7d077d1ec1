"""Decide which values of a graph are stored in memory, and why. `Storage` has the result for later stages.

Folds, products and scatters are stored, and so is everything the program must deliver. An elementwise value is stored
in three cases: recomputing it costs more than writing and loading it; it must be computed once (`computed_once`); or
its expression is too deep. Each decision is one rule, in words for the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar

from tracegrad.dtypes import f16, f32
from tracegrad.ir.graph import INLINED, CycleError, Graph, computed_once, postorder, reached
from tracegrad.ir.nodes import Tensor, toposort
from tracegrad.kernels.reads import Reads, array_named, base, delivered_parts, reads_of, region_of, repeats
from tracegrad.kernels.tails import choices
from tracegrad.tuning import PRODUCT_READS, SPREAD, WIDER_READS

LOAD = 4  # the cost of loading one element from memory, in units of Primitive.cost

# The most ops inlined into each other, because lowering and rendering recurse over them and brackets nest as deep. A
# view counts as several ops: coordinates of coordinates of coordinates grow without bound.
DEEPEST = 64
MOVED = 4

COMPUTED = ("fold", "product", "scatter")

# Rules by which a value is stored.
SUMMED = "each of its elements is computed from many"
DELIVERED = "the program delivers it"
ITERATED = "its iterations write it"
PART = "it is a part of an array that others read, or a scan reads it"
ONCE = "it is compared with itself, so all its readers must load the same number"
DEEP = f"its readers would nest more than {DEEPEST} ops"
OPERAND = "a product reads it, once for each tile of the other operand"
REPEATED = "a reader repeats it, and would compute it for every copy"
SCATTERED = "a scatter reads it, once for each row of the result"
SHARED = "to compute it in each of its readers would cost more"
STORING = frozenset((SUMMED, ITERATED, DELIVERED, PART, ONCE, DEEP, OPERAND, REPEATED, SCATTERED, SHARED))
# Rules by which readers compute a value inline, or find it in memory.
CHEAP = "to store and load it would cost more"
MADE = "it depends on coordinates and scalars only, so that memory would cost more"
MOVES = "a view only changes the coordinates that its readers load from"
BY_COST = frozenset((CHEAP, SHARED, OPERAND, REPEATED, SCATTERED))
OF_FAMILY = {
    **dict.fromkeys(COMPUTED, SUMMED),
    "scan": ITERATED,
    "leaf": "it lies in memory before the program runs",
    "formula": MADE,
    "pack": "its parts are computed into their places",
    "item": "a scan writes it",
}


@dataclass(frozen=True, slots=True)
class Rules:
    """By serial of each node: the rule that stores or inlines it, the cost of an element, and the nodes that read it.

    depth: of stored nodes only: how many ops are inlined into each other there.
    """

    rule: dict[int, str]
    cost: dict[int, int]
    readers: Mapping[int, Sequence[Tensor]]
    depth: dict[int, int]


class Element(NamedTuple):
    """What readers do for an element of a value: load it, or compute it inline.

    cost:    of computing it, loads included.
    work:    the same without loads.
    sources: elements of the largest array that it is computed from.
    depth:   how many ops are inlined into each other.
    """

    cost: int
    work: int = 0
    sources: int = 0
    depth: int = 0


def rules_of(
    order: Sequence[Tensor], delivered: Mapping[int, str], once: Set[int], masking: Set[int] = frozenset()
) -> Rules:
    """Return the rule of every node.

    order:     the nodes in topological order.
    delivered: serials of nodes that must have memory of their own -> the rule that says so.
    once:      serials of nodes that must be computed once.
    masking:   serials of nodes that hide tails (see tails.py). Kernels leave out what a tail would hold in memory.
    """
    readers = computing_readers(order, masking)
    made = made_from_nothing(order)
    found = Rules({}, {}, readers, {})
    read: dict[int, Element] = {}

    def rule_of(t: Tensor, own: Element) -> str:
        family = t.prim.family
        if family not in INLINED:
            return OF_FAMILY[family]
        if family == "view" and repeats(t) == 1:  # the view shares its input's memory
            return MOVES
        if t.serial in delivered:
            return delivered[t.serial]
        if t.serial in once:
            return ONCE
        if own.depth > DEEPEST:
            return DEEP
        if t.serial in masking:
            return CHEAP
        if family == "view":
            return MOVES
        spread = own.sources * SPREAD <= t.size  # its much smaller inputs stay in the nearest cache
        shared = own.work if spread else own.cost
        return MADE if t.serial in made else worth_storing(t, own.cost, shared, readers[t.serial]) or CHEAP

    for t in order:
        costs, works, sources, depths = zip(*[read[x.serial] for x in t.operands]) if t.inputs else ((), (), (0,), (0,))
        step = MOVED if t.prim.family == "view" else 1
        own = Element(t.prim.cost + sum(costs), t.prim.cost + sum(works), max(sources), max(depths) + step)
        rule = found.rule[t.serial] = rule_of(t, own)
        found.cost[t.serial] = own.cost
        if rule in STORING:
            found.depth[t.serial] = own.depth
        elif t.prim.family in INLINED:
            read[t.serial] = own
            continue
        read[t.serial] = Element(0) if t.prim.family == "formula" else Element(LOAD, sources=t.size)
    return found


def made_from_nothing(order: Sequence[Tensor]) -> set[int]:
    """Return the serials of larger values that depend on coordinates and scalars only, such as random masks.

    Readers recompute them: arithmetic is cheaper than memory that stays allocated from forward to backward.
    """
    made: set[int] = set()
    for t in order:
        elementwise = t.prim.family in ("map", "view", "formula")
        if elementwise and all(x.serial in made or x.size == 1 for x in t.operands):
            made.add(t.serial)
    return {t.serial for t in order if t.serial in made and t.size > 1}


def worth_storing(t: Tensor, cost: int, shared: int, readers: Sequence[Tensor]) -> str:
    """Return the rule that stores `t`, or "" if computing it for each reader costs less than memory accesses.

    shared: the cost of computing an element for one more reader of the same points.
    """
    if any(r.prim.family == "product" for r in readers) and cost > PRODUCT_READS:
        return OPERAND
    if any((r.inputs[0] if r.prim.family == "fold" else r).size > t.size for r in readers) and cost > WIDER_READS:
        return REPEATED
    if any(r.prim.family == "scatter" for r in readers) and cost > PRODUCT_READS:
        return SCATTERED
    n = len(readers)
    return SHARED if n > 1 and shared * (n - 1) > LOAD + LOAD * n else ""


def computing_readers(order: Sequence[Tensor], masking: Set[int]) -> dict[int, list[Tensor]]:
    """Return, for each node, the distinct nodes that compute with it, seen through views and nodes in `masking`."""
    readers: dict[int, dict[int, Tensor]] = {t.serial: {} for t in order}
    for t in reversed(order):
        passed = readers[t.serial] if t.prim.family == "view" or t.serial in masking else {t.serial: t}
        for x in t.operands:
            readers[x.serial].update(passed)
    return {serial: list(found.values()) for serial, found in readers.items()}


T = TypeVar("T")


@dataclass(frozen=True)
class Storage:
    """A graph, and which of its nodes are stored.

    order:  its nodes, inputs before their readers.
    rules:  why each node is stored or inlined; `rules.depth` lists the stored nodes.
    array:  serial -> the named array that the node is computed into; all other nodes are temporaries.
    writes: serial -> the region that the node replaces; packs are not among them, but their parts are written.
    roots:  serials of results and states, packs excepted.
    once:   serials of nodes that must be computed once.
    halves: serials of nodes that memory holds in half precision.
    """

    graph: Graph
    order: Sequence[Tensor]
    rules: Rules
    array: Mapping[int, str]
    writes: Mapping[int, str]
    roots: Set[int]
    once: Set[int]
    halves: Set[int]

    @property
    def stored(self) -> Mapping[int, int]:
        """Serials of the stored nodes -> how many ops each inlines into each other."""
        return self.rules.depth

    @cached_property
    def nodes(self) -> dict[int, Tensor]:
        """The nodes by serial."""
        return {t.serial: t for t in self.order}

    @cached_property
    def members(self) -> list[Tensor]:
        """The stored nodes in order."""
        return [t for t in self.order if t.serial in self.stored]

    @cached_property
    def reads(self) -> dict[int, Reads]:
        """The reads of each stored node."""
        return {t.serial: reads_of(t, self.stored) for t in self.members}

    @cached_property
    def before(self) -> dict[int, list[int]]:
        """The nodes to run before each stored node: those it reads or waits for, and the readers of its old value."""
        before = {
            s: [p for r in (*reads.stored, *sorted(reads.waits)) for p in self.packed(r)]
            for s, reads in self.reads.items()
        }
        for serial, name in self.writes.items():
            before[serial] += [
                s
                for s, reads in self.reads.items()
                if s != serial and any(region_of(leaf) == name for leaf, _ in reads.leaves.values())
            ]
        return before

    @cached_property
    def sequence(self) -> list[Tensor] | None:
        """The stored nodes, each after all that must run before it.

        None where new states and their readers need each other's old values: no order of in-place writes is right.
        """
        try:
            return [
                self.nodes[s] for s in postorder([t.serial for t in reversed(self.members)], self.before.__getitem__)
            ]
        except CycleError:
            return None

    def array_name(self, serial: int) -> str:
        """Return the array that holds a stored node or a pack."""
        return self.array.get(serial) or f"temp.{self.held_as(serial)}"

    def held_as(self, serial: int) -> str:
        """Return how memory holds the elements of a stored node or a pack: "f32", "f16" or "i32"."""
        return f16.storage if serial in self.halves else self.nodes[serial].dtype.storage

    def packed(self, serial: int) -> list[int]:
        """Return the stored nodes of a serial: the node itself, or the parts of a pack."""
        if serial in self.stored:
            return [serial]
        return [s for x in self.nodes[serial].inputs for s in self.packed(base(x).serial)]

    def parts_read(self, t: Tensor) -> list[int]:
        """Return the parts of packs that a stored node reads: they are in memory only after their kernel has run."""
        return [part for s in self.reads[t.serial].stored if s not in self.stored for part in self.packed(s)]


def analyse(graph: Graph) -> Storage:
    """Decide which nodes of a graph are stored. The results must have a place: see `passes.place`."""
    order = toposort(graph.roots)
    roots = {base(t).serial: base(t) for t in graph.roots if t.prim.family != "pack" and t.size}
    parts = {t.serial: t for t in delivered_parts(order)}
    once = computed_once(order, [*roots.values(), *parts.values()])
    masking = choices(order, graph.ends) if graph.ends else set[int]()
    rules = rules_of(order, dict.fromkeys(parts, PART) | dict.fromkeys(roots, DELIVERED), once, masking)
    halves: set[int] = set()
    if graph.precision == "f16":
        halves = half_nodes(order, rules, [base(t) for t in graph.roots])
    writes = {base(t).serial: name for name, t in graph.writes.items() if t.prim.family != "pack"}
    return Storage(graph, order, rules, placed_arrays(graph), writes, roots.keys(), once, halves)


def placed_arrays(graph: Graph) -> dict[int, str]:
    """Return the array of each value that must be computed into one: results, new states, parts of packed states."""
    out = {base(t).serial: f"output.{t.dtype.storage}" for t in graph.results.values()}
    for name, t in graph.writes.items():
        out[base(t).serial] = array_named(name, t.dtype)
        if t.prim.family == "pack":
            out |= {base(x).serial: name for x in t.inputs}
    return out


ROUNDED = ("map", "gather", "product")  # families of values that precision="f16" can round


def half_nodes(order: Sequence[Tensor], rules: Rules, roots: Sequence[Tensor]) -> set[int]:
    """Return the serials of the values that memory holds in half precision: large ones passed between kernels.

    They are rounded once, when they are stored; kernels compute with them in f32. A value stays f32 where rounding or
    the range of f16 (6e-8 to 65504) would do harm, or where it is too small to matter:

    - delivered values (results, new states, parts of gradients), and terms added to them, because sums are in f32;
    - terms of a sum that another kernel adds up, such as the parts of a product that was split;
    - statistics: results of folds, such as the maxima and sums of softmax, and values computed from statistics alone;
    - everything computed from persistent arrays, such as the optimizer's state, or from packed gradients;
    - a scan's initial values, carries and results, because gradients are summed there.

    roots: delivered values.
    """
    added = reached([*roots, *delivered_parts(order)], lambda t: t.operands if t.prim.family in ("map", "view") else ())
    exact = {t.serial for t in added} | statistics(order) | of_state(order)
    return {
        t.serial
        for t in order
        if t.serial in rules.depth
        and t.prim.family in ROUNDED
        and t.dtype is f32
        and t.ndim >= 2
        and t.serial not in exact
        and any(r.prim.family != "fold" for r in rules.readers[t.serial])
    }


def statistics(order: Sequence[Tensor]) -> set[int]:
    """Return the results of folds and scatters, and values computed only from these, from scalars and constants."""
    found: set[int] = set()
    for t in order:
        family = t.prim.family
        made = family in ("map", "view") and all(x.serial in found or x.size == 1 for x in t.operands)
        if made or family in ("fold", "scatter", "formula"):
            found.add(t.serial)
    return found


def of_state(order: Sequence[Tensor]) -> set[int]:
    """Return the values that depend on persistent arrays or on packs, such as gradients packed for the optimizer.

    Persistent arrays are the optimizer's, states of the model with several elements, and data that a feed keeps.
    """
    found: set[int] = set()
    for t in order:
        state = t.prim.family == "leaf" and t.attrs.get("role") == "state" and t.size > 1
        if state or t.prim.family == "pack" or any(x.serial in found for x in t.operands):
            found.add(t.serial)
    return found
