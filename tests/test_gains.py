"""Gains and offsets of a product's operand are applied to its result: the same numbers, from what is in memory."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import tracegrad as tg
from memory_check import check_memory, planned_training
from models import BUDGET
from test_kernels import NOTHING, run
from tracegrad import nn, optim
from tracegrad.ambient import tracing
from tracegrad.compiler.build import build_training
from tracegrad.compiler.plan import make_program
from tracegrad.dtypes import TensorType, f32
from tracegrad.evaluate import evaluate
from tracegrad.ir import Graph, Tensor, toposort
from tracegrad.passes import gains, recompute
from tracegrad.passes.expand import expand_composites
from tracegrad.passes.gains import apply_gains
from tracegrad.passes.simplify import simplify
from tracegrad.prims.folds import MATMUL
from tracegrad.prims.leaves import leaf
from tracegrad.runtime.cpu import CpuSession
from tracegrad.transforms.grad import gradients

SHAPES = {"x": (4, 16, 8), "g": (8,), "o": (8,), "w": (8, 12), "v": (12, 8), "c": (12,)}
Layer = Callable[..., Tensor]
fixed = tg.stop_gradient
# what is behind the normalization, and how many products then have a gain or an offset behind them
LAYERS: dict[str, tuple[Layer, int]] = {
    "a bias": (lambda x, g, o, w, v, c: tg.layer_norm(x, g, o) @ w + c, 1),
    "a transposed weight": (lambda x, g, o, w, v, c: tg.layer_norm(x, g, o) @ v.T + c, 1),
    "a matrix": (lambda x, g, o, w, v, c: tg.layer_norm(x.reshape(64, 8), g, o) @ w + c, 1),
    "a gain alone": (lambda x, g, o, w, v, c: tg.rms_norm(x, g) @ w, 1),
    "an offset alone": (lambda x, g, o, w, v, c: (tg.layer_norm(x) + o) @ w + c, 1),
    "two readers": (lambda x, g, o, w, v, c: (y := tg.layer_norm(x, g, o)) @ w + c + tg.sin(y @ v.T + c), 2),
    "no bias": (lambda x, g, o, w, v, c: tg.layer_norm(x, g, o) @ w, 0),  # whose gradient would have to be summed
    "no normalization": (lambda x, g, o, w, v, c: (tg.tanh(x) * g + o) @ w + c, 0),  # |u g| may be far above |u g + o|
    "what nobody reads": (lambda x, g, o, w, v, c: tg.layer_norm(fixed(x), fixed(g), o) @ w + c, 0),
}


def model(layer: Layer) -> Graph:
    """A loss and its gradients."""
    with tracing():
        leaves = [leaf("input", name, TensorType(f32, shape)) for name, shape in SHAPES.items()]
        loss = tg.mean(tg.sin(layer(*leaves)))
        return Graph({"loss": loss, **dict(zip(SHAPES, gradients(loss, leaves), strict=True))})


def scaled_operands(roots: list[Tensor]) -> int:
    """Sums over all rows of products with an operand that has a gain or an offset."""
    products = [t for t in toposort(roots) if t.prim is MATMUL and t.inputs[1].shape[-2] == 64]
    return sum(any(has_row(seen_through_views(x)) for x in t.inputs) for t in products)


def seen_through_views(x: Tensor) -> Tensor:
    while x.prim.family == "view":
        x = x.inputs[0]
    return x


def has_row(x: Tensor) -> bool:
    rows = [i for i in x.inputs if i.prim.name == "broadcast" and i.inputs[0].size == x.shape[-1]]
    return x.prim.name in ("add", "mul") and len(rows) > 0


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_the_same(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gains, "FROM", 1)
    layer, moved = LAYERS[name]
    graph, rng = model(layer), np.random.default_rng(0)
    env = {k: rng.normal(size=shape) for k, shape in SHAPES.items()}
    before = graph.with_roots(simplify(expand_composites(graph.roots)))
    after = simplify(apply_gains(before).roots)
    assert scaled_operands(before.roots) - scaled_operands(after) == moved
    exact = evaluate(graph.roots, env, np)
    for output, a, b in zip(graph.outputs, exact, evaluate(after, env, np), strict=True):
        np.testing.assert_allclose(b, a, rtol=1e-11, atol=1e-13, err_msg=output)
    small = {k: x.astype(np.float32) for k, x in env.items()}
    got = run(CpuSession(), make_program(graph, NOTHING, {}, {}), small)
    for output, want in zip(graph.outputs, exact, strict=True):
        np.testing.assert_allclose(got[output], want, rtol=2e-5, atol=2e-6, err_msg=output)


def test_a_gpt_computes_no_normed_input_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """What goes into its GELUs is kept, and of its norms what has no gain: only its GELUs are computed again."""
    for module in (recompute, gains):
        monkeypatch.setattr(module, "FROM", 2**16)
    arguments = BUDGET["gpt"][0].arguments()
    built = build_training(**arguments)
    check_memory(planned_training(arguments, built))
    labels = [built.program.kernels[d.kernel].label for d in built.program.dispatches]
    assert not any(part.strip() == "add" for label in labels for part in label.split("|"))


def test_a_capture_changes_no_bit_of_what_is_learned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what a norm of the input gives, nothing else reads what has no gain yet."""
    monkeypatch.setattr(gains, "FROM", 1)
    x, ends = np.random.default_rng(0).normal(size=(16, 8)).astype(np.float32), list[np.ndarray]()
    for captured in (False, True):

        def loss(m: nn.Linear, x: Tensor, captured: bool = captured) -> Tensor:
            y = tg.layer_norm(x)
            if captured:
                tg.capture("y", tg.max(y))
            return tg.mean(tg.sin(m(y * np.linspace(0.5, 1, 8, dtype=np.float32))))

        arguments = {"model": nn.Linear(8, 8), "loss": loss, "inputs": {"x": (16, 8)}, "optimizer": optim.sgd(lr=0.1)}
        with tg.compile(**arguments, seed=0, device="cpu") as train:
            for _ in range(2):
                train.step(x=x)
            ends.append(train.download_params()["W"])
    np.testing.assert_array_equal(*ends)
