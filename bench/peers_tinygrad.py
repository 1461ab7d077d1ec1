"""The models of bench/cpu.py in tinygrad, on its CPU device: the whole step in one TinyJit."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable
from typing import Any

os.environ.setdefault("DEV", "CPU")

from steps import ALPHABET, CLIP, CLOCK, DECAY, RATE, Workload, batches_of, gpt
from tinygrad import Context, Tensor, TinyJit, nn

DENSE = {"sine": (1, 64, 64, 1), "mlp": (784, 512, 512, 10), "cnn": (1568, 10)}


def tinygrad_block(name: str, w: Workload) -> Callable[[int], float]:
    """A function that runs n steps and gives the seconds."""
    params, loss = transformer() if name not in DENSE else simple(name)
    optimizer = nn.optim.AdamW(params, lr=RATE, weight_decay=DECAY)
    batches = batches_of(w)

    @TinyJit
    def step(batch: dict[str, Tensor]) -> Tensor:
        optimizer.zero_grad()
        value = loss(**batch).backward()
        grads = [p.grad for p in params if p.grad is not None]
        norm = sum((g.square().sum() for g in grads), Tensor(0.0)).sqrt()
        for p, g in zip(params, grads):
            p.grad = g * (CLIP / (norm + 1e-6)).minimum(1.0)
        return value.realize(*optimizer.schedule_step())

    def block(n: int) -> float:
        given = batches(n)
        began = CLOCK()
        for batch in given:
            with Context(TRAINING=1):
                value = step({k: Tensor(v).realize() for k, v in batch.items()})
        value.item()
        return CLOCK() - began

    return block


def simple(name: str) -> tuple[list[Tensor], Callable[..., Tensor]]:
    """The dense networks and the CNN."""
    dense = [nn.Linear(a, b) for a, b in itertools.pairwise(DENSE[name])]
    convolutions = [nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, padding=1)] if name == "cnn" else []

    def loss(x: Tensor, y: Tensor) -> Tensor:
        for layer in convolutions:
            x = layer(x).relu().max_pool2d(2)
        x = x.flatten(1)
        for k, layer in enumerate(dense):
            x = layer(x.relu() if k else x)
        return (x - y).square().mean() if name == "sine" else x.sparse_categorical_crossentropy(y)

    return [p for layer in (*dense, *convolutions) for p in (layer.weight, layer.bias)], loss


class Block:
    """One layer of the GPT of examples/gpt.py."""

    def __init__(self) -> None:
        d = gpt.WIDTH
        self.norm1, self.norm2 = nn.LayerNorm(d), nn.LayerNorm(d)
        self.q, self.k, self.v, self.out = (nn.Linear(d, d) for _ in range(4))
        self.up, self.down = nn.Linear(d, 4 * d), nn.Linear(4 * d, d)

    def __call__(self, x: Tensor) -> Tensor:
        h = self.norm1(x)
        q, k, v = (p(h).reshape(*x.shape[:2], gpt.HEADS, -1).transpose(1, 2) for p in (self.q, self.k, self.v))
        x = x + self.out(q.scaled_dot_product_attention(k, v, is_causal=True).transpose(1, 2).reshape(x.shape))
        return x + self.down(self.up(self.norm2(x)).gelu())


def transformer() -> tuple[list[Tensor], Callable[..., Tensor]]:
    """Its parameters and loss."""
    token, position = nn.Embedding(ALPHABET, gpt.WIDTH), Tensor.uniform(gpt.CONTEXT, gpt.WIDTH, low=-0.02, high=0.02)
    blocks = [Block() for _ in range(gpt.LAYERS)]
    norm, head = nn.LayerNorm(gpt.WIDTH), nn.Linear(gpt.WIDTH, ALPHABET)

    def loss(tokens: Tensor, following: Tensor) -> Tensor:
        x = token(tokens) + position
        for block in blocks:
            x = block(x)
        return head(norm(x)).flatten(0, 1).sparse_categorical_crossentropy(following.flatten())

    parts: Any = {"token": token, "position": position, "blocks": blocks, "norm": norm, "head": head}
    return list(nn.state.get_parameters(parts)), loss
