"""The rows of the accuracy table: an op, its operands, the float64 truth, and the promised error.

The truth is float64 NumPy (`accuracy_truths.py`). An error counts in units in the last place (ulp) of the result. Where
terms cancel, or a rounded operand is amplified, it counts in ulp of a larger scale, which the row names.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from accuracy_truths import (
    attend,
    attend_scale,
    conv,
    conv_transpose,
    digamma,
    digamma_scale,
    erf,
    factors,
    factors_scale,
    gelu_exact,
    gelu_tanh,
    interpolated,
    interpolated_scale,
    lgamma,
    lgamma_scale,
    lower_solved,
    lower_solved_scale,
    lse,
    normed,
    normed_scale,
    of_sizes,
    pixel_centres,
    softmax,
    softmax_scale,
    solved_scale,
    stable_sigmoid,
    stable_softplus,
    windows,
)

import tracegrad as tg

Array = Any
Rng = np.random.Generator
Points = Callable[[Rng, int], list[Array]]

TINY, HUGE = 2.0**-126, 3.4028235e38
SPECIAL = np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, TINY, -TINY, HUGE, -HUGE, 1e-45, -1e-45], np.float32)


@dataclass(frozen=True)
class Row:
    """One op over one set of operands. `allowed` is the promise in ulp for every runtime."""

    op: str
    operands: str
    fn: Callable[..., Any]
    points: Points
    exact: Callable[..., Array]
    allowed: float
    scale: Callable[..., Array] | None = None  # of the operands, float64; None: the result
    unit: str = "the result"


# Operands
def everywhere(rng: Rng, n: int) -> Array:
    """All special values, then every exponent of f32 equally often, denormals included, with random mantissas."""
    bits = rng.integers(0, 2**32, n, dtype=np.uint32)
    bits = np.where(bits & 0x7F800000 == 0x7F800000, bits & 0xBFFFFFFF, bits)  # no further NaN or infinity
    bits[: n // 16] &= 0xFF800000  # powers of two
    bits[n // 16 : n // 8] |= 0x007FFFFF  # and their neighbours
    x = bits.view(np.float32)
    x[: SPECIAL.size] = SPECIAL
    return x


def all_f32(rng: Rng, n: int) -> list[Array]:
    """One operand from everywhere."""
    return [everywhere(rng, n)]


def all_normal(rng: Rng, n: int) -> list[Array]:
    """The same without denormals."""
    x = everywhere(rng, n)
    return [np.where(np.abs(x) < TINY, np.float32(0), x)]


def all_pairs(rng: Rng, n: int) -> list[Array]:
    """Two operands from everywhere, and every special value against every other."""
    a, b, k = everywhere(rng, n), everywhere(rng, n), SPECIAL.size
    if n >= k * k:
        a[: k * k], b[: k * k] = np.repeat(SPECIAL, k), np.tile(SPECIAL, k)
    near = slice(n // 2, n * 3 // 4)  # of nearly equal size: differences cancel, quotients are near 1
    with np.errstate(over="ignore"):
        b[near] = a[near] * rng.uniform(0.999, 1.001, a[near].size).astype(np.float32)
    return [a, b]


def between(*ranges: tuple[float, float]) -> Points:
    """Operands spread evenly over ranges."""
    return lambda rng, n: [rng.uniform(low, high, n).astype(np.float32) for low, high in ranges]


def around(centre: float) -> Points:
    """The f32 numbers next to a centre, both ways, and others by the logarithm of their distance."""

    def points(rng: Rng, n: int) -> list[Array]:
        bits = np.array(centre, np.float32).view(np.int32)
        close = (bits + np.arange(n // 2, dtype=np.int32) - n // 4).view(np.float32)
        far = centre + rng.choice([-1.0, 1.0], n - n // 2) * np.exp(rng.uniform(math.log(1e-7), 0, n - n // 2)) / 2
        return [np.concatenate([close, far.astype(np.float32)])]

    return points


def negative_integers(rng: Rng, n: int) -> list[Array]:
    """-1, -2 and so on; and those above -2²⁴, between which f32 has no halves."""
    k = np.arange(1, n // 2 + 1)
    return [-np.concatenate([k, 2**24 - k]).astype(np.float32)]


def quarter_turns(rng: Rng, n: int) -> list[Array]:
    """The numbers next to multiples of π/2: the first n/8, then larger ones up to 1e15."""
    k = np.concatenate([np.arange(n // 8), np.floor(np.exp(rng.uniform(0, math.log(1e15), n // 4 - n // 8)))])
    nearest = (k * (math.pi / 2)).astype(np.float32)
    ways = [nearest, np.nextafter(nearest, np.float32(np.inf)), -nearest, np.nextafter(nearest, np.float32(0))]
    return [np.concatenate(ways)]


def large_powers(rng: Rng, n: int) -> list[Array]:
    """Bases next to 1 and at the ends of f32, denormals too, with exponents that keep the power within 2^±150."""
    near = 1 + rng.integers(-(2**12), 2**12, n // 2) * 2.0**-24
    far = everywhere(rng, n - n // 2).astype(np.float64)
    far = np.where(np.isfinite(far) & (far != 0), np.abs(far), 2.0**-149)
    a = np.concatenate([near, far]).astype(np.float32)
    with np.errstate(divide="ignore"):
        b = rng.uniform(-104, 104, n) / np.log(a.astype(np.float64))
    return [a, np.clip(b, -HUGE, HUGE).astype(np.float32)]


def rows_of(length: int, low: float, high: float, count: int = 1) -> Points:
    """Matrices of `length` columns, with about as many elements as asked for in all, at most 4096 rows."""

    def points(rng: Rng, n: int) -> list[Array]:
        shape = (max(2, min(4096, n // length)) if length < 10**6 else 1, length)
        return [rng.uniform(low, high, shape).astype(np.float32) for _ in range(count)]

    return points


def arrays(*shapes: tuple[int, ...]) -> Points:
    """Arrays of normal numbers."""
    return lambda rng, n: [rng.normal(size=s).astype(np.float32) for s in shapes]


SIZES = "Σ|terms|"


def elementwise_rows() -> list[Row]:
    """Every elementwise op over all of f32, and at the points that are hard for it."""
    rows: list[Row] = []

    def one(name: str, exact: Any, allowed: float, fn: Any = None, **more: Any) -> None:
        rows.append(Row(name, "all of f32", fn or getattr(tg, name), all_f32, exact, allowed, **more))

    def two(name: str, exact: Any, allowed: float, fn: Any = None) -> None:
        rows.append(Row(name, "all pairs of f32", fn or getattr(tg, name), all_pairs, exact, allowed))

    def hard(name: str, operands: str, points: Points, allowed: float | None = None, **more: Any) -> None:
        same = next(r for r in rows if r.op == name)
        rows.append(
            Row(name, operands, same.fn, points, same.exact, same.allowed if allowed is None else allowed, **more)
        )

    for name, exact in (("add", np.add), ("sub", np.subtract), ("mul", np.multiply)):
        two(name, exact, 0.5)
    two("div", np.divide, 2.5)
    two("remainder", np.remainder, 0.5)
    hard("remainder", "a -100 … 100, b 0.1 … 3", between((-100, 100), (0.1, 3)))
    two("fmod", np.fmod, 0)
    hard("fmod", "a -100 … 100, b 0.1 … 3", between((-100, 100), (0.1, 3)))
    two("floor_divide", np.floor_divide, 3)
    hard("floor_divide", "a -100 … 100, b 0.1 … 3", between((-100, 100), (0.1, 3)), 0)
    two("minimum", np.minimum, 0)
    two("maximum", np.maximum, 0)
    for name in ("less", "less_equal", "equal", "not_equal", "greater", "greater_equal"):
        two(name, getattr(np, name), 0)
    for name, exact in (("neg", np.negative), ("abs", np.abs), ("sign", np.sign), ("floor", np.floor)):
        one(name, exact, 0)
    one("ceil", np.ceil, 0)
    one("round", np.rint, 0)
    one("cast to i32", lambda x: np.trunc(np.clip(np.nan_to_num(x, nan=0.0), -(2.0**31), 2147483520.0)), 0,
        lambda x: x.astype(tg.i32))  # fmt: skip
    one("clip", lambda x: np.clip(x, -2.0, 3.0), 0, lambda x: tg.clip(x, -2.0, 3.0))
    one("hardtanh", lambda x: np.clip(x, -1.0, 1.0), 0)
    one("relu", lambda x: np.where(x <= 0, 0, x), 0)
    one("leaky_relu", lambda x: np.where(x <= 0, x * float(np.float32(0.01)), x), 0.5)
    one("square", np.square, 0.5)
    one("reciprocal", np.reciprocal, 2.5)
    one("sqrt", np.sqrt, 2.5)
    one("rsqrt", lambda x: 1 / np.sqrt(x), 5)
    one("exp", np.exp, 3)
    hard("exp", "-88 … 89", between((-88, 89)))
    hard("exp", "-104 … -87: denormal results", between((-104, -87)))
    one("expm1", np.expm1, 4)
    hard("expm1", "-20 … 89", between((-20, 89)))
    hard("expm1", "-1 … 1", between((-1, 1)))
    one("log", np.log, 4)
    hard("log", "next to 1", around(1.0))
    one("log1p", np.log1p, 4)
    hard("log1p", "-1 … 1", between((-1, 1)))
    one("sin", np.sin, 4)
    hard("sin", "-π … π", between((-math.pi, math.pi)))
    hard("sin", "next to multiples of π/2", quarter_turns)
    one("cos", np.cos, 4)
    hard("cos", "-π … π", between((-math.pi, math.pi)))
    hard("cos", "next to multiples of π/2", quarter_turns)
    one("tanh", np.tanh, 4)
    hard("tanh", "-10 … 10", between((-10, 10)))
    hard("tanh", "next to 1", around(1.0))
    one("erf", erf, 4)
    hard("erf", "-5 … 5", between((-5, 5)))
    hard("erf", "next to 1", around(1.0))
    rows.append(Row("lgamma", "all normal f32", tg.lgamma, all_normal, lgamma, 24, lgamma_scale, SIZES))
    hard("lgamma", "0 … 10", between((0, 10)))
    hard("lgamma", "-12 … 0", between((-12, 0)), 8, scale=lgamma_scale, unit=SIZES)
    hard("lgamma", "negative integers", negative_integers, 0)
    one("digamma", digamma, 12, scale=digamma_scale, unit=f"{SIZES}, or 1")
    for low, high in ((0, 10), (-12, 0)):
        hard("digamma", f"{low} … {high}", between((low, high)), scale=digamma_scale, unit=f"{SIZES}, or 1")
    hard("digamma", "negative integers", negative_integers, 0)
    one("tan", np.tan, 10.5)
    hard("tan", "next to multiples of π/2", quarter_turns)
    two("atan2", np.arctan2, 5)
    one("atan", np.arctan, 5)
    one("asin", np.arcsin, 8)
    hard("asin", "-1 … 1", between((-1, 1)))
    one("acos", np.arccos, 8)
    hard("acos", "-1 … 1", between((-1, 1)))
    one("sinh", np.sinh, 8)
    hard("sinh", "-90 … 90", between((-90, 90)))
    hard("sinh", "-1 … 1", between((-1, 1)))
    one("cosh", np.cosh, 8)
    hard("cosh", "-90 … 90", between((-90, 90)))
    two("pow", np.power, 8)
    hard("pow", "a 0.001 … 1000, b -8 … 8", between((1e-3, 1e3), (-8, 8)), 4)
    hard("pow", "a 0.9 … 1.1, b -800 … 800", between((0.9, 1.1), (-800, 800)), 4)
    hard("pow", "of all sizes, in the range of f32", large_powers, 16)
    one("sigmoid", stable_sigmoid, 6)
    hard("sigmoid", "-90 … 90", between((-90, 90)))
    one("softplus", stable_softplus, 6)
    hard("softplus", "-90 … 20", between((-90, 20)))
    one("elu", lambda x: np.where(x > 0, x, np.expm1(x)), 4)
    one("silu", lambda x: x * stable_sigmoid(x), 4, scale=np.abs, unit="x")
    hard("silu", "-87 … 90", between((-87, 90)), 8)  # below, the sigmoid is denormal
    one("gelu", gelu_exact, 4, scale=np.abs, unit="x")
    hard("gelu", "-8 … 8", between((-8, 8)), scale=np.abs, unit="x")
    one("gelu, tanh", gelu_tanh, 8, lambda x: tg.gelu(x, "tanh"), scale=np.abs, unit="x")
    hard("gelu, tanh", "-8 … 8", between((-8, 8)), scale=np.abs, unit="x")
    one("tanhshrink", lambda x: x - np.tanh(x), 4, scale=np.abs, unit="x")
    return rows


def reduction_rows() -> list[Row]:
    """Reductions and norms at several lengths."""
    rows: list[Row] = []

    def over(name: str, exact: Any, allowed: Sequence[float], lengths: Sequence[int], low: float = -1.0,
             high: float = 1.0, operands: str = "", fn: Any = None, **more: Any) -> None:  # fmt: skip
        op = fn or (lambda x: getattr(tg, name)(x, -1))
        for n, most in zip(lengths, allowed, strict=True):
            said = f"{n:,}".replace(",", " ") + f" {operands}".rstrip()
            rows.append(Row(name, said, op, rows_of(n, low, high), exact, most, **more))

    sizes = {"scale": lambda x: np.abs(x).sum(-1), "unit": SIZES}
    lengths = (3, 31, 100, 1000, 4096, 1_000_003)
    over("sum", lambda x: x.sum(-1), (2, 4, 4, 4, 4, 4), lengths, **sizes)
    over("sum", lambda x: x.sum(-1), (2, 6, 8, 16, 32, 64), lengths, 0, 1, "of one sign")
    over("mean", lambda x: x.mean(-1), (5, 4, 4), (3, 100, 4096),
         scale=lambda x: np.abs(x).mean(-1), unit="mean |x|")  # fmt: skip
    for n, most in ((100, 16), (4096, 100)):
        fn = lambda x: tg.sum(x, 0)
        points: Points = lambda rng, m, n=n: [rng.uniform(0, 1, (n, 300)).astype(np.float32)]
        rows.append(Row("sum of columns", f"{n} of one sign", fn, points, lambda x: x.sum(0), most))
    centred = {"scale": lambda x: x.std(-1) * np.abs(x).mean(-1), "unit": "std · mean |x|"}
    over("var", lambda x: x.var(-1), (5, 5, 5), (3, 100, 4096), **centred)
    over("var", lambda x: x.var(-1), (4, 4, 4), (3, 100, 4096), 999, 1001, "near 1000", **centred)
    over("prod", lambda x: x.prod(-1), (2.5, 12, 40), (3, 31, 1000), 0.95, 1.05)
    over("max", lambda x: x.max(-1), (0, 0), (3, 4096))
    over("min", lambda x: x.min(-1), (0, 0), (3, 4096))
    over("cumsum", lambda x: x.cumsum(-1), (2, 8, 8), (3, 100, 1000), fn=lambda x: tg.cumsum(x, -1),
         scale=lambda x: np.abs(x).cumsum(-1), unit=SIZES)  # fmt: skip
    wide = {"low": -20.0, "high": 20.0, "operands": "in -20 … 20"}
    one_or_more = {"scale": lambda x: np.maximum(np.abs(lse(x)[..., 0]), 1), "unit": "the result, or 1"}
    over("logsumexp", lambda x: lse(x)[..., 0], (4, 4, 4), (3, 300, 4097), **wide, **one_or_more)
    over("softmax", softmax, (6, 6, 6), (3, 300, 4097), **wide, scale=softmax_scale, unit="y (1 + max x - x)")
    over("log_softmax", lambda x: x - lse(x), (4, 4, 4), (3, 300, 4097), **wide,
         scale=lambda x: np.maximum(np.abs(x - lse(x)), 1), unit="the result, or 1")  # fmt: skip
    spread = {"scale": normed_scale, "unit": "(|x| + mean |x|) / std"}
    over("layer_norm", normed, (8, 8, 8), (4, 100, 4096), -1, 3, fn=lambda x: tg.layer_norm(x), **spread)
    over("rms_norm", lambda x: x / np.sqrt((x**2).mean(-1, keepdims=True) + 1e-6), (8, 8, 8), (4, 100, 4096),
         fn=lambda x: tg.rms_norm(x))  # fmt: skip
    return rows


def system_rows() -> list[Row]:
    """Decompositions and systems of equations; scales are bounds of the error by that of the matrix."""

    def lower(size: int, rng: Rng, n: int) -> list[Array]:
        a = rng.normal(size=(8, size, size)) / 8 + 2 * np.eye(size)
        return [a.astype(np.float32), rng.normal(size=(8, size, 5)).astype(np.float32)]

    def positive(size: int, rng: Rng, n: int) -> list[Array]:
        x = rng.normal(size=(8, size, size))
        a = x @ x.swapaxes(-1, -2) / size + 0.1 * np.eye(size)
        return [((a + a.swapaxes(-1, -2)) / 2).astype(np.float32)]

    inverted = lambda a: np.linalg.inv(a)
    return [
        *[
            Row("linalg.cholesky", f"{size}×{size}", tg.linalg.cholesky, partial(positive, size), factors, 4,
                factors_scale, "|L| |L⁻¹| |L| |Lᵀ| |L⁻ᵀ|")
            for size in (32, 100)
        ],
        *[
            Row("linalg.solve_triangular", f"{size}×{size}, lower",
                lambda a, b: tg.linalg.solve_triangular(a, b, upper=False), partial(lower, size), lower_solved, 4,
                lower_solved_scale, "|A⁻¹| |A| |X|")
            for size in (32, 100)
        ],
        Row("linalg.solve", "32×32", tg.linalg.solve, arrays((8, 32, 32), (8, 32, 5)), np.linalg.solve, 4,
            solved_scale, "|A⁻¹| |A| |X|"),
        Row("linalg.inv", "32×32", tg.linalg.inv, arrays((8, 32, 32)), inverted, 4,
            lambda a: solved_scale(a, np.eye(32)), "|A⁻¹| |A| |A⁻¹|"),
    ]  # fmt: skip


def image_rows() -> list[Row]:
    """Images read at any position."""

    def images(rng: Rng, n: int) -> list[Array]:
        x, grid = rng.normal(size=(2, 3, 16, 16)), rng.uniform(-1.2, 1.2, (2, 40, 40, 2))
        return [x.astype(np.float32), grid.astype(np.float32)]

    return [
        Row("grid_sample", "16×16, bilinear", lambda x, grid: tg.grid_sample(x, grid), images, interpolated, 2,
            interpolated_scale, "16 Σ|pixels|"),
        Row("affine_grid", "13×17", lambda theta: tg.affine_grid(theta, (4, 1, 13, 17)), arrays((4, 2, 3)),
            pixel_centres, 4, lambda theta: np.abs(theta).sum(-1)[:, None, None], "Σ|theta|"),
    ]  # fmt: skip


def product_rows() -> list[Row]:
    """Products, convolutions, attention and losses."""
    rows: list[Row] = []
    products = {"scale": of_sizes(np.matmul), "unit": SIZES}
    for k, most in ((3, 3), (16, 4), (64, 4), (256, 4), (1000, 4), (4096, 4)):
        rows.append(Row("matmul", f"k = {k}", tg.matmul, arrays((60, k), (k, 72)), np.matmul, most, **products))
    rows.append(Row("matmul", "row by matrix, k = 1000", tg.matmul, arrays((1, 1000), (1000, 300)), np.matmul, 4,
                    **products))  # fmt: skip
    convolved = Row("conv2d", "3×3, 16 channels", lambda x, w: tg.conv2d(x, w, padding=1),
                    arrays((2, 16, 13, 11), (24, 16, 3, 3)), conv, 4, of_sizes(conv), SIZES)  # fmt: skip
    spread = Row("conv_transpose2d", "3×3, 16 channels", lambda x, w: tg.conv_transpose2d(x, w),
                 arrays((2, 16, 9, 7), (16, 12, 3, 3)), conv_transpose, 4, of_sizes(conv_transpose), SIZES)  # fmt: skip
    pooled = lambda x: windows(x, 2, 2)[:, :, ::2, ::2].mean((-1, -2))
    pool = Row("avg_pool2d", "2×2", lambda x: tg.avg_pool2d(x, 2), arrays((4, 8, 16, 16)), pooled, 4,
               of_sizes(pooled), SIZES)  # fmt: skip
    heads = arrays((2, 3, 33, 16), (2, 3, 33, 16), (2, 3, 33, 16))
    attention = Row("attention", "33 keys of 16", lambda q, k, v: tg.attention(q, k, v), heads, attend, 4,
                    attend_scale, "Σ p |v| (1 + Σ|q k| / √d)")  # fmt: skip
    both = lambda f: lambda rng, n: [f(rng, n)[0], (f(rng, n)[0] > 0).astype(np.float32)]
    entropy = Row("binary_cross_entropy_with_logits", "4096 logits in -20 … 20",
                  lambda x, y: tg.binary_cross_entropy_with_logits(x, y), both(rows_of(4096, -20, 20)),
                  lambda x, y: (np.maximum(x, 0) - x * y + np.log1p(np.exp(-np.abs(x)))).mean(), 8)  # fmt: skip
    squared = Row("mse_loss", "4096 columns", lambda x, y: tg.mse_loss(x, y), rows_of(4096, -1, 1, 2),
                  lambda x, y: ((x - y) ** 2).mean(), 8)  # fmt: skip
    return [*rows, convolved, spread, pool, attention, entropy, squared]


ROWS: tuple[Row, ...] = (*elementwise_rows(), *reduction_rows(), *product_rows(), *system_rows(), *image_rows())
