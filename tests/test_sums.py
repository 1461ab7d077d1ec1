"""Sums of products, such as the gradient of the input of q, k and v: the same numbers on every runtime."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from memory_check import check_memory, planned, planned_training
from models import BUDGET, SMALL, Training, adamw, build_training, gpt
from test_kernels import NOTHING, with_barriers
from tracegrad import nn
from tracegrad.compiler.layout import Persistent
from tracegrad.compiler.pipeline import make_program
from tracegrad.dtypes import TensorType, f32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import toposort
from tracegrad.prims.leaves import leaf
from tracegrad.program import Buffer, Field, Program
from tracegrad.runtime.cpu import CpuSession
from tracegrad.transforms.walks import gradients

Function = Callable[..., Any]
M, K, N = 24, 16, 20
WEIGHTS = "wvu"


def graph_of(fn: Function, *shapes: tuple[int, ...], precision: str = "f32") -> Graph:
    """A tuple of results is one output each. Arguments called w, v or u are parameters."""
    given = dict(zip(inspect.signature(fn).parameters, shapes, strict=True))
    with tracing():
        found = fn(*[leaf("param" if n in WEIGHTS else "input", n, TensorType(f32, s)) for n, s in given.items()])
    results = found if isinstance(found, tuple) else (found,)
    return Graph({f"y{k}": t for k, t in enumerate(results)}, precision=precision)


def persistent(graph: Graph) -> Persistent:
    """The array of parameters."""
    types = {t.name: t.type for t in graph.params}
    starts = accumulate([t.size for t in types.values()], initial=0)
    fields = tuple(Field(n, 0, at, "f32", t.shape) for (n, t), at in zip(types.items(), starts))
    buffers = (Buffer("params", "f32", sum(t.size for t in types.values()), "param"),)
    return Persistent(buffers, fields) if types else NOTHING


def compiled(graph: Graph) -> Program:
    return make_program(graph, persistent(graph), {}, {})


def run(session: Any, program: Program, env: dict[str, Any]) -> dict[str, Any]:
    handle = session.load(program)
    try:
        for b in program.buffers[: bool(program.params)]:
            ordered = sorted(program.params, key=lambda f: f.offset)
            session.write(b.name, np.concatenate([env[f.name].reshape(-1) for f in ordered]))
        return session.run(handle, [{f.name: env[f.name] for f in program.inputs}]).outputs()[0]
    finally:
        session.unload(handle)


def two(x: tg.Tensor) -> tuple[tg.Tensor, tg.Tensor]:
    """Two values that lie in memory of their own: to compute them where a product reads them would cost more."""
    return tg.exp(tg.sin(x)), tg.exp(tg.cos(x))


def weights_at_the_right(x: tg.Tensor, w: tg.Tensor, v: tg.Tensor) -> tg.Tensor:
    a, b = two(x)
    return a @ w + b @ v


def weights_at_the_left(x: tg.Tensor, w: tg.Tensor, v: tg.Tensor) -> tg.Tensor:
    a, b = two(x)
    return w @ a + v @ b


def computed(x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    (a, b), (c, d) = two(x), two(y)
    return a @ c + b @ d


def transposed_weights(x: tg.Tensor, w: tg.Tensor, v: tg.Tensor) -> tg.Tensor:
    a, b = two(x)
    return a @ w.transpose() + b @ v.transpose()


def heads(x: tg.Tensor, w: tg.Tensor, v: tg.Tensor) -> tg.Tensor:
    """What is stored has heads before positions."""
    a, b = (tg.merge_heads(t) for t in two(x))
    return a.reshape((24, 16)) @ w + b.reshape((24, 16)) @ v


def other_shapes(x: tg.Tensor, y: tg.Tensor, w: tg.Tensor, v: tg.Tensor) -> tg.Tensor:
    """One operand is stored in another shape, which is the same memory."""
    return tg.exp(tg.sin(x)) @ w + tg.exp(tg.sin(y)).reshape(x.shape) @ v


def more_terms(x: tg.Tensor, w: tg.Tensor, v: tg.Tensor, b: tg.Tensor, z: tg.Tensor) -> tg.Tensor:
    """Of three products one has another k; a bias and a residual stand between."""
    a, c = two(x)
    return tg.exp(tg.relu((a @ w + b) + (z @ z.transpose()[:, :20] + c @ v) + 1.0) - 2.0)


def in_the_middle(x: tg.Tensor, w: tg.Tensor, v: tg.Tensor, u: tg.Tensor) -> tuple[tg.Tensor, tg.Tensor]:
    """The sum of two is wanted by itself too: the third stays."""
    a, b = two(x)
    part = a @ w + b @ v
    return part, part + tg.exp(tg.sin(x + 1)) @ u


def batched(x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    (a, b), (c, d) = two(x), two(y)
    return a @ c + b @ d


def of_a_matrix_used_often(x: tg.Tensor, w: tg.Tensor) -> tg.Tensor:
    h = x
    for _ in range(3):
        h = tg.tanh(tg.exp(tg.sin(h)) @ w)
    return gradients(h.sum(), [w])[0]


def in_a_scan(x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    def step(h: tg.Tensor, x: tg.Tensor) -> tuple[tg.Tensor, tg.Tensor]:
        h = tg.tanh(computed(h + x, y + h[:16]))
        return h, h * 2.0

    last, each = tg.scan(step, tg.zeros((24, 16)), x)
    return last + each.sum(0)


def other_order(x: tg.Tensor, w: tg.Tensor, v: tg.Tensor, u: tg.Tensor) -> tg.Tensor:
    a, b = two(x)
    return a @ v + (b @ u + tg.exp(tg.sin(x + 1)) @ w)


def with_one_between(x: tg.Tensor, w: tg.Tensor, v: tg.Tensor, u: tg.Tensor) -> tg.Tensor:
    a, b = two(x)
    return a @ w + b @ u + tg.sum(v)


SUMS: dict[str, tuple[Function, tuple[tuple[int, ...], ...]]] = {
    "weights at the right": (weights_at_the_right, ((M, K), (K, N), (K, N))),
    "weights at the left": (weights_at_the_left, ((K, N), (M, K), (M, K))),
    "weights, transposed": (transposed_weights, ((M, K), (N, K), (N, K))),
    "both computed": (computed, ((M, K), (K, N))),
    "no whole vectors": (computed, ((9, 11), (11, 13))),
    "many steps of k": (computed, ((70, 96), (96, 40))),
    "a long k": (computed, ((16, 3000), (3000, 16))),
    "heads": (heads, ((2, 4, 12, 4), (16, N), (16, N))),
    "other shapes": (other_shapes, ((M, K), (2, M // 2, K), (K, N), (K, N))),
    "more terms": (more_terms, ((24, 16), (16, 20), (16, 20), (20,), (24, 7))),
    "in the middle": (in_the_middle, ((M, K), (K, N), (K, N), (K, N))),
    "batched": (batched, ((3, 2, M, K), (3, 2, K, N))),
    "in a scan": (in_a_scan, ((5, 24, 16), (16, 16))),
    "parameters in another order": (other_order, ((M, K), (K, N), (K, N), (K, N))),
}


def values_of(graph: Graph) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    leaves = [t for t in toposort(graph.roots) if t.prim.name == "leaf"]
    return {str(t.attrs["name"]): rng.uniform(-1, 1, t.shape).astype(np.float32) for t in leaves}


def assert_same(graph: Graph, env: dict[str, Any], got: dict[str, Any]) -> None:
    """As the reference says in double precision."""
    exact = evaluate(graph.roots, {n: x.astype(np.float64) for n, x in env.items()}, np)
    for name, want in zip(graph.outputs, exact, strict=True):
        np.testing.assert_allclose(got[name], want, rtol=1e-5, atol=1e-5 * float(np.abs(want).max()), err_msg=name)


@pytest.mark.parametrize("name", SUMS)
def test_the_numbers_are_those_of_the_reference_on_the_cpu(name: str, c_session: CpuSession) -> None:
    fn, shapes = SUMS[name]
    graph = graph_of(fn, *shapes)
    env, program = values_of(graph), compiled(graph)
    assert_same(graph, env, run(CpuSession(), program, env))
    assert_same(graph, env, run(c_session, program, env))


@pytest.mark.parametrize("name", SUMS)
def test_the_numbers_are_those_of_the_reference_on_webgpu(name: str, device: Any) -> None:
    fn, shapes = SUMS[name]
    graph = graph_of(fn, *shapes)
    env, program = values_of(graph), compiled(graph)
    assert_same(graph, env, run(device, program, env))
    assert_same(graph, env, run(device, with_barriers(program), env))


@pytest.mark.parametrize("precision", ["f32", "f16"])
@pytest.mark.parametrize("name", SUMS)
def test_no_dispatch_computes_with_the_wrong_memory(name: str, precision: str) -> None:
    fn, shapes = SUMS[name]
    graph = graph_of(fn, *shapes, precision=precision)
    check_memory(planned(graph, persistent(graph)))


# --- in models ---


class Rotary(tg.Module):
    """Attention whose queries and keys are turned, or all three from one product."""

    def __init__(self, width: int = 32, one: bool = False) -> None:
        self.norm = nn.RMSNorm(width)
        linear = lambda n: nn.Linear(width, n, bias=False)
        self.qkv = [linear(3 * width)] if one else [linear(width) for _ in range(3)]

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        h = self.norm(x)
        parts = tg.split(self.qkv[0](h), 3, -1) if len(self.qkv) == 1 else [layer(h) for layer in self.qkv]
        q, k, v = (tg.split_heads(t, 4) for t in parts)
        return x + tg.merge_heads(tg.attention(*tg.rope(q, k), v, causal=True))


def rotary(one: bool) -> Training:
    loss = lambda m, x: tg.mean(tg.square(m(x)))
    return Training("rotary", lambda: Rotary(one=one), loss, {"x": (4, 16, 32)}, adamw)


@pytest.mark.parametrize("t", [rotary(False), gpt(batch=4, vocabulary=11, context=16, width=32, layers=2)], ids=repr)
def test_steps_agree_with_the_reference(t: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEGRAD_CHECK", "1")
    rng = np.random.default_rng(0)
    for precision in ("f32", "f16"):
        with tg.compile(**t.arguments(), seed=0, device="cpu", precision=precision) as train:
            for _ in range(2):
                batch = {n: rng.uniform(0, 5, f.shape).astype(f.dtype.numpy) for n, f in types(train).items()}
                assert np.isfinite(train.step(batch).loss)


def types(train: Any) -> dict[str, TensorType]:
    return {f.name: f.type for f in train.program.inputs if not f.name.startswith("hyper.")}


@pytest.mark.parametrize("t", [*SMALL, rotary(False), BUDGET["gpt"][0]], ids=repr)
def test_the_memory_of_models(t: Training) -> None:
    arguments = t.arguments()
    check_memory(planned_training(arguments, build_training(**arguments)))


def test_a_trained_model_computes_on_webgpu_what_it_does_on_the_cpu(webgpu: None) -> None:
    x = np.random.default_rng(0).standard_normal((3, 4, 16, 32), np.float32)
    losses = []
    for device in ("cpu", "webgpu"):
        with tg.compile(**rotary(False).arguments(), seed=0, device=device) as train:
            losses.append([train.step(x=b).loss for b in x])
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)


class Pair(tg.Module):
    """Two matrices that are neighbours, behind one that no forward reads; another one is not trained."""

    def __init__(self) -> None:
        self.other = self.param((64, 16))
        self.frozen = self.param((64, 16), trainable=False)
        self.w, self.v = self.param((16, 20)), self.param((16, 20))

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        return weights_at_the_right(x, self.w, self.v)


def test_a_forward_reads_parameters_where_the_training_has_them() -> None:
    x = np.random.default_rng(0).standard_normal((24, 16)).astype(np.float32)
    loss = lambda m, x: tg.mean(tg.square(m(x))) + tg.mean(m.other @ tg.swapaxes(m.frozen, 0, 1))
    with tg.compile(model=Pair(), loss=loss, inputs={"x": (24, 16)}, optimizer=adamw(), seed=0, device="cpu") as train:
        forward = train.attach(forward=lambda m, x: m(x), inputs={"x": (24, 16)})
        _ = train.step(x=x).loss
        got, p = forward.run(x=x).output, train.download_params()
    exact = x.astype(np.float64)
    want = np.exp(np.sin(exact)) @ p["w"] + np.exp(np.cos(exact)) @ p["v"]
    np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6)


def test_the_order_of_summation_is_that_of_the_shapes() -> None:
    """Two programs of one model are the same bytes."""
    fn, shapes = SUMS["heads"]
    first, second = (compiled(graph_of(fn, *shapes)).to_json() for _ in range(2))
    assert first == second
