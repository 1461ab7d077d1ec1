"""Functions of short rows in C: loops over chunks of rows give the bits of one long row."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from in_c import computed, text
from tracegrad.dtypes import f32
from tracegrad.ir.nodes import Tensor
from tracegrad.tuning import CHUNK

CHUNKS = re.compile(r"long rows = min\(")
FUNCTIONS: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "tanh": lambda x, y, z: tg.tanh(x * y + z),
    "pow": lambda x, y, z: tg.exp(x) ** y + z,
    "sin": lambda x, y, z: tg.sin(50.0 * x * y) * z,
    "choice": lambda x, y, z: tg.where(x < y, tg.exp(z), tg.log(tg.abs(z) + 0.5)),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_chunks_give_the_bits_of_one_long_row(name: str) -> None:
    fn, rng = FUNCTIONS[name], np.random.default_rng(len(name))
    for _ in range(8):
        rank = int(rng.integers(2, 5))
        shape = (*(int(n) for n in rng.integers(1, 30, rank - 1)), int(rng.integers(2, 60)))
        shapes = [shape, *(tuple(n if rng.random() < 0.5 else 1 for n in shape) for _ in range(2))]
        arrays = [rng.standard_normal(s).astype(np.float32) for s in shapes]
        whole = [np.ascontiguousarray(np.broadcast_to(a, shape)).reshape(-1) for a in arrays]
        np.testing.assert_array_equal(computed(fn, *arrays), computed(fn, *whole).reshape(shape), f"{shapes}")


def test_chunks_copy_what_is_elsewhere() -> None:
    x = np.random.default_rng(0).standard_normal((50, 9)).astype(np.float32)
    kinds: dict[str, tuple[Callable[[Tensor], Tensor], Any]] = {
        "reversed": (lambda x: tg.flip(x, 1), x[:, ::-1]),
        "padded": (lambda x: tg.pad(x, ((0, 0), (1, 2))), np.pad(x, ((0, 0), (1, 2)))),
        "coordinates": (lambda x: x * tg.arange(9).astype(f32), x * np.arange(9, dtype=np.float32)),
        "transposed": (lambda x: tg.permute(x[:45], (1, 0)), x[:45].T),
        "gathered": (lambda x: tg.take(x, tg.arange(9) * 2 % 9, 1), x[:, np.arange(9) * 2 % 9]),
    }
    for name, (view, expected) in kinds.items():
        flat = np.ascontiguousarray(expected).reshape(-1)
        found = computed(lambda x, view=view: tg.tanh(view(x)), x)
        np.testing.assert_array_equal(found, computed(tg.tanh, flat).reshape(expected.shape), name)


def test_rows_that_fill_vectors_need_no_chunks() -> None:
    fn = FUNCTIONS["tanh"]
    assert CHUNKS.search(text(fn, (300, 22), (22,), (300, 1)))
    assert CHUNKS.search(text(fn, (20, 22, 2, 3), (22, 1, 1), (20, 22, 2, 3)))
    assert not CHUNKS.search(text(fn, (300, 32), (32,), (300, 1)))
    assert not CHUNKS.search(text(fn, (3, CHUNK + 1), (CHUNK + 1,), (3, 1)))
    assert not CHUNKS.search(text(lambda x, y, z: tg.relu(x * y + z), (300, 22), (22,), (300, 1)))
