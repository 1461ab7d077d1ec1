"""The largest and the smallest element over axes, and their positions."""

from __future__ import annotations

from collections.abc import Sequence

from tracegrad.dtypes import Axes, normalize_axes, reduced_shape
from tracegrad.errors import DTypeError, ShapeError
from tracegrad.ir.nodes import Primitive, Tensor
from tracegrad.methods import Operand, method
from tracegrad.prims import views
from tracegrad.prims.elementwise import isnan, where
from tracegrad.prims.folds import MAX, MIN, count, folded
from tracegrad.prims.leaves import as_tensor, iota

__all__ = ["argmax", "argmin", "max", "min"]


def _extremum(p: Primitive, x: Operand, axis: Axes, keepdims: bool) -> Tensor:
    x = as_tensor(x)
    axes = normalize_axes(axis, x.ndim)
    _require_elements(x, axes)
    if x.dtype.name == "bool":
        other = "any" if p is MAX else "all"
        raise DTypeError(f"takes numbers, got {x.type}; write tg.{other}, or cast with tg.cast(x, tg.i32)")
    return folded(p, x, axes, keepdims)


def _require_elements(x: Tensor, axes: Sequence[int]) -> None:
    if count(x, axes) == 0:
        raise ShapeError(f"{x.type} is empty along the axes {tuple(axes)}, so there is no element to choose")


@method
def max(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the largest element over `axis` (None: over all axes), without its index; NaN if one element is NaN.

    x:        f32, i32 or u32.
    axis:     an integer or a tuple of them.
    keepdims: True keeps these axes, with size 1.
    Returns:  the dtype of `x`, and its shape without the axes in `axis`.
    Gradient: to the largest element; tied elements share it evenly.
    Raises:   ShapeError if `axis` is out of range or has no elements; DTypeError if `x` is bool. As numpy.max and
              torch.amax.

    >>> tg.max([[1.0, 3.0], [2.0, 0.0]], axis=1)
    tensor([3., 2.])
    """
    return _extremum(MAX, x, axis, keepdims)


@method
def min(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the smallest element over `axis` (None: over all axes), without its index; NaN if one element is NaN.

    x:        f32, i32 or u32.
    axis:     an integer or a tuple of them.
    keepdims: True keeps these axes, with size 1.
    Returns:  the dtype of `x`, and its shape without the axes in `axis`.
    Gradient: to the smallest element; tied elements share it evenly.
    Raises:   ShapeError if `axis` is out of range or has no elements; DTypeError if `x` is bool. As numpy.min and
              torch.amin.

    >>> tg.min([[1.0, 3.0], [2.0, 0.0]], axis=1)
    tensor([1., 0.])
    """
    return _extremum(MIN, x, axis, keepdims)


def _position(p: Primitive, x: Operand, axis: Axes, keepdims: bool) -> Tensor:
    """Return the first position, among `axes` in row-major order, whose element is the extremum or NaN."""
    x = as_tensor(x)
    axes = normalize_axes(axis, x.ndim)
    _require_elements(x, axes)
    if x.dtype.name == "bool":  # a fold over one element would not ask
        raise DTypeError(f"takes numbers, got {x.type}; cast with tg.cast(x, tg.i32)")
    kept = [d for d in range(x.ndim) if d not in axes]
    n = count(x, axes)
    rows = views.reshape(views.permute(x, (*kept, *axes)), (*[x.shape[d] for d in kept], n))
    last = rows.ndim - 1
    at = iota(rows.shape, last)
    best = views.broadcast_to(folded(p, rows, (last,), keepdims=True), rows.shape)
    key = where(rows == best, at, n)
    if x.dtype.is_float:
        # NaN gets a negative key, because max of NaN differs between devices.
        key = where(isnan(rows), at - n, key)
    first = folded(MIN, key, (last,), keepdims=False)
    if x.dtype.is_float:
        first = where(first < 0, first + n, first)
    return views.reshape(first, reduced_shape(x.shape, axes)) if keepdims else first


@method
def argmax(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the index of the largest element along `axis` (None: in the flattened `x`).

    x:        f32, i32 or u32.
    axis:     an integer, or a tuple of axes that count as one flattened axis.
    keepdims: True keeps these axes, with size 1.
    Returns:  i32, the shape of `x` without the axes in `axis`. At a tie it is the first index. If an element is NaN, it
              is the index of the first NaN, as in NumPy.
    Gradient: none.
    Raises:   ShapeError if `axis` is out of range or has no elements; DTypeError if `x` is bool. As numpy.argmax and
              torch.argmax.

    >>> tg.argmax([[1.0, 3.0, 2.0]], axis=-1)
    tensor([1], dtype=i32)
    """
    return _position(MAX, x, axis, keepdims)


@method
def argmin(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return the index of the smallest element along `axis` (None: in the flattened `x`).

    x:        f32, i32 or u32.
    axis:     an integer, or a tuple of axes that count as one flattened axis.
    keepdims: True keeps these axes, with size 1.
    Returns:  i32, the shape of `x` without the axes in `axis`. At a tie it is the first index. If an element is NaN, it
              is the index of the first NaN, as in NumPy.
    Gradient: none.
    Raises:   ShapeError if `axis` is out of range or has no elements; DTypeError if `x` is bool. As numpy.argmin and
              torch.argmin.

    >>> tg.argmin([[1.0, 3.0, 2.0]], axis=-1)
    tensor([0], dtype=i32)
    """
    return _position(MIN, x, axis, keepdims)
