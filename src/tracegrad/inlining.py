"""What must be computed once, because it is compared with itself: x where x == max(x) is asked.

Computed again, a value need not be the same number: compilers round a * b + c once in one loop and twice in another.
Then no element may be the largest: argmax is out of range, and the gradient of max is 0 / 0. To subtract the largest,
as softmax does, is no comparison.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence, Set

from tracegrad.dtypes import bool_
from tracegrad.ir import Tensor, toposort

INLINED = ("map", "view", "gather")  # families that their readers compute, unless something is stored


def computed_once(order: Sequence[Tensor], delivered: Iterable[Tensor] = ()) -> set[int]:
    """Serials of the elementwise values that all their readers must load.

    A fold chooses from them, and a comparison meets them again beside the choice; or they are delivered to somebody who
    may compare. `order` is topological. Before composites are expanded, each may have such a fold in it.
    """
    chosen: dict[int, set[int]] = {}  # what is computed on the way to a choice -> the folds that choose
    for t in order:
        if (t.prim.chooses and t.dtype.is_float) or t.prim.family == "composite":
            for x in inlined(t.inputs):
                if x.prim.family == "map" and x.dtype.is_float:
                    chosen.setdefault(x.serial, set()).add(t.serial)
    found = {t.serial for t in map(_moved, delivered) if t.serial in chosen}
    for t in order if chosen else ():
        if t.prim.family == "map" and t.dtype is bool_ and any(x.serial in chosen for x in inlined(t.inputs)):
            behind = {x.serial for x in toposort([t])}
            met = {s for s, folds in chosen.items() if not folds.isdisjoint(behind)}
            found.update(x.serial for x in inlined(t.inputs, met) if x.serial in met)
    return found


def inlined(roots: Sequence[Tensor], until: Set[int] = frozenset()) -> Iterator[Tensor]:
    """What `roots` are, and are computed from where they are read; of the serials `until` no further."""
    stack, seen = list(roots), set[int]()
    while stack:
        x = stack.pop()
        if x.prim.family in INLINED and x.serial not in seen:
            seen.add(x.serial)
            yield x
            if x.serial not in until:
                stack.extend(x.operands)


def _moved(t: Tensor) -> Tensor:
    """What a view shows, or a copy holds."""
    while t.prim.family == "view" or t.prim.passes:
        t = t.inputs[0]
    return t
