"""Digits as 16 words of a codebook: a VQ-VAE with running means as its codebook. Run: python examples/vqvae.py

The codebook is a state, which the step writes and no optimizer changes. Van den Oord et al. 2017, appendix A.1.
"""

from collections.abc import Iterator

import numpy as np

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.demo.data import load_digits

BATCH, WORDS, WIDTH = 64, 64, 8


class Model(tg.Module):
    def __init__(self):
        self.down, self.mix = nn.Conv2d(1, 32, 4, stride=2, padding=1), nn.Conv2d(32, WIDTH, 1)
        self.wide, self.up = nn.Conv2d(WIDTH, 32, 3, padding=1), nn.Conv2d(32, 4, 1)
        self.words = self.state((WORDS, WIDTH), init=tg.init.randn(1.0))
        self.sums = self.state((WORDS, WIDTH))
        self.counts = self.state((WORDS,))


def encode(m: Model, x: tg.Tensor) -> tuple[tg.Tensor, tg.Tensor]:
    """Return a vector for each of [image, 4, 4], and the number of the nearest word."""
    z = tg.permute(m.mix(tg.relu(m.down(x))), (0, 2, 3, 1))
    return z, tg.argmin(tg.sum(tg.square(m.words), axis=1) - 2 * z @ m.words.T, axis=-1)


def decode(m: Model, z: tg.Tensor) -> tg.Tensor:
    return tg.pixel_shuffle(m.up(tg.relu(m.wide(tg.permute(z, (0, 3, 1, 2))))), 2)


def follow(m: Model, z: tg.Tensor, word: tg.Tensor) -> None:
    """Move each word to the running mean of the vectors that it represents."""
    chosen = tg.one_hot(tg.reshape(word, (-1,)), WORDS)
    m.counts.assign(0.95 * m.counts + 0.05 * tg.sum(chosen, axis=0))
    m.sums.assign(0.95 * m.sums + 0.05 * (chosen.T @ tg.reshape(z, (-1, WIDTH))))
    used = tg.expand_dims(m.counts > 1e-3, 1)
    m.words.assign(tg.where(used, m.sums / tg.maximum(tg.expand_dims(m.counts, 1), 1e-3), m.words))


def loss(m: Model, x: tg.Tensor) -> tuple[tg.Tensor, dict[str, tg.Tensor]]:
    z, word = encode(m, x)
    chosen = m.words[word]
    follow(m, z, word)
    straight = z + tg.stop_gradient(chosen - z)  # straight through: the gradient ignores the choice
    wrong = tg.mse_loss(decode(m, straight), x)
    return wrong + 0.25 * tg.mse_loss(z, tg.stop_gradient(chosen)), {"wrong": wrong}


def training(device: str = "auto") -> tg.CompiledTraining:
    inputs, optimizer = {"x": (BATCH, 1, 8, 8)}, optim.adam(lr=3e-3)
    return tg.compile(model=Model(), loss=loss, inputs=inputs, optimizer=optimizer, seed=0, device=device)


def batches(steps: int) -> Iterator[dict[str, np.ndarray]]:
    data, rng = load_digits(), np.random.default_rng(0)
    for _ in range(steps):
        yield {"x": data.train_x[rng.integers(0, len(data.train_x), BATCH)]}


def main(steps: int = 1500, device: str = "auto") -> float:
    with training(device) as train:
        train.fit(batches(steps))
        x = load_digits().test_x
        read = train.attach(forward=lambda m, x: encode(m, x)[1], inputs={"x": (None, 1, 8, 8)})
        show = train.attach(forward=lambda m, word: decode(m, m.words[word]), inputs={"word": tg.i32[None, 4, 4]})
        words = read.run(x=x).output
        wrong = float(np.square(show.run(word=words).output - x).mean() / x.var())
    print(f"{len(np.unique(words))} words in use; {1 - wrong:.0%} of the variance of unseen images is kept")
    return wrong


if __name__ == "__main__":
    main()
