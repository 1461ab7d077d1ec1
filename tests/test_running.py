"""Running folds in C: one pass over the axis where each point adds an element, and folds of their own elsewhere.

Elements are small whole numbers, so that every order of adding them gives the same bits.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from in_c import computed, text
from oracle import torch
from together import together
from tracegrad.ir.nodes import Tensor
from tracegrad.ops.cumulative import LARGEST_BLOCK, SCAN_BLOCK, SMALLEST_BLOCK, block_of
from tracegrad.tuning import LANES

pytestmark = pytest.mark.usefixtures("in_c_alone")

SHAPES = (
    (1, 2),
    (2, 31),
    (3, 33),
    (5, 40),
    (40, 5),
    (41, 6),
    (70, 65),
    (3, 1000, 2),
    (2, 7, 130),
    (1009,),
    (6, 64, 1),
    (3, 898),
)
MASK = re.compile(r"_equal_i32 \(\(int\)[^;]*\(j0\)")  # j <= i or i <= j
BLOCKS = re.compile(r"long i\dw = 0; i\dw < min\(32L")
DIVIDED = re.compile(r"\w / \d")


def below(x: Tensor) -> Tensor:
    """True at (i, j) where j <= i."""
    n = x.shape[-1]
    return tg.reshape(tg.arange(n), (n, 1)) >= tg.arange(n)


# each over the last axis of x: masked sums that do not run, in one way or another
OTHERS: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Any], Any]]] = {
    "of a value of both": (
        lambda x: tg.sum(tg.where(below(x), x[..., None, :] * x[..., :, None], 0.0), -1),
        lambda x: np.cumsum(x, -1) * x,
    ),
    "of the values after": (
        lambda x: tg.sum(tg.where(below(x), 0.0, x[..., None, :]), -1),
        lambda x: x.sum(-1, keepdims=True) - np.cumsum(x, -1),
    ),
    "with another value elsewhere": (
        lambda x: tg.sum(tg.where(below(x), x[..., None, :], 1.0), -1),
        lambda x: np.cumsum(x, -1) + np.arange(x.shape[-1])[::-1],
    ),
}


def backwards(fn: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """The gradient by x of the sum of fn(x) * (0, 1, 2, ...), which is a running sum from the other end."""

    def gradient(x: Tensor) -> Tensor:
        weights = tg.reshape(tg.arange(x.size), x.shape).astype(tg.f32)
        return tg.vjp(fn, x)[1](weights)[0]

    return gradient


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@together
def test_running_sums_are_exact_along_every_axis_both_ways(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32)
    weights = np.arange(x.size).reshape(shape)  # their sums are below 2^24
    for axis in range(len(shape)):
        run = lambda x, axis=axis: tg.cumsum(x, axis)
        np.testing.assert_array_equal(computed(run, x), np.cumsum(x, axis), str(axis))
        expected = np.flip(np.cumsum(np.flip(weights, axis), axis), axis)
        np.testing.assert_array_equal(computed(backwards(run), x), expected, str(axis))


@pytest.mark.parametrize("shape", ((5, 40), (41, 6), (2, 7, 130)), ids=str)
@together
def test_running_extrema_are_exact_along_every_axis(shape: tuple[int, ...]) -> None:
    """Elements are tied, NaN or infinite; the gradient of a tie is that of the last, as in PyTorch."""
    rng = np.random.default_rng(0)
    x = rng.choice(np.array([1, -1, 2, -0.0, 0, np.inf, -np.inf, 5], np.float32), shape, p=[0.2] * 3 + [0.08] * 5)
    x[..., -2:-1] = np.nan
    weights = rng.integers(-9, 10, shape).astype(np.float32)
    for axis, name in product(range(len(shape)), ("cummax", "cummin")):
        run = lambda x, axis=axis, name=name: getattr(tg, name)(x, axis)
        t = torch.tensor(x, requires_grad=True)
        y = getattr(torch, name)(t, axis).values
        y.backward(torch.tensor(weights))
        assert t.grad is not None
        np.testing.assert_array_equal(computed(run, x), y.detach().numpy(), f"{name} {axis}")
        np.testing.assert_array_equal(computed(lambda x, run=run: tg.vjp(run, x)[1](weights)[0], x), t.grad.numpy())


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@together
def test_running_products_are_exact_along_every_axis(shape: tuple[int, ...]) -> None:
    x = np.random.default_rng(0).choice(np.array([1, -1, 2, 0.5], np.float32), shape)
    x[..., -1:] = 0.0
    for axis in range(len(shape)):
        np.testing.assert_array_equal(
            computed(lambda x, axis=axis: tg.cumprod(x, axis), x), np.cumprod(x, axis, dtype=np.float64), str(axis)
        )


def slopes_of_products(x: Any, weights: Any) -> Any:
    """The gradient of sum(weights * cumprod(x)) along the last axis, by all products of all but one element."""
    n = x.shape[-1]
    others = np.where(np.arange(n)[:, None] == np.arange(n), 1.0, x[..., None, :])  # in row k, all but element k
    first = np.arange(n)[:, None] <= np.arange(n)
    return (np.where(first, np.cumprod(others, -1), 0.0) * weights[..., None, :]).sum(-1)


@pytest.mark.parametrize("n", (2, 3, 5, 8, 31, 33, 70))
@together
def test_slopes_of_running_products_are_exact_at_zeros(n: int) -> None:
    rng = np.random.default_rng(n)
    x = rng.choice(np.array([1, -1, 2, 0.5]), (6, n))
    for row, zeros in enumerate(([], [0], [n - 1], [n // 2], [0, n - 1], range(n))):
        x[row, list(zeros)] = 0.0
    weights = np.arange(x.size).reshape(x.shape)
    expected = slopes_of_products(x, weights)
    for axis, given, wanted in ((1, x, expected), (0, x.T, expected.T)):
        by = np.ascontiguousarray(weights if axis else weights.T).astype(np.float32)
        slope = lambda x, axis=axis, by=by: tg.vjp(lambda x: tg.cumprod(x, axis), x)[1](tg.tensor(by))[0]
        np.testing.assert_allclose(computed(slope, np.ascontiguousarray(given, np.float32)), wanted, 1e-6, 0)


def test_second_slopes_of_running_products_are_right_at_zeros() -> None:
    x = tg.tensor([2.0, 0.0, 3.0, 0.0, 5.0])
    second = tg.jacobian(tg.grad(lambda x: tg.cumprod(x)[3]))(x)
    np.testing.assert_array_equal(second[1], [0.0, 0.0, 0.0, 6.0, 0.0])


def test_what_is_no_number_reaches_only_the_points_after_it() -> None:
    x = np.ones((3, 70), np.float32)
    x[0, 35], x[1, 0], x[2, 69] = np.nan, np.inf, -np.inf
    np.testing.assert_array_equal(computed(lambda x: tg.cumsum(x, 1), x), np.cumsum(x, 1))


@pytest.mark.parametrize("dtype", (tg.i32, tg.u32), ids=str)
def test_running_extrema_of_integers_begin_with_the_first(dtype: tg.DType) -> None:
    lowest, highest = (0, 2**32 - 1) if dtype is tg.u32 else (-(2**31), 2**31 - 1)
    for name, end in (("cummax", lowest), ("cummin", highest)):
        x = np.full(70, end, dtype.numpy)  # two blocks of the scan, the second with padding
        assert (computed(lambda x, name=name: getattr(tg, name)(x), x, dtype=dtype) == end).all()


@pytest.mark.parametrize("axis", (0, 1))
def test_the_kernels_of_running_sums_have_no_mask(axis: int) -> None:
    assert not MASK.search(text(lambda x: tg.cumsum(x, axis), (1024, 1024)))
    assert not MASK.search(text(lambda x: tg.cumprod(x, axis), (1024, 1024)))
    assert not MASK.search(text(backwards(lambda x: tg.cumsum(x, axis)), (1024, 1024)))


def test_rows_run_side_by_side_where_there_are_several() -> None:
    run = lambda x: tg.cumsum(x, 1)
    for rows, beside in ((9, True), (4, True), (3, False)):
        for fn in (run, backwards(run)):
            assert ("ib + 3;" in text(fn, (rows, 20))) == beside


@pytest.mark.parametrize("shape", ((3, 898), (4, 2, 1003)), ids=str)
def test_loops_over_blocks_divide_no_coordinate(shape: tuple[int, ...]) -> None:
    assert block_of(shape[-1]) == SCAN_BLOCK and shape[-1] % SCAN_BLOCK
    for run in (tg.cumsum, tg.cumprod):
        assert not DIVIDED.search(text(lambda x, run=run: run(x, -1), shape))


def test_loops_over_blocks_divide_quotients_again() -> None:
    for axis, shape in ((1, (2, 5003)), (0, (5003, 2))):  # more than 32 blocks of 32, so blocks of blocks
        assert BLOCKS.search(text(lambda x, axis=axis: tg.cumsum(x, axis), shape))
        x = np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32)
        np.testing.assert_array_equal(computed(lambda x, axis=axis: tg.cumsum(x, axis), x), np.cumsum(x, axis))


def test_loops_over_blocks_give_the_numbers_of_numpy() -> None:
    rng = np.random.default_rng(0)
    for _ in range(25):
        shape = (*rng.integers(1, 5, rng.integers(0, 3)), int(rng.integers(LANES + 1, 700)))
        d, x = int(rng.integers(LANES, shape[-1])), rng.integers(-9, 9, shape).astype(np.float32)
        rows = -(-shape[-1] // d)
        y = rng.integers(-9, 9, rows).astype(np.float32)
        spread = lambda x, y=y, d=d: x * tg.repeat(tg.tensor(y), d)[: x.shape[-1]]
        np.testing.assert_array_equal(computed(spread, x), x * np.repeat(y, d)[: shape[-1]], f"{shape} {d}")
        assert not DIVIDED.search(text(spread, shape))


@pytest.mark.parametrize("name", OTHERS)
def test_other_masked_sums_keep_their_meaning(name: str) -> None:
    fn, exact = OTHERS[name]
    for shape in ((24,), (3, 24), (33,)):
        x = np.random.default_rng(0).integers(-3, 4, shape).astype(np.float32)
        np.testing.assert_array_equal(computed(fn, x), exact(x))
        assert MASK.search(text(fn, shape))


def test_blocks_divide_the_axis_where_they_can() -> None:
    assert [block_of(n) for n in (64, 1000, 1009, 784, 100)] == [32, 25, SCAN_BLOCK, 28, 25]
    assert SMALLEST_BLOCK < SCAN_BLOCK < LARGEST_BLOCK


@pytest.mark.parametrize("n", (2, 31, 33, 1100))
def test_logarithms_of_running_sums_reach_far(n: int) -> None:
    """Elements lie further apart than exp can tell, so that the sum from one largest element vanishes."""
    x = np.random.default_rng(n).normal(0, 200, (2, n)).astype(np.float32)
    wanted = np.logaddexp.accumulate(x.astype(np.float64), 1)
    np.testing.assert_allclose(computed(lambda x: tg.logcumsumexp(x, 1), x), wanted, 2e-6)
    weights = np.random.default_rng(1).normal(size=x.shape).astype(np.float32)
    slope = lambda x: tg.vjp(lambda x: tg.logcumsumexp(x, 1), x)[1](tg.tensor(weights))[0]
    each = np.tril(np.exp(np.minimum(x[:, None] - wanted[..., None], 0)))  # [..., i, k]: of out[i] by x[k]
    np.testing.assert_allclose(computed(slope, x), (weights[..., None] * each).sum(1), 1e-4, 1e-5)


def test_logarithms_of_running_sums_at_infinities() -> None:
    x = np.float32([-np.inf, -np.inf, 1.0, -np.inf, 2.0, np.inf, 0.0])
    with np.errstate(invalid="ignore"):
        np.testing.assert_allclose(computed(lambda x: tg.logcumsumexp(x), x), np.logaddexp.accumulate(x), 1e-6)
    slope = tg.grad(lambda x: tg.logcumsumexp(x)[4])(tg.tensor(x))
    np.testing.assert_allclose(slope[2:5], np.exp([-1.3132616, -np.inf, -0.3132617]), 1e-6)


def test_logarithms_of_running_sums_behind_infinities_within_a_block() -> None:
    """A gap of -inf that begins a block, behind finite elements, has the derivative 0, as -inf everywhere else."""
    x = np.random.default_rng(0).normal(size=100).astype(np.float32)
    x[50:70] = x[:3] = -np.inf
    slope = tg.grad(lambda x: tg.sum(tg.logcumsumexp(x)[3:]))(tg.tensor(x)).numpy()
    each = np.exp(x[None, 3:] - np.logaddexp.accumulate(x.astype(np.float64))[3:, None])
    np.testing.assert_allclose(slope[3:], np.tril(each).sum(0), 1e-5)
    np.testing.assert_array_equal(slope[:3], 0)


@pytest.mark.parametrize(("n", "at"), [(100, (50,)), (100, (0, 99)), (1300, (40, 700))])
def test_an_infinity_has_a_slope_of_nan_alone(n: int, at: tuple[int, ...]) -> None:
    """As in PyTorch: all others have that of the outputs before it. Two lie in blocks of blocks."""
    x, weights = np.random.default_rng(0).normal(size=(2, n)).astype(np.float32)
    x[list(at)] = np.inf
    slope = computed(tg.grad(lambda x: tg.sum(tg.logcumsumexp(x) * weights)), x)
    t = torch.tensor(x, dtype=torch.float64, requires_grad=True)
    (torch.logcumsumexp(t, 0) * torch.tensor(weights)).sum().backward()
    assert t.grad is not None
    np.testing.assert_array_equal(np.isnan(slope).nonzero()[0], at)
    np.testing.assert_allclose(slope, t.grad, 1e-5, 1e-6)
