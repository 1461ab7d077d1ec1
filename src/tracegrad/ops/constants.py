"""Tensors whose values are known while tracing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegrad.dtypes import DType, as_dtype, f32
from tracegrad.errors import ShapeError
from tracegrad.ir import Tensor
from tracegrad.methods import Operand, method, op
from tracegrad.ops.shaping import sizes_of
from tracegrad.prims.elementwise import cast, where
from tracegrad.prims.leaves import as_tensor, const, fitting, iota, literal, unboxed
from tracegrad.prims.views import broadcast_to
from tracegrad.shapes import integer

__all__ = ["asarray", "eye", "full", "linspace", "ones", "tril", "zeros"]


@op
def asarray(value: Any, dtype: DType | None = None) -> Tensor:
    """`value` as a constant: an array, a nested list or a number. A tensor is cast.

    Without `dtype`: floating-point values become f32, integers i32 (uint32: u32), booleans bool.
    Raises DTypeError for values that `dtype` cannot hold, instead of truncating them.
    """
    wanted = None if dtype is None else as_dtype(dtype)
    if isinstance(value, Tensor):
        return value if wanted is None else cast(value, wanted)
    return literal(unboxed(value), wanted)


@op
def full(shape: int | Sequence[int], value: bool | int | float, dtype: DType | None = None) -> Tensor:
    """An array of `value`. Without `dtype`: f32 for a float, i32 for an integer, bool for a boolean."""
    value = unboxed(value)
    number = as_tensor(value) if dtype is None else const(fitting(value, as_dtype(dtype)), as_dtype(dtype))
    return broadcast_to(number, sizes_of(shape))


@op
def zeros(shape: int | Sequence[int], dtype: DType = f32) -> Tensor:
    """An array of zeros. It costs no memory: it is computed where it is read."""
    return full(shape, 0, dtype)


@op
def ones(shape: int | Sequence[int], dtype: DType = f32) -> Tensor:
    """An array of ones. It costs no memory: it is computed where it is read."""
    return full(shape, 1, dtype)


@op
def eye(n: int, m: int | None = None, dtype: DType = f32) -> Tensor:
    """The identity matrix of `n` rows and `m` (default `n`) columns: 1 on the diagonal, 0 elsewhere."""
    shape = sizes_of((n, n if m is None else m))
    return cast(iota(shape, 0) == iota(shape, 1), dtype)


@method
def tril(x: Operand, k: int = 0) -> Tensor:
    """The lower triangle of the last two axes of `x`: elements with column > row + k become 0.

    Any dtype, rank 2 or more. Gradient: the lower triangle of the cotangent. NaN above the diagonal becomes 0.
    """
    x = as_tensor(x)
    if x.ndim < 2:
        raise ShapeError(f"takes a matrix or a batch of them, got {x.type}; a mask is tril(ones((n, n)))")
    below = iota(x.shape, x.ndim - 1) <= iota(x.shape, x.ndim - 2) + integer(k, "k")
    return where(below, x, False if x.dtype.name == "bool" else 0)


@op
def linspace(start: float, stop: float, num: int = 50) -> Tensor:
    """`num` evenly spaced f32 values from `start` to `stop`, both included; computed in double precision."""
    num = integer(num, "num")
    if num < 0:
        raise ShapeError(f"num must not be negative, got {num}")
    step = (stop - start) / max(num - 1, 1)
    values = [start + step * k for k in range(num)]
    if num > 1:
        values[-1] = stop
    return literal(values, f32)
