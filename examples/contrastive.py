"""Features of digits without labels: two views of one image become similar, and views of different images dissimilar.

Run: python examples/contrastive.py. A linear model on the features then tells the digits apart. Chen et al. 2020.
"""

from collections.abc import Iterator

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.demo.data import load_digits

BATCH, HEAT = 128, 0.2


class Encoder(tg.Module):
    def __init__(self):
        self.conv1, self.conv2 = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)
        self.dense, self.out = nn.Linear(32 * 4 * 4, 64), nn.Linear(64, 32)


def features(m: Encoder, x: tg.Tensor) -> tg.Tensor:
    x = tg.max_pool2d(tg.relu(m.conv2(tg.relu(m.conv1(x)))), 2)
    return tg.relu(m.dense(tg.flatten(x)))


def unit(x: tg.Tensor) -> tg.Tensor:
    return x / tg.norm(x, -1, keepdims=True)


def loss(m: Encoder, one: tg.Tensor, two: tg.Tensor) -> tg.Tensor:
    a, b = (unit(m.out(features(m, x))) for x in (one, two))
    alike = a @ b.T / HEAT  # [image, image]: the diagonal holds the two views of one image
    same = tg.arange(BATCH)
    return (tg.cross_entropy(alike, same) + tg.cross_entropy(alike.T, same)) / 2


def view(images: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Move each image by up to a pixel, and add noise."""
    padded = np.pad(images, [(0, 0), (0, 0), (1, 1), (1, 1)])
    y, x = rng.integers(0, 3, (2, len(images)))
    moved = np.stack([im[:, a : a + 8, b : b + 8] for im, a, b in zip(padded, y, x, strict=True)])
    return (moved + 0.1 * rng.standard_normal(images.shape)).astype(np.float32)


def training(device: str = "auto") -> tg.CompiledTraining:
    inputs, optimizer = {"one": (BATCH, 1, 8, 8), "two": (BATCH, 1, 8, 8)}, optim.adam(lr=2e-3)
    return tg.compile(model=Encoder(), loss=loss, inputs=inputs, optimizer=optimizer, seed=0, device=device)


def batches(steps: int) -> Iterator[dict[str, np.ndarray]]:
    data, rng = load_digits(), np.random.default_rng(0)
    for _ in range(steps):
        images = data.train_x[rng.permutation(len(data.train_x))[:BATCH]]
        yield {"one": view(images, rng), "two": view(images, rng)}


def main(steps: int = 400, device: str = "auto") -> float:
    data = load_digits()
    with training(device) as train:
        train.fit(batches(steps))
        encode = train.attach(forward=features, inputs={"x": (None, 1, 8, 8)})
        known, new = (np.c_[encode.run(x=x).output, np.ones(len(x))] for x in (data.train_x, data.test_x))
    few = np.random.default_rng(1).permutation(len(known))[:200]  # only these labels are used
    wanted = np.eye(10)[data.train_y[few]]
    weights = np.linalg.solve(known[few].T @ known[few] + np.eye(known.shape[1]), known[few].T @ wanted)
    right = float(((new @ weights).argmax(1) == data.test_y).mean())
    print(f"right by 200 labels: {right:.1%}")
    return right


if __name__ == "__main__":
    main()
