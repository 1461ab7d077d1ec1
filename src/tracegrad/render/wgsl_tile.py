"""Products as tiles: a workgroup computes a square of results, each thread a smaller square in registers.

Both operands pass through workgroup memory, a slice of k at a time, with k along rows, so that a thread reads the
rows and columns it needs as vectors. Every result sums over k in order, whatever the size of the tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracegrad.kernels.expr import Value
from tracegrad.kernels.form import Axis, Fold, Kernel, points
from tracegrad.kernels.tiling import SIDE, WORKGROUP, Tiling
from tracegrad.render.emit import Emitter, decode, indented

XYZW = "xyzw"  # components of a vector


class Tile:
    """The parts of one tile kernel. `element` spells a memory location, `helpers` collects the functions used."""

    def __init__(self, kernel: Kernel, tiling: Tiling, element: Callable[[int, str], str], helpers: dict[str, None]):
        assert kernel.product is not None
        self.kernel, self.tiling, self.element, self.helpers = kernel, tiling, element, helpers
        self.product = kernel.product
        self.m, self.n, self.k = (points(axes) for axes in (self.product.m, self.product.n, kernel.inner))
        self.vector = tiling.outputs % 4 == 0  # rows and columns are read four at a time

    def before_stores(self) -> list[str]:
        """Everything up to the results: `acc` then holds the thread's square."""
        t, p = self.tiling, self.product
        tiles_n = -(-self.n // t.tile)
        tiles = -(-self.m // t.tile) * tiles_n
        second = t.k_step * t.tile  # where the second operand begins in workgroup memory
        names = [self.sum_name(i, j) for i in range(t.outputs) for j in range(t.outputs)]
        return [
            f"let first_m = (w % {tiles}) / {tiles_n} * {t.tile};",
            f"let first_n = (w % {tiles_n}) * {t.tile};",
            *decode(f"(w / {tiles})", p.batch),
            f"let ty = lid / {SIDE};",
            f"let tx = lid % {SIDE};",
            *self.sums(),
            f"for (var kt = 0; kt < {self.k}; kt += {t.k_step}) {{",
            *indented(self.fill(p.a, p.m, "first_m", self.m, 0)),
            *indented(self.fill(p.b, p.n, "first_n", self.n, second)),
            "  workgroupBarrier();",
            f"  for (var kk = 0; kk < {t.k_step}; kk++) {{",
            *indented(indented(self.accumulate(second))),
            "  }",
            "  workgroupBarrier();",
            "}",
            f"var acc = array<f32, {t.outputs**2}>({', '.join(names)});",
        ]

    def stores(self, body: Callable[[], list[str]]) -> list[str]:
        """The loop over the thread's results; `body` writes one of them."""
        n = self.tiling.outputs
        column = f"4 * tx + {4 * SIDE} * (j / 4) + j % 4" if self.vector else f"tx + {SIDE} * j"
        return [
            f"for (var i = 0; i < {n}; i++) {{ for (var j = 0; j < {n}; j++) {{",
            *indented(
                store_result(self.kernel, f"first_m + ty * {n} + i", f"first_n + {column}", f"acc[i * {n} + j]", body)
            ),
            "}}",
        ]

    def sum_name(self, i: int, j: int) -> str:
        """The running sum of one result: registers by name, because an indexed array would live in memory."""
        return f"c{i}_{j // 4}.{XYZW[j % 4]}" if self.vector else f"c{i}_{j}"

    def sums(self) -> list[str]:
        n = self.tiling.outputs
        if self.vector:
            return [f"var c{i}_{h} = vec4<f32>();" for i in range(n) for h in range(n // 4)]
        return [f"var c{i}_{j} = 0.0;" for i in range(n) for j in range(n)]

    def accumulate(self, second: int) -> list[str]:
        """One step of k for the thread's square."""
        n, side = self.tiling.outputs, self.tiling.tile
        if self.vector:
            rows = [f"let x{g} = sv[kk * {side // 4} + ty * {n // 4} + {g}];" for g in range(n // 4)]
            columns = [f"let y{h} = sv[{second // 4} + kk * {side // 4} + tx + {SIDE * h}];" for h in range(n // 4)]
            steps = [f"c{i}_{h} += x{i // 4}.{XYZW[i % 4]} * y{h};" for i in range(n) for h in range(n // 4)]
        else:
            rows = [f"let x{i} = sf[kk * {side} + ty * {n} + {i}];" for i in range(n)]
            columns = [f"let y{j} = sf[{second} + kk * {side} + tx + {SIDE * j}];" for j in range(n)]
            steps = [f"c{i}_{j} += x{i} * y{j};" for i in range(n) for j in range(n)]
        return [*rows, *columns, *steps]

    def fill(self, v: Value, axes: Sequence[Axis], origin: str, size: int, base: int) -> list[str]:
        """Put one operand's slice into workgroup memory; zeros beyond the edges."""
        side, step, k = self.tiling.tile, self.tiling.k_step, self.kernel.inner
        emit = Emitter(self.element, [a.name for a in (*axes, *k)])
        (value,) = emit.values([v], loop=True)
        self.helpers.update(emit.helpers)
        conditions = [f"row < {size}"] if size % side else []
        conditions += [f"kj < {self.k}"] if self.k % step else []
        # Neighbouring threads read neighbouring memory: along k if that is where the operand is contiguous.
        along_k = contiguous_along(v, k[-1].name if k else "")
        row, kj = (f"q / {step}", f"q % {step}") if along_k else (f"q % {side}", f"q / {side}")
        place = f"{base} + ({kj}) * {side} + {row}" if along_k else f"{base} + q"
        target = f"sv[({place}) / 4][({place}) % 4]" if self.vector else f"sf[{place}]"
        one = [*decode("row", axes), *decode("kj", k), *emit.inner, f"x = {value};"]
        body = [
            f"let row = {origin} + {row};",
            f"let kj = kt + {kj};",
            "var x = 0.0;",
            *([f"if ({' && '.join(conditions)}) {{", *indented(one), "}"] if conditions else one),
            f"{target} = x;",
        ]
        loop = [f"for (var q = lid; q < {side * step}; q += {WORKGROUP}) {{", *indented(body), "}"]
        return ["{", *indented([*emit.outer, *loop]), "}"]


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
