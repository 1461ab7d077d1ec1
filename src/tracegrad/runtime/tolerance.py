"""How far a device's results may be from the reference.

The reference runs twice, in f32 and in f64. Their difference shows what rounding does to these very numbers: the
device rounds as often, in another order, so its error is a draw of the same size. MARGIN times the largest difference
leaves room for the order, and ULPS roundings of the largest element for functions that each language approximates in
its own way. Where the two references choose differently, as an argmax at a tie, the elements count as agreeing.
"""

from __future__ import annotations

from typing import Any

from tracegrad.arrays import np

Array = Any
MARGIN = 32.0
ULPS = 64.0
EPS = 2.0**-23  # of f32


def wrong(x: Array, single: Array, exact: Array, more: Any = 0.0) -> Array:
    """Which elements of `x` rounding cannot explain. more: what else is allowed, of all or of each."""
    if x.dtype.kind != "f":
        return (x != single) & (single == exact)
    with np.errstate(all="ignore"):
        alike = (x == single) | (np.isnan(x) & np.isnan(single))
        finite = np.isfinite(single) & np.isfinite(exact)
        return ~alike & finite & ~(np.abs(x - exact) <= rounding(single, exact) + more)


def rounding(single: Array, exact: Array) -> float:
    """How far any of these floats may be from `exact`."""
    with np.errstate(all="ignore"):
        finite = np.isfinite(single) & np.isfinite(exact)
        error = np.abs(single - exact)
        largest = float(np.abs(exact[finite]).max(initial=0.0))
        return MARGIN * float(error[finite].max(initial=0.0)) + ULPS * largest * EPS
