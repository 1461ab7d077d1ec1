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
        (lambda: tg.metrics.auc(LOGITS, TRUTHS), tg.ShapeError, "the same shape"),
    ],
    ids=["lengths", "dtype of targets", "k of none", "lengths of classes", "targets of numbers", "two axes"],
)
def test_mistakes_name_the_measure_and_the_rule(call: Any, error: Any, text: str) -> None:
    with pytest.raises(error, match=text):
        call()


class Given(tg.Module):
    """Gives its inputs back."""

    def __init__(self) -> None:
        self.one = self.param((), init=tg.init.ones())


def given_loss(m: Any, logits: Any, targets: Any, scores: Any, truths: Any) -> Any:
    return tg.mean(m.one * logits), {"aux_r2": tg.metrics.r2_score(logits[:, 0], scores)}


@pytest.mark.parametrize("cuts", [(), (1, 2, 31), (7, 29), (50,)])
def test_validation_gives_measures_of_the_whole_set_whatever_its_batches_are(
    cuts: tuple[int, ...], device_name: str
) -> None:
    metrics = {name: _one(name) for name in expected()}
    inputs = {n: (getattr(v, "dtype", None) == np.int32 and tg.i32[(None, *v.shape[1:])]) or (None, *v.shape[1:])
              for n, v in VALUES.items()}  # fmt: skip
    parts = [dict(zip(VALUES, p)) for p in zip(*(np.split(v, cuts) for v in VALUES.values()))]
    with tg.compile(
        model=Given(), loss=given_loss, inputs=inputs, optimizer=tg.optim.sgd(0.0), seed=0, device=device_name
    ) as train:
        h = train.fit([VALUES], validation=parts, metrics=metrics, progress=False)
    for name, value in expected().items():
        np.testing.assert_allclose(h.metrics[-1][f"val_{name}"], value, rtol=1e-5, err_msg=name)
    np.testing.assert_allclose(h.metrics[-1]["val_aux_r2"], expected()["r2"], rtol=1e-5)
    assert h.metrics[-1]["val_confusion"].dtype == np.int64
    assert list(h.metrics[-1])[1:4] == ["val_loss", "val_aux_r2", "val_accuracy"]


def _one(name: str) -> Any:
    return lambda m, logits, targets, scores, truths: measures(m, logits, targets, scores, truths)[name]


def test_a_matrix_among_metrics_is_logged_and_not_drawn(tmp_path: Any) -> None:
    metrics = {"confusion": lambda m, x, y: tg.metrics.confusion_matrix(tg.argmax(m(x), -1), y, 3)}
    x, y = RNG.normal(size=(30, 4)).astype(np.float32), RNG.integers(0, 3, 30).astype(np.int32)
    with tg.compile(
        model=tg.nn.Linear(4, 3), loss=lambda m, x, y: tg.cross_entropy(m(x), y),
        inputs={"x": (None, 4), "y": tg.i32[None]}, optimizer=tg.optim.adam(1e-2), seed=0, device="cpu",
    ) as train:  # fmt: skip
        h = train.fit(x=x, y=y, batch_size=8, epochs=2, validation=0.3, metrics=metrics, log=tmp_path / "log.jsonl",
                      callbacks=[tg.CSVLogger(tmp_path / "log.csv")])  # fmt: skip
    assert h.metrics[-1]["val_confusion"].sum() == 9
    lines = (tmp_path / "log.jsonl").read_text().splitlines()
    assert f'"val_confusion": {h.metrics[-1]["val_confusion"].tolist()}' in lines[-1]
    assert len(h.to_frame()) == len(h.loss) and len(h.plot().lines) == 2
