"""Graph to graph: the same values in fewer calls of NumPy, each of which costs more than the numbers in it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from tracegrad import ambient
from tracegrad.ir import PRIMITIVES, Tensor, bind, rebind, toposort
from tracegrad.passes.simplify import constant
from tracegrad.prims.elementwise import WHERE
from tracegrad.prims.views import RESHAPE


def shorten(roots: Sequence[Tensor]) -> list[Tensor]:
    """What `roots` are, with limits written as such, and folds that do not keep the axes which a reshape drops."""
    nodes = toposort(roots)
    readers = Counter([x.serial for t in nodes for x in t.inputs] + [t.serial for t in roots])
    new: dict[int, Tensor] = {}
    with ambient.rewriting():
        for t in nodes:
            inputs = tuple([new[x.serial] for x in t.inputs])
            if t.prim is RESHAPE and readers[t.inputs[0].serial] == 1 and _drops(t):
                (fold,) = inputs
                attrs = {"axes": fold.axes if t.ndim else None, "keepdims": False}  # None, all of them, is the quickest
                new[t.serial] = Tensor(fold.prim, fold.inputs, attrs, t.type, t.site)
            else:
                limit = _limit(t, inputs)
                new[t.serial] = (rebind(t, inputs) if inputs else t) if limit is None else limit
    return [new[t.serial] for t in roots]


def _drops(t: Tensor) -> bool:
    """Does a reshape only drop the axes that its input has folded?"""
    x = t.inputs[0]
    return x.prim.family == "fold" and t.shape == tuple([n for d, n in enumerate(x.shape) if d not in x.axes])


def _limit(t: Tensor, inputs: tuple[Tensor, ...]) -> Tensor | None:
    """`where(x <= k, k, x)` of a number k as maximum(x, k), and `where(k <= x, k, x)` as minimum(x, k).

    The number comes last: of equal operands NumPy takes the second, so that a negative zero becomes the positive one.
    """
    if t.prim is not WHERE or t.inputs[0].prim.name not in ("less", "less_equal"):
        return None
    (a, b), k, x = t.inputs[0].inputs, constant(t.inputs[1]), t.inputs[2]
    if k is None or k != k or not (a is x and constant(b) == k or b is x and constant(a) == k):
        return None
    return bind(PRIMITIVES["maximum" if a is x else "minimum"], inputs[2], inputs[1])
