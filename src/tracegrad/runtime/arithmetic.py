"""Check the single operations of a C compiler, on operands where compilers and their flags go wrong.

The check of kernels uses ordinary numbers and allows rounding. So it misses a `minimum` that drops NaN, a square root
of few digits, denormals that become 0, or a compiler that assumes that infinities do not exist. Each operation here has
exactly one right result, so no rounding is allowed.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from concurrent.futures import Future
from functools import cache
from typing import Any

from tracegrad.arrays import np
from tracegrad.evaluate import function_of
from tracegrad.ir import PRIMITIVES
from tracegrad.render.c_text import PRELUDE, as_c, helper
from tracegrad.runtime.verdicts import Verdicts, key_of

Array = Any
Begin = Callable[[str], "Future[ctypes.CDLL | None]"]

# Rows of the table whose result IEEE 754 defines to the last bit, with their number of operands
ROWS = {
    "add": 2, "sub": 2, "mul": 2, "div": 2, "neg": 1, "abs": 1, "sign": 1, "square": 1, "sqrt": 1, "rsqrt": 1,
    "floor": 1, "ceil": 1, "round": 1, "minimum": 2, "maximum": 2, "less": 2, "less_equal": 2, "equal": 2,
    "not_equal": 2, "nonfinite": 1, "isnan": 1, "half": 1,
}  # fmt: skip
# Zeros, denormals of both precisions, ties, values that overflow; each with both signs
SPECIAL = (
    0.0, 1e-45, 1e-40, 2.0**-126, 2.0**-25, 2.0**-24, 3 * 2.0**-25, 5e-5, 2.0**-14, 0.1, 0.5, 1.0, 1.5, 2.5, 3.0, 7.3,
    1000.5, 2049.0, 65504.0, 65519.0, 65520.0, 16777217.0, 1.8e19, 3e38, float("inf"), float("nan"),
)  # fmt: skip


@cache
def operands() -> tuple[Array, Array]:
    """Return every pair of the special numbers."""
    x = np.asarray([*SPECIAL, *(-v for v in SPECIAL)], np.float32)
    return np.repeat(x, x.size), np.tile(x, x.size)


@cache
def source() -> str:
    """Return a C function for each row, written as in kernels: a loop over operands."""
    helpers: dict[str, None] = {}
    loops: list[str] = []
    count = operands()[0].size  # a constant multiple of all vector lengths: less for the compiler to write
    for name in ROWS:
        p = PRIMITIVES[name]
        helpers |= dict.fromkeys([p.helper] * bool(p.helper))
        value = as_c(f"f32({p.wgsl.format('x', 'y', t='f32', of='f32')})")
        loops.append(
            f"void check_{name}(const float *restrict a, const float *restrict b, float *restrict out) {{\n"
            f"  for (long i = 0; i < {count}; i++) {{ const float x = a[i], y = b[i]; out[i] = {value}; }}\n}}"
        )
    return "\n".join([PRELUDE, *map(helper, helpers), *loops])


class Arithmetic:
    """The check of one compiler. The compilation runs in the background."""

    def __init__(self, verdicts: Verdicts, begin: Begin) -> None:
        self._verdicts, self.key = verdicts, key_of("arithmetic", source(), str(_flushes()))
        self._library = begin(source()) if verdicts.known(self.key) is None else None

    def fault(self) -> str:
        """Describe an operation that the compiler gets wrong; "" if there is none, or if the verdict was known."""
        library = self._library and self._library.result()
        if library is None:
            return ""
        how = next(filter(None, (_difference(library, name) for name in ROWS)), "")
        self._verdicts.add({self.key: how})
        return how


def _flushes() -> bool:
    """Return whether this process told its processor to flush denormals to 0: its verdicts do not hold for others."""
    return not np.float32(1e-40) * np.float32(0.5)


def _difference(library: ctypes.CDLL, name: str) -> str:
    """Describe the first operands for which a row's result differs."""
    given, out = operands(), np.empty_like(operands()[0])
    library[f"check_{name}"](*[ctypes.c_void_p(x.ctypes.data) for x in (*given, out)])
    used = given[: ROWS[name]]
    with np.errstate(all="ignore"):
        want = np.asarray(function_of(PRIMITIVES[name], len(used), {}, np)(*used)).astype(np.float32)
    wrong = np.flatnonzero((out != want) & ~(np.isnan(out) & np.isnan(want)))
    if not wrong.size:
        return ""
    k = wrong[0]
    return f"{name}({', '.join(str(x[k]) for x in used)}) is {out[k]}, not {want[k]}"
