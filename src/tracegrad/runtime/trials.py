"""Trials of kernels: memory of their own, its initial contents, and what a correct device must write there.

Every array repeats a pattern, so the value of an element follows from its index. Trials of one kernel that differ in
numbers alone are computed together, along a leading axis.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from functools import partial
from typing import Any, NamedTuple, cast

from tracegrad.arrays import Array, np
from tracegrad.dtypes import f16, f32, i32
from tracegrad.kernel_source import KernelSource
from tracegrad.kernels.expr import Dynamic, Value, atoms_of, indices_of, walk
from tracegrad.kernels.form import Kernel, Slot
from tracegrad.kernels.tiling import group_of
from tracegrad.runtime.inexact import Again, Check, LessExact
from tracegrad.runtime.points import Name, Points, Read, Written, chosen, left_out, unread
from tracegrad.runtime.repeated import STRIDE, Kind, Patterns, kind_of

SEED = 7  # of the first trial, and of the points that are compared
GAP = 64  # elements around a value that hold its pattern as well, so a load beyond the value does not return zero
POISON = {"f32": float("nan"), "f16": float("nan"), "i32": 0x5BADBAD5}  # initial contents of what the kernel writes
INDICES = 7  # bound of integers that do not index anything
FEWEST = 16  # elements that a comparison reads where some are made equal to what they are compared with
TIE = 0.5  # the value of two equal elements
TIED = 12  # elements made equal to what they are compared with: a class can be one of ten
HALF = 2.0**-11  # of a value: the most that rounding to the nearest f16 can add


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
    """Return the bound of a form's integers: the size of the longest axis that they index, plus one to pass its end.

    Return INDICES if integers index nothing.
    """
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
    """An element with a number that programs compare with, and that patterns contain too rarely."""

    array: Name
    at: int
    value: float | int  # infinity, because steps that meet it must change nothing; 0; or an operand of a comparison


class Plan(NamedTuple):
    """What all trials of a kernel have in common, whatever their numbers are."""

    kernel: KernelSource
    layout: Layout
    below: int  # bound of integers
    outer: list[Array]  # for each form, the points that are compared
    zeros: dict[Name, Array]  # elements that products can skip
    ties: list[Odd]  # elements that make operands of a comparison equal
    fills: list[Fill]
    written: list[tuple[Name, int, int]]  # begin and end in each array


class Trial(NamedTuple):
    """One run of a kernel on memory of its own: the initial contents, and the expected results."""

    plan: Plan
    patterns: Patterns
    odd: Sequence[Odd]  # and the plan's ties
    puts: list[Put]  # applied after the fills
    checks: list[Check]
    read: list[tuple[Name, Array, Array]]  # elements that the results depend on, and their initial values
    undefined: bool = False  # are most results of a store not finite?
    one_sided: Sequence[Set[tuple[Value, object]]] = ()  # of each form: choices that fall one way for all of few values


def plan_of(kernel: KernelSource, layout: Layout, few_groups: bool = False) -> Plan:
    """Choose the points of each form to compare. few_groups: in few workgroups, so that a device can run only these."""
    groups: list[Any] = [None] * len(kernel.forms)
    if few_groups and kernel.apart and not any(form.uniform for form in kernel.forms):
        groups = [partial(group_of, form, t) for form, t in zip(kernel.forms, kernel.apart)]
    outer = [chosen(form, SEED, group) for form, group in zip(kernel.forms, groups)]
    below, places = max(map(indexed, kernel.forms)), places_of(kernel, layout)
    ties = [odd for form, points, at in zip(kernel.forms, outer, places) for odd in _ties(form, points, at)]
    return at_points(Plan(kernel, layout, below, outer, _left_out(kernel, layout, outer), ties, [], []), outer)


def at_points(plan: Plan, outer: list[Array]) -> Plan:
    """Return a plan that compares these points. Forms without points are not computed, so they need no contents."""
    around, within, written = list[Fill](), list[Fill](), list[tuple[Name, int, int]]()
    for form, points, places in zip(plan.kernel.forms, outer, places_of(plan.kernel, plan.layout)):
        for s, (name, begin) in zip(form.slots, places):
            if s.written:
                written.append((name, begin, begin + s.size))
            elif points.size:
                kind = kind_of(s.dtype, plan.below)
                around.append(Fill(name, max(0, begin - GAP), begin + s.size + GAP, kind))
                within.append(Fill(name, begin, begin + s.size, kind))  # after all others, whose kind can differ
    kinds = {f.array: f.kind for f in around}
    mixed = {f.array for f in around if f.kind != kinds[f.array]}
    fills = _joined(f for f in around if f.array not in mixed)
    fills += [f for f in (*around, *within) if f.array in mixed]
    return plan._replace(outer=outer, fills=fills, written=written)


def _joined(fills: Iterable[Fill]) -> list[Fill]:
    """Return the same elements as fewer fills, where those of an array have one kind."""
    out: list[Fill] = []
    for f in sorted(fills, key=lambda f: (f.array, f.begin)):
        if out and out[-1].array == f.array and f.begin <= out[-1].end:
            out[-1] = out[-1]._replace(end=max(out[-1].end, f.end))
        else:
            out.append(f)
    return out


def _ties(form: Kernel, outer: Array, places: Sequence[tuple[Name, int]]) -> Iterator[Odd]:
    """Yield elements that make both operands of a comparison equal at a few points.

    One operand is a load, or integer arithmetic on one, such as a clamp. The other is a constant, a coordinate or a
    load; two loads both become TIE. Labels that are compared with a coordinate take one class after another.

    Patterns seldom contain the constant that a value is compared with. The patterns for a device that divides
    inexactly have no equal numbers.
    """
    values = walk([s.value for s in form.body])
    compared = [v for v in values if v.op == "map" and v.dtype.name == "bool" and len(v.args) == 2]
    if not compared:
        return
    at = Points(form, unread, outer, np.float64)
    for v in compared:
        for load, other in _matched(v, at):
            slot, shape = int(load.arg[0]), (outer.size, at.row.size)
            (name, offset), size = places[slot], form.slots[slot].size
            elements, equal = (np.broadcast_to(x, shape).reshape(-1) for x in (at.index(load.arg[1]), other))
            if size >= FEWEST and elements.size >= FEWEST and elements[0] != elements[-1]:
                some = slice(elements.size // 5, None, shape[1] * max(1, shape[0] // TIED) + 1)
                tied = zip(elements[some].tolist(), equal[some].tolist())
                yield from [Odd(name, offset + e, value) for e, value in tied if 0 <= e < size]


def _matched(comparison: Value, at: Points) -> list[tuple[Value, Any]]:
    """Return each load of a comparison that can be made equal to the other operand, and that operand's values."""
    operands = [x.args[0] if x.op == "inside" else x for x in comparison.args]
    loads = [x for x in walk(operands) if _is_static_load(x, at.kernel) and (x in operands or x.dtype is i32)]
    others: list[Any] = [x.arg for x in operands if x.op == "const"]
    others += [at.index(x.arg) for x in operands if x.op == "index" and x.arg.linear]
    if len(loads) + len(others) != 2 or operands[0].dtype.name == "bool":
        return []
    return [(load, others[0] if others else TIE) for load in loads]


def _ends(form: Kernel, places: Sequence[tuple[Name, int]]) -> Iterator[Odd]:
    """Yield numbers at which loops end, within axes, so that points on both sides are compared."""
    for a in (*form.outer, *form.inner):
        if a.end >= 0:
            yield Odd(*places[a.end], a.tried)


def _is_static_load(v: Value, form: Kernel) -> bool:
    """Return whether a value is a number in memory at a place that no other number decides."""
    if v.op != "load" or v.dtype not in (f32, i32):
        return False
    return form.slots[int(v.arg[0])].dtype is v.dtype and not any(isinstance(a, Dynamic) for a in atoms_of(v.arg[1]))


def places_of(kernel: KernelSource, layout: Layout) -> Iterator[list[tuple[Name, int]]]:
    """Yield the array and offset of every slot of each form."""
    first = 0
    for form in kernel.forms:
        slots = slice(first, first + len(form.slots))
        yield list(zip([layout.arrays[b] for b in kernel.binding_of[slots]], layout.offsets[slots]))
        first += len(form.slots)


def trials_with(plan: Plan, some: Sequence[tuple[Patterns, Sequence[Odd]]], *, sides: bool = False) -> list[Trial]:
    """Return one trial for each pair of patterns and odd elements. sides: find what is `one_sided`."""
    out = [Trial(plan, patterns, _singles(plan, odd), [], [], []) for patterns, odd in some]
    for trial in out:
        trial.puts.extend(Put(name, at, 0) for name, at in plan.zeros.items())
        trial.puts.extend(Put(name, np.asarray([at]), value) for name, at, value in trial.odd)
    one_sided: list[list[Set[tuple[Value, object]]]] = [[] for _ in out]
    for form, outer, places in zip(plan.kernel.forms, plan.outer, places_of(plan.kernel, plan.layout)):
        if not outer.size:
            one_sided = [[*found, frozenset()] for found in one_sided]
            continue
        kinds = [kind_of(s.dtype, plan.below) for s in form.slots]
        reads = [_reader(form.slots, kinds, places, x) for x in out]
        exact = Points(form, _together(reads), outer, np.float64)
        written = list(exact.written())
        for k, (trial, read) in enumerate(zip(out, reads)):
            less_exact = LessExact(form, read, outer, strict=trial.patterns.strict)
            for n, all_written in enumerate(written):
                own = [x[k] if x.ndim > 2 else x for x in all_written[1:]]  # else it does not depend on the trial
                _add_check(trial, form, places, Written(all_written.slot, *own), partial(less_exact.again, n))
            one_sided[k].append(exact.one_sided(k) if sides else frozenset())
    return [x._replace(one_sided=found, undefined=_is_undefined(x)) for x, found in zip(out, one_sided)]


def _singles(plan: Plan, odd: Sequence[Odd]) -> list[Odd]:
    """Return the plan's ties and `odd`, one number for each element, because puts run in any order.

    Where both name an element, `odd` decides. Numbers at which loops end stay: the sizes of a call are at least 1.
    Elements that must be zeros are left out.
    """
    at = places_of(plan.kernel, plan.layout)
    ends = [x for form, places in zip(plan.kernel.forms, at) for x in _ends(form, places)]
    last, zeros = {(x.array, x.at): x for x in (*plan.ties, *odd, *ends)}, plan.zeros
    return [x for x in last.values() if x.array not in zeros or not _among(np.asarray([x.at]), zeros[x.array])[0]]


def _add_check(
    trial: Trial, form: Kernel, places: Sequence[tuple[Name, int]], exact: Written, again: Callable[[], Again]
) -> None:
    slot, (name, offset) = form.slots[exact.slot], places[exact.slot]
    at, strict = offset + exact.at, trial.patterns.strict
    half = (HALF if strict else 2 * HALF) if slot.dtype is f16 else 0.0
    trial.checks.append(Check(name, slot, at, exact, again, half, strict))
    if slot.replaces < 0:
        trial.puts.append(Put(name, at, POISON[name[1]]))


def _is_undefined(trial: Trial) -> bool:
    """Return whether most results of a store are not finite."""
    floats = [c.exact.values for c in trial.checks if c.exact.values.dtype.kind == "f"]
    return any(2 * np.count_nonzero(np.isfinite(x)) < x.size for x in floats)


def _together(reads: Sequence[Read]) -> Read:
    """Return a function that reads the memory of all trials; with several, its results have a leading axis for them."""
    if len(reads) == 1:
        return reads[0]

    def read(slot: int, at: Array) -> Array:
        return np.stack([one(slot, at[k] if at.ndim > 2 else at) for k, one in enumerate(reads)])

    return read


def _left_out(kernel: KernelSource, layout: Layout, outer: Sequence[Array]) -> dict[Name, Array]:
    """Return the elements of each array that products can skip at these points of each form.

    They must be zeros for every form that reads them. Elements that only other points skip can have any value.
    """
    found: dict[Name, list[Array]] = {}
    for form, points, places in zip(kernel.forms, outer, places_of(kernel, layout)):
        for slot, elements in left_out(form, points):
            name, offset = places[slot]
            found.setdefault(name, []).append(offset + elements)
    return {name: np.sort(np.concatenate(parts)) for name, parts in found.items()}


def _reader(slots: Sequence[Slot], kinds: Sequence[Kind], places: Sequence[tuple[Name, int]], trial: Trial) -> Read:
    """Return a function that reads a trial's memory, by slot and element, and notes what it read."""

    def read(slot: int, at: Array) -> Array:
        (name, offset), zeros = places[slot], trial.plan.zeros
        elements = at + offset
        least, most = int(elements.min(initial=offset)), int(elements.max(initial=offset))
        x = trial.patterns.read(slots[slot], kinds[slot], elements + name[0] * STRIDE)
        for array, element, value in trial.odd:
            if name == array and least <= element <= most:
                x = cast("Array", np.where(elements == element, np.asarray(value).astype(x.dtype), x))
        x = np.where(_among(elements, zeros[name]), np.zeros((), x.dtype), x) if name in zeros else x
        if least < offset or most >= offset + slots[slot].size:  # guards discard elements beyond the slot
            inside = (at >= 0) & (at < slots[slot].size)
            trial.read.append((name, elements[inside], x[inside]))
        else:
            trial.read.append((name, elements, x))
        return x

    return read


def _among(x: Array, those: Array) -> Array:
    """Return which elements of `x` are among sorted numbers. NumPy's isin loads a module that takes 40 ms to import."""
    if not those.size:
        return np.zeros(x.shape, bool)
    return those[np.minimum(cast("Array", np.searchsorted(those, x)), those.size - 1)] == x


class Contents:
    """The known contents of arrays while trials run on them, one after the other, so that nothing is filled twice."""

    def __init__(self, sizes: Mapping[Name, int]) -> None:
        self._sizes = sizes
        self._known: dict[Name, list[tuple[int, int, Kind]]] = {}

    def lacking(self, trial: Trial) -> Iterator[Fill]:
        """Yield what must be filled before a trial. Elements that the trial writes are unknown afterwards."""
        for array, begin, end, kind in trial.plan.fills:
            at, end = begin, min(end, self._sizes[array])
            for b, e, _ in sorted(x for x in self._known.get(array, ()) if x[2] == kind):
                at = max(at, e) if b <= at else at
            if at < end:
                self._forget(array, begin, end)
                self._known[array].append((begin, end, kind))
                yield Fill(array, at, end, kind)
        puts = [(array, int(at.min(initial=0)), int(at.max(initial=0)) + 1) for array, at, _ in trial.puts]
        for array, begin, end in (*puts, *trial.plan.written):
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
