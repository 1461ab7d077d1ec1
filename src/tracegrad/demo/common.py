"""The common part of the demos: options, choice of the device, reports, and the folder of results."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import tracegrad as tg
from tracegrad import safetensors
from tracegrad.demo.pictures import Series, line_chart, smooth
from tracegrad.optim.optimizer import Optimizer
from tracegrad.training.fit import History

SHOWN = 20  # losses in the mean that is reported


@dataclass(frozen=True, slots=True)
class Options:
    """The options of the command line."""

    out: Path
    device: str = "auto"
    steps: int | None = None  # None: the demo's own number
    seed: int = 0
    digest: bool = False  # print the hash of the training


@dataclass(slots=True)
class Report:
    """Reports progress to the user, and writes the folder of results."""

    name: str
    options: Options
    results: dict[str, Any] = field(default_factory=dict[str, Any])
    written: list[str] = field(default_factory=list[str])

    def say(self, text: str) -> None:
        """Print a line at once, also into a pipe."""
        print(text, flush=True)

    @contextmanager
    def training(
        self, model: tg.Module, loss: Callable[..., Any], inputs: Mapping[str, Any], optimizer: Optimizer
    ) -> Generator[tg.CompiledTraining]:
        """Compile a training as the options say, and report it; inside the block it is open."""
        seed, device = self.options.seed, self.options.device
        with tg.compile(model=model, loss=loss, inputs=inputs, optimizer=optimizer, seed=seed, device=device) as train:
            self.compiled(train)
            yield train

    def compiled(self, train: tg.CompiledTraining) -> None:
        """Report the compiled step and the choice of the device. Makes the folder first, to fail before any work."""
        self.options.out.mkdir(parents=True, exist_ok=True)
        device = train.device
        count = sum(f.size for f in train.program.params)
        dispatches = len(train.program.dispatches)
        self.say(f"Device: {device.name}, {device.description} ({why(self.options.device, device.name)})")
        self.say(f"Compiled: {count} parameters; {len(train.graph)} operations a step in {dispatches} kernels")
        self.results |= {"demo": self.name, "device": device.name, "description": device.description}
        self.results |= {"seed": train.seed, "parameters": count, "dispatches": dispatches}

    def trained(self, train: tg.CompiledTraining, history: History) -> None:
        """Report time and losses of the training, and with --digest the hash of losses, parameters and state."""
        losses, n = history.loss, len(history.loss)
        last = losses[-SHOWN:]
        self.say(
            f"Trained {n} steps in {history.seconds:.1f} s ({n / history.seconds:.0f} steps/s): "
            f"loss {losses[0]:.4g} at the first step, {sum(last) / len(last):.4g} over the last {len(last)}"
        )
        self.results |= {"steps": n, "seconds": round(history.seconds, 3)}
        self.results["loss"] = [float(f"{x:.6g}") for x in losses]
        if self.options.digest:
            self.results["digest"] = train.digest(losses)
            self.say(f"Digest: {self.results['digest']}")

    def path(self, name: str) -> Path:
        """Return the path of the result `name`, and list it as written."""
        self.written.append(name)
        return self.options.out / name

    def write_text(self, name: str, text: str) -> None:
        """Write a text file into the folder."""
        self.path(name).write_text(text, encoding="utf-8")

    def page(self, train: tg.CompiledTraining, title: str, **parts: Any) -> None:
        """Write the page that repeats this training in a browser, from the first step. Call it after all results."""
        train.reset()
        train.export(self.path("index.html"), title=title, single_file=True, **parts)
        self.say(f"The same training in your browser: open {self.options.out / 'index.html'}")

    def finish(self, train: tg.CompiledTraining, **results: float) -> None:
        """Write parameters, checkpoint and numbers, and report the files."""
        safetensors.write(self.path("parameters.safetensors"), train.download_params())
        train.save(self.path("checkpoint.safetensors"))
        self.write_text("result.json", json.dumps({**self.results, **results}, indent=1) + "\n")
        self.say(f"Written to {self.options.out}{os.sep}: {', '.join(self.written)}")


def why(asked: str, got: str) -> str:
    """Return why this device was chosen, in plain words."""
    if asked != "auto":
        return f"chosen by --device {asked}"
    if os.environ.get("TRACEGRAD_DEVICE"):
        return f"chosen by TRACEGRAD_DEVICE={os.environ['TRACEGRAD_DEVICE']}"
    if got == "webgpu":
        return "a GPU was found"
    support = tg.check_webgpu()
    if support.adapter is not None:
        return f"no GPU here: {support.adapter.description} is a software adapter; --device webgpu uses it"
    return f"no GPU here: {support.message}"


def loss_chart(losses: Sequence[float], title: str, y_label: str) -> str:
    """Return an SVG chart of the loss of every step, and of its running mean."""
    steps = np.arange(1, len(losses) + 1)
    window = len(losses) // 40
    series = [Series("each step", steps, losses, faint=window > 1)]
    if window > 1:
        series.append(Series(f"mean of {window}", steps, smooth(losses, window)))
    return line_chart(series, title=title, x_label="step", y_label=y_label, log=True)
