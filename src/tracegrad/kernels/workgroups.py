"""Which workgroup computes a point, where threads share no memory: some are launched without the others."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegrad.kernels.form import Kernel, points
from tracegrad.kernels.tiling import Tiling, workgroup_arrays

SAMPLED_FROM = 32  # workgroups of a launch


def takes_first(tilings: Sequence[Tiling]) -> bool:
    """Does the text of a launch say at which of its workgroups to begin? Only what software adapters run does."""
    return sum(t.workgroups for t in tilings) >= SAMPLED_FROM and not workgroup_arrays(tilings)


def group_of(kernel: Kernel, tiling: Tiling, point: Any) -> Any:
    """The number of the workgroup that computes an outer point; an array of those of several.

    None for a kernel whose workgroups share out all of its points.
    """
    if kernel.uniform:
        return None
    if tiling.kind == "points":
        return point // (tiling.threads * tiling.each)
    if tiling.kind == "rows":
        return point // tiling.threads
    p, tile = kernel.product, tiling.tile
    assert tiling.kind == "square" and p is not None and tile is not None
    side, at = tile.square(kernel), dict[str, Any]()
    for axis in reversed(kernel.outer):
        point, at[axis.name] = point // int(axis.size), point % int(axis.size)
    batch, m, n = 0, 0, 0
    for axis in p.batch:
        batch = batch * int(axis.size) + at[axis.name]
    for axis in p.m:
        m = m * int(axis.size) + at[axis.name]
    for axis in p.n:
        n = n * int(axis.size) + at[axis.name]
    down, across = (-(-int(points(axes)) // side) for axes in (p.m, p.n))
    return ((batch * down + m // side) * across + n // side) // tiling.threads
