"""Which inputs are indices, and into what: the host checks each batch against that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tracegrad.ir import Graph, Tensor, toposort
from tracegrad.transforms.loops import Body


def input_ranges(graph: Graph) -> dict[str, Mapping[str, Any]]:
    """name -> {"range": [lo, hi]}, both included, for i32 inputs that reach an index unchanged.

    "exempt" is a further value that is allowed, as the `ignore_index` of a loss.
    """
    found: dict[str, dict[str, Any]] = {}
    _collect(graph.nodes, {}, found)
    return dict(found)


def _collect(nodes: Sequence[Tensor], outside: Mapping[int, Tensor], found: dict[str, dict[str, Any]]) -> None:
    """`outside`: serial of a body's leaf -> what it is, or is an element of."""
    for t in nodes:
        if t.prim.family == "scan":
            body: Body = t.attrs["body"]
            n = len(body.carries)
            inner = {leaf.serial: x for leaf, x in zip(body.leaves[n:], t.inputs[n:])}
            _collect(toposort(body.roots), {**outside, **inner}, found)
        if t.prim.indexes is None:
            continue
        position, size, exempt = t.prim.indexes(*(x.type for x in t.inputs), **t.attrs)
        source = origin(t.inputs[position], outside)
        if source is not None:
            spec = found.setdefault(str(source.attrs["name"]), {})
            spec["range"] = [0, min([size - 1, *spec.get("range", ())[1:]])]
            if exempt is not None:
                spec["exempt"] = exempt


def origin(t: Tensor, outside: Mapping[int, Tensor]) -> Tensor | None:
    """The i32 input that `t` is, or is a part of, seen through views and scans."""
    while t.prim.family == "view" or t.prim.passes or t.serial in outside:
        t = outside[t.serial] if t.serial in outside else t.inputs[0]
    is_input = t.prim.name == "leaf" and t.attrs["role"] == "input" and t.dtype.name == "i32"
    return t if is_input else None
