"""Compute how much a device's results can differ from the reference, and which elements rounding alone determines.

`wrong`: the reference runs twice, in f32 and in f64. Their difference shows the effect of rounding on these very
numbers. The device rounds as often, in another order, so its error is of the same size. The allowance is MARGIN times
the largest difference, for the order, plus ULPS roundings of the largest element, for functions that each language
approximates in its own way. If the two references choose differently, as an argmax at a tie, the elements count as
correct.

`Bounds`: a few simulated devices can agree by chance. So no difference counts that rounding can explain at this
element. It can be what cancellation leaves, or the bits of a rounded sum.

`Inexact`: WGSL allows 2.5 ulp for a quotient, fused products, and sums in any order. So the mean of equal numbers can
be off by a digit. Then the deviations from it are not 0, and 1 / sqrt of their squares can be anything. Such points are
at a tie, at a zero below a root or a divisor, or between the sides of a choice. To find such points, the form is
evaluated with the roundings of other devices. Results that f32 does not hold exactly are moved, and so are all results
of rows that a language can approximate. Every second device computes -0.0 for zeros, because a driver may ignore their
sign. An NVIDIA H100 takes -0 for 0 in x * 0, and `atan2` of two such zeros is -pi.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import cached_property, reduce
from itertools import product
from typing import Any, NamedTuple, cast

from tracegrad.arrays import Array, np
from tracegrad.dtypes import f16
from tracegrad.ir.evaluate import function_of
from tracegrad.ir.nodes import Primitive
from tracegrad.kernels.expr import Guard, Value
from tracegrad.kernels.form import Kernel, Slot
from tracegrad.runtime.points import Name, Points, Read, Written, combination, largest

MARGIN = 32.0
ULPS = 64.0
EPS = 2.0**-23  # of f32
SMALLEST = 2.0**-126  # number of f32 that is no denormal
SMALLEST_HALF = 2.0**-14  # of f16
TRIES = 4  # simulated devices
TRIES_OF_FEW = 4 * TRIES  # if there are few results: their roundings often cancel each other
MOVED = 2.0  # roundings by which a device can be off
OWN = 4.0  # the largest error of these devices is allowed this many times
NOTHING = 0.125  # of the largest element: with a larger allowance, a check shows nothing
CANCELLED = 16.0  # roundings of the largest intermediate value
DISCARDED = 2.0**-9  # of the largest element: if CANCELLED exceeds it, a choice or an exponential discards that value
UNSURE = "unsure"  # rounding alone can change these numbers to almost anything: other trials must decide
_ODD = 2654435761  # spreads the bits of operands, because a device gives equal results for equal operands


def wrong(x: Array, single: Array, exact: Array, more: Any = 0.0) -> Array:
    """Return which elements of `x` differ by more than rounding. more: an additional allowance, for all or for each."""
    if x.dtype.kind != "f":
        return (x != single) & (single == exact)
    with np.errstate(all="ignore"):
        alike = (x == single) | (np.isnan(x) & np.isnan(single))
        finite = np.isfinite(single) & np.isfinite(exact)
        return ~alike & finite & ~(np.abs(x - exact) <= rounding(single, exact) + more)


def rounding(single: Array, exact: Array) -> float:
    """Return how far any of these floats can be from `exact`."""
    with np.errstate(all="ignore"):
        finite = np.isfinite(single) & np.isfinite(exact)
        return MARGIN * float(np.abs(single - exact)[finite].max(initial=0.0)) + ULPS * EPS * largest(exact)


class Inexact(Points):
    """The values of a kernel in f32 on a simulated device; devices are numbered.

    strict: the device divides and takes roots exactly, so only results that f32 does not hold are moved.
    """

    def __init__(self, kernel: Kernel, read: Read, outer: Array, number: int, *, strict: bool) -> None:
        super().__init__(kernel, read, outer, np.float32)
        self.number, self.strict = number, strict

    def mapped(self, p: Primitive, function: Any, operands: Sequence[Array]) -> Array:
        """Return a primitive's result, rounded differently."""
        y = super().mapped(p, function, operands)
        if y.dtype.kind != "f":
            return y
        exact = function(*[x.astype(np.float64) if x.dtype.kind == "f" else x for x in operands])
        approximate = p.cost > 1 and not self.strict  # several instructions, which each language writes in its own way
        return self._off(y, operands, (exact != y) | approximate, np.abs(y))

    def combined(self, prim: Primitive, values: Array) -> Array:
        """Return a fold in another order.

        Where the array rule of a fold keeps a NaN that its combination drops, a device may do either, and every second
        one keeps it.
        """
        y = super().combined(prim, values)
        if y.dtype.kind != "f":
            return y
        if self.number % 2 and prim.family == "fold" and np.isnan(values).any():
            ruled: Array = function_of(prim, 1, {"axes": (-1,)}, np)(values)
            y = cast("Array", np.where(np.isnan(ruled), ruled, y))
        combine = combination(prim)
        double = values.astype(np.float64)
        size = combine.reduce(np.abs(double), axis=-1, keepdims=True)
        return self._off(y, [y], combine.reduce(double, axis=-1, keepdims=True) != y, size)

    def _off(self, y: Array, operands: Sequence[Array], where: Array, size: Array) -> Array:
        key = np.full((1, 1), self.number + 1, np.uint64)
        for x in operands:
            key = (key * np.uint64(_ODD)) ^ np.ascontiguousarray(x, np.float32).view(np.uint32)
            key = key ^ (key >> np.uint64(15))
        sign = 1.0 - 2.0 * (key * np.uint64(_ODD) >> np.uint64(20) & np.uint64(1))
        if self.number % 2 and not self.strict:  # flushes denormals, and confuses the two zeros
            y = np.where(np.abs(y) < SMALLEST, np.float32(-0.0), y)
        return np.asarray(np.where(where & np.isfinite(y), y + sign * (MOVED * EPS) * size, y), np.float32)


class Bounds(Points):
    """The values of a kernel in f64, and how far rounding in any order can move them.

    A value that can be off has a leading axis: itself, the least, and the largest. An integer that can be off can be
    anything. The ends of a result are its values for the ends of the operands.
    """

    def __init__(self, kernel: Kernel, read: Read, outer: Array, *, strict: bool) -> None:
        super().__init__(kernel, read, outer, np.float64)
        self.strict = strict

    def moved(self) -> list[Array]:
        """Return how far each element of every store can be off; infinite where anything is possible."""
        with np.errstate(all="ignore"):
            return [_moved(w.values) for w in self.written()]

    def one(self, v: Value) -> Array:
        """Return a value at every point, with its ends."""
        if v.op == "inside":
            held = reduce(np.logical_and, map(self.holds, v.arg))
            return self._ended(_where, [held, self.known[v.args[0]]])
        x = super().one(v)
        return _open(x[0], x[1] != x[2]) if v.op in ("load", "index") and x.ndim > 2 else x

    def holds(self, g: Guard) -> Array:
        """Return whether a guard holds, with the ends of that."""
        at, held = self.index(g.index), super().holds(g)
        return _open(held[0], at[1] != at[2]) if at.ndim > 2 else held

    def mapped(self, p: Primitive, function: Callable[..., Array], operands: Sequence[Array]) -> Array:
        """Return a primitive's result, with its ends."""
        return self._ended(function, operands, approximate=p.cost > 1 and not self.strict)

    def combined(self, prim: Primitive, values: Array) -> Array:
        """Return a fold by halves; its ends allow for any order."""
        combine, size = combination(prim), np.abs(_as_f32(_middle(values)))
        while values.shape[-1] > 1:
            n = values.shape[-1] // 2
            y, rest = self._ended(combine, [values[..., :n], values[..., n : 2 * n]]), values[..., 2 * n :]
            values = np.concatenate([y, np.broadcast_to(rest, (*y.shape[:-1], rest.shape[-1]))], axis=-1)
        whole = combine.reduce(size, axis=-1, keepdims=True)
        # if the whole with any element once more is exact, then so is every part of it
        rounds = np.any(_rounds(combine(whole, size)), axis=-1, keepdims=True)
        return _widened(values, rounds, math.sqrt(size.shape[-1]) * whole) if rounds.any() else values

    def _ended(self, function: Callable[..., Array], operands: Sequence[Array], *, approximate: bool = False) -> Array:
        y = self.as_computed(function(*map(_middle, operands)))
        ends = [function(*xs) for xs in product(*[x[1:] if x.ndim > 2 else [x] for x in operands])]
        if y.dtype.kind != "f":
            return y if len(ends) == 1 else _open(y, np.any([x != y for x in ends], axis=0))
        rounds = _rounds(function(*[_as_f32(_middle(x)) for x in operands])) | approximate
        if len(ends) == 1 and not rounds.any():
            return y
        least, most = reduce(np.minimum, ends, y), reduce(np.maximum, ends, y)
        size = np.maximum(np.maximum(-least, most), SMALLEST)
        return _widened(np.stack([y, least, most]), rounds, size)


def _where(held: Array, x: Array) -> Array:
    return cast("Array", np.where(held, x, x.dtype.type(0)))


def _moved(x: Array) -> Array:
    if x.ndim == 2:
        return np.zeros(x.shape)
    y, least, most = x.astype(np.float64)
    off = np.where((least == y) & (most == y), 0.0, np.maximum(most - y, y - least))
    return np.where(np.isnan(off) | ((off > 0) & (x.dtype.kind != "f")), np.inf, off)


def _middle(x: Array) -> Array:
    """Return a value without its ends."""
    return x[0] if x.ndim > 2 else x


def _as_f32(x: Array) -> Array:
    """Return floats as a device has them."""
    return x.astype(np.float32).astype(np.float64) if x.dtype.kind == "f" else x


def _rounds(x: Array) -> Array:
    """Return which results f32 does not hold; never an integer."""
    return ~((_as_f32(x) == x) | np.isnan(x))


def _widened(x: Array, where: Array, size: Array) -> Array:
    """Return a value with its ends moved by some roundings of a number of this size."""
    y, least, most = x if x.ndim > 2 else (x, x, x)
    by = np.where(where, MOVED * EPS * size, 0.0)
    return np.stack(np.broadcast_arrays(y, least - by, most + by))


def _open(x: Array, where: Array) -> Array:
    """Return a value that can be anything at some points."""
    kinds: dict[str, tuple[Any, Any]] = {"f": (-np.inf, np.inf), "b": (False, True)}
    least, most = kinds.get(x.dtype.kind) or (np.iinfo(x.dtype).min, np.iinfo(x.dtype).max)
    ends = [cast("Array", np.where(where, x.dtype.type(end), x)) for end in (least, most)]
    return np.stack(np.broadcast_arrays(x, *ends))


class Decided(NamedTuple):
    """The elements whose value is known, and how far all of them, or each, can be off."""

    which: Array
    allowed: Any

    def differs(self, got: Array, exact: Array, more: Array) -> Array:
        """Return which elements are wrong. more: an additional allowance for each."""
        if exact.dtype.kind != "f":
            return (got != exact) & self.which
        with np.errstate(all="ignore"):
            return ~(np.abs(got - exact) <= self.allowed + more) & np.isfinite(exact) & self.which

    def little(self, exact: Array) -> bool:
        """Return whether half of the elements or more could be almost anything."""
        much = np.asarray(self.allowed > NOTHING * largest(exact))  # np.median imports numpy.ma, which takes 20 ms
        return exact.dtype.kind == "f" and bool(2 * np.count_nonzero(much) >= much.size)


def decided(exact: Array, single: Array, others: Sequence[Array], more: float) -> Decided:
    """Return the elements on which all simulated devices agree, and how far off they can be.

    An element is left out if the result of a simulated device is off by far more than is usual.
    more: an additional allowance for all elements.
    """
    tries = [single, *others]
    if exact.dtype.kind != "f":
        return Decided(np.all([x == exact for x in tries], axis=0), 0.0)
    with np.errstate(all="ignore"):
        off = [np.where((x == exact) | (np.isnan(x) & np.isnan(exact)), 0.0, np.abs(x - exact)) for x in tries]
        error = np.max(np.where(np.isfinite(off), off, np.inf), axis=0)
    usual = float(np.partition(error.reshape(-1), error.size // 2)[error.size // 2]) if error.size else 0.0
    which = np.isfinite(error) & (error <= MARGIN * MARGIN * usual + ULPS * EPS * largest(exact) + more)
    own = OWN * float(error[which].max(initial=0.0))
    found = Decided(which, max(rounding(np.where(which, single, exact), exact), own) + more)
    if not found.little(exact):
        return found
    # some elements can be far more precise than others: each must be as near as its own rounding explains
    each = np.where(np.isfinite(exact), MARGIN * error + ULPS * EPS * largest(exact) + more, np.inf)
    return Decided(which & (each < NOTHING * largest(exact)), each)  # devices differ from all simulated ones


class Again(NamedTuple):
    """The result of one store, computed with less precision. Few checks need it."""

    single: Array  # in f32
    scale: float  # of sums in f64
    others: Callable[[], list[Array]]  # on simulated devices that round differently
    moved: Callable[[], Array]  # how far each element can be off on any device


class LessExact:
    """The results of a form at some points, computed with less precision."""

    def __init__(self, form: Kernel, read: Read, outer: Array, *, strict: bool) -> None:
        self.of, self.strict = (form, read, outer), strict

    def again(self, k: int) -> Again:
        """Return the results of one store, by its number."""
        written, scale = self.single
        return Again(written[k].values, scale, lambda: [x[k].values for x in self.others], lambda: self.moved[k])

    @cached_property
    def single(self) -> tuple[list[Written], float]:
        """The results in f32, and the scale of sums in f64."""
        double = Points(*self.of, np.float64)
        _ = list(double.written())
        return list(Points(*self.of, np.float32).written()), double.scale()

    @cached_property
    def others(self) -> list[list[Written]]:
        """The results of simulated devices."""
        tries = TRIES if len(self.of[2]) > TRIES else TRIES_OF_FEW
        return [list(Inexact(*self.of, n, strict=self.strict).written()) for n in range(tries)]

    @cached_property
    def moved(self) -> list[Array]:
        """How far any device can be off."""
        return Bounds(*self.of, strict=self.strict).moved()


class Check(NamedTuple):
    """Elements of an array that one store writes, and their expected values."""

    array: Name
    slot: Slot
    at: Array
    exact: Written  # in f64
    again: Callable[[], Again]
    half: float  # the most that rounding to f16 can add to a value
    strict: bool = False  # does the device keep what is not finite?

    def difference(self, got: Array) -> str:
        """Describe where the elements differ from their expected values; or return UNSURE."""
        got = got.reshape(self.at.shape)
        if self.slot.dtype.name == "bool":
            got = got != 0
        elif self.slot.dtype.name == "u32":
            got = got.view(np.uint32)
        elif self.slot.dtype is f16:
            got = got.astype(np.float32)
        exact, counts = self.storable(), self.exact.counts
        lost = np.isfinite(got) & ~np.isfinite(exact) & counts & (self.strict and exact.dtype.kind == "f")
        # then the work below is not needed
        if not (wrong(got, self.exact.values, exact, self.halves()) & counts | lost).any():
            return ""
        again = self.again()
        if lost.any():
            lost &= np.all([~np.isfinite(x) for x in (again.single, *again.others())], axis=0)
        bad = wrong(got, again.single, exact, self.halves() + self.cancelled(again)) & counts | lost
        known = Decided(counts, rounding(again.single, exact) if exact.dtype.kind == "f" else 0.0)
        if bad.any() or known.little(exact):
            known = self.decided(again)
            bad = known.differs(got, exact, self.halves()) & counts | lost
        if bad.any():
            off = np.abs(got.astype(np.float64) - exact)
            bad &= ~(off <= OWN * again.moved() + self.halves()) | lost
        if not bad.any():
            return UNSURE if known.little(exact) else ""
        at = tuple(np.argwhere(bad)[0])
        where, want = self.exact.at[at], self.exact.values[at]
        return f"element {where} is {got[at]}, not {want}; {bad.sum()} of {bad.size} are wrong"

    def decided(self, again: Again) -> Decided:
        """Return the elements whose value every correct device computes, and their tolerance."""
        return decided(self.storable(), again.single, again.others(), self.cancelled(again))

    def cancelled(self, again: Again) -> float:
        """Return how far cancellation can move an element; 0 if allowing so much could hide defects.

        Simulated devices then show the effect of cancellation.
        """
        return allowed if (allowed := CANCELLED * EPS * again.scale) <= DISCARDED * largest(self.storable()) else 0.0

    def halves(self) -> Array:
        """Return how far rounding to f16 can move each element. A device that is not strict can flush denormals."""
        if not self.half:
            return np.zeros(())
        size = np.abs(self.exact.values)
        denormal = size < SMALLEST_HALF
        return self.half * np.where(denormal, SMALLEST_HALF, size) + np.where(denormal & (not self.strict), size, 0.0)

    def storable(self) -> Array:
        """Return the values in f64; infinite where a half cannot hold them."""
        exact = self.exact.values
        return cast("Array", np.where(np.abs(exact) < np.finfo(np.float16).max, exact, np.inf)) if self.half else exact
