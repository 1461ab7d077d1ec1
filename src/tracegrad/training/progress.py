"""The progress bar of `fit`, and its log."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, TextIO, cast

from tracegrad.arrays import np
from tracegrad.errors import InputError
from tracegrad.refusals import shown

REDRAW_SECONDS = 0.1  # between redraws of the bar on a terminal
LINE_SECONDS = 10.0  # between lines if the output is not a terminal
SMOOTHING = 0.98  # factor of the running mean of the loss
BAR = 24  # characters


class Log:
    """A sink for records: a file with one line of JSON each, a function, or an object with `add_scalar` or `log`.

    more: functions that get the records, too.
    """

    def __init__(self, target: Any, more: Sequence[Callable[[Mapping[str, Any]], object]] = ()):
        self._sinks, self._files = list(more), ExitStack()
        if callable(target):
            self._sinks.append(target)
        elif hasattr(target, "add_scalar"):  # TensorBoard's writer
            self._sinks.append(partial(write_scalars, target.add_scalar))
        elif hasattr(target, "log"):  # such as wandb's run
            self._sinks.append(target.log)
        elif isinstance(target, (str, os.PathLike)):
            file = self._files.enter_context(open(cast("str", target), "a", encoding="utf-8"))  # noqa: SIM115 (closed by close)
            self._sinks.append(lambda record: file.write(json.dumps(dict(record), default=np.ndarray.tolist) + "\n"))
        elif target is not None:
            raise InputError.here(
                f"fit: log must be a path, a function, or an object with log() or add_scalar(), got {shown(target)}"
            )

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one record."""
        for sink in self._sinks:
            sink(record)

    def close(self) -> None:
        """Close the file, which writes its buffer."""
        self._files.close()


class Progress:
    """A progress bar on a terminal or in a notebook, elsewhere a line every 10 s: steps, loss, steps/s, time left.

    The bar is tqdm's if tqdm is installed.
    """

    def __init__(self, shown: bool, total: int | None, out: TextIO | None = None):
        self._out = out or sys.stderr
        self._shown, self._total = shown and not getattr(self._out, "closed", self._out is None), total
        # \r returns to the start of the line on terminals and in cells of Jupyter
        self._terminal = self._shown and (self._out.isatty() or type(self._out).__module__.startswith("ipykernel."))
        self._began = self._drawn = time.perf_counter()
        self._done = 0
        self._loss = 0.0
        self._extra = ""
        self._width = 0
        self._tqdm = _tqdm() if self._terminal and out is None else None
        self._bar: Any = None  # tqdm's; its clock starts at the first step's result

    def update(self, loss: float) -> None:
        """Count one more step, with its loss."""
        # The mean is over all steps at first, later over about the last 1 / (1 - SMOOTHING).
        self._done += 1
        if self._done == 1:
            self._began = time.perf_counter()  # the time before went to compiling and opening the device
        weight = max(1 - SMOOTHING, 1 / self._done)
        self._loss += weight * (loss - self._loss)
        if self._tqdm is not None and self._bar is None:
            self._bar = self._tqdm(total=self._total, initial=1, unit="step", dynamic_ncols=True)
        elif self._bar is not None:
            self._bar.set_postfix_str(f"loss {self._loss:.4g}{self._extra}", refresh=False)
            self._bar.update(1)
        elif self._shown and time.perf_counter() - self._drawn >= (REDRAW_SECONDS if self._terminal else LINE_SECONDS):
            self._draw()

    def metrics(self, values: Mapping[str, Any]) -> None:
        """Show the results of an evaluation."""
        self._extra = "".join(f"  {name} {value:.4g}" for name, value in values.items() if np.ndim(value) == 0)

    def close(self) -> None:
        """Draw the last state, and end the line."""
        if self._bar is not None:
            self._bar.set_postfix_str(f"loss {self._loss:.4g}{self._extra}")
            self._bar.close()
        elif self._shown and self._done:
            self._draw()
            if self._terminal:
                print(file=self._out, flush=True)
        self._shown = False

    def line(self) -> str:
        """Return the text of the bar."""
        seconds = max(time.perf_counter() - self._began, 1e-9)
        rate = max(self._done - 1, 1) / seconds
        counts = f"{self._done}/{self._total}" if self._total else f"{self._done}"
        bar = ""
        if self._total and self._terminal:
            full = min(BAR, BAR * self._done // self._total)
            bar = f"[{'=' * full}{' ' * (BAR - full)}] "
        left = f"  {max(0, self._total - self._done) / rate:.0f} s left" if self._total else ""
        return f"{bar}{counts}  loss {self._loss:.4g}  {rate:.4g} steps/s{left}{self._extra}"

    def _draw(self) -> None:
        self._drawn = time.perf_counter()
        text = self.line()
        if self._terminal:
            text = text[: _columns(self._out) - 1]
            print(f"\r{text.ljust(self._width)}", end="", file=self._out, flush=True)
            self._width = len(text)
        else:
            print(text, file=self._out, flush=True)


def write_scalars(write: Callable[..., object], record: Mapping[str, Any]) -> None:
    """Call `write(name, value, step)` for each scalar of a record."""
    for name, value in record.items():
        if name != "step" and np.ndim(value) == 0:
            write(name, value, record["step"])


def _tqdm() -> Any:
    """Return the bar of tqdm for this environment; None if tqdm is not installed."""
    try:
        return importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return None


def _columns(out: Any) -> int:
    """Return the width of the terminal: COLUMNS if set, 80 if unknown."""
    said = os.environ.get("COLUMNS", "")
    if said.isdigit() and int(said):
        return int(said)
    try:
        return os.get_terminal_size(out.fileno()).columns or 80
    except (AttributeError, OSError, ValueError):  # not a file of the operating system
        return 80
