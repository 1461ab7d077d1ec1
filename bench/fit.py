"""`fit` on whole arrays: milliseconds a step beside steps on the same batches, and beside PyTorch.

python bench/fit.py [--device webgpu] [--steps 3000]

PyTorch keeps the data on its device too, shuffles there, and takes its steps eagerly. The libraries take turns, and the
least of three rounds counts. The loss is read at the end.
"""

from __future__ import annotations

import argparse
import importlib.util
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim

RATE, ROUNDS = 1e-3, 3


class CNN(tg.Module):
    def __init__(self) -> None:
        self.a, self.b, self.out = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1), nn.Linear(1568, 10)

    def __call__(self, x: Any) -> Any:
        x = tg.max_pool2d(tg.relu(self.a(x)), 2)
        return self.out(tg.flatten(tg.max_pool2d(tg.relu(self.b(x)), 2)))


def mlp() -> Any:
    return nn.Sequential(nn.Linear(784, 512), tg.relu, nn.Linear(512, 512), tg.relu, nn.Linear(512, 10))


def torch_mlp(t: Any) -> Any:
    return t.Sequential(t.Linear(784, 512), t.ReLU(), t.Linear(512, 512), t.ReLU(), t.Linear(512, 10))


def torch_cnn(t: Any) -> Any:
    first = t.Conv2d(1, 16, 3, padding=1), t.ReLU(), t.MaxPool2d(2)
    second = t.Conv2d(16, 32, 3, padding=1), t.ReLU(), t.MaxPool2d(2)
    return t.Sequential(*first, *second, t.Flatten(), t.Linear(1568, 10))


# name -> our model, PyTorch's, shape of an example, batch, examples
MODELS: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], tuple[int, ...], int, int]] = {
    "MLP": (mlp, torch_mlp, (784,), 128, 20_000),
    "CNN": (CNN, torch_cnn, (1, 28, 28), 64, 20_000),
    "logistic regression": (lambda: nn.Linear(10_000, 10), lambda t: t.Linear(10_000, 10), (10_000,), 256, 5_000),
}


def loss(m: Any, x: Any, y: Any) -> Any:
    return tg.cross_entropy(m(x), y)


def ours(make: Callable[[], Any], x: Any, y: Any, size: int, device: str) -> tuple[Any, Any]:
    """Return two functions of a number of steps: `fit`, and steps on batches cut before."""
    train = tg.compile(
        model=make(), loss=loss, inputs={"x": (size, *x.shape[1:]), "y": tg.i32[size]}, optimizer=optim.adam(RATE),
        seed=0, device=device,
    )  # fmt: skip
    batches = [{"x": x[k : k + size], "y": y[k : k + size]} for k in range(0, 8 * size, size)]

    def steps(n: int) -> float:
        for k in range(n - 1):
            train.step(batches[k % 8])
        return train.step(batches[0]).loss

    return lambda n: train.fit(x=x, y=y, epochs=n, steps=n, progress=False).loss[-1], steps


def torch_fit(make: Callable[[Any], Any], x: Any, y: Any, size: int, device: str) -> Callable[[int], float]:
    import torch

    place = "cuda" if device == "webgpu" else "cpu"
    net = make(torch.nn).to(place)
    data, labels = torch.from_numpy(x).to(place), torch.from_numpy(y).long().to(place)
    optimizer = torch.optim.Adam(net.parameters(), lr=RATE, fused=True)

    def fit(n: int) -> float:
        done, value = 0, torch.zeros(())
        while done < n:
            for rows in torch.randperm(len(data), device=place).split(size)[: min(n - done, len(data) // size)]:
                optimizer.zero_grad()
                value = torch.nn.functional.cross_entropy(net(data[rows]), labels[rows])
                value.backward()
                optimizer.step()
                done += 1
        return value.item()

    return fit


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--steps", type=int, default=3000)
    args = parser.parse_args()
    print("| ms a step | fit | steps | PyTorch |\n|---|---|---|---|")
    for name, (make, torch_make, shape, size, count) in MODELS.items():
        rng = np.random.default_rng(0)
        x, y = rng.standard_normal((count, *shape), dtype=np.float32), rng.integers(0, 10, count).astype(np.int32)
        runs = [*ours(make, x, y, size, args.device)]
        if importlib.util.find_spec("torch"):
            runs.append(torch_fit(torch_make, x, y, size, args.device))
        times = [[timed(run, args.steps) for run in runs] for _ in range(ROUNDS)]
        least = [f"{1000 * min(column) / args.steps:.3f}" for column in zip(*times)]
        print(f"| {name} | {' | '.join(least)} |", flush=True)


def timed(run: Callable[[int], float], steps: int) -> float:
    began = time.perf_counter()
    run(steps)
    return time.perf_counter() - began


if __name__ == "__main__":
    main()
