"""How the points of a kernel are spread over threads: decided by sizes alone, so every device sums in one order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tracegrad.kernels.expr import Var, indices_of, walk
from tracegrad.kernels.form import Fold, Kernel, points

WORKGROUP = 256  # threads; the most that every WebGPU device allows
COOPERATE_FROM = 32  # shorter rows are folded by one thread
TILE_FROM = 16  # products with fewer rows or columns of results are folded point by point
HALF = 8  # but not if there are tiles enough anyway: half of each is wasted then, of threads that waited
PROCESSORS = 132  # of a large GPU; small ones are busy sooner
# Side of a tile -> how busy its loads let a processor be with sums, where it has 1, 2, ... or more of them at a time.
SIDES = {
    128: (1.0,),
    64: (0.8, 0.9),
    32: (0.5, 0.55, 0.62, 0.7),
    16: (0.25, 0.3),
}
FILL = 48  # steps of k that beginning and ending a tile take
OPERAND = 1024  # elements of one operand in workgroup memory at a time: four loads a thread
PADDING = 4  # elements behind each line in workgroup memory: writes along k then meet no bank twice
EXCHANGED = 2048  # partial results that slices pass to each other at a time
WORKGROUP_BYTES = 16384  # of workgroup memory that every WebGPU device has
UNIFORM = 1024  # workgroups that fold for themselves what all of them need
SERIAL_UNIFORM = 512  # threads that do, without barriers
MOST_TURNS = 65535  # of all loops of a thread together: Mesa's llvmpipe leaves them then, without a word
SERIAL_WORKGROUP = 32  # threads of a workgroup without barriers: small ones, so that few threads still occupy all cores
SQUARE = 8  # results along each side of a square: 2, 4, 8, 12 give 1.4, 2.9, 5.2, 5.3 GFLOP/s on two cores
SMALL_SQUARE = 4  # where k is written out: as fast then, and a driver compiles it in half the time
SHORT = 4  # turns of a loop over k that are written out


@dataclass(frozen=True, slots=True)
class TileShape:
    """A square of results that a workgroup computes, each thread a smaller square in registers.

    Where the threads are more than the small squares, they form `slices`: groups that compute the same results, each
    over its own part of k, which are added up in the end.
    """

    side: int

    @property
    def outputs(self) -> int:
        """Results along each side of a thread's square."""
        return 8 if self.side >= 64 else 4

    @property
    def across(self) -> int:
        """Threads along each side of the tile."""
        return self.side // self.outputs

    @property
    def slices(self) -> int:
        """Groups of threads."""
        return WORKGROUP // self.across**2

    @property
    def k_step(self) -> int:
        """How much of k lies in workgroup memory at a time."""
        return OPERAND // self.side

    @property
    def k_slice(self) -> int:
        """The part of it that each slice takes."""
        return self.k_step // self.slices

    def turns(self, k: int) -> int:
        """Over how many k each slice sums, if that is the same number for all and few; else 0."""
        each = min(k, self.k_slice)
        return each if k <= self.k_step and k % each == 0 and each <= SHORT else 0

    def square(self, k: int) -> int:
        """Results along each side of the square that a thread computes without barriers."""
        return SMALL_SQUARE if self.turns(k) else SQUARE

    @property
    def line(self) -> int:
        """Elements from one k to the next in workgroup memory."""
        return self.side + PADDING

    @property
    def rows_exchanged(self) -> int:
        """Rows of each thread's square that slices exchange at a time."""
        return EXCHANGED // (WORKGROUP * self.outputs)

    @property
    def shared(self) -> int:
        """Elements of workgroup memory."""
        return max(2 * self.k_step * self.line, EXCHANGED)


@dataclass(frozen=True, slots=True)
class Tiling:
    """kind: "points", one thread a point; "rows", `lanes` threads a row; "tile", a square of results a workgroup;
    "square", a small one a thread. A kernel of points whose folds are uniform folds with all threads of a workgroup,
    and each thread then computes every `threads * workgroups`-th point.
    """

    kind: str
    workgroups: int
    lanes: int = 1
    rows_fastest: bool = False  # neighbouring threads take neighbouring rows, not neighbouring elements of a row
    parts: int = 1  # partial results a row is folded into, each of every `parts`-th point, before they are combined
    threads: int = WORKGROUP  # of a workgroup
    tile: TileShape | None = None  # of "tile"; a "square" sums in its order


def choose_tiling(kernel: Kernel) -> Tiling:
    """The schedule of a kernel."""
    rows, length = kernel.rows, kernel.length
    if kernel.uniform or not any(isinstance(s, Fold) for s in kernel.body):
        workgroups, lanes = -(-rows // WORKGROUP), 1
        if kernel.uniform:
            workgroups, lanes = min(workgroups, UNIFORM), WORKGROUP if length >= COOPERATE_FROM else 1
        return Tiling("points", workgroups, lanes, parts=lanes)
    if kernel.product is not None:
        m, n, batch = (points(axes) for axes in (kernel.product.m, kernel.product.n, kernel.product.batch))
        if min(m, n) >= TILE_FROM or (min(m, n) >= HALF and _tiles(min(SIDES), batch, m, n) >= PROCESSORS):
            return _tile(batch, m, n, length)
    if length < COOPERATE_FROM:
        return Tiling("rows", -(-rows // WORKGROUP))
    if _columns(kernel):
        lanes = 8 if length < 1024 else 32
        return Tiling("rows", -(-rows * lanes // WORKGROUP), lanes, rows_fastest=True, parts=lanes)
    lanes = 32 if length <= 128 else 64 if length <= 512 else WORKGROUP
    return Tiling("rows", -(-rows * lanes // WORKGROUP), lanes, parts=lanes)


def without_barriers(kernels: Sequence[Kernel], tilings: Sequence[Tiling]) -> list[Tiling]:
    """The same sums in the same order by threads that share nothing; [] if that takes a thread too many turns.

    For adapters that run on a CPU, where a barrier costs more than the work between two: SwiftShader folds 8 192 rows
    of 64 in 108 ms with barriers and in 3 without, and multiplies 14 times faster than with textbook tiles.
    """
    serial = [_serial(k, t) for k, t in zip(kernels, tilings)]
    return serial if all(_turns(k, t) <= MOST_TURNS for k, t in zip(kernels, serial)) else []


def _turns(kernel: Kernel, tiling: Tiling) -> int:
    """No more than so many turns do the loops of one thread take without barriers."""
    folding = len(kernel.body) * (kernel.length + WORKGROUP)  # a row's points, and its parts or a product's slices
    storing = SQUARE * (SQUARE + 1) + kernel.rows // (tiling.threads * tiling.workgroups)
    return folding + storing


def _serial(kernel: Kernel, tiling: Tiling) -> Tiling:
    work = min(kernel.rows, SERIAL_UNIFORM) if kernel.uniform else kernel.rows
    if tiling.kind == "tile":
        assert kernel.product is not None
        m, n, batch = (points(axes) for axes in (kernel.product.m, kernel.product.n, kernel.product.batch))
        assert tiling.tile is not None
        side = tiling.tile.square(kernel.length)
        work = batch * -(-m // side) * -(-n // side)
        tiling = replace(tiling, kind="square")
    workgroups = -(-work // SERIAL_WORKGROUP)
    return replace(tiling, workgroups=workgroups, lanes=1, rows_fastest=False, threads=SERIAL_WORKGROUP)


def _tile(batch: int, m: int, n: int, k: int) -> Tiling:
    """The tile that is done first."""
    side = min(SIDES, key=lambda side: product_time(side, batch, m, n, k))
    return Tiling("tile", _tiles(side, batch, m, n), tile=TileShape(side))


def product_time(side: int, batch: int, m: int, n: int, k: int) -> float:
    """How long tiles of one size take, in sums of one processor: about 10 ps on an NVIDIA H200."""
    each = -(-_tiles(side, batch, m, n) // PROCESSORS)
    busy = SIDES[side][min(each, len(SIDES[side])) - 1]
    return each * (k + FILL) * side * side / busy


def _tiles(side: int, batch: int, m: int, n: int) -> int:
    return batch * -(-m // side) * -(-n // side)


def workgroup_arrays(tilings: Sequence[Tiling]) -> dict[str, int]:
    """Elements of each array in workgroup memory that kernels of one launch share: sv holds vec4, the others words."""
    out: dict[str, int] = {}
    for t in tilings:
        if t.kind == "tile" and t.tile:
            out["sv"] = max(out.get("sv", 0), t.tile.shared // 4)
        elif t.lanes > 1:
            for name in ("sf", "si", "su"):
                out[name] = max(out.get(name, 0), WORKGROUP)
    return out


def workgroup_bytes(tilings: Sequence[Tiling]) -> int:
    """An upper bound of the workgroup memory of one launch."""
    return sum(size * (16 if name == "sv" else 4) for name, size in workgroup_arrays(tilings).items())


def _columns(kernel: Kernel) -> bool:
    """Do more loads step by 1 along the rows than along what is folded?"""
    last_outer = kernel.outer[-1].name if kernel.outer else ""
    last_inner = kernel.inner[-1].name if kernel.inner else ""
    balance = 0
    for v in walk([s.value for s in kernel.body if isinstance(s, Fold)]):
        if v.op == "load":
            for index in indices_of(v):
                for atom, c in index.terms:
                    if c == 1 and isinstance(atom, Var):
                        balance += (atom.name == last_outer) - (atom.name == last_inner)
    return balance > 0
