"""Join parts that lie side by side: a sum of arrays placed among zeros is a concatenation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tracegrad.ir.nodes import PRIMITIVES, Tensor, bind, rewrite
from tracegrad.passes.scans import everywhere
from tracegrad.prims.views import PLACE


class Placed(NamedTuple):
    """Arrays that do not overlap along an axis of a larger one, by where they begin."""

    axis: int
    length: int
    parts: dict[int, Tensor]

    def beside(self, other: Placed) -> Placed | None:
        """Return both together, or None if they overlap."""
        both = Placed(self.axis, self.length, dict(sorted({**self.parts, **other.parts}.items())))
        apart = len(both.parts) == len(self.parts) + len(other.parts) and self[:2] == other[:2]
        begins = [*both.parts, self.length]
        return both if apart and all(a + n <= b for a, n, b in zip(begins, both.sizes, begins[1:])) else None

    @property
    def sizes(self) -> list[int]:
        """Elements of each part along the axis."""
        return [x.shape[self.axis] for x in self.parts.values()]


def join_places(roots: Sequence[Tensor]) -> list[Tensor]:
    """Concatenate arrays that are placed among zeros and added, if they fill the whole axis.

    place(a, at 0) + place(b, behind a)  ->  concat(a, b)

    The gradient of an array that is read in slices is such a sum. XLA would compute each part for all elements.
    """
    return everywhere(roots, _joined)


def _joined(roots: Sequence[Tensor]) -> list[Tensor]:
    known: dict[int, Placed] = {}  # by the serial of a sum, also of an incomplete one

    def rule(t: Tensor, inputs: tuple[Tensor, ...]) -> Tensor | None:
        if t.prim is PLACE and t.attrs["step"] == 1 and inputs[0].size:
            known[t.serial] = Placed(t.attrs["axis"], t.attrs["length"], {t.attrs["start"]: inputs[0]})
        elif t.prim.name == "add" and all(x.serial in known for x in inputs):
            one, other = (known[x.serial] for x in inputs)
            both = one.beside(other)
            if both is not None and sum(both.sizes) == both.length:
                return bind(PRIMITIVES["concat"], *both.parts.values(), axis=both.axis)
            if both is not None:
                known[t.serial] = both
        return None

    return rewrite(roots, rule)
