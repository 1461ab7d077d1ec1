"""Loops of C kernels over pieces of the last axis, where guards change along it.

In `concat([x, y], -1)` each point reads both inputs and chooses. Within a piece of the axis the choice is the same for
all points, so each piece has a loop of its own, which reads only what it uses. Pads and shifts are alike.
"""

from __future__ import annotations

from itertools import pairwise

from tracegrad.kernels.expr import Guard, Space, Var, walk
from tracegrad.kernels.form import Axis, Extent
from tracegrad.render.c import Function
from tracegrad.render.c_blocks import points_of
from tracegrad.render.emit import Loop, Statement
from tracegrad.tuning import LANES, MOST_PIECES, PIECE_GRAIN


def pieces(f: Function) -> list[int] | None:
    """Return where the pieces of a pointwise kernel's last axis begin, and its end; None if pieces are of no use."""
    last = f.outer[-1] if f.outer else None
    if last is None or isinstance(last.size, Extent):
        return None
    guards = [g for v in walk([s.value for s in f.stores_of()]) if v.op == "inside" for g in v.arg]
    cuts = {x for g in guards for x in _ends(g, last.name) if 0 < x < last.size}
    few = len(cuts) < MOST_PIECES and last.size >= LANES * (len(cuts) + 1)
    return [0, *sorted(cuts), last.size] if cuts and few else None


def _ends(g: Guard, axis: str) -> tuple[int, ...]:
    """Return where a guard begins and ceases to hold along an axis, if nothing else decides it."""
    ((atom, c),) = g.index.terms if len(g.index.terms) == 1 else ((None, 0),)
    if not isinstance(atom, Var) or atom.name != axis or c != 1:
        return ()
    return g.lo - g.index.const, g.hi - g.index.const


def loops_by_pieces(f: Function, starts: list[int]) -> list[Statement]:
    """Return the loops of a pointwise kernel, with one loop for each piece of its last axis."""
    *others, last = f.outer
    space, loops = Space(), list[Statement]()
    for k, (start, end) in enumerate(pairwise(starts)):
        piece = Axis(f"{last.name}p{k}", end - start)
        lines = points_of(f, [piece], space.var(piece.name, piece.size) + start)
        if others:
            loops.append(Loop(piece.name, piece.size, lines))
        else:
            stop = f"min(ib + {PIECE_GRAIN - start}, {piece.size}L)"
            loops.append(Loop(piece.name, stop, lines, f"max(ib - {start}, 0L)"))
    if others:
        return f.split(others, loops)
    return f.share("ib", last.size, PIECE_GRAIN, loops)
