"""Running sums, products and extrema along an axis, and reductions of slices that belong together, such as edges."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

from tracegrad.dtypes import DType, count, i32
from tracegrad.errors import ShapeError
from tracegrad.ir.nodes import Primitive, Tensor, bind
from tracegrad.methods import METHODS, Operand, method, op
from tracegrad.ops import extrema
from tracegrad.ops.activation import logaddexp
from tracegrad.ops.control import stop_gradient
from tracegrad.ops.indexing import scatter_add, take
from tracegrad.ops.indices import indices_for
from tracegrad.ops.joining import stack
from tracegrad.ops.norm import logsumexp
from tracegrad.ops.reduction import number
from tracegrad.ops.shaping import along
from tracegrad.prims import views
from tracegrad.prims.elementwise import exp, isnan, maximum, where
from tracegrad.prims.folds import MAX, MIN, PROD, SCATTER_MAX, SUM, folded, identity_of, scatter_add as scatter_along
from tracegrad.prims.leaves import as_tensor, const, iota
from tracegrad.prims.maps import composite, float_type
from tracegrad.prims.rules import multilinear, shifted
from tracegrad.tuning import SCAN_BLOCK, SCAN_WRITTEN_OUT

__all__ = ["cummax", "cummin", "cumprod", "cumsum", "logcumsumexp", "segment_max", "segment_softmax", "segment_sum"]

SMALLEST_BLOCK, LARGEST_BLOCK = SCAN_BLOCK * 3 // 4, SCAN_BLOCK * 5 // 4


class Running(NamedTuple):
    """What runs along an axis, such as sums."""

    reduce: Callable[[Tensor, int], Tensor]  # over an axis
    combine: Callable[[Tensor, Tensor], Tensor]
    neutral: float


def _running(fold: Primitive, dtype: DType) -> Running:
    def reduce(x: Tensor, axis: int) -> Tensor:
        return folded(fold, x, (axis,), keepdims=False)

    return Running(reduce, lambda a, b: METHODS[fold.combine](a, b), identity_of(fold, dtype))


def _beside(x: Tensor, top: Tensor) -> Tensor:
    """Return terms of a sum whose largest is `top` such that its derivative is NaN for terms of inf alone.

    Terms of -inf alone would have a slope of NaN, and so would finite ones beside an inf: later blocks give the sum
    NaN, and 0 * NaN is NaN.
    """
    return where(top == -math.inf, 0.0, where((top == math.inf) & (x < math.inf), -math.inf, x))


def _log_sum(x: Tensor, axis: int) -> Tensor:
    """Return `logsumexp`. All of a block can be -inf."""
    top = extrema.max(x, axis, keepdims=True)
    found = logsumexp(_beside(x, top), axis)
    return where(top.reshape(found.shape) == -math.inf, -math.inf, found)


def _log_add(a: Tensor, b: Tensor) -> Tensor:
    """Return `logaddexp`. Both can be -inf."""
    top = maximum(a, b)
    return where(top == -math.inf, -math.inf, logaddexp(_beside(a, top), _beside(b, top)))


SUMS, PRODUCTS = _running(SUM, i32), _running(PROD, i32)  # whole numbers, for floats too
LOG_SUMS = Running(_log_sum, _log_add, -math.inf)


def _scan(x: Tensor, axis: int, reverse: bool = False, by: Running = SUMS) -> Tensor:
    """Return running sums or others along `axis`: within blocks, then combined with those of earlier blocks."""
    before, n, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    neutral = by.neutral
    if n <= LARGEST_BLOCK:
        square_shape = (*before, n, n, *after)
        i, j = iota(square_shape, axis), iota(square_shape, axis + 1)
        terms = views.broadcast_to(views.reshape(x, (*before, 1, n, *after)), square_shape)
        return by.reduce(where(j >= i if reverse else j <= i, terms, neutral), axis + 1)
    block = block_of(n)
    blocks = -(-n // block)
    padded = _placed(x, axis, 0, blocks * block, neutral)
    inner = _scan(views.reshape(padded, (*before, blocks, block, *after)), axis + 1, reverse, by)
    ends = views.slice_(inner, axis + 1, 0 if reverse else block - 1, 1)
    totals = _scan(views.reshape(ends, (*before, blocks, *after)), axis, reverse, by)
    others = views.slice_(totals, axis, 1 if reverse else 0, blocks - 1)
    carry = views.reshape(_placed(others, axis, 0 if reverse else 1, blocks, neutral), (*before, blocks, 1, *after))
    carried = by.combine(inner, views.broadcast_to(carry, inner.shape))
    return views.slice_(views.reshape(carried, padded.shape), axis, 0, n)


def block_of(n: int) -> int:
    """Return the block size for `n` elements: a divisor of `n` near SCAN_BLOCK, so that nothing is padded."""
    fitting = [d for d in range(SMALLEST_BLOCK, LARGEST_BLOCK + 1) if n % d == 0]
    return min(fitting, key=lambda d: (n // d > LARGEST_BLOCK, max(d, 2 * SCAN_BLOCK - d)), default=SCAN_BLOCK)


def _placed(x: Tensor, axis: int, start: int, n: int, neutral: float) -> Tensor:
    """Place `x` at `start` of an axis of length `n`, with `neutral` elsewhere."""
    end = start + x.shape[axis]
    placed = views.place(x, axis, start, n)
    if not neutral or placed is x:
        return placed
    at = iota(placed.shape, axis)
    return where((at >= start) & (at < end), placed, neutral)


def _cumsum_vjp(ct: Tensor, y: Tensor, x: Tensor, *, axis: int, reverse: bool) -> tuple[Tensor]:
    return (bind(CUMSUM, ct, axis=axis, reverse=not reverse),)


CUMSUM = composite(
    "cumsum", type=lambda x, *, axis, reverse: x, expand=_scan, vjp=_cumsum_vjp, jvp=multilinear, batch=shifted,
    identity=SUM.identity,
)  # fmt: skip


def _run(p: Primitive, x: Tensor, axis: int | None, **how: bool) -> Tensor:
    """Apply a running op along an axis, or to the flattened `x`. One element or none stay as they are."""
    x, axis = along(x, axis)
    return x if x.shape[axis] <= 1 else bind(p, x, axis=axis, **how)


@method
def cumsum(x: Operand, axis: int | None = None) -> Tensor:
    """Return the running sums of `x` along `axis`.

    out[k] = x[0] + ... + x[k]

    x:        f32, i32 or u32, any shape; bool counts as i32.
    axis:     None flattens `x` first.
    Returns:  the dtype of `x`, i32 for bool; the shape of `x`, or a vector for axis=None.
    Gradient: dx[k] = dy[k] + dy[k + 1] + ..., dy being the result's gradient.
    Raises:   ShapeError if `axis` is out of range.

    As numpy.cumsum and torch.cumsum.

    >>> tg.cumsum([1.0, 2.0, 3.0], axis=0)
    tensor([1., 3., 6.])
    """
    return _run(CUMSUM, number(x), axis, reverse=False)


def _around(x: Tensor, d: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Return for each k the product x[0] ... x[k - 1], and y[k + 1], where y[k] = d[k] + x[k] y[k + 1].

    Both are computed recursively on pairs of elements: y[k] = d[k] + x[k] d[k + 1] + x[k] x[k + 1] y[k + 2]. A small
    odd number of elements would need padding.
    """
    before, n, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    if n % 2 and n <= SCAN_WRITTEN_OUT:
        return _written_out(x, d, axis)
    pairs = -(-n // 2)
    paired = (*before, pairs, 2, *after)

    def sides(t: Tensor, neutral: int) -> list[Tensor]:
        whole = views.reshape(_placed(t, axis, 0, 2 * pairs, neutral), paired)
        return [views.reshape(views.slice_(whole, axis + 1, k, 1), (*before, pairs, *after)) for k in (0, 1)]

    (x0, x1), (d0, d1) = sides(x, 1), sides(d, 0)
    product, later = _around(x0 * x1, d0 + x0 * d1, axis)
    products, laters = stack([product, product * x0], axis + 1), stack([d1 + x1 * later, later], axis + 1)
    first, second = (
        views.slice_(views.reshape(t, (*before, 2 * pairs, *after)), axis, 0, n) for t in (products, laters)
    )
    return first, second


def _written_out(x: Tensor, d: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Return the results of `_around`, each element computed from its neighbour."""
    n = x.shape[axis]
    one = (*x.shape[:axis], *x.shape[axis + 1 :])
    xs, ds = ([views.reshape(views.slice_(t, axis, k, 1), one) for k in range(n)] for t in (x, d))
    products, laters = [views.broadcast_to(const(1.0), one)], [views.broadcast_to(const(0.0), one)]
    for k in range(n - 1):
        products.append(products[-1] * xs[k])
        laters.append(ds[-1 - k] + xs[-1 - k] * laters[-1])
    return stack(products, axis), stack(laters[::-1], axis)


def _cumprod_vjp(ct: Tensor, y: Tensor, x: Tensor, *, axis: int) -> tuple[Tensor]:
    """Return, for each k, x[0] ... x[k - 1] times the sum over i >= k of ct[i] x[k + 1] ... x[i].

    Nothing is divided, so the result is right also for zeros, in derivatives of every order.
    """
    product, later = _around(x, ct * x, axis)
    return (product * (ct + later),)


CUMPROD = composite(
    "cumprod", type=lambda x, *, axis: x, expand=partial(_scan, by=PRODUCTS), vjp=_cumprod_vjp, batch=shifted,
    identity=PROD.identity,
)  # fmt: skip


@method
def cumprod(x: Operand, axis: int | None = None) -> Tensor:
    """Return the running products of `x` along `axis`.

    out[k] = x[0] * ... * x[k]

    x:        f32, i32 or u32, any shape; bool counts as i32.
    axis:     None flattens `x` first.
    Returns:  the dtype of `x`, i32 for bool; the shape of `x`, or a vector for axis=None.
    Gradient: dx[k] = sum over i >= k of dy[i] * (product of x[0] to x[i] without x[k]), dy being the result's gradient.
              Zeros in `x` do no harm, because nothing is divided by `x`.
    Raises:   ShapeError if `axis` is out of range.

    As numpy.cumprod and torch.cumprod.

    >>> tg.cumprod([1.0, 2.0, 0.0, 4.0])
    tensor([1., 2., 0., 0.])
    """
    return _run(CUMPROD, number(x), axis)


def _extrema_vjp(ct: Tensor, y: Tensor, x: Tensor, *, axis: int) -> tuple[Tensor]:
    """Send the cotangent of each y[k] to the last x[i] with i <= k that equals y[k], or is NaN."""
    places = where((x == y) | isnan(x), iota(x.shape, axis), 0)
    return (scatter_along(ct, bind(CUMMAX, places, axis=axis), axis, x.shape[axis]),)


def _extrema(name: str, fold: Primitive) -> Primitive:
    def expand(x: Tensor, *, axis: int) -> Tensor:
        return _scan(x, axis, by=_running(fold, x.dtype))

    rules: dict[str, Any] = {"vjp": _extrema_vjp, "batch": shifted, "identity": fold.identity}
    return composite(name, type=lambda x, *, axis: x, expand=expand, **rules)


CUMMAX, CUMMIN = _extrema("cummax", MAX), _extrema("cummin", MIN)


@method
def cummax(x: Operand, axis: int | None = None) -> Tensor:
    """Return the largest elements of `x` so far along `axis`.

    out[k] = max(x[0], ..., x[k]); NaN from the first NaN on

    x:        f32, i32 or u32, any shape; bool counts as i32.
    axis:     None flattens `x` first.
    Returns:  the dtype of `x`, i32 for bool; the shape of `x`, or a vector for axis=None. Values only: torch.cummax
              returns indices too.
    Gradient: that of each out[k] to the last x[i] with i <= k that equals it, as in PyTorch.
    Raises:   ShapeError if `axis` is out of range.

    As numpy.maximum.accumulate, jax.lax.cummax and torch.cummax(x, axis).values.

    >>> tg.cummax([1.0, 3.0, 2.0, 4.0])
    tensor([1., 3., 3., 4.])
    """
    return _run(CUMMAX, number(x), axis)


@method
def cummin(x: Operand, axis: int | None = None) -> Tensor:
    """Return the smallest elements of `x` so far along `axis`.

    out[k] = min(x[0], ..., x[k]); NaN from the first NaN on

    x:        f32, i32 or u32, any shape; bool counts as i32.
    axis:     None flattens `x` first.
    Returns:  the dtype of `x`, i32 for bool; the shape of `x`, or a vector for axis=None. Values only: torch.cummin
              returns indices too.
    Gradient: that of each out[k] to the last x[i] with i <= k that equals it, as in PyTorch.
    Raises:   ShapeError if `axis` is out of range.

    As numpy.minimum.accumulate, jax.lax.cummin and torch.cummin(x, axis).values.

    >>> tg.cummin([3.0, 1.0, 2.0, 0.0])
    tensor([3., 1., 1., 0.])
    """
    return _run(CUMMIN, number(x), axis)


@method
def logcumsumexp(x: Operand, axis: int | None = None) -> Tensor:
    """Return the logarithms of the running sums of exp(x) along `axis`. No exp overflows, and no sum vanishes.

    out[k] = log(exp(x[0]) + ... + exp(x[k]))

    x:        f32, any shape.
    axis:     None flattens `x` first.
    Returns:  f32; the shape of `x`, or a vector for axis=None.
    Gradient: dx[k] = sum over i >= k of dy[i] * exp(x[k] - out[i]), dy being the result's gradient; 0 where x[k] is
              -inf.
    Raises:   DTypeError if `x` is not f32; ShapeError if `axis` is out of range.

    As torch.logcumsumexp. The Cox model of survival (1972) needs such sums: with x sorted from the longest time to the
    shortest, the loss of each event is out - x.

    >>> tg.logcumsumexp([0.0, 0.0, 1000.0])
    tensor([0.0000000e+00, 6.9314718e-01, 1.0000000e+03])
    """
    x, axis = along(as_tensor(x), axis)
    float_type(x.type)
    return x if x.shape[axis] <= 1 else _scan(x, axis, by=LOG_SUMS)


def _operands(x: Operand, segments: Operand, n: int) -> tuple[Tensor, Tensor, int]:
    x, n = as_tensor(x), count(n, "n")
    at = indices_for(segments, n, "segments")
    if not x.ndim or at.shape != x.shape[:1]:
        raise ShapeError(f"segments must be one for each slice of x along axis 0: x is {x.type}, segments {at.type}")
    return x, at, n


@op
def segment_sum(x: Operand, segments: Operand, n: int) -> Tensor:
    """Sum the slices of `x` along axis 0 that belong to the same segment.

    out[s] = sum of x[k] over all k with segments[k] = s; 0 for a segment without slices

    x:        f32, i32 or u32, rank 1 or more. Slice k is x[k].
    segments: i32 of rank 1: the segment of each slice, from 0 to n - 1, in any order. Other numbers, also negative
              ones, raise IndexError; an input with one fails the run. Numbers that a program computes are clamped.
    n:        the number of segments.
    Returns:  the dtype of `x`, [n, *x.shape[1:]]. Slices are added in their order, so each run gives the same bits.
    Gradient: to each slice, the result's gradient at its segment; none to `segments`.
    Raises:   ShapeError unless `segments` has one number for each slice; DTypeError if `x` is bool or `segments` not
              i32. For a number out of range, see `segments`.

    As jax.ops.segment_sum, and torch.zeros(n, *x.shape[1:]).index_add(0, segments, x).

    >>> tg.segment_sum([[1.0, 10.0], [2.0, 20.0], [4.0, 40.0]], [0, 1, 0], 2)
    tensor([[ 5., 50.],
            [ 2., 20.]])
    """
    x, at, n = _operands(x, segments, n)
    zeros = views.broadcast_to(const(0, x.dtype), (n, *x.shape[1:]))
    return scatter_add(zeros, at, x)


@op
def segment_max(x: Operand, segments: Operand, n: int) -> Tensor:
    """Return the largest elements among the slices of `x` along axis 0 that belong to the same segment.

    out[s, ...] = max of x[k, ...] over all k with segments[k] = s; -inf for a segment without slices, and NaN if one
    of these x[k, ...] is NaN

    x:        f32, rank 1 or more. Slice k is x[k].
    segments: i32 of rank 1: the segment of each slice, from 0 to n - 1, in any order. Other numbers, also negative
              ones, raise IndexError; an input with one fails the run. Numbers that a program computes are clamped.
    n:        the number of segments.
    Returns:  f32, [n, *x.shape[1:]].
    Gradient: to the largest element of each segment; tied elements share it evenly. For a result of NaN, NaN to all
              elements of the segment. None to `segments`.
    Raises:   ShapeError unless `segments` has one number for each slice; DTypeError if `x` is not f32 or `segments` not
              i32. For a number out of range, see `segments`.

    As jax.ops.segment_max. torch.scatter_reduce(..., "amax", include_self=False) leaves empty segments as they were.

    >>> tg.segment_max([1.0, 2.0, 4.0], [0, 1, 0], 3)
    tensor([  4.,   2., -inf])
    """
    x, at, n = _operands(x, segments, n)
    float_type(x.type)
    each = views.broadcast_to(views.reshape(at, (x.shape[0], *[1] * (x.ndim - 1))), x.shape)
    return bind(SCATTER_MAX, x, each, axis=0, length=n)


@op
def segment_softmax(x: Operand, segments: Operand, n: int) -> Tensor:
    """Return the softmax of `x` among the slices along axis 0 that belong to the same segment.

    out[k] = exp(x[k] - m) / sum of exp(x[j] - m) over all j with segments[j] = segments[k], m the largest such x[j]

    A graph attention network (Velickovic et al. 2018) weights its edges this way: x[k] is the score of edge k, and
    segments[k] the node at its end.

    x:        f32, rank 1 or more. Slice k is x[k].
    segments: i32 of rank 1: the segment of each slice, from 0 to n - 1, in any order. Other numbers, also negative
              ones, raise IndexError; an input with one fails the run. Numbers that a program computes are clamped.
    n:        the number of segments.
    Returns:  f32, the shape of `x`. Each segment sums to 1. A segment is NaN if all its scores are -inf, or one is inf
              or NaN.
    Gradient: out * (dy - sum of dy * out over the segment), dy the result's gradient; none to `segments`.
    Raises:   ShapeError unless `segments` has one number for each slice; DTypeError if `x` is not f32 or `segments` not
              i32. For a number out of range, see `segments`.

    As softmax(x, segments, num_nodes=n) of PyTorch Geometric.

    >>> tg.segment_softmax([0.0, 3.0, 0.0], [0, 1, 0], 2)
    tensor([0.5, 1. , 0.5])
    """
    x, at, n = _operands(x, segments, n)
    highest = stop_gradient(segment_max(x, at, n))
    e = exp(x - take(highest, at, 0))
    return e / take(segment_sum(e, at, n), at, 0)
