"""device="jax": every op of the table, value and gradient, as XLA computes the graph, against the reference."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from functools import cache

import numpy as np
import pytest

import tracegrad as tg
from all_cases import ALL_CASES, is_first
from cases import Case
from fuzzing.case_steps import TURNS, row_programs
from test_kernels import assert_same, graph_of, inputs_of, program_of, run
from tracegrad import nn, optim
from tracegrad.passes.expand import expand_composites
from tracegrad.runtime.base import Session, runtime
from xla import quickly

pytest.importorskip("jax", reason="JAX is not installed")
import jax

from tracegrad.runtime.jax_graph import run_graph


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    opened = runtime("jax").begin("jax")()
    assert opened is not None
    yield opened
    opened.close()


@cache
def elsewhere() -> set[str]:
    """Rows that random programs (tests/test_fuzz.py) have, unless a size of theirs is above those programs' sizes."""
    met = {program.steps[0].attrs["name"] for program in row_programs(0)}
    shapes = {c.name: (*c.shapes, *(s for s, _ in c.ints), *c.bools) for c in ALL_CASES}
    return {name for name in met if max((n for s in shapes[name] for n in s), default=0) <= max(TURNS)}


@pytest.mark.slow  # XLA compiles each of them
@pytest.mark.parametrize(
    "case", [c for c in ALL_CASES if is_first(c) or c.name not in elsewhere()], ids=lambda c: c.name
)
def test_jax_computes_every_row(case: Case, session: Session) -> None:
    """The first of each op as users compile it. Its other rows would take LLVM twice as long that way.

    Those of them that test_fuzz.py has on XLA, at other sizes and within sharper bounds, are left to it.
    """
    graph = graph_of(case)
    env = inputs_of(graph, case)
    with nullcontext() if is_first(case) else quickly():
        assert_same(case, graph, env, run(session, program_of(case), env))


@pytest.mark.parametrize("shape", [(100,), (8000,), (64, 512), (4, 1000, 2)])
def test_extrema_keep_nan_in_arrays_of_any_size(shape: tuple[int, ...]) -> None:
    """XLA's CPU drops it from reductions of some thousand elements, which made `sort` by counting wrong, too."""

    class Empty(tg.Module):
        def __init__(self) -> None:
            self.w = self.param((1,))

    def forward(m: Empty, x: tg.Tensor) -> dict[str, tg.Tensor]:
        return {"max": tg.max(x, -1), "min": tg.min(x, -1), "first": tg.max(x, 0), "all": tg.max(x)}

    x = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    x[..., 1] = np.nan
    with tg.compile_forward(model=Empty(), forward=forward, inputs={"x": shape}, seed=0, device="jax") as run:
        got = run.run(x=x).output
    with np.errstate(invalid="ignore"):
        want = {"max": x.max(-1), "min": x.min(-1), "first": x.max(0), "all": x.max()}
    for name, y in want.items():
        np.testing.assert_array_equal(got[name], y, err_msg=name)


@pytest.mark.parametrize("n", [3, 5000])
def test_relu_keeps_nan(n: int) -> None:
    x = np.linspace(-1, 1, n, dtype=np.float32)
    x[n // 2] = np.nan
    with tg.compile_forward(
        model=Nothing(), forward=lambda m, x: tg.relu(x), inputs={"x": (n,)}, device="jax", seed=0
    ) as run:
        np.testing.assert_array_equal(run.run(x=x).output, np.maximum(x, 0))


@pytest.mark.parametrize("n", [3, 5000])
def test_a_mask_keeps_nan_and_infinity_times_zero(n: int) -> None:
    """XLA makes a choice of a product with a mask, which gives 0: so the gradient of `max` beside NaN was 0."""
    x = np.linspace(-1, 1, n, dtype=np.float32)
    x[0], x[-1] = np.nan, np.inf

    def forward(m: Nothing, x: tg.Tensor) -> dict[str, tg.Tensor]:
        masked = x * tg.cast(tg.abs(x) > 2.0, tg.f32)
        return {"masked": masked, "max": tg.grad(tg.max)(x), "min": tg.grad(tg.min)(x)}

    with tg.compile_forward(model=Nothing(), forward=forward, inputs={"x": (n,)}, device="jax", seed=0) as run:
        got = run.run(x=x).output
    np.testing.assert_array_equal(np.isnan(got["masked"]), np.isnan(x))
    assert got["masked"][-1] == np.inf and not got["masked"][1:-1].any()
    assert np.isnan(got["max"]).all() and np.isnan(got["min"]).all()


SLICES = {
    "all": [(0, 3), (3, 5), (5, 9)],
    "in another order": [(5, 9), (0, 3), (3, 5)],
    "a gap": [(0, 3), (5, 9)],
    "an overlap": [(0, 5), (4, 9)],
    "one twice": [(0, 3), (3, 9), (3, 9)],
}


@pytest.mark.parametrize("name", SLICES)
@pytest.mark.parametrize("axis", [0, 1])
def test_gradients_of_slices_are_joined_where_they_fill_the_axis(name: str, axis: int) -> None:
    class Parts(tg.Module):
        def __init__(self) -> None:
            self.w = self.param((9, 9))

    def loss(m: Parts, x: tg.Tensor) -> tg.Tensor:
        joined = tg.tanh(m.w * x)  # whose gradient is the sum of those of its slices
        parts = [joined[begin:end] if axis == 0 else joined[:, begin:end] for begin, end in SLICES[name]]
        return tg.add(*[tg.sum(p * p * float(k + 1)) for k, p in enumerate([parts[0], tg.concat(parts[1:], axis)])])

    x, found, text = np.random.default_rng(0).standard_normal((9, 9)).astype(np.float32), list[np.ndarray](), ""
    for device in ("cpu", "jax"):
        with tg.compile(model=Parts(), loss=loss, inputs={"x": (9, 9)}, optimizer=optim.sgd(lr=0.1), seed=0,
                        device=device) as train:  # fmt: skip
            train.step(x=x).result()
            found.append(train.params()["w"])
            if device == "jax":
                step, state = train.to_jax()
                text = str(jax.make_jaxpr(step)(state, {"x": x}))
    np.testing.assert_allclose(found[1], found[0], rtol=1e-5, atol=1e-7)
    assert (" pad[" in text) == (name not in ("all", "in another order"))


def test_the_expansion_of_sort_orders_rows_with_nan() -> None:
    x = np.random.default_rng(0).standard_normal((4, 500)).astype(np.float32)  # by merges: XLA compiles networks slowly
    x[:, ::7] = np.nan
    graph = tg.trace_forward(model=nn.Linear(1, 1), forward=lambda m, x: tg.argsort(x), inputs={"x": x.shape})
    plain = graph.with_roots(expand_composites(graph.roots, lambda t: False))
    order = jax.jit(lambda x: run_graph(plain, lambda leaf: x)[0])(x)
    np.testing.assert_array_equal(order, np.argsort(x, -1, kind="stable"))


class Nothing(tg.Module):
    """A model of one parameter that a forward need not read."""

    def __init__(self) -> None:
        self.w = self.param((1,), init=tg.init.zeros())


@pytest.mark.parametrize("shape", [(), (1,), (1, 1)])
def test_inputs_of_one_element(shape: tuple[int, ...]) -> None:
    """Words of every type, and of an array that was changed in place between two runs."""

    def forward(m: Nothing, x: tg.Tensor, b: tg.Tensor, k: tg.Tensor, n: tg.Tensor) -> dict[str, tg.Tensor]:
        return {"x": x * 2, "b": tg.logical_not(b), "k": k + 1, "n": n + 1}

    inputs = {"x": tg.f32[shape], "b": tg.bool_[shape], "k": tg.u32[shape], "n": tg.i32[shape]}
    with tg.compile_forward(model=Nothing(), forward=forward, inputs=inputs, device="jax", seed=0) as run:
        x, b = np.full(shape, 0.5, np.float32), np.full(shape, True)
        k, n = np.full(shape, 2**32 - 3, np.uint32), np.full(shape, -2, np.int32)
        for _ in range(2):
            found = run.run(x=x, b=b, k=k, n=n).output
            for name, want in {"x": x * 2, "b": ~b, "k": k + np.uint32(1), "n": n + np.int32(1)}.items():
                np.testing.assert_array_equal(found[name], want, err_msg=name)
                assert found[name].shape == shape
            x[...], b[...], k[...], n[...] = 3, False, 7, 9
