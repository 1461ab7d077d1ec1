"""One product for a sum of products: a b + c d + ... is a product over k = (part, own k).

Each product but the first would wait for the one before, with the sum so far as its epilogue, and begin and end its
tiles again. The gradient of what q, k and v are made of is such a sum.

The operands of one side lie side by side. Computed ones do so in a *pack*, whose parts are written in place by the
kernels that compute them; parameters, if that is how they lie anyway. Nothing is copied: what is placed already
(delivered, part of another pack) or apart from the others (inputs) is left where it is, and so is its product; and
what lives at another time, because a pack lives as one.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass

from tracegrad import ambient
from tracegrad.ir import PRIMITIVES, Tensor, bind, rebind, toposort
from tracegrad.kernels.reads import base
from tracegrad.kernels.stored import stored_nodes
from tracegrad.kernels.tiling import HALF
from tracegrad.passes.split import TRAFFIC, fastest
from tracegrad.prims.folds import MATMUL, PACK, SPAN
from tracegrad.prims.views import RESHAPE, permute, reshape
from tracegrad.transforms.forwards import batches

ADD = PRIMITIVES[MATMUL.combine]
PLACING = ("pack", "scan")  # families that say where their inputs lie
Views = tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Operand:
    """A side of a product: a chain of views of `stored`, which has the order of the memory behind it."""

    view: Tensor
    stored: Tensor

    @staticmethod
    def of(view: Tensor) -> Operand:
        """Seen through all views but those that wait for something."""
        t = stored = view
        while t.prim.family == "view" and len(t.inputs) == 1:
            stored = stored if t.prim is RESHAPE else t.inputs[0]
            t = t.inputs[0]
        return Operand(view, stored)

    @property
    def views(self) -> Views:
        """Equal where the same views lead to equal types."""
        chain: list[object] = [self.stored.type]
        t = self.view
        while t is not self.stored:
            chain.append((t.prim.name, *t.attrs.items()))
            t = t.inputs[0]
        return tuple(chain)

    @property
    def memory(self) -> Tensor:
        """What writes it."""
        return base(self.stored)

    @property
    def is_parameter(self) -> bool:
        """Of the kind that is trained."""
        return self.memory.attrs.get("role") == "param"


@dataclass(frozen=True, slots=True)
class Term:
    """A product among the terms of a sum."""

    product: Tensor
    left: Operand
    right: Operand

    @property
    def sides(self) -> tuple[Operand, Operand]:
        """Both."""
        return self.left, self.right

    @property
    def form(self) -> object:
        """Equal where products may become one."""
        return self.product.type, *((x.views, x.is_parameter) for x in self.sides)


def merge_products(roots: Sequence[Tensor], offsets: Mapping[str, int]) -> list[Tensor]:
    """a b + c d  ->  (a, c) (b, d), k being (part, own k), where that is faster. Comes before products are split.

    offsets: where parameters lie in the array of all.
    """
    order = toposort(roots)
    if sum(t.prim is MATMUL for t in order) < 2:
        return list(roots)
    reads = Counter(x.serial for t in order for x in t.inputs) + Counter(t.serial for t in roots)
    sums = _sums(order, reads)
    if not sums:
        return list(roots)
    packing = _Packing(order, roots, offsets)
    merges = {top: groups for top, terms in sums.items() if (groups := packing.groups(terms, reads))}
    if not merges:
        return list(roots)
    new: dict[int, Tensor] = {}
    with ambient.rewriting() as here:
        for t in order:
            here.site = t.site
            if t.serial in merges:
                new[t.serial] = _merged(t, sums[t.serial], merges[t.serial], new)
            else:
                new[t.serial] = rebind(t, [new[x.serial] for x in t.inputs])
    return [new[t.serial] for t in roots]


def _sums(order: Sequence[Tensor], reads: Mapping[int, int]) -> dict[int, list[Tensor]]:
    """Serial of the last addition of a tree -> its terms, seen through reshapes, if two or more are products.

    Nothing else reads what is within.
    """
    seen: set[int] = set()
    found: dict[int, list[Tensor]] = {}
    for top in reversed(order):
        if top.prim is not ADD or top.serial in seen:
            continue
        terms: list[Tensor] = []
        stack = [top]
        while stack:
            t = stack.pop()
            if t is top or (t.prim in (ADD, RESHAPE) and reads[t.serial] == 1):
                seen.add(t.serial)
                stack.extend(reversed(t.inputs))
            else:
                terms.append(t)
        if sum(t.prim is MATMUL and reads[t.serial] == 1 for t in terms) > 1:
            found[top.serial] = terms
    return dict(reversed(found.items()))


class _Packing:
    """Decides which terms become one product, and remembers what lies in packs by then."""

    def __init__(self, order: Sequence[Tensor], roots: Sequence[Tensor], offsets: Mapping[str, int]) -> None:
        delivered = [base(t) for t in roots]
        placed = [base(x) for t in order if t.prim.family in PLACING for x in t.inputs]
        self.offsets = offsets
        self.stored: Container[int] = stored_nodes(order, delivered)
        self.claimed = {t.serial for t in (*delivered, *placed)}
        self.last: dict[int, int] = {}  # serial -> that of the last node that computes with it
        for t in reversed(order):
            at = self.last.get(t.serial, 0) if t.prim.family == "view" else t.serial
            self.last.update((x.serial, max(at, self.last.get(x.serial, 0))) for x in t.operands)

    def groups(self, terms: Sequence[Tensor], reads: Mapping[int, int]) -> list[list[Term]]:
        """Terms of one form whose operands may lie side by side, at least two each. Nobody else has those then."""
        alike: dict[object, list[Term]] = {}
        for t in terms:
            if t.prim is MATMUL and reads[t.serial] == 1:
                term = Term(t, *map(Operand.of, t.inputs))
                alike.setdefault(term.form, []).append(term)
        found: list[list[Term]] = []
        for same in alike.values():
            for group in self.neighbours(self.free(same)):
                if len(group) > 1 and self.live_at_once(group) and _is_faster(group):
                    found.append(group)
                    self.claimed.update(x.memory.serial for term in group for x in term.sides)
        return found

    def free(self, terms: Sequence[Term]) -> list[Term]:
        """Those whose operands are parameters, or written by kernels that may be told where."""
        claimed = set(self.claimed)
        out: list[Term] = []
        for term in terms:
            written = {x.memory.serial for x in term.sides if not x.is_parameter}
            once = len(written) == sum(not x.is_parameter for x in term.sides) and claimed.isdisjoint(written)
            if once and all(map(self.may_be_placed, term.sides)):
                claimed |= written
                out.append(term)
        return out

    def may_be_placed(self, x: Operand) -> bool:
        return x.memory.name in self.offsets if x.is_parameter else x.memory.serial in self.stored

    def live_at_once(self, group: Sequence[Term]) -> bool:
        """Are all operands there before one of them is read for the last time? Else a pack would keep it for longer.

        So the gradients of the steps of a loop that is written out are not packed. What a product is the last to read
        may live longer if the product's result takes as much memory, which does not live then.
        """
        born, dies = 0, math.inf
        for term in group:
            written = [x.memory for x in term.sides if not x.is_parameter]
            result = term.product if sum(t.size for t in written) <= term.product.size else None
            born = max([born, *(t.serial for t in written)])
            last = (self.last[t.serial] for t in written)
            dies = min([dies, *(at for at in last if result is None or at != result.serial)])
        return born < dies

    def neighbours(self, terms: Sequence[Term]) -> list[list[Term]]:
        """Those whose parameters lie one after the other, in that order."""
        groups: list[list[Term]] = []
        for term in sorted(terms, key=lambda t: [self.offsets[x.memory.name] for x in t.sides if x.is_parameter]):
            if groups and all(map(self.follows, groups[-1][-1].sides, term.sides)):
                groups[-1].append(term)
            else:
                groups.append([term])
        return groups

    def follows(self, a: Operand, b: Operand) -> bool:
        """May `b` lie right behind `a`?"""
        at = [self.offsets[x.memory.name] for x in (a, b) if x.is_parameter]
        return not at or at[0] + a.stored.size == at[1]


def _is_faster(group: Sequence[Term]) -> bool:
    """By the time of products and the traffic of partial sums; launches saved are not counted."""
    *batch, m, n = group[0].product.shape
    b, k, parts = math.prod(batch), group[0].left.view.shape[-1], len(group)
    if min(m, n) < HALF:  # folded point by point
        return False
    apart = parts * fastest(b, m, n, k) + (parts - 1) * TRAFFIC * b * m * n
    return fastest(b, m, n, parts * k) < apart


def _merged(
    top: Tensor, terms: Sequence[Tensor], groups: Sequence[Sequence[Term]], new: Mapping[int, Tensor]
) -> Tensor:
    """The sum, with each group of products as one, where its first was."""
    first = {group[0].product.serial: group for group in groups}
    others = {t.product.serial for group in groups for t in group[1:]}
    total: Tensor | None = None
    for t in terms:
        if t.serial not in others:
            value = _product(first[t.serial], new) if t.serial in first else new[t.serial]
            value = reshape(value, top.shape)
            total = value if total is None else bind(ADD, total, value)
    assert total is not None
    return total


def _product(group: Sequence[Term], new: Mapping[int, Tensor]) -> Tensor:
    """One product for a group."""
    sides = [[term.sides[k] for term in group] for k in (0, 1)]
    left, right = (_beside(side, new) for side in sides)
    *batch, m, k = group[0].left.view.shape
    n, axes = right.shape[-1], range(1, len(batch) + 1)
    last = len(batch) + 1
    a = reshape(permute(left, (*axes, last, 0, last + 1)), (*batch, m, len(group) * k))
    b = reshape(permute(right, (*axes, 0, last, last + 1)), (*batch, len(group) * k, n))
    return bind(MATMUL, a, b)


def _beside(side: Sequence[Operand], new: Mapping[int, Tensor]) -> Tensor:
    """All operands of a side along a new axis 0: what is stored lies so, and behind it are the views that all share."""
    first = side[0]
    parts = bind(SPAN if first.is_parameter else PACK, *(new[x.memory.serial] for x in side))
    whole = reshape(parts, (len(side), *first.stored.shape))
    (views,) = batches([new[first.view.serial]], {new[first.stored.serial]: whole}, len(side))
    assert views is not None
    return views
