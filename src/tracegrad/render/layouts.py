"""Decide which operands of a product BLAS can read without a copy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tracegrad.kernels.form import Axis


def blas_ready(
    groups: Sequence[Sequence[Axis]], strides: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return sizes and strides of a stack of matrices, an axis for each group; None if BLAS does not accept it.

    One axis of the matrices must be contiguous, and neither may repeat an element.
    """
    folded = [f for f in (collapse(group, strides) for group in groups) if f is not None]
    if len(folded) < len(groups):
        return None
    (m, step_m), (n, step_n) = folded[-2:]
    if (m > 1 and step_m == 0) or (n > 1 and step_n == 0) or not (step_n == 1 or n == 1 or step_m == 1 or m == 1):
        return None
    sizes, steps = zip(*folded)
    return sizes, steps


def collapse(axes: Sequence[Axis], strides: Mapping[str, int]) -> tuple[int, int] | None:
    """Return size and stride of several axes as one axis; None if their strides do not fit."""
    size, stride = 1, 0
    for a in reversed(axes):
        step = strides.get(a.name, 0)
        if a.size == 1:
            continue
        if size == 1:
            size, stride = a.size, step
        elif step == stride * size:
            size *= a.size
        else:
            return None
    return size, stride
