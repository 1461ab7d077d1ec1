"""Helpers of `passes/padded.py`: masks, coordinates and lengths in a graph whose arrays are larger than a run's."""

from __future__ import annotations

import functools
import operator
from collections.abc import Mapping, Sequence
from typing import NamedTuple, TypeVar

from tracegrad.dtypes import Shape, i32
from tracegrad.ir.nodes import Tensor, rebind
from tracegrad.kernels.form import UnsizedError
from tracegrad.methods import METHODS
from tracegrad.passes.growth import Axis, Grown, Length, Part, Parts, Sizes
from tracegrad.prims.leaves import const, fitting, iota
from tracegrad.prims.views import BROADCAST, PERMUTE, RESHAPE, broadcast_to, permute, reshape

ONE = Axis(Length(1), ())

T = TypeVar("T")


class Value(NamedTuple):
    """A node in the shapes of the room, and how its axes grow."""

    tensor: Tensor
    axes: tuple[Axis, ...]


class Room:
    """The values of the new graph, and the lengths of a run that are inputs of the graph."""

    def __init__(self, sizes: Sizes, lengths: Mapping[Grown, Tensor], exact: int | None) -> None:
        """lengths: has all sizes, among others. exact: the index of a size for which memory has no padding."""
        self.sizes, self.lengths, self.exact = sizes, lengths, exact
        self.of: dict[int, Value] = {}  # by serial of a node at the room

    def same(self, t: Tensor, u: Tensor, *but: str) -> None:
        """Raise UnsizedError if attributes differ, except those in `but`."""
        for name, value in t.attrs.items():
            if name not in but and self.sizes.differ(value, u.attrs[name]):
                raise UnsizedError(f"{name} is {u.attrs[name]} at other sizes, here {value}")

    def agreed(self, found: Sequence[tuple[Axis, ...]]) -> tuple[Axis, ...]:
        """Return the common axes of values of one shape. Raises UnsizedError if their parts differ."""
        axes = list(found[0]) if found else []
        for other in found[1:]:
            for d, axis in enumerate(other):
                if axes[d].parts is None:
                    axes[d] = axis
                elif axis.parts is not None and axis.parts != axes[d].parts:
                    raise UnsizedError(f"{axes[d].parts} meets {axis.parts}")
        return tuple(axes)

    def scalar(self, length: Length) -> Tensor:
        """Return a length as a scalar of the graph."""
        made = const(length.times, i32)
        for n, f in enumerate(length.factors):
            factor = self.lengths[f] if f in self.lengths else self.lengths[Grown(f.size)] + f.more
            factor = factor if f.by == 1 or f in self.lengths else factor // f.by
            made = factor if n == 0 and length.times == 1 else made * factor
        return made

    def part(self, part: Part) -> Tensor | int:
        """Return the length of a part: a number if it does not grow."""
        return part if isinstance(part, int) else self.scalar(Length(1, (part,)))

    def digits(self, index: Tensor, parts: Parts) -> list[Tensor]:
        """Return the coordinates along the parts of an index along an axis, at a run's sizes."""
        found: list[Tensor] = []
        for part in reversed(parts[1:]):
            n = self.part(part)
            found.append(index % n)
            index = index // n
        return [index, *reversed(found)]

    def numbers(self, axes: Sequence[Axis], shape: Shape) -> Tensor:
        """Return, for each element, its row-major index in the shape of the run's sizes."""
        parts = [part for axis in axes for part in axis.ordered]
        whole = [self.sizes.of(part)[0] for part in parts]
        found: list[Tensor] = []
        stride: Tensor = const(1, i32)
        for d in reversed(range(len(parts))):
            found.append(iota(whole, d) * broadcast_to(stride, whole))
            stride = stride * self.part(parts[d])
        return reshape(functools.reduce(operator.add, found), shape)

    def has_room(self, axis: Axis) -> bool:
        """Return whether an axis can have padding."""
        return any(f.size != self.exact for f in axis.length.factors)

    def counting(self, axis: Axis) -> Tensor | None:
        """Return a mask along an axis, True at elements that are not padding; None if there is no padding."""
        if not self.has_room(axis):
            return None
        shape = [self.sizes.of(part)[0] for part in axis.ordered]
        found: Tensor | None = None
        for d, part in enumerate(axis.ordered):
            if isinstance(part, Grown) and part.size != self.exact:
                inside = iota(shape, d) < self.part(part)
                found = inside if found is None else METHODS["logical_and"](found, inside)
        assert found is not None
        return reshape(found, (axis.length.at(self.sizes.one),))

    def masked(self, x: Value, axes: Sequence[int], otherwise: float | int) -> Tensor:
        """Return a value with its padding along some axes replaced by `otherwise`.

        The mask goes under a transpose, so that the order in memory stays the same.
        """
        made = x.tensor
        if made.prim is PERMUTE:
            order = made.axes
            kept = tuple([x.axes[order.index(d)] for d in range(made.ndim)])
            own = self.masked(Value(made.inputs[0], kept), [order[d] for d in axes], otherwise)
            return permute(own, order)
        for d in axes:
            inside = self.counting(x.axes[d])
            if inside is not None:
                shape = made.shape
                wide = broadcast_to(reshape(inside, [n if k == d else 1 for k, n in enumerate(shape)]), shape)
                made = METHODS["where"](
                    wide, made, broadcast_to(const(fitting(otherwise, made.dtype), made.dtype), shape)
                )
        return made

    def placed(self, index: Tensor, axis: Axis) -> Tensor:
        """Convert indices at a run's sizes to indices in the padded axis.

        Below broadcasts and reshapes, so that all elements of a row keep one index.
        """
        if not self.has_room(axis):
            return index
        if index.prim in (BROADCAST, RESHAPE):
            return rebind(index, [self.placed(index.inputs[0], axis)])
        high = self.scalar(axis.length) - 1
        index = METHODS["minimum"](METHODS["maximum"](index, 0), high)
        parts = axis.ordered
        places = self.digits(index, parts)
        found = places[0]
        for part, at in zip(parts[1:], places[1:]):
            found = found * self.sizes.of(part)[0] + at
        return found

    def single(self, axis: Axis) -> None:
        """Raise UnsizedError if an axis grows and is not a single part."""
        if axis.grows and (axis.parts is None or len(axis.parts) != 1):
            raise UnsizedError("has iterations of several parts")

    def in_front(self, axis: Axis) -> None:
        """Raise UnsizedError if padding of an axis is not all behind the rest: only the outermost part can grow."""
        if any(isinstance(part, Grown) for part in axis.ordered[1:]):
            raise UnsizedError("moves along an axis of several parts")

    def places(self, start: Length, step: int, axis: int, shape: Shape, n: int) -> Tensor:
        """Return indices start + step * k, for the coordinates k along an axis of `shape`, limited to [0, n)."""
        at = iota((shape[axis],), 0) * step + self.scalar(start)
        # indices of padding elements only have to be in range
        at = METHODS["minimum"](METHODS["maximum"](at, 0), n - 1)
        return broadcast_to(reshape(at, [m if d == axis else 1 for d, m in enumerate(shape)]), shape)


def replaced(axes: Sequence[T], d: int, new: T) -> tuple[T, ...]:
    """Return axes, or their sizes, with another one in place of axis `d`."""
    return (*axes[:d], new, *axes[d + 1 :])
