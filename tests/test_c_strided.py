"""Kernels in C that store values along rows whose axis indices divide, and fold the values, too."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from in_c import computed

pytestmark = pytest.mark.usefixtures("in_c_alone")
TAPS, EDGE = 9, 4
CASES = [(stride, n) for stride in (4, 5) for n in (97, 100, 996)]


def shapes(stride: int, n: int) -> tuple[tuple[int, ...], ...]:
    return (6, 5, TAPS), (3, 5, n), (3, 6, (n + 2 * EDGE - TAPS) // stride + 1)


def of(stride: int) -> Callable[[Any, Any, Any], Any]:
    """The gradient of strided windows, masked as behind relu, and its sums along the last axis."""

    def gradients(w: Any, x: Any, g: Any) -> Any:
        conv: Callable[[Any], Any] = lambda x: tg.conv1d(x, w, stride, EDGE)
        (z,) = tg.vjp(conv, x)[1](g)
        z = tg.where(x > 0, z, 0.0)
        return {"z": z, "sum": tg.sum(z, -1), "weighed": tg.sum(z * x, -1)}

    return gradients


@pytest.mark.parametrize(("stride", "n"), CASES)
def test_values_and_folds(stride: int, n: int) -> None:
    rng = np.random.default_rng(0)
    w, x, g = (rng.standard_normal(s, np.float32) for s in shapes(stride, n))
    found = computed(of(stride), w, x, g)
    z = np.zeros((3, 5, n + 2 * EDGE + stride))
    for k in range(TAPS):
        z[:, :, k : k + stride * g.shape[2] : stride] += np.einsum("oc,bot->bct", w[:, :, k].astype("d"), g)
    z = np.where(x > 0, z[:, :, EDGE : n + EDGE], 0)
    for name, expected in {"z": z, "sum": z.sum(-1), "weighed": (z * x).sum(-1)}.items():
        np.testing.assert_allclose(found[name], expected, atol=2.0**-23 * 64 * np.sqrt(n))
