"""Special values, accuracy, integers and constants: alike on every runtime, and as docs/numerics.md promises."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tracegrad import ops as tg
from tracegrad.compiler.pipeline import Persistent, make_program
from tracegrad.dtypes import TensorType, as_dtype, f32
from tracegrad.imperative.creation import parameter
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor, toposort
from tracegrad.passes.simplify import simplify
from tracegrad.prims import elementwise
from tracegrad.prims.leaves import const, leaf
from tracegrad.runtime.cpu import CpuSession
from tracegrad.runtime.wgpu_session import NativeSession
from tracegrad.transforms.walks import gradients

sys.path.insert(0, str(Path(__file__).parents[1] / "bench"))

import accuracy
from accuracy_rows import ROWS, Row

pytestmark = pytest.mark.filterwarnings("error:.*kernels run as NumPy:RuntimeWarning")

COUNTERS = {"seed": np.asarray(7, np.uint32), "step": np.asarray(3, np.uint32)}
NAN, INF = float("nan"), float("inf")
SPECIAL = np.array(
    [0.0, -0.0, 1, -1, INF, -INF, NAN, 1.1754944e-38, 3.4e38, -3.4e38, 0.5, -0.5, 2, -2, 1e-20, 1e20, -1e20,
     1.5, 2.5, -2.5, 80, -80, 3, -3, 1e10, 16777217, 1e-5, -1e-5, 0.9999, 8200], np.float32)  # fmt: skip
FIRST, SECOND = np.repeat(SPECIAL, SPECIAL.size), np.tile(SPECIAL, SPECIAL.size)


@pytest.fixture(scope="module", params=["numpy", "c", "wgsl"])
def runtime(request: pytest.FixtureRequest) -> Any:
    if request.param == "numpy":
        return CpuSession()
    return request.getfixturevalue({"c": "c_session", "wgsl": "device"}[request.param])


def graph_of(fn: Callable[..., Any], *arrays: Any) -> Graph:
    with tracing():
        y = fn(*[leaf("input", f"x{k}", TensorType(as_dtype(a.dtype), a.shape)) for k, a in enumerate(arrays)])
    return Graph({f"y{k}": t for k, t in enumerate(y if isinstance(y, tuple) else (y,))})


def environment(*arrays: Any) -> dict[str, Any]:
    return {**COUNTERS, **{f"x{k}": a for k, a in enumerate(arrays)}}


def computed(session: Any, fn: Callable[..., Any], *arrays: Any) -> list[Any]:
    """The outputs of `fn` as kernels."""
    graph, env = graph_of(fn, *arrays), environment(*arrays)
    program = make_program(graph, Persistent(), {}, {})
    handle = session.load(program)
    fields = {f.name: env[f.name.removeprefix("hyper.")] for f in program.inputs}
    out = session.run(handle, [fields]).outputs()[0]
    session.unload(handle)
    return [out[name] for name in graph.outputs]


def reference(fn: Callable[..., Any], *arrays: Any, double: bool = True) -> list[Any]:
    """The same by the rows' array rules, in float64 rounded to f32, or in float32."""
    wide = [a.astype(np.float64) if double and a.dtype == np.float32 else a for a in arrays]
    with np.errstate(all="ignore"):
        values = evaluate(graph_of(fn, *arrays).roots, environment(*wide), np)
        arrays = [np.asarray(v) for v in values]
        return [a.astype(np.float32) if a.dtype == np.float64 else a for a in arrays]


def assert_alike(got: Any, want: Any, *operands: Any) -> None:
    """NaN, infinities and signs of zero exactly, numbers within 1e-6."""
    with np.errstate(all="ignore"):
        close = np.isclose(got.astype(np.float64), want.astype(np.float64), rtol=1e-6, atol=2e-38, equal_nan=True)
    signs = (got != 0) | (want != 0) | (np.signbit(got) == np.signbit(want))
    bad = np.flatnonzero(~(close & signs))
    shown = [(*(x[k] for x in operands), got[k], want[k]) for k in bad[:8]]
    assert not shown, f"operands, got, wanted: {shown}"


UNARY = ("neg", "abs", "sign", "square", "sqrt", "rsqrt", "exp", "half_exp", "expm1", "log", "log1p", "sin", "cos",
         "tanh", "erf", "logistic", "floor", "ceil", "round", "isnan", "nonfinite")  # fmt: skip
BINARY = ("add", "sub", "mul", "div", "pow", "minimum", "maximum")
COMPARE = ("less", "less_equal", "equal", "not_equal")


@pytest.mark.parametrize("name", UNARY)
def test_special_values_of_one(runtime: Any, name: str) -> None:
    fn = getattr(elementwise, name)
    (got,), (want,) = computed(runtime, fn, SPECIAL), reference(fn, SPECIAL)
    assert_alike(got, want, SPECIAL)


def gelu_in_double(x: Any) -> tuple[Any, Any]:
    """x p(x) with p = (1 + tanh(v)) / 2, and its derivative, in float64 without cancellation."""
    v = np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    p = np.where(v < 0, np.exp(2 * np.minimum(v, 0)), 1.0) / (1 + np.exp(-2 * np.abs(v)))
    return x * p, p + 2 * x * p * (1 - p) * np.sqrt(2 / np.pi) * (1 + 3 * 0.044715 * x**2)


def test_gelu_by_tanh_and_its_gradient(runtime: Any) -> None:
    """Near 0, in the tail that 1 + tanh would cancel in, and where both are 0 or 1."""
    x = np.concatenate([np.linspace(-12, 12, 4001), [-0.0, 1e-30, -1e-30, 1e-4, 50, -50, 1e5, -1e5]]).astype(np.float32)

    def both(t: Tensor) -> tuple[Tensor, Tensor]:
        y = tg.gelu(t, "tanh")
        return y, gradients(tg.sum(y), [t])[0]

    value, slope = computed(runtime, both, x)
    with np.errstate(under="ignore"):
        want = gelu_in_double(x.astype(np.float64))
    for got, exact in zip((value, slope), want, strict=True):
        # u is rounded, so is exp(u), as WGSL allows: by some 3 |u| of 2^-24 of what is 0.5 at most, times x u'(x) < 60
        np.testing.assert_allclose(got, exact, rtol=2e-5, atol=2e-7)
    tail = (x > -7) & (x < -3)  # 3 + 2|u| ulp of exp, and 3 |u| of u, which is -41 at -7
    np.testing.assert_allclose(value[tail], want[0][tail], rtol=3e-5)
    np.testing.assert_array_equal(value[-4:], [50, 0, 1e5, 0])
    np.testing.assert_array_equal(slope[-4:], [1, 0, 1, 0])
    (nan,) = computed(runtime, lambda t: tg.gelu(t, "tanh"), np.array([NAN], "f"))
    assert np.isnan(nan).all()


@pytest.mark.parametrize("n", [3, 40, 300])
def test_rows_with_a_nan_are_nan_after_softmax(runtime: Any, n: int) -> None:
    """Though the maximum that they are shifted by may pass it over; others are as they were."""
    x = np.random.default_rng(n).normal(size=(2 * n + 1, n)).astype(np.float32)
    x[range(n), range(n)] = NAN
    x[2 * n] = -1e30
    for fn in (tg.softmax, tg.log_softmax):
        (got,), (want,) = computed(runtime, fn, x), reference(fn, x)
        assert np.isnan(got[:n]).all()
        np.testing.assert_allclose(got[n:], want[n:], rtol=1e-5, atol=1e-6)
    square = x[:n]
    (causal,) = computed(runtime, tg.softmax_causal, square)
    seen = np.tri(n, dtype=bool)
    np.testing.assert_array_equal(np.isnan(causal), seen)  # row q sees its own NaN; what it does not see is 0
    assert (causal[~seen] == 0).all()


def test_gradients_of_pow_at_corners_are_those_of_pytorch(runtime: Any) -> None:
    """inf at 0 ** -1, 0 at 0 ** 0, numbers for a negative base with an integer exponent; eager ones too."""
    bases = np.array([0.0, -0.0, 1, -1, 2, -2, 0.5, -0.5, INF, -INF, NAN], np.float32)
    exponents = np.array([0.0, -0.0, 1, 2, 3, 0.5, 2.5, -1, -2, -3, -0.5, INF, -INF, NAN], np.float32)
    a, b = np.repeat(bases, exponents.size), np.tile(exponents, bases.size)
    x, y = torch.tensor(a, requires_grad=True), torch.tensor(b, requires_grad=True)
    torch.pow(x, y).sum().backward()
    p, q = parameter(a), parameter(b)
    with np.errstate(all="ignore"):
        tg.sum(tg.pow(p, q)).backward()
    made = computed(runtime, lambda s, t: tuple(gradients(tg.pow(s, t).sum(), [s, t])), a, b)
    for want, eager, compiled in zip((x.grad, y.grad), (p.grad, q.grad), made, strict=True):
        np.testing.assert_allclose(eager.numpy(), want.numpy(), rtol=1e-6)
        np.testing.assert_allclose(compiled, want.numpy(), rtol=1e-6)


@pytest.mark.parametrize("name", BINARY)
def test_special_values_of_two(runtime: Any, name: str) -> None:
    fn = getattr(elementwise, name)
    (got,), (want,) = computed(runtime, fn, FIRST, SECOND), reference(fn, FIRST, SECOND)
    if name in ("minimum", "maximum"):
        got, want = got + 0.0, want + 0.0  # which of 0.0 and -0.0 is larger is left open
    assert_alike(got, want, FIRST, SECOND)


@pytest.mark.parametrize("name", BINARY)
def test_special_values_beside_a_constant(runtime: Any, name: str) -> None:
    """A driver takes constants for more than what they are: llvmpipe's x / 0 was 0 for every x, or anything."""
    fn = getattr(tg, name)
    constants = [float(c) for c in SPECIAL[:9]]
    both = lambda x: (*(fn(x, c) for c in constants), *(fn(c, x) for c in constants))
    for k, (got, want) in enumerate(zip(computed(runtime, both, SPECIAL), reference(both, SPECIAL), strict=True)):
        if name in ("minimum", "maximum") or isinstance(runtime, NativeSession):  # drivers compute x for x + 0.0
            got, want = got + 0.0, want + 0.0
        c = (constants * 2)[k]
        if name == "div" and k < len(constants) and isinstance(runtime, NativeSession) and 2.0**126 < abs(c) < INF:
            want = np.where(got == 0, got, want)  # NVIDIA's driver multiplies by 1 / c, which it flushes to 0
        assert_alike(got, want, SPECIAL, np.full(SPECIAL.shape, c))


@pytest.mark.parametrize("name", COMPARE)
def test_comparisons_know_nan(runtime: Any, name: str) -> None:
    fn = getattr(elementwise, name)
    np.testing.assert_array_equal(computed(runtime, fn, FIRST, SECOND)[0], reference(fn, FIRST, SECOND)[0])


FOLDS = ("sum", "mean", "prod", "max", "min", "logsumexp", "argmax", "argmin", "any", "all", "softmax")
ROWS_OF_FOLDS = ([NAN, 1, 2], [1, NAN, 2], [INF, -INF, 0], [INF, 1, 2], [-INF, -INF, -INF], [0.0, -0.0, 0.0],
                 [3e38, 3e38, -3e38])  # fmt: skip


@pytest.mark.parametrize("repeats", [1, 100])
@pytest.mark.parametrize("axis", [0, 1])
def test_special_values_in_folds(runtime: Any, axis: int, repeats: int) -> None:
    """Rows folded by one thread and by many, over either axis."""
    x = np.tile(np.array(ROWS_OF_FOLDS, np.float32), (1, repeats))
    x = np.ascontiguousarray(x if axis == 1 else x.T)

    def folds(t: Tensor) -> tuple[Tensor, ...]:
        return tuple(getattr(tg, name)(t, axis) for name in FOLDS)

    for name, got, want in zip(FOLDS, computed(runtime, folds, x), reference(folds, x, double=False)):
        np.testing.assert_allclose(got, want, rtol=1e-5, err_msg=name)


@pytest.mark.parametrize("name", accuracy.RUNTIMES)
def test_every_op_is_as_accurate_as_promised(name: str, request: pytest.FixtureRequest) -> None:
    if name in ("c", "webgpu"):
        request.getfixturevalue({"c": "c_compiler", "webgpu": "webgpu"}[name])
    found = zip(ROWS, accuracy.measured(ROWS, name, 4096), strict=True)
    broken = [(r.op, r.operands, error, error.operands, r.allowed) for r, error in found if error.beyond(r)]
    assert not broken


def test_an_error_counts_in_units_of_the_last_place() -> None:
    """NaN agrees with NaN alone; an infinity is one step beyond the largest number; a GPU may flush denormals."""
    largest = float(np.finfo(np.float32).max)
    want = np.array([1.0, 2.0, 3e38, NAN, 1.0, INF, largest, 1e-45])
    got = np.array([1 + 2.0**-23, 2 - 2.0**-23, INF, NAN, NAN, NAN, INF, 0.0])
    errors = accuracy.difference(got, want, want)
    np.testing.assert_allclose(errors[[0, 1, 3, 6]], [1, 0.5, 0, 1], rtol=1e-6)
    assert errors[2] > 1e6 and np.isinf(errors[4:6]).all() and 0 < errors[7] < 1
    row = Row("half", "denormals", tg.neg, lambda rng, n: [], lambda x: x / 2, 0.5)
    x = np.array([3e-38, 1e-38, 1e-42], np.float32)
    lost = np.array([1.5e-38, 0, 0], np.float32)
    assert accuracy.error_of(row, [x], lost, flushes=True).ulp <= 0.5
    assert accuracy.error_of(row, [x], lost, flushes=False).beyond(row)


def test_the_documented_table_is_what_the_command_promises() -> None:
    """Every row of the command, with its promise, stands in docs/numerics.md, and every figure there keeps it."""
    table = accuracy.parsed(accuracy.DOCS.read_text(encoding="utf-8"))
    assert list(table) == [accuracy.key(row) for row in ROWS]
    for row in ROWS:
        figures = table[accuracy.key(row)]
        assert {"reference", "eager", "NumPy", "C"} < set(figures)
        for figure in figures.values():
            assert figure == "–" or float(figure.removesuffix(" f")) <= row.allowed + 0.005


def test_the_table_keeps_columns_of_other_machines(tmp_path: Path) -> None:
    """A GPU's column measured elsewhere stays when another is written, unless its row has another promise."""
    page = tmp_path / "page.md"
    page.write_text(f"before\n{accuracy.BEGIN}\n{accuracy.END}\nafter\n")
    sine, cosine = ("sin", "all", "Σ|x|", "4"), ("cos", "all", "the result", "4")
    accuracy.write({sine: {"A": "1"}, cosine: {"A": "2 f"}}, page)
    accuracy.write({sine: {"B": "3"}, (*cosine[:3], "5"): {"B": "4"}}, page)
    text = page.read_text()
    assert text.startswith("before\n") and text.endswith("\nafter\n")
    assert r"Σ\|x\|" in text  # a bar ends a cell
    assert accuracy.parsed(text) == {sine: {"A": "1", "B": "3"}, (*cosine[:3], "5"): {"A": "–", "B": "4"}}


INTS = np.array([0, 1, -1, 2**31 - 1, -(2**31), 65537, -65537, 12345], np.int32)
OTHERS = np.array([7, 2**31 - 1, -(2**31), 3, -1, 65537, 99999, -5], np.int32)


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_integers_wrap_around(runtime: Any, dtype: str) -> None:
    a, b = INTS.view(dtype), OTHERS.view(dtype)

    def all_of_them(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        pairs = [getattr(elementwise, n)(x, y) for n in ("add", "sub", "mul", "minimum", "maximum", "bit_xor", "less")]
        return (*pairs, x.sum(), x.prod(), x.max(), x.min(), x * x, x.astype(f32), x.astype("bool"))

    for got, want in zip(computed(runtime, all_of_them, a, b), reference(all_of_them, a, b)):
        np.testing.assert_array_equal(got, want)


def test_casts_of_floats_saturate_and_nan_is_zero(runtime: Any) -> None:
    x = np.array([1e10, -1e10, 2147483520, -2147483648, NAN, INF, -INF, 3.99, -3.99, 5e9, -0.5, -0.0], np.float32)
    signed, unsigned, truth = computed(runtime, lambda t: (t.astype("i32"), t.astype("u32"), t.astype("bool")), x)
    top, low = 2147483520, -(2**31)
    np.testing.assert_array_equal(signed, [top, low, top, low, 0, top, low, 3, -3, top, 0, 0])
    high = 4294967040
    np.testing.assert_array_equal(unsigned, [high, 0, 2147483520, 0, 0, high, 0, 3, 0, high, 0, 0])
    np.testing.assert_array_equal(truth, [True] * 11 + [False])


@pytest.mark.parametrize("value", [2e-38, -0.0, 3.4028235e38, 1e39, -1e39, NAN, INF, 16777217.0, 1e-50, 0.1])
def test_constants_survive(runtime: Any, value: float) -> None:
    x, m = np.array([1.0, 0.5], np.float32), np.array([True, False])
    added, chosen = computed(runtime, lambda t, c: (tg.minimum(t, value), tg.where(c, value, t)), x, m)
    with np.errstate(over="ignore"):
        v = np.float32(value)
    np.testing.assert_array_equal(chosen, np.array([v, 0.5], np.float32))
    np.testing.assert_array_equal(added, np.minimum(x, v))


def test_identities_are_exact() -> None:
    """x + 0.0 turns -0.0 into 0.0, x + -0.0 and x - 0.0 leave it."""
    x = leaf("input", "x", TensorType(f32, ()))
    same = simplify([x + const(-0.0), x - const(0.0), x * const(1.0), x / const(1.0), elementwise.neg(-x)])
    assert all(t is x for t in same)
    kept = simplify([x + const(0.0), x - const(-0.0), x * const(0.0), x / const(0.0), const(0.0) / x])
    assert all(t is not x and t.prim.family == "map" for t in kept)


def test_drivers_get_no_comparison_of_a_value_with_itself() -> None:
    """An H200's driver takes !(x == x) for false, also for NaN."""
    x = leaf("input", "x", TensorType(f32, ()))
    found = simplify([elementwise.not_equal(x, x), elementwise.equal(x + const(0.0), x + const(0.0))])
    assert [t.prim.name for t in found] == ["isnan", "logical_not"]


@pytest.mark.parametrize("name", ["add", "sub", "mul", "div"])
def test_folded_constants_round_as_the_op_does(name: str) -> None:
    values = [0.1, 1 / 3, 1e-30, 1e30, 3e38, 7.0, -2.5e-45]
    op = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "div": np.divide}[name]
    for a in values:
        for b in values:
            (folded,) = simplify([getattr(elementwise, name)(const(a), const(b))])
            with np.errstate(all="ignore"):
                want = op(np.float32(a), np.float32(b))
                got = evaluate([folded], {}, np)[0]
            assert got.dtype == np.float32
            np.testing.assert_array_equal(got, want, err_msg=f"{a} {b}")


def test_streams_are_the_same_bits_everywhere(runtime: Any) -> None:
    def draws() -> tuple[Tensor, ...]:
        return tg.uniform((5000,)), tg.bernoulli((5000,), 0.3), tg.randn((5000,))

    (u, b, n), (wu, wb, wn) = computed(runtime, draws), reference(draws, double=False)
    np.testing.assert_array_equal(u, wu)
    np.testing.assert_array_equal(b, wb)
    np.testing.assert_allclose(n, wn, atol=2e-6)
    assert u.min() >= 0
    assert u.max() < 1


@pytest.mark.parametrize("n", [4096, 1_000_003])
def test_long_sums_stay_within_the_bound(runtime: Any, n: int) -> None:
    """docs/numerics.md: at most (d + 1) eps sum|x|, d the longest chain of additions that one element goes through."""
    x = np.random.default_rng(0).uniform(-1, 1, n).astype(np.float32)
    (got,) = computed(runtime, lambda t: t.sum(), x)
    depth = 1100 if n < 10_000 else n // 256 + 300
    assert abs(float(got) - x.astype(np.float64).sum()) <= depth * 2.0**-24 * np.abs(x).sum(dtype=np.float64)


def test_no_graph_keeps_an_unused_leaf() -> None:
    """The helper above feeds leaves by name; it must not hide one."""
    graph = graph_of(lambda x: x + 1.0, SPECIAL)
    assert {t.name for t in toposort(graph.roots) if t.prim.name == "leaf"} == {"x0"}
