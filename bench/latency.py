"""Batch 1: the time of one forward that is waited for, beside PyTorch eager under inference_mode.

python bench/latency.py [threads]        # an MLP, a CNN and a small GPT; medians in microseconds
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import tracegrad as tg
from tracegrad import nn

ROUNDS = 400


class MLP(tg.Module):
    def __init__(self) -> None:
        self.layers = [nn.Linear(64, 256), nn.Linear(256, 256), nn.Linear(256, 10)]

    def __call__(self, x: Any) -> Any:
        return self.layers[2](tg.relu(self.layers[1](tg.relu(self.layers[0](x)))))


class CNN(tg.Module):
    def __init__(self) -> None:
        self.a, self.b, self.out = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1), nn.Linear(1568, 10)

    def __call__(self, x: Any) -> Any:
        x = tg.max_pool2d(tg.relu(self.a(x)), 2)
        return self.out(tg.flatten(tg.max_pool2d(tg.relu(self.b(x)), 2)))


class GPT(tg.Module):
    def __init__(self) -> None:
        self.blocks = [nn.TransformerBlock(64, 4, causal=True) for _ in range(2)]

    def __call__(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x)
        return x


class Blocks(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        how: dict[str, Any] = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.blocks = torch.nn.ModuleList(torch.nn.TransformerEncoderLayer(64, 4, 256, **how) for _ in range(2))
        self.hidden = torch.triu(torch.ones(32, 32, dtype=torch.bool), 1)

    def forward(self, x: Any) -> Any:
        for block in self.blocks:
            x = block(x, src_mask=self.hidden)
        return x


def torch_mlp() -> Any:
    t = torch.nn
    return t.Sequential(t.Linear(64, 256), t.ReLU(), t.Linear(256, 256), t.ReLU(), t.Linear(256, 10))


def torch_cnn() -> Any:
    t = torch.nn
    return t.Sequential(t.Conv2d(1, 16, 3, padding=1), t.ReLU(), t.MaxPool2d(2), t.Conv2d(16, 32, 3, padding=1),
                        t.ReLU(), t.MaxPool2d(2), t.Flatten(), t.Linear(1568, 10))  # fmt: skip


ROWS: dict[str, tuple[Callable[[], Any], Callable[[], Any], tuple[int, ...]]] = {
    "MLP 64-256-256-10": (MLP, torch_mlp, (1, 64)),
    "CNN 28x28, 16 and 32": (CNN, torch_cnn, (1, 1, 28, 28)),
    "GPT 2 x 64, 32 tokens": (GPT, Blocks, (1, 32, 64)),
}


def median(run: Callable[[], object]) -> float:
    """Microseconds of a call."""
    for _ in range(50):
        run()
    times: list[float] = []
    for _ in range(ROUNDS):
        begin = time.perf_counter()
        run()
        times.append(time.perf_counter() - begin)
    return 1e6 * statistics.median(times)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("threads", type=int, nargs="?", default=1, help="of PyTorch (default: %(default)s)")
    threads = parser.parse_args().threads
    torch.set_num_threads(threads)
    print(f"{'':24}{'tracegrad':>10}{'PyTorch':>10}   us, PyTorch with {threads} threads")
    for name, (ours, theirs, shape) in ROWS.items():
        x, net = np.random.default_rng(0).standard_normal(shape).astype(np.float32), theirs().eval()
        given = torch.tensor(x)
        with tg.compile_forward(
            model=ours(), forward=lambda m, x: m(x), inputs={"x": shape}, seed=0, device="cpu"
        ) as f:
            mine = median(lambda f=f, x=x: f.run(x=x).output)
        with torch.inference_mode():
            other = median(lambda net=net, given=given: net(given))
        print(f"{name:24}{mine:10.0f}{other:10.0f}", flush=True)


if __name__ == "__main__":
    main()
