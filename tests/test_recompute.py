"""Large elementwise values are computed again in the backward pass: the same numbers, in less memory."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from memory_check import check_memory, planned_training
from models import BUDGET, SMALL, Training, build_training, gpt
from test_kernels import NOTHING, run
from tracegrad import optim
from tracegrad.compiler.inputtypes import concrete_type
from tracegrad.compiler.pipeline import make_program, optimize, rounded
from tracegrad.dtypes import TensorType, f32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.passes import recompute
from tracegrad.prims.leaves import leaf
from tracegrad.runtime.cpu import CpuSession
from tracegrad.transforms.walks import gradients

GPT = gpt(batch=2, vocabulary=11, context=8, width=8, layers=2, p=0.1)
TRAININGS = (*SMALL, GPT)


def temporaries(t: Training) -> int:
    return sum(b.size for b in t.build().program.buffers if b.role == "temp")


def trained(t: Training, steps: int = 3) -> tuple[list[float], dict[str, Any]]:
    """Losses and parameters of a few steps on the CPU."""
    rng = np.random.default_rng(0)
    arguments = t.arguments()
    types = {n: concrete_type(n, spec) for n, spec in arguments["inputs"].items()}
    with tg.compile(**arguments, seed=0, device="cpu") as train:
        losses = []
        for _ in range(steps):
            batch = {n: rng.uniform(0, 5, x.shape).astype(x.dtype.numpy) for n, x in types.items()}
            losses.append(train.step(batch).loss)
        return losses, train.download_params()


@pytest.mark.parametrize("t", TRAININGS, ids=repr)
def test_the_numbers_are_the_same(t: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = trained(t)
    monkeypatch.setattr(recompute, "RECOMPUTE_FROM", 1)
    again = trained(t)
    np.testing.assert_allclose(again[0], kept[0], rtol=1e-6)
    for name, x in kept[1].items():
        np.testing.assert_allclose(again[1][name], x, rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("t", TRAININGS, ids=repr)
def test_no_dispatch_computes_with_the_wrong_memory(t: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompute, "RECOMPUTE_FROM", 1)
    arguments = t.arguments()
    check_memory(planned_training(arguments, build_training(**arguments)))


@pytest.mark.parametrize("form", ["none", "tanh"])
def test_a_gpt_keeps_what_goes_into_its_gelus_only(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tg, "gelu", functools.partial(tg.gelu, approximate=form))
    large = BUDGET["gpt"][0]
    less = temporaries(large)
    monkeypatch.setattr(recompute, "RECOMPUTE_FROM", 2**62)
    kept = temporaries(large)
    hidden = 4 * 32 * 64 * 512  # elements of the widest values of all four layers
    assert kept - less > 1.5 * hidden


class One(tg.Module):
    """A hidden layer, of which only products are made."""

    def __init__(self) -> None:
        self.w, self.v = self.param((8, 1024)), self.param((1024, 8))


def test_what_would_keep_something_else_alive_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tanh(x w) its result is kept: its gradient reads that, and nothing reads x w."""
    monkeypatch.setattr(recompute, "RECOMPUTE_FROM", 1)

    def loss(m: One, x: tg.Tensor) -> tg.Tensor:
        return tg.mean(tg.square(tg.tanh(x @ m.w) @ m.v))

    program = build_training(One(), loss, {"x": (5, 8)}, optim.sgd(lr=0.1)).program
    assert sum("tanh" in program.kernels[d.kernel].label for d in program.dispatches) == 1


SHAPES = {"x": (8, 12), "w": (12, 12), "r": (8, 12), "g": (1, 12)}
BLOCKS: list[Callable[[Tensor, Tensor, Tensor, Tensor], Tensor]] = [
    lambda a, b, w, g: a @ w,
    lambda a, b, w, g: tg.gelu(a),
    lambda a, b, w, g: tg.layer_norm(a, g[0], g[0]),
    lambda a, b, w, g: tg.rms_norm(a) * b,
    lambda a, b, w, g: tg.softmax(a) + b,
    lambda a, b, w, g: tg.silu(a) * g,
    lambda a, b, w, g: a + a.max(1, keepdims=True) * 0.3,
    lambda a, b, w, g: tg.concat([a[:, 6:], b[:, :6]], axis=1),
    lambda a, b, w, g: tg.where(a > b, a, b * 0.5),
    lambda a, b, w, g: (a @ b.T) @ tg.flip(b, 0) * 0.1,
    lambda a, b, w, g: tg.gelu(a + g, approximate="tanh") - b.mean(0, keepdims=True),
]


def random_model(seed: int) -> Graph:
    """A loss of some blocks in a row, each of two recent values, and its gradients."""
    rng = np.random.default_rng(seed)
    with tracing():
        leaves = [leaf("input", name, TensorType(f32, shape)) for name, shape in SHAPES.items()]
        x, w, r, g = leaves
        values = [x, r, x * g]
        for k in rng.integers(len(BLOCKS), size=rng.integers(4, 12)):
            a, b = (values[-i] for i in rng.integers(1, 4, size=2))
            values.append(BLOCKS[k](a, b, w, g))
        loss = tg.mean(tg.square(values[-1])) + tg.mean(values[-2] * values[-3])
        return Graph({"loss": loss, **dict(zip(SHAPES, gradients(loss, leaves), strict=True))}, precision="f16")


@pytest.mark.parametrize("runtime", ["numpy", "c", "wgsl"])
def test_halves_that_are_computed_again_are_those_of_the_reference(
    runtime: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which rounds where kernels store, so that all but the last digits of f32 must agree."""
    monkeypatch.setattr(recompute, "RECOMPUTE_FROM", 1)
    session: Any = CpuSession()
    if runtime != "numpy":
        session = request.getfixturevalue({"c": "c_session", "wgsl": "device"}[runtime])
    again = 0
    for seed in range(40 if runtime == "numpy" else 8):
        graph, rng = random_model(seed), np.random.default_rng(seed)
        env = {name: (0.5 * rng.standard_normal(shape)).astype(np.float32) for name, shape in SHAPES.items()}
        again += any(t.prim.name == "barrier" for t in optimize(graph).order)
        got = run(session, make_program(graph, NOTHING, {}, {}), env)
        for name, want in zip(graph.outputs, evaluate(rounded(graph).roots, env, np), strict=True):
            size = max(1e-3, float(np.abs(want).max()))
            np.testing.assert_allclose(got[name], want, rtol=0, atol=size * 1e-3, err_msg=f"{seed} {name}")
    assert again > 5


def test_what_several_products_read_is_computed_again_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As the input of q, k and v, whose weights' gradients wait for different values."""
    monkeypatch.setattr(recompute, "RECOMPUTE_FROM", 1)
    with tracing():
        leaves = [leaf("input", name, TensorType(f32, shape)) for name, shape in {**SHAPES, "v": (12, 12)}.items()]
        x, w, r, _, v = leaves
        h = x + tg.sin(x * 3.0) * r
        y = (tg.tanh(h @ w) @ w) * (tg.tanh(h @ v) @ v)
        loss = tg.mean(tg.square(y)) + tg.mean(tg.square(x))
        graph = optimize(Graph({"loss": loss, **dict(zip("wvx", gradients(loss, [w, v, x]), strict=True))})).graph
    assert sum(t.prim.name == "sin" for t in graph.nodes) == 2
