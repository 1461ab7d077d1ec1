"""Replace composites by what they are made of, after differentiation has used their own VJPs."""

from __future__ import annotations

from collections.abc import Sequence

from tracegrad.ir import Tensor, rewrite, toposort
from tracegrad.passes.empty import of_nothing
from tracegrad.passes.scans import in_bodies, only_asked


def expand_composites(roots: Sequence[Tensor]) -> list[Tensor]:
    """A graph of primitives only, without unread outputs of a scan. A composite may expand to other composites.

    Once more after that: what a composite has besides its expansion, such as a rule to compute it again, is gone.
    """
    return only_asked(_expanded(only_asked(roots)))


def _expanded(roots: Sequence[Tensor]) -> list[Tensor]:
    while any(t.prim.expand is not None for t in toposort(roots)):
        roots = rewrite(roots, _rule)
    return in_bodies(roots, _expanded)


def _rule(t: Tensor, inputs: tuple[Tensor, ...]) -> Tensor | None:
    if t.prim.expand is None:
        return None
    if t.size == 0:
        return of_nothing(t, inputs)
    expanded = t.prim.expand(*inputs, **t.attrs)
    if expanded.type != t.type:
        raise AssertionError(f"{t.prim.name} expands to {expanded.type}, its type rule says {t.type}")
    return expanded
