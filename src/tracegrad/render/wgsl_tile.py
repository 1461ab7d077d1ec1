"""Products by rectangles: a workgroup computes a tile of results, each thread a smaller one in registers.

Both operands pass through workgroup memory, a part of k at a time: each k has a line of vectors (`wgsl_loads`).
Results, too, are stored by vectors or by elements. While one part is summed, the next is being loaded. Shapes alone
decide the order in which a result sums over k.

Without workgroup memory, for adapters that run on a CPU, each thread computes a square, and reads both operands from
memory. CPU caches replace workgroup memory, and a barrier would cost more than the work between two barriers. Every
result sums over k in the order of the tile.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import reduce

from tracegrad.kernels.expr import Value
from tracegrad.kernels.form import Axis, Extent, Kernel, Limit, plus, points
from tracegrad.kernels.tiles import TileShape
from tracegrad.kernels.tiling import Tiling
from tracegrad.render.emit import Block, Emitter, Loop, Statement, copied, decode
from tracegrad.render.wgsl_loads import XYZW, Access, Loads, Side, vector_loads
from tracegrad.tuning import ROWS_TOGETHER, WORKGROUP, WRITTEN_OUT


@dataclass(frozen=True, slots=True)
class Span:
    """A rectangle of `rows` by `columns` results, beginning at `first_m` and `first_n`."""

    limits: Sequence[Limit]
    rows: int
    columns: int
    k: int

    def unread(self) -> list[str]:
        """Return code that ends the kernel if no result is read. All threads of a workgroup leave, or none."""
        apart = [x for x in self.limits if x.of_results]
        return [f"if (first_{x.low} >= first_{x.high} + {self.size(x.high)}) {{ return; }}" for x in apart]

    @property
    def first(self) -> str:
        """The first k that counts; "" if it is 0."""
        return self.within([f"first_{x.low}" for x in self.limits if x.high == "k"], "max")

    @property
    def last(self) -> str:
        """The last k that counts; "" if it is the last of all. Less than `first` if none counts."""
        bounds = [f"first_{x.high} + {self.size(x.high) - 1}" for x in self.limits if x.low == "k"]
        return self.within(bounds, "min")

    def size(self, name: str) -> int:
        """Return the rectangle's size along m or n."""
        return self.rows if name == "m" else self.columns

    def within(self, bounds: Sequence[str], of: str) -> str:
        """Return the `of` (max or min) of some bounds, limited to an index of k."""
        return f"min({reduce(lambda a, b: f'{of}({a}, {b})', bounds)}, {plus(self.k, -1)})" if bounds else ""


WARP = 8, 4  # threads of a warp along columns and rows: this shape reads the fewest lines of both operands


class Tile:
    """Writes one tile kernel.

    stored: results are stored by vectors. Then, or if the right operand is loaded by vectors along columns, the columns
            of a vector are side by side.
    """

    def __init__(self, kernel: Kernel, shape: TileShape, access: Access, stored: bool):
        assert kernel.product is not None
        self.kernel, self.shape = kernel, shape
        self.loads = Loads(kernel, shape, access)
        self.product = kernel.product
        self.m, self.n, self.k = (points(axes) for axes in (self.product.m, self.product.n, kernel.inner))
        self.edge = self.m % shape.rows > 0 or self.n % shape.columns > 0
        p, t = self.product, shape
        rows, columns, k = (x[-1] if x else None for x in (p.m, p.n, self.loads.inner))
        across = vector_loads([p.b], columns, access.vectors)
        down = vector_loads([p.a], rows, access.vectors)
        left, right = (vector_loads([v], k, access.vectors) for v in (p.a, p.b))
        beside = len(across) > 0 or stored
        self.left = Side("left", p.a, p.m, t.rows, t.left_line // 4, 0, "first_m", down, left, not down)
        self.right = Side(
            "right", p.b, p.n, t.columns, t.right_line // 4, t.second // 4, "first_n", across, right, not beside
        )

    def before_stores(self) -> list[Statement]:
        """Return everything up to the results: `c0_0` and so on then hold the thread's partial sums."""
        t, p = self.shape, self.product
        left, right = self.loads.operand(self.left), self.loads.operand(self.right)
        load, put = [*self.loads.stands_still(), *left.load, *right.load], [*left.put, *right.put]
        span = Span(t.limits(self.kernel), t.rows, t.columns, self.k)
        steps, first, last, end = self.steps(span)
        each = [
            f"let kc = min(kt, {last});",  # past the end the last part repeats, unused
            *load,
            *self.accumulate(),
            "workgroupBarrier();",
            *put,
            "workgroupBarrier();",
        ]
        return [
            *self.tile_of_workgroup(),
            *span.unread(),
            *decode("batch", p.batch),
            *self.thread(),
            *(f"var c{i}_{h} = vec4<f32>();" for i in range(t.tall) for h in range(t.wide // 4)),
            *left.before,
            *right.before,
            *steps,
            Block("", [f"let kc = {first};", *load]),
            *put,
            "workgroupBarrier();",
            Loop("kt", end, each, f"{first} + {t.k_step}" if span.first else t.k_step, t.k_step),
        ]

    def tile_of_workgroup(self) -> list[str]:
        """Return which tile of which product the workgroup computes.

        Tiles with the longest sums come first: otherwise some of them would run alone at the end. So if k has a limit,
        the rows or columns that it depends on change slowest, beginning at the end where more of k counts.
        """
        t = self.shape
        tiles = {"m": -(-self.m // t.rows), "n": -(-self.n // t.columns)}
        limit = next((x for x in t.limits(self.kernel) if not x.of_results), None)
        if limit is None:
            m, n, batch = f"w / {tiles['n']} % {tiles['m']}", f"w % {tiles['n']}", f"w / {tiles['m'] * tiles['n']}"
        else:
            slow = limit.high if limit.low == "k" else limit.low
            fast = "n" if slow == "m" else "m"
            products = points(self.product.batch)
            last = f"w / {products * tiles[fast]}"
            place = {fast: f"w % {tiles[fast]}", slow: f"({tiles[slow] - 1} - {last})" if limit.low == "k" else last}
            m, n, batch = place["m"], place["n"], f"w / {tiles[fast]} % {products}"
        return [f"let first_m = {m} * {t.rows};", f"let first_n = {n} * {t.columns};", f"let batch = {batch};"]

    def steps(self, span: Span) -> tuple[list[str], str, str, str]:
        """Return lines before the loop over k, where its first and last step begin, and its end, one step ahead."""
        step, lines = self.shape.k_step, list[str]()
        first, last, end = "0", f"{plus(self.k, -1)} / {step} * {step}", str(plus(self.k, step))
        if not isinstance(self.k, Extent):
            last = str((self.k - 1) // step * step)
        if span.first:
            first = "k_first"
            lines.append(f"let k_first = {span.first} / {step} * {step};")
        if span.last:
            last, end = "k_last", f"k_last + {step + 1}"
            lines.append(f"let k_last = {span.last} / {step} * {step};")
        return lines, first, last, end

    def thread(self) -> list[str]:
        """Return the thread's place in the tile."""
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

    def stores(self, results: Callable[[Sequence[Result]], list[Statement]]) -> list[Statement]:
        """Return the loop over the thread's results; `results` writes several."""
        return self.exchange(results) if self.shape.slices > 1 else self.by_rows(results)

    def by_rows(self, results: Callable[[Sequence[Result]], list[Statement]]) -> list[Statement]:
        """Return a loop in which each thread stores the rows that it summed.

        Registers cannot be indexed. So each iteration stores the first rows, and moves the others up.
        """
        t, vectors, together = self.shape, range(self.shape.wide // 4), ROWS_TOGETHER
        copies: list[Result] = []
        for r in range(together):
            i = f"(i + {r})" if r else "i"
            row = self.row(f"(ty + {i} / 4 * {t.down})", f"{i} % 4")
            places = [(h, j, f"_{r}_{4 * h + j}") for h in vectors for j in range(4)]
            copies += [
                Result(copy, [], row, self.column(f"tx + {t.across * h}", j), f"c{r}_{h}.{XYZW[j]}", self.edge)
                for h, j, copy in places
            ]
        moves = [f"c{i}_{h} = c{i + together}_{h};" for i in range(t.tall - together) for h in vectors]
        return [Loop("i", t.tall, [*results(copies), *moves], step=together)]

    def row(self, vector: str, element: str) -> str:
        """Return the row in the product of an element of a vector of rows."""
        apart = f"{vector} + {element} * {self.shape.rows // 4}"
        return f"first_m + {apart if self.left.apart else f'4 * {vector} + {element}'}"

    def column(self, vector: str, element: int) -> str:
        """Return the column in the product of an element of a vector of columns."""
        apart = f"{vector} + {element * self.shape.columns // 4}"
        return f"first_n + {apart if self.right.apart else f'4 * ({vector}) + {element}'}"

    def exchange(self, results: Callable[[Sequence[Result]], list[Statement]]) -> list[Statement]:
        """Return lines that add up slices through workgroup memory, some rows of every thread's results at a time."""
        t = self.shape
        rows = t.rows_exchanged
        exchanged = t.down * rows * t.columns
        cases: list[str] = []
        for number in range(t.tall // rows):
            places = [(r, h) for r in range(rows) for h in range(t.wide // 4)]
            puts = [f"sv[line + {r * t.columns // 4 + t.across * h}] = c{number * rows + r}_{h};" for r, h in places]
            label = "default" if number == t.tall // rows - 1 else f"case {number}"
            cases.append(f"{label}: {{ {' '.join(puts)} }}")
        units = exchanged if self.right.apart else exchanged // 4
        each = [
            Block("switch turn", cases),
            "workgroupBarrier();",
            # one at a time, because drivers compile this faster
            Loop("o", units, results(self.exchanged(exchanged)), "lid", WORKGROUP),
            "workgroupBarrier();",
        ]
        line = f"let line = (slice * {t.down} + ty) * {rows * t.columns // 4} + tx;"
        return [line, Loop("turn", t.tall // rows, each)]

    def exchanged(self, exchanged: int) -> list[Result]:
        """Return result number `o` of those exchanged in one turn; or the four of vector `o`, if side by side."""
        t = self.shape
        vectors = t.columns // 4
        across = t.columns if self.right.apart else vectors
        line, column = f"(o / {across})", f"(o % {across})"
        row = f"(turn * {t.rows_exchanged} + {line} % {t.rows_exchanged})"
        at = f"{line} * {vectors} + {column} % {vectors}"
        parts = " + ".join(f"sv[{at} + {s * exchanged // 4}]" for s in range(t.slices))
        before = [f"let sum = {parts};"]
        place = self.row(f"({line} / {t.rows_exchanged} + {row} / 4 * {t.down})", f"{row} % 4")
        if self.right.apart:
            return [Result("_0", before, place, f"first_n + {column}", f"sum[{column} / {vectors}]", self.edge)]
        return [
            Result(f"_{j}", [] if j else before, place, self.column(column, j), f"sum.{XYZW[j]}", self.edge)
            for j in range(4)
        ]

    def accumulate(self) -> list[Statement]:
        """Return the sums over one part of k."""
        t = self.shape
        slice_left, slice_right = (
            f" + slice * {t.k_slice * line // 4}" if t.slices > 1 else "" for line in (t.left_line, t.right_line)
        )
        lines = [f"let left = ty{slice_left};", f"let right = tx + {t.second // 4}{slice_right};"]
        if t.k_slice <= WRITTEN_OUT:
            return [*lines, *(Block("", self.step(kk)) for kk in range(t.k_slice))]
        return [*lines, Loop("kk", t.k_slice, self.step("kk"))]

    def step(self, kk: int | str) -> list[str]:
        """Return lines that add the terms of one k to the thread's results."""
        t = self.shape
        vectors = range(t.wide // 4)

        def at(line: int, place: int) -> str:
            return str(kk * line // 4 + place) if isinstance(kk, int) else f"{kk} * {line // 4} + {place}"

        return [
            *(f"let x{g} = sv[left + {at(t.left_line, t.down * g)}];" for g in range(t.tall // 4)),
            *(f"let y{h} = sv[right + {at(t.right_line, t.across * h)}];" for h in vectors),
            *(f"c{i}_{h} += x{i // 4}.{XYZW[i % 4]} * y{h};" for i in range(t.tall) for h in vectors),
        ]


@dataclass(frozen=True, slots=True)
class Result:
    """One result of a product or scatter: the suffix of its names, the lines before it, its row and column, its value.

    edge: the result can be beyond the product's edge.
    """

    copy: str
    before: list[str]
    row: str
    column: str
    value: str
    edge: bool


class Square:
    """Writes one kernel in which each thread computes a square of results. `emit` writes the values."""

    def __init__(self, kernel: Kernel, tiling: Tiling, emit: Emitter):
        assert kernel.product is not None
        self.kernel, self.tiling, self.emit = kernel, tiling, emit
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
        """Return the sums over the slice's part of k, unrolled if it is short: leaving a loop costs four iterations."""
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
            emit = self.emit.beside([a.name for a in self.kernel.inner], [a.name for a in axes], copy)
            (value,) = emit.values([v], loop=True)
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
