"""Decompositions of small matrices, and systems of equations.

Each is a scan over blocks of the columns or rows of a matrix. For each block, one matrix product subtracts the
contributions of all other blocks. An inner scan, over the columns or rows of the block, then needs only that block.
Derivatives are formulas.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Generic, NamedTuple, TypeVar

from tracegrad import foreign, ops
from tracegrad.dtypes import broadcast_shapes, i32
from tracegrad.elimination import DET, LOG_DET, PIVOTS, SOLVE, extended, of_sides, part_at, repeated, split
from tracegrad.errors import ShapeError
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.methods import op
from tracegrad.ops.constants import eye, tril, triu, zeros
from tracegrad.ops.joining import concat
from tracegrad.ops.linalg import matmul
from tracegrad.ops.reduction import prod
from tracegrad.ops.shaping import expand_dims, pad
from tracegrad.prims.elementwise import sign, sqrt, stop_gradient, where
from tracegrad.prims.leaves import as_tensor, as_tensors, const, iota
from tracegrad.prims.maps import composite, float_type
from tracegrad.prims.rules import alike
from tracegrad.prims.views import broadcast_to

__all__ = ["cholesky", "det", "inv", "slogdet", "solve", "solve_triangular"]

T = TypeVar("T")
PARTS = 3  # of a factorization, at most: each begins with a smaller rest, and compiles its own kernels


def _square(a: Any) -> Tensor:
    a = as_tensor(a)
    float_type(a.type)
    if a.ndim < 2 or a.shape[-1] != a.shape[-2]:
        raise ShapeError(f"A must be a square matrix [..., n, n], got {a.type}")
    return a


def _system(a: Any, b: Any) -> tuple[Tensor, Tensor]:
    """Return a matrix and its right sides, with the batch axes of both."""
    a, b = as_tensors(a, b)
    a = _square(a)
    float_type(b.type)
    n = a.shape[-1]
    if b.ndim < 2 or b.shape[-2] != n:
        hint = "; a vector is a matrix of one column: pass b[:, None], and take [:, 0] of the result"
        raise ShapeError(f"B must be [..., {n}, k] to fit A {a.type}, got {b.type}{hint if b.ndim == 1 else ''}")
    batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return broadcast_to(a, (*batch, n, n)), broadcast_to(b, (*batch, n, b.shape[-1]))


def _parts(m: int) -> list[int]:
    """Return into parts of how many blocks a matrix of m blocks is split."""
    count = min(PARTS, -(-m // 3))
    return [m * (k + 1) // count - m * k // count for k in range(count)]


def _filled(fn: Callable[[Tensor, Tensor], Tensor], like: Tensor, axis: int, reverse: bool = False) -> Tensor:
    """Fill an array like `like` slice by slice along `axis`: slice i is `fn(array, i)`.

    The array holds the slices that are filled so far, and 0 elsewhere.
    """
    here = iota((like.shape[axis], *[1] * (-axis - 1)), 0)

    def put(found: Tensor, i: Tensor) -> Tensor:
        return where(here == i, expand_dims(fn(found, i), axis), found)

    return repeated(put, zeros(like.shape), like.shape[axis], reverse)


# cholesky
def _cholesky(a: Tensor) -> Tensor:
    """Factor the first columns, subtract what they give from the rest, and go on with that."""
    size = a.shape[-1]
    m, b = split(size)
    rest, found, batch = extended(a, m * b), list[Tensor](), ((0, 0),) * (a.ndim - 2)
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
        factors = part_at(earlier[..., :rows].reshape((*batch, rows, m, b)), t, -2).swapaxes(-1, -2)
        return _factored(part_at(blocks, t, -3) - matmul(factors, earlier), t * b)

    return _filled(block, blocks, -3).reshape((*batch, rows, n))


def _factored(a: Tensor, first: Tensor) -> Tensor:
    """Return the rows of L^T from `first` on, one after the other. a: A minus the part that earlier rows give."""

    def row(found: Tensor, j: Tensor) -> Tensor:
        factors = expand_dims(part_at(found, first + j, -1), -2)
        left = part_at(a, j, -2) - matmul(factors, found).squeeze(-2)
        return where(
            iota(a.shape[-1:], 0) >= first + j, left / sqrt(expand_dims(part_at(left, first + j, -1), -1)), 0.0
        )

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
    m, r = split(size)
    a = triu(a) if upper else tril(a)
    if m == 1:
        return _substituted(a, b, upper)
    n, batch = m * r, b.shape[:-2]
    blocks = extended(a, n).reshape((*batch, m, r, n))
    sides = pad(b, ((0, 0),) * len(batch) + ((0, n - size), (0, 0))).reshape((*batch, m, r, k))

    def block(found: Tensor, t: Tensor) -> Tensor:
        rows = part_at(blocks, t, -3)
        left = part_at(sides, t, -3) - matmul(rows, found.reshape((*batch, n, k)))  # rows not solved yet are 0
        return _substituted(part_at(rows.reshape((*batch, r, m, r)), t, -2), left, upper)

    found = _filled(block, sides, -3, upper)
    return found.reshape((*batch, n, k))[..., :size, :]


def _substituted(a: Tensor, b: Tensor, upper: bool) -> Tensor:
    """Return X with A X = B, row by row."""

    def row(found: Tensor, i: Tensor) -> Tensor:
        factors = part_at(a, i, -2)
        known = matmul(expand_dims(factors, -2), found).squeeze(-2)
        return (part_at(b, i, -2) - known) / expand_dims(part_at(factors, i, -1), -1)

    return _filled(row, b, -2, upper)


def _triangular_vjp(ct: Tensor, y: Tensor, a: Tensor, b: Tensor, *, upper: bool) -> tuple[Tensor, Tensor]:
    given = bind(TRIANGULAR, a.swapaxes(-1, -2), ct, upper=not upper)
    return (triu if upper else tril)(-matmul(given, y.swapaxes(-1, -2))), given


def _triangular_xla(x: Any, t: Tensor, a: Any, b: Any) -> Any:
    return x.lax.linalg.triangular_solve(a, b, left_side=True, lower=not t.attrs["upper"])


TRIANGULAR = composite(
    "solve_triangular", type=of_sides, expand=_triangular, vjp=_triangular_vjp, batch=alike, xla=_triangular_xla
)


@op
def cholesky(a: Any) -> Tensor:
    """Return the lower triangular L with L L^T = A, where A is the symmetric positive definite matrix `a`.

    L[:, j] = M[:, j] / sqrt(M[j, j]) from the diagonal down, with M = A - sum over k < j of L[:, k] L[:, k]^T

    a:        f32, shape (..., n, n). Only the lower triangle is read.
    Returns:  f32, shape of `a`, 0 above the diagonal. Elements are NaN if the matrix is not positive definite.
    Gradient: to the lower triangle of `a`, by two triangular solves (Murray 2016). If A is computed, for
              example as X X^T + eye, the gradient to X is the usual one.
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
    """Return x with a @ x = b for triangular matrices `a`, by substitution.

    x[i] = (b[i] - sum over solved rows j of a[i, j] x[j]) / a[i, i]

    a:        f32, shape (..., n, n). Only the triangle that `upper` names is read.
    b:        f32, shape (..., n, k). Batch axes broadcast against those of `a`.
    upper:    True: `a` is upper triangular, and the last row is solved first. False: lower, and the first row.
    Returns:  x, f32, shape (..., n, k). A zero on the diagonal gives infinities or NaN.
    Gradient: a^-T dy to `b`, and -(a^-T dy) x^T to the triangle of `a`, dy the result's gradient.
    Raises:   ShapeError if `a` is not square or `b` has another number of rows; DTypeError if one is not f32.

    As torch.linalg.solve_triangular.

    >>> tg.linalg.solve_triangular([[2.0, 0.0], [1.0, 3.0]], [[4.0], [8.0]], upper=False)
    tensor([[2.],
            [2.]])
    """
    return bind(TRIANGULAR, *_system(a, b), upper=upper)


@op
def solve(a: Any, b: Any) -> Tensor:
    """Return x with a @ x = b, by elimination with row pivots.

    a:        f32, shape (..., n, n).
    b:        f32, shape (..., n, k), or (n,). Batch axes broadcast against those of `a`.
    Returns:  x, f32, shape (..., n, k), or (..., n) for a vector. A singular `a` gives infinities or NaN, or numbers
              that mean nothing if rounding hides that it is singular.
    Gradient: a^-T dy to `b`, and -(a^-T dy) x^T to `a`, dy the result's gradient.
    Raises:   ShapeError if `a` is not square or `b` has another number of rows; DTypeError if one is not f32.

    Unlike numpy.linalg.solve and torch.linalg.solve, it does not raise for a singular `a`. For a positive definite `a`,
    `cholesky` and two calls of `solve_triangular` are more exact.

    >>> tg.linalg.solve([[0.0, 2.0], [1.0, 3.0]], [[4.0], [8.0]])
    tensor([[2.],
            [2.]])
    """
    a, b = as_tensors(a, b)
    if b.shape == _square(a).shape[-1:]:
        return solve(a, expand_dims(b, 1)).squeeze(-1)
    a, b = _system(a, b)
    return bind(SOLVE, a, b) if b.type.size else b


@op
def inv(a: Any) -> Tensor:
    """Return the inverse of a square matrix. `solve(A, B)` is faster and more exact than `inv(A) @ B`.

    a:        f32, shape (..., n, n).
    Returns:  f32, shape of `a`. For a singular matrix see `solve`.
    Gradient: -A^-T dy A^-T, dy the result's gradient.
    Raises:   ShapeError if `a` is not square; DTypeError if it is not f32.

    As numpy.linalg.inv and torch.linalg.inv, which raise for a singular matrix.

    >>> tg.linalg.inv([[2.0, 0.0], [0.0, 4.0]])
    tensor([[0.5 , 0.  ],
            [0.  , 0.25]])
    """
    a = _square(a)
    return solve(a, eye(a.shape[-1]))


@op
def det(a: Any) -> Tensor:
    """Return the determinant of a square matrix, by elimination with row pivots. `slogdet` does not overflow.

    a:        f32, shape (..., n, n).
    Returns:  f32, shape (...). For a singular matrix 0, or what rounding leaves.
    Gradient: dy det(a) a^-T, dy the result's gradient; infinities or NaN where the result is 0.
    Raises:   ShapeError if `a` is not square; DTypeError if it is not f32.

    As numpy.linalg.det and torch.linalg.det.

    >>> tg.linalg.det([[1.0, 2.0], [3.0, 4.0]])
    tensor(-2.)
    """
    return bind(DET, _square(a))


class SignAndLog(NamedTuple, Generic[T]):
    """The results of `slogdet`, as attributes or as a pair."""

    sign: T
    logabsdet: T


@op
def slogdet(a: Any) -> SignAndLog[Tensor]:
    """Return the sign and the logarithm of the absolute value of the determinant of a square matrix.

    det(a) = sign * exp(logabsdet)

    a:        f32, shape (..., n, n).
    Returns:  (sign, logabsdet), f32, shape (...) each; 0 and -inf where `det` is 0.
    Gradient: of logabsdet, dy a^-T, dy its gradient; infinities or NaN where `det` is 0. None of the sign.
    Raises:   ShapeError if `a` is not square; DTypeError if it is not f32.

    As numpy.linalg.slogdet and torch.linalg.slogdet. A normalizing flow with an invertible matrix adds logabsdet to its
    log-density. For a positive definite `a` = L L^T, this costs less: 2 * tg.sum(tg.log(tg.diag(L))), L by `cholesky`.

    >>> tg.linalg.slogdet([[1.0, 2.0], [3.0, 4.0]])
    SignAndLog(sign=tensor(-1.), logabsdet=tensor(0.6931472))
    """
    a = _square(a)
    return SignAndLog(prod(sign(stop_gradient(bind(PIVOTS, a))), -1), bind(LOG_DET, a))


if not TYPE_CHECKING:  # type checkers are to report unknown names themselves

    def __getattr__(name):
        raise foreign.no_such_name("tracegrad.linalg", name, {"tg.linalg": __all__, "tg": ops.__all__})
