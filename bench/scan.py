"""What a recurrence costs to compile, in memory and a step, by its length; as a scan, and as a loop written out.

    python bench/scan.py                      the default device
    python bench/scan.py --device webgpu --lengths 64 512

A recurrent layer of 128 on batches of 64, gradient, AdamW and clipping included. "runs" are the dispatches that
a step executes, "compile" is all of `tg.compile`: tracing, the compiler, and loading the program into the device.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim

BATCH, INPUTS, WIDTH = 64, 32, 128
UNROLLED = (16, 64)  # a loop written out takes minutes beyond
HEAD = ("length", "form", "compile s", "dispatches", "runs", "JSON kB", "temporaries MB", "ms a step")


class RNN(tg.Module):
    """A layer that reads its own state, and a dense layer that reads its states."""

    def __init__(self) -> None:
        narrow = tg.init.randn(1 / math.sqrt(WIDTH))
        self.input, self.state = nn.Linear(INPUTS, WIDTH), nn.Linear(WIDTH, WIDTH, bias=False, init=narrow)
        self.output = nn.Linear(WIDTH, 1)


def loop(fn: Callable[..., Any], carry: Any, xs: tg.Tensor) -> tuple[Any, tg.Tensor]:
    """Run `tg.scan` as a Python loop."""
    ys: list[tg.Tensor] = []
    for t in range(xs.shape[0]):
        carry, y = fn(carry, xs[t])
        ys.append(y)
    return carry, tg.stack(ys)


def loss_of(scan: Callable[..., Any]) -> Callable[..., tg.Tensor]:
    """The loss by either form."""

    def loss(m: RNN, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
        def step(h: tg.Tensor, x: tg.Tensor) -> tuple[tg.Tensor, tg.Tensor]:
            h = tg.tanh(m.input(x) + m.state(h))
            return h, h

        _, states = scan(step, tg.zeros((BATCH, WIDTH)), x)
        return tg.mean(tg.square(m.output(states) - y))

    return loss


def measure(length: int, form: str, device: str, seconds: float) -> tuple[str, ...]:
    """One row of the table."""
    inputs = {"x": (length, BATCH, INPUTS), "y": (length, BATCH, 1)}
    rng = np.random.default_rng(0)
    batch = {n: rng.standard_normal(shape, np.float32) for n, shape in inputs.items()}
    arguments: dict[str, Any] = {"model": RNN(), "loss": loss_of(tg.scan if form == "scan" else loop), "inputs": inputs}
    optimizer = optim.adamw(lr=1e-3, weight_decay=0.1, clip_grad_norm=1.0)
    started = time.perf_counter()
    with tg.compile(**arguments, optimizer=optimizer, seed=0, device=device) as train:
        compiled = time.perf_counter() - started
        program = train.program
        times: list[float] = []
        train.step(batch).result()
        while sum(times) < seconds or len(times) < 3:
            begin = time.perf_counter()
            train.step(batch).result()
            times.append(time.perf_counter() - begin)
        numbers = (
            f"{compiled:.2f}",
            f"{len(program.dispatches)}",
            f"{sum(1 for _ in program.unrolled())}",
            f"{len(program.to_json()) / 1e3:.0f}",
            f"{train.memory['temp'] / 1e6:.1f}",
            f"{1e3 * statistics.median(times):.1f}",
        )
    return (str(length), form, *numbers)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--lengths", type=int, nargs="+", default=[16, 64, 512, 4096])
    parser.add_argument("--seconds", type=float, default=3.0, help="of steps, a row")
    options = parser.parse_args(arguments)
    print(*HEAD, sep="\t")
    for length in options.lengths:
        for form in ("scan", "loop") if length in UNROLLED else ("scan",):
            print(*measure(length, form, options.device, options.seconds), sep="\t", flush=True)


if __name__ == "__main__":
    main()
