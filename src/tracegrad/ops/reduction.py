"""Reductions over axes. All take `axis=None | int | tuple` and `keepdims`."""

from __future__ import annotations

import builtins
import math
from collections.abc import Sequence

from tracegrad.dtypes import TensorType, f32, i32
from tracegrad.errors import ShapeError
from tracegrad.ir import Primitive, Tensor, bind
from tracegrad.methods import Operand, method
from tracegrad.prims import views
from tracegrad.prims.composites import composite
from tracegrad.prims.elementwise import cast, exp, float_type, isnan, log, logical_not, nonfinite, square, where
from tracegrad.prims.folds import MAX, MIN, PROD, SUM
from tracegrad.prims.leaves import as_tensor, iota
from tracegrad.prims.rules import Tangents, multilinear, shifted
from tracegrad.shapes import Axes, normalize_axes, normalize_axis, reduced_shape

__all__ = ["all", "any", "argmax", "argmin", "cumsum", "logsumexp", "max", "mean", "min", "prod", "sum", "var",
           "variance"]  # fmt: skip


def count(x: Tensor, axes: Sequence[int]) -> int:
    """How many elements one result of a reduction over `axes` stands for."""
    return math.prod([x.shape[d] for d in axes])


def drop(y: Tensor, axes: Sequence[int], keepdims: bool) -> Tensor:
    """`y`, reduced over `axes`, with or without these axes."""
    return y if keepdims else views.reshape(y, tuple([n for d, n in enumerate(y.shape) if d not in axes]))


def _fold(p: Primitive, x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    """Fold over `axes`; axes of size 1 need no folding."""
    long = tuple([d for d in axes if x.shape[d] != 1])
    return drop(bind(p, x, axes=long) if long else x, axes, keepdims)


def _number(x: Operand) -> Tensor:
    """`x`, with booleans as 0 and 1."""
    x = as_tensor(x)
    return cast(x, i32) if x.dtype.name == "bool" else x


def _float(x: Operand) -> Tensor:
    """`x` as f32, for means of counts and of truth values."""
    return cast(x, f32)


@method
def sum(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Sum over `axis` (None: over all).

    x: f32, i32, u32; bool is counted as i32. Gradient: the cotangent, to every element.
    """
    x = as_tensor(x)
    axes = normalize_axes(axis, x.ndim)
    if x.dtype.name == "bool" and count(x, axes) >= 2**31:
        raise ShapeError(f"{count(x, axes)} booleans may count to more than i32 holds, 2^31 - 1; sum fewer at a time")
    return _fold(SUM, _number(x), axes, keepdims)


@method
def mean(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Mean over `axis` (None: over all): the sum divided by the number of elements.

    x: f32; other dtypes are cast to it, so that `mean(prediction == target)` is an accuracy.
    """
    x = _float(x)
    axes = normalize_axes(axis, x.ndim)
    return _fold(SUM, x, axes, keepdims) / float(count(x, axes))


def _reduced_float(x: TensorType, *, axes: tuple[int, ...], ddof: int = 0) -> TensorType:
    return TensorType(float_type(x).dtype, reduced_shape(x.shape, axes))


def _centred(x: Tensor, axes: tuple[int, ...]) -> Tensor:
    return x - views.broadcast_to(mean(x, axes, keepdims=True), x.shape)


def _degrees(x: Tensor, axes: tuple[int, ...], ddof: int) -> float:
    return float(builtins.max(count(x, axes) - ddof, 0))


def _var(x: Tensor, *, axes: tuple[int, ...], ddof: int) -> Tensor:
    return sum(square(_centred(x, axes)), axes, keepdims=True) / _degrees(x, axes, ddof)


def _var_vjp(ct: Tensor, y: Tensor, x: Tensor, *, axes: tuple[int, ...], ddof: int) -> tuple[Tensor]:
    """2 (x - mean) / (n - ddof); that of `_var` would add a sum of the centred values, which is 0 but for rounding."""
    return (views.broadcast_to(ct * 2.0 / _degrees(x, axes, ddof), x.shape) * _centred(x, axes),)


def _var_jvp(ts: Tangents, y: Tensor, x: Tensor, *, axes: tuple[int, ...], ddof: int) -> Tensor:
    return sum(ts[0] * _centred(x, axes), axes, keepdims=True) * 2.0 / _degrees(x, axes, ddof)


VAR = composite("var", type=_reduced_float, expand=_var, vjp=_var_vjp, jvp=_var_jvp, batch=shifted)


@method
def var(x: Operand, axis: Axes = None, keepdims: bool = False, ddof: int = 0) -> Tensor:
    """Variance over `axis` (None: over all), from centred values.

    sum((x - mean(x))^2) / (n - ddof)

    x: f32, other dtypes are cast. ddof: 0 for the population, 1 for a sample (PyTorch's default is 1).
    """
    x = _float(x)
    axes = normalize_axes(axis, x.ndim)
    return drop(bind(VAR, x, axes=axes, ddof=ddof), axes, keepdims)


@method
def variance(x: Operand, axis: Axes = None, keepdims: bool = False, correction: int = 1) -> Tensor:
    """Sample variance over `axis` (None: over all): `var` with `ddof=correction`."""
    return var(x, axis, keepdims, correction)


def _extremum(p: Primitive, x: Operand, axis: Axes, keepdims: bool) -> Tensor:
    x = as_tensor(x)
    axes = normalize_axes(axis, x.ndim)
    _require_elements(x, axes)
    return _fold(p, x, axes, keepdims)


def _require_elements(x: Tensor, axes: Sequence[int]) -> None:
    if count(x, axes) == 0:
        raise ShapeError(f"{x.type} has no element on the axes {tuple(axes)} to choose from")


@method
def max(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Largest element over `axis` (None: over all).

    x: f32, i32, u32. NaN wins, as in NumPy. ShapeError for no elements.
    Gradient: tied positions share it evenly.
    """
    return _extremum(MAX, x, axis, keepdims)


@method
def min(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Smallest element over `axis` (None: over all).

    x: f32, i32, u32. NaN wins, as in NumPy. ShapeError for no elements.
    Gradient: tied positions share it evenly.
    """
    return _extremum(MIN, x, axis, keepdims)


@method
def prod(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Product over `axis` (None: over all). f32, i32, u32. The gradient is right beside zeros as well."""
    x = _number(x)
    return _fold(PROD, x, normalize_axes(axis, x.ndim), keepdims)


@method
def any(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Whether any element over `axis` is true, or not zero. Any dtype; returns bool; False for no elements."""
    x = as_tensor(x)
    axes = normalize_axes(axis, x.ndim)
    true = x if x.dtype.name == "bool" else x != 0
    return sum(true, axes, keepdims) > 0


@method
def all(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Whether every element over `axis` is true, or not zero. Any dtype; returns bool; True for no elements."""
    x = as_tensor(x)
    axes = normalize_axes(axis, x.ndim)
    false = logical_not(x) if x.dtype.name == "bool" else x == 0
    return sum(false, axes, keepdims) == 0


def _position(p: Primitive, x: Operand, axis: Axes, keepdims: bool) -> Tensor:
    """The first position, among `axes` in row-major order, whose element is the extremum or NaN."""
    x = as_tensor(x)
    axes = normalize_axes(axis, x.ndim)
    _require_elements(x, axes)
    kept = [d for d in range(x.ndim) if d not in axes]
    n = count(x, axes)
    rows = views.reshape(views.permute(x, (*kept, *axes)), (*[x.shape[d] for d in kept], n))
    last = rows.ndim - 1
    at = iota(rows.shape, last)
    best = views.broadcast_to(_fold(p, rows, (last,), keepdims=True), rows.shape)
    key = where(rows == best, at, n)
    if x.dtype.is_float:
        # Negative keys for NaN, whatever the device's max makes of one.
        key = where(isnan(rows), at - n, key)
    first = _fold(MIN, key, (last,), keepdims=False)
    if x.dtype.is_float:
        first = where(first < 0, first + n, first)
    return views.reshape(first, reduced_shape(x.shape, axes)) if keepdims else first


@method
def argmax(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Position of the largest element over `axis` (None: in the flattened `x`).

    x: f32, i32, u32. Returns i32; the first position of tied ones; NaN wins, as in NumPy. No gradient.
    For a tuple of axes the position is the row-major one among them.
    """
    return _position(MAX, x, axis, keepdims)


@method
def argmin(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Position of the smallest element over `axis` (None: in the flattened `x`); otherwise as `argmax`."""
    return _position(MIN, x, axis, keepdims)


def _logsumexp(x: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    top = max(x, axes, keepdims=True)
    shift = where(nonfinite(top), 0.0, top)  # of a row of -inf or with inf: inf - inf would make it NaN
    return log(sum(exp(x - views.broadcast_to(shift, x.shape)), axes, keepdims=True)) + shift


def _logsumexp_vjp(ct: Tensor, y: Tensor, x: Tensor, *, axes: tuple[int, ...]) -> tuple[Tensor]:
    return (views.broadcast_to(ct, x.shape) * exp(x - views.broadcast_to(y, x.shape)),)


def _logsumexp_jvp(ts: Tangents, y: Tensor, x: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    return sum(ts[0] * exp(x - views.broadcast_to(y, x.shape)), axes, keepdims=True)


LOGSUMEXP = composite(
    "logsumexp", type=_reduced_float, expand=_logsumexp, vjp=_logsumexp_vjp, jvp=_logsumexp_jvp, batch=shifted
)


@method
def logsumexp(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """log(sum(exp(x))) over `axis` (None: over all), with the maximum subtracted so that exp stays finite.

    x: f32. A row of -inf gives -inf with a NaN gradient, a row with inf gives inf, both as PyTorch.
    """
    x = as_tensor(x)
    axes = normalize_axes(axis, x.ndim)
    _require_elements(x, axes)
    return drop(bind(LOGSUMEXP, x, axes=axes), axes, keepdims)


SCAN_BLOCK = 32  # elements summed directly; longer axes take one more level for each factor of 32


def _scan(x: Tensor, reverse: bool) -> Tensor:
    """Running sums along the last axis: within blocks, plus the running sums of the blocks before."""
    *batch, n = x.shape
    if n <= SCAN_BLOCK:
        square_shape = (*batch, n, n)
        i, j = iota(square_shape, len(batch)), iota(square_shape, len(batch) + 1)
        terms = views.broadcast_to(views.reshape(x, (*batch, 1, n)), square_shape)
        return sum(where(j >= i if reverse else j <= i, terms, 0), -1)
    blocks = -(-n // SCAN_BLOCK)
    padded = views.place(x, len(batch), 0, blocks * SCAN_BLOCK)
    inner = _scan(views.reshape(padded, (*batch, blocks, SCAN_BLOCK)), reverse)
    totals = _scan(inner[..., 0 if reverse else -1], reverse)
    others = views.slice_(totals, len(batch), 1 if reverse else 0, blocks - 1)
    carry = views.place(others, len(batch), 0 if reverse else 1, blocks)
    carried = inner + views.broadcast_to(views.reshape(carry, (*batch, blocks, 1)), inner.shape)
    return views.slice_(views.reshape(carried, padded.shape), len(batch), 0, n)


def _cumsum_type(x: TensorType, *, axis: int, reverse: bool) -> TensorType:
    return x


def _cumsum(x: Tensor, *, axis: int, reverse: bool) -> Tensor:
    return _scan(x.swapaxes(axis, -1), reverse).swapaxes(axis, -1)


def _cumsum_vjp(ct: Tensor, y: Tensor, x: Tensor, *, axis: int, reverse: bool) -> tuple[Tensor]:
    return (bind(CUMSUM, ct, axis=axis, reverse=not reverse),)


CUMSUM = composite("cumsum", type=_cumsum_type, expand=_cumsum, vjp=_cumsum_vjp, jvp=multilinear, batch=shifted)


@method
def cumsum(x: Operand, axis: int | None = None) -> Tensor:
    """Running sums along `axis` (None: of the flattened `x`): out[k] = x[0] + ... + x[k].

    x: f32, i32, u32; bool is counted as i32. Gradient: running sums from the other end.
    """
    x = _number(x)
    if axis is None:
        x, axis = views.reshape(x, (x.size,)), 0
    axis = normalize_axis(axis, x.ndim)
    return x if x.shape[axis] <= 1 else bind(CUMSUM, x, axis=axis, reverse=False)
