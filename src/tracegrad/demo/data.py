"""The data that ship with the package. `data/README.md` names their sources and licences."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import resources
from typing import Any

import numpy as np
import numpy.typing as npt

F32 = npt.NDArray[np.float32]
I32 = npt.NDArray[np.int32]

HELD_OUT = 360  # of 1 797 digits


@dataclass(frozen=True, slots=True)
class Digits:
    """Images f32[n, 1, 8, 8] in 0..1 and labels i32[n], for training and for testing."""

    train_x: F32
    train_y: I32
    test_x: F32
    test_y: I32


@dataclass(frozen=True, slots=True)
class Text:
    """A text as numbers i32[n], and the alphabet that they index."""

    train: I32
    test: I32
    alphabet: str

    def encode(self, text: str) -> I32:
        """Return the numbers of the characters in `text`."""
        return np.array([self.alphabet.index(c) for c in text], np.int32)

    def decode(self, numbers: npt.NDArray[Any] | list[int]) -> str:
        """Return the text of `numbers`."""
        return "".join(self.alphabet[int(k)] for k in numbers)


def load_digits() -> Digits:
    """Return the UCI handwritten digits in a fixed random order: 1 437 for training, 360 held out."""
    with resources.as_file(resources.files("tracegrad") / "data" / "digits.npz") as path, np.load(path) as file:
        images, labels = file["images"], file["labels"]
    order = np.random.default_rng(0).permutation(len(labels))  # the same split for every seed
    x = (images[order, None] / 16).astype(np.float32)
    y = labels[order].astype(np.int32)
    return Digits(x[:-HELD_OUT], y[:-HELD_OUT], x[-HELD_OUT:], y[-HELD_OUT:])


def load_text() -> Text:
    """Return *Alice's Adventures in Wonderland*. The last twentieth is held out."""
    text = (resources.files("tracegrad") / "data" / "alice.txt").read_text(encoding="ascii")
    alphabet = "".join(sorted(set(text)))
    numbers = np.array([alphabet.index(c) for c in text], np.int32)
    cut = len(numbers) * 19 // 20
    return Text(numbers[:cut], numbers[cut:], alphabet)
