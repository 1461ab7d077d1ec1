"""Graphs as functions of JAX's arrays: what is computed once, what reads a write, where parameters are whole.

The texts of the functions are read, because XLA computes the same from others, more slowly or in more memory.
"""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.ir.nodes import Tensor, toposort

pytest.importorskip("jax", reason="JAX is not installed")
import jax

from tracegrad.runtime.jax_graph import (
    GATHERED_APART,
    GATHERED_TOGETHER,
    SHARED_BY,
    Split,
    computed_once,
    for_xla,
    kept_if_refused,
    read_stored,
    run_graph,
)
from tracegrad.runtime.jax_mesh import Layout

N = 256
assert N * N == GATHERED_APART
ONCE, WHOLE, BARRIER = " platform_index", "sharding_constraint[", "optimization_barrier"


class Shared(tg.Module):
    def __init__(self) -> None:
        self.w = self.param((N, N), init=tg.init.zeros())
        self.small = self.param((N, N - 1), init=tg.init.zeros())


def forward(fn: Any) -> Any:
    """The graph of a function of a model and `x`, f32[256,256]."""
    return for_xla(tg.trace_forward(model=Shared(), forward=lambda m, x: fn(m, x), inputs={"x": (N, N)}))


def text(graph: Any, split: Split | None = None) -> str:
    """The function of a graph as JAX prints it."""
    leaves = {t.name: np.zeros(t.shape, t.dtype.numpy) for t in toposort(graph.roots) if t.prim.name == "leaf"}
    return str(jax.make_jaxpr(lambda given: run_graph(graph, lambda t: given[t.name], split=split))(leaves))


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
@pytest.mark.parametrize("dtype", ["float32", "int32", "uint32", "bool"])
def test_a_scalar_with_many_readers_keeps_its_value(dtype: str, shape: tuple[int, ...]) -> None:
    values = {"float32": [2.5, -2.5, 0.0, np.inf, -np.inf, np.nan], "bool": [True, False]}
    info = np.iinfo(dtype) if dtype in ("int32", "uint32") else None
    for value in values.get(dtype) or [info.min, info.max, 0, 7]:  # type: ignore[union-attr]
        x = np.full(shape, value, dtype)
        y = jax.jit(lambda x: computed_once(x, SHARED_BY + 1))(x)
        np.testing.assert_array_equal(y, x)
        assert (y.dtype, y.shape) == (x.dtype, x.shape)


@pytest.mark.parametrize("readers", [SHARED_BY, SHARED_BY + 1])
@pytest.mark.parametrize("size", [1, 2])
def test_only_a_scalar_with_many_readers_is_computed_once(readers: int, size: int) -> None:
    def read(_: Any, x: tg.Tensor) -> list[tg.Tensor]:
        total = tg.sum(x[:size], 1)
        return [tg.concat([total * float(k), x[0]], 0) for k in range(readers)]

    graph = forward(lambda m, x: tuple(read(m, x)))
    assert (ONCE in text(graph)) == (size == 1 and readers > SHARED_BY)


def test_the_results_of_a_scan_are_no_scalar() -> None:
    def scanned(_: Any, x: tg.Tensor) -> tuple[tg.Tensor, ...]:
        last, _ = tg.scan(lambda c, row: (c + tg.sum(row), c), tg.zeros(()), x)
        return tuple([x * float(k) + last for k in range(SHARED_BY + 2)])

    assert text(forward(scanned)).count(ONCE) == 1, "the sum that is left of the scan"


@pytest.mark.parametrize("optimizer", [optim.adam(lr=0.1), optim.sgd(lr=0.1, momentum=0.9)], ids=["adam", "sgd"])
def test_a_refused_step_keeps_parameters_and_the_state_of_the_optimizer(optimizer: Any) -> None:
    graph = tg.trace(model=nn.Linear(2, 1), loss=lambda m, x: tg.mean(m(x)), inputs={"x": (4, 2)}, optimizer=optimizer)
    moments = {"m", "v"} if "v" in graph.writes else {"momentum"}
    assert kept_if_refused(graph.writes, "halted") == {"params"} | moments & set(graph.writes)
    assert len(graph.writes) > len(moments) + 2, "others are written in any case"


def test_a_write_reads_other_writes_under_its_condition_as_they_are_stored() -> None:
    before: dict[str, Tensor] = {}

    def forward(_: Any, c: Tensor, d: Tensor, rows: Tensor, m0: Tensor, p0: Tensor) -> Tensor:
        m1 = m0 * 0.5 + 1.0
        before["m"] = tg.where(c, m1, m0)
        before["p"] = tg.where(tg.broadcast_to(tg.reshape(c, (1,)), (3,)), p0 - m1, p0)
        before["other"] = tg.where(d, p0 - m1, p0)
        before["m by rows"] = tg.where(rows, m1, m0)
        before["by rows"] = tg.where(rows, p0 - m1, p0)
        before["always"] = p0 - m1
        return before["p"]

    shapes = {"c": tg.bool_[()], "d": tg.bool_[()], "rows": tg.bool_[3], "m0": (3,), "p0": (3,)}
    tg.trace_forward(model=Shared(), forward=forward, inputs=shapes)
    after = read_stored(before)
    reads = {name: {t.serial for t in toposort([after[name]])} for name in after}
    assert after["m"].serial in reads["p"], "m as it is stored"
    assert all(after["m"].serial not in reads[name] for name in ("other", "by rows", "always"))
    assert after["m by rows"].serial not in reads["by rows"], "a condition for each element"
    _, value, old = after["p"].inputs
    assert old is before["p"].inputs[2] and value.prim is before["p"].inputs[1].prim
    assert after["m"].inputs[2] is before["m"].inputs[2], "what is not chosen stays"
    names = [t.name for t in toposort([after["p"]]) if t.prim.name == "leaf"]
    assert set(names) == {"c", "m0", "p0"}


def alone(gradients: set[int], elements: int) -> Split:
    """FSDP on one device: what is whole, and what is split, is in the text."""
    return Split(Layout(jax.make_mesh((1,), ("data",)), "fsdp"), gradients, elements)


READERS = {  # a function of the parameters, and how often one of them is made whole
    "one reader": (lambda m, x: x * m.w, 1),
    "two readers": (lambda m, x: (x * m.w, x + m.w), 2),
    "no parameter": (lambda m, x: x * x, 0),
    "a view of all": (lambda m, x: x * tg.swapaxes(m.w, 0, 1), 1),
    "a view of a view": (lambda m, x: x * tg.reshape(tg.swapaxes(m.w, 0, 1), (N, N)), 1),
    "a part": (lambda m, x: x[:2] * m.w[:2], 1),
    "a sum over it": (lambda m, x: x * tg.sum(m.w), 1),
    "two parameters": (lambda m, x: m.w @ m.small, 2),
}


@pytest.mark.parametrize("name", READERS)
def test_a_reader_makes_a_split_parameter_whole(name: str) -> None:
    fn, times = READERS[name]
    for elements in (GATHERED_TOGETHER, GATHERED_TOGETHER + 1):
        assert text(forward(fn), alone(set(), elements)).count(WHOLE) == times
    assert WHOLE not in text(forward(fn))


BARRIERS = {  # only in a large model: behind the other operands, for parameters of some size
    "large": (lambda m, x: x @ m.w, 1),
    "small": (lambda m, x: x @ m.small, 0),
    "without other operands": (lambda m, x: m.w @ m.small, 0),
    "a view": (lambda m, x: tg.swapaxes(m.w, 0, 1) @ x, 1),
    "large and small": (lambda m, x: tg.concat([x, m.w, m.small], 1), 1),
}


@pytest.mark.parametrize("name", BARRIERS)
def test_a_large_model_gathers_each_parameter_once_the_other_operands_are_there(name: str) -> None:
    fn, times = BARRIERS[name]
    assert text(forward(fn), alone(set(), GATHERED_TOGETHER + 1)).count(BARRIER) == times
    assert BARRIER not in text(forward(fn), alone(set(), GATHERED_TOGETHER))


def test_a_gradient_is_summed_and_split_where_it_is_computed() -> None:
    graph = forward(lambda m, x: (x * 2.0, x * 3.0))
    gradient, _ = graph.roots
    found = text(graph, alone({gradient.serial}, 0))
    assert re.findall(r"spec=\w+\((.*?)\)", found) == ["", "'data', None"], "whole, then split"


def test_composites_are_expanded_unless_xla_has_a_rule() -> None:
    graph = forward(lambda m, x: tg.softmax(tg.relu(tg.concat([x, m.w], 1))))
    names = {t.prim.name for t in toposort(graph.roots)}
    assert {"relu", "concat"} <= names and "softmax" not in names, names


@pytest.mark.parametrize("precision", ["f32", "tf32", "bf16", "f16"])
def test_only_the_operands_of_products_lose_precision(precision: str) -> None:
    found = text(replace(forward(lambda m, x: tg.exp(x @ m.w)), precision=precision))
    assert re.findall(r"\b(\w+)\[256,256\] = convert_element_type", found) == 2 * [precision] * ("f32" not in precision)
    assert ("HIGHEST" in found) == (precision != "tf32")


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("leading", [(), (2,), (2, 3)])
def test_jax_computes_attention_in_bf16_as_one_op(
    monkeypatch: pytest.MonkeyPatch, leading: tuple[int, ...], causal: bool
) -> None:
    """As the same spelled with products, in a loss that attends to the same values in two ways."""
    called: list[tuple[tuple[int, ...], str]] = []
    attend = jax.nn.dot_product_attention

    def spied(q: Any, *args: Any, **how: Any) -> Any:
        called.append((q.shape, str(q.dtype)))
        return attend(q, *args, **how)

    def spelled(q: tg.Tensor, k: tg.Tensor, v: tg.Tensor, causal: bool) -> tg.Tensor:
        scores = (q @ tg.swapaxes(k, -1, -2)) * q.shape[-1] ** -0.5
        return (tg.softmax_causal(scores) if causal else tg.softmax(scores)) @ v

    def grads(attention: Any) -> list[Any]:
        def loss(q: tg.Tensor, k: tg.Tensor, v: tg.Tensor) -> tg.Tensor:
            return tg.sum(tg.square(attention(q, k, v, causal=causal) + 0.5 * attention(q, k, v, causal=not causal)))

        shape, sources = (*leading, 128, 8), dict[str, Any](q=0, k=0, v=0)
        graph = tg.trace_forward(
            model=nn.Linear(1, 1), inputs=dict.fromkeys(sources, shape),
            forward=lambda m, q, k, v: dict(zip("qkv", tg.grad(loss, argnums=(0, 1, 2))(q, k, v))),
        )  # fmt: skip
        graph = for_xla(replace(graph, precision="bf16"))
        draw = np.random.default_rng(0)
        given = {n: draw.standard_normal(shape).astype(np.float32) for n in sources}
        return list(jax.jit(lambda: run_graph(graph, lambda t: given[t.name]))())

    want = grads(spelled)
    assert not called
    monkeypatch.setattr(jax.nn, "dot_product_attention", spied)
    got = grads(tg.attention)
    batch = (1, 1) if not leading else (leading[0], 1) if len(leading) == 1 else leading
    assert called == 2 * [((batch[0], 128, batch[1], 8), "bfloat16")]  # once for both directions
    for a, b in zip(got, want, strict=True):
        assert float(abs(a - b).max()) < 0.02 * float(abs(b).max())


@pytest.mark.parametrize(
    ("tokens", "size", "precision"),
    [(127, 8, "bf16"), (126, 8, "bf16"), (128, 7, "bf16"), (128, 136, "bf16"), (128, 8, "f16"), (128, 8, "f32")],
)
def test_attention_that_cudnn_cannot_compute_as_well_is_expanded(tokens: int, size: int, precision: str) -> None:
    """Results and gradients would be rounded to f16, too, whose range is less."""
    traced = tg.trace_forward(
        model=nn.Linear(1, 1), forward=lambda m, x: tg.attention(x, x, x), inputs={"x": (2, tokens, size)}
    )
    graph = for_xla(replace(traced, precision=precision))
    assert not any(t.prim.name == "attention" for t in toposort(graph.roots))
