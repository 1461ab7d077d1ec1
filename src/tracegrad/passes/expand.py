"""Expand composites to primitives, after differentiation has used the VJPs of the composites."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from tracegrad.ir.nodes import Tensor, rewrite, toposort
from tracegrad.passes.scans import in_bodies, only_asked
from tracegrad.passes.simplify import of_nothing


def expand_composites(roots: Sequence[Tensor], kept: Callable[[Tensor], bool] = lambda t: False) -> list[Tensor]:
    """Return a graph of primitives only, without unread outputs of scans. A composite may expand to other composites.

    Unread outputs are removed before and after expanding, because some composites have inputs that only their
    derivatives need. Expanding drops these inputs.

    kept: returns True for a composite that stays, because the code that runs the graph implements it.
    """
    return only_asked(_expanded(only_asked(roots), kept))


def with_array_rules(roots: Sequence[Tensor]) -> list[Tensor]:
    """Return a graph of nodes that have array rules: composites without one are expanded."""
    return expand_composites(roots, lambda t: t.prim.array is not None)


def _expanded(roots: Sequence[Tensor], kept: Callable[[Tensor], bool]) -> list[Tensor]:
    while any(_expands(t, kept) for t in toposort(roots)):
        roots = rewrite(roots, lambda t, inputs: _expansion(t, inputs) if _expands(t, kept) else None)
    return in_bodies(roots, lambda inner: _expanded(inner, kept))


def _expands(t: Tensor, kept: Callable[[Tensor], bool]) -> bool:
    return t.prim.expand is not None and (t.size == 0 or not kept(t))


def _expansion(t: Tensor, inputs: tuple[Tensor, ...]) -> Tensor | None:
    assert t.prim.expand is not None
    if t.size == 0:
        return of_nothing(t, inputs)
    expanded = t.prim.expand(*inputs, **t.attrs)
    if expanded.type != t.type:
        raise AssertionError(f"{t.prim.name} expands to {expanded.type}, its type rule says {t.type}")
    return expanded
