"""Products: matmul with NumPy's rank and batch rules, einsum, outer."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tracegrad.dtypes import Shape, broadcast_shapes
from tracegrad.errors import ShapeError
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.methods import Operand, method, op
from tracegrad.prims import views
from tracegrad.prims.elementwise import where
from tracegrad.prims.folds import MATMUL, check_product
from tracegrad.prims.leaves import as_tensors, iota

__all__ = ["einsum", "matmul", "outer"]

LETTERS = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"  # of an einsum


@method
def matmul(a: Operand, b: Operand) -> Tensor:
    """Multiply matrices, or batches of matrices.

    out[..., m, n] = sum over k of a[..., m, k] b[..., k, n]

    a, b:     f32, rank 1 or more. Leading axes broadcast. As in NumPy, an `a` of rank 1 is a row and a `b` of rank 1 a
              column, and the result lacks that axis.
    Returns:  f32, shape (..., M, N): M rows as in `a`, N columns as in `b`. Two operands of rank 1 give rank 0.
    Gradient: dy @ b^T to `a` and a^T @ dy to `b`, dy being the result's gradient; summed over the axes that broadcast.
    Raises:   ShapeError if the shapes do not fit or a rank is 0; DTypeError if one is not f32.

    As numpy.matmul and torch.matmul. `a @ b` is the same.

    >>> tg.matmul([[1.0, 2.0]], [[3.0], [4.0]])
    tensor([[11.]])
    """
    a, b = as_tensors(a, b)
    if not a.ndim or not b.ndim:
        raise ShapeError(
            f"operands must have at least one axis: a is {a.type}, b is {b.type}; to multiply by a scalar, use *"
        )
    check_product(a.type, b.type)
    left = views.reshape(a, (1, a.type.size)) if a.ndim == 1 else a
    right = views.reshape(b, (b.type.size, 1)) if b.ndim == 1 else b
    y = _product(left, right)
    shape = (*y.shape[:-2], *y.shape[-2:-1][: a.ndim - 1], *y.shape[-1:][: b.ndim - 1])
    return views.reshape(y, shape)


def _product(a: Tensor, b: Tensor) -> Tensor:
    """Multiply operands of rank 2 or more with any batch axes."""
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if math.prod(b.shape[:-2]) == 1:
        rows = views.reshape(a, (a.size // k if k else math.prod(a.shape[:-1]), k))
        batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
        return views.reshape(bind(MATMUL, rows, views.reshape(b, (k, n))), (*batch, m, n))
    try:
        batch = broadcast_shapes(a.shape[:-2], b.shape[:-2])
    except ShapeError:
        raise ShapeError(f"batch dimensions do not broadcast: a is {a.type}, b is {b.type}") from None
    return bind(MATMUL, views.broadcast_to(a, (*batch, m, k)), views.broadcast_to(b, (*batch, k, n)))


@op
def outer(a: Operand, b: Operand) -> Tensor:
    """Return all products of an element of `a` and an element of `b`.

    out[i, j] = a[i] b[j]

    a, b:     vectors of one dtype: f32, i32 or u32.
    Returns:  their dtype, shape (size of `a`, size of `b`).
    Gradient: dy @ b to `a` and dy^T @ a to `b`, dy being the result's gradient.
    Raises:   ShapeError unless both are vectors; DTypeError if the dtypes differ, or are bool.

    As numpy.outer and torch.outer.

    >>> tg.outer([1.0, 2.0], [3.0, 4.0])
    tensor([[3., 4.],
            [6., 8.]])
    """
    a, b = as_tensors(a, b)
    if a.ndim != 1 or b.ndim != 1:
        raise ShapeError(f"takes two vectors, got {a.type} and {b.type}")
    return views.reshape(a, (a.type.size, 1)) * views.reshape(b, (1, b.type.size))


@op
def einsum(spec: str, *operands: Operand) -> Tensor:
    """Sum products of elements by Einstein's convention: einsum("bqd,bkd->bqk", q, k).

    Letters name the axes of each operand. The result sums over each letter that is missing after `->`. A letter that
    occurs twice in one operand takes the diagonal. `...` stands for any number of axes, which broadcast.

    spec:     the letters of each operand, separated by commas, then `->` and the letters of the result. Without `->`,
              the result has the letters that occur once, in alphabetical order.
    operands: of one dtype, which is f32 if products are summed; one axis for each letter. Axes of one letter have equal
              sizes, or size 1, which broadcasts. The operands are multiplied from left to right, each pair as a matmul.
    Returns:  their dtype, one axis for each letter of the result.
    Gradient: to each operand, the einsum of the result's gradient with the other operands.
    Raises:   ShapeError if `spec` does not fit the operands; DTypeError for other dtypes.

    As numpy.einsum and torch.einsum.

    >>> tg.einsum("ij,jk->ik", tg.ones((2, 3)), tg.ones((3, 2)))
    tensor([[3., 3.],
            [3., 3.]])
    """
    if not isinstance(spec, str):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ShapeError("the letters of the axes come first, as text: tg.einsum('ij,jk->ik', a, b)")
    xs = list(as_tensors(*operands))
    terms, out = _parse(spec, xs)
    sizes = _sizes(spec, terms, xs)
    x, letters = _diagonal(xs[0], terms[0])
    for k, other in enumerate(xs[1:], 1):
        y, more = _diagonal(other, terms[k])
        later = out + "".join(terms[k + 1 :])
        x, letters = _contract(x, letters, y, more, later)
    x, letters = _sum_out(x, letters, out)
    x = views.permute(x, [letters.index(c) for c in out if c in letters])
    missing = [c for c in out if c not in letters]
    if missing:
        raise ShapeError(f"the output of {spec!r} names {missing[0]!r}, which no operand has; leave it out")
    return views.broadcast_to(x, tuple([sizes[c] for c in out]))


def _parse(spec: str, xs: Sequence[Tensor]) -> tuple[list[str], str]:
    """Return the letters of each operand and of the output. Unused letters replace `...`."""
    left, arrow, right = spec.replace(" ", "").partition("->")
    terms = left.split(",")
    if len(terms) != len(xs):
        raise ShapeError(f"{spec!r} names {len(terms)} operands, got {len(xs)}")
    spare = [c for c in LETTERS if c not in spec]
    widest = 0
    for k, (term, x) in enumerate(zip(terms, xs)):
        named = term.replace("...", "")
        extra = x.ndim - len(named)
        if extra < 0 or (extra and "..." not in term):
            raise ShapeError(
                f"{term!r} in {spec!r} does not fit {x.type}; write one letter for each of its axes ({x.ndim})"
            )
        if not all(c in LETTERS for c in named):
            raise ShapeError(f"axes are named by letters, got {term!r} in {spec!r}")
        widest = max(widest, extra)
        terms[k] = term.replace("...", "".join(spare[:extra][::-1]))  # aligned from the last axis
    dots = "".join(spare[:widest][::-1])
    if not arrow:
        every = "".join(terms)
        right = "..." + "".join(sorted(c for c in set(every) if every.count(c) == 1 and c not in dots))
    out = right.replace("...", dots)
    if len(set(out)) != len(out):
        raise ShapeError(f"the output of {spec!r} names an axis twice")
    return terms, out


def _sizes(spec: str, terms: Sequence[str], xs: Sequence[Tensor]) -> dict[str, int]:
    """Return the size of each letter; an axis of size 1 broadcasts."""
    sizes: dict[str, int] = {}
    for term, x in zip(terms, xs):
        for c, n in zip(term, x.shape):
            if sizes.setdefault(c, n) == 1:
                sizes[c] = n
            if n not in (1, sizes[c]):
                raise ShapeError(
                    f"axis {c!r} of {spec!r} is {sizes[c]} and {n}: {' and '.join(str(x.type) for x in xs)}"
                    "; use two letters, or make the sizes equal"
                )
    return sizes


def _diagonal(x: Tensor, letters: str) -> tuple[Tensor, str]:
    """Keep each letter once, by taking the diagonal of axes with the same letter."""
    for c in letters:
        while letters.count(c) > 1:
            first, second = letters.index(c), letters.rindex(c)
            on_diagonal = iota(x.shape, first) == iota(x.shape, second)
            x = where(on_diagonal, x, 0).sum(second)
            letters = letters[:second] + letters[second + 1 :]
    return x, letters


def _sum_out(x: Tensor, letters: str, keep: str) -> tuple[Tensor, str]:
    """Sum over the letters that are not in `keep`."""
    axes = tuple([d for d, c in enumerate(letters) if c not in keep])
    return (x.sum(axes) if axes else x), "".join(c for c in letters if c in keep)


def _contract(a: Tensor, la: str, b: Tensor, lb: str, later: str) -> tuple[Tensor, str]:
    """Multiply two operands, and sum over their shared letters that are not in `later`."""
    a, la = _sum_out(a, la, lb + later)
    b, lb = _sum_out(b, lb, la + later)
    size_a, size_b = dict(zip(la, a.shape)), dict(zip(lb, b.shape))
    shared = [c for c in la if c in lb]
    summed = [c for c in shared if c not in later]
    batch = [c for c in shared if c in later]
    free_a, free_b = [c for c in la if c not in lb], [c for c in lb if c not in la]
    sizes = {c: next((n for n in (size_a.get(c, 1), size_b.get(c, 1)) if n != 1), 1) for c in la + lb}

    def arranged(x: Tensor, letters: str, groups: Sequence[Sequence[str]]) -> Tensor:
        order = [c for group in groups for c in group]
        x = views.permute(x, [letters.index(c) for c in order])
        return views.broadcast_to(x, tuple([sizes[c] for c in order]))

    def shape(*groups: Sequence[str]) -> Shape:
        return tuple([sizes[c] for group in groups for c in group])

    out = "".join([*batch, *free_a, *free_b])
    left, right = arranged(a, la, (batch, free_a, summed)), arranged(b, lb, (batch, summed, free_b))
    if not summed:
        left = views.reshape(left, shape(batch, free_a) + (1,) * len(free_b))
        right = views.reshape(right, shape(batch) + (1,) * len(free_a) + shape(free_b))
        return left * right, out
    m, k, n = math.prod(shape(free_a)), math.prod(shape(summed)), math.prod(shape(free_b))
    left = views.reshape(left, (*shape(batch), m, k))
    right = views.reshape(right, (*shape(batch), k, n))
    return views.reshape(_product(left, right), shape(batch, free_a, free_b)), out
