"""Sorting, made of ops that every runtime has.

A few elements are selected one after another; for more, the search is limited to some columns of each row. In a row
of up to `SORT_BLOCK` elements, the position of an element is the number of elements that come before it. Longer rows,
and long axes that are not the last, are sorted by a network of exchanges (`networks.py`).
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from functools import partial
from typing import Any

from tracegrad.dtypes import TensorType, bool_, i32, integer, normalize_axis
from tracegrad.errors import ShapeError
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.methods import Operand, method
from tracegrad.ops.joining import concat
from tracegrad.ops.networks import LAST, Pairs, before, network
from tracegrad.ops.reduction import max, min, sum
from tracegrad.ops.shaping import swapaxes
from tracegrad.prims.elementwise import cast, isnan, where
from tracegrad.prims.folds import GATHER, scatter_add
from tracegrad.prims.leaves import as_tensor, const, iota
from tracegrad.prims.maps import composite
from tracegrad.prims.rules import multilinear, shifted
from tracegrad.prims.views import broadcast_to, place, reshape, slice_
from tracegrad.tuning import SORT_BLOCK, SORT_DIRECT, SORT_LANES, SORT_LINES, SORT_LONG, SORT_SCATTERED, SORT_SELECTED

__all__ = ["argsort", "sort", "topk"]


def _order_type(x: TensorType, *, axis: int, k: int, descending: bool) -> TensorType:
    return TensorType(i32, (*x.shape[:axis], k, *x.shape[axis + 1 :]))


def _order(x: Tensor, *, axis: int, k: int, descending: bool) -> Tensor:
    """Return the indices in `x` of the first `k` elements of the sorted axis."""
    n, beside = x.shape[axis], math.prod(x.shape[axis + 1 :]) >= SORT_LANES
    if beside and n >= SORT_LONG:
        return _position(network(_pairs(_stored(x), axis, descending), axis, k, _highest(x)), n)
    rows = _pairs(swapaxes(x, axis, -1), x.ndim - 1, descending)
    return swapaxes(_position(_front(rows, k, _highest(x), lambda at: _position(at, n)), n), axis, -1)


def _highest(x: Tensor) -> float:
    return math.inf if x.dtype.is_float else LIMITS[x.dtype.name][1]


def _pairs(x: Tensor, axis: int, descending: bool) -> Pairs:
    """Return keys to sort in ascending order, and positions, which decide between equal keys. No key is NaN.

    NaN becomes infinity, with a position after (or before) those of all infinite elements.
    """
    n = x.shape[axis]
    at = iota(x.shape, axis)
    if not x.dtype.is_float:
        lowest, highest = LIMITS[x.dtype.name]
        return Pairs(const(lowest + highest, x.dtype) - x if descending else x, at)
    nan, far = isnan(x), -n if descending else n
    keys = where(nan, -math.inf if descending else math.inf, -x if descending else x)
    return Pairs(keys, where(nan, at + far, at))


LIMITS = {"i32": (-(2**31), 2**31 - 1), "u32": (0, 2**32 - 1)}


# Function from positions of pairs to their indices in a row, in which some pairs can be missing
Index = Callable[[Tensor], Tensor]


def _stored(x: Tensor) -> Tensor:
    """Store `x` in memory, because it is compared with itself."""
    return max(broadcast_to(reshape(x, (*x.shape, 1)), (*x.shape, 2)), -1)


def _front(x: Pairs, k: int, highest: float, index: Index) -> Tensor:
    """Return the positions of the first `k` pairs of each row in order."""
    n = x.keys.shape[-1]
    if k <= SORT_SELECTED and 4 * k <= n:
        cut = k > 1 and n > SORT_DIRECT * k
        return _selected(_candidates(x, k, highest, index, SORT_LINES) if cut else x, k, highest)
    if 4 * k <= builtins.min(n, SORT_BLOCK):
        return _counted(_candidates(x, k, highest, index, 4 if 16 * k <= n else 2), k)
    return network(x, x.keys.ndim - 1, k, highest) if n > SORT_BLOCK else _counted(x, k)


def _selected(x: Pairs, k: int, highest: float) -> Tensor:
    """Return the positions of the first `k` pairs of each row, found one after another."""
    shape = x.keys.shape
    found: list[Tensor] = []
    left = broadcast_to(const(True, bool_), shape)
    for _ in range(k):
        keys, at = _leading(x, left, -1, highest)
        found.append(at)
        left = before(Pairs(broadcast_to(keys, shape), broadcast_to(at, shape)), x)
    return concat(found, -1)


def _leading(x: Pairs, left: Tensor, axis: int, highest: float) -> Pairs:
    """Return the first pair along an axis among the pairs where `left` is True."""
    keys = min(where(left, x.keys, const(highest, x.keys.dtype)), axis, keepdims=True)
    return Pairs(keys, min(where(left & (x.keys == keys), x.at, LAST), axis, keepdims=True))


def _candidates(x: Pairs, k: int, highest: float, index: Index, count: int) -> Pairs:
    """Return fewer pairs of each row, including the first `k`: only the pairs of `k` columns.

    A row is laid out as `count` lines. The `k` columns are those whose first pairs sort before the other columns' first
    pairs.
    """
    *batch, n = x.keys.shape
    width = -(-n // count)
    lines = (*batch, count, width)
    full = (*batch, count * width)
    inside = iota(full, len(batch)) < n
    behind = iota(full, len(batch)) + (LAST - full[-1])  # each place has its own, because counting tells pairs apart
    keys, at = (place(_stored(t), len(batch), 0, full[-1]) for t in x)
    x = Pairs(where(inside, keys, const(highest, keys.dtype)), where(inside, at, behind))
    laid = Pairs(*[reshape(t, lines) for t in x])
    firsts = _leading(laid, broadcast_to(const(True, bool_), lines), -2, highest)
    column: Index = lambda at: index(at) % width
    columns = column(_front(Pairs(*[reshape(t, (*batch, width)) for t in firsts]), k, highest, column))
    chosen = (*batch, count, k)
    within = broadcast_to(reshape(columns, (*batch, 1, k)), chosen) + iota(chosen, len(batch)) * width
    within = reshape(within, (*batch, count * k))
    return Pairs(*[_stored(bind(GATHER, t, within, axis=len(batch))) for t in x])


def _position(at: Tensor, n: int) -> Tensor:
    """Return positions in the input; those of NaN were moved before or behind all others."""
    return where(at < 0, at + n, where(at < n, at, at - n))


def _counted(x: Pairs, k: int) -> Tensor:
    """Sort each row by counting: the position of an element is the number of elements before it."""
    *batch, n = x.keys.shape
    square, x = (*batch, n, n), Pairs(*map(_stored, x))
    one, other = (Pairs(*[broadcast_to(reshape(t, (*batch, *s)), square) for t in x]) for s in ((n, 1), (1, n)))
    places = sum(cast(before(other, one), i32), -1)
    return slice_(scatter_add(x.at, places, len(batch), n), len(batch), 0, k)


def _no_vjp(ct: Tensor, y: Tensor, x: Tensor, **_: Any) -> tuple[None]:
    return (None,)


def _order_array(xp: Any, x: Any, *, axis: int, k: int, descending: bool) -> Any:
    """Sort by the library's own sort. For a stable descending order, rows are reversed, sorted, and reversed again."""
    at = xp.argsort(xp.flip(x, axis) if descending else x, axis=axis, stable=True)
    at = x.shape[axis] - 1 - xp.flip(at, axis) if descending else at
    return at[(*[slice(None)] * axis, slice(k))].astype(xp.int32)


def _order_xla(x: Any, t: Tensor, keys: Any) -> Any:
    return _order_array(x.np, keys, **t.attrs)


# On values and in JAX, the library sorts. Programs know no sort, so they get the expansion.
ORDER = composite(
    "order", type=_order_type, expand=_order, array=_order_array, vjp=_no_vjp, batch=shifted, xla=_order_xla,
)  # fmt: skip


def _arranged_vjp(ct: Tensor, y: Tensor, x: Tensor, at: Tensor, *, axis: int) -> tuple[Tensor, None]:
    """Apply the inverse order, the argsort of `at`. On a GPU, a scatter would compare each element with all others."""
    back = bind(ORDER, at, axis=axis, k=at.shape[axis], descending=False)
    return bind(ARRANGED, ct, back, axis=axis), None


# x[..., at, ...], where `at` has each index once along `axis`
ARRANGED = composite(
    "arranged",
    type=lambda x, at, *, axis: x,
    expand=partial(bind, GATHER),
    vjp=_arranged_vjp,
    jvp=multilinear,
    batch=shifted,
)


def _first(x: Operand, most: int | None, axis: int, descending: bool) -> tuple[Tensor, Tensor]:
    """Return the first `most` elements (None: all) along `axis` in sorted order, and their indices."""
    t = as_tensor(x)
    axis = normalize_axis(axis, t.ndim)
    n = t.shape[axis]
    k: int = n if most is None else most
    if not 0 <= k <= n:
        raise ShapeError(f"k = {k} elements of axis {axis} of {t.type}; valid are 0 to {n}")
    at = bind(ORDER, cast(t, i32) if t.dtype is bool_ else t, axis=axis, k=k, descending=descending)
    return bind(ARRANGED if k == n > SORT_SCATTERED else GATHER, t, at, axis=axis), at


@method
def sort(x: Operand, axis: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Sort `x` along `axis`, and return the sorted values and their indices in `x`: (values, indices).

    values[..., k, ...] = x[..., indices[..., k, ...], ...]

    x:          any dtype, rank 1 or more.
    axis:       an axis of `x`, by default the last.
    descending: True puts the largest element first.
    Returns:    values of the dtype of `x`, and i32 indices, both of the shape of `x`. Equal elements keep their order,
                in both directions; -0 equals 0. NaN counts as the largest, as in PyTorch and NumPy.
    Gradient:   to each element, the gradient of its value in the result; none through the indices.
    Raises:     ShapeError if `axis` is out of range.

    As torch.sort(stable=True). np.sort(x) is tg.sort(x)[0].

    >>> values, indices = tg.sort([3.0, 1.0, 2.0])
    >>> values, indices
    (tensor([1., 2., 3.]), tensor([1, 2, 0], dtype=i32))
    """
    return _first(x, None, axis, descending)


@method
def argsort(x: Operand, axis: int = -1, descending: bool = False) -> Tensor:
    """Return the indices that sort `x` along `axis`: the second result of `sort`.

    x:          any dtype, rank 1 or more.
    axis:       an axis of `x`, by default the last.
    descending: True puts the index of the largest element first.
    Returns:    i32, the shape of `x`. Indices of equal elements keep their order; NaN counts as the largest.
    Gradient:   none.
    Raises:     ShapeError if `axis` is out of range.

    As torch.argsort(stable=True) and np.argsort(kind="stable").

    >>> tg.argsort([3.0, 1.0, 2.0])
    tensor([1, 2, 0], dtype=i32)
    """
    return _first(x, None, axis, descending)[1]


@method
def topk(x: Operand, k: int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """Return the `k` largest elements along `axis`, the largest first, and their indices: (values, indices).

    x:        any dtype, rank 1 or more.
    axis:     an axis of `x`, by default the last.
    k:        an integer from 0 to the size of the axis.
    largest:  False returns the smallest elements, the smallest first.
    Returns:  values of the dtype of `x`, and i32 indices, both of the shape of `x` with size `k` along `axis`. Equal
              elements keep their order, which torch.topk does not promise. NaN counts as the largest.
    Gradient: to each element, the gradient of its value in the result; none through the indices.
    Raises:   ShapeError if `k` or `axis` is out of range.

    As torch.topk.

    >>> values, indices = tg.topk([3.0, 1.0, 2.0], 2)
    >>> values, indices
    (tensor([3., 2.]), tensor([0, 2], dtype=i32))
    """
    return _first(x, integer(k, "k"), axis, largest)
