"""Loops of C kernels over blocks of the last axis, where indices divide that axis by one number.

Compilers make slow vectors of i // 32, and none of loads at it. With i = block * 32 + within, the quotient is `block`,
which is constant in the inner loop, and the remainder is `within`, whose loads are neighbours.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tracegrad.kernels.axes import Replaced
from tracegrad.kernels.expr import Index, Quotient, Space, Var, atoms_of, indices_of, walk
from tracegrad.kernels.form import Axis, Extent
from tracegrad.render.c import Function
from tracegrad.render.emit import Loop, Statement
from tracegrad.tuning import LANES


def divisor(f: Function) -> int | None:
    """Return d if all that indices of a pointwise kernel divide has i // d and i % d of its last axis alone.

    None if blocks of d points are of no use. (i + 64) // 32 and i // 1024 have i // 32; (i + 1) // 32 has not.
    """
    last = f.outer[-1] if f.outer else None
    if last is None or isinstance(last.size, Extent):
        return None
    stores = f.stores_of()
    indices = [index for v in walk([s.value for s in stores]) for index in indices_of(v)]
    indices += [*(s.index for s in stores), *(index for _, index in f.loaded.values())]
    quotients = [a for index in indices for a in atoms_of(index) if isinstance(a, Quotient)]
    found = [a for a in quotients if last.name in a.index.strides]
    others = [c for a in found for x, c in a.index.terms if not (isinstance(x, Var) and x.name == last.name)]
    d = math.gcd(*(a.d for a in found), *(a.index.const for a in found), *others)
    alone = all(a.index.strides[last.name] == 1 for a in found)
    return d if alone and LANES <= d < last.size else None


def blocked_loops(f: Function, d: int) -> list[Statement]:
    """Return the loops of a pointwise kernel over blocks of `d` points of its last axis; the last can be shorter."""
    *others, last = f.outer
    space = Space()
    block, within = Axis(f"{last.name}b", -(-last.size // d)), Axis(f"{last.name}w", d)
    lines = points_of(f, [block, within], space.var(block.name, block.size) * d + space.var(within.name, d))
    end = f"min({d}L, {last.size} - {block.name} * {d})" if last.size % d else d
    return f.split([*others, block], [Loop(within.name, end, lines)])


def points_of(f: Function, axes: Sequence[Axis], at: Index) -> list[str]:
    """Return the lines of a point of a pointwise kernel that has other axes in place of its last one, which is `at`."""
    *others, last = f.outer
    parts = Replaced(at.space, {last.name: at})
    kernel = replace(f.kernel, outer=(*others, *axes), body=tuple(map(parts.store, f.stores_of())))
    loaded = {name: (slot, parts.index(index)) for name, (slot, index) in f.loaded.items()}
    changed = Function(kernel, loaded)
    changed.helpers, changed.near = f.helpers, f.near
    return changed.points(changed.expressions())
