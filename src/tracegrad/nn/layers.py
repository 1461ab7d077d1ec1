"""The usual layers. Each declares its parameters and is called: `layer(x)`."""

from __future__ import annotations

from collections.abc import Sequence

from tracegrad import init as inits
from tracegrad.errors import ShapeError
from tracegrad.init import Initializer
from tracegrad.ir import Tensor
from tracegrad.nn.module import Module
from tracegrad.ops import images, indexing, linalg, norm
from tracegrad.shapes import integers, whole


class Linear(Module):
    """y = x W + b. PyTorch's Linear, but W is [in, out], as it is multiplied.

    x: f32[..., in_dim]; the result is f32[..., out_dim].
    W: f32[in_dim, out_dim], from `init`, default randn(0.02); `decay` is about W.  b: f32[out_dim], zeros.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        bias: bool = True,
        init: Initializer | None = None,
        decay: bool | None = None,
    ) -> None:
        self.W = self.param((in_dim, out_dim), init=init, decay=decay)
        self.b = self.param(out_dim, init=inits.zeros()) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to f32[..., in_dim]; ShapeError if the last axis differs."""
        y = linalg.matmul(x, self.W)
        return y if self.b is None else y + self.b


class LayerNorm(Module):
    """(x - mean) / sqrt(var + eps) * g + b over the last axis (Ba et al. 2016). PyTorch's LayerNorm.

    x: f32[..., dim].  g: f32[dim], ones.  b: f32[dim], zeros. `decay` is about both.
    """

    def __init__(self, dim: int, eps: float = 1e-5, bias: bool = True, decay: bool | None = False) -> None:
        self.eps = eps
        self.g = self.param(dim, init=inits.ones(), decay=decay)
        self.b = self.param(dim, init=inits.zeros(), decay=decay) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise each vector of f32[..., dim]."""
        return norm.layer_norm(x, self.g, self.b, eps=self.eps)


class RMSNorm(Module):
    """x / sqrt(mean(x^2) + eps) * g over the last axis (Zhang & Sennrich 2019). PyTorch's RMSNorm.

    x: f32[..., dim].  g: f32[dim], ones.
    """

    def __init__(self, dim: int, eps: float = 1e-6, decay: bool | None = False) -> None:
        self.eps = eps
        self.g = self.param(dim, init=inits.ones(), decay=decay)

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise each vector of f32[..., dim]."""
        return norm.rms_norm(x, self.g, eps=self.eps)


class Embedding(Module):
    """Row `indices[...]` of a table. PyTorch's Embedding.

    indices: i32[...], in [0, vocab); the result is f32[..., dim].
    W: f32[vocab, dim], from `init`, default randn(0.02).
    """

    def __init__(self, vocab: int, dim: int, init: Initializer | None = None, decay: bool | None = None) -> None:
        self.W = self.param((vocab, dim), init=init, decay=decay)

    def __call__(self, indices: Tensor) -> Tensor:
        """Look up i32[...]."""
        return indexing.embedding(self.W, indices)


class Conv2d(Module):
    """Cross-correlation of images, NCHW, plus a bias for each output channel. PyTorch's Conv2d.

    x: f32[B, in_ch, H, W]; the result is f32[B, out_ch, H', W'], H' = floor((H + 2 padding - kernel) / stride) + 1.
    W: f32[out_ch, in_ch/groups, kh, kw], from `init`, default randn(0.02); `decay` is about W.  b: f32[out_ch], zeros.
    kernel_size, stride and padding are an integer or one for each of the two axes.
    """

    def __init__(
        self,
        in_ch: int,
        out_ch: int,
        kernel_size: int | Sequence[int],
        *,
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] = 0,
        groups: int = 1,
        bias: bool = True,
        init: Initializer | None = None,
        decay: bool | None = None,
    ) -> None:
        if groups < 1 or in_ch % groups or out_ch % groups:
            raise ShapeError.here(f"Conv2d: groups={groups} must divide both in_ch={in_ch} and out_ch={out_ch}")
        self.stride, self.padding, self.groups = _pair("stride", stride), _pair("padding", padding), groups
        self.W = self.param((out_ch, in_ch // groups, *_pair("kernel_size", kernel_size)), init=init, decay=decay)
        self.b = self.param(out_ch, init=inits.zeros()) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """Apply to f32[B, in_ch, H, W]."""
        y = images.conv2d(x, self.W, stride=self.stride, padding=self.padding, groups=self.groups)
        return y if self.b is None else y + self.b.reshape(1, -1, 1, 1)


def _pair(what: str, value: int | Sequence[int]) -> tuple[int, int]:
    try:
        n = whole(value)
        pair = (n, n) if n is not None else integers(value, what)
    except ShapeError as e:
        raise ShapeError.here(f"Conv2d: {e}") from None
    if len(pair) != 2:
        raise ShapeError.here(f"Conv2d: {what} must be an integer or two, for height and width, got {value!r}")
    return pair[0], pair[1]
