"""A Hamiltonian network learns the energy of a pendulum from its motion. Run: python examples/hamiltonian.py

The network computes the energy H(q, p). Its gradient gives the motion, dq/dt = dH/dp and dp/dt = -dH/dq, which keeps H
constant along every path. Greydanus et al. 2019.
"""

from collections.abc import Iterator

import numpy as np

import tracegrad as tg
from tracegrad import lr, nn, optim

BATCH = 128


class Energy(tg.Module):
    def __init__(self):
        self.l1, self.l2, self.l3 = nn.Linear(2, 64), nn.Linear(64, 64), nn.Linear(64, 1, bias=False)

    def __call__(self, state: tg.Tensor) -> tg.Tensor:
        return self.l3(tg.tanh(self.l2(tg.tanh(self.l1(state)))))


def velocity(m: Energy, state: tg.Tensor) -> tg.Tensor:
    slope = tg.grad(lambda s: tg.sum(m(s)))(state)  # rows are independent, so each row gets its own gradient
    return tg.stack([slope[:, 1], -slope[:, 0]], 1)


def loss(m: Energy, state: tg.Tensor, seen: tg.Tensor) -> tg.Tensor:
    return tg.mse_loss(velocity(m, state), seen)


def training(device: str = "auto") -> tg.CompiledTraining:
    inputs, optimizer = {"state": (BATCH, 2), "seen": (BATCH, 2)}, optim.adam(lr.cosine_annealing(4e-3, 1e-5, 3000))
    return tg.compile(model=Energy(), loss=loss, inputs=inputs, optimizer=optimizer, seed=0, device=device)


def batches(steps: int) -> Iterator[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    for _ in range(steps):
        state = rng.uniform(-2, 2, (BATCH, 2)).astype(np.float32)
        yield {"state": state, "seen": np.stack([state[:, 1], -np.sin(state[:, 0])], 1)}


def main(steps: int = 3000, device: str = "auto") -> float:
    with training(device) as train:
        train.fit(batches(steps))
        move = train.attach(forward=velocity, inputs={"state": (1, 2)})
        state, energies, dt = np.array([[1.2, 0.0]], np.float32), [], 0.05
        for _ in range(400):  # the midpoint rule
            half = state + dt / 2 * move.run(state=state).output
            state = state + dt * move.run(state=half).output
            energies.append(float(state[0, 1] ** 2 / 2 + 1 - np.cos(state[0, 0])))
    drift = max(energies) - min(energies)
    print(f"the true energy along a path of 400 steps drifts by {drift:.4f} of {energies[0]:.4f}")
    return drift


if __name__ == "__main__":
    main()
