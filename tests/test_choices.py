"""Some element always is the largest: max, argmax and their gradients where the values are computed by their readers.

A compiler may round a * b + c once where the product is of no other use, and twice where it is. So a value that is
computed in two loops need not be equal to itself, and none need be equal to the largest.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from test_kernels import NOTHING, run
from tracegrad.compiler.pipeline import make_program, optimize
from tracegrad.dtypes import TensorType, f32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.kernels.fuse import Schedule
from tracegrad.passes import recompute
from tracegrad.prims.leaves import leaf
from tracegrad.runtime.cpu import CpuSession
from tracegrad.transforms.walks import gradients

pytestmark = pytest.mark.filterwarnings("error:.*kernels run as NumPy:RuntimeWarning")

VALUES: dict[str, Callable[..., Tensor]] = {
    "contracted": lambda u, c: u + c,
    "two products": lambda u, c: u + c * c,
    "negated": lambda u, c: -(u + c),
    "moved": lambda u, c: tg.flip(u - c, 1).reshape((-1, c.shape[1])),
    "function": lambda u, c: tg.tanh(u + c) * u + c,
}
SHAPES = [(64, 40), (64, 5), (7, 3000), (5000, 3), (33, 64)]


@pytest.fixture(scope="module", params=["numpy", "c", "wgsl"])
def runtime(request: pytest.FixtureRequest) -> Any:
    if request.param == "numpy":
        return CpuSession()
    return request.getfixturevalue({"c": "c_session", "wgsl": "device"}[request.param])


def chosen(value: Callable[..., Tensor], shape: tuple[int, int], axis: int) -> dict[str, Tensor]:
    """The largest of each row of a * b + c, everything that asks which it is, and another use of a * b."""
    with tracing():
        a, b, c = [leaf("input", name, TensorType(f32, shape)) for name in "abc"]
        x = value(a * b, c)
        top = x.max(axis, keepdims=True)
        (gradient,) = gradients((top * top).sum() + tg.square(a * b).sum(), [a])
        hits = tg.where(x == top, tg.square(a * b) + 1.0, 0.0).sum(axis)
        return {"argmax": tg.argmax(x, axis), "hits": hits, "at least": tg.sum(x >= top, axis), "gradient": gradient}


def assert_found(got: dict[str, Any], n: int) -> None:
    for name, lowest in (("hits", 1.0), ("at least", 1)):
        assert (got[name] >= lowest).all(), name
    assert np.isfinite(got["gradient"]).all()
    assert (got["argmax"] < n).all()


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", VALUES)
def test_some_element_is_the_largest(name: str, shape: tuple[int, int], runtime: Any) -> None:
    rng = np.random.default_rng(0)
    env = {k: rng.standard_normal(shape).astype(np.float32) for k in "abc"}
    for axis in (0, 1):
        outputs = chosen(VALUES[name], shape, axis)
        for precision in ("f32", "f16"):
            program = make_program(Graph(outputs, precision=precision), NOTHING, {}, {})
            assert_found(run(runtime, program, env), shape[axis])


def test_what_is_computed_again_in_the_backward_pass(c_session: CpuSession, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompute, "RECOMPUTE_FROM", 1)
    rng = np.random.default_rng(0)
    env = {k: rng.standard_normal((64, 40)).astype(np.float32) for k in "abc"}
    with tracing():
        a, b, c = [leaf("input", name, TensorType(f32, (64, 40))) for name in "abc"]
        loss = tg.square((a * b + c).max(1)).sum() + tg.square(tg.tanh(a * b)).sum()
        outputs = {"loss": loss, **dict(zip("abc", gradients(loss, [a, b, c]), strict=True))}
    got = run(c_session, make_program(Graph(outputs), NOTHING, {}, {}), env)
    assert all(np.isfinite(x).all() for x in got.values())


@pytest.mark.parametrize("axis", [0, 1])
def test_what_is_computed_again_in_the_backward_of_a_scan(axis: int, c_session: CpuSession) -> None:
    shape = (64, 5)
    rng = np.random.default_rng(0)
    env = {k: rng.standard_normal(n).astype(np.float32) for k, n in (("h", shape), ("xs", (6, *shape)), ("w", shape))}
    with tracing():
        h, xs, w = [leaf("input", name, TensorType(f32, x.shape)) for name, x in env.items()]

        def step(carry: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            u = carry * x
            return tg.tanh(u) * 0.5 + (u + w).max(axis, keepdims=True), u

        last, products = tg.scan(step, h, xs)
        found = gradients(tg.square(last).sum() + tg.square(products).sum(), [h, xs, w])
    program = make_program(Graph(dict(zip(env, found, strict=True))), NOTHING, {}, {})
    assert all(np.isfinite(x).all() for x in run(c_session, program, env).values())


def test_results_can_be_compared(runtime: Any) -> None:
    """By the caller that gets them."""
    rng = np.random.default_rng(0)
    env = {k: rng.standard_normal((64, 5)).astype(np.float32) for k in "abc"}
    with tracing():
        a, b, c = [leaf("input", name, TensorType(f32, (64, 5))) for name in "abc"]
        x = a * b + c
        outputs = {"x": x, "top": x.max(1), "rest": tg.square(a * b) * x.max(1, keepdims=True)}
    got = run(runtime, make_program(Graph(outputs), NOTHING, {}, {}), env)
    np.testing.assert_array_equal(got["x"].max(1), got["top"])


@pytest.mark.parametrize("fn", [tg.softmax, tg.log_softmax, lambda x: tg.logsumexp(x, -1)])
def test_what_only_subtracts_the_largest_stays_one_kernel(fn: Callable[[Tensor], Tensor]) -> None:
    with tracing():
        a, b, c = [leaf("input", name, TensorType(f32, (64, 40))) for name in "abc"]
        y = fn(a * b + c)
        (gradient,) = gradients(tg.square(y).sum(), [a])
    assert len(Schedule(optimize(Graph({"y": y}))).clusters) == 1
    assert len(Schedule(optimize(Graph({"y": y, "gradient": gradient}))).clusters) <= 2
