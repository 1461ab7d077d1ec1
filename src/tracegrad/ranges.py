"""Which inputs are indices, and into what: the host checks each batch against that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracegrad.ir import Graph, Tensor


def input_ranges(graph: Graph) -> dict[str, Mapping[str, Any]]:
    """name -> {"range": [lo, hi]}, both included, for i32 inputs that reach an index unchanged.

    "exempt" is a further value that is allowed, as the `ignore_index` of a loss.
    """
    found: dict[str, dict[str, Any]] = {}
    for t in graph.nodes:
        if t.prim.indexes is None:
            continue
        position, size, exempt = t.prim.indexes(*(x.type for x in t.inputs), **t.attrs)
        source = origin(t.inputs[position])
        if source is not None:
            spec = found.setdefault(str(source.attrs["name"]), {"range": [0, size - 1]})
            spec["range"][1] = min(spec["range"][1], size - 1)
            if exempt is not None:
                spec["exempt"] = exempt
    return dict(found)


def origin(t: Tensor) -> Tensor | None:
    """The i32 input that `t` is, seen through views."""
    while t.prim.family == "view" or t.prim.passes:
        t = t.inputs[0]
    is_input = t.prim.name == "leaf" and t.attrs["role"] == "input" and t.dtype.name == "i32"
    return t if is_input else None
