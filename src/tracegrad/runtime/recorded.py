"""Record data to check a program's kernels in a browser, with expected results, which js/verify.js cannot compute.

The record is the program of trials that `wgpu_verify` runs natively, with the expected results. It contains no
patterns, because js/verify.js makes the same ones.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, islice
from typing import Any, NamedTuple

from tracegrad import safetensors
from tracegrad.arrays import Array, np
from tracegrad.dtypes import f32
from tracegrad.kernel_source import KernelSource
from tracegrad.kernels.form import Kernel
from tracegrad.kernels.tiling import group_of
from tracegrad.program import Dispatch, Program
from tracegrad.runtime.inexact import EPS, NOTHING, Check
from tracegrad.runtime.points import largest
from tracegrad.runtime.repeated import STRIDE, Patterns, drawn, kind_of
from tracegrad.runtime.trial_program import TrialDispatch, TrialProgram
from tracegrad.runtime.trials import SEED, Layout, Plan, Trial, indexed, layout_of, plan_of, sizes_of, trials_with

MOST = 256  # elements to record of one store: they make up most of the file
MOST_GROUPS = 0.5  # share of a kernel's workgroups from which on all of them run
NEAR = 2  # workgroups that run too, because one more launch takes longer
ROWS, LEAST = 2, 1.5  # examples; the second one is drawn if the count is above 1
ANY = 0x7FC00000  # the bits of a NaN, in elements that are not compared


Placed = tuple[KernelSource, Layout]


class Recorded(NamedTuple):
    """A check in the form for a file: plain data, and arrays by name."""

    facts: dict[str, Any]
    arrays: dict[str, Array]


class Expected(NamedTuple):
    """The expected result of one check: bits, and how far floats can be off, in total and from their own rounding."""

    at: Array
    bits: Array
    allowed: tuple[float, float]


def recorded(program: Program, lines: Mapping[int, Sequence[str]]) -> Recorded | None:
    """Record the check of all kernels; None if there are none. lines: the user's lines, by the number of a kernel.

    Kernels without forms are not checked. Kernels that draw from examples, whose number only the host knows,
    draw from ROWS.
    """
    numbers = {k.wgsl: n for n, k in enumerate(program.kernels)}  # kernels of equal text count as one
    firsts = {d.kernel: d for d in reversed(program.dispatches)}
    kernels, drawing = _checkable(program, numbers.values(), firsts)
    if not kernels:
        return None
    seeds = list(islice(filter(partial(_draws, drawing), count(SEED)), 2))
    plans = [plan_of(*kernel, few_groups=True) for kernel in kernels.values()]
    both = [(Patterns(s, strict=False), ()) for s in seeds]
    trials = list(zip(*[trials_with(plan, both) for plan in plans]))
    tries = [[(trial, list(map(_expected, trial.checks))) for trial in those] for those in trials]
    all_trials, checks = _program_of_trials(kernels, [firsts[int(n)].grid for n in kernels], tries[0])
    sizes = {"table": sum(x.size for x in all_trials.table), "picks": sum(x.size for x in all_trials.picks)}
    data = all_trials.built(sizes).to_data()
    data["kernels"] = [numbers.get(k["wgsl"], k) for k in data["kernels"]]
    values = [[e for _, expected in those for e in expected] for those in tries]
    found = [_bits(all_trials.found, checks, values[0], those) for those in values]
    groups = dict(zip(all_trials.tried, map(some_groups, plans)))
    facts = {
        "program": data,
        "groups": [[n, *run] for n, runs in groups.items() for run in runs],
        "table": list(map(list, all_trials.entries)),
        "seeds": seeds,
        "checks": checks,
        "allowed": [[e.allowed for e in those] for those in values],
        "lines": {n: list(lines.get(int(n), ())) for n in kernels},
    }
    arrays = {"picks": np.concatenate(all_trials.picks)}
    return Recorded(facts, arrays | {f"found.{k}": x for k, x in enumerate(found)})


def _checkable(
    program: Program, numbers: Iterable[int], firsts: Mapping[int, Dispatch]
) -> tuple[dict[str, Placed], list[Placed]]:
    """Return the kernels to check, by number, and those of them that draw from examples."""
    examples = {n: _examples(program, firsts[n]) for n in numbers if n in firsts and program.kernels[n].forms}
    few = {n: _with_few_examples(program.kernels[n], found) for n, found in examples.items()}
    kernels = {str(n): (kernel, layout_of(kernel, firsts[n].offsets)) for n, kernel in few.items()}
    return kernels, [kernels[str(n)] for n, found in examples.items() if found]


def _program_of_trials(
    kernels: Mapping[str, Placed], grids: Sequence[tuple[int, int]], tries: Sequence[tuple[Trial, Sequence[Expected]]]
) -> tuple[TrialProgram, list[list[Any]]]:
    """Return the program that runs the kernels, and its checks: kernel, type, and place and number of the results."""
    all_trials, checks = TrialProgram(sizes_of(layout for _, layout in kernels.values())), list[list[Any]]()
    for n, grid, (trial, expected) in zip(map(int, kernels), grids, tries):
        all_trials.add(_looking_at(trial, expected), TrialDispatch(grid, constant=True))
        kinds = ["bool" if c.slot.dtype.name == "bool" else c.array[1] for c in trial.checks]
        checks += [[n, *row] for row in zip(kinds, all_trials.places[-1], [e.at.size for e in expected])]
    return all_trials, checks


def _bits(size: int, checks: Sequence[list[Any]], first: Sequence[Expected], those: Sequence[Expected]) -> Array:
    """Return the bits that one try expects of the program, where `first` has the places of the checks."""
    bits = np.full(size, ANY, np.int32)
    for (*_, begin, n), f, e in zip(checks, first, those):
        # otherwise the place depends on values that the kernel reads, and cannot be known in advance
        if np.array_equal(e.at, f.at):
            bits[begin : begin + n] = e.bits
    return bits


def _examples(program: Program, d: Dispatch) -> list[int]:
    """Return which bindings of a dispatch are examples, whose number only the host knows."""
    buffers = [program.buffers[b] for b in d.buffers]
    return [k for k, b in enumerate(buffers) if b.role == "data" and not b.size]


def some_groups(plan: Plan) -> list[list[int]]:
    """Return the workgroups to run in a trial on a software adapter, as (first, count); [] means all of them.

    Running all workgroups would take as long as a step.
    """
    begin, needed = 0, set[int]()
    for form, tiling, at in zip(plan.kernel.forms, plan.kernel.apart, plan.outer):
        mine = group_of(form, tiling, at)
        if mine is None:
            return []
        needed.update((begin + mine).tolist())
        begin += tiling.workgroups
    if not needed or len(needed) > MOST_GROUPS * begin:
        return []
    runs = list[list[int]]()
    for group in sorted(needed):
        if not runs or group > sum(runs[-1]) + NEAR:
            runs.append([group, 0])
        runs[-1][1] = group + 1 - runs[-1][0]
    return runs


def file_of(found: Mapping[str, Recorded]) -> bytes:
    """Return checks as one safetensors file, by the names of their programs."""
    arrays = {f"{name}/{part}": x for name, check in found.items() for part, x in check.arrays.items()}
    facts = {name: json.dumps(check.facts, separators=(",", ":")) for name, check in found.items()}
    return b"".join(safetensors.parts(arrays, facts))


def _with_few_examples(kernel: KernelSource, examples: Collection[int]) -> KernelSource:
    """Return the kernel as if these bindings held ROWS examples."""
    forms, first = list[Kernel](), 0
    for form in kernel.forms:
        rows = max(1, indexed(form) - 1)  # the rows that an index can select
        slots = [
            replace(s, size=s.size // rows * ROWS) if kernel.binding_of[first + k] in examples else s
            for k, s in enumerate(form.slots)
        ]
        forms, first = [*forms, replace(form, slots=tuple(slots))], first + len(slots)
    return replace(kernel, forms=tuple(forms))


def _draws(drawing: Sequence[tuple[KernelSource, Layout]], seed: int) -> bool:
    """Return whether, in a trial with this seed, the kernels draw from all ROWS examples.

    The pattern of the trial gives the number of examples, a single float below ROWS. Nothing says which float of a
    kernel is this number, so each single one must be at least LEAST.
    """
    patterns = Patterns(seed, strict=False)
    for kernel, layout in drawing:
        for k, s in enumerate(s for form in kernel.forms for s in form.slots):
            at = np.asarray(layout.offsets[k] + layout.arrays[kernel.binding_of[k]][0] * STRIDE)
            if s.dtype is f32 and s.size == 1 and patterns.read(s, kind_of(f32, 0), at) < LEAST:
                return False
    return True


def _expected(c: Check) -> Expected:
    """Return the expected results of a check, for at most MOST elements."""
    exact, allowed = c.storable(), (0.0, 0.0)
    known = c.decided(c.again())
    counts = c.exact.counts & known.which
    if exact.dtype.kind == "f":
        counts = counts & np.isfinite(exact)
        if np.ndim(known.allowed):  # far less precise elements would make the tolerance large for all
            counts = counts & (known.allowed <= NOTHING * largest(exact))
        # the file stores values as f32, which adds half a rounding to each
        allowed = (float(np.max(np.where(counts, known.allowed, 0.0), initial=0.0)), c.half + EPS / 2)
        bits = np.where(counts, exact, 0).astype(np.float32).view(np.int32)
    else:
        bits = exact.astype(np.uint32 if exact.dtype.kind == "u" else np.int32).view(np.int32)
    some = _some(c.at.shape)
    return Expected(c.at.reshape(-1)[some], np.where(counts, bits, ANY).reshape(-1)[some], allowed)


def _some(shape: tuple[int, ...]) -> Any:
    """Return which elements of rows to keep: up to half of MOST at both ends, and others."""
    rows, row = shape
    if rows * row <= MOST:
        return slice(None)
    begins = np.arange(rows) * row
    ends = np.concatenate([begins, begins + row - 1])[: MOST // 2].tolist()
    return sorted({*ends, *np.floor(rows * row * drawn(SEED, MOST - len(ends))).astype(np.int64).tolist()})


def _looking_at(trial: Trial, expected: Sequence[Expected]) -> Trial:
    """Return the trial reduced to the expected elements."""
    kept = {id(c.at): e.at for c, e in zip(trial.checks, expected)}
    checks = [c._replace(at=e.at) for c, e in zip(trial.checks, expected)]
    return trial._replace(checks=checks, puts=[p._replace(at=kept.get(id(p.at), p.at)) for p in trial.puts])
