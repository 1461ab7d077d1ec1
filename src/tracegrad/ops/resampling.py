"""Resizing of images and sequences, batch first, channels second: interpolation, pooling, shuffled pixels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from tracegrad.dtypes import f32, i32, integer, integers, nearest_f32, whole
from tracegrad.errors import InputError, ShapeError
from tracegrad.ir.nodes import Tensor
from tracegrad.methods import op
from tracegrad.ops.images import avg_pool2d, check_padding, max_pool2d, pooling
from tracegrad.ops.indexing import take
from tracegrad.ops.linalg import matmul
from tracegrad.ops.windows import Ints, check_images, int_pair, window_counts, windows_of
from tracegrad.prims.leaves import as_tensor, listed, literal
from tracegrad.prims.maps import float_type
from tracegrad.prims.views import permute, reshape

__all__ = ["adaptive_avg_pool1d", "adaptive_avg_pool2d", "avg_pool1d", "interpolate", "max_pool1d", "pixel_shuffle",
           "pixel_unshuffle", "unfold"]  # fmt: skip

# Numbers of axes after the channels, by mode
SPATIAL = {"nearest": (1, 2, 3), "linear": (1,), "bilinear": (2,), "trilinear": (3,), "bicubic": (2,)}
SLOPE = -0.75  # of the cubic at its zeros, as in PyTorch; Keys 1981 has -0.5


@op
def interpolate(
    x: Any,
    size: int | Sequence[int] | None = None,
    scale_factor: float | Sequence[float] | None = None,
    mode: str = "nearest",
    align_corners: bool = False,
) -> Tensor:
    """Resize sequences, images or volumes: compute each element of the result from its neighbours in `x`.

    On an axis that changes from m to n elements, element i of the result is read at p = (i + 0.5) m / n - 0.5.

    - "nearest" reads x[floor(i m / n)] instead.
    - "linear", "bilinear" and "trilinear" interpolate between the two neighbours of p, along 1, 2 or 3 axes.
    - "bicubic" weights the four neighbours of p along 2 axes by a cubic (Keys 1981, a = -0.75). Edge elements repeat.

    x:             f32, [B, C, L], [B, C, H, W] or [B, C, D, H, W].
    size:          sizes of the axes after the channels, or one integer for all of them.
    scale_factor:  instead of `size`, a number or one for each axis: n = floor(m * scale_factor). The positions use
                   1 / scale_factor in place of m / n.
    mode:          "nearest" for all ranks; "linear" for [B, C, L]; "bilinear" or "bicubic" for [B, C, H, W];
                   "trilinear" for [B, C, D, H, W].
    align_corners: True keeps the first and the last element in their places: p = i (m - 1) / (n - 1). Not for
                   "nearest".
    Returns:       f32, [B, C, *sizes].
    Gradient:      to the elements that were read, with the same weights.
    Raises:        InputError for another mode, for sizes below 1, and unless one of `size` and `scale_factor` is given;
                   ShapeError for another rank; DTypeError if `x` is not f32.

    As torch.nn.functional.interpolate, without the modes "area" and "nearest-exact", and without antialias=True.

    >>> tg.interpolate([[[1.0, 3.0]]], size=4, mode="linear")
    tensor([[[1. , 1.5, 2.5, 3. ]]])
    """
    x = as_tensor(x)
    float_type(x.type)
    if mode not in SPATIAL:
        raise InputError(f"mode must be one of {', '.join(map(repr, SPATIAL))}, got {mode!r}")
    axes = range(2, x.ndim)
    if len(axes) not in SPATIAL[mode]:
        fitting = " or ".join([f"mode={m!r}" for m, spatial in SPATIAL.items() if len(axes) in spatial])
        remedy = f"write {fitting}" if fitting else "x must be [B,C,L], [B,C,H,W] or [B,C,D,H,W]"
        raise ShapeError(f"mode {mode!r} does not resize {x.type}; {remedy}")
    if align_corners and mode == "nearest":
        raise InputError("align_corners cannot go with mode 'nearest', which has no positions between elements")
    for d, (n, step) in zip(axes, _sizes(x.shape[2:], size, scale_factor)):
        if mode == "nearest":
            x = _nearest(x, d, n, step)
        else:
            x = (_cubic if mode == "bicubic" else _linear)(x, d, _places(x.shape[d], n, step, align_corners))
    return x


def _sizes(old: Sequence[int], size: Any, scale_factor: Any) -> list[tuple[int, float]]:
    """Return for each axis the new size, and the distance in `x` between neighbours of the result."""
    if (size is None) == (scale_factor is None):
        raise InputError("give either size= or scale_factor=")
    if size is not None:
        one = whole(size)
        new = (one,) * len(old) if one is not None else integers(size, "a size")
        if len(new) != len(old) or any(n < 1 for n in new):
            raise InputError(
                f"size must be a positive integer for each of {len(old)} axes, or one for all, got {size!r}"
            )
        return [(n, m / n) for n, m in zip(new, old)]
    factors = [scale_factor] * len(old) if isinstance(scale_factor, (int, float)) else [*scale_factor]
    if len(factors) != len(old) or any(not f > 0 or math.floor(m * f) < 1 for f, m in zip(factors, old)):
        raise InputError(
            f"scale_factor must be a positive number for each of {len(old)} axes, or one for all, large enough to "
            f"leave an element; got {scale_factor!r}"
        )
    return [(math.floor(m * f), 1.0 / f) for f, m in zip(factors, old)]


def _nearest(x: Tensor, axis: int, n: int, step: float) -> Tensor:
    """Resize by nearest neighbour. Positions have single precision, so that they round as PyTorch's do."""
    step, last = nearest_f32(step), x.shape[axis] - 1
    return take(x, literal([min(math.floor(nearest_f32(k * step)), last) for k in listed(n)], i32), axis)


def _places(m: int, n: int, step: float, align_corners: bool) -> list[float]:
    """Return the position of each of `n` new elements in an axis of `m` elements."""
    return [k * (m - 1) / max(n - 1, 1) if align_corners else (k + 0.5) * step - 0.5 for k in listed(n)]


def _linear(x: Tensor, axis: int, places: Sequence[float]) -> Tensor:
    last = x.shape[axis] - 1
    places = [max(p, 0.0) for p in places]
    left = [min(math.floor(p), last) for p in places]
    weight = _along([p - k for p, k in zip(places, left)], x, axis)
    a = take(x, literal(left, i32), axis)
    b = take(x, literal([min(k + 1, last) for k in left], i32), axis)
    return a * (1.0 - weight) + b * weight


def _cubic(x: Tensor, axis: int, places: Sequence[float]) -> Tensor:
    last = x.shape[axis] - 1
    parts: list[Tensor] = []
    for k in (-1, 0, 1, 2):
        near = [min(max(math.floor(p) + k, 0), last) for p in places]
        weights = [_keys(p - math.floor(p) - k) for p in places]
        parts.append(take(x, literal(near, i32), axis) * _along(weights, x, axis))
    return parts[0] + parts[1] + parts[2] + parts[3]


def _keys(d: float) -> float:
    """Return the weight of a neighbour at distance `d`, below 2, in a cubic convolution."""
    d = abs(d)
    if d <= 1:
        return ((SLOPE + 2) * d - (SLOPE + 3)) * d * d + 1
    return SLOPE * (((d - 5) * d + 8) * d - 4)


def _along(values: list[float], x: Tensor, axis: int) -> Tensor:
    """Return constants that broadcast along an axis of `x`."""
    return reshape(literal(values, f32), (len(values), *[1] * (x.ndim - axis - 1)))


def _pooled(x: Tensor, axis: int, n: int) -> Tensor:
    """Average the windows from floor(k m / n) to ceil((k + 1) m / n), by a product with ones and zeros."""
    m = x.shape[axis]
    if n < 1 or m < 1:
        raise ShapeError(f"axis {axis} of {x.type} cannot be pooled to {n} elements")
    windows = [(k * m // n, -(-(k + 1) * m // n)) for k in listed(m * n)[:n]]
    inside = literal([[float(a <= j < b) for a, b in windows] for j in range(m)], f32)
    sums = matmul(x.swapaxes(axis, -1), inside) / literal([float(b - a) for a, b in windows], f32)
    return sums.swapaxes(axis, -1)


@op
def adaptive_avg_pool1d(x: Any, output_size: int) -> Tensor:
    """Average `output_size` windows of nearly equal size. Together they cover each sequence, and they may overlap.

    out[b, c, k] = mean(x[b, c, floor(k L / n) : ceil((k + 1) L / n)]), n = output_size

    x:           f32 [B, C, L].
    output_size: n, an integer of at least 1. If n does not divide L, windows overlap.
    Returns:     f32 [B, C, n].
    Gradient:    the result's gradient, in equal shares to the elements of its window.
    Raises:      ShapeError if `x` has another rank or `output_size` is below 1; DTypeError if `x` is not f32.

    As torch.nn.functional.adaptive_avg_pool1d.

    >>> tg.adaptive_avg_pool1d([[[1.0, 2.0, 3.0, 4.0]]], 2)
    tensor([[[1.5, 3.5]]])
    """
    return _pooled(_sequence(x), 2, integer(output_size, "output_size"))


@op
def adaptive_avg_pool2d(x: Any, output_size: Ints) -> Tensor:
    """Average `output_size` windows of nearly equal size. Together they cover each channel, and they may overlap.

    Along the height, window k of n is x[..., floor(k H / n) : ceil((k + 1) H / n), :]; along the width likewise.

    x:           f32 [B, C, H, W].
    output_size: height and width of the result, one integer for both or a pair; 1 averages each channel.
    Returns:     f32 [B, C, *output_size].
    Gradient:    the result's gradient, in equal shares to the elements of its window.
    Raises:      ShapeError if `x` has another rank or a size is below 1; DTypeError if `x` is not f32.

    As torch.nn.functional.adaptive_avg_pool2d.

    >>> tg.adaptive_avg_pool2d([[[[1.0, 2.0], [3.0, 4.0]]]], (1, 2))
    tensor([[[[2., 3.]]]])
    """
    x, (h, w) = as_tensor(x), int_pair("output_size", output_size, 1)
    check_images(x.type)
    return _pooled(_pooled(x, 2, h), 3, w)


def _sequence(x: Any) -> Tensor:
    x = as_tensor(x)
    check_images(x.type, 1)
    return x


def _one_high(x: Any, pool: Any, kernel_size: int, stride: int | None, padding: int) -> Tensor:
    """Apply a pool of images to sequences, as images one element high. Errors are of the sequence."""
    x, how = _sequence(x), pooling(kernel_size, stride, padding, 1)
    check_padding(how["kernel"], how["padding"])
    window_counts(x.shape[2:], **how, dilation=(1,))
    (k,), (s,), (p,) = how.values()
    y = pool(reshape(x, (*x.shape[:2], 1, x.shape[2])), (1, k), (1, s), (0, p))
    return reshape(y, (*y.shape[:2], y.shape[3]))


@op
def avg_pool1d(x: Any, kernel_size: int, stride: int | None = None, padding: int = 0) -> Tensor:
    """Return the mean of each window of a sequence.

    out[b, c, i] = mean over j < k of x[b, c, i s + j - p], with zeros outside of x

    x:           f32 [B, C, L].
    kernel_size: k, the size of a window.
    stride:      s, the distance between windows; None means `kernel_size`.
    padding:     p, zeros before and after each sequence, at most k / 2. The divisor of the mean is always k.
    Returns:     f32 [B, C, floor((L + 2*p - k) / s) + 1].
    Gradient:    each element of a window gets 1 / k of the gradient of the window's mean.
    Raises:      ShapeError if `x` has another rank, a window does not fit, kernel_size or stride is below 1, or the
                 padding is too large; DTypeError if `x` is not f32.

    As torch.nn.functional.avg_pool1d.

    >>> tg.avg_pool1d([[[1.0, 2.0, 3.0, 4.0]]], 2)
    tensor([[[1.5, 3.5]]])
    """
    return _one_high(x, avg_pool2d, kernel_size, stride, padding)


@op
def max_pool1d(x: Any, kernel_size: int, stride: int | None = None, padding: int = 0) -> Tensor:
    """Return the largest element of each window of a sequence.

    out[b, c, i] = max over j < k of x[b, c, i s + j - p]

    x:           f32 [B, C, L].
    kernel_size: k, the size of a window.
    stride:      s, the distance between windows; None means `kernel_size`.
    padding:     p, elements before and after each sequence, at most k / 2. They count as -infinity.
    Returns:     f32 [B, C, floor((L + 2*p - k) / s) + 1].
    Gradient:    to the first of the largest elements of each window; to no element of a window with NaN.
    Raises:      ShapeError if `x` has another rank, a window does not fit, kernel_size or stride is below 1, or the
                 padding is too large; DTypeError if `x` is not f32.

    As torch.nn.functional.max_pool1d.

    >>> tg.max_pool1d([[[1.0, 2.0, 3.0, 4.0]]], 2)
    tensor([[[2., 4.]]])
    """
    return _one_high(x, max_pool2d, kernel_size, stride, padding)


@op
def pixel_shuffle(x: Any, factor: int) -> Tensor:
    """Move channels into pixels: every r * r channels become one channel with r times the height and width.

    out[b, c, h r + i, w r + j] = x[b, (c r + i) r + j, h, w], r = factor

    x:        any dtype, [..., C r^2, H, W].
    factor:   r, a positive integer.
    Returns:  dtype of `x`, [..., C, H r, W r].
    Gradient: `pixel_unshuffle` of the result's gradient.
    Raises:   ShapeError if r^2 does not divide the number of channels, `x` has fewer than 3 axes, or r < 1.

    As torch.nn.functional.pixel_shuffle (Shi et al. 2016).

    >>> tg.pixel_shuffle([[[1.0]], [[2.0]], [[3.0]], [[4.0]]], 2)    # [4, 1, 1] to [1, 2, 2]
    tensor([[[1., 2.],
             [3., 4.]]])
    """
    x, r = _squared(x, factor)
    *batch, c, h, w = x.shape
    if c % (r * r):
        raise ShapeError(f"{c} channels cannot be divided by {r} * {r}: x is {x.type}")
    n = len(batch)
    parts = reshape(x, (*batch, c // (r * r), r, r, h, w))
    moved = permute(parts, (*range(n), n, n + 3, n + 1, n + 4, n + 2))
    return reshape(moved, (*batch, c // (r * r), h * r, w * r))


@op
def pixel_unshuffle(x: Any, factor: int) -> Tensor:
    """Move pixels into channels: the inverse of `pixel_shuffle`.

    out[b, (c r + i) r + j, h, w] = x[b, c, h r + i, w r + j], r = factor

    x:        any dtype, [..., C, H r, W r].
    factor:   r, a positive integer.
    Returns:  dtype of `x`, [..., C r^2, H, W].
    Gradient: `pixel_shuffle` of the result's gradient.
    Raises:   ShapeError if r does not divide height and width, `x` has fewer than 3 axes, or r < 1.

    As torch.nn.functional.pixel_unshuffle.

    >>> tg.pixel_unshuffle([[[1.0, 2.0], [3.0, 4.0]]], 2)[:, 0, 0]    # [1, 2, 2] to [4, 1, 1]
    tensor([1., 2., 3., 4.])
    """
    x, r = _squared(x, factor)
    *batch, c, h, w = x.shape
    if h % r or w % r:
        raise ShapeError(f"an image of {h}x{w} does not divide into blocks of {r}x{r}: x is {x.type}")
    n = len(batch)
    parts = reshape(x, (*batch, c, h // r, r, w // r, r))
    moved = permute(parts, (*range(n), n, n + 2, n + 4, n + 1, n + 3))
    return reshape(moved, (*batch, c * r * r, h // r, w // r))


def _squared(x: Any, factor: int) -> tuple[Tensor, int]:
    x, r = as_tensor(x), integer(factor, "factor")
    if r < 1:
        raise ShapeError(f"factor must be a positive integer, got {r}")
    if x.ndim < 3:
        raise ShapeError(f"x must be images [...,C,H,W], got {x.type}")
    return x, r


@op
def unfold(x: Any, kernel_size: Ints, dilation: Ints = 1, padding: Ints = 0, stride: Ints = 1) -> Tensor:
    """Return the windows of an image as columns; windows read zeros outside the image.

    x:        f32 [B, C, H, W].
    kernel_size, dilation, padding, stride: (kh, kw), d, p and s; each an integer, or one for height and one for width.
    Returns:  f32 [B, C*kh*kw, oh*ow]: a column for each window, with its kh x kw elements of each channel. There are
              oh = floor((H + 2*p - d * (kh - 1) - 1) / s) + 1 rows of windows, and likewise ow columns.
    Gradient: to each element of `x`, summed over the windows that contain it.
    Raises:   ShapeError if no window fits or `x` has another rank; DTypeError if `x` is not f32.

    As torch.nn.functional.unfold. `im2col` returns the windows as rows.

    >>> tg.unfold([[[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]]], 2)
    tensor([[[0., 1.],
             [1., 2.],
             [3., 4.],
             [4., 5.]]])
    """
    windows = windows_of(x, int_pair("kernel_size", kernel_size, 1), stride, padding, dilation)
    b, c, oh, ow, kh, kw = windows.shape
    return reshape(permute(windows, (0, 1, 4, 5, 2, 3)), (b, c * kh * kw, oh * ow))
