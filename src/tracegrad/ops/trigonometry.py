"""Circular and hyperbolic functions made of the elementwise ops of `prims.elementwise`."""

from __future__ import annotations

import functools
import math

from tracegrad.ir.nodes import Tensor, bind
from tracegrad.methods import Operand, method
from tracegrad.ops.activation import pointwise
from tracegrad.prims.elementwise import abs, atan2, cos, expm1, half_exp, rsqrt, sin, sqrt, where
from tracegrad.prims.leaves import as_tensor

__all__ = ["acos", "asin", "atan", "cosh", "sinh", "tan"]


def _rest(x: Tensor) -> Tensor:
    """Return 1 - x^2, computed without cancellation near 1."""
    return (1.0 - x) * (1.0 + x)


# asin(s) = s + s^3 P(s^2) for s <= 1/2, minimax: relative error 4.9e-9
ASIN_P = (0.042213183, 0.024151765, 0.04547605, 0.07495252, 0.16666754)


def polynomial(coefficients: tuple[float, ...], z: Tensor) -> Tensor:
    """Return a polynomial of `z`, with the coefficient of its highest power first."""
    return functools.reduce(lambda p, c: p * z + c, coefficients[2:], z * coefficients[0] + coefficients[1])


def _small_asin(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return whether |x| < 1/2, and asin(x) there; elsewhere asin(sqrt((1 - |x|) / 2)), half of acos(|x|)."""
    small = abs(x) < 0.5
    z = where(small, x * x, (1.0 - abs(x)) * 0.5)
    s = where(small, x, sqrt(z))
    p = polynomial(ASIN_P, z)
    return small, s + s * z * p


def _asin(x: Tensor) -> Tensor:
    small, p = _small_asin(x)
    far = math.pi / 2 - 2.0 * p
    return where(small, p, where(x < 0.0, -far, far))


def _acos(x: Tensor) -> Tensor:
    small, p = _small_asin(x)
    return where(small, math.pi / 2 - p, where(x < 0.0, math.pi - 2.0 * p, 2.0 * p))


LARGE = 20.0  # from here on, rounding removes e^-x from e^x + e^-x


def _sinh(x: Tensor) -> Tensor:
    size = abs(x)
    u = expm1(where(size < LARGE, size, 0.0))
    y = where(size < LARGE, (u + u / (u + 1.0)) * 0.5, half_exp(size))
    return where(x < 0.0, -y, y)


def _cosh(x: Tensor) -> Tensor:
    y = half_exp(abs(x))
    return y + 0.25 / y


TAN = pointwise("tan", lambda x: sin(x) / cos(x), lambda ct, y, x: (ct * (1.0 + y * y),))
# 1 / sqrt(1 - x^2). The derivative of its formula would cancel near 0, and be inf - inf at 1
ASIN_SLOPE = pointwise("asin_slope", lambda x: rsqrt(_rest(x)), lambda ct, y, x: (ct * (x * (y * y)) * y,))
ASIN = pointwise("asin", _asin, lambda ct, y, x: (ct * bind(ASIN_SLOPE, x),))
ACOS = pointwise("acos", _acos, lambda ct, y, x: (-ct * bind(ASIN_SLOPE, x),))
# The derivative uses y: the square of a large x overflows before the slope of 1 / (1 + x^2) reaches 0
ATAN_SLOPE = pointwise("atan_slope", lambda x: 1.0 / (1.0 + x * x), lambda ct, y, x: (ct * (x * y * -2.0) * y,))
ATAN = pointwise("atan", lambda x: atan2(x, 1.0), lambda ct, y, x: (ct * bind(ATAN_SLOPE, x),))
SINH = pointwise("sinh", _sinh, lambda ct, y, x: (ct * bind(COSH, x),))
COSH = pointwise("cosh", _cosh, lambda ct, y, x: (ct * bind(SINH, x),))


@method
def tan(x: Operand) -> Tensor:
    """Return the tangent of x radians, sin(x) / cos(x), element by element.

    x:        f32, any shape.
    Returns:  f32, shape of `x`.
    Gradient: 1 + tan(x)^2.
    Raises:   DTypeError if `x` is not f32.

    As numpy.tan and torch.tan.

    >>> tg.tan([0.0, 0.25])
    tensor([0.        , 0.25534192])
    """
    return bind(TAN, as_tensor(x))


@method
def asin(x: Operand) -> Tensor:
    """Return the angle in [-pi/2, pi/2], in radians, whose sine is `x`, element by element.

    x:        f32, any shape.
    Returns:  f32, shape of `x`. Outside [-1, 1] the result is NaN.
    Gradient: 1 / sqrt(1 - x^2), infinite at 1 and -1.
    Raises:   DTypeError if `x` is not f32.

    As numpy.arcsin and torch.asin.

    >>> tg.asin([0.0, 1.0])
    tensor([0.       , 1.5707964])
    """
    return bind(ASIN, as_tensor(x))


@method
def acos(x: Operand) -> Tensor:
    """Return the angle in [0, pi], in radians, whose cosine is `x`, element by element.

    x:        f32, any shape.
    Returns:  f32, shape of `x`. Outside [-1, 1] the result is NaN.
    Gradient: -1 / sqrt(1 - x^2), infinite at 1 and -1.
    Raises:   DTypeError if `x` is not f32.

    As numpy.arccos and torch.acos.

    >>> tg.acos([1.0, -1.0])
    tensor([0.       , 3.1415927])
    """
    return bind(ACOS, as_tensor(x))


@method
def atan(x: Operand) -> Tensor:
    """Return the angle in [-pi/2, pi/2], in radians, whose tangent is `x`, element by element.

    x:        f32, any shape. For the angle of a point in any quadrant, use `tg.atan2(y, x)`.
    Returns:  f32, shape of `x`.
    Gradient: 1 / (1 + x^2).
    Raises:   DTypeError if `x` is not f32.

    As numpy.arctan and torch.atan.

    >>> tg.atan([0.0, 1.0, np.inf])
    tensor([0.       , 0.7853981, 1.5707964])
    """
    return bind(ATAN, as_tensor(x))


@method
def sinh(x: Operand) -> Tensor:
    """Return the hyperbolic sine, (exp(x) - exp(-x)) / 2, element by element; accurate also near 0.

    x:        f32, any shape.
    Returns:  f32, shape of `x`; inf or -inf from |x| = 89.41599 on.
    Gradient: cosh(x).
    Raises:   DTypeError if `x` is not f32.

    As numpy.sinh and torch.sinh.

    >>> tg.sinh([0.0, 1.0])
    tensor([0.       , 1.1752012])
    """
    return bind(SINH, as_tensor(x))


@method
def cosh(x: Operand) -> Tensor:
    """Return the hyperbolic cosine, (exp(x) + exp(-x)) / 2, element by element.

    x:        f32, any shape.
    Returns:  f32, shape of `x`; inf from |x| = 89.41599 on.
    Gradient: sinh(x).
    Raises:   DTypeError if `x` is not f32.

    As numpy.cosh and torch.cosh.

    >>> tg.cosh([0.0, 1.0])
    tensor([1.       , 1.5430806])
    """
    return bind(COSH, as_tensor(x))
