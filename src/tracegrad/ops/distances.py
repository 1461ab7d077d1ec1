"""Losses and similarities of two tensors of one shape."""

from __future__ import annotations

from typing import Any

from tracegrad.errors import InputError
from tracegrad.ir.nodes import Tensor
from tracegrad.methods import op
from tracegrad.ops.losses import pair, reduced
from tracegrad.ops.math import clip
from tracegrad.ops.reduction import norm, sum
from tracegrad.prims.elementwise import abs, exp, log, maximum, nonfinite, square, where
from tracegrad.prims.maps import broadcast, float_type

LIMIT = 3e38

__all__ = [
    "cosine_similarity", "hinge_loss", "huber_loss", "kl_div", "l1_loss", "normalize", "smooth_l1_loss",
    "triplet_margin_loss",
]  # fmt: skip


@op
def l1_loss(prediction: Any, target: Any, reduction: str = "mean") -> Tensor:
    """Return the absolute difference between predictions and targets, by default its mean.

    loss = mean(|prediction - target|)

    prediction, target: f32, equal shapes; `target` may be a number.
    reduction:          "mean", "sum", or "none" for one loss per element.
    Returns:            f32, rank 0; for "none", the shape of `prediction`.
    Gradient:           for "sum": to `prediction` the sign of prediction - target, 0 where they are equal; to `target`
                        the negative. For "mean", divided by the number of elements.
    Raises:             ShapeError or DTypeError if shapes or dtypes differ; InputError for another `reduction`.

    As torch.nn.functional.l1_loss. PyTorch broadcasts different shapes with a warning; `l1_loss` raises.

    >>> tg.l1_loss([1.0, 4.0], [2.0, 2.0])
    tensor(1.5)
    """
    x, t = pair(prediction, target)
    return reduced(abs(x - t), reduction)


@op
def smooth_l1_loss(prediction: Any, target: Any, reduction: str = "mean", beta: float = 1.0) -> Tensor:
    """Return the smooth L1 loss, which is quadratic for differences below `beta`, and linear above.

    loss = mean(d^2 / (2 beta) if |d| < beta else |d| - beta / 2),  d = prediction - target

    prediction, target: f32, equal shapes; `target` may be a number.
    reduction:          "mean", "sum", or "none" for one loss per element.
    beta:               a number >= 0; 0 gives `l1_loss`.
    Returns:            f32, rank 0; for "none", the shape of `prediction`.
    Gradient:           for "sum": to `prediction` d / beta, limited to [-1, 1]; to `target` the negative. For "mean",
                        divided by the number of elements.
    Raises:             ShapeError or DTypeError if shapes or dtypes differ; InputError for a negative `beta` or another
                        `reduction`.

    As torch.nn.functional.smooth_l1_loss (Girshick 2015). `huber_loss` with delta = beta is beta times this loss.

    >>> tg.smooth_l1_loss([0.0, 0.0], [0.5, 3.0])               # mean of 0.125 and 2.5
    tensor(1.3125)
    """
    if not beta >= 0:
        raise InputError(f"beta must be a number >= 0, got {beta!r}")
    if beta == 0:
        return l1_loss(prediction, target, reduction)
    near, size = _near(*pair(prediction, target), beta)
    return reduced(where(size < beta, square(near) * (0.5 / beta), size - 0.5 * beta), reduction)


def _near(x: Tensor, t: Tensor, limit: float) -> tuple[Tensor, Tensor]:
    """Return x - t where |x - t| is below a limit, else 0, and |x - t|. Squares of large differences are infinite."""
    size = abs(x - t)
    return where(size < limit, x - t, 0.0), size


@op
def huber_loss(prediction: Any, target: Any, reduction: str = "mean", delta: float = 1.0) -> Tensor:
    """Return the Huber loss, which is quadratic for differences up to `delta`, and linear beyond.

    loss = mean(d^2 / 2 if |d| <= delta else delta (|d| - delta / 2)),  d = prediction - target

    prediction, target: f32, equal shapes; `target` may be a number.
    reduction:          "mean", "sum", or "none" for one loss per element.
    delta:              a positive number.
    Returns:            f32, rank 0; for "none", the shape of `prediction`.
    Gradient:           for "sum": to `prediction` d, limited to [-delta, delta]; to `target` the negative. For "mean",
                        divided by the number of elements.
    Raises:             ShapeError or DTypeError if shapes or dtypes differ; InputError unless delta > 0, or for another
                        `reduction`.

    As torch.nn.functional.huber_loss (Huber 1964).

    >>> tg.huber_loss([0.0, 0.0], [0.5, 3.0], delta=2.0)        # mean of 0.125 and 4
    tensor(2.0625)
    """
    if not delta > 0:
        raise InputError(f"delta must be a positive number, got {delta!r}")
    near, size = _near(*pair(prediction, target), delta)
    return reduced(where(size < delta, square(near) * 0.5, (size - 0.5 * delta) * delta), reduction)


@op
def hinge_loss(prediction: Any, targets: Any, reduction: str = "mean") -> Tensor:
    """Return the hinge loss of scores for two classes, whose targets are -1 and 1.

    loss = mean(max(0, 1 - targets * prediction))

    prediction: f32, raw scores of any shape.
    targets:    f32, the shape of `prediction`, -1 or 1; or a number.
    reduction:  "mean", "sum", or "none" for one loss per element.
    Returns:    f32, rank 0; for "none", the shape of `prediction`.
    Gradient:   for "sum": -targets to `prediction` and -prediction to `targets` where the loss is above 0, else 0. For
                "mean", divided by the number of elements.
    Raises:     ShapeError or DTypeError if shapes or dtypes differ; InputError for another `reduction`.

    As sklearn.metrics.hinge_loss for two classes.

    >>> tg.hinge_loss([0.5, -2.0], [1.0, -1.0])                 # mean of 0.5 and 0
    tensor(0.25)
    """
    x, t = pair(prediction, targets)
    lack = 1.0 - t * x
    return reduced(where(lack <= 0.0, 0.0, lack), reduction)


@op
def triplet_margin_loss(
    anchor: Any, positive: Any, negative: Any, margin: float = 1.0, eps: float = 1e-6, reduction: str = "mean"
) -> Tensor:
    """Return the triplet loss: 0 where `negative` is farther from `anchor` than `positive`, by at least `margin`.

    loss = mean(max(0, dist(anchor, positive) - dist(anchor, negative) + margin))
    dist(a, b) = sqrt(sum((a - b + eps)^2)) along the last axis

    anchor, positive, negative: f32, equal shapes (..., d).
    margin:    a number.
    eps:       a small number, which keeps the gradient finite where two vectors are equal.
    reduction: "mean", "sum", or "none" for one loss per triplet.
    Returns:   f32, rank 0; for "none", shape (...).
    Gradient:  for "sum": u - v to `anchor`, -u to `positive` and v to `negative` where the loss is above 0, else 0. For
               "mean", divided by the number of triplets. Here u = (anchor - positive + eps) / dist(anchor, positive),
               and v likewise with `negative`.
    Raises:    ShapeError or DTypeError if shapes or dtypes differ; InputError for another `reduction`.

    As torch.nn.functional.triplet_margin_loss with p=2. Schroff et al. 2015 square the distances.

    >>> tg.triplet_margin_loss([[0.0, 0.0]], [[3.0, 4.0]], [[0.0, 5.5]])      # about 5 - 5.5 + 1
    tensor(0.49999952)
    """
    (a, p), (_, n) = pair(anchor, positive), pair(anchor, negative)
    lack = _distance(a, p, eps) - _distance(a, n, eps) + margin
    return reduced(where(lack <= 0.0, 0.0, lack), reduction)


def _distance(a: Tensor, b: Tensor, eps: float) -> Tensor:
    # The limits are above all useful differences. Without them, a compiler can reassociate and add `eps` to `a` first:
    # rounding then removes most of `eps`.
    return norm(clip(a - b, -LIMIT, LIMIT) + eps, -1)


@op
def kl_div(log_probs: Any, targets: Any, reduction: str = "mean", log_target: bool = False) -> Tensor:
    """Return the Kullback-Leibler divergence of `targets` from another distribution, by default the mean of its terms.

    loss = mean(t * (log(t) - log_probs)),  t = targets, or exp(targets) with `log_target`

    A term with t = 0 is 0, but with `log_target` it is NaN for a target of -inf, as in PyTorch.

    log_probs:  f32, logarithms of the probabilities of the other distribution.
    targets:    f32, the shape of `log_probs`: probabilities t, or with `log_target` their logarithms.
    reduction:  "mean" over all elements, "sum", or "none" for one term per element. "batchmean" divides the sum by the
                size of axis 0: it is the mean divergence of a batch of distributions.
    log_target: True if `targets` has log(t).
    Returns:    f32, rank 0; for "none", the shape of `log_probs`.
    Gradient:   for "sum": -t to `log_probs`; log(t) + 1 - log_probs to `targets`, but -log_probs where t = 0. With
                `log_target`, t (log(t) + 1 - log_probs) to `targets`.
    Raises:     ShapeError if the shapes differ; DTypeError if one is not f32; InputError for another `reduction`.

    As torch.nn.functional.kl_div.

    >>> tg.kl_div(tg.log([0.5, 0.5]), [0.9, 0.1], reduction="sum")
    tensor(0.36806417)
    """
    x, t = pair(log_probs, targets)
    if log_target:
        values = exp(t) * (t - x)
    else:
        none = t == 0.0
        values = t * log(where(none, 1.0, t)) - t * where(none & nonfinite(x), 0.0, x)
    if reduction == "batchmean":
        return sum(values) / (x.shape[0] if x.ndim else 1)
    return reduced(values, reduction, more=("batchmean",))


@op
def normalize(x: Any, axis: int | tuple[int, ...] = -1, ord: float = 2, eps: float = 1e-12) -> Tensor:
    """Divide the vectors along `axis` by their norms.

    out = x / max(norm(x, axis, ord=ord), eps)

    x:        f32, rank 1 or more.
    axis:     an axis, or several, whose elements are one vector. The default is the last; PyTorch's is 1.
    ord:      as in `norm`; 2 is the Euclidean length.
    eps:      the smallest divisor, so that a vector of zeros stays zero.
    Returns:  f32, the shape of `x`.
    Gradient: (dy - dn sum(dy out)) / norm(x), with dy the result's gradient and dn the gradient of `norm`, which is
              `out` for ord=2. Where norm(x) < eps, dy / eps.
    Raises:   ShapeError if `axis` is out of range; DTypeError if `x` is not f32; InputError if `ord` is NaN, or
              negative and not -inf.

    As torch.nn.functional.normalize, where `ord` is called `p`.

    >>> tg.normalize([[3.0, 4.0], [0.0, 0.0]])
    tensor([[0.6, 0.8],
            [0. , 0. ]])
    """
    return x / maximum(norm(x, axis, keepdims=True, ord=ord), eps)


@op
def cosine_similarity(a: Any, b: Any, axis: int = -1, eps: float = 1e-8) -> Tensor:
    """Return the cosine of the angle between the vectors of `a` and `b` along `axis`.

    out = sum(a b) / (max(norm(a), eps) max(norm(b), eps))

    a, b:     f32; their shapes broadcast.
    axis:     the axis of the vectors. The default is the last; PyTorch's is 1.
    eps:      the smallest norm to divide by, so that a vector of zeros gives 0.
    Returns:  f32, the broadcast shape without `axis`, in [-1, 1] up to rounding.
    Gradient: to `a` and `b`; finite for vectors of zeros.
    Raises:   ShapeError if the shapes do not broadcast or `axis` is out of range; DTypeError if one is not f32.

    As torch.nn.functional.cosine_similarity.

    >>> tg.cosine_similarity([1.0, 0.0], [3.0, 4.0])
    tensor(0.6)
    """
    x, y = broadcast(a, b)
    float_type(x.type, y.type)
    lengths = [maximum(norm(t, axis, keepdims=True), eps) for t in (x, y)]
    return sum((x / lengths[0]) * (y / lengths[1]), axis)
