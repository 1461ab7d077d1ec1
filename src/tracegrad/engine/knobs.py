"""The values that the host sends to the device before each step: learning rate, hyperparameters, step, seed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tracegrad import hypers, lr as schedules
from tracegrad.arrays import np
from tracegrad.errors import InputError
from tracegrad.program import Field, Program
from tracegrad.schedule import Schedule
from tracegrad.wrong_calls import remedy

STEP, RATE = f"{hypers.PREFIX}step", f"{hypers.PREFIX}lr"


class Rate:
    """A learning rate, and the training step that is the schedule's step 1: the first step submitted under it.

    untold: the schedule before the last metric, if `fit` passed that metric; else None.
    """

    __slots__ = ("begun", "schedule", "start", "untold")

    def __init__(self, schedule: Schedule, start: int | None = None, untold: Schedule | None = None) -> None:
        self.schedule, self.untold = schedule, untold
        self.start = start  # used by the worker only: the number of a step that began; perhaps it was not applied
        self.begun: tuple[int, Schedule] | None = None  # the schedule shifted to that start

    def at(self, step: int) -> float:
        """Return the rate at `step`. The first call sets the start, and so does a replay of an earlier step."""
        if self.start is None or self.start > step:
            self.start = step
        if self.begun is None or self.begun[0] != self.start:
            self.begun = self.start, schedules.starting_at(self.schedule, self.start)
        return self.begun[1].at(step)

    def now(self, step: int) -> float:
        """Return the rate at `step` without setting the start, which is `step` if no step has begun."""
        return schedules.starting_at(self.schedule, self.start or step).at(step)


@dataclass(slots=True, eq=False)
class _Arrays:
    """The arrays last uploaded for some fields: an unchanged array need not be written again."""

    fields: Sequence[Field]
    seed: int
    fixed: dict[str, Any]  # all except step and lr
    rate: float | None = None
    lr: Any = None


@dataclass(frozen=True, slots=True, eq=False)
class Knobs:
    """The learning rate and hyperparameters at the time of a call. Constant, because queued steps share them."""

    rate: Rate
    values: Mapping[str, float]
    last: list[_Arrays] = field(default_factory=list[_Arrays])  # at most one; used by the worker only

    def upload(self, fields: Sequence[Field], step: int, seed: int) -> dict[str, Any]:
        """Return the arrays of the program's `hyper.*` inputs at `step`."""
        if not self.last or self.last[0].fields is not fields or self.last[0].seed != seed:
            self.last[:] = [_Arrays(fields, seed, self._fixed(fields, seed))]
        last = self.last[0]
        out = dict(last.fixed)
        if STEP in out:
            out[STEP] = np.asarray(step, dtype=np.uint32)
        if RATE in out:
            rate = self.rate.at(step)
            if type(rate) is not float or rate != last.rate:  # the first `last.rate` is None
                rate = hypers.checked("lr", rate, hypers.RANGES["lr"], f"the schedule at step {step}")
                last.rate, last.lr = rate, np.asarray(rate, dtype=np.float32)
            out[RATE] = last.lr
        return out

    def _fixed(self, fields: Sequence[Field], seed: int) -> dict[str, Any]:
        """Return the arrays that are equal for all steps, and None for `step` and `lr`."""
        out: dict[str, Any] = {}
        for f in fields:
            name = f.name.removeprefix(hypers.PREFIX)
            if name == "seed":
                out[f.name] = np.asarray(seed, dtype=np.uint32)
            elif f.name in (STEP, RATE):
                out[f.name] = None
            else:
                out[f.name] = np.asarray(hypers.leaf_value(name, dict(self.values)), dtype=np.float32)
        return out

    def with_rate(self, lr: Schedule | float) -> Knobs:
        """Return the same values under another learning rate, which begins at the next step."""
        return Knobs(Rate(schedules.as_schedule(lr)), self.values)

    def wide(self) -> Knobs:
        """Return the same values, with the unit for a gradient whose squares would overflow."""
        return Knobs(self.rate, {**self.values, hypers.UNIT: hypers.LARGE})

    def changed(self, hyper: Mapping[str, Any], program: Program, off: Sequence[str]) -> tuple[Knobs, dict[str, float]]:
        """Return the values after `train.set(**hyper)`, and the values of options that it switches on.

        off: options that the program was compiled without. Switching one on needs a new program.
        Raise InputError with every unknown name. With clip_grad_norm=None, clipping is off.
        """
        ranges = hypers.ranges_of(program.meta)  # also of a weight_decay that no parameter has, and no input
        names = hypers.settable([f.name for f in program.inputs] + [hypers.PREFIX + n for n in ranges])
        off = [name for name in off if name not in names]  # unless the loss has a hyperparameter of that name
        rest = {name: value for name, value in hyper.items() if name != "lr" or "lr" not in names}
        ranges = {name: hypers.RANGES[name] for name in off} | ranges
        _check_names(rest, [*(name for name in names if name != "lr"), *off])
        new = {n: hypers.OFF[n] if x is None and n == "clip_grad_norm" else x for n, x in rest.items()}
        rate = Rate(schedules.as_schedule(hyper["lr"])) if len(rest) < len(hyper) else self.rate
        given = hypers.checked_all(new, ranges, "set")
        switched = {name: given[name] for name in off if given.get(name, hypers.OFF[name]) != hypers.OFF[name]}
        kept = {name: x for name, x in given.items() if name not in off or name in switched}  # no options that stay off
        return Knobs(rate, {**self.values, **kept}), switched


def _check_names(given: Mapping[str, Any], known: Sequence[str]) -> None:
    """Raise InputError for names that are not `known`, beside "lr", which was taken out of `given`."""
    unknown = [name for name in given if name not in known]
    if unknown:
        known = ["lr", *known]
        instead = "".join([remedy(name, given[name], known, "set") for name in unknown])
        instead += "" if instead.endswith("?") else ";"
        raise InputError.here(
            f"set: {', '.join(unknown)} is not a value of this program{instead} these can be set: {', '.join(known)}"
        )
