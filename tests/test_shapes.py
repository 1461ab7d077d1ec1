"""Shapes that the table of ops never reaches, as fused kernels with their gradients, against the reference in float64.

Sizes lie around every threshold of the compiler: tiles of 16, 32 and 64 with a rest, rows of every number of lanes.
Folds are split over one axis, and over axes with others between them; short axes are written out. There are many
repeats in a scatter, windows with stride, dilation and groups, several kernels in one launch, and temporaries in
several arrays.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from cases import Case
from test_kernels import NOTHING, assert_same, graph_of, inputs_of, run
from tracegrad import ops as tg
from tracegrad.compiler import layout
from tracegrad.compiler.pipeline import make_program
from tracegrad.dtypes import TensorType, f32, i32
from tracegrad.ir.nodes import Tensor, toposort
from tracegrad.prims import views
from tracegrad.prims.leaves import leaf
from tracegrad.runtime.cpu import CpuSession


def product(a: Tensor, b: Tensor) -> Tensor:
    return a @ b


def dressed(a: Tensor, b: Tensor, bias: Tensor, rest: Tensor) -> Tensor:
    """Prologue, bias, activation and residual."""
    return tg.tanh((tg.square(a) * 0.1) @ b * 0.2 + bias) + rest


def turned(a: Tensor, b: Tensor) -> Tensor:
    return a.swapaxes(-1, -2) @ tg.flip(b, -1).swapaxes(-1, -2)


def normed(x: Tensor) -> Tensor:
    return tg.softmax(x) * 3.0 + tg.layer_norm(x) + tg.logsumexp(x, axis=-1, keepdims=True)


def several(a: Tensor, b: Tensor) -> Tensor:
    """Independent kernels of three forms, which share a launch; their results meet in one."""
    return (a @ b).sum() + tg.softmax(a, 0).max() + tg.tanh(b).mean(0).sum() + tg.square(tg.sin(a)).sum(1).max()


def stages(x: Tensor) -> Tensor:
    """Temporaries that live together."""
    a = tg.softmax(x, 0)
    b = tg.cumsum(x, 1)
    return (a @ b.T) @ tg.softmax(b, 0) + a


def fold(name: str, shape: tuple[int, ...], axis: Any, tol: float = 2e-5) -> Case:
    def apply(x: Tensor) -> Tensor:
        return getattr(tg, name)(x, axis)

    low, high = (0.98, 1.02) if name == "prod" else (-2.0, 2.0)
    return Case(f"{name} {shape} {axis}", apply, (shape,), low, high, f32_tol=tol)


def conv(label: str, x: tuple[int, ...], k: tuple[int, ...], **options: int) -> Case:
    return Case(f"conv {label}", lambda a, b: tg.conv2d(a, b, **options), (x, k))


def pool(fn: Callable[..., Tensor], size: Any, stride: Any, padding: Any, shape: tuple[int, ...]) -> Case:
    return Case(f"{fn.__name__} {size} {stride} {padding} {shape}",
                lambda x: fn(x, size, stride=stride, padding=padding), (shape,))  # fmt: skip


PRODUCTS = [(1, 1, 1), (1, 129, 33), (16, 15, 17), (17, 16, 1), (31, 33, 65), (64, 63, 16), (65, 129, 127), (3, 5, 513),
            (129, 16, 513), (128, 1, 64)]  # fmt: skip
CASES = [
    *(Case(f"product {m} {n} {k}", product, ((m, k), (k, n)), -1, 1) for m, n, k in PRODUCTS),
    Case("product batch", product, ((2, 3, 17, 33), (2, 3, 33, 31)), -1, 1),
    Case("product shared", product, ((3, 2, 16, 9), (9, 65)), -1, 1),
    Case("product turned", turned, ((2, 33, 17), (2, 18, 33)), -1, 1),
    Case("product dressed", dressed, ((2, 33, 40), (2, 40, 65), (65,), (2, 33, 65)), -1, 1),
    Case("product dressed, thin", dressed, ((5, 700), (700, 3), (3,), (5, 3)), -1, 1),
    Case("product large tile", product, ((650, 24), (24, 642)), -1, 1),
    *(fold("sum", (n,), None) for n in (2047, 2048, 2053, 6000, 99991)),
    Case("sum of a million", lambda x: x.sum(), ((1_000_000,),), 0.0, 2.0),
    fold("mean", (9973, 3), 0),
    fold("max", (3, 10007), 1),
    Case("argmax, long", lambda x: tg.argmax(x, 1), ((2, 5000),), grad=False),
    *(fold(op, s, a) for op in ("sum", "var") for s, a in (((64, 5, 64), (0, 2)), ((7, 31, 11, 37, 2), (0, 2, 4)))),
    *(fold(op, (4, 600, 5, 1, 7), (1, 2)) for op in ("sum", "max", "min", "prod")),
    fold("sum", (41, 43, 47), (0, 1)),
    fold("max", (3, 50, 7, 60), (1, 3)),
    *(Case(f"rows of {n}", normed, ((r, n),), f32_tol=1e-4)
      for r, n in ((3, 2), (257, 3), (5, 31), (17, 32), (3, 33), (2, 129), (3, 257), (2, 513), (1, 2049))),
    *(Case(f"columns of {n}", lambda x: tg.softmax(x, 0) + x.max(0), ((n, m),))
      for n, m in ((5, 65), (33, 7), (129, 1), (1025, 33))),
    *(Case(f"cumsum {s}", lambda x: tg.cumsum(x, -1), (s,)) for s in ((1,), (33,), (3, 1025))),
    conv("odd", (1, 1, 5, 7), (1, 1, 3, 3)),
    conv("stride", (2, 3, 9, 8), (5, 3, 3, 2), stride=2, padding=1),
    conv("dilation, groups", (2, 4, 11, 7), (6, 2, 3, 3), stride=2, padding=1, dilation=2, groups=2),
    conv("depthwise", (1, 6, 7, 7), (6, 1, 3, 3), padding=1, groups=6),
    conv("stride over the kernel", (2, 2, 8, 9), (3, 2, 2, 2), stride=3),
    pool(tg.max_pool2d, 3, 2, 1, (2, 3, 7, 9)),
    pool(tg.max_pool2d, 2, 2, 0, (8, 4, 32, 32)),
    pool(tg.max_pool2d, (2, 3), (1, 2), (1, 1), (2, 3, 13, 5)),
    pool(tg.avg_pool2d, 2, 3, 0, (2, 3, 8, 8)),
    Case("embedding, repeats", lambda w, i: tg.embedding(w, i), ((7, 3),), ints=(((5000,), 7),), f32_tol=1e-4),
    Case("scatter, one row", lambda x, i: tg.scatter_add(tg.zeros((1, 5)), i, x), ((2049, 5),), ints=(((2049,), 1),)),
    Case("embedding, many", lambda w, i: tg.embedding(w, i), ((1000, 17),), ints=(((33,), 1000),)),
    Case("gather in between", lambda x, i: tg.take_along_axis(x, i, 1), ((3, 7, 5),), ints=(((3, 11, 5), 7),)),
    Case("several in a launch", several, ((33, 20), (20, 9)), -1, 1),
    Case("stages", stages, ((40, 36),), -1, 1, f32_tol=1e-4),
]  # fmt: skip


def session_of(runtime: str, request: pytest.FixtureRequest) -> Any:
    """A session on one of the runtimes."""
    return (
        CpuSession() if runtime == "numpy" else request.getfixturevalue({"c": "c_session", "wgsl": "device"}[runtime])
    )


def check(case: Case, session: Any) -> None:
    graph = graph_of(case)
    env = inputs_of(graph, case)
    assert_same(case, graph, env, run(session, make_program(graph, NOTHING, {}, {}), env))


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_on_numpy(case: Case) -> None:
    check(case, CpuSession())


@pytest.mark.filterwarnings("error::RuntimeWarning")  # where C fails, NumPy would do instead
@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_in_c(case: Case, c_session: CpuSession) -> None:
    check(case, c_session)


@pytest.mark.parametrize("case", CASES, ids=lambda c: c.name)
def test_on_wgsl(case: Case, device: Any) -> None:
    check(case, device)


def views_at_random(seed: int) -> Callable[[Tensor], Tensor]:
    """A chain of views, joins and folds: indices with quotients, negative steps and guards inside each other."""

    def chain(x: Tensor) -> Tensor:
        rng = np.random.default_rng(seed)
        for _ in range(int(rng.integers(3, 8))):
            kind, axis = int(rng.integers(0, 8)), int(rng.integers(0, x.ndim))
            n, step = x.shape[axis], int(rng.integers(1, 4))
            first = int(rng.integers(0, n))
            if kind == 0:
                x = tg.flip(x, axis)
            elif kind == 1:
                x = views.slice_(x, axis, first, -(-(n - first) // step), step)
            elif kind == 2:
                x = views.place(x, axis, first, first + (n - 1) * step + 2, step)
            elif kind == 3:
                x = views.place(x, axis, (n - 1) * step, (n - 1) * step + 2, -step)
            elif kind == 4:
                x = x.swapaxes(0, -1)
            elif kind == 5:
                x = views.window(x, axis, min(n, step), 2).sum(-1)
            elif kind == 6:
                x = x.reshape(-1) if x.ndim < 3 else x.reshape(x.shape[0], -1)
            else:
                x = tg.concat([x, x * 0.5], axis=axis)
            x = views.slice_(x, 0, 0, max(1, x.shape[0] // 4)) if x.size > 5000 else x
        return x

    return chain


@pytest.mark.parametrize("runtime", ["numpy", "c", "wgsl"])
def test_views_of_views_at_random(runtime: str, request: pytest.FixtureRequest) -> None:
    """WGSL divides towards zero: flips and reshapes in a row gave the wrong elements."""
    session = session_of(runtime, request)
    for seed in range(25 if runtime == "c" else 100):  # each is compiled
        shape = tuple(int(n) for n in np.random.default_rng(seed).integers(2, 8, 1 + seed % 3))
        check(Case(f"views {seed}", views_at_random(seed), (shape,)), session)


MIXED = Case("stages", stages, ((40, 36),), -1, 1, f32_tol=1e-4)


def in_small_arrays(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A program whose temporaries do not fit one array."""
    monkeypatch.setattr(layout, "CHUNK", 4 * 2000)
    program = make_program(graph_of(MIXED), NOTHING, {}, {})
    assert sum(b.role == "temp" for b in program.buffers) > 1
    return program


def test_temporaries_in_several_arrays_on_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    program, graph = in_small_arrays(monkeypatch), graph_of(MIXED)
    env = inputs_of(graph, MIXED)
    assert_same(MIXED, graph, env, run(CpuSession(), program, env))


def test_temporaries_in_several_arrays_on_wgsl(monkeypatch: pytest.MonkeyPatch, device: Any) -> None:
    program, graph = in_small_arrays(monkeypatch), graph_of(MIXED)
    env = inputs_of(graph, MIXED)
    assert_same(MIXED, graph, env, run(device, program, env))


@pytest.mark.parametrize("runtime", ["numpy", "c", "wgsl"])
def test_indices_out_of_range_are_clamped_both_ways(runtime: str, request: pytest.FixtureRequest) -> None:
    """The gradient goes where the value came from. The host checks inputs; indices computed on the device it cannot."""
    case = Case("clamped", lambda w, i: tg.embedding(w, i * 3 - 7), ((6, 3),), ints=(((20,), 9),))
    check(case, session_of(runtime, request))


def test_sizes_are_plain_integers() -> None:
    """The number of elements is a kind of int, which JAX takes for no size."""
    x = leaf("input", "x", TensorType(f32, (2, 3)))
    k = leaf("input", "k", TensorType(i32, (2,)))
    made = [
        tg.take(x, k, 1), tg.take(x, k), tg.reshape(x, (x.size,)), tg.pad(x, [(0, x.size), (0, 0)]), tg.roll(x, x.size),
        tg.cumsum(x), tg.outer(k, k), tg.concat([tg.take(x, k, 0), x], 0), tg.broadcast_to(k, (k.size, k.size)),
    ]  # fmt: skip
    for node in toposort(made):
        assert {type(n) for n in node.shape} <= {int}, (node.prim.name, node.shape)
        assert {type(n) for n in node.attrs.values() if isinstance(n, int)} <= {int, bool}, node.attrs
