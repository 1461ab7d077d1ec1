"""Half precision: how far results may be where any value of a program may be rounded to f16 or bf16.

`precision="f16"` lets kernels store some values as halves; on JAX it and "bf16" round the operands of products. Which
values those are is the compiler's choice. So each value of the graph, inputs included, may be rounded once, to nearest:

    a value v, known within e, is then known within  e + u (|v| + e) + t

with u = 2**-11 and t = 2**-25 for f16, 2**-8 and 2**-134 for bf16. `bounds` carries that to all that depends on it, so
the bound of a result grows with the depth of the program. A value that is exact, and a half, stays exact: programs of
small integers are compared bit for bit. Beyond the largest half nothing is known.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fuzzing.bounds import LARGEST, Array, Known

KEEPING = ("view", "pack", "item", "scan")  # families that only hand on values that were rounded, or not, before


@dataclass(frozen=True)
class Format:
    """A half type: unit roundoff, half of the smallest number, and the largest one."""

    name: str
    unit: float
    least: float
    largest: float

    def holds(self, v: Array) -> Array:
        """Which elements are such halves. A bf16 is an f32 whose last 16 bits are 0."""
        if self.name == "f16":
            return v.astype(np.float16) == v
        return (v.astype(np.float32) == v) & (v.astype(np.float32).view(np.uint32) & 0xFFFF == 0)

    def rounded(self, known: Known) -> Known:
        """A value that may have been stored as such a half, or not."""
        v, e = known.v, known.e
        if v.dtype.kind != "f" or known.parts:
            return known
        e = np.where((e == 0) & (self.holds(v) | ~np.isfinite(v)), e, e + self.unit * (np.abs(v) + e) + self.least)
        return Known(v, np.where(np.isfinite(v) & (np.abs(v) + e > self.largest), np.inf, e), known.w)


F16 = Format("f16", 2.0**-11, 2.0**-25, 65504.0)
BF16 = Format("bf16", 2.0**-8, 2.0**-134, LARGEST)
