"""Sum a value over all iterations of a loop, outside of the loop."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from tracegrad.ir import Tensor, bind
from tracegrad.prims.folds import MATMUL, SUM, scatter_add
from tracegrad.prims.leaves import const
from tracegrad.prims.views import PERMUTE, permute, reshape

LINEAR = ("neg", "add", "sub")


class Outside(NamedTuple):
    """What is known of a loop's body outside of the loop.

    stacked: the values of a node in all iterations, along a new axis 0
    around:  the value of a node that no iteration changes
    varying: serials of all other nodes
    stored:  serials of the nodes that the loop outputs. Their inputs can stay in the loop.
    """

    length: int
    stacked: Callable[[Tensor], Tensor]
    around: Callable[[Tensor], Tensor]
    varying: set[int]
    stored: set[int]


def summed(t: Tensor, o: Outside) -> Tensor:
    """Return sum_t of `t`: move the sum through linear ops to products, where it lengthens the inner dimension."""
    family, name = t.prim.family, t.prim.name
    if t.serial not in o.varying:
        return o.around(t) * const(o.length, t.dtype)
    if t.serial in o.stored:
        return reshape(bind(SUM, o.stacked(t), axes=(0,)), t.shape)
    if name in LINEAR or (family == "view" and len(t.inputs) == 1) or (name == "sum" and _of_product(t)):
        return bind(t.prim, *[summed(x, o) for x in t.inputs], **t.attrs)
    if name == "mul" and any(x.serial not in o.varying for x in t.inputs):
        a, b = t.inputs if t.inputs[0].serial in o.varying else t.inputs[::-1]
        return summed(a, o) * o.around(b)
    if t.prim is MATMUL:
        return _product(t, o)
    if family == "scatter":
        return _scatter(t, o)
    if name == "sum":
        (x,) = t.inputs
        many = bind(SUM, o.stacked(x), axes=(0, *[a + 1 for a in t.axes]))
        return reshape(many, t.shape)
    return reshape(bind(SUM, o.stacked(t), axes=(0,)), t.shape)


def _of_product(t: Tensor) -> bool:
    """Return whether there is a product behind linear ops."""
    while t.prim.family == "view" or t.prim.name in ("sum", "neg"):
        t = t.inputs[0]
    return t.prim.family in ("product", "scatter")


def _product(t: Tensor, o: Outside) -> Tensor:
    """Return sum_t a_t @ b_t as one product: all a_t side by side, times all b_t stacked by rows."""
    a, b = t.inputs
    if a.serial not in o.varying:
        return bind(MATMUL, o.around(a), summed(b, o))
    if b.serial not in o.varying:
        return bind(MATMUL, summed(a, o), o.around(b))
    batch, n = tuple(range(1, t.ndim - 1)), t.ndim
    if n == 2 and a.prim is PERMUTE and a.serial not in o.stored:  # a view of rows that are already stacked
        wide = permute(_below(o.stacked(a.inputs[0])), (1, 0))
    else:
        wide = permute(o.stacked(a), (*batch, n - 1, 0, n))
    high = permute(o.stacked(b), (*batch, 0, n - 1, n))
    k = o.length * a.shape[-1]
    return bind(MATMUL, reshape(wide, (*a.shape[:-1], k)), reshape(high, (*b.shape[:-2], k, b.shape[-1])))


def _below(x: Tensor) -> Tensor:
    """Return all matrices stacked by rows as one matrix."""
    return reshape(x, (x.shape[0] * x.shape[1], x.shape[2]))


def _scatter(t: Tensor, o: Outside) -> Tensor:
    """Return one scatter of the updates of all iterations, one after the other."""
    x, indices = t.inputs
    if indices.serial not in o.varying:
        return scatter_add(summed(x, o), o.around(indices), t.axis, t.attrs["length"])
    axes = [*range(1, t.axis + 1), 0, *range(t.axis + 1, t.ndim + 1)]
    shape = (*x.shape[: t.axis], o.length * x.shape[t.axis], *x.shape[t.axis + 1 :])
    many = [reshape(permute(o.stacked(y), axes), shape) for y in (x, indices)]
    return scatter_add(many[0], many[1], t.axis, t.attrs["length"])
