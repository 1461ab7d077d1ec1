"""Loops of C over pieces of axes: where guards change along an axis, each piece reads only what it uses."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from in_c import computed, of_each, text
from together import together
from tracegrad.runtime.c_compiler import VARIABLE
from tracegrad.tuning import MOST_CUT, MOST_PIECES, PIECE_GRAIN

pytestmark = pytest.mark.usefixtures("in_c_alone")


GUARD = re.compile(r"_auto_type g\d")


def drawn(rng: np.random.Generator, *shape: int) -> Any:
    return rng.integers(-9, 10, shape).astype(np.float32)


@pytest.mark.parametrize("rank", (1, 2, 3))
@together
def test_joined_rows_are_exact(rank: int) -> None:
    rng = np.random.default_rng(rank)
    for _ in range(8):
        before = tuple(map(int, rng.integers(1, 5, rank - 1)))
        most = 3 * PIECE_GRAIN if rank == 1 else 90
        arrays = [drawn(rng, *before, int(n)) for n in rng.integers(1, most, int(rng.integers(2, 5)))]
        join = lambda *xs: tg.concat([x * 2.0 for x in xs], -1) + 1.0
        np.testing.assert_array_equal(computed(join, *arrays), np.concatenate(arrays, -1) * 2 + 1)


@pytest.mark.parametrize("runtime", ("c", "numpy"))
@pytest.mark.parametrize("count", (4, 7, 26, MOST_PIECES, MOST_PIECES + 1))
@together
def test_many_narrow_rows_are_exact(count: int, runtime: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the embeddings of a table's columns, side by side."""
    if runtime == "numpy":
        monkeypatch.setenv(VARIABLE, "off")
    rng = np.random.default_rng(count)
    widths = [int(n) for n in rng.integers(1, 9, count)]
    arrays = [drawn(rng, 7, w) for w in widths]
    at = rng.integers(0, 7, 19).astype(np.int32)
    rows = lambda at, *xs: tg.concat([tg.take(x, tg.cast(at, tg.i32), 0) for x in xs], 1)
    want = np.concatenate(arrays, 1)
    np.testing.assert_array_equal(computed(rows, at, *arrays), want[at])
    slopes = computed(lambda at, *xs: tg.vjp(lambda *xs: rows(at, *xs), *xs)[1](rows(at, *xs))[-1], at, *arrays)
    np.testing.assert_array_equal(slopes, np.bincount(at, minlength=7)[:, None] * arrays[-1])
    same = [drawn(rng, 5, 3) for _ in range(count)]
    for axis in (0, 1, 2):
        got = computed(lambda *xs, axis=axis: tg.stack([2.0 * x for x in xs], axis), *same)
        np.testing.assert_array_equal(got, 2 * np.stack(same, axis))
    x = drawn(rng, 3, count)
    scaled = lambda x: tg.concat([x[:, k : k + 1] * float(k) for k in range(count)], 1) + x
    np.testing.assert_array_equal(computed(scaled, x), x * np.arange(count) + x)


@pytest.mark.parametrize("n", (47, 48, PIECE_GRAIN, 2 * PIECE_GRAIN + 1))
@together
def test_padded_rows_are_exact(n: int) -> None:
    rng = np.random.default_rng(n)
    for shape in ((n,), (3, n), (2, 2, n)):
        lo, hi = (int(k) for k in rng.integers(0, 50, 2))
        x = drawn(rng, *shape)
        widths = (*((0, 0) for _ in shape[1:]), (lo, hi))
        np.testing.assert_array_equal(computed(lambda x, w=widths: tg.pad(x, w) - 1.0, x), np.pad(x, widths) - 1)


@together
def test_slopes_of_halves_and_shifts_are_exact() -> None:
    x = drawn(np.random.default_rng(0), 3, 130)
    halves = lambda x: x[:, :65] * x[:, 65:]
    slope = lambda x: tg.vjp(halves, x)[1](tg.ones((3, 65)))[0]
    np.testing.assert_array_equal(computed(slope, x), np.roll(x, 65, 1))
    for k in (-70, -1, 1, 20):
        np.testing.assert_array_equal(computed(lambda x, k=k: tg.roll(x, k, 1) * 2.0, x), np.roll(x, k, 1) * 2)


def test_a_piece_has_no_guards_and_short_rows_keep_them() -> None:
    join = lambda *xs: tg.concat(xs, -1)
    for shapes in (((5, 40), (5, 30)), ((4000,), (3000,))):
        assert not GUARD.search(text(join, *shapes))
    assert GUARD.search(text(join, (5, 8), (5, 9)))
    assert not GUARD.search(text(join, *[(5, 1)] * 4))  # each point would compute all four
    assert not GUARD.search(text(join, *[(3, 40)] * MOST_PIECES))
    assert GUARD.search(text(join, *[(3, 40)] * (MOST_PIECES + 1)))


@pytest.mark.parametrize("axis", (0, 1))
@together
def test_arrays_joined_along_other_axes_are_exact(axis: int) -> None:
    rng = np.random.default_rng(axis)
    for _ in range(8):
        shape = [int(n) for n in rng.integers(1, 9, 3)]
        arrays = [drawn(rng, *shape[:axis], int(n), *shape[axis + 1 :]) for n in rng.integers(1, 9, 3)]
        join = lambda *xs: tg.concat([tg.concat([x, x * 2.0], axis) for x in xs], axis) + 1.0
        expected = np.concatenate([np.concatenate([x, x * 2], axis) for x in arrays], axis) + 1
        np.testing.assert_array_equal(computed(join, *arrays), expected)


@together
def test_pads_of_several_axes_are_exact() -> None:
    rng = np.random.default_rng(1)
    for _ in range(12):
        x = drawn(rng, *map(int, rng.integers(1, 60, 3)))
        widths = tuple([(int(a), int(b)) for a, b in rng.integers(0, 4, (3, 2))])
        np.testing.assert_array_equal(computed(lambda x, w=widths: tg.pad(x, w) - 1.0, x), np.pad(x, widths) - 1)


@pytest.mark.parametrize("step", (2, 3, 5, 7, 17))
@together
def test_gradients_of_steps_are_exact(step: int) -> None:
    rng = np.random.default_rng(step)
    for shape, first in (
        ((3, 400), 0),
        ((4, 420), 77),
        ((3, 401), 1),
        ((2, 5, 307), 100),
        ((400,), 7),
        ((90, 4), 5),
        ((64, 30), 2),
    ):
        for axis in {0, len(shape) - 1}:
            part = tuple([slice(first, None, step) if k == axis else slice(None) for k in range(len(shape))])
            x = drawn(rng, *shape)
            expected = np.zeros(shape, np.float32)
            expected[part] = 2 * x[part]
            slope = lambda x, p=part: tg.vjp(lambda x: x[p] * x[p], x)[1](tg.ones(x[p].shape))[0]
            np.testing.assert_array_equal(computed(slope, x), expected)


def test_pieces_of_other_axes_have_no_guards() -> None:
    pad = lambda x: tg.pad(x, ((0, 0), (2, 1), (0, 0))) + 1.0
    assert not GUARD.search(text(pad, (3, 5, 7)))
    every = lambda x: tg.pad(x, ((1, 1),) * 4 + ((0, 0),)) + 1.0
    assert MOST_CUT < 3**4
    assert GUARD.search(text(every, (3, 5, 7, 9, 11)))
    third = lambda x: tg.vjp(lambda x: x[:, 100::3], x)[1](tg.ones((4, 100)))[0]
    assert not GUARD.search(text(third, (4, 400)))


@pytest.mark.parametrize("step", (2, 3, 4))
@together
def test_phases_of_interleaved_images_are_exact(step: int) -> None:
    rng = np.random.default_rng(step)
    for size in ((20, 21), (19, 40), (9, 12)):
        x, w = drawn(rng, 2, 3, *size), drawn(rng, 3, 2, 5, 5)
        spread = lambda x, w: tg.conv_transpose2d(x, w, stride=step, padding=1)
        expected = np.zeros((2, 2, *(step * (n - 1) + 5 for n in size)), np.float32)
        for a, b in np.ndindex(5, 5):
            part = slice(a, a + step * (size[0] - 1) + 1, step), slice(b, b + step * (size[1] - 1) + 1, step)
            expected[(..., *part)] += np.einsum("nchw,cd->ndhw", x, w[:, :, a, b])
        np.testing.assert_array_equal(computed(spread, x, w), expected[:, :, 1:-1, 1:-1])


@pytest.mark.parametrize("axes", (1, 2, 3))
@pytest.mark.parametrize("how", ((2, 1), (3, 1), (2, 2), (3, 2)))
def test_copies_for_windows_at_steps_are_exact(axes: int, how: tuple[int, int]) -> None:
    step, dilation = how
    rng = np.random.default_rng(axes)
    size = tuple(map(int, rng.integers(9, 15, axes)))
    x, w = drawn(rng, 2, 3, *size), drawn(rng, 17, 3, *(3,) * axes)
    fn = lambda x, w: getattr(tg, f"conv{axes}d")(x, w, stride=step, padding=2, dilation=dilation)
    wide, reach = np.pad(x, ((0, 0), (0, 0), *((2, 2),) * axes)), 2 * dilation + 1
    windows = np.lib.stride_tricks.sliding_window_view(wide, (reach,) * axes, tuple(range(2, axes + 2)))
    windows = windows[(..., *(slice(None, None, step),) * axes, *(slice(None, None, dilation),) * axes)]
    at = "ijk"[:axes]
    expected = np.einsum(f"nc{at}{at.upper()},dc{at.upper()}->nd{at}", windows, w)
    np.testing.assert_array_equal(computed(fn, x, w), expected)


@pytest.mark.parametrize("axes", (1, 2))
def test_copies_for_windows_at_steps_have_no_conditions_of_two_axes(axes: int) -> None:
    fn = lambda x, w: getattr(tg, f"conv{axes}d")(x, w, stride=2, padding=2)
    found = text(fn, (2, 3, *(12, 13)[:axes]), (17, 3, *(3,) * axes))
    assert not re.search(r"\(int\)\(\(\w+ \* \d+ \+ [a-z]", found)


@pytest.mark.parametrize("how", ((5, 1, 2), (5, 5, 0), (7, 3, 3), (9, 1, 4), (13, 4, 2), (40, 1, 0)))
@together
def test_long_windows_are_exact(how: tuple[int, int, int]) -> None:
    k, stride, padding = how
    rng = np.random.default_rng(k)
    x = drawn(rng, 2, 3, 44, 47)
    x[0, 1, 20, 20:22] = np.nan, np.inf
    edge = ((0, 0), (0, 0), (padding, padding), (padding, padding))
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, edge, constant_values=-np.inf), (k, k), (2, 3))
    largest = windows[:, :, ::stride, ::stride].max((-2, -1))
    np.testing.assert_array_equal(computed(lambda x: tg.max_pool2d(x, *how), x), largest)
    x = drawn(rng, 2, 3, 44, 47)
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(x, edge), (k, k), (2, 3))[:, :, ::stride, ::stride]
    mean = computed(lambda x: tg.avg_pool2d(x, *how), x)
    np.testing.assert_allclose(mean, windows.mean((-2, -1)), rtol=1e-5, atol=1e-6)
    slope = lambda x: tg.vjp(lambda x: tg.max_pool2d(x, *how), x)[1](tg.ones(largest.shape))[0]
    assert computed(slope, x).sum() == largest.size


@pytest.mark.parametrize("n", (60, 62))
@together
def test_each_phase_reads_a_product_of_its_own(n: int) -> None:
    rng = np.random.default_rng(n)
    a, b, v = drawn(rng, 40, 20), drawn(rng, 20, n), drawn(rng, 21)
    along = lambda a, b, v: a @ b + tg.repeat(v, 3, 0)[:n]
    np.testing.assert_array_equal(computed(along, a, b, v), a @ b + np.repeat(v, 3)[:n])
    across = lambda a, b, v: b.T @ a.T + tg.repeat(v, 3, 0)[:n].reshape(-1, 1)
    np.testing.assert_array_equal(computed(across, a, b, v), (a @ b).T + np.repeat(v, 3)[:n, None])


@pytest.mark.parametrize("n", (19, 23, 31, 47, 59))
@pytest.mark.parametrize("rows", (1, 3, 40))
@together
def test_the_last_elements_of_a_row_are_one_vector(n: int, rows: int) -> None:
    """What lies behind a row is neither folded nor overwritten, also if it is NaN or infinite."""
    x = np.random.default_rng(n).standard_normal((rows, n)).astype(np.float32)
    if rows > 1:
        x[rows // 2] = np.nan
        x[rows // 3, -1] = np.inf
    each = lambda fn: np.concatenate(of_each(fn, [[x[k : k + 1]] for k in range(rows)]))
    for fn in (tg.softmax, lambda x: tg.logsumexp(x, -1), lambda x: tg.max(x, -1), lambda x: tg.sum(tg.tanh(x), -1)):
        # 16 rows side by side sum in another order: of n terms of up to 1, by n - 1 roundings of at most n
        np.testing.assert_allclose(computed(fn, x), each(fn), rtol=0, atol=2 * n * n * 2**-24 if rows >= 16 else 0)
    with np.errstate(all="ignore"):
        shifted = np.exp(x - x.max(-1, keepdims=True))
        expected = shifted / shifted.sum(-1, keepdims=True)
    np.testing.assert_allclose(computed(tg.softmax, x), expected, rtol=2e-6)
    twice = computed(lambda x: tg.stack([tg.softmax(x), tg.exp(x) - tg.max(x, -1, True)]), x)
    np.testing.assert_array_equal(twice[0], computed(tg.softmax, x))
