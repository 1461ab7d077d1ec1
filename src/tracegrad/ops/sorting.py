"""Sorting, made of ops that every runtime has.

Elements are compared by i32 keys. The first few are selected one after another; for more, the search is limited to some
groups of neighbours. Still more are chosen by the key of the last one, which is found bit by bit, and then sorted. In a
row of up to `SORT_BLOCK` elements, the position of an element is the number of elements that come before it. Longer
rows, and long axes that are not the last, are sorted by a network of exchanges (`networks.py`).
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any, Generic, NamedTuple, TypeVar

from tracegrad import tuning
from tracegrad.dtypes import TensorType, bool_, i32, integer, normalize_axis
from tracegrad.errors import ShapeError
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.methods import Operand, method
from tracegrad.ops.cumulative import CUMSUM
from tracegrad.ops.extrema import max, min
from tracegrad.ops.joining import concat
from tracegrad.ops.networks import LAST, Pairs, before, network
from tracegrad.ops.reduction import sum
from tracegrad.ops.shaping import swapaxes
from tracegrad.prims.elementwise import bit_xor, bits, cast, isnan, where
from tracegrad.prims.folds import GATHER, scatter_add
from tracegrad.prims.leaves import as_tensor, const, iota
from tracegrad.prims.maps import composite
from tracegrad.prims.rules import multilinear, shifted
from tracegrad.prims.views import broadcast_to, place, reshape, slice_

__all__ = ["argsort", "sort", "topk"]


def _order_type(x: TensorType, *, axis: int, k: int, descending: bool) -> TensorType:
    return TensorType(i32, (*x.shape[:axis], k, *x.shape[axis + 1 :]))


def _order(x: Tensor, *, axis: int, k: int, descending: bool) -> Tensor:
    """Return the indices in `x` of the first `k` elements of the sorted axis."""
    n, beside = x.shape[axis], math.prod(x.shape[axis + 1 :]) >= tuning.SORT_LANES
    if beside and n >= tuning.SORT_LONG and k == n:
        return network(_numbered(_stored(_keys(x, descending)), axis), axis)
    return swapaxes(_front(_keys(swapaxes(x, axis, -1), descending), k), axis, -1)


def _keys(x: Tensor, descending: bool) -> Tensor:
    """Return i32 keys to sort in ascending order. NaN has the last key; -0 has the key of 0."""
    key = x
    if x.dtype.is_float:
        key = bits(x)
        key = where(isnan(x), LAST, where(key < 0, -(2**31) - key, key))
    elif x.dtype is not i32:
        key = cast(bit_xor(x, 2**31), i32)
    return bit_xor(key, -1) if descending else key


def _numbered(keys: Tensor, axis: int) -> Pairs:
    return Pairs(keys, iota(keys.shape, axis))


def _stored(x: Tensor) -> Tensor:
    """Store `x` in memory, because it is compared with itself."""
    return max(broadcast_to(reshape(x, (*x.shape, 1)), (*x.shape, 2)), -1)


def _front(keys: Tensor, k: int) -> Tensor:
    """Return the positions of the first `k` keys of each row in order."""
    n, x = keys.shape[-1], _numbered(keys, keys.ndim - 1)
    if k <= tuning.SORT_SELECTED and 4 * k <= n:
        return _selected(_candidates(keys, k, tuning.SORT_LINES) if k > 1 and n > tuning.SORT_DIRECT * k else x, k)
    if 16 * k <= n and 4 * k <= tuning.SORT_BLOCK:
        return _counted(_candidates(keys, k, 4), k)
    if k < n and n > tuning.SORT_WHOLE:
        x = _chosen(keys, k)
    return network(x, keys.ndim - 1) if x.keys.shape[-1] > tuning.SORT_BLOCK else _counted(x, k)


def _selected(x: Pairs, k: int) -> Tensor:
    """Return the positions of the first `k` pairs of each row, found one after another."""
    shape = x.keys.shape
    found: list[Tensor] = []
    left = broadcast_to(const(True, bool_), shape)
    for _ in range(k):
        keys = min(where(left, x.keys, LAST), -1, keepdims=True)
        at = min(where(left & (x.keys == keys), x.at, LAST), -1, keepdims=True)
        found.append(at)
        left = before(Pairs(broadcast_to(keys, shape), broadcast_to(at, shape)), x)
    return concat(found, -1)


def _candidates(keys: Tensor, k: int, count: int) -> Pairs:
    """Return fewer pairs of each row, including the first `k`: `k` groups of `count` neighbours with the least keys."""
    keys = _stored(keys)
    found = _front(_stored(min(_grouped(keys, count), -1)), k)
    *batch, n = keys.shape
    at = reshape(_members(found, count), (*batch, k * count))
    return Pairs(_stored(where(at < n, bind(GATHER, keys, at, axis=len(batch)), LAST)), at)


def _grouped(keys: Tensor, count: int) -> Tensor:
    """Return rows as groups of `count` neighbours; the last group is padded with keys that sort last."""
    *batch, n = keys.shape
    groups = -(-n // count)
    padded = place(keys, len(batch), 0, groups * count)
    padded = where(iota(padded.shape, len(batch)) < n, padded, LAST)
    return reshape(padded, (*batch, groups, count))


def _members(groups: Tensor, count: int) -> Tensor:
    """Return the positions of the members of groups, along a new last axis."""
    shape = (*groups.shape, count)
    return broadcast_to(reshape(groups, (*groups.shape, 1)), shape) * count + iota(shape, groups.ndim)


def _chosen(keys: Tensor, k: int) -> Pairs:
    """Return the first `k` pairs of each row: those with keys less than that of pair `k`, then some with the same key.

    Both kinds are in the order of their positions, which running sums count. All other pairs are scattered to slots
    that are removed.
    """
    keys = _stored(keys)
    axis, n = keys.ndim - 1, keys.shape[-1]
    at, last = iota(keys.shape, axis), broadcast_to(_bisected(keys, k), keys.shape)
    kinds = keys < last, keys == last
    less, same = (bind(CUMSUM, cast(kind, i32), axis=axis, reverse=False) for kind in kinds)
    same = same + broadcast_to(slice_(less, axis, n - 1, 1), keys.shape)
    lines = -(-n // tuning.SORT_BESIDE)
    behind = k + slice_(reshape(iota((lines, tuning.SORT_BESIDE), 1), (lines * tuning.SORT_BESIDE,)), 0, 0, n)
    slots = where(kinds[0], less - 1, where(kinds[1] & (same <= k), same - 1, behind))
    at = slice_(scatter_add(at, slots, axis, k + tuning.SORT_BESIDE), axis, 0, k)
    return Pairs(bind(GATHER, keys, at, axis=axis), at)


def _bisected(keys: Tensor, k: int) -> Tensor:
    """Return the key of pair `k` of each row, found bit by bit from the highest."""
    found = tried = broadcast_to(const(0, i32), (*keys.shape[:-1], 1))
    for bit in range(31, -1, -1):
        fewer = sum(cast(keys < broadcast_to(tried, keys.shape), i32), -1, keepdims=True) < k
        found = where(fewer, tried, found if bit < 31 else -(2**31))
        tried = found + 2 ** (bit - 1) if bit else found
    return found


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


T = TypeVar("T")


class Sorted(NamedTuple, Generic[T]):
    """The results of `sort` and `topk`, as attributes or as a pair."""

    values: T
    indices: T


def _first(x: Operand, most: int | None, axis: int, descending: bool) -> Sorted[Tensor]:
    """Return the first `most` elements (None: all) along `axis` in sorted order, and their indices."""
    t = as_tensor(x)
    axis = normalize_axis(axis, t.ndim)
    n = t.shape[axis]
    k: int = n if most is None else most
    if not 0 <= k <= n:
        raise ShapeError(f"k = {k} elements of axis {axis} of {t.type}; valid are 0 to {n}")
    at = bind(ORDER, cast(t, i32) if t.dtype is bool_ else t, axis=axis, k=k, descending=descending)
    return Sorted(bind(ARRANGED if k == n > tuning.SORT_SCATTERED else GATHER, t, at, axis=axis), at)


@method
def sort(x: Operand, axis: int = -1, descending: bool = False) -> Sorted[Tensor]:
    """Sort `x` along `axis`, and return the sorted values and their indices in `x`: (values, indices).

    values[..., k, ...] = x[..., indices[..., k, ...], ...]

    x:          any dtype, rank 1 or more.
    axis:       an axis of `x`, by default the last.
    descending: True puts the largest element first.
    Returns:    values of the dtype of `x`, and i32 indices, both of the shape of `x`. Equal elements keep their order,
                in both directions; -0 equals 0. NaN counts as the largest, as in PyTorch and NumPy.
    Gradient:   to each element, the gradient of its value in the result; none through the indices.
    Raises:     ShapeError if `axis` is out of range.

    As torch.sort(stable=True). np.sort(x) is tg.sort(x).values.

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
    return _first(x, None, axis, descending).indices


@method
def topk(x: Operand, k: int, axis: int = -1, largest: bool = True) -> Sorted[Tensor]:
    """Return the `k` largest elements along `axis`, the largest first, and their indices: (values, indices).

    x:        any dtype, rank 1 or more.
    k:        an integer from 0 to the size of the axis.
    axis:     an axis of `x`, by default the last.
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
