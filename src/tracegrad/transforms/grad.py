"""Reverse-mode differentiation: a fold over the graph with each row's VJP."""

from __future__ import annotations

from collections.abc import Sequence

from tracegrad import ambient
from tracegrad.ir import Tensor, toposort
from tracegrad.prims.leaves import const
from tracegrad.prims.views import broadcast_to


def gradients(y: Tensor, wrt: Sequence[Tensor], scale: Tensor | None = None) -> list[Tensor]:
    """Return d y / d x for each x of `wrt`, times `scale`; zeros where `y` does not depend on x. `y` has rank 0."""
    with ambient.rewriting() as here:
        here.site = y.site
        return cotangents([y], [const(1.0, y.dtype) if scale is None else scale], wrt)


def cotangents(ys: Sequence[Tensor], seeds: Sequence[Tensor], wrt: Sequence[Tensor]) -> list[Tensor]:
    """Return the cotangent of each x of `wrt`, given those of `ys`; zeros where nothing depends on x."""
    with ambient.rewriting():
        found = arriving(ys, seeds, wrt)
        return [broadcast_to(const(0.0), x.shape) if g is None else g for x, g in zip(wrt, found)]


def arriving(ys: Sequence[Tensor], seeds: Sequence[Tensor], wrt: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the same as `cotangents`, with None in place of zeros."""
    order = toposort(ys, min((x.serial for x in wrt), default=0))  # nodes that depend on x are newer
    needed = _on_path(order, wrt)
    cts: dict[int, Tensor] = {}
    with ambient.rewriting() as here:
        for y, seed in zip(ys, seeds, strict=True):
            cts[y.serial] = cts[y.serial] + seed if y.serial in cts else seed
        for t in reversed(order):
            ct = cts.get(t.serial)
            if ct is None or t.prim.vjp is None:
                continue
            here.site = t.site
            for x, g in zip(t.inputs, t.prim.vjp(ct, t, *t.inputs, **t.attrs)):
                if g is not None and x.serial in needed:
                    cts[x.serial] = cts[x.serial] + g if x.serial in cts else g
        return [cts.get(x.serial) for x in wrt]


def _on_path(order: Sequence[Tensor], wrt: Sequence[Tensor]) -> set[int]:
    """Return the serials of the float nodes between `wrt` and the end: only they need a cotangent."""
    found = {x.serial for x in wrt}
    for t in order:
        if t.dtype.is_float and any(x.serial in found for x in t.inputs):
            found.add(t.serial)
    return found
