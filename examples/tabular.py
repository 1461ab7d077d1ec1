"""A table of ten columns, one number to predict, and early stopping. Run: python examples/tabular.py

The data are Friedman's first problem, in which five of the columns have no effect. Friedman 1991.
"""

from collections.abc import Iterator

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim

BATCH = 64


class Net(tg.Module):
    def __init__(self):
        self.layers = nn.Sequential(nn.Linear(10, 64), tg.relu, nn.Linear(64, 64), tg.relu, nn.Linear(64, 1))

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        return self.layers(x)[:, 0]


def loss(m: Net, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mse_loss(m(x), y)


def table(n: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(seed)
    x = rng.uniform(0, 1, (n, 10))
    y = 10 * np.sin(np.pi * x[:, 0] * x[:, 1]) + 20 * (x[:, 2] - 0.5) ** 2 + 10 * x[:, 3] + 5 * x[:, 4]
    return x.astype(np.float32), (y + rng.standard_normal(n)).astype(np.float32)


def training(device: str = "auto") -> tg.CompiledTraining:
    inputs, optimizer = {"x": (None, 10), "y": (None,)}, optim.adamw(lr=3e-3, weight_decay=1e-3)
    return tg.compile(model=Net(), loss=loss, inputs=inputs, optimizer=optimizer, seed=0, device=device)


def batches(steps: int) -> Iterator[dict[str, np.ndarray]]:
    x, y = table(1000, 0)
    for k in range(steps):
        yield {"x": x[k * BATCH : k * BATCH + 40 + k], "y": y[k * BATCH : k * BATCH + 40 + k]}


def main(epochs: int = 200, device: str = "auto") -> float:
    x, y = table(1000, 0)
    new_x, new_y = table(1000, 1)
    with training(device) as train:
        patient = tg.EarlyStopping("val_loss", patience=10)
        history = train.fit(x=x, y=y, batch_size=BATCH, epochs=epochs, validation=0.2, callbacks=[patient])
        guesses = train.attach(forward=Net.__call__, inputs={"x": (None, 10)}).run(x=new_x).output
    wrong = float(np.square(guesses - new_y).mean())
    print(f"{history.epochs} epochs; squared error on new rows {wrong:.2f}, of which 1.00 is noise")
    return wrong


if __name__ == "__main__":
    main()
