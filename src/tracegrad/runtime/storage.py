"""How arrays lie in memory: f32 as it is, everything else as 32-bit integers, booleans being 0 and 1."""

from __future__ import annotations

from typing import Any

from tracegrad.arrays import np
from tracegrad.dtypes import DTYPES
from tracegrad.program import Field

Array = Any


def to_storage(x: Array, dtype: str) -> Array:
    """`x`, of the given dtype, flat and as its buffer stores it."""
    flat = np.ascontiguousarray(x).reshape(-1)
    if dtype == "u32":
        return flat.view(np.int32)
    return flat.astype(np.int32) if dtype == "bool" else flat


def lying(flat: Array, field: Field) -> Array:
    """Where the values of `field` lie in its whole buffer, in its shape: a view, of integers for booleans."""
    part = np.asarray(flat)[field.offset : field.offset + field.size]
    return (part.view(np.uint32) if field.dtype == "u32" else part).reshape(field.shape)


def taken(part: Array, field: Field) -> Array:
    """The values that lie there, as an array of their own."""
    return np.array(part != 0 if field.dtype == "bool" else part, dtype=DTYPES[field.dtype].numpy)


def from_storage(flat: Array, field: Field) -> Array:
    """The values of `field` out of its whole buffer, as an array of their own."""
    return taken(lying(flat, field), field)
