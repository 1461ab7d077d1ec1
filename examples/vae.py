"""A variational autoencoder of digits: two numbers encode an image, and generate new ones. Run: python examples/vae.py

The compiled step draws the noise. Kingma and Welling 2014.
"""

from collections.abc import Iterator

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.demo.data import load_digits

BATCH, WIDTH, CODE = 128, 128, 2


class VAE(tg.Module):
    def __init__(self):
        self.read, self.mean, self.spread = nn.Linear(64, WIDTH), nn.Linear(WIDTH, CODE), nn.Linear(WIDTH, CODE)
        self.write, self.pixels = nn.Linear(CODE, WIDTH), nn.Linear(WIDTH, 64)


def decode(m: VAE, z: tg.Tensor) -> tg.Tensor:
    return m.pixels(tg.relu(m.write(z)))


def bound(m: VAE, x: tg.Tensor, noise: tg.Tensor) -> tg.Tensor:
    """Return minus the evidence lower bound, per image. `spread` is the logarithm of the variance."""
    h = tg.relu(m.read(x))
    mean, spread = m.mean(h), m.spread(h)
    pixels = decode(m, mean + tg.exp(0.5 * spread) * noise)
    wrong = tg.binary_cross_entropy_with_logits(pixels, x, reduction="sum") / BATCH
    return wrong - 0.5 * tg.sum(1 + spread - tg.square(mean) - tg.exp(spread)) / BATCH


def loss(m: VAE, x: tg.Tensor) -> tg.Tensor:
    return bound(m, x, tg.randn((BATCH, CODE)))


def training(device: str = "auto", loss=loss, **inputs) -> tg.CompiledTraining:
    inputs = {"x": (BATCH, 64), **inputs}
    return tg.compile(model=VAE(), loss=loss, inputs=inputs, optimizer=optim.adam(lr=3e-3), seed=0, device=device)


def batches(steps: int) -> Iterator[dict[str, np.ndarray]]:
    images, rng = load_digits().train_x.reshape(-1, 64), np.random.default_rng(0)
    for _ in range(steps):
        yield {"x": images[rng.integers(0, len(images), BATCH)]}


def main(steps: int = 2000, device: str = "auto") -> float:
    with training(device) as train:
        history = train.fit(batches(steps))
        draw = train.attach(forward=decode, inputs={"z": (None, CODE)})
        made = draw.run(z=np.random.default_rng(1).standard_normal((3, CODE)).astype(np.float32)).output
    for row in (1 / (1 + np.exp(-made))).reshape(3, 8, 8).transpose(1, 0, 2):
        print("   ".join("".join(" .:*#"[int(5 * min(p, 0.99))] for p in image) for image in row))
    return history.loss[-1]


if __name__ == "__main__":
    main()
