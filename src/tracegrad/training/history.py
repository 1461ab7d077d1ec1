"""The history that `fit` returns, and the state that its hooks get."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

from tracegrad.arrays import np
from tracegrad.engine.knobs import Knobs
from tracegrad.engine.pending import Pending
from tracegrad.engine.results import StepResult
from tracegrad.errors import InputError
from tracegrad.refusals import Helped
from tracegrad.training.training import Training
from tracegrad.wrong_calls import helpful


class History(Helped):
    """The losses and metrics of a `fit`.

    loss:        the loss of every step, in order.
    aux:         one dict for every step: the scalars that the loss returns beside itself.
    step:        the number of every step, from the step counter of the training; with several losses, counted over all.
    turn:        the name of the loss of every step; "" if there is one loss.
    metrics:     one dict for every evaluation: "step", and the results of validation and `evaluate`.
    epochs:      number of passes over the data that were begun.
    seconds:     duration of the `fit`.
    interrupted: whether Ctrl-C ended it.
    """

    remedies = "histories"
    called = "read its .loss and .metrics"

    def __init__(self) -> None:
        self.loss: list[float] = []
        self.step: list[int] = []
        self.aux: list[Mapping[str, float]] = []
        self.turn: list[str] = []
        self.metrics: list[dict[str, Any]] = []
        self.epochs, self.seconds, self.interrupted = 0, 0.0, False

    def __repr__(self) -> str:
        last = f"; loss {self.loss[0]:.4g} -> {self.loss[-1]:.4g}" if self.loss else ""
        metrics = f"; {self.metrics[-1]}" if self.metrics else ""
        ended = ", interrupted" if self.interrupted else ""
        return f"<History of {len(self.loss)} steps in {self.seconds:.1f} s{ended}{last}{metrics}>"

    def scalars(self, k: int) -> dict[str, float]:
        """Return loss and aux of the k-th step by name; with several losses, as "d/loss"."""
        own = {"loss": self.loss[k]}
        own |= {n: x for n, x in self.aux[k].items() if n not in ("loss", "step")}
        return {f"{self.turn[k]}/{n}": x for n, x in own.items()} if self.turn[k] else own

    def means(self, since: int = 0) -> dict[str, float]:
        """Return the mean of loss and aux by name, over the steps from index `since` on."""
        return {name: math.fsum(xs) / len(xs) for name, xs in self.values(since).items()}

    def values(self, since: int = 0) -> dict[str, list[float]]:
        """Return all values of loss and aux by name, of the steps from index `since` on."""
        found: dict[str, list[float]] = {}
        for k in range(since, len(self.loss)):
            for name, x in self.scalars(k).items():
                found.setdefault(name, []).append(x)
        return found

    @helpful
    def plot(self, ax: Any = None) -> Any:
        """Plot loss, aux and metrics by step, and return matplotlib's axes.

        ax:     axes to draw on; None: those of a new figure of pyplot, which a notebook shows, and `plt.show()`.
        Raises: ImportError without matplotlib.
        """
        try:
            plt: Any = import_module("matplotlib.pyplot")
        except ImportError:
            raise ImportError("history.plot needs matplotlib: pip install matplotlib") from None
        axes = plt.subplots()[1] if ax is None else ax
        rows = [self.scalars(k) for k in range(len(self.loss))]
        for name in dict.fromkeys(n for row in rows for n in row):
            at = [k for k, row in enumerate(rows) if name in row]  # losses trained in turns have different names
            axes.plot([self.step[k] for k in at], [rows[k][name] for k in at], label=name)
        for name in dict.fromkeys(n for m in self.metrics for n in m if n != "step"):
            seen = [m for m in self.metrics if np.ndim(m.get(name, ())) == 0]  # matrices are not plotted
            if not seen:
                continue
            axes.plot([m["step"] for m in seen], [m[name] for m in seen], marker="o", label=name)
        axes.set_xlabel("step")
        axes.legend()
        return axes

    @helpful
    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row for each step: loss, aux, and metrics at evaluations.

        With several losses, columns have names such as "d/loss".
        A metric that is also the name of an aux gets the suffix _evaluated. Raises: ImportError without pandas.
        """
        try:
            table: Any = import_module("pandas")
        except ImportError:
            raise ImportError("history.to_frame needs pandas: pip install pandas") from None
        frame = table.DataFrame(
            [self.scalars(k) for k in range(len(self.loss))], index=table.Index(self.step, name="step")
        )
        if not self.metrics:
            return frame
        found = table.DataFrame(self.metrics).groupby("step").last()
        return frame.join(found.rename(columns={n: f"{n}_evaluated" for n in found.columns if n in frame.columns}))


class Stop:
    """A flag to end the loop: `state.stop()` sets it, and no later step runs. Its truth value is the flag."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        self.asked = False

    def __call__(self) -> None:
        self.asked = True

    def __bool__(self) -> bool:
        return self.asked


class FitState:
    """The argument of the hooks of `fit`: the values of the current step.

    train, epoch: the training, and the number of the pass over the data, from 1 on.
    metrics:      metrics of the last evaluation, by name.
    stop:         `state.stop()`, or `state.stop = True`, ends the loop: no later step runs.

    These are available at once. Reading any other attribute waits for the step.
    """

    __slots__ = ("_knobs", "_pending", "_settle", "_since", "_stop", "epoch", "metrics", "train")

    def __repr__(self) -> str:
        return f"<FitState of epoch {self.epoch}; read its .loss, .lr, .step, .aux, .metrics and .history>"

    def __init__(
        self, train: Training, epoch: int, pending: Pending[StepResult] | None, knobs: Knobs,
        metrics: Mapping[str, Any], stop: Stop, settle: Callable[[], History], since: int,
    ):  # fmt: skip
        self.train, self.epoch, self.metrics, self._since = train, epoch, metrics, since
        self._pending, self._knobs, self._stop, self._settle = pending, knobs, stop, settle

    def _of(self, pending: Pending[StepResult] | None) -> Pending[StepResult]:
        if pending is None:
            raise InputError.here("fit: there is no step yet; read step values in on_step")
        return pending

    @property
    def step(self) -> int:
        """The number of the step, from the step counter of the training. Before a first step, that counter's value."""
        if self._pending is None:
            return self.train.store.call(lambda session, stepper: stepper.counter)
        return self._pending.step

    @property
    def loss(self) -> float:
        """The loss of the step."""
        return self._of(self._pending).loss

    @property
    def aux(self) -> Mapping[str, Any]:
        """The extra outputs of the loss."""
        return self._of(self._pending).aux

    @property
    def lr(self) -> float:
        """The learning rate of the step."""
        return self._knobs.rate.now(self.step)

    @property
    def means(self) -> dict[str, float]:
        """The means of loss and aux since the previous evaluation, or of this epoch if nothing is evaluated.

        With several losses, a name is "d/loss"."""
        return self.history.means(self._since)

    @property
    def history(self) -> History:
        """The history of all steps up to this one."""
        return self._settle()

    @property
    def stop(self) -> Stop:
        """A function that ends the loop."""
        return self._stop

    @stop.setter
    def stop(self, value: object) -> None:
        self._stop.asked = bool(value)
