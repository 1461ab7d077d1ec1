"""Metrics of a model, as functions of tensors. In a traced loss they run on the device; elsewhere they run at once.

Return them with the loss, as in `(loss, {"accuracy": tg.metrics.accuracy(logits, y)})`, and read `r.aux["accuracy"]`.
The validation of `fit` joins the results of all batches (`training/validation.py`), so it gives the metric of the whole
set. Only `perplexity` and `r2_score` have gradients.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracegrad import foreign
from tracegrad.dtypes import f32, i32, integer
from tracegrad.errors import DTypeError, ShapeError
from tracegrad.ir.ambient import active
from tracegrad.ir.nodes import Tensor
from tracegrad.methods import op
from tracegrad.ops.cumulative import segment_sum
from tracegrad.ops.extrema import argmax
from tracegrad.ops.indices import classes_for
from tracegrad.ops.losses import cross_entropy, pair, scores_type
from tracegrad.ops.reduction import mean, sum
from tracegrad.prims.elementwise import cast, exp, square, where
from tracegrad.prims.leaves import as_tensor, const, iota
from tracegrad.prims.maps import float_type
from tracegrad.prims.views import broadcast_to, reshape

__all__ = ["accuracy", "auc", "confusion_matrix", "perplexity", "r2_score", "top_k_accuracy"]


def _noted(metric: Tensor, joined: str, *parts: Any) -> Tensor:
    """Record the sums from which validation computes `metric` over many batches, and return `metric`."""
    trace = active()
    if trace is not None and trace.measured is not None:
        trace.measured[metric.serial] = (joined, tuple([as_tensor(x) for x in parts]))
    return metric


def _share(right: Tensor) -> Tensor:
    return _noted(mean(right), "share", sum(cast(right, i32)), const(right.size, i32))


def _classes(logits: Any, targets: Any) -> tuple[Tensor, Tensor]:
    x = as_tensor(logits)
    scores_type(x.type)
    if not x.ndim or not x.shape[-1]:
        raise ShapeError(f"the last axis of the logits must be the classes, got {x.type}")
    t = classes_for(targets, x.shape[-1])
    if t.shape != x.shape[:-1]:
        raise ShapeError(f"targets must have the shape of the logits without their last axis: {x.type} and {t.type}")
    return x, t


@op
def accuracy(logits: Any, targets: Any) -> Tensor:
    """Return the share of positions whose largest score belongs to the target.

    logits:  f32, shape (..., C): scores, logits or probabilities. Of equal scores the first counts; NaN is the largest.
    targets: i32, shape (...), classes in [0, C). Other numbers raise IndexError, and an input with one fails the run.
             Classes that a program computes are not checked: those out of range count as wrong.
    Returns: f32, rank 0. No gradient.
    Raises:  ShapeError if the shapes do not fit; DTypeError unless `logits` are f32 and `targets` i32.

    As sklearn.metrics.accuracy_score of the predicted classes, and torchmetrics.functional.accuracy for PyTorch.

    >>> import tracegrad as tg
    >>> tg.metrics.accuracy(tg.tensor([[0.1, 0.9], [0.8, 0.2]]), [1, 1])
    tensor(0.5)
    """
    x, t = _classes(logits, targets)
    return _share(argmax(x, -1) == t)


@op
def top_k_accuracy(logits: Any, targets: Any, k: int = 5) -> Tensor:
    """Return the share of positions whose target is among the `k` largest scores.

    logits:  f32, shape (..., C). Of equal scores the first ones count; NaN is the largest.
    targets: i32, shape (...), classes in [0, C). Other numbers raise IndexError, and an input with one fails the run.
             Classes that a program computes are not checked.
    k:       a positive integer. Above C, every target counts.
    Returns: f32, rank 0. No gradient.
    Raises:  ShapeError if the shapes do not fit or k < 1; DTypeError unless `logits` are f32 and `targets` i32.

    As torchmetrics.functional.accuracy with top_k, for PyTorch. sklearn.metrics.top_k_accuracy_score prefers the last
    of equal scores.

    >>> metrics.top_k_accuracy([[3.0, 2.0, 1.0]], np.array([1], np.int32), k=2)
    tensor(1.)
    """
    k = integer(k, "k")
    if k < 1:
        raise ShapeError(f"k must be a positive integer, got {k}")
    x, t = _classes(logits, targets)
    target = broadcast_to(reshape(t, (*t.shape, 1)), x.shape)
    at = iota(x.shape, x.ndim - 1)
    own = broadcast_to(sum(where(at == target, x, 0.0), -1, keepdims=True), x.shape)
    ahead = (x > own) | ((x == own) & (at < target)) | (x != x)
    return _share(sum(cast(ahead & (at != target), i32), -1) < k)


@op
def confusion_matrix(predictions: Any, targets: Any, n: int) -> Tensor:
    """Count how often each pair of a true class and a predicted class occurs.

    out[t, p] = the number of positions with the target t and the prediction p

    predictions, targets: i32, equal shapes, classes in [0, n). Others raise IndexError, or InputError where they are
                          inputs of a run. Classes that a program computes are not checked: out of range, they
                          count in a wrong place.
    n:                    the number of classes.
    Returns:              i32 [n, n]: rows are the true classes, columns the predicted ones. No gradient.
    Raises:               ShapeError if the shapes differ; DTypeError if one is not i32.

    As sklearn.metrics.confusion_matrix(targets, predictions), and torchmetrics.functional.confusion_matrix for PyTorch.

    >>> import tracegrad as tg
    >>> tg.metrics.confusion_matrix([0, 1, 1], [0, 0, 1], 2)
    tensor([[1, 1],
            [0, 1]], dtype=i32)
    """
    n = integer(n, "n")
    p, t = classes_for(predictions, n), classes_for(targets, n)
    if p.shape != t.shape:
        raise ShapeError(f"shapes differ: predictions are {p.type}, targets {t.type}")
    ones = broadcast_to(const(1, i32), (t.size,))
    out = reshape(segment_sum(ones, reshape(t * n + p, (t.size,)), n * n), (n, n))
    return _noted(out, "counts", out)


@op
def perplexity(logits: Any, targets: Any, ignore_index: int | None = None) -> Tensor:
    """Return the exponential of the mean cross entropy: 1 for a perfect model, C for uniform scores.

    logits:   f32, shape (..., C): raw scores of C classes.
    targets:  i32, shape (...): classes from 0 to C - 1; or f32, shape (..., C): probabilities.
    ignore_index: an integer: positions with this target do not count. None: all count.
    Returns:  f32, rank 0; NaN if no position counts.
    Gradient: to `logits`, the gradient of the cross entropy times the perplexity.
    Raises:   errors of `tg.cross_entropy`.
    It is exp of torch.nn.functional.cross_entropy, with the classes on the last axis (Jelinek et al. 1977).

    >>> metrics.perplexity(np.zeros((2, 4), np.float32), np.array([0, 3], np.int32))
    tensor(4.)
    """
    out = exp(cross_entropy(logits, targets, ignore_index=ignore_index))
    t = as_tensor(targets)
    used = const(t.size, i32) if ignore_index is None else sum(cast(t != ignore_index, i32))
    return _noted(out, "exp_mean", cross_entropy(logits, targets, "sum", ignore_index=ignore_index), used)


@op
def r2_score(prediction: Any, target: Any) -> Tensor:
    """Return the coefficient of determination: the share of the variance of `target` that `prediction` explains.

    1 - sum((target - prediction)^2) / sum((target - mean(target))^2)

    prediction, target: f32, equal shapes; all elements count alike.
    Returns:            f32, rank 0: 1 for a perfect prediction, 0 for the mean; -inf or NaN for a constant `target`.
    Gradient:           to both: the derivatives of this formula.
    Raises:             ShapeError or DTypeError if shapes or dtypes differ.

    As sklearn.metrics.r2_score of one output with force_finite=False, and torchmetrics.functional.r2_score for PyTorch.

    >>> metrics.r2_score([1.0, 2.0, 3.0], [1.0, 2.0, 4.0])
    tensor(0.78571427)
    """
    x, t = pair(prediction, target)
    errors, squares = sum(square(t - x)), sum(square(t - mean(t)))
    return _noted(1.0 - errors / squares, "explained", errors, const(t.size, i32), mean(t), squares)


@op
def auc(scores: Any, targets: Any) -> Tensor:
    """Return the area under the ROC curve: the probability that a positive has a larger score than a negative.

    (number of pairs with score[positive] > score[negative], plus half the number of equal pairs) / all pairs

    scores:  f32 of rank 1.
    targets: bool or i32 of the same shape; nonzero is positive.
    Returns: f32, rank 0; NaN without a positive or without a negative. A pair with a NaN score counts as 0. Every score
             is compared with every other score. No gradient.
    Raises:  ShapeError if the shapes differ or the rank is not 1; DTypeError unless `scores` are f32, and `targets`
             bool or i32.

    As sklearn.metrics.roc_auc_score (Hanley & McNeil 1982).

    >>> metrics.auc([0.1, 0.4, 0.35, 0.8], np.array([0, 0, 1, 1], np.int32))
    tensor(0.75)
    """
    s, t = as_tensor(scores), as_tensor(targets)
    float_type(s.type)
    if s.ndim != 1 or t.shape != s.shape:
        raise ShapeError(f"scores and targets must have the same shape: got {s.type} and {t.type}")
    if t.dtype.is_float:
        raise DTypeError(f"targets must be bool or i32, got {t.type}; write targets > 0.5")
    positive = t if t.dtype.name == "bool" else t != 0
    n = s.size
    others, negative = (broadcast_to(reshape(x, (1, n)), (n, n)) for x in (s, ~positive))
    own = broadcast_to(reshape(s, (n, 1)), (n, n))
    won = sum(cast((others < own) & negative, i32), -1) * 2 + sum(cast((others == own) & negative, i32), -1)
    total = sum(where(positive, cast(won, f32), 0.0)) * 0.5
    out = total / (sum(cast(positive, f32)) * sum(cast(~positive, f32)))
    return _noted(out, "ranked", s, positive)


if not TYPE_CHECKING:  # type checkers are to report unknown names themselves

    def __getattr__(name):
        raise foreign.no_such_name("tracegrad.metrics", name, {"tg.metrics": __all__}, "metrics")
