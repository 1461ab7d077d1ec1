"""Recurrences: a function that is traced once and runs repeatedly, each time on its last result."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tracegrad.dtypes import TensorType, integer, u32
from tracegrad.errors import DTypeError, ShapeError, TraceError, TracegradError
from tracegrad.ir import ambient
from tracegrad.ir.nodes import Tensor, graft
from tracegrad.prims.elementwise import cast as cast_
from tracegrad.prims.leaves import as_tensor, const, iota
from tracegrad.prims.views import broadcast_to
from tracegrad.refusals import article
from tracegrad.transforms.loops import inner_leaf, scanned
from tracegrad.transforms.trees import is_pair, rebuilt, tree_leaves, tree_map

__all__ = ["scan"]


def scan(
    fn: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any = None, length: int | None = None,
    *, reverse: bool = False,
) -> tuple[Any, Any]:  # fmt: skip
    """Run `fn` on each slice of `xs` along the first axis, and pass a value, the carry, from run to run.

    carry = init
    for t in range(length): carry, ys[t] = fn(carry, xs[t])

    fn:       (carry, x) -> (new carry, y), traced once for all runs. It can use any tensor around it, such as
              parameters.
    init:     the first carry: a tensor, number or array, or a tree of them: a tuple, list, dict or model.
    xs:       a tensor, array or tree of them, all of one length along the first axis. With None, `fn` gets x = None.
    length:   the number of runs; needed without `xs`.
    reverse:  True runs from the last slice to the first; ys[t] still belongs to xs[t].
    Returns:  (carry, ys): the last carry, and the y of all runs, stacked along a new first axis.
    Gradient: to `init`, `xs` and every tensor that `fn` uses, by a loop in the other direction. That loop recomputes
              elementwise results such as a * b. Each run stores the other values that it needs: the carry, operands of
              `max` and `min`, and results of matrix products, sums over axes and larger ops such as `softmax`.
    Raises:   ShapeError or DTypeError if the carry changes its structure, shapes or dtypes; ShapeError if lengths
              differ or none is given; TraceError unless `fn` returns a pair of trees.

    A random op in `fn` draws other numbers in each run. `tg.capture` and `tg.patch` cannot be used in `fn`. As
    jax.lax.scan.

    >>> total, parts = tg.scan(lambda c, x: (c + x, c + x), 0.0, np.array([1.0, 2.0, 3.0], np.float32))
    >>> total, parts
    (tensor(6.), tensor([1., 3., 6.]))
    """
    return looped("scan", fn, init, xs, length, reverse)


def looped(
    who: str, fn: Callable[[Any, Any], tuple[Any, Any]], init: Any, xs: Any, length: int | None, reverse: bool
) -> tuple[Any, Any]:
    """Do the same as `scan`. who: the function that users call, for errors."""
    running = ambient.require(who)
    carries, of_carry = _tensors(who, init, "init")
    elements, of_x = _tensors(who, xs, "xs")
    n = _length(who, elements, length)
    leaves = [inner_leaf("carry", t.type) for t in carries]
    parts = [inner_leaf("x", TensorType(t.dtype, t.shape[1:])) for t in elements]
    number = inner_leaf("x", TensorType(_numbers(n).dtype, ()))
    with running.inside(cast_(number, u32)):
        result = fn(of_carry(leaves), of_x(parts))
    new, ys, of_ys = _results(who, result, init, leaves)
    if n == 0:
        return of_carry(carries), of_ys([broadcast_to(const(0, y.dtype), (0, *y.shape)) for y in ys])
    # A carry that never changes is treated as a constant: nothing must be stored for it.
    kept = [k for k, leaf in enumerate(leaves) if new[k] is not leaf]
    fixed = {leaf.serial: t for k, (leaf, t) in enumerate(zip(leaves, carries)) if k not in kept}
    roots = graft([*(new[k] for k in kept), *ys], fixed)
    pairs = [*zip(parts, elements), (number, _numbers(n))]
    made = scanned([leaves[k] for k in kept], pairs, (), [carries[k] for k in kept], roots, n, reverse)
    last = list(carries)
    for k, t in zip(kept, made.last):
        last[k] = t
    return of_carry(last), of_ys(made.each)


def _numbers(n: int) -> Tensor:
    """Return the numbers of `n` iterations, from 0 on, as an array that a scan reads."""
    return iota((n,), 0)


def _tensors(who: str, tree: Any, what: str) -> tuple[list[Tensor], Callable[[Sequence[Any]], Any]]:
    """Return the leaves of a tree, and a function that rebuilds the tree with other leaves."""
    try:
        return [as_tensor(x) for x in tree_leaves(tree)], lambda new: rebuilt(tree, new)
    except (DTypeError, TraceError) as e:
        raise type(e).here(f"{who}: {what} must be tensors, or trees of them: {_rule(e)}") from None


def _length(who: str, xs: Sequence[Tensor], length: int | None) -> int:
    """Return the number of iterations. Raises: ShapeError unless all agree."""
    if any(not x.shape for x in xs):
        raise ShapeError.here(f"{who}: xs has a value of rank 0, {_types(xs)}, without an axis to scan")
    sizes = [x.shape[0] for x in xs]
    if length is not None:
        sizes.append(integer(length, "length"))
    if not sizes:
        raise ShapeError.here("scan: without xs, pass a length: scan(fn, init, length=10)")
    n = sizes[0]
    if any(other != n for other in sizes):
        given = "" if length is None else f" and length is {length}"
        raise ShapeError.here(
            f"{who}: lengths differ: the first axes of xs are {_types(xs)}{given}; cut them to one length"
        )
    if n < 0:
        raise ShapeError.here(f"{who}: length must not be negative, got {n}")
    return n


def _types(xs: Sequence[Tensor]) -> str:
    return ", ".join(str(x.type) for x in xs) or "nothing"


def _results(
    who: str, result: Any, init: Any, leaves: Sequence[Tensor]
) -> tuple[list[Tensor], list[Tensor], Callable[[Sequence[Any]], Any]]:
    """Return the new carries, the leaves of y, and a function that rebuilds the tree y from other leaves.

    Raises an error unless `result` is a pair, and if the carry changes its form or a type.
    """
    if not is_pair(result):
        shown = getattr(result, "type", None) or article(type(result).__name__)
        raise TraceError.here(f"{who}: fn must return a pair (carry, y), got {shown}; y may be None")
    carry, y = result
    new = new_carry(who, init, carry)
    try:
        made = [as_tensor(x, like=leaf.dtype) for x, leaf in zip(new, leaves, strict=True)]
    except (DTypeError, TraceError) as e:
        raise type(e).here(f"{who}: the new carry must be tensors: {_rule(e)}") from None
    for t, leaf in zip(made, leaves):
        if t.type != leaf.type:
            raise changed_type(who, leaf, t)
    return made, *_tensors(who, y, "y")


def changed_type(who: str, old: Any, new: Any, cast: str = "cast init with tg.cast") -> TracegradError:
    """Return the error for a carry whose type `fn` changes. cast: the remedy for another dtype."""
    kind: type[TracegradError] = DTypeError if new.dtype != old.dtype else ShapeError
    return kind.here(
        f"{who}: fn changes the type of the carry: it gets {old.type} and returns {new.type}; every iteration must "
        "return what the next one takes" + f"; {cast}" * (kind is DTypeError)
    )


def new_carry(who: str, old: Any, carry: Any) -> list[Any]:
    """Return the leaves of `carry` in the order of `old`. Raises ShapeError if the two have different forms."""
    new: list[Any] = []

    def note(_: Any, x: Any) -> None:
        new.append(x)

    try:
        tree_map(note, old, carry)
    except TraceError as e:
        raise ShapeError.here(f"{who}: fn changes the form of the carry: {_rule(e)}") from None
    had, has = sum(x is not None for x in new), len(tree_leaves(carry))
    if had != has:  # a part that was None
        raise ShapeError.here(f"{who}: fn changes the form of the carry: it gets {had} arrays and returns {has}")
    return new


def _rule(e: TracegradError) -> str:
    """Return the message without the line: the new error adds the line again."""
    return str(e).partition("\n  at ")[0]
