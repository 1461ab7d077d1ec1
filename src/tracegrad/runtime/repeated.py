"""The numbers that a check fills arrays with: a few patterns, with ties and with integers past their bounds.

They follow from seed and index. NumPy and `js/verify.js` make the same bits, so an exported page need not contain them.
"""

from __future__ import annotations

from functools import cache
from typing import cast

from tracegrad.arrays import Array, np
from tracegrad.dtypes import STORED, DType, f16
from tracegrad.kernels.form import Slot
from tracegrad.runtime.draw import uniform

Kind = tuple[str, int]  # of a pattern: a dtype's name, and the bound of its integers, or 0

PERIOD = 4093  # of a pattern: a prime, so that neighbours along any axis differ
STRIDE = 617  # the offset between the patterns of successive arrays
LOW, HIGH, NEGATIVE = 0.05, 2.0, 0.3  # magnitudes, and the share of negative numbers
STEPS = 8  # floats per unit where ties are wanted
BEYOND = 3  # of this many signed integers, one is past the end; of twice as many, one is below 0


@cache
def drawn(seed: int, count: int) -> Array:
    """Return the first numbers of a stream of `draw`, in [0, 1). Importing NumPy's own generators takes 26 ms."""
    return uniform(seed, 0, count)


def kind_of(dtype: DType, below: int) -> Kind:
    """Return the kind of the pattern for values of a type."""
    return dtype.name, 0 if dtype.numpy.startswith("float") else 2 if dtype.name == "bool" else below


class Patterns:
    """The numbers that arrays repeat: PERIOD of each kind, the same for all kernels of a trial.

    strict: floats are multiples of 1 / STEPS, so that many comparisons are of equal numbers.
    shares: floats lie between 0 and 1, because sums of logarithms are NaN if any number is negative.
    """

    def __init__(self, seed: int, strict: bool, shares: bool = False) -> None:
        self.seed, self.strict, self.shares = seed, strict, shares
        self._made: dict[Kind, Array] = {}
        self._twice: dict[Kind, Array] = {}

    def of(self, kind: Kind) -> Array:
        """Return one period, in the form in which it is stored."""
        if kind not in self._made:
            dtype, below = kind
            first, second = drawn(self.seed, 2 * PERIOD).reshape(PERIOD, 2).T
            made = integers(first, second, below, dtype == "i32") if below else self.floats(first, second)
            self._made[kind] = made.astype(STORED[dtype if dtype in STORED else "i32"].numpy)
        return self._made[kind]

    def along(self, kind: Kind, at: int) -> Array:
        """Return one period that begins with the number of element `at`, as a view, because fills are frequent."""
        if kind not in self._twice:
            self._twice[kind] = np.tile(self.of(kind), 2)
        return self._twice[kind][at % PERIOD :][:PERIOD]

    def floats(self, first: Array, second: Array) -> Array:
        """Return floats of both signs, mostly positive, so that most roots and logarithms exist; or else shares."""
        if self.shares:
            return LOW + (1 - 2 * LOW) * first
        magnitude = LOW + (HIGH - LOW) * first
        values = cast("Array", np.where(second < NEGATIVE, -magnitude, magnitude))
        if not self.strict:
            return values
        steps = cast("Array", np.round(values * STEPS))
        equal = np.abs(steps[1:]) == np.abs(steps[:-1])  # otherwise a load of the wrong neighbour would go unnoticed
        steps[1:] += np.sign(steps[1:]) * equal
        return steps / STEPS

    def read(self, slot: Slot, kind: Kind, at: Array) -> Array:
        """Return what a kernel finds in a slot whose array repeats its pattern from `at` on."""
        x = self.of(kind)[at % PERIOD]
        if slot.dtype.name == "bool":
            return x != 0
        return x.view(np.uint32) if slot.dtype.name == "u32" else x.astype(np.float32) if slot.dtype is f16 else x


def integers(first: Array, second: Array, below: int, signed: bool) -> Array:
    """Return integers from 0 to `below` - 1. If `signed`, many are -1 or `below` - 1, indices that kernels clamp."""
    values = np.floor(below * first)
    if signed:
        groups = np.arange(0, PERIOD, BEYOND)
        for past, begins, place in ((below - 1, groups, 0), (-1, groups[::2], 1)):
            further = np.floor(BEYOND * second[np.minimum(begins + place, PERIOD - 1)]).astype(np.int64)
            values[np.minimum(begins + further, PERIOD - 1)] = past
    return values
