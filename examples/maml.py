"""MAML: initial weights from which one step of descent fits any sine wave. Run: python examples/maml.py

The gradient passes through the inner step, so it is of second order. One `vmap` runs all tasks of a step.
Finn et al. 2017, section 5.1.
"""

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim

TASKS, POINTS, INNER_LR = 16, 10, 0.005


class MLP(tg.Module):
    def __init__(self, width: int = 40):
        self.l1, self.l2 = nn.Linear(1, width), nn.Linear(width, width)
        self.l3 = nn.Linear(width, 1)


def mse(m: MLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mean(tg.square(m.l3(tg.relu(m.l2(tg.relu(m.l1(x))))) - y))


def adapted(m: MLP, x: tg.Tensor, y: tg.Tensor) -> MLP:
    """Take one step of gradient descent on the points of a task."""
    return tg.tree_map(lambda p, g: p - INNER_LR * g, m, tg.grad(mse)(m, x, y))


def task_loss(m: MLP, x: tg.Tensor, y: tg.Tensor, new_x: tg.Tensor, new_y: tg.Tensor) -> tg.Tensor:
    return mse(adapted(m, x, y), new_x, new_y)


def loss(m: MLP, x: tg.Tensor, y: tg.Tensor, new_x: tg.Tensor, new_y: tg.Tensor):
    after = tg.mean(tg.vmap(task_loss, in_axes=(None, 0, 0, 0, 0))(m, x, y, new_x, new_y))
    before = tg.mean(tg.vmap(mse, in_axes=(None, 0, 0))(m, new_x, new_y))
    return after, {"before": before}


def main(steps: int = 1500, device: str = "auto") -> tuple[float, float]:
    rng, shape = np.random.default_rng(0), (TASKS, POINTS, 1)
    inputs = dict.fromkeys(("x", "y", "new_x", "new_y"), shape)
    before, after = [], []
    optimizer = optim.adam(lr=1e-3)
    with tg.compile(model=MLP(), loss=loss, inputs=inputs, optimizer=optimizer, device=device, seed=0) as train:
        for step in range(steps):
            height, phase = rng.uniform(0.5, 2.0, (TASKS, 1, 1)), rng.uniform(0, np.pi, (TASKS, 1, 1))
            x, new_x = (rng.uniform(-3, 3, shape).astype(np.float32) for _ in range(2))
            y, new_y = ((height * np.sin(v + phase)).astype(np.float32) for v in (x, new_x))
            r = train.step(x=x, y=y, new_x=new_x, new_y=new_y)
            before.append(float(r.aux["before"]))
            after.append(r.loss)
            if step % 250 == 249:
                print(f"{step + 1:5}  before the step {np.mean(before[-50:]):.3f}, after {np.mean(after[-50:]):.3f}")
    return float(np.mean(before[-50:])), float(np.mean(after[-50:]))


if __name__ == "__main__":
    main()
