"""Losses. Losses over classes compare class numbers in both passes, so no one-hot array is stored."""

from __future__ import annotations

import warnings
from typing import Any

from tracegrad.dtypes import TensorType, f32, i32, integer
from tracegrad.errors import DTypeError, InputError, RangeError, ShapeError, call_site
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.methods import entered
from tracegrad.ops.activation import sigmoid, softplus
from tracegrad.ops.indexing import take, take_along_axis
from tracegrad.ops.indices import CLASSES, constant_integers
from tracegrad.ops.norm import log_softmax, peak, softmax
from tracegrad.prims.elementwise import abs, cast, exp, log, log1p, maximum, minimum, nonfinite, square, where
from tracegrad.prims.leaves import as_tensor, as_tensors, iota
from tracegrad.prims.maps import composite, float_type
from tracegrad.prims.rules import alike, multilinear, symmetric
from tracegrad.refusals import valid

__all__ = ["binary_cross_entropy_with_logits", "cross_entropy", "mse_loss", "nll_loss"]

REDUCTIONS = ("mean", "sum", "none")


def reduced(values: Tensor, reduction: str, count: Tensor | None = None, more: tuple[str, ...] = ()) -> Tensor:
    """Reduce `values` by "mean", "sum" or "none". With `count`, the mean is the sum divided by `count`.

    more: names of reductions that the caller does itself, for the error.
    Raises InputError for any other reduction.
    """
    if reduction == "none":
        return values
    if reduction == "sum":
        return values.sum()
    if reduction == "mean":
        return values.mean() if count is None else values.sum() / count
    allowed = ", ".join(map(repr, REDUCTIONS + more))
    raise InputError(f"reduction must be one of {allowed}, got {reduction!r}")


def _warn_of(x: Tensor, before: str, text: str) -> None:
    """Warn at the user's line if `x` is the result of the op `before`, such as softmax: training would go badly."""
    site = call_site()
    if x.prim.name == before and site is not None:
        warnings.warn_explicit(f"{text} (its argument is {x.type})", UserWarning, site.file, site.line)


# Losses over classes
def scores_type(x: TensorType) -> None:
    """Raise DTypeError unless `x` can be logits."""
    if not x.dtype.is_float:
        raise DTypeError(f"logits must be f32, a score for each class, got {x}; class numbers are the second argument")


def _rows(x: TensorType, targets: TensorType, **_: Any) -> TensorType:
    """Return the type of one value per position. `ignore` is the class number of positions without a target."""
    if x.dtype == i32 and targets.dtype == f32:
        raise DTypeError(f"logits are {x} and targets {targets}: they are swapped; give the logits first")
    scores_type(x)
    if targets.dtype != i32:
        hint = "declare the targets as tg.i32[...] in inputs=, or cast with tg.cast(targets, tg.i32)"
        hint = "for one-hot rows, write tg.argmax(targets, axis=-1)" if targets.shape == x.shape else hint
        raise DTypeError(f"targets must be class numbers, i32, got {targets}; the logits are {x}; {hint}")
    if x.ndim < 1 or targets.shape != x.shape[:-1]:
        second = x.ndim > 2 and targets.shape == (x.shape[0], *x.shape[2:])
        order = ", ".join(map(str, (0, *range(2, x.ndim), 1)))
        hint = f"write logits.permute({order})" if second else "reshape the targets"
        raise ShapeError(f"targets must have the shape of the logits without their last axis (classes): "
                         f"logits are {x}, targets are {targets}; {hint}")  # fmt: skip
    if x.shape[-1] == 0 and targets.size:
        raise ShapeError(f"no class to choose: the last axis of the logits {x} is empty")
    return TensorType(f32, targets.shape)


def _hit(x: Tensor, targets: Tensor, ignore: int | None) -> Tensor:
    """Return True at each row's target."""
    clamped = _clamped(x, targets, ignore)
    return iota(x.shape, x.ndim - 1) == clamped.reshape((*targets.shape, 1))


def _clamped(x: Tensor, targets: Tensor, ignore: int | None) -> Tensor:
    """Return targets clamped to the classes of `x`, for a gather: computed and ignored targets can lie outside.

    Targets that are inputs keep their range here, because a gradient can be used without the loss.
    """
    targets = bind(CLASSES, targets, n=x.shape[-1], exempt=ignore)
    return minimum(maximum(targets, 0), x.shape[-1] - 1)


def _unless_ignored(values: Tensor, targets: Tensor, ignore: int | None) -> Tensor:
    """Return 0 where the target is `ignore`, else the value. A product with 0 would let an ignored NaN through."""
    return values if ignore is None else where(targets == ignore, 0.0, values)


def _cross_entropy(x: Tensor, targets: Tensor, *, smoothing: float, ignore: int | None) -> Tensor:
    z = x - peak(x)
    picked = where(_hit(x, targets, ignore), z, 0.0).sum(-1, keepdims=True)
    if smoothing > 0.0:
        picked = picked * (1.0 - smoothing) + z.mean(-1, keepdims=True) * smoothing
    value = log(exp(z).sum(-1, keepdims=True)) - picked
    return _unless_ignored(value.reshape(targets.shape), targets, ignore)


def _wrong(x: Tensor, targets: Tensor, smoothing: float, ignore: int | None) -> Tensor:
    """Return softmax(x) - q. The softmax of the row is recomputed, not stored."""
    wrong = softmax(x) - where(_hit(x, targets, ignore), 1.0 - smoothing, 0.0)
    return wrong - smoothing / max(x.shape[-1], 1) if smoothing > 0.0 else wrong


def _cross_entropy_vjp(
    ct: Tensor, y: Tensor, x: Tensor, targets: Tensor, *, smoothing: float, ignore: int | None
) -> tuple[Tensor, None]:
    # The cotangent is infinite if a mean counts no target. So 0 replaces the product, not one of its factors
    g = _wrong(x, targets, smoothing, ignore) * ct.reshape((*ct.shape, 1))
    return _unless_ignored(g, targets.reshape((*targets.shape, 1)), ignore), None


def _targets(x: TensorType, targets: TensorType, *, ignore: int | None, **_: Any) -> tuple[int, int, int | None]:
    return 1, x.shape[-1], ignore


CROSS_ENTROPY = composite(
    "cross_entropy",
    type=_rows,
    expand=_cross_entropy,
    vjp=_cross_entropy_vjp,
    batch=alike,
    indexes=_targets,
)


def _nll(x: Tensor, targets: Tensor, *, ignore: int | None) -> Tensor:
    picked = take_along_axis(x, _clamped(x, targets, ignore).reshape((*targets.shape, 1)), -1)
    return _unless_ignored(-picked.reshape(targets.shape), targets, ignore)


def _nll_vjp(ct: Tensor, y: Tensor, x: Tensor, targets: Tensor, *, ignore: int | None) -> tuple[Tensor, None]:
    ct = _unless_ignored(ct, targets, ignore)
    return where(_hit(x, targets, ignore), -ct.reshape((*ct.shape, 1)), 0.0), None


NLL = composite("nll_loss", type=_rows, expand=_nll, vjp=_nll_vjp, jvp=multilinear, batch=alike, indexes=_targets)


def _counted(targets: Tensor, ignore_index: int | None) -> Tensor | None:
    """Return the number of positions with a target; None if no target is ignored."""
    return None if ignore_index is None else cast(targets != ignore_index, f32).sum()


def _classes(targets: Any, x: Tensor, ignore_index: Any) -> tuple[Tensor, int | None]:
    """Return `targets` as a tensor, and the class to ignore.

    Constants are checked here and inputs on the host, because a device would clamp both.
    """
    t, n = as_tensor(targets), x.shape[-1] if x.ndim else 0
    ignore = None if ignore_index is None else integer(ignore_index, "ignore_index")
    bad = [k for k in constant_integers(t) if not 0 <= k < n and k != ignore]
    if bad and n:
        raise RangeError(f"class {bad[0]} is out of range; {valid(0, n)}, counted from 0; targets are {t.type}")
    return t, ignore


def _weights(weight: Any, x: Tensor) -> Tensor:
    """Return the weights of the classes of `x`. Raises ShapeError or DTypeError if they are no f32[C]."""
    w, _ = as_tensors(weight, x)
    if w.shape != x.shape[-1:]:
        raise ShapeError(f"weight must be f32[{x.shape[-1]}], a number for each class, got {w.type}")
    float_type(w.type)
    return w


def _soft(x: Tensor, q: Tensor, w: Tensor | None, smoothing: float) -> Tensor:
    """Return -sum_c w[c] q[c] log_softmax(x)[c]: the cross entropy of probabilities `q`, smoothed."""
    if smoothing > 0.0:
        q = q * (1.0 - smoothing) + smoothing / max(x.shape[-1], 1)
    logs = log_softmax(x)
    logs = where((q == 0.0) & nonfinite(logs), 0.0, logs)  # a class of probability 0 can have a logit of -inf
    return -(q * (logs if w is None else logs * w)).sum(-1)


def _own(w: Tensor, x: Tensor, t: Tensor, ignore: int | None) -> Tensor:
    """Return the weight of each target, 0 for one that is ignored. A mean divides by their sum, as in PyTorch."""
    return _unless_ignored(take(w, _clamped(x, t, ignore)), t, ignore)


def _weighted(x: Tensor, t: Tensor, w: Tensor, smoothing: float, ignore: int | None, reduction: str) -> Tensor:
    """Return the cross entropy of classes with weights."""
    own = _own(w, x, t, ignore)
    values = bind(CROSS_ENTROPY, x, t, smoothing=0.0, ignore=ignore) * own
    if smoothing > 0.0:
        spread = -(log_softmax(x) * w).sum(-1) / max(x.shape[-1], 1)
        values = values * (1.0 - smoothing) + _unless_ignored(spread, t, ignore) * smoothing
    return reduced(values, reduction, own.sum())


@entered
def cross_entropy(
    logits: Any, targets: Any, reduction: str = "mean", label_smoothing: float = 0.0, ignore_index: int | None = None,
    weight: Any = None,
) -> Tensor:  # fmt: skip
    """Return the cross entropy of softmax(logits) with the target classes: the negative log-likelihood of the targets.

    loss = logsumexp(x) - sum_c q[c] x[c],  q = (1 - s) onehot(target) + s / C

    logits:          f32, shape (..., C): raw scores x of C classes, on the last axis.
    targets:         i32, shape (...): class numbers from 0 to C - 1. Other numbers raise InputError; numbers that a
                     program computes are clamped. Or f32, shape (..., C): probabilities, which replace onehot(target).
    reduction:       "mean" over the positions not ignored, "sum", or "none" for one value per position.
    label_smoothing: s in [0, 1].
    ignore_index:    an integer, such as -100. Positions with this target cost 0, get no gradient and do not count in
                     the mean. If all are ignored, the mean is NaN and its gradient 0. None ignores no position.
    weight:          f32[C], a factor for each class: loss = -sum_c weight[c] q[c] log_softmax(x)[c]. For class numbers,
                     the mean divides by the sum of the targets' weights; for probabilities, by the number of positions.
    Returns:         f32, rank 0; for "none" the shape of `logits` without its last axis.
    Gradient:        to `logits`, dy (softmax(x) - q) if `weight` is None; dy is the gradient of a position's loss.
                     Also to `weight`, and to targets that are probabilities.
    Raises:          ShapeError if shapes do not fit, or `ignore_index` is not an integer. DTypeError unless `logits`
                     are f32, and targets i32 or f32. InputError for another `reduction`, a `label_smoothing` outside
                     [0, 1], or `ignore_index` with probabilities.

    As torch.nn.functional.cross_entropy, which has the classes on axis 1 and ignores -100 by default.

    >>> tg.cross_entropy([[2.0, 0.0], [0.0, 2.0]], np.array([0, 1], np.int32))
    tensor(0.12692805)
    """
    if not 0.0 <= label_smoothing <= 1.0:
        raise InputError(f"label_smoothing must be in [0, 1], got {label_smoothing!r}")
    x = as_tensor(logits)
    _warn_of(x, "softmax", "cross_entropy takes raw logits and computes their softmax itself: leave softmax out")
    t, smoothing = as_tensor(targets), float(label_smoothing)
    if x.dtype == t.dtype == f32 and x.shape == t.shape and x.ndim:
        if ignore_index is not None:
            raise InputError("ignore_index is for targets of class numbers; these are probabilities: leave it out")
        return reduced(_soft(x, t, None if weight is None else _weights(weight, x), smoothing), reduction)
    t, ignore_index = _classes(t, x, ignore_index)
    if weight is not None:
        _rows(x.type, t.type)  # before the number of weights, for classes on another axis
        return _weighted(x, t, _weights(weight, x), smoothing, ignore_index, reduction)
    values = bind(CROSS_ENTROPY, x, t, smoothing=smoothing, ignore=ignore_index)
    return reduced(values, reduction, _counted(t, ignore_index))


@entered
def nll_loss(
    log_probs: Any, targets: Any, reduction: str = "mean", ignore_index: int | None = None, weight: Any = None
) -> Tensor:
    """Return the negative log-likelihood of the target classes, given log-probabilities.

    loss = -log_probs[..., target]; nll_loss(log_softmax(x), t) equals cross_entropy(x, t)

    log_probs:    f32, shape (..., C): logarithms of the probabilities of C classes, on the last axis.
    targets:      i32, shape (...): class numbers from 0 to C - 1. Other numbers raise InputError, but numbers that a
                  program computes are clamped.
    reduction:    "mean" over the positions not ignored, "sum", or "none" for one value per position.
    ignore_index: an integer, such as -100. Positions with this target cost 0, get no gradient and do not count in the
                  mean. If all are ignored, the mean is NaN and its gradient 0. None ignores no position.
    weight:       f32[C], a factor for each class: loss = -weight[target] log_probs[..., target]. The mean then divides
                  by the sum of the weights of the targets.
    Returns:      f32, rank 0; for "none" the shape of `targets`.
    Gradient:     to `log_probs`, -weight[target] at the target and 0 elsewhere; for "mean", divided as the loss is.
                  Also to `weight`.
    Raises:       ShapeError if the shapes do not fit, or `ignore_index` is not an integer; DTypeError unless
                  `log_probs` and `weight` are f32 and `targets` i32; InputError for another `reduction`.

    Unlike torch.nn.functional.nll_loss, it has the classes on the last axis, and ignores no target by default.

    >>> tg.nll_loss(tg.log_softmax([[2.0, 0.0], [0.0, 2.0]]), np.array([0, 1], np.int32))
    tensor(0.12692805)
    """
    x = as_tensor(log_probs)
    _warn_of(x, "softmax", "nll_loss takes log-probabilities: write log_softmax instead of softmax")
    t, ignore_index = _classes(targets, x, ignore_index)
    values = bind(NLL, x, t, ignore=ignore_index)
    if weight is None:
        return reduced(values, reduction, _counted(t, ignore_index))
    own = _own(_weights(weight, x), x, t, ignore_index)
    return reduced(values * own, reduction, own.sum())


# Losses of two tensors of one shape
def pair(prediction: Any, target: Any) -> tuple[Tensor, Tensor]:
    """Return both as tensors of one shape. Raises ShapeError if shapes differ: [N,1] and [N] give a wrong loss."""
    x, t = as_tensors(prediction, target)
    if t.shape != x.shape and t.shape != ():
        columns = ("first", (*t.shape, 1) == x.shape), ("second", (*x.shape, 1) == t.shape)
        hint = next((f"write tg.squeeze(x, -1) of the {which}" for which, is_column in columns if is_column), "")
        raise ShapeError(f"shapes differ: {x.type} and {t.type}; {hint or 'reshape or broadcast one explicitly'}")
    return x, t.broadcast_to(x.shape)


@entered
def mse_loss(prediction: Any, target: Any, reduction: str = "mean") -> Tensor:
    """Return the squared difference between predictions and targets, by default its mean.

    loss = mean((prediction - target)^2)

    prediction, target: f32, equal shapes; `target` can be a number.
    reduction:          "mean" over all elements, "sum", or "none" for one value per element.
    Returns:            f32, rank 0; for "none" the shape of `prediction`.
    Gradient:           2 (prediction - target) to `prediction`, its negative to `target`; for "mean" divided by the
                        number of elements.
    Raises:             ShapeError or DTypeError if shapes or dtypes differ; InputError for another `reduction`.

    As torch.nn.functional.mse_loss. PyTorch broadcasts different shapes with a warning; `mse_loss` raises.

    >>> tg.mse_loss([1.0, 2.0], [1.0, 4.0])
    tensor(2.)
    """
    x, t = pair(prediction, target)
    return reduced(square(x - t), reduction)


def _bce(x: Tensor, t: Tensor) -> Tensor:
    wrong = where(x > 0.0, 1.0 - t, t)
    size = abs(x)
    # `where`, because an infinite logit can be right, and 0 * inf is NaN
    return where(wrong == 0.0, 0.0, size * wrong) + log1p(exp(-size))


def _bce_vjp(ct: Tensor, y: Tensor, x: Tensor, t: Tensor) -> tuple[Tensor, Tensor]:
    return ct * (sigmoid(x) - t), -ct * x


BCE = composite(
    "binary_cross_entropy_with_logits", type=float_type, expand=_bce, vjp=_bce_vjp, jvp=symmetric, batch=alike
)


def _weighted_bce(x: Tensor, yes: Tensor, no: Tensor) -> Tensor:
    wrong, size = where(x > 0.0, no, yes), abs(x)
    return where(wrong == 0.0, 0.0, size * wrong) + (yes + no) * log1p(exp(-size))


def _weighted_bce_vjp(ct: Tensor, y: Tensor, x: Tensor, yes: Tensor, no: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return ct * (no * sigmoid(x) - yes * sigmoid(-x)), ct * softplus(-x), ct * softplus(x)


WEIGHTED_BCE = composite(
    "weighted_bce", type=float_type, expand=_weighted_bce, vjp=_weighted_bce_vjp, jvp=symmetric, batch=alike
)


@entered
def binary_cross_entropy_with_logits(
    logits: Any, targets: Any, reduction: str = "mean", pos_weight: Any = None
) -> Tensor:
    """Return the cross entropy of independent yes-or-no targets, whose probabilities are sigmoid(logits).

    loss = max(x, 0) - x t + log(1 + exp(-|x|)) = -t log(sigmoid(x)) - (1 - t) log(1 - sigmoid(x)), without overflow

    logits:     f32, any shape: raw scores x.
    targets:    f32, shape of `logits`, or a number: probabilities t in [0, 1], which are not checked.
    reduction:  "mean" over all elements, "sum", or "none" for one value per element.
    pos_weight: f32, broadcastable to `logits`, or a number: a factor w of the term of the positive class,
                loss = w t softplus(-x) + (1 - t) softplus(x).
    Returns:    f32, rank 0; for "none" the shape of `logits`. The loss is 0 at x = inf, t = 1 and at x = -inf, t = 0.
    Gradient:   of an element's loss: sigmoid(x) - t to `logits`, -x to `targets`. With `pos_weight`, the
                derivatives of its formula, also to `pos_weight`.
    Raises:     ShapeError if the shapes differ or `pos_weight` does not broadcast; DTypeError if one is not f32;
                InputError for another `reduction`.

    As torch.nn.functional.binary_cross_entropy_with_logits.

    >>> tg.binary_cross_entropy_with_logits([0.0, 2.0], [1.0, 1.0])
    tensor(0.41003758)
    """
    x, t = pair(logits, targets)
    _warn_of(x, "sigmoid", "binary_cross_entropy_with_logits takes raw logits: leave sigmoid out, it computes its own")
    if pos_weight is None:
        return reduced(bind(BCE, x, t), reduction)
    float_type(x.type, t.type)
    w = as_tensors(pos_weight, x)[0].broadcast_to(x.shape)
    return reduced(bind(WEIGHTED_BCE, x, w * t, 1.0 - t), reduction)
