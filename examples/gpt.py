"""A 4-layer character transformer, with attention maps read back. Run: python examples/gpt.py

`tracegrad demo gpt` trains a smaller one, and also writes samples.
"""

from collections.abc import Sequence
from itertools import zip_longest

import numpy as np

import tracegrad as tg
from tracegrad import lr, nn, optim
from tracegrad.demo.data import load_text

BATCH, CONTEXT, WIDTH, HEADS, LAYERS = 32, 64, 128, 4, 4


class Block(tg.Module):
    def __init__(self, width: int):
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.q, self.k, self.v = nn.Linear(width, width), nn.Linear(width, width), nn.Linear(width, width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def __call__(self, x: tg.Tensor, name: str = "") -> tg.Tensor:
        h = self.norm1(x)
        q, k, v = (tg.split_heads(layer(h), HEADS) for layer in (self.q, self.k, self.v))
        if name:
            odds = tg.softmax_causal(q @ tg.swapaxes(k, -1, -2) * (WIDTH // HEADS) ** -0.5)
            mixed = tg.capture(name, odds) @ v
        else:
            mixed = tg.attention(q, k, v, causal=True)
        x = x + self.out(tg.merge_heads(mixed))
        return x + self.down(tg.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(tg.Module):
    def __init__(self, alphabet: int):
        self.token = nn.Embedding(alphabet, WIDTH)
        self.position = self.param((CONTEXT, WIDTH), decay=False)
        self.blocks = [Block(WIDTH) for _ in range(LAYERS)]
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, alphabet)


def logits(m: GPT, tokens: tg.Tensor, names: Sequence[str] = ()) -> tg.Tensor:
    x = m.token(tokens) + m.position
    for block, name in zip_longest(m.blocks, names, fillvalue=""):
        x = block(x, name)
    return m.head(m.norm(x))


def loss(m: GPT, tokens: tg.Tensor, following: tg.Tensor) -> tg.Tensor:
    return tg.cross_entropy(logits(m, tokens), following)


def attention(m: GPT, tokens: tg.Tensor) -> tg.Tensor:
    """Return the logits, and capture the attention maps."""
    return logits(m, tokens, [f"attention.{k}" for k in range(LAYERS)])


def main(steps: int = 300, device: str = "auto") -> float:
    text, rng = load_text(), np.random.default_rng(0)
    with tg.compile(
        model=GPT(len(text.alphabet)),
        loss=loss,
        inputs={"tokens": tg.i32[BATCH, CONTEXT], "following": tg.i32[BATCH, CONTEXT]},
        optimizer=optim.adamw(
            lr=lr.warmup(2e-3, 50, lr.cosine_annealing(peak=2e-3, final=1e-4, steps=max(steps - 50, 1))),
            weight_decay=0.1,
            clip_grad_norm=1.0,
        ),
        seed=0,
        device=device,
    ) as train:
        print(train)
        for step in range(steps):
            at = rng.integers(0, len(text.train) - CONTEXT - 1, BATCH)[:, None] + np.arange(CONTEXT)
            r = train.step(tokens=text.train[at], following=text.train[at + 1])
            if step % 20 == 0:
                print(f"{step:4} loss {r.loss:.4f}")
        final = r.loss
        infer = train.attach(forward=attention, inputs={"tokens": tg.i32[1, CONTEXT]})
        maps = infer.run(tokens=text.test[None, :CONTEXT]).captures.per_head("attention.0")
        print(f"{len(maps)} attention maps of {maps[0].shape} from the first layer")
    return final


if __name__ == "__main__":
    main()
