"""Which inputs are indices, and into what: the host checks each batch against that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tracegrad.ir import Graph, Tensor

UNCHANGED = ("reshape", "permute", "broadcast", "slice", "stop_gradient", "copy")


def input_ranges(graph: Graph) -> dict[str, Mapping[str, Any]]:
    """name -> {"range": [lo, hi]}, both included, for i32 inputs that reach an index unchanged."""
    found: dict[str, list[int]] = {}
    for t in graph.nodes:
        for x, size in indexed(t):
            source = origin(x)
            if source is not None:
                name = str(source.attrs["name"])
                lo, hi = found.get(name, [0, size - 1])
                found[name] = [lo, min(hi, size - 1)]
    return {name: {"range": bounds} for name, bounds in found.items()}


def indexed(t: Tensor) -> list[tuple[Tensor, int]]:
    """Inputs of a node that are indices, and into how many elements."""
    if t.prim.family == "gather":
        return [(t.inputs[1], t.inputs[0].shape[t.attrs["axis"]])]
    if t.prim.family == "scatter":
        return [(t.inputs[1], t.attrs["length"])]
    if t.prim.name in ("cross_entropy", "nll_loss") and len(t.inputs) > 1 and t.attrs.get("ignore_index") is None:
        return [(t.inputs[1], t.inputs[0].shape[-1])]
    return []


def origin(t: Tensor) -> Tensor | None:
    """The input that `t` is, seen through views."""
    while t.prim.name in UNCHANGED:
        t = t.inputs[0]
    is_input = t.prim.name == "leaf" and t.attrs["role"] == "input" and t.dtype.name == "i32"
    return t if is_input else None
