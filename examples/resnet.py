"""A small residual network with batch normalisation, on digits moved at random. Run: python examples/resnet.py

The running statistics are states. The step writes them, and inference uses them. He et al. 2016.
"""

from collections.abc import Iterator

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.demo.data import load_digits

BATCH = 64


class Block(tg.Module):
    """relu(x + f(x)), where f is two convolutions, each followed by a norm."""

    def __init__(self, n_in: int, n_out: int, stride: int):
        self.conv1 = nn.Conv2d(n_in, n_out, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(n_out, n_out, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm(n_out), nn.BatchNorm(n_out)
        self.short = nn.Conv2d(n_in, n_out, 1, stride=stride, bias=False)

    def __call__(self, x: tg.Tensor, training: bool) -> tg.Tensor:
        y = tg.relu(self.norm1(self.conv1(x), training))
        return tg.relu(self.short(x) + self.norm2(self.conv2(y), training))


class Net(tg.Module):
    def __init__(self):
        self.first, self.norm = nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm(16)
        self.blocks = [Block(16, 16, 1), Block(16, 32, 2)]
        self.out = nn.Linear(32, 10)

    def __call__(self, x: tg.Tensor, training: bool = False) -> tg.Tensor:
        x = tg.relu(self.norm(self.first(x), training))
        for block in self.blocks:
            x = block(x, training)
        return self.out(tg.mean(x, axis=(2, 3)))


def loss(m: Net, x: tg.Tensor, y: tg.Tensor, training: bool = True) -> tuple[tg.Tensor, dict[str, tg.Tensor]]:
    scores = m(x, training)
    return tg.cross_entropy(scores, y), {"accuracy": tg.metrics.accuracy(scores, y)}


def moved(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Move each image by up to a pixel."""
    padded = np.pad(images, [(0, 0), (0, 0), (1, 1), (1, 1)])
    y, x = rng.integers(0, 3, (2, len(images)))
    return np.stack([im[:, a : a + 8, b : b + 8] for im, a, b in zip(padded, y, x, strict=True)])


def training(device: str = "auto") -> tg.CompiledTraining:
    inputs, optimizer = {"x": (BATCH, 1, 8, 8), "y": tg.i32[BATCH]}, optim.sgd(lr=0.1, momentum=0.9)
    return tg.compile(model=Net(), loss=loss, inputs=inputs, optimizer=optimizer, seed=0, device=device)


def batches(steps: int) -> Iterator[dict[str, np.ndarray]]:
    data, rng = load_digits(), np.random.default_rng(0)
    for _ in range(steps):
        picked = rng.integers(0, len(data.train_x), BATCH)
        yield {"x": moved(data.train_x[picked], rng), "y": data.train_y[picked]}


def main(steps: int = 300, device: str = "auto") -> float:
    data = load_digits()
    with training(device) as train:
        history = train.fit(batches(steps), validation=(data.test_x, data.test_y))
    right = history.metrics[-1]["val_accuracy"]
    print(f"held out: {right:.1%}")
    return right


if __name__ == "__main__":
    main()
