"""Programs against their bounds: what differs, alone or only beside others."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from fuzzing.compare import Finding, differences
from fuzzing.differentiated import environment, expected, in_any_order
from fuzzing.exact import Exact
from fuzzing.halves import Format
from fuzzing.program import Program, Step
from fuzzing.runners import RUNNERS, Given, Ran, Runner
from fuzzing.stepped import UnstableError, expected_training
from fuzzing.table import NoCounterpartError

REFERENCE = "reference"  # the runner of a finding that tracegrad refuses to trace


@dataclass(frozen=True, eq=False)
class Prepared:
    """A program with what it is given and what is expected of it."""

    given: Given
    expected: dict[Format | None, dict[str, Exact]]  # by the half that values may be stored in


@dataclass
class Report:
    """What a search did: findings, and how many programs each runner answered."""

    findings: list[Finding] = field(default_factory=list)
    answered: Counter[str] = field(default_factory=Counter)
    programs: int = 0
    sharp: float = 0.0  # sum over programs of the share of elements whose bound is below a thousandth of the largest

    def add(self, other: Report) -> None:
        """Counts another search in."""
        self.findings += other.findings
        self.answered += other.answered
        self.programs += other.programs
        self.sharp += other.sharp


def prepared(program: Program, runners: Sequence[Runner]) -> Prepared | Finding | None:
    """The reference of a program for these runners; a Finding if it is refused.

    None if there is nothing to compare: no runner trains, or the gradients to train with are not finite.
    """
    try:
        if program.mode == "train":
            if not any(r.training for r in runners):
                return None
            return Prepared(Given(program, program.arrays()), {None: expected_training(program)})
        env = environment(program)
        halves = dict.fromkeys(r.half for r in runners)
        return Prepared(Given(program, env), {half: expected(program, env, half) for half in halves})
    except UnstableError:
        return None
    except Exception as e:
        return Finding(program, REFERENCE, shown(e))


def shown(error: Exception) -> str:
    """An error on one line."""
    return f"{type(error).__name__}: {str(error).partition(chr(10))[0]}"


def verdict(ran: Ran, p: Prepared, runner: str) -> str:
    """What is wrong with a result; "" if nothing is."""
    if isinstance(ran, NoCounterpartError):
        return ""
    if isinstance(ran, Exception):
        return shown(ran)
    known = p.expected[RUNNERS[runner].half]
    known = known if RUNNERS[runner].special else {n: finite(x) for n, x in known.items()}
    what = differences(ran, known)
    if what and RUNNERS[runner].oracle:
        return differences(ran, {n: softened(x) for n, x in known.items()})
    if what and runner == "eager":
        return differences(ran, in_any_order(p.given.program, p.given.env))
    return what


def finite(x: Exact) -> Exact:
    """What of a result is compared where a runner need not know infinities and NaN."""
    return Exact(x.value, np.where(np.isfinite(x.value), x.allowed, np.inf)) if x.value.dtype.kind == "f" else x


def softened(x: Exact) -> Exact:
    """For an oracle, which computes in float64, but by formulas of its own: their condition may be 10^6."""
    size = np.abs(x.value[np.isfinite(x.value)]).max(initial=0.0) if x.value.dtype.kind == "f" else 0.0
    return Exact(x.value, x.allowed + 1e-9 * size)


def search(programs: Sequence[Program], runners: Sequence[str]) -> Report:
    """Run each program on each runner; compiled programs all in one."""
    report = Report(programs=len(programs))
    ready: list[Prepared] = []
    for program in programs:
        p = prepared(program, [RUNNERS[name] for name in runners])
        if isinstance(p, Finding):
            report.findings.append(p)
        elif p is not None:
            ready.append(p)
            report.sharp += sharpness(p)
    for name in runners if ready else ():
        for p, ran in zip(ready, RUNNERS[name]([p.given for p in ready])):
            report.answered[name] += not isinstance(ran, NoCounterpartError)
            what = verdict(ran, p, name)
            if what:
                report.findings.append(confirmed(Finding(p.given.program, name, what), ready))
    return report


def sharpness(p: Prepared) -> float:
    """Which part of the f32 elements has a bound below a thousandth of the largest. Of halves, where none is f32."""
    parts = []
    for x in p.expected.get(None, next(iter(p.expected.values()))).values():
        if x.value.dtype.kind == "f" and x.value.size:
            largest = np.abs(np.where(np.isfinite(x.value), x.value, 0.0)).max()
            parts.append(float(np.mean(x.allowed <= 1e-3 * max(largest, 1e-30))))
    return sum(parts) / len(parts) if parts else 1.0


def confirmed(finding: Finding, beside: Sequence[Prepared]) -> Finding:
    """The same alone, if it fails alone; else of all programs that were compiled with it, as one program."""
    if len(beside) < 2 or finding.program.mode == "train":
        return finding
    alone = failure(finding.program, finding.runner)
    if alone is not None:
        return alone
    mode = finding.program.mode
    together = merged([p.given.program for p in beside if p.given.program.mode == mode])
    found = failure(together, finding.runner)
    return found or replace(finding, what=f"{finding.what}; only beside other programs of its batch")


def failure(program: Program, runner: str) -> Finding | None:
    """What one runner makes of one program, if it is wrong."""
    p = prepared(program, [RUNNERS[runner]] if runner != REFERENCE else [*RUNNERS.values()])
    if p is None or isinstance(p, Finding):
        return p if p is not None and runner == REFERENCE else None
    if runner == REFERENCE:
        return None
    what = verdict(RUNNERS[runner]([p.given])[0], p, runner)
    return Finding(program, runner, what) if what else None


def kind(finding: Finding) -> str:
    """What has to stay the same while a program is made smaller: the runner and the manner of failing."""
    error = re.match(r"[A-Za-z]+: ", finding.what)
    return f"{finding.runner} {re.sub('[0-9]+', '#', finding.what)[:60] if error else 'differs'}"


def merged(programs: Sequence[Program]) -> Program:
    """Several programs side by side in one."""
    first = programs[0]
    inputs, steps, outputs = [*first.inputs], [*first.steps], [*first.outputs]
    for p in programs[1:]:
        n, m = len(inputs), len(steps)

        def moved(k: int, n: int = n, m: int = m) -> int:
            return k + m if k >= 0 else k - n

        inputs += p.inputs
        steps += [Step(s.op, tuple(map(moved, s.args)), s.attrs, s.body) for s in p.steps]
        outputs += map(moved, p.outputs)
    return replace(first, inputs=tuple(inputs), steps=tuple(steps), outputs=tuple(outputs))
