"""The kernel form: the computation of a kernel and its points, independent of any language.

A kernel covers `outer` points; each may fold over the `inner` points of its own row. Its body is a list of
statements in order. A value is at the inner level (one per point of the row) if it depends on an inner variable, else
at the outer level (one per row). Every load comes before every store to the same element.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from tracegrad.dtypes import DType, strides_of
from tracegrad.errors import TracegradError
from tracegrad.ir.nodes import Primitive
from tracegrad.kernels.expr import Index, Value, walk
from tracegrad.tuning import LANES

SIZE = "extent_n"  # the name of a run's size in generated code


class UnsizedError(TracegradError):
    """Raised if one program cannot serve all sizes. A program is then compiled for each size."""


class Extent(int):
    """An extent of `per` points for each unit of a run's size. As a number, it is the extent at the capacity.

    A product with a fixed number is an Extent, with `per` multiplied. All other arithmetic raises UnsizedError, because
    the result would be right at the capacity only.
    """

    per: int

    @staticmethod
    def of(capacity: int, per: int) -> Extent:
        """Return the extent of `per` times the size; the size is at most `capacity`."""
        made = Extent(capacity * per)
        made.per = per
        return made

    def at(self, size: int) -> int:
        """Return the extent in a run of this size."""
        return self.per * size

    def __mul__(self, other: int) -> Extent:
        if isinstance(other, Extent):
            return self._lost(other)
        made = Extent(int(self) * other)
        made.per = self.per * other
        return made

    __rmul__ = __mul__

    def __eq__(self, other: object) -> bool:
        """Return whether two extents are equal at every size; a plain number never equals an Extent."""
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


def divides(step: int, n: int) -> bool:
    """Return whether `step` divides the extent `n` in runs of all sizes."""
    return (n.per if isinstance(n, Extent) else n) % step == 0


def plus(n: int, added: int) -> int | str:
    """Return `n + added`, as code if `n` depends on the size of a run."""
    return f"({n} {'-' if added < 0 else '+'} {abs(added)})" if isinstance(n, Extent) else n + added


def decided(n: int, size: int) -> int:
    """Return an extent in a run of this size, as a plain number."""
    return n.at(size) if isinstance(n, Extent) else n


@dataclass(frozen=True, slots=True)
class Axis:
    """A loop variable and its size, which is an Extent if it depends on the size of a run.

    end:    the slot of an i32, if nothing needs the points from this number on; else -1. Loops can ignore it.
    before: how many points of the same axis come before, if this is a piece of an axis; they count for `end`.
    """

    name: str
    size: int
    end: int = -1
    before: int = 0

    @property
    def fixed(self) -> bool:
        """Whether its size is the same in all runs."""
        return not isinstance(self.size, Extent)

    @property
    def tried(self) -> int:
        """How many points count in checks of kernels: not all, if loops can end before.

        If they are many, they are one more than whole vectors, so that a loop of vectors that ends early is found.
        """
        most = 2 * int(self.size) // 3
        return int(self.size) if self.end < 0 else max(1, most - (most - 1) % LANES if most > LANES else most)


def points(axes: Iterable[Axis]) -> int:
    """Return the number of points that the axes span."""
    return math.prod([a.size for a in axes])


@dataclass(frozen=True, slots=True)
class Slot:
    """A value in memory that the kernel reads or writes."""

    dtype: DType
    size: int  # elements
    written: bool
    replaces: int = -1  # the slot whose memory this one overwrites, if the kernel also reads it


@dataclass(frozen=True, slots=True)
class Limit:
    """Restricts a product to the points with `low` <= `high`: the names of two of its coordinates m, n and k.

    All other points add zero or, if the two coordinates are m and n, belong to results without readers.
    """

    low: str
    high: str

    @property
    def of_results(self) -> bool:
        """True if the limit excludes results; False if it excludes terms of their sums."""
        return "k" not in (self.low, self.high)

    def left(self, sizes: Mapping[str, int]) -> int:
        """Return how many points satisfy the limit, among coordinates of these sizes."""
        low, high = sizes[self.low], sizes[self.high]
        first = min(low, high)  # values of `high` for which only some values of `low` satisfy the limit
        return (first * (first + 1) // 2 + (high - first) * low) * (math.prod(sizes.values()) // (low * high))


@dataclass(frozen=True, slots=True)
class Product:
    """Operands of a product: a over (batch, m, k), b over (batch, k, n)."""

    a: Value
    b: Value
    batch: tuple[Axis, ...]
    m: tuple[Axis, ...]
    n: tuple[Axis, ...]
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True, slots=True)
class Scatter:
    """A fold that sums `update` into the rows that `target` names: where(target == row, update, 0).

    The rows are m, and the target of an update is the same for all n. The axes of elements that have targets of their
    own are in the batch.
    """

    target: Value  # i32
    row: Index
    update: Value
    batch: tuple[Axis, ...]
    m: tuple[Axis, ...]
    n: tuple[Axis, ...]


@dataclass(frozen=True, slots=True)
class Fold:
    """local = the fold `prim` of `value` over the inner axes."""

    local: str
    prim: Primitive
    value: Value
    product: Product | None = None
    # A float sum in which one target serves all n is also a `product`: of the one-hot matrix and the updates
    scatter: Scatter | None = None


@dataclass(frozen=True, slots=True)
class Store:
    """slot[index] = value: for each point of the row if `inner`, else once a row."""

    slot: int
    index: Index
    value: Value
    inner: bool


Statement = Fold | Store


def operands_of(s: Statement) -> list[Value]:
    """Return the values that a statement is computed from."""
    if isinstance(s, Fold) and s.scatter is not None:
        return [s.scatter.target, s.scatter.update]
    if isinstance(s, Fold) and s.product is not None:
        return [s.product.a, s.product.b]
    return [s.value]


@dataclass(frozen=True, slots=True)
class Kernel:
    """One fused computation."""

    outer: tuple[Axis, ...]
    inner: tuple[Axis, ...]
    slots: tuple[Slot, ...]
    body: tuple[Statement, ...]
    label: str
    uniform: bool = False  # the folds are the same for all outer points: a workgroup computes them once

    @property
    def rows(self) -> int:
        """Number of outer points."""
        return points(self.outer)

    @property
    def length(self) -> int:
        """The number of points that are folded for one outer point."""
        return points(self.inner)

    @property
    def work(self) -> int:
        """The number of points that the kernel computes, at the capacity. If uniform, it folds one row for all."""
        rows, length = int(self.rows), int(self.length)  # at the capacity, if they depend on the size of a run
        return rows + length if self.uniform else rows * length

    @property
    def folds(self) -> list[Fold]:
        """The folds of the body, in order."""
        return [s for s in self.body if isinstance(s, Fold)]

    @property
    def stores(self) -> list[Store]:
        """The stores of the body, in order."""
        return [s for s in self.body if isinstance(s, Store)]

    @property
    def pointwise(self) -> bool:
        """True if the kernel stores once for each outer point, and folds nothing."""
        return all(isinstance(s, Store) and not s.inner for s in self.body)

    def loaded(self, v: Value) -> DType:
        """Return the type in memory of a loaded value: an f32 can be stored in half precision."""
        slot: int = v.arg[0]
        return self.slots[slot].dtype

    @property
    def product(self) -> Product | None:
        """The kernel's product, if it has one."""
        return next((f.product for f in self.folds if f.product is not None), None)

    @property
    def scatter(self) -> Scatter | None:
        """The kernel's scatter, if it has one."""
        return next((f.scatter for f in self.folds if f.scatter is not None), None)


def fold_batches(kernel: Kernel) -> list[list[Fold]]:
    """Group the folds in order; neighbours that do not need each other's results share a loop."""
    out: list[list[Fold]] = []
    for s in kernel.folds:
        before = {f.local for f in out[-1]} if out else set[str]()
        if before and not any(x.op == "local" and x.arg in before for x in walk([s.value])):
            out[-1].append(s)
        else:
            out.append([s])
    return out


def capacity_of(kernel: Kernel) -> int:
    """Return the largest size of a run, or 0 if no axis of the kernel depends on the size."""
    found = (int(a.size) // a.size.per for a in (*kernel.outer, *kernel.inner) if isinstance(a.size, Extent))
    return next(found, 0)


def on_device(kernel: Kernel) -> Kernel:
    """Return a sized kernel for a GPU, with outer axes of the capacity: the grid of a run covers the rows it needs.

    Only the loops over inner axes read the size of a run. A uniform kernel is returned unchanged.
    """
    return kernel if kernel.uniform else sized(kernel, {a.name: int(a.size) for a in kernel.outer})


def sized(kernel: Kernel, extents: Mapping[str, int]) -> Kernel:
    """Return the kernel with other extents of some axes, such as extents that depend on the size of a run."""
    return with_axes(kernel, lambda given: tuple([replace(a, size=extents.get(a.name, a.size)) for a in given]))


def with_axes(kernel: Kernel, axes: Callable[[Sequence[Axis]], tuple[Axis, ...]]) -> Kernel:
    """Return the kernel with `axes(group)` in place of each group of axes."""

    def statement(s: Statement) -> Statement:
        if not isinstance(s, Fold):
            return s
        p, c = s.product, s.scatter
        return replace(
            s,
            product=p and replace(p, batch=axes(p.batch), m=axes(p.m), n=axes(p.n)),
            scatter=c and replace(c, batch=axes(c.batch), m=axes(c.m), n=axes(c.n)),
        )

    return replace(kernel, outer=axes(kernel.outer), inner=axes(kernel.inner), body=tuple(map(statement, kernel.body)))


def flat_index(kernel: Kernel, axes: Sequence[Axis]) -> Index:
    """Return the row-major flat index of a point along some axes."""
    space = kernel.stores[0].index.space
    out = space.number(0)
    sizes = [int(a.size) for a in axes]  # places are laid out for the capacity
    for a, n, step in zip(axes, sizes, strides_of(sizes)):
        out = out + space.var(a.name, n) * step
    return out
