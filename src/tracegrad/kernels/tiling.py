"""How the points of a kernel are spread over threads: decided by sizes alone, so every device sums in one order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from tracegrad.kernels.expr import Var, indices_of, walk
from tracegrad.kernels.form import Fold, Kernel, points

WORKGROUP = 256  # threads; the most that every WebGPU device allows
COOPERATE_FROM = 32  # shorter rows are folded by one thread
TILE_FROM = 16  # products with fewer rows or columns of results are folded point by point
SIDE = 16  # threads along each side of a tile
OUTPUTS = (8, 4, 2, 1)  # results a thread computes along each side, the best first where the device stays busy
SMALL = 2  # the size for products that are too small for the others: one result a thread loads as much as it computes
BUSY = 128  # workgroups that keep a device busy
WORKGROUP_BYTES = 16384  # of workgroup memory that every WebGPU device has
UNIFORM = 1024  # workgroups that fold for themselves what all of them need
SERIAL_UNIFORM = 512  # threads that do
SERIAL_WORKGROUP = 32  # threads of a workgroup without barriers: small ones, so that few threads still occupy all cores
SQUARE = (
    8  # results along each side of a square: 2, 4, 8, 12 give 1.4, 2.9, 5.2, 5.3 GFLOP/s on SwiftShader's two cores
)


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
    outputs: int = 1  # results a thread computes along each side of a tile
    parts: int = 1  # partial results a row is folded into, each of every `parts`-th point, before they are combined
    threads: int = WORKGROUP  # of a workgroup

    @property
    def tile(self) -> int:
        """Results along each side of a tile."""
        return SIDE * self.outputs

    @property
    def k_step(self) -> int:
        """How much of k a tile holds in workgroup memory at a time."""
        return 8 if self.outputs == 8 else 16


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
        if m >= TILE_FROM and n >= TILE_FROM:
            return _tile(batch, m, n)
    if length < COOPERATE_FROM:
        return Tiling("rows", -(-rows // WORKGROUP))
    if _columns(kernel):
        lanes = 8 if length < 1024 else 32
        return Tiling("rows", -(-rows * lanes // WORKGROUP), lanes, rows_fastest=True, parts=lanes)
    lanes = 32 if length <= 128 else 64 if length <= 512 else WORKGROUP
    return Tiling("rows", -(-rows * lanes // WORKGROUP), lanes, parts=lanes)


def without_barriers(kernel: Kernel, tiling: Tiling) -> Tiling:
    """The same sums in the same order by threads that share nothing.

    For adapters that run on a CPU, where a barrier costs more than the work between two: SwiftShader folds 8 192 rows
    of 64 in 108 ms with barriers and in 3 without, and multiplies 14 times faster than with textbook tiles.
    """
    work = min(kernel.rows, SERIAL_UNIFORM) if kernel.uniform else kernel.rows
    if tiling.kind == "tile":
        assert kernel.product is not None
        m, n, batch = (points(axes) for axes in (kernel.product.m, kernel.product.n, kernel.product.batch))
        work = batch * -(-m // SQUARE) * -(-n // SQUARE)
        tiling = Tiling("square", 0, outputs=SQUARE)
    workgroups = -(-work // SERIAL_WORKGROUP)
    return replace(tiling, workgroups=workgroups, lanes=1, rows_fastest=False, threads=SERIAL_WORKGROUP)


def _tile(batch: int, m: int, n: int) -> Tiling:
    """The largest tile that leaves enough workgroups and wastes no more than half of its results."""
    for outputs in OUTPUTS:
        side = SIDE * outputs
        tiles = batch * -(-m // side) * -(-n // side)
        enough = tiles >= BUSY or outputs <= SMALL
        if enough and 2 * batch * m * n >= tiles * side * side:
            return Tiling("tile", tiles, outputs=outputs)
    return Tiling("tile", batch * -(-m // SIDE) * -(-n // SIDE))


def workgroup_arrays(tilings: Sequence[Tiling]) -> dict[str, int]:
    """Elements of each array in workgroup memory that kernels of one launch share: sv holds vec4, the others words."""
    out: dict[str, int] = {}
    for t in tilings:
        if t.kind == "tile":
            words = 2 * t.k_step * t.tile
            name, size = ("sv", words // 4) if t.outputs % 4 == 0 else ("sf", words)
            out[name] = max(out.get(name, 0), size)
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
