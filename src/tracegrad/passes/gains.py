"""Gains and offsets of a product's operand, applied to the product's result instead.

(u g + b)^T c  =  g (u^T c) + b (1^T c),  where g and b are the same for all k

So the gradient of a weight behind a normalization reads what only was centred and scaled, which is in memory for the
gradient of the normalization. The operand itself would be kept from the forward pass, or be computed again. And 1^T c
is the gradient of the bias, which most such layers have.

Rounding: with n terms the result is off by at most about n u sum (|u g| + |b|) |c| either way (u: 6e-8, half a unit in
the last place). Where u g and b cancel, the operand itself has been rounded to u (|u g| + |b|).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from typing import NamedTuple

from tracegrad import ambient
from tracegrad.ir import Graph, Tensor, bind, rebind, toposort
from tracegrad.passes.recompute import FROM
from tracegrad.prims.folds import MATMUL, SUM
from tracegrad.prims.views import BROADCAST, PERMUTE, RESHAPE, permute, reshape

TRANSPOSED = (1, 0)


class Affine(NamedTuple):
    """inner * gain + offset: vectors along the last axis, or None."""

    whole: Tensor
    inner: Tensor
    gain: Tensor | None
    offset: Tensor | None


def apply_gains(graph: Graph) -> Graph:
    """Rewrite the products of the backward pass that read a large operand of the forward. Comes before products are
    merged and split."""
    loss, order = graph.outputs.get("loss"), toposort(graph.roots)
    if loss is None or all(t.size < FROM for t in order):
        return graph
    forward = {t.serial for t in toposort([loss])}
    found = _Backward(forward, order)
    new: dict[int, Tensor] = {}
    with ambient.rewriting() as here:
        for t in order:
            here.site = t.site
            moved = found.moved(t, new) if t.prim is MATMUL and t.ndim == 2 else None
            new[t.serial] = rebind(t, [new[x.serial] for x in t.inputs]) if moved is None else moved
    return graph.with_roots([new[t.serial] for t in graph.roots])


class _Backward:
    """What the backward pass reads, and what it sums up."""

    def __init__(self, forward: Set[int], order: Sequence[Tensor]) -> None:
        self.forward = forward
        self.reads = {x.serial for t in order if t.serial not in forward for x in t.inputs}
        sums = [t for t in order if t.prim is SUM and t.axes == tuple(range(t.ndim - 1)) and t.ndim > 1]
        self.sums = {matrix(t.inputs[0]): t for t in sums}

    def moved(self, t: Tensor, new: Mapping[int, Tensor]) -> Tensor | None:
        """The product `t` with a gain and an offset of one operand behind it; None if that spares nothing."""
        a, b = t.inputs
        if t.serial in self.forward or a.prim is not PERMUTE:
            return None
        sides = a.inputs[0], b  # with k along their rows
        for k, (side, other) in enumerate((sides, sides[::-1])):
            found, total = affine(side), self.sums.get(matrix(other))
            if found is None or not self.spared(found, t) or (found.offset is not None and total is None):
                continue
            matrices = [new[x.serial] for x in sides]
            matrices[k] = reshape(new[found.inner.serial], side.shape)
            out = bind(MATMUL, permute(matrices[0], TRANSPOSED), matrices[1])
            along, across = (t.shape[0], 1), (1, t.shape[1])
            if k == 1:
                along, across = across, along
            if found.gain is not None:
                out = out * reshape(new[found.gain.serial], along)
            if found.offset is not None and total is not None:
                summed = bind(SUM, reshape(new[source(other).serial], total.inputs[0].shape), axes=total.axes)
                out = out + reshape(new[found.offset.serial], along) * reshape(summed, across)
            return out
        return None

    def spared(self, found: Affine, t: Tensor) -> bool:
        """Would the operand be kept or computed again for `t`, but what is in it is in memory for others?"""
        whole, inner = found.whole, found.inner
        large = whole.size >= max(FROM, t.size)
        return large and whole.serial in self.forward and inner.serial in self.reads


def source(x: Tensor) -> Tensor:
    """What `x` is, seen through reshapes."""
    while x.prim is RESHAPE:
        x = x.inputs[0]
    return x


def matrix(x: Tensor) -> tuple[int, int]:
    """Equal for tensors that are one matrix, but for the shape of its rows' axis."""
    return source(x).serial, x.shape[-1]


def affine(side: Tensor) -> Affine | None:
    """What an operand is, if anything is added to it or multiplied with it that its rows have in common."""
    whole = inner = source(side)
    if whole.shape[-1:] != side.shape[-1:]:
        return None
    vectors: dict[str, Tensor | None] = {"add": None, "mul": None}
    for name in vectors:
        if inner.prim.name == name:
            for x, y in (inner.inputs, inner.inputs[::-1]):
                if vectors[name] is None and _is_row(y):
                    inner, vectors[name] = x, y.inputs[0]
    return None if inner is whole else Affine(whole, inner, vectors["mul"], vectors["add"])


def _is_row(x: Tensor) -> bool:
    """Is it one vector along the last axis, repeated?"""
    return x.prim is BROADCAST and x.inputs[0].size == x.shape[-1] == x.inputs[0].shape[-1] < x.size
