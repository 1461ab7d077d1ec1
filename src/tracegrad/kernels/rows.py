"""Reorder kernels of a batch so that its rows come first, and prove that each row is computed from its own memory.

In memory, element `e` of a value that grows with the batch belongs to row `e // after % n`. One axis of a kernel gives
the row of a point. The axis is split if the row is not its outermost part. Each row writes only its own elements, and
reads only these and elements of row 0, which every batch has.

An example: if calls choose T, the rows of x[B, T, 2] are those of one t, `RowLayout(before=B, after=2)`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product
from typing import NamedTuple

from tracegrad.kernels.axes import Replaced
from tracegrad.kernels.blocks import accesses, bounded
from tracegrad.kernels.coordinates import ravel
from tracegrad.kernels.expr import Guard, Index, Space, Var, names_of
from tracegrad.kernels.form import Axis, Extent, Fold, Kernel, Statement, Store, UnsizedError, sized, with_axes


class RowLayout(NamedTuple):
    """The layout of a batch of n rows in a value of `before` * n * `after` elements.

    Memory has the rows first, unless a loop moves along the axes before the rows: then their order is kept.
    """

    before: int
    after: int
    kept: bool = False


Held = Sequence[RowLayout | None]  # by slot; None: the value does not grow


class Turned(NamedTuple):
    """A kernel whose rows come first."""

    sized: Kernel  # its extents depend on the size of a run
    kernel: Kernel
    plain: Kernel  # the same, with rows in front in all memory: its text must be equal at all sizes
    held: Held


def turnings(
    kernel: Kernel, grown: Mapping[str, int], held: Held, kept: Sequence[int | None], outside: int
) -> Iterator[dict[str, int]]:
    """Yield candidates, the likeliest first: for each axis that grows, how many neighbouring points share a row.

    grown:   axis -> its points for each row.
    kept:    as for `turned`.
    outside: the number of elements before the rows in inputs, as `RowLayout.before`.
    """
    # a kernel that reads nothing that grows has the layout of inputs
    firsts = [1 if any(held) else outside, 1, *filter(None, kept)]
    found = {axis: dict.fromkeys([per // k for k in firsts if per % k == 0]) for axis, per in grown.items()}
    for slot, index, _ in accesses(kernel):
        rows = held[slot]
        for axis, c in index.strides.items() if rows else ():
            if axis in grown and rows and c > 0 and rows.after % c == 0 and grown[axis] % (rows.after // c) == 0:
                found[axis][rows.after // c] = None
    yield from (dict(zip(found, each)) for each in product(*found.values()))


def turned(kernel: Kernel, n: int, near: Mapping[str, int], held: Held, kept: Sequence[int | None]) -> Turned:
    """Return the kernel with the rows in front.

    near: axis -> how many neighbouring points belong to one row.
    kept: for each slot, a divisor of the number of elements before its rows, if rows must stay in place; 0 if they need
          not. None if the slot does not grow.
    Raises: UnsizedError without a proof.
    """
    if _behind(held, near) or not _comes_first(kernel, n, near):
        kernel, near = _cut(kernel, n, near)
    made = _divided(kernel, n, near, held, kept)
    if _behind(made, near):
        kernel, near = _cut(kernel, n, near)
        made = _divided(kernel, n, near, held, kept)
    for slot, index, guards in accesses(kernel):
        rows = made[slot]
        own = not rows or any(_own(index, guards, axis, many, n, rows) for axis, many in near.items())
        if rows and not own and (rows.before > 1 or index.hi >= rows.after):  # row 0 exists in each batch
            raise UnsizedError(f"{kernel.label} reads other rows of the batch than its own")
    plain = _in_front(kernel, n, near, made)
    moved = [None if rows and rows.kept else rows for rows in made]
    there = plain if moved == made else _in_front(kernel, n, near, moved)
    extents = {axis: Extent.of(n, many) for axis, many in near.items()}
    return Turned(sized(there, extents) if near else there, there, plain, made)


def _behind(held: Held, near: Mapping[str, int]) -> bool:
    """Return whether rows come after other axes in memory, and several neighbours of an axis belong to one row."""
    return any(rows and rows.before > 1 for rows in held) and any(many > 1 for many in near.values())


def _divided(
    kernel: Kernel, n: int, near: Mapping[str, int], held: Held, kept: Sequence[int | None]
) -> list[RowLayout | None]:
    """Return the layout of rows in all slots."""
    written = {s.slot: _written(s, kernel, n, near, kept[s.slot]) for s in kernel.stores}
    return [written.get(slot, rows) for slot, rows in enumerate(held)]


def _comes_first(kernel: Kernel, n: int, near: Mapping[str, int]) -> bool:
    """Return whether rows come first already. Single rows of a product can come after the axes of a stack."""
    p = kernel.product if kernel.scatter is None and set(near.values()) == {1} else None
    groups = [kernel.outer] if p is None or any(a.name in near for a in p.n) else [p.batch, p.m]
    wide = [[a for a in group if a.size > 1] for group in (*groups, kernel.inner)]
    return not any(
        a.name in near and (k > 0 or a.size > n * near[a.name]) for group in wide for k, a in enumerate(group)
    )


def _cut(kernel: Kernel, n: int, near: Mapping[str, int]) -> tuple[Kernel, dict[str, int]]:
    """Return the kernel with its axes cut around the rows, which come first in each group, and the new `near`."""

    def parts(a: Axis) -> tuple[Axis, Axis, Axis]:
        many = near[a.name]
        return Axis(f"{a.name}o", a.size // (n * many)), Axis(a.name, n), Axis(f"{a.name}i", many)

    def axes(group: Sequence[Axis]) -> tuple[Axis, ...]:
        rows = [Axis(a.name, n) for a in group if a.name in near]
        rest = [x for a in group for x in (parts(a)[::2] if a.name in near else (a,)) if x.size > 1]
        return (*rows, *rest)

    def turn(s: Statement) -> Statement:
        p = s.product if isinstance(s, Fold) and s.scatter is None else None
        if p is None or not any(a.name in near for a in p.n):
            return s
        return replace(s, product=replace(p, a=p.b, b=p.a, m=p.n, n=p.m))  # rows come before columns

    if kernel.product is not None and kernel.product.limits:
        raise UnsizedError(f"{kernel.label} has limits, and the batch between its axes")
    space = Space()
    found = [parts(a) for a in (*kernel.outer, *kernel.inner) if a.name in near]
    cut = {p[1].name: ravel([space.var(x.name, x.size) for x in p], [x.size for x in p], space) for p in found}
    made = with_axes(_rebuilt(kernel, Replaced(space, cut)), axes)
    made = replace(made, body=tuple(map(turn, made.body)))
    sides = made.scatter or made.product
    outer = (*sides.batch, *sides.m, *sides.n) if sides else made.outer
    if made.scatter and outer[0].name not in near and any(a.name in near for a in outer):
        raise UnsizedError(f"{kernel.label} has the batch as another axis than the first")
    return replace(made, outer=outer), dict.fromkeys(near, 1)


def _rebuilt(kernel: Kernel, values: Replaced) -> Kernel:
    """Return the kernel with other values."""

    def statement(s: Statement) -> Statement:
        if isinstance(s, Store):
            return values.store(s)
        p, c = s.product, s.scatter
        p = p and replace(p, a=values.value(p.a), b=values.value(p.b))
        c = c and replace(c, target=values.value(c.target), row=values.index(c.row), update=values.value(c.update))
        return replace(s, value=values.value(s.value), product=p, scatter=c)

    return replace(kernel, body=tuple(map(statement, kernel.body)))


def _written(s: Store, kernel: Kernel, n: int, near: Mapping[str, int], kept: int | None) -> RowLayout | None:
    """Return the layout of rows in the slot of a store, or None if the slot does not grow.

    Raises UnsizedError unless each row writes its own elements only.
    """
    size = kernel.slots[s.slot].size
    for axis, many in near.items() if kept is not None else ():
        after = s.index.strides.get(axis, 0) * many
        if after > 0 and size % (n * after) == 0:
            rows = RowLayout(size // (n * after), after, bool(kept))
            if rows.before % (kept or 1) == 0 and _own(s.index, (), axis, many, n, rows):
                return rows
    if kept is not None or any(a.name in near for a in kernel.outer) or (s.inner and near):
        raise UnsizedError(f"{kernel.label} writes what another kernel would have to know the batch of")
    return None


def _own(index: Index, guards: Sequence[Guard], axis: str, many: int, n: int, rows: RowLayout) -> bool:
    """Return whether an index is among the elements of its own row wherever the guards hold.

    If the rows come first, the index is `after * row` plus a rest that is the same for all rows. The rest is within one
    row, because the index is valid in the first row and in the last.
    """
    rest = [a for a, _ in index.terms if not (isinstance(a, Var) and a.name == axis)]
    # A value read from memory is clamped to a fixed range, so an index by it counts as the same at every point
    if rows.before == 1 and index.strides.get(axis, 0) * many == rows.after:
        return axis not in names_of([*rest, *(a for g in guards for a, _ in g.index.terms)], loaded=False)
    own = index.space.var(axis, n * many) // many
    return any(x // rows.after % n is own for x in (index, bounded(index, guards)))


def _in_front(kernel: Kernel, n: int, near: Mapping[str, int], held: Held) -> Kernel:
    """Return the kernel with the rows first in memory."""
    if not any(rows and rows.before > 1 for rows in held):
        return kernel

    def at(slot: int, index: Index) -> Index:
        rows = held[slot]
        if not rows or rows.before == 1:
            return index
        # whole * outside + after * row + inside becomes before * after * row + after * outside + inside
        whole, outside, inside = n * rows.after, index.space.number(0), index.space.number(0)
        for atom, c in index.terms:
            term = index.space.index({atom: 1}, 0)
            if isinstance(atom, Var) and atom.name in near and c == rows.after:
                outside = outside + term * rows.before
            elif c % whole == 0:
                outside = outside + term * (c // whole)
            else:
                inside = inside + term * c
        times, rest = divmod(index.const + rows.after, whole)
        inside = inside + rest - rows.after
        mixed = not names_of([a for a, _ in inside.terms], loaded=False).isdisjoint(near)
        if mixed or inside.lo <= rows.after - whole or inside.hi >= whole:
            raise UnsizedError(f"{kernel.label} mixes rows of the batch with what is outside of them")
        return (outside + times) * rows.after + inside

    return _rebuilt(kernel, Replaced(Space(), {}, at))
