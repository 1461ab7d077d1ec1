"""The gain and the offset of a normed operand, applied to the product's result instead.

(u g + b)^T c  =  g (u^T c) + b (1^T c),  where g and b are the same for all k

So the gradient of a weight behind a normalization multiplies what was centred and scaled, which the gradient of the
normalization reads too. With gain and offset it would be kept from the forward pass for this alone, or computed again.
And 1^T c is the gradient of the bias, which most such layers have.

Rounding, with n terms and e = 6e-8, half a unit in the last place: the result is off by at most
n e sum (|u g| + |b|) |c|, and was by n e sum |u g + b| |c| + e sum (|u g| + |b|) |c|. These differ where u g and b
cancel in all rows. Where rows are normed that takes a feature that hardly varies: over 65 536 rows the largest error,
in parts of the largest gradient, was 4e-7 and is 5e-7, and 8e-7 and 8e-6 with such a feature. Of anything else u may be
a thousand times u g + b, so only what is normed counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tracegrad import ambient
from tracegrad.ir import Graph, Tensor, bind, rebind, toposort
from tracegrad.passes.recompute import FROM
from tracegrad.prims.folds import MATMUL, SUM
from tracegrad.prims.views import BROADCAST, PERMUTE, RESHAPE, permute, reshape

TRANSPOSED = (1, 0)


class Affine(NamedTuple):
    """inner * gain + offset, two vectors along the last axis, of which one may be missing. between: how it is made."""

    inner: Tensor
    gain: Tensor | None
    offset: Tensor | None
    between: frozenset[int]  # serials


def apply_gains(graph: Graph) -> Graph:
    """Rewrite the large products of the backward pass. Comes before products are merged and split."""
    loss, order = graph.outputs.get("loss"), toposort(graph.roots)
    if loss is None or all(t.size < FROM for t in order):
        return graph
    forward = {t.serial for t in toposort([loss])}
    learned = list(graph.writes.values()) or graph.roots  # a capture must not change what is learned
    found = _Backward([t for t in toposort(learned) if t.serial not in forward])
    new: dict[int, Tensor] = {}
    with ambient.rewriting() as here:
        for t in order:
            here.site = t.site
            out = found.rewritten(t, new) if t.serial in found.products else None
            new[t.serial] = rebind(t, [new[x.serial] for x in t.inputs]) if out is None else out
    return graph.with_roots([new[t.serial] for t in graph.roots])


class _Backward:
    """What the backward pass reads, and what it sums up."""

    def __init__(self, nodes: Sequence[Tensor]) -> None:
        self.products = {t.serial for t in nodes if t.prim is MATMUL and t.ndim == 2 and t.inputs[0].prim is PERMUTE}
        self.readers: dict[int, set[int]] = {}
        for t in nodes:
            for x in t.inputs:
                self.readers.setdefault(x.serial, set()).add(t.serial)
        sums = [t for t in nodes if t.prim is SUM and t.ndim > 1 and t.axes == tuple(range(t.ndim - 1))]
        self.sums = {as_matrix(t.inputs[0]): t for t in sums}

    def rewritten(self, t: Tensor, new: Mapping[int, Tensor]) -> Tensor | None:
        """The product `t` with a gain and an offset behind it; None if no operand has them, or that spares nothing."""
        sides = t.inputs[0].inputs[0], t.inputs[1]  # with k along their rows
        for k, (side, other) in enumerate((sides, sides[::-1])):
            found, total = affine(side), self.sums.get(as_matrix(other))
            if found is None or side.size < max(FROM, t.size) or (found.offset is not None and total is None):
                continue
            if self.readers.get(found.inner.serial, set[int]()) <= found.between:
                continue  # nothing else of the backward pass reads it: it would be kept in place of the whole
            matrices = [new[x.serial] for x in sides]
            matrices[k] = reshape(new[found.inner.serial], side.shape)
            out = bind(MATMUL, permute(matrices[0], TRANSPOSED), matrices[1])
            column, row = (t.shape[0], 1), (1, t.shape[1])
            own, others = (column, row) if k == 0 else (row, column)
            if found.gain is not None:
                out = out * reshape(new[found.gain.serial], own)
            if found.offset is not None and total is not None:
                summed = bind(SUM, reshape(new[source(other).serial], total.inputs[0].shape), axes=total.axes)
                out = out + reshape(new[found.offset.serial], own) * reshape(summed, others)
            return out
        return None


def source(x: Tensor) -> Tensor:
    """What `x` is, seen through reshapes."""
    while x.prim is RESHAPE:
        x = x.inputs[0]
    return x


def as_matrix(x: Tensor) -> tuple[int, int]:
    """Equal for tensors that are the same matrix, its rows being all axes but the last."""
    return source(x).serial, x.shape[-1]


def affine(side: Tensor) -> Affine | None:
    """What an operand is, if it is a normed value with a gain, an offset, or both."""
    whole = source(side)
    if whole.shape[-1:] != side.shape[-1:]:
        return None
    scaled, offset = _peeled(whole, "add")
    inner, gain = _peeled(scaled, "mul")
    if inner is whole or not _is_normed(inner):
        return None
    return Affine(inner, gain, offset, frozenset({whole.serial, scaled.serial} - {inner.serial}))


def _peeled(x: Tensor, name: str) -> tuple[Tensor, Tensor | None]:
    """`x` without the vector that the op `name` adds or multiplies all its rows with, and that vector."""
    if x.prim.name == name:
        for other, y in (x.inputs, x.inputs[::-1]):
            if y.prim is BROADCAST and y.inputs[0].size == y.shape[-1] == y.inputs[0].shape[-1] < y.size:
                return other, y.inputs[0]
    return x, None


def _is_normed(x: Tensor) -> bool:
    """Is each of its rows scaled by one over a root?"""
    return x.prim.name == "mul" and any(
        y.prim is BROADCAST and y.inputs[0].shape[-1:] == (1,) and source(y.inputs[0]).prim.name == "rsqrt"
        for y in x.inputs
    )
