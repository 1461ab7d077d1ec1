"""Loops of C kernels by tiles of memory that are transposed, so that vectors compute neighbours together.

The loads of a transpose run across the rows of memory. A tile of them is transposed first, four by four in vectors,
into a local array. The loops over a tile then read and write neighbours. Otherwise each element would be moved alone.

Short rows that are folded twice, as in a softmax, are transposed, too: all first elements of 16 rows are neighbours
then, and so on. A vector folds 16 rows, and computes functions of their results.

A sum over k of f(x[i, k], y[j, k]) for pairs of rows, as in distances, is computed by vectors of j. A sum of a short
row in one vector ends with steps that wait for each other. So a block of y is transposed first, and read for many i.
Sums of a few rows i stay in registers, together with those of a block of j.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracegrad import tuning
from tracegrad.dtypes import f32, i32
from tracegrad.ir.nodes import PRIMITIVES
from tracegrad.kernels.expr import Dynamic, Index, Value, Var, atoms_of, indices_of, names_of, walk
from tracegrad.kernels.form import Axis, Fold, divides, fold_batches, plus
from tracegrad.render.c import Function
from tracegrad.render.c_ends import end_of
from tracegrad.render.c_text import ALIGNED, C_TYPE
from tracegrad.render.c_values import at_once, column_wise, needed
from tracegrad.render.emit import Block, Loop, Statement, when

TILE = 16  # elements of a tile's side: a line of the cache

# The axis of neighbours in memory, and the loads to transpose with their strides along the last axis
Turned = tuple[Axis, dict[Value, int]]


def turned(f: Function) -> Turned | None:
    """Return the loads of a pointwise kernel that are worth transposing; None if there are none."""
    last = f.last.name
    if not _long(f.last) or any(_stride(s.index, last) != 1 for s in f.kernel.stores):
        return None
    replaced = {s.replaces for s in f.kernel.slots}
    found = [v for v in _bare(f) if v.arg[0] not in replaced and f.kernel.loaded(v) in (f32, i32)]
    for axis in filter(_long, f.outer[:-1]):
        steps = {v: _stride(v.arg[1], last) for v in found if _stride(v.arg[1], axis.name) == 1}
        known = {v: c for v, c in steps.items() if c is not None and c not in (0, 1)}
        if known:
            return axis, known
    return None


def _long(a: Axis) -> bool:
    return a.fixed and a.size >= TILE


def _bare(f: Function) -> list[Value]:
    """Return the loads that are used without a guard, and so are in bounds at every point."""
    used = [s.value for s in f.kernel.stores]
    for v in f.values():
        used += v.args if v.op != "inside" else ()
        used += [a.value for index in indices_of(v) for a in atoms_of(index) if isinstance(a, Dynamic)]
    return [v for v in dict.fromkeys(used) if v.op == "load"]


def _stride(index: Index, axis: str) -> int | None:
    """Return the stride of an index along an axis; None if the index moves unevenly."""
    stride = 0
    for atom, c in index.terms:
        if isinstance(atom, Var):
            stride += c if atom.name == axis else 0
        elif isinstance(atom, Dynamic) or axis in names_of([atom], loaded=False):
            return None
    return stride


def turned_loops(f: Function) -> list[Statement] | None:
    """Return the loops of a pointwise kernel by tiles of two axes; None if no loads are worth transposing.

    Tiles at the edges are computed point by point.
    """
    t = turned(f)
    if t is None:
        return None
    across, last = t[0], f.last
    others = [a for a in f.outer if a not in (across, last)]
    tile = _tile(f, t)
    if across.size % TILE or last.size % TILE:
        ends = [f"min({start} + {TILE}L, {a.size}L)" for start, a in (("rt", across), ("ct", last))]
        rows = Loop(last.name, ends[1], f.points(f.expressions()), "ct")
        inside = when(f"rt + {TILE} <= {across.size} && ct + {TILE} <= {last.size}", tile)
        tile = [inside, Block("else", [Loop(across.name, ends[0], [rows], "rt")])]
    columns = Loop("ct", end_of(last), tile, step=TILE)
    if not others:
        return f.share("rt", across, TILE, [columns])
    return f.split(others, [Loop("rt", end_of(across), [columns], step=TILE)])


def _tile(f: Function, t: Turned) -> list[Statement]:
    """Return the statements of a whole tile, which begins at (rt, ct)."""
    (axis, loads), emit = t, f.expressions()
    across, last = axis.name, f.last.name
    arrays = [f"{C_TYPE[f.kernel.loaded(v).name]} u{k}[{TILE * TILE}] {ALIGNED};" for k, v in enumerate(loads)]
    turns = [
        f"turn(&{f.element(v.arg[0], emit.index(v.arg[1], False))}, {stride}, {TILE}, {TILE}, u{k}, {TILE});"
        for k, (v, stride) in enumerate(loads.items())
    ]
    start = Block("", [f"const long {across} = rt, {last} = ct;", *f.read(), *emit.flush(), *turns])
    emit = f.expressions()
    emit.loaded = {v: f"u{k}[lr * {TILE} + lc]" for k, v in enumerate(loads)}
    point = [f"const long {across} = rt + lr, {last} = ct + lc;", *f.points(emit)]
    return [*arrays, start, Loop("lr", TILE, [Loop("lc", TILE, point)])]


def side_by_side(f: Function) -> dict[Value, int] | None:
    """Return the loads to transpose in a kernel that folds short rows, with their steps to other rows; else None."""
    if not _folds_short_rows(f):
        return None
    kernel, (inner,) = f.kernel, f.inner
    emit, found = f.expressions([inner.name]), dict[Value, int]()
    for v in walk([x.value for x in kernel.folds]):
        if v.op not in ("load", "inside") or not emit.varies(v):
            continue
        if v.op == "inside" or kernel.loaded(v) not in (f32, i32) or _stride(v.arg[1], inner.name) != 1:
            return None
        step = _stride(v.arg[1], f.last.name)
        if step is None or (step and not inner.size <= step <= tuning.LONG_ROWS):
            return None
        if step:
            found[v] = step
    return found or None


def _folds_short_rows(f: Function) -> bool:
    """Return whether a kernel folds rows that are so short that 16 of them side by side are faster.

    A vector along a row ends each fold with steps that wait for each other. For rows folded twice, transposing is
    faster up to some three vectors. Beyond that it is if each row calls a function of its results, as log_softmax does:
    one number takes as long as a vector. For rows folded once, it is faster if they are a little longer than a vector,
    or shorter and call functions.
    """
    kernel, twice = f.kernel, len(fold_batches(f.kernel)) > 1
    called = any(x.product or x.scatter for x in kernel.folds)
    if not _long(f.last) or len(f.inner) != 1 or f.loaded or kernel.uniform or called:
        return False
    (inner,) = f.inner
    if not inner.fixed or not tuning.SHORT_ROWS <= inner.size <= tuning.LONG_ROWS:
        return False
    values = list(walk([x.value for x in kernel.folds]))
    read = sum(v.op == "load" and {inner.name, f.last.name} <= v.arg[1].strides.keys() for v in values)
    once = read == 1 and tuning.LANES < inner.size <= tuning.ONCE_FOLDED
    if inner.size >= tuning.LANES:
        long = inner.size >= tuning.CALLING_ROWS and not _calls(f, [s.value for s in kernel.body])
        return (once or (twice and not long)) and not column_wise(kernel)
    rows = [*(x.prim.combine for x in kernel.folds), *(v.arg[0] for v in values if v.op == "map")]
    return twice or any(PRIMITIVES[name].helper for name in rows)


def _calls(f: Function, roots: Sequence[Value]) -> list[Value]:
    """Return the costly functions that are computed once for each row."""
    fixed = f.expressions([a.name for a in f.inner])
    calls = [v for v in walk(roots) if v.op == "map" and PRIMITIVES[v.arg[0]].cost >= tuning.LONG_CALL]
    return [v for v in calls if not fixed.varies(v)]


def lane_loops(f: Function) -> list[Statement] | None:
    """Return the loops of a kernel that folds short rows, 16 rows side by side; None for any other kernel."""
    loads = side_by_side(f)
    return None if loads is None else _Lanes(f, loads).loops()


class _Lanes:
    """Writes the loops of one kernel. held: values that arrays hold for 16 rows -> the code that reads them."""

    def __init__(self, f: Function, loads: Mapping[Value, int]) -> None:
        self.f, self.loads, (self.inner,), (*self.others, self.last) = f, loads, f.inner, f.outer
        self.held = {v: f"u{k}[{self.inner.name} * {TILE} + l]" for k, v in enumerate(loads)}
        self.done, self.body = list[Fold](), list[Statement]()

    def loops(self) -> list[Statement]:
        f = self.f
        self.turn()
        for folds in fold_batches(f.kernel):
            self.fold(folds)
        self.call([s.value for s in f.kernel.stores])
        f.emit = f.expressions([self.inner.name])
        f.emit.loaded = {v: text for v, text in self.held.items() if v not in self.loads}
        self.body.append(Loop("l", f"min({TILE}L, {end_of(self.last)} - rt)", [*self.known(), *f.results_of_row()]))
        if not self.others:
            return f.share("rt", self.last, TILE, self.body)
        return f.split(self.others, [Loop("rt", end_of(self.last), self.body, step=TILE)])

    def turn(self) -> None:
        """Transpose what is folded."""
        f, emit, inner = self.f, self.f.expressions(), self.inner
        turns = list[str]()
        for k, (v, step) in enumerate(self.loads.items()):
            self.array(v, f"u{k}", int(inner.size) + 3)
            place = f.element(v.arg[0], emit.index(v.arg[1], False))
            turns.append(f"turn(&{place}, {step}, {TILE}, {inner.size}, u{k}, {TILE});")
        self.body.append(Block("", [f"const long {self.last.name} = rt, {inner.name} = 0;", *emit.flush(), *turns]))

    def fold(self, folds: Sequence[Fold]) -> None:
        """Fold 16 rows."""
        f, emit, roots = self.f, self.f.expressions(), [x.value for x in folds]
        self.call(roots)
        emit.loaded = self.held
        values = emit.values(roots, loop=False)
        for x in folds:
            self.array(x.value, f"t{x.local}")
        step = [f"t{x.local}[l] = {emit.combine(x, f't{x.local}[l]', v)};" for x, v in zip(folds, values)]
        self.body.append(at_once(TILE, [f"t{x.local}[l] = {emit.identity(x)};" for x in folds]))
        self.body += f.nest(f.inner, [at_once(TILE, [*self.known(), *emit.flush(), *step])])
        self.done += folds

    def call(self, roots: Sequence[Value]) -> None:
        """Compute costly functions of the rows' results, each for 16 rows at once."""
        emit = self.f.expressions()
        emit.loaded = self.held
        calls = [v for v in _calls(self.f, roots) if v not in self.held]
        texts, names = emit.values(calls, loop=False), [f"h{len(self.held) + k}_" for k in range(len(calls))]
        for v, name in zip(calls, names):
            self.array(v, name)
        lines = [f"{name}[l] = {text};" for name, text in zip(names, texts)]
        self.body += [at_once(TILE, [*self.known(), *emit.flush(), *lines])] if calls else []
        self.held |= {v: f"{name}[l]" for v, name in zip(calls, names)}

    def array(self, v: Value, name: str, columns: int = 1) -> None:
        """Declare an array for values of 16 rows."""
        dtype = self.f.kernel.loaded(v) if v.op == "load" else v.dtype
        self.body.append(f"{C_TYPE[dtype.name]} {name}[{columns * TILE}] {ALIGNED};")

    def known(self) -> list[str]:
        """Return lines that name a row and its results. Beyond the last, the last repeats: others may be no memory."""
        n = self.last.size
        row = "rt + l" if divides(TILE, n) else f"min(rt + l, (long){plus(n, -1)})"
        return [
            f"const long {self.last.name} = {row};",
            *[self.f.emit.let(x.local, f"t{x.local}[l]") for x in self.done],
        ]


def paired(f: Function) -> list[Value] | None:
    """Return the loads to transpose in a kernel over pairs of rows; None if that is not faster."""
    if not _over_pairs(f):
        return None
    values = list(walk([x.value for x in f.kernel.folds]))
    if not all(v.op != "inside" and i.linear for v in values for i in indices_of(v)):
        return None
    (inner,), across, last = f.inner, f.outer[-2], f.last
    along = [v for v in values if v.op == "load" and inner.name in v.arg[1].strides]
    turned = [v for v in along if last.name in v.arg[1].strides]
    strides = [v.arg[1].strides for v in turned]
    apart = all(across.name not in x and x[last.name] >= inner.size for x in strides)
    return turned if turned and apart and len(turned) < len(along) else None


def _over_pairs(f: Function) -> bool:
    """Return whether a kernel folds one short axis at the points of two long ones, and stores one value a point."""
    kernel, inner = f.kernel, f.inner
    if len(inner) != 1 or not inner[0].fixed or f.loaded or kernel.uniform or len(f.outer) < 2:
        return False
    if not 2 <= inner[0].size <= tuning.LONGEST_PAIRED or min(f.last.size, f.outer[-2].size) < tuning.PAIRED:
        return False
    return not any(s.inner for s in kernel.stores) and not (kernel.length >= tuning.LANES and column_wise(kernel))


def paired_loops(f: Function) -> list[Statement] | None:
    """Return the loops of a kernel over pairs of rows; None for any other kernel."""
    turned = paired(f)
    return None if turned is None else _Pairs(f, turned).loops()


class _Pairs:
    """Writes the loops of one kernel. Blocks have `width` columns, and `rows` rows are folded at once."""

    def __init__(self, f: Function, turned: Sequence[Value]) -> None:
        self.f, self.turned, size = f, turned, int(f.last.size)
        *self.others, self.across, self.last = f.outer
        self.width = -(-size // -(-size // tuning.PAIRED_WIDTH) // tuning.LANES) * tuning.LANES
        self.rows = range(max(1, tuning.PAIRED_SUMS // self.width))

    def loops(self) -> list[Statement]:
        """Return the loops, whose parts have some blocks of columns, or some rows if these are more."""
        f, size, rows = self.f, int(self.last.size), self.across.size
        if self.others:
            return f.split(self.others, [Loop("ib", size, self.block("0", str(rows)), step=self.width)])
        if self.across.fixed and size // self.width >= rows // tuning.PAIRED_ROWS:
            return f.share("ib", self.last, self.width, self.block("0", str(rows)))
        block = self.block("first", f"min(first + {tuning.PAIRED_ROWS}, (long){rows})")
        return f.share("first", self.across, tuning.PAIRED_ROWS, [Loop("ib", size, block, step=self.width)])

    def block(self, first: str, end: str) -> list[Statement]:
        """Return the lines that transpose a block of columns, and fold some rows with it."""
        f, inner, width = self.f, self.f.inner[0], self.width
        emit = f.expressions()
        texts = emit.values(self.turned, loop=False)
        filled = [f"u{k}[{inner.name} * {width} + l] = {text};" for k, text in enumerate(texts)]
        at = f"const long {self.last.name} = min(ib + l, {int(self.last.size) - 1}L);"
        turn = Loop("l", width, [at, Loop(inner.name, inner.size, [*emit.flush(), *filled])])
        arrays: list[str] = []
        for k, v in enumerate(self.turned):  # through a restricted pointer: otherwise sums are stored at each step
            t = C_TYPE[f.kernel.loaded(v).name]
            arrays += [f"{t} u{k}[{width * int(inner.size)}] {ALIGNED};", f"const {t} *restrict q{k} = u{k};"]
        return [*arrays, turn, Loop("rb", end, self.folds(end), first, len(self.rows))]

    def folds(self, end: str) -> list[Statement]:
        """Return the lines that fold some rows and store what follows."""
        f, inner = self.f, self.f.inner[0]
        lines, done = list[Statement](), list[Fold]()
        for folds in fold_batches(f.kernel):
            emit = f.expressions()
            emit.loaded = {v: f"q{k}[{inner.name} * {self.width} + l]" for k, v in enumerate(self.turned)}
            values = emit.values([x.value for x in folds], loop=False)
            shared, steps = emit.flush(), list[Statement]()
            for r in self.rows:
                t = {x: f"t{x.local}_{r}" for x in folds}
                lines += [f"{C_TYPE[x.value.dtype.name]} {t[x]}[{self.width}] {ALIGNED};" for x in folds]
                lines.append(self.column(r, [], [f"{t[x]}[l] = {emit.identity(x)};" for x in folds]))
                added = [f"{t[x]}[l] = {emit.combine(x, f'{t[x]}[l]', v)};" for x, v in zip(folds, values)]
                steps.append(self.row(r, [self.column(r, done, [*shared, *added])]))
            lines += self.where_needed(folds, done, Loop(inner.name, inner.size, steps))
            done += folds
        emit = f.expressions()
        stored = f.stores(emit, f.kernel.stores, loop=False)
        columns = f"min({self.width}L, {int(self.last.size)} - ib)"
        return [
            *lines,
            *[when(f"rb + {r} < {end}", [self.row(r, [self.column(r, done, stored, columns)])]) for r in self.rows],
        ]

    def where_needed(self, folds: Sequence[Fold], done: Sequence[Fold], loop: Loop) -> list[Statement]:
        """Return the loop of some folds, in an `if` that skips the loop where no pair has anything to fold."""
        emit = self.f.expressions()
        condition = needed(folds, self.f.inner, emit)
        if not condition:
            return [loop]
        test = [*emit.flush(), f"any{len(done)} |= {condition};"]
        tests = [self.row(r, [self.column(r, done, test)]) for r in self.rows]
        return [f"int any{len(done)} = 0;", *tests, when(f"any{len(done)}", [loop])]

    def row(self, r: int, lines: Sequence[Statement]) -> Block:
        """Return lines for row `rb + r`, or the last row if there are fewer, whose sums can then be computed twice."""
        return Block("", [f"const long {self.across.name} = min(rb + {r}, (long){self.across.size} - 1);", *lines])

    def column(self, r: int, done: Sequence[Fold], lines: Sequence[str], end: str = "") -> Loop:
        """Return a loop over the columns of a block, with the results of one row."""
        known = [self.f.emit.let(x.local, f"t{x.local}_{r}[l]") for x in done]
        return Loop("l", end or self.width, [f"const long {self.last.name} = ib + l;", *known, *lines])
