"""Loads behind masks of coordinates: guarded exactly where the mask hides them, and nowhere else."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from test_axes import forms, x
from tracegrad.dtypes import TensorType, i32
from tracegrad.ir import Tensor
from tracegrad.kernels.expr import Value, walk
from tracegrad.kernels.form import Fold, Kernel, points
from tracegrad.kernels.masks import behind_masks
from tracegrad.prims.leaves import iota, leaf
from tracegrad.runtime.points import Points
from tracegrad.transforms.grad import gradients

ROWS, COLUMNS = 5, 7


def guarded(form: Kernel) -> dict[int, np.ndarray[Any, Any]]:
    """Where each slot is read by a kernel, at all of its points: an array of rows and columns."""
    found: dict[int, np.ndarray[Any, Any]] = {}
    at = Points(form, lambda slot, index: np.zeros(index.shape, np.float32), np.arange(form.rows), np.float64)
    shape = (form.rows, max(1, points(form.inner)))
    for v in walk([s.value for s in form.body]):
        load: Value = v.args[0] if v.op == "inside" else v
        if load.op == "load" and not (v is load and load.arg[0] in found):
            held = np.ones(shape, bool)
            for g in v.arg if v is not load else ():
                held = held & at.holds(g)
            found[load.arg[0]] = held.reshape(-1)
    return found


def choice(compare: Callable[[Any, Any], Tensor], shift: int) -> Tensor:
    """x where coordinates compare, else y."""
    down, right = max(shift, 0), max(-shift, 0)  # a part of larger coordinates is a coordinate and a number
    i = iota((ROWS + down, COLUMNS), 0)[down:]
    j = iota((ROWS, COLUMNS + right), 1)[:, right:]
    return tg.where(compare(i, j), tg.exp(x(ROWS, COLUMNS)), tg.exp(x(ROWS, COLUMNS, name="y")))


@pytest.mark.parametrize("shift", [-3, -1, 0, 1, 2])
@pytest.mark.parametrize("compare", [operator.le, operator.lt, operator.ge, operator.gt])
def test_each_side_is_read_where_it_is_chosen(compare: Callable[[Any, Any], Any], shift: int) -> None:
    (form,) = forms(lambda: choice(compare, shift))
    i, j = np.arange(ROWS)[:, None], np.arange(COLUMNS)
    chosen = compare(i + shift, j).reshape(-1)
    assert all(held.all() for held in guarded(form).values())
    sides = guarded(behind_masks(form))
    assert len(sides) == 2
    for slot, want in enumerate((chosen, ~chosen)):
        np.testing.assert_array_equal(sides[slot], want)


@pytest.mark.parametrize("shift", [-9, 9])
def test_a_mask_that_always_or_never_holds_guards_nothing(shift: int) -> None:
    (form,) = forms(lambda: choice(operator.le, shift))
    assert all(held.all() for held in guarded(behind_masks(form)).values())


def test_what_both_sides_read_has_no_guard() -> None:
    def both() -> Tensor:
        a = tg.exp(x(ROWS, COLUMNS))
        return tg.where(iota(a.shape, 0) <= iota(a.shape, 1), a, a * 2.0)

    (form,) = forms(both)
    assert all(held.all() for held in guarded(behind_masks(form)).values())


def test_kernels_of_products_and_scatters_stay_as_they_are() -> None:
    """Their loads are of vectors."""
    at = TensorType(i32, (4,))
    product = lambda: choice(operator.le, 0) @ x(COLUMNS, 3, name="w")
    scatter = lambda: gradients(tg.sum(tg.embedding(w := x(9, 4), leaf("input", "i", at)) * x(4, 4, name="y")), [w])[0]
    for fn in (product, scatter):
        (form,) = [f for f in forms(fn) if any(isinstance(s, Fold) and (s.product or s.scatter) for s in f.body)]
        assert behind_masks(form) is form
