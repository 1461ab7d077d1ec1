"""Compute how far a device's results can be from the reference.

The reference runs twice, in f32 and in f64. Their difference shows the effect of rounding on these very numbers. The
device rounds as often, in another order, so its error is of the same size. The allowance is MARGIN times the largest
difference, for the order, plus ULPS roundings of the largest element, for functions that each language approximates in
its own way. If the two references choose differently, as an argmax at a tie, the elements count as correct.
"""

from __future__ import annotations

from typing import Any

from tracegrad.arrays import np

Array = Any
MARGIN = 32.0
ULPS = 64.0
EPS = 2.0**-23  # of f32


def wrong(x: Array, single: Array, exact: Array, more: Any = 0.0) -> Array:
    """Return which elements of `x` rounding cannot explain. more: an additional allowance, for all or for each."""
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
        error = np.abs(single - exact)
        largest = float(np.abs(exact[finite]).max(initial=0.0))
        return MARGIN * float(error[finite].max(initial=0.0)) + ULPS * largest * EPS
