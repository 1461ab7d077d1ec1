"""Images, batch first, channels second (NCHW): convolution, pooling, upsampling.

A convolution is a product with windows of the image, which are a view: nothing is copied, and what is left is one
matmul with an index expression as its load. Forward, transposed and weight gradient are three such products, each the
derivative of the others, so that gradients of any order stay products.
"""

from __future__ import annotations

from typing import Any

from tracegrad.dtypes import TensorType
from tracegrad.errors import ShapeError
from tracegrad.ir import Primitive, Tensor, bind
from tracegrad.methods import op
from tracegrad.ops.windows import (
    OVERLAP_ADD,
    WINDOWS,
    IntOrPair,
    Pair,
    check_images,
    int_pair,
    window_counts,
    windows_type,
)
from tracegrad.prims.composites import composite
from tracegrad.prims.elementwise import float_type, where
from tracegrad.prims.folds import MATMUL
from tracegrad.prims.leaves import as_tensor, const, iota
from tracegrad.prims.rules import Tangents, merged, multilinear, spread
from tracegrad.prims.views import broadcast_to, permute, place, reshape, slice_, unwindow
from tracegrad.shapes import show

__all__ = ["avg_pool2d", "conv1d", "conv2d", "conv_transpose2d", "max_pool2d", "nearest_upsample2d"]


# Convolution, over the batch and the groups: [out, in*kh*kw] @ [in*kh*kw, oh*ow]
def _grouped(t: Tensor, axis: int, groups: int) -> Tensor:
    """`axis` split into groups and what each holds."""
    return reshape(t, (*t.shape[:axis], groups, t.shape[axis] // groups, *t.shape[axis + 1 :]))


def _channels(x: TensorType, w: TensorType, groups: int, per_group: int) -> None:
    if w.ndim != 4:
        raise ShapeError(f"w must be filters of rank 4, got {w}")
    float_type(w)
    if groups < 1 or w.shape[0] % groups or x.shape[1] != per_group * groups:
        last = x.shape[3] == per_group * groups != x.shape[1]
        hint = "; images are [B,C,H,W], so write x.permute(0, 3, 1, 2) for channels last" if last else ""
        raise ShapeError(
            f"channels do not fit: x is {x}, w is {w}, groups={groups}; "
            f"x has {x.shape[1]} channels, w takes {per_group} in each of {groups} groups{hint}"
        )


def _conv_type(x: TensorType, w: TensorType, *, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> TensorType:
    check_images(x)
    _channels(x, w, groups, w.shape[1] if w.ndim == 4 else 0)
    kh, kw = w.shape[2:]
    return TensorType(
        x.dtype, (x.shape[0], w.shape[0], *window_counts(x.shape[2:], (kh, kw), stride, padding, dilation))
    )


def _conv(x: Tensor, w: Tensor, *, stride: Pair, padding: Pair, dilation: Pair, groups: int) -> Tensor:
    b, o, k = x.shape[0], w.shape[0], w.shape[1:]
    patches = bind(WINDOWS, x, kernel=k[1:], stride=stride, padding=padding, dilation=dilation)
    oh, ow = patches.shape[2:4]
    inner = k[0] * k[1] * k[2]
    columns = reshape(permute(patches, (0, 1, 4, 5, 2, 3)), (b, groups, inner, oh * ow))
    filters = broadcast_to(reshape(w, (1, groups, o // groups, inner)), (b, groups, o // groups, inner))
    return reshape(bind(MATMUL, filters, columns), (b, o, oh, ow))


def _conv_vjp(ct: Tensor, y: Tensor, x: Tensor, w: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    return (
        bind(CONV_TRANSPOSE2D, ct, w, size=x.shape[2:], **how),
        bind(CONV_WEIGHT, x, ct, kernel=w.shape[2:], **how),
    )


def _abreast(x: Tensor, n: int) -> Tensor:
    """`n` batches of images as one, whose channels are those of all: [n, B, C, ...] -> [B, n*C, ...]."""
    x = permute(spread(n, x), (1, 0, *range(2, x.ndim)))
    return reshape(x, (x.shape[0], n * x.shape[2], *x.shape[3:]))


def _conv_batch(n: int, y: Tensor, x: Tensor, w: Tensor, *, groups: int, **how: Any) -> Tensor:
    """With one filter for all, more images; with `n` filters, more groups. One product in both cases."""
    if w.shape[0] == 1:
        return merged(n, y, x, reshape(w, w.shape[1:]), groups=groups, **how)
    w = reshape(w, (n * w.shape[1], *w.shape[2:]))
    z = bind(y.prim, _abreast(x, n), w, groups=n * groups, **how)
    return permute(reshape(z, (z.shape[0], n, *y.shape[1:])), (1, 0, *range(2, y.ndim + 1)))


def _bilinear(name: str, type: Any, expand: Any, vjp: Any, batch: Any = _conv_batch) -> Primitive:
    return composite(name, type=type, expand=expand, vjp=vjp, jvp=multilinear, batch=batch)


CONV2D = _bilinear("conv2d", _conv_type, _conv, _conv_vjp)


def _transpose_type(
    x: TensorType, w: TensorType, *, size: Pair, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> TensorType:
    check_images(x)
    _channels(x, w, groups, w.shape[0] // groups if w.ndim == 4 and groups > 0 else 0)
    kh, kw = w.shape[2:]
    if min(size) < 0 or window_counts(size, (kh, kw), stride, padding, dilation) != x.shape[2:]:
        raise ShapeError(f"an image of {size[0]}x{size[1]} does not have {x.shape[2]}x{x.shape[3]} windows: x is {x}")
    return TensorType(x.dtype, (x.shape[0], w.shape[1] * groups, *size))


def _spread(x: Tensor, axis: int, k: int, size: int, stride: int, padding: int, dilation: int) -> Tensor:
    """out[.., n, .., k] = x[.., o, ..] where n = o*stride + k*dilation - padding, else 0."""
    y = broadcast_to(reshape(x, (*x.shape, 1)), (*x.shape, k))
    return slice_(unwindow(y, axis, size + 2 * padding, stride, dilation), axis, padding, size)


def _conv_transpose(
    x: Tensor, w: Tensor, *, size: Pair, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Tensor:
    b, (_, c, kh, kw) = x.shape[0], w.shape
    spread = _spread(x, 2, kh, size[0], stride[0], padding[0], dilation[0])
    spread = _spread(spread, 3, kw, size[1], stride[1], padding[1], dilation[1])  # [b, o, h, w, kh, kw]
    inner = w.shape[0] // groups * kh * kw
    columns = permute(_grouped(spread, 1, groups), (0, 1, 2, 5, 6, 3, 4))
    columns = reshape(columns, (b, groups, inner, size[0] * size[1]))
    filters = reshape(permute(_grouped(w, 0, groups), (0, 2, 1, 3, 4)), (1, groups, c, inner))
    filters = broadcast_to(filters, (b, groups, c, inner))
    return reshape(bind(MATMUL, filters, columns), (b, groups * c, *size))


def _transpose_vjp(ct: Tensor, y: Tensor, x: Tensor, w: Tensor, *, size: Pair, **how: Any) -> tuple[Tensor, Tensor]:
    return bind(CONV2D, ct, w, **how), bind(CONV_WEIGHT, ct, x, kernel=w.shape[2:], **how)


CONV_TRANSPOSE2D = _bilinear("conv_transpose2d", _transpose_type, _conv_transpose, _transpose_vjp)


# Gradient of the filters: x windows against the cotangent of the convolution, summed over images and positions
def _conv_weight(
    x: Tensor, ct: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair, groups: int
) -> Tensor:
    b, o, oh, ow = ct.shape
    c = x.shape[1] // groups
    patches = bind(WINDOWS, x, kernel=kernel, stride=stride, padding=padding, dilation=dilation)
    columns = permute(_grouped(patches, 1, groups), (1, 0, 3, 4, 2, 5, 6))
    columns = reshape(columns, (groups, b * oh * ow, c * kernel[0] * kernel[1]))
    rows = permute(_grouped(ct, 1, groups), (1, 2, 0, 3, 4))
    rows = reshape(rows, (groups, o // groups, b * oh * ow))
    return reshape(bind(MATMUL, rows, columns), (o, c, *kernel))


def _conv_weight_type(x: TensorType, ct: TensorType, *, kernel: Pair, groups: int, **_: Any) -> TensorType:
    return TensorType(x.dtype, (ct.shape[1], x.shape[1] // groups, *kernel))


def _conv_weight_vjp(
    dw: Tensor, y: Tensor, x: Tensor, ct: Tensor, *, kernel: Pair, **how: Any
) -> tuple[Tensor, Tensor]:
    return bind(CONV_TRANSPOSE2D, ct, dw, size=x.shape[2:], **how), bind(CONV2D, x, dw, **how)


def _conv_weight_batch(n: int, y: Tensor, x: Tensor, ct: Tensor, *, groups: int, **how: Any) -> Tensor:
    return reshape(bind(CONV_WEIGHT, _abreast(x, n), _abreast(ct, n), groups=n * groups, **how), (n, *y.shape))


CONV_WEIGHT = _bilinear("conv_weight", _conv_weight_type, _conv_weight, _conv_weight_vjp, _conv_weight_batch)


# Pooling
def _pool_type(x: TensorType, *, kernel: Pair, stride: Pair, padding: Pair) -> TensorType:
    if any(2 * p > k for p, k in zip(padding, kernel, strict=True)):
        raise ShapeError(f"padding {padding} is more than half the window {kernel}: some would hold padding only")
    t = windows_type(x, kernel=kernel, stride=stride, padding=padding, dilation=(1, 1))
    return TensorType(t.dtype, t.shape[:4])


def _pool_windows(x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    return bind(WINDOWS, x, kernel=kernel, stride=stride, padding=padding, dilation=(1, 1))


def _pool_add(windows: Tensor, x: Tensor, stride: Pair, padding: Pair) -> Tensor:
    return bind(OVERLAP_ADD, windows, size=x.shape[2:], stride=stride, padding=padding, dilation=(1, 1))


def _inside(x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    """True where a window element is one of the image: padding is zero in the windows of an image of ones."""
    ones = broadcast_to(const(1.0), (1, 1, *x.shape[2:]))
    return _pool_windows(ones, kernel, stride, padding) > 0.5


def _max_pool(x: Tensor, *, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    windows = _pool_windows(x, kernel, stride, padding)
    if padding != (0, 0):
        windows = where(_inside(x, kernel, stride, padding), windows, float("-inf"))
    return windows.max((-2, -1))


def _first(y: Tensor, x: Tensor, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    """True at the first maximum of each window in scan order: it alone has a derivative."""
    windows = _pool_windows(x, kernel, stride, padding)
    hit = windows == reshape(y, (*y.shape, 1, 1))
    if padding != (0, 0):
        hit = hit & _inside(x, kernel, stride, padding)
    scan = iota(windows.shape, 4) * kernel[1] + iota(windows.shape, 5)
    first = where(hit, scan, kernel[0] * kernel[1]).min((-2, -1), keepdims=True)
    return scan == first


def _max_pool_vjp(ct: Tensor, y: Tensor, x: Tensor, *, kernel: Pair, stride: Pair, padding: Pair) -> tuple[Tensor]:
    routed = where(_first(y, x, kernel, stride, padding), reshape(ct, (*ct.shape, 1, 1)), 0.0)
    return (_pool_add(routed, x, stride, padding),)


def _max_pool_jvp(ts: Tangents, y: Tensor, x: Tensor, *, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    (t,) = ts
    assert t is not None
    return where(_first(y, x, kernel, stride, padding), _pool_windows(t, kernel, stride, padding), 0.0).sum((-2, -1))


MAX_POOL2D = composite(
    "max_pool2d", type=_pool_type, expand=_max_pool, vjp=_max_pool_vjp, jvp=_max_pool_jvp, batch=merged
)


def _avg_pool(x: Tensor, *, kernel: Pair, stride: Pair, padding: Pair) -> Tensor:
    return _pool_windows(x, kernel, stride, padding).mean((-2, -1))


def _avg_pool_vjp(ct: Tensor, y: Tensor, x: Tensor, *, kernel: Pair, stride: Pair, padding: Pair) -> tuple[Tensor]:
    share = reshape(ct / float(kernel[0] * kernel[1]), (*ct.shape, 1, 1))
    return (_pool_add(broadcast_to(share, (*ct.shape, *kernel)), x, stride, padding),)


AVG_POOL2D = composite(
    "avg_pool2d", type=_pool_type, expand=_avg_pool, vjp=_avg_pool_vjp, jvp=multilinear, batch=merged
)


# Public functions
def _geometry(stride: IntOrPair, padding: IntOrPair, dilation: IntOrPair, groups: int) -> dict[str, Any]:
    return {
        "stride": int_pair("stride", stride, 1),
        "padding": int_pair("padding", padding, 0),
        "dilation": int_pair("dilation", dilation, 1),
        "groups": groups,
    }


@op
def conv2d(
    x: Any, w: Any, stride: IntOrPair = 1, padding: IntOrPair = 0, groups: int = 1, dilation: IntOrPair = 1
) -> Tensor:
    """Cross-correlate images with filters.

    out[b, o, i, j] = sum over c, k, l of x[b, c, i*s + k*d - p, j*s + l*d - p] w[o, c, k, l]

    x:        f32 [B, C, H, W]; zeros outside.
    w:        f32 [O, C/groups, kh, kw]; filter `o` sees the channels of its own group only.
    stride, padding, dilation: an integer, or one for the height and one for the width.
    Returns:  f32 [B, O, oh, ow], oh = floor((H + 2p - d(kh - 1) - 1) / s) + 1.
    Gradient: to both.
    Raises:   ShapeError if ranks, channels or sizes do not fit; DTypeError if one is not f32.

    As torch.nn.functional.conv2d, without bias.
    """
    return bind(CONV2D, as_tensor(x), as_tensor(w), **_geometry(stride, padding, dilation, groups))


@op
def conv1d(x: Any, w: Any, stride: int = 1, padding: int = 0, groups: int = 1, dilation: int = 1) -> Tensor:
    """Cross-correlate sequences with filters: `conv2d` of images one element high.

    x:        f32 [B, C, L]; zeros outside.
    w:        f32 [O, C/groups, k].
    Returns:  f32 [B, O, floor((L + 2p - d(k - 1) - 1) / s) + 1].
    Gradient: to both.
    Raises:   ShapeError if ranks, channels or sizes do not fit; DTypeError if one is not f32.

    As torch.nn.functional.conv1d, without bias.
    """
    x, w = as_tensor(x), as_tensor(w)
    if x.ndim != 3 or w.ndim != 3:
        raise ShapeError(f"x must be [B,C,L] and w [O,C/groups,k], got {x.type} and {w.type}")
    how = _geometry((1, stride), (0, padding), (1, dilation), groups)
    y = bind(CONV2D, *(reshape(t, (*t.shape[:2], 1, t.shape[2])) for t in (x, w)), **how)
    return reshape(y, (*y.shape[:2], y.shape[3]))


@op
def conv_transpose2d(
    x: Any,
    w: Any,
    stride: IntOrPair = 1,
    padding: IntOrPair = 0,
    output_padding: IntOrPair = 0,
    groups: int = 1,
    dilation: IntOrPair = 1,
) -> Tensor:
    """The transpose of `conv2d`: each element of `x` spreads a filter over the output.

    out[b, c, i*s + k*d - p, j*s + l*d - p] += x[b, o, i, j] w[o, c, k, l]

    x:        f32 [B, O, h, w].
    w:        f32 [O, C/groups, kh, kw].
    output_padding: rows and columns added at the end, less than the stride or the dilation.
    Returns:  f32 [B, C, H, W], H = (h - 1) s - 2p + d(kh - 1) + output_padding + 1.
    Gradient: to both.
    Raises:   ShapeError if ranks, channels or sizes do not fit; DTypeError if one is not f32.

    As torch.nn.functional.conv_transpose2d, without bias.
    """
    x, w = as_tensor(x), as_tensor(w)
    how = _geometry(stride, padding, dilation, groups)
    extra = int_pair("output_padding", output_padding, 0)
    if x.ndim != 4 or w.ndim != 4:
        raise ShapeError(f"x and w must have rank 4, got {x.type} and {w.type}")
    strides, pads, dilations = how["stride"], how["padding"], how["dilation"]
    full = [(n - 1) * s + d * (k - 1) + 1 for n, k, s, d in zip(x.shape[2:], w.shape[2:], strides, dilations)]
    size = tuple([n - 2 * p + e for n, p, e in zip(full, pads, extra)])
    for e, s, d in zip(extra, strides, dilations):
        if e >= max(s, d):
            raise ShapeError(f"output_padding {e} must be less than stride {s} or dilation {d}")
    if min(size) < 1:
        raise ShapeError(f"padding {show(pads)} leaves none of {show(full)} rows and columns: x is {x.type}")
    if all(e < s for e, s in zip(extra, strides)):
        return bind(CONV_TRANSPOSE2D, x, w, size=size, **how)
    # a window more would fit: so all that the filters reach, and of that the rows and columns asked for
    y = bind(CONV_TRANSPOSE2D, x, w, size=tuple(full), **{**how, "padding": (0, 0)})
    for axis, n, p in ((2, size[0], pads[0]), (3, size[1], pads[1])):
        y = place(slice_(y, axis, p, max(min(n, y.shape[axis] - p), 0)), axis, 0, n)
    return y


@op
def max_pool2d(x: Any, kernel_size: IntOrPair, stride: IntOrPair | None = None, padding: IntOrPair = 0) -> Tensor:
    """The largest element of each window.

    x:           f32 [B, C, H, W].
    kernel_size: the window, an integer or a pair.
    stride:      the window's size by default.
    padding:     at most half the window; it never wins.
    Returns:     f32 [B, C, oh, ow], sizes as in `conv2d`.
    Gradient:    to the first maximum of each window in scan order.
    Raises:      ShapeError if the window does not fit; DTypeError if `x` is not f32.

    As torch.nn.functional.max_pool2d.
    """
    kernel, stride, padding = _pooling(kernel_size, stride, padding)
    return bind(MAX_POOL2D, as_tensor(x), kernel=kernel, stride=stride, padding=padding)


@op
def avg_pool2d(x: Any, kernel_size: IntOrPair, stride: IntOrPair | None = None, padding: IntOrPair = 0) -> Tensor:
    """The mean of each window; padding counts as zeros.

    x:           f32 [B, C, H, W].
    kernel_size: the window, an integer or a pair.
    stride:      the window's size by default.
    padding:     at most half the window.
    Returns:     f32 [B, C, oh, ow], sizes as in `conv2d`.
    Gradient:    an equal share to each element of the window.
    Raises:      ShapeError if the window does not fit; DTypeError if `x` is not f32.

    As torch.nn.functional.avg_pool2d.
    """
    kernel, stride, padding = _pooling(kernel_size, stride, padding)
    return bind(AVG_POOL2D, as_tensor(x), kernel=kernel, stride=stride, padding=padding)


def _pooling(kernel: IntOrPair, stride: IntOrPair | None, padding: IntOrPair) -> tuple[Pair, Pair, Pair]:
    size = int_pair("kernel_size", kernel, 1)
    step = size if stride is None else int_pair("stride", stride, 1)
    return size, step, int_pair("padding", padding, 0)


@op
def nearest_upsample2d(x: Any, scale: IntOrPair = 2) -> Tensor:
    """Repeat each pixel `scale` times along both axes.

    out[b, c, i, j] = x[b, c, i // scale, j // scale]

    x:        f32 [B, C, H, W].
    scale:    an integer or a pair.
    Returns:  f32 [B, C, H * scale, W * scale]. A view: no kernel.
    Gradient: summed over the copies.
    Raises:   ShapeError if `x` is not of rank 4 or `scale` is below 1.

    As torch.nn.functional.interpolate(mode="nearest") by a whole factor.
    """
    x, (sh, sw) = as_tensor(x), int_pair("scale", scale, 1)
    if x.ndim != 4:
        raise ShapeError(f"x must be images [B,C,H,W], got {x.type}")
    b, c, h, w = x.shape
    y = broadcast_to(reshape(x, (b, c, h, 1, w, 1)), (b, c, h, sh, w, sw))
    return reshape(y, (b, c, h * sh, w * sw))
