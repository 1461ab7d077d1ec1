"""Loops of C kernels over chunks of short rows that follow each other in memory, as one long loop.

Compilers make vectors of 16 elements. Of a row of 22 they compute 6 one by one, and of rows of 3 all, which costs
most where functions such as `pow` are computed. So elements that the rows share, or that are elsewhere in memory, are
copied row by row into a local array first. Then one loop computes the points of some rows, with neighbours everywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tracegrad.dtypes import strides_of
from tracegrad.ir import PRIMITIVES
from tracegrad.kernels.expr import Index, Value, Var, walk
from tracegrad.kernels.form import Axis, Extent, points
from tracegrad.render.c import Function
from tracegrad.render.c_text import ALIGNED, C_TYPE
from tracegrad.render.emit import Block, Loop, Statement
from tracegrad.tuning import CHUNK, LANES, LONG_CALL, LONG_ROWS


class Chunks(NamedTuple):
    """The rows along `across` that a chunk has, the axes of a row, and which values are neighbours or copied."""

    others: tuple[Axis, ...]
    across: Axis
    inner: tuple[Axis, ...]
    rows: int
    flat: tuple[Value, ...]
    copies: tuple[Value, ...]


def chunks(f: Function) -> Chunks | None:
    """Return the chunks of a pointwise kernel that computes functions for short rows; None if they are of no use."""
    last = f.outer[-1].size if f.outer else LANES
    if f.loaded or isinstance(last, Extent) or last >= LONG_ROWS or last % LANES == 0 or len(f.outer) < 2:
        return None
    values = [s.value for s in f.stores_of()]
    if not any(v.op == "map" and PRIMITIVES[v.arg[0]].cost >= LONG_CALL for v in walk(values)):
        return None
    at = len(f.outer) - 1
    while at > 1 and not isinstance(f.outer[at - 1].size, Extent) and points(f.outer[at - 1 :]) <= CHUNK // 4:
        at -= 1
    across, inner = f.outer[at - 1], tuple(f.outer[at:])
    steps = dict(zip([a.name for a in (across, *inner)], strides_of([int(across.size), *(a.size for a in inner)])))
    if not all(_contiguous(s.index, steps) for s in f.stores_of()):
        return None
    leaves = _leaves(values)
    flat = tuple([v for v in leaves if v.op == "load" and _contiguous(v.arg[1], steps)])
    copies = tuple([v for v in leaves if v not in flat])
    replaced = {s.replaces for s in f.kernel.slots}
    if any(x.op == "load" and x.arg[0] in replaced for x in walk(copies)):  # its memory may be overwritten by then
        return None
    rows = min(int(across.size), max(1, CHUNK // points(inner)))
    return Chunks(tuple(f.outer[: at - 1]), across, inner, rows, flat, copies)


def _contiguous(x: Index, steps: dict[str, int]) -> bool:
    """Return whether an index moves through memory as the points of these axes follow each other."""
    return all(isinstance(a, Var) for a, _ in x.terms) and {n: x.strides.get(n, 0) for n in steps} == steps


def _leaves(roots: Sequence[Value]) -> list[Value]:
    """Return the values that are not computed from others at the same point, without constants."""
    found: dict[Value, None] = {}
    stack, seen = list(roots), set[Value]()
    while stack:
        v = stack.pop()
        if v in seen or v.op == "const":
            continue
        seen.add(v)
        if v.op == "map" and v.args:
            stack += v.args
        else:
            found[v] = None
    return list(found)


def loops_by_chunks(f: Function, c: Chunks) -> list[Statement]:
    """Return the loops of a pointwise kernel by chunks."""
    row, across = points(c.inner), c.across
    emit = f.expressions()
    texts = emit.values(c.copies, loop=False)
    size = c.rows * row
    arrays = [f"{C_TYPE[v.dtype.name]} u{k}[{size}] {ALIGNED};" for k, v in enumerate(c.copies)]
    place = " + ".join(f"{a.name} * {step}" for a, step in zip(c.inner, strides_of([a.size for a in c.inner])))
    filled = [f"u{k}[ir * {row} + {place}] = {text};" for k, text in enumerate(texts)]
    fill = f.nest(c.inner, [f"const long {across.name} = rt + ir;", *emit.flush(), *filled])
    copied = [*arrays, Loop("ir", "rows", fill)] if c.copies else []

    emit = f.expressions()
    first = [f"const long {a.name} = {'rt' if a is across else 0};" for a in (across, *c.inner)]
    emit.loaded = {v: f"u{k}[l]" for k, v in enumerate(c.copies)}
    emit.loaded |= {v: f.load(v.arg[0], f"{emit.index(v.arg[1], False)} + l") for v in c.flat}
    stores = f.stores_of()
    named = [emit.let(f"s{k}", text) for k, text in enumerate(emit.values([s.value for s in stores], loop=False))]
    writes = [
        f"{f.element(s.slot, emit.index(s.index, False))[:-1]} + l] = "
        f"{emit.stored(f.kernel.slots[s.slot].dtype.name, f's{k}')};"
        for k, s in enumerate(stores)
    ]
    compute = Block("", [*first, Loop("l", f"rows * {row}", [*emit.flush(), *named, *writes])])
    body = [f"const long rows = min({across.size} - rt, {c.rows}L);", *copied, compute]
    if not c.others:
        return f.share("rt", across.size, c.rows, body)
    return f.split(c.others, [Loop("rt", across.size, body, step=c.rows)])
