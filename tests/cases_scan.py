"""Rows of the table for recurrences, and the same written as loops."""

from __future__ import annotations

from typing import Any

import tracegrad as tg
from cases import Case, torch
from tracegrad.dtypes import f32
from tracegrad.ir.nodes import Tensor


def _rnn(x: Tensor, h: Tensor, w: Tensor, u: Tensor, b: Tensor) -> Tensor:
    def step(h: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
        h = tg.tanh(x @ w + h @ u + b)
        return h, 2 * h

    last, ys = tg.scan(step, h, x)
    return tg.concat([ys, last[None]])


def _rnn_torch(x: Any, h: Any, w: Any, u: Any, b: Any) -> Any:
    ys = []
    for t in range(x.shape[0]):
        h = torch.tanh(x[t] @ w + h @ u + b)
        ys.append(2 * h)
    return torch.stack([*ys, h])


def _lstm(x: Tensor, w: Tensor, u: Tensor) -> Tensor:
    def step(state: dict[str, Tensor], x: Tensor) -> tuple[dict[str, Tensor], Tensor]:
        i, f, o, g = tg.split(x @ w + state["h"] @ u, 4, axis=-1)
        c = tg.sigmoid(f) * state["c"] + tg.sigmoid(i) * tg.tanh(g)
        h = tg.sigmoid(o) * tg.tanh(c)
        return {"h": h, "c": c}, h

    zeros = (x[0] @ w)[:, : w.shape[1] // 4] * 0
    state, ys = tg.scan(step, {"h": zeros, "c": zeros}, x)
    return tg.concat([ys, state["c"][None]])


def _lstm_torch(x: Any, w: Any, u: Any) -> Any:
    h = c = torch.zeros((x.shape[1], w.shape[1] // 4), dtype=x.dtype)
    ys = []
    for t in range(x.shape[0]):
        i, f, o, g = torch.chunk(x[t] @ w + h @ u, 4, dim=-1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(g)
        h = torch.sigmoid(o) * torch.tanh(c)
        ys.append(h)
    return torch.stack([*ys, c])


def _nested(x: Tensor, a: Tensor) -> Tensor:
    """Along both axes; the inner scan reads the outer's carry and element, and `a` of neither."""

    def row(total: Tensor, xs: Tensor) -> tuple[Tensor, Tensor]:
        def element(c: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
            c = tg.sin(c * a + x * total)
            return c, c * xs[0]

        last, ys = tg.scan(element, total, xs, reverse=True)
        return last, ys

    last, ys = tg.scan(row, tg.sum(a), x)
    return ys * last


def _nested_torch(x: Any, a: Any) -> Any:
    total, rows = a.sum(), []
    for xs in x:
        c, ys = total, []
        for t in reversed(range(len(xs))):
            c = torch.sin(c * a + xs[t] * total)
            ys.append(c * xs[0])
        rows.append(torch.stack(ys[::-1]))
        total = c
    return torch.stack(rows) * total


def _many(x: Tensor, i: Tensor) -> Tensor:
    """Carries of every kind: that change places, that count, that stay, that forget; and elements of several arrays."""

    def step(carry: Any, xs: Any) -> Any:
        a, b, n, fixed, total = carry
        x, k = xs
        picked = tg.take(fixed, k, 0) * tg.cast(n + 1, f32)
        return (b * 1.5, a + x, n + k, fixed, total + tg.softmax(a)), (picked + tg.sum(b), {"n": n, "x": x, "k": k > 1})

    zero = x[0] * 0
    carry, (y, rest) = tg.scan(step, (x[0], zero, 0, x[1], zero), (x, i))
    a, b, n, fixed, total = carry
    counted = tg.cast(rest["n"], f32) * y + tg.cast(rest["k"], f32) * -1 + 2
    return tg.concat([rest["x"], (a + b * tg.cast(n, f32))[None], fixed[None], total[None], counted[None, :3]])


def _many_torch(x: Any, i: Any) -> Any:
    a, b, n, total, counted = x[0], torch.zeros(3, dtype=x.dtype), 0, torch.zeros(3, dtype=x.dtype), []
    for t in range(x.shape[0]):
        k = int(i[t])
        y = x[1][k] * (n + 1) + b.sum()
        counted.append(y * n + (1.0 if k > 1 else 2.0))
        a, b, n, total = b * 1.5, a + x[t], n + k, total + torch.softmax(a, -1)
    rows = [x, (a + b * n)[None], x[1][None], total[None], torch.stack(counted)[None, :3]]
    return torch.cat(rows)


SCAN_CASES: list[Case] = [
    Case("scan_rnn", _rnn, ((4, 2, 3), (2, 5), (3, 5), (5, 5), (5,)), torch=_rnn_torch, tol=1e-4),
    Case("scan_lstm", _lstm, ((4, 2, 3), (3, 8), (2, 8)), torch=_lstm_torch, tol=1e-4),
    Case("scan_nested", _nested, ((3, 4), ()), torch=_nested_torch, tol=1e-4),
    Case("scan_many", _many, ((4, 3),), ints=(((4,), 3),), torch=_many_torch, tol=1e-4),
    Case("scan_of_one", lambda x: tg.scan(lambda c, x: (c * x, c + x), 2.0, x)[1], ((1,),), torch=lambda x: 2 + x),
    Case("scan_of_nothing", lambda x: tg.concat(list(tg.scan(lambda c, x: (c * x[:1], c + x), x[0], x[:0]))[0:1]),
         ((2, 1),), torch=lambda x: x[0]),
    Case("scan_carry", lambda x: tg.scan(lambda c, _: (tg.sin(c) * x, None), x, length=5)[0], ((3,),),
         torch=lambda x: _iterated(lambda c: torch.sin(c) * x, 5, x)),
    Case("scan_cumulative", lambda x: tg.scan(lambda c, x: (c + x, c + x), x[0] * 0, x, reverse=True)[1], ((5, 3),),
         torch=lambda x: x.flip(0).cumsum(0).flip(0)),
    Case("repeat_function", lambda x: tg.repeat(lambda c: c * tg.cos(c + x), 7, x), ((2, 3),),
         torch=lambda x: _iterated(lambda c: c * torch.cos(c + x), 7, x)),
]  # fmt: skip


def _iterated(f: Any, n: int, x: Any) -> Any:
    for _ in range(n):
        x = f(x)
    return x
