"""Connectionist temporal classification: a loss for label sequences that are not aligned with their inputs."""

from __future__ import annotations

from typing import Any

from tracegrad.dtypes import f32, i32, integer
from tracegrad.errors import InputError, ShapeError
from tracegrad.ir.nodes import Tensor
from tracegrad.methods import op
from tracegrad.ops.indexing import take_along_axis
from tracegrad.ops.indices import classes_for
from tracegrad.ops.joining import concat, stack
from tracegrad.ops.losses import reduced
from tracegrad.prims.elementwise import cast, exp, log, maximum, stop_gradient, where
from tracegrad.prims.leaves import as_tensor, const, iota
from tracegrad.prims.maps import float_type
from tracegrad.prims.views import broadcast_to, reshape, slice_
from tracegrad.refusals import valid
from tracegrad.transforms.recurrence import scan

__all__ = ["ctc_loss"]

NEVER = float("-inf")  # the logarithm of a probability of 0


def _log_sum(parts: list[Tensor]) -> Tensor:
    """Return log(sum(exp(part))), with a derivative of 0, not NaN, where all parts are -inf."""
    top = parts[0]
    for p in parts[1:]:
        top = maximum(top, p)
    top = stop_gradient(where(top == NEVER, 0.0, top))
    total = exp(parts[0] - top)
    for p in parts[1:]:
        total = total + exp(p - top)
    none = total == 0.0
    return where(none, NEVER, log(where(none, 1.0, total)) + top)


def _shifted(x: Tensor, by: int) -> Tensor:
    """Return x[:, s - by], with -inf before the first element."""
    before = broadcast_to(const(NEVER), (x.shape[0], by))
    return concat([before, slice_(x, 1, 0, x.shape[1] - by)], 1)


def _lengths(lengths: Any, n: int, least: int, most: int, name: str) -> Tensor:
    t = as_tensor(lengths)
    if t.dtype != i32 or t.shape != (n,):
        raise ShapeError(f"{name} must be i32[{n}], one length from {least} to {most} for each sequence; got {t.type}")
    return classes_for(t, most + 1, f"numbers of {name}")


@op
def ctc_loss(
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    blank: int = 0,
    reduction: str = "mean",
    zero_infinity: bool = False,
) -> Tensor:
    """Return the CTC loss: -log of the probability that the inputs spell the labels `targets`, over all alignments.

    loss = -log(sum over paths p that spell `targets` of prod_t exp(log_probs[t, p[t]]))

    A path p has one class for each input t. Merge its repetitions, then remove its blanks, to get the labels that it
    spells. With "-" for the blank, "aa-b" and "-abb" both spell "ab".

    log_probs:      f32 [T, N, C]: logarithms of the probabilities of C classes, for T inputs of N sequences.
    targets:        i32 [N, S]: up to S labels for each sequence, in [0, C) and other than `blank`. Labels beyond a
                    sequence's length are not used, but must be valid classes. Other numbers raise IndexError, and an
                    input with one fails the run. Labels equal to `blank`, or computed by a program, are not checked.
    input_lengths:  i32 [N]: number of inputs of each sequence, from 1 to T; 0 gives an infinite loss. Errors as above.
    target_lengths: i32 [N]: number of labels of each sequence, from 0 to S. Errors as above.
    blank:          the class that stands for no label.
    reduction:      "mean" (each loss divided by its target length, or by 1 if that is 0, then the mean), "sum", or
                    "none".
    zero_infinity:  replace an infinite loss by 0, without a gradient. A loss is infinite if the labels need more inputs
                    than the sequence has.
    Returns:        f32, rank 0; for "none" [N].
    Gradient:       to `log_probs`: minus the probability, given the labels, that the path has class c at input t.
                    PyTorch adds exp(log_probs); log_softmax before the loss cancels this difference.
    Raises:         ShapeError or DTypeError if shapes or dtypes do not fit; InputError for another `reduction` or a
                    `blank` that is no class.

    As torch.nn.functional.ctc_loss (Graves et al. 2006), with `targets` as a matrix.

    >>> log_probs = tg.log_softmax(np.zeros((4, 1, 3), np.float32))    # T = 4 inputs, one sequence, C = 3 classes
    >>> tg.ctc_loss(log_probs, np.array([[1, 2]], np.int32), np.array([4], np.int32), np.array([2], np.int32))
    tensor(0.8431995)
    """
    x, blank = as_tensor(log_probs), integer(blank, "blank")
    float_type(x.type)
    if x.ndim != 3 or not x.shape[0]:
        raise ShapeError(f"log_probs must be [T,N,C] with T > 0, got {x.type}")
    steps, n, classes = x.shape
    if not 0 <= blank < classes:
        raise InputError(f"blank = {blank} is not a class of {x.type}; {valid(0, classes)}")
    labels = classes_for(targets, classes)
    if labels.ndim != 2 or labels.shape[0] != n:
        raise ShapeError(
            f"targets must be i32[{n},S], a row of labels for each sequence; got {labels.type}. "
            f"log_probs is [T,N,C], here {x.type}"
        )
    if reduction not in ("mean", "sum", "none"):
        raise InputError(f"reduction must be one of 'mean', 'sum', 'none', got {reduction!r}")
    inputs = _lengths(input_lengths, n, 1, steps, "input_lengths")
    sizes = _lengths(target_lengths, n, 0, labels.shape[1], "target_lengths")
    values = -_likelihood(x, labels, inputs, sizes, blank)
    if zero_infinity:
        values = where(values == -NEVER, 0.0, values)
    if reduction == "mean":
        values = values / cast(maximum(sizes, 1), f32)
    return reduced(values, reduction)


def _likelihood(x: Tensor, labels: Tensor, inputs: Tensor, sizes: Tensor, blank: int) -> Tensor:
    """Return the log-probability of each sequence, by the forward recursion over blank, label, blank, ..."""
    steps, n, _ = x.shape
    width = 2 * labels.shape[1] + 1
    own = reshape(stack([broadcast_to(const(blank, i32), labels.shape), labels], 2), (n, width - 1))
    states = concat([own, broadcast_to(const(blank, i32), (n, 1))], 1)
    emitted = take_along_axis(x, reshape(states, (1, n, width)), 2)
    place = iota((n, width), 1)
    before = concat([broadcast_to(const(blank, i32), (n, min(2, width))), states], 1)
    skips = (states != blank) & (states != slice_(before, 1, 0, width))
    first = where(place <= 1, slice_(emitted, 0, 0, 1).reshape((n, width)), NEVER)

    def step(alpha: Tensor, element: tuple[Tensor, Tensor]) -> tuple[Tensor, None]:
        scores, t = element
        parts = [alpha, _shifted(alpha, 1)]
        if width > 2:
            parts.append(where(skips, _shifted(alpha, 2), NEVER))
        running = broadcast_to(reshape(t < inputs, (n, 1)), (n, width))
        return where(running, _log_sum(parts) + scores, alpha), None

    alpha = first
    if steps > 1:
        numbers = iota((steps - 1,), 0) + 1
        alpha, _ = scan(step, first, (slice_(emitted, 0, 1, steps - 1), numbers))
    last = 2 * broadcast_to(reshape(sizes, (n, 1)), (n, width))
    return _log_sum([where(place == last - k, alpha, NEVER).max(1) for k in (0, 1)])
