"""`tracegrad bench`: time the demos' models on each device of this machine, and check that trainings repeat exactly.

The folder bench/ of the repository has comparisons with other libraries.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tracegrad as tg
from tracegrad import optim
from tracegrad.demo import digits, gpt, sine
from tracegrad.demo.data import load_digits, load_text
from tracegrad.introspection.tables import Table

SECONDS = 2.0  # time spent on steps, for one model on one device
BLOCKS = 5
STEPS = 20  # steps of a training whose digest is printed
HEAD = ("model", "device", "parameters", "dispatches", "compile s", "first step s", "ms a step", "steps/s")


@dataclass(frozen=True, slots=True)
class Model:
    """A demo's model and its batches."""

    make: Callable[[], tg.Module]
    loss: Callable[..., Any]
    batches: Callable[[], Iterator[Mapping[str, Any]]]  # an endless iterator


def models() -> dict[str, Model]:
    """Return the models of the three demos, by name."""
    data, text = load_digits(), load_text()
    many = 10**9
    return {
        "sine": Model(sine.MLP, sine.loss, lambda: sine.batches(many, 0)),
        "digits": Model(digits.DigitNet, digits.loss, lambda: digits.batches(data, many, 0)),
        "gpt": Model(lambda: gpt.CharGPT(len(text.alphabet)), gpt.loss, lambda: gpt.batches(text, many, 0)),
    }


def opened(model: Model, first: Mapping[str, Any], device: str) -> tg.CompiledTraining:
    """Return a training of a demo's model."""
    inputs = {key: tg.i32[x.shape] if x.dtype.kind == "i" else x.shape for key, x in first.items()}
    optimizer = optim.adamw(lr=1e-3)
    return tg.compile(model=model.make(), loss=model.loss, inputs=inputs, optimizer=optimizer, seed=0, device=device)


def measured(name: str, model: Model, device: str, seconds: float) -> tuple[str, ...]:
    """Return one row of results. The time of a step is the median over blocks of queued steps that end with a loss."""
    batches = model.batches()
    first = next(batches)
    began = time.perf_counter()
    with opened(model, first, device) as train:
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
            if took < seconds / BLOCKS / 2:  # too short to measure: not counted
                count *= 2
            else:
                times.append(took / count)
        step = statistics.median(times)
        parameters = sum(f.size for f in train.program.params)
        cells = (f"{parameters:,}", f"{len(train.program.dispatches)}", f"{compiled:.2f}", f"{ready:.2f}")
        return (name, device, *cells, f"{1000 * step:.3g}", f"{1 / step:,.0f}")


def hashes(model: Model, device: str, steps: int) -> tuple[str, str]:
    """Return the digests of an uninterrupted training, and of one stopped half-way and resumed from its checkpoint."""
    batches = list(itertools.islice(model.batches(), steps))
    with opened(model, batches[0], device) as train:
        straight = train.digest(train.fit(batches, progress=False).loss)
    half = steps // 2
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "half.safetensors"
        with opened(model, batches[0], device) as train:
            losses = train.fit(batches[:half], progress=False).loss
            train.save(path)
        with opened(model, batches[0], device) as train:
            train.load(path)
            losses += train.fit(batches[half:], progress=False).loss
            return straight, train.digest(losses)


def digests(device: str | None) -> int:
    """Print the digest of a training of every model on every device, or on the given one. Returns the exit code.

    The code is 1 if a training resumed from a checkpoint has another digest than an uninterrupted one.
    """
    differ = 0
    for name, model, place in each(device):
        straight, resumed = hashes(model, place, STEPS)
        differ += straight != resumed
        said = "the same resumed" if straight == resumed else f"resumed: {resumed}"
        print(f"{name:6} {place:6} {straight} {said}")
    print(f"SHA-256 of losses, parameters and optimizer state after {STEPS} steps")
    return int(differ > 0)


def each(device: str | None) -> Iterator[tuple[str, Model, str]]:
    """Yield every model with the given device, or with all but software adapters; first print their descriptions."""
    found = tg.devices()
    names = [device] if device else list(dict.fromkeys(d.name for d in found if not d.software))
    print("\n".join(str(d) for d in found if d.name in names), end="\n\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a software adapter was asked for by name
        yield from [(name, model, place) for name, model in models().items() for place in names]


def run(device: str | None, seconds: float = SECONDS) -> int:
    """Print a row for every model on every device, or on the given one. Returns the exit code."""
    rows = [measured(name, model, place, seconds) for name, model, place in each(device)]
    print(Table(HEAD, rows, left=("model", "device")).text())
    print("Each step takes its batch from the host. Steps are queued, and the loss is read after each block of steps.")
    return 0
