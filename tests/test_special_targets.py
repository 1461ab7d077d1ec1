"""Losses of probabilities at targets of 0 and 1: values and two derivatives by every operand, beside PyTorch."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad
from test_numerics import computed, runtime  # noqa: F401
from tracegrad import ops as tg
from tracegrad.ir.nodes import Tensor
from tracegrad.transforms.walks import gradients

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
F = torch.nn.functional
INF = float("inf")
LOGITS = (0.0, -0.0, 1e-30, 1e-3, 1, -1, 20, -20, 104, -104, 1e10, -1e10)
WEIGHTS = (0.0, 0.5, 1.0, 3.0)


def bce(x: Any, t: Any) -> Any:
    return tg.binary_cross_entropy_with_logits(x, t, "none")


def weighted_bce(x: Any, t: Any, w: Any) -> Any:
    return tg.binary_cross_entropy_with_logits(x, t, "none", pos_weight=w)


def their_weighted_bce(x: Any, t: Any, w: Any) -> Any:
    """PyTorch's own function has no derivative by pos_weight."""
    return -w * t * F.logsigmoid(x) - (1 - t) * F.logsigmoid(-x)


def kl_div(x: Any, t: Any) -> Any:
    return tg.kl_div(x, t, "none")


def their_kl_div(x: Any, t: Any) -> Any:
    """PyTorch's own derivative by a target of 0 is NaN. Here t log(t) has the derivative 0 there."""
    return torch.where(t == 0, 0.0, torch.xlogy(t, torch.where(t == 0, 1.0, t))) - t * x


ROWS = [
    (bce, lambda x, t: F.binary_cross_entropy_with_logits(x, t, reduction="none"), (LOGITS, (0, 1, 0.25))),
    (weighted_bce, their_weighted_bce, (LOGITS, (0, 1, 0.25), WEIGHTS)),
    (kl_div, their_kl_div, (LOGITS, (0, 1, 0.25))),
]


def points(*values: tuple[float, ...]) -> list[Any]:
    """All combinations, an array for each operand."""
    return list(np.ascontiguousarray(np.array(list(itertools.product(*values)), np.float32).T))


def derivatives(fn: Callable[..., Any], *xs: Tensor) -> tuple[Tensor, ...]:
    y = fn(*xs)
    slopes = gradients(y.sum(), xs)
    return (y, *slopes, *(d for slope in slopes for d in gradients(slope.sum(), xs)))


def their_derivatives(fn: Callable[..., Any], xs: list[Any]) -> list[Any]:
    leaves = [torch.tensor(x.astype(np.float64), requires_grad=True) for x in xs]

    def slopes_of(y: Any) -> list[Any]:
        return list(torch.autograd.grad(y.sum(), leaves, create_graph=True, materialize_grads=True))

    y = fn(*leaves)
    slopes = slopes_of(y)
    return [t.numpy(force=True) for t in (y, *slopes, *(d for slope in slopes for d in slopes_of(slope)))]


@pytest.mark.parametrize("ours, theirs, values", ROWS, ids=lambda x: getattr(x, "__name__", ""))
def test_derivatives_by_logits_targets_and_weights(runtime: Any, ours: Any, theirs: Any, values: Any) -> None:  # noqa: F811
    xs = points(*values)
    want = their_derivatives(theirs, xs)
    for k, got in enumerate(computed(runtime, lambda *xs: derivatives(ours, *xs), *xs)):
        np.testing.assert_allclose(got, want[k], rtol=3e-5, atol=2e-7, err_msg=f"result {k}")
    slopes = np.sum(want[1 : 1 + len(xs)], axis=0)
    _, along = tracegrad.jvp(ours, tuple(xs), tuple(np.ones_like(x) for x in xs))
    np.testing.assert_allclose(along, slopes, rtol=3e-5, atol=2e-7)


def test_infinite_logits_that_are_right_cost_nothing(runtime: Any) -> None:  # noqa: F811
    x, t = np.array([INF, -INF, INF, -INF], np.float32), np.array([1, 0, 0, 1], np.float32)
    y, slope = computed(runtime, lambda x, t: derivatives(lambda x: weighted_bce(x, t, 2.0), x)[:2], x, t)
    np.testing.assert_array_equal(y, [0, 0, INF, INF])
    np.testing.assert_array_equal(slope, [0, 0, 1, -2])
    x = np.array([-INF, -1.0], np.float32)
    np.testing.assert_array_equal(computed(runtime, kl_div, x, np.zeros(2, np.float32))[0], 0)
