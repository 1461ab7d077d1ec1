"""Rows in C that end where a mask hides the rest have the bits of whole rows, and do not read what is hidden."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from in_c import computed, text
from together import together
from tracegrad import tuning
from tracegrad.ir.nodes import Tensor
from tracegrad.render import c_masks

pytestmark = pytest.mark.usefixtures("in_c_alone")

Function = Callable[[Tensor, Tensor], Any]
LONG = tuning.MASKED_ROWS
SQUARE = ("softmax", "gradient")


def shown(x: Tensor, ahead: int = 0, behind: int = 0, strict: bool = False) -> Tensor:
    """A mask of the last two axes that is true up to the diagonal, or up to another one."""
    i, j = tg.arange(x.shape[-2] + ahead)[ahead:, None], tg.arange(x.shape[-1] + behind)[None, behind:]
    return j < i if strict else j <= i


def steps(rows: int) -> Tensor:
    """A column of 0, 0, 0, 0, 0, 1, 1, ..., whose index divides."""
    return tg.reshape(tg.broadcast_to(tg.arange(rows)[:, None], (rows, 5)), (-1, 1))[:rows]


def softmax(x: Tensor, mask: Tensor) -> Tensor:
    """The kernels of attention: what is hidden is 0."""
    e = tg.exp(x - tg.max(tg.where(mask, x, -np.inf), -1, keepdims=True))
    return tg.where(mask, e / tg.sum(tg.where(mask, e, 0.0), -1, keepdims=True), 0.0)


def gradient(x: Tensor, y: Tensor) -> Tensor:
    total: Callable[[Tensor], Tensor] = lambda x: tg.sum(tg.softmax_causal(x) * y)
    return tg.grad(total)(x)


FUNCTIONS: dict[str, Function] = {
    "softmax": lambda x, y: tg.softmax_causal(x * 0.3),
    "gradient": gradient,
    "ahead, strict": lambda x, y: softmax(x, shown(x, 5, strict=True)),
    "behind": lambda x, y: softmax(x, shown(x, 0, 3)),
    "far behind": lambda x, y: softmax(x, shown(x, 0, 110)),
    "and another mask": lambda x, y: softmax(x, tg.logical_and(y > 0, shown(x))),
    "band": lambda x, y: softmax(x, tg.logical_and(shown(x), tg.logical_not(shown(x, 0, 4)))),
    "sums alone": lambda x, y: tg.sum(tg.where(shown(x), x * y, 0.0), -1),
    "minus zeros": lambda x, y: tg.where(shown(x), x - tg.sum(tg.where(shown(x), y, 0.0), -1, keepdims=True), 0.0) * -2,
    # the rows of these do not end
    "other half": lambda x, y: softmax(x, tg.logical_not(shown(x))),
    "other order": lambda x, y: tg.sum(tg.where(tg.arange(x.shape[-2])[:, None] <= tg.arange(x.shape[-1]), x, 0.0), -1),
    "steps": lambda x, y: tg.sum(tg.where(tg.arange(x.shape[-1]) <= steps(x.shape[-2]), x, 0.0), -1),
    "infinite factor": lambda x, y: softmax(x, shown(x)) * np.float32(np.inf),
    "all is stored": lambda x, y: x - tg.sum(tg.where(shown(x), x, 0.0), -1, keepdims=True),
    "ones are summed": lambda x, y: tg.sum(tg.where(shown(x), x, 1.0), -1),
}
WHOLE = {"other half", "other order", "steps", "infinite factor", "all is stored", "ones are summed"}
SHAPES = [(1, LONG + 1, LONG + 1), (2, 140, 100)]


def of_all(x: Tensor, y: Tensor) -> dict[str, Any]:
    return {name: fn(x, y) for name, fn in FUNCTIONS.items() if x.shape[1] == x.shape[2] or name not in SQUARE}


@pytest.mark.parametrize("shape", SHAPES)
@together
def test_rows_have_the_bits_of_whole_rows(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    x, y = np.random.default_rng(shape[1]).standard_normal((2, *shape)).astype(np.float32)
    found = computed(of_all, x, y)
    monkeypatch.setattr(c_masks, "MASKED_ROWS", 2**40)
    for name, whole in computed(of_all, x, y).items():
        np.testing.assert_array_equal(found[name].view(np.int32), whole.view(np.int32), name)


def test_which_rows_end() -> None:
    shape = (2, LONG, LONG)
    for name, fn in FUNCTIONS.items():
        assert (c_masks.ROW_END in text(fn, shape, shape)) == (name not in WHOLE), name
    assert c_masks.ROW_END not in text(FUNCTIONS["softmax"], (2, LONG - 1, LONG - 1), (2, LONG - 1, LONG - 1))


@together
def test_what_is_hidden_can_be_any_number() -> None:
    x = np.random.default_rng(0).standard_normal((3, 70, 70)).astype(np.float32)
    hidden, known = np.triu(np.full((70, 70), True), 1), computed(FUNCTIONS["softmax"], x, x)
    for bad in map(np.float32, (np.nan, np.inf, -np.inf, 3e38)):
        np.testing.assert_array_equal(computed(FUNCTIONS["softmax"], np.where(hidden, bad, x), x), known)
    seen = computed(FUNCTIONS["softmax"], np.where(np.eye(70, dtype=bool), np.float32(np.nan), x), x)
    assert np.isnan(seen[:, ~hidden]).all() and not seen[:, hidden].any()
