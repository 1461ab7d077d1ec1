"""Reductions of slices that belong together, such as the edges that end at a node of a graph."""

from __future__ import annotations

from tracegrad.dtypes import count
from tracegrad.errors import ShapeError
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.methods import Operand, op
from tracegrad.ops.control import stop_gradient
from tracegrad.ops.indexing import indices_for, scatter_add, take
from tracegrad.prims import views
from tracegrad.prims.elementwise import exp
from tracegrad.prims.folds import SCATTER_MAX
from tracegrad.prims.leaves import as_tensor, const
from tracegrad.prims.maps import float_type

__all__ = ["segment_max", "segment_softmax", "segment_sum"]


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
    segments: i32 of rank 1: the segment of each slice, from 0 to n - 1, in any order. Others, also negative ones, raise
              errors or are clamped as for `take`.
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
    segments: i32 of rank 1: the segment of each slice, from 0 to n - 1, in any order. Others, also negative ones, raise
              errors or are clamped as for `take`.
    n:        the number of segments.
    Returns:  f32, [n, *x.shape[1:]].
    Gradient: to the largest element of each segment; tied elements share it evenly. For a result of NaN, NaN to all
              elements of the segment. None to `segments`.
    Raises:   ShapeError unless `segments` has one number for each slice; DTypeError if `x` is not f32 or `segments` not
              i32. For a number out of range, see `segments`.

    As jax.ops.segment_max; torch's scatter_reduce(..., "amax", include_self=False) leaves empty segments as they were.

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
    segments: i32 of rank 1: the segment of each slice, from 0 to n - 1, in any order. Others, also negative ones, raise
              errors or are clamped as for `take`.
    n:        the number of segments.
    Returns:  f32, the shape of `x`. Each segment sums to 1. If all scores of a segment are -inf, they become NaN.
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
