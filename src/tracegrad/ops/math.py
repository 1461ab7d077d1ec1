"""Arithmetic and comparisons made of the elementwise ops of `prims.elementwise`."""

from __future__ import annotations

import math
from collections.abc import Callable

from tracegrad.dtypes import LARGEST_F32, u32
from tracegrad.errors import DTypeError, InputError
from tracegrad.ir.nodes import Tensor
from tracegrad.methods import Operand, entered, method
from tracegrad.prims import elementwise as rows
from tracegrad.prims.leaves import as_tensor, as_tensors, unboxed
from tracegrad.prims.maps import NUMBER, broadcast, float_type, typed

__all__ = [
    "clamp", "clip", "floor_divide", "fmod", "greater", "greater_equal", "isfinite", "isinf", "nan_to_num", "pow",
    "reciprocal", "remainder",
]  # fmt: skip


def _comparable(a: Operand, b: Operand) -> tuple[Tensor, Tensor]:
    """Broadcast two operands of one type. The check keeps the user's order, for the error message."""
    x, y = broadcast(a, b)
    typed(NUMBER)(x.type, y.type)
    return x, y


@entered
def greater(a: Operand, b: Operand) -> Tensor:
    """Return a > b (False for NaN), element by element; a and b broadcast.

    a, b:     f32, i32 or u32, both of one dtype; tensors, arrays (float64 becomes f32) or numbers, of any shape.
    Returns:  bool, the broadcast shape.
    Gradient: none.
    Raises:   DTypeError for other or differing dtypes; ShapeError if the shapes do not broadcast.

    As numpy.greater and torch.gt.

    >>> tg.greater([1.0, 3.0], 2.0)
    tensor([False,  True], dtype=bool)
    """
    a, b = _comparable(a, b)
    return rows.less(b, a)


@entered
def greater_equal(a: Operand, b: Operand) -> Tensor:
    """Return a >= b (False for NaN), element by element; a and b broadcast.

    a, b:     f32, i32 or u32, both of one dtype; tensors, arrays (float64 becomes f32) or numbers, of any shape.
    Returns:  bool, the broadcast shape.
    Gradient: none.
    Raises:   DTypeError for other or differing dtypes; ShapeError if the shapes do not broadcast.

    As numpy.greater_equal and torch.ge.

    >>> tg.greater_equal([1.0, 2.0, 3.0], 2.0)
    tensor([False,  True,  True], dtype=bool)
    """
    a, b = _comparable(a, b)
    return rows.less_equal(b, a)


@method
def pow(a: Operand, b: Operand) -> Tensor:
    """Return `a` to the power of `b`, element by element; a and b broadcast.

    a, b:     f32; tensors, arrays (float64 becomes f32) or numbers, of any shape. Or `a` i32 or u32, and `b` a Python
              integer of at least 0.
    Returns:  the dtype of `a`; NaN for a < 0 and a fractional `b`. Integers wrap at 32 bits.
    Gradient: to `a`, b a^(b-1), but 0 where b = 0; to `b`, log(a) a^b, but 0 where a = 0 and b >= 0.
    Raises:   DTypeError for other or differing dtypes, and for integers to a negative power; ShapeError if the shapes
              do not broadcast.

    If `b` is the Python number 2, 3, 0.5, -0.5 or -1, the op computes a * a, a * a * a, sqrt(a), rsqrt(a) or 1 / a.
    So, as in PyTorch, b = 0.5 gives -0 for -0 and NaN for -inf. numpy.power can give 0 and inf there.
    As numpy.power and torch.pow.

    >>> tg.pow([1.0, 2.0, 3.0], 2.0)
    tensor([1., 4., 9.])
    """
    b = unboxed(b)
    if isinstance(b, bool) or not isinstance(b, (int, float)):
        return rows.pow(a, b)
    x = as_tensor(a)
    if x.dtype.is_int and isinstance(b, int):
        return _integer_power(x, b)
    if x.dtype.is_float and b in POWERS:
        return POWERS[b](x)
    return rows.pow(x, b)


def _integer_power(x: Tensor, n: int) -> Tensor:
    """Return x^n by repeated squaring. The result wraps around, as i32 multiplication does."""
    if n < 0:
        raise DTypeError(f"{x.type} to the power of {n} is not an integer; cast with tg.cast(x, tg.f32)")
    if n == 0:
        return x * 0 + 1
    if n % 2 == 0:
        return rows.square(_integer_power(x, n // 2))
    return x if n == 1 else x * rows.square(_integer_power(x, n // 2))


@method
def remainder(a: Operand, b: Operand) -> Tensor:
    """Return a - b * floor(a / b), the remainder with the sign of `b`, element by element; a and b broadcast.

    a, b:     f32, i32 or u32, both of one dtype; tensors, arrays (float64 becomes f32) or numbers, of any shape.
    Returns:  the same dtype. a / b is not rounded before it is used; only the result is rounded. For b = 0 or infinite
              `a` the result is NaN; for integers with b = 0, it is `a`.
    Gradient: 1 to `a`, -floor(a / b) to `b`; none for integers.
    Raises:   DTypeError for other or differing dtypes; ShapeError if the shapes do not broadcast.

    The operator is `a % b`. As numpy.remainder and torch.remainder. For integers with b = 0, NumPy gives 0 and PyTorch
    raises.

    >>> tg.remainder([7.0, -7.0], 3.0)
    tensor([1., 2.])
    """
    a, b = _comparable(a, b)
    return rows.modulo(a, b) if a.dtype.is_float else a - rows.quotient(a, b) * b


@method
def fmod(a: Operand, b: Operand) -> Tensor:
    """Return a - b * trunc(a / b), the remainder with the sign of `a`, element by element; a and b broadcast.

    a, b:     f32, i32 or u32, both of one dtype; tensors, arrays (float64 becomes f32) or numbers, of any shape.
    Returns:  the same dtype. The result is exact: a / b is not rounded before it is used. For b = 0 or infinite `a` the
              result is NaN; for integers with b = 0, it is `a`.
    Gradient: 1 to `a`, -trunc(a / b) to `b`; none for integers.
    Raises:   DTypeError for other or differing dtypes; ShapeError if the shapes do not broadcast.

    As C's fmod, numpy.fmod and torch.fmod. For integers with b = 0, NumPy gives 0 and PyTorch raises. `remainder`, the
    operator `a % b`, has the sign of `b`.

    >>> tg.fmod([7.0, -7.0], 3.0)
    tensor([ 1., -1.])
    """
    a, b = _comparable(a, b)
    if a.dtype == u32:
        return remainder(a, b)
    if a.dtype.is_float:  # a GPU that flushes subnormal numbers to 0 does not see their sign
        size = remainder(rows.abs(a), rows.abs(b))
        return rows.where(rows.abs(a) < rows.abs(b), a, rows.where(a < 0, -size, size))
    left = remainder(a, b)  # not by |a|, which overflows for the smallest i32
    return rows.where(rows.logical_and(left != 0, rows.not_equal(a < 0, b < 0)), left - b, left)


@method
def floor_divide(a: Operand, b: Operand) -> Tensor:
    """Return floor(a / b), element by element; a and b broadcast.

    a, b:     f32, i32 or u32, both of one dtype; tensors, arrays (float64 becomes f32) or numbers, of any shape.
    Returns:  the same dtype. Integers are exact; f32 is exact for results up to 2^22. For b = 0, f32 gives a / b
              (infinite or NaN), and integers give 0. Otherwise an infinite `a` gives NaN.
    Gradient: 0: the result is constant between its steps.
    Raises:   DTypeError for other or differing dtypes; ShapeError if the shapes do not broadcast.

    The operator is `a // b`. As numpy.floor_divide and torch.floor_divide. PyTorch raises for integers with b = 0.

    >>> tg.floor_divide([7.0, -7.0], 3.0)
    tensor([ 2., -3.])
    """
    a, b = _comparable(a, b)
    if a.dtype.is_int:
        return rows.quotient(a, b)
    size, by = rows.abs(a), rows.abs(b)
    lift = rows.where(rows.maximum(size, by) < 2.0**-60, 2.0**64, 1.0)  # a GPU can flush a denormal remainder
    size, by = size * lift, by * lift
    left = rows.modulo(size, by)  # size - left is a multiple of by, and finite
    times = rows.round((size - left) / by)
    apart = rows.not_equal(a < 0.0, b < 0.0)
    floored = rows.where(apart, -times - rows.where(left == 0.0, 0.0, 1.0), times)
    return rows.where(rows.logical_or(a == 0.0, b == 0.0), rows.stop_gradient(a / b), floored)


@method
def reciprocal(x: Operand) -> Tensor:
    """Return 1 / x, element by element.

    x:        f32, any shape.
    Returns:  f32, shape of `x`; inf or -inf where x is 0.
    Gradient: -1 / x^2.
    Raises:   DTypeError if `x` is not f32.

    As numpy.reciprocal and torch.reciprocal.

    >>> tg.reciprocal([1.0, 4.0])
    tensor([1.  , 0.25])
    """
    float_type((x := as_tensor(x)).type)
    return rows.div(1.0, x)


@method
def clip(x: Operand, lo: Operand | None = None, hi: Operand | None = None) -> Tensor:
    """Limit `x` to [lo, hi], element by element.

    out = min(max(x, lo), hi)

    x, lo, hi: f32, i32 or u32, all of one dtype; the shapes broadcast. None as `lo` or `hi` sets no limit there.
    Returns:   the same dtype; NaN where `x` or a limit is NaN. Where lo > hi in arrays, the result is hi.
    Gradient:  to `x` where lo <= x <= hi, the limits included; elsewhere to the limit that replaced it.
    Raises:    InputError for numbers with lo > hi; DTypeError for other or differing dtypes; ShapeError if the shapes
               do not broadcast.

    As numpy.clip and torch.clamp.

    >>> tg.clip([-2.0, 0.5, 2.0], -1.0, 1.0)
    tensor([-1. ,  0.5,  1. ])
    """
    lo, hi, y = unboxed(lo), unboxed(hi), as_tensor(x)
    if isinstance(lo, (int, float)) and isinstance(hi, (int, float)) and lo > hi:
        raise InputError(f"lo = {lo!r} is above hi = {hi!r}")
    if lo is not None:
        y = rows.where(_replaces(lo, rows.less(x, lo), y), lo, y)
    if hi is not None:
        y = rows.where(_replaces(hi, greater(y, hi), y), hi, y)
    return y


def _replaces(limit: Operand, beyond: Tensor, y: Tensor) -> Tensor:
    """Return where `limit` takes the place of `y`: where `y` is beyond it, and where the limit is NaN."""
    if isinstance(limit, (int, float)) and not math.isnan(limit):
        return beyond
    limit, _ = as_tensors(limit, y)
    return rows.logical_or(beyond, rows.isnan(limit)) if limit.dtype.is_float else beyond


@method
def clamp(x: Operand, lo: Operand | None = None, hi: Operand | None = None) -> Tensor:
    """Limit `x` to [lo, hi], element by element: PyTorch's name for `clip`.

    x, lo, hi: f32, i32 or u32, all of one dtype; the shapes broadcast. None as `lo` or `hi` sets no limit there.
    Returns:   the same dtype; NaN where `x` or a limit is NaN. Where lo > hi in arrays, the result is hi.
    Gradient:  to `x` where lo <= x <= hi, the limits included; elsewhere to the limit that replaced it.
    Raises:    InputError for numbers with lo > hi; DTypeError for other or differing dtypes; ShapeError if the shapes
               do not broadcast.

    As torch.clamp.

    >>> tg.clamp([-2.0, 0.5, 2.0], -1.0, 1.0)
    tensor([-1. ,  0.5,  1. ])
    """
    return clip(x, lo, hi)


@method
def isfinite(x: Operand) -> Tensor:
    """Return whether x is neither infinite nor NaN, element by element.

    x:        f32, any shape.
    Returns:  bool, shape of `x`.
    Gradient: none.
    Raises:   DTypeError if `x` is not f32; integers are always finite.

    As numpy.isfinite and torch.isfinite.

    >>> tg.isfinite([1.0, np.inf, np.nan])
    tensor([ True, False, False], dtype=bool)
    """
    return rows.logical_not(rows.nonfinite(x))


@method
def isinf(x: Operand) -> Tensor:
    """Return whether x is inf or -inf, element by element.

    x:        f32, any shape.
    Returns:  bool, shape of `x`.
    Gradient: none.
    Raises:   DTypeError if `x` is not f32; integers are always finite.

    As numpy.isinf and torch.isinf.

    >>> tg.isinf([1.0, np.inf, np.nan])
    tensor([False,  True, False], dtype=bool)
    """
    return rows.nonfinite(x) & rows.logical_not(rows.isnan(x))


@method
def nan_to_num(x: Operand, nan: float = 0.0, posinf: float | None = None, neginf: float | None = None) -> Tensor:
    """Replace NaN and infinities in `x` by numbers.

    x:              f32, any shape.
    nan:            the number for NaN.
    posinf, neginf: the numbers for inf and -inf; None means the largest finite f32, and its negative.
    Returns:        f32, shape of `x`.
    Gradient:       1 where `x` is finite, else 0.
    Raises:         DTypeError if `x` is not f32.

    As numpy.nan_to_num and torch.nan_to_num.

    >>> tg.nan_to_num([1.0, np.nan, np.inf], posinf=9.0)
    tensor([1., 0., 9.])
    """
    x = as_tensor(x)
    infinite = rows.where(
        x > 0.0, LARGEST_F32 if posinf is None else posinf, -LARGEST_F32 if neginf is None else neginf
    )
    return rows.where(rows.nonfinite(x), rows.where(rows.isnan(x), nan, infinite), x)


POWERS: dict[float, Callable[[Tensor], Tensor]] = {
    1: lambda x: x,
    2: rows.square,
    3: lambda x: x * rows.square(x),
    0.5: rows.sqrt,
    -0.5: rows.rsqrt,
    -1: reciprocal,
}
