"""examples/generate.py beside PyTorch: its weights give the same next tokens, from a cache and from the whole text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from oracle import torch
from test_twins import example
from tracegrad import optim


@pytest.fixture(scope="module")
def ours() -> Any:
    return example("generate")


def twin(ours: Any, alphabet: int) -> Any:
    class GPT(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            width = ours.WIDTH
            self.tokens, self.places = torch.nn.Embedding(alphabet, width), torch.nn.Embedding(ours.CONTEXT, width)
            layer = torch.nn.TransformerEncoderLayer
            how = {"dropout": 0.0, "activation": "gelu", "batch_first": True, "norm_first": True}
            self.blocks = torch.nn.ModuleList(layer(width, ours.HEADS, 4 * width, **how) for _ in range(ours.LAYERS))
            self.norm, self.head = torch.nn.LayerNorm(width), torch.nn.Linear(width, alphabet)

        def forward(self, tokens: Any) -> Any:
            n = tokens.shape[1]
            h = self.tokens(tokens) + self.places(torch.arange(n))
            for block in self.blocks:
                h = block(h, src_mask=torch.triu(torch.ones(n, n, dtype=torch.bool), 1))
            return self.head(self.norm(h))

    return GPT()


def test_what_is_written_from_a_cache_is_what_pytorch_finds_likeliest(ours: Any) -> None:
    alphabet, rng = 11, np.random.default_rng(3)
    inputs = {"tokens": tg.i32[2, 8], "following": tg.i32[2, 8]}
    with tg.compile(model=ours.GPT(alphabet), loss=ours.loss, inputs=inputs, optimizer=optim.sgd(0.0), seed=0,
                    device="cpu") as train:  # fmt: skip
        # larger heads, so that the likeliest token is clear
        train.set_params({"head.W": rng.standard_normal((ours.WIDTH, alphabet)).astype(np.float32)})
        net, write = twin(ours, alphabet), ours.writer(train, 5)
        net.load_state_dict(tg.to_torch(train))
        batch = {n: rng.integers(0, alphabet, (2, 8)).astype(np.int32) for n in inputs}
        tokens, following = (torch.tensor(batch[n]).long() for n in inputs)
        want = torch.nn.functional.cross_entropy(net(tokens).reshape(-1, alphabet), following.reshape(-1))
        assert train.step(batch).loss == pytest.approx(want.item(), rel=1e-5)
        for prompt in ([1, 2, 3, 4, 5], [9, 0, 9, 0, 1]):  # the second over the cache of the first
            written = write(prompt, 12, temperature=1e-4)
            likeliest = net(torch.tensor([written]))[0].argmax(-1)
            assert len(written) == 17 and written[:5] == prompt and written[5:] == likeliest[4:-1].tolist()
