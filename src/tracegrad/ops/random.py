"""Random numbers: PCG-RXS-M-XS 32 as a hash of (seed, step, site, element).

key = pcg(pcg(pcg(seed) + step) + salt), bits(i) = pcg(pcg(i) ^ key), all on u32 with wraparound. Seed, step and
salt are hashed before the index is added: xor-ing them together would make the numbers of one step a permutation of
another step's. Inside a scan, key = pcg(key + i) for iteration i, outermost scan first. Every runtime computes the same
integers. Nothing is stored: the backward pass computes a mask again.
"""

from __future__ import annotations

import math
import numbers
import struct
from collections.abc import Sequence
from typing import Any

from tracegrad.dtypes import (
    LARGEST_F32,
    DType,
    Shape,
    TensorType,
    bool_,
    f32,
    i32,
    integer,
    nearest_f32,
    normalize_axis,
    show,
    u32,
)
from tracegrad.errors import InputError, ShapeError
from tracegrad.ir import ambient
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.methods import entered, op
from tracegrad.ops.extrema import argmax
from tracegrad.ops.norm import softmax
from tracegrad.ops.shaping import broadcast_to, sizes_of
from tracegrad.ops.sorting import argsort
from tracegrad.prims import elementwise as rows
from tracegrad.prims.leaves import as_tensor, const, counter, iota
from tracegrad.prims.maps import composite, float_type
from tracegrad.prims.rules import alike, multilinear
from tracegrad.prims.views import reshape
from tracegrad.refusals import shown

__all__ = [
    "bernoulli", "categorical", "dropout", "gumbel_softmax", "normal", "permutation", "randint", "randn", "uniform",
]  # fmt: skip

PCG_MULTIPLIER, PCG_INCREMENT, PCG_OUTPUT = 747796405, 2891336453, 277803737  # O'Neill, 2014
# f32 holds 24 bits. A number of more bits could round up to 1
UNIFORM_BITS = 24
# One bit less leaves room for the added half, which excludes 0 and 1
OPEN_BITS = 23


def _pcg(v: Tensor) -> Tensor:
    """Return the PCG-RXS-M-XS hash of `v`, a bijection of u32 without visible structure."""
    state = v * PCG_MULTIPLIER + PCG_INCREMENT
    word = rows.bit_xor(rows.shift_right(state, rows.shift_right(state, 28) + 4), state) * PCG_OUTPUT
    return rows.bit_xor(rows.shift_right(word, 22), word)


def _key(op: str) -> Tensor:
    """Return the key of a new random op of the trace: in `vmap` and `scan`, one per element or iteration."""
    running = ambient.require(op)
    salt = running.next_salt()
    key = _salted(counter(f"salt{salt}") if running.eager else const(salt, u32))  # eager: an input of the call
    for lane in running.lanes:
        key = _pcg(key + lane)
    return key


def _salted(salt: Tensor) -> Tensor:
    return _pcg(_pcg(_pcg(counter("seed")) + counter("step")) + salt)


def _bits(shape: Shape, key: Tensor, draws: int = 1, draw: int = 0) -> Tensor:
    """Return 32 random bits for each element.

    draws, draw: an op that needs `draws` numbers for each element calls this once for each `draw`, from 0 on.
    key:         if the key has axes, they are the first axes of `shape`. Each position there has its own stream.
    """
    own = shape[key.ndim :]
    index = rows.cast(reshape(iota((math.prod(own),), 0), own), u32)
    if draws > 1:
        index = index * draws + draw
    key = reshape(key, (*key.shape, *[1] * len(own)))
    return _pcg(rows.bit_xor(_pcg(index), key))


def _closed(bits: Tensor) -> Tensor:
    """Return uniform numbers in [0, 1): k * 2^-24."""
    return rows.cast(rows.shift_right(bits, 32 - UNIFORM_BITS), f32) * 2.0**-UNIFORM_BITS


def _open(bits: Tensor) -> Tensor:
    """Return uniform numbers in (0, 1): (k + 1/2) * 2^-23, exact in f32."""
    return (rows.cast(rows.shift_right(bits, 32 - OPEN_BITS), f32) + 0.5) * 2.0**-OPEN_BITS


def rows_at_random(n: int, count: Tensor) -> Tensor:
    """Return i32[n], indices in [0, count) drawn with replacement. `count` is f32[], a whole number of at most 2^24.

    The stream has salt 0, which no random op has, so that drawing batches changes no other random number.
    """
    # The largest draw is 1 - 2^-24, and its product with such a count never rounds up to the count
    return rows.cast(rows.floor(_closed(_bits((n,), _salted(const(0, u32)))) * count), i32)


def probability(p: Any, setting: str = "") -> float:
    """Return `p`. Raises InputError unless it is a number from 0 to 1. setting: the layer and its argument."""
    if isinstance(p, bool) or not isinstance(p, numbers.Real) or not 0.0 <= float(p) <= 1.0:
        text = f"{setting or 'p'} must be a Python number in [0, 1], got {shown(p)}"
        raise InputError.here(text) if setting else InputError(text)
    return float(p)


def _sizes(shape: int | Sequence[int], last: Any) -> Shape:
    """Return the sizes. Raises ShapeError if the last argument is a shape, as in NumPy and PyTorch."""
    if isinstance(last, tuple):
        raise ShapeError(f"the shape is the first argument here; got {last} as the last one")
    return sizes_of(shape)


@op
def uniform(shape: int | Sequence[int], low: float = 0.0, high: float = 1.0) -> Tensor:
    """Draw uniform numbers in [low, high).

    out = low + (high - low) u, u a random multiple of 2^-24 in [0, 1); where this rounds to `high`, the f32 below it

    shape:     an integer or integers.
    low, high: finite Python numbers, low < high.
    Returns:   f32 of that shape; new numbers in each step or call.
    Seed:      `seed=` of `tg.compile` or `tg.compile_forward`; for eager calls the seed of `tg.manual_seed`.
    Gradient:  none.
    Raises:    ShapeError for a size that is negative or no integer; InputError unless low < high.

    As numpy.random.Generator.uniform and torch.rand.

    >>> tg.manual_seed(0)
    >>> tg.uniform((3,), -1.0, 1.0)
    tensor([-0.47678554, -0.5139569 ,  0.8914474 ])
    """
    dims = _sizes(shape, high)
    if not -LARGEST_F32 <= low < high <= LARGEST_F32 or high - low > LARGEST_F32:
        raise InputError(f"low = {low!r} must be less than high = {high!r}, both and their difference finite f32")
    u = _closed(_bits(dims, _key("uniform")))
    if (low, high) == (0.0, 1.0):
        return u
    return rows.minimum(u * (high - low) + low, max(_below(high), nearest_f32(low)))


def _below(x: float) -> float:
    """Return the largest f32 less than the one nearest to `x`."""
    (bits,) = struct.unpack("<i", struct.pack("<f", x))
    if bits == 0:
        return -(2.0**-149)
    return struct.unpack("<f", struct.pack("<i", bits - 1 if bits > 0 else bits + 1))[0]


@op
def randn(shape: int | Sequence[int]) -> Tensor:
    """Draw numbers from the standard normal distribution, with mean 0 and standard deviation 1.

    out = sqrt(-2 log(1 - u)) cos(2 pi v), with u and v uniform in [0, 1) (Box & Muller 1958)

    shape:    an integer or integers.
    Returns:  f32 of that shape, |out| < 5.8; new numbers in each step or call.
    Seed:     `seed=` of `tg.compile` or `tg.compile_forward`; for eager calls the seed of `tg.manual_seed`.
    Gradient: none.
    Raises:   ShapeError for a size that is negative or no integer.

    As torch.randn.

    >>> tg.manual_seed(0)
    >>> tg.randn((3,))
    tensor([0.03413793, 0.19215257, 0.90474695])
    """
    return _normal(sizes_of(shape), _key("randn"))


def _normal(dims: Shape, key: Tensor) -> Tensor:
    u, v = (_closed(_bits(dims, key, 2, k)) for k in range(2))
    # cos(2 pi v) = -cos(2 pi v - pi): WGSL guarantees the precision of cos only within [-pi, pi]
    return -rows.sqrt(rows.log1p(-u) * -2.0) * rows.cos(v * math.tau - math.pi)


@op
def normal(shape: int | Sequence[int], mean: Any = 0.0, std: Any = 1.0) -> Tensor:
    """Draw normal numbers with the given mean and standard deviation.

    out = mean + std * randn(shape)

    shape:     an integer or integers.
    mean, std: numbers, or f32 tensors that broadcast to `shape`.
    Returns:   f32 of that shape; new numbers in each step or call.
    Seed:      `seed=` of `tg.compile` or `tg.compile_forward`; for eager calls the seed of `tg.manual_seed`.
    Gradient:  to `mean`, the result's gradient. To `std`, the result's gradient times the numbers that `randn` draws.
               Each is summed over broadcast axes (the reparameterization of Kingma & Welling 2014).
    Raises:    ShapeError for a size that is negative or no integer, and if a tensor does not broadcast to `shape`;
               DTypeError for a tensor that is not f32. A negative `std` is not checked: it acts as its absolute value.

    As torch.normal, but with the shape first.

    >>> tg.manual_seed(0)
    >>> tg.normal((3,), 5.0, 0.1)
    tensor([5.0034137, 5.019215 , 5.0904746])
    """
    dims = _sizes(shape, std)
    y = _normal(dims, _key("normal")) * std + mean
    if y.shape != dims:
        raise ShapeError(f"mean and std must broadcast to {show(dims)}; together they are {y.type}")
    return y


@op
def randint(shape: int | Sequence[int], low: int, high: int | None = None) -> Tensor:
    """Draw uniform integers in [low, high), or in [0, low) without `high`.

    out = low + floor(b (high - low) / 2^32), b of 32 random bits; each probability is exact to 2^-32

    shape:     an integer or integers.
    low, high: integers within i32, low < high. What is no integer raises ShapeError.
    Returns:   i32 of that shape; new numbers in each step or call.
    Seed:      `seed=` of `tg.compile` or `tg.compile_forward`; for eager calls the seed of `tg.manual_seed`.
    Gradient:  none.
    Raises:    ShapeError for a size that is negative or no integer; InputError unless low < high, by less than 2^31.

    As torch.randint, but with the shape first, and numpy.random.Generator.integers.

    >>> tg.manual_seed(0)
    >>> tg.randint((6,), 0, 10)
    tensor([2, 2, 9, 2, 9, 1], dtype=i32)
    """
    dims = _sizes(shape, high)
    low, high = (0, integer(low, "high")) if high is None else (integer(low, "low"), integer(high, "high"))
    if not -(2**31) <= low < high <= 2**31 or high - low >= 2**31:
        raise InputError(f"low = {low} must be less than high = {high}, by less than 2^31, both i32")
    return rows.cast(_scaled(_bits(dims, _key("randint")), high - low), i32) + low


@op
def permutation(n: int) -> Tensor:
    """Draw the integers from 0 to n - 1 in random order.

    out = argsort(uniform(n)); x[tg.permutation(x.shape[0])] are the rows of x in random order

    Index all arrays of a batch by one permutation, so that their rows still belong together.

    n:        an integer, such as x.shape[0], also if that size is None in the `inputs` of `tg.compile`.
    Returns:  i32[n]; a new order in each step or call.
    Seed:     `seed=` of `tg.compile` or `tg.compile_forward`; for eager calls the seed of `tg.manual_seed`.
    Gradient: none.
    Raises:   ShapeError if `n` is negative or no integer.

    As torch.randperm and numpy.random.Generator.permutation.

    >>> tg.manual_seed(0)
    >>> tg.permutation(5)
    tensor([3, 1, 0, 4, 2], dtype=i32)
    """
    return argsort(_closed(_bits(sizes_of(integer(n, "n")), _key("permutation"))))


def _scaled(bits: Tensor, n: int) -> Tensor:
    """Return floor(bits * n / 2^32) in u32, computed with halves of 16 bits."""
    upper, lower = rows.shift_right(bits, 16), bits - rows.shift_right(bits, 16) * 65536
    high, low = n >> 16, n & 0xFFFF
    t = upper * low + rows.shift_right(lower * low, 16)
    rest = t - rows.shift_right(t, 16) * 65536
    return upper * high + rows.shift_right(t, 16) + rows.shift_right(lower * high + rest, 16)


@op
def bernoulli(shape: int | Sequence[int], p: Any = 0.5, dtype: DType = bool_) -> Tensor:
    """Draw True with probability `p`, else False, independently for each element.

    shape:    an integer or integers.
    p:        a number in [0, 1], or an f32 tensor that broadcasts to `shape`: the probability of each element, which is
              not checked.
    dtype:    bool, or another type, in which True is 1 and False is 0.
    Returns:  `dtype`, of that shape; new numbers in each step or call.
    Seed:     `seed=` of `tg.compile` or `tg.compile_forward`; for eager calls the seed of `tg.manual_seed`.
    Gradient: none, not even to `p`.
    Raises:   InputError if a number `p` is outside [0, 1]; DTypeError if a tensor is not f32. ShapeError for a shape of
              `p` that does not broadcast, and for a size that is negative or no integer.

    As torch.bernoulli, but with the shape first.

    >>> tg.manual_seed(0)
    >>> tg.bernoulli((4,), 0.25)
    tensor([False,  True, False,  True], dtype=bool)
    """
    dims = sizes_of(shape)
    p = probability(p) if isinstance(p, numbers.Real) else broadcast_to(p, dims)
    return rows.cast(_closed(_bits(dims, _key("bernoulli"))) < p, dtype)


@op
def categorical(logits: Any, axis: int = -1) -> Tensor:
    """Draw a class number for each position, with probabilities softmax(logits) along `axis`.

    out = argmax(logits + g), g = -log(-log(u)) with u uniform in (0, 1), ends excluded: the Gumbel-max trick

    logits:   f32, raw scores, with the classes along `axis`. A class of -inf is never drawn, unless all are -inf: then
              the result is 0.
    Returns:  i32, the shape of `logits` without `axis`: class numbers, from 0, drawn anew in each step or call.
    Seed:     `seed=` of `tg.compile` or `tg.compile_forward`; for eager calls the seed of `tg.manual_seed`.
    Gradient: none; `gumbel_softmax` has one.
    Raises:   ShapeError if `axis` is out of range; DTypeError if `logits` is not f32.

    As jax.random.categorical. torch.multinomial takes probabilities instead.

    >>> tg.categorical([[0.0, 100.0], [100.0, 0.0]])
    tensor([1, 0], dtype=i32)
    """
    x = as_tensor(logits)
    float_type(x.type)
    normalize_axis(axis, x.ndim)
    return argmax(x + _gumbel(x.shape, _key("categorical")), axis=axis)


def _gumbel(shape: Shape, key: Tensor) -> Tensor:
    """Return -log(-log(u)), where -log(u) is -log1p(-w), w = 1 - u: log near 1 is too coarse on some drivers."""
    return -rows.log(-rows.log1p(-_open(_bits(shape, key))))


@op
def gumbel_softmax(logits: Any, tau: float = 1.0, hard: bool = False, axis: int = -1) -> Tensor:
    """Draw a class as `categorical` does, and return it as a soft one-hot vector, which has a gradient.

    out = softmax((logits + g) / tau), g = -log(-log(u)) with u uniform in (0, 1), ends excluded

    logits:   f32, raw scores, with the classes along `axis`.
    tau:      the temperature, a positive number. The smaller it is, the nearer the result is to a one-hot vector.
    hard:     True returns the one-hot vector of the largest element of `out`; its gradient is that of `out`.
    Returns:  f32, shape of `logits`; new numbers in each step or call.
    Seed:     `seed=` of `tg.compile` or `tg.compile_forward`; for eager calls the seed of `tg.manual_seed`.
    Gradient: to `logits`, that of the softmax, with g as a constant.
    Raises:   InputError unless tau > 0; ShapeError if `axis` is out of range; DTypeError if `logits` is not f32.

    As torch.nn.functional.gumbel_softmax (Jang, Gu & Poole 2017).

    >>> tg.manual_seed(0)
    >>> tg.gumbel_softmax([0.0, 0.0, 0.0])
    tensor([0.4559186 , 0.49662545, 0.0474559 ])
    """
    if not tau > 0:
        raise InputError(f"tau must be a positive number, got {shown(tau)}")
    x = as_tensor(logits)
    float_type(x.type)
    d = normalize_axis(axis, x.ndim)
    soft = softmax((x + _gumbel(x.shape, _key("gumbel_softmax"))) / tau, axis)
    if not hard:
        return soft
    drawn = iota(soft.shape, d) == argmax(soft, axis=d, keepdims=True)
    return rows.cast(drawn, f32) + (soft - rows.stop_gradient(soft))


def _dropped(x: Tensor, key: Tensor, *, rate: float) -> Tensor:
    keep = _closed(_bits(x.shape, key)) >= rate
    return rows.where(keep, x * (1.0 / (1.0 - rate)) if rate < 1.0 else x, 0.0)


def _dropout_type(x: TensorType, key: TensorType, **_: Any) -> TensorType:
    return float_type(x)


def _dropped_vjp(ct: Tensor, y: Tensor, x: Tensor, key: Tensor, *, rate: float) -> tuple[Tensor, None]:
    """Apply the same dropout to `ct`: the key gives the same mask, which need not be stored."""
    return bind(DROPOUT, ct, key, rate=rate), None


DROPOUT = composite("dropout", type=_dropout_type, expand=_dropped, vjp=_dropped_vjp, jvp=multilinear, batch=alike)


@entered
def dropout(x: Any, p: float, training: bool = True) -> Tensor:
    """Set each element of `x` to zero with probability `p`, and scale the others by 1 / (1 - p).

    x:        f32, any shape.
    p:        a Python number in [0, 1]; 0 returns `x`, 1 returns zeros.
    training: False returns `x`, as for inference. There is no train or eval mode that sets it: pass False yourself.
    Returns:  f32, shape of `x`. The zeroed elements are drawn anew in each step or call.
    Seed:     `seed=` of `tg.compile` or `tg.compile_forward`; for eager calls the seed of `tg.manual_seed`.
    Gradient: the result's gradient, with the same elements zeroed and the others scaled.
    Raises:   InputError if `p` is outside [0, 1]; DTypeError if `x` is not f32.

    As torch.nn.functional.dropout.

    >>> tg.manual_seed(0)
    >>> tg.dropout([1.0, 2.0, 3.0, 4.0], 0.5)
    tensor([0., 0., 6., 0.])
    """
    x, p = as_tensor(x), probability(p)
    key = _key("dropout")  # drawn even if unused: switching one dropout off must not change the other masks
    if p > 0.0:
        ambient.require("dropout").switched.append(("tg.dropout", training, x))
    return bind(DROPOUT, x, key, rate=p) if training and p > 0.0 else x
