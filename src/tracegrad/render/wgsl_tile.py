"""Products as tiles: a workgroup computes a rectangle of results, each thread a smaller one in registers.

Both operands pass through workgroup memory, a part of k at a time, with k along lines. A line is made of vectors whose
four elements lie a quarter of the line apart in the product: so a thread makes whole vectors of what it loads while
its neighbours load the elements beside, and in the end neighbouring threads hold neighbouring results. (Threads that
write parts of one vector would race: a device may write all of it.) While one part is summed the next is on its way
from memory. Every result sums over k in an order that shapes alone decide.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from tracegrad.kernels.expr import Value
from tracegrad.kernels.form import Axis, Fold, Kernel, points
from tracegrad.kernels.tiling import TOGETHER, WORKGROUP, TileShape
from tracegrad.render.emit import Emitter, copied, decode, indented

XYZW = "xyzw"  # components of a vector
WARP = 8, 4  # threads of a warp along columns and rows: what they read of both operands fits the fewest lines
RUN = 8  # elements along k that neighbouring threads load where an operand is contiguous along k: 32 bytes
WRITTEN_OUT = 16  # turns of the innermost loop: drivers leave it as it is else, and then it takes twice as long


@dataclass(slots=True)
class Operand:
    """Lines before the loop over k, those that load the thread's part into registers, and those that put it down."""

    before: list[str]
    load: list[str]
    put: list[str]


class Tile:
    """The parts of one tile kernel. `element` spells a memory location, `helpers` collects the functions used."""

    def __init__(self, kernel: Kernel, shape: TileShape, element: Callable[[int, str], str], helpers: dict[str, None]):
        assert kernel.product is not None
        self.kernel, self.shape, self.element, self.helpers = kernel, shape, element, helpers
        self.product = kernel.product
        self.m, self.n, self.k = (points(axes) for axes in (self.product.m, self.product.n, kernel.inner))
        self.edge = self.m % shape.rows > 0 or self.n % shape.columns > 0
        self.inner = shape.summed(kernel)
        self.stepped = bool(self.inner) and self.inner[-1].size % shape.k_step == 0  # along the last axis only

    def before_stores(self) -> list[str]:
        """Everything up to the results: `c0_0` and so on then hold the thread's partial sums."""
        t, p = self.shape, self.product
        tiles_n = -(-self.n // t.columns)
        tiles = -(-self.m // t.rows) * tiles_n
        left = self.operand("left", p.a, p.m, self.m)
        right = self.operand("right", p.b, p.n, self.n)
        load, put = [*self.stands_still(), *left.load, *right.load], [*left.put, *right.put]
        return [
            f"let first_m = (w % {tiles}) / {tiles_n} * {t.rows};",
            f"let first_n = (w % {tiles_n}) * {t.columns};",
            *decode(f"(w / {tiles})", p.batch),
            *self.thread(),
            *(f"var c{i}_{h} = vec4<f32>();" for i in range(t.tall) for h in range(t.wide // 4)),
            *left.before,
            *right.before,
            "var part = 0;",
            "{",
            *indented(["let kc = 0;", *load]),
            "}",
            *put,
            "workgroupBarrier();",
            f"for (var kt = {t.k_step}; kt < {self.k + t.k_step}; kt += {t.k_step}) {{",
            f"  let kc = min(kt, {(self.k - 1) // t.k_step * t.k_step});",  # the last part once more, for nothing
            *indented([*load, *self.accumulate()]),
            f"  part = {t.part // 4} - part;",
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
        row = f"first_m + ty + i / 4 * {t.down} + i % 4 * {t.rows // 4}"
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

    def column(self, vector: str, element: int) -> str:
        """Where an element of a vector of columns lies in the product."""
        return f"first_n + {vector} + {element * self.shape.columns // 4}"

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
        together = min(TOGETHER, exchanged // WORKGROUP)
        copies = [self.result(f"o + {WORKGROUP * u}", f"_{u}", exchanged) for u in range(together)]
        return [
            f"let line = (slice * {t.down} + ty) * {rows * t.columns // 4} + tx;",
            f"for (var turn = 0; turn < {t.tall // rows}; turn++) {{",
            "  switch turn {",
            *indented(cases),
            "  }",
            "  workgroupBarrier();",
            f"  for (var o = lid; o < {exchanged}; o += {WORKGROUP * together}) {{",
            *indented(indented(results(copies))),
            "  }",
            "  workgroupBarrier();",
            "}",
        ]

    def result(self, o: str, copy: str, exchanged: int) -> Result:
        """Number `o` of the results exchanged in one turn."""
        t = self.shape
        rows, vectors, q = t.rows_exchanged, t.columns // 4, f"q{copy}"
        line, column = f"{q} / {t.columns}", f"{q} % {t.columns}"
        row = f"(turn * {rows} + {line} % {rows})"
        at = f"{line} * {vectors} + {q} % {vectors}"
        parts = [f"sv[{at} + {s * exchanged // 4}][{column} / {vectors}]" for s in range(t.slices)]
        return Result(
            copy,
            [f"let {q} = {o};"],
            f"first_m + {line} / {rows} + {row} / 4 * {t.down} + {row} % 4 * {t.rows // 4}",
            f"first_n + {column}",
            " + ".join(parts),
            self.edge,
        )

    def accumulate(self) -> list[str]:
        """The sums over one part of k."""
        t = self.shape
        slice_left, slice_right = (
            f" + slice * {t.k_slice * line // 4}" if t.slices > 1 else "" for line in (t.left_line, t.right_line)
        )
        lines = [f"let left = part{slice_left} + ty;", f"let right = part{slice_right} + tx + {t.second // 4};"]
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

    def operand(self, name: str, v: Value, axes: Sequence[Axis], size: int) -> Operand:
        """How one operand comes into workgroup memory. Beyond the edge come its last rows, which nothing reads.

        What does not depend on the step of k is computed before the loop.
        """
        t, inner = self.shape, self.inner
        extent, line, base, first = (
            (t.rows, t.left_line, 0, "first_m") if name == "left" else (t.columns, t.right_line, t.second, "first_n")
        )
        out = Operand([], [], [])
        vectors = t.k_step * extent // 4
        for u in range(max(1, vectors // WORKGROUP)):
            vector, kj = self.place(v, u, extent // 4)
            g, k, put = (f"{x}_{name}{u}" for x in ("g", "k", "put"))
            out.before += [
                f"let {g} = {vector};",
                f"let {k} = {kj};",
                f"let {put} = {k} * {line // 4} + {base // 4} + {g};",
            ]
            out.before.append(f"var {name}{u} = vec4<f32>();")
            values: list[str] = []
            load: list[str] = []
            for e in range(4):
                copy = f"_{name}{u}_{e}"
                row = f"{first} + {g} + {e * extent // 4}"
                row = row if size % extent == 0 else f"min({row}, {size - 1})"
                emit = self.emitter(axes, copy)
                (value,) = emit.values([v], loop=True)
                self.helpers.update(emit.helpers)
                out.before += [f"let row{copy} = {row};", *decode(f"row{copy}", copied(axes, copy))]
                if self.stepped:
                    out.before.append(f"let {inner[-1].name}{copy} = {k};")
                out.before += emit.outer
                load += emit.inner
                values.append(value)
            out.load += self.loaded(f"{name}{u}", k, [*load, f"{name}{u} = vec4<f32>({', '.join(values)});"])
            here = f"sv[part + {put}] = {name}{u};"
            out.put.append(f"if (lid < {vectors}) {{ {here} }}" if vectors < WORKGROUP else here)
        return out

    def emitter(self, axes: Sequence[Axis], copy: str) -> Emitter:
        """Writes the element of an operand in one row."""
        inner = [a.name for a in self.inner]
        own = [a.name for a in axes] + (inner[-1:] if self.stepped else [])
        return Emitter(self.element, inner, own, copy, (inner[-1], "ks") if self.stepped else ("", ""))

    def loaded(self, register: str, k: str, load: Sequence[str]) -> list[str]:
        """The lines of a load, with all axes of k if they must be computed from the flat one; zeros beyond its end."""
        if self.stepped:
            return list(load)
        lines = [*decode("kj", self.inner), *load]
        if self.k % self.shape.k_step:
            lines = [f"{register} = vec4<f32>();", f"if (kj < {self.k}) {{", *indented(lines), "}"]
        return ["{", *indented([f"let kj = kc + {k};", *lines]), "}"]

    def place(self, v: Value, u: int, vectors: int) -> tuple[str, str]:
        """Which vector of a line and which k the thread's load number `u` of an operand is for.

        Neighbouring threads read neighbouring memory: in runs along k if that is where the operand is contiguous.
        """
        k = self.inner
        q = f"(lid + {WORKGROUP * u})" if u else "lid"
        loads = self.shape.k_step * vectors
        if loads < WORKGROUP:  # the others load the same and keep it
            q = f"(lid % {loads})"
        if not contiguous_along(v, k[-1].name if k else ""):
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
