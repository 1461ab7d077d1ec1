"""Sorting by a bitonic network, made of elementwise ops and views, which run as vector code.

Elements are pairs (key, position in the input). No two pairs are equal, so the order is stable. An exchange compares
each pair with a partner, and puts the smaller one first. Neighbours in memory, which belong to other axes, are
exchanged at once. If there are few, the axis is cut into columns, which become neighbours. Columns are sorted first,
then merged. Exchanges between columns need each column contiguous in memory, and exchanges within columns need columns
as neighbours. So the layout alternates.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from tracegrad.ir.nodes import Tensor
from tracegrad.prims.elementwise import where
from tracegrad.prims.leaves import iota
from tracegrad.prims.views import permute, place, reshape, slice_
from tracegrad.tuning import SORT_COLUMNS, SORT_LANES, SORT_TOGETHER

LAST = 2**31 - 1  # a position behind all others


class Pairs(NamedTuple):
    """Keys, and the positions in the input that they came from."""

    keys: Tensor
    at: Tensor


class Step(NamedTuple):
    """An exchange of elements `stride` apart, in blocks of two strides. `mirrored`: of the first with the last."""

    stride: int
    mirrored: bool


def network(x: Pairs, axis: int) -> Tensor:
    """Return the positions of the pairs in order along `axis`."""
    shape = x.keys.shape
    outer, n, lanes = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    x = _reshaped(x, (outer, n, lanes))
    if lanes >= SORT_LANES:
        return reshape(_sized(_ordered(x), n).at, shape)
    at = _by_columns(_reshaped(_turned(x), (outer * lanes, n, 1)))
    return reshape(permute(reshape(at, (outer, lanes, n)), (0, 2, 1)), shape)


def _ordered(x: Pairs) -> Pairs:
    """Sort the middle axis of [outer, n, lanes]."""
    n, run = x.keys.shape[1], 1
    steps: list[Step] = []
    while run < n:
        steps += [Step(run, True), *_halving(run // 2)]
        run *= 2
    return _exchanged(x, steps)


def _by_columns(x: Pairs) -> Tensor:
    """Return the positions in order along the middle axis of [rows, n, 1], by columns."""
    rows, n = x.keys.shape[:2]
    height = 1 << (-(-n // SORT_COLUMNS) - 1).bit_length()  # the next power of two
    x = _turned(_ordered(_reshaped(_sized(x, height * SORT_COLUMNS), (rows, height, SORT_COLUMNS))))
    together = 1
    while together < SORT_COLUMNS:
        shape = (rows, SORT_COLUMNS // (2 * together), 2, together, height)
        x = _reshaped(_compared(_reshaped(x, shape), [(2, (2, 3, 4))]), (rows, SORT_COLUMNS, height))
        x = _turned(_exchanged(_turned(_exchanged(x, _halving(together // 2))), _halving(height // 2)))
        together *= 2
    return slice_(reshape(x.at, (rows, SORT_COLUMNS * height)), 1, 0, n)


def _halving(stride: int) -> list[Step]:
    """Return the steps that sort blocks of `2 * stride`, whose halves were compared with each other before."""
    return [Step(stride >> s, False) for s in range(stride.bit_length())]


def _exchanged(x: Pairs, steps: Sequence[Step]) -> Pairs:
    """Apply steps to the middle axis of [outer, n, lanes], several at a time. Padding sorts last and is removed."""
    outer, n, lanes = x.keys.shape
    for at in range(0, len(steps), SORT_TOGETHER):
        some = steps[at : at + SORT_TOGETHER]
        strides = sorted({s.stride for s in some}, reverse=True)
        blocks = -(-n // (2 * strides[0]))
        x = _sized(x, blocks * 2 * strides[0])
        shape, axis_of = [outer, blocks], dict[int, int]()
        for stride, below in zip(strides, [*strides[1:], 0]):
            axis_of[stride] = len(shape)
            shape += [2, stride // (2 * below)] if below else [2, stride]
        last = len(shape)
        flips = [tuple(range(axis_of[s.stride], last)) if s.mirrored else (axis_of[s.stride],) for s in some]
        y = _compared(_reshaped(x, (*shape, lanes)), [(axis_of[s.stride], f) for s, f in zip(some, flips)])
        x = _reshaped(y, (outer, blocks * 2 * strides[0], lanes))
    return _sized(x, n)


def _compared(x: Pairs, steps: Sequence[tuple[int, tuple[int, ...]]]) -> Pairs:
    """Apply several exchanges along axes of size 2. An element's partner has the other index on some of these axes.

    A later exchange reads results of earlier ones at other positions, and computes these again. Nothing is stored
    between exchanges, so one kernel does all of them.
    """

    def found(count: int, moved: frozenset[int]) -> Pairs:
        """Return the results of the first `count` steps, read at the positions that differ on the axes `moved`."""
        if not count:
            return _flipped(x, sorted(moved))
        axis, partner = steps[count - 1]
        own, other = found(count - 1, moved), found(count - 1, moved ^ frozenset(partner))
        front = iota(own.keys.shape, axis) < 1
        if axis in moved:
            front = ~front
        take = where(front, before(other, own), before(own, other))
        return Pairs(where(take, other.keys, own.keys), where(take, other.at, own.at))

    return found(len(steps), frozenset())


def before(a: Pairs, b: Pairs) -> Tensor:
    """Return whether `a` sorts before `b`."""
    return (a.keys < b.keys) | ((a.keys == b.keys) & (a.at < b.at))


def _sized(x: Pairs, n: int) -> Pairs:
    """Return the first `n` pairs of the middle axis, padded at its end with pairs that sort last."""
    own = x.keys.shape[1]
    if n <= own:
        return Pairs(*[slice_(t, 1, 0, n) for t in x])
    return Pairs(*[where(iota((t := place(y, 1, 0, n)).shape, 1) < own, t, LAST) for y in x])


def _reshaped(x: Pairs, shape: Sequence[int]) -> Pairs:
    return Pairs(*[reshape(t, tuple(shape)) for t in x])


def _turned(x: Pairs) -> Pairs:
    return Pairs(*[permute(t, (0, 2, 1)) for t in x])


def _flipped(x: Pairs, axes: Sequence[int]) -> Pairs:
    """Reverse some axes."""
    for a in axes:
        n = x.keys.shape[a]
        x = Pairs(*[slice_(t, a, n - 1, n, -1) for t in x]) if n > 1 else x
    return x
