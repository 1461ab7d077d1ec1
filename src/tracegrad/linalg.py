"""Decompositions of small matrices, and systems of equations. Each is a scan over the columns or rows of a matrix."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracegrad import foreign, ops
from tracegrad.dtypes import broadcast_shapes
from tracegrad.errors import ShapeError
from tracegrad.ir import Tensor
from tracegrad.methods import op
from tracegrad.ops.constants import eye, ones, tril, triu, zeros
from tracegrad.ops.linalg import matmul
from tracegrad.ops.reduction import argmax, sum
from tracegrad.ops.shaping import expand_dims
from tracegrad.prims.elementwise import abs, sqrt, where
from tracegrad.prims.leaves import as_tensor, iota
from tracegrad.prims.maps import float_type
from tracegrad.prims.views import broadcast_to, moved
from tracegrad.transforms.recurrence import scan

__all__ = ["cholesky", "inv", "solve", "solve_triangular"]


def _square(a: Any) -> Tensor:
    a = as_tensor(a)
    float_type(a.type)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ShapeError(f"A must be a square matrix [..., n, n], got {a.type}")
    return a


def _system(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Return a matrix and its right sides, with the batch axes of both."""
    a, b = _square(a), as_tensor(b)
    float_type(b.type)
    n = a.shape[-1]
    if b.ndim < 2 or b.shape[-2] != n:
        hint = "; a vector is a matrix of one column: pass b[:, None], and take [:, 0] of the result"
        raise ShapeError(f"B must be [..., {n}, k] to fit A {a.type}, got {b.type}{hint if b.ndim == 1 else ''}")
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return broadcast_to(a, (*batch, n, n)), broadcast_to(b, (*batch, n, b.shape[-1]))


@op
def cholesky(a: Any) -> Tensor:
    """Return the lower triangular L with L L^T = A, of a symmetric positive definite matrix.

    L[:, j] = M[:, j] / sqrt(M[j, j]) from the diagonal down, with M = A - sum over k < j of L[:, k] L[:, k]^T

    a:        f32, shape (..., n, n). Only the lower triangle is read.
    Returns:  f32, shape of `a`, 0 above the diagonal. Elements are NaN if the matrix is not positive definite.
    Gradient: to the lower triangle of `a`. A symmetric A that is computed, as X X^T + eye, gets the usual one.
    Raises:   ShapeError if `a` is not square; DTypeError if it is not f32.

    As numpy.linalg.cholesky and torch.linalg.cholesky, which raise for a matrix that is not positive definite.
    log(det(A)) is 2 * tg.sum(tg.log(tg.diag(L))).

    >>> tg.linalg.cholesky([[4.0, 2.0], [2.0, 10.0]])
    tensor([[2., 0.],
            [1., 3.]])
    """
    a = _square(a)
    n = a.shape[-1]

    def column(found: Tensor, given: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        values, here, below = given
        row = sum(found * expand_dims(here, 1), -2)
        left = values - matmul(found, expand_dims(row, -1)).squeeze(-1)
        pivot = sqrt(sum(left * here, -1, keepdims=True))
        new = where(below > 0.0, left / pivot, 0.0)
        return found + expand_dims(new, -1) * here, new

    return moved(scan(column, zeros(a.shape), (moved(a, -1, 0), eye(n), triu(ones((n, n)))))[1], 0, -1)


@op
def solve_triangular(a: Any, b: Any, *, upper: bool) -> Tensor:
    """Return X with A X = B, of a triangular A, by substitution.

    X[i] = (B[i] - sum over solved rows j of A[i, j] X[j]) / A[i, i]

    a:        f32, shape (..., n, n). Only the triangle that `upper` names is read.
    b:        f32, shape (..., n, k). Batch axes broadcast against those of `a`.
    upper:    True: A is upper triangular, and rows are solved from the last one up. False: lower, from the first down.
    Returns:  f32, shape (..., n, k). A zero on the diagonal gives infinities or NaN.
    Gradient: to `b` and the triangle of `a`.
    Raises:   ShapeError if `a` is not square or `b` has other rows; DTypeError if one is not f32.

    As torch.linalg.solve_triangular.

    >>> tg.linalg.solve_triangular([[2.0, 0.0], [1.0, 3.0]], [[4.0], [8.0]], upper=False)
    tensor([[2.],
            [2.]])
    """
    a, b = _system(a, b)
    n = a.shape[-1]

    def row(found: Tensor, given: tuple[Tensor, Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        factors, values, here = given
        known = matmul(expand_dims(factors, -2), found).squeeze(-2)  # rows not solved yet are 0
        new = (values - known) / sum(factors * here, -1, keepdims=True)
        return found + expand_dims(here, 1) * expand_dims(new, -2), new

    triangle = triu(a) if upper else tril(a)
    rows = (moved(triangle, -2, 0), moved(b, -2, 0), eye(n))
    return moved(scan(row, zeros(b.shape), rows, reverse=upper)[1], 0, -2)


@op
def solve(a: Any, b: Any) -> Tensor:
    """Return X with A X = B, by elimination with row pivots.

    a:        f32, shape (..., n, n).
    b:        f32, shape (..., n, k), or (n,). Batch axes broadcast against those of `a`.
    Returns:  f32, shape (..., n, k), or (..., n) for a vector. A singular A gives infinities or NaN.
    Gradient: to both. For a positive definite A, `cholesky` and two of `solve_triangular` are more exact.
    Raises:   ShapeError if `a` is not square or `b` has other rows; DTypeError if one is not f32.

    As numpy.linalg.solve and torch.linalg.solve.

    >>> tg.linalg.solve([[0.0, 2.0], [1.0, 3.0]], [[4.0], [8.0]])
    tensor([[2.],
            [2.]])
    """
    a, b = _square(a), as_tensor(b)
    if b.shape == a.shape[-1:]:
        return solve(a, expand_dims(b, 1)).squeeze(-1)
    a, b = _system(a, b)
    n, k = a.shape[-1], b.shape[-1]
    place = iota((n,), 0)

    def column(left: tuple[Tensor, Tensor], j: Tensor) -> tuple[tuple[Tensor, Tensor], None]:
        matrix, sides = left
        here = place == j
        values = sum(where(here, matrix, 0.0), -1)
        pivot = place == expand_dims(argmax(where(place >= j, abs(values), -1.0), -1), -1)
        scale = sum(where(pivot, values, 0.0), -1, keepdims=True)
        others = where(here, 0.0, where(pivot, sum(where(here, values, 0.0), -1, keepdims=True), values))
        done = [_eliminated(x, expand_dims(here, 1), expand_dims(pivot, -1), scale, others) for x in (matrix, sides)]
        return (done[0], done[1]), None

    return scan(column, (a, b), iota((n,), 0))[0][1] if n and k else b


def _eliminated(x: Tensor, here: Tensor, pivot: Tensor, scale: Tensor, others: Tensor) -> Tensor:
    """Exchange the rows `here` and `pivot`, divide the new row by `scale`, and subtract `others` times it."""
    chosen, moved = sum(where(pivot, x, 0.0), -2, keepdims=True), sum(where(here, x, 0.0), -2, keepdims=True)
    new = chosen / expand_dims(scale, -1)
    return where(here, new, where(pivot, moved, x) - expand_dims(others, -1) * new)


@op
def inv(a: Any) -> Tensor:
    """Return the inverse of a square matrix. `solve(A, B)` is faster and more exact than `inv(A) @ B`.

    a:        f32, shape (..., n, n).
    Returns:  f32, shape of `a`. A singular matrix gives infinities or NaN.
    Gradient: -A^-T ct A^-T.
    Raises:   ShapeError if `a` is not square; DTypeError if it is not f32.

    As numpy.linalg.inv and torch.linalg.inv.

    >>> tg.linalg.inv([[2.0, 0.0], [0.0, 4.0]])
    tensor([[0.5 , 0.  ],
            [0.  , 0.25]])
    """
    a = _square(a)
    return solve(a, eye(a.shape[-1]))


if not TYPE_CHECKING:  # type checkers are to report unknown names themselves

    def __getattr__(name):
        raise foreign.no_such_name("tracegrad.linalg", name, {"tg.linalg": __all__, "tg": ops.__all__})
