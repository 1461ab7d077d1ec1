"""Loops of C kernels in other orders than that of the points: folds that run along an axis, and tiles that are turned.

A fold runs if each point folds what its predecessor folds, and one element more: `sum over j of where(j <= i, x[j], 0)`
costs n^2 steps for n points if each folds alone, and n in their order. Running sums and products have this form.

The loads of a transpose run across the rows of memory. A tile of them is turned first, four by four in vectors, into a
local array. The loops over a tile then read and write neighbours. Otherwise each element would be moved alone.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracegrad.dtypes import f32, i32
from tracegrad.kernels.expr import Dynamic, Index, Value, Var, atoms_of, indices_of, walk
from tracegrad.kernels.form import Axis, Extent, Fold, Kernel, Store, fold_batches
from tracegrad.kernels.triangles import CHOICE
from tracegrad.render.c import Function
from tracegrad.render.c_text import ALIGNED, C_TYPE
from tracegrad.render.loops import Block, Loop, Statement, when

TILE = 16  # elements of a tile's side: a line of the cache

# The axis along which folds run, whether its last point is the first to fold, and what each fold folds
Running = tuple[Axis, bool, tuple[Value, ...]]

# The axis of neighbours in memory, and the loads to turn with their strides along the last axis
Turned = tuple[Axis, dict[Value, int]]


class OrderedFunction(Function):
    """Writes one kernel, with loops in these orders where they suit it."""

    def loops(self) -> list[Statement]:
        """Return the loops once."""
        pointwise = all(isinstance(s, Store) and not s.inner for s in self.kernel.body)
        tiles = turned(self) if pointwise else None
        order = running(self.kernel)
        if tiles:
            return turned_loops(self, tiles)
        return running_loops(self, order) if order else super().loops()


def running(kernel: Kernel) -> Running | None:
    """Return how the kernel's folds run, if all of them run the same way and nothing else needs the row.

    Each point then folds its predecessor's elements and one more.
    """
    inner = [a for a in kernel.inner if a.size > 1]
    batches = fold_batches(kernel)
    if len(inner) != 1 or len(batches) != 1 or kernel.uniform or isinstance(inner[0].size, Extent):
        return None
    if any(isinstance(s, Store) and s.inner for s in kernel.body):
        return None
    (folds,) = batches
    for axis in kernel.outer:
        if axis.size != inner[0].size:
            continue
        for backward in (False, True):
            values = [_under_mask(f, axis.name, inner[0].name, backward) for f in folds]
            known = tuple([v for v in values if v is not None])
            if len(known) == len(folds):
                return axis, backward, known
    return None


def _under_mask(f: Fold, axis: str, inner: str, backward: bool) -> Value | None:
    """Return x of `where(inner <= axis, x, identity)`, or of `axis <= inner`, if x is the same for all of `axis`."""
    v = f.value
    if f.product or f.scatter or v.op != "map" or v.arg[0] != CHOICE or v.args[0].op != "map":
        return None
    mask, x, otherwise = v.args
    if otherwise.op != "const" or otherwise.arg != f.prim.identity or mask.arg[0] != "less_equal":
        return None
    names = [_variable(side) for side in mask.args]
    if names != ([axis, inner] if backward else [inner, axis]):
        return None
    parts = list(walk([x]))
    fixed = not any(_has(index, axis) for part in parts for index in indices_of(part))
    return x if fixed and not any(part.op == "local" for part in parts) else None


def _variable(v: Value) -> str | None:
    """Return the name of the loop variable that a value is."""
    if v.op != "index" or v.arg.const or len(v.arg.terms) != 1:
        return None
    ((atom, c),) = v.arg.terms
    return getattr(atom, "name", None) if c == 1 else None


def _has(index: Index, axis: str) -> bool:
    return any(getattr(atom, "name", None) == axis for atom in atoms_of(index))


def running_loops(f: Function, r: Running) -> list[Statement]:
    """Return the loops of a kernel whose folds run along an axis: by columns, or along rows if neighbours are added."""
    axis, others, folds = r[0], [a for a in f.outer if a != r[0]], fold_batches(f.kernel)[0]
    if f.outer[-1] == axis:
        start = [f"{C_TYPE[x.value.dtype.name]} t{x.local} = {f.emit.identity(x)};" for x in folds]
        return f.split(others, [Block("", [*start, _along(f, r, _step(f, r, folds, ""))])])
    last = others.pop()
    width = f.width(last, others)
    start = [f"{C_TYPE[x.value.dtype.name]} t{x.local}[{width}] {ALIGNED};" for x in folds]
    identities = [f"t{x.local}[l] = {f.emit.identity(x)};" for x in folds]
    step = f.column(last, [], _step(f, r, folds, "[l]"))
    return f.blocks(others, last, width, [*start, f.column(last, [], identities), _along(f, r, [step])])


def _along(f: Function, r: Running, step: Sequence[Statement]) -> Loop:
    """Return the loop over the points in the order in which they add elements."""
    (axis, backward, _), (inner,) = r, f.inner
    if not backward:
        return Loop(axis.name, axis.size, [f"const long {inner.name} = {axis.name};", *step])
    at = f"const long {axis.name} = {axis.size - 1} - {inner.name}_, {inner.name} = {axis.name};"
    return Loop(f"{inner.name}_", axis.size, [at, *step])


def _step(f: Function, r: Running, folds: Sequence[Fold], at: str) -> list[str]:
    """Return the lines that add one element to each partial result, and store what follows from them."""
    emit = f.expressions()
    values = emit.values(r[2], loop=False)
    added = [f"t{x.local}{at} = {emit.combine(x, f't{x.local}{at}', v)};" for x, v in zip(folds, values)]
    known = [emit.let(x.local, f"t{x.local}{at}") for x in folds]
    lines = [*f.read(), *emit.flush(), *added, *known]
    return [*lines, *f.stores(emit, f.stores_of(), loop=False)]


def turned(f: Function) -> Turned | None:
    """Return the loads of a pointwise kernel that are worth turning."""
    last, stores = f.outer[-1] if f.outer else None, f.stores_of()
    if last is None or not _long(last) or any(_stride(s.index, last.name) != 1 for s in stores):
        return None
    replaced = {s.replaces for s in f.kernel.slots}
    found = [
        v for v in _bare([s.value for s in stores]) if v.arg[0] not in replaced and f.kernel.loaded(v) in (f32, i32)
    ]
    for axis in f.outer[:-1]:
        steps = {v: _stride(v.arg[1], last.name) for v in found if _stride(v.arg[1], axis.name) == 1}
        known = {v: c for v, c in steps.items() if c is not None and c not in (0, 1)}
        if known and _long(axis):
            return axis, known
    return None


def _long(a: Axis) -> bool:
    return not isinstance(a.size, Extent) and a.size >= TILE


def _bare(roots: list[Value]) -> list[Value]:
    """Return the loads that are in bounds at every point: not those that only guards keep there."""
    used = list(roots)
    for v in walk(roots):
        used += v.args if v.op != "inside" else ()
        used += [a.value for index in indices_of(v) for a in atoms_of(index) if isinstance(a, Dynamic)]
    return [v for v in dict.fromkeys(used) if v.op == "load"]


def _stride(index: Index, axis: str) -> int | None:
    """Return how far an index moves along an axis; None if it does so unevenly."""
    stride = 0
    for atom, c in index.terms:
        if isinstance(atom, Var):
            stride += c if atom.name == axis else 0
        elif isinstance(atom, Dynamic) or any(isinstance(a, Var) and a.name == axis for a in atoms_of(atom.index)):
            return None
    return stride


def turned_loops(f: Function, t: Turned) -> list[Statement]:
    """Return the loops of a kernel by tiles of the two axes; tiles at the edges are computed point by point."""
    across, last = t[0], f.outer[-1]
    others = [a for a in f.outer if a not in (across, last)]
    tile = _tile(f, t)
    if across.size % TILE or last.size % TILE:
        ends = [f"min({start} + {TILE}L, {a.size}L)" for start, a in (("rt", across), ("ct", last))]
        rows = Loop(last.name, ends[1], f.points(f.expressions()), "ct")
        inside = when(f"rt + {TILE} <= {across.size} && ct + {TILE} <= {last.size}", tile)
        tile = [inside, Block("else", [Loop(across.name, ends[0], [rows], "rt")])]
    columns = Loop("ct", last.size, tile, step=TILE)
    if not others:
        return f.share("rt", across.size, TILE, [columns])
    return f.split(others, [Loop("rt", across.size, [columns], step=TILE)])


def _tile(f: Function, t: Turned) -> list[Statement]:
    """Return the statements of a whole tile, which begins at (rt, ct)."""
    (axis, loads), emit = t, f.expressions()
    across, last = axis.name, f.outer[-1].name
    arrays = [f"{C_TYPE[f.kernel.loaded(v).name]} u{k}[{TILE * TILE}] {ALIGNED};" for k, v in enumerate(loads)]
    turns = [
        f"turn_tile(&{f.element(v.arg[0], emit.index(v.arg[1], False))}, {stride}, u{k});"
        for k, (v, stride) in enumerate(loads.items())
    ]
    start = Block("", [f"const long {across} = rt, {last} = ct;", *f.read(), *emit.flush(), *turns])
    emit = f.expressions()
    emit.loaded = {v: f"u{k}[lr * {TILE} + lc]" for k, v in enumerate(loads)}
    point = [f"const long {across} = rt + lr, {last} = ct + lc;", *f.points(emit)]
    return [*arrays, start, Loop("lr", TILE, [Loop("lc", TILE, point)])]
