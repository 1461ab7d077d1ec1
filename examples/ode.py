"""A small neural ODE learns a vector field from trajectories of a pendulum. Run: python examples/ode.py

The solver is plain Python over tensors, unrolled while tracing. With `tg.remat`, the backward pass computes each solver
step again, so the values inside a step are not stored. Chen et al. 2018.
"""

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim

STEPS, DT, BATCH = 20, 0.1, 32


class Field(tg.Module):
    def __init__(self, width: int = 32):
        self.l1, self.l2 = nn.Linear(2, width), nn.Linear(width, 2)

    def __call__(self, state: tg.Tensor) -> tg.Tensor:
        return self.l2(tg.tanh(self.l1(state)))


def rk4(f, state):
    """Take one Runge-Kutta step. `f` returns the velocity of a state, for tensors and for arrays."""
    a = f(state)
    b = f(state + DT / 2 * a)
    c = f(state + DT / 2 * b)
    return state + DT / 6 * (a + 2.0 * b + 2.0 * c + f(state + DT * c))


def loss(m: Field, start: tg.Tensor, seen: tg.Tensor) -> tg.Tensor:
    step = tg.remat(lambda state: rk4(m, state))
    states = [start]
    for _ in range(STEPS):
        states.append(step(states[-1]))
    return tg.mse_loss(tg.stack(states[1:]), seen)


def pendulum(state: np.ndarray) -> np.ndarray:
    return np.stack([state[:, 1], -np.sin(state[:, 0])], 1)


def main(steps: int = 600, device: str = "auto") -> float:
    rng = np.random.default_rng(0)
    inputs = {"start": (BATCH, 2), "seen": (STEPS, BATCH, 2)}
    optimizer = optim.adam(lr=5e-3)
    with tg.compile(model=Field(), loss=loss, inputs=inputs, optimizer=optimizer, device=device, seed=0) as train:
        for step in range(steps):
            states = [rng.uniform(-1.5, 1.5, (BATCH, 2))]
            for _ in range(STEPS):
                states.append(rk4(pendulum, states[-1]))
            r = train.step(start=states[0].astype(np.float32), seen=np.stack(states[1:]).astype(np.float32))
            if step % 100 == 0:
                print(f"{step:4} loss {r.loss:.6f}")
        return r.loss


if __name__ == "__main__":
    main()
