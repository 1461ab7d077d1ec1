"""A kernel checked on memory of its own, before any of its numbers are handed out.

Every value that it reads repeats a short pattern, so the value of an element follows from its index. Around these
values, and where the kernel is to write, lies a poison. The kernel runs once. Some of the elements that it wrote are
compared with its form, computed in f32 and f64 by `points`. A load from a wrong place, a wrong side of a choice and a
wrong operand all show.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from tracegrad.arrays import np
from tracegrad.dtypes import STORED, DType, f16
from tracegrad.kernels.expr import Dynamic, atoms_of, indices_of, walk
from tracegrad.kernels.form import Kernel, Slot
from tracegrad.program import KernelSource
from tracegrad.runtime.points import Points, Written, chosen, left_out
from tracegrad.runtime.tolerance import EPS, wrong

Array = Any

PERIOD = 4093  # of a pattern: prime, so that neighbours along any axis differ
GAP = 64  # elements of poison around every value
POISON = {"f32": float("nan"), "f16": float("nan"), "i32": 0x5BADBAD5}
STRIDE = 617  # from one binding's first element to the next one's
STEPS = 8  # floats to a unit where ties are wanted
INDICES = 7  # integers are below this where nothing is indexed by them
CANCELLED = 16.0  # roundings of the largest value on the way
HALF = 2.0**-8  # relative: of a value, and of those that it was made from
SEEDS = (7, 8)  # a second try with other numbers: a tie that rounding decides is no defect


SWITCH = "TRACEGRAD_VERIFY"  # "off": hand out what the device computes, unchecked


def enabled() -> bool:
    """Are kernels to be checked?"""
    return os.environ.get(SWITCH, "").lower() not in ("off", "0", "no")


class Layout(NamedTuple):
    """Where the values of a kernel lie in arrays of its own."""

    sizes: tuple[int, ...]  # of each binding's array
    offsets: tuple[int, ...]  # of each slot, forms one after the other


def layout_of(kernel: KernelSource) -> Layout:
    """A place for every slot; what replaces a value has its place."""
    ends = [GAP] * len(kernel.bindings)
    offsets: list[int] = []
    for form in kernel.forms:
        first = len(offsets)
        for slot in form.slots:
            if slot.replaces >= 0:
                offsets.append(offsets[first + slot.replaces])
                continue
            binding = kernel.binding_of[len(offsets)]
            offsets.append(ends[binding])
            ends[binding] += -(-slot.size // GAP) * GAP + GAP
    return Layout(_sizes(kernel, ends), tuple(offsets))


def layout_at(kernel: KernelSource, offsets: Sequence[int]) -> Layout:
    """The places of a dispatch; others where what it writes overlaps something there, or types differ."""
    own = [(k, s) for k, s in enumerate(s for form in kernel.forms for s in form.slots) if s.replaces < 0]
    ends = [0] * len(kernel.bindings)
    last: list[Slot | None] = [None] * len(kernel.bindings)
    for k, slot in sorted(own, key=lambda x: offsets[x[0]]):
        binding = kernel.binding_of[k]
        before = last[binding]
        if (
            before is not None
            and offsets[k] < ends[binding]
            and (slot.written or before.written or slot.dtype is not before.dtype)
        ):
            return layout_of(kernel)
        if offsets[k] + slot.size > ends[binding]:
            ends[binding], last[binding] = offsets[k] + slot.size, slot
    return Layout(_sizes(kernel, ends), tuple(offsets))


def _sizes(kernel: KernelSource, ends: Sequence[int]) -> tuple[int, ...]:
    return tuple(max(end, b.size) for end, b in zip(ends, kernel.bindings))


class Patterns:
    """What arrays repeat, as it is stored: one draw for each type, from another place on for each binding."""

    def __init__(self, seed: int, ties: bool) -> None:
        self.rng, self.ties = np.random.default_rng(seed), ties
        self._drawn: dict[tuple[str, int], Array] = {}

    def of(self, kernel: KernelSource, dtype: DType, binding: int, offset: int) -> Array:
        """One period of a value, by where it lies: values that overlap agree."""
        below = 0 if dtype.is_float else 2 if dtype.name == "bool" else max(map(_indexed, kernel.forms))
        key = (dtype.name, below)
        if key not in self._drawn:
            drawn = self.integers(below, dtype.name == "i32") if below else self.floats()
            self._drawn[key] = np.concatenate([drawn, drawn]).astype(dtype.numpy if dtype.is_float else np.int32)
        begin = (binding * STRIDE + offset) % PERIOD
        return self._drawn[key][begin : begin + PERIOD]

    def floats(self) -> Array:
        """Of both signs, mostly positive: roots and logarithms are to mean something."""
        magnitude = self.rng.uniform(0.05, 2.0, PERIOD)
        values = np.where(self.rng.random(PERIOD) < 0.3, -magnitude, magnitude)
        return np.round(values * STEPS) / STEPS if self.ties else values

    def integers(self, below: int, signed: bool) -> Array:
        """Indices, some of them beyond both ends, where they are clamped."""
        values = self.rng.integers(0, below, PERIOD)
        if signed:
            values[self.rng.integers(0, PERIOD, PERIOD // 50)] *= -1
        return values


def _indexed(form: Kernel) -> int:
    """One more than integers should reach: past the end of what they index."""
    found = [a.hi + 2 for v in walk([s.value for s in form.body]) for i in indices_of(v)
             for a in atoms_of(i) if isinstance(a, Dynamic)]  # fmt: skip
    return max(found, default=INDICES)


class Fill(NamedTuple):
    """A value that the kernel reads: `values`, again and again, from an offset in a binding's array on."""

    binding: int
    offset: int
    size: int
    values: Array


class Check(NamedTuple):
    """Elements of a binding's array that one store writes, and what must be there."""

    binding: int
    slot: Slot
    at: Array
    single: Written
    double: Written
    half: bool  # does the kernel round to f16?

    def difference(self, got: Array) -> str:
        """Where the elements are something else, in words."""
        got = got.reshape(self.at.shape)
        if self.slot.dtype.name == "bool":
            got = got != 0
        elif self.slot.dtype.name == "u32":
            got = got.view(np.uint32)
        elif self.slot.dtype is f16:
            got = got.astype(np.float32)
        exact, allowed = self.double.values, CANCELLED * EPS * self.double.scale
        if self.half:  # roundings to f16 may go either way
            allowed = allowed + HALF * (np.abs(exact) + self.double.scale * EPS)
            limit = np.abs(exact) < np.finfo(np.float16).max
            exact = np.where(limit, exact, np.inf)
        bad = wrong(got, self.single.values, exact, allowed) & self.single.counts
        if not bad.any():
            return ""
        at = tuple(np.argwhere(bad)[0])
        where, want = self.single.at[at], self.double.values[at]
        return f"element {where} is {got[at]}, not {want}; {bad.sum()} of {bad.size} are wrong"


class Trial(NamedTuple):
    """A run of a kernel on memory of its own: what is put there before, and what must be found there afterwards."""

    kernel: KernelSource
    layout: Layout
    fills: list[Fill]
    zeros: list[tuple[int, Array]]  # elements of bindings that are 0 all the same
    checks: list[Check]


def trial_of(kernel: KernelSource, layout: Layout, drawn: Patterns) -> Trial:
    """A trial with these numbers."""
    out = Trial(kernel, layout, [], [], [])
    first = 0
    for form in kernel.forms:
        bindings = kernel.binding_of[first : first + len(form.slots)]
        offsets = out.layout.offsets[first : first + len(form.slots)]
        patterns = [drawn.of(kernel, s.dtype, b, o) for s, b, o in zip(form.slots, bindings, offsets)]
        for slot, binding, offset, values in zip(form.slots, bindings, offsets, patterns):
            if not slot.written:
                out.fills.append(Fill(binding, offset, slot.size, values))
        for slot, elements in left_out(form.product, form.inner) if form.product else ():
            out.zeros.append((bindings[slot], offsets[slot] + elements))
        half = any(s.dtype is f16 for s in form.slots)
        for single, double in _expected(form, patterns, drawn.rng):
            k = single.slot
            out.checks.append(Check(bindings[k], form.slots[k], offsets[k] + single.at, single, double, half))
        first += len(form.slots)
    return out


def fault(kernel: KernelSource, layout: Layout, run: Callable[[Trial], Sequence[Array]], *, ties: bool = False) -> str:
    """What a kernel computes wrongly, in words; empty where it is right.

    run:  runs a trial, and gives the elements that each of its checks asks for.
    ties: draw few different floats, so that many comparisons are of equal ones. A device whose division is not
          exact would decide some of these otherwise.
    """
    found = ""
    for seed in SEEDS:
        trial = trial_of(kernel, layout, Patterns(seed, ties))
        found = next(filter(None, (c.difference(x) for c, x in zip(trial.checks, run(trial)))), "")
        if not found:
            break
    return found


class Memory:
    """Arrays that one trial after the other uses. They come from `allocate`, by size and NumPy type."""

    def __init__(self, allocate: Callable[[int, Any], Array]) -> None:
        self._allocate = allocate
        self._arrays: dict[tuple[int, str], Array] = {}

    def arrays(self, trial: Trial) -> list[Array]:
        """One for each binding, ready for the run."""
        bindings = trial.kernel.bindings
        out = [self._take(k, n, b.dtype) for k, (n, b) in enumerate(zip(trial.layout.sizes, bindings))]
        for c in trial.checks:
            out[c.binding][c.at] = POISON[bindings[c.binding].dtype]
        for f in trial.fills:
            x, end = out[f.binding], f.offset + f.size
            x[max(0, f.offset - GAP) : f.offset] = x[end : end + GAP] = POISON[bindings[f.binding].dtype]
        for f in trial.fills:
            repeat(out[f.binding][f.offset : f.offset + f.size], f.values)
        for binding, elements in trial.zeros:
            out[binding][elements] = 0
        return out

    def _take(self, number: int, size: int, dtype: str) -> Array:
        found = self._arrays.get((number, dtype))
        if found is None or found.size < size:
            found = self._arrays[number, dtype] = self._allocate(size, STORED[dtype].numpy)
        return found[:size]


def repeat(target: Array, values: Array) -> None:
    """Fill `target` with `values`, again and again."""
    whole = target.size // PERIOD * PERIOD
    target[:whole].reshape(-1, PERIOD)[...] = values
    target[whole:] = values[: target.size - whole]


def _expected(form: Kernel, patterns: Sequence[Array], rng: Any) -> Iterator[tuple[Written, Written]]:
    """What the form writes at some points, in f32 and in f64."""

    def read(slot: int, at: Array) -> Array:
        x = patterns[slot][at % PERIOD]
        dtype = form.slots[slot].dtype
        if dtype.name == "bool":
            return x != 0
        return x.view(np.uint32) if dtype.name == "u32" else x.astype(np.float32) if dtype is f16 else x

    outer = chosen(form, rng)
    yield from zip(*(Points(form, read, outer, kind).written() for kind in (np.float32, np.float64)))
