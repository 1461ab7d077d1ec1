"""Run a function of tensors with its gradients, and the same through PyTorch, for the semantics tests."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tracegrad.dtypes import TensorType, as_dtype, f32
from tracegrad.ir import ambient
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.nodes import Tensor
from tracegrad.prims.leaves import leaf
from tracegrad.transforms.walks import gradients

torch: Any = pytest.importorskip("torch")


def typed(name: str, a: np.ndarray) -> Tensor:
    """A leaf for `a`; float64 arrays run through f32 graphs, which makes comparisons sharp."""
    return leaf("input", name, TensorType(f32 if a.dtype == np.float64 else as_dtype(a.dtype), a.shape))


def call(fn: Any, *arrays: Any, ct: Any = None) -> tuple[np.ndarray, list[np.ndarray]]:
    """The value of `fn`, and the gradient of sum(value * ct) for every float array."""
    arrays = tuple(np.asarray(a) for a in arrays)
    env: dict[str, Any] = {f"x{k}": a for k, a in enumerate(arrays)}
    with ambient.tracing(), np.errstate(all="ignore"):
        xs = [typed(name, a) for name, a in env.items()]
        y = fn(*xs)
        env["ct"] = np.ones(y.shape) if ct is None else np.asarray(ct, np.float64)
        wrt = [x for x in xs if x.dtype.is_float]
        gs = gradients((y * typed("ct", env["ct"])).sum(), wrt) if y.dtype.is_float else []
        value, *grads = evaluate([y, *gs], env, np)
    assert value.shape == y.shape
    return value, grads


def oracle(fn: Any, *arrays: Any, ct: Any = None) -> tuple[np.ndarray, list[np.ndarray]]:
    """The same through PyTorch."""
    xs = [torch.tensor(np.asarray(a)) for a in arrays]
    for x in xs:
        x.requires_grad_(x.is_floating_point())
    y = fn(*[x if x.is_floating_point() else x.long() for x in xs])
    y.backward(torch.ones_like(y) if ct is None else torch.tensor(np.asarray(ct, np.float64)))
    return y.detach().numpy(), [x.grad.numpy() for x in xs if x.is_floating_point()]


def check(fn: Any, torch_fn: Any, *arrays: Any, ct: Any = None, tol: float = 1e-6) -> None:
    """Value and every gradient, for a random cotangent unless one is given."""
    if ct is None:
        ct = rand(*oracle(torch_fn, *arrays, ct=None)[0].shape) if _ranked(torch_fn, arrays) else 1.0
    (y, gs), (ty, tgs) = call(fn, *arrays, ct=ct), oracle(torch_fn, *arrays, ct=ct)
    np.testing.assert_allclose(y, ty, rtol=tol, atol=tol)
    for g, tg in zip(gs, tgs, strict=True):
        np.testing.assert_allclose(g, tg, rtol=tol, atol=tol)


def _ranked(torch_fn: Any, arrays: Any) -> bool:
    return oracle(torch_fn, *arrays)[0].ndim > 0


_seeds = itertools.count()


def rand(*shape: int, scale: float = 1.0) -> np.ndarray:
    return np.random.default_rng(next(_seeds)).standard_normal(shape) * scale


def classes(n: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(next(_seeds)).integers(0, n, shape).astype(np.int32)
