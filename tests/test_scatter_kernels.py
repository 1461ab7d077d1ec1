"""Scatters on a GPU: a workgroup looks for the updates of its rows. Small ones are made to, so that tests are quick."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from browser import browser, open_page, served, shader_messages
from test_kernels import NOTHING, run, with_barriers
from tracegrad import tuning
from tracegrad.compiler.pipeline import make_program
from tracegrad.dtypes import DType, TensorType, f32, i32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.graph import Graph
from tracegrad.prims.leaves import leaf
from tracegrad.program import Program

__all__ = ["browser", "served"]  # fixtures

SHAPES = [  # rows, columns, updates
    (1, (), 1), (7, (3,), 40), (50, (16,), 1023), (10, (), 3000), (300, (5, 3), 1025), (1, (4,), 129), (5, (130,), 64),
    (129, (2,), 2048), (64, (33,), 1024), (3, (0,), 5), (4, (6,), 0),
]  # fmt: skip
TARGETS = {
    "anywhere": lambda rng, rows, k: rng.integers(0, rows, k),
    "one": lambda rng, rows, k: np.full(k, rows // 2),
    "beyond": lambda rng, rows, k: rng.integers(-rows, 2 * rows, k),  # clamped
    "mostly one": lambda rng, rows, k: np.minimum(rng.zipf(1.3, k) - 1, rows - 1),
}


@pytest.fixture(autouse=True)
def at_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "SCATTER_FROM", 1)


def program_of(rows: int, columns: tuple[int, ...], k: int, dtype: DType, own: bool = False) -> tuple[Graph, Program]:
    """A scatter beside a sum, whose result is multiplied. own: each element of an update has a target of its own."""
    with tracing():
        at = leaf("input", "at", TensorType(i32, (k, *columns) if own else (k,)))
        x = leaf("input", "x", TensorType(dtype, (k, *columns)))
        if own:
            (out,) = tg.vjp(lambda t: tg.take_along_axis(t, at, 0), tg.zeros((rows, *columns), dtype))[1](x)
        else:
            out = tg.scatter_add(tg.ones((rows, *columns), dtype), at, x + x)
        graph = Graph({"y": out * 3, "s": x.sum()})
    return graph, make_program(graph, NOTHING, {}, {})


@pytest.mark.parametrize("dtype", [f32, i32], ids=str)
@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("deep", [1, 8])
def test_any_shape(
    deep: int, shape: Any, kind: str, dtype: DType, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sums are right, and equal to those of the form for adapters on a CPU bit for bit."""
    rows, columns, k = shape
    if deep > 1:
        monkeypatch.setattr(tuning, "SCATTER_GROUPS", 1)
    _, program = program_of(rows, columns, k, dtype)
    rng = np.random.default_rng(k)
    x = rng.integers(-9, 9, (k, *columns)) if dtype is i32 else rng.standard_normal((k, *columns))
    env = {"x": x.astype(dtype.numpy), "at": TARGETS[kind](rng, rows, k).astype(np.int32)}
    want = np.ones((rows, *columns), np.float64)
    np.add.at(want, np.clip(env["at"], 0, rows - 1), 2 * env["x"].astype(np.float64))
    few, got = (run(device, p, env)["y"] for p in (program, with_barriers(program)))
    bound = 3 * 2.0**-24 * (k + 2) * (1 + 2 * float(np.abs(env["x"]).sum(0).max(initial=0)))  # of a sum of k numbers
    np.testing.assert_allclose(got, 3 * want, rtol=0, atol=0 if dtype is i32 else bound)
    np.testing.assert_array_equal(few.view(np.int32), got.view(np.int32))
    if want.size and k:
        assert "sa[i]" in "".join(kernel.wgsl for kernel in program.kernels)


@pytest.mark.parametrize("kind", TARGETS)
@pytest.mark.parametrize("shape", [*SHAPES, (2, (), 4096)], ids=str)
@pytest.mark.parametrize("deep", [1, 8])
def test_maxima_of_any_shape(deep: int, shape: Any, kind: str, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A row without updates is -inf, and one with a NaN is NaN."""
    rows, columns, k = shape
    if deep > 1:
        monkeypatch.setattr(tuning, "SCATTER_GROUPS", 1)
    with tracing():
        at, x = leaf("input", "at", TensorType(i32, (k,))), leaf("input", "x", TensorType(f32, (k, *columns)))
        graph = Graph({"y": tg.segment_max(x * 2, at, rows), "s": x.sum()})
    program = make_program(graph, NOTHING, {}, {})
    rng = np.random.default_rng(k)
    values, targets = rng.integers(-9, 9, (k, *columns)).astype(np.float32), TARGETS[kind](rng, rows, k)
    odd = np.array([np.nan, np.inf, -np.inf, -0.0], np.float32)
    values[: k // 9] = odd[rng.integers(0, 4, values[: k // 9].shape)]
    env = {"x": values, "at": targets.astype(np.int32)}
    want = np.full((rows, *columns), -np.inf, np.float32)
    with np.errstate(invalid="ignore"):
        np.maximum.at(want, np.clip(targets, 0, rows - 1), 2 * values)
    for p in (program, with_barriers(program)):
        np.testing.assert_array_equal(run(device, p, env)["y"], want)


@pytest.mark.parametrize("shape", [(7, (3,), 40), (40, (5,), 1100), (3, (2, 4), 1)], ids=str)
def test_targets_of_their_own(shape: Any, device: Any) -> None:
    rows, columns, k = shape
    _, program = program_of(rows, columns, k, f32, own=True)
    rng = np.random.default_rng(k)
    x, at = rng.standard_normal((k, *columns)).astype(np.float32), rng.integers(0, rows, (k, *columns))
    want = np.zeros((rows, *columns))
    np.add.at(want, (at, *np.indices((k, *columns))[1:]), x.astype(np.float64))
    env = {"x": x, "at": at.astype(np.int32)}
    few, got = (run(device, p, env)["y"] for p in (program, with_barriers(program)))
    np.testing.assert_allclose(got, 3 * want, rtol=0, atol=3e-5)
    np.testing.assert_allclose(few, 3 * want, rtol=0, atol=3e-5)


def test_an_infinite_update_stays_in_its_row(device: Any) -> None:
    """As a product with a one-hot matrix it would make NaN of all rows: 0 times infinity."""
    _, program = program_of(5, (4,), 33, f32)
    x = np.ones((33, 4), np.float32)
    x[7, 2] = np.inf
    got = run(device, with_barriers(program), {"x": x, "at": np.arange(33, dtype=np.int32) % 5})["y"]
    assert np.isinf(got[2, 2]) and np.isfinite(got).sum() == got.size - 1


def test_browsers_accept_the_shaders(browser: Any, served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    programs = [program_of(*shape, dtype)[1] for shape in SHAPES for dtype in (f32, i32)]
    monkeypatch.setattr(tuning, "SCATTER_GROUPS", 1)  # several rows a thread
    programs += [program_of(*shape, dtype)[1] for shape in SHAPES for dtype in (f32, i32)]
    texts = [k.wgsl for p in programs for k in p.kernels]
    assert sum("sa[" in text for text in texts) >= len(SHAPES)
    assert shader_messages(open_page(browser, f"{served[0]}/blank.html"), texts) == []
