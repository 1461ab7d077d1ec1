"""Products as tiles: a workgroup computes a rectangle of results, each thread a smaller one in registers.

Both operands pass through workgroup memory, a part of k at a time, with k along lines, which are made of vectors.
There are three ways to make those of what lies in memory:

- An operand with rows (or columns) side by side in an array of vectors comes as it is: four neighbours a vector.
- One with k side by side comes in blocks, four rows by four k, which a thread transposes in registers.
- Any other comes element by element. The four of a vector then lie a quarter of the tile apart: so a thread makes
  whole vectors of what it loads while its neighbours load the elements beside. (Threads that write parts of one vector
  would race: a device may write all of it.)

Results are stored likewise. While one part is summed the next is on its way from memory. Every result sums over k in
an order that shapes alone decide.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from tracegrad.kernels.expr import Value
from tracegrad.kernels.form import Axis, Fold, Kernel, points
from tracegrad.kernels.tiling import TOGETHER, WORKGROUP, TileShape
from tracegrad.render.emit import Emitter, copied, decode, indented
from tracegrad.render.wgsl_vectors import vector_loads

XYZW = "xyzw"  # components of a vector
WARP = 8, 4  # threads of a warp along columns and rows: what they read of both operands fits the fewest lines
RUN = 8  # elements along k that neighbouring threads load where an operand is contiguous along k: 32 bytes
PAIR = 2  # threads side by side along k that load blocks: 32 bytes; what they put down then meets no bank twice
WRITTEN_OUT = 16  # turns of the innermost loop: drivers leave it as it is else, and then it takes twice as long


@dataclass(slots=True)
class Operand:
    """Lines before the loop over k, those that load the thread's part into registers, and those that put it down."""

    before: list[str]
    load: list[str]
    put: list[str]


@dataclass(frozen=True, slots=True)
class Memory:
    """How a slot's memory is spelled, given an index: an element, and the vector there; and has the slot vectors?"""

    element: Callable[[int, str], str]
    vector: Callable[[int, str], str]
    vectors: Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class Side:
    """One operand. apart: do the four elements of its vectors lie a quarter of the tile apart, or side by side?"""

    name: str
    value: Value
    axes: Sequence[Axis]  # its rows, or columns
    extent: int  # of them in a tile
    line: int  # vectors of a line
    base: int  # where it begins in a part, in vectors
    first: str  # the tile's first row
    along_rows: Sequence[Value]  # loads that are of vectors along the rows,
    along_k: Sequence[Value]  # and along k
    apart: bool

    @property
    def size(self) -> int:
        """Rows of the whole product."""
        return points(self.axes)

    def row(self, group: str, element: int) -> str:
        """The row of an element of a vector. Beyond the edge the last ones come once more, and nothing reads them."""
        row = f"{self.first} + {group} + {element * self.extent // 4}"
        last = self.size - 1
        if not self.apart:
            row, last = f"{self.first} + 4 * {group}", self.size - 4
        row = row if self.size % self.extent == 0 else f"min({row}, {last})"
        return row if self.apart else f"{row} + {element}"


class Tile:
    """The parts of one tile kernel. `helpers` collects the functions used.

    stored: are results stored by vectors? Then, or if the right operand's columns come so, they lie side by side.
    """

    def __init__(self, kernel: Kernel, shape: TileShape, memory: Memory, helpers: dict[str, None], stored: bool):
        assert kernel.product is not None
        self.kernel, self.shape, self.memory, self.helpers = kernel, shape, memory, helpers
        self.product = kernel.product
        self.m, self.n, self.k = (points(axes) for axes in (self.product.m, self.product.n, kernel.inner))
        self.edge = self.m % shape.rows > 0 or self.n % shape.columns > 0
        self.inner = shape.summed(kernel)
        self.stepped = bool(self.inner) and self.inner[-1].size % shape.k_step == 0  # along the last axis only
        p, t = self.product, shape
        rows, columns, k = (x[-1] if x else None for x in (p.m, p.n, self.inner))
        across = vector_loads([p.b], columns, memory.vectors)
        down = vector_loads([p.a], rows, memory.vectors)
        left, right = (vector_loads([v], k, memory.vectors) for v in (p.a, p.b))
        beside = len(across) > 0 or stored
        self.left = Side("left", p.a, p.m, t.rows, t.left_line // 4, 0, "first_m", down, left, not down)
        self.right = Side(
            "right", p.b, p.n, t.columns, t.right_line // 4, t.second // 4, "first_n", across, right, not beside
        )

    def before_stores(self) -> list[str]:
        """Everything up to the results: `c0_0` and so on then hold the thread's partial sums."""
        t, p = self.shape, self.product
        tiles_n = -(-self.n // t.columns)
        tiles = -(-self.m // t.rows) * tiles_n
        left, right = self.operand(self.left), self.operand(self.right)
        load, put = [*self.stands_still(), *left.load, *right.load], [*left.put, *right.put]
        return [
            f"let first_m = (w % {tiles}) / {tiles_n} * {t.rows};",
            f"let first_n = (w % {tiles_n}) * {t.columns};",
            *decode(f"(w / {tiles})", p.batch),
            *self.thread(),
            *(f"var c{i}_{h} = vec4<f32>();" for i in range(t.tall) for h in range(t.wide // 4)),
            *left.before,
            *right.before,
            "{",
            *indented(["let kc = 0;", *load]),
            "}",
            *put,
            "workgroupBarrier();",
            f"for (var kt = {t.k_step}; kt < {self.k + t.k_step}; kt += {t.k_step}) {{",
            f"  let kc = min(kt, {(self.k - 1) // t.k_step * t.k_step});",  # the last part once more, for nothing
            *indented([*load, *self.accumulate()]),
            "  workgroupBarrier();",
            *indented(put),
            "  workgroupBarrier();",
            "}",
        ]

    def stands_still(self) -> list[str]:
        """All of k but the last axis, of which a step begins at `ks`."""
        if not self.stepped:
            return []
        *others, last = self.inner
        if not others:
            return ["let ks = kc;"]
        return [f"let ks = kc % {last.size};", *decode(f"(kc / {last.size})", others)]

    def thread(self) -> list[str]:
        """The thread's place in the tile."""
        t = self.shape
        x, y = min(WARP[0], t.across), min(WARP[1], t.down)
        lane = "lid"
        lines: list[str] = []
        if t.slices > 1:
            lines = [f"let slice = lid / {t.across * t.down};", f"let lane = lid % {t.across * t.down};"]
            lane = "lane"
        across = t.across // x
        return [
            *lines,
            f"let tx = {lane} / {x * y} % {across} * {x} + {lane} % {x};",
            f"let ty = {lane} / {x * y} / {across} * {y} + {lane} % {x * y} / {x};",
        ]

    def stores(self, results: Callable[[Sequence[Result]], list[str]]) -> list[str]:
        """The loop over the thread's results; `results` writes several."""
        return self.exchange(results) if self.shape.slices > 1 else self.by_rows(results)

    def by_rows(self, results: Callable[[Sequence[Result]], list[str]]) -> list[str]:
        """Every thread finishes the rows it has summed. The first is stored and the others move up: registers have no
        numbers."""
        t, vectors = self.shape, range(self.shape.wide // 4)
        row = self.row(f"(ty + i / 4 * {t.down})", "i % 4")
        copies = [
            Result(f"_{4 * h + j}", [], row, self.column(f"tx + {t.across * h}", j), f"c0_{h}.{XYZW[j]}", self.edge)
            for h in vectors
            for j in range(4)
        ]
        return [
            f"for (var i = 0; i < {t.tall}; i++) {{",
            *indented(results(copies)),
            *(f"  c{i}_{h} = c{i + 1}_{h};" for i in range(t.tall - 1) for h in vectors),
            "}",
        ]

    def row(self, vector: str, element: str) -> str:
        """Where an element of a vector of rows lies in the product."""
        apart = f"{vector} + {element} * {self.shape.rows // 4}"
        return f"first_m + {apart if self.left.apart else f'4 * {vector} + {element}'}"

    def column(self, vector: str, element: int) -> str:
        """Where an element of a vector of columns lies in the product."""
        apart = f"{vector} + {element * self.shape.columns // 4}"
        return f"first_n + {apart if self.right.apart else f'4 * ({vector}) + {element}'}"

    def exchange(self, results: Callable[[Sequence[Result]], list[str]]) -> list[str]:
        """Slices add up through workgroup memory, some rows of every thread's results at a time."""
        t = self.shape
        rows = t.rows_exchanged
        exchanged = t.down * rows * t.columns
        cases: list[str] = []
        for number in range(t.tall // rows):
            places = [(r, h) for r in range(rows) for h in range(t.wide // 4)]
            puts = [f"sv[line + {r * t.columns // 4 + t.across * h}] = c{number * rows + r}_{h};" for r, h in places]
            label = "default" if number == t.tall // rows - 1 else f"case {number}"
            cases.append(f"  {label}: {{ {' '.join(puts)} }}")
        units = exchanged if self.right.apart else exchanged // 4
        together = max(1, min(TOGETHER, exchanged // WORKGROUP) * units // exchanged)
        copies = [x for u in range(together) for x in self.exchanged(f"o + {WORKGROUP * u}", f"_{u}", exchanged)]
        return [
            f"let line = (slice * {t.down} + ty) * {rows * t.columns // 4} + tx;",
            f"for (var turn = 0; turn < {t.tall // rows}; turn++) {{",
            "  switch turn {",
            *indented(cases),
            "  }",
            "  workgroupBarrier();",
            f"  for (var o = lid; o < {units}; o += {WORKGROUP * together}) {{",
            *indented(indented(results(copies))),
            "  }",
            "  workgroupBarrier();",
            "}",
        ]

    def exchanged(self, o: str, copy: str, exchanged: int) -> list[Result]:
        """Number `o` of the results exchanged in one turn; or the four of vector `o`, where they lie side by side."""
        t, q = self.shape, f"q{copy}"
        vectors = t.columns // 4
        across = t.columns if self.right.apart else vectors
        line, column = f"({q} / {across})", f"({q} % {across})"
        row = f"(turn * {t.rows_exchanged} + {line} % {t.rows_exchanged})"
        at = f"{line} * {vectors} + {column} % {vectors}"
        parts = " + ".join(f"sv[{at} + {s * exchanged // 4}]" for s in range(t.slices))
        before = [f"let {q} = {o};", f"let sum{copy} = {parts};"]
        place = self.row(f"({line} / {t.rows_exchanged} + {row} / 4 * {t.down})", f"{row} % 4")
        if self.right.apart:
            value = f"sum{copy}[{column} / {vectors}]"
            return [Result(copy, before, place, f"first_n + {column}", value, self.edge)]
        return [
            Result(f"{copy}_{j}", [] if j else before, place, self.column(column, j), f"sum{copy}.{XYZW[j]}", self.edge)
            for j in range(4)
        ]

    def accumulate(self) -> list[str]:
        """The sums over one part of k."""
        t = self.shape
        slice_left, slice_right = (
            f" + slice * {t.k_slice * line // 4}" if t.slices > 1 else "" for line in (t.left_line, t.right_line)
        )
        lines = [f"let left = ty{slice_left};", f"let right = tx + {t.second // 4}{slice_right};"]
        if t.k_slice <= WRITTEN_OUT:
            return [*lines, *(line for kk in range(t.k_slice) for line in ("{", *indented(self.step(kk)), "}"))]
        return [*lines, f"for (var kk = 0; kk < {t.k_slice}; kk++) {{", *indented(self.step("kk")), "}"]

    def step(self, kk: int | str) -> list[str]:
        """One k for the thread's results."""
        t = self.shape
        vectors = range(t.wide // 4)

        def at(line: int, place: int) -> str:
            return str(kk * line // 4 + place) if isinstance(kk, int) else f"{kk} * {line // 4} + {place}"

        return [
            *(f"let x{g} = sv[left + {at(t.left_line, t.down * g)}];" for g in range(t.tall // 4)),
            *(f"let y{h} = sv[right + {at(t.right_line, t.across * h)}];" for h in vectors),
            *(
                f"c{i}_{h} += {term(self.kernel, f'x{i // 4}.{XYZW[i % 4]}', f'y{h}')};"
                for i in range(t.tall)
                for h in vectors
            ),
        ]

    def operand(self, side: Side) -> Operand:
        """How one operand comes into workgroup memory. What does not depend on the step of k stands before the loop."""
        out = Operand([], [], [])
        blocks = not side.along_rows and len(side.along_k) > 0
        loads = self.shape.k_step * side.extent // (16 if blocks else 4)
        for u in range(max(1, loads // WORKGROUP)):
            (self.block if blocks else self.one)(side, u, out, loads)
        return out

    def one(self, side: Side, u: int, out: Operand, loads: int) -> None:
        """One load of the thread: a vector of four rows at one k, at once or element by element."""
        name, vectors = f"{side.name}{u}", side.extent // 4
        g, k, put = (f"{x}_{name}" for x in ("g", "k", "put"))
        vector, kj = self.place(side, u, vectors)
        out.before += [
            f"let {g} = {vector};",
            f"let {k} = {kj};",
            f"let {put} = {k} * {side.line} + {side.base} + {g};",
            f"var {name} = vec4<f32>();",
        ]
        load: list[str] = []
        first = self.defined(side, f"_{name}", side.row(g, 0), k)
        known = self.known(side, side.along_rows, f"_{name}", first, out, load)
        values: list[str] = []
        for e in range(4):
            copy = f"_{name}_{e}"
            loaded = {v: f"{w}.{XYZW[e]}" for v, w in known.items()}
            before = self.defined(side, copy, side.row(g, e), k)
            values.append(self.value(side, copy, before, loaded, out, load))
        here = f"sv[{put}] = {name};"
        load.append(f"{name} = vec4<f32>({', '.join(values)});")
        out.load += self.loaded([name], k, load)
        out.put.append(f"if (lid < {loads}) {{ {here} }}" if loads < WORKGROUP else here)

    def block(self, side: Side, u: int, out: Operand, loads: int) -> None:
        """One load of the thread: four vectors along k, of four rows."""
        name, vectors = f"{side.name}{u}", side.extent // 4
        g, k, put = (f"{x}_{name}" for x in ("g", "k", "put"))
        q = f"(lid + {WORKGROUP * u})" if u else "lid"
        out.before += [
            f"let {g} = {q} / {PAIR} % {vectors};",
            f"let {k} = ({q} % {PAIR} + {q} / {PAIR * vectors} * {PAIR}) * 4;",
            f"let {put} = {k} * {side.line} + {side.base} + {g};",
        ]
        load: list[str] = []
        rows = [[""] * 4 for _ in range(4)]
        for e in range(4):
            copy, row = f"_{name}_{e}", side.row(g, e)
            known = self.known(side, side.along_k, copy, self.defined(side, copy, row, k), out, load)
            for j in range(4):
                loaded = {v: f"{w}.{XYZW[j]}" for v, w in known.items()}
                before = self.defined(side, f"{copy}_{j}", row, f"{k} + {j}")
                rows[j][e] = self.value(side, f"{copy}_{j}", before, loaded, out, load, j)
        registers = [f"{name}_{j}" for j in range(4)]
        out.before += [f"var {register} = vec4<f32>();" for register in registers]
        load += [f"{register} = vec4<f32>({', '.join(row)});" for register, row in zip(registers, rows)]
        loading = self.loaded(registers, k, load)
        puts = [f"sv[{put} + {j * side.line}] = {register};" for j, register in enumerate(registers)]
        whole = loads >= WORKGROUP
        out.load += loading if whole else [f"if (lid < {loads}) {{", *indented(loading), "}"]
        out.put += puts if whole else [f"if (lid < {loads}) {{ {' '.join(puts)} }}"]

    def defined(self, side: Side, copy: str, row: str, k: str) -> list[str]:
        """Lines that define the axes of a copy."""
        lines = [f"let row{copy} = {row};", *decode(f"row{copy}", copied(side.axes, copy))]
        return [*lines, f"let {self.inner[-1].name}{copy} = {k};"] if self.stepped else lines

    def known(
        self, side: Side, loads: Sequence[Value], copy: str, before: Sequence[str], out: Operand, load: list[str]
    ) -> dict[Value, str]:
        """The vectors that some loads begin, loaded."""
        emit = self.emitter(side.axes, copy)
        found = {v: emit.vector(v, self.memory.vector, loop=True) for v in loads}
        out.before += [*before, *emit.outer] if found else []
        load += emit.inner
        return found

    def value(
        self,
        side: Side,
        copy: str,
        before: Sequence[str],
        loaded: Mapping[Value, str],
        out: Operand,
        load: list[str],
        turn: int = 0,
    ) -> str:
        """One element of an operand; without anything before it where it is but loaded. turn: its k in a block."""
        if side.value in loaded:
            return loaded[side.value]
        emit = self.emitter(side.axes, copy, loaded, turn)
        (value,) = emit.values([side.value], loop=True)
        self.helpers.update(emit.helpers)
        out.before += [*before, *emit.outer]
        if turn and not self.stepped:
            last = self.inner[-1].name
            load.append(f"let {last}{copy} = {last} + {turn};")
        load += emit.inner
        return value

    def emitter(
        self, axes: Sequence[Axis], copy: str, loaded: Mapping[Value, str] | None = None, turn: int = 0
    ) -> Emitter:
        """Writes the element of an operand in one row."""
        inner = [a.name for a in self.inner]
        own = [a.name for a in axes] + (inner[-1:] if self.stepped or turn else [])
        step = (inner[-1], "ks") if self.stepped else ("", "")
        return Emitter(self.memory.element, inner, own, copy, step, loaded)

    def loaded(self, registers: Sequence[str], k: str, load: Sequence[str]) -> list[str]:
        """The lines of a load, with all axes of k if they must be computed from the flat one; zeros beyond its end."""
        if self.stepped:
            return ["{", *indented(load), "}"]
        lines = [*decode("kj", self.inner), *load]
        if self.k % self.shape.k_step:
            zeros = [f"{register} = vec4<f32>();" for register in registers]
            lines = [*zeros, f"if (kj < {self.k}) {{", *indented(lines), "}"]
        return ["{", *indented([f"let kj = kc + {k};", *lines]), "}"]

    def place(self, side: Side, u: int, vectors: int) -> tuple[str, str]:
        """Which vector of a line and which k the thread's load number `u` of an operand is for.

        Neighbouring threads read neighbouring memory: in runs along k if that is where the operand is contiguous.
        """
        k = self.inner
        q = f"(lid + {WORKGROUP * u})" if u else "lid"
        loads = self.shape.k_step * vectors
        if loads < WORKGROUP:  # the others load the same and keep it
            q = f"(lid % {loads})"
        if side.along_rows or not contiguous_along(side.value, k[-1].name if k else ""):
            return f"{q} % {vectors}", f"{q} / {vectors}"
        return f"{q} / {RUN} % {vectors}", f"{q} % {RUN} + {q} / {RUN * vectors} * {RUN}"


@dataclass(frozen=True, slots=True)
class Result:
    """One result of a product: what ends its names, lines before it, its row and column, its value.

    edge: may it lie beyond the product's edge?
    """

    copy: str
    before: list[str]
    row: str
    column: str
    value: str
    edge: bool


def term(kernel: Kernel, x: str, y: str) -> str:
    """What an element `x` of the left operand and a vector `y` of the right add to the results."""
    # A scatter takes or leaves its updates: a zero times an infinite one would be NaN.
    scatter = any(isinstance(s, Fold) and s.scatter is not None for s in kernel.body)
    return f"select(vec4<f32>(), {y}, {x} != 0.0)" if scatter else f"{x} * {y}"


def contiguous_along(v: Value, name: str) -> bool:
    """Does the first load below `v` step by 1 along the variable `name`?"""
    stack = [v]
    while stack:
        x = stack.pop()
        if x.op == "load":
            return any(getattr(a, "name", "") == name and c == 1 for a, c in x.arg[1].terms)
        stack += x.args
    return False
