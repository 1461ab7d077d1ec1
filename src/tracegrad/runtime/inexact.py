"""What an honest device may compute otherwise than another, and the elements for which that decides everything.

WGSL allows 2.5 ulp for a quotient, fused products, and sums in any order. So the mean of equal numbers may be off by a
digit. Then the deviations from it are not 0, and 1 / sqrt of their squares may be anything. Such points lie at a tie, a
zero below a root or a divisor, or between the sides of a choice. To find them, the form is evaluated as devices that
round otherwise would: results that f32 does not hold, and all of rows that a language may approximate, are moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from tracegrad.arrays import np
from tracegrad.ir import Primitive
from tracegrad.kernels.form import Kernel
from tracegrad.runtime.points import Points, Read
from tracegrad.runtime.tolerance import EPS, MARGIN, ULPS, rounding

Array = Any

TRIES = 4  # devices
MOVED = 2.0  # roundings by which a device may be off
OWN = 4.0  # times the largest error of these devices is allowed
NOTHING = 0.125  # of the largest element: an allowance above it decides nothing
_ODD = 2654435761  # spreads the bits of operands: a device gives equal results for equal operands


class Inexact(Points):
    """The values of a kernel in f32 on the device of this number.

    strict: does it divide and take roots exactly? Then only what f32 does not hold is moved.
    """

    def __init__(self, kernel: Kernel, read: Read, outer: Array, number: int, *, strict: bool) -> None:
        super().__init__(kernel, read, outer, np.float32)
        self.number, self.strict = number, strict

    def mapped(self, p: Primitive, function: Any, operands: Sequence[Array]) -> Array:
        """A row's result, rounded otherwise."""
        y = super().mapped(p, function, operands)
        if y.dtype.kind != "f":
            return y
        exact = function(*[x.astype(np.float64) if x.dtype.kind == "f" else x for x in operands])
        approximate = p.cost > 1 and not self.strict  # several instructions, which a language spells in its own way
        return self._off(y, operands, (exact != y) | approximate, np.abs(y))

    def combined(self, combine: Any, values: Array) -> Array:
        """A fold in another order."""
        y = super().combined(combine, values)
        if y.dtype.kind != "f":
            return y
        double = values.astype(np.float64)
        size = combine.reduce(np.abs(double), axis=1, keepdims=True)
        return self._off(y, [y], combine.reduce(double, axis=1, keepdims=True) != y, size)

    def _off(self, y: Array, operands: Sequence[Array], where: Array, size: Array) -> Array:
        key = np.full((1, 1), self.number + 1, np.uint64)
        for x in operands:
            key = (key * np.uint64(_ODD)) ^ np.ascontiguousarray(x, np.float32).view(np.uint32)
            key = key ^ (key >> np.uint64(15))
        sign = 1.0 - 2.0 * (key * np.uint64(_ODD) >> np.uint64(20) & np.uint64(1))
        return np.asarray(np.where(where & np.isfinite(y), y + sign * (MOVED * EPS) * size, y), np.float32)


class Decided(NamedTuple):
    """The elements of which something is known, and how far all of them may be off."""

    which: Array
    allowed: float

    def differs(self, got: Array, exact: Array, more: Array) -> Array:
        """Which elements are wrong. more: what else is allowed, of each."""
        if exact.dtype.kind != "f":
            return (got != exact) & self.which
        with np.errstate(all="ignore"):
            return ~(np.abs(got - exact) <= self.allowed + more) & np.isfinite(exact) & self.which

    def little(self, exact: Array) -> bool:
        """Could the elements be almost anything?"""
        return exact.dtype.kind == "f" and self.allowed > NOTHING * largest(exact)


def decided(exact: Array, single: Array, others: Sequence[Array], more: float) -> Decided:
    """What these devices have in common. An element is undecided if one is off by far more than it usually is.

    more: what else is allowed of all elements.
    """
    tries = [single, *others]
    if exact.dtype.kind != "f":
        return Decided(np.all([x == exact for x in tries], axis=0), 0.0)
    with np.errstate(all="ignore"):
        off = [np.where((x == exact) | (np.isnan(x) & np.isnan(exact)), 0.0, np.abs(x - exact)) for x in tries]
        error = np.max(np.where(np.isfinite(off), off, np.inf), axis=0)
    usual = float(np.partition(error.reshape(-1), error.size // 2)[error.size // 2]) if error.size else 0.0
    which = error <= MARGIN * MARGIN * usual + ULPS * EPS * largest(exact) + more
    own = OWN * float(error[which & np.isfinite(error)].max(initial=0.0))
    return Decided(which, max(rounding(np.where(which, single, exact), exact), own) + more)


def largest(exact: Array) -> float:
    """The largest magnitude among finite elements."""
    return float(np.abs(exact[np.isfinite(exact)]).max(initial=0.0))
