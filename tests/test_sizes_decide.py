"""Forwards whose Python code decides by the sizes of a call: each call gets what a program for its sizes gives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg

SIZES = [(2, 5), (3, 9), (5, 5), (4, 17), (7, 12), (2, 33), (9, 3), (6, 31), (1, 20), (8, 1), (3, 64), (11, 21), (2, 6)]


class Weight(tg.Module):
    def __init__(self) -> None:
        self.w = self.param((4, 4), init=tg.init.randn(0.5))


def loop(m: Any, x: Any, body: Callable[[Any, Any], Any]) -> Any:
    return tg.scan(lambda h, z: (tg.tanh(body(h, z)), h), tg.zeros((x.shape[0], 4)), x.swapaxes(0, 1))[0]


def repeated(m: Any, x: Any) -> Any:
    for _ in range(int(math.log2(x.shape[1]))):
        x = tg.tanh(x @ m.w)
    return x


# Sizes decide constants, ops, attributes, inputs; then results, their shapes and dtypes; then bodies of loops.
DECIDING: dict[str, Callable[[Any, Any], Any]] = {
    "constant": lambda m, x: x @ m.w * (2.0 if x.shape[1] > 20 else 3.0),
    "array": lambda m, x: x + np.sin(np.arange(x.shape[1], dtype=np.float32) ** 2)[:, None],
    "table": lambda m, x: tg.where(np.tri(x.shape[1], dtype=bool)[None], tg.einsum("bid,bjd->bij", x, x @ m.w), 0.0),
    "op": lambda m, x: tg.relu(x @ m.w) if x.shape[1] % 2 else tg.tanh(x @ m.w),
    "ops": lambda m, x: tg.exp(x @ m.w) if x.shape[0] > 4 else x @ m.w,
    "input": lambda m, x: (x @ m.w) * (x if x.shape[1] > 20 else x @ m.w),
    "attribute": lambda m, x: tg.cumsum(x @ m.w, 1 if x.shape[0] > 4 else 2),
    "axis": lambda m, x: tg.sum(x @ m.w, 0 if x.shape[1] > 20 else 1),
    "result": lambda m, x: {"y": x @ m.w, **({"z": x} if x.shape[1] > 20 else {})},
    "which": lambda m, x: (x @ m.w, x + x)[:: 1 if x.shape[0] > 4 else -1],
    "dtype": lambda m, x: tg.cast(x @ m.w * 9, tg.i32 if x.shape[1] > 20 else tg.f32),
    "squared": lambda m, x: x @ m.w + x.shape[1] ** 2 / 1000,
    "modulo": lambda m, x: x @ m.w * (x.shape[0] * x.shape[1] % 7),
    "root": lambda m, x: x @ m.w / math.sqrt(x.shape[1]),
    "half": lambda m, x: (x @ m.w)[:, : (x.shape[1] + 1) // 2],
    "every second": lambda m, x: (x @ m.w)[:, ::2],
    "at most": lambda m, x: (x @ m.w)[:, : min(x.shape[1], 16)],
    "padded": lambda m, x: tg.pad(x @ m.w, [(0, 0), (0, 64 - x.shape[1]), (0, 0)]),
    "pairs": lambda m, x: (x @ m.w).reshape(-1, 2).sum(1),
    "rows": lambda m, x: (x @ m.w).reshape(x.shape[1], -1).sum(1),
    "tiled": lambda m, x: tg.concat([x @ m.w] * (1 + x.shape[1] // 16), 1),
    "repeated": repeated,
    "body": lambda m, x: loop(m, x, (lambda h, z: h @ m.w + z) if x.shape[0] > 4 else (lambda h, z: h * z)),
    "body's number": lambda m, x: loop(m, x, lambda h, z: h @ m.w + z * (x.shape[0] % 3)),
    "turns": lambda m, x: tg.repeat(lambda h: tg.tanh(h @ m.w), 1 + x.shape[1] // 8, x),
    "scattered": lambda m, x: tg.segment_sum(x[:, 0] @ m.w, np.arange(x.shape[0]) % 3, 3),
    "stacked": lambda m, x: tg.stack([x @ m.w, x + x.shape[1]], 0).max(2),
    "turned": lambda m, x: (x @ m.w).swapaxes(0, 1) if x.shape[1] > 20 else x @ m.w,
}


def looked_up(x: Any, axis: int) -> Any:
    return tg.take_along_axis(x, tg.argsort(tg.stop_gradient(tg.sin(9 * x)), axis), axis)


# A program for many sizes keeps the open size in front of every value, however it is written.
BEHIND: dict[str, tuple[tuple[int | str, ...], Callable[[Any, Any], Any]]] = {
    "columns": ((4, "T"), lambda m, x: m.w @ x),
    "summed": ((4, "T"), lambda m, x: m.w @ x @ x.T),
    "columns of a batch": ((3, 4, "T"), lambda m, x: m.w @ x),
    "summed in a batch": ((3, "T", 4), lambda m, x: tg.swapaxes(x, 1, 2) @ x),
    "a batch": ((3, "T", 2, 4), lambda m, x: tg.swapaxes(x, 2, 3) @ x),
    "of columns": ((3, "T"), lambda m, x: looked_up(x, 0)),
    "of rows": ((3, "T", 4), lambda m, x: looked_up(x, 2)),
    "of a table": ((3, "T"), lambda m, x: m.w[tg.cast(tg.clip(tg.floor(x * x), 0, 3), tg.i32)]),
    "flat": ((3, "T", 4), lambda m, x: (x @ m.w).reshape(-1, 4) @ m.w),
    "flat behind": ((3, 4, "T", 2), lambda m, x: m.w @ x.reshape(3, 4, -1)),
    "halves": ((3, 4, "T"), lambda m, x: tg.softmax(x.reshape(3, 2, 2, -1), 2).sum(1)),
    "pooled": ((2, 4, "T"), lambda m, x: tg.max(m.w @ x, 1) + tg.logsumexp(x, (0, 1))),
    "running": ((3, 4, "T"), lambda m, x: tg.cumsum(m.w @ x, 1)),
    "chosen": ((3, 4, "T"), lambda m, x: tg.concat([x[:, 1:], tg.flip(x, 1)[:, ::2]], 1)),
    "normal": ((2, 4, 3, "T"), lambda m, x: (x - x.mean((1, 2), keepdims=True)) / (x.std((0, 2), keepdims=True) + 1)),
}


def arrays(result: Any) -> list[Any]:
    values = result.values() if isinstance(result, dict) else result if isinstance(result, tuple) else [result]
    return [*values]


def with_slopes(forward: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def size(m: Any, x: Any) -> Any:
        return sum((tg.sum(tg.square(y)) for y in arrays(forward(m, x)) if y.dtype == tg.f32), tg.sum(x))

    def both(m: Any, x: Any) -> Any:
        return (*arrays(forward(m, x)), tg.grad(lambda x: size(m, x))(x), tg.grad(lambda w: size(w, x))(m).w)

    return both


@pytest.mark.parametrize("name", DECIDING)
def test_forwards_that_decide_by_the_sizes(name: str) -> None:
    equals_programs_of_each_size(DECIDING[name], ("B", "T", 4), [(n, t, 4) for n, t in SIZES])


@pytest.mark.parametrize("name", BEHIND)
def test_a_size_behind_another_axis(name: str) -> None:
    shape, forward = BEHIND[name]
    equals_programs_of_each_size(forward, shape, [tuple(t if n == "T" else n for n in shape) for _, t in SIZES])


def equals_programs_of_each_size(forward: Callable[[Any, Any], Any], every: Any, shapes: list[Any]) -> None:
    rng, forward = np.random.default_rng(0), with_slopes(forward)
    compiled = lambda shape: tg.compile_forward(model=Weight(), forward=forward, inputs={"x": shape}, seed=3)
    with compiled(every) as shared:
        for shape in shapes:
            x = rng.normal(size=shape).astype(np.float32)
            with compiled(shape) as one:
                want, found = one.run(x=x).output, shared.run(x=x).output
            assert len(found) == len(want)
            for a, b in zip(found, want):
                assert a.dtype == b.dtype
                # the order of a sum may differ: up to 27 terms of slopes, each rounded by 6e-8 of the largest
                atol = 1e-6 * np.abs(b).max(initial=10)
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=atol, err_msg=f"at {shape}")
