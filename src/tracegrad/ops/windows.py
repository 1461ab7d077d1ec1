"""Sliding windows of images as views, and their transpose. Convolution and pooling are made of them.

Both primitives take any number of axes after batch and channels: two for images, three for volumes.

A transposed convolution with a stride would insert zeros between elements. Instead, positions are grouped into
*phases*, by their remainder.
out[n] = sum over o, k with n = o*stride + k*dilation of x[o] w[k]. For one n, only the taps k contribute for which
n - k*dilation is a multiple of the stride. All positions of one phase use the same taps, and are a sum over windows at
steps of one. Neighbouring phases that read the same windows are computed as one product.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from tracegrad.dtypes import Shape, TensorType, whole
from tracegrad.errors import ShapeError
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.methods import op
from tracegrad.ops.joining import concat
from tracegrad.prims.leaves import as_tensor, const
from tracegrad.prims.maps import composite, float_type
from tracegrad.prims.rules import merged, multilinear
from tracegrad.prims.views import broadcast_to, permute, place, reshape, slice_, unwindow, window, window_count
from tracegrad.refusals import shown


@dataclass(frozen=True, slots=True)
class Phases:
    """Neighbouring phases of one axis that read the same windows.

    first, count: the first phase, and how many. Phase f has the positions with remainder f * gcd(stride, dilation).
    tap:          first tap of the first phase. Each next phase begins one tap later.
    taps:         number of taps of each phase, one in every `period`; 0 for phases that are zero.
    ahead:        offset of the windows, in elements of x.
    """

    first: int
    count: int
    tap: int
    taps: int
    ahead: int


@dataclass(frozen=True, slots=True)
class Steps:
    """The geometry of one axis: windows at every `stride`, of `kernel` taps that are `dilation` apart.

    The output is the `size` elements from `padding` on.
    """

    kernel: int
    size: int
    stride: int
    padding: int
    dilation: int

    @property
    def common(self) -> int:
        """The common divisor of the remainders of all taps."""
        return math.gcd(self.stride, self.dilation)

    @property
    def period(self) -> int:
        """The number of phases. Taps this far apart have the same remainder."""
        return self.stride // self.common

    @property
    def apart(self) -> int:
        """The distance, in elements of x, between two taps of a phase."""
        return self.dilation // self.common

    @property
    def begin(self) -> int:
        """The first window, at steps of one, that reaches the output."""
        return self.padding // self.stride

    @property
    def length(self) -> int:
        """The number of windows that reach the output."""
        return (self.padding + self.size - 1) // self.stride + 1 - self.begin if self.size else 0

    def phases(self) -> list[Phases]:
        """Return all phases of the axis, in order."""
        every, rest = divmod(self.kernel, self.period)
        if self.apart == 1:
            groups = (Phases(0, rest, 0, every + 1, 0), Phases(rest, self.period - rest, rest, every, 0))
            return [p for p in groups if p.count]
        inverse = pow(self.apart, -1, self.period) if self.period > 1 else 0
        taps = [f * inverse % self.period for f in range(self.period)]
        return [
            Phases(f, 1, k, every + (k < rest), (k * self.dilation - f * self.common) // self.stride)
            for f, k in enumerate(taps)
        ]

    def taken(self, w: Tensor, axis: int, p: Phases) -> Tensor:
        """Return the taps of the phases `p`: [.., kernel, ..] -> [.., count, taps, ..]."""
        whole = min(p.taps * self.period, self.kernel)  # no phase reads the rest
        w = place(slice_(w, axis, 0, whole), axis, 0, p.taps * self.period)
        w = reshape(w, (*w.shape[:axis], p.taps, self.period, *w.shape[axis + 1 :]))
        w = slice_(w, axis + 1, p.tap, p.count)
        return permute(w, (*range(axis), axis + 1, axis, *range(axis + 2, w.ndim)))

    def filters(self, w: Tensor, axis: int, p: Phases) -> Tensor:
        """Return `taken` in reverse order, which is the order of `windows`."""
        return slice_(self.taken(w, axis, p), axis + 1, p.taps - 1, p.taps, -1)

    def windows(self, x: Tensor, axis: int, p: Phases) -> Tensor:
        """Return the windows that the phases `p` read. The elements of each window become the last axis."""
        reach = (p.taps - 1) * self.apart
        x = shifted(x, axis, reach + p.ahead - self.begin, self.length + reach)
        return window(x, axis, p.taps, 1, self.apart)

    def laid(self, x: Tensor, axis: int, p: Phases) -> Tensor:
        """Move the elements of each window, on the last axis, to the positions of the phases `p` that they reach."""
        reach = (p.taps - 1) * self.apart
        x = unwindow(x, axis, x.shape[axis] + reach, 1, self.apart)
        return shifted(x, axis, p.ahead - self.begin, self.length)


def shifted(x: Tensor, axis: int, before: int, length: int) -> Tensor:
    """Return `length` elements: `before` zeros, `x`, then zeros. A negative `before` cuts elements of `x` off."""
    start, at = max(-before, 0), max(before, 0)
    count = max(min(x.shape[axis] - start, length - at), 0)
    return place(slice_(x, axis, start if count else 0, count), axis, at if count else 0, length)


def by_phases(axes: Sequence[Steps], product: Callable[[Sequence[Phases]], Tensor], before: int) -> Tensor:
    """Compute all phases of all axes, and interleave the results: [.., *sizes], with `before` axes first.

    product: computes one phase of each axis: [.., *counts, *lengths].
    """
    n = len(axes)

    def rows(chosen: tuple[Phases, ...]) -> Tensor | None:
        """Return all phases of the axes for which `chosen` has none."""
        if len(chosen) == n:
            return product(chosen) if all(p.taps for p in chosen) else None
        steps = axes[len(chosen)]
        parts = [(p, rows((*chosen, p))) for p in steps.phases()]
        found = next((y for _, y in parts if y is not None), None)
        if found is None:
            return None
        axis = before + len(chosen)
        made = [zeros(y or found, axis, p.count) if y is None else y for p, y in parts]
        return place(concat(made, axis), axis, 0, steps.stride, steps.common)

    def zeros(like: Tensor, axis: int, count: int) -> Tensor:
        shape = (*like.shape[:axis], count, *like.shape[axis + 1 :])
        return broadcast_to(const(0.0, like.dtype), shape)

    y = rows(())
    assert y is not None, "some tap is the first"
    # otherwise this view would only move axes of size 1, and keep a product from fusing
    if any(s.stride > 1 for s in axes):
        y = permute(y, (*range(before), *itertools.chain(*[(before + n + j, before + j) for j in range(n)])))
    y = reshape(y, (*y.shape[:before], *[s.length * s.stride for s in axes]))
    for j, s in enumerate(axes):
        y = slice_(y, before + j, s.padding - s.begin * s.stride, s.size)
    return y


def geometry(kernel: Shape, size: Shape, stride: Shape, padding: Shape, dilation: Shape) -> list[Steps]:
    """Return the `Steps` of each axis."""
    return [Steps(*each) for each in zip(kernel, size, stride, padding, dilation, strict=True)]


__all__ = ["col2im", "im2col"]

Pair = tuple[int, int]
Sizes = tuple[int, ...]  # one for each axis after the channels
Ints = int | Sequence[int]
# By the number of axes after the channels
KINDS = {1: ("sequences", "[B,C,L]"), 2: ("images", "[B,C,H,W]"), 3: ("volumes", "[B,C,D,H,W]")}
COUNTS = {1: "one integer", 2: "one or two integers", 3: "one or three integers"}


def int_each(what: str, value: Ints, least: int, n: int) -> Sizes:
    """Return one integer for each of `n` axes, given one for all axes or one each. Raises ShapeError below `least`."""
    for k in value if isinstance(value, tuple) else (value,):
        if str(getattr(k, "dtype", "")).startswith("f"):  # PyTorch's third argument
            raise ShapeError(
                f"{what} must be {COUNTS[n]}, got {shown(k)}; a bias is added to the result, as in "
                f"conv{n}d(x, w) + b[:{', None' * n}]"
            )
    many = whole(value) is None and hasattr(value, "__iter__") and not isinstance(value, str)
    each = [whole(k) for k in cast("Sequence[object]", value)] if many else [whole(value)] * n
    if len(each) != n or any(k is None or k < least for k in each):
        hint = "; (kernel - 1) // 2 keeps the size with stride 1" if value == "same" else ""
        raise ShapeError(f"{what} must be {COUNTS[n]} of at least {least}, got {value!r}{hint}")
    return cast("Sizes", tuple(each))


def int_pair(what: str, value: Ints, least: int) -> Pair:
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
    """Return the windows along each axis: floor((n + 2*p - d * (k - 1) - 1) / s) + 1. Raises ShapeError below 1."""
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
    if stride == kernel and set(dilation) == {1}:  # windows do not overlap: the result is a view
        y = permute(x, (0, 1, *[d + j for j in range(n) for d in (2, 2 + n)]))
        y = reshape(y, (*x.shape[:2], *[x.shape[2 + j] * k for j, k in enumerate(kernel)]))
        for j, m in enumerate(padded):
            y = place(y, 2 + j, 0, m)
    else:
        axes = geometry(kernel, size, stride, padding, dilation)
        return by_phases(axes, partial(_overlapped, x, axes), 2)
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


def windows_of(x: Any, kernel: tuple[int, int], stride: Ints, padding: Ints, dilation: Ints) -> Tensor:
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
def im2col(x: Any, kernel: Ints, stride: Ints = 1, padding: Ints = 0) -> Tensor:
    """Return the windows of an image as rows; windows read zeros outside the image.

    x:        f32 [B, C, H, W].
    kernel, stride, padding: (kh, kw), s and p; each an integer, or one for height and one for width.
    Returns:  f32 [B, oh*ow, C*kh*kw]: a row for each window, with its kh x kw elements of each channel. There are
              oh = floor((H + 2*p - kh) / s) + 1 rows of windows, and likewise ow columns.
    Gradient: to each element of `x`, summed over the windows that contain it: `col2im`.
    Raises:   ShapeError if no window fits or `x` has another rank; DTypeError if `x` is not f32.

    As torch.nn.functional.unfold with the last two axes exchanged.

    >>> tg.im2col([[[[0.0, 1.0, 2.0], [3.0, 4.0, 5.0]]]], 2)
    tensor([[[0., 1., 3., 4.],
             [1., 2., 4., 5.]]])
    """
    windows = windows_of(x, int_pair("kernel", kernel, 1), stride, padding, 1)
    b, c, oh, ow, kh, kw = windows.shape
    return reshape(permute(windows, (0, 2, 3, 1, 4, 5)), (b, oh * ow, c * kh * kw))


@op
def col2im(columns: Any, shape: Sequence[int], kernel: Ints, stride: Ints = 1, padding: Ints = 0) -> Tensor:
    """Add rows of windows, as `im2col` returns them, into an image.

    This is the transpose of `im2col`, not its inverse: each element of a window is added to the pixel from which
    `im2col` reads it. Pixels that several windows share get the sum.

    columns:  f32 [B, oh*ow, C*kh*kw].
    shape:    (B, C, H, W), the shape of the image.
    kernel, stride, padding: as for `im2col`.
    Returns:  f32 [B, C, H, W].
    Gradient: `im2col` of the result's gradient.
    Raises:   ShapeError if `columns` does not have the shape of these windows; DTypeError if it is not f32.

    As torch.nn.functional.fold with the last two axes of its input exchanged.

    >>> tg.col2im(tg.ones((1, 2, 4)), (1, 1, 2, 3), 2)    # two windows share the middle column
    tensor([[[[1., 2., 1.],
              [1., 2., 1.]]]])
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
