"""What a learning-rate schedule is: plain data that gives a rate for each step. `lr.py` has the schedules."""

from __future__ import annotations

import numbers
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, Protocol, cast

from tracegrad.errors import InputError
from tracegrad.hypers import POSITIVE, RANGES, checked, kind_of
from tracegrad.refusals import check_call


class Schedule(Protocol):
    """A learning rate for each step s, counted from 1. The schedules of `lr` raise InputError for values out of range.

    start: the step of the training at which s is 1; before it, the rate is that of s = 1. None: step 1 in an optimizer,
           and the next step in `train.set_lr`.

    To write your own, define a frozen dataclass that inherits from `Schedule`, with the field
    `start: int | None = None` and the method `value(s)`.

    >>> lr.cosine_annealing(peak=1.0, final=0.0, steps=10).spec()
    {'kind': 'cosine_annealing', 'peak': 1.0, 'final': 0.0, 'steps': 10}
    """

    start: int | None

    if not TYPE_CHECKING:

        def __new__(cls, *args: Any, **given: Any) -> Any:
            if args or given:  # copies are made without arguments
                check_call(f"lr.{kind_of(cls)}", cls.__init__, args, given, bound=1)
            return super().__new__(cls)

    def value(self, s: int) -> float:
        """Return the rate at the schedule's own step `s`, from 1 on. As calling an Optax schedule."""
        ...

    def at(self, step: int) -> float:
        """Return the rate at `step` of the training, from 1 on. Before `start`, it is the first value.

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


def check(schedule: Schedule, *rates: str, **positive: float) -> None:
    """Check that `rates` are learning rates, `positive` above 0, and `start` a step. Raises InputError otherwise."""
    what = f"lr.{kind_of(type(schedule))}"
    for name in rates:
        checked(name, getattr(schedule, name), RANGES["lr"], what)
    for name, value in positive.items():
        checked(name, value, POSITIVE, what)
    start: object = schedule.start
    if start is not None and (isinstance(start, bool) or not isinstance(start, numbers.Integral)):
        raise InputError.here(f"{what}: start must be the number of a step, got {start!r}")
