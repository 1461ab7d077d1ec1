"""Find which inputs are indices, and their valid ranges; the host checks each batch against them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import product
from typing import Any

from tracegrad.dtypes import Shape
from tracegrad.graph import Graph
from tracegrad.ir import Tensor, toposort
from tracegrad.transforms.loops import Body

Box = list[list[int]]
Spec = dict[str, Any]


def input_ranges(graph: Graph) -> dict[str, Mapping[str, Any]]:
    """Return name -> {"range": [lo, hi]}, both included, for i32 inputs that reach an index unchanged.

    "exempt" is one more allowed value, such as the `ignore_index` of a loss. "box" is the part of the input that is
    used, [first, last] on each axis; without "box", all of the input is used. "others" has the same of other parts,
    such as columns that are indices into another table.
    """
    found: dict[str, list[Spec]] = {}
    shapes: dict[str, Shape] = {}
    _collect(graph.nodes, {}, found, shapes)
    for name, specs in found.items():
        for spec in specs:
            if all(first == 0 and last == n - 1 for (first, last), n in zip(spec["box"], shapes[name])):
                del spec["box"]
    return {n: {**first, **({"others": others} if others else {})} for n, (first, *others) in found.items()}


def _collect(
    nodes: Sequence[Tensor], outside: Mapping[int, Tensor], found: dict[str, list[Spec]], shapes: dict[str, Shape]
) -> None:
    """Collect the ranges of some nodes, and the shapes of the inputs.

    outside: serial of a body's leaf -> the value it is or iterates over.
    """
    for t in nodes:
        if t.prim.family == "scan":
            body: Body = t.attrs["body"]
            n = len(body.carries)
            inner = {leaf.serial: x for leaf, x in zip(body.leaves[n:], t.inputs[n:])}
            _collect(toposort(body.roots), {**outside, **inner}, found, shapes)
        if t.prim.indexes is None:
            continue
        position, size, exempt = t.prim.indexes(*(x.type for x in t.inputs), **t.attrs)
        source, box = _origin(t.inputs[position], outside)
        if source is not None:
            name = str(source.attrs["name"])
            shapes[name] = source.shape
            new: Spec = {"range": [0, size - 1], "box": box} | ({} if exempt is None else {"exempt": exempt})
            if not any(_joined(old, new) for old in found.setdefault(name, [])):
                found[name].append(new)


def _joined(old: Spec, new: Spec) -> bool:
    """Extend `old` to what `new` says, too, if one entry can say both: of the same part, or of parts side by side."""
    if old.get("exempt") != new.get("exempt"):
        return False
    if old["box"] == new["box"]:
        old["range"] = min(old["range"], new["range"])
        return True
    apart = [k for k, (a, b) in enumerate(zip(old["box"], new["box"])) if a != b]
    (a, b), (c, d) = old["box"][apart[0]], new["box"][apart[0]]
    if old["range"] != new["range"] or len(apart) > 1 or max(a, c) > min(b, d) + 1:
        return False
    old["box"] = [[min(a, c), max(b, d)] if k == apart[0] else x for k, x in enumerate(old["box"])]
    return True


def _origin(t: Tensor, outside: Mapping[int, Tensor]) -> tuple[Tensor | None, Box]:
    """Return the i32 input that `t` equals or is part of, seen through views and scans, and the part."""
    box = _whole(t)
    while t.prim.family == "view" or t.prim.passes or t.serial in outside:
        x = outside[t.serial] if t.serial in outside else t.inputs[0]
        if t.prim.family == "view":
            box = _read(t, x, box)
        else:  # of all iterations: a scan's body has an element of axis 0, or the whole value
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
    """Return the part of `x` that a part of its reshape reads: axes that both begin or end with keep theirs."""
    most = min(x.ndim, view.ndim)
    first = next((k for k in range(most) if x.shape[k] != view.shape[k]), most)
    last = next((k for k in range(most - first) if x.shape[~k] != view.shape[~k]), most - first)
    middle = _whole(x)[first : x.ndim - last]
    return [*box[:first], *middle, *box[view.ndim - last :]]
