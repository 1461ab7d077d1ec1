"""What masks of coordinates hide is left out of products and not loaded, and nothing that was left out is read."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from browser import browser, open_page, served, shader_messages
from memory_check import check_memory, planned
from test_kernels import NOTHING, run, with_barriers
from tracegrad.compiler.pipeline import make_program, optimize
from tracegrad.compiler.places import make_plan
from tracegrad.dtypes import TensorType, f32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor, toposort
from tracegrad.kernels import tiles
from tracegrad.kernels.costs import cost_of
from tracegrad.kernels.form import Limit
from tracegrad.kernels.fuse import Schedule
from tracegrad.kernels.tiles import TileShape
from tracegrad.kernels.triangles import Triangles
from tracegrad.prims.leaves import iota, leaf
from tracegrad.program import Program
from tracegrad.runtime.cpu import CpuSession
from tracegrad.transforms.walks import gradients

__all__ = ["browser", "served"]  # fixtures

SHAPES = [(40, 16), (72, 64), (130, 16)]


def traced(f: Callable[..., Tensor], *shapes: tuple[int, ...], **more: Any) -> Graph:
    """`f` of inputs called x0, x1 and so on."""
    with tracing():
        xs = [leaf("input", f"x{k}", TensorType(f32, shape)) for k, shape in enumerate(shapes)]
        return Graph({"y": f(*xs)}, **more)


def attention(t: int, d: int, heads: int = 2, precision: str = "f32", by: str = "qkv") -> tuple[Graph, dict[str, Any]]:
    """Causal attention and its gradients by some of its inputs."""
    rng = np.random.default_rng(t + d)
    env = {n: rng.standard_normal((heads, t, d)).astype(np.float32) for n in ("q", "k", "v", "ct")}
    with tracing():
        q, k, v, ct = (leaf("input", n, TensorType(f32, x.shape)) for n, x in env.items())
        y = tg.attention(q, k, v, causal=True)
        grads = gradients((y * ct).sum(), [{"q": q, "k": k, "v": v}[n] for n in by])
        outputs = {"y": y, **{f"d{n}": g for n, g in zip(by, grads, strict=True)}}
    return Graph(outputs, precision=precision), env


def reference(graph: Graph, env: dict[str, Any]) -> dict[str, Any]:
    double = {n: x.astype(np.float64) for n, x in env.items()}
    return dict(zip(graph.outputs, evaluate(graph.roots, double, np), strict=True))


def assert_near(got: dict[str, Any], graph: Graph, env: dict[str, Any]) -> None:
    for name, want in reference(graph, env).items():
        np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=2e-5, err_msg=name)


def poisoned(session: Any, program: Program, env: dict[str, Any]) -> tuple[dict[str, Any], int]:
    """The results where all temporary memory was NaN before, and how many elements of it still are."""
    temporary = {k: f"poisoned{id(program)}.{b.name}" for k, b in enumerate(program.buffers) if b.role == "temp"}
    buffers = [replace(b, role="state", name=temporary.get(k, b.name)) for k, b in enumerate(program.buffers)]
    chosen = tuple(buffers[k] if k in temporary else b for k, b in enumerate(program.buffers))
    handle = session.load(replace(program, buffers=chosen))
    try:
        for k, name in temporary.items():
            poison = np.int32(-(2**31)) if buffers[k].dtype == "i32" else np.float32(np.nan)
            session.write(name, np.full(buffers[k].size, poison))
        got = session.run(handle, [env]).outputs()[0]
        return got, sum(int(np.isnan(session.read(name)).sum()) for name in temporary.values())
    finally:
        session.unload(handle)


@pytest.mark.parametrize(("t", "d"), SHAPES)
def test_what_is_left_out_is_not_read(t: int, d: int, device: Any) -> None:
    graph, env = attention(t, d)
    program = make_program(graph, NOTHING, {}, {})
    for chosen in (program, with_barriers(program)):
        got, left = poisoned(device, chosen, env)
        assert_near(got, graph, env)
        assert left > 0  # results that are never read are not written


@pytest.mark.parametrize(("t", "d"), SHAPES)
def test_nor_on_the_cpu(t: int, d: int, c_session: CpuSession) -> None:
    graph, env = attention(t, d)
    program = make_program(graph, NOTHING, {}, {})
    in_c, left = poisoned(c_session, program, env)
    assert_near(in_c, graph, env)
    assert left > 0 or t <= 56  # a block of rows
    assert_near(poisoned(CpuSession(), program, env)[0], graph, env)


TILES = [(tile, "f32") for tile in tiles.TILES] + [(tile, "f16") for tile in list(tiles.TILES)[2:4]]


@pytest.mark.parametrize(
    ("tile", "precision"), TILES, ids=lambda x: x if isinstance(x, str) else f"{x.rows}x{x.columns}"
)
def test_in_every_tile_the_bits_are_those_of_all_terms(
    tile: TileShape, precision: str, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exact zero changes no sum, so leaving it out does not either, wherever tiles begin and end.

    One product for each way to leave terms out, because an adapter in software compiles a tile for a second.
    """
    monkeypatch.setattr(tiles, "TILES", {tile: tiles.TILES[tile]})
    graph, env = attention(134, 20, heads=1, precision=precision, by="v")
    assert sorted(map(str, limits(graph))) == sorted(map(str, [(N_M,), (K_M,), (M_K,)]))
    few = run(device, with_barriers(make_program(graph, NOTHING, {}, {})), env)
    monkeypatch.setattr(Triangles, "left_out", lambda *_: ())
    for name, want in run(device, with_barriers(make_program(graph, NOTHING, {}, {})), env).items():
        np.testing.assert_array_equal(few[name].view(np.int32), want.view(np.int32), err_msg=name)


def test_the_bits_in_c_are_those_of_all_terms(c_session: CpuSession, monkeypatch: pytest.MonkeyPatch) -> None:
    graph, env = attention(134, 20)
    few = run(c_session, make_program(graph, NOTHING, {}, {}), env)
    monkeypatch.setattr(Triangles, "left_out", lambda *_: ())
    for name, want in run(c_session, make_program(graph, NOTHING, {}, {}), env).items():
        np.testing.assert_array_equal(few[name].view(np.int32), want.view(np.int32), err_msg=name)


# --- which products have limits ---

T = 40
ROWS, SQUARE = (2, T, 8), (2, T, T)
N_M, K_M, M_K, K_N, N_K, M_N = (Limit(*pair) for pair in ("nm", "km", "mk", "kn", "nk", "mn"))


def limits(graph: Graph) -> list[tuple[Limit, ...]]:
    return [c.limits for c in Schedule(optimize(graph)).clusters if c.kind == "product"]


def test_of_causal_attention() -> None:
    graph, _ = attention(T, 8)
    found = limits(graph)
    assert sorted(map(str, found)) == sorted(map(str, [(N_M,), (N_M,), (K_M,), (K_M,), (M_K,), (M_K,)]))
    check_memory(planned(graph))


def later(x: Tensor) -> Tensor:
    """A mask: is the column behind the row?"""
    return iota(x.shape, x.ndim - 2) < iota(x.shape, x.ndim - 1)


def narrow(x: Tensor) -> Tensor:
    """The mask of one matrix, for a stack of them."""
    t = x.shape[-1]
    return tg.broadcast_to((iota((t, t), 1) <= iota((t, t), 0)).reshape((1, t, t)), x.shape)


ZEROS: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], tuple[Limit, ...]]] = {
    "mask": (lambda p, v: tg.where_causal(p, 0.0) @ v, (K_M,)),
    "turned": (lambda p, v: tg.where_causal(p, 0.0).swapaxes(-1, -2) @ v, (M_K,)),
    "on the right": (lambda p, v: v.swapaxes(-1, -2) @ tg.where_causal(p, 0.0), (N_K,)),
    "turned on the right": (lambda p, v: v.swapaxes(-1, -2) @ tg.where_causal(p, 0.0).swapaxes(-1, -2), (K_N,)),
    "the other side": (lambda p, v: tg.where(later(p), 0.0, p) @ v, (K_M,)),
    "the upper half": (lambda p, v: tg.where(later(p), p, 0.0) @ v, (M_K,)),
    "not": (lambda p, v: tg.where(~later(p), p, 0.0) @ v, (K_M,)),
    "and": (lambda p, v: tg.where(narrow(p) & (p > 0), p, 0.0) @ v, (K_M,)),
    "or": (lambda p, v: tg.where(narrow(p) | (p > 0), p, 0.0) @ v, ()),
    "one mask for all": (lambda p, v: tg.where(narrow(p), p, 0.0) @ v, (K_M,)),
    "scaled": (lambda p, v: -(tg.where_causal(p, 0.0) * 3.0) @ v, (K_M,)),
    "masked twice": (lambda p, v: tg.where(p > 0, tg.where_causal(p, 0.0), 0.0) @ v, (K_M,)),
    "sum": (lambda p, v: (tg.where_causal(p, 0.0) + tg.where_causal(p * p, 0.0)) @ v, (K_M,)),
    "regrouped": (
        lambda p, v: tg.where_causal(p, 0.0).reshape((1, 2, T, T)).reshape(SQUARE) @ v,
        (K_M,),
    ),
    "times infinity": (lambda p, v: (tg.where_causal(p, 0.0) * float("inf")) @ v, ()),
    "times what may be infinite": (lambda p, v: (tg.where_causal(p, 0.0) * p) @ v, ()),
    "divided by what may be zero": (lambda p, v: (tg.where_causal(p, 0.0) / p) @ v, ()),
    "one beyond": (lambda p, v: (tg.where_causal(p, 0.0) + 1.0) @ v, ()),
    "another number": (lambda p, v: tg.where_causal(p, 1e-30) @ v, ()),
    "moved": (lambda p, v: tg.where_causal(p, 0.0)[:, :, ::-1] @ v, ()),
}


@pytest.mark.parametrize("name", ZEROS)
def test_of_zeros(name: str, c_session: CpuSession) -> None:
    f, want = ZEROS[name]
    graph = traced(lambda p, v: f(p, v) * 1.0, SQUARE, ROWS)
    assert limits(graph) == [want]
    rng = np.random.default_rng(0)
    env = {f"x{k}": rng.standard_normal(shape).astype(np.float32) for k, shape in enumerate((SQUARE, ROWS))}
    if "infinity" not in name and "infinite" not in name and "zero" not in name:
        assert_near(run(c_session, make_program(graph, NOTHING, {}, {}), env), graph, env)


def test_of_what_is_read_elsewhere() -> None:
    """Nothing is left out where it is delivered, or where anybody reads it without the mask."""

    def scores(q: Tensor, k: Tensor) -> Tensor:
        return q @ k.swapaxes(-1, -2)

    hidden = traced(lambda q, k: tg.softmax_causal(scores(q, k)), ROWS, ROWS)
    assert limits(hidden) == [(N_M,)]
    upper = traced(lambda q, k: tg.softmax_causal(scores(q, k).swapaxes(-1, -2)), ROWS, ROWS)
    assert limits(upper) == [(M_N,)]
    summed = traced(lambda q, k: tg.softmax_causal(scores(q, k)) + scores(q, k).sum(-1, keepdims=True), ROWS, ROWS)
    assert limits(summed) == [()]
    with tracing():
        q, k = (leaf("input", n, TensorType(f32, ROWS)) for n in "qk")
        s = scores(q, k)
        delivered = Graph({"scores": s, "y": tg.softmax_causal(s)})
    assert limits(delivered) == [()]
    stored = traced(lambda q, k: tg.where_causal(scores(q, k), -1.0), ROWS, ROWS)  # by the product's own kernel
    assert limits(stored) == [()]


def test_half_of_the_work_counts() -> None:
    """Of t rows and columns (t + 1) / 2t are left."""
    plan = make_plan(optimize(attention(T, 8)[0]), NOTHING)
    products = [c for _, launch in plan.dispatched() for c in launch.clusters if c.kind == "product"]
    costs = {id(c): cost_of(c, plan.externals[id(c)], plan.storage) for c in products}
    assert {cost.flops for cost in costs.values()} == {2 * 2 * 8 * T * (T + 1) // 2}
    scores = next(c for c in products if c.limits == (N_M,))
    assert costs[id(scores)].written == 4 * 2 * T * (T + 1) // 2


@pytest.mark.parametrize("pairs", [["nm"], ["mn"], ["km"], ["mk"], ["kn", "nm"], ["nk", "mn"], ["km", "nk"]])
def test_tiles_that_are_left_are_counted(pairs: list[str]) -> None:
    tile, chosen = TileShape(32, 64, 8, 4, 32), [Limit(*pair) for pair in pairs]
    for m, n, k in [(200, 200, 200), (33, 130, 70), (300, 65, 40)]:
        count = total = 0
        for i in range(0, m, tile.rows):
            for j in range(0, n, tile.columns):
                first, end = {"m": i, "n": j, "k": 0}, {"m": i + tile.rows, "n": j + tile.columns, "k": k}
                if all(first[x.low] < end[x.high] for x in chosen):
                    begin = max([first[x.low] // 32 * 32 for x in chosen if x.high == "k"], default=0)
                    count += 1
                    total += max(0, min([k, *(end[x.high] for x in chosen if x.low == "k")]) - begin)
        assert tiles._left(tile, m, n, k, chosen) == (count, total // count)


def random_graph(seed: int, side: int = 24) -> tuple[Graph, dict[str, Any]]:
    """Masks, products, what lies between them, and gradients, in any order."""
    r, rng, shape = random.Random(seed), np.random.default_rng(seed), (2, side, side)
    env = {f"x{k}": rng.standard_normal(shape).astype(np.float32) * np.float32(0.3) for k in range(3)}
    with tracing():
        values = xs = [leaf("input", n, TensorType(f32, shape)) for n in env]
        for _ in range(r.randint(5, 9)):
            a, b = r.choice(values), r.choice(values)
            ops: list[Callable[[], Tensor]] = [
                lambda a=a: tg.where_causal(a, 0.0),
                lambda a=a: tg.softmax_causal(a),
                lambda a=a, b=b: tg.where(later(a), a, b),
                lambda a=a: a.swapaxes(1, 2),
                lambda a=a: a * -0.5,
                lambda a=a, b=b: a + b,
                lambda a=a, b=b: a @ b,
                lambda a=a, b=b: a @ b,
            ]
            values = [*values, r.choice(ops)()]
        y = values[-1] @ values[-2]
        loss = tg.where_causal(y, 0.0).sum(keepdims=True) if r.random() < 0.5 else (y * y).mean(keepdims=True)
        found = {f"g{k}": g for k, g in enumerate(gradients(loss.reshape(()), xs)) if g is not None}
        graph = Graph({"loss": loss, "y": tg.softmax_causal(y), **found})
    names = {t.name for t in toposort(graph.roots) if t.prim.name == "leaf"}
    return graph, {n: x for n, x in env.items() if n in names}


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 4, 5])
def test_random_graphs(seed: int, device: Any, c_session: CpuSession) -> None:
    graph, env = random_graph(seed)
    assert any(limits(graph))
    program = make_program(graph, NOTHING, {}, {})
    for session, chosen in ((device, program), (device, with_barriers(program)), (c_session, program)):
        got, _ = poisoned(session, chosen, env)
        for name, want in reference(graph, env).items():
            scale = max(1.0, float(np.abs(want).max()))
            np.testing.assert_allclose(got[name], want, rtol=1e-4, atol=1e-5 * scale, err_msg=name)


# --- row kernels ---

MASKED: dict[str, Callable[[Tensor], Tensor]] = {
    "below": lambda x: tg.where(iota(x.shape, 2) <= iota(x.shape, 1), x, -1.0),
    "strictly": lambda x: tg.where(iota(x.shape, 2) < iota(x.shape, 1), x, -1.0),
    "both sides": lambda x: tg.where(iota(x.shape, 2) < iota(x.shape, 1), x * 2.0, x.swapaxes(1, 2) + 1.0),
    "nested": lambda x: tg.where(
        iota(x.shape, 2) <= iota(x.shape, 1), tg.where(iota(x.shape, 0) < iota(x.shape, 2), x, 2.0), -1.0
    ),
    "padded": lambda x: tg.where(
        iota(x.shape, 2) <= iota(x.shape, 1), tg.pad(x[:, 3:], ((0, 0), (3, 0), (0, 0))), -1.0
    ),
    "read anyway": lambda x: tg.where(iota(x.shape, 2) <= iota(x.shape, 1), x, -1.0) + x,
    "read on both sides": lambda x: tg.where(iota(x.shape, 2) <= iota(x.shape, 1), x * 2.0, x + 1.0),
}


@pytest.mark.parametrize("name", MASKED)
def test_loads_behind_a_mask(name: str, device: Any) -> None:
    graph = traced(lambda x: (m := MASKED[name](x)).sum(-1, keepdims=True) + m, SQUARE)
    env = {"x0": np.random.default_rng(0).standard_normal(SQUARE).astype(np.float32)}
    program = make_program(graph, NOTHING, {}, {})
    for chosen in (program, with_barriers(program)):
        assert_near(run(device, chosen, env), graph, env)


# --- semantics ---


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("which", ["k", "v"])
def test_the_far_future_is_not_even_multiplied_by_zero(
    which: str, value: float, device: Any, c_session: CpuSession
) -> None:
    graph, env = attention(200, 16)
    program = make_program(graph, NOTHING, {}, {})
    spoiled = {**env, which: env[which].copy()}
    spoiled[which][:, 190:] = value
    for session, chosen in ((device, program), (device, with_barriers(program)), (c_session, program)):
        clean, got = (run(session, chosen, x)["y"] for x in (env, spoiled))
        np.testing.assert_array_equal(got[:, :64], clean[:, :64])
        assert not np.isfinite(got[:, 190:]).all()


def test_browsers_accept_the_shaders(browser: Any, served: tuple[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """That only whole workgroups leave is shown by a stricter analysis there."""
    texts: list[str] = []
    for tile, busy in list(tiles.TILES.items()):
        monkeypatch.setattr(tiles, "TILES", {tile: busy})
        for k in make_program(attention(134, 20)[0], NOTHING, {}, {}).kernels:
            texts += [k.wgsl, k.serial_wgsl or k.wgsl]
    assert sum("workgroupBarrier" in text and "first_n >= first_m" in text for text in texts) >= len(tiles.TILES)
    assert shader_messages(open_page(browser, f"{served[0]}/blank.html"), texts) == []
