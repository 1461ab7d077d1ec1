"""Sliding windows of images as views, and their transpose: what convolution and pooling are made of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from tracegrad.dtypes import TensorType
from tracegrad.errors import ShapeError
from tracegrad.ir import Tensor, bind
from tracegrad.methods import op
from tracegrad.prims.composites import composite
from tracegrad.prims.elementwise import float_type
from tracegrad.prims.leaves import as_tensor
from tracegrad.prims.rules import merged, multilinear
from tracegrad.prims.views import permute, place, reshape, slice_, unwindow, window, window_count
from tracegrad.shapes import whole

__all__ = ["col2im", "im2col"]

Pair = tuple[int, int]
IntOrPair = int | Sequence[int]


def int_pair(what: str, value: IntOrPair, least: int) -> Pair:
    """Height and width from one or two integers, none below `least`."""
    many = whole(value) is None and hasattr(value, "__iter__") and not isinstance(value, str)
    both = [whole(n) for n in cast("Sequence[object]", value)] if many else [whole(value)] * 2
    if len(both) != 2 or any(n is None or n < least for n in both):
        hint = "; (kernel - 1) // 2 keeps the size with stride 1" if value == "same" else ""
        raise ShapeError(f"{what} must be one or two integers of at least {least}, got {value!r}{hint}")
    return cast("Pair", tuple(both))


def check_images(x: TensorType) -> TensorType:
    """`x`; an error unless it is f32 [B,C,H,W]."""
    if x.ndim != 4:
        hint = "; x[None] is a batch of one" if x.ndim == 3 else ""
        raise ShapeError(f"x must be images [B,C,H,W], got {x}{hint}")
    return float_type(x)


def window_counts(size: Sequence[int], kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Pair:
    """Windows along height and width: floor((n + 2p - d(k-1) - 1) / s) + 1."""
    h, w = (
        window_count(n + 2 * p, k, s, d) for n, k, s, p, d in zip(size, kernel, stride, padding, dilation, strict=True)
    )
    if h < 1 or w < 1:
        raise ShapeError(
            f"a window of {kernel[0]}x{kernel[1]} (dilation {dilation[0]}x{dilation[1]}) does not fit "
            f"an image of {size[0]}x{size[1]} with padding {padding[0]}x{padding[1]}; make it smaller, or pad more"
        )
    return h, w


# Windows of an image, zeros outside it: out[b, c, i, j, k, l] = x[b, c, i*s + k*d - p, j*s + l*d - p]
def windows_type(x: TensorType, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> TensorType:
    check_images(x)
    return TensorType(x.dtype, (*x.shape[:2], *window_counts(x.shape[2:], kernel, stride, padding, dilation), *kernel))


def _windows(x: Tensor, *, kernel: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    for axis, (p, n) in enumerate(zip(padding, x.shape[2:], strict=True), 2):
        x = place(x, axis, p, n + 2 * p)
    for axis, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True), 2):
        x = window(x, axis, k, s, d)
    return x


def _windows_vjp(ct: Tensor, y: Tensor, x: Tensor, *, kernel: Pair, **how: Pair) -> tuple[Tensor]:
    return (bind(OVERLAP_ADD, ct, size=x.shape[2:], **how),)


WINDOWS = composite("windows", type=windows_type, expand=_windows, vjp=_windows_vjp, jvp=multilinear, batch=merged)


# The transpose: every window element added where it was read from
def _overlap_add(x: Tensor, *, size: Pair, stride: Pair, padding: Pair, dilation: Pair) -> Tensor:
    b, c, oh, ow, kh, kw = x.shape
    padded = tuple(n + 2 * p for n, p in zip(size, padding, strict=True))
    if stride == (kh, kw) and dilation == (1, 1):  # windows side by side: only a view
        y = reshape(permute(x, (0, 1, 2, 4, 3, 5)), (b, c, oh * kh, ow * kw))
        y = place(place(y, 2, 0, padded[0]), 3, 0, padded[1])
    else:
        y = unwindow(x, 3, padded[1], stride[1], dilation[1])  # [b, c, oh, W, kh, kw]
        y = unwindow(permute(y, (0, 1, 2, 3, 5, 4)), 2, padded[0], stride[0], dilation[0])
        y = y.sum((-2, -1))
    return slice_(slice_(y, 2, padding[0], size[0]), 3, padding[1], size[1])


def _overlap_add_type(x: TensorType, *, size: Pair, **_: Any) -> TensorType:
    return TensorType(x.dtype, (*x.shape[:2], *size))


def _overlap_add_vjp(ct: Tensor, y: Tensor, x: Tensor, *, size: Pair, **how: Pair) -> tuple[Tensor]:
    return (bind(WINDOWS, ct, kernel=x.shape[4:], **how),)


OVERLAP_ADD = composite(
    "overlap_add",
    type=_overlap_add_type,
    expand=_overlap_add,
    vjp=_overlap_add_vjp,
    jvp=multilinear,
    batch=merged,
)


def windows_of(x: Any, kernel: tuple[int, int], stride: IntOrPair, padding: IntOrPair, dilation: IntOrPair) -> Tensor:
    """[B, C, oh, ow, kh, kw]: every window of an image."""
    return bind(
        WINDOWS,
        as_tensor(x),
        kernel=kernel,
        stride=int_pair("stride", stride, 1),
        padding=int_pair("padding", padding, 0),
        dilation=int_pair("dilation", dilation, 1),
    )


@op
def im2col(x: Any, kernel: IntOrPair, stride: IntOrPair = 1, padding: IntOrPair = 0) -> Tensor:
    """Each window of an image as one row, zeros outside the image.

    x:        f32 [B, C, H, W].
    Returns:  f32 [B, oh*ow, C*kh*kw]. A view: no kernel.
    Gradient: each element summed over the windows that hold it.
    Raises:   ShapeError if the window does not fit; DTypeError if `x` is not f32.

    As torch.nn.functional.unfold with the last two axes exchanged.
    """
    windows = windows_of(x, int_pair("kernel", kernel, 1), stride, padding, 1)
    b, c, oh, ow, kh, kw = windows.shape
    return reshape(permute(windows, (0, 2, 3, 1, 4, 5)), (b, oh * ow, c * kh * kw))


@op
def col2im(
    columns: Any, shape: Sequence[int], kernel: IntOrPair, stride: IntOrPair = 1, padding: IntOrPair = 0
) -> Tensor:
    """The transpose of `im2col`: each window element added at the place of an image that it was read from.

    columns:  f32 [B, oh*ow, C*kh*kw].
    shape:    of the image, (B, C, H, W).
    Returns:  f32 of that shape.
    Gradient: im2col of the cotangent.
    Raises:   ShapeError if `columns` are not the windows of such an image; DTypeError if they are not f32.

    As torch.nn.functional.fold with the last two axes of its input exchanged.
    """
    x, (b, c, h, w) = as_tensor(columns), tuple(shape)
    kh, kw = int_pair("kernel", kernel, 1)
    steps, pads = int_pair("stride", stride, 1), int_pair("padding", padding, 0)
    oh, ow = window_counts((h, w), (kh, kw), steps, pads, (1, 1))
    float_type(x.type)
    if x.shape != (b, oh * ow, c * kh * kw):
        raise ShapeError(f"columns must be f32[{b},{oh * ow},{c * kh * kw}] for such an image, got {x.type}")
    windows = permute(reshape(x, (b, oh, ow, c, kh, kw)), (0, 3, 1, 2, 4, 5))
    return bind(OVERLAP_ADD, windows, size=(h, w), stride=steps, padding=pads, dilation=(1, 1))
