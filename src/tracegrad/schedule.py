"""The base class of learning-rate schedules, which give a rate for each step. `lr.py` has all schedules.

`Plateau` is here, because only this schedule has a state, which metrics change.
"""

from __future__ import annotations

import math
import numbers
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Protocol, cast

from tracegrad.errors import CallError, InputError, refusing
from tracegrad.hypers import POSITIVE, RANGES, SHARE, checked, checked_whole, kind_of
from tracegrad.wrong_calls import check_call


class Schedule(Protocol):
    """Base class of the schedules of `tg.lr`: a learning rate for each step s, counted from 1.

    start: the step of the training at which s is 1; before it, the rate is that of s = 1. None: step 1 in an optimizer,
           and the next step in `train.set_lr`.
    Raises InputError for a rate or `gamma` that is negative or not finite. Numbers of steps and divisors must be above
    0, and numbers of steps and `start` integers.

    To write your own, define a frozen dataclass that inherits from `Schedule`, with the field
    `start: int | None = None` and the method `value(s)`.
    As a schedule of Optax, and torch.optim.lr_scheduler.LRScheduler.

    >>> lr.cosine_annealing(peak=1.0, final=0.0, steps=10).spec()
    {'kind': 'cosine_annealing', 'peak': 1.0, 'final': 0.0, 'steps': 10}
    """

    start: int | None

    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **given: Any) -> Any:
            if args or given:  # copies are made without arguments
                check_call(f"lr.{kind_of(cls)}", cls.__init__, args, given, bound=1)
            return super().__new__(cls)

        @refusing
        def __call__(self, *_: Any) -> Any:
            raise CallError.here("a schedule is not a function: write schedule.at(step), with steps counted from 1")

    def value(self, s: int) -> float:
        """Return the rate at the schedule's own step `s`, which counts from 1. As calling an Optax schedule."""
        ...

    def at(self, step: int) -> float:
        """Return the rate at a step of the training. Before `start`, this is the first rate.

        step: counted from 1.
        As the get_lr of PyTorch's schedulers.
        """
        return self.value(max(1, step - (self.start or 1) + 1))

    def spec(self) -> dict[str, Any]:
        """Return the schedule as plain data, which `from_spec` and the browser read.

        As the state_dict of PyTorch's schedulers.
        """
        out: dict[str, Any] = {"kind": kind_of(type(self))}
        for f in fields(cast("Any", self)):
            value = getattr(self, f.name)
            if f.name != "start" or value is not None:
                out[f.name] = value.spec() if hasattr(value, "spec") else _plain(value)
        return out


def _plain(value: Any) -> Any:
    return list(cast("tuple[Any, ...]", value)) if isinstance(value, tuple) else value


def start_field() -> Any:
    return field(default=None, kw_only=True)


COUNTS = ("steps", "every")  # arguments that are numbers of steps


def check(schedule: Schedule, *rates: str, **positive: float) -> None:
    """Check that `rates` are learning rates, `positive` above 0, and `start` a step. Raises InputError otherwise."""
    what = f"lr.{kind_of(type(schedule))}"
    for name in rates:
        checked(name, getattr(schedule, name), RANGES["lr"], what)
    for name, value in positive.items():
        if checked(name, value, POSITIVE, what) % 1 and name in COUNTS:
            raise InputError.here(f"{what}: {name} must be an integer, got {value!r}")
    start: object = schedule.start
    if start is not None and (isinstance(start, bool) or not isinstance(start, numbers.Integral)):
        raise InputError.here(f"{what}: start must be the number of a step, got {start!r}")


@dataclass(frozen=True)
class Plateau(Schedule):
    """A rate that is multiplied by `factor` when a metric has not improved for more than `patience` evaluations.

    `train.fit` passes a metric to the schedule after each evaluation. With mode="min", the metric is `val_loss`, or
    without validation the mean training loss of the epoch. With mode="max", the metric is the first of `metrics=`, or
    of the results of `evaluate=`. If you call `train.lr_metric(value)` yourself, your metrics replace those of `fit`.

    peak:      the first rate.
    mode:      "min" if a smaller metric is better, "max" if a larger one is.
    threshold: with b the best metric so far, a metric improves if it is below b (1 - threshold), or with mode="max"
               above b (1 + threshold). With threshold_mode="abs": below b - threshold, or above b + threshold.
    cooldown:  number of evaluations after a reduction that do not count.
    min_lr:    the rate does not fall below this number.
    eps:       a reduction by this number or less is left out.
    now, best, bad and cooling are the schedule's state: leave them out. For `start` and errors, see `Schedule`.
    As torch.optim.lr_scheduler.ReduceLROnPlateau. The schedule can be the `after` of `lr.warmup`.

    >>> schedule = lr.plateau(1.0, factor=0.5, patience=0)
    >>> schedule.after(3.0).after(4.0).at(1)
    0.5
    """

    peak: float
    factor: float = 0.1
    patience: int = 10
    threshold: float = 1e-4
    mode: str = "min"
    threshold_mode: str = "rel"
    cooldown: int = 0
    min_lr: float = 0.0
    eps: float = 1e-8
    now: float | None = None
    best: float | None = None
    bad: int = 0
    cooling: int = 0
    start: int | None = start_field()

    def __post_init__(self) -> None:
        check(self, "peak", "min_lr", "eps", "threshold", *(["now"] if self.now is not None else []))
        checked("factor", self.factor, SHARE, "lr.plateau")
        if self.best is not None:
            checked("best", self.best, what="lr.plateau")
        for name in ("patience", "cooldown", "bad", "cooling"):
            checked_whole(name, getattr(self, name), "lr.plateau", 0)
        if self.mode not in ("min", "max") or self.threshold_mode not in ("rel", "abs"):
            raise InputError.here(
                f'lr.plateau: mode={self.mode!r} must be "min" or "max", '
                f'and threshold_mode={self.threshold_mode!r} must be "rel" or "abs"'
            )

    def value(self, s: int) -> float:
        """Return the rate at the schedule's own step `s`; see the class."""
        return self.peak if self.now is None else self.now

    def after(self, metric: float) -> Plateau:
        """Return the schedule after one more metric. NaN counts as no improvement.

        Raises InputError for infinity and for a metric that is no number.
        """
        nan = isinstance(metric, numbers.Real) and math.isnan(metric)
        value = metric if nan else checked("metric", metric, what="lr_metric")
        better = not nan and self._improves(value)
        bad = 0 if better or self.cooling else self.bad + 1
        cooling, rate = max(0, self.cooling - 1), self.value(1)
        if bad > self.patience:
            lower = max(rate * self.factor, self.min_lr)
            rate = lower if rate - lower > self.eps else rate
            bad, cooling = 0, self.cooldown
        return replace(self, now=rate, best=value if better else self.best, bad=bad, cooling=cooling)

    def _improves(self, metric: float) -> bool:
        if self.best is None:
            return True
        sign = 1.0 if self.mode == "max" else -1.0
        margin = self.threshold * (self.best if self.threshold_mode == "rel" else 1.0)
        return sign * metric > sign * (self.best + sign * margin)
