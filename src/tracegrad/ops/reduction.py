"""Reductions over axes. All take `axis=None | int | tuple` and `keepdims`."""

from __future__ import annotations

import builtins
import math
from typing import Any

from tracegrad.dtypes import Axes, TensorType, f32, i32, normalize_axes, reduced_shape
from tracegrad.errors import InputError, ShapeError
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.methods import Operand, method
from tracegrad.ops.extrema import max, min
from tracegrad.prims import views
from tracegrad.prims.elementwise import abs, cast, logical_not, pow, sqrt, square, where
from tracegrad.prims.folds import PROD, SUM, count, drop, folded
from tracegrad.prims.leaves import as_tensor
from tracegrad.prims.maps import composite, float_type
from tracegrad.prims.rules import shifted

__all__ = ["all", "any", "mean", "norm", "prod", "std", "sum", "var", "variance"]


def number(x: Operand) -> Tensor:
    """Return `x`, with booleans as 0 and 1."""
    x = as_tensor(x)
    return cast(x, i32) if x.dtype.name == "bool" else x


def _float(x: Operand) -> Tensor:
    """Return `x` as f32, for means of counts and of truth values."""
    return cast(x, f32)


@method
def sum(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Sum over `axis` (None: over all axes).

    x:        f32, i32 or u32; bool counts as i32 0 and 1. Integers wrap at 32 bits. The sum of zero elements is 0.
    axis:     an integer or a tuple of them.
    keepdims: True keeps these axes, with size 1.
    Returns:  the dtype of `x`, i32 for bool; the shape of `x` without the axes in `axis`.
    Gradient: the result's gradient, to every element.
    Raises:   ShapeError if `axis` is out of range. As numpy.sum and torch.sum.

    >>> tg.sum([[1.0, 2.0], [3.0, 4.0]], axis=0)
    tensor([4., 6.])
    """
    x = as_tensor(x)
    axes = normalize_axes(axis, x.ndim)
    if x.dtype.name == "bool" and count(x, axes) >= 2**31:
        raise ShapeError(f"{count(x, axes)} booleans can count beyond the largest i32, 2^31 - 1; sum fewer at a time")
    return folded(SUM, number(x), axes, keepdims)


@method
def mean(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Average over `axis` (None: over all axes): the sum divided by the number of elements.

    x:        f32; other dtypes are cast to it, so `mean(prediction == target)` is an accuracy.
    axis:     an integer or a tuple of them.
    keepdims: True keeps these axes, with size 1.
    Returns:  f32, the shape of `x` without the axes in `axis`. The mean of zero elements is NaN.
    Gradient: dy / n to each of n elements, dy the result's gradient.
    Raises:   ShapeError if `axis` is out of range. As numpy.mean and torch.mean.

    >>> tg.mean([[1.0, 3.0], [2.0, 0.0]], axis=1)
    tensor([2., 1.])
    """
    x = _float(x)
    axes = normalize_axes(axis, x.ndim)
    return folded(SUM, x, axes, keepdims) / count(x, axes)


def reduced_float(x: TensorType, *, axes: tuple[int, ...], ddof: int = 0) -> TensorType:
    return TensorType(float_type(x).dtype, reduced_shape(x.shape, axes))


def _centred(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return x - views.broadcast_to(mean(x, axes, keepdims=True), x.shape)


def _degrees(x: Tensor, axes: tuple[int, ...], ddof: int) -> int:
    return builtins.max(count(x, axes) - ddof, 0)


def _var(x: Tensor, *, axes: tuple[int, ...], ddof: int) -> Tensor:
    return sum(square(_centred(x, axes)), axes, keepdims=True) / _degrees(x, axes, ddof)


def _var_vjp(ct: Tensor, y: Tensor, x: Tensor, *, axes: tuple[int, ...], ddof: int) -> tuple[Tensor]:
    """Return 2 (x - mean) ct / (n - ddof). The gradient of `_var` would add a sum of centred values, which is 0."""
    return (views.broadcast_to(ct * 2.0 / _degrees(x, axes, ddof), x.shape) * _centred(x, axes),)


VAR = composite("var", type=reduced_float, expand=_var, vjp=_var_vjp, batch=shifted)


@method
def var(x: Operand, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
    """Return the variance over `axis` (None: over all axes): sum((x - mean(x))^2) / (n - ddof) of n elements.

    x:        f32; other dtypes are cast to it. For n <= ddof the divisor is 0, and the result inf or NaN.
    axis:     an integer or a tuple of them.
    keepdims: True keeps these axes, with size 1.
    ddof:     0 for the population, 1 for a sample. `variance` and PyTorch take 1 by default.
    Returns:  f32, the shape of `x` without the axes in `axis`.
    Gradient: 2 (x - mean(x)) / (n - ddof).
    Raises:   ShapeError if `axis` is out of range. As numpy.var.

    >>> tg.var([1.0, 3.0])
    tensor(1.)
    """
    x = _float(x)
    axes = normalize_axes(axis, x.ndim)
    return drop(bind(VAR, x, axes=axes, ddof=ddof), axes, keepdims)


@method
def variance(x: Operand, axis: Axes = None, keepdims: bool = False, correction: int = 1) -> Tensor:
    """Return the sample variance over `axis` (None: over all axes): `var` with PyTorch's default divisor, n - 1.

    x:          f32; other dtypes are cast to it. For n <= correction the divisor is 0, and the result inf or NaN.
    axis:       an integer or a tuple of them.
    keepdims:   True keeps these axes, with size 1.
    correction: the divisor for n elements is n - correction.
    Returns:    f32, the shape of `x` without the axes in `axis`.
    Gradient:   2 (x - mean(x)) / (n - correction).
    Raises:     ShapeError if `axis` is out of range. As torch.var.

    >>> tg.variance([1.0, 3.0])
    tensor(2.)
    """
    return var(x, axis, keepdims, correction)


def _root(x: Tensor) -> Tensor:
    """Return the square root, with a derivative of 0 at 0 instead of infinity."""
    zero = x == 0.0
    return where(zero, 0.0, sqrt(where(zero, 1.0, x)))


@method
def std(x: Operand, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
    """Return the standard deviation over `axis` (None: over all axes): sqrt(sum((x - mean(x))^2) / (n - ddof)).

    x:        f32; other dtypes are cast to it. If all elements are equal, the result can be about 1e-7 times their
              magnitude instead of exactly 0, because the mean is rounded.
    axis:     an integer or a tuple of them.
    keepdims: True keeps these axes, with size 1.
    ddof:     0 for the population, 1 for a sample, which is PyTorch's default. n is the number of elements over `axis`.
              For n <= ddof the divisor is 0, and the result inf or NaN.
    Returns:  f32, the shape of `x` without the axes in `axis`.
    Gradient: (x - mean(x)) / (std (n - ddof)), and 0 where the result is 0, as in PyTorch.
    Raises:   ShapeError if `axis` is out of range. As numpy.std and torch.std.

    >>> tg.std([1.0, 3.0])
    tensor(1.)
    """
    return _root(var(x, axis, keepdims, ddof))


def _norm(x: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    """Return the Euclidean length. If squares overflow or vanish, x is scaled first."""
    usual = sum(square(x), axes, keepdims=True)
    low, plain = usual < 1e-24, (usual >= 1e-24) & (usual < 1e37)
    scale, skipped = (views.broadcast_to(t, x.shape) for t in (where(low, 2.0**90, 2.0**-75), plain))
    others = sum(where(skipped, 0.0, square(x * scale)), axes, keepdims=True)  # C skips rows of zeros
    return sqrt(where(plain, usual, others)) * where(plain, 1.0, where(low, 2.0**-90, 2.0**75))


def _norm_array(xp: Any, x: Any, *, axes: tuple[int, ...]) -> Any:
    """Return the norm in NumPy, without overflowing squares, of which NumPy would warn."""
    largest = xp.max(xp.abs(x), axis=axes, keepdims=True, initial=0.0)
    scale = xp.where(largest < 1e-12, 2.0**90, xp.where(largest < 1e15, 1.0, 2.0**-75)).astype(x.dtype)
    return xp.sqrt(xp.sum(xp.square(x * scale), axis=axes, keepdims=True)) / scale


def _norm_vjp(ct: Tensor, y: Tensor, x: Tensor, *, axes: tuple[int, ...]) -> tuple[Tensor]:
    scale = where(y < 1e-12, 2.0**90, where(y < 1e15, 1.0, 2.0**-75))  # 1 / y can overflow, and be too small
    share = where(y == 0.0, 0.0, ct / where(y == 0.0, 1.0, y * scale))  # 0 also for second derivatives
    return (x * views.broadcast_to(scale, x.shape) * views.broadcast_to(share, x.shape),)


NORM = composite("norm", type=reduced_float, expand=_norm, array=_norm_array, vjp=_norm_vjp, batch=shifted)


@method
def norm(x: Operand, axis: Axes = None, *, keepdims: bool = False, ord: float = 2) -> Tensor:
    """Return the length of the vectors along `axis` (None: of all elements as one vector).

    sum(|x|^ord)^(1 / ord); for ord=inf the largest |x|, for -inf the smallest, for 0 the number of nonzero elements

    x:        f32.
    axis:     an integer, or a tuple of axes that form one vector.
    keepdims: True keeps these axes, with size 1.
    ord:      a number >= 0, inf or -inf. For 2, the result is right for elements above 1.8e19, too; in PyTorch their
              squares overflow to inf.
    Returns:  f32, the shape of `x` without the axes in `axis`.
    Gradient: sign(x) (|x| / norm)^(ord - 1), and 0 where x is 0. For ord=inf and -inf, tied elements share it evenly.
              For ord=0, none.
    Raises:   InputError for another `ord`; DTypeError if `x` is not f32; ShapeError if `axis` is out of range.

    As torch.linalg.vector_norm, but `axis` is the second argument, and `ord` must be given by name.

    >>> tg.norm([[3.0, 4.0], [0.0, 0.0]], axis=1)
    tensor([5., 0.])
    """
    x = as_tensor(x)
    float_type(x.type)
    size = abs(x)
    if ord == 2:
        axes = normalize_axes(axis, x.ndim)
        return drop(bind(NORM, x, axes=axes), axes, keepdims)
    if ord in (math.inf, -math.inf):
        return (max if ord > 0 else min)(size, axis, keepdims)
    if isinstance(ord, str) or not ord >= 0:
        hint = "; the Frobenius norm has ord=2" if isinstance(ord, str) else ""
        raise InputError(f"ord must be a number >= 0, inf or -inf, got {ord!r}{hint}")
    if ord == 0:
        return sum(cast(x != 0.0, f32), axis, keepdims)
    if ord == 1:
        return sum(size, axis, keepdims)
    zero = size == 0.0  # powers of 0 have no derivative for exponents below 1
    total = sum(where(zero, 0.0, pow(where(zero, 1.0, size), float(ord))), axis, keepdims)
    none = total == 0.0
    return where(none, 0.0, pow(where(none, 1.0, total), 1.0 / ord))


@method
def prod(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Multiply the elements over `axis` (None: over all axes).

    x:        f32, i32 or u32; bool counts as i32. Integers wrap at 32 bits. The product of zero elements is 1.
    axis:     an integer or a tuple of them.
    keepdims: True keeps these axes, with size 1.
    Returns:  the dtype of `x`, i32 for bool; the shape of `x` without the axes in `axis`.
    Gradient: the product of the other elements, exact at zeros too.
    Raises:   ShapeError if `axis` is out of range. As numpy.prod and torch.prod.

    >>> tg.prod([2.0, 3.0, 4.0])
    tensor(24.)
    """
    x = number(x)
    return folded(PROD, x, normalize_axes(axis, x.ndim), keepdims)


@method
def any(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return whether any element over `axis` (None: over all axes) is True or nonzero.

    x:        any dtype. NaN counts as nonzero. For zero elements the result is False.
    axis:     an integer or a tuple of them.
    keepdims: True keeps these axes, with size 1.
    Returns:  bool, the shape of `x` without the axes in `axis`.
    Gradient: none.
    Raises:   ShapeError if `axis` is out of range. As numpy.any and torch.any.

    >>> tg.any(np.array([[True, False], [False, False]]), axis=1)
    tensor([ True, False], dtype=bool)
    """
    x = as_tensor(x)
    axes = normalize_axes(axis, x.ndim)
    true = x if x.dtype.name == "bool" else x != 0
    return sum(true, axes, keepdims) > 0


@method
def all(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return whether every element over `axis` (None: over all axes) is True or nonzero.

    x:        any dtype. NaN counts as nonzero. For zero elements the result is True.
    axis:     an integer or a tuple of them.
    keepdims: True keeps these axes, with size 1.
    Returns:  bool, the shape of `x` without the axes in `axis`.
    Gradient: none.
    Raises:   ShapeError if `axis` is out of range. As numpy.all and torch.all.

    >>> tg.all(np.array([[True, False], [True, True]]), axis=1)
    tensor([False,  True], dtype=bool)
    """
    x = as_tensor(x)
    axes = normalize_axes(axis, x.ndim)
    false = logical_not(x) if x.dtype.name == "bool" else x == 0
    return sum(false, axes, keepdims) == 0
