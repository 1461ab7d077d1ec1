"""The logarithm of the gamma function and its derivative, made of the elementwise ops of `prims.elementwise`."""

from __future__ import annotations

import math

from tracegrad.ir.nodes import Tensor, bind
from tracegrad.methods import Operand, method
from tracegrad.ops.activation import pointwise
from tracegrad.ops.trigonometry import polynomial
from tracegrad.prims.elementwise import abs, cos, log, logical_not, round, sin, where
from tracegrad.prims.leaves import as_tensor
from tracegrad.prims.maps import float_type

__all__ = ["digamma", "lgamma"]

# lgamma(2 + t) = t P(t) for -1/2 <= t <= 1, minimax: relative error 5e-9
LGAMMA_P = (4.959783e-05, -0.00022089351, 0.0005413139, -0.0012045177, 0.0028842521, -0.0073827578, 0.02058132,
            -0.067352486, 0.32246702, 0.42278434)  # fmt: skip
# Stirling's series, in powers of 1 / x^2: of lgamma from 3 on, and of digamma from 6 on, below 1e-8 of the result
STIRLING = (1 / 1188, -1 / 1680, 1 / 1260, -1 / 360, 1 / 12)
STIRLING_SLOPE = (1 / 252, -1 / 120, 1 / 12)
SHIFTS = 6


def _mirrored(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return whether x < 0, the argument of the reflection formula, and pi times the distance of x to an integer.

    For x >= 0, the last value is pi / 2, so that sine, cosine and their derivatives are finite.
    """
    below = x < 0.0
    return below, where(below, 1.0 - x, x), where(below, (x - round(x)) * math.pi, math.pi / 2)


def _lgamma(x: Tensor) -> Tensor:
    below, z, angle = _mirrored(x)
    near = where(z < 3.0, z, 2.0)  # both branches are computed
    tiny, low = near < 0.5, near < 1.5
    t = near - where(tiny, 0.0, where(low, 1.0, 2.0))
    factor = where(tiny, near * (near + 1.0), where(low, near, 1.0))  # gamma(x) = gamma(x + 1) / x
    small = t * polynomial(LGAMMA_P, t) - log(factor)
    far = where(z < 3.0, 3.0, z)
    r = 1.0 / far
    large = (far - 0.5) * (log(far) - 1.0) + (math.log(2 * math.pi) / 2 - 0.5) + r * polynomial(STIRLING, r * r)
    y = where(z < 3.0, small, large)
    size = abs(sin(angle))
    pole = logical_not(size > 0.0)  # of -inf, too, whose angle is NaN
    turned = math.log(math.pi) - log(where(pole, 1.0, size)) - y
    return where(below, where(pole, math.inf, turned), y)


LGAMMA = pointwise("lgamma", _lgamma, lambda ct, y, x: (ct * digamma(x),))


@method
def lgamma(x: Operand) -> Tensor:
    """Return the logarithm of the absolute value of the gamma function, element by element.

    gamma(x) = integral over t > 0 of t^(x - 1) exp(-t) for x > 0; lgamma(n + 1) = log(n!) for an integer n

    x:        f32, any shape. 0 and negative integers give infinity.
    Returns:  f32, the shape of `x`. For x >= -100 the error is at most 4e-6, or relative 4e-7 if |result| > 10.
    Gradient: digamma(x).
    Raises:   DTypeError if `x` is not f32.

    As torch.lgamma and scipy.special.gammaln.

    >>> tg.lgamma([1.0, 5.0])                       # log(0!) and log(4!)
    tensor([0.       , 3.1780539])
    """
    return bind(LGAMMA, as_tensor(x))


@method
def digamma(x: Operand) -> Tensor:
    """Return the derivative of the logarithm of the gamma function, element by element.

    out = d lgamma(x) / dx

    x:        f32, any shape. Negative integers give NaN, 0 gives -infinity, and -0.0 infinity.
    Returns:  f32, the shape of `x`. For x >= -10 the error is at most 1e-6, relative if |result| > 1.
    Gradient: the trigamma function of `x`.
    Raises:   DTypeError if `x` is not f32.

    As torch.digamma and scipy.special.digamma.

    >>> tg.digamma([1.0, 10.0])
    tensor([-0.5772157,  2.2517526])
    """
    x = as_tensor(x)
    float_type(x.type)
    below, z, angle = _mirrored(x)
    near = z < SHIFTS
    far = where(near, z + float(SHIFTS), z)
    r = 1.0 / far
    y = log(far) - r * (0.5 + r * polynomial(STIRLING_SLOPE, r * r))
    small = where(near, z, 1.0)
    for k in range(SHIFTS):
        y = y - where(near, 1.0 / (small + float(k) if k else small), 0.0)
    pole = sin(angle) == 0.0
    return y - where(below, math.pi * cos(angle) / where(pole, math.nan, sin(angle)), 0.0)
