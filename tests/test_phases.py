"""Windows at steps, taken apart by remainders: every geometry, and no more products than the taps that count."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tracegrad as tg
from tracegrad import ops
from tracegrad.compiler.pipeline import optimize
from tracegrad.ir.nodes import toposort
from tracegrad.prims.folds import MATMUL

rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


def gradient(fn: Callable[[Any], Any], x: np.ndarray, ct: np.ndarray) -> np.ndarray:
    leaf = tg.parameter(x)
    ops.sum(fn(leaf) * ct).backward()
    assert leaf.grad is not None
    return np.asarray(leaf.grad)


@pytest.mark.parametrize(("stride", "dilation"), list(itertools.product(range(1, 5), repeat=2)))
def test_gradient_by_the_input_of_every_geometry(stride: int, dilation: int) -> None:
    for kernel, padding, left in itertools.product((1, 2, 5), (0, 3), (0, 1, 3)):
        n = max(dilation * (kernel - 1) + 1 + left - 2 * padding, 1)
        x, w = normal(2, 2, n), normal(2, 1, kernel)
        ours = tg.parameter(x)
        y = tg.conv1d(ours, w, stride=stride, padding=padding, dilation=dilation, groups=2)
        theirs = torch.tensor(x, requires_grad=True)
        z = F.conv1d(theirs, torch.tensor(w), None, stride, padding, dilation, 2)
        ct = normal(*z.shape)
        (expected,) = torch.autograd.grad(z, theirs, torch.tensor(ct))
        ops.sum(y * ct).backward()
        np.testing.assert_allclose(np.asarray(ours.grad), expected.numpy(), atol=1e-5, err_msg=f"{n=} {kernel=}")


@pytest.mark.parametrize("pool", ["max", "avg"])
@pytest.mark.parametrize(("kernel", "stride"), [(3, 2), (5, 3), (2, 3), (3, 1)])
def test_gradients_of_overlapping_pools(pool: str, kernel: int, stride: int) -> None:
    for padding, n in itertools.product((0, kernel // 2), (kernel, 7, 8)):
        x = normal(2, 3, n, n + 1)
        theirs = torch.tensor(x, requires_grad=True)
        z = getattr(F, f"{pool}_pool2d")(theirs, kernel, stride, padding)
        ct = normal(*z.shape)
        (expected,) = torch.autograd.grad(z, theirs, torch.tensor(ct))
        got = gradient(lambda x, p=padding: getattr(tg, f"{pool}_pool2d")(x, kernel, stride, p), x, ct)
        np.testing.assert_allclose(got, expected.numpy(), atol=1e-5)


class Filters(tg.Module):
    """Filters of a convolution."""

    def __init__(self, *shape: int) -> None:
        self.w = self.param(shape)


def products(forward: Callable[..., Any], shape: tuple[int, ...], *filters: int) -> int:
    """How many products of two numbers the program adds up."""
    graph = tg.trace_forward(model=Filters(*filters), forward=forward, inputs={"x": shape})
    found = [t for t in toposort(optimize(graph).graph.roots) if t.prim is MATMUL]
    return sum(t.size * t.inputs[0].shape[-1] for t in found)


@pytest.mark.parametrize(("kernel", "stride"), [(1, 2), (2, 2), (3, 2), (4, 2), (7, 2), (8, 4), (5, 3)])
def test_no_zero_between_positions_is_multiplied(kernel: int, stride: int) -> None:
    n, padding = 24, (kernel - 1) // 2
    moved = n // stride + 1  # one position more at most, for what padding shifts
    most = 2 * 3 * 4 * moved**2 * kernel**2
    got = products(
        lambda m, x: tg.grad(lambda x: tg.conv2d(x, m.w, stride=stride, padding=padding).sum())(x),
        (2, 3, n, n),
        *(4, 3, kernel, kernel),
    )
    assert 0 < got <= most, got / math.prod((2, 3, 4, n // stride, n // stride, kernel, kernel))


def test_no_column_that_is_cut_off_is_multiplied() -> None:
    """The gradient of an image that was padded before, and parts of a product that has two readers."""

    def padded(m: Any, x: Any) -> Any:
        return tg.grad(lambda x: (tg.conv1d(tg.pad(x, [(0, 0), (0, 0), (4, 0)]), m.w) ** 2).sum())(x)

    def whole(m: Any, x: Any) -> Any:
        return tg.grad(lambda x: (tg.conv1d(x, m.w, padding=2) ** 2).sum())(x)

    def parts(m: Any, x: Any) -> Any:
        y = x @ m.w
        return tg.tanh(y[..., :3]) * y[..., 3:]

    assert products(padded, (2, 3, 16), 3, 3, 5) == products(whole, (2, 3, 16), 3, 3, 5)
    assert products(parts, (4, 5), 5, 6) == 4 * 5 * 6
