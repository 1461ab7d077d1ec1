"""The models of bench/cpu.py in JAX: one jitted training step with donated state."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from steps import ALPHABET, CLIP, CLOCK, DECAY, RATE, Workload, batches_of, gpt

jnp, each = jax.numpy, jax.tree.map
DENSE = {"sine": (1, 64, 64, 1), "mlp": (784, 512, 512, 10), "cnn": (1568, 10)}
Params = list[Any]


def jax_block(name: str, w: Workload) -> Callable[[int], float]:
    """A function that runs n steps and gives the seconds."""
    batches = batches_of(w)
    params, loss = model(name, np.random.default_rng(0))

    def step(state: Any, batch: Any) -> Any:
        params, m, v, t = state
        value, g = jax.value_and_grad(loss)(params, **batch)
        norm = jnp.sqrt(sum(jnp.sum(one * one) for one in g))
        g = [one * jnp.minimum(1.0, CLIP / (norm + 1e-6)) for one in g]
        t = t + 1
        m = each(lambda m, g: 0.9 * m + 0.1 * g, m, g)
        v = each(lambda v, g: 0.999 * v + 0.001 * g * g, v, g)
        c1, c2 = 1 - 0.9**t, 1 - 0.999**t
        update = lambda p, m, v: p * (1 - RATE * DECAY) - RATE * (m / c1) / (jnp.sqrt(v / c2) + 1e-8)
        return (each(update, params, m, v), m, v, t), value

    jitted = jax.jit(step, donate_argnums=0)
    state = (params, each(jnp.zeros_like, params), each(jnp.zeros_like, params), jnp.zeros(()))

    def block(n: int) -> float:
        nonlocal state
        given = batches(n)
        began = CLOCK()
        for batch in given:
            state, value = jitted(state, batch)
        float(value)
        return CLOCK() - began

    return block


def model(name: str, rng: np.random.Generator) -> tuple[Params, Callable[..., Any]]:
    """Parameters and the loss."""
    weight = lambda *shape: jnp.asarray(rng.standard_normal(shape, np.float32) / np.sqrt(np.prod(shape[1:])))
    if name not in DENSE:
        return transformer(weight)
    widths = DENSE[name]
    params = [p for a, b in itertools.pairwise(widths) for p in (weight(b, a).T, jnp.zeros(b))]
    if name == "cnn":
        params += [weight(16, 1, 3, 3), jnp.zeros((16, 1, 1)), weight(32, 16, 3, 3), jnp.zeros((32, 1, 1))]

    def block(x: Any, kernel: Any, bias: Any) -> Any:
        x = jax.nn.relu(jax.lax.conv(x, kernel, (1, 1), "SAME") + bias)
        return jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")

    def loss(params: Params, x: Any, y: Any) -> Any:
        if name == "cnn":
            x = block(block(x, *params[2:4]), *params[4:6]).reshape(x.shape[0], -1)
        dense = params[: 2 * len(widths) - 2]
        for k in range(0, len(dense), 2):
            x = (jax.nn.relu(x) if k else x) @ dense[k] + dense[k + 1]
        return jnp.mean((x - y) ** 2) if name == "sine" else cross_entropy(x, y)

    return params, loss


def cross_entropy(x: Any, y: Any) -> Any:
    return -jnp.mean(jnp.take_along_axis(jax.nn.log_softmax(x), y[..., None], -1))


def transformer(weight: Callable[..., Any]) -> tuple[Params, Callable[..., Any]]:
    """The GPT of examples/gpt.py."""
    d = gpt.WIDTH
    linear = lambda a, b: [weight(b, a).T, jnp.zeros(b)]
    norm = lambda: [jnp.ones(d), jnp.zeros(d)]
    square = lambda: linear(d, d)
    params = [0.02 * weight(ALPHABET, 1) * jnp.ones(d), 0.02 * weight(gpt.CONTEXT, 1) * jnp.ones(d)]
    for _ in range(gpt.LAYERS):
        params += [*norm(), *square(), *square(), *square(), *square(), *norm(), *linear(d, 4 * d), *linear(4 * d, d)]
    params += [*norm(), *linear(d, ALPHABET)]
    causal = np.tril(np.ones((gpt.CONTEXT, gpt.CONTEXT), bool))

    def normed(x: Any, g: Any, b: Any) -> Any:
        x = x - x.mean(-1, keepdims=True)
        return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5) * g + b

    def heads(x: Any) -> Any:
        return x.reshape(*x.shape[:2], gpt.HEADS, -1).swapaxes(1, 2)

    def loss(params: Params, tokens: Any, following: Any) -> Any:
        rest = iter(params)
        take = lambda n: [next(rest) for _ in range(n)]
        apply = lambda x: x @ next(rest) + next(rest)
        token, position = take(2)
        x = token[tokens] + position
        for _ in range(gpt.LAYERS):
            h = normed(x, *take(2))
            q, k, v = heads(apply(h)), heads(apply(h)), heads(apply(h))
            scores = jnp.where(causal, q @ k.swapaxes(-1, -2) * (d // gpt.HEADS) ** -0.5, -jnp.inf)
            mixed = (jax.nn.softmax(scores) @ v).swapaxes(1, 2).reshape(x.shape)
            x = x + apply(mixed)
            h = apply(normed(x, *take(2)))
            x = x + apply(jax.nn.gelu(h, approximate=True))
        return cross_entropy(apply(normed(x, *take(2))), following)

    return params, loss
