"""A small convolutional classifier of handwritten digits: the main demo."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import tracegrad as tg
from tracegrad import lr, nn, optim
from tracegrad.demo.common import Options, Report, loss_chart
from tracegrad.demo.data import I32, Digits, load_digits
from tracegrad.demo.pictures import image_sheet

BATCH = 64
STEPS = 600
EVALUATIONS = 6  # during the training
SHOWN = 96  # digits on the sheet


class DigitNet(tg.Module):
    """Two convolutions, each followed by a pool, and a dense layer: 6 090 parameters."""

    def __init__(self) -> None:
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.dense = nn.Linear(32 * 2 * 2, 10)


def logits(m: DigitNet, x: tg.Tensor) -> tg.Tensor:
    """Return scores f32[n, 10] for images f32[n, 1, 8, 8]."""
    x = tg.max_pool2d(tg.relu(m.conv1(x)), 2)
    x = tg.max_pool2d(tg.relu(m.conv2(x)), 2)
    return m.dense(tg.flatten(x))


def loss(m: DigitNet, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    """Return the mean cross-entropy of a batch."""
    return tg.cross_entropy(logits(m, x), y)


def batches(data: Digits, steps: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield random batches, without replacement within an epoch. A seed always gives the same batches."""
    rng = np.random.default_rng(seed)
    order = rng.permutation(len(data.train_y))
    at = 0
    for _ in range(steps):
        if at + BATCH > len(order):
            order, at = rng.permutation(len(order)), 0
        picked = order[at : at + BATCH]
        at += BATCH
        yield {"x": data.train_x[picked], "y": data.train_y[picked]}


def run(options: Options) -> int:
    """Train, test, and write the folder. Returns the exit code."""
    data = load_digits()
    steps = options.steps or STEPS
    report = Report("digits", options)
    report.say(
        f"Handwritten digits: {len(data.train_y)} images of 8×8 to train with, {len(data.test_y)} held out "
        "(UCI Machine Learning Repository, CC BY 4.0)"
    )
    inputs = {"x": (BATCH, 1, 8, 8), "y": tg.i32[BATCH]}
    optimizer = optim.adamw(lr=lr.one_cycle(peak=1e-2, steps=steps), weight_decay=1e-2)
    with report.training(DigitNet(), loss, inputs, optimizer) as train:
        classify = train.attach(forward=logits, inputs={"x": (None, 1, 8, 8)})

        def accuracy(_: tg.CompiledTraining) -> dict[str, float]:
            return {"held-out accuracy": float((guess(classify, data) == data.test_y).mean())}

        history = train.fit(
            batches(data, steps, options.seed), steps=steps, evaluate=accuracy, every=max(1, steps // EVALUATIONS)
        )
        report.trained(train, history)
        guesses = guess(classify, data)
        right = int((guesses == data.test_y).sum())
        report.say(f"Held-out accuracy: {right / len(guesses):.2%} ({right} of {len(guesses)})")
        report.write_text("loss.svg", loss_chart(history.loss, "Handwritten digits: training loss", "cross-entropy"))
        report.write_text("digits.svg", digit_sheet(data, guesses))
        report.finish(train, accuracy=right / len(guesses))
        rows = {"x": data.train_x, "y": data.train_y}
        report.page(train, "Handwritten digits", forwards={"Which digit is it?": classify}, data=rows)
    return 0


def guess(classify: tg.CompiledForward, data: Digits) -> I32:
    """Return the most likely digit of every held-out image."""
    return classify.run(x=data.test_x).output.argmax(axis=1).astype(np.int32)


def digit_sheet(data: Digits, guesses: I32) -> str:
    """Return an SVG of held-out digits with the model's answers, mistakes first."""
    wrong = guesses != data.test_y
    order = np.argsort(~wrong, kind="stable")[:SHOWN]
    captions = [f"{g} (is {y})" if g != y else str(g) for g, y in zip(guesses[order], data.test_y[order], strict=True)]
    ink = np.rint(255 * (1 - data.test_x[order, 0])).astype(np.uint8)
    count = int(wrong.sum())
    first = "no mistake" if not count else "the mistake first" if count == 1 else f"all {count} mistakes first"
    title = f"Held-out digits and the model's answers: {1 - wrong.mean():.1%} right, {first}"
    return image_sheet(ink, captions, list(wrong[order]), title=title)
