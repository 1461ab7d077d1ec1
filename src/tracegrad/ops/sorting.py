"""Sorting, made of ops that every runtime has.

In a block of up to 128 elements, the position of an element is the number of elements that come before it. Two sorted
runs are merged by a binary search at each position of the result: how many elements before this position come from the
first run? An axis of n elements takes log2(n / 128) merges of at most log2(n) steps, and no scatter. Some long axes are
sorted by a network of exchanges instead (`networks.py`).
"""

from __future__ import annotations

import math
from typing import Any

from tracegrad.dtypes import TensorType, bool_, i32
from tracegrad.errors import ShapeError
from tracegrad.ir import Tensor, bind
from tracegrad.methods import Operand, method
from tracegrad.ops.networks import Pairs, network
from tracegrad.ops.reduction import max, sum
from tracegrad.ops.shaping import swapaxes
from tracegrad.prims.elementwise import cast, isnan, where
from tracegrad.prims.folds import GATHER
from tracegrad.prims.leaves import as_tensor, const, iota
from tracegrad.prims.maps import composite
from tracegrad.prims.rules import Tangents, multilinear, shifted
from tracegrad.prims.views import broadcast_to, place, reshape, slice_
from tracegrad.shapes import integer, normalize_axis
from tracegrad.tuning import (
    SORT_BLOCK,
    SORT_COLUMNS_FROM,
    SORT_LANES,
    SORT_LONG,
    SORT_OF_FEW,
    SORT_SCATTERED,
)

__all__ = ["argsort", "sort", "topk"]


def _before(a: Tensor, b: Tensor, descending: bool) -> Tensor:
    """Return whether `a` sorts before `b`, which follows in the input. True for equal elements; NaN is the largest."""
    ordered = b <= a if descending else a <= b
    return ordered | isnan(a if descending else b) if a.dtype.is_float else ordered


def _order_type(x: TensorType, *, axis: int, k: int, descending: bool) -> TensorType:
    return TensorType(i32, (*x.shape[:axis], k, *x.shape[axis + 1 :]))


def _gathered(x: Tensor, at: Tensor) -> Tensor:
    return bind(GATHER, x, at, axis=x.ndim - 1)


def _order(x: Tensor, *, axis: int, k: int, descending: bool) -> Tensor:
    """Return the indices in `x` of the first `k` elements of the sorted axis."""
    n, beside = x.shape[axis], math.prod(x.shape[axis + 1 :]) >= SORT_LANES
    if (beside and n >= SORT_LONG) or n >= SORT_COLUMNS_FROM:
        return _exchanged(x, axis, k, descending)
    return swapaxes(_merged_blocks(swapaxes(x, axis, -1), k, descending), axis, -1)


def _exchanged(x: Tensor, axis: int, k: int, descending: bool) -> Tensor:
    """Sort by a network. NaN becomes infinity, behind (or before) all infinite elements by its position."""
    n = x.shape[axis]
    x = _stored(x)
    at = iota(x.shape, axis)
    if not x.dtype.is_float:
        lowest, highest = LIMITS[x.dtype.name]
        keys = const(lowest + highest, x.dtype) - x if descending else x
        return network(Pairs(keys, at), axis, k, highest)
    nan, far = isnan(x), -n if descending else n
    keys = where(nan, -math.inf if descending else math.inf, -x if descending else x)
    at = network(Pairs(keys, where(nan, at + far, at)), axis, k, math.inf)
    return where(at < 0, at + n, at) if descending else where(at < n, at, at - n)


def _stored(x: Tensor) -> Tensor:
    """Store `x` in memory, because it is compared with itself."""
    return max(broadcast_to(reshape(x, (*x.shape, 1)), (*x.shape, 2)), -1)


def _merged_blocks(x: Tensor, k: int, descending: bool) -> Tensor:
    """Sort the last axis: blocks by counting, then merges of neighbouring runs."""
    *batch, n = x.shape
    merges = 0
    while min(SORT_BLOCK, SORT_OF_FEW * (k + 1)) << merges < n:
        merges += 1
    size = -(-n >> merges)
    keys = _blocks(x, size << merges, descending)
    keys = reshape(keys, (*batch, 1 << merges, size))
    at = _counted(keys, min(size, k), descending)
    keys = _gathered(keys, at)
    at = at + iota(at.shape, at.ndim - 2) * size
    for _ in range(merges):
        keys, at = _merged(keys, at, k, descending)
    return reshape(at, (*batch, k))


def _blocks(x: Tensor, n: int, descending: bool) -> Tensor:
    """Store `x`, extended by elements that sort last."""
    axis = x.ndim - 1
    keys = _stored(x)
    if n == x.shape[-1]:
        return keys
    lowest, highest = (float("-inf"), float("nan")) if x.dtype.is_float else LIMITS[x.dtype.name]
    placed = place(keys, axis, 0, n)
    return where(iota(placed.shape, axis) < x.shape[-1], placed, const(lowest if descending else highest, x.dtype))


LIMITS = {"i32": (-(2**31), 2**31 - 1), "u32": (0, 2**32 - 1)}


def _counted(keys: Tensor, k: int, descending: bool) -> Tensor:
    """Sort each row by counting: the position of an element is the number of elements before it."""
    *batch, n = keys.shape
    if n == 1:
        return iota(keys.shape, len(batch))
    square = (*batch, n, n)
    one, other = (reshape(keys, (*batch, *s)) for s in ((n, 1), (1, n)))
    i, j = iota(square, len(batch)), iota(square, len(batch) + 1)
    one, other = broadcast_to(one, square), broadcast_to(other, square)
    earlier = where(j < i, _before(other, one, descending), ~_before(one, other, descending))
    places = sum(cast(earlier, i32), -1)
    slots = (*batch, k, n)
    hit = broadcast_to(reshape(places, (*batch, 1, n)), slots) == iota(slots, len(batch))
    return sum(where(hit, iota(slots, len(batch) + 1), 0), -1)


def _merged(keys: Tensor, at: Tensor, k: int, descending: bool) -> tuple[Tensor, Tensor]:
    """Merge each two neighbouring runs: return the first `k` elements in order, and their indices in `x`."""
    *batch, runs, n = keys.shape
    pairs = (*batch, runs // 2)
    a, b = (reshape(slice_(keys, len(batch), s, runs // 2, 2), (*pairs, n)) for s in (0, 1))
    shape = (*pairs, min(2 * n, k))
    out = iota(shape, len(pairs))
    taken = broadcast_to(const(0, i32), shape)  # number of elements before `out` from the first run
    step = 1 << n.bit_length() - 1
    while step:
        more = taken + step
        first = _before(_gathered(a, more - 1), _gathered(b, out - more), descending)
        taken = where((more <= n) & (more <= out) & (first | (out - more >= n)), more, taken)
        step //= 2
    rest = out - taken
    from_a = (taken < n) & ((rest >= n) | _before(_gathered(a, taken), _gathered(b, rest), descending))
    place_ = where(from_a, taken, rest + n)
    keys, at = (_gathered(reshape(t, (*pairs, 2 * n)), place_) for t in (keys, at))
    return keys, at


def _no_vjp(ct: Tensor, y: Tensor, x: Tensor, **_: Any) -> tuple[None]:
    return (None,)


def _no_jvp(ts: Tangents, y: Tensor, x: Tensor, **_: Any) -> None:
    return None


def _order_xla(x: Any, t: Tensor, keys: Any) -> Any:
    """Sort by XLA's own sort. For a stable descending order, rows are reversed, sorted, and reversed again."""
    k, axis = t.attrs["k"], t.attrs["axis"]
    if not t.attrs["descending"]:
        found = x.np.argsort(keys, axis=axis, stable=True)
    else:
        turned = x.np.argsort(x.np.flip(keys, axis), axis=axis, stable=True)
        found = keys.shape[axis] - 1 - x.np.flip(turned, axis)
    return x.lax.slice_in_dim(found, 0, k, axis=axis).astype(x.np.int32)


ORDER = composite(
    "order", type=_order_type, expand=_order, vjp=_no_vjp, jvp=_no_jvp, batch=shifted, xla=_order_xla
)  # fmt: skip


def _arranged(x: Tensor, at: Tensor, *, axis: int) -> Tensor:
    return bind(GATHER, x, at, axis=axis)


def _arranged_vjp(ct: Tensor, y: Tensor, x: Tensor, at: Tensor, *, axis: int) -> tuple[Tensor, None]:
    """Apply the inverse order, the order of `at`. On a GPU, a scatter compares each element with all others."""
    back = bind(ORDER, at, axis=axis, k=at.shape[axis], descending=False)
    return bind(ARRANGED, ct, back, axis=axis), None


# x[..., at, ...], where `at` has each index once along `axis`
ARRANGED = composite(
    "arranged",
    type=lambda x, at, *, axis: x,
    expand=_arranged,
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
    keys = cast(t, i32) if t.dtype is bool_ else t
    at = bind(ORDER, keys, axis=axis, k=k, descending=descending)
    kept = k == n and n > SORT_SCATTERED
    return bind(ARRANGED if kept else GATHER, t, at, axis=axis), at


@method
def sort(x: Operand, axis: int = -1, descending: bool = False) -> tuple[Tensor, Tensor]:
    """Sort `x` along `axis`. Returns (values, indices), as torch.sort.

    values[..., k, ...] = x[..., indices[..., k, ...], ...]

    x:          any dtype, rank 1 or more.
    descending: the largest first.
    Returns:    values of the dtype of `x`, and i32 indices, both of the shape of `x`. Equal elements keep their order,
                in both directions; -0 equals 0. NaN counts as the largest, as in PyTorch and NumPy.
    Gradient:   each cotangent to the element it came from; none through the indices.
    Raises:     ShapeError if `axis` is out of range.

    As torch.sort(stable=True). np.sort(x) is tg.sort(x)[0].

    >>> import tracegrad as tg
    >>> values, indices = tg.sort(tg.tensor([3.0, 1.0, 2.0]))
    >>> values, indices
    (tensor([1., 2., 3.]), tensor([1, 2, 0], dtype=i32))
    """
    return _first(x, None, axis, descending)


@method
def argsort(x: Operand, axis: int = -1, descending: bool = False) -> Tensor:
    """Return the indices that sort `x` along `axis`: the second result of `sort`.

    x:       any dtype, rank 1 or more.
    Returns: i32, the shape of `x`. Stable; NaN counts as the largest. No gradient.
    Raises:  ShapeError if `axis` is out of range.

    As torch.argsort(stable=True) and np.argsort(kind="stable").

    >>> import tracegrad as tg
    >>> tg.argsort(tg.tensor([3.0, 1.0, 2.0]))
    tensor([1, 2, 0], dtype=i32)
    """
    return _first(x, None, axis, descending)[1]


@method
def topk(x: Operand, k: int, axis: int = -1, largest: bool = True) -> tuple[Tensor, Tensor]:
    """Return the `k` largest elements along `axis`, the largest first, and their indices: (values, indices).

    x:        any dtype, rank 1 or more.
    k:        an integer from 0 to the size of the axis.
    largest:  False returns the smallest elements, the smallest first.
    Returns:  values of the dtype of `x`, and indices in i32. Equal elements keep their order; NaN counts as the
              largest.
    Gradient: each cotangent to the element it came from; none through the indices.
    Raises:   ShapeError if `k` or `axis` is out of range.

    As torch.topk, which promises no order among equal elements.

    >>> import tracegrad as tg
    >>> values, indices = tg.topk(tg.tensor([3.0, 1.0, 2.0]), 2)
    >>> values, indices
    (tensor([3., 2.]), tensor([0, 2], dtype=i32))
    """
    return _first(x, integer(k, "k"), axis, largest)
