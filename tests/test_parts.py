"""Products that sum over parts of k: they lie as the whole product's operands do, and the last may be shorter."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from browser import browser, open_page, served, shader_messages
from test_kernels import NOTHING, run, with_barriers
from tracegrad.ambient import tracing
from tracegrad.compiler.pipeline import make_program, optimize
from tracegrad.dtypes import TensorType, f32
from tracegrad.evaluate import evaluate
from tracegrad.graph import Graph
from tracegrad.kernels import tiles
from tracegrad.kernels.costs import cost_of
from tracegrad.kernels.fuse import Schedule
from tracegrad.kernels.lower import external_order, lower
from tracegrad.kernels.tiles import TileShape
from tracegrad.passes import split
from tracegrad.prims.folds import MATMUL_PARTS
from tracegrad.prims.leaves import iota, leaf
from tracegrad.runtime.cpu import CpuSession
from tracegrad.tuning import PROCESSORS

__all__ = ["browser", "served"]  # fixtures


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
    monkeypatch.setattr(split, "_ways", lambda *_: (1, request.param))
    return request.param


@pytest.mark.parametrize("name", CASES)
def test_every_runtime_sums_them(name: str, part: int, device: Any, c_session: CpuSession) -> None:
    graph, env = graph_of(name)
    assert [t.attrs["part"] for t in optimize(graph).order if t.prim is MATMUL_PARTS] == [part]
    (want,) = evaluate(graph.roots, {n: x.astype(np.float64) for n, x in env.items()}, np)
    program = make_program(graph, NOTHING, {}, {})
    on_gpu = run(device, with_barriers(program), env)["output"]
    for got in (run(CpuSession(), program, env)["output"], run(c_session, program, env)["output"], on_gpu):
        # 384 terms at most, each of about 1: at most as many roundings of sums that are about 20, seldom 60 large
        np.testing.assert_allclose(got, want, rtol=0, atol=384 * 2**-24 * 60)
    np.testing.assert_array_equal(run(device, program, env)["output"].view(np.int32), on_gpu.view(np.int32))


@pytest.mark.parametrize("name", ["the gradient of a weight", "two axes", "a triangle"])
@pytest.mark.parametrize("tile", tiles.TILES, ids=lambda t: f"{t.rows}x{t.columns}")
def test_in_every_tile(name: str, tile: TileShape, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles, "TILES", {tile: tiles.TILES[tile]})
    monkeypatch.setattr(split, "_ways", lambda *_: (1, 3 * tile.k_step))
    graph, env = graph_of(name)
    (want,) = evaluate(graph.roots, {n: x.astype(np.float64) for n, x in env.items()}, np)
    program = make_program(graph, NOTHING, {}, {})
    got = run(device, with_barriers(program), env)["output"]
    np.testing.assert_allclose(got, want, rtol=0, atol=384 * 2**-24 * 60)
    np.testing.assert_array_equal(run(device, program, env)["output"].view(np.int32), got.view(np.int32))


def test_browsers_accept_the_shaders(browser: Any, served: tuple[str, Path], part: int) -> None:
    """Barriers in a loop that begins and ends elsewhere for each part."""
    kernels = [k for name in CASES for k in make_program(graph_of(name)[0], NOTHING, {}, {}).kernels]
    texts = [text for k in kernels for text in (k.wgsl, k.serial_wgsl or k.wgsl)]
    assert sum("workgroupBarrier" in text and "k_part" in text for text in texts) >= len(CASES)
    assert shader_messages(open_page(browser, f"{served[0]}/blank.html"), texts) == []


def test_in_half_precision_the_parts_are_f32(part: int, c_session: CpuSession) -> None:
    graph, env = graph_of("computed", "f16")
    (want,) = evaluate(graph.roots, {n: x.astype(np.float64) for n, x in env.items()}, np)
    got = run(c_session, make_program(graph, NOTHING, {}, {}), env)["output"]
    # operands rounded to 11 bits: 330 terms of about 1, whose errors add up as a random walk, seldom beyond five times
    np.testing.assert_allclose(got, want, rtol=0, atol=5 * 330**0.5 * 2**-11)


@pytest.mark.parametrize("name", CASES)
def test_their_cost_is_that_of_the_whole_product(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def flops() -> int:
        s = Schedule(optimize(graph_of(name)[0]))
        (c,) = (c for c in s.clusters if c.kind == "product")
        externals, _ = external_order(c, s.storage)
        kernel = lower(c, externals, s.storage)
        return cost_of(kernel, [10**6] * len(kernel.slots)).flops

    monkeypatch.setattr(split, "_ways", lambda *_: (1, 64))
    in_parts = flops()
    monkeypatch.setattr(split, "_ways", lambda *_: (1, 0))
    behind = {"with more behind": 3 * 20 * 17}.get(
        name, 0
    )  # a sum and relu, which the kernel that adds the parts up does
    assert in_parts == flops() - behind


@pytest.mark.parametrize(("m", "n", "k"), [(384, 384, 16384), (384, 1536, 16384), (384, 384, 16411), (1536, 300, 9000)])
def test_parts_are_whole_steps_and_every_processor_gets_as_many_tiles(m: int, n: int, k: int) -> None:
    part = split._part(1, m, n, k)
    parts = -(-k // part)
    tile = min(tiles.fitting(part), key=lambda t: tiles.tile_time(t, parts, m, n, part))
    assert part % tile.k_step == 0 and (parts - 1) * part < k
    count = tiles.tiles_of(tile, parts, m, n)
    assert count / PROCESSORS > 0.9 * -(-count // PROCESSORS)
