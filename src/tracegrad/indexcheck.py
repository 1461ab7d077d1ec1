"""TRACEGRAD_CHECK=1: report indices that are computed on the device and out of range, which it would clamp.

Indices that come straight from an input are checked always, see `inputs`; only computed ones need the reference.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from tracegrad.arrays import np
from tracegrad.errors import InputError, located
from tracegrad.evaluate import evaluate
from tracegrad.ir import Graph, Tensor, rewrite, toposort
from tracegrad.nonfinite import named_by_role


def enabled() -> bool:
    """Is TRACEGRAD_CHECK set?"""
    return os.environ.get("TRACEGRAD_CHECK", "") not in ("", "0")


def check_indices(graph: Graph, env: Mapping[str, Any]) -> None:
    """InputError naming the first op whose index lies outside, with the index, its range and the user's line.

    env: an array for each leaf, by role and name, as for `nonfinite.explain`.
    """
    for t, x in zip(*_index_values(graph, env), strict=True):
        _, size, exempt = _indexed(t)
        bad = x[((x < 0) | (x >= size)) & (x != exempt)]
        if bad.size:
            raise InputError(
                located(f"{t.prim.name}: computed index {bad[0]} is out of range; valid are 0 to {size - 1}", t.site)
            )


def _index_values(graph: Graph, env: Mapping[str, Any]) -> tuple[list[Tensor], list[Any]]:
    """Nodes with an index among their inputs, and the values of it."""
    nodes = [t for t in toposort(rewrite(graph.roots, named_by_role)) if t.prim.indexes is not None]
    with np.errstate(all="ignore"):
        return nodes, [np.asarray(x) for x in evaluate([t.inputs[_indexed(t)[0]] for t in nodes], env, np)]


def _indexed(t: Tensor) -> tuple[int, int, int | None]:
    assert t.prim.indexes is not None
    return t.prim.indexes(*(x.type for x in t.inputs), **t.attrs)
