"""A sweep: twelve choices of rate and decay train at once, in one compiled step. The best is saved.

Run: python examples/sweep.py
"""

import itertools

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.demo.data import load_digits

BATCH, RATES, DECAYS = 64, (1e-4, 1e-3, 1e-2, 1e-1), (0.0, 0.01, 1.0)
CHOICES = list(itertools.product(RATES, DECAYS))


class Net(tg.Module):
    def __init__(self):
        self.l1, self.l2 = nn.Linear(64, 32), nn.Linear(32, 10)

    def __call__(self, x):
        return self.l2(tg.relu(self.l1(x)))


def loss(m, x, y):
    return tg.cross_entropy(m(x), y)


def training(device="auto"):
    rates, decays = zip(*CHOICES, strict=True)
    inputs = {"x": (None, 64), "y": tg.i32[None]}
    return tg.sweep(model=Net(), loss=loss, inputs=inputs, optimizer=optim.adamw(), lr=rates, weight_decay=decays,
                    seeds=0, device=device)  # fmt: skip


def main(steps=300, device="auto", path="best.safetensors"):
    data, rng = load_digits(), np.random.default_rng(0)
    with training(device) as sweep:
        for _ in range(steps):
            picked = rng.integers(0, len(data.train_x), BATCH)
            sweep.step(x=data.train_x[picked].reshape(-1, 64), y=data.train_y[picked])
        infer = sweep.attach(forward=Net.__call__, inputs={"x": (None, 64)})
        right = (infer.run(x=data.test_x.reshape(-1, 64)).output.argmax(-1) == data.test_y).mean(1)
        best = int(right.argmax())
        sweep.save(path, member=best)
    rate, decay = CHOICES[best]
    print(f"rate {rate:g} and decay {decay:g}: {right[best]:.1%} right; the worst choice {right.min():.1%}")
    return float(right[best])


if __name__ == "__main__":
    main()
