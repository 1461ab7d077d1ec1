"""Convolution layers for sequences, images and volumes, and their transposes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from tracegrad import init as inits
from tracegrad.dtypes import check_integers, integers, show, whole
from tracegrad.errors import ShapeError
from tracegrad.initializer import Initializer
from tracegrad.ir.nodes import Tensor
from tracegrad.nn.module import Module
from tracegrad.ops import convolutions
from tracegrad.ops.windows import Sizes

__all__ = ["Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"]

AXES = {1: "the length", 2: "height and width", 3: "depth, height and width"}
WORDS = {1: "an integer", 2: "an integer or two", 3: "an integer or three"}


class _Windowed(Module):
    """A layer whose filter moves over `axes` axes."""

    axes: ClassVar[int]
    stride: Sizes
    padding: Sizes
    dilation: Sizes
    groups: int
    W: Tensor
    b: Tensor | None

    def _geometry(
        self, in_ch: int, out_ch: int, kernel_size: Any, stride: Any, padding: Any, dilation: Any, groups: int
    ) -> Sizes:
        """Set stride, padding, dilation and groups. Returns the sizes of the kernel."""
        check_integers(type(self).__name__, in_ch=in_ch, out_ch=out_ch, groups=groups)
        if groups < 1 or in_ch % groups or out_ch % groups:
            name = type(self).__name__
            raise ShapeError.here(f"{name}: groups={groups} must divide both in_ch={in_ch} and out_ch={out_ch}")
        self.stride, self.dilation = self._each("stride", stride), self._each("dilation", dilation)
        kernel, self.groups = self._each("kernel_size", kernel_size), groups
        padding = 0 if padding == "valid" else padding
        self.padding = self._same(kernel) if padding == "same" else self._each("padding", padding)
        return kernel

    def _same(self, kernel: Sizes) -> Sizes:
        """Return the padding for a result of the input's sizes. Raises ShapeError if there is none."""
        added = [d * (k - 1) for d, k in zip(self.dilation, kernel)]
        if {*self.stride} != {1} or any(n % 2 for n in added):
            raise ShapeError.here(
                f"{type(self).__name__}: padding='same' needs stride 1 and an even dilation * (kernel_size - 1), "
                f"got stride {show(self.stride)} and {show(added)}; otherwise pad with tg.pad first"
            )
        return tuple([n // 2 for n in added])

    def _applied(self, ops: Sequence[Any], x: Tensor, *sizes: Sizes) -> Tensor:
        """Apply the op for this number of axes, and add the bias. Ops of one axis take integers instead of tuples."""
        *how, dilation = [each[0] if self.axes == 1 else each for each in (*sizes, self.dilation)]
        y = ops[self.axes - 1](x, self.W, *how, self.groups, dilation)
        return y if self.b is None else y + self.b.reshape(1, -1, *(1,) * self.axes)

    def _each(self, what: str, value: int | Sequence[int]) -> Sizes:
        """Return one integer for each axis. Raises ShapeError for any other value."""
        name = type(self).__name__
        try:
            n = whole(value)
            each = (n,) * self.axes if n is not None else integers(value, what)
        except ShapeError as e:
            raise ShapeError.here(f"{name}: {e}") from None
        if len(each) != self.axes:
            words = f"{WORDS[self.axes]}, for {AXES[self.axes]}"
            raise ShapeError.here(f"{name}: {what} must be {words}, got {value!r}")
        least = 0 if "padding" in what else 1
        if min(each) < least:
            raise ShapeError.here(f"{name}: {what} must be at least {least}, got {value!r}")
        return tuple(each)


class _Convolution(_Windowed):
    """The common part of Conv1d, Conv2d and Conv3d."""

    def __init__(
        self,
        in_ch: int,
        out_ch: int,
        kernel_size: int | Sequence[int],
        *,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | Literal["same", "valid"] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        init: Initializer | None = None,
        decay: bool | None = None,
        trainable: bool = True,
    ) -> None:
        kernel = self._geometry(in_ch, out_ch, kernel_size, stride, padding, dilation, groups)
        shape = (out_ch, in_ch // groups, *kernel)
        self.W = self.param(shape, init=inits.kaiming() if init is None else init, decay=decay, trainable=trainable)
        self.b = self.param(out_ch, init=inits.zeros(), trainable=trainable) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the convolution to [B, in_ch, *sizes]; see the class."""
        ops: Sequence[Any] = (convolutions.conv1d, convolutions.conv2d, convolutions.conv3d)
        return self._applied(ops, x, self.stride, self.padding)


class Conv1d(_Convolution):
    """Cross-correlation of sequences (NCL), plus a bias for each output channel. As torch.nn.Conv1d.

    x: f32[B, in_ch, length]; the result is f32[B, out_ch, length'], with
       length' = floor((length + 2 padding - dilation (kernel_size - 1) - 1) / stride) + 1.
    W: f32[out_ch, in_ch/groups, kernel_size], from `init`, default tg.init.kaiming().
    b: f32[out_ch], at first zeros. With bias=False, the layer has no b.
    kernel_size, stride, padding, dilation: each an integer, or a sequence of one. padding="same" keeps the length.
               It needs stride 1 and an even product dilation * (kernel_size - 1). padding="valid" is 0.
    groups:    a divisor of in_ch and out_ch. Channels are split into this many groups, and an output group reads only
               the input group of the same index.
    decay:     whether weight decay applies to W; None: `nn.decays` decides.
    trainable: False: no step changes W and b.
    Raises:    ShapeError for sizes or a stride below 1, if `groups` does not divide in_ch and out_ch, and if "same" is
               not possible; when called, if x does not fit.

    >>> tg.instantiate(nn.Conv1d(3, 8, 3, padding=1), seed=0)(np.zeros((2, 3, 9), np.float32)).shape
    (2, 8, 9)
    """

    axes = 1


class Conv2d(_Convolution):
    """Cross-correlation of images (NCHW), plus a bias for each output channel. As torch.nn.Conv2d.

    x: f32[B, in_ch, height, width]; the result is f32[B, out_ch, height', width']. A size n becomes
       n' = floor((n + 2 padding - dilation (kernel_size - 1) - 1) / stride) + 1.
    W: f32[out_ch, in_ch/groups, *kernel_size], from `init`, default tg.init.kaiming().
    b: f32[out_ch], at first zeros. With bias=False, the layer has no b.
    kernel_size, stride, padding, dilation: an integer, or one for height and one for width. padding="same" keeps the
               sizes. It needs stride 1 and an even product dilation * (kernel_size - 1). padding="valid" is 0.
    groups:    a divisor of in_ch and out_ch. Channels are split into this many groups, and an output group reads only
               the input group of the same index.
    decay:     whether weight decay applies to W; None: `nn.decays` decides.
    trainable: False: no step changes W and b.
    Raises:    ShapeError for sizes or a stride below 1, if `groups` does not divide in_ch and out_ch, and if "same" is
               not possible; when called, if x does not fit.

    >>> tg.instantiate(nn.Conv2d(3, 8, 3, padding=1), seed=0)(np.zeros((2, 3, 9, 9), np.float32)).shape
    (2, 8, 9, 9)
    """

    axes = 2


class Conv3d(_Convolution):
    """Cross-correlation of volumes (NCDHW), plus a bias for each output channel. As torch.nn.Conv3d.

    x: f32[B, in_ch, depth, height, width]; the result is f32[B, out_ch, depth', height', width']. A size n becomes
       n' = floor((n + 2 padding - dilation (kernel_size - 1) - 1) / stride) + 1.
    W: f32[out_ch, in_ch/groups, *kernel_size], from `init`, default tg.init.kaiming().
    b: f32[out_ch], at first zeros. With bias=False, the layer has no b.
    kernel_size, stride, padding, dilation: an integer, or one for each of depth, height and width. padding="same" keeps
               the sizes. It needs stride 1 and an even product dilation * (kernel_size - 1). padding="valid" is 0.
    groups:    a divisor of in_ch and out_ch. Channels are split into this many groups, and an output group reads only
               the input group of the same index.
    decay:     whether weight decay applies to W; None: `nn.decays` decides.
    trainable: False: no step changes W and b.
    Raises:    ShapeError for sizes or a stride below 1, if `groups` does not divide in_ch and out_ch, and if "same" is
               not possible; when called, if x does not fit.

    >>> tg.instantiate(nn.Conv3d(3, 8, 3), seed=0)(np.zeros((2, 3, 5, 5, 5), np.float32)).shape
    (2, 8, 3, 3, 3)
    """

    axes = 3


class _Transpose(_Windowed):
    """The common part of ConvTranspose1d, ConvTranspose2d and ConvTranspose3d."""

    def __init__(
        self,
        in_ch: int,
        out_ch: int,
        kernel_size: int | Sequence[int],
        *,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        output_padding: int | Sequence[int] = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        init: Initializer | None = None,
        decay: bool | None = None,
        trainable: bool = True,
    ) -> None:
        kernel = self._geometry(in_ch, out_ch, kernel_size, stride, padding, dilation, groups)
        self.output_padding = self._each("output_padding", output_padding)
        terms = in_ch // groups * math.prod(kernel) / max(math.prod(self.stride), 1)
        init = inits.normal(0.0, math.sqrt(2.0 / max(terms, 1.0))) if init is None else init
        self.W = self.param((in_ch, out_ch // groups, *kernel), init=init, decay=decay, trainable=trainable)
        self.b = self.param(out_ch, init=inits.zeros(), trainable=trainable) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the transpose to [B, in_ch, *sizes]; see the class."""
        ops = (convolutions.conv_transpose1d, convolutions.conv_transpose2d, convolutions.conv_transpose3d)
        return self._applied(ops, x, self.stride, self.padding, self.output_padding)


class ConvTranspose1d(_Transpose):
    """The transpose of `Conv1d`, which makes sequences longer, plus a bias. As torch.nn.ConvTranspose1d.

    x: f32[B, in_ch, length]; the result is f32[B, out_ch, length'], with
       length' = (length - 1) stride - 2 padding + dilation (kernel_size - 1) + output_padding + 1.
    W: f32[in_ch, out_ch/groups, kernel_size], from `init`. By default W is normal with standard deviation sqrt(2 / k).
       k is the mean number of terms in an element of the result, in_ch/groups * kernel_size / stride, but at least 1.
    b: f32[out_ch], at first zeros. With bias=False, the layer has no b.
    kernel_size, stride, padding, output_padding, dilation: each an integer, or a sequence of one.
    groups:    a divisor of in_ch and out_ch: an output group reads only the input group of the same index.
    decay:     whether weight decay applies to W; None: `nn.decays` decides.
    trainable: False: no step changes W and b.
    Raises:    ShapeError for sizes or a stride below 1, and if `groups` does not divide in_ch and out_ch. When called,
               if x does not fit or `output_padding` is not below max(stride, dilation).

    >>> tg.instantiate(nn.ConvTranspose1d(3, 8, 4, stride=2, padding=1), seed=0)(np.zeros((2, 3, 5), np.float32)).shape
    (2, 8, 10)
    """

    axes = 1


class ConvTranspose2d(_Transpose):
    """The transpose of `Conv2d`, which makes images larger, plus a bias. As torch.nn.ConvTranspose2d.

    x: f32[B, in_ch, height, width]; the result is f32[B, out_ch, height', width']. A size n becomes
       n' = (n - 1) stride - 2 padding + dilation (kernel_size - 1) + output_padding + 1.
    W: f32[in_ch, out_ch/groups, *kernel_size], from `init`. By default W is normal with standard deviation sqrt(2 / k),
       where k = in_ch/groups * (product of kernel_size) / (product of stride), but at least 1.
       This k is the mean number of terms in an element of the result.
    b: f32[out_ch], at first zeros. With bias=False, the layer has no b.
    kernel_size, stride, padding, output_padding, dilation: an integer, or one for height and one for width.
    groups:    a divisor of in_ch and out_ch: an output group reads only the input group of the same index.
    decay:     whether weight decay applies to W; None: `nn.decays` decides.
    trainable: False: no step changes W and b.
    Raises:    ShapeError for sizes or a stride below 1, and if `groups` does not divide in_ch and out_ch. When called,
               if x does not fit or `output_padding` is not below max(stride, dilation).

    >>> tg.instantiate(nn.ConvTranspose2d(3, 8, 2, stride=2), seed=0)(np.zeros((2, 3, 4, 4), np.float32)).shape
    (2, 8, 8, 8)
    """

    axes = 2


class ConvTranspose3d(_Transpose):
    """The transpose of `Conv3d`, which makes volumes larger, plus a bias. As torch.nn.ConvTranspose3d.

    x: f32[B, in_ch, depth, height, width]; the result is f32[B, out_ch, depth', height', width']. A size n becomes
       n' = (n - 1) stride - 2 padding + dilation (kernel_size - 1) + output_padding + 1.
    W: f32[in_ch, out_ch/groups, *kernel_size], from `init`, by default as for `ConvTranspose2d`.
    b: f32[out_ch], at first zeros. With bias=False, the layer has no b.
    kernel_size, stride, padding, output_padding, dilation: an integer, or one for each of depth, height and width.
    groups:    a divisor of in_ch and out_ch: an output group reads only the input group of the same index.
    decay:     whether weight decay applies to W; None: `nn.decays` decides.
    trainable: False: no step changes W and b.
    Raises:    ShapeError for sizes or a stride below 1, and if `groups` does not divide in_ch and out_ch. When called,
               if x does not fit or `output_padding` is not below max(stride, dilation).

    >>> tg.instantiate(nn.ConvTranspose3d(3, 8, 2, stride=2), seed=0)(np.zeros((2, 3, 2, 2, 2), np.float32)).shape
    (2, 8, 4, 4, 4)
    """

    axes = 3
