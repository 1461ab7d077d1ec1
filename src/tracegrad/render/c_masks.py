"""Rows in C that end where a mask over coordinates hides the rest, as a causal mask hides half of the scores.

Where `where(j <= i, x[i, j], 0)` is folded over j, no term beyond i counts. So loops over j end there, at a whole
vector. What the row stores beyond is a constant, and is not computed.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Set
from dataclasses import dataclass, replace

from tracegrad.kernels.expr import Index, Value, Var, walk
from tracegrad.kernels.form import Axis, Kernel, Store
from tracegrad.kernels.triangles import CHOICE
from tracegrad.render.emit import Emitter
from tracegrad.tuning import LANES, MASKED_ROWS

ROW_END = "row_end"


@dataclass(frozen=True)
class Masked:
    """Rows of which a mask hides all points from `end` on. What is stored there are constants."""

    end: Index
    hidden: list[Store]  # of the constants

    def declared(self, emit: Emitter, size: int) -> str:
        """Return the line that says where the loops of a row end: at a whole vector, or at its last point."""
        end = f"({emit.index(self.end, False)} + {LANES - 1}) / {LANES} * {LANES}"
        return f"const long {ROW_END} = min(max((long){end}, 0L), {size}L);"


def masked(kernel: Kernel, inner: list[Axis]) -> Masked | None:
    """Return where a mask hides all folds of each row, and all that it stores; None if this is of no use."""
    if len(inner) != 1 or not inner[0].fixed or inner[0].end >= 0 or inner[0].size < MASKED_ROWS:
        return None
    ends: dict[Index, set[Value]] = {}
    for v in walk([s.value for s in kernel.body]):
        if (end := _end(v, inner[0].name)) is not None:
            ends.setdefault(end, set()).add(v)
    for end, hidden in ends.items():
        known, stores = masked_constants([s.value for s in kernel.body], hidden), [s for s in kernel.stores if s.inner]
        if any(known.get(f.value) != f.prim.identity for f in kernel.folds) or any(
            s.value not in known for s in stores
        ):
            continue
        return Masked(end, [replace(s, value=end.space.const(known[s.value], s.value.dtype)) for s in stores])
    return None


def _end(v: Value, axis: str) -> Index | None:
    """Return e if the value is a mask that is true where a loop's variable is below e, which other loops choose."""
    if v.op != "map" or v.arg[0] not in ("less", "less_equal") or any(x.op != "index" for x in v.args):
        return None
    ahead = v.args[1].arg - v.args[0].arg
    others = {a: c for a, c in ahead.terms if isinstance(a, Var) and a.name != axis}
    if ahead.strides.get(axis) != -1 or len(others) != len(ahead.terms) - 1:
        return None
    return ahead.space.index(others, ahead.const + (v.arg[0] == "less_equal"))


def masked_constants(roots: Iterable[Value], hidden: Set[Value]) -> dict[Value, float]:
    """Return the constants that values are where these masks are false, as far as they are known."""
    found: dict[Value, float] = {}
    for v in walk(roots):
        if v in hidden or v.op == "const":
            found[v] = False if v in hidden else v.arg
        elif v.op == "map" and (constant := _constant(v, [found.get(x) for x in v.args])) is not None:
            found[v] = constant
    return found


def _constant(v: Value, known: list[float | None]) -> float | None:
    name, numbers = v.arg[0], [x for x in known if x is not None and math.isfinite(x)]
    if name == CHOICE and known[0] is not None:
        return known[1] if known[0] else known[2]
    if name == "logical_and" and any(x is False for x in known):
        return False
    if name == "mul" and v.dtype.is_float and len(numbers) == 2 and 0 in numbers:
        return math.prod(numbers)  # a zero, of the sign that the product has
    return None
