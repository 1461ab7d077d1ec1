"""Batches of any size: what a size never seen costs, and how a run compares with a program compiled for its size.

python bench/sizes.py [--device cpu|webgpu] [--models mlp,wide,cnn,gpt,deep,vit,unet,gru] [--sizes 100]

For each model, with one open size:
    random   seconds for 100 steps of random sizes, compilation included, and PyTorch eager's for the same sizes
    unseen   milliseconds that the first step at a size takes longer than later ones (median of 20 sizes)
    ratio    time of a step of the shared program over that of a program compiled for the size; minima of turns

`--only pairs` lets the batch and the length of a GPT's sequences vary in each of 100 steps:
    pairs    seconds for all steps, the median of a step whose sizes were not seen, and programs compiled
    ratio    as above, at lengths that fill a room and that do not
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import time
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import torch

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.engine import stepper

AT = (1, 8, 32, 100, 256)  # sizes of the ratios
TURNS, SECONDS = 5, 0.15


class MLP(tg.Module):
    def __init__(self, width: int = 64) -> None:
        self.a, self.b, self.c = nn.Linear(64, width), nn.Linear(width, width), nn.Linear(width, 10)

    def __call__(self, x: Any) -> Any:
        return self.c(tg.relu(self.b(tg.relu(self.a(x)))))


class CNN(tg.Module):
    def __init__(self) -> None:
        self.a, self.b, self.out = nn.Conv2d(1, 8, 3, padding=1), nn.Conv2d(8, 16, 3, padding=1), nn.Linear(784, 10)

    def __call__(self, x: Any) -> Any:
        h = tg.max_pool2d(tg.relu(self.a(x.reshape(-1, 1, 28, 28))), 2)
        return self.out(tg.flatten(tg.max_pool2d(tg.relu(self.b(h)), 2)))


class GPT(tg.Module):
    def __init__(self) -> None:
        self.tokens, self.places = nn.Embedding(64, 64), nn.Embedding(32, 64)
        self.blocks = [nn.TransformerBlock(64, 4, causal=True) for _ in range(2)]
        self.out = nn.Linear(64, 64)

    def __call__(self, x: Any) -> Any:
        h = self.tokens(x) + self.places(tg.arange(32))
        for block in self.blocks:
            h = block(h)
        return self.out(h)


class Residual(tg.Module):
    def __init__(self, channels: int) -> None:
        self.a, self.b = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))
        self.p, self.q = nn.BatchNorm(channels), nn.BatchNorm(channels)

    def __call__(self, x: Any) -> Any:
        return tg.relu(x + self.q(self.b(tg.relu(self.p(self.a(x), training=True))), training=True))


class Deep(tg.Module):
    def __init__(self) -> None:
        self.first, self.out = nn.Conv2d(1, 8, 3, padding=1), nn.Linear(8, 10)
        self.blocks = [Residual(8) for _ in range(8)]

    def __call__(self, x: Any) -> Any:
        h = self.first(x.reshape(-1, 1, 8, 8))
        for block in self.blocks:
            h = block(h)
        return self.out(tg.mean(h, axis=(2, 3)))


class ViT(tg.Module):
    def __init__(self) -> None:
        self.patches, self.places, self.out = nn.Linear(16, 32), self.param((4, 32)), nn.Linear(32, 10)
        self.blocks = [nn.TransformerBlock(32, 4) for _ in range(4)]

    def __call__(self, x: Any) -> Any:
        h = x.reshape(-1, 2, 4, 2, 4).transpose(0, 1, 3, 2, 4).reshape(-1, 4, 16)
        h = self.patches(h) + self.places
        for block in self.blocks:
            h = block(h)
        return self.out(tg.mean(h, axis=1))


class UNet(tg.Module):
    def __init__(self) -> None:
        widths = ((1, 8), (8, 16), (16, 16), (32, 8), (16, 8), (8, 1))
        self.convs = [nn.Conv2d(a, b, 3, padding=1) for a, b in widths]
        self.norms = [nn.GroupNorm(4, b) for _, b in widths[:-1]]

    def __call__(self, x: Any) -> Any:
        def made(k: int, h: Any) -> Any:
            return tg.relu(self.norms[k](self.convs[k](h)))

        fine = made(0, x.reshape(-1, 1, 8, 8))
        coarse = made(1, tg.max_pool2d(fine, 2))
        h = made(2, tg.max_pool2d(coarse, 2))
        h = made(3, tg.concat([tg.interpolate(h, scale_factor=2), coarse], 1))
        h = made(4, tg.concat([tg.interpolate(h, scale_factor=2), fine], 1))
        return self.convs[5](h).reshape(-1, 8, 8)


class Recurrent(tg.Module):
    def __init__(self) -> None:
        self.embed, self.gru, self.out = nn.Embedding(64, 64), nn.GRU(64, 64), nn.Linear(64, 10)

    def __call__(self, x: Any) -> Any:
        return self.out(tg.mean(self.gru(self.embed(x))[0], axis=1))


class TorchRecurrent(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed, self.gru = torch.nn.Embedding(64, 64), torch.nn.GRU(64, 64, batch_first=True)
        self.out = torch.nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        return self.out(self.gru(self.embed(x))[0].mean(1))


class TorchGPT(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        how: dict[str, Any] = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
        self.tokens, self.places = torch.nn.Embedding(64, 64), torch.nn.Embedding(32, 64)
        self.blocks = torch.nn.ModuleList(torch.nn.TransformerEncoderLayer(64, 4, 256, **how) for _ in range(2))
        self.out = torch.nn.Linear(64, 64)
        self.hidden = torch.triu(torch.ones(32, 32, dtype=torch.bool), 1)

    def forward(self, x: Any) -> Any:
        h = self.tokens(x) + self.places.weight
        for block in self.blocks:
            h = block(h, src_mask=self.hidden)
        return self.out(h)


def torch_mlp(width: int = 64) -> Any:
    t = torch.nn
    return t.Sequential(t.Linear(64, width), t.ReLU(), t.Linear(width, width), t.ReLU(), t.Linear(width, 10))


def torch_cnn() -> Any:
    t = torch.nn
    first = t.Unflatten(1, (1, 28)), t.Conv2d(1, 8, 3, padding=1), t.ReLU(), t.MaxPool2d(2)
    return t.Sequential(*first, t.Conv2d(8, 16, 3, padding=1), t.ReLU(), t.MaxPool2d(2), t.Flatten(), t.Linear(784, 10))


def classify(m: Any, x: Any, y: Any) -> Any:
    return tg.cross_entropy(m(x), y)


def language(m: Any, x: Any, y: Any) -> Any:
    return tg.cross_entropy(m(x).reshape(-1, 64), y.reshape(-1))


def denoise(m: Any, x: Any, y: Any) -> Any:
    return tg.mean(tg.square(m(x) - y))


IMAGES: dict[str, Any] = {"x": tg.f32[None, 8, 8], "y": tg.i32[None]}


class Row(NamedTuple):
    model: Callable[[], Any]
    twin: Callable[[], Any] | None
    loss: Callable[..., Any]
    inputs: dict[str, Any]


ROWS = {
    "mlp": Row(MLP, torch_mlp, classify, {"x": tg.f32[None, 64], "y": tg.i32[None]}),
    "wide": Row(lambda: MLP(512), lambda: torch_mlp(512), classify, {"x": tg.f32[None, 64], "y": tg.i32[None]}),
    "cnn": Row(CNN, torch_cnn, classify, {"x": tg.f32[None, 28, 28], "y": tg.i32[None]}),
    "gpt": Row(GPT, TorchGPT, language, {"x": tg.i32[None, 32], "y": tg.i32[None, 32]}),
    "deep": Row(Deep, None, classify, IMAGES),
    "vit": Row(ViT, None, classify, IMAGES),
    "gru": Row(Recurrent, TorchRecurrent, classify, {"x": tg.i32[32, None], "y": tg.i32[32]}),  # of any length
    "unet": Row(UNet, None, denoise, {**IMAGES, "y": tg.f32[None, 8, 8]}),
}


def batch(row: Row, n: int) -> dict[str, Any]:
    """A batch of `n`."""
    rng = np.random.default_rng(n)

    def array(t: Any) -> Any:
        shape = tuple(n if d is None else d for d in t.shape)
        return (
            rng.integers(0, 10, shape).astype(np.int32) if t.dtype is tg.i32 else rng.standard_normal(shape, np.float32)
        )

    return {name: array(t) for name, t in row.inputs.items()}


def compiled(row: Row, device: str, own: int) -> Any:
    """A training with one open size: the first `own` sizes have programs of their own, and all others share one."""
    stepper.OWN_SIZES = stepper.OWN_SIZES_ON_GPU = own
    return tg.compile(model=row.model(), loss=row.loss, inputs=row.inputs, optimizer=optim.adam(1e-3), seed=0,
                      device=device)  # fmt: skip


def seconds(run: Callable[[], Any], least: float = SECONDS) -> float:
    """The least time of a run."""
    best, begin = float("inf"), time.perf_counter()
    while time.perf_counter() - begin < least:
        at = time.perf_counter()
        run()
        best = min(best, time.perf_counter() - at)
    return best


def beside(shared: Any, one: Any, data: dict[str, Any]) -> str:
    """The time of a shared program's step over that of a program compiled for the size, and the latter."""
    one.step(data).result()
    runs = [lambda train=train: train.step(data).loss for train in (shared, one)]
    times = [[seconds(run) for run in runs] for _ in range(TURNS)]
    both, alone = (min(t) for t in zip(*times))
    return f"{both / alone:.2f} ({1e3 * alone:.3g} ms)"


def ratios(row: Row, device: str) -> None:
    """Prints the time of the shared program over that of one compiled for a size."""
    with compiled(row, device, own=0) as shared:
        shared.step(batch(row, max(AT))).result()
        found: list[str] = []
        for n in AT:
            data = batch(row, n)
            shared.step(data).result()
            with compiled(row, device, own=10**9) as one:
                found.append(f"{n}: {beside(shared, one, data)}")
        print("  ratio  ", "   ".join(found), flush=True)
        if "of a program for sizes" not in shared.explain().title:
            print("  not shared:", shared.explain().title)


class Text(tg.Module):
    """A GPT for sequences of any length."""

    def __init__(self) -> None:
        self.tokens, self.places = nn.Embedding(64, 64), self.param((64, 64))
        self.blocks = [nn.TransformerBlock(64, 4, causal=True) for _ in range(2)]
        self.out = nn.Linear(64, 64)

    def __call__(self, x: Any) -> Any:
        h = self.tokens(x) + self.places[: x.shape[1]]
        for block in self.blocks:
            h = block(h)
        return self.out(h)


def text(n: Any, t: Any, device: str) -> Any:
    """A training of `Text`."""
    inputs = {"x": tg.i32[n, t], "y": tg.i32[n, t]}
    return tg.compile(model=Text(), loss=language, inputs=inputs, optimizer=optim.adam(1e-3), seed=0, device=device)


def pairs(device: str, count: int) -> None:
    """Print the time of steps whose batch and length both vary."""
    rng = np.random.default_rng(0)

    def given(n: int, t: int) -> dict[str, Any]:
        return {name: rng.integers(0, 64, (n, t)).astype(np.int32) for name in "xy"}

    with text("B", "T", device) as train:
        sizes = [(int(n), int(t)) for n, t in zip(rng.integers(1, 33, count), rng.integers(2, 61, count))]
        took: list[float] = []
        for size in sizes:
            data, at = given(*size), time.perf_counter()
            train.step(data).result()
            took.append(time.perf_counter() - at)
        new = [s for k, s in enumerate(took) if sizes[k] not in sizes[:k]]
        compiled = sum(s > 0.1 for s in took)
        print(f"  pairs   {sum(took):.2f} s for {count} steps, a new pair {1e3 * statistics.median(new):.2f} ms, "
              f"{compiled} steps over 0.1 s")  # fmt: skip
        found: list[str] = []
        for n, t in ((16, 48), (16, 50), (8, 33), (4, 60)):
            data = given(n, t)
            with text(n, t, device) as one:
                train.step(data).result()
                found.append(f"{n}x{t}: {beside(train, one, data)}")
        print("  ratio  ", "   ".join(found), flush=True)


def random_sizes(row: Row, device: str, count: int) -> None:
    """Print the time of steps of random sizes, PyTorch's time, and the further time of the first step at a new size."""
    sizes = [int(n) for n in np.random.default_rng(0).integers(1, 257, count)]
    data = {n: batch(row, n) for n in sizes}
    for name, own in (("as it is", OWN), ("all shared", 0)):
        begin = time.perf_counter()
        with compiled(row, device, own) as train:
            for n in sizes:
                train.step(data[n]).result()
            took = time.perf_counter() - begin
            print(f"  random  {took:.2f} s for {count} sizes, compilation included, {name}", flush=True)
            if not own:
                first: list[float] = []
                again: list[float] = []
                for n in sorted({*range(1, 257)} - {*sizes})[:20]:
                    one = batch(row, n)
                    at = time.perf_counter()
                    train.step(one).result()
                    first.append(time.perf_counter() - at)
                    again.append(seconds(lambda given=one: train.step(given).result(), 0.01))
                more = statistics.median(a - b for a, b in zip(first, again))
                print(
                    f"  unseen  {1e3 * more:.2f} ms longer (least {1e3 * min(a - b for a, b in zip(first, again)):.2f})"
                )
    if row.twin is None:
        return
    model = row.twin()
    opt = torch.optim.Adam(model.parameters(), 1e-3)
    tensors = {
        n: [torch.tensor(v, dtype=torch.long if v.dtype == np.int32 else None) for v in d.values()]
        for n, d in data.items()
    }
    begin = time.perf_counter()
    for n in sizes:
        x, y = tensors[n]
        opt.zero_grad()
        out = model(x)
        torch.nn.functional.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1)).backward()
        opt.step()
    print(f"  PyTorch {time.perf_counter() - begin:.2f} s")


OWN = stepper.OWN_SIZES


def main() -> None:
    """Prints a block for each model."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--models", default=",".join(ROWS))
    parser.add_argument("--sizes", type=int, default=100)
    parser.add_argument("--only", choices=("ratio", "random", "pairs"))
    given = parser.parse_args()
    if given.only == "pairs":
        pairs(given.device, given.sizes)
        return
    for name in given.models.split(","):
        print(name)
        with warnings.catch_warnings(), contextlib.suppress(KeyboardInterrupt):
            warnings.simplefilter("ignore")
            if given.only != "ratio":
                random_sizes(ROWS[name], given.device, given.sizes)
            if given.only != "random":
                ratios(ROWS[name], given.device)


if __name__ == "__main__":
    main()
