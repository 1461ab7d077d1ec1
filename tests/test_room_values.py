"""Values of programs with room for several sizes, compared with NumPy: rows by number, views, coordinates, loops."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad.engine import room_programs

D = 8
SIZES = ((2, 9), (5, 3), (4, 11), (7, 12), (1, 5), (6, 4), (9, 17), (3, 17))
OURS: Any = SimpleNamespace(
    concatenate=tg.concat, arange=tg.arange, argsort=tg.argsort, argmax=tg.argmax, ones=tg.ones,
    float32=tg.f32, scan=tg.scan,
)  # fmt: skip


def rows(np: Any, x: Any) -> dict[str, Any]:
    """Rows of two axes that are one, by numbers at a call's sizes."""
    b, t, d = x.shape
    flat, turned = x.reshape(b * t, d), x.swapaxes(0, 1).reshape(t * b, d)
    twice, three = np.concatenate([x, -x], 1).reshape(b * 2 * t, d), np.concatenate([x, 2 * x, x * x], 1)
    return {
        "last of each": flat[np.arange(b) * t + t - 1],
        "first of each time": turned[np.arange(t) * b],
        "of two": twice[np.arange(b) * 2 * t + t + 1],
        "of three": three.reshape(b * 3 * t, d)[np.arange(b) * 3 * t + 2 * t + 1],
        "largest": flat[np.argmax(flat[:, 1])],
        "by one row's order": x[:, :, 0].swapaxes(0, 1)[np.argsort(x[0, :, 1])],
    }


def views(np: Any, x: Any) -> dict[str, Any]:
    b, t, d = x.shape
    three, ones = np.concatenate([x, 2 * x, x * x], 1), np.ones((b * t, d), np.float32)
    return {
        "last two": x[:, -2:], "all but two": x[:, :-2], "behind two": x[:, 2:],
        "middle": three[:, t : 2 * t], "two of three": three[:, t:], "sum of thirds": three.reshape(b, 3, t, d).sum(1),
        "ones": ones.reshape(b, t, d) + x, "ones of a batch": ones.reshape(b, t * d) + x.reshape(b, t * d),
        "ones apart": ones.reshape(b, t, 2, d // 2) * x.reshape(b, t, 2, d // 2),
        "ones, other axes": ones.reshape(b, t * 2, d // 2).reshape(b * t, 2, d // 2)[:, 1] + x.reshape(b * t, d)[:, :4],
    }  # fmt: skip


def coordinates(np: Any, x: Any) -> dict[str, Any]:
    b, t, _ = x.shape
    three = np.concatenate([x, 2 * x, x * x], 1)[:, :, 0]
    return {
        "numbers": np.arange(b * t).reshape(b, t) * np.argmax(x, 2),
        "by time": np.arange(t * b).reshape(t, b).swapaxes(0, 1),
        "of pairs": np.arange(2 * b * t).reshape(b, t, 2)[:, :, 1],
        "squares": (np.arange(b * t) * np.arange(b * t)).reshape(b, t) + np.argmax(x, 2),
        "beside blocks": np.arange(3 * t) * np.argmax(x, 2)[0, 0] + np.argmax(three, 0),
    }


def loops(np: Any, x: Any) -> dict[str, Any]:
    """Carries that are also results of each turn, so that the last ones are found among these."""

    def each(carries: Any, z: Any) -> Any:
        h, c = carries
        h, c = 0.5 * h + z, c - 0.25 * h
        return (h, c), (c, h)

    start = 0 * x[:, 0], 1 + 0 * x[:, 0]
    (h, c), (every_c, every_h) = np.scan(each, start, x.swapaxes(0, 1))
    return {"h": h, "c": c, "every h": every_h, "every c": every_c}


def scan(f: Callable[..., Any], start: Any, xs: Any) -> Any:
    """The loop of `tg.scan`, of two carries that are also results, by NumPy."""
    every: list[Any] = []
    for x in xs:
        start, out = f(start, x)
        every.append(out)
    return start, [np.stack(part) for part in zip(*every)]


NUMPY: Any = SimpleNamespace(
    concatenate=np.concatenate, arange=np.arange, argsort=np.argsort, argmax=np.argmax, ones=np.ones,
    float32=np.float32, scan=scan,
)  # fmt: skip


def not_exact(_: Any) -> list[None]:
    return [None]


@pytest.mark.parametrize("function", [rows, views, coordinates, loops])
def test_values_at_each_size_are_those_of_numpy(function: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def forward(_: Any, x: Any) -> Any:
        return function(OURS, x)

    monkeypatch.setenv("TRACEGRAD_CC", "off")
    monkeypatch.setattr(room_programs, "exact_first", not_exact)  # both sizes have padding
    shared = 0
    with tg.compile_forward(model={}, forward=forward, inputs={"x": ("B", "T", D)}, device="cpu") as made:
        for n, t in SIZES:
            x = np.random.default_rng(n * 100 + t).standard_normal((n, t, D)).astype(np.float32)
            output = made.run(x=x).output
            for name, value in function(NUMPY, x).items():
                np.testing.assert_allclose(output[name], value, rtol=2e-6, atol=1e-6, err_msg=f"{name}, {n} x {t}")
            shared += "of a program for sizes up to" in made.explain().title
    assert shared >= 4


def test_an_array_that_a_trace_makes_is_that_of_the_size() -> None:
    """Its values at the room say nothing of those at other sizes."""

    def forward(_: Any, x: Any) -> Any:
        return x * tg.tensor(np.arange(x.shape[1], dtype=np.float32)[::-1].copy())

    with tg.compile_forward(model={}, forward=forward, inputs={"x": (2, "T")}, device="cpu") as made:
        for t in (9, 3, 11, 12, 5, 17, 4):
            output = made.run(x=np.ones((2, t), np.float32)).output
            np.testing.assert_array_equal(output, np.stack([np.arange(t)[::-1]] * 2))
