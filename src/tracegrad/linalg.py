"""Decompositions of small matrices, and systems of equations.

Each is a scan over blocks of the columns or rows of a matrix. For each block, one matrix product subtracts the
contributions of all other blocks. An inner scan, over the columns or rows of the block, then needs only that block.
Derivatives are formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tracegrad import foreign, ops
from tracegrad.dtypes import TensorType, broadcast_shapes, i32, normalize_axis
from tracegrad.errors import ShapeError
from tracegrad.ir import ambient
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.methods import op
from tracegrad.ops.constants import eye, tril, triu, zeros
from tracegrad.ops.extrema import argmax
from tracegrad.ops.indexing import take, take_along_axis
from tracegrad.ops.joining import concat
from tracegrad.ops.linalg import matmul
from tracegrad.ops.shaping import expand_dims, pad
from tracegrad.prims.elementwise import abs, sqrt, where
from tracegrad.prims.leaves import as_tensor, const, iota
from tracegrad.prims.maps import composite, float_type
from tracegrad.prims.rules import alike
from tracegrad.prims.views import broadcast_to
from tracegrad.transforms.recurrence import scan

__all__ = ["cholesky", "inv", "solve", "solve_triangular"]


BLOCK, UNBLOCKED = 16, 32  # rows of a block; the largest matrix without blocks
PARTS = 3  # of a factorization, at most: each begins with a smaller rest, and compiles its own kernels


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


def _blocks(n: int) -> tuple[int, int]:
    """Return into how many blocks n rows are split, and the number of rows of a block."""
    count = -(-n // BLOCK) if n > UNBLOCKED else 1
    return count, -(-n // count)


def _parts(m: int) -> list[int]:
    """Return into parts of how many blocks a matrix of m blocks is split."""
    count = min(PARTS, -(-m // 3))
    return [m * (k + 1) // count - m * k // count for k in range(count)]


def _padded(a: Tensor, n: int) -> Tensor:
    """Return a square matrix extended by the identity, as a block-diagonal matrix of n rows."""
    more = n - a.shape[-1]
    return pad(a, ((0, 0),) * (a.ndim - 2) + ((0, more),) * 2) + where(iota((n,), 0) >= a.shape[-1], eye(n), 0.0)


def _at(x: Tensor, i: Tensor, axis: int) -> Tensor:
    return take(x, i, normalize_axis(axis, x.ndim))


def _each(fn: Callable[[Any, Tensor], Any], init: Any, n: int, reverse: bool = False) -> Any:
    """Return the last carry of carry = fn(carry, i) for i = 0, ..., n - 1. Also works while composites are expanded."""
    with ambient.tracing():
        return scan(lambda found, i: (fn(found, i), None), init, iota((n,), 0), reverse=reverse)[0]


def _filled(fn: Callable[[Tensor, Tensor], Tensor], like: Tensor, axis: int, reverse: bool = False) -> Tensor:
    """Fill an array like `like` slice by slice along `axis`: slice i is `fn(array, i)`.

    The array holds the slices that are filled so far, and 0 elsewhere.
    """
    here = iota((like.shape[axis], *[1] * (-axis - 1)), 0)

    def put(found: Tensor, i: Tensor) -> Tensor:
        return where(here == i, expand_dims(fn(found, i), axis), found)

    return _each(put, zeros(like.shape), like.shape[axis], reverse)


def _sides(a: TensorType, b: TensorType, *, upper: bool = False) -> TensorType:
    """Return the type of X, which is that of B."""
    return b


# cholesky
def _cholesky(a: Tensor) -> Tensor:
    """Factor the first columns, subtract what they give from the rest, and go on with that."""
    size = a.shape[-1]
    m, b = _blocks(size)
    rest, found, batch = _padded(a, m * b), list[Tensor](), ((0, 0),) * (a.ndim - 2)
    for some in _parts(m):
        rows = some * b
        new = _first_rows(rest, some, b)
        found.append(pad(new, (*batch, (0, 0), (m * b - new.shape[-1], 0))))
        below = new[..., rows:]
        rest = rest[..., rows:, rows:] - matmul(below.swapaxes(-1, -2), below)
    return concat(found, -2).swapaxes(-1, -2)[..., :size, :size]


def _first_rows(a: Tensor, m: int, b: int) -> Tensor:
    """Return the first m * b rows of L^T.

    For each block, subtract the part that earlier blocks give, in one product, and factor the rest.
    """
    n, rows, batch = a.shape[-1], m * b, a.shape[:-2]
    blocks = a.swapaxes(-1, -2)[..., :rows, :].reshape((*batch, m, b, n))
    if m == 1:
        return _factored(blocks.squeeze(-3), const(0, i32))

    def block(found: Tensor, t: Tensor) -> Tensor:
        earlier = found.reshape((*batch, rows, n))
        factors = _at(earlier[..., :rows].reshape((*batch, rows, m, b)), t, -2).swapaxes(-1, -2)
        return _factored(_at(blocks, t, -3) - matmul(factors, earlier), t * b)

    return _filled(block, blocks, -3).reshape((*batch, rows, n))


def _factored(a: Tensor, first: Tensor) -> Tensor:
    """Return the rows of L^T from `first` on, one after the other. a: A minus the part that earlier rows give."""

    def row(found: Tensor, j: Tensor) -> Tensor:
        factors = expand_dims(_at(found, first + j, -1), -2)
        left = _at(a, j, -2) - matmul(factors, found).squeeze(-2)
        return where(iota(a.shape[-1:], 0) >= first + j, left / sqrt(expand_dims(_at(left, first + j, -1), -1)), 0.0)

    return _filled(row, a, -2)


def _halved(a: Tensor) -> Tensor:
    """Return the lower triangle of a matrix, with half of its diagonal."""
    return tril(a) - a * (0.5 * eye(a.shape[-1]))


def _cholesky_vjp(ct: Tensor, y: Tensor, a: Tensor) -> tuple[Tensor]:
    """Return halved(S + S^T), with S = L^-T halved(L^T ct) L^-1 and L = y."""
    up = y.swapaxes(-1, -2)
    half = bind(TRIANGULAR, up, _halved(matmul(up, tril(ct))), upper=True)
    s = bind(TRIANGULAR, up, half.swapaxes(-1, -2), upper=True)
    return (_halved(s + s.swapaxes(-1, -2)),)


def _cholesky_xla(x: Any, t: Tensor, a: Any) -> Any:
    return x.lax.linalg.cholesky(a, symmetrize_input=False)


CHOLESKY = composite("cholesky", type=float_type, expand=_cholesky, vjp=_cholesky_vjp, batch=alike, xla=_cholesky_xla)


# solve_triangular
def _triangular(a: Tensor, b: Tensor, *, upper: bool) -> Tensor:
    """For each block of right sides, subtract the part that solved blocks give, in one product, and solve the rest."""
    size, k = b.shape[-2:]
    m, r = _blocks(size)
    a = triu(a) if upper else tril(a)
    if m == 1:
        return _substituted(a, b, upper)
    n, batch = m * r, b.shape[:-2]
    blocks = _padded(a, n).reshape((*batch, m, r, n))
    sides = pad(b, ((0, 0),) * len(batch) + ((0, n - size), (0, 0))).reshape((*batch, m, r, k))

    def block(found: Tensor, t: Tensor) -> Tensor:
        rows = _at(blocks, t, -3)
        left = _at(sides, t, -3) - matmul(rows, found.reshape((*batch, n, k)))  # rows not solved yet are 0
        return _substituted(_at(rows.reshape((*batch, r, m, r)), t, -2), left, upper)

    found = _filled(block, sides, -3, upper)
    return found.reshape((*batch, n, k))[..., :size, :]


def _substituted(a: Tensor, b: Tensor, upper: bool) -> Tensor:
    """Return X with A X = B, row by row."""

    def row(found: Tensor, i: Tensor) -> Tensor:
        factors = _at(a, i, -2)
        known = matmul(expand_dims(factors, -2), found).squeeze(-2)
        return (_at(b, i, -2) - known) / expand_dims(_at(factors, i, -1), -1)

    return _filled(row, b, -2, upper)


def _triangular_vjp(ct: Tensor, y: Tensor, a: Tensor, b: Tensor, *, upper: bool) -> tuple[Tensor, Tensor]:
    given = bind(TRIANGULAR, a.swapaxes(-1, -2), ct, upper=not upper)
    return (triu if upper else tril)(-matmul(given, y.swapaxes(-1, -2))), given


def _triangular_xla(x: Any, t: Tensor, a: Any, b: Any) -> Any:
    return x.lax.linalg.triangular_solve(a, b, left_side=True, lower=not t.attrs["upper"])


TRIANGULAR = composite(
    "solve_triangular", type=_sides, expand=_triangular, vjp=_triangular_vjp, batch=alike, xla=_triangular_xla
)


# solve
def _solved(a: Tensor, b: Tensor) -> Tensor:
    """Eliminate the columns block by block. One product applies the steps of a block to all other columns."""
    size, k = b.shape[-2:]
    m, w = _blocks(size)
    n, batch = m * w, b.shape[:-2]
    both = concat([_padded(a, n), pad(b, ((0, 0),) * len(batch) + ((0, n - size), (0, 0)))], -1)

    def block(x: Tensor, t: Tensor) -> Tensor:
        steps, order = _eliminated(_at(x[..., :n].reshape((*batch, n, m, w)), t, -2).swapaxes(-1, -2), t * w)
        x = take_along_axis(x, order.swapaxes(-1, -2), -2)
        rows = _at(x.reshape((*batch, m, w, n + k)), t, -3)
        return where(expand_dims(iota((n,), 0) // w == t, -1), 0.0, x) + matmul(steps.swapaxes(-1, -2), rows)

    return _each(block, both, m)[..., :size, n:]


def _eliminated(panel: Tensor, first: Tensor) -> tuple[Tensor, Tensor]:
    """Eliminate some columns with row pivots, from row `first` on. panel: the columns, along its last axis.

    Returns the factors with which these steps add the block's rows to all rows, and the order of the rows before, both
    with all rows along the last axis.
    """
    w, n = panel.shape[-2:]
    place, along = iota((n,), 0), expand_dims(iota((w,), 0), 1)

    def column(found: tuple[Tensor, Tensor], j: Tensor) -> tuple[Tensor, Tensor]:
        x, order = found
        here = place == first + j
        values = expand_dims(_at(x, j, -2), -2)
        chosen = argmax(where(place >= first + j, abs(values), -1.0), -1, keepdims=True)

        def exchanged(v: Tensor) -> Tensor:
            """Return `v` with row `here` and the pivot's row exchanged."""
            return where(place == chosen, expand_dims(_at(v, first + j, -1), -1), v)

        of_pivot, scale, number = (take_along_axis(v, chosen, -1) for v in (x, values, order))
        new = where(along == j, 1.0, of_pivot) / scale
        rest = where(along == j, 0.0, exchanged(x)) - exchanged(values) * new
        return where(here, new, rest), where(here, number, exchanged(order))

    return _each(column, (panel, broadcast_to(place, (*panel.shape[:-2], 1, n))), w)


def _solve_vjp(ct: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    given = bind(SOLVE, a.swapaxes(-1, -2), ct)
    return -matmul(given, y.swapaxes(-1, -2)), given


def _solve_xla(x: Any, t: Tensor, a: Any, b: Any) -> Any:
    return x.np.linalg.solve(a, b)


SOLVE = composite("solve", type=_sides, expand=_solved, vjp=_solve_vjp, batch=alike, xla=_solve_xla)


@op
def cholesky(a: Any) -> Tensor:
    """Return the lower triangular L with L L^T = A, of a symmetric positive definite matrix.

    L[:, j] = M[:, j] / sqrt(M[j, j]) from the diagonal down, with M = A - sum over k < j of L[:, k] L[:, k]^T

    a:        f32, shape (..., n, n). Only the lower triangle is read.
    Returns:  f32, shape of `a`, 0 above the diagonal. Elements are NaN if the matrix is not positive definite.
    Gradient: to the lower triangle of `a`, by two triangular solves (Murray 2016). If A is computed, as
              X X^T + eye, the gradient to X is the usual one.
    Raises:   ShapeError if `a` is not square; DTypeError if it is not f32.

    As numpy.linalg.cholesky and torch.linalg.cholesky, which raise for a matrix that is not positive definite.
    log(det(A)) is 2 * tg.sum(tg.log(tg.diag(L))).

    >>> tg.linalg.cholesky([[4.0, 2.0], [2.0, 10.0]])
    tensor([[2., 0.],
            [1., 3.]])
    """
    return bind(CHOLESKY, _square(a))


@op
def solve_triangular(a: Any, b: Any, *, upper: bool) -> Tensor:
    """Return X with A X = B, of a triangular A, by substitution.

    X[i] = (B[i] - sum over solved rows j of A[i, j] X[j]) / A[i, i]

    a:        f32, shape (..., n, n). Only the triangle that `upper` names is read.
    b:        f32, shape (..., n, k). Batch axes broadcast against those of `a`.
    upper:    True: A is upper triangular, and rows are solved from the last one up. False: lower, from the first down.
    Returns:  f32, shape (..., n, k). A zero on the diagonal gives infinities or NaN.
    Gradient: A^-T dy to `b`, and -(A^-T dy) X^T to the triangle of `a`, dy the result's gradient.
    Raises:   ShapeError if `a` is not square or `b` has another number of rows; DTypeError if one is not f32.

    As torch.linalg.solve_triangular.

    >>> tg.linalg.solve_triangular([[2.0, 0.0], [1.0, 3.0]], [[4.0], [8.0]], upper=False)
    tensor([[2.],
            [2.]])
    """
    return bind(TRIANGULAR, *_system(a, b), upper=upper)


@op
def solve(a: Any, b: Any) -> Tensor:
    """Return X with A X = B, by elimination with row pivots.

    a:        f32, shape (..., n, n).
    b:        f32, shape (..., n, k), or (n,). Batch axes broadcast against those of `a`.
    Returns:  f32, shape (..., n, k), or (..., n) for a vector. A singular A gives infinities or NaN.
    Gradient: to both. For a positive definite A, `cholesky` and two of `solve_triangular` are more exact.
    Raises:   ShapeError if `a` is not square or `b` has another number of rows; DTypeError if one is not f32.

    As numpy.linalg.solve and torch.linalg.solve.

    >>> tg.linalg.solve([[0.0, 2.0], [1.0, 3.0]], [[4.0], [8.0]])
    tensor([[2.],
            [2.]])
    """
    a, b = _square(a), as_tensor(b)
    if b.shape == a.shape[-1:]:
        return solve(a, expand_dims(b, 1)).squeeze(-1)
    a, b = _system(a, b)
    return bind(SOLVE, a, b) if b.type.size else b


@op
def inv(a: Any) -> Tensor:
    """Return the inverse of a square matrix. `solve(A, B)` is faster and more exact than `inv(A) @ B`.

    a:        f32, shape (..., n, n).
    Returns:  f32, shape of `a`. A singular matrix gives infinities or NaN.
    Gradient: -A^-T dy A^-T, dy the result's gradient.
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
