"""Tensors whose values are known while tracing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tracegrad.dtypes import DType, as_dtype, count, f32, integer
from tracegrad.errors import InputError, ShapeError
from tracegrad.ir.nodes import Tensor
from tracegrad.methods import Operand, TensorMethods, method, op
from tracegrad.ops.shaping import sizes_of
from tracegrad.prims.elementwise import cast, where
from tracegrad.prims.leaves import as_tensor, const, fitting, iota, literal, unboxed
from tracegrad.prims.views import broadcast_to, place, reshape, slice_

__all__ = [
    "asarray",
    "diag",
    "eye",
    "full",
    "full_like",
    "linspace",
    "meshgrid",
    "ones",
    "ones_like",
    "tril",
    "triu",
    "zeros",
    "zeros_like",
]


@op
def asarray(value: Any, dtype: DType | None = None) -> Tensor:
    """Return an array, a nested list or a number as a tensor: in a trace a constant, elsewhere an eager tensor.

    Without `dtype`: floats, also of float64, become f32, integers i32 (uint32: u32), booleans bool. A tensor keeps its
    dtype and gradient, or is cast to `dtype`.
    Raises DTypeError for values that `dtype` cannot hold: floats are rounded to f32, all else is exact.
    Any shape. No gradient flows into a constant. As numpy.asarray.

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
    """Return an array filled with `value`. Without `dtype`: f32 for a float, i32 for an integer, bool for a boolean.

    Any shape. No gradient. Raises ShapeError for a negative size. As numpy.full and torch.full.

    >>> tg.full((2,), 7.0)
    tensor([7., 7.])
    """
    value = unboxed(value)
    number = as_tensor(value) if dtype is None else const(fitting(value, as_dtype(dtype)), as_dtype(dtype))
    return broadcast_to(number, sizes_of(shape))


@op
def zeros(shape: int | Sequence[int], dtype: DType = f32) -> Tensor:
    """Return an array of zeros. It takes no memory: kernels that read it compute its elements.

    shape: an integer or integers. dtype: default f32. No gradient. Raises ShapeError for a negative size.
    As numpy.zeros and torch.zeros.

    >>> tg.zeros((2,))
    tensor([0., 0.])
    """
    return full(shape, 0, dtype)


@op
def ones(shape: int | Sequence[int], dtype: DType = f32) -> Tensor:
    """Return an array of ones. It takes no memory: kernels that read it compute its elements.

    shape: an integer or integers. dtype: default f32. No gradient. Raises ShapeError for a negative size.
    As numpy.ones and torch.ones.

    >>> tg.ones((2,))
    tensor([1., 1.])
    """
    return full(shape, 1, dtype)


@op
def full_like(x: Operand, value: bool | int | float, dtype: DType | None = None) -> Tensor:
    """Return an array of the shape of `x`, filled with `value`; in the dtype of `x` unless `dtype` gives another.

    Any shape. No gradient. Raises DTypeError for a value that the dtype cannot hold. As torch.full_like.

    >>> tg.full_like(tg.tensor([1.0, 2.0]), 7)
    tensor([7., 7.])
    """
    x = as_tensor(x)
    return full(x.shape, value, x.dtype if dtype is None else dtype)


@op
def zeros_like(x: Operand, dtype: DType | None = None) -> Tensor:
    """Return zeros in the shape of `x`, and in its dtype unless `dtype` gives another.

    Any shape. No gradient. Raises DTypeError for an unknown dtype. As numpy.zeros_like and torch.zeros_like.

    >>> tg.zeros_like(tg.tensor([1.0, 2.0]))
    tensor([0., 0.])
    """
    return full_like(x, 0, dtype)


@op
def ones_like(x: Operand, dtype: DType | None = None) -> Tensor:
    """Return ones in the shape of `x`, and in its dtype unless `dtype` gives another.

    Any shape. No gradient. Raises DTypeError for an unknown dtype. As numpy.ones_like and torch.ones_like.

    >>> tg.ones_like(tg.tensor([1.0, 2.0]))
    tensor([1., 1.])
    """
    return full_like(x, 1, dtype)


@op
def eye(n: int, m: int | None = None, dtype: DType = f32) -> Tensor:
    """Return a matrix of `n` rows and `m` (default `n`) columns with 1 on the diagonal and 0 elsewhere.

    Returns [n, m] of `dtype`, by default f32. No gradient. Raises ShapeError if n or m is negative.
    As numpy.eye and torch.eye.

    >>> tg.eye(2)
    tensor([[1., 0.],
            [0., 1.]])
    """
    shape = sizes_of((n, n if m is None else m))
    return cast(iota(shape, 0) == iota(shape, 1), dtype)


@method
def tril(x: Operand, k: int = 0) -> Tensor:
    """Return the lower triangle of the last two axes of `x`: elements with column > row + k become 0.

    Any dtype, rank 2 or more. Gradient: the lower triangle of the result's gradient. NaN above the diagonal becomes 0.
    Raises:   ShapeError for fewer than two axes. As numpy.tril and torch.tril.

    >>> tg.tril(tg.ones((2, 2)))
    tensor([[1., 0.],
            [1., 1.]])
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
    """Return the upper triangle of the last two axes of `x`: elements with column < row + k become 0.

    x:        any dtype, rank 2 or more.
    Gradient: the upper triangle of the result's gradient. NaN below the diagonal becomes 0.
    Raises:   ShapeError for rank 0 or 1. As numpy.triu and torch.triu.

    >>> import tracegrad as tg
    >>> tg.triu(tg.ones((2, 3)), 1)
    tensor([[0., 1., 1.],
            [0., 0., 1.]])
    """
    return _triangle(x, k, "triu")


@method
def diag(x: Operand, k: int = 0) -> Tensor:
    """Return diagonal `k` of a matrix, or a square matrix of zeros with the vector `x` on its diagonal `k`.

    x:        any dtype, rank 1 or 2. k: 0 for the main diagonal, positive above it, negative below it.
    Returns:  for a matrix [n, m], the elements x[i, i + k]; for a vector [n], a matrix [n + |k|, n + |k|].
    Gradient: the result's gradient at the elements on the diagonal. Both forms are views, which need no kernel.
    Raises:   ShapeError for any other rank, and if `k` is outside the matrix.

    As numpy.diag and torch.diag.

    >>> import tracegrad as tg
    >>> tg.diag(tg.tensor([1.0, 2.0]))
    tensor([[1., 0.],
            [0., 2.]])
    """
    x, k = as_tensor(x), integer(k, "k")
    if x.ndim == 1:
        n = x.size + abs(k)
        start = k if k >= 0 else -k * n
        flat = place(x, 0, start, n * n, n + 1) if x.size else full((n * n,), 0, x.dtype)
        return reshape(flat, (n, n))
    if x.ndim != 2:
        raise ShapeError(f"takes a vector or a matrix, got {x.type}")
    n, m = x.shape
    length = min(n, m - k) if k >= 0 else min(n + k, m)
    if length < 0:
        raise ShapeError(f"diagonal {k} is outside {x.type}; valid are {-n} to {m}")
    start = k if k >= 0 else -k * m
    return slice_(reshape(x, (n * m,)), 0, start if length else 0, length, m + 1)


@op
def meshgrid(*xs: Operand, indexing: str = "xy") -> tuple[Tensor, ...]:
    """Return the coordinates of a grid: each vector along its own axis, repeated along the axes of the others.

    xs:       vectors of any dtype, of sizes a, b, c, ...
    indexing: "xy": the first vector runs along axis 1 and the second along axis 0, and results are [b, a, c, ...], as
              NumPy's default. "ij": the vectors run along axes 0, 1, 2, ..., [a, b, c, ...], as PyTorch's default.
    Returns:  one array for each vector, as views, which need no kernel.
    Gradient: the sum over the repeated axes.
    Raises:   ShapeError if an argument is not a vector; InputError for another `indexing`.

    >>> import tracegrad as tg
    >>> x, y = tg.meshgrid([1.0, 2.0], [5.0, 6.0])
    >>> x
    tensor([[1., 2.],
            [1., 2.]])
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
    """Return `num` evenly spaced values from `start` to `stop`, both included. They are computed in double precision.

    f32[num]. No gradient. Raises ShapeError if `num` is negative. As numpy.linspace and torch.linspace.

    >>> tg.linspace(0.0, 1.0, 3)
    tensor([0. , 0.5, 1. ])
    """
    num = count(num, "num")
    step = (stop - start) / max(num - 1, 1)
    values = [start + step * k for k in range(num)]
    if num > 1:
        values[-1] = stop
    return literal(values, f32)
