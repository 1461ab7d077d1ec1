"""Loops of C kernels in other orders than that of the points, or over parts of the last axis.

- Running folds, where each point folds the elements of its predecessor, and one more, as `sum over j of where(j <= i,
  x[j], 0)` does. If each of n points folded alone, this would take n^2 steps. In the order of the points it takes n.
- Blocks, where indices divide the axis by one number. Compilers make slow vectors of i // 32, and none of loads there.
  With i = block * 32 + within, the quotient is `block`, which is constant in the inner loop, and the remainder is
  `within`, whose loads are neighbours.
- Pieces, where guards change along an axis; see c_pieces.py.
- Rows that end in one vector, where functions are computed. In a row of 22 elements, compilers compute the last 6 one
  by one. Here one vector computes them, with meaningless elements behind the row, which are not stored.
- Pairs of rows, as in distances; see c_tiles.py.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

from tracegrad.dtypes import strides_of
from tracegrad.kernels.expr import Index, Space, Value, Var, atoms_of, indices_of, walk
from tracegrad.kernels.form import Axis, Fold, Kernel, fold_batches, points
from tracegrad.kernels.triangles import CHOICE
from tracegrad.render.c import Function
from tracegrad.render.c_pieces import cut, loops_by_pieces, points_of, written_out
from tracegrad.render.c_text import ALIGNED, C_TYPE
from tracegrad.render.c_tiles import lane_loops, paired_loops, turned_loops
from tracegrad.render.c_values import at_once, ends_in_vector
from tracegrad.render.emit import Block, Loop, Statement, when
from tracegrad.tuning import LANES, LONG_ROWS, MOST_CUT, RUNNING_ROWS


def divisor(f: Function) -> int | None:
    """Return d if all quotients and remainders in a pointwise kernel depend on i // d and i % d of its last axis i.

    None if blocks of d points are of no use. (i + 64) // 32 and i // 1024 depend on i // 32 alone; (i + 1) // 32 does
    not.
    """
    last = f.last
    found = [q for q in f.quotients() if last.name in q.index.strides]
    others = [c for q in found for x, c in q.index.terms if not (isinstance(x, Var) and x.name == last.name)]
    d = math.gcd(*(q.d for q in found), *(q.index.const for q in found), *others)
    alone = all(q.index.strides[last.name] == 1 for q in found)
    return d if alone and LANES <= d < last.size else None


def blocked_loops(f: Function) -> list[Statement] | None:
    """Return the loops of a pointwise kernel over blocks of its last axis, of which the last can be shorter.

    None if `divisor` finds no length of a block.
    """
    d = divisor(f)
    if d is None:
        return None
    *others, last = f.outer
    space = Space()
    block, within = Axis(f"{last.name}b", -(-last.size // d)), Axis(f"{last.name}w", d)
    at = {last.name: space.var(block.name, block.size) * d + space.var(within.name, d)}
    lines = points_of(f, [*others, block, within], [at], space)
    end = f"min({d}L, {last.size} - {block.name} * {d})" if last.size % d else d
    return f.split([*others, block], [Loop(within.name, end, lines)])


def padded_loops(f: Function) -> list[Statement] | None:
    """Return the loops of a pointwise kernel whose rows end in one vector of functions; None if that is of no use."""
    last, stores = f.last, f.kernel.stores
    if f.loaded or len(f.outer) < 2 or last.size >= LONG_ROWS or not ends_in_vector(f.kernel, last, stores):
        return None
    emit = f.expressions([last.name])
    written = f.stores(emit, stores, loop=True)
    return f.split(f.outer[:-1], [*emit.flush(), *f.in_vectors(emit, [last], stores, written)])


# The axis along which folds run, whether its last point is the first to fold, and what each fold folds
Running = tuple[Axis, bool, tuple[Value, ...]]


class OrderedFunction(Function):
    """Writes one kernel, with its loops in one of the orders of this module if that is faster."""

    most = MOST_CUT

    def loops(self) -> list[Statement]:
        """Return one version of the loops, in the first order that suits the kernel."""
        orders = (lines for order in (POINTWISE if self.kernel.pointwise else FOLDING) if (lines := order(self)))
        return next(orders, None) or super().loops()

    def apart(self, kernel: Kernel, loaded: Mapping[str, tuple[int, Index]], most: int) -> list[Statement]:
        """Return the loops of a part of this kernel, which can be split into at most `most` pieces."""
        part = OrderedFunction(kernel, loaded, self)
        part.most, part.emit = most, part.expressions()
        lines = part.loops()
        self.parts, self.shares = max(self.parts, part.parts), self.shares | part.shares
        return lines


def running(kernel: Kernel) -> Running | None:
    """Return how the kernel's folds run, if all run along one axis in one direction; else None.

    Each point then folds its predecessor's elements and one more. None also if the kernel stores along its rows.
    """
    inner = [a for a in kernel.inner if a.size > 1]
    batches = fold_batches(kernel)
    if len(inner) != 1 or len(batches) != 1 or kernel.uniform or not inner[0].fixed:
        return None
    if any(s.inner for s in kernel.stores):
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
    """Return x of `where(inner <= axis, x, identity)`, or `axis <= inner`, if `axis` does not change x; else None."""
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
    """Return the name of a loop variable, if the value is just this variable; else None."""
    if v.op != "index" or v.arg.const or len(v.arg.terms) != 1:
        return None
    ((atom, c),) = v.arg.terms
    return getattr(atom, "name", None) if c == 1 else None


def _has(index: Index, axis: str) -> bool:
    return any(getattr(atom, "name", None) == axis for atom in atoms_of(index))


def running_loops(f: Function) -> list[Statement] | None:
    """Return the loops of a kernel whose folds run along an axis: by columns, or along rows if neighbours are added.

    None if they run along no axis.
    """
    r = running(f.kernel)
    if r is None:
        return None
    axis, others, folds = r[0], [a for a in f.outer if a != r[0]], fold_batches(f.kernel)[0]
    if f.outer[-1] == axis:
        return _along_rows(f, r, others, folds)
    last = others.pop()
    width = f.width(last, others)
    start = _started(f, folds, width)
    step = f.column(last, [], _step(f, r, folds, "[l]"))
    return f.blocks(others, last, width, [*start[0], f.column(last, [], start[1]), _along(f, r, [step])])


def _started(f: Function, folds: Sequence[Fold], width: int) -> tuple[list[str], list[str]]:
    """Return declarations of a partial result for each of `width` rows or columns, and lines that initialise one."""
    arrays = [f"{C_TYPE[x.value.dtype.name]} t{x.local}[{width}] {ALIGNED};" for x in folds]
    return arrays, [f"t{x.local}[l] = {f.emit.identity(x)};" for x in folds]


def _along_rows(f: Function, r: Running, others: list[Axis], folds: Sequence[Fold]) -> list[Statement]:
    """Return the loops along rows: some rows side by side, because each addition of a row waits for the one before."""
    start = [f"{C_TYPE[x.value.dtype.name]} t{x.local} = {f.emit.identity(x)};" for x in folds]
    alone = [*start, _along(f, r, _step(f, r, folds, ""))]
    if not others or not others[-1].fixed or others[-1].size < RUNNING_ROWS:
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
        return f.share("ib", rows, RUNNING_ROWS, body)
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
    return [*lines, *f.stores(emit, f.kernel.stores, loop=False)]


def _written_out(f: OrderedFunction) -> list[Statement] | None:
    """Return the loops of a kernel with its short last axis written out; None if that is of no use."""
    whole = written_out(f)
    return whole and f.apart(*whole, f.most)


def _in_parts(f: OrderedFunction) -> list[Statement] | None:
    """Return the loops of each part of an axis before the last, one after the other; None if no axis is cut."""
    parts = cut(f, f.most)
    if parts is None:
        return None
    return [Block("", f.apart(*part, f.most // len(parts))) for part in parts]


def scatter_loops(f: Function, fold: Fold, out: int) -> list[Statement]:
    """Return loops that fold the updates of each row in their order. Slot `out` gets a value for each outer point."""
    assert fold.scatter is not None
    rows, nothing = fold.scatter.row.strides, f.emit.identity(fold)
    stride = dict(zip([a.name for a in f.kernel.outer], strides_of([a.size for a in f.kernel.outer])))
    row_axes = [a for a in f.outer if a.name in rows]
    first = f.outer.index(row_axes[0]) if row_axes else len(f.outer)
    others = [a for a in f.outer if a.name not in rows]
    before = [a for a in others if f.outer.index(a) < first]
    after = [a for a in others if a not in before]
    target, update = f.emit.values([fold.scatter.target, fold.scatter.update], loop=False)
    place = [f"t * {min((stride[a.name] for a in row_axes), default=1)}"]
    place += [f"{a.name} * {stride[a.name]}" for a in others]
    here = f"p{out}[{' + '.join(place)}]"
    lines = [
        *f.emit.flush(),
        f"const long t = clamp({target}, 0, {points(row_axes) - 1});",
        f"{here} = {f.emit.combine(fold, here, update)};",
    ]
    if not before:
        zero = Loop("e", f.kernel.rows, [f"p{out}[e] = {nothing};"])
        return [zero, *f.nest([*f.inner, *after], lines)]
    first, size = before[0], stride[before[0].name]  # each point has its own results
    zero = Loop("e", f"({first.name} + 1) * {size}", [f"p{out}[e] = {nothing};"], f"{first.name} * {size}")
    return f.split([first], [zero, *f.nest([*before[1:], *f.inner, *after], lines)])


# The first of these that suits a kernel writes its loops
Order = Callable[[OrderedFunction], list[Statement] | None]
POINTWISE: Sequence[Order] = (
    turned_loops, _written_out, _in_parts, loops_by_pieces, padded_loops, blocked_loops,
)  # fmt: skip
FOLDING: Sequence[Order] = (paired_loops, running_loops, lane_loops)
