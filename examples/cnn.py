"""A convolutional classifier of 28×28 images with dropout and `aux` outputs. Run: python examples/cnn.py

The images are the digits of the package, enlarged, so there is nothing to download.
"""

from typing import Any

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.demo.data import load_digits

BATCH = 64


class CNN(tg.Module):
    """1 -> 16 -> 32 channels, two pools, one dense layer."""

    def __init__(self):
        self.conv1 = nn.Conv2d(1, 16, 3, padding=1)
        self.conv2 = nn.Conv2d(16, 32, 3, padding=1)
        self.dense = nn.Linear(32 * 7 * 7, 10)


def features(m: CNN, x: tg.Tensor) -> tg.Tensor:
    x = tg.max_pool2d(tg.relu(m.conv1(x)), 2)
    x = tg.max_pool2d(tg.relu(m.conv2(x)), 2)
    return tg.flatten(x)


def classify(m: CNN, x: tg.Tensor) -> tg.Tensor:
    return m.dense(features(m, x))


def loss(m: CNN, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.cross_entropy(classify(m, x), y)


def loss_with_dropout(m: CNN, x: tg.Tensor, y: tg.Tensor) -> tuple[tg.Tensor, dict[str, tg.Tensor]]:
    """Return the loss, and further tensors, which come back as `r.aux`."""
    scores = m.dense(tg.dropout(features(m, x), 0.25))
    return tg.cross_entropy(scores, y), {"guesses": tg.argmax(scores, axis=-1)}


def magnify(images: Any) -> Any:
    """Enlarge images: f32[n, 1, 8, 8] -> f32[n, 1, 28, 28]."""
    return np.pad(images.repeat(3, axis=2).repeat(3, axis=3), [(0, 0), (0, 0), (2, 2), (2, 2)])


def main(steps: int = 200, device: str = "auto") -> float:
    data, rng = load_digits(), np.random.default_rng(0)
    train_x, test_x = magnify(data.train_x), magnify(data.test_x)
    with tg.compile(
        model=CNN(),
        loss=loss_with_dropout,
        inputs={"x": (BATCH, 1, 28, 28), "y": tg.i32[BATCH]},
        optimizer=optim.adamw(lr=2e-3, weight_decay=1e-2, clip_grad_norm=1.0),
        seed=0,
        device=device,
    ) as train:
        print(train)
        for step in range(steps):
            picked = rng.integers(0, len(train_x), BATCH)
            r = train.step(x=train_x[picked], y=data.train_y[picked])
            if step % 20 == 0:
                right = (r.aux["guesses"] == data.train_y[picked]).mean()
                print(f"{step:4} loss {r.loss:.4f}  right {right:.0%}")
        infer = train.attach(forward=classify, inputs={"x": (None, 1, 28, 28)})
        guesses = infer.run(x=test_x).output.argmax(axis=1)
    right = float((guesses == data.test_y).mean())
    print(f"held out: {right:.1%}")
    return right


if __name__ == "__main__":
    main()
