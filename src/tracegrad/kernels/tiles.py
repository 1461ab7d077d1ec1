"""Shapes of the tiles of matrix products, and estimates of a product's time with each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracegrad import tuning
from tracegrad.kernels.form import Axis, Extent, Kernel, Limit


@dataclass(frozen=True, slots=True)
class TileShape:
    """A rectangle of results that a workgroup computes; each thread computes a smaller rectangle in registers.

    If there are more threads than small rectangles, the threads form `slices`: groups that compute the same results,
    each over its own part of k. The parts are added up at the end.

    rows, columns: of the workgroup's rectangle.
    tall, wide:    rows and columns of the thread's rectangle, multiples of 4. Its rows come in fours, `4 * down` rows
                   apart, its columns likewise, so that neighbouring threads read neighbouring vectors.
    k_step:        how much of k is in workgroup memory at a time.
    """

    rows: int
    columns: int
    tall: int
    wide: int
    k_step: int

    @property
    def down(self) -> int:
        """The number of threads along the rows."""
        return self.rows // self.tall

    @property
    def across(self) -> int:
        """The number of threads along the columns."""
        return self.columns // self.wide

    @property
    def slices(self) -> int:
        """The number of slices, the groups of threads that divide k among them."""
        return tuning.WORKGROUP // (self.down * self.across)

    @property
    def k_slice(self) -> int:
        """The part of a step of k that each slice sums."""
        return self.k_step // self.slices

    def turns(self, k: int) -> int:
        """Return how many values of k each slice sums, if all slices sum equally few in one step; else 0."""
        if isinstance(k, Extent):
            return 0
        each = min(k, self.k_slice)
        return each if k <= self.k_step and k % each == 0 and each <= tuning.SHORT_TURNS else 0

    def square(self, kernel: Kernel) -> int:
        """Return the side of the square of results that a thread computes without barriers."""
        rows, length = int(kernel.rows), int(kernel.length)  # at the capacity, if they depend on the size of a run
        return tuning.SMALL_SQUARE if rows * length <= tuning.SMALL_PRODUCT or self.turns(length) else tuning.SQUARE

    def summed(self, kernel: Kernel) -> tuple[Axis, ...]:
        """Return the axes of k in the order in which their points are summed.

        The last axis is one that whole steps cover, if there is one: during a step no other axis changes.
        """
        # an axis that grows with a batch stays first
        covered = [a for a in kernel.inner if a.fixed and a.size % self.k_step == 0]
        if not covered or kernel.inner[-1] in covered:
            return kernel.inner
        last = max(covered, key=lambda a: a.size)
        return (*(a for a in kernel.inner if a is not last), last)

    def limits(self, kernel: Kernel) -> tuple[Limit, ...]:
        """Return the product's limits, without those of k if k is not summed in the order of its coordinate."""
        assert kernel.product is not None
        straight = self.summed(kernel) == kernel.inner
        return tuple([x for x in kernel.product.limits if straight or x.of_results])

    @property
    def left_line(self) -> int:
        """Elements of the left operand from one k to the next in workgroup memory."""
        return self.rows + tuning.LINE_PADDING

    @property
    def right_line(self) -> int:
        """Elements of the right operand from one k to the next in workgroup memory."""
        return self.columns + tuning.LINE_PADDING

    @property
    def second(self) -> int:
        """The offset of the right operand, after the left."""
        return self.k_step * self.left_line

    @property
    def part(self) -> int:
        """Elements of both operands that are in workgroup memory during one step of k."""
        return self.k_step * (self.left_line + self.right_line)

    @property
    def rows_exchanged(self) -> int:
        """Rows of each thread's rectangle that are exchanged at a time."""
        return min(self.tall, tuning.EXCHANGED // (tuning.WORKGROUP * self.wide))

    @property
    def shared(self) -> int:
        """Elements that a workgroup has in its memory at a time, at most."""
        return max(self.part, self.rows_exchanged * tuning.WORKGROUP * self.wide)


# Shape -> how busy a processor is with sums when it runs 1, 2, ... tiles at a time. The last is as many as its
# registers hold. A tile has (k + TILE_FILL) * rows * columns sums. Each takes 6 ps, divided by the number here. One
# large tile alone is a fifth faster, but then nothing hides the time to store its results.
TILES = {
    TileShape(64, 128, 8, 8, 16): (0.70, 0.98, 1.05),
    TileShape(128, 64, 8, 8, 16): (0.68, 0.97, 1.04),
    TileShape(64, 64, 8, 4, 16): (0.62, 0.80, 0.87, 0.92),
    TileShape(32, 64, 8, 4, 32): (0.52, 0.74, 0.81),
    TileShape(32, 32, 4, 4, 32): (0.37, 0.49, 0.54, 0.56),
    TileShape(16, 64, 4, 4, 32): (0.38, 0.51, 0.55),
    TileShape(16, 16, 4, 4, 64): (0.17, 0.21, 0.26, 0.27),
}
IN_ORDER = next(tile for tile in TILES if tile.slices == 1)  # a tile that sums over k from the first to the last
SMALLEST = min(TILES, key=lambda tile: tile.rows * tile.columns)


def product_time(batch: int, m: int, n: int, k: int) -> float:
    """Return the time of a product in sums of one processor: about 6 ps each on an NVIDIA H200."""
    return min(tile_time(tile, batch, m, n, k) for tile in TILES)


def tile_time(tile: TileShape, batch: int, m: int, n: int, k: int, limits: Sequence[Limit] = ()) -> float:
    """Return the time of a product: a processor runs as many tiles at a time as it holds, then the rest."""
    busy = TILES[tile]
    tiles = tiles_of(tile, 1, m, n)
    if limits:
        tiles, k = _left(tile, m, n, k, limits)
    rounds, rest = divmod(-(-batch * tiles // tuning.PROCESSORS), len(busy))
    held = rounds * len(busy) / busy[-1] + (rest / busy[rest - 1] if rest else 0)
    return held * (k + tuning.TILE_FILL) * tile.rows * tile.columns


def _left(tile: TileShape, m: int, n: int, k: int, limits: Sequence[Limit]) -> tuple[int, int]:
    """Return how many tiles of one product the limits leave, and the average number of k that they sum."""
    alike = not {Limit("k", "n"), Limit("n", "k")} & set(limits)  # do neighbouring tiles sum over the same k?
    tiles = total = 0
    for i in range(0, m, tile.rows):
        begin = i // tile.columns if Limit("m", "n") in limits else 0
        end = min(n, i + tile.rows) if Limit("n", "m") in limits else n
        beside = range(begin * tile.columns, end, tile.columns)
        for j in beside[:1] if alike else beside:
            first, last = {"m": i, "n": j}, {"m": i + tile.rows, "n": j + tile.columns}
            begins = [first[x.low] for x in limits if x.high == "k"]
            if all(at < k for at in begins):
                k_end = min([k, *(last[x.high] for x in limits if x.low == "k")])
                count = len(beside) if alike else 1
                tiles += count
                total += count * max(0, k_end - max(begins, default=0) // tile.k_step * tile.k_step)
    return tiles, total // max(tiles, 1)


def fastest(batch: int, m: int, n: int, kernel: Kernel, open_size: int = 0) -> TileShape:
    """Return the tile that takes the least time for a kernel's product.

    open_size: the most rows of a batch, if calls choose how many there are. Then a small batch counts as much: the
               tile of a large product leaves most processors idle in a small one.
    """
    runs = [(batch, m, n, kernel.length)]
    if open_size:
        few = -(-open_size // tuning.SMALL_BATCH)
        b, i, j, k = (x if x % open_size else x // open_size * few for x in runs[0])
        runs.append((b, i, j, k))
    times = [{tile: tile_time(tile, *run, tile.limits(kernel)) for tile in TILES} for run in runs]
    return min(TILES, key=lambda tile: sum([t[tile] / min(t.values()) for t in times]))


def searched(results: int, updates: int, tiled: bool) -> bool:
    """Return whether the workgroups of a scatter look for the updates of their rows.

    Otherwise it is a product with a one-hot matrix if `tiled`, else each result folds over all updates.
    """
    narrow = not tiled and results >= tuning.NARROW_SCATTER_RESULTS
    return results * updates >= (tuning.NARROW_SCATTER_FROM if narrow else tuning.SCATTER_FROM)


def tiles_of(tile: TileShape, batch: int, m: int, n: int) -> int:
    return batch * -(-m // tile.rows) * -(-n // tile.columns)
