"""Objects for `fit(callbacks=[...])`. Any object with a method of `EVENTS` is a callback."""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from tracegrad.engine.stepper import Snapshot, restore_all, take_all
from tracegrad.errors import InputError, is_function
from tracegrad.hypers import AT_LEAST_0, checked, checked_whole
from tracegrad.refusals import shown
from tracegrad.training.events import EventFile
from tracegrad.training.history import FitState
from tracegrad.training.progress import write_scalars
from tracegrad.wrong_calls import check_takes, helpful

Hook = Callable[..., object]
# The argument that the hooks of each event get: a FitState, a record of the log, or none
EVENTS: Mapping[str, Sequence[str]] = {
    "on_step": ("state",), "on_epoch": ("state",), "on_evaluate": ("state",), "on_log": ("record",), "on_begin": (),
    "on_end": (),
}  # fmt: skip


def listed(callbacks: Any) -> list[Any]:
    """Return the callbacks. Raises InputError unless they are a list of objects."""
    if not hasattr(callbacks, "__iter__"):
        raise InputError.here(f"fit: callbacks must be a list of callbacks, got {shown(callbacks)}; put it in a list")
    several = list(cast("Iterable[Any]", callbacks))
    for c in several:
        if isinstance(c, type):
            raise InputError.here(f"fit: callbacks has the class {c.__name__}; make one: {c.__name__}(...)")
        if not is_function(c) and not any(hasattr(c, name) for name in EVENTS):
            names = ", ".join(EVENTS)
            raise InputError.here(f"fit: callbacks has {shown(c)}, which has none of the methods {names}; define one")
    return several


def hooks_of(given: Mapping[str, Any], callbacks: Sequence[Any]) -> dict[str, list[Hook]]:
    """Return all hooks by event. Raises InputError for a hook that is not callable."""
    out: dict[str, list[Hook]] = {}
    for name in EVENTS:
        hook = given.get(name)
        out[name] = [hook] if hook is not None else []
        out[name] += [getattr(c, name) for c in callbacks if hasattr(c, name)]
    out["on_step"] += [c for c in callbacks if not any(hasattr(c, name) for name in EVENTS)]
    for name, hooks in out.items():
        for hook in hooks:
            check_takes("fit", name, hook, EVENTS[name])
    return out


def watches(callbacks: Sequence[Any], measured: bool) -> bool:
    """Return whether a callback watches a metric. measured: whether anything is evaluated.

    Raises InputError for a metric that nothing measures."""
    metrics = [name for name in (getattr(c, "metric", None) for c in callbacks) if name is not None]
    for name in metrics:
        if not measured and str(name).startswith("val_"):
            raise InputError.here(
                f"fit: nothing measures {name!r}; give validation=, such as 0.1, or evaluate=, or watch 'loss'"
            )
    return bool(metrics)


def _lower_is_better(metric: str) -> bool:
    return not any(word in metric for word in ("acc", "auc", "r2", "score", "f1", "top", "precision", "recall"))


def _metric(state: FitState, name: str) -> float:
    """Return a metric of the last evaluation, or the mean of a training loss or aux. Raises InputError for others."""
    found = state.metrics if name in state.metrics else state.means
    if name not in found:
        known = ", ".join({**state.metrics, **found})
        raise InputError.here(f"fit: there is no metric {name!r}; there are: {known}; validation= gives val_loss")
    return found[name]


class _Best:
    """The best value so far. mode: "min", "max", or "auto", which maximizes names such as val_accuracy."""

    def __init__(self, metric: str, min_delta: float = 0.0, mode: str = "auto"):
        if not isinstance(metric, str):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError.here(f"metric must be the name of a metric, such as 'val_loss', got {shown(metric)}")
        if str(mode) not in ("auto", "min", "max"):
            raise InputError.here(f"mode must be 'auto', 'min' or 'max', got {shown(mode)}")
        self.metric, self.min_delta, self.mode, self.value = metric, min_delta, mode, math.inf
        self.sign = 1.0 if mode == "min" or (mode == "auto" and _lower_is_better(metric)) else -1.0

    def improved(self, state: FitState) -> bool:
        """Take the current value. Returns whether it is the best so far; NaN never is."""
        value = self.sign * _metric(state, self.metric)
        if not value < self.value - self.min_delta:
            return False
        self.value = value
        return True


class EarlyStopping:
    """Stop `fit` after `patience` evaluations in a row without an improvement. As keras.callbacks.EarlyStopping.

    metric:    the name of a metric of the evaluation, such as "val_loss". It can also be "loss", or the name of a
               scalar in the dict that the loss returns beside its value. These two are means over the training steps
               since the previous evaluation. Without `validation` and `evaluate`, the end of each epoch counts as an
               evaluation. `fit` raises InputError for an unknown metric at the first evaluation, and for "val_..."
               without `validation` and `evaluate` when it begins.
    min_delta: an improvement is a change by more than this.
    restore:   True restores the parameters, states and optimizer state of the best evaluation when this callback stops
               `fit`. If `fit` ends by itself, for example after its last epoch, it keeps the last values.
    mode:      "max" to maximize the metric, "min" to minimize it. "auto" maximizes if the name contains acc, auc, r2,
               score, f1, top, precision or recall.

    >>> stop = tg.EarlyStopping("loss", patience=2, min_delta=100.0)    # train, x, y below: see tg.compile
    >>> history = train.fit(x=x, y=y, epochs=50, progress=False, callbacks=[stop])
    >>> history.epochs
    3
    """

    @helpful
    def __init__(
        self, metric: str = "val_loss", patience: int = 5, min_delta: float = 0.0, restore: bool = True,
        mode: str = "auto",
    ):  # fmt: skip
        checked_whole("patience", patience, "EarlyStopping", 0)
        checked("min_delta", min_delta, AT_LEAST_0, "EarlyStopping")
        self.metric, self.patience, self.min_delta, self.restore, self.mode = metric, patience, min_delta, restore, mode
        self._start()

    def _start(self) -> None:
        self._best, self._bad = _Best(self.metric, self.min_delta, self.mode), 0
        self._snapshot: list[Snapshot] | None = None

    def on_begin(self) -> None:
        """Forget the best value and the count of evaluations. `fit` calls this when it begins."""
        self._start()

    def on_evaluate(self, state: FitState) -> None:
        """Count evaluations without an improvement. `fit` calls this after each evaluation.

        At `patience`, stop `fit`, and with `restore` go back to the best evaluation.

        state: a `FitState`, as in all hooks of `fit`.
        """
        store = state.train.store
        if self._best.improved(state):
            self._bad, self._snapshot = 0, store.call(take_all) if self.restore else None
            return
        self._bad += 1
        if self._bad >= self.patience:
            state.stop()
            best = self._snapshot
            if best is not None:
                store.call(lambda session, stepper: restore_all(session, stepper, best))


class Checkpoint:
    """Save the training to a file after each evaluation that is the best so far. As keras.callbacks.ModelCheckpoint.

    path:    the file, overwritten by each save. `train.load(path)` and `fit(resume=path)` read it.
    best:    name of the metric, as `metric` of `EarlyStopping`. None: save after each epoch instead.
    mode:    "max" or "min": which metric is best. "auto" decides by the metric's name, as `EarlyStopping` does.
    wait:    False writes the file while the training goes on, as `train.save(path, wait=False)`.
    sharded: True writes a folder, as `train.save(path, sharded=True)`.

    >>> save = tg.Checkpoint("best.safetensors")    # train, x, y below: as in the example of tg.compile
    >>> history = train.fit(x=x, y=y, validation=(x, y), progress=False, callbacks=[save])
    >>> train.load("best.safetensors")
    """

    @helpful
    def __init__(self, path: str | os.PathLike[str], best: str | None = "val_loss", mode: str = "auto",
                 wait: bool = True, sharded: bool = False):  # fmt: skip
        self.wait, self.sharded, self.path, self.metric = wait, sharded, path, best
        self._best = None if best is None else _Best(best, mode=mode)

    def on_evaluate(self, state: FitState) -> None:
        """Save the training if the metric that `best` names has improved. `fit` calls this after each evaluation."""
        if self._best is not None and self._best.improved(state):
            state.train.save(self.path, wait=self.wait, sharded=self.sharded)

    def on_epoch(self, state: FitState) -> None:
        """Save the training if `best` is None. `fit` calls this after each epoch."""
        if self._best is None:
            state.train.save(self.path, wait=self.wait, sharded=self.sharded)


class CSVLogger:
    r"""Write a CSV file with a line for each epoch: epoch, step, loss of the last step, and metrics.

    path: the file. `fit` replaces the file after each epoch. As keras.callbacks.CSVLogger.

    >>> log = tg.CSVLogger("log.csv")    # train, x, y below: as in the example of tg.compile
    >>> history = train.fit(x=x, y=y, epochs=2, progress=False, callbacks=[log])
    >>> open("log.csv").readline()
    'epoch,step,loss\n'
    """

    @helpful
    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self._rows: list[dict[str, Any]] = []

    def on_begin(self) -> None:
        """Start an empty table. `fit` calls this when it begins."""
        self._rows = []

    def on_epoch(self, state: FitState) -> None:
        """Add a line for the epoch, and write the whole file. `fit` calls this after each epoch."""
        self._rows.append({"epoch": state.epoch, "step": state.step, "loss": state.loss, **state.metrics})
        names = list(dict.fromkeys(name for row in self._rows for name in row))
        with open(self.path, "w", newline="", encoding="utf-8") as f:
            table = csv.DictWriter(f, names)
            table.writeheader()
            table.writerows(self._rows)


class TensorBoard:
    """Write loss, aux of the loss, metrics and learning rate to a file that TensorBoard shows.

    folder: the folder of this run, such as "runs/first"; `tensorboard --logdir runs` shows all folders in `runs`. Each
            `fit` adds a file, and points carry the training's step number. Writing needs no TensorBoard.
    As keras.callbacks.TensorBoard, and the SummaryWriter of PyTorch.

    >>> board = tg.TensorBoard("runs/first")    # train, x, y below: as in the example of tg.compile
    >>> history = train.fit(x=x, y=y, progress=False, callbacks=[board])
    >>> import os
    >>> len(os.listdir("runs/first"))
    1
    """

    @helpful
    def __init__(self, folder: str | os.PathLike[str]):
        self.folder = Path(folder)
        self._file: EventFile | None = None

    def on_begin(self) -> None:
        """Start a new event file. `fit` calls this when it begins."""
        self.on_end()
        self._file = EventFile(self.folder)

    def on_log(self, record: Mapping[str, Any]) -> None:
        """Write the numbers of a step or an evaluation. `fit` calls this after each of them.

        record: the numbers by name, with "step", the training's step number.
        """
        if self._file is not None:
            write_scalars(self._file.write, record)

    def on_epoch(self, state: FitState) -> None:
        """Write the learning rate, and flush the file: TensorBoard then shows it. `fit` calls this after each epoch."""
        if self._file is not None:
            self._file.write("lr", state.lr, state.history.step[-1])
            self._file.flush()

    def on_end(self) -> None:
        """Close the event file. `fit` calls this when it ends."""
        if self._file is not None:
            self._file.close()
        self._file = None
