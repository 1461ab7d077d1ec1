"""The one bit the scheduler decides a node: stored in memory, or inlined at its readers.

Folds, products and scatters are stored, and so is what the program must deliver. An elementwise value is stored when
recomputing it costs more than writing and loading it, when it must be computed once (`choices`), and when what it is
computed from goes deep.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracegrad.choices import INLINED, computed_once
from tracegrad.ir import Tensor
from tracegrad.kernels.reads import repeats

LOAD = 4  # the unit of Primitive.cost: one element from memory
PRODUCT_READS = 6  # a product reads an operand once per tile of the other: only near-free expressions are inlined
WIDER_READS = 12  # a value read through a broadcast is recomputed for every copy

# Lowering and rendering descend into what is inlined, and the brackets of a text nest as deep: so many ops, of which a
# view counts as several, because the coordinates of coordinates of coordinates grow without bound.
DEEPEST = 64
MOVED = 4

COMPUTED = ("fold", "product", "scatter")
STORED = (*COMPUTED, *INLINED, "scan")  # families of what can have memory of its own


def stored_nodes(order: Sequence[Tensor], roots: Iterable[Tensor]) -> dict[int, int]:
    """Serials of the nodes that get memory, and how deep what each of them inlines goes; `order` is topological."""
    roots = list(roots)
    wanted = {t.serial for t in roots} | computed_once(order, roots)
    readers = computing_readers(order)
    made = made_from_nothing(order)
    stored: dict[int, int] = {}
    cost: dict[int, int] = {}
    depth: dict[int, int] = {}
    for t in order:
        family = t.prim.family
        below = max([depth[x.serial] for x in t.operands], default=0) + (MOVED if family == "view" else 1)
        inline = family in INLINED and t.serial not in wanted and below <= DEEPEST
        if family == "view":
            own, inline = cost[t.inputs[0].serial], inline or repeats(t) == 1  # whose memory is its input's
        else:
            own = t.prim.cost + sum([cost[x.serial] for x in t.inputs])
            inline = inline and (t.serial in made or not worth_storing(t, own, readers[t.serial]))
        if not inline and family in STORED:
            stored[t.serial] = below
        cost[t.serial], depth[t.serial] = (own, below) if inline else (0 if family == "formula" else LOAD, 0)
    return stored


def made_from_nothing(order: Sequence[Tensor]) -> set[int]:
    """Serials of larger values that depend on coordinates and scalars only, such as random masks.

    They are recomputed wherever they are read: arithmetic is cheaper than memory that lives from forward to backward.
    """
    made: set[int] = set()
    for t in order:
        elementwise = t.prim.family in ("map", "view", "formula")
        if elementwise and all(x.serial in made or x.size == 1 for x in t.operands):
            made.add(t.serial)
    return {t.serial for t in order if t.serial in made and t.size > 1}


def worth_storing(t: Tensor, cost: int, readers: Sequence[Tensor]) -> bool:
    """The cost rule: one store and a load per reader, against one computation per reader."""
    if any(r.prim.family == "product" for r in readers) and cost > PRODUCT_READS:
        return True
    if any(_domain(r) > t.size for r in readers) and cost > WIDER_READS:
        return True
    if any(r.prim.family == "scatter" for r in readers) and cost > PRODUCT_READS:
        return True
    n = len(readers)
    return n > 1 and cost * (n - 1) > LOAD + LOAD * n


def _domain(reader: Tensor) -> int:
    """Over how many points a reader evaluates its inputs."""
    return reader.inputs[0].size if reader.prim.family == "fold" else reader.size


def computing_readers(order: Sequence[Tensor]) -> dict[int, list[Tensor]]:
    """For each node the distinct nodes that compute with it, seen through views."""
    readers: dict[int, dict[int, Tensor]] = {t.serial: {} for t in order}
    for t in reversed(order):
        passed = readers[t.serial] if t.prim.family == "view" else {t.serial: t}
        for x in t.operands:
            readers[x.serial].update(passed)
    return {serial: list(found.values()) for serial, found in readers.items()}
