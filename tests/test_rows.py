"""Row kernels: several threads a row, whose values stay in registers from one fold to the next where they are few."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from test_kernels import NOTHING, run, with_barriers
from tracegrad import tuning
from tracegrad.compiler.pipeline import make_program
from tracegrad.dtypes import TensorType, f32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.prims.leaves import leaf
from tracegrad.program import Program

Op = Callable[[Tensor, Tensor], dict[str, Tensor]]
NONE: Mapping[str, tuple[int, ...]] = {}


def program_of(f: Op, *shapes: tuple[int, ...]) -> tuple[Graph, Program]:
    with tracing():
        leaves = [leaf("input", n, TensorType(f32, s)) for n, s in zip("xy", shapes, strict=False)]
        graph = Graph(f(leaves[0], leaves[-1]))
    return graph, make_program(graph, NOTHING, {}, {})


def normed(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Two folds, the second of what the first results in, and values that both and the stores need."""
    x = tg.exp(x) * y
    d = x - x.mean(-1, keepdims=True)
    s = (d * d).mean(-1, keepdims=True)
    return {"y": d / tg.sqrt(s + 1e-3), "s": s * s + s}


def largest(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    m = x.max(-1, keepdims=True)
    return {"y": tg.argmax(x + y, -1), "m": m, "s": tg.exp(x - m).sum(-1)}


def shared(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """What the second fold reads is a result as well."""
    e = tg.exp(x - (x * y).sum(-1, keepdims=True) * 0.01)
    return {"y": e, "s": e.sum(-1)}


FORMS: dict[str, Op] = {
    "softmax": lambda x, y: {"y": tg.softmax(x * y)},
    "norm": normed,
    "largest": largest,
    "shared": shared,
}


def assert_right(f: Op, shape: tuple[int, ...], device: Any, more: Mapping[str, tuple[int, ...]] = NONE) -> Program:
    shapes = {"x": shape, "y": shape, **more}
    graph, program = program_of(f, *shapes.values())
    rng = np.random.default_rng(shape[-1])
    env = {n: rng.standard_normal(s).astype(np.float32) for n, s in shapes.items()}
    double = {n: x.astype(np.float64) for n, x in env.items()}
    want = dict(zip(graph.outputs, evaluate(graph.roots, double, np), strict=True))
    few, got = run(device, program, env), run(device, with_barriers(program), env)
    for name, x in want.items():
        np.testing.assert_allclose(got[name], x, rtol=2e-5, atol=2e-5, err_msg=name)
        np.testing.assert_array_equal(few[name].view(np.int32), got[name].view(np.int32), err_msg=name)
    return program


@pytest.mark.parametrize("length", [32, 33, 64, 95, 129, 300, 511, 1024, 1025])
@pytest.mark.parametrize("name", FORMS)
def test_of_any_length(name: str, length: int, device: Any) -> None:
    assert_right(FORMS[name], (7, length), device)


@pytest.mark.parametrize("length", [33, 200, 256, 257])
@pytest.mark.parametrize("name", FORMS)
def test_many_short_rows_take_a_warp_each(name: str, length: int, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MANY_THREADS", 1)
    assert_right(FORMS[name], (7, length), device)


@pytest.mark.parametrize("threads", [1, 150, 300, 600, 10**6])  # 1, 2, 4, 8 lanes a column
def test_columns(threads: int, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tuning, "MANY_THREADS", threads)
    assert_right(lambda x, y: {"s": (x * y).sum(0), "m": x.max(0)}, (67, 75), device)


def windows(x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """Each channel has a filter of its own, so neighbouring rows read overlapping windows."""
    return {"z": tg.conv2d(tg.tanh(x), y, padding=3, groups=3)}


@pytest.mark.parametrize("threads", [1, 3000, 10**6])  # 1 and 4 threads a row that fold rows; 32 that fold points
@pytest.mark.parametrize("side", [7, 11])
def test_overlapping_windows(threads: int, side: int, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Threads that run next to each other fold neighbouring rows if there are enough rows for all threads."""
    monkeypatch.setattr(tuning, "MANY_THREADS", threads)
    program = assert_right(windows, (2, 3, side, side), device, more={"y": (3, 1, 7, 7)})
    wgsl = "".join(k.wgsl for k in program.kernels)
    assert ("lane = lid % 32" in wgsl) == (threads == 10**6)


@pytest.mark.parametrize(("near", "length"), [(2, 513), (3, 1536), (3, 1537), (8, 640), (9, 513)])
def test_few_rows_along_an_axis_are_folded_by_one_thread(
    near: int, length: int, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The rows share a load, and a kernel can have several folds, and stores that depend on the row."""
    monkeypatch.setattr(tuning, "NEIGHBOURS_FROM", 1)

    def folded(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        z = tg.expand_dims(x, 1) + y
        return {"m": z.max(-1) * tg.cast(tg.arange(near), tg.f32), "s": tg.tanh(z).sum(-1)}

    program = assert_right(folded, (4, length), device, more={"y": (near, length)})
    assert any(f"_0_{near - 1} = " in k.wgsl for k in program.kernels) == (near < 9)


def test_gradients_of_filters(device: Any) -> None:
    """A thread folds a line of a filter: its elements share the gradients of the results."""

    def by_filter(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        def loss(y: Tensor) -> Tensor:
            return tg.sum(tg.square(tg.conv2d(x, y, padding=1, groups=32)))

        return {"z": tg.grad(loss)(y)}

    program = assert_right(by_filter, (2, 32, 17, 16), device, more={"y": (32, 1, 3, 3)})
    assert any("_0_2 = 2;" in k.wgsl for k in program.kernels)


@pytest.mark.parametrize("right", [(1, 75), (600, 1)], ids=["of columns", "of rows"])
def test_sums_of_long_columns_with_weights(right: tuple[int, int], device: Any) -> None:
    """A weight that all columns share does not vote on which threads run next to each other."""
    program = assert_right(lambda x, y: {"s": (x * y).sum(0)}, (600, 75), device, more={"y": right})
    assert any("lane = lid / 4" in k.wgsl for k in program.kernels)


def test_a_chain_of_results_is_written_once(device: Any) -> None:
    """What is computed of the folds alone: each value has a name there too, or it would double with every step."""

    def chain(x: Tensor, y: Tensor) -> dict[str, Tensor]:
        s = tg.exp(x - x.max(-1, keepdims=True)).sum(-1)
        for _ in range(12):
            s = s * s * 1e-3 + s * 0.1
        return {"s": s}

    program = assert_right(chain, (5, 200), device)
    assert max(len(k.wgsl) for k in program.kernels) < 5000
