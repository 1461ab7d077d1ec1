"""What the ops of `accuracy_rows.py` compute, in float64 NumPy, and the scales of errors where terms cancel.

It is written independently of the library's own rules.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

Array = Any

erf: Any = np.vectorize(math.erf, otypes=[np.float64])
erfc: Any = np.vectorize(math.erfc, otypes=[np.float64])
lgamma: Any = np.vectorize(lambda x: math.inf if x <= 0 and x == np.round(x) else math.lgamma(x), otypes=[np.float64])


def stable_sigmoid(x: Array) -> Array:
    """Without cancellation on either side."""
    e = np.exp(-np.abs(x))
    return np.where(x < 0, e, 1.0) / (1 + e)


def gelu_exact(x: Array) -> Array:
    """x Φ(x) by erfc, which does not cancel; NaN at -inf, as the formula and PyTorch."""
    return x * erfc(-x * math.sqrt(0.5)) / 2


def gelu_tanh(x: Array) -> Array:
    """x / (1 + exp(-2v)), v = sqrt(2/π) (x + 0.044715 x³); 0 at -inf, its limit."""
    x = np.maximum(x, -1e30)
    return x * stable_sigmoid(2 * math.sqrt(2 / math.pi) * (x + 0.044715 * x**3))


def stable_softplus(x: Array) -> Array:
    """log(1 + exp(x))."""
    return np.maximum(x, 0) + np.log1p(np.exp(-np.abs(x)))


def lse(x: Array) -> Array:
    """Of rows, axis kept."""
    top = x.max(-1, keepdims=True)
    return np.log(np.exp(x - top).sum(-1, keepdims=True)) + top


def softmax(x: Array) -> Array:
    """Of rows."""
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def softmax_scale(x: Array) -> Array:
    """The rounding of x - max counts by its size."""
    return softmax(x) * (1 + x.max(-1, keepdims=True) - x)


def normed(x: Array) -> Array:
    """Layer norm of rows, without gain."""
    centred = x - x.mean(-1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(-1, keepdims=True) + 1e-5)


def normed_scale(x: Array) -> Array:
    """x and the mean, each rounded, over the deviation."""
    return (np.abs(x) + np.abs(x).mean(-1, keepdims=True)) / (x.std(-1, keepdims=True) + 1e-5)


def windows(x: Array, kh: int, kw: int) -> Array:
    """[N, C, H, W] -> [N, C, oh, ow, kh, kw]."""
    return np.lib.stride_tricks.sliding_window_view(x, (kh, kw), axis=(2, 3))


def conv(x: Array, w: Array) -> Array:
    """conv2d with padding 1."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    return np.einsum("nchwij,ocij->nohw", windows(padded, *w.shape[2:]), w)


def conv_transpose(x: Array, w: Array) -> Array:
    """conv_transpose2d of stride 1 without padding: x spread by w [in, out, kh, kw]."""
    kh, kw = w.shape[2:]
    padded = np.pad(x, ((0, 0), (0, 0), (kh - 1, kh - 1), (kw - 1, kw - 1)))
    return np.einsum("nchwij,coij->nohw", windows(padded, kh, kw), w[:, :, ::-1, ::-1])


def attend(q: Array, k: Array, v: Array) -> Array:
    """softmax(q kᵀ / √d) v."""
    return softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) @ v


def attend_scale(q: Array, k: Array, v: Array) -> Array:
    """The scores' rounding counts by the sizes of their terms."""
    size = np.abs(q) @ np.abs(k).swapaxes(-1, -2) / math.sqrt(q.shape[-1])
    return (softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) * (1 + size)) @ np.abs(v)


def of_sizes(f: Callable[..., Array]) -> Callable[..., Array]:
    """The scale of a sum of products: the same function of the operands' sizes."""
    return lambda *xs: f(*map(np.abs, xs))


def from_integer(x: Array) -> Array:
    """The distance to the nearest integer, times π, below 0; elsewhere π / 2, whose cotangent is 0."""
    return np.where(x < 0, math.pi * (x - np.round(x)), math.pi / 2)


def lgamma_scale(x: Array) -> Array:
    """Below 0, the sizes of log π - log |sin πx| - lgamma(1 - x)."""
    terms = math.log(math.pi) + np.abs(np.log(np.abs(np.sin(from_integer(x))))) + np.abs(lgamma(np.abs(x) + 1))
    return np.where(x < 0, terms, lgamma(np.abs(x)))


def digamma_above(x: Array) -> Array:
    """For x >= 0: the asymptotic series at x + 10, and the recurrence back."""
    z = x + 10
    coefficients = (-1 / 12, 1 / 120, -1 / 252, 1 / 240, -1 / 132, 691 / 32760)
    series = np.log(z) - 0.5 / z + sum(c / z ** (2 * k) for k, c in enumerate(coefficients, 1))
    return series - sum((1 / (x + k) for k in range(1, 10)), 1 / x)


def digamma(x: Array) -> Array:
    """The derivative of lgamma; below 0 by reflection."""
    angle = from_integer(x)
    reflected = np.where(angle == 0, np.nan, math.pi / np.tan(angle))
    return digamma_above(np.where(x < 0, 1 - x, x)) - np.where(x < 0, reflected, 0)


def digamma_scale(x: Array) -> Array:
    """Below 0, the sizes of both terms; at least 1, because the zeros are not f32 numbers."""
    above = np.abs(digamma_above(np.where(x < 0, 1 - x, x)))
    return np.maximum(above + np.where(x < 0, np.abs(math.pi / np.tan(from_integer(x))), 0), 1)


def factors(a: Array) -> Array:
    """The lower Cholesky factor."""
    return np.linalg.cholesky(a)


def factors_scale(a: Array) -> Array:
    """Return |L| tril(|L⁻¹| |L| |Lᵀ| |L⁻ᵀ|): the error of L if A's is |L| |Lᵀ| (Higham 2002, section 10.3)."""
    low = factors(a)
    inverse = np.abs(np.linalg.inv(low))
    inner = inverse @ np.abs(low)
    return np.abs(low) @ np.tril(inner @ inner.swapaxes(-1, -2))


def lower_solved(a: Array, b: Array) -> Array:
    """X with tril(A) X = B."""
    return np.linalg.solve(np.tril(a), b)


def solved_scale(a: Array, b: Array) -> Array:
    """Return |A⁻¹| |A| |X|: the error of X if A's is |A| (Higham 2002, section 7.2)."""
    return np.abs(np.linalg.inv(a)) @ np.abs(a) @ np.abs(np.linalg.solve(a, b))


def lower_solved_scale(a: Array, b: Array) -> Array:
    """Return `solved_scale` of the lower triangle."""
    return solved_scale(np.tril(a), b)


def corners(x: Array, grid: Array) -> list[tuple[Array, Array]]:
    """The four pixels around each position, 0 outside of the image, and their weights, [N, C, H', W']."""
    n, _, h, w = x.shape
    column, row = (((grid[..., k] + 1) * size - 1) / 2 for k, size in ((0, w), (1, h)))
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    found: list[tuple[Array, Array]] = []
    for i in (np.floor(row), np.floor(row) + 1):
        for j in (np.floor(column), np.floor(column) + 1):
            at = np.clip(i + 1, 0, h + 1).astype(int), np.clip(j + 1, 0, w + 1).astype(int)
            pixels = np.stack([padded[k][:, at[0][k], at[1][k]] for k in range(n)])
            found.append((pixels, ((1 - abs(row - i)) * (1 - abs(column - j)))[:, None]))
    return found


def interpolated(x: Array, grid: Array) -> Array:
    """grid_sample, bilinear, with zeros outside."""
    return sum(pixels * weight for pixels, weight in corners(x, grid))


def interpolated_scale(x: Array, grid: Array) -> Array:
    """A rounded position moves weights by up to the width of the image, in ulp."""
    return x.shape[-1] * sum(np.abs(pixels) for pixels, _ in corners(x, grid))


def pixel_centres(theta: Array) -> Array:
    """affine_grid of images of 13 × 17 pixels."""
    i, j = np.mgrid[:13, :17]
    base = np.stack([(2 * j + 1) / 17 - 1, (2 * i + 1) / 13 - 1, np.ones((13, 17))], -1)
    return np.einsum("nak,ijk->nija", theta, base)
