"""Primitives that only move elements. Each has a rule that maps an element of its result to the input's element.

`index(i, x, **attrs)` reads: "the element at `i` is the input's element at these coordinates, or 0 outside these
guards". Nothing else in the compiler knows about padding or strides.
"""

# The rules are lambdas, whose parameters cannot be annotated.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false
# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false

from __future__ import annotations

import math
from collections.abc import Sequence
from contextvars import ContextVar
from typing import Any, NamedTuple

from tracegrad.dtypes import Shape, TensorType, normalize_axis
from tracegrad.errors import ShapeError
from tracegrad.ir.nodes import Primitive, Tensor, bind, register
from tracegrad.methods import METHODS
from tracegrad.prims.leaves import iota
from tracegrad.prims.rules import Indexed, multilinear, shifted, spread


class Guard(NamedTuple):
    """A condition that holds if lo <= expr < hi and step divides expr."""

    expr: Any
    lo: int
    hi: int
    step: int = 1


def view(
    name: str,
    *,
    type: Any,
    array: Any,
    index: Any,
    vjp: Any,
    repeats: Any = None,
    jvp: Any = multilinear,
    batch: Any = shifted,
    xla: Any = None,
) -> Primitive:
    """Register one view. A view is linear, so its tangent is the view of the tangent."""
    rules = {"index": index, "repeats": repeats, "xla": xla}
    return register(Primitive(name, "view", type, array, vjp, jvp, batch, cost=0, **rules))


def _with(shape: Shape, axis: int, n: int) -> Shape:
    return (*shape[:axis], n, *shape[axis + 1 :])


def _check_reshape(x: TensorType, *, shape: Shape) -> TensorType:
    if math.prod(shape) != x.size:
        raise ShapeError(f"{x} has {x.size} elements, {shape} holds {math.prod(shape)}")
    return TensorType(x.dtype, shape)


RESHAPE = view(
    "reshape",
    type=_check_reshape,
    array="{0}.reshape({shape})",
    index=None,  # reshape has no rule: kernels.coordinates.regroup matches its coordinates group by group
    repeats=lambda x, y: 1,
    vjp=lambda ct, y, x, *, shape: (reshape(ct, x.shape),),
)

PERMUTE = view(
    "permute",
    type=lambda x, *, axes: TensorType(x.dtype, tuple(x.shape[a] for a in axes)),
    array="{0}.transpose({axes})",
    index=lambda i, x, *, axes: (tuple(i[axes.index(d)] for d in range(len(axes))), ()),
    vjp=lambda ct, y, x, *, axes: (permute(ct, tuple(axes.index(d) for d in range(len(axes)))),),
    batch=lambda n, y, x, *, axes: permute(x, (0, *[a + 1 for a in axes])),
)


def _broadcast_type(x: TensorType, *, shape: Shape) -> TensorType:
    if len(shape) != len(x.shape) or any(n not in (1, m) for n, m in zip(x.shape, shape)):
        raise ShapeError(f"cannot broadcast {x} to {shape}")
    return TensorType(x.dtype, shape)


def _broadcast_repeats(x: TensorType, y: TensorType) -> int | None:
    """Return how many copies of an element are adjacent: those along trailing axes. None if other copies exist."""
    factor = 1
    for n, m in zip(reversed(x.shape), reversed(y.shape)):
        if n != m:
            factor *= m
        elif n != 1:
            break
    return factor if x.size * factor == y.size else None


BROADCAST = view(
    "broadcast",
    type=_broadcast_type,
    array="xp.broadcast_to({0}, {shape})",
    index=lambda i, x, *, shape: (tuple(0 if n == 1 else k for k, n in zip(i, x.shape)), ()),
    repeats=_broadcast_repeats,
    vjp=lambda ct, y, x, *, shape: (
        ct.sum(tuple(d for d, (n, m) in enumerate(zip(x.shape, shape)) if n != m), keepdims=True),
    ),
)


def _slice_type(x: TensorType, *, axis: int, start: int, step: int, length: int) -> TensorType:
    last = start + step * (length - 1)
    if length < 0 or (length and not (0 <= start < x.shape[axis] and 0 <= last < x.shape[axis])):
        raise ShapeError(f"elements {start} to {last} of axis {axis} are outside {x}")
    return TensorType(x.dtype, _with(x.shape, axis, length))


def _span(*, axis: int, start: int, step: int, length: int) -> tuple[slice, ...]:
    stop = start + step * length
    # None, because a negative stop would count from the end
    return *[slice(None)] * axis, slice(start, stop if stop >= 0 else None, step)


# out[.., k, ..] = x[.., start + step*k, ..]; step may be negative
SLICE = view(
    "slice",
    type=_slice_type,
    array=Indexed(_span),
    index=lambda i, x, *, axis, start, step, length: (_with(i, axis, i[axis] * step + start), ()),
    vjp=lambda ct, y, x, *, axis, start, step, length: (place(ct, axis, start, x.shape[axis], step),),
)


def _place_type(x: TensorType, *, axis: int, start: int, step: int, length: int) -> TensorType:
    last = start + step * (x.shape[axis] - 1)
    if x.shape[axis] and not (0 <= start < length and 0 <= last < length):
        raise ShapeError(f"axis {axis} of {x} does not fit {length} elements from {start} to {last}")
    return TensorType(x.dtype, _with(x.shape, axis, length))


def _place_array(xp: Any, x: Any, *, axis: int, start: int, step: int, length: int) -> Any:
    out = xp.zeros(_with(x.shape, axis, length), x.dtype)
    at = _span(axis=axis, start=start, step=step, length=x.shape[axis])
    if hasattr(out, "at"):  # jax.numpy: immutable arrays
        return out.at[at].set(x)
    out[at] = x
    return out


def _place_index(i: Any, x: TensorType, *, axis: int, start: int, step: int, length: int) -> Any:
    steps = (i[axis] - start) if step > 0 else (i[axis] * -1 + start)
    span = (x.shape[axis] - 1) * abs(step) + 1
    return _with(i, axis, steps // abs(step)), (Guard(steps, 0, span, abs(step)),)


def _place_xla(x: Any, t: Tensor, values: Any) -> Any:
    axis, start, step, length = (t.attrs[k] for k in ("axis", "start", "step", "length"))
    n = values.shape[axis]
    if not n:
        return x.np.zeros(t.shape, values.dtype)
    first = min(start, start + step * (n - 1))
    around = (first, length - first - (n - 1) * abs(step) - 1, abs(step) - 1)
    values = x.np.flip(values, axis) if step < 0 else values
    return x.lax.pad(values, values.dtype.type(0), [around if d == axis else (0, 0, 0) for d in range(t.ndim)])


# out[.., start + step*k, ..] = x[.., k, ..], and 0 elsewhere; `length` is the size of the new axis
PLACE = view(
    "place",
    type=_place_type,
    array=_place_array,
    index=_place_index,
    xla=_place_xla,
    vjp=lambda ct, y, x, *, axis, start, step, length: (slice_(ct, axis, start, x.shape[axis], step),),
)


def window_count(n: int, size: int, stride: int, dilation: int) -> int:
    """Return how many windows fit: floor((n - dilation*(size-1) - 1) / stride) + 1."""
    return (n - dilation * (size - 1) - 1) // stride + 1


def _window_type(x: TensorType, *, axis: int, size: int, stride: int, dilation: int) -> TensorType:
    count = window_count(x.shape[axis], size, stride, dilation)
    if count < 1:
        raise ShapeError(f"a window of {size} (dilation {dilation}) does not fit axis {axis} of {x}")
    return TensorType(x.dtype, (*_with(x.shape, axis, count), size))


def _window_array(xp: Any, x: Any, *, axis: int, size: int, stride: int, dilation: int) -> Any:
    count = window_count(x.shape[axis], size, stride, dilation)
    at = xp.arange(count)[:, None] * stride + xp.arange(size)[None, :] * dilation
    return xp.moveaxis(xp.take(x, at, axis), axis + 1, -1)


def _window_xla(x: Any, t: Tensor, values: Any) -> Any:
    axis, stride, dilation = t.axis, t.attrs["stride"], t.attrs["dilation"]
    span = (t.shape[axis] - 1) * stride + 1
    starts = [k * dilation for k in range(t.attrs["size"])]
    return x.np.stack([x.lax.slice_in_dim(values, at, at + span, stride, axis) for at in starts], -1)


# out[.., o, .., k] = x[.., o*stride + k*dilation, ..]; the window becomes the last axis
WINDOW = view(
    "window",
    type=_window_type,
    array=_window_array,
    index=lambda i, x, *, axis, size, stride, dilation: (
        _with(i[:-1], axis, i[axis] * stride + i[-1] * dilation),
        (),
    ),
    xla=_window_xla,
    vjp=lambda ct, y, x, *, axis, size, stride, dilation: (
        reshape(unwindow(ct, axis, x.shape[axis], stride, dilation).sum(-1), x.shape),
    ),
)


def _unwindow_type(x: TensorType, *, axis: int, length: int, stride: int, dilation: int) -> TensorType:
    if x.size and (x.shape[axis] - 1) * stride + (x.shape[-1] - 1) * dilation >= length:
        raise ShapeError(f"windows of {x} along axis {axis} do not fit {length} elements")
    return TensorType(x.dtype, _with(x.shape, axis, length))


def _unwindow_array(xp: Any, x: Any, *, axis: int, length: int, stride: int, dilation: int) -> Any:
    parts = [
        _place_array(xp, x[..., k], axis=axis, start=k * dilation, step=stride, length=length)
        for k in range(x.shape[-1])
    ]
    return xp.stack(parts, -1)


def _unwindow_index(i: Any, x: TensorType, *, axis: int, length: int, stride: int, dilation: int) -> Any:
    steps = i[axis] + i[-1] * -dilation
    span = (x.shape[axis] - 1) * stride + 1
    return _with(i, axis, steps // stride), (Guard(steps, 0, span, stride),)


# The transpose of window before its sum: out[.., n, .., k] = x[.., o, .., k] where n = o*stride + k*dilation, else 0
UNWINDOW = view(
    "unwindow",
    type=_unwindow_type,
    array=_unwindow_array,
    index=_unwindow_index,
    vjp=lambda ct, y, x, *, axis, length, stride, dilation: (_rewindow(ct, axis, x.shape[axis], stride, dilation),),
)


def _rewindow(ct: Tensor, axis: int, count: int, stride: int, dilation: int) -> Tensor:
    """Return the transpose of unwindow: element k of each window, read from slice k of the last axis."""
    size = ct.shape[-1]
    windows = bind(WINDOW, ct, axis=axis, size=size, stride=stride, dilation=dilation)  # [.., o, .., k', k]
    windows = slice_(windows, axis, 0, count)
    ndim = windows.ndim
    own = iota(windows.shape, ndim - 2) == iota(windows.shape, ndim - 1)
    return METHODS["where"](own, windows, 0.0).sum(ndim - 2)


# `x`, available only after all of `after`. Nodes computed from it are never merged with nodes computed from `x` itself.
# Without this barrier, the compiler would replace a recomputation by the values of the forward pass, and keep them.
BARRIER = view(
    "barrier",
    type=lambda x, *after: x,
    array=lambda xp, x, *after: x,
    index=lambda i, x: (i, ()),
    repeats=lambda x, y: 1,
    xla=lambda x, t, value, *after: x.lax.optimization_barrier((value, *after))[0],  # as jax.checkpoint does
    vjp=lambda ct, y, x, *after: (ct, *[None for _ in after]),
    jvp=lambda ts, y, x, *after: None if ts[0] is None else bind(BARRIER, ts[0], *after),
    batch=lambda n, y, x, *after: bind(BARRIER, spread(n, x), *after),
)


# Functions for the layers above; all but `window` and `unwindow` return their input if nothing would change.
def reshape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return the same elements in row-major order under another shape."""
    shape = tuple(shape)
    if shape == x.shape:
        return x
    if x.prim is RESHAPE:
        return reshape(x.inputs[0], shape)
    return bind(RESHAPE, x, shape=shape)


def permute(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Return `x` with axis `axes[d]` moved to axis `d`."""
    axes = tuple(axes)
    return x if axes == tuple(range(x.ndim)) else bind(PERMUTE, x, axes=axes)


def moved(x: Tensor, a: int, b: int) -> Tensor:
    """Return `x` with axis `a` moved to `b`."""
    a, b = normalize_axis(a, x.ndim), normalize_axis(b, x.ndim)
    order = [d for d in range(x.ndim) if d != a]
    return permute(x, (*order[:b], a, *order[b:]))


def broadcast_to(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return `x` repeated along new leading axes and along axes of size 1.

    Raises ShapeError if `shape` has fewer dimensions, or another size on an axis that is not repeated.
    """
    shape = tuple(shape)
    if shape == x.shape:
        return x
    if len(shape) < x.ndim:
        raise ShapeError(f"cannot broadcast {x.type} to fewer dimensions, {shape}")
    padded = reshape(x, (1,) * (len(shape) - x.ndim) + x.shape)
    return padded if padded.shape == shape else bind(BROADCAST, padded, shape=shape)


# True in a trace for many sizes. Views that change nothing at its sizes stay, because they can at others
for_many_sizes: ContextVar[bool] = ContextVar("for_many_sizes", default=False)


def unmoved(x: Tensor, axis: int, start: int, length: int, step: int) -> bool:
    """Return whether a slice or place gives `x` itself."""
    return (start, step, length) == (0, 1, x.shape[axis])


def slice_(x: Tensor, axis: int, start: int, length: int, step: int = 1) -> Tensor:
    """Return `length` elements of `axis`, from `start` in steps of `step`."""
    if not for_many_sizes.get():
        step = step if length > 1 else 1
        if unmoved(x, axis, start, length, step):
            return x
    return bind(SLICE, x, axis=axis, start=start, step=step, length=length)


def place(x: Tensor, axis: int, start: int, length: int, step: int = 1) -> Tensor:
    """Return zeros of size `length` along `axis`, with `x` at `start`, `start + step`, ..."""
    if not for_many_sizes.get() and unmoved(x, axis, start, length, step):
        return x
    return bind(PLACE, x, axis=axis, start=start, step=step, length=length)


def window(x: Tensor, axis: int, size: int, stride: int = 1, dilation: int = 1) -> Tensor:
    """Return sliding windows along `axis`, as a new last axis."""
    return bind(WINDOW, x, axis=axis, size=size, stride=stride, dilation=dilation)


def unwindow(x: Tensor, axis: int, length: int, stride: int = 1, dilation: int = 1) -> Tensor:
    """Move window elements to the positions they were read from. A sum over the last axis then transposes `window`."""
    return bind(UNWINDOW, x, axis=axis, length=length, stride=stride, dilation=dilation)
