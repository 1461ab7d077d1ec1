"""Fine-tuning: a network trained on even digits learns odd ones, mostly frozen. Run: python examples/finetune.py

The first layers keep their weights, and their gradient is not computed. Weights from PyTorch work, too, by
`tg.from_torch(state_dict, train)`. In the end all layers are trained, the first ones at a tenth of the rate.
"""

from collections.abc import Iterator

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.demo.data import load_digits

BATCH = 32


class Net(tg.Module):
    def __init__(self):
        self.body = nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), tg.relu, nn.Conv2d(16, 32, 3, stride=2, padding=1), tg.relu
        )
        self.head = nn.Linear(32 * 4 * 4, 10)

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        return self.head(tg.flatten(self.body(x)))


def loss(m: Net, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.cross_entropy(m(x), y)


def training(device: str = "auto", frozen: tuple[str, ...] = ()) -> tg.CompiledTraining:
    inputs, optimizer = {"x": (BATCH, 1, 8, 8), "y": tg.i32[BATCH]}, optim.adam(1e-3, groups={"body.*": {"lr": 0.1}})
    return tg.compile(
        model=Net(), loss=loss, inputs=inputs, optimizer=optimizer, frozen=frozen or None, seed=0, device=device
    )


def batches(steps: int, odd: int = 1) -> Iterator[dict[str, np.ndarray]]:
    data, rng = load_digits(), np.random.default_rng(0)
    own = np.flatnonzero(data.train_y % 2 == odd)
    for _ in range(steps):
        picked = rng.choice(own, BATCH)
        yield {"x": data.train_x[picked], "y": data.train_y[picked]}


def main(steps: int = 200, device: str = "auto") -> float:
    data = load_digits()
    odd = data.test_y % 2 == 1

    def right(train: tg.CompiledTraining) -> float:
        infer = train.attach(forward=Net.__call__, inputs={"x": (None, 1, 8, 8)})
        return float((infer.run(x=data.test_x[odd]).output.argmax(1) == data.test_y[odd]).mean())

    with training(device) as even:
        even.fit(batches(steps, odd=0), progress=False)
        print(f"odd digits, knowing even ones: {right(even):.1%}")
        known = even.params()
    with training(device, frozen=("body.*",)) as tuned:
        tuned.set_params(known)
        tuned.fit(batches(steps), progress=False)
        print(f"with a new head: {right(tuned):.1%}")
        known = tuned.params()
    with training(device) as whole:
        whole.set_params(known)
        whole.fit(batches(steps), progress=False)
        found = right(whole)
    print(f"with all layers at last: {found:.1%}")
    return found


if __name__ == "__main__":
    main()
