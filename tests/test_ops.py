"""Every op of the table: its type rule, its gradient, the gradient of that, and PyTorch's opinion."""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping

import numpy as np
import pytest

from all_cases import ALL_CASES
from cases import Case
from tracegrad.ambient import tracing
from tracegrad.dtypes import TensorType, f32
from tracegrad.evaluate import evaluate
from tracegrad.ir import Tensor
from tracegrad.prims.leaves import leaf
from tracegrad.transforms.grad import gradients

STEP = 1e-6
DIFFERENTIABLE = [c for c in ALL_CASES if c.grad and c.shapes and math.isfinite(c.tol)]
by_name = {"argnames": "case", "ids": lambda c: c.name}


def test_names_are_unique() -> None:
    names = [c.name for c in ALL_CASES]
    assert len(set(names)) == len(names), sorted(n for n in names if names.count(n) > 1)


def weighted(case: Case, leaves: dict[str, Tensor], env: dict[str, np.ndarray]) -> Tensor:
    """A scalar that every element of the op's result enters with a weight of its own."""
    y = case.apply(leaves)
    env["ct"] = np.random.default_rng(1).standard_normal(y.shape)
    return (y * leaf("input", "ct", TensorType(f32, y.shape))).sum()


def directions(case: Case, env: Mapping[str, np.ndarray], seed: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    return {f"x{k}": rng.standard_normal(env[f"x{k}"].shape) for k in range(len(case.shapes))}


def derivative(loss: Tensor, env: Mapping[str, np.ndarray], along: Mapping[str, np.ndarray]) -> float:
    """The central difference of `loss` along one direction."""

    def at(e: float) -> float:
        moved = {k: env[k] + e * d for k, d in along.items()}
        return float(evaluate([loss], {**env, **moved}, np)[0])

    return (at(STEP) - at(-STEP)) / (2 * STEP)


@pytest.mark.parametrize(**by_name, argvalues=ALL_CASES)
def test_type_rule_agrees_with_the_array(case: Case) -> None:
    with tracing():
        y = case.apply(case.leaves())
        (value,) = evaluate([y], case.arrays(dtype="float32"), np)
    assert value.shape == y.shape
    assert value.dtype == np.dtype(y.dtype.numpy)


@pytest.mark.parametrize(**by_name, argvalues=DIFFERENTIABLE)
def test_vjp_agrees_with_finite_differences(case: Case) -> None:
    env = case.arrays()
    with tracing():
        leaves = case.leaves()
        loss = weighted(case, leaves, env)
        along = directions(case, env, 2)
        grads = evaluate(gradients(loss, [leaves[k] for k in along]), env, np)
        numeric = derivative(loss, env, along)
    analytic = math.fsum(float(np.vdot(g, d)) for g, d in zip(grads, along.values()))
    np.testing.assert_allclose(analytic, numeric, rtol=case.tol, atol=case.tol)


@pytest.mark.parametrize(**by_name, argvalues=[c for c in DIFFERENTIABLE if c.second])
def test_second_order_agrees_with_finite_differences(case: Case) -> None:
    env = case.arrays()
    with tracing():
        leaves = case.leaves()
        loss = weighted(case, leaves, env)
        along, inner = directions(case, env, 2), directions(case, env, 3)
        xs = [leaves[k] for k in along]
        weights = [leaf("input", f"v.{k}", x.type) for k, x in zip(inner, xs)]
        env |= {f"v.{k}": d for k, d in inner.items()}
        slope = gradients(loss, xs)
        total = sum(((g * w).sum() for g, w in zip(slope, weights)), start=0.0)
        assert isinstance(total, Tensor)
        grads = evaluate(gradients(total, xs), env, np)
        numeric = derivative(total, env, along)
    analytic = math.fsum(float(np.vdot(g, d)) for g, d in zip(grads, along.values()))
    np.testing.assert_allclose(analytic, numeric, rtol=10 * case.tol, atol=10 * case.tol)


@pytest.mark.parametrize(**by_name, argvalues=[c for c in ALL_CASES if c.torch is not None])
def test_values_and_gradients_agree_with_pytorch(case: Case) -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    assert case.torch is not None
    env = case.arrays(seed=zlib.crc32(case.name.encode()))
    with tracing():
        leaves = case.leaves()
        y = case.apply(leaves)
        xs = [t for t in leaves.values() if t.dtype.is_float]
        ct = np.random.default_rng(1).standard_normal(y.shape)
        (value,) = evaluate([y], env, np)
        theirs = {k: torch.tensor(v, requires_grad=v.dtype.kind == "f") for k, v in env.items()}
        expected = case.torch(*theirs.values())
        np.testing.assert_allclose(value, expected.detach().numpy(), rtol=case.close, atol=case.close)
        if not (case.grad and xs):
            return
        loss = (y * leaf("input", "ct", TensorType(f32, y.shape))).sum()
        grads = evaluate(gradients(loss, xs), env | {"ct": ct}, np)
    expected.backward(torch.tensor(ct))
    for x, g in zip(xs, grads):
        np.testing.assert_allclose(g, theirs[x.name].grad.numpy(), rtol=case.close, atol=case.close, err_msg=x.name)
