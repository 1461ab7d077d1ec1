"""Extents that a run decides: how far a loop goes that was compiled for a capacity.

One program serves every size of a batch from 1 to a capacity. Indices and places are those of the capacity; what is
shorter are the outermost loops, of kernels whose rows do not know each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NoReturn

from tracegrad.errors import TracegradError
from tracegrad.kernels.form import Axis, Fold, Kernel, Statement

SIZE = "extent_n"  # how texts call the size of a run


class UnsizedError(TracegradError):
    """Something that no run can decide: the program is compiled for each size instead."""


class Extent(int):
    """`per` for each of a run's size. As a number it is what it comes to at the capacity.

    It may be compared, and multiplied by what is fixed. Whatever else is done with it would lose that it varies.
    """

    per: int

    @staticmethod
    def of(capacity: int, per: int) -> Extent:
        """`per` times the size, which is `capacity` at most."""
        made = Extent(capacity * per)
        made.per = per
        return made

    def at(self, size: int) -> int:
        """What it comes to."""
        return self.per * size

    def __mul__(self, other: int) -> Extent:
        if isinstance(other, Extent):
            return self._lost(other)
        made = Extent(int(self) * other)
        made.per = self.per * other
        return made

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        """A fixed extent that happens to be as large is another one."""
        return isinstance(other, Extent) and int(self) == int(other) and self.per == other.per

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash((int(self), self.per))

    def __str__(self) -> str:
        return f"({SIZE} * {self.per})"

    __repr__ = __str__

    def __format__(self, spec: str) -> str:
        return str(self)

    def _lost(self, *_: Any) -> NoReturn:
        raise UnsizedError(f"an extent of {self.per} for each of the batch is used as a number")

    __add__ = __radd__ = __sub__ = __rsub__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _lost
    __truediv__ = __rtruediv__ = __neg__ = __pow__ = __rpow__ = __lshift__ = __rshift__ = __divmod__ = _lost
    __rdivmod__ = __and__ = __or__ = __xor__ = __invert__ = __abs__ = _lost


def decided(n: int, size: int) -> int:
    """An extent in a run of some size."""
    return n.at(size) if isinstance(n, Extent) else n


def sized(kernel: Kernel, axis: str, extent: int) -> Kernel:
    """The kernel with another extent of an outer axis, such as one that a run decides."""

    def axes(given: Sequence[Axis]) -> tuple[Axis, ...]:
        return tuple([Axis(a.name, extent) if a.name == axis else a for a in given])

    def statement(s: Statement) -> Statement:
        if not isinstance(s, Fold) or s.product is None:
            return s
        p = s.product
        return replace(s, product=replace(p, batch=axes(p.batch), m=axes(p.m), n=axes(p.n)))

    return replace(kernel, outer=axes(kernel.outer), body=tuple(map(statement, kernel.body)))
