"""Products in C: how results of short sums are shared out, and that their numbers stay."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.render.c_engine import ENGINE
from tracegrad.render.c_product import LIMITS
from tracegrad.runtime.c_calls import CallList, SizedProduct
from tracegrad.runtime.c_compiler import compiler
from tracegrad.runtime.children import Children
from tracegrad.runtime.memory import with_margins

RNG = np.random.default_rng(0)


class One(tg.Module):
    """A model has a parameter."""

    def __init__(self) -> None:
        self.w = self.param((1,))


def engine() -> ctypes.CDLL:
    """Return the library of the products."""
    found = compiler()
    assert found is not None
    library = found.begin(ENGINE, Children()).result()
    assert library is not None
    library.product.argtypes, library.product.restype = (ctypes.c_void_p, ctypes.c_long, ctypes.c_long), None
    return library


def is_product(found: np.ndarray, a: np.ndarray, b: np.ndarray) -> bool:
    """Return whether all results are those of float64, but for the rounding of k products and their sums."""
    x, y = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(invalid="ignore"):
        wanted, size = x @ y, np.abs(x) @ np.abs(y)
        near = np.abs(found - wanted) <= (a.shape[-1] + 1) * 2.0**-24 * size
    return bool((near | (np.isinf(wanted) & (found == wanted)) | (np.isnan(wanted) & np.isnan(found))).all())


@pytest.mark.parametrize("sizes", [(64, 4096, 3), (500, 500, 3), (4096, 64, 3)])
def test_storing_many_results_of_short_sums_is_shared(sizes: tuple[int, ...]) -> None:
    assert SizedProduct(sizes)(1)[1] > 1


def test_small_products_stay_on_one_thread() -> None:
    assert SizedProduct((64, 64, 64))(1)[1] == 1


@pytest.mark.usefixtures("in_c_alone")
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize("m, k, n", [(1, 3, 2000), (237, 3, 1100), (1001, 7, 65), (225, 32, 530), (225, 33, 530)])
def test_products_of_short_sums(m: int, k: int, n: int, turned: bool) -> None:
    """Rows that tiles of several heights share, and more columns than a panel has."""
    x, y = RNG.standard_normal((m, k)), RNG.standard_normal((n, k) if turned else (k, n))

    def forward(_: Any, x: Any, y: Any) -> Any:
        return x @ (y.T if turned else y)

    given = {"x": x.astype(np.float32), "y": y.astype(np.float32)}
    shapes = {name: v.shape for name, v in given.items()}
    with tg.compile_forward(model=One(), forward=forward, inputs=shapes, device="cpu", seed=0) as f:
        found = f.run(given).output
        assert "compiled by" in f.device.description
    assert is_product(found, given["x"], given["y"].T if turned else given["y"])


@pytest.mark.parametrize("k", [5, 700], ids=["one block", "two blocks"])
def test_columns_that_fill_no_vector(k: int, c_compiler: None) -> None:
    """The last columns are computed apart. Only they are written, and their sums go on from block to block.

    What lies behind a row of the right operand is read, and has no effect.
    """
    library = engine()
    given = with_margins(3 * 9 * k + 3 * k * 90, np.float32)[:-1]
    given[:] = RNG.standard_normal(given.shape)
    a = given[: 3 * 9 * k].reshape(3, 9, k)
    for n in range(1, 70):
        behind = given[-3 * k * (n + 20) :].reshape(3, k, n + 20)
        behind[:] = RNG.standard_normal(behind.shape)
        behind[..., n:] = np.nan
        b = behind[..., :n]
        whole = with_margins(3 * 9 * (n + 3), np.float32)[:-1].reshape(3, 9, n + 3)
        whole[:] = 7.0
        call = CallList(library, [], np.zeros(1, np.int64)).product(a, b, whole[..., :n])
        library.product(ctypes.addressof(call.arguments), 0, 1)
        assert is_product(whole[..., :n], a, b)
        assert (whole[..., n:] == 7.0).all()


@pytest.mark.parametrize("k", [1, 5, 40, 700])
def test_rows_shorter_than_a_vector_leave_what_other_parts_wrote(k: int, c_compiler: None) -> None:
    """Their vectors reach into later rows. Parts run in both orders here, and what lies behind the results stays."""
    library = engine()
    for m, n in [(1, 1), (3, 5), (15, 1), (16, 15), (29, 2), (47, 3), (240, 7), (501, 2), (501, 16), (501, 17)]:
        given = with_margins(2 * (m * k + k * n), np.float32)[:-1]
        given[:] = RNG.standard_normal(given.shape)
        a, b = given[: 2 * m * k].reshape(2, m, k), given[2 * m * k :].reshape(2, k, n)
        b[0, 0, 0], a[1, m // 2] = np.inf, np.nan
        results: list[np.ndarray] = []
        for parts, backwards in [(1, False), (2, True), (3, False), (4, True)]:
            whole = np.full(2 * m * n + 64, 7.0, np.float32)
            out = whole[: 2 * m * n].reshape(2, m, n)
            call = CallList(library, [], np.zeros(1, np.int64)).product(a, b, out)
            for part in range(parts)[:: -1 if backwards else 1]:
                library.product(ctypes.addressof(call.arguments), part, parts)
            assert (whole[2 * m * n :] == 7.0).all()
            results.append(out.copy())
        assert is_product(results[0], a, b)
        for other in results[1:]:
            np.testing.assert_array_equal(other, results[0])


def test_rows_that_lie_alike_in_lines_of_the_cache(c_compiler: None) -> None:
    """Tiles have every second, fourth or 16th row. Each result is written, nothing beside them, whatever the parts."""
    library = engine()
    for m, k, n in [(8, 1, 144), (15, 2, 136), (16, 8, 136), (33, 3, 132), (67, 3, 130), (129, 4, 257), (300, 3, 300)]:
        given = with_margins(m * k + k * n, np.float32)[:-1]
        given[:] = RNG.standard_normal(given.shape)
        a, b = given[: m * k].reshape(m, k), given[m * k :].reshape(k, n)
        b[0, 3], a[m // 2] = np.inf, np.nan
        for first in (0, 1, 13):
            whole = np.full(m * n + 32, 7.0, np.float32)
            out = whole[first : first + m * n].reshape(m, n)
            call = CallList(library, [], np.zeros(1, np.int64)).product(a, b, out)
            for parts in (1, 3):
                out[:] = 5.0e9
                for part in range(parts):
                    library.product(ctypes.addressof(call.arguments), part, parts)
                assert (whole[:first] == 7.0).all() and (whole[first + m * n :] == 7.0).all()
                assert is_product(out, a, b)


@pytest.mark.parametrize("limit", ["", "k_m", "m_k", "k_n", "n_k"])
def test_few_columns_of_a_left_operand_that_lies_by_columns(limit: str, c_compiler: None) -> None:
    """The turned product is computed. Its results are the same however it is split, and nothing beside them changes."""
    library, bits = engine(), 1 << LIMITS.index(limit) if limit else 0
    for m, n, k in [(130, 1, 520), (131, 19, 700), (300, 33, 300), (1024, 20, 65), (1100, 16, 1030), (300, 55, 513)]:
        given = with_margins(2 * (m + n) * k, np.float32)[:-1]
        given[:] = RNG.standard_normal(given.shape)
        a, b = given[: 2 * m * k].reshape(2, k, m).transpose(0, 2, 1), given[2 * m * k :].reshape(2, k, n)
        at = dict(zip("mnk", np.ogrid[:m, :n, :k]))
        if limit:  # what is left out is zero in one operand
            left_out = np.broadcast_to(at[limit[0]] > at[limit[2]], (m, n, k))
            a[:] = np.where(left_out.all(axis=1), 0, a)
            b[:] = np.where(left_out.all(axis=0).T, 0, b)
        else:
            a[0, 3], b[1, :, 0] = np.inf, np.nan
        for endless in (False, True):
            if endless:
                b[0, k // 3] = np.inf  # times zeros that are left out in some blocks only
            results: list[np.ndarray] = []
            for parts in (1, 2, 3, 5):
                whole = np.full((2, m, n + 5), 7.0, np.float32)
                call = CallList(library, [], np.zeros(1, np.int64)).product(a, b, whole[..., :n], bits)
                for part in range(parts)[:: -1 if parts == 3 else 1]:
                    library.product(ctypes.addressof(call.arguments), part, parts)
                assert (whole[..., n:] == 7.0).all()
                results.append(whole[..., :n])
            assert is_product(results[0], a, b) or (limit and endless)
            for other in results[1:]:
                np.testing.assert_array_equal(other, results[0])
