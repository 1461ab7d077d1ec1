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

from tracegrad.dtypes import i32
from tracegrad.ir.nodes import Tensor
from tracegrad.prims.elementwise import where
from tracegrad.prims.leaves import const, iota
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


def network(x: Pairs, axis: int, k: int, pad: float) -> Tensor:
    """Return the positions of the first `k` pairs in order along `axis`. pad: a key that no other exceeds."""
    shape = x.keys.shape
    outer, n, lanes = math.prod(shape[:axis]), shape[axis], math.prod(shape[axis + 1 :])
    x = _reshaped(x, (outer, n, lanes))
    if lanes >= SORT_LANES:
        at = _sized(_ordered(x, k, pad), k, pad).at
    else:
        x = _reshaped(_turned(x), (outer * lanes, n, 1))
        at = permute(reshape(_by_columns(x, k, pad), (outer, lanes, k)), (0, 2, 1))
    return reshape(at, (*shape[:axis], k, *shape[axis + 1 :]))


def _ordered(x: Pairs, k: int, pad: float) -> Pairs:
    """Sort the middle axis of [outer, n, lanes], and keep at least its first `k` pairs."""
    n, run = x.keys.shape[1], 1
    steps: list[Step] = []
    while run < n and run < k:
        steps += [Step(run, True), *_halving(run // 2)]
        run *= 2
    x = _exchanged(x, steps, pad)
    while run < n:
        x = _first_half(x, run, pad)
        x, n = _exchanged(x, _halving(run // 2), pad), x.keys.shape[1]
    return x


def _by_columns(x: Pairs, k: int, pad: float) -> Tensor:
    """Return the first `k` positions in order along the middle axis of [rows, n, 1], by columns."""
    rows, n = x.keys.shape[:2]
    height = 1 << (-(-n // SORT_COLUMNS) - 1).bit_length()  # the next power of two
    x = _reshaped(_sized(x, height * SORT_COLUMNS, pad), (rows, height, SORT_COLUMNS))
    x = _ordered(x, k, pad)
    height, together = x.keys.shape[1], 1
    x = _turned(x)  # [rows, columns, height]
    while together < x.keys.shape[1]:
        columns = x.keys.shape[1]
        shape = (rows, columns // (2 * together), 2, together, height)
        steps = _halving(together // 2)
        if together * height < k:
            x = _reshaped(_compared(_reshaped(x, shape), [(2, (2, 3, 4))]), (rows, columns, height))
            together *= 2
        else:
            both = _reshaped(x, (rows, shape[1], 2 * together, height))
            low, high = (_cut_out(y, 2, together) for y in (both, _flipped(both, (2, 3))))
            x = _reshaped(_smaller(low, high), (rows, columns // 2, height))
        x = _turned(_exchanged(_turned(_exchanged(x, steps, pad)), _halving(height // 2), pad))
    return slice_(reshape(x.at, (rows, x.at.shape[1] * height)), 1, 0, k)


def _halving(stride: int) -> list[Step]:
    """Return the steps that sort blocks of `2 * stride`, whose halves were compared with each other before."""
    return [Step(stride >> s, False) for s in range(stride.bit_length())]


def _exchanged(x: Pairs, steps: Sequence[Step], pad: float) -> Pairs:
    """Apply steps to the middle axis of [outer, n, lanes], several at a time. Padding sorts last and is removed."""
    outer, n, lanes = x.keys.shape
    for at in range(0, len(steps), SORT_TOGETHER):
        some = steps[at : at + SORT_TOGETHER]
        strides = sorted({s.stride for s in some}, reverse=True)
        blocks = -(-n // (2 * strides[0]))
        x = _sized(x, blocks * 2 * strides[0], pad)
        shape, axis_of = [outer, blocks], dict[int, int]()
        for stride, below in zip(strides, [*strides[1:], 0]):
            axis_of[stride] = len(shape)
            shape += [2, stride // (2 * below)] if below else [2, stride]
        last = len(shape)
        flips = [tuple(range(axis_of[s.stride], last)) if s.mirrored else (axis_of[s.stride],) for s in some]
        y = _compared(_reshaped(x, (*shape, lanes)), [(axis_of[s.stride], f) for s, f in zip(some, flips)])
        x = _reshaped(y, (outer, blocks * 2 * strides[0], lanes))
    return _sized(x, n, pad)


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


def _first_half(x: Pairs, run: int, pad: float) -> Pairs:
    """Return the `run` smallest pairs of each two sorted runs of `run` pairs."""
    outer, n, lanes = x.keys.shape
    count = -(-n // (2 * run))
    blocks = _reshaped(_sized(x, count * 2 * run, pad), (outer, count, 2 * run, lanes))
    low, high = (_cut_out(y, 2, run) for y in (blocks, _flipped(blocks, (2,))))
    return _reshaped(_smaller(low, high), (outer, count * run, lanes))


def _smaller(a: Pairs, b: Pairs) -> Pairs:
    take = before(b, a)
    return Pairs(where(take, b.keys, a.keys), where(take, b.at, a.at))


def before(a: Pairs, b: Pairs) -> Tensor:
    """Return whether `a` sorts before `b`."""
    return (a.keys < b.keys) | ((a.keys == b.keys) & (a.at < b.at))


def _sized(x: Pairs, n: int, pad: float) -> Pairs:
    """Return the first `n` pairs of the middle axis, padded at its end with pairs that sort last."""
    own = x.keys.shape[1]
    if n <= own:
        return _cut_out(x, 1, n)
    filled = (const(pad, x.keys.dtype), const(LAST, i32))
    return Pairs(*[where(iota((t := place(y, 1, 0, n)).shape, 1) < own, t, z) for y, z in zip(x, filled)])


def _reshaped(x: Pairs, shape: Sequence[int]) -> Pairs:
    return Pairs(*[reshape(t, tuple(shape)) for t in x])


def _turned(x: Pairs) -> Pairs:
    return Pairs(*[permute(t, (0, 2, 1)) for t in x])


def _cut_out(x: Pairs, axis: int, length: int) -> Pairs:
    return Pairs(*[slice_(t, axis, 0, length) for t in x])


def _flipped(x: Pairs, axes: Sequence[int]) -> Pairs:
    """Reverse some axes."""
    for a in axes:
        n = x.keys.shape[a]
        x = Pairs(*[slice_(t, a, n - 1, n, -1) for t in x]) if n > 1 else x
    return x
