"""Activations. Each is stable for large arguments, and its gradient at a kink is PyTorch's."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from tracegrad.errors import InputError
from tracegrad.hypers import checked
from tracegrad.ir.nodes import Primitive, Tensor, bind
from tracegrad.methods import Operand, entered, method
from tracegrad.prims.elementwise import abs, erf, exp, expm1, log1p, logistic, maximum, square, tanh, where
from tracegrad.prims.leaves import as_tensor
from tracegrad.prims.maps import broadcast, composite, float_type
from tracegrad.prims.rules import alike, symmetric

if TYPE_CHECKING:
    from typing import Any

    from tracegrad.prims.maps import Expansion, Vjp

__all__ = [
    "elu", "gelu", "hardtanh", "leaky_relu", "log_sigmoid", "logaddexp", "relu", "sigmoid", "silu", "softplus",
    "tanhshrink",
]  # fmt: skip

SQRT_HALF = math.sqrt(0.5)
SQRT_EIGHT_OVER_PI = math.sqrt(8.0 / math.pi)
GELU_CUBIC = 0.044715


def pointwise(name: str, expand: Expansion, vjp: Vjp, xla: Any = None) -> Primitive:
    """Register a composite that computes each element from one element of f32."""
    return composite(name, type=float_type, expand=expand, vjp=vjp, jvp=symmetric, batch=alike, xla=xla)


def _relu_xla(x: Any, t: Tensor, value: Any) -> Any:
    """Return relu in JAX, which keeps NaN. XLA can move transposes of images past a maximum, but not past a `where`."""
    return x.np.maximum(value, 0)


# The condition is `x <= 0`, not `x > 0`, so that NaN stays NaN. The VJP reads only y, so x can be freed.
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


def _logaddexp(a: Tensor, b: Tensor) -> Tensor:
    return where(a == b, a + math.log(2.0), maximum(a, b) + log1p(exp(-abs(a - b))))  # inf - inf is NaN


def _logaddexp_vjp(ct: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    return ct * bind(SIGMOID, a - b), ct * bind(SIGMOID, b - a)


LOGADDEXP = composite(
    "logaddexp", type=float_type, expand=_logaddexp, array="logaddexp", vjp=_logaddexp_vjp, jvp=symmetric, batch=alike
)


FLAT = 16.0  # for |x| above this, the weight of the tanh form is exactly 0 or 1, and its slope 0


def _gelu_weight(x: Tensor) -> Tensor:
    """Return (1 + tanh(v)) / 2 = 1 / (1 + exp(-2v)), v = sqrt(2/pi) (x + 0.044715 x^3).

    The second form is cheaper, and has no cancellation where the result is small."""
    return logistic(x * (SQRT_EIGHT_OVER_PI + (SQRT_EIGHT_OVER_PI * GELU_CUBIC) * square(x)))


def _gelu_tanh(x: Tensor) -> Tensor:
    return where(x < -FLAT, -0.0, x * _gelu_weight(x))  # -inf times the weight 0 would be NaN


def _gelu_vjp(ct: Tensor, y: Tensor, x: Tensor) -> tuple[Tensor]:
    """Return ct (p + x p (1 - p) u'(x)), p = p(u(x)). x is limited, because 0 times an infinite square is NaN."""
    x = where(x < -FLAT, -FLAT, where(x > FLAT, FLAT, x))
    p = _gelu_weight(x)
    slope = SQRT_EIGHT_OVER_PI + (3.0 * SQRT_EIGHT_OVER_PI * GELU_CUBIC) * square(x)
    return (ct * (p + x * p * (1.0 - p) * slope),)


GELU_TANH = pointwise("gelu_tanh", _gelu_tanh, _gelu_vjp)


@method
def relu(x: Operand) -> Tensor:
    """Return max(x, 0), element by element.

    x:        f32, any shape. NaN stays NaN.
    Returns:  f32, the shape of `x`.
    Gradient: 1 where x > 0, else 0; so 0 at x = 0.
    Raises:   DTypeError if `x` is not f32.

    As torch.relu.

    >>> tg.relu([-1.0, 0.0, 2.0])
    tensor([0., 0., 2.])
    """
    return bind(RELU, as_tensor(x))


@method
def leaky_relu(x: Operand, alpha: float = 0.01) -> Tensor:
    """Return x where x > 0, and alpha * x elsewhere.

    x:        f32, any shape.
    alpha:    the slope for x <= 0, a Python number.
    Returns:  f32, the shape of `x`.
    Gradient: 1 where x > 0, else alpha; so alpha at x = 0.
    Raises:   DTypeError if `x` is not f32; InputError if `alpha` is not a finite number.

    As torch.nn.functional.leaky_relu.

    >>> tg.leaky_relu([-1.0, 0.0, 2.0], alpha=0.1)
    tensor([-0.1,  0. ,  2. ])
    """
    return bind(LEAKY_RELU, as_tensor(x), alpha=checked("alpha", alpha, what="leaky_relu"))


@method
def elu(x: Operand, alpha: float = 1.0) -> Tensor:
    """Return x where x > 0, and alpha * (exp(x) - 1) elsewhere.

    x:        f32, any shape.
    alpha:    a Python number; the result approaches -alpha for very negative x.
    Returns:  f32, the shape of `x`.
    Gradient: 1 where x > 0, else alpha * exp(x); so alpha at x = 0.
    Raises:   DTypeError if `x` is not f32; InputError if `alpha` is not a finite number.

    As torch.nn.functional.elu (Clevert, Unterthiner and Hochreiter 2016).

    >>> tg.elu([-1.0, 0.0, 2.0])
    tensor([-0.63212055,  0.        ,  2.        ])
    """
    return bind(ELU, as_tensor(x), alpha=checked("alpha", alpha, what="elu"))


@method
def sigmoid(x: Operand) -> Tensor:
    """Return 1 / (1 + exp(-x)), element by element, without overflow.

    x:        f32, any shape.
    Returns:  y, f32, the shape of `x`.
    Gradient: y * (1 - y).
    Raises:   DTypeError if `x` is not f32.

    As torch.sigmoid.

    >>> tg.sigmoid([-1.0, 0.0, 1.0])
    tensor([0.2689414, 0.5      , 0.7310586])
    """
    return bind(SIGMOID, as_tensor(x))


@method
def softplus(x: Operand) -> Tensor:
    """Return log(1 + exp(x)), element by element.

    The formula is max(x, 0) + log(1 + exp(-|x|)), which does not overflow.

    x:        f32, any shape.
    Returns:  f32, the shape of `x`.
    Gradient: sigmoid(x).
    Raises:   DTypeError if `x` is not f32.

    As torch.nn.functional.softplus with beta=1 and no threshold.

    >>> tg.softplus([-1.0, 0.0, 100.0])
    tensor([  0.31326166,   0.6931472 , 100.        ])
    """
    return bind(SOFTPLUS, as_tensor(x))


@method
def log_sigmoid(x: Operand) -> Tensor:
    """Return log(sigmoid(x)), element by element.

    The formula is -softplus(-x), which is finite for every finite x.

    x:        f32, any shape.
    Returns:  f32, the shape of `x`.
    Gradient: sigmoid(-x).
    Raises:   DTypeError if `x` is not f32.

    As torch.nn.functional.logsigmoid.

    >>> tg.log_sigmoid([-100.0, 0.0])
    tensor([-100.       ,   -0.6931472])
    """
    return -softplus(-as_tensor(x))


@method
def silu(x: Operand) -> Tensor:
    """Return x * sigmoid(x), also called swish.

    x:        f32, any shape.
    Returns:  f32, the shape of `x`; NaN at -inf, as in PyTorch.
    Gradient: s * (1 + x * (1 - s)), s = sigmoid(x).
    Raises:   DTypeError if `x` is not f32.

    As torch.nn.functional.silu (Elfwing et al. 2017).

    >>> tg.silu([-1.0, 0.0, 1.0])
    tensor([-0.2689414,  0.       ,  0.7310586])
    """
    x = as_tensor(x)
    return x * sigmoid(x)


@method
def gelu(x: Operand, approximate: str = "none") -> Tensor:
    """Return x times the probability that a standard normal variable is below x.

    "none":  x/2 * (1 + erf(x / sqrt(2)))
    "tanh":  x/2 * (1 + tanh(sqrt(2/pi) * (x + 0.044715 * x^3))), an approximation, used by GPT-2

    x:           f32, any shape.
    approximate: "none" or "tanh", which selects the formula.
    Returns:     f32, the shape of `x`. At -inf, "none" gives NaN, as in PyTorch, and "tanh" gives 0.
    Gradient:    the derivative of the selected formula.
    Raises:      InputError for another `approximate`; DTypeError if `x` is not f32.

    As torch.nn.functional.gelu (Hendrycks and Gimpel 2016).

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
    """Limit each element of `x` to [lo, hi].

    x:        f32, any shape; i32 and u32 as well, if the limits are integers.
    lo, hi:   the limits, numbers with lo < hi, which is not checked.
    Returns:  dtype and shape of `x`. NaN in `x` stays NaN.
    Gradient: 1 where lo < x < hi, else 0; so 0 at the limits, where `clip` has 1.
    Raises:   DTypeError for another dtype.

    As torch.nn.functional.hardtanh.

    >>> tg.hardtanh([-3.0, 0.5, 3.0])
    tensor([-1. ,  0.5,  1. ])
    """
    x = as_tensor(x)
    return where(x <= lo, lo, where(x >= hi, hi, x))


@method
def tanhshrink(x: Operand) -> Tensor:
    """Return x - tanh(x), element by element.

    x:        f32, any shape.
    Returns:  f32, the shape of `x`.
    Gradient: tanh(x)^2.
    Raises:   DTypeError if `x` is not f32.

    As torch.nn.functional.tanhshrink.

    >>> tg.tanhshrink([-1.0, 0.0, 1.0])
    tensor([-0.23840582,  0.        ,  0.23840582])
    """
    x = as_tensor(x)
    return x - tanh(x)


@entered
def logaddexp(a: Operand, b: Operand) -> Tensor:
    """Return log(exp(a) + exp(b)), element by element; a and b broadcast.

    The formula is max(a, b) + log1p(exp(-|a - b|)), which does not overflow. Where a and b are the same infinity, this
    would be NaN, and the result is that infinity.

    a, b:     f32; tensors, arrays (float64 becomes f32) or floats, of any shape. -inf, the logarithm of 0, is allowed.
    Returns:  f32, the broadcast shape.
    Gradient: sigmoid(a - b) to `a`, sigmoid(b - a) to `b`; NaN where both are the same infinity.
    Raises:   DTypeError for other dtypes; ShapeError if the shapes do not broadcast.

    As numpy.logaddexp and torch.logaddexp.

    >>> tg.logaddexp([0.0, 100.0], 0.0)
    tensor([  0.6931472, 100.       ])
    """
    return bind(LOGADDEXP, *broadcast(a, b))
