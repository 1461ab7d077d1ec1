"""A network that solves a differential equation: u'' = -π² sin(πx), u(0) = u(1) = 0. Run: python examples/pinn.py

The loss needs second derivatives by the input, which `tg.grad` computes inside the loss. Raissi et al. 2019.
"""

from collections.abc import Iterator

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim

POINTS = 64


class Net(tg.Module):
    def __init__(self):
        self.l1, self.l2, self.l3 = nn.Linear(1, 32), nn.Linear(32, 32), nn.Linear(32, 1)

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        return self.l3(tg.tanh(self.l2(tg.tanh(self.l1(x)))))


def loss(m: Net, x: tg.Tensor, ends: tg.Tensor) -> tg.Tensor:
    curvature = tg.vmap(tg.grad(tg.grad(lambda point: m(tg.reshape(point, (1, 1)))[0, 0])))
    residual = curvature(x) + np.pi**2 * tg.sin(np.pi * x)
    return tg.mean(tg.square(residual)) + 100 * tg.mean(tg.square(m(ends)))


def training(device: str = "auto") -> tg.CompiledTraining:
    inputs, optimizer = {"x": (POINTS,), "ends": (2, 1)}, optim.adam(lr=3e-3)
    return tg.compile(model=Net(), loss=loss, inputs=inputs, optimizer=optimizer, seed=0, device=device)


def batches(steps: int) -> Iterator[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    for _ in range(steps):
        yield {"x": rng.uniform(0, 1, POINTS).astype(np.float32), "ends": np.array([[0.0], [1.0]], np.float32)}


def main(steps: int = 1500, device: str = "auto") -> float:
    with training(device) as train:
        train.fit(batches(steps))
        x = np.linspace(0, 1, 101, dtype=np.float32)
        found = train.attach(forward=Net.__call__, inputs={"x": (101, 1)}).run(x=x[:, None]).output[:, 0]
    error = float(np.abs(found - np.sin(np.pi * x)).max())
    print(f"largest error {error:.4f}")
    return error


if __name__ == "__main__":
    main()
