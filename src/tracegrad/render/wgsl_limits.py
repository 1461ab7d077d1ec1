"""What limits and parts leave of a rectangle of results: whether it is computed at all, and over which k."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from tracegrad.kernels.form import Limit, Product, points
from tracegrad.lazy import dataclass


@dataclass(frozen=True, slots=True)
class Span:
    """A rectangle of `rows` by `columns` results, from `first_m` and `first_n` on."""

    product: Product
    limits: Sequence[Limit]
    rows: int
    columns: int
    k: int

    @property
    def part(self) -> list[str]:
        """Which part of k it sums, by the flat index of its batch."""
        p = self.product
        return [f"let k_part = batch / {points(p.batch) // p.parts};"] if p.part else []

    def unread(self) -> list[str]:
        """Leave, if none of the results is read: a whole workgroup leaves, or none of its threads."""
        apart = [x for x in self.limits if x.of_results]
        return [f"if (first_{x.low} >= first_{x.high} + {self.size(x.high)}) {{ return; }}" for x in apart]

    @property
    def first(self) -> str:
        """The first k that counts; "" if that is 0."""
        parts = [f"k_part * {self.product.part}"] if self.product.part else []
        return self.within([*(f"first_{x.low}" for x in self.limits if x.high == "k"), *parts], "max")

    @property
    def last(self) -> str:
        """The last k that counts; "" if that is the last of all. Less than `first` where none counts."""
        parts = [f"(k_part + 1) * {self.product.part} - 1"] if self.product.part else []
        bounds = (f"first_{x.high} + {self.size(x.high) - 1}" for x in self.limits if x.low == "k")
        return self.within([*bounds, *parts], "min")

    def size(self, name: str) -> int:
        """Of the rectangle along m or n."""
        return self.rows if name == "m" else self.columns

    def within(self, bounds: Sequence[str], of: str) -> str:
        """The greatest or the smallest of some bounds, but an index of k."""
        return f"min({reduce(lambda a, b: f'{of}({a}, {b})', bounds)}, {self.k - 1})" if bounds else ""
