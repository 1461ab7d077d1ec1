"""Random numbers: PCG-RXS-M-XS 32 as a hash of (seed, step, site, element).

key = pcg(pcg(pcg(seed) + step) + salt), bits(i) = pcg(pcg(i) ^ key), all on u32 with wraparound. Seed, step and
salt are hashed before the index comes in: xor-ing them together would make the numbers of one step a permutation of
another's. Inside a scan, key = pcg(key + i) for the number i of the iteration, of the outermost scan first. The same
integers come out on every runtime, and nothing is stored: a backward computes its mask again.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Sequence
from typing import Any

from tracegrad import ambient
from tracegrad.dtypes import DType, Shape, TensorType, bool_, f32, i32, u32
from tracegrad.errors import InputError
from tracegrad.ir import Tensor, bind
from tracegrad.methods import method, op
from tracegrad.ops.reduction import argmax
from tracegrad.ops.shaping import sizes_of
from tracegrad.prims.composites import composite
from tracegrad.prims.elementwise import bit_xor, cast, cos, float_type, floor, log, log1p, shift_right, sqrt, where
from tracegrad.prims.leaves import as_tensor, const, counter, iota
from tracegrad.prims.rules import alike, multilinear
from tracegrad.prims.views import reshape
from tracegrad.refusals import shown
from tracegrad.shapes import normalize_axis

__all__ = ["bernoulli", "categorical", "dropout", "randn", "uniform"]

PCG_MULTIPLIER, PCG_INCREMENT, PCG_OUTPUT = 747796405, 2891336453, 277803737  # O'Neill, 2014
# f32 holds 24 bits: more would round up to 1
UNIFORM_BITS = 24
# One bit less leaves room for the half that keeps 0 and 1 out
OPEN_BITS = 23


def _pcg(v: Tensor) -> Tensor:
    """PCG-RXS-M-XS: a bijection of u32 without visible structure."""
    state = v * PCG_MULTIPLIER + PCG_INCREMENT
    word = bit_xor(shift_right(state, shift_right(state, 28) + 4), state) * PCG_OUTPUT
    return bit_xor(shift_right(word, 22), word)


def _key(op: str) -> Tensor:
    """The key of a new random site of the running trace; inside `vmap` and `scan`, of one element or iteration."""
    running = ambient.require(op)
    salt = running.next_salt()
    key = _salted(counter(f"salt{salt}") if running.eager else const(salt, u32))  # eager sites come with the call
    for lane in running.lanes:
        key = _pcg(key + lane)
    return key


def _salted(salt: Tensor) -> Tensor:
    return _pcg(_pcg(_pcg(counter("seed")) + counter("step")) + salt)


def _bits(shape: Shape, key: Tensor, draws: int = 1, draw: int = 0) -> Tensor:
    """32 random bits per element: number `draw` of the `draws` that each linear index has.

    A `key` with axes, the first of `shape`, keys what lies at each of its places.
    """
    own = shape[key.ndim :]
    index = cast(reshape(iota((math.prod(own),), 0), own), u32)
    if draws > 1:
        index = index * draws + draw
    key = reshape(key, (*key.shape, *[1] * len(own)))
    return _pcg(bit_xor(_pcg(index), key))


def _closed(bits: Tensor) -> Tensor:
    """[0, 1): k * 2^-24."""
    return cast(shift_right(bits, 32 - UNIFORM_BITS), f32) * 2.0**-UNIFORM_BITS


def _open(bits: Tensor) -> Tensor:
    """(0, 1): (k + 1/2) * 2^-23, exact in f32."""
    return (cast(shift_right(bits, 32 - OPEN_BITS), f32) + 0.5) * 2.0**-OPEN_BITS


def rows_at_random(n: int, count: Tensor) -> Tensor:
    """i32[n] of indices in [0, count), drawn with replacement; `count`: f32[], a whole number of at most 2^24.

    Their stream has the salt 0, which no site of a trace has, so that drawing batches changes no other number.
    """
    # The largest draw is 1 - 2^-24, and its product with such a count never rounds up to the count
    return cast(floor(_closed(_bits((n,), _salted(const(0, u32)))) * count), i32)


def _probability(p: Any) -> float:
    if not isinstance(p, numbers.Real) or not 0.0 <= float(p) <= 1.0:
        raise InputError(f"p must be a Python number in [0, 1], got {shown(p)}")
    return float(p)


@op
def uniform(shape: int | Sequence[int]) -> Tensor:
    """Uniform numbers in [0, 1): 24 random bits times 2^-24.

    shape:    an integer or integers.
    Returns:  f32 of that shape; new numbers every step, the same for the same seed.
    Gradient: none.
    Raises:   ShapeError for a negative size.
    """
    return _closed(_bits(sizes_of(shape), _key("uniform")))


@op
def randn(shape: int | Sequence[int]) -> Tensor:
    """Standard normal numbers, by the cosine branch of Box and Muller.

    out = sqrt(-2 log(1 - u)) cos(2 pi v), with u, v uniform in [0, 1)

    shape:    an integer or integers.
    Returns:  f32 of that shape; new numbers every step, the same for the same seed. |out| < 5.8.
    Gradient: none.
    Raises:   ShapeError for a negative size.
    """
    dims, key = sizes_of(shape), _key("randn")
    u, v = (_closed(_bits(dims, key, 2, k)) for k in range(2))
    # cos(2 pi v) = -cos(2 pi v - pi): WGSL promises its precision only within [-pi, pi]
    return -sqrt(log1p(-u) * -2.0) * cos(v * math.tau - math.pi)


@op
def bernoulli(shape: int | Sequence[int], p: float = 0.5, dtype: DType = bool_) -> Tensor:
    """True with probability `p`, independently for each element.

    shape:    an integer or integers.
    p:        a Python number in [0, 1].
    dtype:    bool, or what True and False are cast to.
    Returns:  `dtype`, of that shape; new numbers every step, the same for the same seed.
    Gradient: none.
    Raises:   InputError if `p` is outside [0, 1]; ShapeError for a negative size.
    """
    dims, p = sizes_of(shape), _probability(p)
    return cast(_closed(_bits(dims, _key("bernoulli"))) < p, dtype)


@op
def categorical(logits: Any, axis: int = -1) -> Tensor:
    """One class per row, drawn with the probabilities softmax(logits).

    out = argmax(logits + g),  g = -log(-log(u)) with u uniform in the open (0, 1) (the Gumbel-max trick)

    logits:   f32, raw, classes along `axis`; a class of -inf is never drawn.
    Returns:  i32, the shape of `logits` without `axis`.
    Gradient: none.
    Raises:   ShapeError if `axis` is out of range; DTypeError if `logits` is not f32.
    """
    x = as_tensor(logits)
    normalize_axis(axis, x.ndim)
    # -log(u) as -log1p(-w), w = 1 - u: log near 1 is too coarse on some drivers and would give log(0)
    exponential = -log1p(-_open(_bits(x.shape, _key("categorical"))))
    return argmax(x - log(exponential), axis=axis)


def _dropped(x: Tensor, key: Tensor, *, rate: float) -> Tensor:
    keep = _closed(_bits(x.shape, key)) >= rate
    return where(keep, x * (1.0 / (1.0 - rate)) if rate < 1.0 else x, 0.0)


def _dropout_type(x: TensorType, key: TensorType, **_: Any) -> TensorType:
    return float_type(x)


def _dropped_vjp(ct: Tensor, y: Tensor, x: Tensor, key: Tensor, *, rate: float) -> tuple[Tensor, None]:
    """Itself under the same key: the mask is hashed again instead of being stored."""
    return bind(DROPOUT, ct, key, rate=rate), None


DROPOUT = composite("dropout", type=_dropout_type, expand=_dropped, vjp=_dropped_vjp, jvp=multilinear, batch=alike)


@method
def dropout(x: Any, p: float, training: bool = True) -> Tensor:
    """`x` with each element zeroed with probability `p` and the others scaled by 1/(1 - p).

    x:        f32, any shape.
    p:        a Python number in [0, 1]; 0 gives `x`, 1 gives zeros.
    training: False gives `x`, as in inference.
    Returns:  f32, shape of `x`; a new mask every step, the same for the same seed.
    Gradient: the same mask and scale on the cotangent.
    Raises:   InputError if `p` is outside [0, 1]; DTypeError if `x` is not f32.

    As torch.nn.functional.dropout.
    """
    x, p = as_tensor(x), _probability(p)
    key = _key("dropout")  # drawn even if unused: switching one dropout off must not change the masks of the others
    return bind(DROPOUT, x, key, rate=p) if training and p > 0.0 else x
