"""Every op of the table, value and gradient, as fused kernels: NumPy and WGSL against the reference."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from all_cases import ALL_CASES
from cases import Case
from tracegrad.ambient import tracing
from tracegrad.dtypes import TensorType, f32
from tracegrad.evaluate import evaluate
from tracegrad.ir import Graph, toposort
from tracegrad.kernels import unroll
from tracegrad.layout import Persistent, overlaps
from tracegrad.places import make_plan
from tracegrad.plan import make_program, optimize
from tracegrad.prims.leaves import leaf
from tracegrad.program import Program
from tracegrad.runtime.cpu import CpuSession
from tracegrad.transforms.grad import gradients

NOTHING = Persistent((), (), {})
COUNTERS = {"seed": np.asarray(7, np.uint32), "step": np.asarray(3, np.uint32)}


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
        return session.collect(session.submit(handle, fields))
    finally:
        session.unload(handle)


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
    program = make_program(graph, NOTHING, {}, {})
    assert_same(case, graph, env, run(CpuSession(), program, env))


@pytest.mark.parametrize("case", ALL_CASES, ids=lambda c: c.name)
def test_short_axes_written_out_change_nothing(case: Case, monkeypatch: pytest.MonkeyPatch) -> None:
    """The table's shapes are too small to be unrolled on their own account."""
    monkeypatch.setattr(unroll, "WORTH", 1)
    monkeypatch.setattr(unroll, "ROWS", 0)
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
    env = inputs_of(graph, case)
    program = make_program(graph, NOTHING, {}, {})
    assert_same(case, graph, env, run(device, program, env))
