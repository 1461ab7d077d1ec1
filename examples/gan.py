"""A GAN generates points on a ring from noise, with two losses in turn. Run: python examples/gan.py

Goodfellow et al. 2014, with the non-saturating loss of the generator.
"""

from collections.abc import Iterator

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim

BATCH, NOISE = 128, 4


class GAN(tg.Module):
    def __init__(self):
        self.G = nn.Sequential(nn.Linear(NOISE, 64), tg.relu, nn.Linear(64, 64), tg.relu, nn.Linear(64, 2))
        self.D = nn.Sequential(nn.Linear(2, 64), tg.relu, nn.Linear(64, 64), tg.relu, nn.Linear(64, 1))


def d_loss(m: GAN, x: tg.Tensor, z: tg.Tensor) -> tg.Tensor:
    return tg.mean(tg.softplus(-m.D(x))) + tg.mean(tg.softplus(m.D(m.G(z))))


def g_loss(m: GAN, z: tg.Tensor) -> tg.Tensor:
    return tg.mean(tg.softplus(-m.D(m.G(z))))


def training(device: str = "auto") -> tg.CompiledTraining:
    return tg.compile(
        model=GAN(),
        losses={"d": d_loss, "g": g_loss},
        inputs={"x": (BATCH, 2), "z": (BATCH, NOISE)},
        optimizer={"d": optim.adam(1e-3, beta1=0.5), "g": optim.adam(1e-3, beta1=0.5)},
        params={"d": "D.*", "g": "G.*"},
        seed=0,
        device=device,
    )


def batches(steps: int) -> Iterator[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    for _ in range(steps):
        turn = rng.uniform(0, 2 * np.pi, BATCH)
        ring = np.stack([np.cos(turn), np.sin(turn)], 1) + 0.05 * rng.standard_normal((BATCH, 2))
        yield {"x": ring.astype(np.float32), "z": rng.standard_normal((BATCH, NOISE)).astype(np.float32)}


def main(steps: int = 6000, device: str = "auto") -> float:
    with training(device) as train:
        train.fit(batches(steps), schedule=("d", "g"))
        make = train.attach(forward=lambda m, z: m.G(z), inputs={"z": (1000, NOISE)})
        points = make.run(z=np.random.default_rng(1).standard_normal((1000, NOISE)).astype(np.float32)).output
    distance = float(np.abs(np.linalg.norm(points, axis=1) - 1).mean())
    sides = np.histogram(np.arctan2(points[:, 1], points[:, 0]), 8, (-np.pi, np.pi))[0]
    print(f"mean distance from the ring {distance:.3f}; the emptiest eighth of it has {sides.min()} of 1000 points")
    return distance


if __name__ == "__main__":
    main()
