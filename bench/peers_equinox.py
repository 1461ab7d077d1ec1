"""The models of bench/cpu.py in Equinox, trained by Optax: one jitted step with donated state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import equinox as eqx
import jax
import optax
from steps import ALPHABET, CLIP, CLOCK, DECAY, RATE, Workload, batches_of, gpt

jnp, nn = jax.numpy, eqx.nn


def equinox_block(name: str, w: Workload) -> Callable[[int], float]:
    """A function that runs n steps and gives the seconds."""
    batches = batches_of(w)
    model = made(name, iter(jax.random.split(jax.random.key(0), 100)))
    optimizer = optax.chain(optax.clip_by_global_norm(CLIP), optax.adamw(RATE, weight_decay=DECAY))
    state = optimizer.init(eqx.filter(model, eqx.is_inexact_array))

    def loss(model: Any, batch: Any) -> Any:
        if name == "sine":
            return jnp.mean((jax.vmap(model)(batch["x"]) - batch["y"]) ** 2)
        x, y = batch.values()
        return optax.softmax_cross_entropy_with_integer_labels(jax.vmap(model)(x), y).mean()

    @eqx.filter_jit(donate="all")
    def step(model: Any, state: Any, batch: Any) -> Any:
        value, grads = eqx.filter_value_and_grad(loss)(model, batch)
        updates, state = optimizer.update(grads, state, eqx.filter(model, eqx.is_inexact_array))
        return eqx.apply_updates(model, updates), state, value

    def block(n: int) -> float:
        nonlocal model, state
        given = batches(n)
        began, value = CLOCK(), None
        for batch in given:
            model, state, value = step(model, state, batch)
        float(value)  # pyright: ignore
        return CLOCK() - began

    return block


def made(name: str, keys: Any) -> Any:
    """The network, of one example."""
    relu = nn.Lambda(jax.nn.relu)
    linear = lambda a, b: nn.Linear(a, b, key=next(keys))
    if name == "sine":
        return nn.Sequential([linear(1, 64), relu, linear(64, 64), relu, linear(64, 1)])
    if name == "mlp":
        return nn.Sequential([linear(784, 512), relu, linear(512, 512), relu, linear(512, 10)])
    if name == "cnn":
        conv = lambda a, b: nn.Conv2d(a, b, 3, padding=1, key=next(keys))
        return nn.Sequential([conv(1, 16), relu, nn.MaxPool2d(2, 2), conv(16, 32), relu, nn.MaxPool2d(2, 2),
                              nn.Lambda(jnp.ravel), linear(1568, 10)])  # fmt: skip
    return GPT(keys)


class Block(eqx.Module):
    norms: list[nn.LayerNorm]
    projections: list[nn.Linear]
    up: nn.Linear
    down: nn.Linear

    def __init__(self, keys: Any) -> None:
        d = gpt.WIDTH
        self.norms = [nn.LayerNorm(d), nn.LayerNorm(d)]
        self.projections = [nn.Linear(d, d, key=next(keys)) for _ in range(4)]
        self.up, self.down = nn.Linear(d, 4 * d, key=next(keys)), nn.Linear(4 * d, d, key=next(keys))

    def __call__(self, x: Any) -> Any:
        q, k, v, out = (jax.vmap(p) for p in self.projections)
        h = jax.vmap(self.norms[0])(x)
        heads = [p(h).reshape(x.shape[0], gpt.HEADS, -1) for p in (q, k, v)]
        x = x + out(jax.nn.dot_product_attention(*heads, is_causal=True).reshape(x.shape))
        return x + jax.vmap(self.down)(jax.nn.gelu(jax.vmap(self.up)(jax.vmap(self.norms[1])(x)), approximate=True))


class GPT(eqx.Module):
    """The GPT of examples/gpt.py."""

    token: nn.Embedding
    position: Any
    blocks: list[Block]
    norm: nn.LayerNorm
    head: nn.Linear

    def __init__(self, keys: Any) -> None:
        d = gpt.WIDTH
        self.token = nn.Embedding(ALPHABET, d, key=next(keys))
        self.position = 0.02 * jax.random.normal(next(keys), (gpt.CONTEXT, d))
        self.blocks = [Block(keys) for _ in range(gpt.LAYERS)]
        self.norm, self.head = nn.LayerNorm(d), nn.Linear(d, ALPHABET, key=next(keys))

    def __call__(self, tokens: Any) -> Any:
        x = jax.vmap(self.token)(tokens) + self.position
        for block in self.blocks:
            x = block(x)
        return jax.vmap(self.head)(jax.vmap(self.norm)(x))
