"""What the models of bench/zoo.py have in common: how one is written down, and the layers of those in JAX."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

import tracegrad as tg

if importlib.util.find_spec("jax"):
    import jax
    import jax.numpy as jnp

Batch = dict[str, Any]
Loss = Callable[..., Any]


@dataclass(frozen=True)
class Model:
    """One model, three times.

    batch: what a step gets, drawn by a generator
    ours:  the model, and its loss of the model and a batch
    torch: the same in PyTorch, whose parameters have the names that `tg.to_torch` gives them
    jax:   the loss of a dict of the parameters, as `train.params()` names them, and a batch
    """

    batch: Callable[[np.random.Generator], Batch]
    ours: Callable[[], tuple[tg.Module, Loss]]
    torch: Callable[[], tuple[Any, Loss]]
    jax: Loss
    channels_last: bool = False  # PyTorch is tried with that layout too


def inputs_of(batch: Batch) -> dict[str, Any]:
    """Return the argument `inputs` of `tg.compile` for a batch."""
    return {n: (tg.i32 if x.dtype == np.int32 else tg.f32)[x.shape] for n, x in batch.items()}


def normal(rng: np.random.Generator, *shape: int) -> np.ndarray:
    return rng.standard_normal(shape, np.float32)


def numbers(rng: np.random.Generator, below: int, *shape: int) -> np.ndarray:
    return rng.integers(0, below, shape, np.int32)


# --- JAX ---


def linear(p: Any, name: str, x: Any) -> Any:
    y = x @ p[f"{name}.W"]
    return y + p[f"{name}.b"] if f"{name}.b" in p else y


def conv(p: Any, name: str, x: Any, stride: int = 1, padding: int = 0, groups: int = 1, dilation: int = 1) -> Any:
    w = p[f"{name}.W"]
    axes = w.ndim - 2
    y = jax.lax.conv_general_dilated(
        x, w, (stride,) * axes, [(padding, padding)] * axes, rhs_dilation=(dilation,) * axes, feature_group_count=groups
    )
    return y + p[f"{name}.b"].reshape(1, -1, *[1] * axes) if f"{name}.b" in p else y


def conv_transpose(p: Any, name: str, x: Any, stride: int, padding: int) -> Any:
    """The gradient of a convolution by its input: W is [in, out, kh, kw], as in PyTorch."""
    w = jnp.flip(p[f"{name}.W"], (2, 3)).swapaxes(0, 1)
    edge = w.shape[-1] - 1 - padding
    y = jax.lax.conv_general_dilated(x, w, (1, 1), [(edge, edge)] * 2, lhs_dilation=(stride, stride))
    return y + p[f"{name}.b"].reshape(1, -1, 1, 1)


def batch_norm(p: Any, name: str, x: Any) -> Any:
    """By the statistics of the batch. The running ones, which the other libraries keep, are left out."""
    axes = tuple(d for d in range(x.ndim) if d != 1)
    along = (1, -1, *[1] * (x.ndim - 2))
    x = x - x.mean(axes, keepdims=True)
    x = x * jax.lax.rsqrt((x * x).mean(axes, keepdims=True) + 1e-5)
    return x * p[f"{name}.g"].reshape(along) + p[f"{name}.b"].reshape(along)


def group_norm(p: Any, name: str, x: Any, groups: int) -> Any:
    g = x.reshape(x.shape[0], groups, -1)
    g = g - g.mean(-1, keepdims=True)
    x = (g * jax.lax.rsqrt((g * g).mean(-1, keepdims=True) + 1e-5)).reshape(x.shape)
    return x * p[f"{name}.g"].reshape(1, -1, 1, 1) + p[f"{name}.b"].reshape(1, -1, 1, 1)


def layer_norm(p: Any, name: str, x: Any) -> Any:
    x = x - x.mean(-1, keepdims=True)
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * p[f"{name}.g"] + p[f"{name}.b"]


def rms_norm(p: Any, name: str, x: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-6) * p[f"{name}.g"]


def heads(x: Any, n: int) -> Any:
    return x.reshape(*x.shape[:2], n, -1).swapaxes(1, 2)


def attention(q: Any, k: Any, v: Any, causal: bool = False) -> Any:
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        scores = jnp.where(np.tril(np.ones(scores.shape[-2:], bool)), scores, -jnp.inf)
    y = jax.nn.softmax(scores) @ v
    return y.swapaxes(1, 2).reshape(y.shape[0], y.shape[2], -1)


def cross_entropy(x: Any, y: Any) -> Any:
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), y[..., None], -1))
