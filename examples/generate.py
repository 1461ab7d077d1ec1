"""A small GPT writes text with a cache of keys and values: each new token runs the model on one token only.

Run: python examples/generate.py
"""

import time

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.demo.data import load_text

BATCH, CONTEXT, WIDTH, HEADS, LAYERS = 16, 128, 64, 4, 2


class GPT(tg.Module):
    def __init__(self, alphabet: int):
        self.tokens, self.places = nn.Embedding(alphabet, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = [nn.TransformerBlock(WIDTH, HEADS, causal=True, cache=(1, CONTEXT)) for _ in range(LAYERS)]
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, alphabet)


def logits(m, tokens, at=None):
    places = tg.arange(tokens.shape[1]) if at is None else tg.arange(tokens.shape[1]) + at
    h = m.tokens(tokens) + m.places(places)
    for block in m.blocks:
        h = block(h, position=at)
    return m.head(m.norm(h))


def loss(m, tokens, following):
    return tg.cross_entropy(logits(m, tokens), following)


def last(m, tokens, at):
    """Return the logits of the next token. The cache has all tokens before position `at`."""
    return logits(m, tokens, at)[0, -1]


def writer(train, length):
    """Return a function that writes `n` tokens after a prompt of `length` tokens. Both must fit the context."""
    at = tg.i32[()]
    first = train.attach(forward=last, inputs={"tokens": tg.i32[1, length], "at": at}, writes=True)
    step = train.attach(forward=last, inputs={"tokens": tg.i32[1, 1], "at": at}, writes=True)

    def write(prompt, n, temperature=0.8, seed=0):
        rng, tokens = np.random.default_rng(seed), list(prompt)
        out = first.run(tokens=[tokens], at=0).output
        while True:
            odds = np.exp((out - out.max()) / temperature, dtype=np.float64)
            tokens.append(int(rng.choice(len(out), p=odds / odds.sum())))
            if len(tokens) == length + n:
                return tokens
            out = step.run(tokens=[tokens[-1:]], at=len(tokens) - 1).output

    return write


def training(device="auto"):
    inputs = {"tokens": tg.i32[BATCH, CONTEXT], "following": tg.i32[BATCH, CONTEXT]}
    return tg.compile(model=GPT(len(load_text().alphabet)), loss=loss, inputs=inputs,
                      optimizer=optim.adamw(3e-3, 0.1), seed=0, device=device)  # fmt: skip


def batches(steps):
    text, rng = load_text().train, np.random.default_rng(0)
    for _ in range(steps):
        at = rng.integers(0, len(text) - CONTEXT - 1, BATCH)[:, None] + np.arange(CONTEXT)
        yield {"tokens": text[at], "following": text[at + 1]}


def main(steps=200, n=100, device="auto"):
    text = load_text()
    with training(device) as train:
        for step, batch in enumerate(batches(steps)):
            r = train.step(batch)
            if step % 50 == 0:
                print(f"{step:4} loss {r.loss:.4f}")
        write = writer(train, 16)
        write(text.test[:16], 2)  # compiles
        begin = time.perf_counter()
        tokens = write(text.test[:16], n)
        print("".join(text.alphabet[t] for t in tokens))
        print(f"{n / (time.perf_counter() - begin):.0f} tokens a second")


if __name__ == "__main__":
    main()
