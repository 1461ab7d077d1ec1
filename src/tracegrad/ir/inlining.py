"""Values that must be computed once, because they are compared with themselves, such as x in x == max(x).

A second computation can give another number: compilers round a * b + c once in one loop and twice in another. Then no
element equals the largest, so argmax is out of range, and the gradient of max is 0 / 0. Subtracting the largest, as
softmax does, is not a comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set
from functools import reduce

from tracegrad.dtypes import bool_
from tracegrad.ir.nodes import Tensor, reached, unmoved

INLINED = ("map", "view", "gather")  # families that readers compute unless the value is stored


def computed_once(order: Sequence[Tensor], delivered: Iterable[Tensor] = ()) -> set[int]:
    """Return the serials of the elementwise values that all readers must load.

    A fold such as max selects an element of these values. Then a comparison reads the values and the selected element,
    or the user gets the values. `order` is topological. A composite that is not expanded counts as such a fold.
    """
    chosen: dict[int, int] = {}  # serial of a value read by selecting folds -> these folds, a bit each
    behind: dict[int, int] = {}  # serial of a node -> the selecting folds that it depends on
    seen: dict[int, set[int]] = {}  # selecting folds -> what is inlined into the comparisons that depend on them
    found: set[int] = set()
    bit = 1
    for t in order:
        folds = reduce(int.__or__, [behind[x.serial] for x in t.inputs], 0)
        if (t.prim.chooses and t.dtype.is_float) or t.prim.family == "composite":
            folds |= bit
            for x in inlined(t.inputs):
                if x.prim.family == "map" and x.dtype.is_float:
                    chosen[x.serial] = chosen.get(x.serial, 0) | bit
            bit <<= 1
        elif folds and t.prim.family == "map" and t.dtype is bool_:
            met = {s for s, by in chosen.items() if by & folds}
            ends = seen.setdefault(folds, set(met))
            values = {x.serial for x in inlined(t.inputs, ends)}
            found |= values & met
            ends |= values
        behind[t.serial] = folds
    return found.union(t.serial for t in map(unmoved, delivered) if t.serial in chosen)


def inlined(roots: Sequence[Tensor], until: Set[int] = frozenset()) -> Iterator[Tensor]:
    """Yield `roots` and all values that are inlined into them, not going beyond the serials `until`."""

    def inside(values: Iterable[Tensor]) -> list[Tensor]:
        return [x for x in values if x.prim.family in INLINED]

    return reached(inside(roots), lambda x: () if x.serial in until else inside(x.operands))
