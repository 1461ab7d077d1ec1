"""Values without elements, and what is made of nothing but them, as constants: no kernel, memory or index sees them."""

from __future__ import annotations

from collections.abc import Sequence

from tracegrad.ir import Tensor, rewrite
from tracegrad.prims.folds import pack
from tracegrad.prims.leaves import const
from tracegrad.prims.views import broadcast_to


def without_empty(roots: Sequence[Tensor]) -> list[Tensor]:
    """sum(x[:0]) -> 0, and so on."""
    return rewrite(roots, of_nothing)


def of_nothing(t: Tensor, inputs: Sequence[Tensor]) -> Tensor | None:
    """`t` without what has no elements; None if all that goes into it has some."""
    family = t.prim.family
    if 0 in t.type.shape and family != "leaf":
        return broadcast_to(const(0, t.dtype), t.shape)
    some = [x for x in inputs if 0 not in x.type.shape]
    if len(some) == len(inputs):
        return None
    if family == "pack":
        return pack(some)
    if family in ("fold", "product", "scatter", "view"):  # a view shows 0 beside its input
        return broadcast_to(const(t.prim.identity or 0, t.dtype), t.shape)
    return None
