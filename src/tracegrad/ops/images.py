"""Images, batch first, channels second (NCHW): pooling and upsampling, as folds and views of windows."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from tracegrad.dtypes import TensorType
from tracegrad.errors import ShapeError
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.methods import op
from tracegrad.ops.windows import (
    OVERLAP_ADD,
    WINDOWS,
    Ints,
    Pair,
    Sizes,
    check_images,
    int_each,
    int_pair,
    window_counts,
    windows_type,
)
from tracegrad.prims.elementwise import where
from tracegrad.prims.leaves import as_tensor, const, iota
from tracegrad.prims.maps import composite
from tracegrad.prims.rules import merged
from tracegrad.prims.views import broadcast_to, reshape
from tracegrad.tuning import MOST_COMPARED

__all__ = ["avg_pool2d", "avg_pool3d", "max_pool2d", "max_pool3d", "nearest_upsample2d"]


# Pooling
def _pool_type(x: TensorType, *, kernel: Pair, stride: Pair, padding: Pair) -> TensorType:
    if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
        raise ShapeError(f"padding {padding} is more than half the window {kernel}: some would hold padding only")
    t = windows_type(x, kernel=kernel, stride=stride, padding=padding, dilation=(1, 1))
    return TensorType(t.dtype, t.shape[:4])


def _pool_windows(x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    return bind(WINDOWS, x, kernel=kernel, stride=stride, padding=padding, dilation=(1, 1))


def _inside(x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    """Return True where a window element belongs to the image: windows of an image of ones are 0 in the padding."""
    ones = broadcast_to(const(1.0), (1, 1, *x.shape[2:]))
    return _pool_windows(ones, kernel, stride, padding) > 0.5


def _in_two(kernel: Pair, stride: Pair, padding: Pair) -> tuple[dict[str, Pair], dict[str, Pair]] | None:
    """Return how to pool the rows of windows, and then their columns; None if windows are too small to gain.

    This keeps the first maximum in scan order: it is the first one of the first row that has it.
    """
    (high, wide), down = kernel, stride[0]
    if wide * down + high >= MOST_COMPARED * high * wide:
        return None
    rows = {"kernel": (1, wide), "stride": (1, stride[1]), "padding": (0, padding[1])}
    return rows, {"kernel": (high, 1), "stride": (down, 1), "padding": (padding[0], 0)}


def _max_pool(x: Tensor, *, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    two = _in_two(kernel, stride, padding)
    if two is not None:
        return bind(MAX_POOL2D, bind(MAX_POOL2D, x, **two[0]), **two[1])
    windows = _pool_windows(x, kernel, stride, padding)
    if padding != (0, 0):
        windows = where(_inside(x, kernel, stride, padding), windows, float("-inf"))
    return windows.max((-2, -1))


def _first(y: Tensor, x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    """Return True at the first maximum of each window in scan order. Only this element gets a gradient."""
    windows = _pool_windows(x, kernel, stride, padding)
    hit = windows == reshape(y, (*y.shape, 1, 1))
    if padding != (0, 0):
        hit = hit & _inside(x, kernel, stride, padding)
    scan = iota(windows.shape, 4) * kernel[1] + iota(windows.shape, 5)
    first = where(hit, scan, kernel[0] * kernel[1]).min((-2, -1), keepdims=True)
    return scan == first


def _max_pool_vjp(ct: Tensor, y: Tensor, x: Tensor, *, kernel: Pair, stride: Pair, padding: Pair) -> tuple[Tensor]:
    two = _in_two(kernel, stride, padding)
    if two is not None:
        rows = bind(MAX_POOL2D, x, **two[0])
        return _max_pool_vjp(_max_pool_vjp(ct, y, rows, **two[1])[0], rows, x, **two[0])
    routed = where(_first(y, x, kernel, stride, padding), reshape(ct, (*ct.shape, 1, 1)), 0.0)
    return (bind(OVERLAP_ADD, routed, size=x.shape[2:], stride=stride, padding=padding, dilation=(1, 1)),)


MAX_POOL2D = composite("max_pool2d", type=_pool_type, expand=_max_pool, vjp=_max_pool_vjp, batch=merged)


def _average(x: Tensor, **how: Any) -> Tensor:
    _pool_type(x.type, **how)  # raises errors
    return _pool_windows(x, **how).mean((-2, -1))


# Public functions
@op
def max_pool2d(x: Any, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0) -> Tensor:
    """Return the largest element of each window of the images.

    out[b, c, i, j] = max over k, l of x[b, c, i*s + k - p, j*s + l - p], 0 <= k < kh, 0 <= l < kw

    x:           f32 [B, C, H, W].
    kernel_size: kh and kw, the size of a window; an integer or a pair.
    stride:      s, an integer or a pair; None is `kernel_size`.
    padding:     p, an integer or a pair, at most half of `kernel_size`. Padding counts as -infinity.
    Returns:     f32 [B, C, oh, ow], oh = floor((H + 2*p - kh) / s) + 1, and ow likewise. A window with NaN gives NaN.
    Gradient:    to the first maximum of each window, row by row; to no element of a window with NaN.
    Raises:      ShapeError if the window does not fit; DTypeError if `x` is not f32.

    As torch.nn.functional.max_pool2d.

    >>> tg.max_pool2d([[[[1.0, 2.0, 5.0, 6.0], [3.0, 4.0, 7.0, 8.0]]]], 2)
    tensor([[[[4., 8.]]]])
    """
    return bind(MAX_POOL2D, as_tensor(x), **_pooling(kernel_size, stride, padding))


@op
def avg_pool2d(x: Any, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0) -> Tensor:
    """Return the mean of each window of the images.

    out[b, c, i, j] = mean over k, l of x[b, c, i*s + k - p, j*s + l - p], 0 <= k < kh, 0 <= l < kw

    x:           f32 [B, C, H, W].
    kernel_size: kh and kw, the size of a window; an integer or a pair.
    stride:      s, an integer or a pair; None is `kernel_size`.
    padding:     p, an integer or a pair, at most half of `kernel_size`. The padding is zeros.
    Returns:     f32 [B, C, oh, ow], oh = floor((H + 2*p - kh) / s) + 1, and ow likewise.
    Gradient:    each element of a window gets 1 / (kh * kw) of the gradient of the window's mean.
    Raises:      ShapeError if the window does not fit; DTypeError if `x` is not f32.

    The divisor of the mean is always kh * kw, at the border too, as in torch.nn.functional.avg_pool2d with
    count_include_pad=True, the default.

    >>> tg.avg_pool2d([[[[1.0, 2.0, 5.0, 6.0], [3.0, 4.0, 7.0, 8.0]]]], 2)
    tensor([[[[2.5, 6.5]]]])
    """
    return _average(as_tensor(x), **_pooling(kernel_size, stride, padding))


@op
def max_pool3d(x: Any, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0) -> Tensor:
    """Return the largest element of each window of the volumes.

    out[b, c, h, i, j] = max over m, k, l of x[b, c, h*s + m - p, i*s + k - p, j*s + l - p], (m, k, l) in a window

    x:           f32 [B, C, D, H, W]: depth D, height H and width W.
    kernel_size: kd, kh and kw, the size of a window; an integer, or three, for depth, height and width.
    stride:      s, an integer or three; None is `kernel_size`.
    padding:     p, an integer or three, at most half of `kernel_size`. Padding counts as -infinity.
    Returns:     f32 [B, C, od, oh, ow], od = floor((D + 2*p - kd) / s) + 1, and oh and ow likewise.
    Gradient:    to the first maximum of each window, in row-major order; to no element of a window with NaN.
    Raises:      ShapeError if the window does not fit; DTypeError if `x` is not f32.

    As torch.nn.functional.max_pool3d.

    >>> tg.max_pool3d(np.arange(8, dtype=np.float32).reshape(1, 1, 2, 2, 2), 2)
    tensor([[[[[7.]]]]])
    """
    return _pooled_volumes(partial(bind, MAX_POOL2D), as_tensor(x), _pooling(kernel_size, stride, padding, 3))


@op
def avg_pool3d(x: Any, kernel_size: Ints, stride: Ints | None = None, padding: Ints = 0) -> Tensor:
    """Return the mean of each window of the volumes.

    out[b, c, h, i, j] = mean over m, k, l of x[b, c, h*s + m - p, i*s + k - p, j*s + l - p], (m, k, l) in a window

    x:           f32 [B, C, D, H, W]: depth D, height H and width W.
    kernel_size: kd, kh and kw, the size of a window; an integer, or three, for depth, height and width.
    stride:      s, an integer or three; None is `kernel_size`.
    padding:     p, an integer or three, at most half of `kernel_size`. The padding is zeros.
    Returns:     f32 [B, C, od, oh, ow], od = floor((D + 2*p - kd) / s) + 1, and oh and ow likewise.
    Gradient:    each element of a window gets 1 / (kd * kh * kw) of the gradient of the window's mean.
    Raises:      ShapeError if the window does not fit; DTypeError if `x` is not f32.

    The divisor of the mean is always kd * kh * kw, at the border too, as in torch.nn.functional.avg_pool3d with
    count_include_pad=True, the default.

    >>> tg.avg_pool3d(np.arange(8, dtype=np.float32).reshape(1, 1, 2, 2, 2), 2)
    tensor([[[[[3.5]]]]])
    """
    return _pooled_volumes(_average, as_tensor(x), _pooling(kernel_size, stride, padding, 3))


def _pooled_volumes(pool: Callable[..., Tensor], x: Tensor, how: dict[str, Sizes]) -> Tensor:
    """Pool each image, then along the depth. This keeps the first maximum in scan order."""
    b, c, d, h, w = check_images(x.type, 3).shape
    window_counts((d, h, w), how["kernel"], how["stride"], how["padding"], (1, 1, 1))  # an error is of the volume
    flat = pool(reshape(x, (b, c * d, h, w)), **{name: sizes[1:] for name, sizes in how.items()})
    deep = {name: (sizes[0], 0 if name == "padding" else 1) for name, sizes in how.items()}
    y = pool(reshape(flat, (b, c, d, flat.shape[2] * flat.shape[3])), **deep)
    return reshape(y, (b, c, y.shape[2], *flat.shape[2:]))


def _pooling(kernel: Ints, stride: Ints | None, padding: Ints, axes: int = 2) -> dict[str, Sizes]:
    size = int_each("kernel_size", kernel, 1, axes)
    step = size if stride is None else int_each("stride", stride, 1, axes)
    return {"kernel": size, "stride": step, "padding": int_each("padding", padding, 0, axes)}


@op
def nearest_upsample2d(x: Any, scale: Ints = 2) -> Tensor:
    """Repeat each pixel `scale` times along the height and the width.

    out[b, c, i, j] = x[b, c, i // scale, j // scale]

    x:        any dtype, [B, C, H, W].
    scale:    an integer, or a pair for the height and the width.
    Returns:  dtype of `x`, [B, C, H * scale, W * scale].
    Gradient: the result's gradient, summed over the copies of each pixel.
    Raises:   ShapeError if `x` does not have rank 4, or unless `scale` has integers of at least 1.

    As torch.nn.functional.interpolate(x, scale_factor=scale, mode="nearest").

    >>> tg.nearest_upsample2d([[[[1.0, 2.0]]]], 2)
    tensor([[[[1., 1., 2., 2.],
              [1., 1., 2., 2.]]]])
    """
    x, (sh, sw) = as_tensor(x), int_pair("scale", scale, 1)
    if x.ndim != 4:
        raise ShapeError(f"x must be images [B,C,H,W], got {x.type}")
    b, c, h, w = x.shape
    y = broadcast_to(reshape(x, (b, c, h, 1, w, 1)), (b, c, h, sh, w, sw))
    return reshape(y, (b, c, h * sh, w * sw))
