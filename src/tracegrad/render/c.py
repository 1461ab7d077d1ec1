"""Kernels as C functions over pointers: loops that a compiler turns into vector instructions.

There are three shapes: one loop over points; row by row, with several partial results; and column by column, where
neighbours in memory belong to different folds. The number of threads does not change the order of a fold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracegrad import tuning
from tracegrad.dtypes import f16
from tracegrad.ir.nodes import PRIMITIVES
from tracegrad.kernels.axes import all_indices
from tracegrad.kernels.expr import Index, Quotient, Value, quotients_of, walk
from tracegrad.kernels.form import SIZE, Axis, Fold, Kernel, Store, divides, fold_batches
from tracegrad.render.c_ends import end_of
from tracegrad.render.c_masks import ROW_END, Masked, masked
from tracegrad.render.c_text import ALIGNED, C_TYPE, CALLED_FORM, beyond, helper, of_numbers
from tracegrad.render.c_values import (
    CEmitter,
    Partial,
    at_once,
    column_wise,
    computed_again,
    ends_in_vector,
    in_one_vector,
    needed,
    overruns,
    reorders,
    rounded,
)
from tracegrad.render.emit import Block, Emitter, Loop, Statement, spelled, when

# GCC 11 and 12 unroll a short loop and vectorize the sum around it. If the short loop reads backwards, or in any other
# order than that of memory, they add the wrong elements.
ROLLED = "#pragma GCC unroll 1"


class Function:
    """Writes one kernel, after its products and scatters are in memory.

    loaded: the kernel's locals that hold results of products and scatters -> slot, and index over the outer axes.
    whole:  the kernel of which this one computes a part, in the same C function.
    """

    def __init__(self, kernel: Kernel, loaded: Mapping[str, tuple[int, Index]], whole: Function | None = None) -> None:
        self.kernel, self.loaded = kernel, loaded
        self.helpers: dict[str, None] = whole.helpers if whole else {}
        self.form = whole.form if whole else ""  # of functions; see `in_form`
        self.parts = 1  # the most parts that the outermost loop can be split into, each for one thread
        self.shares: set[tuple[Axis, int]] = set()  # axes of which a part has some points, and the step of its loop
        self.outer = [a for a in kernel.outer if a.size > 1]
        self.inner = [a for a in kernel.inner if a.size > 1]
        self.masked: Masked | None = None  # set while rows are written whose loops end before their last axis does
        self.emit = self.expressions([a.name for a in self.inner])

    @property
    def last(self) -> Axis:
        """The last outer axis; an axis of one point if there is none, or if its length depends on the size of a run."""
        return self.outer[-1] if self.outer and self.outer[-1].fixed else Axis("", 1)

    def values(self) -> list[Value]:
        """Return all stored values, and the values that they are computed from."""
        return list(walk([s.value for s in self.kernel.stores]))

    def quotients(self) -> list[Quotient]:
        """Return all quotients and remainders in indices."""
        return quotients_of([*all_indices(self.kernel), *(index for _, index in self.loaded.values())])

    def expressions(self, inner: Sequence[str] = ()) -> CEmitter:
        """Return an emitter that has written nothing yet."""
        last = (self.inner if inner else self.outer)[-1:]
        sizes = [s.size for s in self.kernel.slots]
        emit = CEmitter(self.load, inner, sizes, last[0].name if last else "", self.form)
        emit.helpers = self.helpers
        return emit

    def element(self, slot: int, index: str) -> str:
        """Return the code of an element. A slot overwritten in place shares an array with its old value."""
        replaced = self.kernel.slots[slot].replaces
        return f"p{replaced if replaced >= 0 else slot}[{index}]"

    def load(self, slot: int, index: str) -> str:
        """Return an element of a slot in the type that kernels compute with."""
        text = self.element(slot, index)
        return f"f32_of_f16({text})" if self.kernel.slots[slot].dtype is f16 else text

    def text(self, name: str, lines: Sequence[Statement]) -> str:
        """Return the function of these lines, after the functions that it calls."""
        body = "\n".join(spelled(lines, "long"))
        used = [k for k in range(len(self.kernel.slots)) if f"p{k}[" in body]
        types = [C_TYPE[self.kernel.slots[k].dtype.storage] for k in used]
        sized = [f"long {SIZE}"] if SIZE in body else []
        size = [f"*(long *)at[{len(self.kernel.slots)}]"] if sized else []
        parameters = ", ".join(
            [f"{t} *restrict p{k}" for k, t in zip(used, types)] + [*sized, "long part", "long parts"]
        )
        arguments = ", ".join([f"at[{k}]" for k in used] + [*size, "part", "parts"])
        return "\n".join(
            [
                *map(helper, self.helpers),
                f"static OPAQUE void {name}_({parameters}) {{",
                body,
                "}",
                f"void {name}(void **at, long part, long parts) {{ {name}_({arguments}); }}",
            ]
        )

    def body(self) -> list[Statement]:
        """Return the loops; two versions and a test of arguments if functions have short forms for usual arguments."""
        conditions = self.with_near_forms()
        if not conditions:
            return self.loops()
        self.form = "near_"  # in the check, too: an argument that makes a short form wrong also sets `far`
        near = self.loops_again()
        check = self.checks(conditions)
        self.form = CALLED_FORM if len(conditions) > tuning.INLINED_CALLS else ""
        far = self.loops_again()
        return ["int far = 0;", Block("", check), when("far", far), Block("else", near)]

    def loops_again(self) -> list[Statement]:
        """Return the loops, with expressions that are written anew."""
        self.emit = self.expressions([a.name for a in self.inner])
        return self.loops()

    def with_near_forms(self) -> list[tuple[str, tuple[Value, ...]]]:
        """Return conditions for which short forms fail, with arguments; empty if folds or products prevent a check."""
        kernel, folds = self.kernel, self.kernel.folds
        if kernel.uniform or (folds and column_wise(kernel)) or any(f.product or f.scatter for f in folds):
            return []
        calls = [v for v in walk([s.value for s in kernel.body]) if v.op == "map"]
        conditions = [(beyond(PRIMITIVES[v.arg[0]].helper), v.args) for v in calls]
        found = list(dict.fromkeys([(condition, args) for condition, args in conditions if condition]))
        known = all(v.arg in self.loaded for _, args in found for v in walk(args) if v.op == "local")
        return found if known else []

    def checks(self, conditions: Sequence[tuple[str, tuple[Value, ...]]]) -> list[Statement]:
        """Return loops that set `far` if an argument in this part is outside the range of a short form."""
        self.emit = self.expressions()
        found = iter(self.emit.values([v for _, args in conditions for v in args], loop=False))  # with shared parts
        tests = [f"far |= {condition.format(*[next(found) for _ in args])};" for condition, args in conditions]
        lines = [*self.read(), *self.emit.flush(), *tests]
        return self.by_part(self.nest(self.inner if self.by_rows() else [], lines))

    def by_part(self, lines: Sequence[Statement]) -> list[Statement]:
        """Return loops over the points that this part computes; over all of them if several loops are shared."""
        axis, step = next(iter(self.shares)) if len(self.shares) == 1 else (None, 1)
        if axis is None or axis not in self.outer:
            return self.nest(self.outer, lines)
        if step == 1 and axis == self.outer[0]:
            return self.split(self.outer, lines)
        others, last = [a for a in self.outer if a != axis], f"min(first + {step}, (long){axis.size})"
        return self.share("first", axis, step, [Loop(axis.name, last, self.nest(others, lines), "first")])

    def loops(self) -> list[Statement]:
        """Return one version of the loops."""
        if not self.by_rows():
            return self.split(self.outer, self.points(self.emit))
        if self.kernel.uniform:
            return [*self.folds_of_row(), *self.split(self.outer, self.points(self.emit))]
        return self.columns() if column_wise(self.kernel) else self.split(self.outer, self.row())

    def by_rows(self) -> bool:
        """Return whether the kernel folds or stores along rows. Else its inner axes are k of an earlier product."""
        return not self.kernel.pointwise

    def read(self) -> list[str]:
        """Return lines that read the results of products and scatters at the current outer point."""
        return [self.emit.let(n, self.element(s, self.emit.index(at, False))) for n, (s, at) in self.loaded.items()]

    def nest(self, axes: Sequence[Axis], lines: Sequence[Statement]) -> list[Statement]:
        """Return loops over some axes, the last one innermost."""
        for a in reversed(axes):
            vectors = all(isinstance(x, str) for x in lines) and divides(tuning.LANES, a.size)
            lines = [Loop(a.name, end_of(a, tuning.LANES if vectors else 1), lines)]
        return list(lines)

    def split(self, axes: Sequence[Axis], lines: Sequence[Statement]) -> list[Statement]:
        """Return loops over some axes, of which the outermost has only this part's iterations."""
        if not axes:
            return list(lines)
        return self.share(axes[0].name, axes[0], 1, self.nest(axes[1:], lines))

    def share(self, name: str, axis: Axis, step: int, lines: Sequence[Statement]) -> list[Statement]:
        """Return the outermost loop, over an axis in steps, limited to this part's iterations."""
        self.shares.add((axis, step))
        turns, size = -(-int(axis.size) // step), end_of(axis)
        self.parts = max(1, min(turns, int(self.kernel.work) // tuning.C_GRAIN, tuning.C_PARTS))
        if not axis.fixed or axis.end >= 0:
            turns = size if step == 1 else f"(({size} + {step - 1}) / {step})"
        end = f"const long end = min({turns} * (part + 1) / parts * {step}, (long){size});"
        return [end, Loop(name, "end", lines, f"{turns} * part / parts * {step}", step)]

    def points(self, emit: Emitter) -> list[str]:
        return [*self.read(), *self.stores(emit, self.kernel.stores, loop=False)]

    def stores(self, emit: Emitter, stores: Sequence[Store], loop: bool) -> list[str]:
        """Return lines that compute all values, then lines that store them, so that loads come before stores."""
        values = emit.values([s.value for s in stores], loop)
        named = [emit.let(f"s{k}", v) for k, v in enumerate(values)]
        writes = [
            f"{self.element(s.slot, emit.index(s.index, loop))} = "
            f"{emit.stored(self.kernel.slots[s.slot].dtype.name, f's{k}')};"
            for k, s in enumerate(stores)
        ]
        return [*([] if loop else emit.flush()), *emit.inner, *named, *writes]

    def row(self) -> list[Statement]:
        self.masked = masked(self.kernel, self.inner)
        end = [self.masked.declared(self.emit, int(self.inner[-1].size))] if self.masked else []
        return [*self.read(), *end, *self.folds_of_row(), *self.results_of_row()]

    def results_of_row(self) -> list[Statement]:
        lines, inner = list[Statement](), [s for s in self.kernel.stores if s.inner]
        if inner:
            written = self.stores(self.emit, inner, loop=True)
            lines += self.emit.flush()
            if self.masked:
                (last,), rest = self.inner, self.stores(self.emit, self.masked.hidden, loop=True)
                lines += [Loop(last.name, ROW_END, written), Loop(last.name, last.size, rest, ROW_END)]
            elif any(a.size > tuning.LANES and ends_in_vector(self.kernel, a, inner) for a in self.inner[-1:]):
                lines += self.in_vectors(self.emit, self.inner, inner, written)
            else:  # in braces if all inner axes are unrolled, because stores once a row use the same names
                lines += self.nest(self.inner, written) if self.inner else [Block("", written)]
        return [*lines, *self.stores(self.emit, [s for s in self.kernel.stores if not s.inner], loop=False)]

    def in_vectors(
        self, emit: CEmitter, axes: Sequence[Axis], stores: Sequence[Store], written: Sequence[str]
    ) -> list[Statement]:
        """Return the loops of stores along a row, whose last elements are computed in one vector."""
        (*others, last), count = axes, len(stores)
        whole, rest = int(last.size) // tuning.LANES * tuning.LANES, int(last.size) % tuning.LANES
        at = f"const long {last.name} = {whole} + l;"
        arrays = [f"{C_TYPE[s.value.dtype.name]} u{k}[{tuning.LANES}] {ALIGNED};" for k, s in enumerate(stores)]
        kept = [f"const __auto_type s{k} = u{k}[l];" for k in range(count)]
        emit.within = f"l < {rest}"  # what lies behind can be any number, and denormal ones are slow
        computed = self.stores(emit, stores, loop=True)[:-count]
        emit.within = ""
        padded = at_once(tuning.LANES, [at, *computed, *[f"u{k}[l] = s{k};" for k in range(count)]])
        end = Block("", [*arrays, padded, at_once(rest, [at, *kept, *written[-count:]])])
        return self.nest(others, [Loop(last.name, whole, written), end])

    def folds_of_row(self) -> list[Statement]:
        lines = list[Statement]()
        for k, folds in enumerate(fold_batches(self.kernel)):
            again = computed_again(self.kernel, folds, self.inner)
            texts = self.emit.values([*[f.value for f in folds], *again], loop=True)
            held = {v: f"e{k}_{n}[{self.inner[-1].name}]" for n, v in enumerate(again)}
            lets = [*self.emit.inner, *[f"{e} = {text};" for e, text in zip(held.values(), texts[len(folds) :])]]
            lines += self.emit.flush()
            room = f"[{self.kernel.length} + {tuning.LANES}] {ALIGNED}"  # the last elements can take a whole vector
            lines += [f"{C_TYPE[v.dtype.name]} e{k}_{n}{room};" for n, v in enumerate(again)]
            body = self.folded(folds, texts, lets)
            lines += (found := self.where_needed(folds, body))
            self.emit.loaded = {**self.emit.loaded, **(held if found == body else {})}  # other rows can skip folds
        return lines

    def where_needed(self, folds: Sequence[Fold], body: Sequence[Statement]) -> list[Statement]:
        """Return the folds of a row: inside an `if`, when a condition on the row decides whether they fold anything."""
        test = needed(folds, self.inner, self.emit)
        if not test:
            return list(body)
        kept = [f"{C_TYPE[f.value.dtype.name]} k{f.local} = {self.emit.identity(f)};" for f in folds]
        results = [f"k{f.local} = {f.local};" for f in folds]
        some = when(test, [*body, *results])
        return [*self.emit.flush(), *kept, some, *[self.emit.let(f.local, f"k{f.local}") for f in folds]]

    def folded(self, folds: Sequence[Fold], values: Sequence[str], lets: Sequence[str]) -> list[Statement]:
        """Return the loop of some folds, with several partial results unless rows are too short for these."""
        last = int(self.inner[-1].size) if self.kernel.length >= tuning.LANES else 0
        lanes = next((n for n in (tuning.LANES, tuning.FEW_LANES) if last >= n), 0)
        return self.lanes(lanes, folds, values, lets) if lanes else self.serial(folds, values, lets)

    def partial(self, f: Fold, value: str) -> list[Partial]:
        """Return the partial results of a fold. NaNs are counted separately, so that max and min need no selection."""
        both = self.emit.combine(f, "{0}", "{1}")
        mine = Partial(f.local, C_TYPE[f.value.dtype.name], self.emit.identity(f), both, value)
        if not of_numbers(both):
            return [mine]
        x = f"x{f.local}"
        nans = Partial(f"n{f.local}", "int", "0", "{0} + {1}", f"({x} != {x})")
        return [mine._replace(both=of_numbers(both), value=x), nans]

    def element_of(self, f: Fold, value: str) -> list[str]:
        """Return lines that name an element, if it is read twice."""
        return [self.emit.let(f"x{f.local}", value)] if len(self.partial(f, value)) > 1 else []

    def result(self, f: Fold, at: str) -> str:
        """Return the line that names a fold's result."""
        found = f"t{f.local}{at}"
        if len(self.partial(f, "")) > 1:
            found = f"select({found}, bits_as_float(nan_bits), (_Bool)(tn{f.local}{at} != 0))"
        return self.emit.let(f.local, found)

    def serial(self, folds: Sequence[Fold], values: Sequence[str], lets: Sequence[str]) -> list[Statement]:
        """Fold into one partial result, for rows that are too short for more."""
        parts = [p for f, v in zip(folds, values) for p in self.partial(f, v)]
        named = [x for f, v in zip(folds, values) for x in self.element_of(f, v)]
        start = [f"{p.type} t{p.name} = {p.start};" for p in parts]
        loop = self.nest(self.inner[-1:], [*lets, *named, *[p.step(f"t{p.name}", p.value) for p in parts]])
        if any(reorders(v, a.name) for a in self.inner[-1:] for v in walk([f.value for f in folds])):
            loop = [ROLLED, *loop]
        return [*start, *self.nest(self.inner[:-1], loop), *[self.result(f, "") for f in folds]]

    def lanes(self, lanes: int, folds: Sequence[Fold], values: Sequence[str], lets: Sequence[str]) -> list[Statement]:
        """Fold element j into partial result j % lanes; then combine the results by halves.

        In a loop over rows, the last elements of each row have partial results of their own. Otherwise two shorter
        vectors would store their lanes, and the next row's load of the whole vector would wait for these stores.
        """
        *others, last = self.inner
        whole: int | str = int(last.size) - int(last.size) % lanes
        rest: int | str = int(last.size) - whole
        if not last.fixed:
            whole, rest = f"{last.size} / {lanes} * {lanes}", f"{last.size} % {lanes}"
        padded = in_one_vector(last, lanes, [f.value for f in folds], [s.size for s in self.kernel.slots])
        apart = bool(others and rest) and isinstance(rest, int) and not padded
        parts = [p for f, v in zip(folds, values) for p in self.partial(f, v)]
        named = [*lets, *[x for f, v in zip(folds, values) for x in self.element_of(f, v)]]
        start: list[Statement] = []
        for p in parts:
            for kind, size in (("t", lanes), *([("r", rest)] if apart else [])):
                start.append(f"{p.type} {kind}{p.name}[{size}] {ALIGNED};")
                start.append(at_once(size, [f"{kind}{p.name}[l] = {p.start};"]))

        def at(base: str, kind: str) -> list[str]:
            return [
                f"const long {last.name} = {base} + l;",
                *named,
                *[p.step(f"{kind}{p.name}[l]", p.value) for p in parts],
            ]

        end = f"min({whole}L, {ROW_END})" if self.masked else whole if last.end < 0 else end_of(last, lanes)
        loop: list[Statement] = [Loop("jb", end, [at_once(lanes, at("jb", "t"))], step=lanes)]
        if padded:
            both = [(f"t{p.name}[l]", p.both.format(f"t{p.name}[l]", p.value)) for p in parts]
            chosen = [f"{t} = select({t}, {more}, l < {rest});" for t, more in both]
            loop.append(at_once(lanes, [f"const long {last.name} = {whole} + l;", *named, *chosen]))
        elif rest:
            loop.append(at_once(rest, at(str(whole), "r" if apart else "t")))
        halves: list[Statement] = []
        if apart:
            halves.append(at_once(rest, [p.step(f"t{p.name}[l]", f"r{p.name}[l]") for p in parts]))
        # a separate loop for each constant count: a loop with a variable count compiles and runs slowly
        while lanes > 1:
            lanes //= 2
            halves.append(at_once(lanes, [p.step(f"t{p.name}[l]", f"t{p.name}[l + {lanes}]") for p in parts]))
        return [*start, *self.nest(others, loop), *halves, *[self.result(f, "[0]") for f in folds]]

    # column by column
    def columns(self) -> list[Statement]:
        *others, last = self.outer
        width = self.width(last, others)
        folded = walk([s.value for s in self.kernel.folds])
        reads = [*(v.arg for v in folded if v.op == "load"), *self.loaded.values()]
        whole = overruns(last, reads, [s.size for s in self.kernel.slots])
        wide, room = (rounded("w"), rounded(width)) if whole else ("w", f"{width}")
        self.emit = self.expressions()
        done, body = list[Fold](), list[Statement]()
        for folds in fold_batches(self.kernel):
            body += [f"{C_TYPE[f.value.dtype.name]} t{f.local}[{room}] {ALIGNED};" for f in folds]
            body.append(self.column(last, [], [f"t{f.local}[l] = {self.emit.identity(f)};" for f in folds], wide))
            values = self.emit.values([f.value for f in folds], loop=False)
            step = [f"t{f.local}[l] = {self.emit.combine(f, f't{f.local}[l]', v)};" for f, v in zip(folds, values)]
            body += self.nest(self.inner, [self.column(last, done, [*self.read(), *self.emit.flush(), *step], wide)])
            self.emit = self.expressions()
            done += folds
        for inside in (True, False):
            stores = [s for s in self.kernel.stores if s.inner == inside]
            if stores:
                written = [*self.read(), *self.stores(self.emit, stores, loop=False)]
                body += self.nest(self.inner if inside else [], [self.column(last, done, written)])
                self.emit = self.expressions()
        return self.blocks(others, last, width, body)

    def width(self, last: Axis, others: Sequence[Axis]) -> int:
        """Return the columns of a block: many, to read contiguous memory, but so few that all threads have work."""
        size, results = int(last.size), len(self.kernel.folds)
        width = tuning.COLUMNS // max(results, 1)
        if not others:
            parts = -(-int(self.kernel.work) // tuning.COLUMNS_GRAIN)
            width = min(width, -(-size // parts))
        return min(size, max(tuning.FEWEST_COLUMNS, -(-width // tuning.LANES) * tuning.LANES))

    def blocks(self, others: Sequence[Axis], last: Axis, width: int, body: Sequence[Statement]) -> list[Statement]:
        """Return loops over blocks of columns, of which `body` computes one."""
        here = f"const long w = {last.size} - ib < {width} ? {last.size} - ib : {width};"
        whole = last.fixed and last.size % width == 0
        body = [f"enum {{ w = {width} }};" if whole else here, *body]
        if not others:
            return self.share("ib", last, width, body)
        return self.split(others, [Loop("ib", last.size, body, step=width)])

    def column(self, axis: Axis, done: Sequence[Fold], lines: Sequence[str], end: str = "w") -> Loop:
        """Return a loop with one step for each column of a block."""
        known = [self.emit.let(f.local, f"t{f.local}[l]") for f in done]
        at = f"const long {axis.name} = ib + l;"
        return Loop("l", end, [at, *known, *lines])
