"""A diffusion model of points on a spiral: it learns to remove noise, then makes points from noise alone.

Run: python examples/diffusion.py. The compiled step draws the noise. Ho et al. 2020.
"""

from collections.abc import Iterator

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim

BATCH, TIMES = 256, 50
KEPT = np.cumprod(1 - np.linspace(1e-4, 0.2, TIMES)).astype(np.float32)  # share of the variance left at each time


class Net(tg.Module):
    """A network that predicts the noise in `x` at a time."""

    def __init__(self):
        self.point, self.time = nn.Linear(2, 128), nn.Embedding(TIMES, 128)
        self.l1, self.l2 = nn.Linear(128, 128), nn.Linear(128, 2)

    def __call__(self, x: tg.Tensor, time: tg.Tensor) -> tg.Tensor:
        return self.l2(tg.silu(self.l1(tg.silu(self.point(x) + self.time(time)))))


def denoising(m: Net, x: tg.Tensor, time: tg.Tensor, noise: tg.Tensor) -> tg.Tensor:
    kept = tg.expand_dims(tg.take(KEPT, time), 1)
    return tg.mse_loss(m(tg.sqrt(kept) * x + tg.sqrt(1 - kept) * noise, time), noise)


def loss(m: Net, x: tg.Tensor) -> tg.Tensor:
    return denoising(m, x, tg.randint((BATCH,), 0, TIMES), tg.randn((BATCH, 2)))


def less_noise(m: Net, x: tg.Tensor, time: tg.Tensor, noise: tg.Tensor) -> tg.Tensor:
    """Sample `x` at the time before, with less noise."""
    kept, before = tg.take(KEPT, time), tg.where(time > 0, tg.take(KEPT, tg.maximum(time - 1, 0)), 1.0)
    share = kept / before
    mean = (x - (1 - share) / tg.sqrt(1 - kept) * m(x, tg.broadcast_to(time, (BATCH,)))) / tg.sqrt(share)
    return mean + tg.sqrt((1 - share) * (1 - before) / (1 - kept)) * noise


def spiral(n: int, rng: np.random.Generator) -> np.ndarray:
    turn = 3 * np.pi * np.sqrt(rng.uniform(0.1, 1, n))
    return (np.stack([turn * np.cos(turn), turn * np.sin(turn)], 1) / 5).astype(np.float32)


def training(device: str = "auto", loss=loss, **inputs) -> tg.CompiledTraining:
    inputs = {"x": (BATCH, 2), **inputs}
    return tg.compile(model=Net(), loss=loss, inputs=inputs, optimizer=optim.adam(lr=2e-3), seed=0, device=device)


def batches(steps: int) -> Iterator[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    for _ in range(steps):
        yield {"x": spiral(BATCH, rng)}


def main(steps: int = 3000, device: str = "auto") -> float:
    with training(device) as train:
        train.fit(batches(steps))
        inputs = {"x": (BATCH, 2), "time": tg.i32[()], "noise": (BATCH, 2)}
        earlier, rng = train.attach(forward=less_noise, inputs=inputs), np.random.default_rng(1)
        x = rng.standard_normal((BATCH, 2)).astype(np.float32)
        for time in reversed(range(TIMES)):
            noise = rng.standard_normal((BATCH, 2)).astype(np.float32)
            x = earlier.run(x=x, time=time, noise=noise).output
    real = spiral(5000, rng)
    distance = float(np.sqrt(((x[:, None] - real) ** 2).sum(-1)).min(1).mean())
    print(f"mean distance of a made point from the spiral: {distance:.3f}")
    return distance


if __name__ == "__main__":
    main()
