"""Which halves of a tensor are known to be zeros or true, and which no kernel reads: all of them, and no other."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tracegrad import ops
from tracegrad.dtypes import TensorType, bool_, f32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor, toposort
from tracegrad.kernels.form import Limit
from tracegrad.kernels.triangles import Triangles
from tracegrad.passes.expand import expand_composites
from tracegrad.prims import views
from tracegrad.prims.leaves import iota, leaf

N = 4
Halves = set[tuple[int, int]]
UP, DOWN = (0, 1), (1, 0)  # elements behind the diagonal, where the column is larger, and those before it


def mask(strict: bool = False) -> Tensor:
    """True where the column is at most the row; `strict`: smaller."""
    row, column = iota((N, N), 0), iota((N, N), 1)
    return column < row if strict else column <= row


def zeros_above(x: Tensor, other: float = 0.0) -> Tensor:
    return ops.where(mask(), x, other)


def zeros_below(x: Tensor) -> Tensor:
    return ops.where(mask(strict=True), 0.0, x)


# of float x, y and bool b, all 4 x 4: the halves of the result that are zeros (or false), and the halves that are true
KNOWN: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], Halves, Halves]] = {
    "nothing": (lambda x, y, b: x + y, set(), set()),
    "at most": (lambda x, y, b: mask(), {UP}, {DOWN}),
    "less": (lambda x, y, b: mask(strict=True), {UP}, {DOWN}),
    "more": (lambda x, y, b: iota((N, N), 0) < iota((N, N), 1), {DOWN}, {UP}),
    "of coordinates that are views": (
        lambda x, y, b: iota((N,), 0).broadcast_to((N, N)) <= iota((N,), 0).reshape(N, 1).broadcast_to((N, N)),
        {UP},
        {DOWN},
    ),
    "two rows in a batch": (lambda x, y, b: zeros_above(x)[:2].reshape(1, 2, N), {(1, 2)}, set()),
    "the first row": (lambda x, y, b: zeros_above(x)[:1], set(), set()),
    "equal": (lambda x, y, b: ops.equal(iota((N, N), 0), iota((N, N), 1)), set(), set()),
    "of one coordinate": (lambda x, y, b: iota((N, N), 0) <= iota((N, N), 0), set(), set()),
    "of one coordinate and a number": (lambda x, y, b: iota((N, N), 0) <= 2, set(), set()),
    "not": (lambda x, y, b: ops.logical_not(mask()), {DOWN}, {UP}),
    "and": (lambda x, y, b: ops.logical_and(mask(), b), {UP}, set()),
    "and, the other way": (lambda x, y, b: ops.logical_and(b, mask()), {UP}, set()),
    "and of both": (lambda x, y, b: ops.logical_and(mask(), mask(strict=True)), {UP}, {DOWN}),
    "or": (lambda x, y, b: ops.logical_or(mask(), b), set(), {DOWN}),
    "or, the other way": (lambda x, y, b: ops.logical_or(b, mask()), set(), {DOWN}),
    "or of both": (lambda x, y, b: ops.logical_or(mask(), mask(strict=True)), {UP}, {DOWN}),
    "a chosen zero": (lambda x, y, b: zeros_above(x), {UP}, set()),
    "another chosen zero": (lambda x, y, b: zeros_below(x), {DOWN}, set()),
    "a chosen number": (lambda x, y, b: zeros_above(x, 1.0), set(), set()),
    "of zeros by another mask": (lambda x, y, b: ops.where(b, zeros_above(x), zeros_above(y)), {UP}, set()),
    "of zeros by this mask": (lambda x, y, b: ops.where(mask(), zeros_below(x), 0.0), {UP, DOWN}, set()),
    "of zeros on one side": (lambda x, y, b: ops.where(b, zeros_above(x), y), set(), set()),
    "negated": (lambda x, y, b: -zeros_above(x), {UP}, set()),
    "a sum": (lambda x, y, b: zeros_above(x) + zeros_above(y), {UP}, set()),
    "a difference": (lambda x, y, b: zeros_above(x) - zeros_above(y), {UP}, set()),
    "a sum with another": (lambda x, y, b: zeros_above(x) + y, set(), set()),
    "a sum of other halves": (lambda x, y, b: zeros_above(x) + zeros_below(y), set(), set()),
    "times a number": (lambda x, y, b: zeros_above(x) * 3.0, {UP}, set()),
    "a number times": (lambda x, y, b: 3.0 * zeros_above(x), {UP}, set()),
    "times what may be infinite": (lambda x, y, b: zeros_above(x) * y, set(), set()),
    "times infinity": (lambda x, y, b: zeros_above(x) * float("inf"), set(), set()),
    "to the power": (lambda x, y, b: ops.exp(zeros_above(x)), set(), set()),
    "transposed": (lambda x, y, b: zeros_above(x).swapaxes(0, 1), {DOWN}, set()),
    "a transposed mask": (lambda x, y, b: mask().swapaxes(0, 1), {DOWN}, {UP}),
    "flipped": (lambda x, y, b: ops.flip(zeros_above(x), 0), set(), set()),
    "with an axis in front": (lambda x, y, b: zeros_above(x).reshape(1, N, N), {(1, 2)}, set()),
    "padded": (lambda x, y, b: views.place(mask(), 0, 0, N + 2), {UP}, set()),
    "cut": (lambda x, y, b: zeros_above(x)[:, :3], {UP}, set()),
    "cut behind the start": (lambda x, y, b: zeros_above(x)[:, 1:], set(), set()),
    "as one row": (lambda x, y, b: zeros_above(x).reshape(1, N * N), set(), set()),
    "a mask along a batch": (
        lambda x, y, b: ops.where(mask().broadcast_to((2, N, N)), ops.stack([x, y]), 0.0),
        {(1, 2)},
        set(),
    ),
}


def graph_of(fn: Callable[..., Tensor]) -> tuple[Tensor, list[Tensor]]:
    x, y = (leaf("input", n, TensorType(f32, (N, N))) for n in "xy")
    (root,) = expand_composites([fn(x, y, leaf("input", "b", TensorType(bool_, (N, N))))])
    return root, list(toposort([root]))


def elements(shape: tuple[int, ...], half: tuple[int, int]) -> Any:
    row, column = half
    at = np.indices(shape)
    return at[column] > at[row]


@pytest.mark.parametrize("name", KNOWN)
def test_known_halves(name: str) -> None:
    """The table; and no value says otherwise."""
    fn, zero, true = KNOWN[name]
    with tracing():
        root, order = graph_of(fn)
        halves = Triangles(order, [root.serial])
    assert set(halves.zero.get(root.serial, ())) == zero
    assert set(halves.true.get(root.serial, ())) == true
    rng = np.random.default_rng(0)
    env = {"x": rng.uniform(1, 2, (N, N)), "y": np.full((N, N), np.inf), "b": rng.integers(0, 2, (N, N)).astype(bool)}
    with np.errstate(all="ignore"):
        values = evaluate(order, env, np)
    for t, value in zip(order, values, strict=True):
        for half in halves.zero.get(t.serial, ()):
            assert not value[elements(t.shape, half)].any(), t
        for half in halves.true.get(t.serial, ()):
            assert value[elements(t.shape, half)].all(), t


# of x: which of its halves no kernel reads
UNREAD: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], Halves]] = {
    "all is read": (lambda x, y, b: ops.exp(x) + zeros_above(y), set()),
    "masked": (lambda x, y, b: zeros_above(ops.exp(x)), {UP}),
    "masked on the other side": (lambda x, y, b: zeros_below(x * y), {DOWN}),
    "by two": (lambda x, y, b: zeros_above(ops.exp(x)) + zeros_above(ops.sin(x), 1.0), {UP}),
    "by two in turn": (lambda x, y, b: zeros_below(zeros_above(ops.exp(x))), {UP, DOWN}),
    "of different halves": (lambda x, y, b: zeros_above(ops.exp(x)) + zeros_below(ops.sin(x)), set()),
    "by another too": (lambda x, y, b: zeros_above(ops.exp(x)) + x, set()),
    "transposed": (lambda x, y, b: zeros_above(ops.exp(x).swapaxes(0, 1)), {DOWN}),
    "in another place": (lambda x, y, b: zeros_above(ops.flip(ops.exp(x), 0)), set()),
    "through a sum": (lambda x, y, b: zeros_above(x.sum(0, keepdims=True).broadcast_to((N, N))), set()),
    "through a product": (lambda x, y, b: zeros_above(x @ y), set()),
    "by the mask": (lambda x, y, b: zeros_above(ops.where(x > y, y, 1.0)), {UP}),
}


@pytest.mark.parametrize("name", UNREAD)
def test_unread_halves(name: str) -> None:
    """The table; and other values there change no result."""
    fn, unread = UNREAD[name]
    with tracing():
        root, order = graph_of(fn)
        halves = Triangles(order, [root.serial])
    x = next(t for t in order if t.prim.name == "leaf" and t.attrs["name"] == "x")
    assert set(halves.unread.get(x.serial, ())) == unread
    rng = np.random.default_rng(0)
    env = {n: rng.uniform(1, 2, (N, N)) for n in "xy"}
    with np.errstate(all="ignore"):
        want = evaluate([root], env, np)[0]
        for half in unread:
            other = np.where(elements((N, N), half), np.nan, env["x"])
            np.testing.assert_array_equal(evaluate([root], {**env, "x": other}, np)[0], want)


@pytest.mark.parametrize(("left", "right"), list(itertools.product(("x", "above", "below"), repeat=2)))
def test_limits_of_a_product_of_zeros(left: str, right: str) -> None:
    """Rows m of the left factor end at k, or begin there; so do the columns n of the right one."""
    made = {"x": lambda x: x, "above": zeros_above, "below": zeros_below}
    with tracing():
        root, order = graph_of(lambda x, y, b: made[left](x) @ made[right](y))
        found = Triangles(order, [root.serial]).left_out(root, [root])
    want = {"x": [], "above": [Limit("k", "m")], "below": [Limit("m", "k")]}[left]
    want = [*want, *{"x": [], "above": [Limit("n", "k")], "below": [Limit("k", "n")]}[right]]
    assert list(found) == want


def test_limits_of_a_product_that_is_not_read() -> None:
    """Unless another value of its kernel is."""
    with tracing():
        x, y = (leaf("input", n, TensorType(f32, (N, N))) for n in "xy")
        product = x @ y
        more = ops.exp(product)
        for fn, all_read, limits in (
            (zeros_above, False, [Limit("n", "m")]),
            (zeros_below, False, [Limit("m", "n")]),
            (zeros_above, True, []),
        ):
            roots = [fn(product) + fn(more), *([more] if all_read else [])]
            graph = Graph({str(k): t for k, t in enumerate(roots)})
            halves = Triangles(graph.nodes, [t.serial for t in roots])
            assert list(halves.left_out(product, [product, more])) == limits
            assert list(halves.left_out(product, [product])) == limits


def test_what_a_kernel_stores_beside_a_product_is_whole() -> None:
    """A half of the product is not read, but all of what is made of it; or the other way round."""
    with tracing():
        x, y = (leaf("input", n, TensorType(f32, (N, N))) for n in "xy")
        product = x @ y
        made = zeros_above(ops.exp(product), 1.0)
        hidden = zeros_above(made)
        assert list(Triangles(toposort([made]), [made.serial]).left_out(product, [made])) == []
        halves = Triangles(toposort([hidden, product]), [hidden.serial, product.serial])
        assert halves.unread[made.serial] == {UP} and list(halves.left_out(product, [made])) == []
        halves = Triangles(toposort([hidden]), [hidden.serial])
        assert list(halves.left_out(product, [made])) == [Limit("n", "m")]
