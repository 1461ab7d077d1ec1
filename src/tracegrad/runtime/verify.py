"""Check kernels on separate memory before a program returns any of their results.

A kernel runs once, on memory that `trials` fills. Some of the elements that it wrote are compared with its form,
computed in f64 by `points`. This reveals a load from a wrong place, a wrong side of a choice, a wrong operand, or an
element that was not written. A device runs trials one after the other on the same arrays, and fills only elements that
no longer hold their pattern.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, zip_longest

from tracegrad.arrays import Array, np
from tracegrad.kernel_source import KernelSource
from tracegrad.runtime.inexact import UNSURE
from tracegrad.runtime.points import FEW, forget
from tracegrad.runtime.repeated import Patterns
from tracegrad.runtime.trials import SEED, Layout, Odd, Trial, at_points, places_of, plan_of, trials_with

FURTHER = tuple(range(9, 21))  # seeds for kernels with a choice among few values that fell one way for all of them
OFTEN = 4  # this many of the seeds are always tried
AGAIN = 8  # seed of a second trial with other numbers, because a tie that rounding decides is not a defect
ODD = 6  # trials with infinite elements, at most
POINTS_ODD = 4  # points of a form that trials with infinite elements compare
SWITCH = "TRACEGRAD_VERIFY"  # "off": return the device's results unchecked

Kernels = Mapping[str, tuple[KernelSource, Layout]]
Trials = Sequence[tuple[str, Trial]]  # each with the key of its kernel
Run = Callable[[Trials], Iterable[Sequence[Array]]]


def enabled() -> bool:
    """Return whether to check kernels."""
    return os.environ.get(SWITCH, "").lower() not in ("off", "0", "no")


def _at_choices(trial: Trial) -> Trial:
    """Return a trial for further seeds, reduced to forms with a choice that had only one outcome so far."""
    outer = [x if one else x[:0] for x, one in zip(trial.plan.outer, trial.one_sided)]
    return trial._replace(plan=at_points(trial.plan, outer))


def _shows_more(trial: Trial, first: Trial) -> bool:
    """Return whether a further trial of a kernel can show what the first did not: another side of a choice.

    A choice by a constant that still falls the same way shows nothing new. Between two other operands it can: a wrong
    operand can be chosen where the right one is not.
    """
    return any(
        sides - now or not all(any(x.op == "const" for x in v.args) for v, _ in sides)
        for sides, now in zip(first.one_sided, trial.one_sided)
    )


def _odd(trial: Trial, patterns: Sequence[Patterns]) -> list[Trial]:
    """Return trials at few points where small slots of integers are 0, and some floats infinite.

    In the first trial the elements just behind small slots of floats are infinite, which must change nothing. In every
    other trial the first or last element of one such slot is infinite. Single numbers come first: they decide about
    whole steps.
    """
    plan, odds = trial.plan, list[list[list[Odd]]]()
    few = [x[:: max(1, x.size // POINTS_ODD)] for x in plan.outer]
    for form, points, places in zip(plan.kernel.forms, plan.outer, places_of(plan.kernel, plan.layout)):
        read = [(s, *at) for s, at in zip(form.slots, places) if points.size and not s.written]
        small = sorted([x for x in read if 0 < x[0].size <= FEW], key=lambda x: x[0].size)
        flags = [(name, at, s.size) for s, name, at in small if not s.dtype.is_float]
        zeros = [Odd(name, at + k, int(k == n)) for name, at, n in flags for k in range(n + 1)]
        floats = [(name, at, s.size) for s, name, at in small if s.dtype.is_float]
        behind = [Odd(name, at + n, np.inf) for name, at, n in floats]
        ends = dict.fromkeys(Odd(name, at + k, np.inf) for name, at, n in floats for k in (0, n - 1))
        odds.append([[*zeros, *behind], *[[*zeros, end] for end in ends]])
    numbers = [(p, list(chain(*those))) for those, p in zip(zip_longest(*odds, fillvalue=[]), patterns)]
    return trials_with(at_points(plan, few), numbers)


def _with_odd(trials: Trials, seeds: Sequence[int], *, shares: bool) -> list[tuple[str, list[Trial]]]:
    """Return odd trials of the kernels whose device keeps infinities and NaN.

    shares: for kernels whose results are mostly not finite otherwise; else for all other kernels.
    """
    numbers = [Patterns(seed, strict=True, shares=shares) for seed in seeds]
    return [(key, _odd(x, numbers)) for key, x in trials if x.patterns.strict and x.undefined == shares]


def trials_of(kernels: Kernels, *, strict: bool = False) -> Trials:
    """Return the first trial of each kernel; memory and points are the same in all of its trials.

    strict: the device divides exactly, and rounds to the nearest f16; WebGPU guarantees neither. Then few different
            floats are drawn, so that many comparisons are of equal floats, which inexact division can make unequal.
    """
    patterns = Patterns(SEED, strict)
    return [(key, trials_with(plan_of(*kernel), [(patterns, ())], sides=True)[0]) for key, kernel in kernels.items()]


def _others(trials: Trials, *seeds: int, shares: bool = False) -> list[Trials]:
    """Return trials of the same kernels with the numbers of each seed."""
    strict = any(trial.patterns.strict for _, trial in trials)
    patterns = [Patterns(seed, strict, shares) for seed in seeds]
    found = [(key, trials_with(trial.plan, [(p, trial.odd) for p in patterns], sides=True)) for key, trial in trials]
    return [[(key, those[k]) for key, those in found] for k in range(len(seeds))]


def faults(trials: Trials, run: Run, further: Sequence[int] = ()) -> dict[str, str]:
    """Describe what each kernel computes wrongly; "" for a correct kernel.

    Trials that always run are prepared before the first run, because a run waits for compilers.

    trials:  the first trial of each kernel; kernels that fail get another.
    run:     runs trials, and returns the elements of each of their checks.
    further: seeds of more trials. The first OFTEN are for kernels of few values that all fell on one side of a choice,
             the others for kernels that failed once. A kernel that fails twice is wrong.
    """
    one_sided = [(key, _at_choices(trial)) for key, trial in trials if any(trial.one_sided)]
    firsts = dict(trials)
    often = [[x for x in those if _shows_more(x[1], firsts[x[0]])] for those in _others(one_sided, *further[:OFTEN])]
    odd = [_with_odd(one_sided, further[:ODD], shares=shares) for shares in (False, True)]
    (undefined,) = _others([x for x in trials if x[1].undefined], SEED, shares=True)
    found = _failing_twice(trials, run, AGAIN, unsure=True)
    suspected: set[str] = set()

    def tried(those: Trials) -> None:
        for key, how in _failing([x for x in those if x[0] not in found], run).items():
            if key in suspected:
                found[key] = how
            suspected.add(key)

    for those in often:
        tried(those)
    for seed in further[OFTEN:]:
        tried(*_others([x for x in one_sided if x[0] in suspected and x[0] not in found], seed))
    found |= _failing_twice(undefined, run, AGAIN, shares=True)
    for shares, kernels in zip((False, True), odd):
        for k, seed in enumerate(further[:ODD]):
            those = [(key, kinds[k]) for key, kinds in kernels if k < len(kinds) and key not in found]
            found |= _failing_twice(those, run, seed + 1, shares=shares)
    forget()
    return {key: found.get(key, "") for key, _ in trials}


def _failing_twice(
    trials: Trials, run: Run, seed: int, *, shares: bool = False, unsure: bool = False
) -> dict[str, str]:
    """Return the kernels whose trial fails, and fails again with the numbers of `seed`."""
    failing = _failing(trials, run, unsure=unsure)
    (others,) = _others([x for x in trials if x[0] in failing], seed, shares=shares)
    return _failing(others, run)


def _failing(trials: Trials, run: Run, *, unsure: bool = False) -> dict[str, str]:
    """Return the kernels whose trial fails, with a description. unsure: also those whose trial decided nothing."""
    found: dict[str, str] = {}
    for (key, trial), got in zip(trials, run(trials) if trials else ()):
        hows = {c.difference(x) for c, x in zip(trial.checks, got)} - {""}
        wrong = sorted(hows - {UNSURE}) or list(hows)
        if wrong and (unsure or wrong != [UNSURE]):
            found[key] = wrong[0]
    return found
