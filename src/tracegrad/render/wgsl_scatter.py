"""Scatters without atomic sums: every result looks for its own updates, and adds them in their order.

A workgroup looks at some updates at a time. A thread that finds one of the workgroup's rows among their targets
sets a bit for that update, in workgroup memory. Then each thread adds the updates of its row, bit by bit. So targets
are compared once for all columns, and the order of sums is the order of the updates. Most words of bits are 0: more
bits tell which are not, so nothing reads the others or clears them again.

Adapters that run on a CPU compute squares of results instead, in the same order (`wgsl_square`).
"""

from __future__ import annotations

from collections.abc import Callable

from tracegrad.kernels.form import Kernel, divides, plus, points
from tracegrad.kernels.tiling import BITS, Tiling
from tracegrad.render.emit import Block, Emitter, Loop, Statement, copied, decode, when
from tracegrad.render.wgsl_tile import Result
from tracegrad.tuning import SCATTER_BITS, SCATTER_READS, WORKGROUP


class Scattering:
    """Writes one scatter kernel. `element` gives a memory location, `helpers` collects the functions used."""

    def __init__(self, kernel: Kernel, tiling: Tiling, element: Callable[[int, str], str], helpers: dict[str, None]):
        assert kernel.scatter is not None and tiling.scatter is not None
        self.kernel, self.element, self.helpers = kernel, element, helpers
        self.scatter, self.shape = kernel.scatter, tiling.scatter
        self.fold = kernel.folds[0]
        self.rows, self.columns = points(self.scatter.m), points(self.scatter.n)
        self.updates = points(kernel.inner)
        self.emit = Emitter(element, ())
        self.zero = self.emit.identity(self.fold)
        self.copies = [f"u{j}" for j in range(self.shape.wide)]
        tall, across = self.shape.rows, self.shape.columns
        self.down, self.across = -(-int(self.rows) // tall), -(-int(self.columns) // across)
        self.edge = not (divides(tall, self.rows) and divides(across, self.columns))

    def before_stores(self) -> list[Statement]:
        """Return everything up to the results: `cu0`, `cu1` and so on then hold the thread's sums."""
        mark, before_marks = self.mark()
        added, before_sums = self.added()
        self.helpers.update(self.emit.helpers)
        return [
            *self.place(),
            *decode("batch", self.scatter.batch),
            *before_marks,
            *before_sums,
            *(f"var c{copy} = {self.zero};" for copy in self.copies),
            Loop("i", self.shape.words, ["atomicStore(&sa[i], 0u);"], "lid", WORKGROUP),
            self.found(mark, added),
        ]

    def sums(self) -> list[Result]:
        """Return the results of the thread."""
        return [Result(f"_{j}", [], "row", self.column(j), f"c{c}", self.edge) for j, c in enumerate(self.copies)]

    def place(self) -> list[str]:
        """Return the rows and columns of a workgroup, and those of the thread."""
        shape, threads = self.shape, self.shape.columns // self.shape.wide
        return [
            f"let first_row = w / {self.across} % {self.down} * {shape.rows};",
            f"let first_column = w % {self.across} * {shape.columns} + lid % {threads};",
            f"let batch = w / {self.across * self.down};",
            f"let row = first_row + lid / {threads};",
        ]

    def column(self, number: int) -> str:
        """Return one of the thread's columns. Threads of a workgroup have neighbouring columns."""
        return f"(first_column + {number * self.shape.columns // self.shape.wide})"

    def mark(self) -> tuple[list[Statement], list[str]]:
        """Return statements that set the bits of a thread's updates, and lines before all loops.

        All targets are read before the first bit is set, because each takes long to arrive.
        """
        before, reads, marks = list[str](), list[str](), list[Statement]()
        names = [a.name for a in self.kernel.inner]
        for u in range(self.shape.together // WORKGROUP):
            at, copy = f"(lid + {u * WORKGROUP})", f"t{u}"
            emit = Emitter(self.element, names, names, copy)
            (value,) = emit.values([self.scatter.target], loop=True)
            self.helpers.update(emit.helpers)
            before += emit.outer
            update = f"min(chunk + {at}, {plus(self.updates, -1)})"
            row = f"let into{u} = clamp({value}, 0, {plus(self.rows, -1)}) - first_row;"
            reads += [*decode(update, copied(self.kernel.inner, copy)), *emit.inner, row]
            own = f"(into{u} >= 0) & (into{u} < {self.shape.rows}) & (chunk + {at} < {self.updates})"
            bit = f"atomicOr(&sa[into{u} * {self.shape.line} + {at} / {BITS}], 1u << u32({at} % {BITS}))"
            some = f"sa[{self.shape.bits} + into{u} * {self.shape.some} + {at} / {BITS**2}]"
            first = when(f"{bit} == 0u", [f"atomicOr(&{some}, 1u << u32({at} / {BITS} % {BITS}));"])
            marks.append(when(own, [first]))
        return [*reads, *marks], before

    def added(self) -> tuple[list[Statement], list[str]]:
        """Return lines that add the updates of the first of `bits`, and lines before the loop over k.

        Several updates are read before they are added, because each takes long to arrive. Beyond the last bit, the last
        update is read again, and not added.
        """
        before, reads, adds = list[str](), list[Statement](), list[str]()
        turns = SCATTER_READS // self.shape.wide
        for u in range(turns):
            k = f"chunk + word * {BITS} + i32(firstTrailingBit(bits))"
            reads += (
                [f"let more{u} = bits != 0u;", f"let k{u} = select(k{u - 1}, {k}, more{u});"]
                if u
                else [f"let k0 = {k};"]
            )
            reads.append("bits &= bits - 1u;")  # 0 remains 0
            if (u + 1) % SCATTER_BITS == 0 or u + 1 == turns:
                reads += self.next_bits()
            for j, result in enumerate(self.copies):
                value, outer = self.update(f"k{u}", j, f"{result}k{u}", reads)
                before += outer
                if u:
                    value = f"select({self.zero}, {value}, more{u})"
                adds.append(f"c{result} = {self.emit.combine(self.fold, f'c{result}', value)};")
        return [*reads, *adds], before

    def update(self, k: str, number: int, copy: str, reads: list[Statement]) -> tuple[str, list[str]]:
        """Add lines to `reads` that read update `k` of a column; return its name, and lines before the loop over k."""
        inner, columns = self.kernel.inner, self.scatter.n
        emit = Emitter(self.element, [a.name for a in inner], [a.name for a in (*inner, *columns)], copy)
        (value,) = emit.values([self.scatter.update], loop=True)
        self.helpers.update(emit.helpers)
        column = self.column(number)
        if self.edge:  # beyond the edge the last column repeats, and is not stored
            column = f"min({column}, {plus(self.columns, -1)})"
        reads += [*decode(k, copied(inner, copy)), *emit.inner, f"let x{copy} = {value};"]
        return f"x{copy}", [*decode(column, copied(columns, copy)), *emit.outer]

    def next_bits(self) -> list[Block]:
        """Return the statements that go on to the next word of the row with a bit, if there is one."""
        found: list[Block] = []
        for k in range(self.shape.some):
            word = f"word = {BITS * k} + i32(firstTrailingBit(left{k}));"
            bits = f"bits = atomicLoad(&sa[{self.first_word()} + word]);"
            found.append(Block(f"if (bits == 0u && left{k} != 0u)", [word, f"left{k} &= left{k} - 1u;", bits]))
        return found

    def first_word(self) -> str:
        """Return where the bits of the thread's row begin."""
        return f"lid / {self.shape.columns // self.shape.wide} * {self.shape.line}"

    def found(self, mark: list[Statement], added: list[Statement]) -> Statement:
        """Return the loop over all updates."""
        some, row = self.shape.some, f"lid / {self.shape.columns // self.shape.wide}"
        word = f"i / {some} * {self.shape.line} + i % {some} * {BITS} + i32(firstTrailingBit(used))"
        clear = Block("while (used != 0u)", [f"atomicStore(&sa[{word}], 0u);", "used &= used - 1u;"])
        used = f"var used = atomicExchange(&sa[{self.shape.bits} + i], 0u);"
        each = [
            "workgroupBarrier();",
            *mark,
            "workgroupBarrier();",
            "var word = 0;",
            "var bits = 0u;",
            *(f"var left{k} = atomicLoad(&sa[{self.shape.bits} + {row} * {some} + {k}]);" for k in range(some)),
            *self.next_bits(),
            Block("while (bits != 0u)", added),
            "workgroupBarrier();",
            Loop("i", self.shape.rows * some, [used, clear], "lid", WORKGROUP),
        ]
        return Loop("chunk", self.updates, each, step=self.shape.together)
