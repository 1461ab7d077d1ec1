"""Activations. Each is stable for large arguments, and its gradient at a kink is PyTorch's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tracegrad.errors import InputError
from tracegrad.hypers import checked
from tracegrad.ir.nodes import Primitive, Tensor, bind
from tracegrad.methods import Operand, method
from tracegrad.prims.elementwise import abs, erf, exp, expm1, log1p, logistic, square, tanh, where
from tracegrad.prims.leaves import as_tensor
from tracegrad.prims.maps import composite, float_type
from tracegrad.prims.rules import alike, symmetric

if TYPE_CHECKING:
    from typing import Any

    from tracegrad.prims.maps import Expansion, Vjp

__all__ = ["elu", "gelu", "hardtanh", "leaky_relu", "log_sigmoid", "relu", "sigmoid", "silu", "softplus", "tanhshrink"]

SQRT_HALF = math.sqrt(0.5)
SQRT_EIGHT_OVER_PI = math.sqrt(8.0 / math.pi)
GELU_CUBIC = 0.044715


def pointwise(name: str, expand: Expansion, vjp: Vjp, xla: Any = None) -> Primitive:
    """Register a composite that computes each element from one element of f32."""
    return composite(name, type=float_type, expand=expand, vjp=vjp, jvp=symmetric, batch=alike, xla=xla)


def _relu_xla(x: Any, t: Tensor, value: Any) -> Any:
    """Keep NaN, too. XLA moves transposes of images behind a maximum, but not behind a choice."""
    return x.np.maximum(value, 0)


# The condition is `x <= 0`, not `x > 0`, so that NaN stays NaN. A VJP that reads only y lets x be freed.
RELU = pointwise("relu", lambda x: where(x <= 0.0, 0.0, x), lambda ct, y, x: (where(y > 0.0, ct, 0.0),), _relu_xla)


def _leaky(x: Tensor, *, alpha: float) -> Tensor:
    return where(x <= 0.0, x * alpha, x)


def _leaky_vjp(ct: Tensor, y: Tensor, x: Tensor, *, alpha: float) -> tuple[Tensor]:
    """Return the cotangent times 1 or alpha. For alpha >= 0, y has the sign of x."""
    return (where((y if alpha >= 0 else x) > 0.0, ct, ct * alpha),)


LEAKY_RELU = pointwise("leaky_relu", _leaky, _leaky_vjp)


def _elu(x: Tensor, *, alpha: float) -> Tensor:
    small = where(x > 0.0, 0.0, x)  # both branches are computed, so expm1 must not overflow
    return where(x > 0.0, x, expm1(small) * alpha)


def _elu_vjp(ct: Tensor, y: Tensor, x: Tensor, *, alpha: float) -> tuple[Tensor]:
    return (where((y if alpha >= 0 else x) > 0.0, ct, ct * (y + alpha)),)


ELU = pointwise("elu", _elu, _elu_vjp)


def _sigmoid(x: Tensor) -> Tensor:
    e = exp(-abs(x))  # at most 1, so nothing overflows
    r = 1.0 / (1.0 + e)
    return where(x < 0.0, e * r, r)


SIGMOID = pointwise("sigmoid", _sigmoid, lambda ct, y, x: (ct * (y * (1.0 - y)),))
SOFTPLUS = pointwise(
    "softplus", lambda x: where(x <= 0.0, 0.0, x) + log1p(exp(-abs(x))), lambda ct, y, x: (ct * bind(SIGMOID, x),)
)


FLAT = 16.0  # for |x| above this, the weight of the tanh form is exactly 0 or 1, and its slope 0


def _gelu_weight(x: Tensor) -> Tensor:
    """Return (1 + tanh(v)) / 2 = 1 / (1 + exp(-2v)), v = sqrt(2/pi) (x + 0.044715 x^3).

    The second form is cheaper, and does not cancel where it is small."""
    return logistic(x * (SQRT_EIGHT_OVER_PI + (SQRT_EIGHT_OVER_PI * GELU_CUBIC) * square(x)))


def _gelu_tanh(x: Tensor) -> Tensor:
    x = where(x < -FLAT, -FLAT, x)  # -inf times the weight 0 would be NaN
    return x * _gelu_weight(x)


def _gelu_vjp(ct: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor]:
    """Return ct (p + x p (1 - p) u'(x)), p = p(u(x)). x is limited, because 0 times an infinite square is NaN."""
    x = where(x < -FLAT, -FLAT, where(x > FLAT, FLAT, x))
    p = _gelu_weight(x)
    slope = SQRT_EIGHT_OVER_PI + (3.0 * SQRT_EIGHT_OVER_PI * GELU_CUBIC) * square(x)
    return (ct * (p + x * p * (1.0 - p) * slope),)


GELU_TANH = pointwise("gelu_tanh", _gelu_tanh, _gelu_vjp)


@method
def relu(x: Operand) -> Tensor:
    """Return max(x, 0), element by element. f32, any shape; gradient 0 at 0; NaN stays NaN.

    Raises:   DTypeError if x is not f32. As torch.relu.

    >>> tg.relu([-1.0, 0.0, 2.0])
    tensor([0., 0., 2.])
    """
    return bind(RELU, as_tensor(x))


@method
def leaky_relu(x: Operand, alpha: float = 0.01) -> Tensor:
    """Return `x` where it is positive, else `alpha * x`. f32, any shape; gradient alpha at 0.

    Raises:   DTypeError if x is not f32. As torch.nn.functional.leaky_relu.

    >>> tg.leaky_relu([-1.0, 2.0])
    tensor([-0.01,  2.  ])
    """
    return bind(LEAKY_RELU, as_tensor(x), alpha=checked("alpha", alpha, what="leaky_relu"))


@method
def elu(x: Operand, alpha: float = 1.0) -> Tensor:
    """Return `x` where it is positive, else `alpha * (exp(x) - 1)`. f32, any shape; gradient alpha at 0.

    As torch.nn.functional.elu (Clevert, Unterthiner and Hochreiter 2016).
    Raises:   DTypeError if x is not f32.

    >>> tg.elu([-1.0, 2.0])
    tensor([-0.63212055,  2.        ])
    """
    return bind(ELU, as_tensor(x), alpha=checked("alpha", alpha, what="elu"))


@method
def sigmoid(x: Operand) -> Tensor:
    """Return y = 1 / (1 + exp(-x)), without overflow for any x. f32, any shape; gradient y (1 - y).

    Raises:   DTypeError if x is not f32. As torch.sigmoid.

    >>> tg.sigmoid([-1.0, 0.0, 1.0])
    tensor([0.2689414, 0.5      , 0.7310586])
    """
    return bind(SIGMOID, as_tensor(x))


@method
def softplus(x: Operand) -> Tensor:
    """Return log(1 + exp(x)), computed as max(x, 0) + log1p(exp(-|x|)). f32, any shape; gradient sigmoid(x).

    Raises:   DTypeError if x is not f32. As torch.nn.functional.softplus.

    >>> tg.softplus([-100.0, 0.0, 100.0])
    tensor([3.783506e-44, 6.931472e-01, 1.000000e+02])
    """
    return bind(SOFTPLUS, as_tensor(x))


@method
def log_sigmoid(x: Operand) -> Tensor:
    """Return log(sigmoid(x)), computed as -softplus(-x): finite for all finite x. f32, any shape; gradient sigmoid(-x).

    Raises:   DTypeError if x is not f32. As torch.nn.functional.logsigmoid.

    >>> tg.log_sigmoid([-100.0, 0.0])
    tensor([-100.       ,   -0.6931472])
    """
    return -softplus(-as_tensor(x))


@method
def silu(x: Operand) -> Tensor:
    """Return x * sigmoid(x), also called swish. f32, any shape. As torch.nn.functional.silu (Elfwing et al. 2017).

    Gradient: s (1 + x (1 - s)), s = sigmoid(x). Raises DTypeError if x is not f32.

    >>> tg.silu([-1.0, 0.0, 1.0])
    tensor([-0.2689414,  0.       ,  0.7310586])
    """
    x = as_tensor(x)
    return x * sigmoid(x)


@method
def gelu(x: Operand, approximate: str = "none") -> Tensor:
    """Return x times the standard normal distribution function at x. As torch.nn.functional.gelu.

    approximate="none":  x/2 (1 + erf(x / sqrt 2))
    approximate="tanh":  x/2 (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))), the form of GPT-2

    x: f32, any shape. Gradient: the derivative of the chosen form, everywhere.
    Raises InputError for another `approximate`, DTypeError if x is not f32. Hendrycks and Gimpel 2016.

    >>> tg.gelu([-1.0, 0.0, 2.0])
    tensor([-0.15865523,  0.        ,  1.9544997 ])
    """
    x = as_tensor(x)
    if approximate == "tanh":
        return bind(GELU_TANH, x)
    if approximate != "none":
        raise InputError(f'approximate must be "none" or "tanh", got {approximate!r}')
    return 0.5 * x * (1.0 + erf(x * SQRT_HALF))


@method
def hardtanh(x: Operand, lo: float = -1.0, hi: float = 1.0) -> Tensor:
    """Limit `x` to [lo, hi], element by element. f32, any shape.

    Gradient: 1 inside of (lo, hi), else 0, also at the limits; that of `clip` is 1 there.
    Raises:   DTypeError if x is not f32. As torch.nn.functional.hardtanh.

    >>> tg.hardtanh([-3.0, 0.5, 3.0])
    tensor([-1. ,  0.5,  1. ])
    """
    x = as_tensor(x)
    return where(x <= lo, lo, where(x >= hi, hi, x))


@method
def tanhshrink(x: Operand) -> Tensor:
    """Return x - tanh(x), element by element.

    x: f32, any shape. Gradient: tanh(x)^2. Raises DTypeError if x is not f32. As torch.nn.functional.tanhshrink.

    >>> tg.tanhshrink([-1.0, 0.0, 1.0])
    tensor([-0.23840582,  0.        ,  0.23840582])
    """
    x = as_tensor(x)
    return x - tanh(x)
