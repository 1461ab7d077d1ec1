"""Kernels of rows: one or more threads for each row, which fold its points and store to them.

The lanes of a row combine their partial folds through workgroup memory. If a thread has few points, their values stay
in registers from one fold to the next.

A fold in a loop that runs in one launch is different: a workgroup folds all rows of its block. Operands that are the
same for all rows, such as the state that a weight multiplies, are read once into workgroup memory. Operands that are
the same in all iterations, such as the weight, stay in the registers of their threads from the first iteration to the
last. Those without room there are read in each iteration.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

from tracegrad.kernels.blocks import gathered, kept
from tracegrad.kernels.expr import Value
from tracegrad.kernels.form import Extent, Fold, Kernel, Store, divides, fold_batches, plus
from tracegrad.kernels.tiling import BlockShape, Tiling, turns_of_neighbours
from tracegrad.render.emit import Block, Emitter, Loop, Statement, copied, decode, when
from tracegrad.render.wgsl_loads import XYZW
from tracegrad.tuning import (
    COOPERATE_FROM,
    HELD,
    LAST_LANES,
    STREAMED_TOGETHER,
    TURNS_TOGETHER,
    WORKGROUP,
)

PARTIAL = {"f32": "sf", "i32": "si", "u32": "su"}  # workgroup arrays of partial results
Written = tuple[Sequence[str], Sequence[Statement]]  # lines that compute the stored values, and lines that store them
Writing = Callable[[Emitter, Sequence[Store], bool], Written]


class Rows:
    """Writes the loops of one kernel."""

    def __init__(self, kernel: Kernel, tiling: Tiling, emit: Emitter, written: Writing) -> None:
        """written: writes some stores; the last argument tells whether they are inside a loop."""
        self.kernel, self.tiling, self.emit, self.written = kernel, tiling, emit, written
        self.held = 0  # points of a row whose values a thread keeps in registers from one fold to the next

    def lines(self) -> list[Statement]:
        """Return the body of the kernel's function."""
        t, k = self.tiling, self.kernel
        if t.each > 1:
            return self.neighbours()
        per_group = t.threads // t.lanes
        row, lane = f"lid / {t.lanes}", f"lid % {t.lanes}"
        if t.lanes == 1:
            row, lane = "lid", "0"
        elif per_group == 1:
            row, lane = "0", "lid"
        elif t.rows_fastest:
            row, lane = f"lid % {per_group}", f"lid / {per_group}"
        lines: list[Statement] = [f"let row = w * {per_group} + {row};", f"let lane = {lane};"]
        if t.lanes == 1:
            lines += [f"if (row >= {k.rows}) {{ return; }}", *decode("row", k.outer)]
        else:  # no thread can leave before a barrier
            lines += [f"let r = min(row, {k.rows - 1});", *decode("r", k.outer)]
        outer = [s for s in k.stores if not s.inner]
        inner = [s for s in k.stores if s.inner]
        batches = fold_batches(k)
        few = not isinstance(k.length, Extent) and 1 < t.lanes <= k.length <= t.lanes * HELD
        if few and len(batches) + len(inner[:1]) > 1:
            self.held = -(-k.length // t.lanes)
            self.emit.hold([s.value for s in k.body])
            lines += self.points_of_row()
        for folds in batches:
            lines += self.folds(folds)
        if inner:
            loop = self.loop(lambda: self.written(self.emit, inner, True), t.lanes)
            lines += [*self.emit.flush(), when(f"row < {k.rows}", loop)]
        if outer:
            values, writes = self.written(self.emit, outer, False)
            lines += self.emit.flush()
            if t.lanes > 1 and any(k.slots[s.slot].replaces >= 0 for s in outer):
                lines.append("storageBarrier();")  # every lane reads what lane 0 is about to overwrite
            lines.append(when(f"row < {k.rows} && lane == 0", [*values, *writes]))
        return lines

    def loop(self, turn: Callable[[], Written], step: int) -> list[Statement]:
        """Return the loop over a thread's points of a row.

        Several turns are written side by side: first the values of all, so that their loads do not wait for each other,
        then the uses.
        """
        k, together = self.kernel, self.held or 1
        if not self.held and self.tiling.threads >= WORKGROUP and k.length >= COOPERATE_FROM:
            together = min(TURNS_TOGETHER, -(-int(k.length) // step))
        first: list[str] = []
        then: list[Statement] = []
        for u in range(together):
            copy = self.emit.copy = f"_{u}" if together > 1 else ""
            values, uses = turn()
            if not self.held:
                first += self.point_of_row(copy, f"j + {step * u}", step * together)
            first += [*self.emit.inner, *values]
            edge = together > 1 and not divides(step * together, k.length)
            then += [when(f"j + {step * u} < {k.length}", uses)] if edge else uses
        self.emit.copy = ""
        if self.held:
            return [*first, *then]
        return [Loop("j", k.length, [*first, *then], "lane", step * together)]

    def point_of_row(self, copy: str, at: str, turn: int) -> list[str]:
        """Return the axes of a point. Beyond the row's end the last point repeats."""
        k = self.kernel
        at = at if divides(turn, k.length) else f"min({at}, {plus(k.length, -1)})"
        return [*([f"let j{copy} = {at};"] if copy else []), *decode(f"j{copy}", copied(k.inner, copy))]

    def points_of_row(self) -> list[str]:
        """Return the axes of all `held` points of a thread: the points' values stay in registers between folds."""
        lanes, turns = self.tiling.lanes, self.held
        lines = ["let j = lane;"]
        for u in range(turns):
            lines += self.point_of_row(f"_{u}" if turns > 1 else "", f"j + {lanes * u}", lanes * turns)
        return lines

    def folds(self, folds: Sequence[Fold]) -> list[Statement]:
        t = self.tiling

        def turn() -> Written:
            copy = self.emit.copy
            values = self.emit.values([f.value for f in folds], loop=True)
            named = [f"let x{f.local}{copy} = {v};" for f, v in zip(folds, values)]
            return named, [f"t{f.local} = {self.emit.combine(f, f't{f.local}', f'x{f.local}{copy}')};" for f in folds]

        loop = self.loop(turn, t.parts)
        loop = loop if self.held else [Block("", loop)]
        start = [(f"t{f.local}", self.emit.identity(f)) for f in folds]
        lines: list[Statement] = [*self.emit.flush(), *(f"var {name} = {identity};" for name, identity in start)]
        if t.parts > t.lanes:
            lines += self.parts(folds, [*(f"{name} = {identity};" for name, identity in start), *loop])
        else:
            lines += loop
        for f in folds:
            lines += self.tree(f) if t.lanes > 1 else []
            lines.append(f"let {f.local} = t{f.local};")
        return lines

    def parts(self, folds: Sequence[Fold], loop: Sequence[Statement]) -> list[Statement]:
        """Return the loop in which one thread computes every part in turn, combined in the order of `tree`.

        Parts come in the order of their number's reversed bits, so the two parts that `tree` combines first follow each
        other. A part that waits for its other half at level b is in a variable, like a digit of a binary counter.
        """
        levels = range(self.tiling.parts.bit_length() - 1)
        merge: list[str] = []
        for b in levels:
            wait = " ".join(f"{f.local}_{b} = t{f.local};" for f in folds)
            merge.append(f"if ((turn & {1 << b}) == 0) {{ {wait} continue; }}")
            merge += [f"t{f.local} = {self.emit.combine(f, f'{f.local}_{b}', f't{f.local}')};" for f in folds]
        lane = f"let lane = i32(reverseBits(u32(turn)) >> {32 - len(levels)}u);"
        waiting = [f"var {f.local}_{b} = t{f.local};" for f in folds for b in levels]
        return [*waiting, Loop("turn", self.tiling.parts, [lane, *loop, *merge])]

    def neighbours(self) -> list[Statement]:
        """Return the body of a function whose workgroups fold all rows along the last axis side by side.

        The rows share what does not depend on that axis: the axes of a point, and loads, which a driver finds.
        """
        k, rows, together = self.kernel, range(self.tiling.each), turns_of_neighbours(self.tiling.each)
        step, axis, inner = self.tiling.lanes * together, k.outer[-1].name, [a.name for a in k.inner]
        names = [axis, *inner, *(f.local for f in k.folds)]
        emits = [self.emit.beside(inner, names, f"_0_{r}") for r in rows]
        turn: list[str] = []
        added: list[Statement] = []
        for u in range(together):
            turn += self.point_of_row(f"_{u}", f"j + {self.tiling.lanes * u}", step)
            sums: list[str] = []
            for r, emit in enumerate(emits):
                emit.copy = f"_{u}_{r}"
                values = emit.values([f.value for f in k.folds], loop=True)
                turn += [*(f"let {a}{emit.copy} = {a}_{u};" for a in inner), *emit.inner]
                turn += [f"let x{f.local}{emit.copy} = {v};" for f, v in zip(k.folds, values)]
                sums += [
                    f"t{f.local}_0_{r} = {emit.combine(f, f't{f.local}_0_{r}', f'x{f.local}{emit.copy}')};"
                    for f in k.folds
                ]
            added += sums if divides(step, k.length) else [when(f"j_{u} == j + {self.tiling.lanes * u}", sums)]
        lines: list[Statement] = ["let lane = lid;", *decode("w", k.outer[:-1])]
        lines += [f"let {axis}_{u}_{r} = {r};" for u in range(together) for r in rows]
        lines += [line for emit in emits for line in emit.flush()]
        lines += [f"var t{f.local}_0_{r} = {self.emit.identity(f)};" for f in k.folds for r in rows]
        lines.append(Block("", [Loop("j", k.length, [*turn, *added], "lane", step)]))
        for f, r in itertools.product(k.folds, rows):
            lines += [*self.tree(f, f"_0_{r}"), f"let {f.local}_0_{r} = t{f.local}_0_{r};"]
        for r, emit in enumerate(emits):
            emit.copy = f"_0_{r}"
        written = [self.written(emit, k.stores, False) for emit in emits]
        lines += [line for emit in emits for line in emit.flush()]
        if any(k.slots[s.slot].replaces >= 0 for s in k.stores):
            lines.append("storageBarrier();")  # every lane reads what lane 0 is about to overwrite
        stored = [line for values, _ in written for line in values], [line for _, writes in written for line in writes]
        return [*lines, when("lane == 0", [*stored[0], *stored[1]])]

    def tree(self, f: Fold, copy: str = "") -> list[str]:
        """Return the lines that combine the lanes of each row through workgroup memory.

        Lane k is first combined with lane k + lanes / 2; neighbours are combined last. There are at most two steps,
        because a barrier costs more than a few sums. Every lane does the last step by itself, so no lane needs a
        broadcast. A second step has its own memory, so the next fold need not wait.
        """
        t, acc = self.tiling, f"t{f.local}{copy}"
        shared = PARTIAL[f.value.dtype.name]
        per_group = t.threads // t.lanes
        stride = per_group if t.rows_fastest else 1
        first = f"lid - lane * {stride}" if t.lanes < t.threads else "0"
        lines = [f"{shared}[lid] = {acc};", "workgroupBarrier();"]
        if t.lanes <= LAST_LANES:
            return [
                *lines,
                f"{acc} = {self.paired(f, f'{shared}[{first}', stride, t.lanes, 1)};",
                "workgroupBarrier();",
            ]
        row = "0" if per_group == 1 else f"(lid % {per_group})" if t.rows_fastest else f"(lid / {t.lanes})"
        last = f"{shared}[{t.threads} + {row} * {LAST_LANES}"
        some = self.paired(f, f"{shared}[lid", stride, t.lanes, LAST_LANES)
        return [
            *lines,
            f"if (lane < {LAST_LANES}) {{ {last} + lane] = {some}; }}",
            "workgroupBarrier();",
            f"{acc} = {self.paired(f, last, 1, LAST_LANES, 1)};",
        ]

    def paired(self, f: Fold, place: str, stride: int, lanes: int, until: int) -> str:
        """Return every `until`-th of `lanes` elements combined. Elements half of the lanes apart are combined first."""
        found = [f"{place} + {stride * k}]" if k else f"{place}]" for k in range(0, lanes, until)]
        while len(found) > 1:
            half = len(found) // 2
            found = [self.emit.combine(f, x, y) for x, y in zip(found[:half], found[half:])]
        return found[0]


class Term(NamedTuple):
    """A point of each row that a thread folds."""

    name: str
    at: str  # its place in the row, as code
    kept: int | None  # its number among those whose operands are in registers


class BlockFold:
    """Writes one kernel. fixed: slots that no iteration changes. room: registers of a thread. name: of the function."""

    def __init__(
        self, kernel: Kernel, shape: BlockShape, threads: int, emit: Emitter, fixed: Set[int], room: int, name: str
    ) -> None:
        self.kernel, self.shape, self.threads, self.emit, self.name = kernel, shape, threads, emit, name
        (self.fold,) = kernel.folds
        self.gathered = gathered(kernel)
        self.kept = kept(kernel, fixed)
        self.across = threads // shape.lanes  # rows that are folded side by side
        self.rounds = -(-shape.rows // self.across)
        turns = room // (self.rounds * len(self.kept)) if self.kept else 0
        self.terms = min(shape.chunk, turns - turns % 4)  # points whose operands a thread keeps
        self.edge = shape.lanes * shape.chunk != int(kernel.length)

    def registers(self) -> list[str]:
        """Return the declarations of the values that a thread keeps in registers."""
        names = [self.register(v, c, r) for v in self.kept for c in range(self.terms) for r in range(self.rounds)]
        return [f"var<private> {name}: f32;" for name in names]

    def register(self, v: Value, turn: int, number: int) -> str:
        """Return the name of the register in which a thread keeps `v`, for one turn in one round."""
        return f"{self.name}_{self.kept.index(v)}_{turn}_{number}"

    def reading(self) -> list[Statement]:
        """Return the statements that load the values that a thread keeps."""
        lines: list[Statement] = [*self.threads_of_rows()]
        for c in range(self.terms):
            for number in range(self.rounds):
                emit = self.emitter(f"_{c}_{number}", {})
                values = emit.values(self.kept, loop=False)
                body = [f"{self.register(v, c, number)} = {text};" for v, text in zip(self.kept, values)]
                lines += [*self.axes(f"first + {c}", f"_{c}_{number}", number), *emit.flush(), *body]
        return lines

    def lines(self, stored: Callable[[], Sequence[Statement]]) -> list[Statement]:
        """Return the body of the kernel's function. stored: writes the stores of a row whose fold is known."""
        shared, f, rows = PARTIAL[self.fold.value.dtype.name], self.fold, self.shape.rows
        identity = self.emit.identity(f)
        lines = [*self.gathering(), *self.threads_of_rows()]
        lines += [f"var t_{r} = {identity};" for r in range(self.rounds)]
        for c in range(0, self.terms, 4):
            lines += self.together([Term(f"{k}", f"first + {k}", k) for k in range(c, c + 4)], f"{c // 4}")
        left = self.shape.chunk - self.terms
        if left:
            step = next(n for n in (STREAMED_TOGETHER, 8, 4) if left % n == 0)
            body: list[Statement] = []
            for c in range(0, step, 4):
                four = [Term(f"s{k}", f"first + c + {k}", None) for k in range(c, c + 4)]
                body += self.together(four, f"c / 4 + {c // 4}")
            lines.append(Loop("c", self.shape.chunk, body, self.terms, step))
        for r in range(self.rounds):
            at = f"lane * {rows} + row_{r}"
            write = f"{shared}[{at}] = t_{r};"
            lines.append(when(f"row_{r} < {rows}", [write]) if self.partial(r) else write)
        parts = [f"{shared}[row + {k * rows}]" for k in range(self.shape.lanes)]
        while len(parts) > 1:
            parts = [self.combined(x, y) for x, y in zip(parts[::2], parts[1::2])]
        finish = [*decode("row", self.kernel.outer), f"let {f.local} = {parts[0]};", *stored()]
        return [*lines, "workgroupBarrier();", Loop("row", rows, finish, "lid", self.threads)]

    def partial(self, number: int) -> bool:
        """Return whether some threads have no row in this round."""
        return (number + 1) * self.across > self.shape.rows

    def gathering(self) -> list[Statement]:
        """Return the loop that reads values common to all rows into workgroup memory."""
        if not self.gathered:
            return []
        emit = self.emit.beside()
        values = emit.values(self.gathered, loop=False)
        writes = [f"sv[{self.gathered_at(k)}j / 4][j % 4] = {text};" for k, text in enumerate(values)]
        body = [*decode("j", self.kernel.inner), *emit.flush(), *writes]
        return [Loop("j", int(self.kernel.length), body, "lid", self.threads), "workgroupBarrier();"]

    def threads_of_rows(self) -> list[str]:
        """Return the thread's rows, its lane of them, and its first point."""
        rows = [f"let row_{r} = lid % {self.across} + {r * self.across};" for r in range(self.rounds)]
        return [f"let lane = lid / {self.across};", f"let first = lane * {self.shape.chunk};", *rows]

    def together(self, turns: Sequence[Term], vector: str) -> list[Statement]:
        """Return lines for four terms, which share vectors from workgroup memory: first all values, then the sums."""
        at = f"lane * {self.shape.chunk // 4} + {vector}"
        names = [f"x{k}_{turns[0].name}" for k in range(len(self.gathered))]
        lines: list[Statement] = [f"let {x} = sv[{self.gathered_at(k)}{at}];" for k, x in enumerate(names)]
        sums: list[Statement] = []
        for turn, component in zip(turns, XYZW):
            added: list[Statement] = []
            for r in range(self.rounds):
                copy, total = f"_{turn.name}_{r}", f"t_{r}"
                loaded = {v: f"{x}.{component}" for v, x in zip(self.gathered, names)}
                if turn.kept is not None:
                    loaded |= {v: self.register(v, turn.kept, r) for v in self.kept}
                emit = self.emitter(copy, loaded)
                (value,) = emit.values([self.fold.value], loop=False)
                own = [*emit.flush(), f"let y{copy} = {value};"]
                lines += [*self.axes(turn.at, copy, r, own), *own]
                added.append(f"{total} = {self.combined(total, f'y{copy}')};")
            sums += [when(f"{turn.at} < {self.kernel.length}", added)] if self.edge else added
        return [*lines, *sums]

    def gathered_at(self, number: int) -> str:
        """Return where a gathered value begins in workgroup memory, as code to add to an index."""
        return f"{number * self.shape.vectors} + " if number else ""

    def axes(self, at: str, copy: str, number: int, used: Sequence[str] | None = None) -> list[str]:
        """Return the axes of a point that `used` reads, or all. Beyond the edges, the last row and point repeat."""
        row = f"row_{number}"
        row = f"min({row}, {self.shape.rows - 1})" if self.partial(number) else row
        at = f"min({at}, {int(self.kernel.length) - 1})" if self.edge else at
        out: list[str] = []
        for flat, axes, name in ((row, self.kernel.outer, f"r{copy}"), (at, self.kernel.inner, f"j{copy}")):
            if used is None or any(f"{a.name}{copy}" in line for a in axes for line in used):
                out += [f"let {name} = {flat};", *decode(name, copied(axes, copy))]
        return out

    def emitter(self, copy: str, loaded: Mapping[Value, str]) -> Emitter:
        """Return a writer of values whose names end in `copy`."""
        axes = [a.name for a in (*self.kernel.outer, *self.kernel.inner)]
        return self.emit.beside((), axes, copy, loaded=loaded)

    def combined(self, a: str, b: str) -> str:
        """Return two partial results combined."""
        return self.emit.combine(self.fold, a, b)
