"""Softmax and normalisation: chains of reductions over some axes with kept dimensions. Each chain becomes one kernel.

Each op has a VJP of its own that reads few values, so the backward pass needs no stored intermediate results.
"""

from __future__ import annotations

from typing import Any

from tracegrad.dtypes import LARGEST_F32, Axes, TensorType, normalize_axes, normalize_axis, show
from tracegrad.errors import ShapeError
from tracegrad.hypers import AT_LEAST_0, checked
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.methods import Operand, entered, method
from tracegrad.ops.reduction import reduced_float
from tracegrad.prims import views
from tracegrad.prims.elementwise import exp, log, nonfinite, rsqrt, square, where
from tracegrad.prims.folds import PEAK, count, drop
from tracegrad.prims.leaves import as_tensor, as_tensors, iota
from tracegrad.prims.maps import composite, float_type
from tracegrad.prims.rules import alike, shifted, symmetric

__all__ = ["batch_norm", "layer_norm", "log_softmax", "logsumexp", "rms_norm", "softmax", "softmax_causal",
           "where_causal"]  # fmt: skip

INF = float("inf")


def _along(x: TensorType, *, axis: int) -> TensorType:
    normalize_axis(axis, x.ndim)
    return float_type(x)


# softmax
def peak(x: Tensor, axis: int = -1) -> Tensor:
    """Return the largest elements along `axis`, to subtract so that exponentials stay finite."""
    return bind(PEAK, x, axes=(normalize_axis(axis, x.ndim),))


def _softmax(x: Tensor, *, axis: int) -> Tensor:
    e = exp(x - peak(x, axis))
    return e / e.sum(axis, keepdims=True)


def softmax_vjp(ct: Tensor, y: Tensor, *_: Tensor, axis: int) -> tuple[Tensor]:
    """Return y (ct - sum(ct y)). The rule reads only y, so x and exp(x) can be freed."""
    return (y * (ct - (ct * y).sum(axis, keepdims=True)),)


SOFTMAX = composite("softmax", type=_along, expand=_softmax, vjp=softmax_vjp, jvp=symmetric, batch=shifted)


@method
def softmax(x: Any, axis: int = -1) -> Tensor:
    """Return the softmax along `axis`: exponentials divided by their sum.

    out = exp(x - m) / sum(exp(x - m)), m = max(x), with maximum and sum along `axis`

    x:        f32, rank at least 1.
    axis:     an axis of `x`; by default the last.
    Returns:  f32, shape of `x`; sums along `axis` are 1. All are NaN if all of `x` along `axis` are -inf, or one is inf
              or NaN.
    Gradient: out * (dy - sum(dy * out)), dy the result's gradient.
    Raises:   ShapeError if `axis` is out of range; DTypeError if `x` is not f32.

    As torch.softmax.

    >>> tg.softmax([[0.0, 0.0], [0.0, 2.0]])
    tensor([[0.5       , 0.5       ],
            [0.11920292, 0.880797  ]])
    """
    return bind(SOFTMAX, as_tensor(x), axis=axis)


def _log_softmax(x: Tensor, *, axis: int) -> Tensor:
    z = x - peak(x, axis)
    return z - log(exp(z).sum(axis, keepdims=True))


def _log_softmax_vjp(ct: Tensor, y: Tensor, x: Tensor, *, axis: int) -> tuple[Tensor]:
    return (ct - exp(y) * ct.sum(axis, keepdims=True),)


LOG_SOFTMAX = composite(
    "log_softmax",
    type=_along,
    expand=_log_softmax,
    vjp=_log_softmax_vjp,
    batch=shifted,
)


@method
def log_softmax(x: Any, axis: int = -1) -> Tensor:
    """Return log(softmax(x)) along `axis`; small probabilities do not underflow to log(0).

    out = x - m - log(sum(exp(x - m))), m = max(x), with maximum and sum along `axis`

    x:        f32, rank at least 1.
    axis:     an axis of `x`; by default the last.
    Returns:  f32, shape of `x`. All are NaN if all of `x` along `axis` are -inf, or one is inf or NaN.
    Gradient: dy - softmax(x) * sum(dy), dy the result's gradient.
    Raises:   ShapeError if `axis` is out of range; DTypeError if `x` is not f32.

    As torch.log_softmax.

    >>> tg.log_softmax([0.0, 0.0])
    tensor([-0.6931472, -0.6931472])
    """
    return bind(LOG_SOFTMAX, as_tensor(x), axis=axis)


# Causal masks: row q sees the columns k <= q
def _square(x: TensorType) -> TensorType:
    if x.ndim < 2 or x.shape[-1] != x.shape[-2]:
        raise ShapeError(f"the last two axes must be equal (queries and keys), got {x}")
    return float_type(x)


def _allowed(x: Tensor) -> Tensor:
    return iota(x.shape, x.ndim - 1) <= iota(x.shape, x.ndim - 2)


def _softmax_causal(x: Tensor) -> Tensor:
    allowed = _allowed(x)
    m = peak(where(allowed, x, -INF))
    e = exp(x - m)
    s = where(allowed, e, 0.0).sum(-1, keepdims=True)
    return where(allowed, e / s, 0.0)  # `where`, because exp(-inf) is not exactly 0 on every driver


def softmax_causal_vjp(ct: Tensor, y: Tensor, *_: Tensor) -> tuple[Tensor]:
    """Return softmax's VJP with every value masked, so that the matmuls before and after it skip the hidden half."""
    allowed = _allowed(y)
    s = where(allowed, ct * y, 0.0).sum(-1, keepdims=True)
    return (where(allowed, y * (ct - s), 0.0),)


SOFTMAX_CAUSAL = composite(
    "softmax_causal", type=_square, expand=_softmax_causal, vjp=softmax_causal_vjp, jvp=symmetric, batch=alike
)


@entered
def softmax_causal(x: Any) -> Tensor:
    """Return the softmax of each row of `x` up to the diagonal, with exact zeros above it: causal attention.

    out[..., q, k] = exp(x[..., q, k]) / sum over j <= q of exp(x[..., q, j]) for k <= q, else 0

    x:        f32, shape (..., T, T): scores of queries q (rows) against keys k (columns). Scores above the diagonal are
              ignored, even if they are NaN.
    Returns:  f32, shape of `x`.
    Gradient: that of `softmax` up to the diagonal, 0 above it.
    Raises:   ShapeError if the last two axes differ; DTypeError if `x` is not f32.

    As torch.softmax of scores that are -inf above the diagonal.

    >>> tg.softmax_causal(tg.zeros((2, 2)))
    tensor([[1. , 0. ],
            [0.5, 0.5]])
    """
    return bind(SOFTMAX_CAUSAL, as_tensor(x))


@entered
def where_causal(x: Any, fill: Any) -> Tensor:
    """Replace the elements above the diagonal of the last two axes by `fill`.

    out[..., q, k] = x[..., q, k] for k <= q, else fill

    x:        any dtype, shape (..., Q, K).
    fill:     a number, or a tensor of rank 0 and the dtype of `x`.
    Returns:  dtype and shape of `x`.
    Gradient: to `x`, the result's gradient up to the diagonal and 0 above it; to `fill`, the sum of the result's
              gradient above the diagonal.
    Raises:   ShapeError if the rank of `x` is below 2, or that of `fill` above 0; DTypeError if `fill` has another
              dtype.

    torch.tril(x) is tg.where_causal(x, 0).

    >>> tg.where_causal(tg.ones((2, 2)), -np.inf)
    tensor([[  1., -inf],
            [  1.,   1.]])
    """
    x = as_tensor(x)
    if x.ndim < 2:
        raise ShapeError(f"x must have at least 2 axes, got {x.type}")
    x, other = as_tensors(x, fill)
    if other.ndim:
        raise ShapeError(
            f"fill must be a number or a tensor of rank 0, got {other.type}; write tg.where(tg.tril(mask), x, fill), "
            "with mask = tg.ones((Q, K), tg.bool_)"
        )
    return where(_allowed(x), x, other)


# Normalisation: zero mean, unit variance over `axes`
def _centred(x: Tensor, axes: tuple[int, ...], eps: float) -> tuple[Tensor, Tensor]:
    """Return x - mean, and 1/sqrt(variance + eps) with kept dimensions."""
    c = x - x.mean(axes, keepdims=True)
    return c, rsqrt(square(c).mean(axes, keepdims=True) + eps)


def _normalize(x: Tensor, *, axes: tuple[int, ...], eps: float) -> Tensor:
    c, r = _centred(x, axes, eps)
    return c * r


def _normalize_vjp(ct: Tensor, y: Tensor, x: Tensor, *, axes: tuple[int, ...], eps: float) -> tuple[Tensor]:
    """Return the gradient from two independent means. The derivative of each op would need three, one after another."""
    r = _centred(x, axes, eps)[1]
    return (r * (ct - ct.mean(axes, keepdims=True) - y * (ct * y).mean(axes, keepdims=True)),)


NORMALIZE = composite("normalize", type=float_type, expand=_normalize, vjp=_normalize_vjp, jvp=symmetric, batch=shifted)


def _rms(x: Tensor, eps: float) -> Tensor:
    return rsqrt(square(x).mean(-1, keepdims=True) + eps)


def _rms_normalize(x: Tensor, *, eps: float) -> Tensor:
    return x * _rms(x, eps)


def _rms_normalize_vjp(ct: Tensor, y: Tensor, x: Tensor, *, eps: float) -> tuple[Tensor]:
    return (_rms(x, eps) * (ct - y * (ct * y).mean(-1, keepdims=True)),)


RMS_NORMALIZE = composite(
    "rms_normalize", type=float_type, expand=_rms_normalize, vjp=_rms_normalize_vjp, jvp=symmetric, batch=alike
)


def _per_channel(x: Tensor, axis: int, **given: Any) -> list[Tensor | None]:
    """Check that each given vector has one element per channel, and shape it to broadcast along `axis`."""
    n = x.shape[axis]
    out: list[Tensor | None] = []
    for name, value in given.items():
        v = None if value is None else as_tensors(value, x)[0]
        if v is not None and v.shape != (n,):
            raise ShapeError(f"{name} must be {show((n,))} to fit x {x.type}, got {v.type}")
        out.append(None if v is None else v.reshape([n if d == axis else 1 for d in range(axis, x.ndim)]))
    return out


def _scaled(y: Tensor, g: Tensor | None, b: Tensor | None) -> Tensor:
    y = y if g is None else y * g
    return y if b is None else y + b


def _ranked(x: Any, least: int) -> Tensor:
    x = as_tensor(x)
    if x.ndim < least:
        raise ShapeError(f"x must have at least {least} axes, got {x.type}")
    return x


@entered
def layer_norm(x: Any, g: Any = None, b: Any = None, eps: float = 1e-5) -> Tensor:
    """Normalise the last axis to mean 0 and variance 1, then scale and shift.

    out = (x - mean(x)) / sqrt(var(x) + eps) * g + b, with mean and population variance over the last axis

    x:        f32, shape (..., D).
    g, b:     f32 [D], scale and shift; None for 1 and 0.
    eps:      a number of at least 0. With 0, a constant vector gives NaN, or numbers that mean nothing.
    Returns:  f32, shape of `x`.
    Gradient: to `x`, `g` and `b`.
    Raises:   ShapeError if `g` or `b` is not [D]; DTypeError if one is not f32; InputError if `eps` is negative.

    As torch.nn.functional.layer_norm over the last axis.

    >>> tg.layer_norm([[1.0, 3.0]])
    tensor([[-0.999995,  0.999995]])
    """
    x = _ranked(x, 1)
    g, b = _per_channel(x, x.ndim - 1, g=g, b=b)
    return _scaled(bind(NORMALIZE, x, axes=(x.ndim - 1,), eps=checked("eps", eps, AT_LEAST_0, "layer_norm")), g, b)


@entered
def rms_norm(x: Any, g: Any = None, eps: float = 1e-6) -> Tensor:
    """Divide the last axis by its root mean square, then scale.

    out = x / sqrt(mean(x^2) + eps) * g, with the mean over the last axis

    x:        f32, shape (..., D).
    g:        f32 [D], the scale; None for 1.
    eps:      a number of at least 0. With 0, a vector of zeros gives NaN.
    Returns:  f32, shape of `x`.
    Gradient: to `x` and `g`.
    Raises:   ShapeError if `g` is not [D]; DTypeError if one is not f32; InputError if `eps` is negative.

    As torch.nn.functional.rms_norm over the last axis. PyTorch's default `eps` is 1.2e-7.

    >>> tg.rms_norm([[3.0, 4.0]])
    tensor([[0.8485281, 1.1313708]])
    """
    x = _ranked(x, 1)
    (g,) = _per_channel(x, x.ndim - 1, g=g)
    return _scaled(bind(RMS_NORMALIZE, x, eps=checked("eps", eps, AT_LEAST_0, "rms_norm")), g, None)


@entered
def batch_norm(x: Any, g: Any = None, b: Any = None, eps: float = 1e-5, *, mean: Any = None, var: Any = None) -> Tensor:
    """Normalise each channel (axis 1) over the batch and all other axes, then scale and shift.

    out = (x - mean) / sqrt(var + eps) * g + b

    x:         f32, shape (B, C, ...).
    g, b:      f32 [C], scale and shift; None for 1 and 0.
    eps:       a number of at least 0. With 0, a constant channel gives NaN, or numbers that mean nothing.
    mean, var: f32 [C], known statistics, as for inference. By default, mean and population variance of this batch.
    Returns:   f32, shape of `x`.
    Gradient:  to `x`, `g`, `b`, and to `mean` and `var` where given.
    Raises:    ShapeError if a vector is not [C], or only one of `mean` and `var` is given; DTypeError if any is not
               f32; InputError if `eps` is negative.

    As torch.nn.functional.batch_norm, with training=True if `mean` and `var` are None. The layer
    `nn.BatchNorm` also keeps running statistics.

    >>> tg.batch_norm(np.array([[1.0, 2.0], [3.0, 6.0]], np.float32))
    tensor([[-0.999995 , -0.9999988],
            [ 0.999995 ,  0.9999988]])
    """
    x = _ranked(x, 2)
    g, b, mean, var = _per_channel(x, 1, g=g, b=b, mean=mean, var=var)
    eps = checked("eps", eps, AT_LEAST_0, "batch_norm")
    if (mean is None) != (var is None):
        raise ShapeError("give both mean and var, or neither")
    if mean is not None and var is not None:
        return _scaled((x - mean) * rsqrt(var + eps), g, b)
    axes = tuple(d for d in range(x.ndim) if d != 1)
    return _scaled(bind(NORMALIZE, x, axes=axes, eps=eps), g, b)


def _exponentials(x: Tensor, axes: tuple[int, ...]) -> tuple[Tensor, Tensor, Tensor]:
    """Return a shift, exp(x - shift) and its sum. The shift is the largest x, if that is finite."""
    top = bind(PEAK, x, axes=axes)
    # otherwise 0, for a row of -inf or with an inf: inf - inf would be NaN
    shift = where(nonfinite(top), where(top > 0.0, LARGEST_F32, 0.0), top)
    e = exp(x - views.broadcast_to(shift, x.shape))
    return shift, e, e.sum(axes, keepdims=True)


def _logsumexp(x: Tensor, *, axes: tuple[int, ...]) -> Tensor:
    shift, _, total = _exponentials(x, axes)
    return log(total) + shift


def _logsumexp_vjp(ct: Tensor, y: Tensor, x: Tensor, *, axes: tuple[int, ...]) -> tuple[Tensor]:
    _, e, total = _exponentials(x, axes)  # exp(x - y) would have the rounding error of y, which is large where y is
    return (views.broadcast_to(ct / total, x.shape) * e,)


LOGSUMEXP = composite("logsumexp", type=reduced_float, expand=_logsumexp, vjp=_logsumexp_vjp, batch=shifted)


@method
def logsumexp(x: Operand, axis: Axes = None, keepdims: bool = False) -> Tensor:
    """Return log(sum(exp(x))) over `axis` (None: over all axes). The maximum is subtracted first, so exp stays finite.

    x:        f32. The result is NaN if an element is NaN; else inf if one is inf. It is -inf if all are -inf, or if
              there are none.
    axis:     an integer or a tuple of them.
    keepdims: True keeps these axes, with size 1.
    Returns:  f32, the shape of `x` without the axes in `axis`.
    Gradient: softmax(x) over the same axes. If the result is infinite, NaN for the elements that equal the result.
    Raises:   DTypeError if `x` is not f32; ShapeError if `axis` is out of range. As torch.logsumexp.

    >>> tg.logsumexp([[0.0, 0.0]], axis=-1)
    tensor([0.6931472])
    """
    x = as_tensor(x)
    axes = normalize_axes(axis, x.ndim)
    if x.dtype.is_float and count(x, axes) == 0:
        return x.sum(axes, keepdims) - INF
    return drop(bind(LOGSUMEXP, x, axes=axes), axes, keepdims)
