"""Indices in C that are computed: conditions decide some of them, which GCC 12 and 13 read as -1 in place of 1."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from in_c import computed, text

pytestmark = pytest.mark.usefixtures("in_c_alone")


def whole(x: Any) -> Any:
    return tg.cast(x, tg.i32)


def number(x: Any) -> Any:
    return tg.cast(x, tg.f32)


BY_CONDITIONS: dict[str, Callable[[Any, Any], Any]] = {
    "cast": lambda x, y: whole(x > 0),
    "cast + 1": lambda x, y: whole(x > 0) + 1,
    "2 cast": lambda x, y: whole(x > 0) * 2,
    "two casts": lambda x, y: whole(x > 0) + whole(y > 0),
    "float": lambda x, y: whole(number(x > 0)),
    "float + 1": lambda x, y: whole(number(x > 0) + 1.0),
    "choice": lambda x, y: whole(tg.where(x > 0, 1.0, tg.where(y > 0, 1.0, 0.0))),
    "choice of integers": lambda x, y: tg.where(x > 0, 1, 0),
    "row + cast": lambda x, y: whole(tg.clip(y[:, :1], 0.0, 2.0)) + whole(x > 0),
    "product": lambda x, y: whole(number(x > 0) * number(y <= 1)),
}
BY_NUMBERS: dict[str, Callable[[Any, Any], Any]] = {
    "limits": lambda x, y: whole(tg.clip(tg.floor(y), 0.0, 1.0)),
    "choice": lambda x, y: whole(tg.clip(tg.where(x > 0, y, 0.0), 0.0, 3.0)),
    "row + float": lambda x, y: whole(tg.clip(y[:, :1], 0.0, 2.0) + number(x > 0)),
    "row * float": lambda x, y: whole(tg.clip(tg.floor(y[:, :1]), 0.0, 1.0) * number(x > 0)),
    "sign": lambda x, y: whole(tg.sign(x) + 1.0),
    "remainder": lambda x, y: whole(tg.abs(y)) % 2,
}
ALL = {**{f"by conditions: {k}": f for k, f in BY_CONDITIONS.items()}, **BY_NUMBERS}


@pytest.mark.parametrize("columns", [3, 40, 333])
@pytest.mark.parametrize("name", ALL)
def test_elements_at_computed_indices(name: str, columns: int) -> None:
    rng = np.random.default_rng(0)
    table, (x, y) = rng.standard_normal(5).astype("f"), 2.0 * rng.standard_normal((2, 7, columns)).astype("f")
    fn = lambda table, x, y: tg.take(table, ALL[name](x, y), axis=0) * 2.0
    np.testing.assert_array_equal(computed(fn, table, x, y), fn(tg.asarray(table), tg.asarray(x), tg.asarray(y)))


@pytest.mark.parametrize("name", ALL)
def test_what_no_condition_decides_is_not_hidden(name: str) -> None:
    """A hidden index keeps the whole loop from vectors."""
    found = text(lambda table, x, y: tg.take(table, ALL[name](x, y), axis=0), (5,), (7, 40), (7, 40))
    assert ("hidden(" in found) == (name not in BY_NUMBERS)
