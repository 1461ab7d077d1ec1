"""Values without elements inside of a program: NumPy's answers, and nothing of them in what runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from test_kernels import COUNTERS, NOTHING, run
from tracegrad.compiler.pipeline import make_program
from tracegrad.dtypes import TensorType, f32, i32
from tracegrad.errors import ShapeError
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.prims.leaves import leaf
from tracegrad.runtime.cpu import CpuSession
from tracegrad.transforms.walks import gradients

pytestmark = pytest.mark.filterwarnings("error")

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "concat": lambda x: tg.concat([x[2:2] * 2.0, x, x[:0]]),
    "concat of nothing": lambda x: tg.concat([x[:0], x[3:3]]),
    "result": lambda x: tg.sin(x[:0]) @ x.T,
    "sum of all": lambda x: tg.exp(tg.sin(x[:0]) * 2.0).sum() + x,
    "sum of rows": lambda x: tg.concat([x[:0].sum(1), x.sum(1)]),
    "sum of columns": lambda x: x[:0].sum(0) + x,
    "prod": lambda x: x[:0].prod(0) + x,
    "prod of a part": lambda x: x[:, :0].prod(1).sum() * x[0],
    "mean": lambda x: x[:0].mean(0) + x,
    "var": lambda x: x[:0].var(0) + x,
    "logsumexp": lambda x: tg.exp(tg.logsumexp(x[:0], 0)) + tg.exp(tg.logsumexp(x[:, :0], 1, keepdims=True)) + x,
    "any": lambda x: tg.where(tg.any(x[:0] > 0, 0), x, x * 2.0),
    "all": lambda x: tg.where(tg.all(x[:0] > 0, 0), x, x * 2.0),
    "max of no rows": lambda x: tg.concat([x[:0].max(1), tg.argmax(x[:0], 1).astype(tg.f32), x[0]]),
    "inner product": lambda x: x[:, :0] @ x[:0] + x[:, :1],
    "product without rows": lambda x: tg.concat([x[:0] @ x.T, x @ x.T]),
    "product without a batch": lambda x: (tg.zeros((0, 3, 4)) * x[0] @ x.T).sum(0) + x.sum(),
    "attention without features": lambda x: (
        tg.attention(x[None, None, :, :0], x[None, None, :, :0], x[None, None]).sum() * x
    ),
    "filters over nothing": lambda x: tg.conv2d(x[None, None, :0], x[None, None, :1, :2] * 2.0, padding=1).sum() + x,
    "slots for nothing": lambda x: tg.scatter_add(x[:, :0], x[:, :0].astype(tg.i32), x[:, :0], 1).sum() + x,
    "einsum": lambda x: tg.einsum("ij,jk->", x[:, :0], x[:0]) + x,
    "einsum without a sum": lambda x: (
        tg.einsum("ij,k->ijk", x[:0], x[0]).sum(0) + tg.einsum("i,j->ji", x[0], x[0, :0]).sum() + x[0]
    ),
    "einsum of empty batches": lambda x: tg.einsum("bij,bjk->bik", x[None], tg.zeros((0, 4, 2))).sum() + x,
    "einsum of broadcast axes": lambda x: tg.einsum("ij,jk->ik", x[:, :1], x[:0]).sum() + x,
    "softmax without rows": lambda x: tg.concat([tg.softmax(x[:0]), tg.log_softmax(x[:0]), x]),
    "softmax without columns": lambda x: tg.concat([tg.softmax(x[:, :0]), x], axis=1),
    "norms": lambda x: tg.concat([tg.layer_norm(x[:0]), tg.rms_norm(x[:0]), x]),
    "cross entropy": lambda x: tg.cross_entropy(x[:0], x[:0, 0].astype(tg.i32), reduction="sum") + x,
    "attention": lambda x: tg.attention(x[None, None, :0], x[None, None], x[None, None]).sum() + x,
    "gather": lambda x: tg.concat([tg.take(x, x[:0, 0].astype(tg.i32), 0), x]),
    "embedding": lambda x: tg.embedding(x, tg.zeros((0,), tg.i32)).sum(0) + x,
    "one hot": lambda x: tg.one_hot(x[:0, 0].astype(tg.i32), 4).sum(0) + x,
    "cumsum": lambda x: tg.concat([tg.cumsum(x[:0], 1), tg.cumsum(x[:0], 0), tg.cumsum(x, 0)]),
    "reshape": lambda x: x[:0].reshape((4, 0)).sum() + x[:0].reshape((-1,)).sum() + x,
    "pad": lambda x: tg.pad(x[:, :0] * 3.0, ((0, 0), (2, 2))) + x,
    "views": lambda x: tg.flip(tg.repeat(tg.broadcast_to(x[:, None, :0], (3, 2, 0)), 0, axis=0), 1).sum() + x,
    "images": lambda x: tg.conv2d(tg.broadcast_to(x[:0, :1, None, None], (0, 1, 4, 4)), x[None, None, :, :3]).sum() + x,
    "random": lambda x: tg.concat([tg.dropout(x[:0], 0.5), tg.randn((0, 4)), tg.uniform((0, 4)), x]),
    "scan of nothing": lambda x: tg.scan(lambda c, a: (c + a, c * a), x[0], x[:0])[0] + x,
    "scan with an empty carry": lambda x: tg.scan(lambda c, a: (c * 2.0, a + c.sum()), x[:0], x)[1] + x,
    "scan along empty elements": lambda x: tg.scan(lambda c, a: (c + a.sum(), a), x[0], tg.zeros((3, 0)))[0] + x,
    "scan with empty results": lambda x: tg.scan(lambda c, a: (c + a, a[:0] * c[:0]), x[0], x)[1].sum() + x,
    "vmap": lambda x: tg.vmap(lambda row: tg.softmax(row) * 2.0)(x[:0]).sum(0) + x,
    "vmap to empty slices": lambda x: tg.concat([tg.vmap(lambda row: row[1:1] * row[0])(x), x], 1),
    "integers and truth values": lambda x: tg.concat([x[:0] > 0, x > 0]).astype(tg.i32).sum(0),
}


@pytest.fixture(scope="module", params=["numpy", "c", "wgsl"])
def runtime(request: pytest.FixtureRequest) -> Any:
    if request.param == "numpy":
        return CpuSession()
    return request.getfixturevalue({"c": "c_session", "wgsl": "device"}[request.param])


def graph_of(fn: Callable[[Tensor], Tensor]) -> Graph:
    """The value, and for floats the gradient."""
    with tracing():
        x = leaf("input", "x", TensorType(f32, (3, 4)))
        y = fn(x)
        slope = {"slope": gradients((y * 1.5).sum(), [x])[0]} if y.dtype.is_float else {}
    return Graph({"value": y, **slope})


@pytest.mark.parametrize("name", FUNCTIONS)
def test_all_runtimes_have_the_answers_of_numpy(name: str, runtime: Any) -> None:
    graph = graph_of(FUNCTIONS[name])
    env = {"x": np.random.default_rng(0).uniform(0.1, 1, (3, 4)).astype(np.float32), **COUNTERS}
    program = make_program(graph, NOTHING, {}, {})
    assert all(b.size > 0 for b in program.buffers)
    assert all(0 not in d.grid for d in program.dispatches)
    got = run(runtime, program, env)
    with np.errstate(all="ignore"):
        want = evaluate(graph.roots, {**env, "x": env["x"].astype(np.float64)}, np)
    for name_, w in zip(graph.outputs, want, strict=True):
        assert got[name_].shape == np.shape(w), name_
        np.testing.assert_allclose(got[name_], w, rtol=1e-5, atol=1e-6, err_msg=name_)


@pytest.mark.parametrize("fn", [tg.max, tg.min, tg.argmax, tg.argmin])
def test_the_largest_of_nothing_is_an_error_of_the_trace(fn: Callable[..., Tensor]) -> None:
    with tracing(), pytest.raises(ShapeError, match="is empty along the axes"):
        fn(leaf("input", "x", TensorType(f32, (3, 4)))[:0], 0)


def test_what_needs_an_element_says_so() -> None:
    with tracing():
        x, i = leaf("input", "x", TensorType(f32, (3, 4))), leaf("input", "i", TensorType(i32, (3,)))
        with pytest.raises(ShapeError, match="nothing to add to: axis 0 of the result is empty"):
            tg.scatter_add(x[:0], i, x)
        with pytest.raises(ShapeError, match="no class to choose: the last axis of the logits f32"):
            tg.cross_entropy(x[:, :0], i)


class Line(tg.Module):
    """One layer."""

    def __init__(self) -> None:
        self.w = self.param((4, 2))


def test_a_training_delivers_what_is_empty() -> None:
    def loss(m: Line, x: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        h = tg.concat([x, x[:0]]) @ m.w
        tg.capture("none", h[:0])
        return tg.mean(tg.square(h)), {"rows": x[:, :0]}

    with tg.compile(
        model=Line(), loss=loss, inputs={"x": (3, 4)}, optimizer=tg.optim.adam(lr=0.1), device="cpu"
    ) as train:
        r = train.step(x=np.ones((3, 4), np.float32))
        assert r.aux["rows"].shape == (3, 0)
        assert r.captures["none"].shape == (0, 2)
        assert np.isfinite(r.loss)
