"""Distribute the points of a kernel over threads. This depends on sizes only, so all devices sum in the same order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

from tracegrad import tuning
from tracegrad.kernels.expr import Var, indices_of, names_of, walk
from tracegrad.kernels.form import Axis, Extent, Kernel, Scatter, fold_batches, points
from tracegrad.kernels.tiles import IN_ORDER, SMALLEST, TileShape, fastest, searched, tiles_of

WORKGROUP_BYTES = 16384  # of workgroup memory that every WebGPU device has
GRID_X = 32768  # workgroups along x; 65 535 is the limit of a dimension
BITS = 32  # of a word
SAMPLED_FROM = 12  # a check on a software adapter runs only a part of a launch of this many workgroups or more
MOST_TURNS = 65535  # of all loops of a thread together: beyond, Mesa's llvmpipe leaves a loop early and reports nothing


class ScatterShape(NamedTuple):
    """A rectangle of a scatter's results that a workgroup computes; each thread has `deep` rows of one column.

    The threads of one row look through the same updates, those of all their rows.
    """

    rows: int
    columns: int
    deep: int
    together: int  # updates that the workgroup looks at together
    dtype: str  # of the results

    @property
    def sets(self) -> int:
        """Sets of threads that have the same rows. Rows that follow each other belong to different sets."""
        return self.rows // self.deep

    @property
    def line(self) -> int:
        """Words of workgroup memory for each set: a bit for each update that is looked at."""
        return self.together // BITS

    @property
    def bits(self) -> int:
        """Words of workgroup memory for all sets."""
        return self.sets * self.line

    @property
    def some(self) -> int:
        """Words for each set with one bit per word of bits: 1 if that word is not 0."""
        return -(-self.line // BITS)

    @property
    def words(self) -> int:
        """Words of workgroup memory in all, without the results."""
        return self.bits + self.sets * self.some


class BlockShape(NamedTuple):
    """The way a workgroup folds the rows of a loop's block: `lanes` threads a row, each `chunk` points at a time."""

    rows: int
    lanes: int
    chunk: int  # a multiple of four
    gathered: int  # values that are the same for all rows, which the workgroup reads into its memory

    @property
    def vectors(self) -> int:
        """How many vectors of each gathered value are in workgroup memory."""
        return self.lanes * self.chunk // 4


@dataclass(frozen=True, slots=True)
class Tiling:
    """The distribution of points over threads, by `kind`:

    points    one thread for each point
    rows      `lanes` threads for each row
    tile      a workgroup for each rectangle of results
    square    a thread for each small square of results
    scatter   a workgroup for some results of a scatter; its threads look for updates together
    block     a workgroup for all rows of a block, in every iteration of a loop

    In a kernel of points with uniform folds, all threads of a workgroup fold. Then each thread computes every
    `threads * workgroups`-th point.
    """

    kind: str
    workgroups: int
    lanes: int = 1
    rows_fastest: bool = False  # neighbouring threads compute neighbouring rows, not neighbouring elements of a row
    parts: int = 1  # partial results of a row, each a fold of every `parts`-th point, before they are combined
    threads: int = tuning.WORKGROUP  # of a workgroup
    tile: TileShape | None = None  # of "tile"; a "square" sums in the same order
    scatter: ScatterShape | None = None
    block: BlockShape | None = None
    each: int = 1  # points of "points", or neighbouring rows of "rows", that a thread computes side by side


def grid_of(workgroups: int) -> tuple[int, int]:
    """Return the workgroups in x and y."""
    return (workgroups, 1) if workgroups <= GRID_X else (GRID_X, -(-workgroups // GRID_X))


class Reach(NamedTuple):
    """A formula for the number of workgroups that compute the first rows of a kernel.

    A run of size n has `per * n + fixed` rows. `unit` rows make a line of `times` parts; `threads` parts make a
    workgroup.
    """

    per: int
    unit: int = 1
    times: int = 1
    threads: int = 1
    fixed: int = 0

    def at(self, size: int) -> int:
        """Return the workgroups of a run of this size."""
        return -(-(-(-(self.per * size + self.fixed) // self.unit) * self.times) // self.threads)

    def text(self, size: str) -> str:
        """Return the code of `at`."""
        rows = " + ".join([f"{self.per} * {size}"] * (self.per > 0) + [f"{self.fixed}"] * (self.fixed > 0))
        lines = f"({rows} + {self.unit - 1}) / {self.unit}" if self.unit > 1 else rows
        parts = f"{lines} * {self.times}" if self.times > 1 else lines
        return f"({parts} + {self.threads - 1}) / {self.threads}" if self.threads > 1 else parts


def reaches_of(kernels: Sequence[Kernel], tilings: Sequence[Tiling]) -> tuple[Reach, ...]:
    """Return the reaches of the kernels of a launch; () if each run needs all workgroups of each."""
    found = [reach_of(k, t) for k, t in zip(kernels, tilings)]
    return tuple([r or Reach(0, fixed=t.workgroups) for r, t in zip(found, tilings)]) if any(found) else ()


def reach_of(kernel: Kernel, tiling: Tiling) -> Reach | None:
    """Return the reach of a kernel.

    None if every run needs all workgroups: the outermost axis has a fixed size, or workgroups
    do not compute rows in order, as in a uniform kernel.
    """
    extent = next((a.size for a in kernel.outer if a.size > 1), None)
    if not isinstance(extent, Extent) or kernel.uniform:  # the threads of a uniform kernel share all points
        return None
    rows = extent.per * (int(kernel.rows) // int(extent))
    if tiling.kind == "points":
        return Reach(rows, tiling.threads * tiling.each)
    if tiling.kind == "rows":
        return Reach(rows, tiling.threads // tiling.lanes * tiling.each)
    return _reach_of_product(kernel, tiling, extent)


def _reach_of_product(kernel: Kernel, tiling: Tiling, extent: Extent) -> Reach | None:
    """Return the reach of rectangles of results, which are ordered by batch, then by row."""
    p = kernel.product or kernel.scatter
    assert p is not None
    if tiling.kind == "tile" and tiling.tile and any(not x.of_results for x in tiling.tile.limits(kernel)):
        return None  # tiles are sorted by the length of their sums
    tall, wide, threads = rectangle_of(kernel, tiling)
    varying = next((a for a in (*p.batch, *p.m, *p.n) if a.size > 1), None)
    if varying is None or not isinstance(varying.size, Extent):
        return None
    m, n = int(points(p.m)), int(points(p.n))
    high, across = -(-m // tall), -(-n // wide)
    axes, unit, times = (
        (p.batch, 1, high * across) if varying in p.batch else (p.m, tall, across) if varying in p.m else (p.n, wide, 1)
    )
    return Reach(int(points(axes)) // int(extent) * extent.per, unit, times, threads)


def rectangle_of(kernel: Kernel, tiling: Tiling) -> tuple[int, int, int]:
    """Return the rows and columns of a rectangle of results, and how many rectangles a workgroup computes."""
    if tiling.kind == "square" and tiling.tile is not None:
        side = tiling.tile.square(kernel)
        return side, side, tiling.threads
    shape = tiling.scatter or tiling.tile
    assert shape is not None
    return shape.rows, shape.columns, 1


def choose_tiling(kernel: Kernel, open_size: int = 0) -> Tiling:
    """Return the tiling of a kernel. open_size: the capacity of a batch, if calls choose its size."""
    if kernel.uniform:
        lanes = tuning.WORKGROUP if kernel.length >= tuning.COOPERATE_FROM else 1
        most = tuning.WORKGROUP * tuning.UNIFORM_GROUPS
        each = min(tuning.TURNS_TOGETHER, -(-kernel.rows // most))
        turns = -(-kernel.rows // (most * each))
        return Tiling("points", -(-kernel.rows // (tuning.WORKGROUP * each * turns)), lanes, parts=lanes, each=each)
    if not kernel.folds:
        each = _side_by_side(kernel)
        return Tiling("points", -(-kernel.rows // (tuning.WORKGROUP * each)), each=each)
    p, tiled = kernel.product, False
    m, n, batch = (points(axes) for axes in (p.m, p.n, p.batch)) if p else (0, 0, 0)
    if p is not None:
        shared = min(m, n) > 1 and kernel.length >= tuning.COOPERATE_FROM and kernel.scatter is None
        few = shared or min(m, n) >= tuning.HALF_TILE_FROM
        tiled = min(m, n) >= tuning.TILE_FROM or (few and tiles_of(SMALLEST, batch, m, n) >= tuning.PROCESSORS)
    if kernel.scatter is not None and searched(int(kernel.rows), int(kernel.length), tiled):
        return _scatter(kernel, kernel.scatter)
    return _tile(batch, m, n, kernel, open_size) if tiled else _by_rows(kernel)


def _scatter(kernel: Kernel, s: Scatter) -> Tiling:
    """Return the tiling of a scatter. With many results a thread has several, so fewer threads look for updates."""
    m, n = int(points(s.m)), int(points(s.n))
    # with fewer threads across, the bits would not fit into workgroup memory
    across, deep, together = 2, 1, tuning.SCATTER_TOGETHER
    while across < min(n, tuning.SCATTER_ACROSS):
        across *= 2
    sets, stacks = tuning.WORKGROUP // across, int(points(s.batch)) * -(-n // across)
    while deep < tuning.SCATTER_DEEP and stacks * -(-m // (2 * deep * sets)) >= tuning.SCATTER_GROUPS:
        deep *= 2
    while 2 * sets * together > 8 * WORKGROUP_BYTES or together >= 2 * max(int(points(kernel.inner)), tuning.WORKGROUP):
        together //= 2
    shape = ScatterShape(sets * deep, across, deep, together, kernel.folds[0].value.dtype.name)
    return Tiling("scatter", stacks * -(-m // shape.rows), scatter=shape)


def _by_rows(kernel: Kernel) -> Tiling:
    """Return the tiling of a kernel whose rows are folded by one thread each, or by several."""
    rows, length = kernel.rows, kernel.length
    short = length < tuning.COOPERATE_FROM
    if short and (length < tuning.SHORT_ROW or 32 * rows > tuning.MANY_THREADS or columns(kernel)):
        return Tiling("rows", -(-rows // tuning.WORKGROUP))
    if columns(kernel):
        lanes = 8 if length < tuning.LONG_COLUMN else 32
        while lanes > 1 and rows * lanes > tuning.MANY_THREADS:
            lanes //= 2
        return Tiling("rows", -(-rows * lanes // tuning.WORKGROUP), lanes, rows_fastest=lanes > 1, parts=lanes)
    lanes = 32 if length <= 128 else 64 if length <= 512 else tuning.WORKGROUP
    if length <= 32 * tuning.HELD and rows * lanes > tuning.MANY_THREADS:
        lanes = 32
    each = _neighbours(kernel) if lanes == tuning.WORKGROUP else 1
    return Tiling("rows", -(-rows * lanes // (tuning.WORKGROUP * each)), lanes, parts=lanes, each=each)


def _neighbours(kernel: Kernel) -> int:
    """Return how many rows a thread folds side by side: all along the last axis, if they are few and share a load."""
    axis = kernel.outer[-1] if kernel.outer else Axis("", 1)
    if isinstance(kernel.rows, Extent) or not 1 < axis.size <= tuning.NEIGHBOURS:
        return 1
    if kernel.length < tuning.LONG_COLUMN or kernel.rows * turns_of_neighbours(axis.size) < tuning.NEIGHBOURS_FROM:
        return 1
    if any(s.inner for s in kernel.stores) or len(fold_batches(kernel)) > 1:
        return 1
    loads = [v for v in walk([f.value for f in kernel.folds]) if v.op == "load"]
    return axis.size if any(axis.name not in names_of(a for a, _ in v.arg[1].terms) for v in loads) else 1


def turns_of_neighbours(rows: int) -> int:
    """Return how many points of each of some neighbouring rows a thread computes side by side."""
    return tuning.TURNS_TOGETHER if rows * tuning.TURNS_TOGETHER <= tuning.NEIGHBOURING_TERMS else 1


def without_barriers(kernels: Sequence[Kernel], tilings: Sequence[Tiling]) -> list[Tiling]:
    """Return tilings that sum in the same order without barriers; [] if a thread's loops would take too many turns.

    For adapters that run on a CPU, where a barrier costs more than the work between two barriers. SwiftShader folds
    8192 rows of 64 in 108 ms with barriers and in 3 ms without (bench/software.py).
    """
    serial = [_serial(k, t) for k, t in zip(kernels, tilings)]
    return serial if all(_turns(k, t) <= MOST_TURNS for k, t in zip(kernels, serial)) else []


def _turns(kernel: Kernel, tiling: Tiling) -> int:
    """Return an upper bound of the turns that the loops of one thread take without barriers."""
    # a row's points, and its parts or a product's slices
    folding = len(kernel.body) * (int(kernel.length) + tuning.WORKGROUP)
    storing = tuning.SQUARE * (tuning.SQUARE + 1) + int(kernel.rows) // (tiling.threads * tiling.workgroups)
    return folding + storing


def _serial(kernel: Kernel, tiling: Tiling) -> Tiling:
    work = min(int(kernel.rows), tuning.SERIAL_UNIFORM) if kernel.uniform else kernel.rows
    if tiling.kind == "scatter":
        p = kernel.product
        wide = p is not None and points(p.n) >= tuning.HALF_TILE_FROM
        tiling = replace(tiling, kind="tile" if wide else "rows", tile=IN_ORDER)
    if tiling.kind == "tile":
        assert kernel.product is not None
        m, n, batch = (points(axes) for axes in (kernel.product.m, kernel.product.n, kernel.product.batch))
        assert tiling.tile is not None
        side = tiling.tile.square(kernel)
        work = batch * -(-m // side) * -(-n // side)
        tiling = replace(tiling, kind="square")
    workgroups = -(-work // tuning.SERIAL_WORKGROUP)
    return replace(tiling, workgroups=workgroups, lanes=1, rows_fastest=False, threads=tuning.SERIAL_WORKGROUP, each=1)


def _side_by_side(kernel: Kernel) -> int:
    """Return how many points a thread computes: several if a point has few bytes, to start fewer workgroups."""
    if kernel.rows < tuning.MANY_POINTS:
        return 1
    stores = kernel.stores
    accesses = len(stores) + sum(v.op == "load" for v in walk([s.value for s in stores]))
    return 4 if accesses <= 4 else 2 if accesses <= 8 else 1


def _tile(batch: int, m: int, n: int, kernel: Kernel, open_size: int) -> Tiling:
    """Return the fastest tile, with shorter steps if k is short or if only shorter steps cover one of several axes."""
    assert kernel.product is not None
    tile = fastest(batch, m, n, kernel, open_size)
    steps = [tile.k_step >> halved for halved in range(3) if tile.k_step >> halved >= tuning.LEAST_STEP]
    if len(kernel.inner) == 1:
        short = (step for step in steps if 2 * kernel.length > step)
    else:
        steps = [step for step in steps if step >= tuning.LEAST_SLICE * tile.slices]
        short = (step for step in steps if any(a.size % step == 0 for a in kernel.inner))
    tile = replace(tile, k_step=next(short, tile.k_step))
    if tile.slices == 1 and kernel.length <= tuning.FEW_STEPS * tile.k_step:
        tile = replace(tile, k_step=tile.k_step // 2)
    return Tiling("tile", tiles_of(tile, batch, m, n), tile=tile)


def workgroup_arrays(tilings: Sequence[Tiling]) -> dict[str, int]:
    """Return the elements of each workgroup array that kernels of a launch share: vec4 in sv, else words."""
    out: dict[str, int] = {}
    for t in tilings:
        if t.kind == "tile" and t.tile:
            out["sv"] = max(out.get("sv", 0), t.tile.shared // 4)
        elif t.kind == "block" and t.block:
            out["sv"] = max(out.get("sv", 0), t.block.vectors * t.block.gathered)
            for name in ("sf", "si", "su"):
                out[name] = max(out.get(name, 0), t.block.rows * t.block.lanes)
        elif t.kind == "scatter" and t.scatter:
            out["sa"] = max(out.get("sa", 0), t.scatter.words)
            name = "s" + t.scatter.dtype[0]
            out[name] = max(out.get(name, 0), t.scatter.deep * t.threads)
        elif t.lanes > 1:
            last = tuning.LAST_LANES * (t.threads // t.lanes) if t.lanes > tuning.LAST_LANES else 0
            for name in ("sf", "si", "su"):
                out[name] = max(out.get(name, 0), t.threads + last)
    return out


def workgroup_bytes(tilings: Sequence[Tiling]) -> int:
    """Return an upper bound of the workgroup memory of one launch."""
    return sum(size * (16 if name == "sv" else 4) for name, size in workgroup_arrays(tilings).items())


def columns(kernel: Kernel) -> bool:
    """Return whether threads that run next to each other should fold neighbouring rows, not neighbouring points.

    Loads vote by where they step by 1. Overlapping windows step by 1 along both. In a large kernel, loads that are the
    same for all rows do not vote. If no side wins there, threads fold rows.
    """
    last_outer = kernel.outer[-1].name if kernel.outer else ""
    last_inner = kernel.inner[-1].name if kernel.inner else ""
    many, long = 32 * kernel.rows > tuning.MANY_THREADS, kernel.length >= tuning.LONG_COLUMN
    balance = 0
    for v in walk([s.value for s in kernel.folds]):
        for index in indices_of(v) if v.op == "load" else ():
            if not (many or long) or last_outer in names_of(a for a, _ in index.terms):
                near = {a.name for a, c in index.terms if c == 1 and isinstance(a, Var)}
                balance += (last_outer in near) - (last_inner in near)
    return balance > 0 or (balance == 0 and many and not long)


def takes_first(tilings: Sequence[Tiling]) -> bool:
    """Return whether a software adapter can run parts of a launch: it is large, and its threads share no memory."""
    return sum(t.workgroups for t in tilings) >= SAMPLED_FROM and not workgroup_arrays(tilings)


def group_of(kernel: Kernel, tiling: Tiling, point: Any) -> Any:
    """Return the number of the workgroup that computes an outer point; for an array of points, an array of numbers.

    None for a uniform kernel, whose points are spread over all workgroups.
    """
    if kernel.uniform:
        return None
    if tiling.kind == "points":
        return point // (tiling.threads * tiling.each)
    if tiling.kind == "rows":
        return point // tiling.threads
    p = kernel.product or kernel.scatter
    assert p is not None
    (tall, wide, rectangles), at = rectangle_of(kernel, tiling), dict[str, Any]()
    for axis in reversed(kernel.outer):
        point, at[axis.name] = point // int(axis.size), point % int(axis.size)
    batch, m, n = (reduce(lambda k, axis: k * int(axis.size) + at[axis.name], axes, 0) for axes in (p.batch, p.m, p.n))
    down, across = -(-int(points(p.m)) // tall), -(-int(points(p.n)) // wide)
    return ((batch * down + m // tall) * across + n // wide) // rectangles
