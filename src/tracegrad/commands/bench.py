"""`tracegrad bench`: how fast the demos' models train on each device of this machine.

The repository's bench/ has the comparisons with other libraries.
"""

from __future__ import annotations

import statistics
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import tracegrad as tg
from tracegrad import optim
from tracegrad.demo import digits, gpt, sine
from tracegrad.demo.data import load_digits, load_text
from tracegrad.introspection.tables import Table

SECONDS = 2.0  # of steps, for one model on one device
BLOCKS = 5
HEAD = ("model", "device", "parameters", "dispatches", "compile s", "first step s", "ms a step", "steps/s")


@dataclass(frozen=True, slots=True)
class Model:
    """A demo's model and its batches."""

    make: Callable[[], tg.Module]
    loss: Callable[..., Any]
    batches: Callable[[], Iterator[Mapping[str, Any]]]  # without end


def models() -> dict[str, Model]:
    """The three demos."""
    data, text = load_digits(), load_text()
    many = 10**9
    return {
        "sine": Model(sine.MLP, sine.loss, lambda: sine.batches(many, 0)),
        "digits": Model(digits.DigitNet, digits.loss, lambda: digits.batches(data, many, 0)),
        "gpt": Model(lambda: gpt.CharGPT(len(text.alphabet)), gpt.loss, lambda: gpt.batches(text, many, 0)),
    }


def measured(name: str, model: Model, device: str, seconds: float) -> tuple[str, ...]:
    """One row: blocks of queued steps with the loss read after each block; the median block counts."""
    batches = model.batches()
    first = next(batches)
    inputs = {key: tg.i32[x.shape] if x.dtype.kind == "i" else x.shape for key, x in first.items()}
    began = time.perf_counter()
    with tg.compile(
        model=model.make(), loss=model.loss, inputs=inputs, optimizer=optim.adamw(lr=1e-3), seed=0, device=device
    ) as train:
        compiled = time.perf_counter() - began
        _ = train.step(first).loss
        ready = time.perf_counter() - began
        ahead = [next(batches) for _ in range(20)]
        times: list[float] = []
        count = 1
        while len(times) < BLOCKS:
            start = time.perf_counter()
            for k in range(count):
                pending = train.step(ahead[k % len(ahead)])
            _ = pending.loss  # pyright: ignore[reportPossiblyUnboundVariable]
            took = time.perf_counter() - start
            if took < seconds / BLOCKS / 2:  # too short to tell: not counted
                count *= 2
            else:
                times.append(took / count)
        step = statistics.median(times)
        parameters = sum(f.size for f in train.program.params)
        cells = (f"{parameters:,}", f"{len(train.program.dispatches)}", f"{compiled:.2f}", f"{ready:.2f}")
        return (name, device, *cells, f"{1000 * step:.3g}", f"{1 / step:,.0f}")


def run(device: str | None, seconds: float = SECONDS) -> int:
    """Print a row for every model on every device, or on the one named; the exit code."""
    found = tg.devices()
    names = [device] if device else list(dict.fromkeys(d.name for d in found if not d.software))
    print("\n".join(str(d) for d in found if d.name in names), end="\n\n")
    rows: list[tuple[str, ...]] = []
    for name, model in models().items():
        for place in names:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", RuntimeWarning)  # a software adapter was asked for by name
                rows.append(measured(name, model, place, seconds))
    print(Table(HEAD, rows, left=("model", "device")).text())
    print("steps are queued, with batches from the host, and the loss is read after each block of them")
    return 0
