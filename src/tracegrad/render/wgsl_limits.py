"""Apply limits and parts to a rectangle of results: whether to compute it at all, and over which k."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from tracegrad.kernels.form import Limit, Product, plus, points


@dataclass(frozen=True, slots=True)
class Span:
    """A rectangle of `rows` by `columns` results, beginning at `first_m` and `first_n`."""

    product: Product
    limits: Sequence[Limit]
    rows: int
    columns: int
    k: int

    @property
    def part(self) -> list[str]:
        """The part of k that the rectangle sums, from the flat index of its batch."""
        p = self.product
        return [f"let k_part = batch / {points(p.batch) // p.parts};"] if p.part else []

    def unread(self) -> list[str]:
        """Return code that leaves if no result is read. Either all threads of a workgroup leave or none."""
        apart = [x for x in self.limits if x.of_results]
        return [f"if (first_{x.low} >= first_{x.high} + {self.size(x.high)}) {{ return; }}" for x in apart]

    @property
    def first(self) -> str:
        """The first k that counts; "" if it is 0."""
        parts = [f"k_part * {self.product.part}"] if self.product.part else []
        return self.within([*(f"first_{x.low}" for x in self.limits if x.high == "k"), *parts], "max")

    @property
    def last(self) -> str:
        """The last k that counts; "" if it is the last of all. Less than `first` if none counts."""
        parts = [f"(k_part + 1) * {self.product.part} - 1"] if self.product.part else []
        bounds = (f"first_{x.high} + {self.size(x.high) - 1}" for x in self.limits if x.low == "k")
        return self.within([*bounds, *parts], "min")

    def size(self, name: str) -> int:
        """Return the rectangle's size along m or n."""
        return self.rows if name == "m" else self.columns

    def within(self, bounds: Sequence[str], of: str) -> str:
        """Return the `of` (max or min) of some bounds, limited to an index of k."""
        return f"min({reduce(lambda a, b: f'{of}({a}, {b})', bounds)}, {plus(self.k, -1)})" if bounds else ""
