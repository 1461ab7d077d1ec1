"""Convolutions beside PyTorch eager, in turns: `python bench/convs.py [--threads 1 2] [-k NAME]`.

Each row is one convolution: forward, gradient by the input, gradient by the weights, each as times that PyTorch takes
as long (above 1: tracegrad is faster). A number is the least of many runs, in which both take turns. Of tracegrad it is
the program's kernels alone, of PyTorch the call of the op: neither copies inputs or results.
"""

from __future__ import annotations

import argparse
import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

import tracegrad as tg
from tracegrad.compiler.build import ForwardSource
from tracegrad.runtime.c_compiler import compiler
from tracegrad.runtime.cpu import CpuSession

WAYS = ("forward", "input", "weights")
SECONDS = 0.25  # of each number, for both sides together
LEAST_RUNS = 5


@dataclass(frozen=True, slots=True)
class Shape:
    """One convolution: images x, filters w."""

    name: str
    x: tuple[int, ...]
    w: tuple[int, ...]
    stride: int = 1
    padding: int = 0
    groups: int = 1
    dilation: int = 1
    transposed: bool = False


SHAPES = (
    Shape("7x7/2 3-64 64", (8, 3, 64, 64), (64, 3, 7, 7), 2, 3),
    Shape("3x3 3-16 32", (32, 3, 32, 32), (16, 3, 3, 3), 1, 1),
    Shape("3x3 1-16 28", (64, 1, 28, 28), (16, 1, 3, 3), 1, 1),
    Shape("3x3 48-16 64", (8, 48, 64, 64), (16, 48, 3, 3), 1, 1),
    Shape("3x3 16-16 64", (8, 16, 64, 64), (16, 16, 3, 3), 1, 1),
    Shape("3x3 32-32 32", (16, 32, 32, 32), (32, 32, 3, 3), 1, 1),
    Shape("3x3 64-64 16", (32, 64, 16, 16), (64, 64, 3, 3), 1, 1),
    Shape("3x3 128-128 8", (32, 128, 8, 8), (128, 128, 3, 3), 1, 1),
    Shape("3x3 32-64/2 32", (16, 32, 32, 32), (64, 32, 3, 3), 2, 1),
    Shape("5x5 16-32 28", (32, 16, 28, 28), (32, 16, 5, 5), 1, 2),
    Shape("5x5 6-16 14 valid", (64, 6, 14, 14), (16, 6, 5, 5)),
    Shape("4x4/2 32-64 32", (16, 32, 32, 32), (64, 32, 4, 4), 2, 1),
    Shape("1x1 64-128 16", (16, 64, 16, 16), (128, 64, 1, 1)),
    Shape("1x1 16-96 32", (16, 16, 32, 32), (96, 16, 1, 1)),
    Shape("1x1/2 64-128 16", (16, 64, 16, 16), (128, 64, 1, 1), 2),
    Shape("3x3 d2 16-16 32", (16, 16, 32, 32), (16, 16, 3, 3), 1, 2, 1, 2),
    Shape("3x3 g4 32-32 32", (16, 32, 32, 32), (32, 8, 3, 3), 1, 1, 4),
    Shape("dw 3x3 64 32", (16, 64, 32, 32), (64, 1, 3, 3), 1, 1, 64),
    Shape("dw 3x3/2 64 32", (16, 64, 32, 32), (64, 1, 3, 3), 2, 1, 64),
    Shape("dw 5x5 96 14", (16, 96, 14, 14), (96, 1, 5, 5), 1, 2, 96),
    Shape("t4x4/2 64-32 16", (16, 64, 16, 16), (64, 32, 4, 4), 2, 1, transposed=True),
    Shape("t2x2/2 64-32 16", (16, 64, 16, 16), (64, 32, 2, 2), 2, 0, transposed=True),
    Shape("t3x3/2 32-16 32", (8, 32, 32, 32), (32, 16, 3, 3), 2, 1, transposed=True),
    Shape("1d 9 1-32 4096", (8, 1, 4096), (32, 1, 9), 1, 4),
    Shape("1d 3 32-32 2048", (8, 32, 2048), (32, 32, 3), 1, 1),
    Shape("1d 3 d4 32-64 2048", (8, 32, 2048), (64, 32, 3), 1, 4, 1, 4),
    Shape("1d 8/4 16-32 4096", (8, 16, 4096), (32, 16, 8), 4, 2),
)


def calls(s: Shape) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """The convolution in tracegrad and in PyTorch."""
    how = {"stride": s.stride, "padding": s.padding, "groups": s.groups, "dilation": s.dilation}
    n = len(s.x) - 2
    name = f"conv_transpose{n}d" if s.transposed else f"conv{n}d"
    ours, theirs = getattr(tg, name), getattr(torch.nn.functional, name)
    return (lambda x, w: ours(x, w, **how)), (lambda x, w: theirs(x, w, **how))


class Filters(tg.Module):
    """The filters of one convolution."""

    def __init__(self, w: np.ndarray) -> None:
        self.w = self.param(w.shape, init=tg.init.literal(w))


def ours(session: CpuSession, s: Shape, way: str, arrays: dict[str, np.ndarray]) -> tuple[Callable[[], Any], Any]:
    """Return a function that runs the kernels of a program, and its result."""
    conv, _ = calls(s)

    def forward(m: Filters, x: Any) -> Any:
        return conv(x, m.w)

    def by_input(m: Filters, ct: Any) -> Any:
        return tg.grad(lambda x: (conv(x, m.w) * ct).sum())(tg.zeros(s.x))

    def by_weights(m: Filters, x: Any, ct: Any) -> Any:
        return tg.grad(lambda w: (conv(x, w) * ct).sum())(m.w)

    fn: Callable[..., Any] = {"forward": forward, "input": by_input, "weights": by_weights}[way]
    given = {k: arrays[k] for k in {"forward": ("x",), "input": ("ct",), "weights": ("x", "ct")}[way]}
    source = ForwardSource(Filters(arrays["w"]), fn, {k: v.shape for k, v in given.items()})
    built = source.traced().compiled()
    handle = session.load(built.program)
    flat = arrays["w"].reshape(-1)
    for b in built.program.buffers:
        if b.role == "param":
            session.write(b.name, flat)
    (result,) = session.run(handle, [given])
    whole = session._ready(handle).whole
    assert whole is not None
    return whole, next(iter(result.values()))


def theirs(s: Shape, way: str, arrays: dict[str, np.ndarray]) -> Callable[[], Any]:
    """PyTorch's op for the same."""
    x, w, ct = (torch.from_numpy(arrays[k]) for k in ("x", "w", "ct"))
    if way == "forward":
        _, conv = calls(s)
        return lambda: conv(x, w)
    n = len(s.x) - 2
    mask = [way == "input", way == "weights", False]
    by = 0 if way == "input" else 1
    back = torch.ops.aten.convolution_backward
    return lambda: back(
        ct, x, w, None, n * [s.stride], n * [s.padding], n * [s.dilation], s.transposed, n * [0], s.groups, mask
    )[by]


def least(runs: Sequence[Callable[[], Any]], seconds: float, clock: Callable[[], float]) -> list[float]:
    """The least time of each, in turns."""
    best = [math.inf] * len(runs)
    until, done = time.perf_counter() + seconds, 0
    while done < LEAST_RUNS or time.perf_counter() < until:
        for k, run in enumerate(runs):
            began = clock()
            run()
            best[k] = min(best[k], clock() - began)
        done += 1
    return best


def arrays_of(s: Shape) -> dict[str, np.ndarray]:
    """Images, filters and a cotangent."""
    rng = np.random.default_rng(0)
    x, w = (rng.standard_normal(shape).astype(np.float32) for shape in (s.x, s.w))
    shape = tuple(calls(s)[1](torch.from_numpy(x), torch.from_numpy(w)).shape)
    return {"x": x, "w": w, "ct": rng.standard_normal(shape).astype(np.float32)}


def measure(session: CpuSession, s: Shape, way: str, seconds: float, threads: int) -> tuple[float, float]:
    """Return the seconds of both. One thread is timed by its own clock, which stops while others use the processor."""
    arrays = arrays_of(s)
    run, result = ours(session, s, way, arrays)
    other = theirs(s, way, arrays)
    expected = other().numpy()
    error = np.abs(result.reshape(expected.shape) - expected).max() / np.abs(expected).max()
    assert error < 1e-4, (s, way, error)
    with torch.no_grad():
        a, b = least([run, other], seconds, time.thread_time if threads == 1 else time.perf_counter)
    return a, b


def main() -> None:
    """The table."""
    p = argparse.ArgumentParser(description=__doc__)
    p.add_argument("--threads", nargs="+", type=int, default=[1, 2])
    p.add_argument("-k", default="", help="of the rows whose names contain this")
    p.add_argument("--seconds", type=float, default=SECONDS)
    given = p.parse_args()
    allowed = sorted(os.sched_getaffinity(0))
    ratios: dict[tuple[int, str], list[float]] = {}
    print(f"{'':22}" + "".join(f"{f'{w} x{t}':>24}" for t in given.threads for w in WAYS))
    for s in SHAPES:
        if given.k not in s.name:
            continue
        line = f"{s.name:22}"
        for threads in given.threads:
            os.sched_setaffinity(0, allowed[:threads])
            torch.set_num_threads(threads)
            session = CpuSession(compiler())
            for way in WAYS:
                a, b = measure(session, s, way, given.seconds, threads)
                ratios.setdefault((threads, way), []).append(b / a)
                line += f"{f'{1000 * a:.2f}/{1000 * b:.2f} {b / a:.2f}':>24}"
            session.close()
        print(line, flush=True)
    for (threads, way), found in ratios.items():
        mean = math.exp(sum(map(math.log, found)) / len(found))
        print(f"{way}, {threads} threads: mean {mean:.2f}, least {min(found):.2f}, {sum(r < 1 for r in found)} below 1")


if __name__ == "__main__":
    main()
