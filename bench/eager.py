"""Eager ops against NumPy and PyTorch on small tensors, in one run on one machine: `python bench/eager.py`.

Each line is the best of many short rounds, and rounds of the three take turns, so that what else the machine does meets
them alike. NumPy's column is what the op computes, written with NumPy by hand; ours minus that is the overhead.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import tracegrad as tg

ROUNDS, CALLS = 400, 50
Thunk = Callable[[], Any]


def times(thunks: list[Thunk], rounds: int) -> list[float]:
    """Microseconds a call of each, the best round counting."""
    best = [float("inf")] * len(thunks)
    for _ in range(rounds):
        for k, f in enumerate(thunks):
            start = time.perf_counter()
            for _ in range(CALLS):
                f()
            best[k] = min(best[k], time.perf_counter() - start)
    return [t / CALLS * 1e6 for t in best]


def softmax(a: Any) -> Any:
    e = np.exp(a - a.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


A, B, M = (np.random.default_rng(0).standard_normal(s).astype(np.float32) for s in ((8, 16), (16,), (16, 4)))
X, V, W = map(tg.tensor, (A, B, M))
P = tg.parameter(A)
TA, TB, TM = map(torch.tensor, (A, B, M))
TP = torch.tensor(A, requires_grad=True)

FORWARD: list[tuple[str, Thunk, Thunk, Thunk]] = [
    ("x * v (broadcast)", lambda: A * B, lambda: X * V, lambda: TA * TB),
    ("x * 2.5", lambda: A * 2.5, lambda: X * 2.5, lambda: TA * 2.5),
    ("2.5 - x", lambda: 2.5 - A, lambda: 2.5 - X, lambda: 2.5 - TA),
    ("exp(x)", lambda: np.exp(A), lambda: tg.exp(X), lambda: torch.exp(TA)),
    ("x.tanh()", lambda: np.tanh(A), lambda: X.tanh(), lambda: TA.tanh()),
    ("relu(x)", lambda: np.where(A <= 0.0, 0.0, A), lambda: tg.relu(X), lambda: torch.relu(TA)),
    ("x.sum()", lambda: A.sum(), lambda: X.sum(), lambda: TA.sum()),
    ("x.mean(axis=1)", lambda: A.mean(1), lambda: X.mean(axis=1), lambda: TA.mean(1)),
    ("x @ w", lambda: A @ M, lambda: X @ W, lambda: TA @ TM),
    ("x.reshape(16, 8)", lambda: A.reshape(16, 8), lambda: X.reshape(16, 8), lambda: TA.reshape(16, 8)),
    ("x[:, 1:]", lambda: A[:, 1:], lambda: X[:, 1:], lambda: TA[:, 1:]),
    ("softmax(x)", lambda: softmax(A), lambda: tg.softmax(X), lambda: torch.softmax(TA, -1)),
    ("mul(array, array)", lambda: np.multiply(A, B), lambda: tg.mul(A, B), lambda: torch.mul(TA, TB)),
]
ONE = np.ones_like(A)


def ours(f: Callable[[Any], Any]) -> Thunk:
    return lambda: f(P).backward()


def theirs(f: Callable[[Any], Any]) -> Thunk:
    ones = torch.ones_like(TA)
    return lambda: f(TP).backward(ones)


# forward and backward of one op, the seed being ones: what NumPy has to compute for both
BACKWARD: list[tuple[str, Thunk, Thunk, Thunk]] = [
    ("x * v", lambda: (A * B, ONE * B), ours(lambda p: p * V), theirs(lambda p: p * TB)),
    ("x.exp()", lambda: np.exp(A) * ONE, ours(lambda p: p.exp()), theirs(lambda p: p.exp())),
    ("x.tanh()", lambda: (1.0 - np.tanh(A) ** 2) * ONE, ours(lambda p: p.tanh()), theirs(lambda p: p.tanh())),
    ("relu(x)", lambda: np.where(np.where(A <= 0.0, 0.0, A) > 0.0, ONE, 0.0), ours(tg.relu), theirs(torch.relu)),
]


def mlp(rng: np.random.Generator) -> tuple[Thunk, Thunk]:
    """Forward and backward of a three-layer network on a batch of 32: ours, and PyTorch's."""
    sizes = [(1, 32), (32,), (32, 32), (32,), (32, 1), (1,)]
    values = [rng.standard_normal(s).astype(np.float32) * 0.3 for s in sizes]
    x, y = rng.standard_normal((32, 1)).astype(np.float32), rng.standard_normal((32, 1)).astype(np.float32)
    own, other = [tg.parameter(v) for v in values], [torch.tensor(v, requires_grad=True) for v in values]
    ox, oy, tx, ty = tg.tensor(x), tg.tensor(y), torch.tensor(x), torch.tensor(y)

    def step(ps: list[Any], x: Any, y: Any, relu: Callable[[Any], Any]) -> None:
        h = relu(x @ ps[0] + ps[1])
        h = relu(h @ ps[2] + ps[3])
        d = h @ ps[4] + ps[5] - y
        (d * d).mean().backward()

    def run_ours() -> None:
        for p in own:
            p.zero_grad()
        step(own, ox, oy, tg.relu)

    def run_theirs() -> None:
        for p in other:
            p.grad = None
        step(other, tx, ty, torch.relu)

    return run_ours, run_theirs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    rounds = parser.parse_args().rounds
    torch.set_num_threads(1)
    for title, rows in (("forward, no gradient", FORWARD), ("forward and backward of one op", BACKWARD)):
        print(f"\n{title:34s} {'NumPy':>8s} {'ours':>8s} {'overhead':>9s} {'PyTorch':>8s}   us")
        for name, *thunks in rows:
            n, o, t = times(thunks, rounds)
            print(f"{name:34s} {n:8.2f} {o:8.2f} {o - n:9.2f} {t:8.2f}")
    o, t = times(list(mlp(np.random.default_rng(0))), max(rounds // 10, 1))
    print(f"\n{'MLP 1-32-32-1, forward and backward':34s} {'':8s} {o:8.1f} {'':9s} {t:8.1f}")


if __name__ == "__main__":
    main()
