"""Eager ops against NumPy and PyTorch on small tensors, in one run on one machine: `python bench/eager.py`.

For every family of ops: forward on tensors and on NumPy arrays, and forward with backward. Each number is the best of
many short rounds, in which all columns take turns, so that what else the machine does meets them alike. The column
NumPy is what the op's own array rules take: the lines of its plan, called on arrays, with nothing around them.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F

import tracegrad as tg
from tracegrad.methods import METHODS

ROUNDS, CALLS = 200, 20
Thunk = Callable[[], Any]

rng = np.random.default_rng(0)
A, C, POSITIVE = (rng.uniform(lo, 2, (8, 16)).astype(np.float32) for lo in (-2, -2, 0.1))
V, W, M = (rng.standard_normal(s).astype(np.float32) for s in ((16,), (8, 16), (16, 4)))
BATCH = rng.standard_normal((4, 8, 16)).astype(np.float32)
HEADS = rng.standard_normal((2, 2, 8, 4)).astype(np.float32)
IMAGES, KERNEL = rng.standard_normal((2, 3, 8, 8)).astype(np.float32), rng.standard_normal((4, 3, 3, 3)).astype("f")
MASK, LABELS = A > 0, rng.integers(0, 16, 8).astype(np.int32)
PICKS = rng.integers(0, 16, (8, 4)).astype(np.int32)
TARGETS = MASK.astype(np.float32)


@dataclass(frozen=True)
class Row:
    """One call: `ours(*arguments)` by one op, and what PyTorch has for it. wrt: arguments that get a gradient."""

    name: str
    op: Any
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    arguments: tuple[np.ndarray, ...]
    wrt: int = 1


def row(name: str, op: Any, theirs: Any, *arguments: Any, ours: Any = None, wrt: int = 1) -> Row:
    return Row(name, op, ours or op, theirs, arguments, wrt)


def method(name: str) -> Any:
    return METHODS[name]


T = torch
FAMILIES: dict[str, list[Row]] = {
    "binary": [
        row("x + y", tg.add, T.add, A, C, ours=lambda x, y: x + y, wrt=2),
        row("x * v, f32[8,16] and f32[16]", tg.mul, T.mul, A, V, ours=lambda x, v: x * v, wrt=2),
        row("x / y", tg.div, T.div, A, POSITIVE, ours=lambda x, y: x / y, wrt=2),
        row("x * 2.5", tg.mul, lambda x: x * 2.5, A, ours=lambda x: x * 2.5),
        row("2.5 - x", tg.sub, lambda x: 2.5 - x, A, ours=lambda x: 2.5 - x),
        row("x ** 2", tg.pow, lambda x: x**2, A, ours=lambda x: x**2),
        row("tg.pow(x, y)", tg.pow, T.pow, POSITIVE, C, wrt=2),
        row("tg.maximum(x, y)", tg.maximum, T.maximum, A, C, wrt=2),
        row("x < y", tg.less, T.lt, A, C, wrt=0),
        row("tg.logical_and(m, m)", tg.logical_and, T.logical_and, MASK, MASK, wrt=0),
        row("tg.where(m, x, y)", tg.where, T.where, MASK, A, C, wrt=0),
    ],
    "unary": [
        *(row(f"tg.{n}(x)", getattr(tg, n), getattr(T, n), POSITIVE, wrt=int(n not in ("sign", "floor", "round")))
          for n in ("neg", "abs", "sign", "sqrt", "rsqrt", "exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf",
                    "square", "reciprocal", "floor", "round")),
        row("tg.clip(x, -1.0, 1.0)", tg.clip, lambda x: T.clip(x, -1.0, 1.0), A, ours=lambda x: tg.clip(x, -1.0, 1.0)),
    ],
    "activations": [
        row("tg.relu(x)", tg.relu, T.relu, A),
        row("tg.leaky_relu(x)", tg.leaky_relu, F.leaky_relu, A),
        row("tg.sigmoid(x)", tg.sigmoid, T.sigmoid, A),
        row("tg.silu(x)", tg.silu, F.silu, A),
        row("tg.gelu(x)", tg.gelu, F.gelu, A),
        row('tg.gelu(x, "tanh")', tg.gelu, lambda x: F.gelu(x, approximate="tanh"), A, ours=lambda x: tg.gelu(x, "tanh")),
        row("tg.softplus(x)", tg.softplus, F.softplus, A),
        row("tg.elu(x)", tg.elu, F.elu, A),
    ],
    "reductions": [
        row("x.sum()", tg.sum, T.sum, A),
        row("tg.sum(x, axis=1)", tg.sum, lambda x: T.sum(x, dim=1), A, ours=lambda x: tg.sum(x, axis=1)),
        row("x.mean(axis=1)", tg.mean, lambda x: T.mean(x, dim=1), A, ours=lambda x: tg.mean(x, axis=1)),
        row("tg.var(x, axis=1)", tg.var, lambda x: T.var(x, dim=1, correction=0), A, ours=lambda x: tg.var(x, axis=1)),
        row("x.max()", tg.max, T.amax, A),
        row("tg.max(x, axis=1)", tg.max, lambda x: T.amax(x, dim=1), A, ours=lambda x: tg.max(x, axis=1)),
        row("tg.prod(x)", tg.prod, T.prod, POSITIVE),
        row("tg.argmax(x, axis=1)", tg.argmax, lambda x: T.argmax(x, dim=1), A, ours=lambda x: tg.argmax(x, axis=1), wrt=0),
        row("tg.any(m)", tg.any, T.any, MASK, wrt=0),
        row("tg.logsumexp(x, axis=1)", tg.logsumexp, lambda x: T.logsumexp(x, 1), A, ours=lambda x: tg.logsumexp(x, axis=1)),
        row("tg.cumsum(x, axis=1)", tg.cumsum, lambda x: T.cumsum(x, 1), A, ours=lambda x: tg.cumsum(x, axis=1)),
    ],
    "shape": [
        row("x.reshape(16, 8)", tg.reshape, lambda x: x.reshape(16, 8), A, ours=lambda x: tg.reshape(x, (16, 8))),
        row("tg.flatten(x)", tg.flatten, lambda x: T.flatten(x, 1), BATCH),
        row("tg.permute(x, (2, 0, 1))", tg.permute, lambda x: T.permute(x, (2, 0, 1)), BATCH,
            ours=lambda x: tg.permute(x, (2, 0, 1))),
        row("tg.transpose(x)", tg.transpose, T.t, A),
        row("tg.swapaxes(x, 0, 1)", tg.swapaxes, lambda x: T.swapaxes(x, 0, 1), A, ours=lambda x: tg.swapaxes(x, 0, 1)),
        row("tg.broadcast_to(v, (8, 16))", tg.broadcast_to, lambda v: T.broadcast_to(v, (8, 16)), V,
            ours=lambda v: tg.broadcast_to(v, (8, 16))),
        row("tg.expand_dims(x, 1)", tg.expand_dims, lambda x: T.unsqueeze(x, 1), A, ours=lambda x: tg.expand_dims(x, 1)),
        row("tg.squeeze(x)", tg.squeeze, T.squeeze, A[:, None]),
        row("tg.narrow(x, 1, 2, 4)", tg.narrow, lambda x: T.narrow(x, 1, 2, 4), A, ours=lambda x: tg.narrow(x, 1, 2, 4)),
        row("tg.concat([x, y])", tg.concat, lambda x, y: T.cat([x, y]), A, C, ours=lambda x, y: tg.concat([x, y]), wrt=2),
        row("tg.stack([x, y])", tg.stack, lambda x, y: T.stack([x, y]), A, C, ours=lambda x, y: tg.stack([x, y]), wrt=2),
        row("tg.split(x, 2)", tg.split, lambda x: T.split(x, 4), A, ours=lambda x: tg.split(x, 2), wrt=0),
        row("tg.pad(x, ((1, 1), (0, 0)))", tg.pad, lambda x: F.pad(x, (0, 0, 1, 1)), A,
            ours=lambda x: tg.pad(x, ((1, 1), (0, 0)))),
        row("tg.flip(x, 1)", tg.flip, lambda x: T.flip(x, (1,)), A, ours=lambda x: tg.flip(x, 1)),
        row("tg.repeat(x, 2, 0)", method("repeat"), lambda x: T.repeat_interleave(x, 2, 0), A,
            ours=lambda x: method("repeat")(x, 2, 0)),
    ],
    "indexing": [
        row("x[:, 1:]", method("getitem"), lambda x: x[:, 1:], A, ours=lambda x: x[:, 1:]),
        row("x[0]", method("getitem"), lambda x: x[0], A, ours=lambda x: x[0]),
        row("x[:, None]", method("getitem"), lambda x: x[:, None], A, ours=lambda x: x[:, None]),
        row("tg.take(v, k)", tg.take, lambda v, k: T.take(v, k.long()), V, LABELS),
        row("tg.take_along_axis(x, k, 1)", tg.take_along_axis, lambda x, k: T.take_along_dim(x, k.long(), 1), A, PICKS,
            ours=lambda x, k: tg.take_along_axis(x, k, 1)),
        row("tg.embedding(table, k)", tg.embedding, lambda t, k: F.embedding(k, t), M, LABELS),
        row("tg.one_hot(k, 16)", tg.one_hot, lambda k: F.one_hot(k.long(), 16), LABELS, ours=lambda k: tg.one_hot(k, 16), wrt=0),
        row("tg.arange(16)", tg.arange, lambda: T.arange(16), ours=lambda: tg.arange(16), wrt=0),
        row("tg.zeros((8, 16))", tg.zeros, lambda: T.zeros((8, 16)), ours=lambda: tg.zeros((8, 16)), wrt=0),
    ],
    "linear algebra": [
        row("x @ w", tg.matmul, T.matmul, A, M, ours=lambda x, w: x @ w, wrt=2),
        row("x @ w, f32[4,8,16] and f32[16,4]", tg.matmul, T.matmul, BATCH, M, ours=lambda x, w: x @ w, wrt=2),
        row("tg.outer(v, v)", tg.outer, T.outer, V, V, wrt=2),
        row('tg.einsum("bi,bi->b", x, y)', tg.einsum, lambda x, y: T.einsum("bi,bi->b", x, y), A, C,
            ours=lambda x, y: tg.einsum("bi,bi->b", x, y), wrt=2),
        row("tg.attention(q, k, v)", tg.attention, F.scaled_dot_product_attention, HEADS, HEADS, HEADS, wrt=3),
    ],
    "fused": [
        row("tg.softmax(x)", tg.softmax, lambda x: T.softmax(x, -1), A),
        row("tg.log_softmax(x)", tg.log_softmax, lambda x: T.log_softmax(x, -1), A),
        row("tg.layer_norm(x, g, b)", tg.layer_norm, lambda x, g, b: F.layer_norm(x, (16,), g, b), A, V, V, wrt=3),
        row("tg.rms_norm(x, g)", tg.rms_norm, lambda x, g: F.rms_norm(x, (16,), g, 1e-6), A, V, wrt=2),
        row("tg.cross_entropy(x, k)", tg.cross_entropy, lambda x, k: F.cross_entropy(x, k.long()), A, LABELS),
        row("tg.mse_loss(x, y)", tg.mse_loss, F.mse_loss, A, C),
        row("tg.binary_cross_entropy_with_logits", tg.binary_cross_entropy_with_logits,
            F.binary_cross_entropy_with_logits, A, TARGETS),
        row("tg.dropout(x, 0.5)", tg.dropout, lambda x: F.dropout(x, 0.5), A, ours=lambda x: tg.dropout(x, 0.5)),
    ],
    "images": [
        row("tg.conv2d(x, w)", tg.conv2d, F.conv2d, IMAGES, KERNEL, wrt=2),
        row("tg.max_pool2d(x, 2)", tg.max_pool2d, lambda x: F.max_pool2d(x, 2), IMAGES, ours=lambda x: tg.max_pool2d(x, 2)),
        row("tg.avg_pool2d(x, 2)", tg.avg_pool2d, lambda x: F.avg_pool2d(x, 2), IMAGES, ours=lambda x: tg.avg_pool2d(x, 2)),
    ],
}  # fmt: skip


def plan_of(r: Row) -> Any:
    """The plan of a row's op: what it makes of its arguments' types."""
    r.op.entry.plans.clear()
    r.op.entry.calls.clear()
    r.ours(*map(tg.tensor, r.arguments))
    (plan,) = r.op.entry.plans.values()
    return plan


def numpy_alone(r: Row) -> tuple[Thunk, Thunk | None]:
    """The array rules of a row's plan, forward and with the backward to `wrt`, called on arrays."""
    plan, given = plan_of(r), iter(enumerate(r.arguments))
    arrays: list[Any] = []
    asked: list[bool] = []
    for t in plan.inputs:
        number, stream = t.serial in plan.numbers, t.attrs["role"] != "input"
        k, array = (-1, 2.5 if number else np.uint32(1)) if number or stream else next(given)
        arrays.append(array)
        asked.append(0 <= k < r.wrt)
    writer, names = plan.computed()
    forward = writer.function(plan.parameters, names[0] if plan.pack is None else f"({', '.join(names)},)")
    if not r.wrt:
        return lambda: forward(*arrays), None
    recorded = plan.recorded(tuple(asked))
    first = recorded.writer.function(plan.parameters, f"{recorded.values[0]}, {recorded.saved[0]}")
    ct, pullback = np.ones_like(first(*arrays)[0]), recorded.pullbacks[0]
    assert pullback is not None

    def both() -> Any:
        _, saved = first(*arrays)
        return pullback(ct, saved)

    return lambda: forward(*arrays), both


def thunks(r: Row) -> tuple[list[Thunk], list[Thunk]]:
    """Forward: NumPy, ours, ours on arrays, PyTorch. Forward and backward: NumPy, ours, PyTorch; none without."""
    alone, alone_both = numpy_alone(r)
    ours, theirs = [tg.tensor(a) for a in r.arguments], [torch.tensor(a) for a in r.arguments]
    forward = [alone, call(r.ours, ours), call(r.op if r.ours is r.op else r.ours, arrays(r)), call(r.theirs, theirs)]
    if alone_both is None:
        return forward, []
    own = [tg.parameter(a) if k < r.wrt else tg.tensor(a) for k, a in enumerate(r.arguments)]
    other = [torch.tensor(a, requires_grad=k < r.wrt) for k, a in enumerate(r.arguments)]
    y, z = call(r.ours, own), call(r.theirs, other)
    ones = torch.ones_like(z())
    return forward, [alone_both, lambda: y().backward(), lambda: z().backward(ones)]


def arrays(r: Row) -> Sequence[Any]:
    """The arguments as a user of NumPy has them. Operators need one tensor: NumPy's own would be called."""
    named = r.name.startswith("tg.")
    return [a if named or k else tg.tensor(a) for k, a in enumerate(r.arguments)]


def call(f: Callable[..., Any], xs: Sequence[Any]) -> Thunk:
    """`f(*xs)`, written out: a call by a sequence would cost as much as some ops."""
    names = [f"x{k}" for k in range(len(xs))]
    return eval(f"lambda: f({', '.join(names)})", {"f": f, **dict(zip(names, xs))})


def times(fs: Sequence[Thunk], rounds: int) -> list[float]:
    """Microseconds a call of each, the best round counting, less those of a call that does nothing."""
    every = [*fs, lambda: None]
    best = [float("inf")] * len(every)
    clock = time.perf_counter
    for _ in range(rounds):
        for k, f in enumerate(every):
            start = clock()
            for _ in range(CALLS):
                f()
            best[k] = min(best[k], clock() - start)
    return [(t - best[-1]) / CALLS * 1e6 for t in best[:-1]]


def mlp() -> tuple[Thunk, Thunk]:
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
    parser.add_argument("-k", default="", help="only rows whose name contains this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"Python {sys.version.split()[0]}, NumPy {np.__version__}, PyTorch {torch.__version__}, one thread, f32[8,16]; us")
    print(f"{'':36s} {'forward':>26s}    {'forward and backward':>21s}")
    print(f"{'':36s} {'NumPy':>6s} {'ours':>6s} {'arrays':>6s} {'torch':>6s}   {'NumPy':>6s} {'ours':>6s} {'torch':>6s}")
    ahead = {"forward": [0, 0], "on arrays": [0, 0], "with backward": [0, 0]}
    over: dict[str, list[float]] = {"forward": [], "with backward": []}
    for family, rows in FAMILIES.items():
        print(family)
        for r in rows:
            if options.k not in r.name:
                continue
            forward, both = thunks(r)
            n, o, a, t = times(forward, options.rounds)
            report = f"  {r.name:34s} {n:6.2f} {o:6.2f} {a:6.2f} {t:6.2f}  {'*' if o < t else ' '}"
            count(ahead["forward"], o < t)
            count(ahead["on arrays"], a < t)
            over["forward"].append(o - n)
            if both:
                n, o, t = times(both, options.rounds)
                report += f"{n:6.2f} {o:6.2f} {t:6.2f} {'*' if o < t else ' '}"
                count(ahead["with backward"], o < t)
                over["with backward"].append(o - n)
            print(report)
    own, other = times(mlp(), max(options.rounds // 10, 1))
    print(f"MLP 1-32-32-1, batch of 32{'':46s}{own:6.1f} {other:6.1f}")
    print(f"\nahead of PyTorch (*): {', '.join(f'{k} {n} of {m}' for k, (n, m) in ahead.items())}")
    for k, values in over.items():
        print(f"beyond NumPy, {k}: median {np.median(values):.2f}, most {max(values):.2f} us")


def count(pair: list[int], won: bool) -> None:
    pair[0] += won
    pair[1] += 1


if __name__ == "__main__":
    main()
