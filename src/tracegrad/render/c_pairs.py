"""Sums over k of f(x[i, k], y[j, k]) for pairs of rows, as in distances, by vectors of j.

A sum of a short row in one vector ends with steps that wait for each other. So a block of y is turned first, and read
for many i. Sums of a few rows i stay in registers, together with those of a block of j.
"""

from __future__ import annotations

from collections.abc import Sequence

from tracegrad.kernels.expr import Value, indices_of, walk
from tracegrad.kernels.form import Fold, fold_batches
from tracegrad.render.c import Function
from tracegrad.render.c_text import ALIGNED, C_TYPE
from tracegrad.render.c_values import column_wise, needed
from tracegrad.render.emit import Block, Loop, Statement, when
from tracegrad.tuning import LANES, LONGEST_PAIRED, PAIRED, PAIRED_ROWS, PAIRED_SUMS, PAIRED_WIDTH


def paired(f: Function) -> list[Value] | None:
    """Return the loads to transpose in a kernel over pairs of rows; None if that is not faster."""
    kernel, inner, last = f.kernel, f.inner, f.last
    if len(inner) != 1 or not inner[0].fixed or f.loaded or kernel.uniform or len(f.outer) < 2:
        return None
    if not 2 <= inner[0].size <= LONGEST_PAIRED or min(last.size, f.outer[-2].size) < PAIRED:
        return None
    values = list(walk([x.value for x in kernel.folds]))
    linear = all(v.op != "inside" and i.linear for v in values for i in indices_of(v))
    if not linear or any(s.inner for s in kernel.stores) or (kernel.length >= LANES and column_wise(kernel)):
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
        self.width = -(-size // -(-size // PAIRED_WIDTH) // LANES) * LANES
        self.rows = range(max(1, PAIRED_SUMS // self.width))

    def loops(self) -> list[Statement]:
        """Return the loops, whose parts have some blocks of columns, or some rows if these are more."""
        f, size, rows = self.f, int(self.last.size), self.across.size
        if self.others:
            return f.split(self.others, [Loop("ib", size, self.block("0", str(rows)), step=self.width)])
        if self.across.fixed and size // self.width >= rows // PAIRED_ROWS:
            return f.share("ib", size, self.width, self.block("0", str(rows)))
        block = self.block("first", f"min(first + {PAIRED_ROWS}, (long){rows})")
        return f.share("first", rows, PAIRED_ROWS, [Loop("ib", size, block, step=self.width)])

    def block(self, first: str, end: str) -> list[Statement]:
        """Return the lines that turn a block of columns, and fold some rows with it."""
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
        """Return the loop of some folds, left out where conditions of all pairs say that they fold nothing."""
        one = needed(folds, self.f.inner)
        if one is None:
            return [loop]
        emit = self.f.expressions()
        (condition,) = emit.values([one[0]], loop=False)
        test = [*emit.flush(), f"any{len(done)} |= ({condition}) == {int(one[1])};"]
        tests = [self.row(r, [self.column(r, done, test)]) for r in self.rows]
        return [f"int any{len(done)} = 0;", *tests, when(f"any{len(done)}", [loop])]

    def row(self, r: int, lines: Sequence[Statement]) -> Block:
        """Return lines for row `rb + r`, or the last row if there are fewer, whose sums can then be computed twice."""
        return Block("", [f"const long {self.across.name} = min(rb + {r}, (long){self.across.size} - 1);", *lines])

    def column(self, r: int, done: Sequence[Fold], lines: Sequence[str], end: str = "") -> Loop:
        """Return a loop over the columns of a block, with the results of one row."""
        known = [self.f.emit.let(x.local, f"t{x.local}_{r}[l]") for x in done]
        return Loop("l", end or self.width, [f"const long {self.last.name} = ib + l;", *known, *lines])
