"""Kernels of rows: one or a few threads for each row, which fold its points and store to them.

The lanes of a row combine their partial folds through workgroup memory. If a thread has few points, their values stay
in registers from one fold to the next.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracegrad.kernels.form import Extent, Fold, Kernel, Store, divides, fold_batches, plus
from tracegrad.kernels.tiling import Tiling
from tracegrad.render.emit import Emitter, copied, decode
from tracegrad.render.loops import Block, Loop, Statement, when
from tracegrad.tuning import COOPERATE_FROM, HELD, LAST_LANES, TURNS_TOGETHER, WORKGROUP

PARTIAL = {"f32": "sf", "i32": "si", "u32": "su"}  # workgroup arrays of partial results
Written = tuple[Sequence[str], Sequence[Statement]]  # lines that compute the stored values, and lines that store them


class Rows:
    """Writes the loops of one kernel."""

    def __init__(
        self, kernel: Kernel, tiling: Tiling, emit: Emitter, written: Callable[[Sequence[Store], bool], Written]
    ) -> None:
        """written: writes some stores; the second argument tells whether they are inside a loop."""
        self.kernel, self.tiling, self.emit, self.written = kernel, tiling, emit, written
        self.held = 0  # points of a row whose values a thread keeps in registers from one fold to the next

    def lines(self) -> list[Statement]:
        """Return the kernel's function."""
        t, k = self.tiling, self.kernel
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
        outer = [s for s in k.body if isinstance(s, Store) and not s.inner]
        inner = [s for s in k.body if isinstance(s, Store) and s.inner]
        batches = fold_batches(k)
        few = not isinstance(k.length, Extent) and 1 < t.lanes <= k.length <= t.lanes * HELD
        if few and len(batches) + len(inner[:1]) > 1:
            self.held = -(-k.length // t.lanes)
            self.emit.hold([s.value for s in k.body])
            lines += self.points_of_row()
        for folds in batches:
            lines += self.folds(folds)
        if inner:
            loop = self.loop(lambda: self.written(inner, True), t.lanes)
            lines += [*self.emit.flush(), when(f"row < {k.rows}", loop)]
        if outer:
            values, writes = self.written(outer, False)
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
        """Return the axes of all points of a thread, if they are few: their values stay in registers between folds."""
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

        Parts come in the order of their number's reversed bits, so `tree` combines first two parts that follow each
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

    def tree(self, f: Fold) -> list[str]:
        """Combine the lanes of each row through workgroup memory: first lanes half of all apart, neighbours last.

        There are two steps, because a barrier costs more than a few sums. Every lane does the second step by itself, so
        no lane needs a broadcast. This step has its own memory, so the next fold need not wait.
        """
        t, acc = self.tiling, f"t{f.local}"
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
        """Combine every `until`-th element from a place on, first those of lanes / 2 apart."""
        found = [f"{place} + {stride * k}]" if k else f"{place}]" for k in range(0, lanes, until)]
        while len(found) > 1:
            half = len(found) // 2
            found = [self.emit.combine(f, x, y) for x, y in zip(found[:half], found[half:])]
        return found[0]
