"""Loops in C end at the sizes of a call, where masks hide what lies beyond them or nothing reads it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from test_kernels import NOTHING
from test_triangles import poisoned
from tracegrad.compiler.pipeline import make_program, optimize
from tracegrad.dtypes import TensorType, f32, i32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.kernels.form import Axis
from tracegrad.kernels.fuse import Schedule
from tracegrad.kernels.tails import End, Ends, Tail, moved
from tracegrad.prims.folds import GATHER, SCATTER_MAX, scatter_add
from tracegrad.prims.leaves import iota, leaf
from tracegrad.prims.views import window
from tracegrad.render.c_steps import GatheredStep
from tracegrad.runtime.cpu import CpuSession
from tracegrad.tuning import LANES

# a kernel that fails its check runs in NumPy, with right numbers
pytestmark = pytest.mark.filterwarnings("error::RuntimeWarning")

B, T, D = 3, 64, 16
SHAPES: dict[str, tuple[int, ...]] = {"x": (B, T, D), "v": (D, D), "w": (D, 2 * D), "c": (4, D, 5)}


def masked(x: Tensor, axis: int, size: Tensor, otherwise: float = 0.0) -> Tensor:
    """`x` before the size, along an axis."""
    inside = iota((T,), 0) < size
    shape = [T if d == axis else 1 for d in range(x.ndim)]
    return tg.where(inside.reshape(*shape).broadcast_to(x.shape), x, otherwise)


def rows(x: Tensor, v: Tensor, w: Tensor, c: Tensor, n: Tensor) -> Tensor:
    """Two products of rows, whose last sum is over all rows that count."""
    h = tg.relu(x.reshape(B * T, D) @ v) @ w
    return masked(h.reshape(B, T, 2 * D), 1, n).sum(axis=(0, 1))


def terms(x: Tensor, v: Tensor, w: Tensor, c: Tensor, n: Tensor) -> Tensor:
    """The gradient of a weight, whose terms are rows."""
    left = masked(x, 1, n).reshape(B * T, D)
    return left.T @ masked(tg.tanh(x.reshape(B * T, D) @ w).reshape(B, T, 2 * D), 1, n).reshape(B * T, 2 * D)


def scores(x: Tensor, v: Tensor, w: Tensor, c: Tensor, n: Tensor) -> Tensor:
    """Attention: a size along both axes of a matrix."""
    s = (x @ v) @ x.swapaxes(1, 2)
    high = masked(s, 2, n, float("-inf")).max(axis=2, keepdims=True)
    e = tg.exp(s - high)
    p = e / masked(e, 2, n).sum(axis=2, keepdims=True)
    return masked(masked(p, 2, n) @ masked(x, 1, n), 1, n).sum(axis=1)


def causal(x: Tensor, v: Tensor, w: Tensor, c: Tensor, n: Tensor) -> Tensor:
    """The same behind a triangle."""
    s = tg.where(iota((B, T, T), 2) <= iota((B, T, T), 1), (x @ v) @ x.swapaxes(1, 2), 0.0)
    return masked(masked(s, 2, n) @ masked(x, 1, n), 1, n).sum(axis=1)


def columns(x: Tensor, v: Tensor, w: Tensor, c: Tensor, n: Tensor) -> Tensor:
    """A convolution along the size."""
    y = tg.conv1d(masked(x, 1, n).swapaxes(1, 2), c, padding=2)
    return masked(tg.relu(y), 2, n).sum(axis=2)


def kernel_gradient(x: Tensor, v: Tensor, w: Tensor, c: Tensor, n: Tensor) -> Tensor:
    """The gradient of a convolution's weights, whose windows are read where they lie."""
    windows = window(tg.pad(masked(x, 1, n), [(0, 0), (2, 2), (0, 0)]).swapaxes(1, 2), 2, 5)
    right = windows.permute(1, 3, 0, 2).reshape(D * 5, B * T)
    return masked(tg.tanh(x), 1, n).reshape(B * T, D).T @ right.T


def columns_behind(x: Tensor, v: Tensor, w: Tensor, c: Tensor, n: Tensor) -> Tensor:
    """The same of windows that end at an element, of which the first ones are cut off."""
    y = tg.conv1d(masked(x, 1, n).swapaxes(1, 2), c, padding=4)[:, :, 4:]
    return masked(tg.relu(y), 2, n).sum(axis=2)


def pooled(x: Tensor, v: Tensor, w: Tensor, c: Tensor, n: Tensor) -> Tensor:
    """Windows of a padded value: the loop over them has pieces, of which the first has one point."""
    y = tg.conv1d(masked(x, 1, n).swapaxes(1, 2), c, padding=2)
    z = tg.max_pool1d(tg.pad(masked(y, 2, n), [(0, 0), (0, 0), (1, 1)]), 3, 1)
    return masked(z, 2, n) @ masked(x, 1, n)


def in_front(x: Tensor, v: Tensor, w: Tensor, c: Tensor, n: Tensor) -> Tensor:
    """The size along the first axis of a value in memory."""
    h = tg.cumsum(x.swapaxes(0, 1), 2)
    return masked(tg.tanh(h) * tg.exp(h - h.max(axis=2, keepdims=True)), 0, n).sum(axis=0)


def segments(x: Tensor, v: Tensor, w: Tensor, c: Tensor, n: Tensor) -> Tensor:
    """Rows of all examples together, and rows of each, at places that are computed from rows."""
    at = tg.cast(tg.abs(x[:, :, :1]) * 3.0, i32)
    h = tg.cumsum(x, 2)
    flat = at.reshape(B * T, 1).broadcast_to((B * T, D))
    all_rows = scatter_add(masked(h, 1, n).reshape(B * T, D), flat, 0, 5)
    each = bind(SCATTER_MAX, masked(h, 1, n, float("-inf")), at.broadcast_to(x.shape), axis=1, length=5)
    return tg.where(each > -100.0, each, 0.0) + all_rows


def picked(x: Tensor, v: Tensor, w: Tensor, c: Tensor, n: Tensor) -> Tensor:
    """Elements of a table, at places that are computed before."""
    at = tg.cast(tg.abs(tg.cumsum(x, 2)), i32)
    found = bind(GATHER, v.reshape(1, D, D).broadcast_to((B, D, D)), at, axis=1)
    return masked(found, 1, n).sum(axis=1)


CASES: list[Callable[..., Tensor]] = [
    rows, terms, scores, causal, columns, kernel_gradient, columns_behind, pooled, in_front, segments,
    picked
]  # fmt: skip


def graph_of(f: Callable[..., Tensor]) -> tuple[Graph, dict[str, Any]]:
    rng = np.random.default_rng(0)
    env: dict[str, Any] = {name: rng.standard_normal(shape).astype(np.float32) for name, shape in SHAPES.items()}
    with tracing():
        size = leaf("hyper", "n", TensorType(i32, ()))
        y = f(*[leaf("input", name, TensorType(f32, shape)) for name, shape in SHAPES.items()], size)
    return Graph({"y": y}, ends=("n",)), env


def ends(graph: Graph) -> set[End]:
    found = Schedule(optimize(graph)).clusters
    return {x._replace(tail=x.tail._replace(end=0)) for c in found for x in c.ends}


@pytest.mark.parametrize("f", CASES)
def test_results_are_those_of_the_size(f: Callable[..., Tensor], c_session: CpuSession) -> None:
    """What lies beyond the size is NaN in inputs and in memory. It changes no bit, and is never computed."""
    graph, env = graph_of(f)
    program = make_program(graph, NOTHING, {}, {})
    names = {x.name for x in program.inputs}
    left: list[int] = []
    for n in (T, 1, 2, 7, 31, 33, 48, T - 1):
        given = {**env, "n": np.int32(n)}
        double = {k: x.astype(np.float64) if x.dtype == np.float32 else x for k, x in given.items()}
        (want,) = evaluate(graph.roots, double, np)
        beyond = env["x"].copy()
        beyond[:, n:] = np.nan
        inputs = {x.name: {**given, "x": beyond}[x.name.removeprefix("hyper.")] for x in program.inputs}
        got, nans = poisoned(c_session, program, inputs)
        scale = np.abs(want).max()
        np.testing.assert_allclose(got["y"] / scale, want / scale, rtol=0, atol=2e-6, err_msg=str(n))
        left.append(nans)
    assert "hyper.n" in names
    assert left[1] > left[0] + (T - 1) * B, left


def test_where_loops_can_end() -> None:
    tail = Tail(1, T, 0)
    assert ends(graph_of(rows)[0]) >= {End("m", tail)}
    assert ends(graph_of(terms)[0]) >= {End("m", tail), End("k", tail)}
    assert ends(graph_of(scores)[0]) >= {End("m", tail), End("n", tail), End("k", tail), End("i", tail), End("j", tail)}
    assert ends(graph_of(segments)[0]) >= {End("k", tail)}
    assert not ends(Graph(graph_of(rows)[0].outputs))


@pytest.mark.parametrize(
    ("f", "code"),
    [(in_front, f"const long end = min(min({T}L, (long)p"), (pooled, f"min({T - 2}L, (long)((p0[0] - 1) + ")],
)
def test_outermost_loops_and_pieces_end(f: Callable[..., Tensor], code: str) -> None:
    program = make_program(graph_of(f)[0], NOTHING, {}, {})
    texts = [text for k in program.kernels for text in k.texts["c"].functions]
    assert any(code in text for text in texts), texts


def test_windows_are_gathered_up_to_the_size() -> None:
    program = make_program(graph_of(kernel_gradient)[0], NOTHING, {}, {})
    (step,) = [s for k in program.kernels for s in k.texts["c"].steps if isinstance(s, GatheredStep)]
    assert step.terms is not None
    assert (step.k, step.terms[1]) == (B * T, T)


def test_a_tail_is_a_digit() -> None:
    tail = Tail(D, T, 0)
    assert tail.axis((B, T, D)) == (1, 1)
    assert tail.axis((B * T, D)) == (0, 1)
    assert tail.axis((B, T * D)) == (1, D)
    assert tail.axis((B, 8, T // 8, D)) is None
    whole = frozenset({tail})
    assert moved(whole, {0: 1, 1: 0, 2: 2}, (B, T, D), (T, B, D)) == {Tail(B * D, T, 0)}
    assert moved(whole, {0: 0, 1: 1}, (B, T, D), (B, T, 1)) == {Tail(1, T, 0)}
    assert moved(whole, {1: 1}, (B, T, D), (B, 40, D)) == {Tail(D, 40, 0)}  # a slice from the first element on
    assert not moved(whole, {0: 0}, (B, T * D), (B * T, D))


def test_a_mask_that_is_true_beyond_the_size_hides_nothing() -> None:
    with tracing():
        x, n = leaf("input", "x", TensorType(f32, (T, D))), leaf("hyper", "n", TensorType(i32, ()))
        mask = tg.where(iota((T, D), 0) < n, iota((T, D), 0) < 5, True)
        graph = Graph({"y": tg.where(mask, x, 0.0).sum(axis=0)}, ends=("n",))
    assert not ends(graph)


def test_what_memory_holds_ends_nothing() -> None:
    """The check of a kernel puts anything into memory, so a mask there can be True beyond the size."""
    with tracing():
        x, n = leaf("input", "x", TensorType(f32, (T, D))), leaf("hyper", "n", TensorType(i32, ()))
        mask = iota((T, D), 0) < n
        graph = Graph({"y": tg.where(mask, x, 0.0).sum(axis=0), "mask": mask}, ends=("n",))
    assert not ends(graph)


def test_a_reader_of_all_ends_nothing() -> None:
    with tracing():
        x, n = leaf("input", "x", TensorType(f32, (T, D))), leaf("hyper", "n", TensorType(i32, ()))
        h = tg.exp(x)
        both = Graph({"y": masked(h, 0, n).sum(axis=0), "z": h.sum(axis=0)}, ends=("n",))
        one = Graph({"y": masked(h, 0, n).sum(axis=0)}, ends=("n",))
    for graph, found in ((both, frozenset[Tail]()), (one, frozenset({Tail(D, T, n.serial)}))):
        assert Ends(graph.nodes, {t.serial for t in graph.roots}, graph.ends).unread[h.serial] == found


@pytest.mark.usefixtures("quick_c")
def test_masks_of_a_user_end_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A number that follows one size can mask the other, which has no padding."""

    monkeypatch.setenv("TRACEGRAD_CC", "")

    def forward(m: Any, x: Tensor) -> dict[str, Tensor]:
        b, t = x.shape[:2]
        z = x.sum((1, 2))
        return {"one": tg.where(tg.arange(b) < t, z, 0.0).sum(0), "both": tg.where(tg.arange(b) < b, z, 0.0).sum(0)}

    made = tg.compile_forward(
        model=tg.nn.Linear(2, 2), forward=forward, inputs={"x": ("B", "T", 5)}, device="cpu", seed=0
    )
    with made:
        for b, t in ((1, 9), (2, 3), (17, 64), (16, 31), (3, 33), (31, 2), (15, 17), (5, 63), (7, 65)):
            x = np.random.default_rng(b).standard_normal((b, t, 5)).astype(np.float32)
            for name, want in forward(None, tg.tensor(x)).items():
                np.testing.assert_allclose(made.run(x=x).output[name], np.asarray(want), rtol=1e-4, atol=1e-4)
        assert "of a program for sizes up to" in made.explain().title


@pytest.mark.parametrize("size", [1, 2, 3, 16, 24, 25, 48, 63, 64, 65, 128, 1000])
def test_checks_end_a_loop_where_one_element_less_is_a_vector_less(size: int) -> None:
    tried = Axis("t", size, end=0).tried
    assert 1 <= tried <= max(1, 2 * size // 3) and Axis("t", size).tried == size
    assert tried <= LANES or -(-tried // LANES) > -(-(tried - 1) // LANES)
