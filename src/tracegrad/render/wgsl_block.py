"""A fold in a loop that runs in one launch: a workgroup folds all rows of its block.

Operands that are the same for all rows, such as the state that a weight multiplies, are read once into workgroup
memory. Operands that are the same in all iterations, such as the weight, stay in the registers of their threads from
the first iteration to the last. Those without room there are read in each iteration.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence, Set
from typing import NamedTuple

from tracegrad.kernels.blocks import gathered, kept
from tracegrad.kernels.expr import Value
from tracegrad.kernels.form import Fold, Kernel
from tracegrad.kernels.tiling import BlockShape
from tracegrad.render.emit import Emitter, copied, decode
from tracegrad.render.loops import Loop, Statement, when
from tracegrad.render.wgsl_loads import XYZW
from tracegrad.render.wgsl_rows import PARTIAL
from tracegrad.tuning import STREAMED_TOGETHER


class Term(NamedTuple):
    """A point of each row that a thread folds."""

    name: str
    at: str  # its place in the row, as code
    kept: int | None  # its number among those whose operands are in registers


class BlockFold:
    """Writes one kernel. fixed: slots that no iteration changes. room: registers of a thread. name: of the function."""

    def __init__(
        self, kernel: Kernel, shape: BlockShape, threads: int, load: Callable[[int, str], str],
        helpers: dict[str, None], fixed: Set[int], room: int, name: str,
    ) -> None:  # fmt: skip
        self.kernel, self.shape, self.threads, self.name = kernel, shape, threads, name
        self.load, self.helpers = load, helpers
        (self.fold,) = (s for s in kernel.body if isinstance(s, Fold))
        self.gathered = gathered(kernel)
        self.kept = kept(kernel, fixed)
        self.across = threads // shape.lanes  # rows that are folded side by side
        self.rounds = -(-shape.rows // self.across)
        turns = room // (self.rounds * len(self.kept)) if self.kept else 0
        self.terms = min(shape.chunk, turns - turns % 4)  # of which a thread keeps the operands
        self.edge = shape.lanes * shape.chunk != int(kernel.length)

    def registers(self) -> list[str]:
        """Return the declarations of what a thread keeps."""
        names = [self.register(v, c, r) for v in self.kept for c in range(self.terms) for r in range(self.rounds)]
        return [f"var<private> {name}: f32;" for name in names]

    def register(self, v: Value, turn: int, number: int) -> str:
        """Return the name of what a thread keeps of `v`, of one turn in one round."""
        return f"{self.name}_{self.kept.index(v)}_{turn}_{number}"

    def reading(self) -> list[Statement]:
        """Return the statements that read what a thread keeps."""
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
        identity = self.emitter("", {}).identity(f)
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
        """Return the loop that reads what is the same for all rows into workgroup memory."""
        if not self.gathered:
            return []
        emit = Emitter(self.load, ())
        values = emit.values(self.gathered, loop=False)
        self.helpers.update(emit.helpers)
        writes = [f"sv[{self.gathered_at(k)}j / 4][j % 4] = {text};" for k, text in enumerate(values)]
        body = [*decode("j", self.kernel.inner), *emit.flush(), *writes]
        return [Loop("j", int(self.kernel.length), body, "lid", self.threads), "workgroupBarrier();"]

    def threads_of_rows(self) -> list[str]:
        """Return the thread's rows, its lane of them, and its first point."""
        rows = [f"let row_{r} = lid % {self.across} + {r * self.across};" for r in range(self.rounds)]
        return [f"let lane = lid / {self.across};", f"let first = lane * {self.shape.chunk};", *rows]

    def together(self, turns: Sequence[Term], vector: str) -> list[Statement]:
        """Return four turns, whose values from workgroup memory are a vector each: first all values, then the sums."""
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
        emit = Emitter(self.load, (), axes, copy, loaded=loaded)
        emit.helpers = self.helpers
        return emit

    def combined(self, a: str, b: str) -> str:
        """Return two partial results combined."""
        return self.emitter("", {}).combine(self.fold, a, b)
