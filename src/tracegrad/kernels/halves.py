"""Choose the values that memory holds in half precision under precision="f16": large ones passed between kernels.

They are rounded once, when they are stored; kernels compute with them in f32. A value stays f32 where rounding or the
range of f16 (6e-8 to 65504) would do harm, or where it is too small to matter:

- delivered values (results, new states, parts of gradients), and terms added to them, because sums are in f32;
- terms of a sum that another kernel adds up, such as the parts of a product that was split;
- statistics: results of folds, such as the maxima and sums of softmax, and values computed from statistics alone;
- everything computed from the optimizer's state or from packed gradients;
- a scan's initial values, carries and results, because gradients are summed there.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracegrad.dtypes import f32
from tracegrad.ir import Tensor
from tracegrad.kernels.reads import delivered_parts
from tracegrad.kernels.stored import Rules

ROUNDED = ("map", "gather", "product")  # families


def half_nodes(order: Sequence[Tensor], rules: Rules, roots: set[int]) -> set[int]:
    """Return the serials of the stored nodes in half precision. roots: serials of delivered values."""
    exact = added_to({t.serial for t in delivered_parts(order)} | roots, order) | statistics(order) | of_state(order)
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


def added_to(delivered: set[int], order: Sequence[Tensor]) -> set[int]:
    """Return the delivered values, and all that is added to them element by element."""
    found = set(delivered)
    for t in reversed(order):
        if t.serial in found and t.prim.family in ("map", "view"):
            found.update(x.serial for x in t.operands)
    return found


def statistics(order: Sequence[Tensor]) -> set[int]:
    """Return the results of folds, and values computed from nothing else but scalars and constants."""
    found: set[int] = set()
    for t in order:
        family = t.prim.family
        made = family in ("map", "view") and all(x.serial in found or x.size == 1 for x in t.operands)
        if made or family in ("fold", "scatter", "formula"):
            found.add(t.serial)
    return found


def of_state(order: Sequence[Tensor]) -> set[int]:
    """Return the values that depend on arrays of the optimizer, or on gradients that were packed for it."""
    found: set[int] = set()
    for t in order:
        state = t.prim.family == "leaf" and t.attrs.get("role") == "state" and t.size > 1
        if state or t.prim.family == "pack" or any(x.serial in found for x in t.operands):
            found.add(t.serial)
    return found
