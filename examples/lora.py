"""LoRA: a classifier of digits learns upside-down digits by two small matrices per layer. Run: python examples/lora.py

First the whole classifier is trained. Then its weights are frozen, and only the matrices change. Hu et al. 2021.
"""

from collections.abc import Iterator

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.demo.data import load_digits

BATCH, RANK = 64, 4


class Adapted(tg.Module):
    """x W + b + x A B. B starts at 0, so the layer starts unchanged."""

    def __init__(self, n_in: int, n_out: int):
        self.base = nn.Linear(n_in, n_out)
        self.A = self.param((n_in, RANK), init=tg.init.randn(n_in**-0.5))
        self.B = self.param((RANK, n_out), init=tg.init.zeros())

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        return self.base(x) + x @ self.A @ self.B


class Net(tg.Module):
    def __init__(self):
        self.l1, self.l2 = Adapted(64, 128), Adapted(128, 10)

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        return self.l2(tg.relu(self.l1(x)))


def loss(m: Net, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.cross_entropy(m(x), y)


def training(device: str = "auto", frozen: str | tuple[str, ...] = "*.base.*") -> tg.CompiledTraining:
    """Compile a training. Frozen parameters have no gradient and no optimizer state."""
    inputs, optimizer = {"x": (BATCH, 64), "y": tg.i32[BATCH]}, optim.adam(lr=5e-3)
    return tg.compile(model=Net(), loss=loss, inputs=inputs, optimizer=optimizer, frozen=frozen, seed=0, device=device)


def batches(steps: int, turned: bool = True) -> Iterator[dict[str, np.ndarray]]:
    data, rng = load_digits(), np.random.default_rng(0)
    x = data.train_x.reshape(-1, 64)[:, :: -1 if turned else 1]
    for _ in range(steps):
        picked = rng.integers(0, len(x), BATCH)
        yield {"x": x[picked], "y": data.train_y[picked]}


def main(steps: int = 400, device: str = "auto") -> float:
    data, seen = load_digits(), {}
    images = {"upright": data.test_x.reshape(-1, 64), "upside-down": data.test_x.reshape(-1, 64)[:, ::-1]}

    def report(train: tg.CompiledTraining, when: str) -> None:
        infer = train.attach(forward=Net.__call__, inputs={"x": (None, 64)})
        for name, x in images.items():
            seen[name] = float((infer.run(x=x).output.argmax(1) == data.test_y).mean())
        print(f"{when}: " + ", ".join(f"{name} {right:.1%}" for name, right in seen.items()))

    with training(device, frozen=("*.A", "*.B")) as whole, training(device) as adapted:
        whole.fit(batches(steps, turned=False), progress=False)
        report(whole, "trained on upright digits")
        adapted.set_params(whole.params())
        adapted.fit(batches(steps), progress=False)
        report(adapted, "adapted to upside-down ones")
    return seen["upside-down"]


if __name__ == "__main__":
    main()
