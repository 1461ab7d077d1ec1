"""A small network that learns the sine: three dense layers, with random points as batches."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

import tracegrad as tg
from tracegrad import lr, nn, optim
from tracegrad.demo.common import Options, Report, loss_chart
from tracegrad.demo.pictures import Series, line_chart

BATCH = 256
STEPS = 2000
ROWS = 4096


class MLP(tg.Module):
    """1-64-64-1 with relu: 4 353 parameters."""

    def __init__(self, width: int = 64) -> None:
        self.l1 = nn.Linear(1, width)
        self.l2 = nn.Linear(width, width)
        self.l3 = nn.Linear(width, 1)


def predict(m: MLP, x: tg.Tensor) -> tg.Tensor:
    """Predict y from x: f32[n, 1] -> f32[n, 1]."""
    return m.l3(tg.relu(m.l2(tg.relu(m.l1(x)))))


def loss(m: MLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    """Return the mean squared error of a batch."""
    return tg.mean(tg.square(predict(m, x) - y))


def batches(steps: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield batches of random points of [-π, π] and their sines."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        x = rng.uniform(-np.pi, np.pi, (BATCH, 1)).astype(np.float32)
        yield {"x": x, "y": np.sin(x)}


def rows(seed: int) -> dict[str, Any]:
    """Return the points from which the page draws its batches."""
    x = np.random.default_rng(seed).uniform(-np.pi, np.pi, (ROWS, 1)).astype(np.float32)
    return {"x": x, "y": np.sin(x)}


def run(options: Options) -> int:
    """Train, draw the learned curve, and write the folder. Returns the exit code."""
    steps = options.steps or STEPS
    report = Report("sine", options)
    report.say(f"The sine on [-π, π]: a 1-64-64-1 network, {BATCH} random points a step")
    inputs = {"x": (BATCH, 1), "y": (BATCH, 1)}
    optimizer = optim.adam(lr=lr.cosine_annealing(peak=1e-2, final=1e-5, steps=steps))
    with report.training(MLP(), loss, inputs, optimizer) as train:
        history = train.fit(batches(steps, options.seed), steps=steps)
        report.trained(train, history)
        curve = train.attach(forward=predict, inputs={"x": (None, 1)})
        x = np.linspace(-np.pi, np.pi, 201, dtype=np.float32)[:, None]
        y = curve.run(x=x).output
        worst = float(np.abs(y - np.sin(x)).max())
        report.say(f"Largest error on [-π, π]: {worst:.4f}")
        drawn = [Series("sin x", x[:, 0], np.sin(x[:, 0])), Series("learned", x[::8, 0], y[::8, 0], dots=True)]
        report.write_text("sine.svg", line_chart(drawn, title="The learned sine", x_label="x", y_label="y"))
        report.write_text("loss.svg", loss_chart(history.loss, "Sine: training loss", "mean squared error"))
        report.finish(train, largest_error=worst)
        report.page(train, "The sine", forwards={"curve": curve}, data=rows(options.seed))
    return 0
