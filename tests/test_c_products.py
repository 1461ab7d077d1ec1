"""Products in C: how results of short sums are shared out, and that their numbers stay."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.render.c_engine import ENGINE
from tracegrad.runtime.c_compiler import compiler
from tracegrad.runtime.calls import CallList, SizedProduct
from tracegrad.runtime.children import Children
from tracegrad.runtime.storage import with_margins

RNG = np.random.default_rng(0)


class One(tg.Module):
    """A model has a parameter."""

    def __init__(self) -> None:
        self.w = self.param((1,))


@pytest.mark.parametrize("sizes", [(64, 4096, 3), (500, 500, 3), (4096, 64, 3)])
def test_storing_many_results_of_short_sums_is_shared(sizes: tuple[int, ...]) -> None:
    assert SizedProduct(sizes)(1)[1] > 1


def test_small_products_stay_on_one_thread() -> None:
    assert SizedProduct((64, 64, 64))(1)[1] == 1


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
    truth = given["x"].astype(np.float64) @ (given["y"].T if turned else given["y"]).astype(np.float64)
    size = np.abs(given["x"]).astype(np.float64) @ np.abs(given["y"].T if turned else given["y"])
    assert (np.abs(found - truth) <= (k + 1) * 2.0**-24 * size).all()


@pytest.mark.parametrize("k", [5, 700], ids=["one block", "two blocks"])
def test_columns_that_fill_no_vector(k: int, c_compiler: None) -> None:
    """The last columns are computed apart. Only they are written, and their sums go on from block to block.

    What lies behind a row of the right operand is read, and has no effect.
    """
    found = compiler()
    assert found is not None
    library = found.begin(ENGINE, Children()).result()
    assert library is not None
    product = library.product
    product.argtypes, product.restype = (ctypes.c_void_p, ctypes.c_long, ctypes.c_long), None
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
        product(ctypes.addressof(call.arguments), 0, 1)
        x, y = a.astype(np.float64), b.astype(np.float64)
        assert (np.abs(whole[..., :n] - x @ y) <= (k + 1) * 2.0**-24 * (np.abs(x) @ np.abs(y))).all()
        assert (whole[..., n:] == 7.0).all()
