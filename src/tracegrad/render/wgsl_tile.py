"""Products as tiles: a workgroup computes a square of results, each thread a smaller square in registers.

Both operands pass through workgroup memory, a part of k at a time, with k along lines, so that a thread reads the rows
and columns it needs as vectors. While one part is summed the next is on its way from memory, in registers. In the end
the slices' partial sums are exchanged through the same workgroup memory, after which neighbouring threads hold
neighbouring results. Every result sums over k in an order that the shape of the tile alone decides.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracegrad.kernels.expr import Value
from tracegrad.kernels.form import Axis, Fold, Kernel, points
from tracegrad.kernels.tiling import OPERAND, WORKGROUP, TileShape
from tracegrad.render.emit import Emitter, decode, indented

XYZW = "xyzw"  # components of a vector
LOADS = OPERAND // WORKGROUP  # of each operand by each thread, for one part of k
RUN = 8  # elements along k that neighbouring threads load where an operand is contiguous along k: 32 bytes


class Tile:
    """The parts of one tile kernel. `element` spells a memory location, `helpers` collects the functions used."""

    def __init__(self, kernel: Kernel, shape: TileShape, element: Callable[[int, str], str], helpers: dict[str, None]):
        assert kernel.product is not None
        self.kernel, self.shape, self.element, self.helpers = kernel, shape, element, helpers
        self.product = kernel.product
        self.m, self.n, self.k = (points(axes) for axes in (self.product.m, self.product.n, kernel.inner))
        self.vectors = shape.outputs // 4  # in a row of the thread's square
        self.second = shape.k_step * shape.line  # where the second operand begins in workgroup memory

    def before_stores(self) -> list[str]:
        """Everything up to the results: `c0_0` and so on then hold the thread's partial sums."""
        t, p = self.shape, self.product
        tiles_n = -(-self.n // t.side)
        tiles = -(-self.m // t.side) * tiles_n
        return [
            f"let first_m = (w % {tiles}) / {tiles_n} * {t.side};",
            f"let first_n = (w % {tiles_n}) * {t.side};",
            *decode(f"(w / {tiles})", p.batch),
            f"let slice = lid / {t.across**2};",
            f"let ty = lid % {t.across**2} / {t.across};",
            f"let tx = lid % {t.across};",
            *(f"var c{i}_{h} = vec4<f32>();" for i in range(t.outputs) for h in range(self.vectors)),
            *(f"var {x}{u} = 0.0;" for x in ("left", "right") for u in range(LOADS)),
            f"for (var kt = 0; kt < {self.k + t.k_step}; kt += {t.k_step}) {{",
            f"  if (kt < {self.k}) {{",
            *indented(indented(self.load("left", p.a, p.m, "first_m", self.m))),
            *indented(indented(self.load("right", p.b, p.n, "first_n", self.n))),
            "  }",
            "  if (kt > 0) {",
            f"    for (var kk = 0; kk < {t.k_slice}; kk++) {{",
            *indented(indented(indented(self.accumulate()))),
            "    }",
            "    workgroupBarrier();",
            "  }",
            f"  if (kt < {self.k}) {{",
            *indented(indented([*self.put("left", p.a, 0), *self.put("right", p.b, self.second)])),
            "    workgroupBarrier();",
            "  }",
            "}",
        ]

    def stores(self, body: Callable[[], list[str]]) -> list[str]:
        """Exchange of partial sums, some rows of every thread's square at a time; `body` writes one result."""
        t = self.shape
        rows = t.rows_exchanged
        results = t.across * rows * t.side
        cases: list[str] = []
        for number in range(t.outputs // rows):
            places = [(r, h) for r in range(rows) for h in range(self.vectors)]
            puts = [f"sv[line + {r * t.side // 4 + t.across * h}] = c{number * rows + r}_{h};" for r, h in places]
            label = "default" if number == t.outputs // rows - 1 else f"case {number}"
            cases.append(f"  {label}: {{ {' '.join(puts)} }}")
        parts = [f"sv[(o + {s * results}) / 4][o % 4]" for s in range(t.slices)]
        row = f"first_m + o / {rows * t.side} * {t.outputs} + turn * {rows} + o / {t.side} % {rows}"
        result = store_result(self.kernel, row, f"first_n + o % {t.side}", " + ".join(parts), body)
        return [
            f"let line = ((slice * {t.across} + ty) * {rows}) * {t.side // 4} + tx;",
            f"for (var turn = 0; turn < {t.outputs // rows}; turn++) {{",
            "  switch turn {",
            *indented(cases),
            "  }",
            "  workgroupBarrier();",
            f"  for (var o = lid; o < {results}; o += {WORKGROUP}) {{",
            *indented(indented(result)),
            "  }",
            "  workgroupBarrier();",
            "}",
        ]

    def accumulate(self) -> list[str]:
        """One step of k for the thread's square."""
        n, line = self.shape.outputs, self.shape.line
        vectors = range(self.vectors)
        return [
            f"let at = (slice * {self.shape.k_slice} + kk) * {line // 4};",
            *(f"let x{g} = sv[at + ty * {self.vectors} + {g}];" for g in vectors),
            *(f"let y{h} = sv[at + tx + {self.second // 4 + self.shape.across * h}];" for h in vectors),
            *(
                f"c{i}_{h} += {term(self.kernel, f'x{i // 4}.{XYZW[i % 4]}', f'y{h}')};"
                for i in range(n)
                for h in vectors
            ),
        ]

    def place(self, v: Value, u: int) -> tuple[str, str]:
        """Which row and which k the thread's load number `u` of an operand is for.

        Neighbouring threads read neighbouring memory: in runs along k if that is where the operand is contiguous.
        """
        side = self.shape.side
        k = self.kernel.inner
        if not contiguous_along(v, k[-1].name if k else ""):
            return f"lid % {side}", f"lid / {side} + {WORKGROUP // side * u}"
        q = f"(lid + {WORKGROUP * u})"
        return f"{q} / {RUN} % {side}", f"lid % {RUN} + {q} / {RUN * side} * {RUN}"

    def load(self, name: str, v: Value, axes: Sequence[Axis], origin: str, size: int) -> list[str]:
        """The thread's part of one operand into registers; zeros beyond the edges."""
        inner = self.kernel.inner
        emit = Emitter(self.element, [a.name for a in (*axes, *inner)])
        (value,) = emit.values([v], loop=True)
        self.helpers.update(emit.helpers)
        conditions = [f"row < {size}"] if size % self.shape.side else []
        conditions += [f"kj < {self.k}"] if self.k % self.shape.k_step else []
        lines: list[str] = []
        for u in range(LOADS):
            row, kj = self.place(v, u)
            one = [*decode("row", axes), *decode("kj", inner), *emit.inner, f"{name}{u} = {value};"]
            if conditions:
                one = [f"{name}{u} = 0.0;", f"if ({' && '.join(conditions)}) {{", *indented(one), "}"]
            lines += ["{", *indented([f"let row = {origin} + {row};", f"let kj = kt + {kj};", *one]), "}"]
        return ["{", *indented([*emit.outer, *lines]), "}"]

    def put(self, name: str, v: Value, base: int) -> list[str]:
        """The registers of one operand into workgroup memory."""
        lines: list[str] = []
        for u in range(LOADS):
            row, kj = self.place(v, u)
            place = f"({kj}) * {self.shape.line} + {row}"
            lines.append(f"{{ let q = {base} + {place}; sv[q / 4][q % 4] = {name}{u}; }}")
        return lines


def term(kernel: Kernel, x: str, y: str) -> str:
    """What an element `x` of the left operand and a vector `y` of the right add to the results."""
    # A scatter takes or leaves its updates: a zero times an infinite one would be NaN.
    scatter = any(isinstance(s, Fold) and s.scatter is not None for s in kernel.body)
    return f"select(vec4<f32>(), {y}, {x} != 0.0)" if scatter else f"{x} * {y}"


def store_result(kernel: Kernel, mm: str, nn: str, value: str, body: Callable[[], list[str]]) -> list[str]:
    """`body` for the result `value` in row `mm` and column `nn`, unless that is beyond the edge."""
    p = kernel.product
    assert p is not None
    fold = next(s for s in kernel.body if isinstance(s, Fold))
    return [
        f"let mm = {mm};",
        f"let nn = {nn};",
        f"if (mm < {points(p.m)} && nn < {points(p.n)}) {{",
        f"  let {fold.local} = {value};",
        *indented([*decode("mm", p.m), *decode("nn", p.n), *body()]),
        "}",
    ]


def contiguous_along(v: Value, name: str) -> bool:
    """Does the first load below `v` step by 1 along the variable `name`?"""
    stack = [v]
    while stack:
        x = stack.pop()
        if x.op == "load":
            return any(getattr(a, "name", "") == name and c == 1 for a, c in x.arg[1].terms)
        stack += x.args
    return False
