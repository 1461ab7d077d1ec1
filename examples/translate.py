"""Sequence to sequence with attention: a model writes numbers backwards. Run: python examples/translate.py

One GRU reads, another writes, and each written digit attends to all digits that were read. Luong et al. 2015.
"""

from collections.abc import Iterator

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim

BATCH, LENGTH, WIDTH = 64, 8, 48
START = 10  # the token after the ten digits


class Translator(tg.Module):
    def __init__(self):
        self.embed = nn.Embedding(11, 24)
        self.reader, self.writer = nn.GRU(24, WIDTH), nn.GRU(24, WIDTH)
        self.mix, self.out = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, 10)

    def __call__(self, source: tg.Tensor, before: tg.Tensor) -> tg.Tensor:
        """Return scores for each digit. `before` has the digits before it."""
        read, last = self.reader(self.embed(source))
        written, _ = self.writer(self.embed(before), last)
        seen = tg.softmax(written @ tg.swapaxes(read, 1, 2), axis=-1) @ read
        return self.out(tg.tanh(self.mix(tg.concat([written, seen], axis=-1))))


def loss(m: Translator, source: tg.Tensor, target: tg.Tensor, before: tg.Tensor) -> tg.Tensor:
    return tg.cross_entropy(tg.reshape(m(source, before), (-1, 10)), tg.reshape(target, (-1,)))


def pairs(n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    source = rng.integers(0, 10, (n, LENGTH)).astype(np.int32)
    target = source[:, ::-1]
    before = np.concatenate([np.full((n, 1), START, np.int32), target[:, :-1]], 1)
    return {"source": source, "target": np.ascontiguousarray(target), "before": before}


def training(device: str = "auto") -> tg.CompiledTraining:
    inputs = dict.fromkeys(("source", "target", "before"), tg.i32[BATCH, LENGTH])
    optimizer = optim.adam(lr=5e-3, clip_grad_norm=1.0)
    return tg.compile(model=Translator(), loss=loss, inputs=inputs, optimizer=optimizer, seed=0, device=device)


def batches(steps: int) -> Iterator[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    for _ in range(steps):
        yield pairs(BATCH, rng)


def main(steps: int = 800, device: str = "auto") -> float:
    new = pairs(200, np.random.default_rng(1))
    with training(device) as train:
        train.fit(batches(steps))
        inputs = {"source": tg.i32[200, LENGTH], "before": tg.i32[200, LENGTH]}
        infer = train.attach(forward=Translator.__call__, inputs=inputs)
        before = np.full((200, LENGTH), START, np.int32)
        for k in range(LENGTH):  # each digit depends on the digits written before it
            digit = infer.run(source=new["source"], before=before).output[:, k].argmax(-1)
            if k + 1 < LENGTH:
                before[:, k + 1] = digit
    written = np.concatenate([before[:, 1:], digit[:, None]], 1)
    right = float((written == new["target"]).all(1).mean())
    print(f"{right:.0%} of {len(written)} new numbers are written without a fault")
    return right


if __name__ == "__main__":
    main()
