"""Loops of C kernels in other orders than that of the points, above all those of folds that run along an axis.

A fold runs if each point folds the elements of its predecessor, and one more, as `sum over j of where(j <= i, x[j], 0)`
does. It costs n^2 steps for n points if each folds alone, and n in their order. Running sums and products have this
form.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracegrad.kernels.expr import Index, Value, atoms_of, indices_of, walk
from tracegrad.kernels.form import Axis, Extent, Fold, Kernel, Store, fold_batches
from tracegrad.kernels.triangles import CHOICE
from tracegrad.render.c import Function, at_once
from tracegrad.render.c_blocks import blocked_loops, divisor
from tracegrad.render.c_chunks import chunks, loops_by_chunks
from tracegrad.render.c_pieces import loops_by_pieces, pieces
from tracegrad.render.c_text import ALIGNED, C_TYPE
from tracegrad.render.c_tiles import short_loops, turned, turned_loops
from tracegrad.render.emit import Block, Loop, Statement, when
from tracegrad.tuning import RUNNING_ROWS

# The axis along which folds run, whether its last point is the first to fold, and what each fold folds
Running = tuple[Axis, bool, tuple[Value, ...]]


class OrderedFunction(Function):
    """Writes one kernel, with loops in these orders where they suit it."""

    def loops(self) -> list[Statement]:
        """Return the loops once."""
        pointwise = all(isinstance(s, Store) and not s.inner for s in self.kernel.body)
        tiles = turned(self) if pointwise else None
        if tiles:
            return turned_loops(self, tiles)
        rows = short_loops(self)
        if rows:
            return rows
        starts = pieces(self) if pointwise else None
        if starts:
            return loops_by_pieces(self, starts)
        found = chunks(self) if pointwise else None
        if found:
            return loops_by_chunks(self, found)
        d = divisor(self) if pointwise else None
        if d:
            return blocked_loops(self, d)
        order = running(self.kernel)
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
        return _along_rows(f, r, others, folds)
    last = others.pop()
    width = f.width(last, others)
    start = _started(f, folds, width)
    step = f.column(last, [], _step(f, r, folds, "[l]"))
    return f.blocks(others, last, width, [*start[0], f.column(last, [], start[1]), _along(f, r, [step])])


def _started(f: Function, folds: Sequence[Fold], width: int) -> tuple[list[str], list[str]]:
    """Return the declarations of a partial result for each of some rows or columns, and what each one begins with."""
    arrays = [f"{C_TYPE[x.value.dtype.name]} t{x.local}[{width}] {ALIGNED};" for x in folds]
    return arrays, [f"t{x.local}[l] = {f.emit.identity(x)};" for x in folds]


def _along_rows(f: Function, r: Running, others: list[Axis], folds: Sequence[Fold]) -> list[Statement]:
    """Return the loops along rows: some rows side by side, because each addition of a row waits for the one before."""
    start = [f"{C_TYPE[x.value.dtype.name]} t{x.local} = {f.emit.identity(x)};" for x in folds]
    alone = [*start, _along(f, r, _step(f, r, folds, ""))]
    if not others or isinstance(others[-1].size, Extent) or others[-1].size < RUNNING_ROWS:
        return f.split(others, [Block("", alone)])
    rows = others.pop()
    arrays, identities = _started(f, folds, RUNNING_ROWS)
    steps = [[f"const long {rows.name} = ib + {k};", *_step(f, r, folds, f"[{k}]")] for k in range(RUNNING_ROWS)]
    beside = _along(f, r, [Block("", step) for step in steps])
    body: list[Statement] = [*arrays, at_once(RUNNING_ROWS, identities), beside]
    if rows.size % RUNNING_ROWS:
        rest = Loop(rows.name, rows.size, alone, "ib")
        body = [when(f"ib + {RUNNING_ROWS} <= {rows.size}", body), Block("else", [rest])]
    if not others:
        return f.share("ib", rows.size, RUNNING_ROWS, body)
    return f.split(others, [Loop("ib", rows.size, body, step=RUNNING_ROWS)])


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
