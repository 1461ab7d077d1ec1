"""Views in `passes/padded.py`: the axes of their results, and the elements to mask."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracegrad.dtypes import Shape
from tracegrad.ir.nodes import Tensor, bind, rebind
from tracegrad.kernels.form import UnsizedError
from tracegrad.passes.growth import Axis, Both, Length, Sizes, joined
from tracegrad.passes.padding import ONE, Room, Value, replaced
from tracegrad.prims.folds import GATHER, scatter_add
from tracegrad.prims.leaves import IOTA
from tracegrad.prims.views import (
    BARRIER,
    BROADCAST,
    PERMUTE,
    PLACE,
    RESHAPE,
    SLICE,
    UNWINDOW,
    WINDOW,
    broadcast_to,
    permute,
    reshape,
    unmoved,
)


def _permute(room: Room, t: Tensor, u: Tensor, x: Value) -> Value:
    room.same(t, u)
    return Value(permute(x.tensor, t.axes), tuple([x.axes[a] for a in t.axes]))


def _barrier(room: Room, t: Tensor, u: Tensor, x: Value) -> Value:
    return Value(rebind(t, [x.tensor, *[room.of[y.serial].tensor for y in t.inputs[1:]]]), x.axes)


def _broadcast(room: Room, t: Tensor, u: Tensor, x: Value) -> Value:
    axes: list[Axis] = []
    for d, (n, m, k) in enumerate(zip(t.shape, u.shape, t.inputs[0].shape)):
        axes.append(x.axes[d] if k != 1 else room.sizes.axis((n, m)))
    return Value(broadcast_to(x.tensor, t.shape), tuple(axes))


def _reshape(room: Room, t: Tensor, u: Tensor, x: Value) -> Value:
    pairs = list(zip(t.shape, u.shape))
    if any(axis.counts for axis in x.axes):
        if x.tensor.ndim > 1:
            raise UnsizedError("counts along one of several axes")
        axes = tuple([room.sizes.axis(pair).stacked for pair in pairs])
        return Value(counted(room, t.inputs[0], axes, t.shape), axes)
    if 0 in t.shape or 0 in u.shape:
        if t.shape != u.shape:
            raise UnsizedError("has no elements at some sizes")
        return Value(reshape(x.tensor, t.shape), tuple([room.sizes.axis(pair) for pair in pairs]))
    if any(axis.parts is None for axis in x.axes):
        axes = _regrouped(room.sizes, x.axes, pairs)
    else:
        left = [*joined([part for axis in x.axes for part in axis.ordered])]
        axes = [room.sizes.taken(left, pair) for pair in pairs]
    return Value(reshape(x.tensor, t.shape), tuple(axes))


def _regrouped(sizes: Sizes, axes: Sequence[Axis], pairs: Sequence[Both]) -> list[Axis]:
    """Return the axes of these lengths that replace `axes`, of which some have parts in any order."""
    found, left, wanted = list[Axis](), list(axes), list(pairs)
    while left or wanted:
        group, taken = list[Axis](), list[Both]()
        have, want = (1, 1), (1, 1)
        while have != want or not (group or taken):
            if left and (have[0] <= want[0] or not wanted):
                group.append(left.pop(0))
                length = group[-1].length
                have = have[0] * length.at(sizes.one), have[1] * length.at(sizes.other)
            elif wanted:
                taken.append(wanted.pop(0))
                want = want[0] * taken[-1][0], want[1] * taken[-1][1]
            else:
                raise UnsizedError("has other axes at other sizes")
        if all(axis.parts is None or axis == ONE for axis in group):
            found += [sizes.axis(pair) for pair in taken]
        else:
            parts = [*joined([part for axis in group for part in axis.ordered])]
            found += [sizes.taken(parts, pair) for pair in taken]
    return found


def counted(room: Room, t: Tensor, axes: Sequence[Axis], shape: Shape) -> Tensor:
    """Return the value that `t` computes from each element's coordinate, for axes with padding."""
    if t.prim is not IOTA:
        own = room.of[t.serial]
        if own.axes[0].counts:
            return bind(t.prim, *[counted(room, x, axes, shape) for x in t.inputs], **t.attrs)
        if own.axes[0].parts is None:
            return reshape(own.tensor, shape)
        raise UnsizedError("counts along an axis that has parts")
    return room.numbers(axes, shape)


def _slice(room: Room, t: Tensor, u: Tensor, x: Value) -> Value:
    if _changes_nothing(room, t, u, x):
        return x
    blocks = _blocks(room, t, u, x)
    if blocks:
        return Value(bind(SLICE, x.tensor, **t.attrs), blocks)
    axes, start = _moved(room, t, u, x), _start(room, t, u)
    if not start.factors:
        return Value(bind(SLICE, x.tensor, **t.attrs), axes)
    at = room.places(start, t.attrs["step"], t.axis, t.shape, x.tensor.shape[t.axis])
    return Value(bind(GATHER, x.tensor, at, axis=t.axis), axes)


def _place(room: Room, t: Tensor, u: Tensor, x: Value) -> Value:
    if _changes_nothing(room, t, u, x):
        return x
    blocks = _blocks(room, t, u, x)
    if blocks:
        return Value(bind(PLACE, x.tensor, **t.attrs), blocks)
    axes, start = _moved(room, t, u, x), _start(room, t, u)
    own = room.masked(x, (t.axis,), 0)
    if not start.factors:
        return Value(bind(PLACE, own, **t.attrs), axes)
    at = room.places(start, t.attrs["step"], t.axis, own.shape, t.shape[t.axis])
    return Value(scatter_add(own, at, t.axis, t.shape[t.axis]), axes)


def _changes_nothing(room: Room, t: Tensor, u: Tensor, x: Value) -> bool:
    """Return whether a slice or place gives its input, at all sizes. 2 * (T // 4) can be T // 2 in both traces."""
    pair = t.shape[t.axis], u.shape[t.axis]
    return all(unmoved(v.inputs[0], **v.attrs) for v in (t, u)) and room.sizes.fits(x.axes[t.axis].length, pair)


def _blocks(room: Room, t: Tensor, u: Tensor, x: Value) -> tuple[Axis, ...] | None:
    """Return the axes of a slice or place of whole blocks, such as a or b of concat([a, b]); None for any other.

    Padded blocks are adjacent, so valid elements stay valid, and padding stays padding.
    """
    room.same(t, u, "start", "length")
    parts = x.axes[t.axis].parts
    if parts is None or not x.axes[t.axis].grows or t.attrs["step"] != 1:
        return None
    block = parts[1:] if isinstance(parts[0], int) else parts
    n, m = map(math.prod, zip(*map(room.sizes.of, block)))
    pair, starts = (t.shape[t.axis], u.shape[t.axis]), (t.attrs["start"], u.attrs["start"])
    count, start = (both[0] // max(n, 1) for both in (pair, starts))
    if not count or (count * n, count * m) != pair or (start * n, start * m) != starts:
        return None
    new = room.sizes.taken([count, *block], pair)
    return replaced(x.axes, t.axis, new) if room.sizes.fits(new.length, pair) else None


def _moved(room: Room, t: Tensor, u: Tensor, x: Value) -> tuple[Axis, ...]:
    """Return the axes of `x` with that of the result in place of the axis that `t` works along."""
    room.in_front(x.axes[t.axis])
    new = room.sizes.axis((t.shape[t.axis], u.shape[t.axis]))
    room.in_front(new)
    return replaced(x.axes, t.axis, new._replace(parts=joined(new.ordered)))


def _start(room: Room, t: Tensor, u: Tensor) -> Length:
    return room.sizes.length((t.attrs["start"], u.attrs["start"]))


def _window(room: Room, t: Tensor, u: Tensor, x: Value) -> Value:
    room.same(t, u)
    axes = _moved(room, t, u, x)
    return Value(rebind(t, [x.tensor]), (*axes, room.sizes.axis((t.shape[-1], u.shape[-1]))))


def _unwindow(room: Room, t: Tensor, u: Tensor, x: Value) -> Value:
    room.same(t, u, "length")
    axes = _moved(room, t, u, x)
    return Value(rebind(t, [room.masked(x, (t.axis,), 0)]), axes)


Rule = Callable[[Room, Tensor, Tensor, Value], Value]
VIEWS: Mapping[Any, Rule] = {
    PERMUTE: _permute,
    BARRIER: _barrier,
    BROADCAST: _broadcast,
    RESHAPE: _reshape,
    SLICE: _slice,
    PLACE: _place,
    WINDOW: _window,
    UNWINDOW: _unwindow,
}
