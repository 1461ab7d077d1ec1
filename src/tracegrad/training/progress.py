"""The progress bar of `fit`, and its log."""

from __future__ import annotations

import importlib
import json
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
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
        self._more = more
        self._call = target if callable(target) else None
        self._scalars: Any = getattr(target, "add_scalar", None)  # TensorBoard's writer
        if self._call is None and self._scalars is None:
            self._call = getattr(target, "log", None)  # such as wandb's run
        self._file: TextIO | None = None
        if target is not None and self._call is None and self._scalars is None:
            if not isinstance(target, (str, os.PathLike)):
                raise InputError.here(
                    f"fit: log must be a path, a function, or an object with log() or add_scalar(), got {shown(target)}"
                )
            self._file = open(cast("str", target), "a", encoding="utf-8")  # noqa: SIM115 (closed by close)

    def write(self, record: Mapping[str, Any]) -> None:
        """Write one record."""
        for function in self._more:
            function(record)
        if self._call is not None:
            self._call(record)
        if self._scalars is not None:
            for name in record:
                if name != "step" and np.ndim(record[name]) == 0:
                    self._scalars(name, record[name], record["step"])
        if self._file is not None:
            self._file.write(json.dumps({name: _plain(x) for name, x in record.items()}) + "\n")

    def close(self) -> None:
        """Close the file, which writes its buffer."""
        if self._file is not None:
            self._file.close()


class Progress:
    """A progress bar on a terminal or in a notebook, elsewhere a line every 10 s: steps, loss, steps/s, time left.

    The bar is tqdm's if tqdm is installed.
    """

    def __init__(self, shown: bool, total: int | None, out: TextIO | None = None):
        self._out = out or sys.stderr
        self._shown, self._total = shown and not _closed(self._out), total
        self._terminal = self._shown and _redraws(self._out)
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


def _plain(x: Any) -> Any:
    """Return an array, such as a confusion matrix, as lists; anything else unchanged."""
    return x.tolist() if isinstance(x, np.ndarray) else x


def _tqdm() -> Any:
    """Return the bar of tqdm for this environment; None if tqdm is not installed."""
    try:
        return importlib.import_module("tqdm.auto").tqdm
    except ImportError:
        return None


def _redraws(out: Any) -> bool:
    """Return whether \\r returns to the start of the line, as on terminals and in cells of Jupyter."""
    return bool(out.isatty()) or type(out).__module__.startswith("ipykernel.")


def _closed(out: Any) -> bool:
    return out is None or bool(getattr(out, "closed", False))


def _columns(out: Any) -> int:
    """Return the width of the terminal: COLUMNS if set, 80 if unknown."""
    said = os.environ.get("COLUMNS", "")
    if said.isdigit() and int(said):
        return int(said)
    try:
        return os.get_terminal_size(out.fileno()).columns or 80
    except (AttributeError, OSError, ValueError):  # not a file of the operating system
        return 80
