"""Cross-validation: five folds of the data compare three learning rates, in one compiled training.

Run: python examples/folds.py. `reset` starts over without compiling, and draws other first values for another seed.
"""

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.demo.data import load_digits

BATCH, FOLDS, RATES = 64, 5, (1e-4, 1e-3, 1e-2)


class Net(tg.Module):
    def __init__(self):
        self.l1, self.l2 = nn.Linear(64, 64), nn.Linear(64, 10)

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        return self.l2(tg.relu(self.l1(x)))


def loss(m: Net, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.cross_entropy(m(x), y)


def training(device: str = "auto") -> tg.CompiledTraining:
    inputs, optimizer = {"x": (BATCH, 64), "y": tg.i32[BATCH]}, optim.adam(lr=1e-3)
    return tg.compile(model=Net(), loss=loss, inputs=inputs, optimizer=optimizer, seed=0, device=device)


def main(steps: int = 100, device: str = "auto") -> dict[float, float]:
    data, rng = load_digits(), np.random.default_rng(0)
    x, y = data.train_x.reshape(-1, 64), data.train_y
    folds = np.array_split(rng.permutation(len(x)), FOLDS)
    right = dict.fromkeys(RATES, 0.0)
    with training(device) as train:
        infer = train.attach(forward=Net.__call__, inputs={"x": (None, 64)})
        for rate in RATES:
            for k, held in enumerate(folds):
                others = np.concatenate([fold for fold in folds if fold is not held])
                train.reset(seed=k)
                train.set_lr(rate)
                for _ in range(steps):
                    picked = rng.choice(others, BATCH)
                    train.step(x=x[picked], y=y[picked])
                guesses = infer.run(x=x[held]).output.argmax(1)
                right[rate] += float((guesses == y[held]).mean()) / FOLDS
            print(f"rate {rate:g}: {right[rate]:.1%} right")
    return right


if __name__ == "__main__":
    main()
