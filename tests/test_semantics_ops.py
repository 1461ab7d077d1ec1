"""SEMANTICS: what happens at ties, kinks and infinities, one test a sentence. Errors name op, types and line."""

from __future__ import annotations

import ast
import inspect
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch

from oracle import call, oracle
from tracegrad import methods, ops as tg
from tracegrad.dtypes import DType, TensorType, as_dtype, bool_, f32, i32, u32
from tracegrad.errors import DTypeError, InputError, ShapeError, TraceError
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate
from tracegrad.ir.nodes import Primitive, Tensor, bind, toposort
from tracegrad.passes.expand import expand_composites
from tracegrad.prims import views
from tracegrad.prims.leaves import leaf
from tracegrad.prims.maps import typed
from tracegrad.transforms.walks import gradients

INF, NAN = math.inf, math.nan


def traced(*arrays: Any) -> tuple[list[Tensor], dict[str, np.ndarray]]:
    values = [np.asarray(a, np.float32 if np.asarray(a).dtype.kind == "f" else None) for a in arrays]
    values = [v.astype(np.int32) if v.dtype.kind == "i" else v for v in values]
    env = {f"x{k}": v for k, v in enumerate(values)}
    return [leaf("input", k, TensorType(as_dtype(v.dtype.name), v.shape)) for k, v in env.items()], env


def value(fn: Callable[..., Tensor], *arrays: Any) -> np.ndarray:
    """fn of the arrays, floats as f32."""
    with tracing():
        xs, env = traced(*arrays)
        return np.asarray(evaluate([fn(*xs)], env, np)[0])


def slopes(fn: Callable[..., Tensor], *arrays: Any) -> list[list[Any]]:
    """Gradients of the sum of fn's elements with respect to each array."""
    with tracing():
        xs, env = traced(*arrays)
        return [g.tolist() for g in evaluate(gradients(fn(*xs).sum(), xs), env, np)]


def names(roots: Sequence[Tensor]) -> list[str]:
    return [t.prim.name for t in toposort(roots)]


# Ties and kinks


@pytest.mark.parametrize("op", [tg.minimum, tg.maximum])
def test_gradient_at_a_tie_of_two_operands_is_split_evenly(op: Callable[..., Tensor]) -> None:
    assert slopes(op, [1.0, 2.0], [1.0, 2.0]) == [[0.5, 0.5], [0.5, 0.5]]
    assert slopes(lambda x: op(x, 1.0), [1.0]) == [[0.5]]
    assert slopes(lambda x: op(1.0, x), [1.0]) == [[0.5]]


def test_gradient_of_two_operands_goes_to_the_winner() -> None:
    assert slopes(tg.maximum, [3.0, 1.0], [2.0, 2.0]) == [[1, 0], [0, 1]]
    assert slopes(tg.minimum, [3.0, 1.0], [2.0, 2.0]) == [[0, 1], [1, 0]]


@pytest.mark.parametrize("op", [tg.max, tg.min])
def test_tied_positions_of_a_reduction_share_the_gradient(op: Callable[..., Tensor]) -> None:
    assert slopes(lambda x: op(x, 1), [[2.0, 2.0, 2.0, 2.0]]) == [[[0.25] * 4]]
    x = [[5.0, 5.0, 1.0], [0.0, 7.0, 0.0]]
    expected = [[0.5, 0.5, 0], [0, 1, 0]] if op is tg.max else [[0, 0, 1], [0.5, 0, 0.5]]
    assert slopes(lambda t: op(t, 1), x) == [expected]


def test_clip_has_gradient_one_at_its_bounds() -> None:
    assert slopes(lambda x: tg.clip(x, -1.0, 1.0), [-2.0, -1.0, 0.0, 1.0, 2.0]) == [[0, 1, 1, 1, 0]]
    assert slopes(lambda x: tg.clamp(x, -1.0, 1.0), [-1.0, 1.5]) == [[1, 0]]


def test_abs_and_relu_have_gradient_zero_at_zero() -> None:
    assert slopes(abs, [-1.0, 0.0, 1.0]) == [[-1, 0, 1]]
    assert slopes(tg.relu, [-1.0, 0.0, 1.0]) == [[0, 0, 1]]


def test_leaky_relu_and_elu_have_gradient_alpha_at_zero() -> None:
    assert slopes(lambda x: tg.leaky_relu(x, 0.25), [-1.0, 0.0, 1.0]) == [[0.25, 0.25, 1]]
    assert slopes(lambda x: tg.elu(x, 0.5), [0.0, 1.0]) == [[0.5, 1]]


def test_softplus_has_gradient_a_half_at_zero() -> None:
    assert slopes(tg.softplus, [0.0]) == [[0.5]]


@pytest.mark.parametrize("op", [tg.relu, tg.leaky_relu, tg.elu, tg.softplus, tg.sigmoid, tg.silu, tg.gelu, tg.tanh])
def test_activations_keep_nan(op: Callable[..., Tensor]) -> None:
    assert np.isnan(value(op, [NAN])).all()


@pytest.mark.parametrize(
    ("op", "expected"),
    [
        (tg.sigmoid, [0, 0, 0.5, 1, 1]),
        (tg.softplus, [0, 0, math.log(2), 1000, INF]),
        (tg.elu, [-1, -1, 0, 1000, INF]),
        (tg.tanh, [-1, -1, 0, 1, 1]),
    ],
)
def test_activations_are_stable_for_large_arguments(op: Callable[..., Tensor], expected: list[float]) -> None:
    with np.errstate(over="raise", invalid="raise"):
        np.testing.assert_allclose(value(op, [-INF, -1000.0, 0.0, 1000.0, INF]), expected, rtol=1e-6)
        assert np.isfinite(slopes(op, [-1000.0, 0.0, 1000.0])).all()


def test_product_has_its_gradient_beside_zeros() -> None:
    assert slopes(tg.prod, [2.0, 3.0, 4.0]) == [[12, 8, 6]]
    assert slopes(tg.prod, [2.0, 0.0, 4.0]) == [[0, 8, 0]]
    assert slopes(tg.prod, [0.0, 0.0, 4.0]) == [[0, 0, 0]]


BASES = np.array([0.0, -0.0, 1.0, -1.0, 2.0, -2.0, 0.5, -0.5, 1e-40, INF, -INF, NAN])
EXPONENTS = np.array([0.0, -0.0, 1.0, 2.0, 3.0, 0.5, 2.5, -1.0, -2.0, -3.0, -0.5, INF, -INF, NAN])


def powers() -> tuple[Any, Any]:
    return np.repeat(BASES, EXPONENTS.size), np.tile(EXPONENTS, BASES.size)


def test_pow_has_the_gradients_of_pytorch_at_every_corner() -> None:
    """inf at 0 ** -1, 0 at 0 ** 0, numbers for a negative base with an integer exponent."""
    a, b = powers()
    with np.errstate(all="ignore"):
        (y, gs), (ty, tgs) = call(tg.pow, a, b), oracle(torch.pow, a, b)
    for ours, theirs in zip((y, *gs), (ty, *tgs), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-12)


# IEEE values and rounding


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_sqrt_log_and_division_follow_ieee() -> None:
    np.testing.assert_array_equal(value(tg.sqrt, [-1.0, 0.0, INF]), [NAN, 0, INF])
    np.testing.assert_array_equal(value(tg.log, [-1.0, 0.0, INF]), [NAN, -INF, INF])
    np.testing.assert_array_equal(value(tg.rsqrt, [0.0, INF]), [INF, 0])
    np.testing.assert_array_equal(value(lambda x: 1 / x, [0.0, -INF]), [INF, 0])


def test_infinite_and_nan_constants_survive() -> None:
    assert value(lambda x: x * INF, [1.0]).tolist() == [INF]
    assert value(lambda x: x + np.array([INF, -INF]), [1.0, 1.0]).tolist() == [INF, -INF]
    assert np.isnan(value(lambda x: x + NAN, [1.0])).all()


def test_division_by_a_number_rounds_as_numpy() -> None:
    x = np.random.default_rng(0).standard_normal(1000).astype(np.float32)
    np.testing.assert_array_equal(value(lambda t: t / 3, x), x / np.float32(3))


def test_erf_is_within_two_tenths_of_a_millionth() -> None:
    x = np.linspace(-6, 6, 4001, dtype=np.float32)
    exact = np.array([math.erf(float(v)) for v in x])
    assert np.abs(value(tg.erf, x) - exact).max() <= 2e-7


def test_square_replaces_the_power_of_two() -> None:
    with tracing():
        (x,), _ = traced([1.0])
        assert (x**2).prim.name == "square"
        assert "pow" not in names([x**3 + x**0.5 + x**-0.5 + x**-1 + x**1])


@pytest.mark.parametrize("power", [0.5, -0.5, -1])
def test_roots_and_reciprocals_are_those_of_pytorch(power: float) -> None:
    x = np.array([4.0, 0.3, 0.0, -0.0, INF, NAN, -1.0, 1e-45, 1e-38, 3e38])
    (y, (slope,)), (their_y, (their_slope,)) = call(lambda x: x**power, x), oracle(lambda x: x**power, x)
    np.testing.assert_allclose(y, their_y, rtol=1e-12)
    np.testing.assert_allclose(slope, their_slope, rtol=1e-12)


def test_logsumexp_subtracts_the_maximum_and_follows_pytorch_at_infinities() -> None:
    with np.errstate(over="raise", invalid="raise"):
        assert value(tg.logsumexp, [1000.0, 1000.0]) == np.float32(1000 + math.log(2))
    with np.errstate(divide="ignore"):
        assert value(tg.logsumexp, [-INF, -INF]) == -INF
        assert value(tg.logsumexp, [INF, 0.0]) == INF
        assert np.isnan(value(tg.logsumexp, [NAN, 0.0]))


# Integers


@pytest.mark.parametrize(
    "fn",
    [lambda a: a * 0.5, lambda a: 0.5 + a, lambda a: a - 1.5, lambda a: a < 0.5, lambda a: tg.clip(a, 0.5),
     lambda a: tg.where(a > 0, a, 0.5), lambda a: tg.maximum(a, 0.5), lambda a: a**0.5, lambda a: a**-1],
)  # fmt: skip
def test_a_float_never_truncates_to_i32(fn: Callable[..., Tensor]) -> None:
    with tracing(), pytest.raises(DTypeError, match="i32"):
        fn(leaf("input", "a", TensorType(i32, (2,))))


def test_integers_do_not_divide_silently() -> None:
    with tracing(), pytest.raises(DTypeError, match="div: takes f32, got i32"):
        leaf("input", "a", TensorType(i32, (2,))) / 2


@pytest.mark.parametrize(("dtype", "number"), [(i32, 2**31), (i32, -(2**31) - 1), (u32, -1), (u32, 2**32)])
def test_numbers_out_of_range_are_refused(dtype: DType, number: int) -> None:
    with tracing(), pytest.raises(DTypeError, match="does not fit"):
        leaf("input", "a", TensorType(dtype, (2,))) + number


def test_variance_without_degrees_of_freedom_is_nan_as_in_pytorch() -> None:
    for x in ([[1.0], [2.0]], [[1.0, 2.0]]):
        for ddof in (1, 2):
            got, want = (
                value(lambda t, d=ddof: tg.var(t, 1, ddof=d), x),
                torch.tensor(x).var(1, correction=ddof).numpy(),
            )
            np.testing.assert_array_equal(got, want)


def test_ranges_of_numbers_may_be_empty() -> None:
    with tracing():
        assert tg.arange(0).shape == (0,)
        assert tg.arange(3, 1).shape == tg.arange(1, 3, -2).shape == (0,)
        with pytest.raises(ShapeError, match="negative"):
            tg.arange(-1)
        for begin, end, by in ((2**31 - 3, 2**31 + 2, 1), (3 - 2**31, -2 - 2**31, -1)):
            with pytest.raises(DTypeError, match="does not fit i32"):
                tg.arange(begin, end, by)


@pytest.mark.parametrize("spec", ["...ij,...jk->...ik", "...i,i...->...", "...,...", "...a,...a->a..."])
def test_dots_of_einsum_stand_for_the_last_axes(spec: str) -> None:
    """Of operands of different ranks, as in NumPy."""
    x, y = np.random.default_rng(0).standard_normal((2, 3, 3, 3)), np.random.default_rng(1).standard_normal((3, 3, 3))
    with tracing():
        result = tg.einsum(spec, *(leaf("input", n, TensorType(f32, a.shape)) for n, a in (("x", x), ("y", y))))
    (got,) = evaluate([result], {"x": x, "y": y}, np)
    np.testing.assert_allclose(got, np.einsum(spec, x, y), rtol=1e-12)


def test_a_type_rule_says_what_differs() -> None:
    rule = typed((f32, i32))
    with pytest.raises(DTypeError, match="dtypes differ: f32"):
        rule(TensorType(f32, (2,)), TensorType(i32, (2,)))
    with pytest.raises(ShapeError, match="shapes differ: f32"):
        rule(TensorType(f32, (2,)), TensorType(f32, (3,)))


def test_argmax_takes_the_first_of_ties_and_nan_wins() -> None:
    assert value(tg.argmax, [1.0, 3.0, 3.0]).tolist() == 1
    assert value(tg.argmin, [3.0, 1.0, 1.0]).tolist() == 1
    for x in ([1.0, NAN, 3.0, NAN], [INF, 1.0, NAN], [NAN, NAN], [-INF, -INF]):
        assert value(tg.argmax, x) == np.argmax(x)
        assert value(tg.argmin, x) == np.argmin(x)
    assert value(lambda x: tg.argmax(x, 0), [[1.0, NAN], [2.0, 5.0]]).tolist() == [1, 0]
    assert value(tg.argmax, [[1.0, 2.0], [5.0, 0.0]]).tolist() == 2


def test_argmax_is_i32_and_has_no_gradient() -> None:
    with tracing():
        (x,), env = traced([1.0, 2.0])
        best = tg.argmax(x)
        assert best.type == TensorType(i32, ())
        (g,) = evaluate(gradients((x * tg.cast(best, f32)).sum(), [x]), env, np)
    assert g.tolist() == [1, 1]


# Indexing


def test_embedding_gathers_and_its_gradient_is_a_segment_sum() -> None:
    with tracing():
        (table, at), env = traced(np.arange(6.0).reshape(3, 2), [2, 0, 2])
        y = tg.embedding(table, at)
        (g,) = gradients(y.sum(), [table])
        used = names(expand_composites([y, g]))
        assert {"gather", "scatter_add"} <= set(used)
        assert not {"one_hot", "matmul", "equal"} & set(used)
        rows, grad = evaluate([y, g], env, np)
    assert rows.tolist() == [[4, 5], [0, 1], [4, 5]]
    assert grad.tolist() == [[1, 1], [0, 0], [2, 2]]


def test_indices_known_only_on_the_device_are_clamped() -> None:
    assert value(lambda x, i: tg.take(x, i, 0), [1.0, 2.0, 3.0], [-5, 7]).tolist() == [1, 3]
    assert value(lambda x, i: tg.take_along_axis(x, i, 0), [1.0, 2.0], [9, -1]).tolist() == [2, 1]


def test_constant_indices_count_from_the_end_and_are_checked() -> None:
    assert value(lambda x: tg.take(x, [-1, 0]), [1.0, 2.0, 3.0]).tolist() == [3, 1]
    assert value(lambda x: x[[-1, -3]], [1.0, 2.0, 3.0]).tolist() == [3, 1]
    assert value(lambda x: tg.take(x, -1), [1.0, 2.0, 3.0]).tolist() == 3
    with pytest.raises(ShapeError, match="index 3 is out of range for an axis of size 3"):
        value(lambda x: tg.take(x, [3]), [1.0, 2.0, 3.0])


KEYS: list[Any] = [
    0, -1, slice(None), slice(1, None), slice(None, None, -1), slice(3, 0, -2), slice(5, 9), slice(-2, None),
    ..., None, (..., 0), (0, ...), (slice(None), 1, None), (None, ..., None), (2, 1, 0), (slice(0, 0), 1),
    (slice(None, None, 2), slice(None, None, -2), slice(-1, -4, -1)), np.int64(2), [0, 2], ([1, -1], slice(1)),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_indexing_follows_numpy(key: Any) -> None:
    x = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    np.testing.assert_array_equal(value(lambda t: t[key], x), x[key])
    seen = np.zeros_like(x)
    np.add.at(seen, key, 1.0)
    np.testing.assert_array_equal(slopes(lambda t: t[key], x)[0], seen)


def test_unpacking_a_tensor_gives_its_rows() -> None:
    def rows(x: Tensor) -> Tensor:
        a, b = x
        return b - a

    assert value(rows, [[1.0, 2.0], [5.0, 9.0]]).tolist() == [4, 7]


# Products


def test_a_rank_two_right_operand_makes_one_product_each_way() -> None:
    with tracing():
        (x, w), _ = traced(np.ones((2, 3, 4)), np.ones((4, 5)))
        grads = gradients((x @ w).sum(), [x, w])
        products = [t for t in toposort([x @ w, *grads]) if t.prim.name == "matmul"]
        assert all(t.ndim == 2 for t in products)
        assert grads[1].prim.name == "matmul"  # no sum over the batch remains


def test_a_product_with_an_empty_inner_axis_is_zero() -> None:
    assert value(tg.matmul, np.ones((2, 0)), np.ones((0, 3))).tolist() == [[0] * 3] * 2


# Operands and dtypes


def test_numbers_and_arrays_stand_on_either_side() -> None:
    x = [1.0, 2.0]
    assert value(lambda t: 2 - t, x).tolist() == [1, 0]
    assert value(lambda t: np.float32(2) - t, x).tolist() == [1, 0]
    assert value(lambda t: np.array([5.0, 5.0]) - t, x).tolist() == [4, 3]
    assert value(lambda t: t - [1.0, 1.0], x).tolist() == [0, 1]
    assert value(lambda t: 2**t, x).tolist() == [2, 4]
    assert value(lambda t: np.eye(2) @ t, x).tolist() == [1, 2]
    assert value(lambda t: t > 1, x).tolist() == [False, True]
    assert value(lambda t: True & (t > 1), x).tolist() == [False, True]
    assert value(lambda t: ~(t > 1) | (t == 2), x).tolist() == [True, True]


@pytest.mark.parametrize(
    ("array", "dtype"),
    [(np.float64, f32), (np.float16, f32), (np.int64, i32), (np.uint8, i32), (np.uint32, u32), (np.bool_, bool_)],
)
def test_asarray_takes_every_usual_dtype(array: Any, dtype: DType) -> None:
    source = np.array([[0, 1], [1, 0]], array).T
    with tracing():
        t = tg.asarray(source)
        assert t.dtype == dtype
        np.testing.assert_array_equal(evaluate([t], {}, np)[0], source)


def test_integers_select_before_arrays() -> None:
    """As in PyTorch. NumPy takes an integer beside arrays for an array, so the axes of both come first there."""
    x, at = np.arange(60, dtype=np.float32).reshape(3, 4, 5), [0, 2, 3]
    np.testing.assert_array_equal(value(lambda t: t[1, :, at], x), x[1][:, at])
    np.testing.assert_array_equal(value(lambda t: t[..., -1, None, at], x), x[:, -1][:, None][..., at])
    np.testing.assert_array_equal(value(lambda t: t[at[:2], ::-1, 3], x), x[..., 3][at[:2], ::-1])
    np.testing.assert_array_equal(value(lambda t: t[at[:2], :, at[1:]], x), x[at[:2], :, at[1:]])


def test_a_tensor_has_no_truth_value() -> None:
    with tracing(), pytest.raises(TraceError, match="Python branch"):
        bool(leaf("input", "x", TensorType(f32, ())) > 0)


def test_every_public_op_is_documented() -> None:
    assert [n for n in tg.__all__ if not inspect.getdoc(getattr(tg, n))] == []


def test_methods_are_the_ops_and_have_the_arguments_they_declare() -> None:
    (declared,) = [c for c in ast.parse(inspect.getsource(methods)).body if getattr(c, "name", "") == "TensorMethods"]
    empty = [d for d in declared.body if isinstance(d, ast.FunctionDef) and ast.unparse(d.body[0]) == "..."]
    spelled = {f"__{python}__": name for name, python in methods.OPERATORS.items()}
    for d in empty:
        if d.name.startswith("__r"):
            continue  # the other way round, as test_numbers_and_arrays_stand_on_either_side shows
        op = methods.METHODS[spelled.get(d.name, d.name)]
        assert vars(methods.TensorMethods)[d.name] is op, d.name
        _, *rest = inspect.signature(op).parameters.values()
        defaults = [p.default for p in rest if p.default is not p.empty]
        assert [a.arg for a in d.args.args[1:]] == [p.name for p in rest], d.name
        assert [ast.literal_eval(x) for x in d.args.defaults] == defaults, d.name


# Errors


def f(*shape: int, dtype: DType = f32) -> Tensor:
    return leaf("input", f"x{len(shape)}", TensorType(dtype, shape))


ERRORS: list[tuple[Callable[[], Any], type[Exception], str, list[str]]] = [
    (lambda: f(2, 3) + f(4), ShapeError, "add", ["f32[2,3]", "f32[4]"]),
    (lambda: f(2, 3) > f(2, 3, dtype=i32), DTypeError, "greater", ["f32[2,3]", "i32[2,3]", "tg.cast"]),
    (lambda: f(2, dtype=i32) * 0.5, DTypeError, "mul", ["0.5", "i32[2]", "tg.cast"]),
    (lambda: tg.mean(f(2, 3), axis=5), ShapeError, "mean", ["axis 5", "f32[2,3]"]),
    (lambda: f(2, 3, 4) @ f(2, 5, 4), ShapeError, "matmul", ["f32[2,3,4]", "f32[2,5,4]", "did you mean swapaxes"]),
    (lambda: f(2, 3, 4) @ f(3, 4, 5), ShapeError, "matmul", ["f32[2,3,4]", "f32[3,4,5]", "batch"]),
    (lambda: f(2, 3, 4) @ f(12, 5), ShapeError, "matmul", ["f32[2,3,4]", "f32[12,5]", "did you mean tg.flatten(a)"]),
    (lambda: f(2, 3) + f(4, dtype=i32), DTypeError, "add", ["f32[2,3]", "i32[4]", "tg.cast"]),  # before their shapes
    (lambda: f(2) @ f(), ShapeError, "matmul", ["f32[2]", "f32[]"]),
    (lambda: f(2, 3)[2], ShapeError, "getitem", ["index 2", "f32[2,3]"]),
    (lambda: f(2, 3)[f(2, 3) > 0], DTypeError, "getitem", ["bool[2,3]", "tg.where"]),
    (lambda: f(2, 3).reshape(4, -1), ShapeError, "reshape", ["[4,-1]", "f32[2,3]"]),
    (lambda: tg.concat([f(2, 3), f(3, 2)], 1), ShapeError, "concat", ["f32[2,3]", "f32[3,2]"]),
    (lambda: tg.stack([f(2), f(3)]), ShapeError, "stack", ["f32[2]", "f32[3]"]),
    (lambda: tg.where(f(2), 1.0, 2.0), DTypeError, "where", ["f32[2]", "bool"]),
    (lambda: tg.sqrt(f(2, dtype=i32)), DTypeError, "sqrt", ["i32[2]", "tg.cast"]),
    (lambda: tg.embedding(f(3), f(2, dtype=i32)), ShapeError, "embedding", ["f32[3]"]),
    (lambda: tg.einsum("ij,jk", f(2, 3), f(4, 5)), ShapeError, "einsum", ["'j'", "f32[2,3]", "f32[4,5]"]),
    (lambda: tg.clip(f(2), 3, 1), InputError, "clip", ["3", "1"]),
    (lambda: f(2) + "a", DTypeError, "add", ["'a'", "f32[2]"]),
    (lambda: tg.max(f(0, 3), 0), ShapeError, "max", ["f32[0,3]"]),
    (lambda: tg.logsumexp(f(2, dtype=i32)), DTypeError, "logsumexp", ["i32[2]"]),
    (lambda: tg.split(f(5), 2), ShapeError, "split", ["f32[5]"]),
    (lambda: tg.scatter_add(f(3, 2), [0, 1], f(2, 3)), ShapeError, "scatter_add", ["f32[3,2]", "f32[2,3]"]),
    (lambda: tg.asarray([1, 2.5], i32), DTypeError, "asarray", ["2.5", "i32"]),
    (lambda: tg.asarray([[1], [1, 2]]), DTypeError, "asarray", ["ragged"]),
    (lambda: tg.tril(f(3)), ShapeError, "tril", ["f32[3]"]),
]


@pytest.mark.parametrize(("fn", "kind", "op", "parts"), ERRORS, ids=[f"{e[2]}-{k}" for k, e in enumerate(ERRORS)])
def test_errors_name_op_types_and_line(fn: Callable[[], Any], kind: type[Exception], op: str, parts: list[str]) -> None:
    with tracing(), pytest.raises(kind) as caught:
        fn()
    message, where, line = str(caught.value).split("\n")
    assert message.startswith(f"{op}: ")
    assert [p for p in parts if p not in message] == []
    assert f"{__file__}:{fn.__code__.co_firstlineno}" in where
    assert line.strip()


def test_a_product_that_no_hint_mends_has_none() -> None:
    with tracing(), pytest.raises(ShapeError) as caught:
        f(2, 3, 4) @ f(5, 6)
    assert "must equal b.shape[-2] = 5\n" in str(caught.value)


def test_views_that_change_nothing_are_their_input() -> None:
    with tracing():
        x = f(2, 3)
        same = (
            views.reshape(x, (2, 3)), views.permute(x, (0, 1)), views.broadcast_to(x, (2, 3)),
            views.slice_(x, 1, 0, 3), views.place(x, 1, 0, 3), views.reshape(views.reshape(x, (3, 2)), (2, 3)),
        )  # fmt: skip
        assert all(y is x for y in same)
        other = (
            views.reshape(x, (3, 2)), views.permute(x, (1, 0)), views.broadcast_to(x, (1, 2, 3)),
            views.slice_(x, 1, 1, 2), views.slice_(x, 1, 0, 2), views.slice_(x, 1, 2, 3, -1),
            views.place(x, 1, 0, 4), views.place(x, 1, 1, 4), views.place(x, 1, 0, 5, 2), views.place(x, 1, 2, 3, -1),
        )  # fmt: skip
        assert not any(y is x for y in other)
        assert views.reshape(views.reshape(x, (3, 2)), (6,)).inputs == (x,)


VIEWS: dict[str, tuple[Primitive, tuple[int, ...], dict[str, Any], dict[str, Any]]] = {
    # row, shape, attributes that fit, attributes that do not
    "broadcast": (views.BROADCAST, (2, 1), {"shape": (2, 4)}, {"shape": (1, 4)}),
    "broadcast to other dimensions": (views.BROADCAST, (2, 1), {"shape": (2, 4)}, {"shape": (2, 4, 1)}),
    "slice to the end": (views.SLICE, (5,), {"start": 3, "step": 1, "length": 2}, {"start": 3, "step": 1, "length": 3}),
    "slice from the start": (
        views.SLICE, (5,), {"start": 4, "step": -2, "length": 3}, {"start": 3, "step": -2, "length": 3}
    ),
    "slice from behind the end": (
        views.SLICE, (5,), {"start": 4, "step": -1, "length": 1}, {"start": 5, "step": -1, "length": 1}
    ),
    "slice from before the start": (
        views.SLICE, (5,), {"start": 0, "step": 1, "length": 1}, {"start": -1, "step": 1, "length": 1}
    ),
    "slice of negative length": (
        views.SLICE, (5,), {"start": 0, "step": 1, "length": 0}, {"start": 0, "step": 1, "length": -1}
    ),
    "place to the end": (views.PLACE, (2,), {"start": 1, "step": 2, "length": 4}, {"start": 2, "step": 2, "length": 4}),
    "place to the start": (
        views.PLACE, (2,), {"start": 2, "step": -2, "length": 4}, {"start": 1, "step": -2, "length": 4}
    ),
    "place from behind the end": (
        views.PLACE, (2,), {"start": 3, "step": -1, "length": 4}, {"start": 4, "step": -1, "length": 4}
    ),
    "window": (
        views.WINDOW, (5,), {"size": 3, "stride": 1, "dilation": 2}, {"size": 3, "stride": 1, "dilation": 3}
    ),
    "unwindow": (
        views.UNWINDOW, (2, 3), {"length": 8, "stride": 3, "dilation": 2}, {"length": 7, "stride": 3, "dilation": 2}
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", VIEWS)
def test_views_refuse_what_does_not_fit(name: str) -> None:
    row, shape, good, bad = VIEWS[name]
    axis = {} if row is views.BROADCAST else {"axis": 0}
    with tracing():
        bind(row, f(*shape), **axis, **good)
        with pytest.raises(ShapeError):
            bind(row, f(*shape), **axis, **bad)


def test_ops_on_plain_values_run_at_once_and_traced_tensors_need_their_trace() -> None:
    assert tg.exp(0.0).item() == 1.0
    with tracing():
        x = tg.exp(0.0)
    with pytest.raises(TraceError, match="no trace"):
        tg.mul(x, 2.0)
