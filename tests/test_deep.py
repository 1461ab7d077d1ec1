"""Chains of thousands of ops: nothing in the compiler or a renderer goes down them by recursion."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from test_kernels import NOTHING, run
from tracegrad import optim
from tracegrad.compiler.pipeline import make_program
from tracegrad.dtypes import TensorType, f32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.passes import recompute
from tracegrad.prims.leaves import leaf
from tracegrad.runtime.cpu import CpuSession
from tracegrad.transforms.walks import gradients

pytestmark = pytest.mark.filterwarnings("error:.*kernels run as NumPy:RuntimeWarning")

SHAPE = (6, 4)
FRAMES = 500  # a user, a notebook and an event loop leave more


def sines(x: Tensor, n: int) -> Tensor:
    for _ in range(n // 2):
        x = tg.sin(x) * 1.01
    return x


def two_before(x: Tensor, n: int) -> Tensor:
    y = x
    for _ in range(n // 4):
        x, y = y * 0.9, x + y * 0.1
    return x


def flips(x: Tensor, n: int) -> Tensor:
    for _ in range(n // 2):
        x = tg.flip(x * 1.001, 0)
    return x


def views(x: Tensor, n: int) -> Tensor:
    for _ in range(n // 3):
        x = tg.flip(x, 0).T.reshape(SHAPE)
    return x


def rows(x: Tensor, n: int) -> Tensor:
    return tg.softmax(two_before(x, n // 2)) * two_before(x.sum(1, keepdims=True), n // 2)


CHAINS = (sines, two_before, flips, views, rows)


@pytest.fixture(autouse=True)
def frames() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + FRAMES)
    yield
    sys.setrecursionlimit(before)


@pytest.fixture(scope="module", params=["numpy", "c", "wgsl"])
def runtime(request: pytest.FixtureRequest) -> Any:
    if request.param == "numpy":
        return CpuSession()
    return request.getfixturevalue({"c": "c_session", "wgsl": "device"}[request.param])


def assert_computed(session: Any, outputs: Callable[[Tensor], dict[str, Tensor]]) -> None:
    env = {"x": np.random.default_rng(0).standard_normal(SHAPE).astype(np.float32)}
    with tracing():
        graph = Graph(outputs(leaf("input", "x", TensorType(f32, SHAPE))))
    got = run(session, make_program(graph, NOTHING, {}, {}), env)
    want = evaluate(graph.roots, {"x": env["x"].astype(np.float64)}, np)
    for name, w in zip(graph.outputs, want, strict=True):
        np.testing.assert_allclose(got[name], w, rtol=1e-3, atol=1e-4 * np.abs(w).max())


@pytest.mark.parametrize("chain", CHAINS)
def test_five_thousand_ops(chain: Callable[[Tensor, int], Tensor], runtime: Any) -> None:
    assert_computed(runtime, lambda x: {"y": chain(x, 5000)})


@pytest.mark.parametrize("chain", CHAINS)
def test_the_gradient_of_a_thousand(chain: Callable[[Tensor, int], Tensor], runtime: Any) -> None:
    assert_computed(runtime, lambda x: {"gradient": gradients(tg.square(chain(x, 1000)).sum(), [x])[0]})


class Deep(tg.Module):
    """One parameter that many functions are applied to."""

    def __init__(self) -> None:
        self.w = self.param(SHAPE, init=tg.init.randn(1.0))


@pytest.mark.parametrize("precision", ["f32", "f16"])
def test_a_training_that_computes_it_again_in_the_backward_pass(
    precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recompute, "RECOMPUTE_FROM", 1)

    def loss(m: Deep, x: Tensor) -> Tensor:
        return tg.mean(tg.square(sines(x * m.w, 1000)))

    arguments = {"inputs": {"x": SHAPE}, "optimizer": optim.adam(lr=1e-3), "device": "cpu", "precision": precision}
    with tg.compile(model=Deep(), loss=loss, seed=0, **arguments) as train:
        losses = [train.step(x=np.ones(SHAPE, np.float32)).loss for _ in range(3)]
        assert "sin" in str(train.explain(verbose=True))
    assert np.isfinite(losses).all()
    assert losses[-1] < losses[0]


USER_FRAMES = 700  # of the 1000 that Python allows by default


def in_depth(n: int, fn: Callable[[], Any]) -> Any:
    """Call `fn` from `n` frames further down."""
    return fn() if n == 0 else in_depth(n - 1, fn)


def residuals(x: Tensor, n: int) -> Tensor:
    for _ in range(n // 3):
        x = x + tg.tanh(x) * 0.001
    return x


X = np.full(SHAPE, 0.5, np.float32)
TRANSFORMED: dict[str, Callable[[Callable[[Any], Any]], Any]] = {
    "eager": lambda f: f(X),
    "grad": lambda f: tg.grad(lambda x: f(x).sum())(X),
    "grad of grad": lambda f: tg.grad(lambda x: tg.grad(lambda z: f(z).sum())(x).sum())(X),
    "jvp": lambda f: tg.jvp(f, (X,), (X,)),
    "vmap": lambda f: tg.vmap(f)(X),
    "vmap of grad": lambda f: tg.vmap(tg.grad(lambda x: f(x).sum()))(X),
    "checkpoint": lambda f: tg.grad(lambda x: tg.checkpoint(f)(x).sum())(X),
}


@pytest.fixture
def default_frames() -> Iterator[None]:
    before = sys.getrecursionlimit()
    sys.setrecursionlimit(max(1000, len(inspect.stack(0)) + USER_FRAMES + 300))
    yield
    sys.setrecursionlimit(before)


@pytest.mark.usefixtures("default_frames")
@pytest.mark.parametrize("n", [300, 1000, 5000])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_values_and_transforms_from_a_deep_stack(name: str, n: int) -> None:
    shallow = TRANSFORMED[name](lambda x: residuals(x, n))
    deep = in_depth(USER_FRAMES, lambda: TRANSFORMED[name](lambda x: residuals(x, n)))
    for a, b in zip(np.ravel(shallow), np.ravel(deep), strict=True):
        np.testing.assert_array_equal(np.asarray(a), np.asarray(b))


@pytest.mark.usefixtures("default_frames")
@pytest.mark.parametrize("n", [300, 1000])
def test_compiling_from_a_deep_stack(n: int, runtime: Any) -> None:
    """The gradient too, on NumPy, C and WebGPU."""

    def check() -> None:
        assert_computed(runtime, lambda x: {"gradient": gradients(tg.square(residuals(x, n)).sum(), [x])[0]})

    in_depth(USER_FRAMES, check)


@pytest.mark.usefixtures("default_frames")
def test_tracing_five_thousand_ops_from_a_deep_stack() -> None:
    def loss(m: Deep, x: Tensor) -> Tensor:
        return tg.mean(residuals(x * m.w, 5000))

    graph = in_depth(
        USER_FRAMES, lambda: tg.trace(model=Deep(), loss=loss, inputs={"x": SHAPE}, optimizer=optim.adam())
    )
    assert str(graph).count("tanh") >= 5000 // 3
