"""Functions with a short form for usual arguments: a part of a kernel in C takes it if it serves all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg

pytestmark = pytest.mark.usefixtures("c_compiler")

COLUMNS = 28_571
SIZE = 7 * COLUMNS  # several parts, and no whole vectors
FAR = np.array([8193.0, -3e5, 1e10, -1e38, np.inf, -np.inf, np.nan, 8191.99], np.float32)


class Nothing(tg.Module):
    """A model has a parameter; these functions use none."""

    def __init__(self) -> None:
        self.unused = self.param((1,), init=tg.init.zeros())


def rows(x: Any) -> Any:
    return x.reshape((COLUMNS, 7))


MANY = 12  # calls: compilers do not inline the long form of so many


def many(xp: Any, x: Any) -> Any:
    """Each argument is computed from the result before, and is x or its double."""
    for k in range(MANY):
        x = xp.where(xp.sin(x) < 2.0, x * (2.0 if k == MANY // 2 else 1.0), -x)
    return xp.sin(x) + xp.cos(x)


CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "sin": (tg.sin, np.sin),
    "cos": (tg.cos, np.cos),
    "tan": (tg.tan, np.tan),
    "both": (lambda x: tg.sin(x) * tg.cos(0.5 * x), lambda x: np.sin(x) * np.cos(x / 2)),
    "remainder": (lambda x: x % -3.0, lambda x: x % -3.0),
    "by any divisor": (lambda x: 5.0 % (x + 0.015625), lambda x: 5.0 % (x + 0.015625)),
    "rows": (lambda x: tg.sin(rows(x)).sum(1), lambda x: np.sin(rows(x)).sum(1)),
    "columns": (lambda x: tg.sin(rows(x)).sum(0), lambda x: np.sin(rows(x)).sum(0)),
    "one of the other": (lambda x: tg.sin(tg.sin(x) * 3.0), lambda x: np.sin(np.sin(x) * 3)),
    "of the result of one": (
        lambda x: tg.sin(tg.where(tg.sin(x) < 2.0, 2.0 * x, x)),
        lambda x: np.sin(np.where(np.sin(x) < 2.0, 2 * x, x)),
    ),
    "many": (lambda x: many(tg, x), lambda x: many(np, x)),
    "of a sum": (lambda x: tg.sin(rows(x).sum(1) * 2.0), lambda x: np.sin(rows(x).sum(1) * 2)),
    "padded": (
        lambda x: tg.cos(tg.pad(rows(x), ((1, 1), (2, 0)))),
        lambda x: np.cos(np.pad(rows(x), ((1, 1), (2, 0)))),
    ),
    "of products": (
        lambda x: tg.sin(rows(x) @ tg.tensor(np.eye(7, dtype=np.float32))),
        lambda x: np.sin(rows(x)),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_far_argument_changes_no_other_result(name: str) -> None:
    """Not a bit, in whichever part it lies; and its own result is right."""
    ours, theirs = CASES[name]
    compiled = tg.compile_forward(
        model=Nothing(), forward=lambda m, x: ours(x), inputs={"x": (SIZE,)}, device="cpu", seed=0
    )
    x = np.random.default_rng(0).integers(-4000, 4000, SIZE).astype(np.float32) / 32  # so that sums are exact
    before = np.asarray(compiled.run(x=x).output)
    assert np.abs(before - theirs(x.astype(np.float64))).max() < 1e-4 * max(1.0, np.abs(before).max())
    places = np.arange(5, SIZE, SIZE // 8)[: len(FAR)]
    changed = x.copy()
    changed[places] = FAR if name != "of products" else FAR[0]  # inf * 0 would be NaN
    after = np.asarray(compiled.run(x=changed).output)
    with np.errstate(invalid="ignore"):
        wanted, old = theirs(changed.astype(np.float64)), theirs(x.astype(np.float64))
    same = (wanted == old) & ~np.isnan(wanted)
    assert np.array_equal(before[same], after[same])
    if "sum" not in name:  # a sum in f32 rounds large numbers
        assert np.allclose(after, wanted, rtol=1e-4, atol=1e-4, equal_nan=True)


@pytest.mark.parametrize("turned", [True, False])
def test_a_part_checks_what_it_computes(turned: bool) -> None:
    """Rows that are transposed, or folded side by side, are shared by sixteens, so parts begin elsewhere."""

    def ours(x: tg.Tensor) -> tg.Tensor:
        return tg.sin(x.T) if turned else tg.sum(tg.sin(x.reshape(10500, 20)), 1)

    compiled = tg.compile_forward(
        model=Nothing(), forward=lambda m, x: ours(x), inputs={"x": (500, 420)}, device="cpu", seed=0
    )
    for k in range(-10, 10):
        x = np.zeros((500, 420), np.float32)
        at = (20, 210 + k) if turned else divmod((5250 + k) * 20, 420)  # around the middle of 420 or 10500 rows
        x[at] = 1e9
        assert abs(np.asarray(compiled.run(x=x).output).sum(dtype=np.float64) - np.sin(1e9)) < 1e-4


def test_each_result_of_a_product_is_checked_once() -> None:
    """A loop over k around the check would look at each of them k times."""
    inputs = {"x": (40, 30), "w": (30, 50)}
    compiled = tg.compile_forward(
        model=Nothing(), forward=lambda m, x, w: tg.sin(x @ w), inputs=inputs, device="cpu", seed=0
    )
    kernels = compiled.explain().program.kernels
    (text,) = [f for k in kernels for f in k.texts["c"].functions if "near_sin_" in f]
    assert text.count("for (") == 3 * 2  # the check and both forms, each of them over rows and columns


def test_the_long_forms_of_many_calls_are_not_inlined() -> None:
    """GCC took 14 s for a hundred of them, instead of 2."""
    for calls, inlined in ((3, True), (MANY, False)):

        def forward(m: Nothing, x: tg.Tensor, n: int = calls) -> tg.Tensor:
            return sum((tg.sin(x * float(k)) for k in range(1, n + 1)), x)

        compiled = tg.compile_forward(model=Nothing(), forward=forward, inputs={"x": (SIZE,)}, device="cpu", seed=0)
        (kernel,) = compiled.explain().program.kernels
        assert ("called_sin_" not in "".join(kernel.texts["c"].functions)) == inlined
