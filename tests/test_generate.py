"""examples/generate.py beside PyTorch: its weights give the same next tokens, from a cache and from the whole text."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from test_twins import example
from tracegrad import optim
from twins import generate as twin


@pytest.fixture(scope="module")
def ours() -> Any:
    return example("generate")


def test_what_is_written_from_a_cache_is_what_pytorch_finds_likeliest(ours: Any) -> None:
    alphabet, rng = 11, np.random.default_rng(3)
    inputs = {"tokens": tg.i32[2, 8], "following": tg.i32[2, 8]}
    with tg.compile(model=ours.GPT(alphabet), loss=ours.loss, inputs=inputs, optimizer=optim.sgd(0.0), seed=0,
                    device="cpu") as train:  # fmt: skip
        # larger heads, so that the likeliest token is clear
        train.set_params({"head.W": rng.standard_normal((ours.WIDTH, alphabet)).astype(np.float32)})
        net, write = twin.Net(alphabet), ours.writer(train, 5)
        net.load_state_dict(tg.to_torch(train))
        for prompt in ([1, 2, 3, 4, 5], [9, 0, 9, 0, 1]):  # the second over the cache of the first
            written = write(prompt, 12, temperature=1e-4)
            assert written == twin.write(net, prompt, 12) and len(written) == 17
