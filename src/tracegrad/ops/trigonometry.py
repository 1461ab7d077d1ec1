"""Circular and hyperbolic functions made of the elementwise ops of `prims.elementwise`."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tracegrad.ir import Primitive, Tensor, bind
from tracegrad.methods import Operand, method
from tracegrad.prims.composites import composite
from tracegrad.prims.elementwise import abs, atan2, cos, expm1, float_type, half_exp, rsqrt, sin, sqrt, where
from tracegrad.prims.leaves import as_tensor
from tracegrad.prims.rules import alike, symmetric

if TYPE_CHECKING:
    from tracegrad.prims.composites import Expansion, Vjp

__all__ = ["acos", "asin", "atan", "cosh", "sinh", "tan"]


def _elementwise(name: str, expand: Expansion, vjp: Vjp) -> Primitive:
    return composite(name, type=float_type, expand=expand, vjp=vjp, jvp=symmetric, batch=alike)


def _rest(x: Tensor) -> Tensor:
    """Return 1 - x^2, computed without cancellation near 1."""
    return (1.0 - x) * (1.0 + x)


LARGE = 20.0  # from here on, e^-x is lost in rounding beside e^x


def _sinh(x: Tensor) -> Tensor:
    size = abs(x)
    u = expm1(where(size < LARGE, size, 0.0))
    y = where(size < LARGE, (u + u / (u + 1.0)) * 0.5, half_exp(size))
    return where(x < 0.0, -y, y)


def _cosh(x: Tensor) -> Tensor:
    y = half_exp(abs(x))
    return y + 0.25 / y


TAN = _elementwise("tan", lambda x: sin(x) / cos(x), lambda ct, y, x: (ct * (1.0 + y * y),))
# 1 / sqrt(1 - x^2). The derivative of its formula would cancel near 0, and be inf - inf at 1
ASIN_SLOPE = _elementwise("asin_slope", lambda x: rsqrt(_rest(x)), lambda ct, y, x: (ct * (x * (y * y)) * y,))
ASIN = _elementwise("asin", lambda x: atan2(x, sqrt(_rest(x))), lambda ct, y, x: (ct * bind(ASIN_SLOPE, x),))
ACOS = _elementwise("acos", lambda x: atan2(sqrt(_rest(x)), x), lambda ct, y, x: (-ct * bind(ASIN_SLOPE, x),))
# The derivative uses y: the square of a large x overflows before the slope of 1 / (1 + x^2) reaches 0
ATAN_SLOPE = _elementwise("atan_slope", lambda x: 1.0 / (1.0 + x * x), lambda ct, y, x: (ct * (x * y * -2.0) * y,))
ATAN = _elementwise("atan", lambda x: atan2(x, 1.0), lambda ct, y, x: (ct * bind(ATAN_SLOPE, x),))
SINH = _elementwise("sinh", _sinh, lambda ct, y, x: (ct * bind(COSH, x),))
COSH = _elementwise("cosh", _cosh, lambda ct, y, x: (ct * bind(SINH, x),))


@method
def tan(x: Operand) -> Tensor:
    """Return the tangent, sin(x) / cos(x), element by element.

    x:        f32, any shape, in radians.
    Gradient: 1 + tan(x)^2. Raises DTypeError if `x` is not f32.
    As numpy.tan and torch.tan.

    >>> import tracegrad as tg
    >>> tg.tan(tg.tensor([0.0, 0.25]))
    tensor([0.        , 0.25534192])
    """
    return bind(TAN, as_tensor(x))


@method
def asin(x: Operand) -> Tensor:
    """Return the angle in [-pi/2, pi/2] whose sine is `x`: atan2(x, sqrt(1 - x^2)).

    x:        f32, any shape; NaN outside [-1, 1].
    Gradient: 1 / sqrt(1 - x^2), infinite at 1 and -1. Raises DTypeError if `x` is not f32.
    As numpy.arcsin and torch.asin.

    >>> import tracegrad as tg
    >>> tg.asin(1.0)
    tensor(1.5707964)
    """
    return bind(ASIN, as_tensor(x))


@method
def acos(x: Operand) -> Tensor:
    """Return the angle in [0, pi] whose cosine is `x`: atan2(sqrt(1 - x^2), x).

    x:        f32, any shape; NaN outside [-1, 1].
    Gradient: -1 / sqrt(1 - x^2), infinite at 1 and -1. Raises DTypeError if `x` is not f32.
    As numpy.arccos and torch.acos.

    >>> import tracegrad as tg
    >>> tg.acos(-1.0)
    tensor(3.1415927)
    """
    return bind(ACOS, as_tensor(x))


@method
def atan(x: Operand) -> Tensor:
    """Return the angle in (-pi/2, pi/2) whose tangent is `x`: atan2(x, 1).

    x:        f32, any shape. `tg.atan2(y, x)` distinguishes quadrants, too.
    Gradient: 1 / (1 + x^2). Raises DTypeError if `x` is not f32.
    As numpy.arctan and torch.atan.

    >>> import tracegrad as tg
    >>> tg.atan(0.0)
    tensor(0.)
    """
    return bind(ATAN, as_tensor(x))


@method
def sinh(x: Operand) -> Tensor:
    """Return the hyperbolic sine, (exp(x) - exp(-x)) / 2, without cancellation near 0.

    x:        f32, any shape. The result overflows from x = 89.4 on.
    Gradient: cosh(x). Raises DTypeError if `x` is not f32.
    As numpy.sinh and torch.sinh.

    >>> import tracegrad as tg
    >>> tg.sinh(1.0)
    tensor(1.1752012)
    """
    return bind(SINH, as_tensor(x))


@method
def cosh(x: Operand) -> Tensor:
    """Return the hyperbolic cosine, (exp(x) + exp(-x)) / 2.

    x:        f32, any shape. The result overflows from x = 89.4 on.
    Gradient: sinh(x). Raises DTypeError if `x` is not f32.
    As numpy.cosh and torch.cosh.

    >>> import tracegrad as tg
    >>> tg.cosh(0.0)
    tensor(1.)
    """
    return bind(COSH, as_tensor(x))
