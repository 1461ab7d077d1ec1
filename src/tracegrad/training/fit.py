"""The usual training loop: arrays or any iterable of batches, hooks, validation, a progress bar, a log."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any, cast

from tracegrad.arrays import np
from tracegrad.engine.pending import Pending
from tracegrad.engine.results import CompletedStep, StepResult
from tracegrad.errors import InputError, is_function
from tracegrad.hypers import checked_whole
from tracegrad.lr import plateau_of
from tracegrad.refusals import shown
from tracegrad.training.between import lr_metric, turns
from tracegrad.training.callbacks import hooks_of, listed, watches
from tracegrad.training.data import Position, Rows, as_inputs, size_of, sources
from tracegrad.training.history import FitState, History, Stop
from tracegrad.training.placing import Placed, placed
from tracegrad.training.progress import Log, Progress
from tracegrad.training.training import Training
from tracegrad.training.validation import Validation
from tracegrad.wrong_calls import check_takes

ENDS = 2.0  # seconds that an interrupted `fit` waits for a step to end, or three times as long as steps took


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The arguments of `fit` that are not data. `_checked` completes `hooks`, `schedule` and `watched`."""

    batch_size: int | None
    epochs: int
    steps: int | None
    shuffle: bool
    validation: Any
    evaluate: Callable[[Any], Mapping[str, float]] | None
    every: int | None
    metrics: Any
    progress: bool
    log: Any
    resume: Any
    schedule: Any
    hooks: Mapping[str, Any]  # by event; first a function or several, then all hooks, also those of callbacks
    callbacks: Any
    watched: bool = False  # does a callback want evaluations without metrics, too?

    @property
    def changing(self) -> bool:
        """Return whether hooks could change the arrays of examples between epochs."""
        return self.evaluate is not None or any(self.hooks[event] for event in ("on_epoch", "on_evaluate"))

    def call(self, event: str) -> None:
        """Call the hooks of an event that has no argument."""
        for hook in self.hooks[event]:
            cast("Callable[[], object]", hook)()


def fit(train: Training, data: tuple[Any, ...], x: Any, y: Any, options: Options) -> History:
    """Run the loop of `CompiledTraining.fit`, which documents the arguments. A single array counts as a tuple of one.

    Raises InputError for arguments that do not fit, and whatever the loop raises."""
    options = _checked(train, options)
    resume, key = options.resume, (train.seed, _steps(train))
    where = Position.read(resume) if resume is not None else Position(1, 0, key)
    shuffled = where.key if options.shuffle else None
    source, held = sources(train.input_types, data, x, y, options.batch_size, shuffled, options.validation)
    size = size_of(source)
    if resume is not None:
        where.check_size(size, resume)
        train.load(resume)
    where.size, where.first = size, _steps(train) - where.done
    validate = Validation(train, held, options.metrics or {}) if held is not None else None
    total = options.steps or (options.epochs * size[-1] if size else None)
    bar = Progress(options.progress, None if total is None else total - where.own)
    on_device = None
    if isinstance(source, Rows) and total is not None and not options.hooks["on_step"]:
        on_device = placed(train, source, total - where.own, options.changing)
    loop = _Loop(train, options, validate, Log(options.log, options.hooks["on_log"]), bar, where, on_device)
    began = time.perf_counter()
    train.fitted = where
    try:
        options.call("on_begin")
        loop.run(source)
    except KeyboardInterrupt:
        loop.history.interrupted = True
    finally:
        loop.settle(time.perf_counter() - began)
        where.sums = loop.left()
        loop.history.seconds = time.perf_counter() - began
        if on_device is not None:
            on_device.end()
        bar.close()
        loop.log.close()
        options.call("on_end")
        if validate is not None:
            validate.close()
    return loop.history


def _steps(train: Training) -> int:
    """Return the number of steps that the training has done, over all losses."""
    return train.store.call(lambda session, stepper: sum(s.counter for s in stepper.together))


def _checked(train: Training, options: Options) -> Options:
    """Check the arguments that need no data, and collect all hooks. Raises InputError."""
    validation, metrics = options.validation, options.metrics
    checked_whole("epochs", options.epochs, "fit")
    for name in ("steps", "every", "batch_size"):
        if (value := getattr(options, name)) is not None:
            checked_whole(name, value, "fit")
    measured = validation is not None or options.evaluate is not None
    several = listed(options.callbacks)
    watched, hooks = watches(several, measured), hooks_of(options.hooks, several)
    schedule = turns([name for name in train.store.steppers if name], options.schedule, "fit")
    options = replace(options, watched=watched, hooks=hooks, schedule=schedule)
    if options.evaluate is not None:
        check_takes("fit", "evaluate", options.evaluate, ("training",))
    plateaus = [plateau_of(s.knobs.rate.schedule) for s in train.store.steppers.values()]
    told = options.evaluate is not None or metrics or any(options.hooks.values())
    if not told and any(p is not None and p.mode == "max" for p in plateaus):
        raise InputError.here(
            'fit: nothing measures what lr.plateau(mode="max") is to maximize; pass validation= and metrics=, or '
            'evaluate=, or write mode="min" for the loss'
        )
    if options.schedule and validation is not None:
        raise InputError.here("fit: validation= works with one loss only; with several, use evaluate=")
    if metrics is not None:
        _check_metrics(metrics, validation)
    if callable(options.log):
        check_takes("fit", "log", options.log, ("record",))
    return options


def _check_metrics(metrics: Any, validation: Any) -> None:
    if validation is None:
        raise InputError.here("fit: metrics= are measured on held-out data; pass validation= too, such as 0.1")
    functions = [*cast("Mapping[str, Any]", metrics).values()] if isinstance(metrics, Mapping) else [None]
    if not all(is_function(f) and getattr(f, "__module__", "") != "tracegrad.metrics" for f in functions):
        raise InputError.here(
            "fit: metrics must be a dict of functions of the model and the inputs, such as "
            "{'accuracy': lambda m, x, y: tg.metrics.accuracy(m(x), y)}"
        )


def _loss_of(name: str) -> str:
    return f"{name}/loss" if name else "loss"


def _add(sums: dict[str, list[float]], turn: str, loss: float) -> None:
    """Add one loss to `Position.sums`. In order, so that a resumed fit has the same bits."""
    count, total = sums.get(_loss_of(turn), (0, 0.0))
    sums[_loss_of(turn)] = [count + 1, total + loss]


def _number(name: str, value: Any) -> float:
    """Return a result of `evaluate`. Raises InputError unless it is a number."""
    try:
        return float(value)
    except (TypeError, ValueError):
        said = f"of shape {tuple(value.shape)}" if hasattr(value, "shape") else shown(value)
    raise InputError.here(f"fit: evaluate returned {name!r} {said}; return a number, such as the mean")


class _Loop:
    """One `fit`. Hooks are called before the next step is queued. The loop waits only for results that hooks read."""

    def __init__(
        self, train: Training, options: Options, validate: Validation | None, log: Log, progress: Progress,
        where: Position, on_device: Placed | None,
    ):  # fmt: skip
        self.on_device = on_device
        self.train, self.options, self.validate, self.log, self.progress = train, options, validate, log, progress
        self.where, self.history = where, History()
        # steps under way, each with the name of its loss; "" if there is one loss
        self.waiting: deque[tuple[str, Pending[StepResult]]] = deque()
        self.begun = where.steps  # steps done before, of all losses
        self.metrics: Mapping[str, Any] = {}
        self.sums = where.earlier  # see `Position.sums`: of the losses since `lr.plateau` got the last means
        self.latest: Pending[StepResult] | None = None
        self.evaluated, self.since, self.stop, self.turn = -1, 0, Stop(), ""
        self.thread, where.sums = threading.current_thread(), self.unheard
        self.queued = where.own  # steps of this fit, also those before an interrupt

    def run(self, data: Rows | Iterable[Any]) -> None:
        """Run all epochs. Raises InputError for data without a batch."""
        epochs, steps, every = self.options.epochs, self.options.steps, self.options.every
        skip = self.where.done
        if every is not None and skip and self.queued % every == 0 and not self.where.told:
            self._evaluate()  # a hook saved the checkpoint after the step, before its evaluation
        while not self.stop and (self.queued < steps if steps is not None else self.where.epoch <= epochs):
            self._epoch(data, skip)
            skip = 0
            self._drain()
            last = self.queued == steps or (steps is None and self.where.epoch == epochs)
            if self.stop or every is None or last:
                self._evaluate()
            self._call("on_epoch")
            self.where.epoch, self.where.first, self.where.done = self.where.epoch + 1, self.where.steps, 0

    def _epoch(self, data: Rows | Iterable[Any], skip: int) -> None:
        """Queue the steps of an epoch, without its first `skip` batches. Raises InputError if it has no batch."""
        every = self.options.every
        self.history.epochs += 1
        before = self.queued
        for batch in self._batches(data, skip):
            self._step(data, batch)
            if every is not None and self.queued % every == 0:
                self._evaluate()
            if self.stop or self.queued == self.options.steps:
                break
        if self.queued == before and not skip:
            hint = " (a generator can be iterated once only; pass a list or a DataLoader)" if before else ""
            raise InputError.here(f"fit: the data have no batch in epoch {self.where.epoch}; pass at least one{hint}")

    def _batches(self, data: Rows | Iterable[Any], skip: int) -> Iterator[Any]:
        if isinstance(data, Rows):
            if self.on_device is not None:
                self.on_device.renew()
            yield from data.orders(self.where.epoch, skip)
        else:
            yield from islice(data, skip, None)

    def _step(self, data: Rows | Iterable[Any], batch: Any) -> None:
        """Take a step on a batch, given by the numbers of its rows if `data` are whole arrays."""
        schedule = self.options.schedule
        loss = schedule[self.where.steps % len(schedule)] if schedule else ""
        self.latest = self.on_device.step(loss, batch) if self.on_device is not None else None
        if self.latest is None:
            given = self._given(data, batch, loss)
            self.latest = self.train.step(loss, given) if loss else self.train.step(given)
        self.turn = loss
        self.waiting.append((loss, self.latest))
        self.queued, self.where.done, self.where.told = self.queued + 1, self.where.done + 1, False
        self._call("on_step")
        while self.waiting and self.waiting[0][1].done():
            self._take()

    def _given(self, data: Rows | Iterable[Any], batch: Any, loss: str) -> Mapping[str, Any]:
        """Return the inputs of a step. Those of other losses are left out."""
        names = self.train.store.steppers[loss].source.inputs
        if isinstance(data, Rows):
            return data.batch(batch, names, self.train.copies)
        given = as_inputs(batch, self.train.input_names)
        return {name: x for name, x in given.items() if name in names} if loss else given

    def _call(self, name: str) -> None:
        if not self.options.hooks[name]:
            return
        knobs = self.train.store.steppers[self.turn].knobs if self.turn else self.train.store.stepper.knobs
        since = max(self.evaluated, 0) if name == "on_step" else self.since
        state = FitState(self.train, self.where.epoch, self.latest, knobs, self.metrics, self.stop, self._drain, since)
        for hook in self.options.hooks[name]:
            hook(state)

    def _drain(self) -> History:
        while self.waiting:
            self._take()
        return self.history

    def _take(self) -> None:
        """Record the oldest step under way. It stays in `waiting` while this waits: an interrupt must not lose it."""
        turn, pending = self.waiting[0]
        pending.result()
        self.waiting.popleft()
        self._note(turn, pending)

    def settle(self, seconds: float) -> None:
        """Wait for the queued steps at the end of `fit`, and record each step that was applied. Raise no errors.

        After an interrupt, wait only while steps end, if a C compiler can hang: if no step came before `fit`, or some
        ended since. Steps that are left are applied later.
        seconds: of `fit` so far.
        """
        done = len(self.history.loss)
        limited = self.history.interrupted and (done or not self.begun)
        most = max(ENDS, 3 * seconds / done if done else 0) if limited else None
        while self.waiting:
            turn, pending = self.waiting[0]
            try:
                result = pending.result(most)
            except (KeyboardInterrupt, TimeoutError):
                self.history.interrupted = True
                return
            self.waiting.popleft()
            if isinstance(result, CompletedStep):
                self._note(turn, result)

    def _note(self, turn: str, r: Pending[StepResult] | CompletedStep) -> None:
        """Record the result of a step."""
        more = {name: float(x) for name, x in r.aux.items() if np.ndim(x) == 0} if r.aux else {}
        self.history.loss.append(r.loss)
        step = self.begun + len(self.history.loss) if turn else r.step
        self.history.step.append(step)
        self.history.aux.append(more)
        self.history.turn.append(turn)
        _add(self.sums, turn, r.loss)
        self.log.write({"step": step, **self.history.scalars(-1)})
        self.progress.update(r.loss)

    def _evaluate(self) -> None:
        self._drain()
        done, measured = len(self.history.loss), self.options.evaluate is not None or self.validate is not None
        if self.evaluated == done:
            return
        self.since, self.evaluated = max(self.evaluated, 0), done
        if measured:
            self._measure()
        if not self.where.told:  # else told before the checkpoint from which this run resumed
            self._tell()
            self.where.told = True
        if measured or (self.options.watched and done):
            self._call("on_evaluate")

    def _tell(self) -> None:
        """Pass each `lr.plateau` its metric: one to maximize, or the loss; `val_loss` if there is validation."""
        found = {name: x for name, x in self.metrics.items() if np.ndim(x) == 0}
        own = [f"val_{name}" for name in self.validate.metrics] if self.validate is not None else []
        high = [found[name] for name in (*own, *found) if name in found and name != "val_loss"]
        for name, stepper in self.train.store.steppers.items():
            plateau = plateau_of(stepper.knobs.rate.schedule)
            if plateau is None:
                continue
            if plateau.mode == "max":
                values = high
            elif "val_loss" in found and not name:
                values = [found["val_loss"]]
            else:
                count, total = self.sums.get(_loss_of(name), (0, 0.0))
                values = [total / count] if count else []
            if values:
                lr_metric(self.train.store, stepper, values[0], of_fit=True)
        self.sums = {}

    def unheard(self) -> dict[str, list[float]]:
        """Return `Position.sums` for a checkpoint that this thread saves: means that no `lr.plateau` has got yet."""
        if threading.current_thread() is not self.thread:
            return {}
        if means := self._means():
            self._drain()
        return {name: self.sums[name] for name in means if name in self.sums}

    def left(self) -> Callable[[], dict[str, list[float]]]:
        """Return `unheard` for after `fit`. Steps that an interrupt left under way count once they are applied.

        It does not refer to the loop, since the training closes itself once nothing refers to it.
        """
        found, means, rest = self.sums, self._means(), [*self.waiting]

        def sums() -> dict[str, list[float]]:
            out = dict(found)
            for turn, pending in rest:
                if isinstance(r := pending.result(), CompletedStep):
                    _add(out, turn, r.loss)
            return {name: out[name] for name in means if name in out}

        return sums

    def _means(self) -> list[str]:
        """Return the losses whose mean an `lr.plateau` gets."""
        steppers = self.train.store.steppers.items()
        plateaus = {_loss_of(name): plateau_of(s.knobs.rate.schedule) for name, s in steppers}
        return [name for name, p in plateaus.items() if p is not None and p.mode == "min"]

    def _measure(self) -> None:
        found = dict(self.validate()) if self.validate is not None else {}
        if self.options.evaluate is not None:
            metrics = self.options.evaluate(self.train)
            if not isinstance(metrics, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
                raise InputError.here(f'fit: evaluate must return a dict such as {{"accuracy": 0.9}}, got {metrics!r}')
            found |= {name: _number(name, value) for name, value in metrics.items()}
        self.metrics = found
        step = self.history.step[-1] if self.history.step else 0
        record = {"step": step, **self.metrics}
        self.history.metrics.append(record)
        self.log.write(record)
        self.progress.metrics(self.metrics)
