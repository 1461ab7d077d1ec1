"""Loops of C kernels over pieces of their axes, within which no condition changes.

- Pieces, where guards change along an axis: in `concat([x, y])` each point reads both inputs and chooses. Within a
  piece the choice is the same for all points, so each piece has a loop of its own, which reads only what it uses. Pads
  and shifts are alike. An axis before the last is cut first. Each of its pieces has loops in an order of its own.
- Phases, where indices divide the last axis by a small number: the gradient of `x[:, ::3]` is zero at two of three
  elements. Three neighbours are computed together. Their code divides nothing, and their conditions are constants.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import pairwise

from tracegrad.kernels.axis_pieces import Loaded, piece_of, starts_of, stretches_of, with_axes
from tracegrad.kernels.expr import Guard, Index, Quotient, Space, guards_of, indices_of, names_of, quotients_of, walk
from tracegrad.kernels.form import Axis, Kernel
from tracegrad.render.c import Function
from tracegrad.render.c_ends import end_of_piece
from tracegrad.render.emit import Loop, Statement
from tracegrad.tuning import FEW_CHOICES, FEWEST_TURNS, LANES, MOST_PIECES, MOST_WRITTEN, PIECE_GRAIN


def points_of(f: Function, axes: Sequence[Axis], places: Sequence[Mapping[str, Index]], space: Space) -> list[str]:
    """Return the lines that compute the points of a kernel at some places, which are indices over other axes."""
    changed = Function(*with_axes(f.kernel, f.loaded, axes, places, space), f)
    return changed.points(changed.expressions())


# axes before the last
def cut(f: Function, most: int) -> list[tuple[Kernel, Loaded]] | None:
    """Split a pointwise kernel into one for each piece or phase of an axis before its last; None if no axis has any.

    most: the limit of pieces in all, of this axis and of those after it.
    """
    steps = [_steps(f, a) for a in f.outer[:-1]]
    for k, found in enumerate(steps):
        if len(found) < 2 or math.prod([max(1, len(x)) for x in steps[k:]]) > most:
            continue
        return [piece_of(f.kernel, f.loaded, f.outer, k, *piece) for piece in found]
    return None


def _steps(f: Function, axis: Axis) -> list[tuple[int, int, int]]:
    """Return begin, end and step of each piece of an axis, or else of each phase; empty if none or too many."""
    if not axis.fixed:
        return []
    if axis.size < FEWEST_TURNS and _is_remainder(f, axis):
        return [(r, r + 1, 1) for r in range(axis.size)]
    starts = starts_of(stretches_of(f.kernel, axis), axis)
    if len(starts) > 2:
        return [(start, end, 1) for start, end in pairwise(starts)] if len(starts) <= MOST_PIECES + 1 else []
    d = _phase(f, axis)
    return [(r, int(axis.size), d) for r in range(d)] if 1 < d <= MOST_PIECES else []


def _is_remainder(f: Function, axis: Axis) -> bool:
    """Return whether conditions compare n * i + axis, where n is the size of the axis and i another axis."""
    strides = [g.index.strides for g in guards_of(walk([s.value for s in f.kernel.stores]))]
    return any(len(x) == 2 and x.get(axis.name) == 1 and axis.size in x.values() for x in strides)


def _phase(f: Function, axis: Axis) -> int:
    """Return d if indices and conditions use only quotients and remainders of an axis by d; 1 if there is no such d."""
    quotients, guards = _remainders(f)
    # a quotient without the axis among its strides divides another axis, or a quotient
    asked = [(q.index, q.d) for q in quotients if axis.name in q.index.strides]
    asked += [(g.index, g.step) for g in guards if axis.name in names_of(a for a, _ in g.index.terms)]
    found = {d if len(i.terms) == 1 and i.strides == {axis.name: 1} else 0 for i, d in asked}
    d = found.pop() if len(found) == 1 else 1
    return d if 1 < d < LANES and axis.size // d >= FEWEST_TURNS else 1


def _remainders(f: Function) -> tuple[list[Quotient], list[Guard]]:
    """Return the quotients and remainders in the indices of values, and the guards that test a remainder."""
    values = f.values()
    return quotients_of(index for v in values for index in indices_of(v)), [g for g in guards_of(values) if g.step > 1]


# the last axis
def written_out(f: Function) -> tuple[Kernel, Loaded] | None:
    """Return a pointwise kernel with its short last axis written out, if remainders of the axis matter; else None.

    Lowering makes such an axis when it splits an axis i that indices divide: i = 5 * block + within.
    """
    others, last, space = f.outer[:-1], f.last, Space()
    if not others or last.size * len(f.kernel.stores) > MOST_WRITTEN:
        return None
    quotients, guards = _remainders(f)
    if not any(last.name in x.index.strides for x in (*quotients, *guards)):
        return None
    return with_axes(f.kernel, f.loaded, others, [{last.name: space.number(r)} for r in range(last.size)], space)


def _phased(f: Function, d: int) -> list[Statement]:
    """Return the loops over the last axis of a pointwise kernel, d neighbours at a time."""
    *others, last = f.outer
    space, whole = Space(), last.size // d
    turn, rest = Axis(f"{last.name}q", whole), Axis(f"{last.name}r", last.size % d)
    places = [{last.name: space.var(turn.name, whole) * d + r} for r in range(d)]
    loops: list[Statement] = [Loop(turn.name, whole, points_of(f, [*others, turn], places, space))]
    if rest.size:
        space = Space()
        at = {last.name: space.var(rest.name, rest.size) + whole * d}
        loops.append(Loop(rest.name, rest.size, points_of(f, [*others, rest], [at], space)))
    return loops


def pieces(f: Function) -> list[int] | None:
    """Return the points of the last axis at which pieces begin, and its end: one piece if the axis only has phases.

    None if neither pieces nor phases gain anything.
    """
    last = f.last
    stretches = stretches_of(f.kernel, last)
    starts = starts_of(stretches, last)
    wasted = int(last.size) * max(1, len(stretches) - 1)  # values that are not chosen, if there are no pieces
    pay = len(stretches) > FEW_CHOICES or wasted >= LANES * (len(starts) - 1)
    if pay and 2 < len(starts) <= MOST_PIECES + 1:
        return starts
    return [0, int(last.size)] if len(f.outer) > 1 and _phase(f, last) > 1 else None


def loops_by_pieces(f: Function) -> list[Statement] | None:
    """Return the loops of a pointwise kernel, one for each piece of its last axis; None if pieces are of no use."""
    starts = pieces(f)
    if starts is None:
        return None
    *others, last = f.outer
    loops = list[Statement]()
    for start, end in pairwise(starts):
        part = Function(*piece_of(f.kernel, f.loaded, f.outer, len(others), start, end), f)
        piece = part.kernel.outer[-1]
        d = _phase(part, piece) if others and piece.size > 1 else 1
        if d > 1:
            loops += _phased(part, d)
            continue
        lines = part.points(part.expressions())
        if others:
            loops.append(Loop(piece.name, end_of_piece(piece), lines))
        else:
            stop = f"min(ib + {PIECE_GRAIN - start}, {piece.size}L)"
            loops.append(Loop(piece.name, stop, lines, f"max(ib - {start}, 0L)"))
    if others:
        return f.split(others, loops)
    return f.share("ib", last, PIECE_GRAIN, loops)
