"""A character model of *Alice's Adventures in Wonderland*: a two-layer transformer that writes samples."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

import tracegrad as tg
from tracegrad import lr, nn, optim
from tracegrad.demo.common import Options, Report, loss_chart
from tracegrad.demo.data import F32, I32, Text, load_text

BATCH, CONTEXT = 16, 64
WIDTH, HEADS, LAYERS = 64, 4, 2
STEPS = 1500
TEMPERATURE = 0.6
SAMPLES, SAMPLE_LENGTH = 4, 240
TEST_BATCHES = 8


class Block(tg.Module):
    """Attention and a feed-forward part, each after a norm and with a residual."""

    def __init__(self, width: int) -> None:
        narrow, wide = tg.init.lecun(), tg.init.kaiming(gain=0.5)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q = nn.Linear(width, width, init=narrow)
        self.k = nn.Linear(width, width, init=narrow)
        self.v = nn.Linear(width, width, init=narrow)
        self.out = nn.Linear(width, width, init=narrow)
        self.up = nn.Linear(width, 4 * width, init=narrow)
        self.down = nn.Linear(4 * width, width, init=wide)

    def __call__(self, x: tg.Tensor) -> tg.Tensor:
        """Apply the block: f32[B, T, width] -> f32[B, T, width]."""
        h = self.norm1(x)
        q, k, v = (tg.split_heads(layer(h), HEADS) for layer in (self.q, self.k, self.v))
        x = x + self.out(tg.merge_heads(tg.attention(q, k, v, causal=True)))
        return x + self.down(tg.gelu(self.up(self.norm2(x))))


class CharGPT(tg.Module):
    """Embeddings, blocks, a norm and the output layer."""

    def __init__(self, alphabet: int) -> None:
        self.token = nn.Embedding(alphabet, WIDTH)
        self.position = self.param((CONTEXT, WIDTH), decay=False)
        self.blocks = [Block(WIDTH) for _ in range(LAYERS)]
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, alphabet)


def logits(m: CharGPT, tokens: tg.Tensor) -> tg.Tensor:
    """Return scores f32[B, T, alphabet] of the next character after each of i32[B, T]."""
    x = m.token(tokens) + m.position
    for block in m.blocks:
        x = block(x)
    return m.head(m.norm(x))


def loss(m: CharGPT, tokens: tg.Tensor, following: tg.Tensor) -> tg.Tensor:
    """Return the mean cross-entropy of the next character."""
    return tg.cross_entropy(logits(m, tokens), following)


def windows(numbers: I32, rng: np.random.Generator) -> dict[str, Any]:
    """Return a batch of random windows of the text, and the same windows one character later."""
    at = rng.integers(0, len(numbers) - CONTEXT - 1, BATCH)[:, None] + np.arange(CONTEXT)
    return {"tokens": numbers[at], "following": numbers[at + 1]}


def batches(text: Text, steps: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield batches of random windows of the training part."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        yield windows(text.train, rng)


def write(infer: tg.CompiledForward, text: Text, prompts: list[str], length: int, seed: int) -> list[str]:
    """Continue each prompt by `length` characters, each drawn from the model's scores divided by TEMPERATURE."""
    rng = np.random.default_rng(seed)
    lines = np.stack([text.encode(p) for p in prompts])
    for _ in range(length):
        seen = lines[:, -CONTEXT:]
        last = seen.shape[1] - 1
        padded = np.pad(seen, [(0, 0), (0, CONTEXT - last - 1)])  # causal: elements after `last` have no influence
        scores: F32 = infer.run(tokens=padded).output[:, last] / TEMPERATURE
        drawn: I32 = np.argmax(scores + rng.gumbel(size=scores.shape), axis=1).astype(np.int32)  # the Gumbel-max trick
        lines = np.concatenate([lines, drawn[:, None]], axis=1)
    return [text.decode(line) for line in lines]


def mean_loss(score: tg.CompiledForward, text: Text) -> float:
    """Return the cross-entropy on random windows of the held-out part, in nats per character."""
    rng = np.random.default_rng(0)
    pending = [score.run(windows(text.test, rng)) for _ in range(TEST_BATCHES)]
    return sum(float(p.output) for p in pending) / TEST_BATCHES


def run(options: Options) -> int:
    """Train, print samples, and write the folder. Returns the exit code."""
    text = load_text()
    steps = options.steps or STEPS
    inputs = {"tokens": tg.i32[BATCH, CONTEXT], "following": tg.i32[BATCH, CONTEXT]}
    report = Report("gpt", options)
    report.say(
        f"Alice's Adventures in Wonderland (public domain): {len(text.train)} characters to train with, "
        f"{len(text.test)} held out, {len(text.alphabet)} different"
    )
    rate = lr.one_cycle(peak=6e-3, steps=steps)
    optimizer = optim.adamw(lr=rate, beta2=0.99, weight_decay=0.1, clip_grad_norm=1.0)
    with report.training(CharGPT(len(text.alphabet)), loss, inputs, optimizer) as train:
        history = train.fit(batches(text, steps, options.seed), steps=steps)
        report.trained(train, history)
        held_out = mean_loss(train.attach(forward=loss, inputs=inputs), text)
        report.say(f"Held-out loss: {held_out:.3f} nats a character (guessing: {math.log(len(text.alphabet)):.3f})")
        infer = train.attach(forward=logits, inputs={"tokens": tg.i32[None, CONTEXT]})
        samples = write(infer, text, ["\nAlice "] * SAMPLES, SAMPLE_LENGTH, options.seed)
        for sample in samples:
            report.say("-" * 60 + sample)
        report.write_text("samples.txt", ("\n" + "-" * 60).join(samples) + "\n")
        report.write_text("loss.svg", loss_chart(history.loss, "Character model: training loss", "nats a character"))
        report.finish(train, held_out_loss=held_out)
        at = np.arange(0, len(text.train) - CONTEXT - 1, CONTEXT)[:, None] + np.arange(CONTEXT)
        rows = {"tokens": text.train[at], "following": text.train[at + 1]}
        alphabet = list(text.alphabet)
        report.page(train, "A model of Alice", forwards={"Write": infer}, data=rows, vocabulary=alphabet)
    return 0
