"""Rewrite a graph so that NumPy computes it in fewer calls: a call costs more than the arithmetic of small arrays."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tracegrad import ambient
from tracegrad.ir import PRIMITIVES, Tensor, bind, rebind, toposort
from tracegrad.prims.elementwise import WHERE
from tracegrad.prims.leaves import constant
from tracegrad.prims.views import RESHAPE


@ambient.restored
def shorten(roots: Sequence[Tensor]) -> list[Tensor]:
    """Return `roots` with limits written as `maximum` or `minimum`, and with reshapes merged into folds."""
    nodes = toposort(roots)
    readers = Counter([x.serial for t in nodes for x in t.inputs] + [t.serial for t in roots])
    new: dict[int, Tensor] = {}
    with ambient.rewriting():
        for t in nodes:
            inputs = tuple([new[x.serial] for x in t.inputs])
            if t.prim is RESHAPE and readers[t.inputs[0].serial] == 1 and _drops(t):
                (fold,) = inputs
                attrs = {"axes": fold.axes if t.ndim else None, "keepdims": False}  # None, for all axes, is the fastest
                new[t.serial] = Tensor(fold.prim, fold.inputs, attrs, t.type, t.site)
            else:
                limit = _limit(t)
                # The number comes last: of equal values NumPy takes the second, so -0.0 becomes 0.0
                new[t.serial] = (
                    bind(PRIMITIVES[limit[0]], inputs[2], inputs[1]) if limit else rebind(t, inputs) if inputs else t
                )
    return [new[t.serial] for t in roots]


def _drops(t: Tensor) -> bool:
    """Return whether a reshape only drops the axes that its input has folded."""
    x = t.inputs[0]
    return x.prim.family == "fold" and t.shape == tuple([n for d, n in enumerate(x.shape) if d not in x.axes])


def _limit(t: Tensor) -> tuple[str, Tensor, float] | None:
    """Read `where(x <= k, k, x)` of a number k as ("maximum", x, k), and `where(k <= x, k, x)` as ("minimum", x, k).

    The last x can also be a limit on the other side, if that limit is no nearer.
    """
    if t.prim is not WHERE or t.inputs[0].prim.name not in ("less", "less_equal"):
        return None
    (a, b), k, y = t.inputs[0].inputs, constant(t.inputs[1]), t.inputs[2]
    x, name = (a, "maximum") if constant(b) == k else (b, "minimum")
    if k is None or k != k or constant(b if x is a else a) != k:
        return None
    inner = _limit(y) if y is not x else None
    between = inner is not None and inner[1] is x and inner[0] != name and (inner[2] >= k) == (name == "maximum")
    return (name, x, k) if y is x or between else None
