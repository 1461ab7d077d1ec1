"""Batch 1: the time of one forward that is waited for, beside PyTorch eager under inference_mode and onnxruntime.

python bench/latency.py [--threads 1]    # an MLP, a CNN and a small GPT, in microseconds

The libraries take turns in blocks of calls, and the least of their blocks' medians counts. onnxruntime runs the model
that PyTorch exports (`pip install onnx onnxruntime`); without it, its column stays empty.
"""

from __future__ import annotations

import argparse
import importlib
import io
import os
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from fit import CNN

import tracegrad as tg
from tracegrad import nn

ROUNDS, CALLS = 12, 200  # blocks of each library, calls of a block
Run = Callable[[], object]


class MLP(tg.Module):
    def __init__(self) -> None:
        self.layers = [nn.Linear(64, 256), nn.Linear(256, 256), nn.Linear(256, 10)]

    def __call__(self, x: Any) -> Any:
        return self.layers[2](tg.relu(self.layers[1](tg.relu(self.layers[0](x)))))


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


def least(runs: dict[str, Run]) -> dict[str, float]:
    """Microseconds of a call: the least median of blocks that take turns."""
    found: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            times: list[float] = []
            for _ in range(CALLS):
                begin = time.perf_counter()
                run()
                times.append(time.perf_counter() - begin)
            found[name].append(1e6 * statistics.median(times))
    return {name: min(medians) for name, medians in found.items()}


def of_onnxruntime(net: Any, given: Any, threads: int) -> Run | None:
    """Return a run of the model in onnxruntime; None if it is not installed."""
    try:
        importlib.import_module("onnx")  # PyTorch's exporter needs it
        runtime: Any = importlib.import_module("onnxruntime")
    except ImportError:
        return None
    file = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the exporter's own deprecation
        torch.onnx.export(net, (given,), file, input_names=["x"], dynamo=False)
    options = runtime.SessionOptions()
    options.intra_op_num_threads = threads
    session = runtime.InferenceSession(file.getvalue(), options, providers=["CPUExecutionProvider"])
    inputs = {"x": given.numpy()}
    return lambda: session.run(None, inputs)


def of_torch(net: Any, given: Any) -> Run:
    """Return a run of the model in PyTorch."""

    def run() -> Any:
        with torch.inference_mode():
            return net(given)

    return run


def forwards(threads: int) -> None:
    """Print a row for each model."""
    names = ("tracegrad", "PyTorch", "onnxruntime")
    print(f"{'':24}" + "".join(f"{name:>13}" for name in names) + f"   us, {threads} threads")
    for name, (ours, theirs, shape) in ROWS.items():
        x, net = np.random.default_rng(0).standard_normal(shape).astype(np.float32), theirs().eval()
        given = torch.tensor(x)
        onnx = of_onnxruntime(net, given, threads)
        with tg.compile_forward(
            model=ours(), forward=lambda m, x: m(x), inputs={"x": shape}, seed=0, device="cpu"
        ) as f:
            runs: dict[str, Run] = {"tracegrad": lambda f=f, x=x: f.run(x=x).output, "PyTorch": of_torch(net, given)}
            found = least(runs | ({"onnxruntime": onnx} if onnx else {}))
        cells = (f"{found[n]:13.1f}" if n in found else f"{'':13}" for n in names)
        against = f"   {found['tracegrad'] / found['onnxruntime']:.2f} times onnxruntime" if onnx else ""
        print(f"{name:24}{''.join(cells)}{against}", flush=True)
        if onnx is None and name == next(iter(ROWS)):
            print("onnxruntime is not measured: pip install onnx onnxruntime")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", type=int, default=1, help="of all libraries (default: %(default)s)")
    threads = parser.parse_args().threads
    if hasattr(os, "sched_setaffinity"):  # tracegrad uses all processors that it may
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-threads:])
    torch.set_num_threads(threads)
    forwards(threads)


if __name__ == "__main__":
    main()
