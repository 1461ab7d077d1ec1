"""Learning-rate schedules: plain data, evaluated in Python and in the browser.

Steps count from 1. At step 1 a schedule gives its first value, as PyTorch's schedulers do. PyTorch's epoch e, the
number of `scheduler.step()` calls so far, is step e + 1.

Every schedule takes `start`, the training step at which the schedule's own step 1 falls. The default None means step 1
in an optimizer, and the next step in `set_lr`.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from tracegrad import foreign
from tracegrad.errors import InputError
from tracegrad.hypers import RANGES, Range, checked, kind_of
from tracegrad.refusals import NoNumber, shown
from tracegrad.schedule import (
    Plateau,
    Schedule as Schedule,  # noqa: PLC0414 so that type checkers see lr.Schedule
    check,
    start_field,
)


@dataclass(frozen=True)
class Constant(Schedule):
    """The same `rate` at every step.

    start: no effect here. For errors, see `Schedule`. As torch.optim.lr_scheduler.ConstantLR with factor 1.

    >>> lr.constant(0.1).at(5)
    0.1
    """

    rate: float
    start: int | None = start_field()

    def __post_init__(self) -> None:
        check(self, "rate")

    def value(self, s: int) -> float:
        """Return the rate."""
        return self.rate


@dataclass(frozen=True)
class Linear(Schedule):
    """A straight line from `peak` at step 1 to `final` at step `steps + 1`, then `final`.

    rate = peak + (final - peak) * min(s - 1, steps) / steps at step s, which counts from 1.

    start: the training step that counts as s = 1. For `start` and errors, see `Schedule`.

    As torch.optim.lr_scheduler.LinearLR.

    >>> schedule = lr.linear(peak=1.0, final=0.0, steps=10)
    >>> [schedule.at(s) for s in (1, 6, 11, 20)]
    [1.0, 0.5, 0.0, 0.0]
    """

    peak: float
    final: float
    steps: int
    start: int | None = start_field()

    def __post_init__(self) -> None:
        check(self, "peak", "final", steps=self.steps)

    def value(self, s: int) -> float:
        """Return the rate at step `s`, counted from the start of this schedule; see the class."""
        return self.peak + (self.final - self.peak) * min(s - 1, self.steps) / self.steps


@dataclass(frozen=True)
class CosineAnnealing(Linear):
    """Half a cosine from `peak` at step 1 to `final` at step `steps + 1`, then `final`.

    rate = final + (peak - final) * (1 + cos(pi * min(s - 1, steps) / steps)) / 2 at step s, which counts from 1.

    start: the training step that counts as s = 1. For `start` and errors, see `Schedule`.

    As torch.optim.lr_scheduler.CosineAnnealingLR (Loshchilov and Hutter 2017), but the rate does not rise again after
    `steps`. `lr.cosine_restarts` begins again at `peak`.

    >>> schedule = lr.cosine_annealing(peak=1.0, final=0.0, steps=10)
    >>> [round(schedule.at(s), 6) for s in (1, 6, 11, 20)]
    [1.0, 0.5, 0.0, 0.0]
    """

    def value(self, s: int) -> float:
        """Return the rate at step `s`, counted from the start of this schedule; see the class."""
        return _cosine(self.peak, self.final, min(s - 1, self.steps) / self.steps)


@dataclass(frozen=True)
class CosineRestarts(CosineAnnealing):
    """Half a cosine from `peak` to `final` in `steps` steps, repeated without an end.

    rate = final + (peak - final) * (1 + cos(pi * e / n)) / 2, at step e = 0 to n - 1 of a cosine of n steps.

    growth: an integer of at least 1. The first cosine has `steps` steps, and each next one `growth` times as many.
    start:  the training step at which the first cosine begins. For `start` and errors, see `Schedule`.

    As torch.optim.lr_scheduler.CosineAnnealingWarmRestarts with T_0=steps, T_mult=growth and eta_min=final (Loshchilov
    and Hutter 2017).

    >>> schedule = lr.cosine_restarts(peak=1.0, final=0.0, steps=10, growth=2)
    >>> [round(schedule.at(s), 6) for s in (1, 6, 11, 21, 31)]
    [1.0, 0.5, 1.0, 0.5, 1.0]
    """

    growth: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if checked("growth", self.growth, Range(1.0), "lr.cosine_restarts") % 1:
            raise InputError.here(f"lr.cosine_restarts: growth must be an integer, got {self.growth!r}")

    def value(self, s: int) -> float:
        """Return the rate at step `s`, counted from the start of this schedule; see the class."""
        n = self.steps
        while self.growth > 1 and s > n:
            s, n = s - n, n * self.growth
        return _cosine(self.peak, self.final, (s - 1) % n / n)


@dataclass(frozen=True)
class Warmup(Schedule):
    """A linear rise to `peak` in `steps` steps, then another schedule: peak * s / steps at steps s = 1 to `steps`.

    after: the schedule that follows; it begins at its own step 1. A number means a constant rate.
    start: the training step that counts as s = 1. For `start` and errors, see `Schedule`.

    As torch.optim.lr_scheduler.SequentialLR of a LinearLR and a second scheduler.

    >>> schedule = lr.warmup(1.0, 10, lr.linear(peak=1.0, final=0.0, steps=100))
    >>> [schedule.at(s) for s in (5, 10, 61)]
    [0.5, 1.0, 0.5]
    """

    peak: float
    steps: int
    after: Schedule | float
    start: int | None = start_field()

    def __post_init__(self) -> None:
        check(self, "peak", steps=self.steps)
        as_schedule(self.after)

    def value(self, s: int) -> float:
        """Return the rate at step `s`, counted from the start of this schedule; see the class."""
        return self.peak * s / self.steps if s <= self.steps else as_schedule(self.after).at(s - self.steps)


@dataclass(frozen=True)
class Staircase(Schedule):
    """A rate that begins at `peak` and is multiplied by `gamma` after every `every` steps.

    rate = peak * gamma^floor((s - 1) / every) at step s, which counts from 1.

    start: the training step that counts as s = 1. For `start` and errors, see `Schedule`.

    As torch.optim.lr_scheduler.StepLR.

    >>> schedule = lr.staircase(1.0, every=10, gamma=0.5)
    >>> [schedule.at(s) for s in (10, 11, 21)]
    [1.0, 0.5, 0.25]
    """

    peak: float
    every: int
    gamma: float = 0.1
    start: int | None = start_field()

    def __post_init__(self) -> None:
        check(self, "peak", "gamma", every=self.every)

    def value(self, s: int) -> float:
        """Return the rate at step `s`, counted from the start of this schedule; see the class."""
        return self.peak * self.gamma ** ((s - 1) // self.every)


@dataclass(frozen=True)
class MultiStep(Schedule):
    """A rate that begins at `peak` and is multiplied by `gamma` after each step of `milestones`.

    milestones: numbers of steps. From step m + 1 on, the factor of milestone m applies.
    start:      the training step that counts as step 1. For `start` and errors, see `Schedule`.

    As torch.optim.lr_scheduler.MultiStepLR.

    >>> schedule = lr.multi_step(1.0, [10, 20], gamma=0.5)
    >>> [schedule.at(s) for s in (10, 11, 21)]
    [1.0, 0.5, 0.25]
    """

    peak: float
    milestones: Sequence[int]
    gamma: float = 0.1
    start: int | None = start_field()

    def __post_init__(self) -> None:
        given: Any = self.milestones
        steps: list[Any] = list(given) if hasattr(given, "__iter__") else [None]
        if not all(isinstance(m, numbers.Integral) for m in steps):
            raise InputError.here(f"lr.multi_step: milestones are a list of steps, such as [30, 60], got {given!r}")
        check(self, "peak", "gamma")
        object.__setattr__(self, "milestones", tuple(sorted(map(int, steps))))

    def value(self, s: int) -> float:
        """Return the rate at step `s`, counted from the start of this schedule; see the class."""
        return self.peak * self.gamma ** sum(m < s for m in self.milestones)


@dataclass(frozen=True)
class Exponential(Schedule):
    """A rate that begins at `peak` and is multiplied by `gamma` after each step: peak * gamma^(s - 1) at step s.

    start: the training step that counts as s = 1. For `start` and errors, see `Schedule`.

    As torch.optim.lr_scheduler.ExponentialLR.

    >>> schedule = lr.exponential(1.0, 0.5)
    >>> [schedule.at(s) for s in (1, 2, 3)]
    [1.0, 0.5, 0.25]
    """

    peak: float
    gamma: float
    start: int | None = start_field()

    def __post_init__(self) -> None:
        check(self, "peak", "gamma")

    def value(self, s: int) -> float:
        """Return the rate at step `s`, counted from the start of this schedule; see the class."""
        return self.peak * self.gamma ** (s - 1)


@dataclass(frozen=True)
class OneCycle(Schedule):
    """A rise from peak / div_factor to `peak`, then a descent to nearly 0, within `steps` steps.

    The rise ends at step pct_start * steps. The descent ends at step `steps`, with peak / div_factor /
    final_div_factor. The rate then stays there.

    anneal: "cos": rise and descent follow half cosines; "linear": they follow straight lines.
    start:  the training step that counts as step 1. For `start` and errors, see `Schedule`.

    As torch.optim.lr_scheduler.OneCycleLR (Smith & Topin 2018) with cycle_momentum=False.

    >>> schedule = lr.one_cycle(1.0, 100)
    >>> [round(schedule.at(s), 6) for s in (1, 30, 100)]
    [0.04, 1.0, 4e-06]
    """

    peak: float
    steps: int
    pct_start: float = 0.3
    div_factor: float = 25.0
    final_div_factor: float = 1e4
    anneal: str = "cos"
    start: int | None = start_field()

    def __post_init__(self) -> None:
        check(self, "peak", steps=self.steps, div_factor=self.div_factor, final_div_factor=self.final_div_factor)
        if not 0 <= checked("pct_start", self.pct_start, what="lr.one_cycle") <= 1:
            raise InputError.here(f"lr.one_cycle: pct_start must be in [0, 1], got {self.pct_start!r}")
        if self.anneal not in ("cos", "linear"):
            raise InputError.here(f'lr.one_cycle: anneal must be "cos" or "linear", got {self.anneal!r}')

    def value(self, s: int) -> float:
        """Return the rate at step `s`, counted from the start of this schedule; see the class."""
        between = _cosine if self.anneal == "cos" else _line
        first = self.peak / self.div_factor
        top, last = self.pct_start * self.steps - 1, self.steps - 1
        e = min(s - 1, last)
        if e <= top:
            return between(first, self.peak, e / top if top > 0 else 1.0)
        return between(self.peak, first / self.final_div_factor, (e - top) / (last - top))


def _line(a: float, b: float, share: float) -> float:
    return a + (b - a) * share


def _cosine(a: float, b: float, share: float) -> float:
    return b + (a - b) * (1 + math.cos(math.pi * share)) / 2


constant = Constant
linear = Linear
cosine_annealing = CosineAnnealing
cosine_restarts = CosineRestarts
warmup = Warmup
staircase = Staircase
multi_step = MultiStep
exponential = Exponential
one_cycle = OneCycle
plateau = Plateau

KINDS: tuple[type[Any], ...] = (
    Constant, Linear, CosineAnnealing, CosineRestarts, Warmup, Staircase, MultiStep, Exponential, OneCycle, Plateau,
)  # fmt: skip
NO_RATES: tuple[tuple[Any, str], ...] = (
    (type, "; call it"),
    (str, "; a number is not quoted"),
    ((NoNumber, list), "; the model goes to tg.compile(model=...)"),
    (Callable, "; a schedule of your own is a dataclass that inherits lr.Schedule"),
)
__all__ = ["Schedule", *map(kind_of, KINDS)]  # pyright: ignore[reportUnsupportedDunderAll]


def as_schedule(lr: Schedule | float) -> Schedule:
    """Return `lr`, or for a number a constant schedule. Raises InputError for anything else or a rate below 0."""
    if isinstance(lr, (int, float, numbers.Real)):
        return Constant(checked("lr", lr, RANGES["lr"]))
    if not callable(getattr(lr, "at", None)) or isinstance(lr, type):
        hint = next((told for kind, told in NO_RATES if isinstance(lr, kind)), "")
        raise InputError.here(f"lr must be a number or a schedule of tracegrad.lr, got {shown(lr)}{hint}")
    if not is_dataclass(lr) or getattr(type(lr), "value", None) is Schedule.value:
        raise InputError.here(f"lr: {shown(lr)} must be a frozen dataclass with a method value(self, s)")
    return lr


def from_spec(spec: Mapping[str, Any] | float) -> Schedule:
    """Return the schedule for the data of `spec()`, or for a number. Raises InputError for any other data."""
    if isinstance(spec, (int, float)):
        return as_schedule(spec)
    if not isinstance(spec, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError.here(f"a schedule must be a dict or a number, got {spec!r}")
    values = dict(spec)
    kind = values.pop("kind", None)
    cls = next((c for c in KINDS if kind_of(c) == kind), None)
    if cls is None:
        raise InputError.here(f"schedule of unknown kind {kind!r}; known are {', '.join(map(kind_of, KINDS))}")
    if isinstance(values.get("after"), Mapping):
        values["after"] = from_spec(values["after"])
    known = {f.name: f for f in fields(cls)}
    missing = [n for n, f in known.items() if n not in values and f.default is MISSING]
    if missing or values.keys() - known.keys():
        problems = [*(f"{n} is missing" for n in missing), *(f"{n} is unknown" for n in values if n not in known)]
        raise InputError.here(f"schedule {kind}: {', '.join(problems)}; its fields are {', '.join(known)}")
    return cls(**values)


def plateau_of(schedule: Schedule | float) -> Plateau | None:
    """Return the plateau that takes metrics: the schedule itself, or the one after a warmup; else None."""
    if isinstance(schedule, Warmup):
        return plateau_of(schedule.after)
    return schedule if isinstance(schedule, Plateau) else None


def with_plateau(schedule: Schedule | float, new: Plateau) -> Schedule:
    """Return `schedule` with `new` in place of its plateau."""
    return replace(schedule, after=with_plateau(schedule.after, new)) if isinstance(schedule, Warmup) else new


def restarted(schedule: Schedule) -> Schedule:
    """Return `schedule` in its first state, before any metric."""
    told = plateau_of(schedule)
    first = replace(told, now=None, best=None, bad=0, cooling=0) if told else None
    return with_plateau(schedule, first) if first else schedule


S = TypeVar("S", bound=Schedule)


def starting_at(schedule: S, step: int) -> S:
    """Return `schedule` with its own step 1 at training step `step`, unless it has an explicit start."""
    if schedule.start is not None or isinstance(schedule, Constant):
        return schedule
    return replace(cast("Any", schedule), start=step)


if not TYPE_CHECKING:  # type checkers are to report unknown names themselves

    def __getattr__(name):
        raise foreign.no_such_name("tracegrad.lr", name, {"lr": __all__}, "schedules")
