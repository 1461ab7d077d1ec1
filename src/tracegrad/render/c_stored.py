"""Kernels in C that fold what they store along their rows, as the gradient of a bias sums a gradient that others read.

One loop over a row computes such a value twice: for the fold, and for the store. Where indices divide the row's last
axis, as in the gradient of strided windows, either loop computes element by element, and each sum waits for the one
before. So the values are stored first, by the loops of a pointwise kernel, and a second kernel folds them from memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from tracegrad.kernels.axes import Replaced
from tracegrad.kernels.expr import Index, Space, Value, indices_of, names_of, walk
from tracegrad.kernels.form import Axis, Fold, Kernel, Store, points
from tracegrad.render.c import Function
from tracegrad.render.c_pieces import pieces, written_out
from tracegrad.render.c_values import column_wise


class _Stored(Replaced):
    """Rebuilds values. What the kernel stores along its rows is read from where it is stored."""

    def __init__(self, space: Space, replaced: Mapping[str, Index], stores: Sequence[Store]) -> None:
        super().__init__(space, replaced)
        self.stores = {s.value: s for s in stores}

    def rebuilt(self, v: Value, args: tuple[Value, ...]) -> Value:
        s = self.stores.get(v)
        return super().rebuilt(v, args) if s is None else self.space.load(s.slot, self.index(s.index), v.dtype)


def stored_first(kernel: Kernel) -> list[Kernel]:
    """Return two kernels, one that stores along the rows and one that folds; the kernel alone if that is no faster."""
    stores, last = [s for s in kernel.stores if s.inner], kernel.inner[-1:]
    alone = kernel.uniform or column_wise(kernel) or any(x.product or x.scatter for x in kernel.folds)
    if alone or not stores or not kernel.folds or not all(a.fixed for a in kernel.inner):
        return [kernel]
    kept = all(kernel.slots[s.slot].dtype is s.value.dtype and kernel.slots[s.slot].replaces < 0 for s in stores)
    if not kept or any(v.op == "local" for v in walk([s.value for s in stores])):
        return [kernel]
    along = tuple([replace(s, inner=False) for s in stores])
    first = replace(kernel, outer=(*kernel.outer, *kernel.inner), inner=(), body=along)
    f = Function(first, {})
    if written_out(f) is None and pieces(f) != [0, last[0].size]:  # neither divides the last axis
        return [kernel]
    folded = _folded(kernel, stores)
    return [kernel] if folded is None else [first, folded]


def _folded(kernel: Kernel, stores: Sequence[Store]) -> Kernel | None:
    """Return the kernel without what it stores along its rows, over one inner axis; None if indices need several."""
    space, row = Space(), Axis("j", points(kernel.inner))
    at = {a.name: space.number(0) for a in kernel.inner} | {kernel.inner[-1].name: space.var(row.name, row.size)}
    whole = _Stored(Space(), {}, stores)
    for v in walk([whole.value(x.value) for x in kernel.folds]):
        if not all(_as_one(index, kernel.inner, v) for index in indices_of(v)):
            return None
    made = _Stored(space, at, stores)
    body = [
        replace(s, value=made.value(s.value)) if isinstance(s, Fold) else made.store(s)
        for s in kernel.body
        if isinstance(s, Fold) or not s.inner
    ]
    return replace(kernel, inner=(row,), body=tuple(body))


def _as_one(index: Index, axes: Sequence[Axis], v: Value) -> bool:
    """Return whether an index of a value moves along some axes as along one."""
    steps = index.strides
    if not {a.name for a in axes} & names_of(a for a, _ in index.terms):
        return True
    near = [steps.get(b.name, 0) * b.size == steps.get(a.name, 0) for a, b in pairwise(axes)]
    return v.op == "load" and index.linear and all(near)
