"""Arrays joined along an axis, and cut into parts."""

from __future__ import annotations

import builtins
from collections.abc import Sequence
from typing import Any

from tracegrad.dtypes import Axes, TensorType, all_of, integers, normalize_axis, whole
from tracegrad.errors import DTypeError, ShapeError
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.methods import Operand, method, op
from tracegrad.ops.shaping import expand_dims
from tracegrad.prims import views
from tracegrad.prims.elementwise import where
from tracegrad.prims.folds import offsets
from tracegrad.prims.leaves import as_tensor, as_tensors, iota
from tracegrad.prims.maps import composite
from tracegrad.prims.rules import linear, shifted

__all__ = ["concat", "roll", "split", "stack"]


def _concat_type(*types: TensorType, axis: int) -> TensorType:
    first = types[0]
    if any(t.dtype != first.dtype for t in types):
        raise DTypeError(f"dtypes differ: {all_of(types)}; cast one with tg.cast(x, dtype)")
    rests = [(*t.shape[:axis], *t.shape[axis + 1 :]) for t in types]
    if any(rest != rests[0] for rest in rests) or any(t.ndim != first.ndim for t in types):
        raise ShapeError(f"shapes may differ on axis {axis} only: {all_of(types)}; choose another axis, or reshape one")
    n = builtins.sum(t.shape[axis] for t in types)
    return TensorType(first.dtype, (*first.shape[:axis], n, *first.shape[axis + 1 :]))


def _concat(*xs: Tensor, axis: int) -> Tensor:
    """Pad each input with zeros to the size of the result, and select by position. A balanced tree of selections."""
    parts = [x for x in xs if x.shape[axis]] or [xs[0]]
    starts = offsets([x.shape[axis] for x in parts])
    n = starts[-1] + parts[-1].shape[axis]

    def join(lo: int, hi: int) -> Tensor:
        if hi - lo == 1:
            return views.place(parts[lo], axis, starts[lo], n)
        middle = (lo + hi) // 2
        left, right = join(lo, middle), join(middle, hi)
        return where(iota(left.shape, axis) < starts[middle], left, right)

    return join(0, len(parts))


def _concat_vjp(ct: Tensor, y: Tensor, *xs: Tensor, axis: int) -> tuple[Tensor, ...]:
    sizes = [x.shape[axis] for x in xs]
    return tuple([views.slice_(ct, axis, at if n else 0, n) for at, n in zip(offsets(sizes), sizes)])


def _concat_xla(x: Any, t: Tensor, *parts: Any) -> Any:
    return x.np.concatenate(parts, t.attrs["axis"])


CONCAT = composite(
    "concat", type=_concat_type, expand=_concat, vjp=_concat_vjp, jvp=linear, batch=shifted, xla=_concat_xla
)


def _listed(xs: Sequence[Operand], axis: object, name: str) -> list[Tensor]:
    """Return the operands of `concat` or `stack` as tensors. Raises ShapeError unless they are in one list."""
    if isinstance(xs, Tensor) or getattr(axis, "shape", ()):
        raise ShapeError(f"pass the tensors in one list, as in tg.{name}([a, b], axis=0)")
    tensors = list(as_tensors(*xs))
    if not tensors:
        raise ShapeError("needs at least one tensor, got an empty list")
    return tensors


@op
def concat(xs: Sequence[Operand], axis: int = 0) -> Tensor:
    """Join tensors one after the other along an existing axis.

    xs:       a list of tensors of one dtype, with equal shapes but for `axis`.
    axis:     an axis of each; negative ones count from the end.
    Returns:  their dtype; on `axis`, the sum of their sizes.
    Gradient: to each tensor its part of the result's gradient.
    Raises:   ShapeError if shapes do not fit, `axis` is out of range or the list is empty; DTypeError if dtypes differ.

    As numpy.concatenate and torch.cat.

    >>> tg.concat([tg.zeros((1, 2)), tg.ones((1, 2))], axis=0)
    tensor([[0., 0.],
            [1., 1.]])
    """
    tensors = _listed(xs, axis, "concat")
    axis = normalize_axis(axis, tensors[0].ndim)
    return tensors[0] if len(tensors) == 1 else bind(CONCAT, *tensors, axis=axis)


@op
def stack(xs: Sequence[Operand], axis: int = 0) -> Tensor:
    """Join tensors of one shape along a new axis.

    xs:       a list of tensors of one dtype and shape.
    axis:     the place of the new axis in the result; negative ones count from the end.
    Returns:  their dtype and shape, with a new axis as long as the list.
    Gradient: to each tensor its slice of the result's gradient.
    Raises:   ShapeError if shapes differ, `axis` is out of range, or the list is empty; DTypeError if dtypes differ.

    As numpy.stack and torch.stack.

    >>> tg.stack([[1.0, 2.0], [3.0, 4.0]], axis=1)
    tensor([[1., 3.],
            [2., 4.]])
    """
    tensors = _listed(xs, axis, "stack")
    if any(x.shape != tensors[0].shape for x in tensors):
        shown = " and ".join(str(x.type) for x in tensors)
        raise ShapeError(f"shapes differ: {shown}; to join along an existing axis, use tg.concat")
    axis = normalize_axis(axis, tensors[0].ndim + 1)
    return concat([expand_dims(x, axis) for x in tensors], axis)


@method
def split(x: Operand, sizes: int | Sequence[int], axis: int = 0) -> list[Tensor]:
    """Cut `x` along `axis` into equal parts, or into parts of given sizes.

    x:        any dtype, rank 1 or more.
    sizes:    an integer: the number of equal parts, as in NumPy (PyTorch's integer is the size of a part). A sequence:
              the size of each part, as in PyTorch (NumPy's has the places of the cuts).
    axis:     an axis of `x`.
    Returns:  a list of tensors of the dtype of `x`.
    Gradient: the gradients of the parts, joined.
    Raises:   ShapeError if `axis` is out of range or does not divide into equal parts, or `sizes` do not add up to its
              size.

    As numpy.split(x, sizes) for an integer, and torch.split for a sequence.

    >>> tg.split([1.0, 2.0, 3.0, 4.0], 2)
    [tensor([1., 2.]), tensor([3., 4.])]
    >>> tg.split([1.0, 2.0, 3.0, 4.0], (1, 3))
    [tensor([1.]), tensor([2., 3., 4.])]
    """
    x = as_tensor(x)
    axis = normalize_axis(axis, x.ndim)
    n = x.shape[axis]
    count = whole(sizes)
    if count is not None:
        if count < 1 or n % count:
            raise ShapeError(
                f"axis {axis} of {x.type} does not divide into {count} equal parts; "
                "give the sizes of the parts, as in tg.split(x, (1, 2), axis)"
            )
        sizes = (n // count,) * count
    parts = integers(sizes, "a size")
    if builtins.sum(parts) != n or any(k < 0 for k in parts):
        raise ShapeError(
            f"the sizes {parts} add up to {builtins.sum(parts)}; they must add up to {n}, the size of axis {axis} "
            f"of {x.type}"
        )
    return [views.slice_(x, axis, at if k else 0, k) for at, k in zip(offsets(parts), parts)]


@method
def roll(x: Operand, shift: int | Sequence[int], axis: Axes = None) -> Tensor:
    """Move the elements of `x` along `axis` by `shift` places. Elements that leave at one end enter at the other.

    out[..., k, ...] = x[..., (k - shift) mod n, ...]

    x:        any dtype, shape (..., n, ...).
    shift:    the number of places, for every axis in `axis`; or a sequence with a number for each of these axes.
              Negative numbers move towards the front.
    axis:     an axis, or several; if one is named twice, its shifts add up. None rolls the flattened `x`, and restores
              its shape.
    Returns:  dtype and shape of `x`.
    Gradient: the result's gradient, rolled by -shift.
    Raises:   ShapeError if a sequence `shift` and `axis` differ in length, if a shift is not an integer, or if an axis
              is out of range.

    As numpy.roll and torch.roll.

    >>> tg.roll([1.0, 2.0, 3.0], 1)
    tensor([3., 1., 2.])
    """
    x = as_tensor(x)
    if axis is None:
        return views.reshape(roll(views.reshape(x, (x.type.size,)), shift, 0), x.shape)
    axes, count = [normalize_axis(a, x.ndim) for a in _each(axis)], whole(shift)
    shifts = (count,) * len(axes) if count is not None else integers(shift, "shift")
    if len(shifts) != len(axes):
        raise ShapeError(f"{len(shifts)} shifts for {len(axes)} axes of {x.type}; give one for each, or one for all")
    for k, d in zip(shifts, axes):
        x = _rolled(x, k, d)
    return x


def _each(axis: Any) -> tuple[int, ...]:
    return (axis,) if isinstance(axis, bool) else integers(axis, "axis")  # `normalize_axis` refuses True


def _rolled(x: Tensor, shift: int, axis: int) -> Tensor:
    n = x.shape[axis]
    at = n and shift % n
    if not at:
        return x
    ends = views.slice_(x, axis, n - at, at), views.slice_(x, axis, 0, n - at)
    return bind(CONCAT, *ends, axis=axis)
