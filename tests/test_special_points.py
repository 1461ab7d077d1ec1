"""Values, first and second derivatives at zeros, ties, overflows and infinities: PyTorch's in float64, or the limit."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import tracegrad
from test_numerics import computed, runtime  # noqa: F401
from tracegrad import ops as tg
from tracegrad.ir.nodes import Tensor
from tracegrad.runtime.wgpu_session import NativeSession
from tracegrad.transforms.walks import gradients

torch = pytest.importorskip("torch", reason="PyTorch is not installed")
F = torch.nn.functional
INF, NAN = float("inf"), float("nan")
SIZES = (0.0, 1e-45, 1e-40, 1e-30, 1e-20, 1e-3, 1, 20, 88, 89, 104, 1e4, 1e10, 1e19, 1e20, 3e38, INF)
POINTS = np.array([s * x for x in SIZES for s in (1, -1)] + [NAN], np.float32)


@dataclass(frozen=True)
class Row:
    """A function of one number, and PyTorch's.

    slack: absolute error that rounding 1 - y near 1, or x - tanh(x) near 0, leaves
    apart: what is wanted where PyTorch has no limit, or chooses another side: order, point, value
    """

    name: str
    ours: Callable[..., Any]
    theirs: Callable[..., Any]
    slack: float = 2e-38
    apart: tuple[tuple[int, float, float], ...] = ()


def same(name: str, **options: Any) -> Row:
    return Row(name, getattr(tg, name), getattr(torch, name, None) or getattr(F, name), **options)


def bce(target: float, *apart: tuple[int, float, float]) -> Row:
    return Row(
        f"bce_{target}",
        lambda x: tg.binary_cross_entropy_with_logits(x, target, "none"),
        lambda x: F.binary_cross_entropy_with_logits(x, torch.full_like(x, target), reduction="none"),
        3e-8,
        apart,
    )


def power(b: float, *apart: tuple[int, float, float]) -> Row:
    return Row(f"pow_{b}", lambda x: x**b, lambda x: x**b, apart=apart)


FLAT = 1.3e-7  # of 1 - y, two ulp of 1
FAR = tuple((2, -x, 0.0) for x in (1e4, 1e10, 1e19, 1e20, 3e38, INF))
ORIGIN = (2, 0.0, 0.0), (2, -0.0, 0.0)
NEAR = tuple((order, -x, y) for order, x, y in FAR)
ROWS = [
    *map(same, ("exp", "log", "log1p", "sqrt", "reciprocal", "square", "neg", "cos", "sin", "floor")),
    same("erf", slack=3e-7),
    same("tanh", slack=FLAT),
    same("expm1", slack=FLAT),
    same("abs", apart=((1, NAN, NAN),)),
    same("sign", apart=((0, NAN, NAN),)),
    same("relu", apart=((1, NAN, 0.0),)),
    same("leaky_relu", apart=((1, NAN, 0.01),)),
    same("elu", slack=FLAT, apart=((2, 0.0, 1.0), (2, -0.0, 1.0), (1, NAN, NAN), (2, NAN, NAN))),
    same("sigmoid", slack=FLAT),
    Row("softplus", tg.softplus, lambda x: torch.logaddexp(x, torch.tensor(0.0)), FLAT, FAR),
    Row("logaddexp", lambda x: tg.logaddexp(x, 1.0), lambda x: torch.logaddexp(x, torch.tensor(1.0)), FLAT, FAR),
    Row("log_sigmoid", tg.log_sigmoid, lambda x: -torch.logaddexp(-x, torch.tensor(0.0)), FLAT, NEAR),
    same("silu", slack=1e-6),
    same("hardtanh"),
    same("tanhshrink", slack=1e-7),
    same("gelu", slack=1e-6),
    Row(
        "gelu_tanh",
        lambda x: tg.gelu(x, "tanh"),
        lambda x: F.gelu(x, approximate="tanh"),
        1e-6,
        ((0, -INF, 0.0), (1, INF, 1.0), (1, -INF, 0.0), (2, INF, 0.0), (2, -INF, 0.0)),
    ),
    same("rsqrt", apart=((1, -0.0, -INF),)),
    Row("x/3", lambda x: x / 3, lambda x: x / 3),
    Row("3/x", lambda x: 3 / x, lambda x: 3 / x),
    Row("clip", lambda x: tg.clip(x, -1, 1), lambda x: torch.clip(x, -1, 1), apart=((1, NAN, 1.0),)),
    Row("maximum", lambda x: tg.maximum(x, 0.0), lambda x: torch.maximum(x, torch.tensor(0.0)), apart=((1, NAN, 0.5),)),
    Row("x - x", lambda x: x - x, lambda x: x - x),
    Row("x * 0", lambda x: x * 0.0, lambda x: x * 0.0),
    Row("x / 0", lambda x: x / 0.0, lambda x: x / 0.0),
    Row("x / -0", lambda x: x / -0.0, lambda x: x / -0.0),
    Row("x / x", lambda x: x / tg.stop_gradient(x), lambda x: x / x.detach()),
    Row("x != x", lambda x: tg.where(tg.not_equal(x, x), 2.0, x), lambda x: torch.where(x != x, 2.0, x)),
    Row("x == x", lambda x: tg.where(tg.equal(x, x), 2.0, x), lambda x: torch.where(x == x, 2.0, x)),
    Row("x below 0", lambda x: tg.where(x < 0.0, x, 0.0), lambda x: torch.where(x < 0.0, x, 0.0)),
    Row("x not above 0", lambda x: tg.where(x > 0.0, 0.0, x), lambda x: torch.where(x > 0.0, 0.0, x)),
    Row("2**x", lambda x: 2**x, lambda x: 2**x),
    bce(0.0, (0, -INF, 0.0)),
    bce(1.0, (0, INF, 0.0), (0, -INF, INF)),
    bce(0.25, (0, -INF, INF)),
    *map(same, ("atan", "asin", "acos", "cosh")),
    same("sinh"),
    same("tan"),
    Row("atan2(x, 0)", lambda x: tg.atan2(x, 0.0), lambda x: torch.atan2(x, torch.tensor(0.0)), 0.0, ORIGIN),
    Row("atan2(0, x)", lambda x: tg.atan2(0.0, x), lambda x: torch.atan2(torch.tensor(0.0), x), 0.0, ORIGIN),
    Row("atan2(x, 1)", lambda x: tg.atan2(x, 1.0), lambda x: torch.atan2(x, torch.tensor(1.0))),
    Row("atan2(2, x)", lambda x: tg.atan2(2.0, x), lambda x: torch.atan2(torch.tensor(2.0), x)),
    Row("x % 3", lambda x: x % 3.0, lambda x: x % 3.0),
    Row("-2.5 % x", lambda x: -2.5 % x, lambda x: torch.remainder(torch.tensor(-2.5), x),
        apart=((1, 0.0, NAN), (1, -0.0, NAN))),  # where the value is not finite
    Row("2.5 % x", lambda x: 2.5 % x, lambda x: torch.remainder(torch.tensor(2.5), x),
        apart=((1, 0.0, NAN), (1, -0.0, NAN))),
    Row("fmod", lambda x: tg.fmod(-2.5, x), lambda x: torch.fmod(torch.tensor(-2.5), x),
        apart=((1, 0.0, NAN), (1, -0.0, NAN))),
    same("lgamma", apart=(
        (0, -1e-45, 103.325),  # pi x rounds among denormals
        *((2, -s, NAN) for s in SIZES if s >= 1))),  # of a pole, PyTorch has the value beside it
    Row("x // 3", lambda x: x // 3.0, lambda x: x.detach() // 3.0),
    Row("2.5 // x", lambda x: 2.5 // x, lambda x: torch.tensor(2.5) // x.detach()),
    Row("nan_to_num", lambda x: tg.nan_to_num(x, 3.0, 4.0, 5.0), lambda x: torch.nan_to_num(x, 3.0, 4.0, 5.0)),
    Row("sort", lambda x: tg.sort(x)[0] * 2.0, lambda x: torch.sort(x, stable=True)[0] * 2.0),
    *(
        Row(n, lambda x, n=n: getattr(tg, n)(x, 1.0, "none"),
            lambda x, n=n: getattr(F, n)(x, torch.ones_like(x), reduction="none"))
        for n in ("smooth_l1_loss", "huber_loss")
    ),
    *map(power, (0, 1, 2, 3, 4, -1, -2)),
    power(0.5, (2, -0.0, INF), (2, -INF, NAN)),
    power(3.5),
]  # fmt: skip


def wanted(row: Row) -> list[Any]:
    """The value and two derivatives, in f32."""
    x = torch.tensor(POINTS.astype(np.float64), requires_grad=True)
    y, out = row.theirs(x), []
    for order in range(3):
        if order:
            (y,) = torch.autograd.grad(y.sum(), x, create_graph=True) if y.requires_grad else (torch.zeros_like(x),)
        with np.errstate(all="ignore"):
            values = (y.detach() + 0.0).numpy(force=True).astype(np.float32)
        for at, point, value in row.apart:
            alike = np.isclose(POINTS, point, rtol=1e-6, atol=0, equal_nan=True)
            values[alike & (np.signbit(POINTS) == np.signbit(point)) & (at == order)] = value
        out.append(values)
    return out


def derivatives(x: Tensor, fn: Callable[..., Any]) -> list[Tensor]:
    y = fn(x)
    (slope,) = gradients(y.sum(), [x])
    return [y, slope, gradients(slope.sum(), [x])[0]]


def flushed(got: Any, want: Any, slack: float) -> Any:
    """Where denormal points have the value of the zero of their sign."""
    zero = np.where(np.signbit(POINTS), want[POINTS.tolist().index(0.0) + 1], want[POINTS.tolist().index(0.0)])
    return (abs(POINTS) < np.finfo(np.float32).tiny) & np.isclose(got, zero, rtol=3e-5, atol=slack, equal_nan=True)


def test_values_and_derivatives_at_special_points(runtime: Any) -> None:  # noqa: F811
    found = iter(computed(runtime, lambda x: tuple(t for row in ROWS for t in derivatives(x, row.ours)), POINTS))
    bad: list[str] = []
    for row in ROWS:
        for order, want in enumerate(wanted(row)):
            got = next(found)
            with np.errstate(over="ignore"):
                wrong = ~np.isclose(got, want, rtol=3e-5, atol=row.slack, equal_nan=True)
            if isinstance(runtime, NativeSession):
                if order == 2:  # a driver may make a (2 x) of a x + a x: 0 * inf
                    wrong &= abs(POINTS) != np.float32(3e38)
                wrong &= ~flushed(got, want, row.slack)  # a GPU may take denormals for zeros
            bad += [
                f"{row.name}, order {order}, at {POINTS[k]}: {got[k]}, not {want[k]}" for k in np.flatnonzero(wrong)
            ]
    assert not bad, "\n".join(bad)


# lengths
def test_lengths_whose_squares_overflow_or_vanish(runtime: Any) -> None:  # noqa: F811
    """Against float64: the value and the slope.

    Rows with an element beyond 1e15 are scaled by 2^-80. A device without subnormal numbers then loses elements below
    2^-126 / 2^-80 = 1.5e-14, whose slopes are below 1.5e-14 / 1e15.
    """
    rows = [(1e38, 1), (1e20, 1e20), (1e16, 1e-20), (3, 4), (1e-14, 1e-16), (1e-18, 2e-18), (-1e-30, 3e-30), (0, 0)]
    x = np.array(rows, np.float32)
    lengths = lambda x: tg.norm(x, -1)
    found = computed(runtime, lambda x: (lengths(x), tg.norm(x), *gradients(lengths(x).sum(), [x])), x)
    exact = torch.tensor(x.astype(np.float64), requires_grad=True)
    y = torch.linalg.vector_norm(exact, dim=-1)
    (slope,) = torch.autograd.grad(y.sum(), exact)
    for got, want, lost in zip(found, (y, torch.linalg.vector_norm(exact), slope), (1e-37, 1e-37, 1.5e-29)):
        np.testing.assert_allclose(got, want.numpy(force=True), rtol=1e-6, atol=lost)


# products
@pytest.mark.parametrize("zeros", [0, 1, 2, 4])
@pytest.mark.parametrize(
    "shape, axis",
    [((0, 2), None), ((3, 0), 1), ((2,), None), ((7,), 0), ((3, 2, 3), (0, -1)), ((3, 1, 4), (1, 0))],
    ids=str,
)
def test_three_derivatives_of_products_beside_zeros(shape: tuple[int, ...], axis: Any, zeros: int) -> None:
    """Against a chain of multiplications in float64: value, slopes, the Hessian along a direction, and its slope."""
    x = np.random.default_rng(zeros).uniform(0.5, 1.5, shape).astype(np.float32)
    x.reshape(-1)[np.random.default_rng(zeros).permutation(x.size)[:zeros]] = 0
    folded = [d % x.ndim for d in (range(x.ndim) if axis is None else np.atleast_1d(axis))]
    rows = [*(d for d in range(x.ndim) if d not in folded), *folded]
    n, rest = int(np.prod([x.shape[d] for d in folded])), int(np.prod([x.shape[d] for d in rows[: -len(folded)]]))

    def f(x: Any) -> Any:
        return tg.sum(tg.sin(tg.prod(x, axis))) + tg.sum(tg.prod(2.0 * x, axis, keepdims=True))

    def chained(x: Any) -> Any:
        p = functools.reduce(torch.mul, x.permute(rows).reshape(rest, n).unbind(1), torch.ones(rest).double())
        return (torch.sin(p) + 2.0**n * p).sum()

    def slope_of(y: Any) -> Any:
        return torch.autograd.grad(y, t, create_graph=True)[0] if y.requires_grad else torch.zeros_like(t)

    def bent(y: Any) -> Any:
        return tracegrad.jvp(tracegrad.grad(f), (y,), (x + 1.0,))[1]

    t = torch.tensor(x.astype(np.float64), requires_grad=True)
    slope = slope_of(chained(t))
    bend = slope_of((slope * (t.detach() + 1.0)).sum())
    third = slope_of((bend**2).sum() / 2).numpy(force=True)
    near = {"rtol": 1e-4, "atol": 1e-4 * float(abs(third).max(initial=0.0))}
    np.testing.assert_allclose(f(x).numpy(), chained(t).detach(), rtol=1e-5)
    slopes = tracegrad.vmap(tracegrad.grad(f))(np.stack([np.ones_like(x), x]))
    np.testing.assert_allclose(slopes[1], slope.detach(), rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(bent(x), bend.detach(), **near)
    np.testing.assert_allclose(tracegrad.grad(lambda y: tg.sum(bent(y) ** 2) * 0.5)(x), third, **near)


def test_a_hessian_of_a_product_of_zeros() -> None:
    np.testing.assert_array_equal(tracegrad.hessian(tracegrad.prod)(np.zeros(2, "f")), [[0, 1], [1, 0]])
    third = tracegrad.jacobian(tracegrad.hessian(tracegrad.prod))(np.zeros(3, "f"))
    want = np.zeros((3, 3, 3))
    want[tuple(np.array(list(itertools.permutations(range(3)))).T)] = 1
    np.testing.assert_array_equal(third, want)


def test_gradients_of_products_do_not_divide() -> None:
    gradient = tracegrad.grad(tracegrad.prod)
    np.testing.assert_allclose(gradient(np.array([1e30, 1e30, 1e-30], "f")), [1, 1, INF], rtol=1e-6)
    np.testing.assert_array_equal(gradient(np.array([INF, 2], "f")), [2, INF])
    np.testing.assert_array_equal(gradient(np.array([1e-30, 1e-30, 1.0], "f"))[:2], np.float32([1e-30, 1e-30]))


@pytest.mark.parametrize("n", [1, 2, 3, 6, 31, 40])
def test_products_beside_zeros_on_every_runtime(runtime: Any, n: int) -> None:  # noqa: F811
    x = np.random.default_rng(n).uniform(0.8, 1.2, (5, n, 2)).astype(np.float32)
    x[1, 0], x[2, [0, -1]], x[3] = 0, 0, 0
    columns, rows = (
        computed(runtime, lambda x, a=a: gradients(tg.prod(x, a).sum(), [x])[0], x)[0] for a in (1, (2, 1))
    )
    at = np.arange(n)
    np.testing.assert_allclose(columns, np.stack([x[:, at != k].prod(1) for k in at], 1), rtol=1e-5)
    np.testing.assert_allclose(rows, columns * x[..., ::-1].prod(1, keepdims=True), rtol=1e-5)


# kinks and powers of two operands
def test_second_derivatives_of_powers_at_an_exponent_of_zero() -> None:
    """By the base 0, whatever the size of the base; mixed 1 / base where that is no overflow."""
    base = np.array([0.0, -0.0, 1e-30, 1e-20, -1e-20, 1e-8, 0.5, 3.0, 1e30, INF], np.float32)
    value = lambda a, b: tracegrad.sum(tracegrad.pow(a, b))
    zero = np.zeros_like(base)
    by_base = tracegrad.grad(lambda a: tracegrad.sum(tracegrad.grad(value)(a, zero)))(base)
    np.testing.assert_array_equal(by_base, 0)
    mixed = tracegrad.grad(lambda b: tracegrad.sum(tracegrad.grad(value)(base, b)))(zero)
    np.testing.assert_allclose(mixed[5:9], 1 / base[5:9], rtol=1e-5)
    assert np.isfinite(mixed[:5]).all()


@pytest.mark.parametrize("other", [1.0, 100.0, -np.inf, 3.4e38])
def test_the_gradient_of_logsumexp_beside_infinity(other: float) -> None:
    """Elements whose exp overflows got NaN, not 0."""
    x = np.float32([np.inf, other])
    np.testing.assert_array_equal(tracegrad.grad(tg.logsumexp)(x), np.float32([np.nan, 0]))


def test_the_gradient_of_logsumexp_is_as_exact_for_large_elements() -> None:
    """It was exp(x - y), which has the rounding error of the result y: 0.02 near a million, as in PyTorch."""
    x = np.float32([[1e6, 1e6 + 0.5, 1e6 - 1], [-3e5, -3e5 + 1, -3e5]])
    exact = np.exp(x.astype(np.float64) - x.max(1, keepdims=True))
    exact /= exact.sum(1, keepdims=True)
    grad = tracegrad.grad(lambda x: tg.sum(tg.logsumexp(x, axis=1)))(x)
    assert np.abs(np.asarray(grad) - exact).max() < 2e-7
    along = np.float32([[3, -1, 2], [1, 5, -2]])
    _, second = tracegrad.jvp(tracegrad.grad(lambda x: tg.sum(tg.logsumexp(x, axis=1))), (x,), (along,))
    wanted = exact * (along - (exact * along).sum(1, keepdims=True))
    assert np.abs(np.asarray(second) - wanted).max() < 2e-6


def test_a_grid_far_outside_of_the_image_reads_zeros(runtime: Any) -> None:  # noqa: F811
    """PyTorch's weights are NaN where a coordinate overflows; inside, and just outside, both are the same."""
    x = np.arange(1.0, 13.0, dtype=np.float32).reshape(1, 1, 3, 4)
    near, far = [-1.75, -1.5, -1.25, -1.0, 0.1, 1.25, 1.5, 1.75], [3e38, -3e38, 1e30, INF, -INF]
    pairs = [*itertools.product(near, near), *((f, 0.1) for f in far), *((0.1, f) for f in far)]
    grid, count = np.array([[pairs]], np.float32), len(near) ** 2

    def f(x: Tensor, grid: Tensor) -> tuple[Tensor, ...]:
        y = tg.grid_sample(x, grid)
        return (y, *gradients(tg.sum(y), [x, grid]))

    a, b = (torch.tensor(v, requires_grad=True) for v in (x, grid[:, :, :count]))
    F.grid_sample(a, b, align_corners=False).sum().backward()
    y, dx, dgrid = computed(runtime, f, x, grid)
    assert not y[..., count:].any() and not dgrid[:, :, count:].any()
    np.testing.assert_allclose(dx, a.grad, rtol=1e-5)
    np.testing.assert_allclose(dgrid[:, :, :count], b.grad, rtol=1e-5, atol=1e-5)
