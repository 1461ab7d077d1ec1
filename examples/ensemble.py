"""64 small MLPs, each with its own initial values and learning rate, trained in one compiled step.

Run: python examples/ensemble.py
"""

import math

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim

MEMBERS, BATCH = 64, 128


class MLP(tg.Module):
    def __init__(self, width: int = 32):
        self.l1, self.l2 = nn.Linear(1, width), nn.Linear(width, width)
        self.l3 = nn.Linear(width, 1)


def predict(m: MLP, x: tg.Tensor) -> tg.Tensor:
    return m.l3(tg.relu(m.l2(tg.relu(m.l1(x)))))


def one_loss(m: MLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mean(tg.square(predict(m, x) - y))


def loss(m: MLP, x: tg.Tensor, y: tg.Tensor):
    each = tg.vmap(one_loss, in_axes=(0, None, None))(m, x, y)  # every member sees the same batch
    return tg.sum(each), {"each": each}


def own_rates(rates: np.ndarray) -> optim.Transform:
    """Scale the update of member k by rates[k]. Axis 0 of every parameter counts the members."""

    def scaled(update: tg.Tensor) -> tg.Tensor:
        return update * tg.asarray(rates).reshape((-1,) + (1,) * (update.ndim - 1))

    return optim.Transform({}, lambda g, p, state, host: (host.arena.each(scaled, g), {}))


def main(steps: int = 400, device: str = "auto") -> np.ndarray:
    rates = np.geomspace(1e-4, 3e-2, MEMBERS).astype(np.float32)
    optimizer = optim.custom(optim.chain(optim.scale_by_adam(), own_rates(rates)), lr=1.0)
    model, inputs, rng = nn.stack(MLP(), MEMBERS), {"x": (BATCH, 1), "y": (BATCH, 1)}, np.random.default_rng(0)
    with tg.compile(model=model, loss=loss, inputs=inputs, optimizer=optimizer, seed=0, device=device) as train:
        for _ in range(steps):
            x = rng.uniform(-math.pi, math.pi, (BATCH, 1)).astype(np.float32)
            r = train.step(x=x, y=np.sin(x))
        each = r.aux["each"]
        infer = train.attach(forward=tg.vmap(predict, in_axes=(0, None)), inputs={"x": (None, 1)})
        grid = np.linspace(-math.pi, math.pi, 9, dtype=np.float32)[:, None]
        best = infer.run(x=grid).output[each.argmin()]  # the output is [members, points, 1]
    for k in range(0, MEMBERS, 9):
        print(f"learning rate {rates[k]:.5f}  loss {each[k]:.5f}")
    print(f"best: {rates[each.argmin()]:.5f}, largest error {np.abs(best - np.sin(grid)).max():.3f}")
    return each


if __name__ == "__main__":
    main()
