"""Products without workgroup memory: each thread computes a square of results, reading both operands from memory.

For adapters that run on a CPU. CPU caches replace workgroup memory, and a barrier would cost more than the work between
two barriers. Every result sums over k in the order of the tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracegrad.kernels.expr import Value
from tracegrad.kernels.form import Axis, Extent, Kernel, points
from tracegrad.kernels.tiling import Tiling
from tracegrad.render.emit import Block, Emitter, Loop, Statement, copied, decode
from tracegrad.render.wgsl_tile import Result, Span


class Square:
    """Writes one square kernel. `element` gives a memory location, `helpers` collects the functions used."""

    def __init__(self, kernel: Kernel, tiling: Tiling, element: Callable[[int, str], str], helpers: dict[str, None]):
        assert kernel.product is not None
        self.kernel, self.tiling, self.element, self.helpers = kernel, tiling, element, helpers
        assert tiling.tile is not None
        self.product, self.tile = kernel.product, tiling.tile
        self.m, self.n, self.k = (points(axes) for axes in (self.product.m, self.product.n, kernel.inner))
        self.side = self.tile.square(kernel)
        self.span = Span(self.tile.limits(kernel), self.side, self.side, self.k)

    def before_stores(self) -> list[Statement]:
        """Return everything up to the results: `ci_h` then holds columns 4 * h to 4 * h + 3 of row i."""
        p, side, t = self.product, self.side, self.tile
        across = -(-self.n // side)
        squares = -(-self.m // side) * across
        rows, left = self.operand(p.a, p.m, "first_m", self.m, "r")
        columns, right = self.operand(p.b, p.n, "first_n", self.n, "c")
        vectors = range(side // 4)
        each = [
            *(f"var p{i}_{h} = vec4<f32>();" for i in range(side) for h in vectors),
            *self.slice([*left, *right]),
            *(f"c{i}_{h} += p{i}_{h};" for i in range(side) for h in vectors),
        ]
        return [
            f"let e = w * {self.tiling.threads} + lid;",
            f"if (e >= {points(p.batch) * squares}) {{ return; }}",
            f"let first_m = (e % {squares}) / {across} * {side};",
            f"let first_n = (e % {across}) * {side};",
            *self.span.unread(),
            f"let batch = e / {squares};",
            *decode("batch", p.batch),
            *rows,
            *columns,
            *(f"var c{i}_{h} = vec4<f32>();" for i in range(side) for h in vectors),
            Loop("slice", min(t.slices, -(-int(self.k) // t.k_slice)), each),
        ]

    def slice(self, operands: Sequence[str]) -> list[Statement]:
        """Return the sums over the slice's part of k, unrolled if it is short: leaving a loop costs four turns."""
        t, k, vectors = self.tile, self.k, range(self.side // 4)
        turn = [
            *decode("kj", t.summed(self.kernel)),
            *operands,
            *(f"let y{h} = vec4<f32>({', '.join(f'c{4 * h + j}' for j in range(4))});" for h in vectors),
            *(f"p{i}_{h} += {self.term(f'r{i}', f'y{h}')};" for i in range(self.side) for h in vectors),
        ]
        if turns := t.turns(k):
            return [Block("", [f"let kj = slice * {t.k_slice} + {u};", *turn]) for u in range(turns)]
        first, last = self.span.first, self.span.last
        kj = f"let kj = turn / {t.k_slice} * {t.k_step} + slice * {t.k_slice} + turn % {t.k_slice};"
        whole, rest = f"{k} / {t.k_step} * {t.k_slice}", f"{k} % {t.k_step}"
        if not isinstance(k, Extent):
            whole, rest = str(k // t.k_step * t.k_slice), str(k % t.k_step)
        if last:
            whole, rest = f"k_end / {t.k_step} * {t.k_slice}", f"k_end % {t.k_step}"
        return [
            *([f"let k_end = {last} + 1;"] if last else []),
            f"let turns = {whole} + clamp({rest} - slice * {t.k_slice}, 0, {t.k_slice});",
            Loop("turn", "turns", [kj, *turn], f"{first} / {t.k_step} * {t.k_slice}" if first else 0),
        ]

    def term(self, x: str, y: str) -> str:
        """Return the term that an element of the left operand and a vector of the right add to the results."""
        # A scatter selects its updates, because zero times an infinite update would be NaN.
        return f"{x} * {y}" if self.kernel.scatter is None else f"select(vec4<f32>(), {y}, {x} != 0.0)"

    def operand(
        self, v: Value, axes: Sequence[Axis], origin: str, size: int, letter: str
    ) -> tuple[list[str], list[str]]:
        """Return lines before the loop over k, and in it: there the element of each row (or column) i is `letter`i."""
        before: list[str] = []
        inside: list[str] = []
        for i in range(self.side):
            copy = f"{letter}{i}"
            emit = Emitter(self.element, [a.name for a in self.kernel.inner], [a.name for a in axes], copy)
            (value,) = emit.values([v], loop=True)
            self.helpers.update(emit.helpers)
            line = f"{origin} + {i}"
            if size % self.side:  # beyond the edge the last line repeats, and is not stored
                line = f"min({line}, {size - 1})"
            before += [*decode(f"({line})", copied(axes, copy)), *emit.outer]
            inside += [*emit.inner, f"let {copy} = {value};"]
        return before, inside

    def stores(self, results: Callable[[Sequence[Result]], list[Statement]]) -> list[Statement]:
        """Return the loop over the results; `results` writes one of them.

        The first row is stored and the others move up: indexing all registers at once takes a driver 0.3 s to compile.
        """
        vectors = range(self.side // 4)
        edge = self.m % self.side > 0 or self.n % self.side > 0
        result = Result("", [], "first_m + i", "first_n + j", "row[j / 4][j % 4]", edge)
        each = [
            f"var row = array<vec4<f32>, {self.side // 4}>({', '.join(f'c0_{h}' for h in vectors)});",
            Loop("j", self.side, results([result])),
            *(f"c{i}_{h} = c{i + 1}_{h};" for i in range(self.side - 1) for h in vectors),
        ]
        return [Loop("i", self.side, each)]
