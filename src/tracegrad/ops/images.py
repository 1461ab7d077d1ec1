"""Images, batch first, channels second (NCHW).

Pooling and upsampling are folds and views of windows. `grid_sample` reads images at any position, such as those that an
affine map gives.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tracegrad.dtypes import TensorType, f32, i32
from tracegrad.errors import InputError, ShapeError
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.methods import op
from tracegrad.ops.constants import linspace, meshgrid, ones
from tracegrad.ops.indexing import take_along_axis
from tracegrad.ops.joining import stack
from tracegrad.ops.linalg import matmul
from tracegrad.ops.math import clip
from tracegrad.ops.shaping import sizes_of, swapaxes
from tracegrad.ops.windows import (
    OVERLAP_ADD,
    WINDOWS,
    Ints,
    Pair,
    Sizes,
    by,
    check_images,
    int_each,
    int_pair,
    window_counts,
    windows_type,
)
from tracegrad.prims.elementwise import cast, floor, round, stop_gradient, where
from tracegrad.prims.leaves import as_tensor, const, iota
from tracegrad.prims.maps import composite, float_type
from tracegrad.prims.rules import merged
from tracegrad.prims.views import broadcast_to, reshape
from tracegrad.tuning import MOST_COMPARED

__all__ = [
    "affine_grid", "avg_pool2d", "avg_pool3d", "grid_sample", "max_pool2d", "max_pool3d", "nearest_upsample2d",
]  # fmt: skip


# Pooling
def _pool_type(x: TensorType, *, kernel: Pair, stride: Pair, padding: Pair) -> TensorType:
    check_padding(kernel, padding)
    t = windows_type(x, kernel=kernel, stride=stride, padding=padding, dilation=(1, 1))
    return TensorType(t.dtype, t.shape[:4])


def check_padding(kernel: Sizes, padding: Sizes) -> None:
    """Raise ShapeError if padding is more than half of the window along an axis."""
    if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
        raise ShapeError(f"padding {by(padding)} is more than half of {by(kernel)}: a window would hold padding only")


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
    Raises:      ShapeError if `x` has another rank, a window does not fit, kernel_size or stride is below 1, or the
                 padding is too large; DTypeError if `x` is not f32.

    As torch.nn.functional.max_pool2d.

    >>> tg.max_pool2d([[[[1.0, 2.0, 5.0, 6.0], [3.0, 4.0, 7.0, 8.0]]]], 2)
    tensor([[[[4., 8.]]]])
    """
    return bind(MAX_POOL2D, as_tensor(x), **pooling(kernel_size, stride, padding))


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
    Raises:      ShapeError if `x` has another rank, a window does not fit, kernel_size or stride is below 1, or the
                 padding is too large; DTypeError if `x` is not f32.

    The divisor of the mean is always kh * kw, at the border too, as in torch.nn.functional.avg_pool2d with
    count_include_pad=True, the default.

    >>> tg.avg_pool2d([[[[1.0, 2.0, 5.0, 6.0], [3.0, 4.0, 7.0, 8.0]]]], 2)
    tensor([[[[2.5, 6.5]]]])
    """
    return _average(as_tensor(x), **pooling(kernel_size, stride, padding))


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
    Raises:      ShapeError if `x` has another rank, a window does not fit, kernel_size or stride is below 1, or the
                 padding is too large; DTypeError if `x` is not f32.

    As torch.nn.functional.max_pool3d.

    >>> tg.max_pool3d(np.arange(8, dtype=np.float32).reshape(1, 1, 2, 2, 2), 2)
    tensor([[[[[7.]]]]])
    """
    return _pooled_volumes(partial(bind, MAX_POOL2D), as_tensor(x), pooling(kernel_size, stride, padding, 3))


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
    Raises:      ShapeError if `x` has another rank, a window does not fit, kernel_size or stride is below 1, or the
                 padding is too large; DTypeError if `x` is not f32.

    The divisor of the mean is always kd * kh * kw, at the border too, as in torch.nn.functional.avg_pool3d with
    count_include_pad=True, the default.

    >>> tg.avg_pool3d(np.arange(8, dtype=np.float32).reshape(1, 1, 2, 2, 2), 2)
    tensor([[[[[3.5]]]]])
    """
    return _pooled_volumes(_average, as_tensor(x), pooling(kernel_size, stride, padding, 3))


def _pooled_volumes(pool: Callable[..., Tensor], x: Tensor, how: dict[str, Sizes]) -> Tensor:
    """Pool each image, then along the depth. Of equal maxima, the first in scan order is kept."""
    b, c, d, h, w = check_images(x.type, 3).shape
    check_padding(how["kernel"], how["padding"])  # errors are of the volume
    window_counts((d, h, w), **how, dilation=(1, 1, 1))
    flat = pool(reshape(x, (b, c * d, h, w)), **{name: sizes[1:] for name, sizes in how.items()})
    deep = {name: (sizes[0], 0 if name == "padding" else 1) for name, sizes in how.items()}
    y = pool(reshape(flat, (b, c, d, flat.shape[2] * flat.shape[3])), **deep)
    return reshape(y, (b, c, y.shape[2], *flat.shape[2:]))


def pooling(kernel: Ints, stride: Ints | None, padding: Ints, axes: int = 2) -> dict[str, Sizes]:
    """Return the kernel, stride and padding of a pool, one integer for each axis. Raises ShapeError for others."""
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


@op
def affine_grid(theta: Any, size: Sequence[int], align_corners: bool = False) -> Tensor:
    """Return the grid with which `grid_sample` applies an affine map to images.

    out[b, i, j] = theta[b] @ (x[j], y[i], 1), where (x[j], y[i]) is the centre of pixel [i, j], from -1 to 1

    theta:         f32 [B, 2, 3]: for each image, a matrix from a position in the result to the position to read. The
                   matrix [[1, 0, 0], [0, 1, 0]] changes nothing.
    size:          the shape [B, C, H, W] of the result of `grid_sample`.
    align_corners: what -1 and 1 are: True for the centres of the outermost pixels, False for the borders of the image.
                   Give `grid_sample` the same.
    Returns:       f32 [B, H, W, 2], with x (along the width) before y.
    Gradient:      to `theta`.
    Raises:        ShapeError if shapes do not fit; DTypeError if `theta` is not f32.

    As torch.nn.functional.affine_grid of images (Jaderberg et al. 2015).

    >>> tg.affine_grid([[[1.0, 0.0, 0.5], [0.0, 1.0, 0.0]]], (1, 1, 1, 2))    # x + 0.5
    tensor([[[[0., 0.],
              [1., 0.]]]])
    """
    theta, sizes = as_tensor(theta), sizes_of(size)
    float_type(theta.type)
    if len(sizes) != 4 or theta.shape != (sizes[0], 2, 3):
        raise ShapeError(f"theta must be f32[B,2,3] and size [B,C,H,W], got {theta.type} and {list(sizes)}")
    b, _, *image = sizes
    ends = [1.0 - (0.0 if align_corners else 1.0 / n) if n > 1 else 0.0 for n in image]
    y, x = meshgrid(*[linspace(-end, end, n) for end, n in zip(ends, image)], indexing="ij")
    base = reshape(stack([x, y, ones(x.shape)], 2), (1, x.size, 3))
    return reshape(matmul(base, swapaxes(theta, 1, 2)), (b, *image, 2))


@op
def grid_sample(
    x: Any, grid: Any, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = False
) -> Tensor:
    """Read images at the positions of a grid, and interpolate between pixels.

    out[b, :, i, j] = x[b] at column grid[b, i, j, 0] and row grid[b, i, j, 1]; -1 is left or top, 1 right or bottom

    x:             f32 [B, C, H, W].
    grid:          f32 [B, H', W', 2].
    mode:          "bilinear" interpolates between the four nearest pixels; "nearest" takes the nearest one, and the
                   even row or column at a tie.
    padding_mode:  "zeros": pixels outside of the image are 0. At the edges, "bilinear" blends with these zeros.
                   "border": each coordinate is clamped to the range between the outermost pixels' centres.
    align_corners: what -1 and 1 are: True for the centres of the outermost pixels, False for the borders of the image.
    Returns:       f32 [B, C, H', W'].
    Gradient:      to `x`; for "bilinear" also to `grid`. With "border" it is 0 to a coordinate on or outside of the
                   outermost centres.
    Raises:        ShapeError if shapes do not fit; InputError for another mode; DTypeError if one is not f32.

    As torch.nn.functional.grid_sample of images, without padding_mode="reflection" and mode="bicubic".

    >>> x = np.array([[[[0.0, 1.0], [2.0, 3.0]]]], np.float32)
    >>> tg.grid_sample(x, [[[[0.0, 0.0], [-0.5, -0.5]]]])    # the middle, then the centre of the first pixel
    tensor([[[[1.5, 0. ]]]])
    """
    x, grid = as_tensor(x), as_tensor(grid)
    float_type(x.type)
    float_type(grid.type)
    if mode not in ("bilinear", "nearest") or padding_mode not in ("zeros", "border"):
        raise InputError(
            f"mode must be 'bilinear' or 'nearest' and padding_mode 'zeros' or 'border', got {mode!r}, {padding_mode!r}"
        )
    if x.ndim != 4 or grid.ndim != 4 or grid.shape[::3] != (x.shape[0], 2) or not x.size:
        raise ShapeError(f"x must be [B,C,H,W] and grid [B,H',W',2], got {x.type} and {grid.type}")
    parts: list[list[tuple[Tensor, Tensor]]] = []
    for k, n in ((1, x.shape[2]), (0, x.shape[3])):
        at = grid[..., k]
        at = (at + 1.0) * ((n - 1) / 2) if align_corners else ((at + 1.0) * n - 1.0) * 0.5
        if padding_mode == "border":
            at = where((at > 0.0) & (at < float(n - 1)), at, clip(stop_gradient(at), 0.0, float(n - 1)))
        elif mode == "bilinear":
            at = clip(at, -1.0, float(n))  # beyond, all pixels are 0; their weights would be NaN at 1e38
        first = round(at) if mode == "nearest" else floor(at)
        weights = [ones(at.shape)] if mode == "nearest" else [first + 1.0 - at, at - first]
        parts.append([_limited(cast(first, i32) + d, w, n) for d, w in enumerate(weights)])
    corners = [_read(x, r, c) * _channels(a * b, x) for r, a in parts[0] for c, b in parts[1]]
    return sum(corners[1:], corners[0])


def _limited(place: Tensor, weight: Tensor, n: int) -> tuple[Tensor, Tensor]:
    """Return places limited to 0 to n - 1, and `weight` where that changes nothing, else 0."""
    limited = clip(place, 0, n - 1)
    return limited, weight * cast(place == limited, f32)


def _channels(t: Tensor, x: Tensor) -> Tensor:
    b, *places = t.shape
    return broadcast_to(reshape(t, (b, 1, *places)), (b, x.shape[1], *places))


def _read(x: Tensor, row: Tensor, column: Tensor) -> Tensor:
    """Return the pixels at these positions."""
    b, c, h, w = x.shape
    places = reshape(_channels(row * w + column, x), (b, c, row.size // b))
    return reshape(take_along_axis(reshape(x, (b, c, h * w)), places, 2), (b, c, *row.shape[1:]))
