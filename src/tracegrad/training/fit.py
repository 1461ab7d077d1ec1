"""The usual training loop: any iterable of batches, a progress bar, evaluation, callbacks, a log."""

from __future__ import annotations

import json
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TextIO, cast

from tracegrad.engine.results import Pending, StepResult
from tracegrad.errors import InputError
from tracegrad.refusals import shown
from tracegrad.shapes import whole

if TYPE_CHECKING:
    from tracegrad.training.compiled import CompiledTraining


REDRAW_SECONDS = 0.1  # of the bar on a terminal
LINE_SECONDS = 10.0  # between lines where output is not a terminal
SMOOTHING = 0.98  # of the loss that the bar shows
BAR = 24  # characters


@dataclass(slots=True)
class History:
    """What `fit` saw.

    loss:     the loss of every step, in order.
    step:     the number of every step: the training's own counter.
    metrics:  one dict for every evaluation: "step", and what `evaluate` returned.
    epochs:   passes over the data begun.
    seconds:  how long it took.
    """

    loss: list[float] = field(default_factory=list[float])
    step: list[int] = field(default_factory=list[int])
    metrics: list[dict[str, float]] = field(default_factory=list[dict[str, float]])
    epochs: int = 0
    seconds: float = 0.0

    def __repr__(self) -> str:
        last = f"; loss {self.loss[0]:.4g} -> {self.loss[-1]:.4g}" if self.loss else ""
        metrics = f"; {self.metrics[-1]}" if self.metrics else ""
        return f"<History of {len(self.loss)} steps in {self.seconds:.1f} s{last}{metrics}>"


@dataclass(slots=True)
class FitState:
    """What a callback of `fit` is given after each step. Setting `stop` ends the loop."""

    train: CompiledTraining
    history: History
    step: int
    epoch: int
    loss: float
    metrics: Mapping[str, float]  # of the last evaluation
    stop: bool = False


def fit(
    train: CompiledTraining,
    data: Iterable[Any],
    *,
    epochs: int = 1,
    steps: int | None = None,
    progress: bool = True,
    evaluate: Callable[[CompiledTraining], Mapping[str, float]] | None = None,
    every: int | None = None,
    callbacks: Iterable[Callable[[FitState], object]] = (),
    log: str | os.PathLike[str] | Callable[[Mapping[str, Any]], object] | None = None,
) -> History:
    """`CompiledTraining.fit`, which says what the arguments are; a single array is a tuple of one."""
    _check("epochs", epochs)
    for name, value in (("steps", steps), ("every", every)):
        if value is not None:
            _check(name, value)
    for name, value in (("data", data), ("callbacks", callbacks)):
        if not (hasattr(value, "__iter__") or hasattr(value, "__getitem__")):  # a dataset may have the latter only
            hint = (
                "; put it in a list" if name == "callbacks" else "; call it, for its batches" if callable(value) else ""
            )
            hint = hint or "; such as a list of batches, [{'x': x, 'y': y}, ...]"
            raise InputError.here(f"fit: {name} must be something to iterate over, got {shown(value)}{hint}")
    if isinstance(data, Mapping):
        raise InputError.here(
            "fit: the data are batches, each a dict or tuple, got one dict: a list of one batch is [{...}]; of whole "
            "arrays, make a list that cuts them into batches"
        )
    if evaluate is not None and not callable(evaluate):
        raise InputError.here(f"fit: evaluate must be a function of the training, got {shown(evaluate)}; define one")
    loop = _Loop(train, evaluate, every, tuple(callbacks), Log(log), Progress(progress, _total(data, epochs, steps)))
    began = time.perf_counter()
    try:
        loop.run(data, epochs, steps)
    finally:
        loop.settle()
        loop.history.seconds = time.perf_counter() - began
        loop.progress.close()
        loop.log.close()
    return loop.history


class _Loop:
    """One `fit`. Steps are queued ahead of their results, unless callbacks must see each before the next."""

    def __init__(
        self,
        train: CompiledTraining,
        evaluate: Callable[[CompiledTraining], Mapping[str, float]] | None,
        every: int | None,
        callbacks: Sequence[Callable[[FitState], object]],
        log: Log,
        progress: Progress,
    ):
        self.train, self.evaluate, self.every, self.callbacks = train, evaluate, every, callbacks
        self.log, self.progress, self.history = log, progress, History()
        self.waiting: deque[Pending[StepResult]] = deque()
        self.metrics: Mapping[str, float] = {}
        self.queued, self.evaluated, self.stop = 0, -1, False

    def run(self, data: Iterable[Any], epochs: int, steps: int | None) -> None:
        """All epochs."""
        for batch in self._batches(data, epochs, steps):
            self.waiting.append(self.train.step(as_inputs(batch, self.train.input_names)))
            self.queued += 1
            due = self.every is not None and self.queued % self.every == 0
            while self.waiting and (due or self.stop or self.callbacks or self._enough()):
                self._take()
            if due:
                self._evaluate()
            if self.stop:
                break
        self._drain()
        self._evaluate()

    def _enough(self) -> bool:
        """Is the oldest step done, or are so many queued that more would only wait?"""
        return self.waiting[0].done() or len(self.waiting) >= 2 * self.train.worker.max_in_flight

    def _batches(self, data: Iterable[Any], epochs: int, steps: int | None) -> Iterator[Any]:
        while steps is not None or self.history.epochs < epochs:
            if self.history.epochs and self.every is None:
                self._drain()
                self._evaluate()
            before = self.queued
            self.history.epochs += 1
            for batch in data:
                yield batch
                if self.queued == steps:
                    return
            if self.queued == before:
                many = before > 0
                hint = " (a generator can be iterated once only; pass a list or a DataLoader)" if many else ""
                raise InputError.here(
                    f"fit: the data have no batch in epoch {self.history.epochs}; give one or more{hint}"
                )

    def _drain(self) -> None:
        while self.waiting:
            self._take()

    def settle(self) -> None:
        """After an error: let what is still queued end. The first error is the one that is raised."""
        while self.waiting:
            self.waiting.popleft().result()

    def _take(self) -> None:
        """The result of the oldest step."""
        p = self.waiting.popleft()
        loss, step = p.loss, p.step
        self.history.loss.append(loss)
        self.history.step.append(step)
        self.log.write({"step": step, "loss": loss})
        self.progress.update(loss)
        if self.callbacks:
            state = FitState(self.train, self.history, step, self.history.epochs, loss, self.metrics)
            for callback in self.callbacks:
                callback(state)
            self.stop = self.stop or state.stop

    def _evaluate(self) -> None:
        done = len(self.history.loss)
        if self.evaluate is None or self.evaluated == done:
            return
        self.evaluated = done
        metrics = self.evaluate(self.train)
        if not isinstance(metrics, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError.here(f'fit: evaluate must return a dict such as {{"accuracy": 0.9}}, got {metrics!r}')
        self.metrics = {name: float(value) for name, value in metrics.items()}
        step = self.history.step[-1] if self.history.step else 0
        record = {"step": step, **self.metrics}
        self.history.metrics.append(record)
        self.log.write(record)
        self.progress.metrics(self.metrics)


def as_inputs(batch: Any, names: Sequence[str]) -> Mapping[str, Any]:
    """A batch of a data iterable as a dict by input name."""
    if isinstance(batch, Mapping):
        return cast("Mapping[str, Any]", batch)
    values = cast("Sequence[Any]", batch) if isinstance(batch, (tuple, list)) else (batch,)
    if len(values) != len(names):
        count = f"{len(values)} value{'s' * (len(values) != 1)}"
        raise InputError.here(
            f"fit: a batch has {count}, the inputs are {', '.join(names)}. The data are an iterable of batches, "
            f"such as [({', '.join(names)}), ...]; of whole arrays, make one that cuts them into batches"
        )
    return dict(zip(names, values, strict=True))


def _check(name: str, value: int) -> None:
    if (whole(value) or 0) < 1:
        raise InputError.here(f"fit: {name} must be an integer of at least 1, got {value!r}")


def _total(data: Iterable[Any], epochs: int, steps: int | None) -> int | None:
    """Steps to come, if that can be known."""
    if steps is not None:
        return steps
    try:
        return epochs * len(cast("Sequence[Any]", data))
    except TypeError:
        return None


class Log:
    """Records to a file, one line of JSON each, or to a function."""

    def __init__(self, target: str | os.PathLike[str] | Callable[[Mapping[str, Any]], object] | None):
        self._call = target if callable(target) else None
        self._file: TextIO | None = None
        if target is not None and not callable(target):
            self._file = open(target, "a", encoding="utf-8")  # noqa: SIM115 (closed by close)

    def write(self, record: Mapping[str, Any]) -> None:
        """One record."""
        if self._call is not None:
            self._call(record)
        if self._file is not None:
            self._file.write(json.dumps(record) + "\n")

    def close(self) -> None:
        """Write out what is buffered."""
        if self._file is not None:
            self._file.close()


class Progress:
    """A bar on a terminal or in a notebook, a line now and then elsewhere: steps, loss, steps per second, time left."""

    def __init__(self, shown: bool, total: int | None, out: TextIO | None = None):
        self._out = out or sys.stderr
        self._shown, self._total = shown and not _closed(self._out), total
        self._terminal = self._shown and _redraws(self._out)
        self._began = self._drawn = time.perf_counter()
        self._done = 0
        self._loss = 0.0
        self._extra = ""
        self._width = 0

    def update(self, loss: float) -> None:
        """One more step."""
        # A mean over all steps at first, then over about the last 1 / (1 - SMOOTHING).
        self._done += 1
        weight = max(1 - SMOOTHING, 1 / self._done)
        self._loss += weight * (loss - self._loss)
        if self._shown and time.perf_counter() - self._drawn >= (REDRAW_SECONDS if self._terminal else LINE_SECONDS):
            self._draw()

    def metrics(self, values: Mapping[str, float]) -> None:
        """What an evaluation gave."""
        self._extra = "".join(f"  {name} {value:.4g}" for name, value in values.items())

    def close(self) -> None:
        """The last state, and a new line."""
        if self._shown and self._done:
            self._draw()
            if self._terminal:
                print(file=self._out, flush=True)
        self._shown = False

    def line(self) -> str:
        """What is shown."""
        seconds = max(time.perf_counter() - self._began, 1e-9)
        rate = self._done / seconds
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
            print(f"\r{text.ljust(self._width)}", end="", file=self._out, flush=True)
            self._width = len(text)
        else:
            print(text, file=self._out, flush=True)


def _redraws(out: Any) -> bool:
    """Whether \\r goes back to the begin of the line: on terminals, and in Jupyter's cells, which are none."""
    return bool(out.isatty()) or type(out).__module__.startswith("ipykernel.")


def _closed(out: Any) -> bool:
    return out is None or bool(getattr(out, "closed", False))
