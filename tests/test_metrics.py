"""tg.metrics on every runtime and at once, against definitions of scikit-learn's written out in NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg

RNG = np.random.default_rng(0)
N, C = 60, 7
LOGITS = RNG.normal(size=(N, C)).astype(np.float32)
LOGITS[3] = 0.5  # ties
TARGETS = RNG.integers(0, C, N).astype(np.int32)
SCORES = RNG.integers(0, 20, N).astype(np.float32)
TRUTHS = RNG.integers(0, 2, N).astype(np.int32)
INPUTS = {"logits": (N, C), "targets": tg.i32[N], "scores": (N,), "truths": tg.i32[N]}
VALUES = {"logits": LOGITS, "targets": TARGETS, "scores": SCORES, "truths": TRUTHS}


class Nothing(tg.Module):
    """A model without parameters has none to train; one number will do."""

    def __init__(self) -> None:
        self.one = self.param((), init=tg.init.ones())


def measures(m: Any, logits: Any, targets: Any, scores: Any, truths: Any) -> dict[str, Any]:
    return {
        "accuracy": tg.metrics.accuracy(logits, targets),
        "top_1": tg.metrics.top_k_accuracy(logits, targets, 1),
        "top_3": tg.metrics.top_k_accuracy(logits, targets, 3),
        "confusion": tg.metrics.confusion_matrix(tg.argmax(logits, -1), targets, C),
        "perplexity": tg.metrics.perplexity(logits, targets),
        "r2": tg.metrics.r2_score(logits[:, 0], scores),
        "auc": tg.metrics.auc(scores, truths),
    }


def expected() -> dict[str, Any]:
    chosen = LOGITS.argmax(-1)
    ranked = np.argsort(-LOGITS, -1, kind="stable")
    confusion = np.zeros((C, C), np.int32)
    np.add.at(confusion, (TARGETS, chosen), 1)
    wide = LOGITS.astype(np.float64)
    log_probs = wide - np.log(np.exp(wide).sum(-1, keepdims=True))
    pairs = SCORES[TRUTHS == 1][:, None] - SCORES[TRUTHS == 0]
    return {
        "accuracy": (chosen == TARGETS).mean(),
        "top_1": (chosen == TARGETS).mean(),
        "top_3": (ranked[:, :3] == TARGETS[:, None]).any(-1).mean(),
        "confusion": confusion,
        "perplexity": np.exp(-log_probs[np.arange(N), TARGETS].mean()),
        "r2": 1 - ((SCORES - wide[:, 0]) ** 2).sum() / ((SCORES - SCORES.mean()) ** 2).sum(),
        "auc": ((pairs > 0) + 0.5 * (pairs == 0)).mean(),
    }


def test_measures_on_a_device(device_name: str) -> None:
    with tg.compile_forward(model=Nothing(), forward=measures, inputs=INPUTS, device=device_name) as forward:
        found = forward.run(VALUES).output
    for name, value in expected().items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, err_msg=name)


def test_measures_at_once() -> None:
    found = measures(None, **VALUES)
    for name, value in expected().items():
        np.testing.assert_allclose(found[name].numpy(), value, rtol=1e-5, err_msg=name)


def test_measures_at_the_edges() -> None:
    nan = np.float32("nan")
    assert np.isnan(tg.metrics.auc(SCORES, np.zeros(N, np.int32)).item())
    assert tg.metrics.top_k_accuracy(np.array([[0.0, nan, 1.0]], np.float32), [2], 1).item() == 0.0
    assert tg.metrics.r2_score(SCORES, SCORES).item() == 1.0
    assert tg.metrics.perplexity(np.zeros((3, 8), np.float32), [0, 3, 7]).item() == pytest.approx(8.0)


@pytest.mark.parametrize(
    "call, error, text",
    [
        (lambda: tg.metrics.accuracy(LOGITS, TARGETS[:3]), tg.ShapeError, "accuracy"),
        (lambda: tg.metrics.accuracy(LOGITS, SCORES), tg.DTypeError, "i32"),
        (lambda: tg.metrics.top_k_accuracy(LOGITS, TARGETS, 0), tg.ShapeError, "positive integer"),
        (lambda: tg.metrics.confusion_matrix(TARGETS, TARGETS[:3], C), tg.ShapeError, "shapes differ"),
        (lambda: tg.metrics.auc(SCORES, SCORES), tg.DTypeError, "targets > 0.5"),
        (lambda: tg.metrics.auc(LOGITS, TRUTHS), tg.ShapeError, "one score"),
    ],
    ids=["lengths", "dtype of targets", "k of none", "lengths of classes", "targets of numbers", "two axes"],
)
def test_mistakes_name_the_measure_and_the_rule(call: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        call()
