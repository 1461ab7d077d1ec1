"""What leaves the loop of a scan, and that it computes the same there, in float64 by the reference: rounding only."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from test_kernels import NOTHING, run
from tracegrad.compiler import pipeline
from tracegrad.compiler.pipeline import make_program, optimize
from tracegrad.dtypes import TensorType, f32, i32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor, bind, toposort
from tracegrad.passes import lift
from tracegrad.passes.expand import expand_composites
from tracegrad.passes.lift import out_of_loops
from tracegrad.prims.leaves import leaf
from tracegrad.runtime.cpu import CpuSession
from tracegrad.transforms.loops import Body, item
from tracegrad.transforms.walks import gradients

T, B, N = 5, 3, 4
SHAPES = {"x": (T, B, N), "w": (N, N), "u": (N, N), "b": (N,), "h": (B, N), "k": (2, N, 3), "table": (6, N)}
ENV = {n: np.random.default_rng(k).uniform(-1, 1, s) for k, (n, s) in enumerate(SHAPES.items())}
ENV |= {"i": np.asarray([[0, 5, 1], [2, 2, 3], [5, 0, 0], [1, 4, 2], [3, 3, 3]], np.int32)}
ENV |= {"seed": np.asarray(5, np.uint32), "step": np.asarray(1, np.uint32)}


def rnn(x: Any, w: Any, u: Any, b: Any, h: Any, **_: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = tg.tanh(x @ w + h @ u + b)
        return h, h @ w

    return tg.sum(tg.sin(tg.scan(step, h, x)[1]))


def backwards(x: Any, w: Any, h: Any, **_: Any) -> Any:
    return tg.sum(tg.scan(lambda h, x: (tg.tanh(h @ w * x), h), h, x, reverse=True)[1] ** 2)


def masked(x: Any, w: Any, h: Any, i: Any, **_: Any) -> Any:
    """Sequences of different lengths: what is behind the end changes nothing."""
    live = tg.reshape(tg.arange(T), (T, 1, 1)) < tg.reshape(i[1] + 1, (1, B, 1))
    step = lambda h, e: 2 * (tg.where(e[1], tg.tanh(e[0] + h @ w), h),)
    return tg.sum(tg.sin(tg.scan(step, h, (x, live))[1]))


def nested(x: Any, w: Any, u: Any, h: Any, **_: Any) -> Any:
    def row(h: Any, x: Any) -> Any:
        h, ys = tg.scan(lambda h, e: 2 * (tg.tanh(h @ w + e @ u),), h, tg.stack([x, 2.0 * x]))
        return h, tg.sum(ys, axis=0) @ w

    return tg.sum(tg.scan(row, h, x)[1] ** 2)


def looked_up(table: Any, i: Any, u: Any, h: Any, **_: Any) -> Any:
    step = lambda h, i: (tg.tanh(h @ u + tg.embedding(table, i)), tg.take(tg.softmax(h), i, 1))
    last, ys = tg.scan(step, h, i)
    return tg.sum(last * last) + tg.sum(tg.cos(ys))


def convolved(x: Any, k: Any, h: Any, **_: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        y = tg.conv1d(tg.reshape(tg.concat([h, h + x], 1), (B, 2, N)), tg.concat([k[:, :2], k[:, 2:]], 1)[:, :2, :])
        return tg.tanh(tg.concat([tg.reshape(y, (B, -1)), x], 1)[:, :N]), y

    return tg.sum(tg.scan(step, h, x)[1] ** 2)


def attending(x: Any, w: Any, u: Any, h: Any, **_: Any) -> Any:
    """Products with a batch, of the carry and of elements."""

    def step(h: Any, x: Any) -> Any:
        q, k = tg.reshape(h @ w, (B, 2, 2)), tg.reshape(x @ u, (B, 2, 2))
        return tg.tanh(h + tg.reshape(tg.softmax(q @ tg.swapaxes(k, 1, 2)) @ k, (B, N))), None

    return tg.sum(tg.scan(step, h, x)[0] ** 2)


def summed(x: Any, w: Any, u: Any, b: Any, h: Any, **_: Any) -> Any:
    """Carries that somebody sums himself, in every way that is linear."""

    def step(carry: Any, x: Any) -> Any:
        h, a, c, d, e = carry
        h = tg.sin(h @ u) * x
        a = a + 2.0 * (tg.transpose(h) @ x) - tg.transpose(x) @ x
        c = c + tg.sum(h * b, axis=0) + b
        d = d + tg.sum(x @ w, axis=0) + tg.sum(tg.transpose(h) @ (h @ w), axis=0)
        e = e + tg.reshape(tg.pad(h[:, 1:3], ((0, 0), (1, 1))), (N, B)) @ w[:B, :2] * 3.0
        return (h, a, c, d, e), None

    zeros = tg.zeros
    (h, a, c, d, e), _ = tg.scan(step, (h, zeros((N, N)), zeros(N), b, zeros((N, 2))), x)
    return tg.sum(h) + tg.sum(tg.sin(a)) + tg.sum(c * d) + tg.sum(e * e)


def drawn(x: Any, w: Any, h: Any, **_: Any) -> Any:
    """Random numbers, of which every iteration has others, and the backward the same."""
    step = lambda h, x: (tg.tanh(tg.dropout(h, 0.5) @ w + tg.dropout(x, 0.5) @ w), tg.dropout(h, 0.3) @ w)
    return tg.sum(tg.scan(step, h, x)[1] ** 2)


def again(x: Any, w: Any, u: Any, h: Any, **_: Any) -> Any:
    """With what is computed again in the backward."""
    layer = tg.remat(lambda h, x: tg.tanh(tg.tanh(h @ w + x) @ u))
    return tg.sum(tg.scan(lambda h, x: 2 * (layer(h, x),), h, x)[1] ** 2)


def many(x: Any, w: Any, h: Any, u: Any, **_: Any) -> Any:
    """A batch of scans, each with a weight of its own."""
    one = lambda w, h: tg.scan(lambda h, x: 2 * (tg.tanh(h @ w + x @ u),), h, x)[1]
    return tg.sum(tg.vmap(one)(tg.stack([w, 2.0 * w]), tg.stack([h, -h])) ** 2)


def compared(x: Any, w: Any, h: Any, **_: Any) -> Any:
    """What meets its largest again."""

    def step(h: Any, x: Any) -> Any:
        y = x * 3.0
        return tg.tanh(h @ w + tg.cast(y == tg.max(y, axis=1, keepdims=True), f32)), tg.max(h @ w, axis=1)

    last, ys = tg.scan(step, h, x)
    return tg.sum(last**2) + tg.sum(ys**2)


def iterated(w: Any, h: Any, b: Any, **_: Any) -> Any:
    """What no iteration changes: transposed, normed, and an output that is the same in all of them."""

    def step(h: Any, _: Any) -> Any:
        scale = tg.softmax(w, axis=0)
        return tg.tanh(h @ tg.transpose(w) + h @ scale), tg.sum(scale @ b)

    last, ys = tg.scan(step, h, None, 6)
    return tg.sum(last**2) + tg.sum(ys)


def gated(x: Any, w: Any, u: Any, b: Any, h: Any, **_: Any) -> Any:
    """One row: the gradient of the bias is no sum over rows, but what the gradient of the weight reads."""

    def step(h: Any, x: Any) -> Any:
        i, r = x @ w + b, h @ u + b
        z = tg.sigmoid(i[:, :2] + r[:, :2])
        n = tg.tanh(i[:, 2:] + z * r[:, 2:])
        h = tg.concat([(1 - z) * n + z * h[:, :2], h[:, 2:] * n], 1)
        return h, h

    last, ys = tg.scan(step, h[:1], x[:, :1])
    return tg.sum(last**2) + tg.sum(ys[-1] ** 2)


def chained(x: Any, w: Any, b: Any, h: Any, **_: Any) -> Any:
    """As a CRF: the gradients of `w` and `b` are sums of elements over rows, in each iteration."""
    step = lambda h, x: (tg.logsumexp(h[:, :, None] + w[None], axis=1) * b + x, None)
    return tg.sum(tg.sin(tg.scan(step, h, x)[0]))


def weighted(x: Any, w: Any, b: Any, h: Any, i: Any, **_: Any) -> Any:
    """Columns that each iteration chooses, and sums of scaled products."""

    def step(carry: Any, e: Any) -> Any:
        (h, a, c), (x, i) = carry, e
        h = tg.tanh(h * tg.transpose(tg.take(w, i, 1)) + x)
        product = tg.transpose(h) @ x
        return (h, b * product + a, c + (tg.transpose(x) @ x) * product), None

    h, a, c = tg.scan(step, (h, tg.zeros((N, N)), tg.zeros((N, N))), (x, i))[0]
    return tg.sum(h * h) + tg.sum(tg.sin(a) * c)


MODELS = (
    rnn, backwards, masked, nested, looked_up, convolved, attending, summed, drawn, again, many, compared, iterated,
    gated, chained, weighted,
)  # fmt: skip


def leaves() -> dict[str, Tensor]:
    found = {n: leaf("input", n, TensorType(f32, s)) for n, s in SHAPES.items()}
    return found | {"i": leaf("input", "i", TensorType(i32, (T, B)))}


def traced(model: Callable[..., Any], order: int) -> list[Tensor]:
    """The value and its gradients; of order 2, those of a function of the gradients too."""
    with tracing():
        given = leaves()
        floats = [given[n] for n in SHAPES]
        y = model(**given)
        roots = [y, *gradients(y, floats)]
        if order == 2:
            total = sum((tg.sum(tg.sin(g)) for g in roots[1:]), tg.zeros(()))
            roots += gradients(total, floats)
    return expand_composites(roots)


@pytest.mark.parametrize("order", [1, 2])
@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_what_leaves_the_loop_computes_the_same(model: Callable[..., Any], order: int) -> None:
    roots = traced(model, order)
    lifted = out_of_loops(roots)
    for a, b in zip(evaluate(lifted, ENV, np), evaluate(roots, ENV, np), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


def test_a_product_outside_reads_what_is_stored_transposed() -> None:
    """A transposed carry is an output: the loop stores that, and not what it is a view of."""

    def step(carry: Any, x: Any) -> Any:
        h, a = carry
        h = tg.tanh(h @ given["w"] + x)
        turned = tg.transpose(h)
        return (h, a + turned @ x), turned

    with tracing():
        given = leaves()
        (_, a), ys = tg.scan(step, (given["h"], tg.zeros((N, N))), given["x"])
    roots = expand_composites([a, ys])
    for got, want in zip(evaluate(out_of_loops(roots), ENV, np), evaluate(roots, ENV, np), strict=True):
        np.testing.assert_allclose(got, want, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
@pytest.mark.parametrize("little", [0, 600])
def test_little_memory_keeps_some_in_the_loop(
    model: Callable[..., Any], little: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With any limit, whatever it lets pass."""
    monkeypatch.setattr(lift, "LIFTED_BYTES", little)
    monkeypatch.setattr(lift, "LIFTED_TIMES", 0.0)
    roots = traced(model, 1)
    for a, b in zip(evaluate(out_of_loops(roots), ENV, np), evaluate(roots, ENV, np), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("model", MODELS, ids=lambda m: m.__name__)
def test_kernels_compute_it_too(model: Callable[..., Any]) -> None:
    roots = traced(model, 1)
    got = run(CpuSession(), make_program(Graph({str(k): t for k, t in enumerate(roots)}), NOTHING, {}, {}), single())
    for k, want in enumerate(evaluate(roots, ENV, np)):
        np.testing.assert_allclose(got[str(k)], want, rtol=2e-4, atol=2e-5)


def single() -> dict[str, Any]:
    return {n: x.astype(np.float32) if x.dtype == np.float64 else x for n, x in ENV.items()}


def loops(roots: list[Tensor]) -> list[list[str]]:
    """The products, sums and scatters in the body of each scan."""
    bodies = [t.attrs["body"] for t in toposort(roots) if t.prim.family == "scan"]
    costly = ("product", "fold", "scatter")
    return [[t.prim.name for t in toposort(b.roots) if t.prim.family in costly] for b in bodies]


def test_only_what_the_recurrence_needs_stays_in_the_loop() -> None:
    """Forward h @ u, backward ct @ u^T. Outside: products with w, gradients of w, u and b, and the outputs."""
    assert loops(out_of_loops(traced(rnn, 1))) == [["matmul"], ["matmul"]]
    assert sum(map(len, loops(traced(rnn, 1)))) > 6


def test_sums_over_rows_leave_the_loop() -> None:
    """What the recurrence needs stays: the peak and sum of logsumexp, and backwards the sum over its results."""
    assert loops(out_of_loops(traced(chained, 1))) == [["peak", "sum"], ["sum"]]


def test_gradients_of_a_table_are_one_scatter() -> None:
    inside = loops(out_of_loops(traced(looked_up, 1)))
    assert all("scatter_add" not in body or body.count("scatter_add") == 1 for body in inside)
    assert sum("scatter_add" in body for body in inside) <= 1  # of the softmax, which the carry's gradient needs


@pytest.mark.parametrize("add", [lambda c, y: c + y, lambda c, y: y + c], ids=["carry first", "carry last"])
def test_sums_of_elements_need_no_loop(add: Callable[[Any, Any], Any]) -> None:
    with tracing():
        x = leaves()["x"]
        total, _ = tg.scan(lambda c, x: (add(c, tg.transpose(x) @ x), None), tg.zeros((N, N)), x)
    assert loops(out_of_loops(expand_composites([total]))) == []


def body_of(roots: Sequence[Tensor]) -> Body:
    """The body of the only loop."""
    (body,) = [t.attrs["body"] for t in toposort(out_of_loops(expand_composites(roots))) if t.prim.family == "scan"]
    return body


def test_what_no_iteration_changes_is_computed_once() -> None:
    """Transposed matrices, which the products in the loop then read as they are."""
    with tracing():
        given = leaves()

        def step(h: Any, _: Any) -> Any:
            pairs = tg.reshape(h, (1, B, N)) @ given["k"]
            return tg.tanh(h @ tg.transpose(given["w"]) + tg.sum(pairs @ tg.swapaxes(given["k"], 1, 2), 0)), None

        h = tg.scan(step, given["h"], None, T)[0]
    body = body_of([h])
    products = [t for t in toposort(body.roots) if t.prim.family == "product"]
    assert [t.inputs[1].prim.family for t in products] == ["leaf"] * 3


def test_what_no_iteration_changes_leaves_both_loops() -> None:
    with tracing():
        given = leaves()
        inner = lambda g, _: (tg.tanh(g @ tg.transpose(given["w"])), None)
        h = tg.scan(lambda h, _: (tg.scan(inner, h, None, 2)[0] * 0.5, None), given["h"], None, T)[0]
    assert not {"permute", "copy"} & {t.prim.name for t in toposort(body_of([h]).roots)}


def test_what_is_compared_leaves_the_loop_as_it_was_computed_there() -> None:
    """Computed again, a value could be rounded in another way, and then it would not equal its largest element."""
    with tracing():
        given = leaves()

        def step(h: Any, x: Any) -> Any:
            h = tg.tanh(h @ given["u"] + x)
            y = h * given["b"] + x
            peaks = tg.concat([tg.max(y, 1, keepdims=True), tg.zeros((B, 1))], 1)
            return h, tg.cast(y[:, None, :] == peaks[:, :, None], f32) @ given["w"]

        ys = tg.scan(step, given["h"], given["x"])[1]
    assert "add" in [t.prim.name for t in body_of([ys]).each]


def test_a_sum_of_which_all_values_are_asked_stays() -> None:
    with tracing():
        x = leaves()["x"]
        _, ys = tg.scan(lambda c, x: 2 * (c + x,), tg.zeros((B, N)), x)
    (scan,) = [t for t in toposort(out_of_loops([ys])) if t.prim.family == "scan"]
    assert len(scan.attrs["body"].carries) == 1


def test_memory_is_not_traded_for_a_product_that_is_small() -> None:
    """A loop over large carries, whose gradient by a scalar is small: nothing of its size is stored for that."""
    with tracing():
        big, w = leaf("input", "big", TensorType(f32, (1000, 1000))), leaf("input", "w", TensorType(f32, (1, 1000)))

        def step(carry: Any, _: Any) -> Any:
            h, total = carry
            h = tg.sin(h)
            return (h, total + w @ h), None

        (_, total), _ = tg.scan(step, (big, tg.zeros((1, 1000))), None, 100)
    assert loops(out_of_loops([total])) == [["matmul"]]


def test_values_between_two_folds_count_as_memory() -> None:
    """The second softmax reads the first along the other axis: outside, both would be whole, for all iterations."""
    with tracing():
        xs, h = leaf("input", "xs", TensorType(f32, (200, 300))), leaf("input", "h", TensorType(f32, (300,)))

        def step(carry: Any, x: Any) -> Any:
            h, total = carry
            h = tg.tanh(h * 0.9 + x)
            return (h, total + tg.sum(tg.softmax(tg.softmax(h[:, None] * x[None, :], 1), 0) ** 2)), None

        (_, total), _ = tg.scan(step, (h, tg.zeros(())), xs)
    (inside,) = loops(out_of_loops(expand_composites([total])))
    assert len(inside) > 3


def test_a_gradient_reads_what_was_finished() -> None:
    """Of two layers the tanh between is stored, not the product that it is made of."""
    with tracing():
        given = leaves()
        layers = lambda h: tg.sin(tg.tanh(h @ given["w"] + given["b"]) @ given["u"])
        roots = gradients(tg.sum(tg.repeat(layers, 4, given["h"])), [given["w"], given["u"]])
    scans = [t for t in toposort(expand_composites(roots)) if t.prim.family == "scan"]
    asked = [t.prim.name for t in scans[0].attrs["body"].each]
    assert asked == ["leaf", "tanh", "matmul"]  # sin is of the product, so its slope reads that


def test_a_value_that_leaves_its_loop_by_mistake_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also out of a nested loop into the one around it."""

    def row(h: Any, x: Any) -> Any:
        return tg.repeat(lambda g: tg.tanh(g + x), 2, h), None

    with tracing():
        x = leaves()["x"]
        graph = Graph({"y": tg.scan(row, x[0] * 2.0, x)[0]})
    optimize(graph)
    (scan,) = [t for t in toposort(graph.roots) if t.prim.family == "scan"]
    outer: Body = scan.attrs["body"]
    (inner,) = [t.attrs["body"] for t in toposort(outer.roots) if t.prim.family == "scan"]
    nested = bind(scan.prim, *scan.inputs, **{**scan.attrs, "body": outer.with_roots([*inner.new, *outer.each])})
    for wrong in (outer.new[0], item(nested, 0)):
        monkeypatch.setattr(pipeline, "lift", lambda graph, wrong=wrong: graph.with_roots([wrong]))
        with pytest.raises(AssertionError, match=r"out of the loop that computes them: <f32.* carry"):
            optimize(graph)
