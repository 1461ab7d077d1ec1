"""Find where to cut a loop's body: values after the cut are computed outside the loop, from values that it stores."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from tracegrad.inlining import computed_once
from tracegrad.ir import Tensor, toposort

PRODUCTS = ("product", "scatter")  # families worth moving: many small products become a large one
INSIDE = ("scan", "item")  # an inner loop stays: outside, the values of all outer iterations would need memory at once
NOTHING = frozenset[int]()


class Cut(NamedTuple):
    """Serials of nodes. The loop stores the values `at` the cut; those in `new` are not stored yet.

    `products` lie between the cut and the value that moves out; those in `inner` have other readers too.
    """

    at: frozenset[int] = NOTHING
    new: frozenset[int] = NOTHING
    products: frozenset[int] = NOTHING
    inner: frozenset[int] = NOTHING

    @property
    def extra(self) -> frozenset[int]:
        """Serials of nodes that must be stored in addition, for all iterations."""
        return self.new | self.inner

    @property
    def sinks(self) -> bool:
        """True if the value is better computed outside of the loop."""
        return bool(self.products) or not self.at


class Cuts:
    """The cuts of the values of one body.

    live: nodes that the next iteration needs, so that the loop computes everything on the way to them.
    """

    def __init__(self, live: Sequence[Tensor], roots: Sequence[Tensor], carries: Sequence[Tensor]) -> None:
        order = toposort(roots)
        self.nodes = {t.serial: t for t in order}
        self.stored: dict[int, Tensor] = {}
        self.live = {t.serial for t in (*toposort(live), *carries)}
        self.once = computed_once(order)
        self.bound = {t.serial for t in (*carries, *[t for t in order if t.prim.family in INSIDE])}
        for t in order:
            if any(x.serial in self.bound for x in t.inputs):
                self.bound.add(t.serial)

    def store(self, values: Iterable[Tensor]) -> None:
        """Mark values as stored for all iterations."""
        self.stored |= {t.serial: t for t in values}

    def of(self, roots: Sequence[Tensor]) -> Cut:
        """Return the cut before the inputs of `roots`."""
        found: dict[int, Cut] = {}
        for t in toposort(roots):
            found[t.serial] = self._of(t, _union([found[x.serial] for x in t.inputs]))
        return _union([found[t.serial] for t in roots])

    def _of(self, t: Tensor, behind: Cut) -> Cut:
        """Return where to cut off `t`, whose inputs are cut off at `behind`."""
        own, family = frozenset([t.serial]), t.prim.family
        if t.serial in self.stored:
            return Cut(own)
        if t.serial in self.once and family != "leaf":
            return Cut(own, own)
        if t.serial not in self.bound:
            return behind
        if family == "view" and len(t.inputs) == 1:
            return behind
        if family in PRODUCTS and t.serial not in self.live:
            return Cut(behind.at, behind.new, behind.products | own, behind.inner | behind.products)
        less = not behind.products and t.size < sum(self.nodes[serial].size for serial in behind.new)
        return Cut(own, own) if less or t.serial in self.live or family in (*INSIDE, "view") else behind


def _union(cuts: Sequence[Cut]) -> Cut:
    return Cut(*[frozenset[int]().union(*part) for part in zip(*cuts)]) if cuts else Cut()
