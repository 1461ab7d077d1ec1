"""The usual layers. A layer declares its parameters, and is called as `layer(x)`.

Linear, LayerNorm, RMSNorm and Embedding take `trainable=False`: no step changes their parameters or computes a
gradient.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator
from typing import Any, cast, overload

from tracegrad import init as inits
from tracegrad.dtypes import check_integers
from tracegrad.errors import ShapeError, TraceError, is_function
from tracegrad.initializer import Initializer
from tracegrad.ir import ambient
from tracegrad.ir.nodes import Tensor
from tracegrad.nn.module import Module
from tracegrad.ops import constants, indexing, linalg, random, shaping
from tracegrad.ops.norm import batch_norm, layer_norm, rms_norm
from tracegrad.refusals import shown

__all__ = [
    "BatchNorm", "Dropout", "Embedding", "GroupNorm", "InstanceNorm", "LayerNorm", "Linear", "RMSNorm", "Sequential",
]  # fmt: skip


class Linear(Module):
    """The affine map y = x W + b. As torch.nn.Linear, but W is PyTorch's weight transposed.

    x: f32[..., in_dim]; the result is f32[..., out_dim].
    W: f32[in_dim, out_dim], from `init`, default tg.init.kaiming().
    b: f32[out_dim], at first zeros. With bias=False, the layer has no b.
    decay:     whether weight decay applies to W; None: `nn.decays` decides.
    trainable: False: no step changes W and b.
    Raises:    ShapeError for sizes below 1; when called, if the last axis of x has another size.

    >>> tg.instantiate(nn.Linear(2, 1, init=tg.init.ones()), seed=0)(np.array([[1.0, 2.0]], np.float32))
    tensor([[3.]], requires_grad=True)
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        bias: bool = True,
        init: Initializer | None = None,
        decay: bool | None = None,
        trainable: bool = True,
    ) -> None:
        init = inits.kaiming() if init is None else init
        self.W = self.param((in_dim, out_dim), init=init, decay=decay, trainable=trainable)
        self.b = self.param(out_dim, init=inits.zeros(), trainable=trainable) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the map to f32[..., in_dim]. Raises ShapeError if the last axis differs."""
        y = linalg.matmul(x, self.W)
        return y if self.b is None else y + self.b


class LayerNorm(Module):
    """Layer normalization, (x - mean) / sqrt(var + eps) * g + b over the last axis (Ba et al. 2016).

    x and the result: f32[..., dim]. Each vector along the last axis has its own mean and population variance.
    The parameters are g: f32[dim], at first ones, and b: f32[dim], at first zeros.
    dim:       the size of the last axis.
    eps:       at least 0; keeps the divisor above 0 where a vector is constant.
    bias:      False: there is no b.
    decay:     whether weight decay applies to g and b; None: `nn.decays` decides.
    trainable: False: no step changes g and b.
    Raises:    when called, ShapeError if the last axis of x has another size, InputError if `eps` is negative.
    As torch.nn.LayerNorm over the last axis.

    >>> tg.instantiate(nn.LayerNorm(2), seed=0)(np.array([[1.0, 3.0]], np.float32))
    tensor([[-0.999995,  0.999995]], requires_grad=True)
    """

    def __init__(
        self, dim: int, eps: float = 1e-5, bias: bool = True, decay: bool | None = None, trainable: bool = True
    ) -> None:
        self.eps = eps
        self.g = self.param(dim, init=inits.ones(), decay=decay, trainable=trainable)
        self.b = self.param(dim, init=inits.zeros(), decay=decay, trainable=trainable) if bias else None

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise each vector of f32[..., dim]."""
        return layer_norm(x, self.g, self.b, eps=self.eps)


class RMSNorm(Module):
    """Root-mean-square normalization, x / sqrt(mean(x^2) + eps) * g over the last axis.

    x and the result: f32[..., dim]. Each vector along the last axis has its own mean.
    g: f32[dim], at first ones.
    decay:     whether weight decay applies to g; None: `nn.decays` decides.
    trainable: False: no step changes g.
    Raises:    ShapeError if `dim` is below 1; when called, ShapeError if the last axis of x has another size,
               InputError if `eps` is negative.
    As torch.nn.RMSNorm (Zhang and Sennrich 2019). PyTorch's default `eps` is 1.2e-7.

    >>> tg.instantiate(nn.RMSNorm(2), seed=0)(np.array([[3.0, 4.0]], np.float32))
    tensor([[0.8485281, 1.1313708]], requires_grad=True)
    """

    def __init__(self, dim: int, eps: float = 1e-6, decay: bool | None = None, trainable: bool = True) -> None:
        self.eps = eps
        self.g = self.param(dim, init=inits.ones(), decay=decay, trainable=trainable)

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise each vector of f32[..., dim]."""
        return rms_norm(x, self.g, eps=self.eps)


class Embedding(Module):
    """A table W with a vector for each index: layer(indices) is W[indices]. As torch.nn.Embedding.

    indices: i32[...], in [0, vocab); the result is f32[..., dim]. In eager calls, negative indices from -vocab on count
       from the end, and others raise IndexError. An input with another index fails the run.
    W: f32[vocab, dim], from `init`, default tg.init.randn(0.02): its standard deviation is 0.02, PyTorch's is 1.
    decay:     whether weight decay applies to W; None: `nn.decays` decides.
    trainable: False: no step changes W.
    Raises:    ShapeError for sizes below 1; when called, DTypeError if the indices are f32, u32 or bool.

    >>> tg.instantiate(nn.Embedding(10, 4), seed=0)(np.array([[1, 2, 3]], np.int32)).shape
    (1, 3, 4)
    """

    def __init__(
        self,
        vocab: int,
        dim: int,
        init: Initializer | None = None,
        decay: bool | None = None,
        trainable: bool = True,
    ) -> None:
        self.W = self.param((vocab, dim), init=init, decay=decay, trainable=trainable)

    def __call__(self, indices: Tensor) -> Tensor:
        """Look up the rows of i32[...] indices."""
        return indexing.embedding(self.W, indices)


class Dropout(Module):
    """A layer that drops elements in training: layer(x, training=False) is `tg.dropout(x, p, training)`.

    p: the probability of dropping an element. Kept elements are divided by 1 - p. Without training=True the layer
       returns x.
    Raises: InputError if `p` is outside [0, 1].
    As torch.nn.Dropout (Srivastava et al. 2014), except that PyTorch's layer drops until you call its `eval()`.

    >>> tg.manual_seed(0)
    >>> nn.Dropout(0.5)(np.ones(6, np.float32), training=True)    # without parameters, so no tg.instantiate
    tensor([0., 0., 2., 0., 2., 0.])
    """

    def __init__(self, p: float = 0.5) -> None:
        self.p = random.probability(p, "Dropout: p")

    def __call__(self, x: Tensor, training: bool = False) -> Tensor:
        """Drop elements of `x`, f32 of any shape, if `training`; else return `x`."""
        return random.dropout(x, self.p, training)


class Sequential(Module):
    """A chain of layers and functions: each is called on the result of the previous one. As torch.nn.Sequential.

        net = nn.Sequential(nn.Linear(3, 16), nn.BatchNorm(16), tg.relu, nn.Dropout(0.1), nn.Linear(16, 2))
        y = m.net(x, training=True)                        # in a loss, whose model m has this net as an attribute

    A new net declares parameters and has no values yet, so you cannot call it. Call the model that a loss or forward
    receives, or the copy that `tg.instantiate(net, seed=0)` returns.

    net(x, training=False) passes `training` to the layers that take this argument. Parameters are named `layers.0.W`
    and so on. `net[0]` is the first layer, and `net[:-1]` a chain of all layers but the last, with the same parameters.
    Raises: TraceError for an entry that cannot be called.

    >>> net = nn.Sequential(nn.Linear(3, 4), tg.relu, nn.Linear(4, 1))
    >>> tg.instantiate(net, seed=0)(np.zeros((2, 3), np.float32)).shape
    (2, 1)
    """

    def __init__(self, *layers: Any) -> None:
        for k, layer in enumerate(layers):
            if not is_function(layer) or isinstance(layer, type):
                hint = ": make one of it, as in nn.Linear(3, 4)" if isinstance(layer, type) else ""
                hint = "; write nn.Sequential(*layers)" if isinstance(layer, (list, tuple)) else hint
                raise TraceError.here(f"Sequential: entry {k} must be a layer or a function, got {shown(layer)}{hint}")
        self.layers = list(layers)

    @overload
    def __getitem__(self, k: int) -> Any: ...
    @overload
    def __getitem__(self, k: slice) -> Sequential: ...
    def __getitem__(self, k: int | slice) -> Any:
        return Sequential(*self.layers[k]) if isinstance(k, slice) else self.layers[k]

    def __iter__(self) -> Iterator[Any]:
        return iter(self.layers)

    def __len__(self) -> int:
        return len(self.layers)

    def __bool__(self) -> bool:
        return True

    def __call__(self, x: Any, training: bool = False) -> Any:
        """Apply all layers in order, each to the result of the previous one."""
        for layer in self.layers:
            x = layer(x, training=training) if _switches(layer) else layer(x)
        return x


def _switches(layer: Callable[..., Any]) -> bool:
    """Return whether `layer` is a module whose call takes `training`."""
    return isinstance(layer, Module) and "training" in inspect.signature(type(layer).__call__).parameters


class BatchNorm(Module):
    """Batch normalization, (x - mean) / sqrt(var + eps) * g + b for each channel. As torch.nn.BatchNorm1d, 2d and 3d.

    layer(x, training=True), for a loss, normalizes by the mean and variance of the batch, and updates two states:

        mean <- (1 - momentum) mean + momentum * mean of the batch
        var  <- (1 - momentum) var + momentum * unbiased variance of the batch

    layer(x), for predictions, normalizes by these states (Ioffe & Szegedy 2015).

    x and the result: f32[B, dim, ...]; axis 1 has the channels.
    g, b:   f32[dim], at first ones and zeros. With affine=False, the layer has neither.
    states: mean f32[dim], at first zeros, and var f32[dim], at first ones. Two calls in one loss update them twice.
    Raises: ShapeError if `dim` is below 1; InputError if `momentum` is outside [0, 1]. When called, ShapeError if x has
            another number of channels, or in training only one value per channel; InputError if `eps` is negative.

    >>> tg.instantiate(nn.BatchNorm(3), seed=0)(np.ones((2, 3), np.float32)).shape
    (2, 3)
    """

    def __init__(self, dim: int, eps: float = 1e-5, momentum: float = 0.1, affine: bool = True) -> None:
        self.eps, self.momentum = eps, random.probability(momentum, "BatchNorm: momentum")
        self.g = self.param(dim, init=inits.ones()) if affine else None
        self.b = self.param(dim, init=inits.zeros()) if affine else None
        self.mean = self.state(dim)
        self.var = self.state(dim, init=inits.ones())

    def __call__(self, x: Tensor, training: bool = False) -> Tensor:
        """Normalise f32[B, dim, ...] by the running statistics, or in `training` by those of the batch.

        Raises: ShapeError for another number of channels, and in training if a channel has only one value.
        """
        x, channels = constants.asarray(x), self.mean.shape[0]
        if x.ndim < 2 or x.shape[1] != channels:
            raise ShapeError.here(f"BatchNorm: x must be [B, {channels}, ...], with {channels} channels, got {x.type}")
        if (trace := ambient.active()) is not None:
            trace.switched.append(("nn.BatchNorm", training, cast("Any", self.g)))
        if not training:
            return batch_norm(x, self.g, self.b, self.eps, mean=self.mean, var=self.var)
        axes = tuple(d for d in range(x.ndim) if d != 1)
        n = math.prod(x.shape[d] for d in axes)
        if n < 2:
            raise ShapeError.here(
                f"BatchNorm: {x.type} has one value per channel, so there is no variance; use a larger batch"
            )
        keep = 1.0 - self.momentum
        self.mean.assign(keep * self.mean + self.momentum * x.mean(axes))
        self.var.assign(keep * self.var + self.momentum * n / (n - 1) * x.var(axes))
        return batch_norm(x, self.g, self.b, self.eps)


class GroupNorm(Module):
    """Group normalization: (x - mean) / sqrt(var + eps) * g + b, over each group of channels of each example.

    x and the result: f32[B, dim, ...]. Axis 1 has the channels. Each of the `groups` groups of dim / groups
            neighbouring channels has its own mean and variance.
    g, b:   f32[dim], at first ones and zeros. With affine=False, the layer has neither.
    Raises: ShapeError if `groups` does not divide `dim`; when called, ShapeError if x has another number of channels,
            InputError if `eps` is negative.
    As torch.nn.GroupNorm (Wu & He 2018).

    >>> tg.instantiate(nn.GroupNorm(2, 4), seed=0)(np.zeros((1, 4, 3, 3), np.float32)).shape
    (1, 4, 3, 3)
    """

    def __init__(self, groups: int, dim: int, eps: float = 1e-5, affine: bool = True) -> None:
        check_integers(type(self).__name__, dim=dim, groups=groups)
        if groups < 1 or dim % groups:
            raise ShapeError.here(f"{type(self).__name__}: groups={groups} must divide dim={dim}")
        self.groups, self.dim, self.eps = groups, dim, eps
        self.g = self.param(dim, init=inits.ones()) if affine else None
        self.b = self.param(dim, init=inits.zeros()) if affine else None

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise f32[B, dim, ...]. Raises ShapeError for another number of channels."""
        x = constants.asarray(x)
        if x.ndim < 2 or x.shape[1] != self.dim:
            raise ShapeError.here(f"{type(self).__name__}: x must be [B, {self.dim}, ...], got {x.type}")
        y = layer_norm(shaping.reshape(x, (x.shape[0], self.groups, -1)), eps=self.eps)
        y = shaping.reshape(y, x.shape)
        along = (1, self.dim, *[1] * (x.ndim - 2))
        y = y if self.g is None else y * shaping.reshape(self.g, along)
        return y if self.b is None else y + shaping.reshape(self.b, along)


class InstanceNorm(GroupNorm):
    """Instance normalization: (x - mean) / sqrt(var + eps) * g + b, over each channel of each example.

    x and the result: f32[B, dim, ...]; axis 1 has the channels.
    g, b:   f32[dim], at first ones and zeros, if affine=True. By default the layer has neither.
    Raises: when called, ShapeError if x has another number of channels, InputError if `eps` is negative.
    The same as `GroupNorm` with one channel per group. As torch.nn.InstanceNorm1d, 2d and 3d (Ulyanov et al. 2016).

    >>> tg.instantiate(nn.InstanceNorm(4), seed=0)(np.zeros((1, 4, 3, 3), np.float32)).shape
    (1, 4, 3, 3)
    """

    def __init__(self, dim: int, eps: float = 1e-5, affine: bool = False) -> None:
        super().__init__(dim, dim, eps, affine)
