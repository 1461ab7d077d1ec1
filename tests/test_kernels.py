"""Every op of the table, value and gradient, as fused kernels: NumPy and WGSL against the reference."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from all_cases import ALL_CASES
from cases import Case
from memory_check import overlaps
from together import by_rows
from tracegrad import tuning
from tracegrad.compiler.layout import Persistent
from tracegrad.compiler.pipeline import make_program, optimize
from tracegrad.compiler.places import make_plan
from tracegrad.dtypes import TensorType, f32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import toposort
from tracegrad.kernel_source import Texts
from tracegrad.kernels import axes, tiles
from tracegrad.kernels.tiles import TileShape
from tracegrad.prims.leaves import leaf
from tracegrad.program import Program
from tracegrad.render.emit import f32_literal
from tracegrad.runtime.cpu import CpuSession
from tracegrad.transforms.walks import gradients

NOTHING = Persistent()
COUNTERS = {"seed": np.asarray(7, np.uint32), "step": np.asarray(3, np.uint32)}


@cache
def graph_of(case: Case) -> Graph:
    """The op's value and, where it has one, the gradient of a weighted sum of it."""
    with tracing():
        leaves = case.leaves()
        y = case.apply(leaves)
        outputs = {"output": y}
        floats = [t for n, t in leaves.items() if n.startswith("x")]
        if case.grad and floats:
            weighted = (y * leaf("input", "ct", TensorType(f32, y.shape))).sum()
            outputs |= {f"grad.{t.name}": g for t, g in zip(floats, gradients(weighted, floats), strict=True)}
    return Graph(outputs)


@cache
def program_of(case: Case) -> Program:
    """Compiled once for all tests of the row."""
    return make_program(graph_of(case), NOTHING, {}, {})


def inputs_of(graph: Graph, case: Case) -> dict[str, Any]:
    """Arrays for the leaves that the graph still has."""
    env = {**COUNTERS, **case.arrays(dtype="float32")}
    env["ct"] = np.random.default_rng(1).standard_normal(graph.outputs["output"].shape).astype(np.float32)
    names = {t.name for t in toposort(graph.roots) if t.prim.name == "leaf"}
    return {n: x for n, x in env.items() if n in names}


def run(session: Any, program: Program, env: dict[str, Any]) -> dict[str, Any]:
    fields = {f.name: env[f.name.removeprefix("hyper.")] for f in program.inputs}
    handle = session.load(program)
    try:
        return session.run(handle, [fields]).outputs()[0]
    finally:
        session.unload(handle)


def with_barriers(program: Program) -> Program:
    """The kernels of a GPU, on any adapter."""
    kernels = [replace(k, texts=Texts(wgsl=k.texts["wgsl"])) for k in program.kernels]
    return replace(program, kernels=tuple(kernels))


def assert_same(case: Case, graph: Graph, env: dict[str, Any], got: dict[str, Any]) -> None:
    """Within the row's f32 tolerance of the reference in float64."""
    double = {n: x.astype(np.float64) if x.dtype == np.float32 else x for n, x in env.items()}
    with np.errstate(all="ignore"):
        want = dict(zip(graph.outputs, evaluate(graph.roots, double, np), strict=True))
    for name, w in want.items():
        w, g = np.asarray(w), got[name]
        assert g.shape == w.shape, name
        if w.dtype.kind != "f":
            np.testing.assert_array_equal(g, w, err_msg=name)
        else:
            scale = max(1.0, float(np.abs(w[np.isfinite(w)]).max(initial=0.0)))
            np.testing.assert_allclose(g, w, rtol=case.f32_tol, atol=case.f32_tol * scale, err_msg=name)


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda c: c.name)
def test_numpy_kernels_match_the_reference(case: Case) -> None:
    graph = graph_of(case)
    env = inputs_of(graph, case)
    assert_same(case, graph, env, run(CpuSession(), program_of(case), env))


@pytest.fixture(scope="module")
def c_session_of() -> Iterator[Callable[[Case], CpuSession]]:
    """The session of a row with kernels in C."""
    with by_rows(ALL_CASES, program_of) as session_of:
        yield session_of


@pytest.mark.filterwarnings("error::RuntimeWarning")  # where C fails, NumPy would do instead
@pytest.mark.parametrize("case", ALL_CASES, ids=lambda c: c.name)
def test_c_kernels_match_the_reference(case: Case, c_session_of: Callable[[Case], CpuSession]) -> None:
    graph = graph_of(case)
    env = inputs_of(graph, case)
    assert_same(case, graph, env, run(c_session_of(case), program_of(case), env))


@pytest.mark.parametrize("columns", [8, 12, 20, 24, 28, 36, 44, 52, 60, 64, 84])
def test_c_columns_of_any_width(columns: int, c_session: CpuSession) -> None:
    """GCC 12 crashed on 20 columns and AVX-512: it cleared 80 bytes of the stack as if they were aligned."""
    with tracing():
        x = leaf("input", "x", TensorType(f32, (columns, 5)))
        program = make_program(Graph({"y": x.sum(-1)}), NOTHING, {}, {})
    env = {"x": np.arange(5 * columns, dtype=np.float32).reshape(columns, 5)}
    np.testing.assert_array_equal(run(c_session, program, env)["y"], env["x"].sum(-1))


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda c: c.name)
def test_short_axes_written_out_change_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table's shapes are too small to be unrolled on their own account."""
    monkeypatch.setattr(axes, "WORTH_UNROLLING", 1)
    monkeypatch.setattr(axes, "UNROLLED_ROWS", 0)
    graph = graph_of(case)
    env = inputs_of(graph, case)
    assert_same(case, graph, env, run(CpuSession(), make_program(graph, NOTHING, {}, {}), env))


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda c: c.name)
def test_no_two_live_values_share_memory(case: Case) -> None:
    plan = make_plan(optimize(graph_of(case)), NOTHING)
    assert not overlaps(plan.places, plan.lifetimes)


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda c: c.name)
def test_wgsl_kernels_match_the_reference(case: Case, device: Any) -> None:
    graph = graph_of(case)
    env, program = inputs_of(graph, case), program_of(case)
    assert_same(case, graph, env, run(device, program, env))
    if device.info.software and program.without_barriers() != program:  # what a GPU runs is another text
        assert_same(case, graph, env, run(device, with_barriers(program), env))


SHAPES = {  # such that rows are folded by 8, 32, 64 and 128 lanes, and edges of squares and tiles are cut
    "short": (lambda x, y: x.sum(1), (300, 31), ()),
    "32": (lambda x, y: x.sum(1), (9, 100), ()),
    "64": (lambda x, y: x.sum(1) + x.max(1), (9, 333), ()),
    "128": (lambda x, y: x.sum(1), (3, 2001), ()),
    "columns": (lambda x, y: x.sum(0), (511, 33), ()),
    "512_columns": (lambda x, y: x.sum(0), (512, 33), ()),
    "long_columns": (lambda x, y: x.sum(0), (1500, 5), ()),
    "softmax": (lambda x, y: tg.softmax(x), (9, 333), ()),
    "whole": (lambda x, y: x * x.sum(), (40, 31), ()),
    "product": (lambda x, y: tg.relu(x @ y), (37, 70), (70, 45)),
    "narrow_product": (lambda x, y: x @ y, (37, 70), (70, 3)),
    "many_products": (lambda x, y: x @ y, (130, 18, 33), (130, 33, 9)),
    "convolution": (lambda x, y: tg.conv2d(x, y, padding=1), (2, 3, 7, 7), (17, 3, 3, 3)),
    "deep_convolution": (lambda x, y: tg.conv2d(x, y, padding=1), (2, 32, 5, 5), (17, 32, 3, 3)),  # k in another order
}


@pytest.mark.parametrize("name", SHAPES)
def test_without_barriers_the_bits_are_the_same(name: str, device: Any) -> None:
    """The order of a sum is fixed by its size, never by the adapter."""
    fn, *shapes = SHAPES[name]
    with tracing():
        leaves = [leaf("input", n, TensorType(f32, s)) for n, s in zip("xy", shapes, strict=True) if s]
        graph = Graph({"output": fn(leaves[0], leaves[-1])})
    rng = np.random.default_rng(0)
    env = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in leaves}
    program = make_program(graph, NOTHING, {}, {})
    if not device.info.software:
        pytest.skip("only software adapters take the kernels without barriers")
    assert name == "short" or any(k.serial_wgsl for k in program.kernels)
    assert "workgroup>" not in "".join(k.wgsl for k in program.without_barriers().kernels)
    got, wanted = (run(device, p, env)["output"] for p in (program, with_barriers(program)))
    np.testing.assert_array_equal(got.view(np.int32), wanted.view(np.int32))


PRIMES = {  # lengths without a divisor, which are split in two steps nevertheless
    "row": (lambda x, y: x.sum(1), (3, 4099), ()),
    "columns": (lambda x, y: x.sum(0), (4099, 5), ()),
    "two axes": (lambda x, y: x.sum((0, 1)), (3, 4099, 5), ()),
    "i32": (lambda x, y: tg.floor(x).astype(tg.i32).sum(1), (3, 4099), ()),
    "product": (lambda x, y: x @ y, (20, 4099), (4099, 17)),
    "products": (lambda x, y: x @ y, (2, 20, 4099), (2, 4099, 17)),
}


@pytest.mark.parametrize("name", PRIMES)
def test_prime_lengths_are_split(name: str, device: Any, c_session: CpuSession) -> None:
    fn, *shapes = PRIMES[name]
    with tracing():
        leaves = [leaf("input", n, TensorType(f32, s)) for n, s in zip("xy", shapes, strict=True) if s]
        graph = Graph({"output": fn(leaves[0], leaves[-1])})
    program = make_program(graph, NOTHING, {}, {})
    assert len(program.dispatches) > 1
    rng = np.random.default_rng(0)
    env = {t.name: rng.standard_normal(t.shape).astype(np.float32) for t in leaves}
    (want,) = evaluate(graph.roots, {n: x.astype(np.float64) for n, x in env.items()}, np)
    for session in (CpuSession(), c_session, device):
        got = run(session, program, env)["output"]
        # a sum of 4 099 numbers in two steps of 64: at most 2 * 64 roundings of sums that are about 64 large
        np.testing.assert_allclose(got, want, atol=128 * 2**-24 * 128)
    if device.info.software:
        got = run(device, with_barriers(program), env)["output"]
        np.testing.assert_allclose(got, want, atol=128 * 2**-24 * 128)


@pytest.mark.parametrize(("edge", "transposed"), [(0, ""), (4, "xy"), (5, "")], ids=["whole", "vectors", "elements"])
@pytest.mark.parametrize("tile", tiles.TILES, ids=lambda t: f"{t.rows}x{t.columns}")
def test_every_tile_multiplies(
    tile: TileShape, edge: int, transposed: str, device: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also the large ones, which shapes of the table never choose; tiles, then squares in their order.

    Operands come by vectors along rows, along k, or by elements where they are no multiples of four.
    """
    monkeypatch.setattr(tiles, "TILES", {tile: tiles.TILES[tile]})
    m, k, n = tile.rows + edge, 3 * tile.k_step + edge, 2 * tile.columns - edge
    rng = np.random.default_rng(0)
    env = {x: rng.standard_normal(s).astype(np.float32) for x, s in (("x", (m, k)), ("y", (k, n)), ("z", (m, n)))}
    given = {name: np.ascontiguousarray(v.T) if name in transposed else v for name, v in env.items()}
    with tracing():
        leaves = {name: leaf("input", name, TensorType(f32, v.shape)) for name, v in given.items()}
        x, y, z = (t.swapaxes(0, 1) if name in transposed else t for name, t in leaves.items())
        graph = Graph({"output": tg.relu((x * 0.5) @ y + z)})  # an operand that is computed, one that is loaded
    program = make_program(graph, NOTHING, {}, {})
    product = next(k.wgsl for k in program.kernels if "matmul" in k.label)
    assert ("array<vec4<f32>>" in product) == (edge != 5)
    got = run(device, with_barriers(program), given)["output"]
    x64, y64, z64 = (v.astype(np.float64) for v in env.values())
    np.testing.assert_allclose(got, np.maximum(x64 * 0.5 @ y64 + z64, 0), rtol=0, atol=1e-5 * k)
    np.testing.assert_array_equal(run(device, program, given)["output"].view(np.int32), got.view(np.int32))


def test_points_side_by_side(device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Several points a thread, the last of them beyond the end."""
    monkeypatch.setattr(tuning, "MANY_POINTS", 1)
    env = {"x": np.linspace(-1, 1, 1300, dtype=np.float32)}
    with tracing():
        x = leaf("input", "x", TensorType(f32, (1300,)))
        graph = Graph({"output": tg.where(x > 0, x * 2 + 1, -x)})
    program = make_program(graph, NOTHING, {}, {})
    assert "e_3" in program.kernels[0].wgsl
    got = run(device, with_barriers(program), env)["output"]
    np.testing.assert_array_equal(got, np.where(env["x"] > 0, env["x"] * 2 + 1, -env["x"]))


@pytest.mark.parametrize("size", [1100, 1280, 5000])
def test_points_side_by_side_behind_a_fold(size: int, device: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread computes several points at a time, in several turns, with the norm of other values."""
    monkeypatch.setattr(tuning, "UNIFORM_GROUPS", 2)
    with tracing():
        x, g = leaf("input", "x", TensorType(f32, (size,))), leaf("input", "g", TensorType(f32, (300,)))
        program = make_program(Graph({"y": x / tg.sqrt((g * g).sum()) + x[::-1]}), NOTHING, {}, {})
    texts = [k.wgsl for k in program.kernels]
    assert any("turn" in text and "e_3" in text for text in texts), texts
    env = {n: np.random.default_rng(size).standard_normal(k).astype(np.float32) for n, k in (("x", size), ("g", 300))}
    want = env["x"] / np.linalg.norm(env["g"].astype(np.float64)) + env["x"][::-1]
    few, got = (run(device, p, env)["y"] for p in (program, with_barriers(program)))
    np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(few, got)


@pytest.mark.parametrize("x", [1.0, -1.0])
def test_the_largest_number_is_written_as_no_more_than_it_is(x: float) -> None:
    """Browsers refuse a literal above the largest f32; nine digits of it are one."""
    largest = float(np.finfo(np.float32).max)
    assert float(f32_literal(x * largest).strip("()f")) == x * largest
