"""Find which inputs are indices, and their valid ranges; the host checks each batch against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from tracegrad.ir import Graph, Tensor, toposort
from tracegrad.transforms.loops import Body

Box = list[list[int]]


def input_ranges(graph: Graph) -> dict[str, Mapping[str, Any]]:
    """Return name -> {"range": [lo, hi]}, both included, for i32 inputs that reach an index unchanged.

    "exempt" is one more allowed value, such as the `ignore_index` of a loss. "box" is the part of the input that is
    used, [first, last] on each axis; without "box", all of the input is used.
    """
    found: dict[str, dict[str, Any]] = {}
    _collect(graph.nodes, {}, found)
    for spec in found.values():
        if all(first == 0 and last == n - 1 for (first, last), n in zip(spec.get("box", ()), spec.pop("shape", ()))):
            spec.pop("box", None)
    return dict(found)


def _collect(nodes: Sequence[Tensor], outside: Mapping[int, Tensor], found: dict[str, dict[str, Any]]) -> None:
    """Collect the ranges of some nodes. `outside`: serial of a body's leaf -> the value it is or iterates over."""
    for t in nodes:
        if t.prim.family == "scan":
            body: Body = t.attrs["body"]
            n = len(body.carries)
            inner = {leaf.serial: x for leaf, x in zip(body.leaves[n:], t.inputs[n:])}
            _collect(toposort(body.roots), {**outside, **inner}, found)
        if t.prim.indexes is None:
            continue
        position, size, exempt = t.prim.indexes(*(x.type for x in t.inputs), **t.attrs)
        source, box = _origin(t.inputs[position], outside)
        if source is not None:
            spec = found.setdefault(str(source.attrs["name"]), {})
            spec["range"] = [0, min([size - 1, *spec.get("range", ())[1:]])]
            spec["box"] = [[min(a[0], b[0]), max(a[1], b[1])] for a, b in zip(spec.get("box", box), box)]
            spec["shape"] = source.shape
            if exempt is not None:
                spec["exempt"] = exempt


def _origin(t: Tensor, outside: Mapping[int, Tensor]) -> tuple[Tensor | None, Box]:
    """Return the i32 input that `t` equals or is part of, seen through views and scans, and the part."""
    box = _whole(t)
    while t.prim.family == "view" or t.prim.passes or t.serial in outside:
        x = outside[t.serial] if t.serial in outside else t.inputs[0]
        box = _read(t, x, box) if t.prim.family == "view" and t.serial not in outside else _whole(x)
        t = x
    is_input = t.prim.name == "leaf" and t.attrs["role"] == "input" and t.dtype.name == "i32"
    return (t if is_input else None), box


def _whole(t: Tensor) -> Box:
    return [[0, n - 1] for n in t.shape]


def _read(view: Tensor, x: Tensor, box: Box) -> Box:
    """Return the part of `x` that a part of its view reads: coordinates are extreme at the corners of a box."""
    if view.prim.index is None or not view.size:
        return _whole(x)
    corners = [view.prim.index(corner, x.type, **view.attrs)[0] for corner in product(*box)]
    limits = [(max(0, min(at)), min(n - 1, max(at))) for at, n in zip(zip(*corners), x.shape)]
    return [[first, last] for first, last in limits]
