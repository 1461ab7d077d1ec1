"""Kernels in C that read across the rows of memory: tiles are turned, edges are not, and both give the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from in_c import computed, text
from together import together
from tracegrad.dtypes import DType, bool_, f32, i32, u32
from tracegrad.ir.nodes import Tensor

pytestmark = pytest.mark.usefixtures("in_c_alone")

SHAPES = (
    (16, 16),
    (17, 16),
    (16, 33),
    (31, 47),
    (48, 64),
    (15, 40),
    (40, 15),
    (3, 20, 21),
    (20, 3, 18),
    (2, 17, 2, 35),
)
RNG = np.random.default_rng(0)
TURN = "turn(&"  # its call

# of x, of rank 2, in tracegrad and in NumPy, and whether C turns tiles of x of shape (40, 36)
FUSED: dict[str, tuple[Callable[[Tensor], Tensor], Callable[[Any], Any], bool]] = {
    "product with itself": (lambda x: x[:16, :16].T * x[:16, :16], lambda x: x[:16, :16].T * x[:16, :16], True),
    "two loads": (lambda x: (x[1:] - x[:-1] * 2.0).T, lambda x: (x[1:] - x[:-1] * 2).T, True),
    "reversed rows": (lambda x: tg.flip(x, 0).T + 1.0, lambda x: x[::-1].T + 1, True),
    "reversed columns": (lambda x: tg.flip(x, 1).T + 1.0, lambda x: x[:, ::-1].T + 1, False),
    "every second row": (lambda x: x[::2].T, lambda x: x[::2].T, True),
    "every second column": (lambda x: x[:, ::2].T + 1.0, lambda x: x[:, ::2].T + 1, False),
    "a margin": (lambda x: tg.pad(x, ((1, 2), (3, 0))).T, lambda x: np.pad(x, ((1, 2), (3, 0))).T, False),
    "joined": (lambda x: tg.concat([x.T, -x.T], 1), lambda x: np.concatenate([x.T, -x.T], 1), False),
    "a choice": (lambda x: tg.where(x.T > 0.0, x.T, 2.0), lambda x: np.where(x.T > 0, x.T, 2), True),
    "a row for all": (lambda x: x.T + x[:1].T, lambda x: x.T + x[:1].T, True),
    "split axes": (
        lambda x: tg.reshape(tg.permute(tg.reshape(x, (4, -1, x.shape[1])), (0, 2, 1)), (4, -1)),
        lambda x: x.reshape(4, -1, x.shape[1]).transpose(0, 2, 1).reshape(4, -1),
        False,
    ),
    "rows by index": (lambda x: x[tg.arange(x.shape[0] - 1) + 1].T, lambda x: x[1:].T, False),
}


@pytest.mark.parametrize("dtype", (f32, i32, u32, bool_), ids=lambda d: d.name)
@together
def test_every_order_of_axes_moves_every_element(dtype: DType) -> None:
    for shape in SHAPES:
        moves_every_element(shape, dtype)


def moves_every_element(shape: tuple[int, ...], dtype: DType) -> None:
    x = np.arange(np.prod(shape)).reshape(shape) % (2 if dtype is bool_ else 1 << 20)
    x = x.astype(dtype.numpy)
    rotated = [tuple(np.roll(range(len(shape)), k)) for k in range(1, len(shape))]
    orders = list(dict.fromkeys([*rotated, tuple(reversed(range(len(shape))))]))
    orders = [tuple(int(a) for a in o) for o in orders]
    out = computed(lambda x: tuple(tg.permute(x, o) for o in orders), x, dtype=dtype)
    for order, found in zip(orders, out, strict=True):
        np.testing.assert_array_equal(found, x.transpose(order), str(order))


@pytest.mark.parametrize("shape", ((40, 36), (64, 32), (36, 17)), ids=str)
@together
def test_what_is_fused_with_a_transpose_keeps_its_bits(shape: tuple[int, ...]) -> None:
    for name, (fn, exact, _) in FUSED.items():
        x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
        np.testing.assert_array_equal(computed(fn, x), exact(x), name)


def test_special_values_keep_their_bits() -> None:
    bits = np.random.default_rng(0).integers(0, 2**32, (48, 35), dtype=np.uint32)
    bits[:, 0], bits[0] = 0x7F800001, 0x80000001  # signalling NaN and denormals
    found = computed(lambda x: x.T, bits.view(np.float32)).view(np.uint32)
    np.testing.assert_array_equal(found, bits.T)


@pytest.mark.parametrize("name", FUSED)
def test_whole_tiles_are_turned_where_loads_are_in_bounds(name: str) -> None:
    fn, _, turns = FUSED[name]
    assert (TURN in text(fn, (40, 36))) == turns


def many(xp: Any, x: Any) -> Any:
    """Count the largest elements of each row, twice if they are not positive, and add x."""
    largest = x == xp.max(x, 1, keepdims=True)
    return x + xp.sum(xp.where(largest, xp.where(x > 0, 1.0, 2.0), 0.0), 1, keepdims=True)


# of rows of x, exact in every order of computing, and whether C turns 16 rows of 7
ROWS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Any], bool]] = {
    "a row for a row": (lambda x: x - tg.max(x, 1, keepdims=True), lambda x: x - x.max(1, keepdims=True), True),
    "plain arithmetic": (lambda x: x * tg.sum(x, 1, keepdims=True), lambda x: x * x.sum(1, keepdims=True), False),
    "how many": (lambda x: many(tg, x), lambda x: many(np, x), True),
    "one of a row": (lambda x: tg.max(x, 1), lambda x: x.max(1), True),
    "a sum of a row": (lambda x: tg.sum(x, 1), lambda x: x.sum(1), False),
    "where it is": (lambda x: tg.argmax(x, 1), lambda x: x.argmax(1), True),
    "booleans": (lambda x: x == tg.max(x, 1, keepdims=True), lambda x: x == x.max(1, keepdims=True), True),
    "several": (
        lambda x: (tg.maximum(x, tg.sum(x, 1, keepdims=True)), tg.max(x, 1), tg.sum(x[:, :2], 1)),
        lambda x: (np.maximum(x, x.sum(1, keepdims=True)), x.max(1), x[:, :2].sum(1)),
        True,
    ),
    "other rows, too": (
        lambda x: x[:, 1:] * tg.max(x[:, 1:], 1, keepdims=True) + x[:, :1],
        lambda x: x[:, 1:] * x[:, 1:].max(1, keepdims=True) + x[:, :1],
        True,
    ),
    "before it": (
        lambda x: tg.max(tg.pad(x, ((1, 0), (0, 0)))[:-1], 1),
        lambda x: np.pad(x, ((1, 0), (0, 0)))[:-1].max(1),
        False,
    ),
}


WIDTHS = (5, 6, 7, 8, 11, 16, 23, 64, 65)


@pytest.mark.parametrize("width", WIDTHS)
@together
def test_short_rows_side_by_side_keep_their_bits(width: int) -> None:
    """Each function, and each width, with no row beyond whole tiles, one, and fifteen."""
    for k, (name, (fn, exact, _)) in enumerate(ROWS.items()):
        more = (0, 1, 15)[(k + WIDTHS.index(width)) % 3]
        x = np.random.default_rng(0).integers(-9, 10, (640 + more, width)).astype(np.float32)
        for found, wanted in zip(tg.tree_leaves(computed(fn, x)), tg.tree_leaves(exact(x)), strict=True):
            np.testing.assert_array_equal(found, wanted, f"{name}, {more} more")


@pytest.mark.parametrize("name", ROWS)
def test_short_rows_are_turned_where_compilers_would_make_no_vectors(name: str) -> None:
    fn, _, turns = ROWS[name]
    assert (TURN in text(fn, (1000, 7))) == turns


@pytest.mark.parametrize(
    "width, turns", [(32, (True, True)), (47, (True, True)), (48, (False, True)), (64, (False, True))]
)
def test_longer_rows_are_turned_only_where_each_calls_a_function(width: int, turns: tuple[bool, bool]) -> None:
    """A variance calls none; the logarithm of log_softmax is of one number a row."""

    def variance(x: Tensor) -> Tensor:
        return tg.var(x, -1)

    def logarithms(x: Tensor) -> Tensor:
        return tg.log_softmax(x, -1)

    assert tuple([TURN in text(fn, (1000, width)) for fn in (variance, logarithms)]) == turns


@pytest.mark.parametrize("width, turns", [(16, False), (17, True), (28, True), (29, False)])
def test_rows_folded_once_are_turned_if_they_are_a_little_longer_than_a_vector(width: int, turns: bool) -> None:
    """A product by one column is such a fold."""
    weights = tg.tensor(np.arange(width, dtype=np.float32))
    folds: list[Callable[[Tensor], Tensor]] = [lambda x: tg.sum(x, 1), lambda x: tg.max(x, 1), lambda x: x @ weights]
    assert [TURN in text(fn, (1000, width)) for fn in folds] == [turns] * 3
    assert TURN not in text(lambda x: tg.sum(x * x[::-1], 1), (1000, width))


def test_a_product_by_one_column_of_few_terms_is_written_out() -> None:
    """So vectors hold results of several rows, as in other short sums."""
    weights = tg.tensor(np.arange(16, dtype=np.float32))
    found = text(lambda x: x @ weights, (1000, 16))
    assert found.count("for (") == 1
    exact = computed(lambda x: x @ weights, x := RNG.integers(-9, 9, (1001, 16)).astype(np.float32))
    np.testing.assert_array_equal(exact, x @ np.arange(16, dtype=np.float32))


def test_a_product_of_one_term_has_no_partial_results() -> None:
    """A column by a row is computed point by point: 0 + a b, where b can be infinite."""
    assert text(lambda x: x[:, :1] @ x[:1], (40, 37)).count("for (") == 2
    x = RNG.standard_normal((40, 37)).astype(np.float32)
    x[0, 5], x[3, 0], x[4, 0] = np.inf, 0.0, np.nan
    with np.errstate(invalid="ignore"):
        np.testing.assert_array_equal(computed(lambda x: x[:, :1] @ x[:1], x), x[:, :1] * x[:1])


def test_lanes_beyond_the_last_row_read_its_memory() -> None:
    """The next row of the wide array would lie behind all of it: 17 rows are computed as 32."""

    def fn(x: Tensor, y: Tensor) -> Tensor:
        z = x * y[:, :1]
        return z - tg.max(z, 1, keepdims=True)

    rng = np.random.default_rng(0)
    x, y = rng.integers(-9, 10, (17, 7)).astype(np.float32), np.zeros((17, 1_000_000), np.float32)
    y[:, 0] = rng.integers(1, 5, 17)
    made = text(fn, x.shape, y.shape)
    assert TURN in made and "min(rt + l, (long)16)" in made  # a read behind it often finds memory
    z = x * y[:, :1]
    np.testing.assert_array_equal(computed(fn, x, y), z - z.max(1, keepdims=True))
