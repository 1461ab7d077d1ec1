"""Ops that move elements and compute nothing. The compiler folds them into the indices of their readers."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

from tracegrad.dtypes import (
    Axes,
    Shape,
    bool_,
    count,
    integer,
    integers,
    normalize_axes,
    normalize_axis,
    resolve_reshape,
    show,
    whole,
)
from tracegrad.errors import DTypeError, ShapeError
from tracegrad.ir.nodes import Tensor
from tracegrad.methods import Operand, TensorMethods, method
from tracegrad.prims import views
from tracegrad.prims.elementwise import where
from tracegrad.prims.leaves import as_tensor, const, unboxed
from tracegrad.refusals import shown

__all__ = [
    "broadcast_to", "expand_dims", "flatten", "flip", "narrow", "pad", "permute", "repeat", "reshape", "squeeze",
    "swapaxes", "transpose",
]  # fmt: skip


def shape_of(shape: Any) -> Shape:
    """Return `shape` as a tuple. One integer means one axis."""
    return integers(shape, "a size")


def sizes_of(shape: Any) -> Shape:
    """Return the shape of a new tensor as a tuple. Raises ShapeError for a negative size."""
    dims = shape_of(shape)
    if any(n < 0 for n in dims):
        raise ShapeError(f"a size must not be negative, got {show(dims)}")
    return dims


@method
def reshape(x: Operand, shape: int | Sequence[int]) -> Tensor:
    """Give `x` another shape; the elements keep their row-major order.

    x:        any dtype.
    shape:    an integer or integers. One of them can be -1: it becomes the size that is left.
    Returns:  dtype of `x`, the given shape.
    Gradient: the result's gradient, reshaped back.
    Raises:   ShapeError if the numbers of elements differ, or for more than one -1.

    As numpy.reshape and torch.reshape.

    >>> tg.reshape([1.0, 2.0, 3.0, 4.0], (2, -1))
    tensor([[1., 2.],
            [3., 4.]])
    """
    x = as_tensor(x)
    return views.reshape(x, resolve_reshape(shape_of(shape), x.size))


@method
def flatten(x: Operand, start_axis: int = 1) -> Tensor:
    """Merge the axes of `x` from `start_axis` on into one: [B, C, H, W] becomes [B, C*H*W].

    x:          any dtype.
    start_axis: the first axis to merge. The default, 1, keeps the batch axis; PyTorch's default is 0.
    Returns:    dtype of `x`, with one axis in place of those merged.
    Gradient:   the result's gradient, reshaped back.
    Raises:     ShapeError if `start_axis` is out of range, for example 1 for a vector.

    As torch.flatten, without `end_dim`.

    >>> tg.flatten(tg.zeros((2, 3, 4))).shape
    (2, 12)
    """
    x = as_tensor(x)
    axis = normalize_axis(start_axis, builtins.max(x.ndim, 1))
    n = 1
    for m in x.shape[axis:]:
        n *= m
    return views.reshape(x, (*x.shape[:axis], n))


@method
def permute(x: Operand, axes: Sequence[int]) -> Tensor:
    """Reorder the axes of `x`: axis `d` of the result is axis `axes[d]` of `x`.

    x:        any dtype.
    axes:     every axis of `x` once; negative ones count from the end.
    Returns:  dtype of `x`; axis `d` has the size of axis `axes[d]` of `x`.
    Gradient: the result's gradient, with the axes in their old order.
    Raises:   ShapeError unless `axes` names every axis once.

    As numpy.transpose and torch.permute.

    >>> tg.permute(tg.zeros((2, 3, 4)), (2, 0, 1)).shape
    (4, 2, 3)
    """
    x = as_tensor(x)
    order = tuple([normalize_axis(a, x.ndim) for a in integers(axes, "axis")])
    if sorted(order) != list(range(x.ndim)):
        raise ShapeError(
            f"axes {order} do not name each of the {x.ndim} axes of {x.type} once; to swap two axes, use swapaxes"
        )
    return views.permute(x, order)


@method
def transpose(x: Operand, axes: Sequence[int] | None = None) -> Tensor:
    """Reverse the axes of `x`, or put them in the order of `axes`.

    x:        any dtype.
    axes:     every axis of `x` once, as for `permute`; None reverses them.
    Returns:  dtype of `x`, with the axes in the new order.
    Gradient: the result's gradient, with the axes in their old order.
    Raises:   ShapeError unless `axes` names every axis once.

    As numpy.transpose. torch.transpose exchanges two axes, as `swapaxes` does here.

    >>> tg.transpose([[1.0, 2.0], [3.0, 4.0]])
    tensor([[1., 3.],
            [2., 4.]])
    """
    x = as_tensor(x)
    return permute(x, tuple(reversed(range(x.ndim))) if axes is None else axes)


@method
def swapaxes(x: Operand, a: int, b: int) -> Tensor:
    """Exchange axes `a` and `b` of `x`.

    x:        any dtype.
    a, b:     integers; negative ones count from the end.
    Returns:  dtype of `x`, with the two axes exchanged.
    Gradient: the result's gradient, with the axes exchanged back.
    Raises:   ShapeError if an axis is out of range.

    As numpy.swapaxes and torch.swapaxes.

    >>> tg.swapaxes(tg.zeros((2, 3, 4)), 0, 2).shape
    (4, 3, 2)
    """
    x = as_tensor(x)
    a, b = normalize_axis(a, x.ndim), normalize_axis(b, x.ndim)
    order = list(range(x.ndim))
    order[a], order[b] = b, a
    return views.permute(x, order)


@method
def broadcast_to(x: Operand, shape: int | Sequence[int]) -> Tensor:
    """Repeat `x` along new leading axes and along axes of size 1, until it has the given shape.

    x:        any dtype.
    shape:    an integer or integers.
    Returns:  dtype of `x`, the given shape.
    Gradient: the result's gradient, summed over the repeated axes.
    Raises:   ShapeError unless each size of `x`, counted from the last axis, is 1 or the size in `shape`.

    As numpy.broadcast_to and torch.broadcast_to.

    >>> tg.broadcast_to([1.0, 2.0], (2, 2))
    tensor([[1., 2.],
            [1., 2.]])
    """
    x, target = as_tensor(x), sizes_of(shape)
    padded = (1,) * (len(target) - x.ndim) + x.shape
    if len(padded) != len(target) or any(n not in (1, m) for n, m in zip(padded, target)):
        raise ShapeError(
            f"cannot broadcast {x.type} to {show(target)}; matched from the last axis, sizes must be equal or 1"
        )
    return views.broadcast_to(x, target)


@method
def expand_dims(x: Operand, axis: int | Sequence[int]) -> Tensor:
    """Insert axes of size 1 into `x`.

    x:        any dtype.
    axis:     an integer or a tuple of them: the positions of the new axes in the result; -1 is the last.
    Returns:  dtype of `x`, its shape with the new axes.
    Gradient: the result's gradient, without these axes.
    Raises:   ShapeError if `axis` is out of range, or has a position twice.

    As numpy.expand_dims and torch.unsqueeze.

    >>> tg.expand_dims(tg.zeros((2, 3)), 1).shape
    (2, 1, 3)
    """
    x = as_tensor(x)
    axes = integers(axis, "axis")
    ndim = x.ndim + len(axes)
    new = normalize_axes(axes, ndim)
    old = iter(x.shape)
    return views.reshape(x, tuple([1 if d in new else next(old) for d in range(ndim)]))


@method
def squeeze(x: Operand, axis: Axes = None) -> Tensor:
    """Remove axes of size 1 from `x`.

    x:        any dtype.
    axis:     an integer or a tuple of them: the axes to remove. None removes every axis of size 1.
    Returns:  dtype of `x`, its shape without these axes.
    Gradient: the result's gradient, with these axes again.
    Raises:   ShapeError if a given axis is out of range or its size is not 1; PyTorch leaves such an axis as it is.

    As numpy.squeeze and torch.squeeze.

    >>> tg.squeeze(tg.zeros((2, 1, 3)), 1).shape
    (2, 3)
    """
    x = as_tensor(x)
    axes = normalize_axes(axis, x.ndim)
    if axis is None:
        axes = tuple([d for d in axes if x.shape[d] == 1])
    for d in axes:
        if x.shape[d] != 1:
            raise ShapeError(
                f"axis {d} of {x.type} has size {x.shape[d]}; only axes of size 1 can be removed; "
                "write x[:, 0] to pick an element"
            )
    return views.reshape(x, tuple([n for d, n in enumerate(x.shape) if d not in axes]))


@method
def narrow(x: Operand, axis: int, start: int, length: int) -> Tensor:
    """Return `length` elements of `axis` from `start` on: x[..., start:start+length, ...].

    x:        any dtype.
    axis:     an integer; a negative one counts from the last axis.
    start:    the first element; a negative one counts from the end of the axis.
    length:   the number of elements.
    Returns:  dtype of `x`, its shape with the size `length` along `axis`.
    Gradient: the result's gradient at these elements, 0 elsewhere.
    Raises:   ShapeError if the range leaves the axis, where x[start:stop] would return fewer elements.

    As torch.narrow.

    >>> tg.narrow([1.0, 2.0, 3.0, 4.0], 0, 1, 2)
    tensor([2., 3.])
    """
    x = as_tensor(x)
    axis = normalize_axis(axis, x.ndim)
    n, start, length = x.shape[axis], integer(start, "start"), integer(length, "length")
    first = start + n if start < 0 else start
    if length < 0 or first < 0 or first + length > n:
        raise ShapeError(
            f"elements {start} to {start + length} are outside axis {axis} of {x.type}; give axis, start and length"
        )
    return views.slice_(x, axis, first, length)


@method
def flip(x: Operand, axis: Axes = None) -> Tensor:
    """Reverse the order of the elements of `x` along `axis`.

    x:        any dtype.
    axis:     an integer or a tuple of them; None means every axis.
    Returns:  dtype and shape of `x`.
    Gradient: the result's gradient, flipped back.
    Raises:   ShapeError if `axis` is out of range.

    As numpy.flip and torch.flip.

    >>> tg.flip([1.0, 2.0, 3.0], 0)
    tensor([3., 2., 1.])
    """
    x = as_tensor(x)
    for d in normalize_axes(axis, x.ndim):
        if x.shape[d] > 1:
            x = views.slice_(x, d, x.shape[d] - 1, x.shape[d], -1)
    return x


@method
def repeat(x: Operand, repeats: int, axis: int | None = None) -> Tensor:
    """Repeat each element `repeats` times in a row along `axis` (None: of the flattened `x`), as numpy.repeat.

    Any dtype, any shape. Gradient: the sum over the copies. Raises ShapeError for a negative `repeats`.
    """
    x, repeats = as_tensor(x), count(repeats, "repeats")
    x, axis = along(x, axis)
    before, n, after = x.shape[:axis], x.shape[axis], x.shape[axis + 1 :]
    spread = views.broadcast_to(views.reshape(x, (*before, n, 1, *after)), (*before, n, repeats, *after))
    return views.reshape(spread, (*before, n * repeats, *after))


def along(x: Tensor, axis: int | None) -> tuple[Tensor, int]:
    """Return `x` and its axis, counted from the front; for None the flattened `x`, and 0."""
    x = x if axis is not None else views.reshape(x, (x.type.size,))
    return x, normalize_axis(0 if axis is None else axis, x.ndim)


def _pad_widths(widths: Any, ndim: int) -> list[tuple[int, int]]:
    """Return one (before, after) per axis, from any form that numpy.pad takes."""
    n = whole(widths)
    if n is not None:
        return [(n, n)] * ndim
    sides = [integers(w, "a width") for w in widths] if hasattr(widths, "__iter__") else [integers(widths, "a width")]
    if len(sides) == 2 and all(whole(w) is not None for w in widths):
        return [(sides[0][0], sides[1][0])] * ndim
    if len(sides) != ndim or any(len(w) not in (1, 2) for w in sides):
        raise ShapeError(
            f"pad widths {widths} are not one (before, after) for each of {ndim} axes, as ((0, 0), (1, 1)) is for two"
        )
    return [(w[0], w[-1]) for w in sides]


@method
def pad(x: Operand, widths: int | Sequence[Any], value: Operand = 0) -> Tensor:
    """Surround `x` with `value`.

    x:        any dtype.
    widths:   an integer for every side of every axis; or (before, after) for every axis; or one such pair per axis.
    value:    a number that the dtype of `x` can hold, or a tensor of rank 0.
    Returns:  dtype of `x`; each axis is longer by its two widths.
    Gradient: the result's gradient, without the padding; to a tensor `value`, its sum over the padding.
    Raises:   ShapeError for widths below 0 or of another form than these, and for a `value` with axes.
              DTypeError for another `value`.

    As numpy.pad with mode "constant". torch.nn.functional.pad takes the widths flat, the last axis first.

    >>> tg.pad([1.0, 2.0], (1, 2), 9.0)
    tensor([9., 1., 2., 9., 9.])
    """
    x = as_tensor(x)
    pairs = _pad_widths(widths, x.ndim)
    if any(w < 0 for pair in pairs for w in pair):
        raise ShapeError(f"pad widths must not be negative, got {widths}; to cut, write x[a:b]")
    given: Any = unboxed(value)
    if not isinstance(given, (bool, int, float, TensorMethods)):
        hint = "for a mode of np.pad, take elements by their indices: tg.take(x, np.pad(np.arange(n), 1, mode), axis)"
        raise DTypeError(f"value must be a number, got {shown(value)}{f'; {hint}' if isinstance(value, str) else ''}")
    if isinstance(given, TensorMethods) and given.ndim:
        raise ShapeError(f"value must be a number or have rank 0, got {given.type}")
    inside = views.broadcast_to(const(True, bool_), x.shape)
    padded = x
    for axis, (before, after) in enumerate(pairs):
        n = before + x.shape[axis] + after
        padded, inside = views.place(padded, axis, before, n), views.place(inside, axis, before, n)
    zero = not isinstance(given, TensorMethods) and given == 0
    return padded if zero or padded is x else where(inside, padded, given)
