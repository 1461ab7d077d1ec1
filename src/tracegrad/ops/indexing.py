"""Selecting elements by Python's index syntax and by tensors of indices."""

from __future__ import annotations

import math
import operator
import warnings
from typing import Any, cast

from tracegrad.dtypes import DType, as_dtype, count, f32, i32, integer, nearest_f32, normalize_axis, whole
from tracegrad.errors import ConstantIndexError, DTypeError, InputError, ShapeError, call_site
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.methods import Operand, entered, method, op
from tracegrad.ops.indices import classes_for, indices_for
from tracegrad.ops.shaping import along
from tracegrad.prims import views
from tracegrad.prims.elementwise import cast as cast_
from tracegrad.prims.folds import GATHER, SCATTER_ADD
from tracegrad.prims.leaves import as_tensor, as_tensors, fitting, iota, listed, literal, unboxed
from tracegrad.prims.maps import broadcast
from tracegrad.refusals import valid

__all__ = ["arange", "embedding", "one_hot", "scatter_add", "take", "take_along_axis"]


@entered
def getitem(x: Operand, key: Any) -> Tensor:
    """Return `x[key]`, as NumPy and PyTorch index.

    x:        any dtype.
    key:      integers, slices with any step, None, Ellipsis, and arrays of integers (i32). Booleans are not indices.
              An array selects along its axis, and its own axes replace that axis. Several arrays broadcast against each
              other and select together: x[i, j][k] = x[i[k], j[k]]. Their axes replace those of `x`, or come first if
              other axes lie between, as in PyTorch. The range and errors of the arrays are those of `take`.
              Integers select before arrays, as in PyTorch: x[0, :, [1, 2]] is x[0][:, [1, 2]]. NumPy takes the
              integer for an array, and its result is transposed.
    Returns:  dtype of `x`.
    Gradient: the result's gradient at the elements read, summed where an index repeats; 0 elsewhere.
    Raises:   IndexError for an integer out of range; ShapeError for more indices than axes; DTypeError for booleans and
              floats. For an array with indices out of range, see `take`.

    As torch.Tensor.__getitem__, and numpy.ndarray.__getitem__ but for integers beside arrays.

    >>> x = tg.tensor([[1.0, 2.0], [3.0, 4.0]])
    >>> x[[0, 1], [1, 0]]                          # x[0, 1] and x[1, 0]
    tensor([2., 3.])
    """
    x = as_tensor(x)
    _warn_of_pair(x, key)
    keys = _explicit(x, cast("tuple[Any, ...]", key) if isinstance(key, tuple) else (key,))
    shape: list[int] = []
    arrays: list[tuple[int, Any]] = []  # (axis of the result before they select, indices)
    axis = 0
    for k in keys:
        if k is None:
            shape.append(1)
            continue
        n = x.shape[axis]
        if isinstance(k, slice):
            start, n, step = _span(cast("Any", k), n)
            x = views.slice_(x, axis, start if n else 0, n, step)
            shape.append(n)
        elif isinstance(k, bool):
            raise DTypeError(f"True and False cannot be indices; use x[None] for a new axis of {x.type}")
        elif not isinstance(k, Tensor) and not getattr(k, "shape", ()) and (at := whole(k)) is not None:
            x = views.slice_(x, axis, _in_range(at, n, axis, x), 1)
        elif isinstance(k, (float, str)):
            raise DTypeError(f"indices must be integers, slices, None or arrays of i32, got {k!r}")
        else:
            arrays.append((len(shape), k))
            shape.append(n)
        axis += 1
    x = views.reshape(x, shape)
    return _together(x, *zip(*arrays)) if len(arrays) > 1 else take(x, arrays[0][1], arrays[0][0]) if arrays else x


def _span(k: Any, n: int) -> tuple[int, int, int]:
    """Return start, length and step of a slice. `slice.indices` would make `n`, a size, a plain number."""
    step = 1 if k.step is None else operator.index(k.step)
    if not step:
        raise ValueError("slice step cannot be zero")
    least, most = (0, n) if step > 0 else (-1, n - 1)
    first, last = (least, most) if step > 0 else (most, least)
    first = first if k.start is None else _inside(k.start, n, least, most)
    last = last if k.stop is None else _inside(k.stop, n, least, most)
    far = last - first if step > 0 else first - last
    return first, (far + abs(step) - 1) // abs(step) if far > 0 else 0, step


def _inside(k: Any, n: int, least: int, most: int) -> int:
    """Return an end of a slice as a number from `least` to `most`."""
    at = k if isinstance(k, int) else operator.index(k)
    at = at + n if at < 0 else at
    return least if at < least else most if at > most else at


def _warn_of_pair(x: Tensor, key: Any) -> None:
    """Warn at the user's line of `x.max(axis)[0]`, which PyTorch's users write: its max gives values and indices."""
    made = x.inputs[0] if x.prim.name == "reshape" else x
    name = made.prim.name
    axes = made.attrs.get("axes", ())
    if name not in ("max", "min", "cummax", "cummin") or type(key) is not int or key not in (0, 1) or len(axes) > 1:
        return
    indices = "" if name.startswith("cum") else f", x.arg{name}(axis) for the indices"
    site = call_site()
    if site is not None:
        text = (
            f"x.{name}(axis)[{key}] picks element {key} of the results: {name} gives values only, and no pair as in "
            f"PyTorch. Write x.{name}(axis) for the values{indices} ({name} gave {x.type})"
        )
        warnings.warn_explicit(text, UserWarning, site.file, site.line)


def _explicit(x: Tensor, keys: tuple[Any, ...]) -> list[Any]:
    """Return `keys` with the Ellipsis written out, one key per axis and None for each new one."""
    used = len([k for k in keys if k is not None and k is not Ellipsis])
    if used > x.ndim:
        raise ShapeError(f"{used} indices for the {x.ndim} axes of {x.type}; use at most {x.ndim}")
    dots = [at for at, k in enumerate(keys) if k is Ellipsis]
    if len(dots) > 1:
        raise ShapeError("an index can have only one Ellipsis")
    at = dots[0] if dots else len(keys)
    return [*keys[:at], *[slice(None)] * (x.ndim - used), *keys[at + 1 :]]


def _in_range(k: int, n: int, axis: int, x: Tensor) -> int:
    if not -n <= k < n:
        raise ConstantIndexError(f"index {k} is out of range for axis {axis} of {x.type}; {valid(n, n)}")
    return k % n


@entered
def one_hot(indices: Operand, n: int, dtype: DType = f32) -> Tensor:
    """Encode each index as a vector of size `n` with 1 at the index and 0 elsewhere, along a new last axis.

    out[..., c] = 1 if indices[...] == c else 0

    indices:  i32, any shape, 0 to n - 1. Other numbers, also negative ones, raise IndexError; an input with one fails
              the run. If a program computes such a number, its vector is zeros.
    n:        the number of classes.
    dtype:    f32, i32, u32 or bool.
    Returns:  `dtype`, the shape of `indices` and then n. It takes no memory in a compiled program. No gradient.
    Raises:   DTypeError if the indices are f32, u32 or bool; ShapeError if `n` is negative or no integer.

    As jax.nn.one_hot. torch.nn.functional.one_hot returns integers.

    >>> tg.one_hot([0, 2], 3)
    tensor([[1., 0., 0.],
            [0., 0., 1.]])
    """
    n = count(n, "n")
    classes = classes_for(indices, n)
    shape = (*classes.shape, n)
    column = views.broadcast_to(views.reshape(classes, (*classes.shape, 1)), shape)
    return cast_(column == iota(shape, classes.ndim), as_dtype(dtype))


@op
def arange(start: float, stop: float | DType | None = None, step: float = 1, dtype: DType | None = None) -> Tensor:
    """Return start, start + step, ... up to `stop`, which is not included. `arange(n)` is 0, 1, ..., n - 1.

    start, stop, step: numbers; `step` can be negative. In arange(n) and arange(n, dtype), n is `stop`, and `start` is
                       0.
    dtype:    None: i32 if all three are integers, else f32.
    Returns:  shape (ceil((stop - start) / step),), or (0,) if that is negative. No gradient.
    Raises:   ShapeError for arange(n) with n < 0 or n >= 2^31; InputError for a step of 0, or a number that is not
              finite in f32; DTypeError for other integers outside of i32.

    As numpy.arange and torch.arange.

    >>> tg.arange(2, 8, 3)
    tensor([2, 5], dtype=i32)
    """
    if isinstance(stop, (DType, str)):
        stop, dtype = None, as_dtype(stop)
    if stop is None and step == 1 and not isinstance(start, float):
        n = integer(start, "n")
        if n < 0:
            raise ShapeError(f"n must not be negative, got {n}; arange(start, stop) may begin below 0")
        return cast_(iota((n,), 0), i32 if dtype is None else dtype)
    begin, end, by = (unboxed(v) for v in ((0, start, step) if stop is None else (start, stop, step)))
    if not all(isinstance(v, (int, float)) and math.isfinite(nearest_f32(v)) for v in (begin, end, by)) or by == 0:
        what = "finite numbers of f32, and step not 0"
        raise InputError(f"start, stop and step must be {what}; got {begin!r}, {end!r}, {by!r}")
    n = max(math.ceil((end - begin) / by), 0)
    if all(isinstance(v, int) for v in (begin, end, by)):
        for v in (begin, begin + by * max(n - 1, 0)):
            fitting(v, i32)
        return cast_(iota((n,), 0) * by + begin, i32 if dtype is None else dtype)
    return cast_(literal([begin + by * k for k in listed(n)], f32), f32 if dtype is None else dtype)


def _pick(x: Tensor, indices: Tensor, axis: int) -> Tensor:
    """Gather along `axis`, with indices broadcast over the other axes. The backward pass is a segment sum."""
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    column = views.reshape(indices, (*(1 for _ in before), indices.type.size, *(1 for _ in after)))
    picked = bind(GATHER, x, views.broadcast_to(column, (*before, indices.type.size, *after)), axis=axis)
    return views.reshape(picked, (*before, *indices.shape, *after))


def _together(x: Tensor, axes: tuple[int, ...], arrays: tuple[Any, ...]) -> Tensor:
    """Return `x` at several arrays of indices, one for each of these axes, broadcast against each other."""
    indices = broadcast(*[indices_for(k, x.shape[axis]) for axis, k in zip(axes, arrays, strict=True)])
    at, shape = axes[0], indices[0].shape
    if axes[-1] - at >= len(axes):
        x, at = views.permute(x, (*axes, *(d for d in range(x.ndim) if d not in axes))), 0
    count = indices[0].type.size
    x = _pick(x, views.reshape(indices[0], (count,)), at)
    for k in indices[1:]:  # the positions are along `at` now, the next axis is behind it
        before, after = x.shape[:at], x.shape[at + 2 :]
        column = views.reshape(k, (*(1 for _ in before), count, 1, *(1 for _ in after)))
        x = bind(GATHER, x, views.broadcast_to(column, (*before, count, 1, *after)), axis=at + 1)
        x = views.reshape(x, (*before, count, *after))
    return views.reshape(x, (*x.shape[:at], *shape, *x.shape[at + 1 :]))


@method
def take(x: Operand, indices: Operand, axis: int | None = None) -> Tensor:
    """Return the elements of `x` at `indices` along `axis`.

    out[..., i, j, ...] = x[..., indices[i, j], ...]     for indices of rank 2

    x:        any dtype, shape (..., n, ...).
    indices:  i32, any shape. Integers, lists of integers and arrays of NumPy's integers become i32, except uint32.
              A list, array or eager tensor: -n to n - 1. Negative ones count from the end. Others raise IndexError.
              An input of a compiled program: 0 to n - 1. For others, the run fails with InputError.
              An argument of a function in `tg.grad`, `tg.vmap` and the like: 0 to n - 1. Others raise IndexError.
              Numbers that a program computes: 0 to n - 1. Others are clamped to this range, without an error.
    axis:     an axis of `x`; None flattens `x` first.
    Returns:  dtype of `x`; the shape of `indices` replaces `axis`.
    Gradient: to `x`, the result's gradient, summed at each index in a fixed order: the sums are reproducible.
    Raises:   DTypeError if the indices are f32, u32 or bool, or do not fit i32; ShapeError if `axis` is out of range.

    As numpy.take. torch.index_select is the case of indices of rank 1.

    >>> tg.take([10.0, 20.0, 30.0], [2, 0, -1])
    tensor([30., 10., 30.])
    """
    x = as_tensor(x)
    x, axis = along(x, axis)
    return _pick(x, indices_for(indices, x.shape[axis]), axis)


@op
def embedding(table: Operand, indices: Operand) -> Tensor:
    """Return the rows of `table` at `indices`.

    out[..., :] = table[indices[...], :]

    table:    any dtype, shape (V, D): V rows of D features.
    indices:  i32, any shape, -V to V - 1; negative ones count from the end. Others raise IndexError. Inputs of a
              program, `tg.grad`, `tg.vmap` and the like must be 0 to V - 1; an index that is computed there is clamped.
    Returns:  dtype of `table`, the shape of `indices` and then D.
    Gradient: to `table`, each row of the result's gradient, summed at its index in a fixed order.
    Raises:   ShapeError unless `table` has two axes; DTypeError if the indices are f32, u32 or bool.

    As torch.nn.functional.embedding(indices, table).

    >>> tg.embedding([[1.0, 2.0], [3.0, 4.0]], [1, 0])
    tensor([[3., 4.],
            [1., 2.]])
    """
    table = as_tensor(table)
    if table.ndim != 2:
        hint = "" if table.dtype.is_float else "; are table and indices swapped?"
        raise ShapeError(f"the table must have two axes, rows and features; got {table.type}{hint}")
    return _pick(table, indices_for(indices, table.shape[0]), 0)


def _match(x: Tensor, other: Tensor, axis: int) -> tuple[Tensor, Tensor]:
    """Broadcast two tensors against each other on every axis but `axis`."""
    if x.ndim != other.ndim:
        raise ShapeError(f"ranks differ: x is {x.type}, indices are {other.type}")
    try:
        shape = tuple([n if m in (1, n) else m if n == 1 else -1 for n, m in zip(x.shape, other.shape)])
        sides = [(*shape[:axis], t.shape[axis], *shape[axis + 1 :]) for t in (x, other)]
        return views.broadcast_to(x, sides[0]), views.broadcast_to(other, sides[1])
    except ShapeError:
        raise ShapeError(f"x is {x.type}, indices are {other.type}: all axes but {axis} must be equal or 1") from None


@method
def take_along_axis(x: Operand, indices: Operand, axis: int = -1) -> Tensor:
    """Pick one element of `x` along `axis` for each position of `indices`.

    out[..., k, ...] = x[..., indices[..., k, ...], ...]

    x:        any dtype, shape (..., n, ...).
    indices:  i32, the rank of `x`. On axes other than `axis`, the sizes are equal, or one of them is 1 and broadcasts.
              Values are -n to n - 1; negative ones count from the end. Others raise IndexError. Inputs of a
              program, `tg.grad`, `tg.vmap` and the like must be 0 to n - 1; an index that is computed there is clamped.
    axis:     an axis of `x`, the last by default.
    Returns:  dtype of `x`, the shape of `indices` with its other axes broadcast.
    Gradient: to `x`, the result's gradient, summed where an index repeats.
    Raises:   DTypeError if the indices are f32, u32 or bool; ShapeError if ranks or other axes do not fit.

    As numpy.take_along_axis. Unlike torch.gather(x, axis, indices), it broadcasts the other axes.

    >>> tg.take_along_axis([[1.0, 2.0], [3.0, 4.0]], [[1], [0]], 1)
    tensor([[2.],
            [3.]])
    """
    x = as_tensor(x)
    axis = normalize_axis(axis, x.ndim)
    x, at = _match(x, indices_for(indices, x.shape[axis]), axis)
    return bind(GATHER, x, at, axis=axis)


@method
def scatter_add(x: Operand, indices: Operand, updates: Operand, axis: int = 0) -> Tensor:
    """Return `x` with `updates` added at `indices` along `axis`. Repeated indices add up, in a fixed order.

    out = x, then out[..., indices[k], ...] += updates[..., k, ...] for each k

    x:        f32, i32 or u32, shape (..., n, ...).
    indices:  i32, -n to n - 1; negative ones count from the end. Other numbers raise IndexError. Inputs of a program,
              `tg.grad`, `tg.vmap` and the like must be 0 to n - 1; numbers that a program computes are clamped.
              Of rank 1: one index for each k, as in the equation.
              Of the rank of `updates`, broadcast to its shape: one index for each element, indices[..., k, ...].
    updates:  the dtype of `x`, and its shape but for `axis`, which can have any size.
    axis:     an axis of `x`.
    Returns:  dtype and shape of `x`.
    Gradient: to `x` the result's gradient; to `updates` that gradient at the indices.
    Raises:   DTypeError if the indices are f32, u32 or bool, if `x` is bool, or if `updates` have another dtype.
              ShapeError if the shape of `updates` or `indices` does not fit.

    As torch.index_add for indices of rank 1, else as torch.scatter_add; on axis 0 as x.at[indices].add(updates) of JAX.

    >>> tg.scatter_add(tg.zeros(3), [0, 0, 2], [1.0, 2.0, 3.0])
    tensor([3., 0., 3.])
    """
    x, updates = as_tensors(x, updates)
    axis = normalize_axis(axis, x.ndim)
    at = indices_for(indices, x.shape[axis])
    if at.ndim == 1 and updates.ndim > 1:
        at = views.reshape(at, tuple([at.type.size if d == axis else 1 for d in range(updates.ndim)]))
    k = updates.shape[axis : axis + 1]
    if updates.dtype != x.dtype or updates.shape != (*x.shape[:axis], *k, *x.shape[axis + 1 :]):
        kind = ShapeError if updates.dtype == x.dtype else DTypeError
        raise kind(f"updates are {updates.type}; they must have the dtype of x and, except on axis {axis}, "
                   f"the shape of x, which is {x.type}")  # fmt: skip
    if at.ndim != updates.ndim or any(n not in (1, m) for n, m in zip(at.shape, updates.shape)):
        raise ShapeError(f"indices are {at.type}; they do not broadcast to the updates, {updates.type}")
    added = bind(SCATTER_ADD, updates, views.broadcast_to(at, updates.shape), axis=axis, length=x.shape[axis])
    return x + added
