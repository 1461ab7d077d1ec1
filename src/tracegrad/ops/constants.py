"""Tensors whose values are known while tracing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tracegrad.dtypes import DType, as_dtype, count, f32, integer, nearest_f32
from tracegrad.errors import InputError, ShapeError
from tracegrad.ir.nodes import Tensor
from tracegrad.methods import Operand, TensorMethods, method, op
from tracegrad.ops.shaping import sizes_of
from tracegrad.prims.elementwise import cast, where
from tracegrad.prims.leaves import as_tensor, const, fitting, iota, listed, literal, unboxed
from tracegrad.prims.views import broadcast_to, place, reshape, slice_

__all__ = [
    "asarray", "diag", "eye", "full", "full_like", "linspace", "meshgrid", "ones", "ones_like", "tril", "triu",
    "zeros", "zeros_like",
]  # fmt: skip


@op
def asarray(value: Any, dtype: DType | None = None) -> Tensor:
    """Return a number, nested list, NumPy array or tensor as a tensor.

    In a compiled model or loss, a number, list or array becomes a constant of the program.

    value:    any shape.
    dtype:    the dtype of the result; a tensor is cast to it. With None a tensor keeps its dtype, floats become f32
              (float64 is rounded), uint32 becomes u32, other integers i32, and booleans bool.
    Returns:  a tensor of the shape of `value`.
    Gradient: to `value` if it is a tensor.
    Raises:   DTypeError for a number that the dtype cannot hold, such as 1.5 or 2**31 in i32; for nested lists of
              unequal lengths; and for anything else, such as text or None.

    As numpy.asarray.

    >>> tg.asarray([1, 2])
    tensor([1, 2], dtype=i32)
    """
    wanted = None if dtype is None else as_dtype(dtype)
    if isinstance(value, TensorMethods):
        value = as_tensor(value)
        return value if wanted is None else cast(value, wanted)
    return literal(unboxed(value), wanted)


@op
def full(shape: int | Sequence[int], value: bool | int | float, dtype: DType | None = None) -> Tensor:
    """Return a tensor filled with `value`.

    shape:    an integer or a sequence of integers.
    value:    a number or a boolean.
    dtype:    None: f32 for a float, i32 for an integer, bool for a boolean.
    Returns:  `dtype`, of this shape. No gradient.
    Raises:   ShapeError for a size that is negative or not an integer; DTypeError if `dtype` cannot hold `value`.

    As numpy.full and torch.full.

    >>> tg.full((2,), 7.0)
    tensor([7., 7.])
    """
    value = unboxed(value)
    number = as_tensor(value) if dtype is None else const(fitting(value, as_dtype(dtype)), as_dtype(dtype))
    return broadcast_to(number, sizes_of(shape))


@op
def zeros(shape: int | Sequence[int], dtype: DType = f32) -> Tensor:
    """Return a tensor of zeros.

    shape:    an integer or a sequence of integers.
    dtype:    f32, i32, u32 or bool.
    Returns:  `dtype`, of this shape. It takes no memory in a compiled program. No gradient.
    Raises:   ShapeError for a size that is negative or not an integer; DTypeError for an unknown dtype.

    As numpy.zeros and torch.zeros.

    >>> tg.zeros((2,))
    tensor([0., 0.])
    """
    return full(shape, 0, dtype)


@op
def ones(shape: int | Sequence[int], dtype: DType = f32) -> Tensor:
    """Return a tensor of ones.

    shape:    an integer or a sequence of integers.
    dtype:    f32, i32, u32 or bool.
    Returns:  `dtype`, of this shape. It takes no memory in a compiled program. No gradient.
    Raises:   ShapeError for a size that is negative or not an integer; DTypeError for an unknown dtype.

    As numpy.ones and torch.ones.

    >>> tg.ones((2,))
    tensor([1., 1.])
    """
    return full(shape, 1, dtype)


@op
def full_like(x: Operand, value: bool | int | float, dtype: DType | None = None) -> Tensor:
    """Return a tensor of the shape of `x`, filled with `value`.

    x:        any dtype and shape. Its values are not read.
    value:    a number or a boolean.
    dtype:    None takes the dtype of `x`.
    Returns:  `dtype`, the shape of `x`. No gradient.
    Raises:   DTypeError if the dtype cannot hold `value`, such as 7.5 in i32.

    As numpy.full_like and torch.full_like.

    >>> tg.full_like(tg.tensor([1.0, 2.0]), 7)
    tensor([7., 7.])
    """
    x = as_tensor(x)
    return full(x.shape, value, x.dtype if dtype is None else dtype)


@op
def zeros_like(x: Operand, dtype: DType | None = None) -> Tensor:
    """Return zeros in the shape of `x`.

    x:        any dtype and shape. Its values are not read.
    dtype:    None takes the dtype of `x`.
    Returns:  `dtype`, the shape of `x`. No gradient.
    Raises:   DTypeError for an unknown dtype.

    As numpy.zeros_like and torch.zeros_like.

    >>> tg.zeros_like(tg.tensor([1.0, 2.0]))
    tensor([0., 0.])
    """
    return full_like(x, 0, dtype)


@op
def ones_like(x: Operand, dtype: DType | None = None) -> Tensor:
    """Return ones in the shape of `x`.

    x:        any dtype and shape. Its values are not read.
    dtype:    None takes the dtype of `x`.
    Returns:  `dtype`, the shape of `x`. No gradient.
    Raises:   DTypeError for an unknown dtype.

    As numpy.ones_like and torch.ones_like.

    >>> tg.ones_like(tg.tensor([1.0, 2.0]))
    tensor([1., 1.])
    """
    return full_like(x, 1, dtype)


@op
def eye(n: int, m: int | None = None, dtype: DType = f32) -> Tensor:
    """Return a matrix with 1 on the main diagonal and 0 elsewhere.

    n, m:     the numbers of rows and columns; `m` is `n` by default.
    dtype:    f32, i32, u32 or bool.
    Returns:  `dtype`, shape (n, m). No gradient.
    Raises:   ShapeError if n or m is negative or not an integer; DTypeError for an unknown dtype.

    As numpy.eye and torch.eye.

    >>> tg.eye(2, 3)
    tensor([[1., 0., 0.],
            [0., 1., 0.]])
    """
    shape = sizes_of((n, n if m is None else m))
    return cast(iota(shape, 0) == iota(shape, 1), dtype)


@method
def tril(x: Operand, k: int = 0) -> Tensor:
    """Return the lower triangle of each matrix of `x`, with zeros above diagonal `k`.

    out[..., i, j] = x[..., i, j] where j <= i + k, else 0

    x:        any dtype, rank 2 or more. NaN above the diagonal becomes 0.
    k:        0 for the main diagonal, positive above it, negative below it.
    Returns:  dtype and shape of `x`.
    Gradient: the lower triangle of the result's gradient.
    Raises:   ShapeError for rank 0 or 1.

    As numpy.tril and torch.tril.

    >>> tg.tril(tg.ones((2, 3)))
    tensor([[1., 0., 0.],
            [1., 1., 0.]])
    """
    return _triangle(x, k, "tril")


def _triangle(x: Operand, k: int, name: str) -> Tensor:
    x = as_tensor(x)
    if x.ndim < 2:
        raise ShapeError(f"takes a matrix or a batch of them, got {x.type}; a mask is {name}(ones((n, n)))")
    column, diagonal = iota(x.shape, x.ndim - 1), iota(x.shape, x.ndim - 2) + integer(k, "k")
    kept = column <= diagonal if name == "tril" else column >= diagonal
    return where(kept, x, False if x.dtype.name == "bool" else 0)


@method
def triu(x: Operand, k: int = 0) -> Tensor:
    """Return the upper triangle of each matrix of `x`, with zeros below diagonal `k`.

    out[..., i, j] = x[..., i, j] where j >= i + k, else 0

    x:        any dtype, rank 2 or more. NaN below the diagonal becomes 0.
    k:        0 for the main diagonal, positive above it, negative below it.
    Returns:  dtype and shape of `x`.
    Gradient: the upper triangle of the result's gradient.
    Raises:   ShapeError for rank 0 or 1.

    As numpy.triu and torch.triu.

    >>> tg.triu(tg.ones((2, 3)), 1)
    tensor([[0., 1., 1.],
            [0., 0., 1.]])
    """
    return _triangle(x, k, "triu")


@method
def diag(x: Operand, k: int = 0) -> Tensor:
    """Return diagonal `k` of matrices, or a square matrix with a vector on its diagonal `k` and zeros elsewhere.

    Diagonal k of a matrix has the elements [i, i + k], in the order of i.

    x:        any dtype; a vector, a matrix, or a batch of matrices, shape (..., n, m).
    k:        0 for the main diagonal, positive above it, negative below it.
    Returns:  dtype of `x`. For matrices, shape (..., length of the diagonal); for a vector of size n, shape
              (n + |k|, n + |k|).
    Gradient: for a matrix, the result's gradient on diagonal `k`, else 0; for a vector, diagonal `k` of that gradient.
    Raises:   ShapeError for a scalar, or if diagonal `k` lies outside of the matrices.

    As numpy.diag and torch.diag; for a batch, torch.diagonal(x, k, -2, -1).

    >>> tg.diag([1.0, 2.0])
    tensor([[1., 0.],
            [0., 2.]])
    >>> tg.diag([[1.0, 2.0], [3.0, 4.0]], k=1)
    tensor([2.])
    """
    x, k = as_tensor(x), integer(k, "k")
    if x.ndim == 1:
        n = x.size + abs(k)
        start = k if k >= 0 else -k * n
        flat = place(x, 0, start, n * n, n + 1) if x.size else full((n * n,), 0, x.dtype)
        return reshape(flat, (n, n))
    if x.ndim < 2:
        raise ShapeError(f"takes a vector or matrices, got {x.type}")
    *batch, n, m = x.shape
    length = min(n, m - k) if k >= 0 else min(n + k, m)
    if length < 0:
        raise ShapeError(f"diagonal {k} is outside {x.type}; valid are {-n} to {m}")
    start = k if k >= 0 else -k * m
    return slice_(reshape(x, (*batch, n * m)), len(batch), start if length else 0, length, m + 1)


@op
def meshgrid(*xs: Operand, indexing: str = "xy") -> tuple[Tensor, ...]:
    """Return the coordinates of a grid: for each vector its values along one axis, repeated along the other axes.

    xs:       vectors of any dtype. Their sizes are a, b, c, ... below.
    indexing: "xy", NumPy's default: the first vector runs along axis 1, the second along axis 0; shape (b, a, c, ...).
              "ij", PyTorch's default: vector k runs along axis k; shape (a, b, c, ...).
    Returns:  a tuple with one tensor for each vector, of its dtype, all of one shape.
    Gradient: the result's gradient, summed over the repeated axes.
    Raises:   ShapeError without arguments, or if one is not a vector; InputError for another `indexing`.

    As numpy.meshgrid and torch.meshgrid.

    >>> x, y = tg.meshgrid([1.0, 2.0], [5.0, 6.0])
    >>> x
    tensor([[1., 2.],
            [1., 2.]])
    >>> y
    tensor([[5., 5.],
            [6., 6.]])
    """
    if indexing not in ("xy", "ij"):
        raise InputError(f"indexing must be 'xy' or 'ij', got {indexing!r}")
    vectors = [as_tensor(x) for x in xs]
    if not vectors:
        raise ShapeError("needs at least one vector")
    for x in vectors:
        if x.ndim != 1:
            raise ShapeError(f"takes vectors, got {' and '.join([str(x.type) for x in vectors])}")
    order = list(range(len(vectors)))
    if indexing == "xy":
        order[:2] = order[:2][::-1]
    shape = tuple([vectors[k].type.size for k in order])
    lines = [tuple([n if order[d] == k else 1 for d, n in enumerate(shape)]) for k in range(len(vectors))]
    return tuple([broadcast_to(reshape(x, line), shape) for x, line in zip(vectors, lines)])


@op
def linspace(start: float, stop: float, num: int = 50) -> Tensor:
    """Return `num` evenly spaced values from `start` to `stop`, both included.

    out[k] = start + k (stop - start) / (num - 1), in double precision, then rounded to f32

    start, stop: Python numbers.
    num:         the number of values. 1 gives `start`, 0 an empty tensor.
    Returns:     f32, shape (num,). No gradient.
    Raises:      ShapeError if `num` is negative or not an integer; InputError if an end is not finite in f32.

    As numpy.linspace and torch.linspace.

    >>> tg.linspace(0.0, 1.0, 3)
    tensor([0. , 0.5, 1. ])
    """
    num = count(num, "num")
    ends = [unboxed(v) for v in (start, stop)]
    if not all(math.isfinite(nearest_f32(v)) for v in ends):
        raise InputError(f"start and stop must be finite numbers of f32, got {start!r} and {stop!r}")
    start, stop = ends
    step = (stop - start) / max(num - 1, 1)
    values = [start + step * k for k in listed(num)]
    if num > 1:
        values[-1] = stop
    return literal(values, f32)
