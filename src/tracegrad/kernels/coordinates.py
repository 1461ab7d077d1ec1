"""Coordinates: row-major flat indices, and coordinates in another shape with the same elements."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tracegrad.kernels.expr import Atom, Index, Space


def unravel(flat: Index, shape: Sequence[int], guarded: bool = False) -> tuple[Index, ...]:
    """Return the row-major coordinates of a flat index.

    guarded: guards keep the index in range, even if its bounds do not, so the first coordinate needs no remainder.
    """
    out: list[Index] = []
    stride = math.prod(shape)
    for d, n in enumerate(shape):
        stride //= n
        quotient = flat // stride
        out.append(quotient if guarded and d == 0 and n > 1 else quotient % n)
    return tuple(out)


def ravel(coordinates: Sequence[Index], shape: Sequence[int], space: Space) -> Index:
    """Return the row-major flat index of coordinates."""
    terms: dict[Atom, int] = {}
    const, stride = 0, 1
    for i, n in zip(reversed(coordinates), reversed(shape)):
        for atom, c in i.terms:
            terms[atom] = terms.get(atom, 0) + c * stride
        const += i.const * stride
        stride *= n
    return space.index(terms, const)


def regroup(
    coordinates: Sequence[Index], shape: Sequence[int], target: Sequence[int], space: Space, guarded: bool = False
) -> tuple[Index, ...]:
    """Convert coordinates in `shape` to coordinates in `target`, matching groups of axes with equal products.

    One flat index over all axes would need div and mod over the whole size, and no bound could simplify its loads.
    guarded: guards keep the coordinates in range, even if their bounds do not.
    """
    src = [(i, n) for i, n in zip(coordinates, shape) if n != 1]
    out: list[Index] = []
    at = 0
    d = 0
    while d < len(target):
        if target[d] == 1:
            out.append(space.number(0))
            d += 1
            continue
        begin, have, want, first = at, src[at][1], target[d], d
        at, d = at + 1, d + 1
        while have != want:
            if have < want:
                have *= src[at][1]
                at += 1
            else:
                want *= target[d]
                d += 1
        group = src[begin:at]
        if len(group) == 1 and d - first == 1:
            out.append(group[0][0])
        else:
            flat = ravel([i for i, _ in group], [n for _, n in group], space)
            out.extend(unravel(flat, target[first:d], guarded))
    return tuple(out)
