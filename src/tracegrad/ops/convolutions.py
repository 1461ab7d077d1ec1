"""Convolution of images (NCHW), volumes (NCDHW) and sequences (NCL).

A convolution is a matmul of the filters with windows of the image, which are a view. The forward, the transpose and the
weight gradient are three such matmuls. Each is a derivative of the other two, so gradients of any order stay matmuls.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from tracegrad.dtypes import TensorType
from tracegrad.errors import ShapeError
from tracegrad.ir.nodes import Primitive, Tensor, bind
from tracegrad.methods import op
from tracegrad.ops import windows
from tracegrad.ops.windows import Ints, Phases, Sizes
from tracegrad.prims.folds import MATMUL
from tracegrad.prims.leaves import as_tensor
from tracegrad.prims.maps import composite, float_type
from tracegrad.prims.rules import merged, multilinear, spread
from tracegrad.prims.views import broadcast_to, permute, place, reshape, slice_

__all__ = ["conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d"]


# Convolution, batched over images and groups: [out, in*kh*kw] @ [in*kh*kw, oh*ow]
def _grouped(t: Tensor, axis: int, groups: int) -> Tensor:
    """Split `axis` into (groups, channels of a group)."""
    return reshape(t, (*t.shape[:axis], groups, t.shape[axis] // groups, *t.shape[axis + 1 :]))


def _channels(x: TensorType, w: TensorType, axes: int, groups: int, per_group: int) -> None:
    if w.ndim != axes + 2:
        raise ShapeError(f"w must be filters of rank {axes + 2}, got {w}")
    float_type(w)
    if groups < 1 or w.shape[0] % groups or x.shape[1] != per_group * groups:
        last = x.shape[-1] == per_group * groups != x.shape[1]
        kind, layout = windows.KINDS[axes]
        moved = (0, axes + 1, *range(1, axes + 1))
        hint = f"; {kind} are {layout}, so write x.permute{moved} for channels last" if last else ""
        raise ShapeError(
            f"channels do not fit: x is {x}, w is {w}, groups={groups}; "
            f"x has {x.shape[1]} channels, w takes {per_group} in each of {groups} groups{hint}"
        )


def _conv_type(
    x: TensorType, w: TensorType, *, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> TensorType:
    n = len(stride)
    windows.check_images(x, n)
    _channels(x, w, n, groups, w.shape[1] if w.ndim == n + 2 else 0)
    counts = windows.window_counts(x.shape[2:], w.shape[2:], stride, padding, dilation)
    return TensorType(x.dtype, (x.shape[0], w.shape[0], *counts))


def _conv(x: Tensor, w: Tensor, *, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int) -> Tensor:
    b, o, n = x.shape[0], w.shape[0], len(stride)
    patches = bind(windows.WINDOWS, x, kernel=w.shape[2:], stride=stride, padding=padding, dilation=dilation)
    places = patches.shape[2 : 2 + n]
    inner = math.prod(w.shape[1:])
    columns = permute(patches, (0, 1, *range(2 + n, 2 + 2 * n), *range(2, 2 + n)))
    columns = reshape(columns, (b, groups, inner, math.prod(places)))
    filters = broadcast_to(reshape(w, (1, groups, o // groups, inner)), (b, groups, o // groups, inner))
    return reshape(bind(MATMUL, filters, columns), (b, o, *places))


def _conv_vjp(ct: Tensor, y: Tensor, x: Tensor, w: Tensor, **how: Any) -> tuple[Tensor, Tensor]:
    n = len(how["stride"])
    return (
        bind(CONV_TRANSPOSE[n], ct, w, size=x.shape[2:], **how),
        bind(CONV_WEIGHT[n], x, ct, kernel=w.shape[2:], **how),
    )


def _abreast(x: Tensor, n: int) -> Tensor:
    """Join `n` batches of images along the channels: [n, B, C, ...] -> [B, n*C, ...]."""
    x = permute(spread(n, x), (1, 0, *range(2, x.ndim)))
    return reshape(x, (x.shape[0], n * x.shape[2], *x.shape[3:]))


def _conv_batch(n: int, y: Tensor, x: Tensor, w: Tensor, *, groups: int, **how: Any) -> Tensor:
    """Map a convolution over `n` elements: with one filter for all, as `n` times the images; else the groups."""
    if w.shape[0] == 1:
        return merged(n, y, x, reshape(w, w.shape[1:]), groups=groups, **how)
    w = reshape(w, (n * w.shape[1], *w.shape[2:]))
    z = bind(y.prim, _abreast(x, n), w, groups=n * groups, **how)
    return permute(reshape(z, (z.shape[0], n, *y.shape[1:])), (1, 0, *range(2, y.ndim + 1)))


def _transpose_type(
    x: TensorType, w: TensorType, *, size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> TensorType:
    n = len(size)
    windows.check_images(x, n)
    _channels(x, w, n, groups, w.shape[0] // groups if w.ndim == n + 2 and groups > 0 else 0)
    if min(size) < 0 or windows.window_counts(size, w.shape[2:], stride, padding, dilation) != x.shape[2:]:
        raise ShapeError(f"an image of {windows.by(size)} does not have {windows.by(x.shape[2:])} windows: x is {x}")
    return TensorType(x.dtype, (x.shape[0], w.shape[1] * groups, *size))


def _conv_transpose(
    x: Tensor, w: Tensor, *, size: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Tensor:
    b, c, n = x.shape[0], w.shape[1], len(size)
    axes = windows.geometry(w.shape[2:], size, stride, padding, dilation)
    w = _grouped(w, 0, groups)  # [groups, o, c, *kernel]

    def product(phases: Sequence[Phases]) -> Tensor:
        """Return the product for one phase of each axis: [b, groups, c, *counts, *lengths]."""
        patches, filters = x, w
        for j, (steps, p) in enumerate(zip(axes, phases)):
            patches = steps.windows(patches, 2 + j, p)
            filters = steps.filters(filters, 3 + 2 * j, p)
        counts, taps = [p.count for p in phases], [p.taps for p in phases]
        lengths = [steps.length for steps in axes]
        inner = filters.shape[1] * math.prod(taps)
        columns = permute(_grouped(patches, 1, groups), (0, 1, 2, *range(3 + n, 3 + 2 * n), *range(3, 3 + n)))
        columns = reshape(columns, (b, groups, inner, math.prod(lengths)))
        filters = permute(filters, (0, 2, *range(3, 3 + 2 * n, 2), 1, *range(4, 4 + 2 * n, 2)))
        filters = reshape(filters, (1, groups, c * math.prod(counts), inner))
        filters = broadcast_to(filters, (b, *filters.shape[1:]))
        return reshape(bind(MATMUL, filters, columns), (b, groups, c, *counts, *lengths))

    y = windows.by_phases(axes, product, 3)
    return reshape(y, (b, groups * c, *size))


def _transpose_vjp(ct: Tensor, y: Tensor, x: Tensor, w: Tensor, *, size: Sizes, **how: Any) -> tuple[Tensor, Tensor]:
    n = len(size)
    return bind(CONV[n], ct, w, **how), bind(CONV_WEIGHT[n], ct, x, kernel=w.shape[2:], **how)


# Gradient of the filters: the windows of x times the cotangent of the convolution, summed over images and positions
def _conv_weight(
    x: Tensor, ct: Tensor, *, kernel: Sizes, stride: Sizes, padding: Sizes, dilation: Sizes, groups: int
) -> Tensor:
    (b, o, *places), n = ct.shape, len(kernel)
    c, count = x.shape[1] // groups, b * math.prod(places)
    patches = bind(windows.WINDOWS, x, kernel=kernel, stride=stride, padding=padding, dilation=dilation)
    columns = permute(_grouped(patches, 1, groups), (1, 0, *range(3, 3 + n), 2, *range(3 + n, 3 + 2 * n)))
    columns = reshape(columns, (groups, count, c * math.prod(kernel)))
    rows = permute(_grouped(ct, 1, groups), (1, 2, 0, *range(3, 3 + n)))
    rows = reshape(rows, (groups, o // groups, count))
    return reshape(bind(MATMUL, rows, columns), (o, c, *kernel))


def _conv_weight_type(x: TensorType, ct: TensorType, *, kernel: Sizes, groups: int, **_: Any) -> TensorType:
    return TensorType(x.dtype, (ct.shape[1], x.shape[1] // groups, *kernel))


def _conv_weight_vjp(
    dw: Tensor, y: Tensor, x: Tensor, ct: Tensor, *, kernel: Sizes, **how: Any
) -> tuple[Tensor, Tensor]:
    n = len(kernel)
    return bind(CONV_TRANSPOSE[n], ct, dw, size=x.shape[2:], **how), bind(CONV[n], x, dw, **how)


def _conv_weight_batch(n: int, y: Tensor, x: Tensor, ct: Tensor, *, groups: int, **how: Any) -> Tensor:
    return reshape(bind(y.prim, _abreast(x, n), _abreast(ct, n), groups=n * groups, **how), (n, *y.shape))


# XLA has its own convolution. The other two are its transposes with respect to each operand. On a mesh, each device
# computes grouped convolutions of its own images, because XLA splits them wrongly
def _convolved(x: Any, t: Tensor, image: Any, w: Any) -> Any:
    how = t.attrs
    y = x.lax.conv_general_dilated(
        x.narrow(image),
        x.narrow(w),
        how["stride"],
        [(p, p) for p in how["padding"]],
        rhs_dilation=how["dilation"],
        feature_group_count=how["groups"],
    )
    return y.astype(t.dtype.numpy)


def _conv_xla(x: Any, t: Tensor, image: Any, w: Any) -> Any:
    return _by_images(x, t, partial(_convolved, x, t), [image], [w])


def _transpose_xla(x: Any, t: Tensor, ct: Any, w: Any) -> Any:
    def compute(ct: Any, w: Any) -> Any:
        image = x.jax.ShapeDtypeStruct((ct.shape[0], *t.shape[1:]), ct.dtype)
        return x.jax.linear_transpose(lambda image: _convolved(x, t, image, w), image)(ct)[0]

    return _by_images(x, t, compute, [ct], [w])


def _conv_weight_xla(x: Any, t: Tensor, image: Any, ct: Any) -> Any:
    def compute(image: Any, ct: Any) -> Any:
        w = x.jax.ShapeDtypeStruct(t.shape, ct.dtype)
        return x.jax.linear_transpose(lambda w: _convolved(x, t, image, w), w)(ct)[0]

    return _by_images(x, t, compute, [image, ct], [], summed=True)


def _by_images(
    x: Any, t: Tensor, compute: Callable[..., Any], images: Sequence[Any], w: Sequence[Any], summed: bool = False
) -> Any:
    return compute(*images, *w) if t.attrs["groups"] == 1 else x.by_rows(compute, images, w, summed)


def _bilinear(name: str, type: Any, expand: Any, vjp: Any, xla: Any, batch: Any = _conv_batch) -> Primitive:
    return composite(name, type=type, expand=expand, vjp=vjp, jvp=multilinear, batch=batch, xla=xla)


# By the number of axes after the channels
CONV = {n: _bilinear(f"conv{n}d", _conv_type, _conv, _conv_vjp, _conv_xla) for n in (1, 2, 3)}
CONV_TRANSPOSE = {
    n: _bilinear(f"conv_transpose{n}d", _transpose_type, _conv_transpose, _transpose_vjp, _transpose_xla)
    for n in (1, 2, 3)
}
CONV_WEIGHT = {
    n: _bilinear(name, _conv_weight_type, _conv_weight, _conv_weight_vjp, _conv_weight_xla, _conv_weight_batch)
    for n, name in ((1, "conv_weight1d"), (2, "conv_weight"), (3, "conv_weight3d"))
}


def _geometry(stride: Ints, padding: Ints, dilation: Ints, groups: int, axes: int = 2) -> dict[str, Any]:
    return {
        "stride": windows.int_each("stride", stride, 1, axes),
        "padding": windows.int_each("padding", padding, 0, axes),
        "dilation": windows.int_each("dilation", dilation, 1, axes),
        "groups": groups,
    }


@op
def conv2d(x: Any, w: Any, stride: Ints = 1, padding: Ints = 0, groups: int = 1, dilation: Ints = 1) -> Tensor:
    """Cross-correlate images with filters, as torch.nn.functional.conv2d without bias.

    out[b, o, i, j] = sum over c, k, l of x[b, c, i*s + k*d - p, j*s + l*d - p] w[o, c, k, l], for groups = 1

    x:        f32 [B, C, H, W]. Pixels outside of the image count as 0.
    w:        f32 [O, C/groups, kh, kw]: O filters of height kh and width kw.
    stride, padding, dilation: s, p and d. Each is an integer, or a pair (for the height, for the width).
    groups:   a divisor of C and O. Channels and filters are split into groups, and filters read their own group only.
              PyTorch has `dilation` before `groups`, so pass both by name.
    Returns:  f32 [B, O, oh, ow], oh = floor((H + 2*p - d * (kh - 1) - 1) / s) + 1, and ow likewise from W and kw.
    Gradient: with dy the result's gradient, to `x` conv_transpose2d(dy, w); to `w`, `x` cross-correlated with dy.
    Raises:   ShapeError if ranks, channels or sizes do not fit; DTypeError unless `x` and `w` are f32.

    >>> tg.conv2d([[[[1.0, 2.0, 3.0]]]], [[[[1.0, 10.0]]]])        # [B, C, H, W] is [1, 1, 1, 3]
    tensor([[[[21., 32.]]]])
    """
    return bind(CONV[2], as_tensor(x), as_tensor(w), **_geometry(stride, padding, dilation, groups))


@op
def conv1d(x: Any, w: Any, stride: int = 1, padding: int = 0, groups: int = 1, dilation: int = 1) -> Tensor:
    """Cross-correlate sequences with filters, as torch.nn.functional.conv1d without bias.

    out[b, o, i] = sum over c, k of x[b, c, i*s + k*d - p] w[o, c, k], for groups = 1

    x:        f32 [B, C, L]. Elements outside of the sequence count as 0.
    w:        f32 [O, C/groups, K]: O filters of K elements.
    stride, padding, dilation: s, p and d, integers.
    groups:   a divisor of C and O: filters read only the channels of their own group. PyTorch has `dilation` before
              `groups`, so pass both by name.
    Returns:  f32 [B, O, floor((L + 2*p - d * (K - 1) - 1) / s) + 1].
    Gradient: with dy the result's gradient, to `x` conv_transpose1d(dy, w); to `w`, `x` cross-correlated with dy.
    Raises:   ShapeError if ranks, channels or sizes do not fit; DTypeError unless `x` and `w` are f32.

    >>> tg.conv1d([[[1.0, 2.0, 3.0]]], [[[1.0, 10.0]]])
    tensor([[[21., 32.]]])
    """
    return bind(CONV[1], as_tensor(x), as_tensor(w), **_geometry(stride, padding, dilation, groups, 1))


@op
def conv3d(x: Any, w: Any, stride: Ints = 1, padding: Ints = 0, groups: int = 1, dilation: Ints = 1) -> Tensor:
    """Cross-correlate volumes with filters, as torch.nn.functional.conv3d without bias.

    out[b, o, t, i, j] = sum over c, m, n, l of x[b, c, t*s + m*d - p, i*s + n*d - p, j*s + l*d - p] w[o, c, m, n, l]

    x:        f32 [B, C, D, H, W]: depth D, height H and width W. Elements outside of the volume count as 0.
    w:        f32 [O, C/groups, kd, kh, kw]: O filters.
    stride, padding, dilation: s, p and d. Each is an integer, or three, for depth, height and width.
    groups:   a divisor of C and O: filters read only the channels of their own group. The equation is for groups = 1.
              PyTorch has `dilation` before `groups`, so pass both by name.
    Returns:  f32 [B, O, od, oh, ow], od = floor((D + 2*p - d * (kd - 1) - 1) / s) + 1, and oh and ow likewise.
    Gradient: with dy the result's gradient, to `x` conv_transpose3d(dy, w); to `w`, `x` cross-correlated with dy.
    Raises:   ShapeError if ranks, channels or sizes do not fit; DTypeError unless `x` and `w` are f32.

    >>> tg.conv3d(tg.ones((1, 1, 4, 4, 4)), tg.ones((2, 1, 3, 3, 3))).shape
    (1, 2, 2, 2, 2)
    """
    return bind(CONV[3], as_tensor(x), as_tensor(w), **_geometry(stride, padding, dilation, groups, 3))


@op
def conv_transpose2d(
    x: Any,
    w: Any,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """Apply the transpose of `conv2d`, as torch.nn.functional.conv_transpose2d without bias.

    Each element of x adds scaled filters to out, which begins as zeros. Places outside of out are skipped.
    out[b, c, i*s + k*d - p, j*s + l*d - p] += x[b, o, i, j] w[o, c, k, l]

    x:        f32 [B, O, H, W], with a channel for each filter of `w`.
    w:        f32 [O, C/groups, kh, kw], as for `conv2d`.
    stride, padding, groups, dilation: s, p, groups and d, as for `conv2d`. The equation is for groups = 1.
    output_padding: rows and columns added at the bottom and right, below max(s, d); an integer or a pair.
    Returns:  f32 [B, C, oh, ow], oh = (H - 1) * s - 2*p + d * (kh - 1) + output_padding + 1; ow likewise from W, kw.
    Gradient: with dy the result's gradient, to `x` conv2d(dy, w); to `w`, dy cross-correlated with `x`.
    Raises:   ShapeError if ranks, channels or sizes do not fit; DTypeError unless `x` and `w` are f32.

    >>> tg.conv_transpose2d([[[[1.0, 2.0]]]], tg.ones((1, 1, 1, 2)), stride=2)
    tensor([[[[1., 1., 2., 2.]]]])
    """
    how = _geometry(stride, padding, dilation, groups)
    return _transposed(as_tensor(x), as_tensor(w), output_padding, how)


@op
def conv_transpose1d(
    x: Any, w: Any, stride: int = 1, padding: int = 0, output_padding: int = 0, groups: int = 1, dilation: int = 1
) -> Tensor:
    """Apply the transpose of `conv1d`, as torch.nn.functional.conv_transpose1d without bias.

    Each element of x adds scaled filters to out, which begins as zeros. Places outside of out are skipped.
    out[b, c, i*s + k*d - p] += x[b, o, i] w[o, c, k]

    x:        f32 [B, O, L], with a channel for each filter of `w`.
    w:        f32 [O, C/groups, K], as for `conv1d`.
    stride, padding, groups, dilation: s, p, groups and d, as for `conv1d`. The equation is for groups = 1.
    output_padding: elements added at the end, below max(s, d).
    Returns:  f32 [B, C, (L - 1) * s - 2*p + d * (K - 1) + output_padding + 1].
    Gradient: with dy the result's gradient, to `x` conv1d(dy, w); to `w`, dy cross-correlated with `x`.
    Raises:   ShapeError if ranks, channels or sizes do not fit; DTypeError unless `x` and `w` are f32.

    >>> tg.conv_transpose1d([[[1.0, 2.0]]], tg.ones((1, 1, 3)), stride=2)
    tensor([[[1., 1., 3., 2., 2.]]])
    """
    how = _geometry(stride, padding, dilation, groups, 1)
    return _transposed(as_tensor(x), as_tensor(w), output_padding, how)


@op
def conv_transpose3d(
    x: Any,
    w: Any,
    stride: Ints = 1,
    padding: Ints = 0,
    output_padding: Ints = 0,
    groups: int = 1,
    dilation: Ints = 1,
) -> Tensor:
    """Apply the transpose of `conv3d`, as torch.nn.functional.conv_transpose3d without bias.

    out[b, c, t*s + m*d - p, i*s + n*d - p, j*s + l*d - p] += x[b, o, t, i, j] w[o, c, m, n, l]

    x:        f32 [B, O, D, H, W], with a channel for each filter of `w`.
    w:        f32 [O, C/groups, kd, kh, kw], as for `conv3d`.
    stride, padding, groups, dilation: s, p, groups and d, as for `conv3d`. The equation is for groups = 1.
    output_padding: elements added at the end of each axis, below max(s, d); an integer or three.
    Returns:  f32 [B, C, od, oh, ow], od = (D - 1) * s - 2*p + d * (kd - 1) + output_padding + 1; oh and ow likewise.
    Gradient: with dy the result's gradient, to `x` conv3d(dy, w); to `w`, dy cross-correlated with `x`.
    Raises:   ShapeError if ranks, channels or sizes do not fit; DTypeError unless `x` and `w` are f32.

    >>> tg.conv_transpose3d(tg.ones((1, 1, 2, 2, 2)), tg.ones((1, 3, 3, 3, 3)), stride=2).shape
    (1, 3, 5, 5, 5)
    """
    how = _geometry(stride, padding, dilation, groups, 3)
    return _transposed(as_tensor(x), as_tensor(w), output_padding, how)


def _transposed(x: Tensor, w: Tensor, output_padding: Ints, how: dict[str, Any]) -> Tensor:
    axes = len(how["stride"])
    extra = windows.int_each("output_padding", output_padding, 0, axes)
    if x.ndim != axes + 2 or w.ndim != axes + 2:
        raise ShapeError(f"x and w must have rank {axes + 2}, got {x.type} and {w.type}")
    strides, pads, dilations = how["stride"], how["padding"], how["dilation"]
    full = [(n - 1) * s + d * (k - 1) + 1 for n, k, s, d in zip(x.shape[2:], w.shape[2:], strides, dilations)]
    size = tuple([n - 2 * p + e for n, p, e in zip(full, pads, extra)])
    for e, s, d in zip(extra, strides, dilations):
        if e >= max(s, d):
            raise ShapeError(f"output_padding {e} must be less than stride {s} or dilation {d}")
    if min(size) < 1:
        raise ShapeError(f"padding {windows.by(pads)} leaves none of the {windows.by(full)} elements: x is {x.type}")
    if all(e < s for e, s in zip(extra, strides)):
        return bind(CONV_TRANSPOSE[axes], x, w, size=size, **how)
    # With output_padding, one more window may fit: compute all elements that filters reach, then take the requested
    # ones
    y = bind(CONV_TRANSPOSE[axes], x, w, size=tuple(full), **{**how, "padding": (0,) * axes})
    for axis, n, p in zip(range(2, y.ndim), size, pads):
        y = place(slice_(y, axis, p, max(min(n, y.shape[axis] - p), 0)), axis, 0, n)
    return y
