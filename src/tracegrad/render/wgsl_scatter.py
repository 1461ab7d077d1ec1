"""Scatters without atomic sums: every result looks for its own updates, and adds them in their order.

A workgroup looks at some updates at a time. A thread that finds one of the workgroup's rows among their targets
sets a bit for that update, in workgroup memory. Then each thread adds the updates of its rows, bit by bit. So targets
are compared once for all columns, and the order of sums is the order of the updates. Most words of bits are 0. A second
level of bits marks the other words, so only these are read and cleared. Each thread has its sums in workgroup memory.

Adapters that run on a CPU compute squares of results instead, in the same order (`wgsl_tile`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracegrad.kernels.form import Kernel, divides, plus, points
from tracegrad.kernels.tiling import BITS, Tiling
from tracegrad.render.emit import Block, Emitter, Loop, Statement, copied, decode, when
from tracegrad.render.wgsl_rows import PARTIAL
from tracegrad.render.wgsl_tile import Result
from tracegrad.tuning import SCATTER_FEW, SCATTER_READS, WORKGROUP


class Scattering:
    """Writes one scatter kernel. `emit` writes its values."""

    def __init__(self, kernel: Kernel, tiling: Tiling, emit: Emitter):
        assert kernel.scatter is not None and tiling.scatter is not None
        self.kernel, self.emit = kernel, emit
        self.scatter, self.shape = kernel.scatter, tiling.scatter
        self.fold = kernel.folds[0]
        self.rows, self.columns = points(self.scatter.m), points(self.scatter.n)
        self.updates = points(kernel.inner)
        self.zero = self.emit.identity(self.fold)
        self.set = f"lid / {self.shape.columns}"  # the set of threads that a thread belongs to
        self.memory = PARTIAL[self.fold.value.dtype.name]
        tall, across = self.shape.rows, self.shape.columns
        self.down, self.across = -(-int(self.rows) // tall), -(-int(self.columns) // across)
        self.edge = not (divides(tall, self.rows) and divides(across, self.columns))

    def before_stores(self) -> list[Statement]:
        """Return all statements before the results, which are then in workgroup memory."""
        mark, before_marks = self.mark()
        few, _ = self.added(SCATTER_FEW)
        many, before_sums = self.added(SCATTER_READS)
        return [
            f"let first_row = w / {self.across} % {self.down} * {self.shape.rows};",
            f"let column = w % {self.across} * {self.shape.columns} + lid % {self.shape.columns};",
            f"let batch = w / {self.across * self.down};",
            *decode("batch", self.scatter.batch),
            *before_marks,
            *before_sums,
            Loop("d", self.shape.deep, [f"{self.memory}[d * {WORKGROUP} + lid] = {self.zero};"]),
            Loop("i", self.shape.words, ["atomicStore(&sa[i], 0u);"], "lid", WORKGROUP),
            self.found(mark, few, many),
        ]

    def stores(self, results: Callable[[Sequence[Result]], list[Statement]]) -> list[Statement]:
        """Return the stores of the thread's sums; `results` writes some of them."""
        value, row = f"{self.memory}[d * {WORKGROUP} + lid]", f"first_row + {self.set} + d * {self.shape.sets}"
        return [Loop("d", self.shape.deep, results([Result("", [], row, "column", value, self.edge)]))]

    def mark(self) -> tuple[list[Statement], list[str]]:
        """Return statements that set the bits of a thread's updates, and lines before all loops.

        All targets are read before the first bit is set, because each takes long to arrive.
        """
        before, reads, marks = list[str](), list[str](), list[Statement]()
        names = [a.name for a in self.kernel.inner]
        for u in range(self.shape.together // WORKGROUP):
            at, copy = f"(lid + {u * WORKGROUP})", f"t{u}"
            emit = self.emit.beside(names, names, copy)
            (value,) = emit.values([self.scatter.target], loop=True)
            before += emit.outer
            update = f"min(chunk + {at}, {plus(self.updates, -1)})"
            named = f"let into{u} = {self.into(value)};"
            reads += [*decode(update, copied(self.kernel.inner, copy)), *emit.inner, named]
            own = f"(into{u} >= 0) & (into{u} < {self.shape.rows}) & (chunk + {at} < {self.updates})"
            into = f"into{u} % {self.shape.sets}"
            bit = f"atomicOr(&sa[{into} * {self.shape.line} + {at} / {BITS}], 1u << u32({at} % {BITS}))"
            some = f"sa[{self.shape.bits} + {into} * {self.shape.some} + {at} / {BITS**2}]"
            first = when(f"{bit} == 0u", [f"atomicOr(&{some}, 1u << u32({at} / {BITS} % {BITS}));"])
            marks.append(when(own, [first]))
        return [*reads, *marks], before

    def added(self, number: int) -> tuple[list[Statement], list[str]]:
        """Return lines that add the updates of the first `number` of `bits`, and lines before all loops.

        Several updates are read before they are added, because each takes long to arrive. Beyond the last bit, the last
        update is read again, and not added.
        """
        before, reads, adds = list[str](), list[Statement](), list[str]()
        for u in range(number):
            k = f"chunk + word * {BITS} + i32(firstTrailingBit(bits))"
            reads += [f"let more{u} = bits != 0u;", f"let k{u} = {f'select(k{u - 1}, {k}, more{u})' if u else k};"]
            reads.append("bits &= bits - 1u;")  # 0 remains 0
            if (u + 1) % SCATTER_FEW == 0:
                reads += self.next_bits()
            lines, outer = self.update(u)
            before += outer
            reads += lines
            place = f"{self.memory}[at{u}]"
            adds.append(f"{place} = {self.emit.combine(self.fold, place, f'select({self.zero}, x{u}, more{u})')};")
        return [*reads, *adds], before

    def update(self, number: int) -> tuple[list[str], list[str]]:
        """Return lines that read an update and compute the place of its sum, and lines before the loop."""
        inner, columns, copy = self.kernel.inner, self.scatter.n, f"k{number}"
        emit = self.emit.beside([a.name for a in inner], [a.name for a in (*inner, *columns)], copy)
        several = self.shape.deep > 1
        value, *target = emit.values([self.scatter.update, *[self.scatter.target] * several], loop=True)
        depth = f"{self.into(target[0])} / {self.shape.sets} * {WORKGROUP} + " if several else ""
        # beyond the edge the last column repeats, and is not stored
        column = f"min(column, {plus(self.columns, -1)})" if self.edge else "column"
        named = [f"let x{number} = {value};", f"let at{number} = {depth}lid;"]
        before = [*decode(column, copied(columns, copy)), *emit.outer]
        return [*decode(copy, copied(inner, copy)), *emit.inner, *named], before

    def into(self, target: str) -> str:
        """Return the index, among the workgroup's rows, of the row that a target names."""
        return f"(clamp({target}, 0, {plus(self.rows, -1)}) - first_row)"

    def next_bits(self) -> list[Block]:
        """Return the statements that load the set's next nonzero word, if one is left and `bits` is used up."""
        found: list[Block] = []
        for k in range(self.shape.some):
            word = f"word = {BITS * k} + i32(firstTrailingBit(left{k}));"
            bits = f"bits = atomicLoad(&sa[{self.set} * {self.shape.line} + word]);"
            found.append(Block(f"if (bits == 0u && left{k} != 0u)", [word, f"left{k} &= left{k} - 1u;", bits]))
        return found

    def found(self, mark: list[Statement], few: list[Statement], many: list[Statement]) -> Statement:
        """Return the loop over all updates, some at a time.

        mark:      sets the bits of these updates.
        few, many: add a few of the updates whose bits are set, and then all others.
        """
        some = self.shape.some
        word = f"i / {some} * {self.shape.line} + i % {some} * {BITS} + i32(firstTrailingBit(used))"
        clear = Block("while (used != 0u)", [f"atomicStore(&sa[{word}], 0u);", "used &= used - 1u;"])
        used = f"var used = atomicExchange(&sa[{self.shape.bits} + i], 0u);"
        each = [
            "workgroupBarrier();",
            *mark,
            "workgroupBarrier();",
            "var word = 0;",
            "var bits = 0u;",
            *(f"var left{k} = atomicLoad(&sa[{self.shape.bits} + {self.set} * {some} + {k}]);" for k in range(some)),
            *self.next_bits(),
            Block("if (bits != 0u)", few),
            Block("while (bits != 0u)", many),
            "workgroupBarrier();",
            Loop("i", self.shape.sets * some, [used, clear], "lid", WORKGROUP),
        ]
        return Loop("chunk", self.updates, each, step=self.shape.together)
