"""Small programs of every kernel family, run on a device and compared with the reference interpreter."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import numpy.typing as npt

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.engine.inputs import as_array
from tracegrad.evaluate import evaluate
from tracegrad.hypers import PREFIX
from tracegrad.ir import Graph

Array = npt.NDArray[Any]
SEED = 7
STEPS = 3


@dataclass(frozen=True, slots=True)
class Check:
    """One forward over inputs f32 of the given shapes, uniform in [low, high), and indices below `below`."""

    name: str
    forward: Callable[..., Any]
    shapes: Mapping[str, tuple[int, ...]]
    below: Mapping[str, int] | None = None  # inputs that are i32 indices
    low: float = -2.0
    high: float = 2.0
    tolerance: float = 2e-5  # of the largest magnitude in the result

    def arrays(self) -> dict[str, Array]:
        """The inputs, the same everywhere."""
        rng, below = np.random.default_rng(SEED), self.below or {}
        return {
            name: rng.integers(0, below[name], shape, np.int32)
            if name in below
            else rng.uniform(self.low, self.high, shape).astype(np.float32)
            for name, shape in self.shapes.items()
        }

    def types(self) -> dict[str, Any]:
        """The inputs, as tg.compile_forward declares them."""
        return {n: tg.i32[s] if n in (self.below or {}) else s for n, s in self.shapes.items()}


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a check on a device. `error` is relative to the largest magnitude, NaN if it did not run."""

    ok: bool
    error: float
    seconds: float
    message: str = ""


class Probe(tg.Module):
    """One matrix, so that the forwards have a parameter too."""

    def __init__(self) -> None:
        self.w = self.param((24, 24), init=tg.init.randn(0.2))


def elementwise(m: Probe, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    """Arithmetic, comparison, and the functions a driver may get wrong."""
    bell = tg.exp(-tg.square(x)) * tg.sin(3.0 * y) + tg.tanh(20.0 * x)
    return tg.where(x > y, bell, tg.sqrt(tg.abs(y)) + tg.erf(x) + tg.log1p(tg.abs(x)))


def views(m: Probe, x: tg.Tensor) -> tg.Tensor:
    """Slices, paddings, permutations and joins, folded into index expressions."""
    turned = tg.pad(tg.permute(x, (2, 0, 1))[1:, :, ::2], [(1, 0), (2, 1), (0, 3)])
    return tg.concat([turned, tg.flip(turned, 1)], axis=2).reshape(-1, 12) * 2.0


def row_folds(m: Probe, x: tg.Tensor) -> tg.Tensor:
    """Normalisation, softmax and a sum of exponentials along the last axis."""
    return tg.softmax(tg.layer_norm(x)) + tg.logsumexp(x, axis=-1, keepdims=True)


def column_folds(m: Probe, x: tg.Tensor) -> tg.Tensor:
    """Sums down the columns, with an epilogue."""
    return tg.sum(x, axis=0) / (1.0 + tg.var(x, axis=0))


def long_folds(m: Probe, x: tg.Tensor) -> tuple[tg.Tensor, tg.Tensor]:
    """Folds so long and narrow that they are split in two."""
    return tg.mean(tg.square(x)), tg.max(x, axis=1)


def cumulative(m: Probe, x: tg.Tensor) -> tuple[tg.Tensor, tg.Tensor]:
    """A running sum, and where the largest is."""
    return tg.cumsum(x, axis=1), tg.argmax(x, axis=0)


def products(m: Probe, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    """A tiled product with a prologue and an epilogue."""
    return tg.relu(tg.tanh(x) @ y + 0.5)


def plain_product(m: Probe, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    """Nothing but a product."""
    return x @ y


def small_products(m: Probe, x: tg.Tensor) -> tg.Tensor:
    """Batched, smaller than a tile in every direction, and with a parameter."""
    return (x @ tg.swapaxes(x, -1, -2)).sum(axis=0) + (x[0] @ m.w[:5])[:, :3]


def images(m: Probe, x: tg.Tensor, k: tg.Tensor) -> tg.Tensor:
    """A convolution and a pool."""
    return tg.max_pool2d(tg.relu(tg.conv2d(x, k, padding=1)), 2)


def gather(m: Probe, i: tg.Tensor, j: tg.Tensor) -> tuple[tg.Tensor, tg.Tensor]:
    """Rows by number, and one element a row."""
    rows = tg.embedding(m.w, i)
    return rows, tg.take_along_axis(rows, j, axis=1)


def scatter(m: Probe, i: tg.Tensor, x: tg.Tensor) -> tg.Tensor:
    """Sums where numbers repeat."""
    return tg.scatter_add(tg.zeros((9, 6)), i, x)


def random(m: Probe, x: tg.Tensor) -> tuple[tg.Tensor, tg.Tensor]:
    """The same numbers on every device."""
    return tg.uniform((37, 5)), tg.dropout(x, 0.3)


TILES = {16: 80, 32: 330, 64: 650}  # how many results a side give a tile of that size
CHECKS: tuple[Check, ...] = (
    Check("elementwise", elementwise, {"x": (33, 17), "y": (17,)}),
    Check("views and padding", views, {"x": (4, 6, 8)}, tolerance=0.0),
    *(Check(f"row folds of {n}", row_folds, {"x": (9, n)}) for n in (20, 77, 300, 700)),
    *(Check(f"column folds of {n}", column_folds, {"x": (n, 33)}) for n in (150, 1500)),
    Check("long folds, split", long_folds, {"x": (3, 40_000)}),
    Check("cumulative and arg", cumulative, {"x": (12, 40)}),
    *(Check(f"products, tile of {t}", products, {"x": (n, 40), "y": (40, n - 8)}) for t, n in TILES.items()),
    Check("products, small", small_products, {"x": (4, 3, 5)}),
    Check("products, long", plain_product, {"x": (2, 9000), "y": (9000, 3)}, tolerance=1e-4),
    Check("convolution and pool", images, {"x": (2, 3, 10, 10), "k": (8, 3, 3, 3)}),
    Check("gather", gather, {"i": (13,), "j": (13, 1)}, {"i": 24, "j": 24}, tolerance=0.0),
    Check("scatter", scatter, {"i": (40,), "x": (40, 6)}, {"i": 9}),
    Check("random", random, {"x": (40, 30)}),
)  # fmt: skip


def run_check(check: Check, device: str) -> Outcome:
    """Compile and run the forward, and compare every output with the reference."""
    arrays = check.arrays()
    with tg.compile_forward(
        model=Probe(), forward=check.forward, inputs=check.types(), seed=SEED, device=device
    ) as compiled:
        got = compiled.run(arrays).output
        graph = compiled.graph_for(arrays)
        counters = {"seed": np.uint32(SEED), "step": np.uint32(1)}
        wanted = reference(graph, {**arrays, **compiled.download_params(), **counters})
    values = cast("tuple[Any, ...]", got) if isinstance(got, tuple) else (got,)
    return _compare(values, [wanted[name] for name in graph.outputs], check.tolerance)


class Classifier(tg.Module):
    """A table, a dense layer and a norm: enough to have every kind of gradient."""

    def __init__(self) -> None:
        self.table = nn.Embedding(11, 16)
        self.dense = nn.Linear(16, 5, init=tg.init.kaiming())
        self.norm = nn.LayerNorm(16)


def classifier_loss(m: Classifier, tokens: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    """Cross-entropy behind a dropout."""
    return tg.cross_entropy(m.dense(tg.dropout(m.norm(m.table(tokens)), 0.1)), y)


def run_training_check(device: str, tolerance: float = 1e-4) -> Outcome:
    """Three steps of AdamW with clipping: the losses and all parameters, against the reference."""
    rng = np.random.default_rng(SEED)
    batch = {"tokens": rng.integers(0, 11, (6,), np.int32), "y": rng.integers(0, 5, (6,), np.int32)}
    optimizer = optim.adamw(lr=1e-2, weight_decay=1e-2, clip_grad_norm=0.5)
    with tg.compile(
        model=Classifier(),
        loss=classifier_loss,
        inputs={"tokens": tg.i32[6], "y": tg.i32[6]},
        optimizer=optimizer,
        seed=SEED,
        device=device,
    ) as train:
        memory, losses = {**arenas(train), **initial_state(train)}, list[Array]()
        hyper = [f for f in train.program.inputs if f.name.startswith(PREFIX)]
        for step in range(1, STEPS + 1):
            knobs = train.knobs.upload(hyper, step, train.seed)
            env = {
                **memory,
                **parameters(train, memory),
                **batch,
                **{name.removeprefix(PREFIX): value for name, value in knobs.items()},
            }
            out = reference(train.graph, env)
            losses.append(out["loss"])
            memory |= {name: out[name] for name in train.graph.writes}
        got = [np.float32(train.step(batch).loss) for _ in range(STEPS)]
        after = arenas(train)
    return _compare([*got, *after.values()], [*losses, *(memory[name] for name in after)], tolerance)


def arenas(train: tg.CompiledTraining) -> dict[str, Array]:
    """The flat arrays that hold the parameters, by name, as they are now."""
    values, out = train.download_params(), dict[str, Array]()
    for f in train.program.params:
        buffer = train.program.buffers[f.buffer]
        flat = out.setdefault(buffer.name, np.zeros(buffer.size, np.float32))
        flat[f.offset : f.offset + values[f.name].size] = values[f.name].reshape(-1)
    return out


def parameters(train: tg.CompiledTraining, flats: Mapping[str, Array]) -> dict[str, Array]:
    """The parameters, cut out of the arrays that `arenas` gave."""
    program, out = train.program, dict[str, Array]()
    for f in program.params:
        flat = flats[program.buffers[f.buffer].name]
        out[f.name] = flat[f.offset : f.offset + f.size].reshape(f.shape)
    return out


def reference(graph: Graph, env: Mapping[str, Any]) -> dict[str, Array]:
    """Everything a graph computes, by NumPy and the rows' own array rules."""
    names = [*graph.outputs, *graph.captures, *graph.writes]
    return dict(zip(names, (as_array(x) for x in evaluate(graph.roots, env, np)), strict=True))


def initial_state(train: tg.CompiledTraining) -> dict[str, Array]:
    """What the optimizer's arrays hold before the first step."""
    program = train.program
    return {
        f.name: np.full(f.shape, program.buffers[f.buffer].fill, np.float32 if f.dtype == "f32" else np.int32)
        for f in program.states
    }


def _compare(got: Sequence[Any], wanted: Sequence[Any], tolerance: float) -> Outcome:
    """The largest difference, relative to the largest magnitude of that output."""
    error = 0.0
    for a, b in zip(got, wanted, strict=True):
        x, y = np.asarray(a, np.float64), np.asarray(b, np.float64)
        if x.shape != y.shape:
            return Outcome(False, float("nan"), 0.0, f"shape {x.shape}, expected {y.shape}")
        if not np.array_equal(np.isfinite(x), np.isfinite(y)):
            return Outcome(False, float("nan"), 0.0, "not finite where the reference is, or the reverse")
        error = max(error, float(np.abs(x - y).max() / max(1.0, np.abs(y).max())))
    return Outcome(error <= tolerance, error, 0.0)


def run_all(device: str) -> dict[str, Outcome]:
    """Every check on one device; what raises is a failed check, with its message."""
    jobs: dict[str, Callable[[], Outcome]] = {c.name: lambda c=c: run_check(c, device) for c in CHECKS}
    jobs["optimizer steps"] = lambda: run_training_check(device)
    return {name: _timed(job) for name, job in jobs.items()}


def _timed(job: Callable[[], Outcome]) -> Outcome:
    began = time.perf_counter()
    try:
        outcome = job()
    except Exception as e:  # a self-test reports whatever a driver does
        outcome = Outcome(False, float("nan"), 0.0, f"{type(e).__name__}: {e}")
    return Outcome(outcome.ok, outcome.error, time.perf_counter() - began, outcome.message)
