"""Rows in C: ends of short rows in one vector have the bits of a long row, and so have pairs of rows by columns."""

from __future__ import annotations

import re
from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from in_c import computed, text
from together import together
from tracegrad.dtypes import f32
from tracegrad.ir.nodes import Tensor
from tracegrad.tuning import HELD_ROW, LONG_ROWS, LONGEST_PAIRED, PAIRED

pytestmark = pytest.mark.usefixtures("in_c_alone")

END = re.compile(r"float u0\[16\]")
PAIRS = re.compile(r"float u0\[\d{3,}\]")
Function = Callable[[Tensor, Tensor, Tensor], Tensor]
Pair = Callable[[Tensor, Tensor], Tensor]
FUNCTIONS: dict[str, Function] = {
    "tanh": lambda x, y, z: tg.tanh(x * y + z),
    "pow": lambda x, y, z: tg.exp(x) ** y + z,
    "sin": lambda x, y, z: tg.sin(50.0 * x * y) * z,
    "choice": lambda x, y, z: tg.where(x < y, tg.exp(z), tg.log(tg.abs(z) + 0.5)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
@together
def test_ends_give_the_bits_of_one_long_row(name: str) -> None:
    fn, rng = FUNCTIONS[name], np.random.default_rng(len(name))
    for _ in range(8):
        rank = int(rng.integers(2, 5))
        shape = (*(int(n) for n in rng.integers(1, 30, rank - 1)), int(rng.integers(2, 60)))
        shapes = [shape, *(tuple(n if rng.random() < 0.5 else 1 for n in shape) for _ in range(2))]
        arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
        whole = [np.ascontiguousarray(np.broadcast_to(a, shape)).reshape(-1) for a in arrays]
        np.testing.assert_array_equal(computed(fn, *arrays), computed(fn, *whole).reshape(shape), f"{shapes}")


@together
def test_ends_read_what_is_elsewhere() -> None:
    x = np.random.default_rng(0).standard_normal((50, 9)).astype(np.float32)
    kinds: dict[str, tuple[Callable[[Tensor], Tensor], Any]] = {
        "reversed": (lambda x: tg.flip(x, 1), x[:, ::-1]),
        "padded": (lambda x: tg.pad(x, ((0, 0), (1, 2))), np.pad(x, ((0, 0), (1, 2)))),
        "coordinates": (lambda x: x * tg.arange(9).astype(f32), x * np.arange(9, dtype=np.float32)),
        "transposed": (lambda x: tg.permute(x[:45], (1, 0)), x[:45].T),
        "gathered": (lambda x: tg.take(x, tg.arange(9) * 2 % 9, 1), x[:, np.arange(9) * 2 % 9]),
    }
    for name, (view, expected) in kinds.items():
        flat = np.ascontiguousarray(expected).reshape(-1)
        of_view: Callable[[Tensor], Tensor] = lambda x, view=view: tg.tanh(view(x))
        found = computed(of_view, x)
        np.testing.assert_array_equal(found, computed(tg.tanh, flat).reshape(expected.shape), name)


@pytest.mark.parametrize("folds", [False, True], ids=["points", "rows"])
def test_what_lies_behind_a_row_counts_as_0(folds: bool) -> None:
    """It can be any number: where exp gave denormal ones, a softmax of 200000x7 along axis 0 took six times as long."""
    fn: Function = lambda x, y, z: tg.tanh((x - tg.mean(x, 1, keepdims=True) if folds else x) * y + z)
    n = 2 * LONG_ROWS + 6 if folds else 22
    end = text(fn, (300, n), (n,), (300, 1)).partition("float u0[16]")[2].partition("u0[l] = s0")[0]
    loads = [line for line in end.splitlines() if re.search(r"= .*\bp\d\[", line)]
    assert len(loads) == 2 and all(re.search(r"= select\(0\.0f, p\d\[.*, l < 6\);", line) for line in loads), loads


def test_rows_that_fill_vectors_need_no_ends() -> None:
    fn = FUNCTIONS["tanh"]
    assert END.search(text(fn, (300, 22), (22,), (300, 1)))
    assert not END.search(text(fn, (300, 32), (32,), (300, 1)))
    assert not END.search(text(fn, (3, LONG_ROWS + 3), (LONG_ROWS + 3,), (3, 1)))
    plain: Function = lambda x, y, z: tg.relu(x * y + z)
    assert not END.search(text(plain, (300, 22), (22,), (300, 1)))


OF_PAIRS: dict[str, tuple[Pair, Callable[[Any, Any], Any]]] = {
    "distance": (lambda a, b: tg.norm(a - b, axis=-1), lambda a, b: np.sqrt(((a - b) ** 2).sum(-1))),
    "largest": (lambda a, b: tg.max(a + b, -1), lambda a, b: (a + b).max(-1)),
    "functions": (lambda a, b: tg.sum(tg.tanh(a * b), -1) + 1.0, lambda a, b: np.tanh(a * b).sum(-1) + 1.0),
    "half": (lambda a, b: tg.tril(tg.sum(tg.abs(a - b), -1)), lambda a, b: np.tril(np.abs(a - b).sum(-1))),
}


@pytest.mark.parametrize("size", [(9, 70, 33), (40, 17, 24), (8, 130, 100), (131, 9, 12), (10, 9, 7)])
@together
def test_pairs_of_rows_by_columns(size: tuple[int, int, int]) -> None:
    i, j, k = size
    for (name, (fn, expected)), batch in product(OF_PAIRS.items(), ((), (3,))):
        rng = np.random.default_rng(i)
        a, b = (rng.standard_normal((*batch, n, k)).astype(np.float32) for n in (i, j))
        both: Pair = lambda a, b, fn=fn: fn(tg.expand_dims(a, -2), tg.expand_dims(b, -3))
        assert PAIRS.search(text(both, a.shape, b.shape)), name
        wanted = expected(a[..., None, :], b[..., None, :, :])
        np.testing.assert_allclose(computed(both, a, b), wanted, 2e-5, 2e-5, err_msg=name)


@pytest.mark.parametrize("width", [9, 40, 300, 5000])
@together
def test_norms_of_rows_whose_squares_overflow_or_vanish(width: int) -> None:
    """A second sum, of multiples, is left out where no row of a block needs it."""
    rng = np.random.default_rng(width)
    scales = np.array([1.0, 1e25, 1e-30, 0.0, 3.0, 1e-12, 1e15, 1e37 / width], np.float32)
    x = rng.uniform(-1, 1, (24, width)).astype(np.float32) * np.tile(scales, 3)[:, None]
    expected = np.sqrt(np.square(x.astype(float)).sum(-1))
    norms: Callable[[Tensor], Tensor] = lambda x: tg.norm(x, -1)
    np.testing.assert_allclose(computed(norms, x), expected, 2e-6)
    pairs: Callable[[Any, Any], Tensor] = lambda a, b: tg.norm(a[:, None] - b[None], axis=-1)
    apart = np.sqrt(np.square(x[:, None].astype(float) - x[None, :9]).sum(-1))
    np.testing.assert_allclose(computed(pairs, x, x[:9]), apart, 2e-5)
    gradient: Callable[[Any], Tensor] = lambda x: tg.vjp(norms, x)[1](tg.ones((24,)))[0]
    share = x / np.where(expected == 0, 1, expected)[:, None]
    np.testing.assert_allclose(computed(gradient, x), share, 2e-6, 1e-37)


def test_few_or_long_pairs_are_rows() -> None:
    both: Pair = lambda a, b: tg.sum(tg.abs(a[:, None] - b[None]), -1)
    assert not PAIRS.search(text(both, (PAIRED - 1, 40), (70, 40)))
    assert not PAIRS.search(text(both, (40, LONGEST_PAIRED + 1), (70, LONGEST_PAIRED + 1)))


def test_ends_behind_products_are_computed_point_by_point() -> None:
    """A product's results are read at each point, so they cannot be read once a row."""
    rng = np.random.default_rng(0)
    x, w, b = (rng.standard_normal(s).astype(np.float32) for s in ((8, 3), (3, 6), (6,)))
    layer: Function = lambda x, w, b: tg.tanh(x @ w + b)
    assert not END.search(text(layer, x.shape, w.shape, b.shape))
    found = computed(layer, x, w, b)
    np.testing.assert_allclose(found, np.tanh(x @ w + b), 1e-6, 1e-6)


ROW: Callable[[Tensor], Tensor] = lambda x: tg.softmax(x, 1)
MASKED: Callable[[Tensor], Tensor] = lambda x: tg.softmax(tg.where(x > 0.5, x, -1e9), 1)


@pytest.mark.parametrize("n", [16, 31, 33, 100, 257])
@together
def test_a_row_computes_functions_of_its_folds_once(n: int) -> None:
    x = np.random.default_rng(n).standard_normal((3, n)).astype(np.float32)
    x[0, n // 2], x[1] = -np.inf, x[1] * 1000
    for fn, given in ((ROW, x), (MASKED, np.where(x > 0.5, x, np.float32(-1e9)))):
        e = np.exp(given.astype(np.float64) - given.max(1, keepdims=True))
        np.testing.assert_allclose(computed(fn, x), e / e.sum(1, keepdims=True), 1e-5, 1e-30)


def test_rows_up_to_a_length_keep_functions_of_their_folds() -> None:
    for n in (16, 100, HELD_ROW, HELD_ROW + 1):
        rows = 3 if n < HELD_ROW else 300  # few long ones are split
        assert text(ROW, (rows, n)).count("float e1_0[") == (n <= HELD_ROW)


def test_values_that_are_kept_for_a_row_are_few(many: int = 40) -> None:
    """They are on the stack of a thread, which can be small."""

    def row(x: Tensor) -> Tensor:
        ts = [tg.tanh(x * (k + 1)) for k in range(many)]
        return sum(ts[1:], ts[0] ** 2) * tg.sum(sum(ts[1:], ts[0]), 1, keepdims=True)

    found = text(row, (3, 512))
    assert 0 < sum(found.count(f"float e0_{k}[") for k in range(many)) <= HELD_ROW // 512
