"""How the points of a kernel are spread over threads: decided by sizes alone, so every device sums in one order."""

from __future__ import annotations

from dataclasses import dataclass

from tracegrad.kernels.expr import Var, indices_of, walk
from tracegrad.kernels.form import Fold, Kernel

WORKGROUP = 256  # threads; the most that every WebGPU device allows
COOPERATE_FROM = 32  # shorter rows are folded by one thread
TILE_FROM = 16  # products with fewer rows or columns of results are folded point by point
K_STEP = 16  # how much of K one tile holds in workgroup memory
BUSY = 96  # workgroups that keep a device busy: tiles shrink until there are as many


@dataclass(frozen=True, slots=True)
class Tiling:
    """kind: "points", one thread a point; "rows", `lanes` threads a row; "tile", a square of results a workgroup."""

    kind: str
    workgroups: int
    lanes: int = 1
    rows_fastest: bool = False  # neighbouring threads take neighbouring rows, not neighbouring elements of a row
    outputs: int = 1  # results a thread computes along each side of a tile

    @property
    def tile(self) -> int:
        """Results along each side of a tile."""
        return 16 * self.outputs

    @property
    def shared(self) -> int:
        """Elements of workgroup memory."""
        if self.kind == "tile":
            return 2 * K_STEP * self.tile
        return WORKGROUP if self.lanes > 1 else 0


def _size(kernel: Kernel, group: str) -> int:
    size = 1
    for a in kernel.outer:
        if a.name.startswith(group):
            size *= a.size
    return size


def choose_tiling(kernel: Kernel) -> Tiling:
    """The schedule of a kernel."""
    rows, length = kernel.rows, kernel.length
    if not any(isinstance(s, Fold) for s in kernel.body):
        return Tiling("points", -(-rows // WORKGROUP))
    if kernel.product is not None:
        m, n, batch = _size(kernel, "m"), _size(kernel, "n"), _size(kernel, "b")
        if m >= TILE_FROM and n >= TILE_FROM:
            for outputs in (4, 2, 1):
                side = 16 * outputs
                tiles = batch * -(-m // side) * -(-n // side)
                if tiles >= BUSY or outputs == 1:
                    return Tiling("tile", tiles, outputs=outputs)
    if length < COOPERATE_FROM:
        return Tiling("rows", -(-rows // WORKGROUP))
    if _columns(kernel):
        lanes = 8 if length < 1024 else 32
        return Tiling("rows", -(-rows * lanes // WORKGROUP), lanes, rows_fastest=True)
    lanes = 32 if length <= 128 else 64 if length <= 512 else WORKGROUP
    return Tiling("rows", -(-rows * lanes // WORKGROUP), lanes)


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
