"""Products whose k is summed in parts: products of their own, of which the last may be shorter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from test_kernels import NOTHING, run, with_barriers
from tracegrad.compiler.pipeline import make_program, optimize
from tracegrad.dtypes import TensorType, f32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.graph import Graph
from tracegrad.kernels import tiles
from tracegrad.passes import split
from tracegrad.prims.folds import MATMUL
from tracegrad.prims.leaves import iota, leaf
from tracegrad.runtime.cpu import CpuSession
from tracegrad.tuning import PROCESSORS


def causal(x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    """The left operand is zero above its diagonal."""
    holds = iota((330, 330), 0) >= iota((330, 330), 1)
    return tg.where(holds, x, 0.0) @ y


def two_axes(x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    """k is two axes, which do not lie as one in the left operand."""
    return x.transpose(1, 0, 2).reshape(20, 330) @ y.reshape(330, 17)


CASES: dict[str, tuple[Callable[..., tg.Tensor], tuple[int, ...], tuple[int, ...]]] = {
    "rows": (lambda x, y: x @ y, (20, 330), (330, 17)),
    "three columns": (lambda x, y: x @ y, (20, 330), (330, 3)),
    "vectors": (lambda x, y: x @ y, (20, 328), (328, 16)),
    "the gradient of a weight": (lambda x, y: x.transpose() @ y, (332, 20), (332, 24)),
    "a stack": (lambda x, y: x @ y, (3, 20, 330), (3, 330, 17)),
    "one for a stack": (lambda x, y: x @ y, (20, 330), (3, 330, 17)),
    "two axes": (two_axes, (5, 20, 66), (5, 66, 17)),
    "computed": (lambda x, y: tg.tanh(x) @ (y * 0.5), (20, 330), (330, 17)),
    "with more behind": (lambda x, y: tg.relu(x @ y + 1.0), (20, 330), (330, 17)),
    "a triangle": (causal, (330, 330), (330, 17)),
    "whole parts": (lambda x, y: x @ y, (20, 384), (384, 17)),
}  # fmt: skip


def graph_of(name: str, precision: str = "f32") -> tuple[Graph, dict[str, Any]]:
    fn, *shapes = CASES[name]
    rng = np.random.default_rng(0)
    env = {n: rng.standard_normal(s).astype(np.float32) for n, s in zip("xy", shapes, strict=True)}
    with tracing():
        leaves = [leaf("input", n, TensorType(f32, x.shape)) for n, x in env.items()]
        return Graph({"output": fn(*leaves)}, precision=precision), env


@pytest.fixture(params=[64, 80, 192])
def part(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """So many k at a time."""
    monkeypatch.setattr(split, "_part", lambda *_: request.param)
    return request.param


@pytest.mark.parametrize("name", CASES)
def test_every_runtime_sums_them(name: str, part: int, device: Any, c_session: CpuSession) -> None:
    graph, env = graph_of(name)
    lengths = sorted([t.inputs[0].shape[-1] for t in optimize(graph).order if t.prim is MATMUL])
    rest = {"vectors": 328, "the gradient of a weight": 332, "whole parts": 384}.get(name, 330) % part
    assert lengths == sorted([part, *([rest] if rest else [])])
    (want,) = evaluate(graph.roots, {n: x.astype(np.float64) for n, x in env.items()}, np)
    program = make_program(graph, NOTHING, {}, {})
    on_cpu = [run(session, program, env)["output"] for session in (CpuSession(), c_session)]
    for got in (*on_cpu, *[run(device, x, env)["output"] for x in (program, with_barriers(program))]):
        # 384 terms at most, each of about 1: at most as many roundings of sums that are about 20, seldom 60 large
        np.testing.assert_allclose(got, want, rtol=0, atol=384 * 2**-24 * 60)


def test_in_half_precision_the_sum_of_the_parts_is_f32(part: int, c_session: CpuSession) -> None:
    graph, env = graph_of("computed", "f16")
    (want,) = evaluate(graph.roots, {n: x.astype(np.float64) for n, x in env.items()}, np)
    got = run(c_session, make_program(graph, NOTHING, {}, {}), env)["output"]
    # operands rounded to 11 bits: 330 terms of about 1, whose errors add up as a random walk, seldom beyond five times
    np.testing.assert_allclose(got, want, rtol=0, atol=5 * 330**0.5 * 2**-11)


@pytest.mark.parametrize(
    ("m", "n", "k"), [(384, 384, 16384), (384, 1536, 16384), (384, 384, 16411), (1536, 300, 9000), (300, 400, 7919)]
)
def test_every_processor_gets_about_as_many_tiles(m: int, n: int, k: int) -> None:
    part = split._part(1, m, n, k, (k,))
    parts = k // part
    assert parts > 1
    tile = min(tiles.TILES, key=lambda t: tiles.tile_time(t, parts, m, n, part))
    count = tiles.tiles_of(tile, parts, m, n)
    assert count / PROCESSORS > 0.8 * -(-count // PROCESSORS)


def test_parts_end_where_axes_do() -> None:
    """Two of the axes that form k are whole in each part, or split by whole points of the first."""
    part = split._part(1, 64, 576, 8 * 30 * 30, (8, 30, 30))
    assert part in (30 * 30, 2 * 30 * 30, 4 * 30 * 30, 30, 10 * 30, 15 * 30)
