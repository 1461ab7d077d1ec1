"""Pieces of an axis within which no condition of a pointwise kernel changes.

In `concat([x, y])` each point of the kernel reads both inputs and chooses. Within a piece the choice is the same for
all points, so a kernel of a piece reads only the input that it uses. Pads and shifts have pieces, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise

from tracegrad.kernels.axes import Replaced
from tracegrad.kernels.expr import Guard, Index, Space, Value, Var, guards_of, walk
from tracegrad.kernels.form import Axis, Kernel
from tracegrad.kernels.triangles import CHOICE

Loaded = Mapping[str, tuple[int, Index]]  # locals that an earlier kernel stored: slot and index of each


class Decided(Replaced):
    """Values with an index in place of some variables. A selection whose condition is then known becomes its result."""

    def rebuilt(self, v: Value, args: tuple[Value, ...]) -> Value:
        if v.op == "map" and v.arg[0] == CHOICE:
            known = _holds(args[0])
            if known is not None:
                return args[1] if known else args[2]
        return super().rebuilt(v, args)


def _holds(condition: Value) -> bool | None:
    """Return True if a comparison of coordinates holds at all points, False if it holds at none, else None."""
    if condition.op != "map" or condition.arg[0] not in ("less", "less_equal"):
        return None
    ends = [_ends_of(x) for x in condition.args]
    (a, b), equal = ends, condition.arg[0] == "less_equal"
    if a is None or b is None:
        return None
    if a[1] < b[0] + equal:
        return True
    return None if a[0] < b[1] + equal else False


def _ends_of(v: Value) -> tuple[int, int] | None:
    """Return the least and the largest value of an integer coordinate or constant; None for other values."""
    if v.op == "index":
        return v.arg.lo, v.arg.hi
    return (v.arg, v.arg) if v.op == "const" and type(v.arg) is int else None


def with_axes(
    kernel: Kernel, loaded: Loaded, axes: Sequence[Axis], places: Sequence[Mapping[str, Index]], space: Space
) -> tuple[Kernel, Loaded]:
    """Return a pointwise kernel over other axes, and its locals.

    places: maps from variables of old axes to indices over the new axes. The kernel has a copy of the stores for each.
    """
    copies = [Decided(space, at) for at in places]
    types = {v.arg: v.dtype for v in walk([s.value for s in kernel.stores]) if v.op == "local"}
    others: dict[str, tuple[int, Index]] = {}
    for k, copy in enumerate(copies):
        for name, (slot, index) in loaded.items():
            own = f"{name}_{k}" if len(copies) > 1 else name  # each place reads its own element
            others[own] = slot, copy.index(index)
            if name in types:
                copy.locals[name] = space.value("local", types[name], own)
    stores = [copy.store(s) for copy in copies for s in kernel.stores]
    return replace(kernel, outer=tuple(axes), body=tuple(stores)), others


def piece_of(
    kernel: Kernel, loaded: Loaded, outer: Sequence[Axis], number: int, start: int, end: int, step: int = 1
) -> tuple[Kernel, Loaded]:
    """Return a pointwise kernel for each `step`-th point of a piece of one of its axes, `outer[number]`."""
    axis, space = outer[number], Space()
    piece = Axis(f"{axis.name}_{start}", -(-(end - start) // step))
    if step == 1:
        piece = replace(piece, end=axis.end, before=axis.before + start)
    at = space.var(piece.name, piece.size) * step + start
    return with_axes(kernel, loaded, [*outer[:number], piece, *outer[number + 1 :]], [{axis.name: at}], space)


def in_pieces(kernel: Kernel) -> list[Kernel]:
    """Return a kernel for each piece of one axis, or only the kernel itself if no axis has two or more ranges.

    The axis chosen is the one along which guards hold in the most different ranges.
    """
    stretches = [stretches_of(kernel, a) for a in kernel.outer] if kernel.pointwise else []
    most = max(stretches, key=len, default=())
    if len(most) < 2:
        return [kernel]
    number = stretches.index(most)
    starts = starts_of(most, kernel.outer[number])
    return [piece_of(kernel, {}, kernel.outer, number, *ends)[0] for ends in pairwise(starts)]


def stretches_of(kernel: Kernel, axis: Axis) -> set[tuple[int, ...]]:
    """Return the ranges of an axis in which guards of a pointwise kernel hold; empty if runs set the axis's size."""
    if not axis.fixed:
        return set()
    guards = guards_of(walk([s.value for s in kernel.stores]))
    return {ends for g in guards if (ends := _ends(g, axis.name))}


def starts_of(stretches: Iterable[tuple[int, ...]], axis: Axis) -> list[int]:
    """Return the coordinates at which the pieces of an axis begin, and at last the size of the axis."""
    return [0, *sorted({x for ends in stretches for x in ends if 0 < x < axis.size}), int(axis.size)]


def _ends(g: Guard, axis: str) -> tuple[int, ...]:
    """Return the range of an axis in which a guard holds.

    Empty unless the guard's index is this axis's variable, with a positive coefficient, plus a constant.
    """
    ((atom, c),) = g.index.terms if len(g.index.terms) == 1 else ((None, 0),)
    if not isinstance(atom, Var) or atom.name != axis or c < 1:
        return ()
    return -((g.index.const - g.lo) // c), -((g.index.const - g.hi) // c)
