"""Decide one bit for every value: it is stored in memory, or its readers compute it inline.

Folds, products and scatters are stored, and so is everything the program must deliver. An elementwise value is stored
in three cases: recomputing it costs more than writing and loading it; it must be computed once (`choices`); or its
expression is too deep. Each decision is one rule, in words for the user.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from tracegrad.inlining import INLINED
from tracegrad.ir import Tensor
from tracegrad.kernels.reads import repeats
from tracegrad.tuning import PRODUCT_READS, WIDER_READS

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

    rule: Mapping[int, str]
    cost: Mapping[int, int]
    readers: Mapping[int, Sequence[Tensor]]
    depth: Mapping[int, int]


def rules_of(order: Sequence[Tensor], delivered: Mapping[int, str], once: Set[int]) -> Rules:
    """Return the rule of every node.

    order:     the nodes in topological order.
    delivered: serials of nodes that must have memory of their own -> the rule that says so.
    once:      serials of nodes that must be computed once.
    """
    readers = computing_readers(order)
    made = made_from_nothing(order)
    rules: dict[int, str] = {}
    stored: dict[int, int] = {}
    cost: dict[int, int] = {}
    loading: dict[int, int] = {}  # cost of an element for its readers
    depth: dict[int, int] = {}

    def rule_of(t: Tensor, below: int) -> str:
        family = t.prim.family
        if family not in INLINED:
            return OF_FAMILY[family]
        if family == "view" and repeats(t) == 1:  # it shares its input's memory
            return MOVES
        if t.serial in delivered:
            return delivered[t.serial]
        if t.serial in once:
            return ONCE
        if below > DEEPEST:
            return DEEP
        if family == "view":
            return MOVES
        return MADE if t.serial in made else worth_storing(t, cost[t.serial], readers[t.serial]) or CHEAP

    for t in order:
        serial, family = t.serial, t.prim.family
        below = max([depth[x.serial] for x in t.operands], default=0) + (MOVED if family == "view" else 1)
        read = t.inputs[:1] if family == "view" else t.inputs
        cost[serial] = sum([loading[x.serial] for x in read], 0 if family == "view" else t.prim.cost)
        rules[serial] = rule = rule_of(t, below)
        if rule in STORING:
            stored[serial] = below
        inlined = rule not in STORING and family in INLINED
        loading[serial] = cost[serial] if inlined else 0 if family == "formula" else LOAD
        depth[serial] = below if inlined else 0
    return Rules(rules, cost, readers, stored)


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


def worth_storing(t: Tensor, cost: int, readers: Sequence[Tensor]) -> str:
    """Return the rule that stores `t`, or "" if computing it for each reader costs less than memory accesses."""
    if any(r.prim.family == "product" for r in readers) and cost > PRODUCT_READS:
        return OPERAND
    if any(_domain(r) > t.size for r in readers) and cost > WIDER_READS:
        return REPEATED
    if any(r.prim.family == "scatter" for r in readers) and cost > PRODUCT_READS:
        return SCATTERED
    n = len(readers)
    return SHARED if n > 1 and cost * (n - 1) > LOAD + LOAD * n else ""


def _domain(reader: Tensor) -> int:
    """Return at how many points a reader evaluates its inputs."""
    return reader.inputs[0].size if reader.prim.family == "fold" else reader.size


def computing_readers(order: Sequence[Tensor]) -> dict[int, list[Tensor]]:
    """Return, for each node, the distinct nodes that compute with it, seen through views."""
    readers: dict[int, dict[int, Tensor]] = {t.serial: {} for t in order}
    for t in reversed(order):
        passed = readers[t.serial] if t.prim.family == "view" else {t.serial: t}
        for x in t.operands:
            readers[x.serial].update(passed)
    return {serial: list(found.values()) for serial, found in readers.items()}
