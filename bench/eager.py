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
from typing import Any

import numpy as np
import torch

import tracegrad as tg
from tracegrad.methods import METHODS

ROUNDS, CALLS = 200, 20
Thunk = Callable[[], Any]
rng = np.random.default_rng(0)


def normal(*shape: int) -> np.ndarray:
    return rng.standard_normal(shape).astype(np.float32)


# What the rows below are called with, by name. Floats get a gradient, but for those of `TARGETS`.
ARRAYS: dict[str, np.ndarray] = {
    "x": normal(8, 16), "y": normal(8, 16), "v": normal(16), "w": normal(16, 4), "column": normal(8, 1),
    "positive": rng.uniform(0.1, 2, (8, 16)).astype(np.float32), "b": normal(4, 8, 16), "heads": normal(2, 2, 8, 4),
    "images": normal(2, 3, 8, 8), "kernel": normal(4, 3, 3, 3), "mask": rng.random((8, 16)) > 0.5,
    "labels": rng.integers(0, 16, 8).astype(np.int32), "picks": rng.integers(0, 16, (8, 4)).astype(np.int32),
    "targets": (rng.random((8, 16)) > 0.5).astype(np.float32),
}  # fmt: skip
TARGETS = ("targets",)

# ours, PyTorch's ("": the same with torch)
FAMILIES: dict[str, list[tuple[str, str]]] = {
    "binary": [
        ("x + y", ""), ("x * v", ""), ("x / positive", ""), ("x * 2.5", ""), ("2.5 - x", ""), ("x ** 2", ""),
        ("tg.mul(x, y)", ""), ("tg.mul(x, v)", ""), ("tg.pow(positive, y)", ""), ("tg.maximum(x, y)", ""),
        ("x < y", ""),
        ("tg.logical_and(mask, mask)", ""), ("tg.where(mask, x, y)", ""),
    ],
    "unary": [
        *((f"tg.{n}(positive)", "") for n in (
            "neg", "abs", "sign", "sqrt", "rsqrt", "exp", "expm1", "log", "log1p", "sin", "cos", "tanh", "erf",
            "square", "reciprocal", "floor", "ceil", "round")),
        ("tg.clip(x, -1.0, 1.0)", ""),
    ],
    "activations": [
        ("tg.relu(x)", ""), ("tg.leaky_relu(x)", "F.leaky_relu(x)"), ("tg.sigmoid(x)", ""), ("tg.silu(x)", "F.silu(x)"),
        ("tg.gelu(x)", "F.gelu(x)"), ("tg.gelu(x, 'tanh')", "F.gelu(x, approximate='tanh')"),
        ("tg.softplus(x)", "F.softplus(x)"), ("tg.elu(x)", "F.elu(x)"),
    ],
    "reductions": [
        ("x.sum()", ""), ("tg.sum(x, axis=1)", "torch.sum(x, dim=1)"), ("x.mean(axis=1)", "x.mean(dim=1)"),
        ("tg.var(x, axis=1)", "torch.var(x, dim=1, correction=0)"), ("x.max()", "x.amax()"),
        ("tg.max(x, axis=1)", "torch.amax(x, dim=1)"), ("tg.prod(positive)", ""),
        ("tg.argmax(x, axis=1)", "torch.argmax(x, dim=1)"), ("tg.any(mask)", ""),
        ("tg.logsumexp(x, axis=1)", "torch.logsumexp(x, dim=1)"), ("tg.cumsum(x, axis=1)", "torch.cumsum(x, dim=1)"),
    ],
    "shape": [
        ("x.reshape(16, 8)", ""), ("tg.flatten(b)", "torch.flatten(b, 1)"), ("tg.permute(b, (2, 0, 1))", ""),
        ("x.T", ""), ("tg.swapaxes(x, 0, 1)", ""), ("tg.broadcast_to(v, (8, 16))", ""),
        ("tg.expand_dims(x, 1)", "torch.unsqueeze(x, 1)"), ("tg.squeeze(column)", ""), ("tg.narrow(x, 1, 2, 4)", ""),
        ("tg.concat([x, y])", ""), ("tg.stack([x, y])", ""), ("tg.split(x, 2)", "torch.split(x, 4)"),
        ("tg.pad(x, ((1, 1), (0, 0)))", "F.pad(x, (0, 0, 1, 1))"), ("tg.flip(x, 1)", "torch.flip(x, (1,))"),
        ("tg.repeat(x, 2, 0)", "torch.repeat_interleave(x, 2, 0)"),
    ],
    "indexing": [
        ("x[:, 1:]", ""), ("x[0]", ""), ("x[:, None]", ""), ("tg.take(v, labels)", "torch.take(v, labels.long())"),
        ("tg.take_along_axis(x, picks, 1)", "torch.take_along_dim(x, picks.long(), 1)"),
        ("tg.embedding(w, labels)", "F.embedding(labels, w)"),
        ("tg.one_hot(labels, 16)", "F.one_hot(labels.long(), 16)"),
        ("tg.arange(16)", ""), ("tg.zeros((8, 16))", ""),
    ],
    "linear algebra": [
        ("x @ w", ""), ("tg.matmul(x, w)", ""), ("b @ w", ""), ("tg.outer(v, v)", ""),
        ("tg.einsum('ij,ij->i', x, y)", ""),
        ("tg.attention(heads, heads, heads)", "F.scaled_dot_product_attention(heads, heads, heads)"),
    ],
    "fused": [
        ("tg.softmax(x)", "torch.softmax(x, -1)"), ("tg.log_softmax(x)", "torch.log_softmax(x, -1)"),
        ("tg.layer_norm(x, v, v)", "F.layer_norm(x, (16,), v, v)"),
        ("tg.rms_norm(x, v)", "F.rms_norm(x, (16,), v, 1e-6)"),
        ("tg.cross_entropy(x, labels)", "F.cross_entropy(x, labels.long())"), ("tg.mse_loss(x, y)", "F.mse_loss(x, y)"),
        ("tg.binary_cross_entropy_with_logits(x, targets)", "F.binary_cross_entropy_with_logits(x, targets)"),
        ("tg.dropout(x, 0.5)", ""),
    ],
    "images": [
        ("tg.conv2d(images, kernel)", "F.conv2d(images, kernel)"),
        ("tg.max_pool2d(images, 2)", "F.max_pool2d(images, 2)"),
        ("tg.avg_pool2d(images, 2)", "F.avg_pool2d(images, 2)"),
    ],
}  # fmt: skip
THEIRS = {"tg.concat": "torch.cat", "tg.dropout": "F.dropout"}
OPS = [f.entry for f in {*METHODS.values(), *(f for f in vars(tg).values() if callable(f))} if hasattr(f, "entry")]


def named(text: str) -> list[str]:
    """The arrays that an expression reads."""
    return [name for name in compile(text, "", "eval").co_names if name in ARRAYS]


def thunk(text: str, values: dict[str, Any]) -> Thunk:
    return eval(f"lambda: {text}", {"tg": tg, "torch": torch, "F": torch.nn.functional, **values})


def numpy_alone(text: str) -> tuple[Thunk, Thunk | None]:
    """The array rules of the one op in `text`, forward and also with the backward, called on arrays."""
    for op in OPS:
        op.plans.clear()
    tensors = {name: tg.tensor(ARRAYS[name]) for name in named(text)}
    thunk(text, tensors)()
    ((plan),) = [run.plan for op in OPS for run in op.plans.values()]
    numbers = [k for k, t in enumerate(plan.inputs) if t.attrs["role"] == "input" and not t.shape]
    values: list[Any] = []
    asked: list[int] = []
    given = iter(argument for argument in arguments(text) if argument in ARRAYS)
    for k, t in enumerate(plan.inputs):
        name = next(given) if t.attrs["role"] == "input" and k not in numbers else ""
        values.append(ARRAYS[name] if name else 2.5 if k in numbers else np.uint32(1))
        asked += [k] if name and wants(name) else []
    parameters = ", ".join(f"x{k}" for k in range(len(plan.inputs)))
    made = [f"x{k} = array(x{k}, float_)" for k in numbers]
    writer, results, _ = plan.recorded(())
    writer.lines[:0] = made
    names = [result.value for result in results]
    forward = writer.function(parameters, names[0] if plan.many is None else f"({', '.join(names)},)")
    writer, (recorded, *_), _ = plan.recorded(asked)
    writer.lines[:0] = made
    if plan.many is not None or recorded.pullback is None:
        return lambda: forward(*values), None
    first = writer.function(parameters, f"{recorded.value}, {recorded.saved}")
    ct, pullback = np.ones_like(first(*values)[0]), recorded.pullback
    return lambda: forward(*values), lambda: pullback(ct, first(*values)[1])


def arguments(text: str) -> list[str]:
    """Return the names in an expression, each as often as it occurs."""
    return "".join(c if c.isalnum() or c == "_" else " " for c in text).split()


def wants(name: str) -> bool:
    return ARRAYS[name].dtype == np.float32 and name not in TARGETS


def columns(ours: str, theirs: str) -> tuple[list[Thunk], list[Thunk]]:
    """Forward: NumPy, ours, ours on arrays, PyTorch. Forward and backward: NumPy, ours, PyTorch; none without."""
    for own in sorted(THEIRS):
        theirs = theirs or (ours.replace(own, THEIRS[own]) if own in ours else "")
    theirs = theirs or ours.replace("tg.", "torch.")
    alone, alone_both = numpy_alone(ours)
    own = {n: tg.tensor(ARRAYS[n]) for n in named(ours)}
    # Of operators and methods one operand must be a tensor: NumPy's own would be called
    arrays = {n: ARRAYS[n] if ours.startswith("tg.") or k else own[n] for k, n in enumerate(own)}
    other = {n: torch.tensor(ARRAYS[n]) for n in named(theirs)}
    forward = [alone, thunk(ours, own), thunk(ours, arrays), thunk(theirs, other)]
    if alone_both is None:
        return forward, []
    y = thunk(ours, {n: tg.parameter(ARRAYS[n]) if wants(n) else t for n, t in own.items()})
    z = thunk(theirs, {n: t.clone().requires_grad_() if wants(n) else t for n, t in other.items()})
    ones = torch.ones_like(z())
    return forward, [alone_both, lambda: y().backward(), lambda: z().backward(ones)]


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
    values, x, y = [normal(*s) * 0.3 for s in sizes], normal(32, 1), normal(32, 1)
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
    parser.add_argument("-k", default="", help="only rows that contain this")
    options = parser.parse_args()
    torch.set_num_threads(1)
    python = sys.version.split()[0]
    print(f"Python {python}, NumPy {np.__version__}, PyTorch {torch.__version__}, one thread; f32[8,16], in us")
    print(f"{'':36s} {'forward':>26s}      {'forward and backward':>21s}")
    print(
        f"{'':36s} {'NumPy':>6s} {'ours':>6s} {'arrays':>6s} {'torch':>6s}     {'NumPy':>6s} {'ours':>6s} {'torch':>6s}"
    )
    ahead: dict[str, list[bool]] = {"forward": [], "forward on arrays": [], "with backward": []}
    beyond: dict[str, list[float]] = {"forward": [], "with backward": []}
    for family, rows in FAMILIES.items():
        print(family)
        for ours, theirs in rows:
            if options.k not in ours:
                continue
            forward, both = columns(ours, theirs)
            n, o, a, t = times(forward, options.rounds)
            report = f"  {ours[:34]:34s} {n:6.2f} {o:6.2f} {a:6.2f} {t:6.2f} {'*' if o < t else ' '}   "
            ahead["forward"].append(o < t)
            ahead["forward on arrays"].append(a < t)
            beyond["forward"].append(o - n)
            if both:
                n, o, t = times(both, options.rounds)
                report += f"{n:6.2f} {o:6.2f} {t:6.2f} {'*' if o < t else ' '}"
                ahead["with backward"].append(o < t)
                beyond["with backward"].append(o - n)
            print(report)
    o, t = times(mlp(), max(options.rounds // 10, 1))
    print(f"MLP 1-32-32-1, batch of 32{'':49s}{o:6.1f} {t:6.1f} {'*' if o < t else ' '}")
    print(f"\nahead of PyTorch (*): {', '.join(f'{k} {sum(wins)} of {len(wins)}' for k, wins in ahead.items())}")
    for k, values in beyond.items():
        print(f"beyond NumPy, {k}: median {np.median(values):.2f}, most {max(values):.2f}")


if __name__ == "__main__":
    main()
