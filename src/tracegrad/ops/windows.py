"""Sliding windows of images as views, and their transpose. Convolution and pooling are made of them.

Both primitives take any number of axes after batch and channels: two for images, three for volumes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from tracegrad.dtypes import TensorType
from tracegrad.errors import ShapeError
from tracegrad.ir import Tensor, bind
from tracegrad.methods import op
from tracegrad.ops.joining import concat
from tracegrad.ops.phases import Phases, Steps, by_phases, geometry
from tracegrad.prims.leaves import as_tensor
from tracegrad.prims.maps import composite, float_type
from tracegrad.prims.rules import merged, multilinear
from tracegrad.prims.views import permute, place, reshape, slice_, window, window_count
from tracegrad.refusals import shown
from tracegrad.shapes import whole

__all__ = ["col2im", "im2col"]

Pair = tuple[int, int]
Sizes = tuple[int, ...]  # one for each axis after the channels
IntOrPair = int | Sequence[int]
# By the number of axes after the channels
KINDS = {1: ("sequences", "[B,C,L]"), 2: ("images", "[B,C,H,W]"), 3: ("volumes", "[B,C,D,H,W]")}
COUNTS = {1: "one integer", 2: "one or two integers", 3: "one or three integers"}


def int_each(what: str, value: IntOrPair, least: int, n: int) -> Sizes:
    """Return one integer for each of `n` axes, from one for all or one each. Raises ShapeError below `least`."""
    for k in value if isinstance(value, tuple) else (value,):
        if str(getattr(k, "dtype", "")).startswith("f"):  # PyTorch's third argument
            raise ShapeError(
                f"{what} must be {COUNTS[n]}, got {shown(k)}; a bias is added to the result, as in "
                "conv2d(x, w) + b[:, None, None]"
            )
    many = whole(value) is None and hasattr(value, "__iter__") and not isinstance(value, str)
    each = [whole(k) for k in cast("Sequence[object]", value)] if many else [whole(value)] * n
    if len(each) != n or any(k is None or k < least for k in each):
        hint = "; (kernel - 1) // 2 keeps the size with stride 1" if value == "same" else ""
        raise ShapeError(f"{what} must be {COUNTS[n]} of at least {least}, got {value!r}{hint}")
    return cast("Sizes", tuple(each))


def int_pair(what: str, value: IntOrPair, least: int) -> Pair:
    """Return (height, width) from one or two integers. Raises ShapeError below `least`."""
    h, w = int_each(what, value, least, 2)
    return h, w


def check_images(x: TensorType, axes: int = 2) -> TensorType:
    """Return `x`. Raises ShapeError or DTypeError unless `x` is f32 with `axes` axes after batch and channels."""
    if x.ndim != axes + 2:
        hint = "; x[None] is a batch of one" if x.ndim == axes + 1 else ""
        raise ShapeError(f"x must be {' '.join(KINDS[axes])}, got {x}{hint}")
    return float_type(x)


def window_counts(size: Sequence[int], kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Sizes:
    """Return the number of windows along each axis: floor((n + 2p - d(k-1) - 1) / s) + 1. Raises ShapeError below 1."""
    counts = tuple([window_count(n + 2 * p, k, s, d) for n, k, s, p, d in zip(size, kernel, stride, padding, dilation)])
    if min(counts) < 1:
        k, d, n, p = (by(sizes) for sizes in (kernel, dilation, size, padding))
        what = ("a sequence", "an image", "a volume")[len(kernel) - 1]
        raise ShapeError(
            f"a window of {k} (dilation {d}) does not fit {what} of {n} with padding {p}; make it smaller, or pad more"
        )
    return counts


def by(sizes: Sequence[int]) -> str:
    """Return sizes as text: "3x4" for (3, 4)."""
    return "x".join(map(str, sizes))


# Windows of an image, zeros outside it: out[b, c, i, j, k, l] = x[b, c, i*s + k*d - p, j*s + l*d - p]
def windows_type(x: TensorType, *, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> TensorType:
    check_images(x, len(kernel))
    return TensorType(x.dtype, (*x.shape[:2], *window_counts(x.shape[2:], kernel, stride, padding, dilation), *kernel))


def _windows(x: Tensor, *, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Tensor:
    for axis, (p, n) in enumerate(zip(padding, x.shape[2:], strict=True), 2):
        x = place(x, axis, p, n + 2 * p)
    for axis, (k, s, d) in enumerate(zip(kernel, stride, dilation, strict=True), 2):
        x = window(x, axis, k, s, d)
    return x


def _windows_vjp(ct: Tensor, y: Tensor, x: Tensor, *, kernel: Sizes, **how: Sizes) -> tuple[Tensor]:
    return (bind(OVERLAP_ADD, ct, size=x.shape[2:], **how),)


WINDOWS = composite("windows", type=windows_type, expand=_windows, vjp=_windows_vjp, jvp=multilinear, batch=merged)


# The transpose: every window element is added where it was read from
def _overlapped(x: Tensor, axes: Sequence[Steps], phases: Sequence[Phases]) -> Tensor:
    """Return [B, C, *counts, *lengths], the result for `phases`: each phase is the sum of its own taps."""
    n = len(axes)
    for j, (steps, p) in enumerate(zip(axes, phases)):
        x = steps.taken(x, 2 + n + 2 * j, p)
    y = permute(x, (0, 1, *range(2 + n, 2 + 3 * n, 2), *range(2, 2 + n), *range(3 + n, 2 + 3 * n, 2)))
    behind = range(2 + 2 * n)
    for j in reversed(range(n)):  # `laid` works on the last axis: rotate, so that the window axis of j - 1 is last next
        y = axes[j].laid(y, 2 + n + j, phases[j])
        y = permute(y, (*behind, 3 * n + 1, *range(2 + 2 * n, 3 * n + 1))) if j else y
    return y.sum(tuple(range(-n, 0)))


def _overlap_add(x: Tensor, *, size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes) -> Tensor:
    n, kernel = len(size), x.shape[2 + len(size) :]
    padded = [m + 2 * p for m, p in zip(size, padding, strict=True)]
    if stride == kernel and set(dilation) == {1}:  # windows side by side: only a view
        y = permute(x, (0, 1, *[d + j for j in range(n) for d in (2, 2 + n)]))
        y = reshape(y, (*x.shape[:2], *[x.shape[2 + j] * k for j, k in enumerate(kernel)]))
        for j, m in enumerate(padded):
            y = place(y, 2 + j, 0, m)
    else:
        axes = geometry(kernel, size, stride, padding, dilation)
        return by_phases(axes, partial(_overlapped, x, axes), 2, concat)
    for j, (p, m) in enumerate(zip(padding, size)):
        y = slice_(y, 2 + j, p, m)
    return y


def _overlap_add_type(x: TensorType, *, size: Sizes, **_: Any) -> TensorType:
    return TensorType(x.dtype, (*x.shape[:2], *size))


def _overlap_add_vjp(ct: Tensor, y: Tensor, x: Tensor, *, size: Sizes, **how: Sizes) -> tuple[Tensor]:
    return (bind(WINDOWS, ct, kernel=x.shape[2 + len(size) :], **how),)


OVERLAP_ADD = composite(
    "overlap_add",
    type=_overlap_add_type,
    expand=_overlap_add,
    vjp=_overlap_add_vjp,
    jvp=multilinear,
    batch=merged,
)


def windows_of(x: Any, kernel: tuple[int, int], stride: IntOrPair, padding: IntOrPair, dilation: IntOrPair) -> Tensor:
    """Return [B, C, oh, ow, kh, kw]: every window of an image."""
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
    """Return each window of an image as one row, zeros outside the image.

    x:        f32 [B, C, H, W].
    Returns:  f32 [B, oh*ow, C*kh*kw]. A view: no kernel.
    Gradient: each element summed over the windows that hold it.
    Raises:   ShapeError if the window does not fit; DTypeError if `x` is not f32.

    As torch.nn.functional.unfold with the last two axes exchanged.

    >>> tg.im2col(np.zeros((1, 3, 4, 4)), 2).shape
    (1, 9, 12)
    """
    windows = windows_of(x, int_pair("kernel", kernel, 1), stride, padding, 1)
    b, c, oh, ow, kh, kw = windows.shape
    return reshape(permute(windows, (0, 2, 3, 1, 4, 5)), (b, oh * ow, c * kh * kw))


@op
def col2im(
    columns: Any, shape: Sequence[int], kernel: IntOrPair, stride: IntOrPair = 1, padding: IntOrPair = 0
) -> Tensor:
    """Apply the transpose of `im2col`: add each window element where it was read from the image.

    columns:  f32 [B, oh*ow, C*kh*kw].
    shape:    of the image, (B, C, H, W).
    Returns:  f32 of that shape.
    Gradient: im2col of the cotangent.
    Raises:   ShapeError if `columns` does not have the shape of these windows; DTypeError if it is not f32.

    As torch.nn.functional.fold with the last two axes of its input exchanged.

    >>> tg.col2im(np.ones((1, 9, 4), np.float32), (1, 1, 4, 4), 2).shape
    (1, 1, 4, 4)
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
