"""Split long, narrow folds and products in two, so that more than a few workgroups have work.

Occupancy decides the speed of small reductions: without this pass the CNN of bench/steps.py was three times slower. If
the length of a fold has no divisor of a fitting size, the remainder is folded separately; likewise that of a product.
Unsplit, the norm of 1860847 gradients, a prime number, took an H200 3.7 ms.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from typing import NamedTuple

from tracegrad import tuning
from tracegrad.ir.nodes import PRIMITIVES, Tensor, bind, rewrite
from tracegrad.kernels.tiles import product_time, searched
from tracegrad.prims.folds import MATMUL, SCATTER_ADD, SCATTERED_BY, SUM
from tracegrad.prims.views import PERMUTE, RESHAPE, permute, reshape, slice_

MOST = 2**40  # a longer fold is too long for a kernel in halves too, and finding its divisors takes seconds


def split_long(roots: Sequence[Tensor]) -> list[Tensor]:
    """sum over K of x[..., K]  ->  sum over S of (sum over K/S of x[..., S, K/S]); likewise products and scatters."""
    return rewrite(roots, _split)


def split_fixed(open_size: int, most: int) -> Callable[[Sequence[Tensor]], list[Tensor]]:
    """Return `split_long` for a batch of `open_size` that calls choose. Values that do not grow are split as usual.

    A sum over the batch and other axes becomes two: over the other axes for each example, then over the batch. A
    product is split like this only if its results are few, because they are written and read once for each example.
    Else, like a scatter, it is split by the other axes: each part is a sum over the batch. A product has at most
    `most` of these parts.
    """

    def grows(*shapes: Sequence[int]) -> bool:
        return any(n % open_size == 0 for shape in shapes for n in shape)

    def rule(t: Tensor, inputs: tuple[Tensor, ...]) -> Tensor | None:
        if not grows(t.shape, *(x.shape for x in inputs)):
            return _split(t, inputs)
        if grows(t.shape):
            return None
        if t.prim.family == "fold":
            return _each_first(t, inputs[0], open_size)
        if t.prim is MATMUL:
            a, b = inputs
            each = _product_of_each(t, a, b, open_size)
            return _product_by_others(t, a, b, open_size, most) if each is None else each
        return _scatter_by_others(t, *inputs, n=open_size) if _splits(t) else None

    def split_long(roots: Sequence[Tensor]) -> list[Tensor]:
        return rewrite(roots, rule)

    return split_long


def _split(t: Tensor, inputs: tuple[Tensor, ...]) -> Tensor | None:
    if t.prim.family == "fold":
        return _split_fold(t, inputs[0])
    if t.prim is MATMUL:
        return _split_product(t, *inputs)
    return _split_scatter(t, *inputs) if _splits(t) else None


def _splits(t: Tensor) -> bool:
    """Return whether `t` is a scatter that may be split."""
    return t.prim in SCATTERED_BY and t.dtype.is_float


def _each_first(t: Tensor, x: Tensor, n: int) -> Tensor | None:
    """Return a fold over a batch of `n` and other axes as two: the other axes for each example, then the batch.

    None if the other axes are short together, or if one of them comes before the batch.
    """
    axes = [d for d in t.axes if x.shape[d] > 1]
    first = next(d for d in axes if x.shape[d] % n == 0)
    if math.prod(x.shape[d] for d in axes) < tuning.EACH_FROM * n or first != axes[0]:
        return None
    x = reshape(x, (*x.shape[:first], n, x.shape[first] // n, *x.shape[first + 1 :]))
    each = bind(t.prim, x, axes=tuple([d + 1 for d in axes]))
    return reshape(bind(t.prim, each, axes=(first,)), t.shape)


def _product_of_each(t: Tensor, a: Tensor, b: Tensor, n: int) -> Tensor | None:
    (m, k), columns = a.shape[-2:], b.shape[-1]
    part = k // n
    if t.size != m * columns or k % n or part * (m + columns) < tuning.EACH_READS * m * columns:
        return None
    left, right = reshape(a, (m, n, part)), reshape(b, (n, part, columns))
    return reshape(bind(SUM, bind(MATMUL, permute(left, (1, 0, 2)), right), axes=(0,)), t.shape)


def _product_by_others(t: Tensor, a: Tensor, b: Tensor, n: int, most: int) -> Tensor | None:
    """Return a product over a batch of `n` and other axes as a sum of products over the batch. None if it is short."""
    batch, d = math.prod(t.shape[:-2]), a.ndim - 1
    m, k, columns = a.shape[d - 1], a.shape[d], b.shape[d]
    parts = _Parts.of(a, d, n, lambda others: _parts_of_others(batch, m, columns, others, most))
    if parts is None:
        return None
    left = permute(parts.split(reshape(a, (batch, m, k)), 2), (0, 2, 1, 3))
    right = parts.split(reshape(b, (batch, k, columns)), 1)
    return reshape(bind(SUM, bind(MATMUL, left, right), axes=(1,)), t.shape)


@cache
def _parts_of_others(batch: int, m: int, n: int, others: int, most: int) -> int:
    """Return the fastest number of parts of a product over an open batch and `others`, at most `most`."""
    k = tuning.OPEN_BATCH * others
    few = sorted(s for s in divisors(others) if s <= most)
    return min(few, key=lambda s: _time(batch, m, n, k, k // s))


def _scatter_by_others(t: Tensor, x: Tensor, indices: Tensor, n: int) -> Tensor | None:
    """Return a scatter of a batch of `n` and other axes as a fold of scatters of the batch. None if it is short."""
    a: int = t.axis
    most = tuning.OPEN_PARTS
    parts = _Parts.of(x, a, n, lambda k: nearest_divisor(k, min(most, _scattered(t, tuning.OPEN_BATCH * k))))
    return None if parts is None else _scatter_in(parts, t, x, indices)


def _scatter_in(parts: _Parts, t: Tensor, x: Tensor, indices: Tensor) -> Tensor:
    """Return a scatter as a fold of scatters of parts of its updates."""
    a: int = t.axis
    part = bind(t.prim, parts.split(x, a), parts.split(indices, a), axis=a + 1, length=t.shape[a])
    return reshape(bind(SCATTERED_BY[t.prim], part, axes=(a,)), t.shape)


class _Parts(NamedTuple):
    """A split of an axis. If it consists of a batch and other axes, each part has the whole batch."""

    number: int
    before: int  # points of each part before the batch: the batch, if it comes first

    @staticmethod
    def of(x: Tensor, d: int, n: int, count: Callable[[int], int]) -> _Parts | None:
        """Return the split of axis `d` of `x`; None if there is one part. count: the parts of this many points."""
        k = x.shape[d]
        if not x.size or k % n:
            return None
        before = _before_batch(x, d, n)
        s = count(before if before > 1 else k // n)
        return _Parts(s, n if before == 1 else 1) if s > 1 else None

    def split(self, x: Tensor, d: int) -> Tensor:
        """Return `x` with an axis before `d` that numbers the parts."""
        k = x.shape[d]
        if self.before == 1:
            return reshape(x, (*x.shape[:d], self.number, k // self.number, *x.shape[d + 1 :]))
        x = reshape(x, (*x.shape[:d], self.before, self.number, k // self.before // self.number, *x.shape[d + 1 :]))
        x = permute(x, (*range(d), d + 1, d, *range(d + 2, x.ndim)))
        return reshape(x, (*x.shape[: d + 1], k // self.number, *x.shape[d + 3 :]))


def _before_batch(x: Tensor, d: int, n: int) -> int:
    """Return the points of the axes before the batch, among those that were reshaped to axis `d`; 1 if not known."""
    before = 1
    while x.shape[d] != n:
        if x.prim is PERMUTE:
            x, d = x.inputs[0], x.axes[d]
        elif x.prim is RESHAPE:
            within, x = math.prod(x.shape[:d]), x.inputs[0]
            # the first axis whose points, with those before, hold the batch
            d = next(k for k in range(x.ndim) if x.shape[k] % n == 0 and math.prod(x.shape[: k + 1]) > within)
            before *= math.prod(x.shape[:d]) // within
        else:
            break
    return max(before, 1)


def divisors(n: int) -> list[int]:
    """Return the divisors of `n`."""
    return [d for k in range(1, math.isqrt(n) + 1) if n % k == 0 for d in (k, n // k)]


def nearest(numbers: Sequence[int], target: float) -> int:
    """Return the one of `numbers` closest to `target` in ratio."""
    return min(numbers, key=lambda d: (abs(math.log(d / max(target, 1))), d))


def nearest_divisor(n: int, target: float) -> int:
    """Return the divisor of `n` closest to `target` in ratio."""
    return nearest(divisors(n), target)


def _split_fold(t: Tensor, x: Tensor) -> Tensor | None:
    folded: tuple[int, ...] = t.axes
    axes = [d for d in folded if x.shape[d] > 1]
    k = math.prod(x.shape[d] for d in axes)
    together = not axes or axes[-1] - axes[0] == len(axes) - 1
    rows = together and math.prod(x.shape[folded[-1] + 1 :]) == 1
    if (_full_of_rows(t.size, k) if rows else k < tuning.SPLIT_FROM or t.size >= tuning.FEW_OUTPUTS) or k > MOST:
        return None
    if together:  # neighbouring axes count as one axis of size k
        sizes = [x.shape[d] for d in axes]
        least = tuning.LONG_PART if rows else 1
        return _split_axis(t, reshape(x, (*x.shape[: axes[0]], k, *x.shape[axes[-1] + 1 :])), axes[0], sizes, least)
    head: list[int] = []
    size = 1
    for d in axes:  # separated axes: the leading ones, up to about the root of k, are folded last
        if size * x.shape[d] > math.sqrt(k) and head:
            break
        head.append(d)
        size *= x.shape[d]
    rest = tuple(d for d in axes if d not in head)
    return reshape(bind(t.prim, bind(t.prim, x, axes=rest), axes=tuple(head)), t.shape) if rest else None


def _full_of_rows(rows: int, k: int) -> bool:
    """Return whether contiguous rows of length `k` keep a device busy unsplit: longer rows must be more rows."""
    return rows >= tuning.FEW_ROWS or k < tuning.LONG_ROW * max(1, rows // tuning.SOME_ROWS)


def _split_axis(t: Tensor, x: Tensor, axis: int, sizes: Sequence[int], least: int) -> Tensor | None:
    """Return a fold over one axis as two: over each part, then over all parts. None if no split is worth it.

    sizes: of the axes that form this axis. Parts that begin in the middle of one of these are the second choice,
           because their indices need divisions.
    least: about the least length of a part. Above it, parts are about as long as they are many.
    """
    k = x.shape[axis]
    parts = min(math.sqrt(k), k / least)
    s = next(_near(k, parts, sizes), int(parts))
    if s in (1, k):
        return None
    whole, left = _cut(x, axis, k // s)
    # The remainder comes before the other parts, so that the second step is fused with the sum of both.
    rest = None if left is None else reshape(bind(t.prim, left, axes=(axis,)), t.shape)
    out = reshape(bind(t.prim, bind(t.prim, whole, axes=(axis + 1,)), axes=(axis,)), t.shape)
    return out if rest is None else bind(PRIMITIVES[t.prim.combine], out, rest)


def _near(k: int, parts: float, axes: Sequence[int]) -> Iterator[int]:
    """Yield the best divisors of `k` near `parts`: first the best that cuts none of the axes that form k."""
    for choices in ([s for s in divisors(k) if _between(s, axes)], divisors(k)):
        s = nearest(choices, parts)
        if max(s, parts) <= tuning.UNEVEN * min(s, parts):
            yield s


def _cut(x: Tensor, axis: int, part: int) -> tuple[Tensor, Tensor | None]:
    """Return `x` with `axis` in parts of this length, which a new axis before it numbers; and the remainder or None."""
    s, left = divmod(x.shape[axis], part)
    whole = reshape(slice_(x, axis, 0, s * part), (*x.shape[:axis], s, part, *x.shape[axis + 1 :]))
    return whole, slice_(x, axis, s * part, left) if left else None


def _split_product(t: Tensor, a: Tensor, b: Tensor) -> Tensor | None:
    batch = math.prod(t.shape[:-2])
    (m, k), n = a.shape[-2:], b.shape[-1]
    part = _part(batch, m, n, k, _axes_behind(a, k))
    if part == k:
        return None
    left, first = _cut(reshape(a, (batch, m, k)), 2, part)
    right, second = _cut(reshape(b, (batch, k, n)), 1, part)
    # The remainder comes before the other parts, as in a fold.
    rest = None if first is None or second is None else reshape(bind(MATMUL, first, second), t.shape)
    out = reshape(bind(SUM, bind(MATMUL, permute(left, (0, 2, 1, 3)), right), axes=(1,)), t.shape)
    return out if rest is None else out + rest


def _split_scatter(t: Tensor, x: Tensor, indices: Tensor) -> Tensor | None:
    k = x.shape[t.axis]
    s = nearest_divisor(k, _scattered(t, k))
    return _scatter_in(_Parts(s, 1), t, x, indices) if s > 1 else None


def _scattered(t: Tensor, k: int) -> float:
    """Return about how many parts of a scatter of `k` updates are fastest."""
    a: int = t.axis
    before, m, behind = math.prod(t.shape[:a]), t.shape[a], math.prod(t.shape[a + 1 :])
    tiled = t.prim is SCATTER_ADD and min(m, behind) >= tuning.HALF_TILE_FROM
    if searched(t.size, k, tiled):
        return _scattered_parts(t.size, m, k)
    if tiled:
        return _even_parts(before, m, behind, k) / tuning.SCATTER_FEWER
    return _even_parts(t.size, 1, 1, k)


def _scattered_parts(size: int, rows: int, k: int) -> int:
    """Return the number of parts of a large scatter, so that few results with many updates each keep a device busy."""
    most = min(k // (rows * tuning.EACH_SCATTERED), k // tuning.SHORTEST_SCATTER)
    return max(1, min(tuning.PROCESSORS * tuning.WORKGROUP // size, most))


def _axes_behind(a: Tensor, k: int) -> tuple[int, ...]:
    """Return the axes that were reshaped to the one axis k, the last of `a`."""
    shape = a.inputs[0].shape if a.prim is RESHAPE else a.shape
    axes = [d for d in range(len(shape)) if math.prod(shape[d:]) == k]
    return shape[axes[-1] :] if axes else (k,)


@cache
def _part(batch: int, m: int, n: int, k: int, axes: tuple[int, ...]) -> int:
    """Return the length in k of the parts in which a product is fastest; k itself if it should not be split.

    If k is several `axes`, parts are equal, and none begins in the middle of an axis: indices would need divisions.
    """
    if len(axes) > 1 or min(m, n) < tuning.HALF_TILE_FROM:
        return k // _even_parts(batch, m, n, k, axes)
    lengths = {k // s - (k // s % tuning.LEAST_STEP if k % s else 0) for s in _numbers_of_parts(k)}
    vectors = [x for x in (k, *sorted(lengths, reverse=True)) if x % 4 == 0 or k % 4]  # parts that begin with one
    return min(vectors, key=lambda part: _time(batch, m, n, k, part))


@cache
def _numbers_of_parts(k: int) -> range:
    return range(2, min(tuning.MOST_PARTS, k // tuning.SHORTEST_PART) + 1)


def _even_parts(batch: int, m: int, n: int, k: int, axes: tuple[int, ...] = ()) -> int:
    """Return the fastest number of equal parts, none of which begins in the middle of one of the `axes` that form k."""
    if min(m, n) < tuning.HALF_TILE_FROM:
        if k < tuning.SPLIT_FROM or batch * m * n >= tuning.PROCESSORS:
            return 1
        s = next(_near(k, math.sqrt(k), axes), nearest_divisor(k, math.sqrt(k)))
        return s if s < k else 1
    even = [s for s in _numbers_of_parts(k) if k % s == 0 and _between(s, axes)]
    return min([1, *even], key=lambda s: _time(batch, m, n, k, k // s))


def _between(parts: int, axes: Sequence[int]) -> bool:
    """Return whether each of the axes lies in one part, or in as many parts as it has points."""
    before = 1
    for n in axes:
        before *= n
        if before % parts and parts % before:
            return False
    return True


def _time(batch: int, m: int, n: int, k: int, part: int) -> float:
    """Return the time of a product in parts of `part` k and one of the remainder, their sum included."""
    parts, rest = divmod(k, part)
    time = product_time(batch * parts, m, n, part)
    if rest:
        time += product_time(batch, m, n, rest) + tuning.SECOND_STEP
    more = parts + (rest > 0)
    return time + (tuning.SECOND_STEP + tuning.PARTIAL_TRAFFIC * more * batch * m * n if more > 1 else 0)
