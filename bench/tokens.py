"""Tokens a second that a small GPT writes with a cache of keys and values, beside the same in PyTorch.

python bench/tokens.py [tokens] [threads]     # of examples/generate.py's model, one text at a time, on the CPU
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch

import tracegrad as tg
from tracegrad import optim

sys.path.append(str(Path(__file__).parents[1] / "examples"))
import generate as ours

ALPHABET, PROMPT, ROUNDS = 64, 16, 9


class Block(torch.nn.Module):
    """Weights of TransformerEncoderLayer, with keys and values of what was earlier."""

    def __init__(self) -> None:
        super().__init__()
        t, d = torch.nn, ours.WIDTH
        self.qkv, self.out = t.Linear(d, 3 * d), t.Linear(d, d)
        self.linear1, self.linear2 = t.Linear(d, 4 * d), t.Linear(4 * d, d)
        self.norm1, self.norm2 = t.LayerNorm(d), t.LayerNorm(d)
        shape = (1, ours.HEADS, ours.CONTEXT, d // ours.HEADS)
        self.keys, self.values = torch.zeros(shape), torch.zeros(shape)

    def forward(self, x: Any, at: int) -> Any:
        n = x.shape[1]
        q, k, v = (y.view(1, n, ours.HEADS, -1).transpose(1, 2) for y in self.qkv(self.norm1(x)).chunk(3, -1))
        self.keys[:, :, at : at + n], self.values[:, :, at : at + n] = k, v
        k, v = self.keys[:, :, : at + n], self.values[:, :, : at + n]
        y = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=n > 1)
        x = x + self.out(y.transpose(1, 2).reshape(1, n, -1))
        return x + self.linear2(torch.nn.functional.gelu(self.linear1(self.norm2(x))))


class GPT(torch.nn.Module):
    """The model of examples/generate.py."""

    def __init__(self) -> None:
        super().__init__()
        t = torch.nn
        self.tokens, self.places = t.Embedding(ALPHABET, ours.WIDTH), t.Embedding(ours.CONTEXT, ours.WIDTH)
        self.blocks = t.ModuleList(Block() for _ in range(ours.LAYERS))
        self.norm, self.head = t.LayerNorm(ours.WIDTH), t.Linear(ours.WIDTH, ALPHABET)

    def forward(self, tokens: Any, at: int) -> Any:
        h = self.tokens(tokens) + self.places(torch.arange(at, at + tokens.shape[1]))
        for block in self.blocks:
            h = block(h, at)
        return self.head(self.norm(h))[0, -1]


def weights(net: GPT) -> dict[str, np.ndarray]:
    """Those of `net` by tracegrad's names."""
    out: dict[str, np.ndarray] = {}
    for name, x in net.state_dict().items():
        value = x.numpy()
        where, kind = name.rsplit(".", 1)
        if kind == "weight" and value.ndim == 2 and where not in ("tokens", "places"):
            value = value.T
        own = {"weight": "W" if value.ndim == 2 else "g", "bias": "b"}[kind]
        if where.endswith("qkv"):
            for part, piece in zip("qkv", np.split(value, 3, axis=-1), strict=True):
                out[f"{where.removesuffix('qkv')}self_attn.{part}_proj.{own}"] = piece
        else:
            out[f"{where.replace('.out', '.self_attn.out_proj')}.{own}"] = value
    return out


def torch_writer(net: GPT) -> Callable[..., list[int]]:
    """As examples/generate.py's `writer`."""

    @torch.inference_mode()
    def write(prompt: Any, n: int, temperature: float = 0.8, seed: int = 0) -> list[int]:
        rng, tokens = np.random.default_rng(seed), list(prompt)
        out = net(torch.tensor([tokens]), 0).numpy()
        while True:
            odds = np.exp((out - out.max()) / temperature, dtype=np.float64)
            tokens.append(int(rng.choice(len(out), p=odds / odds.sum())))
            if len(tokens) == PROMPT + n:
                return tokens
            out = net(torch.tensor([tokens[-1:]]), len(tokens) - 1).numpy()

    return write


def main() -> None:
    """Both write the same text; the median of some rounds, in turns."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("tokens", type=int, nargs="?", default=100, help="a text (default: %(default)s)")
    parser.add_argument("threads", type=int, nargs="?", default=1, help="of PyTorch (default: %(default)s)")
    options = parser.parse_args()
    n = options.tokens
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    net = GPT().eval()
    inputs = {"tokens": tg.i32[1, 8], "following": tg.i32[1, 8]}
    with tg.compile(
        model=ours.GPT(ALPHABET), loss=ours.loss, inputs=inputs, optimizer=optim.sgd(0.0), seed=0, device="cpu"
    ) as train:
        train.set_params(weights(net), strict=True)
        writers = {"tracegrad": ours.writer(train, PROMPT), "PyTorch": torch_writer(net)}
        prompt = np.random.default_rng(0).integers(0, ALPHABET, PROMPT).tolist()
        texts = [write(prompt, n) for write in writers.values()]
        print("the same text" if texts[0] == texts[1] else "other texts: roundings decide some tokens")
        rates: dict[str, list[float]] = {name: [] for name in writers}
        for _ in range(ROUNDS):
            for name, write in writers.items():
                begin = time.perf_counter()
                write(prompt, n)
                rates[name].append(n / (time.perf_counter() - begin))
        print(", ".join(f"{name} {statistics.median(r):.0f}" for name, r in rates.items()), "tokens a second")


if __name__ == "__main__":
    main()
