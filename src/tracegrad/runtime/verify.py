"""Check kernels on memory of their own, before any of their results are returned.

Every array repeats a pattern, so the value of an element follows from its index. A kernel runs once. Some of the
elements that it wrote are compared with its form, computed in f64 by `points`. This reveals a load from a wrong place,
a wrong side of a choice, a wrong operand, or an element that was not written. A device runs trials one after the other
on the same arrays, and fills only elements that no longer hold their pattern.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cache, partial
from itertools import chain, zip_longest
from typing import Any, NamedTuple, cast

from tracegrad.arrays import Array, np
from tracegrad.dtypes import f16
from tracegrad.kernel_source import KernelSource
from tracegrad.kernels.expr import Dynamic, atoms_of, indices_of, walk
from tracegrad.kernels.form import Kernel, Slot
from tracegrad.kernels.tiling import group_of
from tracegrad.runtime.inexact import TRIES, UNSURE, Again, Check, Inexact
from tracegrad.runtime.points import (
    FEW,
    STRIDE,
    Kind,
    Name,
    Patterns,
    Points,
    Read,
    Written,
    chosen,
    forget,
    kind_of,
    left_out,
)

GAP = 64  # elements around a value that hold its pattern as well, so a load beyond the value does not return zero
POISON = {"f32": float("nan"), "f16": float("nan"), "i32": 0x5BADBAD5}  # initial contents of what the kernel writes
INDICES = 7  # bound of integers that do not index anything
HALF = 2.0**-11  # of a value: the most that rounding to the nearest f16 can add
FURTHER = tuple(range(9, 21))  # seeds for kernels whose choices all fell on one side
OFTEN = 4  # this many of them are always tried
SEED, AGAIN = 7, 8  # a second trial with other numbers, because a tie that rounding decides is not a defect
ODD = 6  # trials with infinite elements, at most
POINTS_ODD = 4  # points of a form that trials with infinite elements compare
SWITCH = "TRACEGRAD_VERIFY"  # "off": return the device's results unchecked


def enabled() -> bool:
    """Return whether to check kernels."""
    return os.environ.get(SWITCH, "").lower() not in ("off", "0", "no")


class Layout(NamedTuple):
    """Places of the values of a kernel in arrays of its own."""

    arrays: tuple[Name, ...]  # the array of each binding
    ends: tuple[int, ...]  # the least number of elements of each binding's array
    offsets: tuple[int, ...]  # the offset of each slot, forms one after the other


def layout_of(kernel: KernelSource, given: Sequence[int] = ()) -> Layout:
    """Choose a place for every slot; a value that replaces another shares its place.

    given: the offsets of a dispatch, in an array for each binding. They are used unless a value that is written, or of
           another type, overlaps others. Without them one array of each type serves all bindings.
    """
    arrays = tuple((k if given else 0, b.dtype) for k, b in enumerate(kernel.bindings))
    places: list[int] = []  # for each slot, the slot whose memory it uses
    for form in kernel.forms:
        places += [len(places) + (k if s.replaces < 0 else s.replaces) for k, s in enumerate(form.slots)]
    slots = [s for form in kernel.forms for s in form.slots]
    own = [(arrays[kernel.binding_of[k]], k, s) for k, s in enumerate(slots) if places[k] == k]
    offsets, after = list(given), dict.fromkeys(arrays, 0)
    if not given or not _apart(own, given):
        offsets = [0] * len(slots)
        for name, k, slot in own:
            offsets[k] = after[name] + GAP
            after[name] = offsets[k] + -(-slot.size // GAP) * GAP
    for name, k, slot in own:
        after[name] = max(after[name], offsets[k] + slot.size)
    ends = tuple(max(after[name], b.size) for name, b in zip(arrays, kernel.bindings))
    if given:  # the largest arrays of all kernels share memory
        ranks = sorted(range(len(ends)), key=lambda k: -ends[k])
        arrays = tuple((ranks.index(k), b.dtype) for k, b in enumerate(kernel.bindings))
    return Layout(arrays, ends, tuple(offsets[k] for k in places))


def _apart(own: Sequence[tuple[Name, int, Slot]], offsets: Sequence[int]) -> bool:
    """Return whether no value overlaps one that is written or has another type."""
    ends: dict[Name, tuple[int, Slot]] = {}  # array -> its end so far, and the slot that ends there
    for name, k, slot in sorted(own, key=lambda x: offsets[x[1]]):
        end, last = ends.get(name, (0, slot))
        if offsets[k] < end and (slot.written or last.written or slot.dtype is not last.dtype):
            return False
        if offsets[k] + slot.size > end:
            ends[name] = (offsets[k] + slot.size, slot)
    return True


def indexed(form: Kernel) -> int:
    """Return the size of what integers index, plus one: they reach past its end."""
    found = [a.hi + 2 for v in walk([s.value for s in form.body]) for i in indices_of(v)
             for a in atoms_of(i) if isinstance(a, Dynamic)]  # fmt: skip
    return max(found, default=INDICES)


class Fill(NamedTuple):
    """Elements of an array that must hold the pattern of a kind."""

    array: Name
    begin: int
    end: int
    kind: Kind


class Put(NamedTuple):
    """Single elements of an array, and the values that replace their pattern."""

    array: Name
    at: Array
    value: float | int


class Odd(NamedTuple):
    """An element with a number that flags and counts of programs are compared with, and patterns have too rarely."""

    array: Name
    at: int
    value: float | int  # infinite, because steps that meet such a number must change nothing; or 0


class Plan(NamedTuple):
    """What all trials of a kernel have in common, whatever their numbers are."""

    kernel: KernelSource
    layout: Layout
    below: int  # bound of integers
    outer: list[Array]  # for each form, the points that are compared
    zeros: dict[Name, Array]  # elements that products can skip
    odd: Sequence[Odd] = ()


class Trial(NamedTuple):
    """One run of a kernel on memory of its own: the initial contents, and the expected results."""

    plan: Plan
    patterns: Patterns
    fills: list[Fill]
    puts: list[Put]  # applied after the fills
    written: list[tuple[Name, int, int]]  # begin and end in each array
    checks: list[Check]
    undefined: bool = False  # are most results of a store not finite?
    one_sided: Sequence[bool] = ()  # for each form: did a choice among few values fall the same way for all of them?


Trials = Sequence[tuple[str, Trial]]  # each with the key of its kernel


def plan_of(kernel: KernelSource, layout: Layout, few_groups: bool = False) -> Plan:
    """Choose the points of each form to compare. few_groups: in few workgroups, where a device can run some of them."""
    groups: list[Any] = [None] * len(kernel.forms)
    if few_groups and kernel.apart and not any(form.uniform for form in kernel.forms):
        groups = [partial(group_of, form, t) for form, t in zip(kernel.forms, kernel.apart)]
    outer = [chosen(form, SEED, group) for form, group in zip(kernel.forms, groups)]
    return Plan(kernel, layout, max(map(indexed, kernel.forms)), outer, _left_out(kernel, layout, outer))


def trial_of(plan: Plan, patterns: Patterns) -> Trial:
    """Return a trial with these numbers."""
    out = Trial(plan, patterns, [], [], [], [])
    (kernel, layout, below, outer, zeros, odd), first = plan, 0
    out.puts.extend(Put(name, at, 0) for name, at in zeros.items())
    out.puts.extend(Put(name, np.asarray([at]), value) for name, at, value in odd)
    one_sided: list[bool] = []
    within: list[Fill] = []  # applied after all fills around values, whose type can differ
    for form, at_points in zip(kernel.forms, outer):
        end = first + len(form.slots)
        names, offsets = [layout.arrays[b] for b in kernel.binding_of[first:end]], layout.offsets[first:end]
        first, kinds = end, [kind_of(s.dtype, below) for s in form.slots]
        for s, name, begin, kind in zip(form.slots, names, offsets, kinds):
            if s.written:
                out.written.append((name, begin, begin + s.size))
            elif at_points.size:
                out.fills.append(Fill(name, max(0, begin - GAP), begin + s.size + GAP, kind))
                within.append(Fill(name, begin, begin + s.size, kind))
        if not at_points.size:
            continue
        read = _reader(form.slots, kinds, list(zip(names, offsets)), plan, patterns)
        points = Points(form, read, at_points, np.float64)
        for exact, again in _expected(points, strict=patterns.strict):
            k = exact.slot
            at = offsets[k] + exact.at
            half = (HALF if patterns.strict else 2 * HALF) if form.slots[k].dtype is f16 else 0.0
            out.checks.append(Check(names[k], form.slots[k], at, exact, again, half, patterns.strict))
            if form.slots[k].replaces < 0:
                out.puts.append(Put(names[k], at, POISON[names[k][1]]))
        one_sided.append(points.one_sided())
    out.fills.extend(within)
    floats = [c.exact.values for c in out.checks if c.exact.values.dtype.kind == "f"]
    undefined = any(2 * np.count_nonzero(np.isfinite(x)) < x.size for x in floats)
    return out._replace(undefined=undefined, one_sided=one_sided)


def _at_choices(trial: Trial) -> Trial:
    """Return a trial whose further ones only evaluate forms with a choice that falls one way."""
    outer = [x if one else x[:0] for x, one in zip(trial.plan.outer, trial.one_sided)]
    return trial._replace(plan=trial.plan._replace(outer=outer))


def _odd(trial: Trial, patterns: Sequence[Patterns]) -> Iterator[Trial]:
    """Yield trials at few points where small slots of integers are 0, and some floats infinite.

    In the first trial these are the elements behind all small slots of floats, which must change nothing. In each other
    one it is the first or last element of one slot. Single numbers come first: they decide about whole steps.
    """
    plan, odds, first = trial.plan, list[list[list[Odd]]](), 0
    few = [x[:: max(1, x.size // POINTS_ODD)] for x in plan.outer]
    for form, one in zip(plan.kernel.forms, trial.one_sided):
        places = zip(form.slots, plan.kernel.binding_of[first:], plan.layout.offsets[first:])
        small = [(s, plan.layout.arrays[b], at) for s, b, at in places if one and 0 < s.size <= FEW and not s.written]
        small.sort(key=lambda x: x[0].size)
        flags = [(name, at, s.size) for s, name, at in small if not s.dtype.is_float]
        zeros = [Odd(name, at + k, int(k == n)) for name, at, n in flags for k in range(n + 1)]
        floats = [(name, at, s.size) for s, name, at in small if s.dtype.is_float]
        behind = [Odd(name, at + n, np.inf) for name, at, n in floats]
        ends = dict.fromkeys(Odd(name, at + k, np.inf) for name, at, n in floats for k in (0, n - 1))
        odds.append([[*zeros, *behind], *[[*zeros, end] for end in ends]])
        first += len(form.slots)
    for those, numbers in zip(zip_longest(*odds, fillvalue=[]), patterns):
        yield trial_of(plan._replace(outer=few, odd=list(chain(*those))), numbers)


def _with_odd(trials: Trials, seeds: Sequence[int], *, shares: bool) -> list[tuple[str, list[Trial]]]:
    """Return odd trials of each kernel, if its device keeps what is not finite, and if it needs shares."""
    numbers = [Patterns(seed, strict=True, shares=shares) for seed in seeds]
    return [(key, list(_odd(x, numbers))) for key, x in trials if x.patterns.strict and x.undefined == shares]


def _left_out(kernel: KernelSource, layout: Layout, outer: Sequence[Array]) -> dict[Name, Array]:
    """Return the elements of each array that products can skip at these points of each form.

    They must be zeros for every form that reads them. Elements that only other points skip can have any value.
    """
    found: dict[Name, list[Array]] = {}
    first = 0
    for form, points in zip(kernel.forms, outer):
        for slot, elements in left_out(form, points):
            k = first + slot
            found.setdefault(layout.arrays[kernel.binding_of[k]], []).append(layout.offsets[k] + elements)
        first += len(form.slots)
    return {name: np.sort(np.concatenate(parts)) for name, parts in found.items()}


def _reader(
    slots: Sequence[Slot],
    kinds: Sequence[Kind],
    places: Sequence[tuple[Name, int]],
    plan: Plan,
    patterns: Patterns,
) -> Read:
    """Return a function that reads a trial's memory, by slot and element."""
    zeros = plan.zeros

    def read(slot: int, at: Array) -> Array:
        name, offset = places[slot]
        x = patterns.read(slots[slot], kinds[slot], at + offset + name[0] * STRIDE)
        for array, element, value in plan.odd:
            if name == array:
                x = cast("Array", np.where(at + offset == element, x.dtype.type(value), x))
        return np.where(_among(at + offset, zeros[name]), np.zeros((), x.dtype), x) if name in zeros else x

    return read


def _among(x: Array, those: Array) -> Array:
    """Return which of `x` are among some sorted numbers. NumPy's isin loads a module that takes 40 ms to import."""
    if not those.size:
        return np.zeros(x.shape, bool)
    place = cast("Array", np.searchsorted(those, x))
    return those[np.minimum(place, those.size - 1)] == x


def _expected(exact: Points, *, strict: bool) -> Iterator[tuple[Written, Callable[[], Again]]]:
    """Yield what a form writes at these points, in f64, and a function that computes it with less precision."""
    form, read, outer = exact.kernel, exact.read, exact.outer  # not kept: `exact.values`, megabytes

    @cache
    def single() -> tuple[list[Written], float]:
        double = Points(form, read, outer, np.float64)
        _ = list(double.written())
        return list(Points(form, read, outer, np.float32).written()), double.scale()

    @cache
    def others() -> list[list[Written]]:
        return [list(Inexact(form, read, outer, n, strict=strict).written()) for n in range(TRIES)]

    def again(k: int) -> Again:
        written, scale = single()
        return Again(written[k].values, scale, lambda: [x[k].values for x in others()])

    for k, written in enumerate(exact.written()):
        yield written, lambda k=k: again(k)


Kernels = Mapping[str, tuple[KernelSource, Layout]]
Run = Callable[[Trials], Iterable[Sequence[Array]]]


def trials_of(kernels: Kernels, *, strict: bool = False) -> Trials:
    """Return the first trial of each kernel; memory and points are the same in all of its trials.

    strict: the device divides exactly, and rounds to the nearest f16. Then few different floats are drawn, so that many
            comparisons are of equal ones, which inexact division would decide differently. WebGPU allows both.
    """
    patterns = Patterns(SEED, strict)
    return [(key, trial_of(plan_of(*kernel), patterns)) for key, kernel in kernels.items()]


def _others(trials: Trials, seed: int, *, shares: bool = False) -> Trials:
    """Return trials of the same kernels with other numbers."""
    patterns = Patterns(seed, any(trial.patterns.strict for _, trial in trials), shares)
    return [(key, trial_of(trial.plan, patterns)) for key, trial in trials]


def faults(trials: Trials, run: Run, further: Sequence[int] = ()) -> dict[str, str]:
    """Describe what each kernel computes wrongly; "" for a correct kernel.

    What is always tried is prepared before the first run, because a run waits for compilers.

    trials:  the first trial of each kernel; kernels that fail get another.
    run:     runs trials, and returns the elements of each of their checks.
    further: seeds of more trials. The first OFTEN are for kernels of few values that all fell on one side of a choice,
             the others for kernels that failed once. A kernel that fails twice is wrong.
    """
    one_sided = [(key, _at_choices(trial)) for key, trial in trials if any(trial.one_sided)]
    often = [_others(one_sided, seed) for seed in further[:OFTEN]]
    odd = [_with_odd(one_sided, further[:ODD], shares=shares) for shares in (False, True)]
    undefined = _others([x for x in trials if x[1].undefined], SEED, shares=True)
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
        tried(_others([x for x in one_sided if x[0] in suspected and x[0] not in found], seed))
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
    return _failing(_others([x for x in trials if x[0] in failing], seed, shares=shares), run)


def _failing(trials: Trials, run: Run, *, unsure: bool = False) -> dict[str, str]:
    """Return the kernels whose trial fails, with a description. unsure: also those whose trial decided nothing."""
    found: dict[str, str] = {}
    for (key, trial), got in zip(trials, run(trials) if trials else ()):
        hows = {c.difference(x) for c, x in zip(trial.checks, got)} - {""}
        wrong = sorted(hows - {UNSURE}) or list(hows)
        if wrong and (unsure or wrong != [UNSURE]):
            found[key] = wrong[0]
    return found


class Contents:
    """The known contents of arrays while trials run on them, one after the other, so that nothing is filled twice."""

    def __init__(self, sizes: Mapping[Name, int]) -> None:
        self._sizes = sizes
        self._known: dict[Name, list[tuple[int, int, Kind]]] = {}

    def lacking(self, trial: Trial) -> Iterator[Fill]:
        """Yield what must be filled before a trial. Elements that the trial writes are unknown afterwards."""
        for array, begin, end, kind in trial.fills:
            at, end = begin, min(end, self._sizes[array])
            for b, e, _ in sorted(x for x in self._known.get(array, ()) if x[2] == kind):
                at = max(at, e) if b <= at else at
            if at < end:
                self._forget(array, begin, end)
                self._known[array].append((begin, end, kind))
                yield Fill(array, at, end, kind)
        puts = [(array, int(at.min(initial=0)), int(at.max(initial=0)) + 1) for array, at, _ in trial.puts]
        for array, begin, end in (*puts, *trial.written):
            self._forget(array, begin, end)

    def _forget(self, array: Name, begin: int, end: int) -> None:
        parts = [p for b, e, kind in self._known.get(array, ())
                 for p in ((b, min(e, begin), kind), (max(b, end), e, kind)) if p[0] < p[1]]  # fmt: skip
        self._known[array] = parts


def sizes_of(layouts: Iterable[Layout]) -> dict[Name, int]:
    """Return the size of each array: one serves all trials, and has a gap behind every value."""
    out: dict[Name, int] = {}
    for layout in layouts:
        for name, end in zip(layout.arrays, layout.ends):
            out[name] = max(out.get(name, 1), end + GAP)
    return out
