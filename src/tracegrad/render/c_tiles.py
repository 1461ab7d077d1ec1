"""Loops of C kernels by tiles of memory that are transposed, so that vectors compute neighbours together.

The loads of a transpose run across the rows of memory. A tile of them is transposed first, four by four in vectors,
into a local array. The loops over a tile then read and write neighbours. Otherwise each element would be moved alone.

The elements of short rows, which are written out, are read at steps such as 5 or 7. Compilers do not vectorize these
loads. So 16 rows are transposed: all first elements are neighbours then, and so on. Results are transposed back.

A sum over k of f(x[i, k], y[j, k]) for pairs of rows, as in distances, is computed by vectors of j. A sum of a short
row in one vector ends with steps that wait for each other. So a block of y is transposed first, and read for many i.
Sums of a few rows i stay in registers, together with those of a block of j.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from tracegrad import tuning
from tracegrad.dtypes import f32, i32
from tracegrad.ir.nodes import PRIMITIVES
from tracegrad.kernels.expr import Dynamic, Index, Value, Var, atoms_of, indices_of, names_of, walk
from tracegrad.kernels.form import Axis, Fold, Store, fold_batches
from tracegrad.render.c import Function, at_once
from tracegrad.render.c_text import ALIGNED, C_TYPE
from tracegrad.render.c_values import column_wise, needed
from tracegrad.render.emit import Block, Emitter, Loop, Statement, when

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
    columns = Loop("ct", last.size, tile, step=TILE)
    if not others:
        return f.share("rt", across.size, TILE, [columns])
    return f.split(others, [Loop("rt", across.size, [columns], step=TILE)])


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


class Group(NamedTuple):
    """Elements of one row in memory: a slot, the index of the first, offsets from there, and the step to other rows."""

    slot: int
    first: Index
    offsets: tuple[int, ...]
    step: int


def short_rows(f: Function) -> tuple[dict[Value, tuple[Group, int]], list[tuple[Group, tuple[Store, ...]]]] | None:
    """Return the loads of a kernel of short rows, and its stores, by groups; None if transposing them is of no use.

    Each load has its group, and its offset from the first element of the group.
    """
    if not _long(f.last) or f.loaded or f.inner or f.kernel.folds:
        return None
    last, stores, values = f.last.name, f.kernel.stores, f.values()
    loads = [v for v in values if v.op == "load"]
    steps = [_stride(i, last) for i in (*(v.arg[1] for v in loads), *(s.index for s in stores))]
    if set(loads) != set(_bare(f)) or any(c is None or not 0 <= c <= tuning.LONG_ROWS for c in steps):
        return None
    read = {
        loads[k]: (group, loads[k].arg[1].const - group.first.const)
        for group, members in _groups([(v.arg[0], v.arg[1]) for v in loads], last)
        if _worth_turning(f, group)
        for k in members
    }
    written = [(g, tuple([stores[k] for k in at])) for g, at in _groups([(s.slot, s.index) for s in stores], last)]
    calls = any(v.op == "map" and PRIMITIVES[v.arg[0]].helper for v in values)
    pays = _unlike_vectors([g for g, _ in read.values()], [g for g, _ in written if _whole(f, g)], calls)
    return (read, written) if pays else None


def _unlike_vectors(read: Sequence[Group], whole: Sequence[Group], calls: bool) -> bool:
    """Return whether transposing these groups is faster than what compilers make of them.

    GCC vectorizes function calls only at steps that are powers of two. Compilers vectorize plain arithmetic, but with
    short vectors. Transposing then pays for long rows only.
    """
    if calls:
        return bool(whole) or any(g.step & (g.step - 1) for g in read)
    return any(g.step >= tuning.PLAIN_ROWS for g in whole)


def _groups(places: Sequence[tuple[int, Index]], axis: str) -> list[tuple[Group, list[int]]]:
    """Group places by all but the constants of their indices, and give the numbers of the places of each group."""
    alike: dict[tuple[int, Index], list[int]] = {}
    for k, (slot, index) in enumerate(places):
        alike.setdefault((slot, index + -index.const), []).append(k)
    groups: list[tuple[Group, list[int]]] = []
    for (slot, rest), members in alike.items():
        members.sort(key=lambda k: places[k][1].const)
        first = places[members[0]][1]
        offsets = tuple([places[k][1].const - first.const for k in members])
        groups.append((Group(slot, first, offsets, _stride(rest, axis) or 0), members))
    return groups


def _worth_turning(f: Function, g: Group) -> bool:
    """Return whether a group has most elements of a row, of four bytes each, and the row is long enough."""
    wide = f.kernel.slots[g.slot].dtype.storage in (f32.storage, i32.storage)
    return wide and tuning.SHORT_ROWS <= g.step < 2 * len(g.offsets) and g.offsets[-1] < g.step


def _whole(f: Function, g: Group) -> bool:
    """Return whether stores cover all elements of a row."""
    return _worth_turning(f, g) and len(set(g.offsets)) == len(g.offsets) == g.step


def short_loops(f: Function) -> list[Statement] | None:
    """Return the loops of a kernel of short rows, 16 rows at a time; None for any other kernel."""
    found = short_rows(f)
    if found is None:
        return None
    (read, written), (*others, last) = found, f.outer
    groups = list(dict.fromkeys([g for g, _ in read.values()]))
    emit = f.expressions()
    arrays = [_array(f, f"u{k}", g, -(-(g.offsets[-1] + 1) // 4) * 4) for k, g in enumerate(groups)]
    turns = [
        f"turn(&{_at(f, emit, g)}, {g.step}, {TILE}, {g.offsets[-1] + 1}, u{k}, {TILE});" for k, g in enumerate(groups)
    ]
    start = Block("", [f"const long {last.name} = rt;", *f.read(), *emit.flush(), *turns])
    emit = f.expressions()
    emit.loaded = {v: f"u{groups.index(g)}[{offset * TILE} + l]" for v, (g, offset) in read.items()}
    held = {s: f"w{k}[{n * TILE} + l]" for k, (_, stores) in enumerate(written) for n, s in enumerate(stores)}
    kept = f.stores(emit, list(held), loop=False, place=held.__getitem__)
    point = [f"const long {last.name} = rt + l;", *f.read(), *kept]
    emit = f.expressions()
    ends = [line for k, (g, _) in enumerate(written) for line in _written(f, emit, f"w{k}", g)]
    results = [_array(f, f"w{k}", g, -(-len(g.offsets) // 4) * 4) for k, (g, _) in enumerate(written)]
    end = Block("", [f"const long {last.name} = rt, rows = min({last.size}L - rt, {TILE}L);", *emit.flush(), *ends])
    body = [*arrays, *results, start, at_once(TILE, point), end]
    if not others:
        return f.share("rt", last.size, TILE, body)
    return f.split(others, [Loop("rt", last.size, body, step=TILE)])


def _at(f: Function, emit: Emitter, g: Group) -> str:
    """Return the first element of a group."""
    return f.element(g.slot, emit.index(g.first, False))


def _array(f: Function, name: str, g: Group, columns: int) -> str:
    """Return the declaration of an array for the elements of 16 rows."""
    return f"{C_TYPE[f.kernel.slots[g.slot].dtype.storage]} {name}[{columns * TILE}] {ALIGNED};"


def _written(f: Function, emit: Emitter, name: str, g: Group) -> list[Statement]:
    """Return the statements that write the results of a group: whole rows together, else each column alone."""
    if _whole(f, g):
        turned = f"int rows_[{g.step * TILE + 4}] {ALIGNED};"
        back = f"turn({name}, {TILE}, {g.step}, {TILE}, rows_, {g.step});"
        return [Block("", [turned, back, f"__builtin_memcpy(&{_at(f, emit, g)}, rows_, rows * {4 * g.step});"])]
    columns = [f"(&{_at(f, emit, g)})[l * {g.step} + {o}] = {name}[{n * TILE} + l];" for n, o in enumerate(g.offsets)]
    return [Loop("l", "rows", columns)]


def paired(f: Function) -> list[Value] | None:
    """Return the loads to transpose in a kernel over pairs of rows; None if that is not faster."""
    kernel, inner, last = f.kernel, f.inner, f.last
    if len(inner) != 1 or not inner[0].fixed or f.loaded or kernel.uniform or len(f.outer) < 2:
        return None
    if not 2 <= inner[0].size <= tuning.LONGEST_PAIRED or min(last.size, f.outer[-2].size) < tuning.PAIRED:
        return None
    values = list(walk([x.value for x in kernel.folds]))
    linear = all(v.op != "inside" and i.linear for v in values for i in indices_of(v))
    if not linear or any(s.inner for s in kernel.stores) or (kernel.length >= tuning.LANES and column_wise(kernel)):
        return None
    along = [v for v in values if v.op == "load" and inner[0].name in v.arg[1].strides]
    turned = [v for v in along if last.name in v.arg[1].strides]
    strides = [v.arg[1].strides for v in turned]
    apart = all(f.outer[-2].name not in x and x[last.name] >= inner[0].size for x in strides)
    return turned if turned and apart and len(turned) < len(along) else None


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
            return f.share("ib", size, self.width, self.block("0", str(rows)))
        block = self.block("first", f"min(first + {tuning.PAIRED_ROWS}, (long){rows})")
        return f.share("first", rows, tuning.PAIRED_ROWS, [Loop("ib", size, block, step=self.width)])

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
