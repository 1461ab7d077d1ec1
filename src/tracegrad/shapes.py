"""Shape arithmetic on plain tuples: axes, broadcasting, strides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import zip_longest

from tracegrad.dtypes import Shape
from tracegrad.errors import ShapeError

Axes = int | Sequence[int] | None


def normalize_axis(axis: int, ndim: int) -> int:
    """`axis` counted from the front; ShapeError outside [-ndim, ndim)."""
    if isinstance(axis, bool) or not isinstance(axis, int):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ShapeError(f"axis must be an integer, got {axis!r}")
    if not -ndim <= axis < ndim:
        raise ShapeError(f"axis {axis} is out of range for {ndim} dimension{'s' if ndim != 1 else ''}")
    return axis % ndim


def normalize_axes(axis: Axes, ndim: int) -> tuple[int, ...]:
    """Sorted axes counted from the front; None means all of them."""
    if axis is None:
        return tuple(range(ndim))
    axes = (axis,) if isinstance(axis, int) else tuple(axis)
    out = tuple(sorted(normalize_axis(a, ndim) for a in axes))
    if len(set(out)) != len(out):
        raise ShapeError(f"axis {axis} names the same dimension twice")
    return out


def broadcast_shapes(*shapes: Shape) -> Shape:
    """The shape that all of `shapes` broadcast to, by NumPy's rule."""
    out: list[int] = []
    for dims in zip_longest(*(reversed(s) for s in shapes), fillvalue=1):
        sizes = {d for d in dims if d != 1}
        if len(sizes) > 1:
            raise ShapeError(
                f"shapes {' and '.join(map(show, shapes))} do not broadcast: "
                f"{' and '.join(map(str, sorted(sizes)))} differ on the same axis"
            )
        out.append(sizes.pop() if sizes else 1)
    return tuple(reversed(out))


def show(shape: Sequence[int]) -> str:
    """`[2,3]`, the way types print."""
    return f"[{','.join(map(str, shape))}]"


def strides_of(shape: Sequence[int]) -> tuple[int, ...]:
    """Row-major strides in elements."""
    out: list[int] = []
    step = 1
    for n in reversed(shape):
        out.append(step)
        step *= n
    return tuple(reversed(out))


def resolve_reshape(shape: Sequence[int], size: int) -> Shape:
    """`shape` with one -1 filled in; ShapeError if it cannot hold `size` elements."""
    dims = tuple(int(n) for n in shape)
    if dims.count(-1) > 1:
        raise ShapeError(f"cannot infer more than one -1 in {show(dims)}")
    known = math.prod(n for n in dims if n != -1)
    if -1 in dims:
        if known == 0 or size % known:
            raise ShapeError(f"cannot infer -1 in {show(dims)}: {size} elements do not divide by {known}")
        dims = tuple(size // known if n == -1 else n for n in dims)
    if math.prod(dims) != size or any(n < 0 for n in dims):
        raise ShapeError(f"cannot reshape {size} elements to {show(dims)}, which holds {math.prod(dims)}")
    return dims


def reduced_shape(shape: Shape, axes: Sequence[int]) -> Shape:
    """`shape` with `axes` kept as 1."""
    return tuple(1 if d in axes else n for d, n in enumerate(shape))
