"""Find the workgroup that computes a point. A check of kernels on a software adapter launches only these workgroups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegrad.kernels.form import Kernel, points
from tracegrad.kernels.tiling import Tiling, rectangle_of, workgroup_arrays

SAMPLED_FROM = 32  # workgroups of a launch


def takes_first(tilings: Sequence[Tiling]) -> bool:
    """Return whether a software adapter can run parts of a launch: it is large, and its threads share no memory."""
    return sum(t.workgroups for t in tilings) >= SAMPLED_FROM and not workgroup_arrays(tilings)


def group_of(kernel: Kernel, tiling: Tiling, point: Any) -> Any:
    """Return the number of the workgroup that computes an outer point; for an array of points, an array of numbers.

    None for a uniform kernel, whose points are spread over all workgroups.
    """
    if kernel.uniform:
        return None
    if tiling.kind == "points":
        return point // (tiling.threads * tiling.each)
    if tiling.kind == "rows":
        return point // tiling.threads
    p = kernel.product or kernel.scatter
    assert p is not None
    (tall, wide, rectangles), at = rectangle_of(kernel, tiling), dict[str, Any]()
    for axis in reversed(kernel.outer):
        point, at[axis.name] = point // int(axis.size), point % int(axis.size)
    batch, m, n = 0, 0, 0
    for axis in p.batch:
        batch = batch * int(axis.size) + at[axis.name]
    for axis in p.m:
        m = m * int(axis.size) + at[axis.name]
    for axis in p.n:
        n = n * int(axis.size) + at[axis.name]
    down, across = -(-int(points(p.m)) // tall), -(-int(points(p.n)) // wide)
    return ((batch * down + m // tall) * across + n // wide) // rectangles
