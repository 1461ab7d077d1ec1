"""TRACEGRAD_CHECK=1: report indices that the device computes and would clamp because they are out of range.

Indices that come straight from an input are always checked, see `inputs`; only computed ones need the reference.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from tracegrad.arrays import np
from tracegrad.errors import InputError, located
from tracegrad.evaluate import evaluate, named_by_role
from tracegrad.graph import Graph
from tracegrad.ir import Tensor, toposort
from tracegrad.transforms.loops import Body, item

SWITCH = "TRACEGRAD_CHECK"


# Each step and run asks for the variable, which is mostly unset. os.environ raises and catches an error for that, in
# 0.8 us; CPython's table behind it, which has encoded names, takes a tenth. Elsewhere os.environ is the table.
_TABLE: Any = getattr(os.environ, "_data", os.environ)
_NAME: Any = os.environ.encodekey(SWITCH) if _TABLE is not os.environ else SWITCH


def enabled() -> bool:
    """Return whether TRACEGRAD_CHECK is set."""
    return _NAME in _TABLE and os.environ[SWITCH] not in ("", "0")


def check_indices(graph: Graph, env: Mapping[str, Any]) -> None:
    """Raise InputError for the first op with an index out of range, with the index, its range and the user's line.

    env: an array for each leaf, by role and name, as for `nonfinite.blame`.
    """
    nodes, indices = _indexed(named_by_role(graph.roots))
    with np.errstate(all="ignore"):
        values = [np.asarray(x) for x in evaluate(indices, env, np)]
    for t, x in zip(nodes, values, strict=True):
        _, size, exempt = _rule(t)
        bad = x[((x < 0) | (x >= size)) & (x != exempt)]
        if bad.size:
            raise InputError(
                located(f"{t.prim.name}: computed index {bad[0]} is out of range; valid are 0 to {size - 1}", t.site)
            )


def _indexed(roots: Sequence[Tensor]) -> tuple[list[Tensor], list[Tensor]]:
    """Return nodes with an index among their inputs, and the index; in a scan, the indices of all iterations."""
    nodes: list[Tensor] = []
    indices: list[Tensor] = []
    for t in toposort(roots):
        if t.prim.indexes is not None:
            nodes.append(t)
            indices.append(t.inputs[_rule(t)[0]])
        elif t.prim.family == "scan":
            body: Body = t.attrs["body"]
            place = {node.serial: len(body.new) + k for k, node in enumerate(body.each)}
            inner = [node for node in body.each if node.prim.indexes is not None]
            nodes += inner
            indices += [item(t, place[node.inputs[_rule(node)[0]].serial]) for node in inner]
    return nodes, indices


def _rule(t: Tensor) -> tuple[int, int, int | None]:
    assert t.prim.indexes is not None
    return t.prim.indexes(*(x.type for x in t.inputs), **t.attrs)
