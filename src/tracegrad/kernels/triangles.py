"""Find the triangles that masks hide: halves of a tensor whose elements are exactly 0, or are never read.

The *half* (row, column) of a tensor is the set of elements whose coordinate along axis `column` is larger than that
along `row`. Causal attention hides the half of the last two axes. A comparison of two coordinates gives the half where
a mask is false. That half of `where(mask, x, 0)` is zeros. Views and ops that cannot turn 0 into NaN keep the zeros.
The same half of `x` is unread if every path from `x` to a result leads through such a choice.

Products skip terms that are zero and results that are never read (`left_out`).
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from tracegrad.ir.nodes import Tensor
from tracegrad.kernels.coordinates import regroup
from tracegrad.kernels.expr import Space
from tracegrad.kernels.form import Limit
from tracegrad.prims.leaves import IOTA, constant

Half = tuple[int, int]  # row, column
Halves = frozenset[Half]
NONE: Halves = frozenset()
CHOICE = "where"  # chooses its second input where the first holds, else its third


class Triangles:
    """The halves of all tensors of a graph. `order` is topological; `roots` are serials of values that others read."""

    def __init__(self, order: Sequence[Tensor], roots: Iterable[int]) -> None:
        self.zero = defaultdict[int, Halves](frozenset)  # halves of exact zeros, or where a mask is false
        self.true = defaultdict[int, Halves](frozenset)  # halves where a mask is true
        self._along: dict[int, int] = {}  # serial of a tensor that equals its coordinate along an axis -> that axis
        for t in order:
            if t.prim is IOTA:
                self._along[t.serial] = t.axis
            elif t.prim.family == "view":
                self._move(t)
            elif t.prim.family == "map":
                self._compute(t)
        masks = any(t.prim.name == CHOICE and self._known(t.inputs[0]) for t in order)
        self.unread = unread_parts(order, roots, self._unread) if masks else {}

    def left_out(self, t: Tensor, outs: Iterable[Tensor]) -> tuple[Limit, ...]:
        """Return the limits under which the product `t`, whose kernel stores `outs`, can skip points."""
        a, b = t.inputs
        found: list[Limit] = []
        unread = [self.unread.get(x.serial, NONE) if x.shape == t.shape else NONE for x in (t, *outs)]
        for halves, row, column in (
            (unread[0].intersection(*unread[1:]), "m", "n"),
            (self.zero[a.serial], "m", "k"),
            (self.zero[b.serial], "k", "n"),
        ):
            axes = t.ndim if "k" not in (row, column) else a.ndim
            m, n = axes - 2, axes - 1
            if (m, n) in halves:
                found.append(Limit(column, row))
            if (n, m) in halves:
                found.append(Limit(row, column))
        return tuple(found)

    # halves of zeros
    def _known(self, t: Tensor) -> Halves:
        return self.zero[t.serial] | self.true[t.serial]

    def _zero(self, t: Tensor, half: Half) -> bool:
        return half in self.zero[t.serial] or constant(t) == 0.0

    def _move(self, t: Tensor) -> None:
        """Find the halves of a view's result, for axes that the view keeps."""
        x = t.inputs[0]
        if x.serial not in self._along and not self._known(x):
            return
        axes, whole = axes_through(t)
        self.zero[t.serial] = moved(self.zero[x.serial], axes)
        if whole:  # otherwise zeros surround the input
            self.true[t.serial] = moved(self.true[x.serial], axes)
            if self._along.get(x.serial) in axes:
                self._along[t.serial] = axes[self._along[x.serial]]

    def _compute(self, t: Tensor) -> None:
        name, xs = t.prim.name, t.inputs
        if name in ("less", "less_equal"):
            a, b = (self._along.get(x.serial, -1) for x in xs)
            if a != b and a >= 0 and b >= 0:
                self.zero[t.serial] = frozenset({(b, a)})
                self.true[t.serial] = frozenset({(a, b)})
        elif any(map(self._known, xs)):
            zero, true = (tuple([found[x.serial] for x in xs]) for found in (self.zero, self.true))
            if name == CHOICE:
                halves = NONE.union(*map(self._known, xs))
                self.zero[t.serial] = frozenset(h for h in halves if self._chosen_zero(h, *xs))
            elif name in MASKS:
                zero_rule, true_rule = MASKS[name]
                self.zero[t.serial] = zero_rule(*zero, *true)
                self.true[t.serial] = true_rule(*zero, *true)
            elif t.prim.passes or name == "neg":
                self.zero[t.serial] = zero[0]
            elif name in ("add", "sub"):
                self.zero[t.serial] = zero[0] & zero[1]
            elif name == "mul":  # unless the other factor can be infinite
                factors = [c is not None and math.isfinite(c) for c in map(constant, xs)]
                self.zero[t.serial] = NONE.union(*(z for z, other in zip(zero, factors[::-1]) if other))

    def _chosen_zero(self, h: Half, mask: Tensor, a: Tensor, b: Tensor) -> bool:
        """Return whether every element that `mask` chooses in the half is zero."""
        first = h in self.zero[mask.serial] or self._zero(a, h)
        return first and (h in self.true[mask.serial] or self._zero(b, h))

    # unread halves
    def _unread(self, t: Tensor, mine: Halves) -> list[Halves]:
        """Return the halves that `t` does not read of each of its inputs. mine: its own unread halves."""
        if t.prim.family == "view":
            return [moved(mine, {e: d for d, e in axes_through(t)[0].items()}) if mine else NONE]
        if t.prim.name == CHOICE:
            mask = t.inputs[0].serial
            return [mine, mine | self.zero[mask], mine | self.true[mask]]
        return [mine if t.prim.family == "map" else NONE] * len(t.inputs)


Rule = Callable[..., Halves]
MASKS: dict[str, tuple[Rule, Rule]] = {  # halves of the operands where they are false, and true -> those of the result
    "logical_not": (lambda z, t: t, lambda z, t: z),
    "logical_and": (lambda z, y, s, t: z | y, lambda z, y, s, t: s & t),
    "logical_or": (lambda z, y, s, t: z & y, lambda z, y, s, t: s | t),
}


Part = TypeVar("Part")


def unread_parts(
    order: Sequence[Tensor], roots: Iterable[int], of: Callable[[Tensor, frozenset[Part]], Sequence[frozenset[Part]]]
) -> dict[int, frozenset[Part]]:
    """Return the parts of each tensor that nothing reads.

    roots: serials of values that others read.
    of:    returns the parts that a node does not read of each of its inputs, given its own unread parts.
    """
    found = dict.fromkeys(roots, frozenset[Part]())
    for t in reversed(order):
        for x, parts in zip(t.inputs, of(t, found.get(t.serial, frozenset[Part]()))):
            found[x.serial] = found[x.serial] & parts if x.serial in found else parts
    return found


def axes_through(t: Tensor) -> tuple[dict[int, int], bool]:
    """Map axes of a view's input to axes of its result with the same coordinate.

    The second value tells whether every element of the result is one of the input.
    """
    x, space = t.inputs[0], Space()
    own = tuple([space.var(str(d), n) for d, n in enumerate(t.shape)])
    if t.prim.index is None:
        found, guards = regroup(own, t.shape, x.shape, space), ()
    else:
        found, guards = t.prim.index(own, x.type, **t.attrs)
    at = {i: e for e, i in enumerate(own) if t.shape[e] > 1}
    return {d: at[i] for d, i in enumerate(found) if i in at}, not guards


def moved(halves: Halves, axes: dict[int, int]) -> Halves:
    """Rename the halves by other axes; drop halves whose axes have no new name."""
    return frozenset((axes[r], axes[c]) for r, c in halves if r in axes and c in axes)
