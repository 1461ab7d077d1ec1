"""Elimination of the columns of a matrix, block by block: solutions of equations, and determinants.

One matrix product applies the steps of a block to all other columns; an inner scan over the block's columns needs only
that block. `linalg` has the public functions.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegrad.dtypes import TensorType, i32, normalize_axis
from tracegrad.ir import ambient
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.ops.constants import eye, zeros
from tracegrad.ops.extrema import argmax
from tracegrad.ops.indexing import take, take_along_axis
from tracegrad.ops.joining import concat
from tracegrad.ops.linalg import matmul
from tracegrad.ops.reduction import prod, sum
from tracegrad.ops.shaping import expand_dims, pad
from tracegrad.prims.elementwise import abs, log, where
from tracegrad.prims.leaves import const, iota
from tracegrad.prims.maps import composite
from tracegrad.prims.rules import alike
from tracegrad.prims.views import broadcast_to
from tracegrad.transforms.recurrence import scan

BLOCK, UNBLOCKED = 16, 32  # rows of a block; the largest matrix without blocks


def split(n: int) -> tuple[int, int]:
    """Return into how many blocks n rows are split, and the number of rows of a block."""
    count = -(-n // BLOCK) if n > UNBLOCKED else 1
    return count, -(-n // count)


def extended(a: Tensor, n: int) -> Tensor:
    """Return a square matrix extended by the identity, as a block-diagonal matrix of n rows."""
    more = n - a.shape[-1]
    return pad(a, ((0, 0),) * (a.ndim - 2) + ((0, more),) * 2) + where(iota((n,), 0) >= a.shape[-1], eye(n), 0.0)


def part_at(x: Tensor, i: Tensor, axis: int) -> Tensor:
    return take(x, i, normalize_axis(axis, x.ndim))


def repeated(fn: Callable[[Any, Tensor], Any], init: Any, n: int, reverse: bool = False) -> Any:
    """Return the last carry of carry = fn(carry, i) for i = 0, ..., n - 1. Also works while composites are expanded."""
    with ambient.tracing():
        return scan(lambda found, i: (fn(found, i), None), init, iota((n,), 0), reverse=reverse)[0]


def of_sides(a: TensorType, b: TensorType, *, upper: bool = False) -> TensorType:
    """Return the type of X, which is that of B."""
    return b


# solve
def _solved(a: Tensor, b: Tensor) -> Tensor:
    """Eliminate the columns block by block. One product applies the steps of a block to all other columns."""
    size, batch = b.shape[-2], b.shape[:-2]
    m, w = split(size)
    n = m * w
    both = concat([extended(a, n), pad(b, ((0, 0),) * len(batch) + ((0, n - size), (0, 0)))], -1)
    return repeated(lambda x, t: _without_block(x, t, m)[0], both, m)[..., :size, n:]


def _without_block(x: Tensor, t: Tensor, m: int, *pivots: Tensor) -> tuple[Tensor, ...]:
    """Eliminate the columns of block t of m in `x`, which begins with a square matrix. Return `x` and new pivots."""
    *batch, n, columns = x.shape
    w = n // m
    panel = part_at(x[..., :n].reshape((*batch, n, m, w)), t, -2).swapaxes(-1, -2)
    steps, order, *new = _eliminated(panel, t * w, *pivots)
    x = take_along_axis(x, order.swapaxes(-1, -2), -2)
    rows = part_at(x.reshape((*batch, m, w, columns)), t, -3)
    return where(expand_dims(iota((n,), 0) // w == t, -1), 0.0, x) + matmul(steps.swapaxes(-1, -2), rows), *new


def _eliminated(panel: Tensor, first: Tensor, *pivots: Tensor) -> tuple[Tensor, ...]:
    """Eliminate some columns with row pivots, from row `first` on.

    panel:   the columns, along its last axis.
    pivots:  an array to fill with the pivots, negative after an exchange of rows; a column of zeros then stays.
    Returns: the factors with which these steps add the block's rows to all rows, and the order of the rows before, both
             with all rows along the last axis.
    """
    w, n = panel.shape[-2:]
    place, along = iota((n,), 0), expand_dims(iota((w,), 0), 1)

    def column(found: tuple[Tensor, ...], j: Tensor) -> tuple[Tensor, ...]:
        x, order, *rest = found
        here = place == first + j
        values = expand_dims(part_at(x, j, -2), -2)
        chosen = argmax(where(place >= first + j, abs(values), -1.0), -1, keepdims=True)

        def exchanged(v: Tensor) -> Tensor:
            """Return `v` with row `here` and the pivot's row exchanged."""
            return where(place == chosen, expand_dims(part_at(v, first + j, -1), -1), v)

        of_pivot, scale, number = (take_along_axis(v, chosen, -1) for v in (x, values, order))
        signed = where(chosen == first + j, scale, -scale).squeeze(-1)
        rest = [where(along.squeeze(-1) == j, signed, found) for found in rest]
        new = where(along == j, 1.0, of_pivot) / (where(scale == 0.0, 1.0, scale) if pivots else scale)
        others = where(along == j, 0.0, exchanged(x)) - exchanged(values) * new
        return where(here, new, others), where(here, number, exchanged(order)), *rest

    return repeated(column, (panel, broadcast_to(place, (*panel.shape[:-2], 1, n)), *pivots), w)


def _solve_vjp(ct: Tensor, y: Tensor, a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    given = bind(SOLVE, a.swapaxes(-1, -2), ct)
    return -matmul(given, y.swapaxes(-1, -2)), given


def _solve_xla(x: Any, t: Tensor, a: Any, b: Any) -> Any:
    return x.np.linalg.solve(a, b)


SOLVE = composite("solve", type=of_sides, expand=_solved, vjp=_solve_vjp, batch=alike, xla=_solve_xla)


# determinants
def _pivoted(a: Tensor) -> Tensor:
    """Return [..., n] numbers whose product is the determinant: the pivots of the steps of `_solved`."""
    size, batch = a.shape[-1], a.shape[:-2]
    m, w = split(size)
    n, none = m * w, zeros((*batch, w))
    if m == 1:
        return _eliminated(a.swapaxes(-1, -2), const(0, i32), none)[2]

    def block(found: tuple[Tensor, Tensor], t: Tensor) -> tuple[Tensor, Tensor]:
        x, new = _without_block(found[0], t, m, none)
        return x, where(iota((m, 1), 0) == t, expand_dims(new, -2), found[1])

    return repeated(block, (extended(a, n), zeros((*batch, m, w))), m)[1].reshape((*batch, n))


def _each_row(a: TensorType) -> TensorType:
    m, w = split(a.shape[-1])
    return TensorType(a.dtype, (*a.shape[:-2], m * w))


def _number(a: TensorType) -> TensorType:
    return TensorType(a.dtype, a.shape[:-2])


def _inverse_transposed(a: Tensor) -> Tensor:
    return bind(SOLVE, a.swapaxes(-1, -2), broadcast_to(eye(a.shape[-1]), a.shape))


def _log_det_vjp(ct: Tensor, y: Tensor, a: Tensor) -> tuple[Tensor]:
    return (expand_dims(ct, (-1, -2)) * _inverse_transposed(a),)


def _det_vjp(ct: Tensor, y: Tensor, a: Tensor) -> tuple[Tensor]:
    return _log_det_vjp(ct * y, y, a)


def _log_det(a: Tensor) -> Tensor:
    return sum(log(abs(bind(PIVOTS, a))), -1)


def _log_det_xla(x: Any, t: Tensor, a: Any) -> Any:
    return x.np.linalg.slogdet(a)[1]


def _det(a: Tensor) -> Tensor:
    return prod(bind(PIVOTS, a), -1)


def _det_xla(x: Any, t: Tensor, a: Any) -> Any:
    return x.np.linalg.det(a)


PIVOTS = composite("pivots", type=_each_row, expand=_pivoted, batch=alike)
LOG_DET = composite("log_det", type=_number, expand=_log_det, vjp=_log_det_vjp, batch=alike, xla=_log_det_xla)
DET = composite("det", type=_number, expand=_det, vjp=_det_vjp, batch=alike, xla=_det_xla)
