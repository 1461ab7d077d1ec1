"""Find the inputs that are indices, seen through views and scans, whose ranges the host can check."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from itertools import product

from tracegrad.ir.nodes import Tensor, toposort
from tracegrad.transforms.loops import Body

Box = list[list[int]]  # a part of an array: [first, last] on each axis


def indexed(nodes: Iterable[Tensor], outside: Mapping[int, Tensor]) -> Iterator[tuple[Tensor, Box, int, int | None]]:
    """Yield each i32 input that reaches an index unchanged, the part used, the indexed axis's size, an exempt value.

    outside: serial of a body's leaf -> the value it is or iterates over.
    """
    for t in nodes:
        if t.prim.family == "scan":
            body: Body = t.attrs["body"]
            n = len(body.carries)
            inner = {leaf.serial: x for leaf, x in zip(body.leaves[n:], t.inputs[n:])}
            yield from indexed(toposort(body.roots), {**outside, **inner})
        if t.prim.indexes is not None:
            position, size, exempt = t.prim.indexes(*(x.type for x in t.inputs), **t.attrs)
            source, box = _origin(t.inputs[position], outside)
            if source is not None and t.inputs[position].size:
                yield source, box, size, exempt


def _origin(t: Tensor, outside: Mapping[int, Tensor]) -> tuple[Tensor | None, Box]:
    """Return the i32 input of which `t` is a part, seen through views and scans, or None; and the part."""
    box = _whole(t)
    while t.prim.family == "view" or t.prim.passes or t.serial in outside:
        x = outside[t.serial] if t.serial in outside else t.inputs[0]
        if t.prim.family == "view":
            box = _read(t, x, box)
        else:  # for all iterations: the body of a scan reads one element of axis 0, or the whole value
            box = [*_whole(x)[: x.ndim - t.ndim], *box]
        t = x
    is_input = t.prim.name == "leaf" and t.attrs["role"] == "input" and t.dtype.name == "i32"
    return (t if is_input else None), box


def _whole(t: Tensor) -> Box:
    return [[0, n - 1] for n in t.shape]


def _read(view: Tensor, x: Tensor, box: Box) -> Box:
    """Return the part of `x` that a part of its view reads: coordinates are extreme at the corners of a box."""
    if not view.size:
        return _whole(x)
    if view.prim.index is None:  # a reshape
        return _regrouped(view, x, box)
    corners = [view.prim.index(corner, x.type, **view.attrs)[0] for corner in product(*box)]
    limits = [(max(0, min(at)), min(n - 1, max(at))) for at, n in zip(zip(*corners), x.shape)]
    return [[first, last] for first, last in limits]


def _regrouped(view: Tensor, x: Tensor, box: Box) -> Box:
    """Return the part of `x` that a part of its reshape reads. Common first and last axes keep their limits."""
    most = min(x.ndim, view.ndim)
    first = next((k for k in range(most) if x.shape[k] != view.shape[k]), most)
    last = next((k for k in range(most - first) if x.shape[~k] != view.shape[~k]), most - first)
    middle = _whole(x)[first : x.ndim - last]
    return [*box[:first], *middle, *box[view.ndim - last :]]
