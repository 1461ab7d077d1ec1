"""A GRU reads sequences of many lengths, padded to one, and classifies their direction. Run: python examples/words.py

Each sequence rises or falls overall, with noise. `lengths` marks its end, and elements beyond are not read.
"""

from collections.abc import Iterator

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim

BATCH, LONGEST, WORDS = 64, 24, 32


class Reader(tg.Module):
    def __init__(self):
        self.embed, self.gru, self.out = nn.Embedding(WORDS, 16), nn.GRU(16, 32), nn.Linear(32, 2)

    def __call__(self, words: tg.Tensor, lengths: tg.Tensor) -> tg.Tensor:
        _, last = self.gru(self.embed(words), lengths=lengths)
        return self.out(last[0])


def loss(m: Reader, words: tg.Tensor, lengths: tg.Tensor, way: tg.Tensor) -> tg.Tensor:
    return tg.cross_entropy(m(words, lengths), way)


def sequences(n: int, rng: np.random.Generator) -> dict[str, np.ndarray]:
    lengths, way = rng.integers(6, LONGEST + 1, n), rng.integers(0, 2, n)
    slope = np.where(way == 1, 0.5, -0.5)[:, None] * np.arange(LONGEST)
    words = np.clip(np.round(16 + slope + 4 * rng.standard_normal((n, LONGEST))), 0, WORDS - 1)
    words[np.arange(LONGEST) >= lengths[:, None]] = 0
    return {"words": words.astype(np.int32), "lengths": lengths.astype(np.int32), "way": way.astype(np.int32)}


def training(device: str = "auto") -> tg.CompiledTraining:
    inputs = {"words": tg.i32[BATCH, LONGEST], "lengths": tg.i32[BATCH], "way": tg.i32[BATCH]}
    return tg.compile(model=Reader(), loss=loss, inputs=inputs, optimizer=optim.adam(lr=5e-3), seed=0, device=device)


def batches(steps: int) -> Iterator[dict[str, np.ndarray]]:
    rng = np.random.default_rng(0)
    for _ in range(steps):
        yield sequences(BATCH, rng)


def main(steps: int = 300, device: str = "auto") -> float:
    with training(device) as train:
        train.fit(batches(steps))
        new = sequences(1000, np.random.default_rng(1))
        way = new.pop("way")
        inputs = {"words": tg.i32[1000, LONGEST], "lengths": tg.i32[1000]}
        scores = train.attach(forward=Reader.__call__, inputs=inputs).run(**new).output
    right = float((scores.argmax(1) == way).mean())
    print(f"right about {right:.1%} of new sequences")
    return right


if __name__ == "__main__":
    main()
