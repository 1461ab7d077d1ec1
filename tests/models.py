"""Models that several test files share: small ones that train in seconds, and those of the dispatch budget."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.compiler.build import Built, ForwardSource, StepSource


def build_training(*args: Any, **options: Any) -> Built:
    """The program of one training step; the arguments are those of `StepSource`."""
    return StepSource(*args, **options).traced().compiled()


def build_forward(*args: Any, **options: Any) -> Built:
    """The program of one forward; the arguments are those of `ForwardSource`."""
    return ForwardSource(*args, **options).traced().compiled()


class SineMLP(tg.Module):
    """1-width-width-1."""

    def __init__(self, width: int = 64) -> None:
        self.l1 = nn.Linear(1, width, init=tg.init.kaiming())
        self.l2, self.l3 = nn.Linear(width, width), nn.Linear(width, 1)


def sine_predict(m: SineMLP, x: tg.Tensor) -> tg.Tensor:
    return m.l3(tg.relu(m.l2(tg.relu(m.l1(x)))))


def sine_loss(m: SineMLP, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mean(tg.square(sine_predict(m, x) - y))


class CNN(tg.Module):
    """Two convolutions 1 -> a -> b, each with relu and a 2x2 pool, and one dense layer."""

    def __init__(self, side: int = 28, a: int = 16, b: int = 32) -> None:
        he = tg.init.kaiming()
        self.conv1 = nn.Conv2d(1, a, 3, padding=1, init=he)
        self.conv2 = nn.Conv2d(a, b, 3, padding=1, init=he)
        self.dense = nn.Linear(b * (side // 4) ** 2, 10, init=tg.init.xavier())


def cnn_logits(m: CNN, x: tg.Tensor) -> tg.Tensor:
    x = tg.max_pool2d(tg.relu(m.conv1(x)), 2)
    x = tg.max_pool2d(tg.relu(m.conv2(x)), 2)
    return m.dense(tg.flatten(x))


def cnn_loss(m: CNN, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.cross_entropy(cnn_logits(m, x), y)


class Block(tg.Module):
    """Attention with separate q, k and v, and a feed-forward part, each behind a norm and beside a residual."""

    def __init__(self, width: int, heads: int, p: float) -> None:
        narrow = tg.init.randn(1 / math.sqrt(width))
        self.heads, self.p = heads, p
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v, self.out = (nn.Linear(width, width, init=narrow) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width, init=narrow), nn.Linear(4 * width, width)

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        h = self.norm1(x)
        q, k, v = (tg.split_heads(layer(h), self.heads) for layer in (self.q, self.k, self.v))
        a = self.out(tg.merge_heads(tg.attention(q, k, v, causal=True)))
        x = x + (tg.dropout(a, self.p) if self.p else a)
        return x + self.down(tg.gelu(self.up(self.norm2(x))))


class GPT(tg.Module):
    """Embeddings, blocks, a norm and the output layer."""

    def __init__(
        self, vocabulary: int = 65, context: int = 64, width: int = 128, layers: int = 4, heads: int = 4, p: float = 0.0
    ) -> None:
        self.token = nn.Embedding(vocabulary, width)
        self.position = self.param((context, width), decay=False)
        self.blocks = [Block(width, heads, p) for _ in range(layers)]
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocabulary)


def gpt_logits(m: GPT, tokens: tg.Tensor) -> tg.Tensor:
    x = m.token(tokens) + m.position
    for block in m.blocks:
        x = block(x)
    return m.head(m.norm(x))


def gpt_loss(m: GPT, tokens: tg.Tensor, following: tg.Tensor) -> tg.Tensor:
    return tg.cross_entropy(gpt_logits(m, tokens), following)


class RNN(tg.Module):
    """A recurrent layer, and a dense layer that reads its states."""

    def __init__(self, inputs: int = 2, width: int = 32) -> None:
        narrow = tg.init.randn(1 / math.sqrt(width))
        self.input, self.state = nn.Linear(inputs, width, init=narrow), nn.Linear(width, width, bias=False, init=narrow)
        self.output = nn.Linear(width, 1, init=narrow)


def rnn_outputs(m: RNN, x: tg.Tensor, loop: Callable[..., Any] = tg.scan) -> tg.Tensor:
    """One number a time step; `x` has time first."""

    def step(h: tg.Tensor, x: tg.Tensor) -> tuple[tg.Tensor, tg.Tensor]:
        h = tg.tanh(m.input(x) + m.state(h))
        return h, m.output(h)

    return loop(step, tg.zeros((x.shape[1], m.state.W.shape[0])), x)[1]


def rnn_loss(m: RNN, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mean(tg.square(rnn_outputs(m, x) - y))


def adamw(**more: Any) -> optim.Optimizer:
    """What the budget is stated for."""
    return optim.adamw(lr=1e-3, weight_decay=0.1, clip_grad_norm=1.0, **more)


@dataclass(frozen=True)
class Training:
    """All that `tg.compile` wants, by name."""

    name: str
    model: Callable[[], tg.Module]
    loss: Callable[..., Any]
    inputs: Mapping[str, Any]
    optimizer: Callable[[], optim.Optimizer] = adamw

    def __repr__(self) -> str:
        return self.name

    def arguments(self) -> dict[str, Any]:
        """For `tg.compile` and `build_training`; a fresh model and optimizer each."""
        return {"model": self.model(), "loss": self.loss, "inputs": dict(self.inputs), "optimizer": self.optimizer()}

    def build(self) -> Built:
        """Compiled, without any device."""
        return build_training(**self.arguments())


def sine(batch: int = 256, width: int = 64, **more: Any) -> Training:
    return Training("sine", lambda: SineMLP(width), sine_loss, {"x": (batch, 1), "y": (batch, 1)}, **more)


def cnn(batch: int = 64, side: int = 28, a: int = 16, b: int = 32, **more: Any) -> Training:
    inputs = {"x": (batch, 1, side, side), "y": tg.i32[batch]}
    return Training("cnn", lambda: CNN(side, a, b), cnn_loss, inputs, **more)


def rnn(batch: int = 64, length: int = 128, width: int = 64, **more: Any) -> Training:
    inputs = {"x": (length, batch, 2), "y": (length, batch, 1)}
    return Training("rnn", lambda: RNN(2, width), rnn_loss, inputs, **more)


def gpt(
    batch: int = 32,
    vocabulary: int = 65,
    context: int = 64,
    width: int = 128,
    layers: int = 4,
    p: float = 0.0,
    **more: Any,
) -> Training:
    inputs = {"tokens": tg.i32[batch, context], "following": tg.i32[batch, context]}
    return Training("gpt", lambda: GPT(vocabulary, context, width, layers, p=p), gpt_loss, inputs, **more)


# the most dispatches a step, AdamW and clipping included
BUDGET = {"sine": (sine(), 12), "cnn": (cnn(), 40), "gpt": (gpt(), 170)}
SMALL = (
    sine(batch=16, width=8),
    cnn(batch=4, side=8, a=3, b=5),
    gpt(batch=2, vocabulary=11, context=8, width=8, layers=2),
    rnn(batch=3, length=6, width=5),
)
