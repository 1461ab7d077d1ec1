"""Select the rows of a batch that one of several processes provides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tracegrad.program import Field


def own_rows(
    fields: Sequence[Field], given: Mapping[str, Any], share: tuple[int, int]
) -> tuple[list[Field], dict[str, Any]]:
    """Return the inputs in the shapes of one process, and its rows of arrays that were given whole.

    share: (k, n): the process has part k of n equal parts of axis 0.
    """
    index, n = share
    own = [replace(f, shape=(f.shape[0] // n, *f.shape[1:])) if f.shape else f for f in fields]
    rows = dict(given)
    for f, part in zip(fields, own):
        shape = getattr(given.get(f.name), "shape", ())
        axis = len(shape) - len(f.shape)  # 1 if an axis of steps is in front
        if f.shape and axis in (0, 1) and shape[axis] == f.shape[0]:
            first = index * part.shape[0]
            rows[f.name] = given[f.name][(slice(None),) * axis + (slice(first, first + part.shape[0]),)]
    return own, rows
