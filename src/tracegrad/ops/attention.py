"""Attention: layouts of heads, rotary positions, scaled dot products."""

from __future__ import annotations

import math
from array import array
from functools import lru_cache
from typing import Any

from tracegrad.dtypes import Shape, TensorType, f32, i32
from tracegrad.errors import DTypeError, ShapeError
from tracegrad.hypers import POSITIVE, checked
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.methods import entered, op
from tracegrad.ops import random
from tracegrad.ops.norm import softmax, softmax_causal, softmax_causal_vjp, softmax_vjp
from tracegrad.ops.shaping import expand_dims
from tracegrad.prims.elementwise import cast, cos, sin, where
from tracegrad.prims.leaves import LITERAL, as_tensor, iota
from tracegrad.prims.maps import composite, float_type
from tracegrad.prims.rules import alike, multilinear
from tracegrad.prims.views import slice_

__all__ = ["attention", "merge_heads", "rope", "split_heads"]

HIDDEN = -1e30  # the score of a masked key; finite, so that a row with every key masked has no NaN


@entered
def split_heads(x: Any, n_heads: int) -> Tensor:
    """Split the last axis into `n_heads` heads, and move the heads before the positions.

    out[..., h, t, d] = x[..., t, h * D/H + d],  H = n_heads

    x:        any dtype, shape (..., T, D): T positions of D features.
    n_heads:  a divisor of D.
    Returns:  dtype of `x`, shape (..., H, T, D/H), as `attention` takes it.
    Gradient: the result's gradient, with the heads merged again.
    Raises:   ShapeError if the rank is below 2 or H does not divide D.

    The heads of Vaswani et al. 2017. `merge_heads` is the inverse.

    >>> tg.split_heads([[1.0, 2.0, 3.0, 4.0]], 2).tolist()
    [[[1.0, 2.0]], [[3.0, 4.0]]]
    """
    x = as_tensor(x)
    if x.ndim < 2 or n_heads < 1 or x.shape[-1] % n_heads:
        raise ShapeError(f"x must be (..., T, D) with D divisible by {n_heads} heads, got {x.type}")
    return x.reshape((*x.shape[:-1], n_heads, x.shape[-1] // n_heads)).swapaxes(-2, -3)


@entered
def merge_heads(x: Any) -> Tensor:
    """Move the heads after the positions, and join their features on one axis. The inverse of `split_heads`.

    out[..., t, h * d + k] = x[..., h, t, k]

    x:        any dtype, shape (..., H, T, d): H heads, T positions, d features of each head.
    Returns:  dtype of `x`, shape (..., T, H * d).
    Gradient: the result's gradient, split into heads again.
    Raises:   ShapeError if the rank is below 3.

    The heads of Vaswani et al. 2017.

    >>> tg.merge_heads([[[1.0, 2.0]], [[3.0, 4.0]]])
    tensor([[1., 2., 3., 4.]])
    """
    x = as_tensor(x)
    if x.ndim < 3:
        raise ShapeError(f"x must be (..., H, T, d), got {x.type}")
    *batch, h, t, d = x.shape
    return x.swapaxes(-2, -3).reshape((*batch, t, h * d))


@lru_cache(maxsize=16)
def _rotations(t: int, d: int, base: float) -> tuple[bytes, bytes]:
    """Return cosines and sines [t, d/2] of position * base^(-2j/d).

    They are computed here in double precision: f32 loses the angle of far positions, and WGSL guarantees the precision
    of sin and cos only near 0.
    """
    angles = [p * base ** (-2.0 * j / d) for p in range(t) for j in range(d // 2)]
    return array("f", map(math.cos, angles)).tobytes(), array("f", map(math.sin, angles)).tobytes()


def _rotate(x: Tensor, *, base: float, inverse: bool) -> Tensor:
    t, d = x.shape[-2:]
    cosine, sine = (bind(LITERAL, data=data, dtype=f32, shape=(t, 1, d // 2)) for data in _rotations(t, d, base))
    return _turned(x, cosine, sine, inverse)


def _turned(x: Tensor, cosine: Tensor, sine: Tensor, inverse: bool = False) -> Tensor:
    """Rotate each pair (x[j], x[j + d/2]) by its angle, as one expression of the element and its partner."""
    *batch, t, d = x.shape
    signs = array("f", (1.0, -1.0) if inverse else (-1.0, 1.0)).tobytes()
    sign = bind(LITERAL, data=signs, dtype=f32, shape=(2, 1))
    halves = x.reshape((*batch, t, 2, d // 2))
    partner = slice_(halves, halves.ndim - 2, 1, 2, -1)
    return (halves * cosine + partner * (sign * sine)).reshape(x.shape)


def _turned_at(x: Tensor, position: Tensor, base: float) -> Tensor:
    """Rotate `x` from a position on, or each of its elements by its own position."""
    _rope_type(x.type, base=base, inverse=False)
    t, d = x.shape[-2:]
    each = position if position.ndim else position + iota((t,), 0)
    if any(n not in (1, m) for n, m in zip(each.shape[::-1], x.shape[-2::-1])) or each.ndim >= x.ndim:
        raise ShapeError(f"position must be i32[] or broadcastable to {list(x.shape[:-1])}, got {position.type}")
    speeds = array("f", [base ** (-2.0 * j / d) for j in range(d // 2)]).tobytes()
    angle = expand_dims(cast(each, f32), (-1, -2)) * bind(LITERAL, data=speeds, dtype=f32, shape=(d // 2,))
    return _turned(x, cos(angle), sin(angle))


def _rope_type(x: TensorType, *, base: float, inverse: bool) -> TensorType:
    if x.ndim < 2 or x.shape[-1] % 2:
        raise ShapeError(f"takes (..., T, D) with an even D, got {x}")
    return float_type(x)


def _rope_vjp(ct: Tensor, y: Tensor, x: Tensor, *, base: float, inverse: bool) -> tuple[Tensor]:
    return (bind(ROPE, ct, base=base, inverse=not inverse),)


ROPE = composite("rope", type=_rope_type, expand=_rotate, vjp=_rope_vjp, jvp=multilinear, batch=alike)


@op
def rope(q: Any, k: Any, base: float = 10000, position: Any = None) -> tuple[Tensor, Tensor]:
    """Rotate queries and keys by angles that grow with the position (rotary position embedding).

    out[..., t, j]       = x[..., t, j] cos(a) - x[..., t, j + D/2] sin(a)
    out[..., t, j + D/2] = x[..., t, j + D/2] cos(a) + x[..., t, j] sin(a)
    where x is q or k, p[t] is the position, by default t, 0 <= j < D/2, and a = p[t] * base^(-2j/D) is the angle

    q, k:     f32, shape (..., T, D) with an even D. The two shapes may differ.
    base:     a number above 0. A larger base gives longer wavelengths.
    position: i32[] or an integer: p[0], for example in generation with a cache; p[t] is then p[0] + t. Or i32,
              broadcastable to (..., T): p. With `position`, angles are computed in f32, else in f64.
    Returns:  (rotated q, rotated k), f32, in their shapes.
    Gradient: the result's gradient, rotated by -a; none to `position`.
    Raises:   ShapeError if D is odd, the rank below 2, or `position` does not fit; DTypeError if q or k is not f32 or
              `position` not i32; InputError unless base > 0.

    Su et al., RoFormer (2021). `rope` pairs features j and j + D/2, as GPT-NeoX and the Llama of Hugging Face do. The
    paper and Meta's code of Llama pair 2j and 2j + 1.

    >>> rotated, _ = tg.rope([[1.0, 0.0], [1.0, 0.0]], [[1.0, 0.0]])      # positions 0 and 1
    >>> rotated
    tensor([[1.        , 0.        ],
            [0.5403023 , 0.84147096]])
    """
    base = checked("base", base, POSITIVE, "rope")
    if position is not None:
        at = as_tensor(position)
        if at.dtype != i32:
            raise DTypeError(f"position must be i32, got {at.type}")
        return _turned_at(as_tensor(q), at, base), _turned_at(as_tensor(k), at, base)
    return bind(ROPE, as_tensor(q), base=base, inverse=False), bind(ROPE, as_tensor(k), base=base, inverse=False)


def _check_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> None:
    batch: Shape = q.shape[:-2]
    if min(q.ndim, k.ndim, v.ndim) < 2 or q.shape[-1] != k.shape[-1] or k.shape[-2] != v.shape[-2]:
        rule = "q must be (..., Tq, D), k (..., Tk, D) and v (..., Tk, Dv)"
    elif k.shape[:-2] != batch or v.shape[:-2] != batch:
        rule = "the leading axes must be equal (for heads that share keys, write k.repeat(n, axis=-3), and v alike)"
    elif causal and q.shape[-2] != k.shape[-2]:
        rule = "causal attention needs as many queries as keys"
    else:
        return
    raise ShapeError(f"{rule}: q is {q.type}, k is {k.type}, v is {v.type}")


# `value` is the result computed by ops, and `gradient` its derivative by rules. JAX may compute either in another way.
def _attend_vjp(
    ct: Tensor, y: Tensor, value: Tensor, weights: Tensor, q: Tensor, k: Tensor, v: Tensor, *, causal: bool
) -> tuple[Tensor | None, ...]:
    to_weights = ct @ v.swapaxes(-1, -2)
    pulled = softmax_causal_vjp(to_weights, weights) if causal else softmax_vjp(to_weights, weights, axis=-1)
    scores = pulled[0] * _scale(q)
    found = scores @ k, scores.swapaxes(-1, -2) @ q, weights.swapaxes(-1, -2) @ ct
    return None, None, *[bind(ATTEND_VJP, g, ct, q, k, v, causal=causal, to=to) for to, g in enumerate(found)]


def _scale(q: Tensor) -> float:
    return 1.0 / math.sqrt(max(q.shape[-1], 1))


def _as_one(x: Any, t: Tensor) -> bool:
    """Return whether JAX should compute attention as one op: if cuDNN takes the sizes, and is faster (bench/LOG.md).

    Operands must be bf16, because the op rounds the result and the gradients to the type of the operands. bf16 has the
    range of f32, and f16 has not.
    """
    *_, q, k, v = t.inputs
    rows, keys, size = q.shape[-2], k.shape[-2], q.shape[-1]
    even = rows % 2 == keys % 2 == size % 8 == 0
    return x.dtype == x.np.bfloat16 and even and rows >= 128 and keys > 0 and 0 < size == v.shape[-1] <= 128


def _attend_xla(x: Any, t: Tensor, value: Any, ct: Any, *qkv: Any) -> Any:
    """Compute attention by one call of JAX, or its three gradients by another."""
    causal, to = t.attrs["causal"], t.attrs.get("to")

    def rows(a: Any) -> Any:  # (batch, T, heads, D), what JAX takes
        return x.np.moveaxis(x.narrow(a.reshape((-1, *a.shape[-3:]) if a.ndim > 3 else (-1, 1, *a.shape[-2:]))), -3, -2)

    def attend(*qkv: Any) -> Any:
        return x.jax.nn.dot_product_attention(*qkv, is_causal=causal, implementation="cudnn" if x.cudnn else "xla")

    result, pull = x.once(causal, qkv, lambda: x.jax.vjp(attend, *map(rows, qkv)))
    if to is not None:
        result = x.once(causal, (ct, *qkv), lambda: pull(rows(ct)))[to]
    return x.np.moveaxis(result, -3, -2).astype(x.np.float32).reshape(t.shape)


ATTEND_VJP = composite(
    "attention_vjp", type=lambda gradient, *_, **__: gradient, expand=lambda gradient, *_, **__: gradient,
    xla=_attend_xla, xla_if=_as_one,
)  # fmt: skip
ATTEND = composite(
    "attention", type=lambda value, *_, **__: value, expand=lambda value, *_, **__: value, vjp=_attend_vjp,
    jvp=lambda ts, y, *_, **__: ts[0], xla=_attend_xla, xla_if=_as_one,
)  # fmt: skip


@op
def attention(q: Any, k: Any, v: Any, causal: bool = False, mask: Any = None, dropout: float = 0.0) -> Tensor:
    """Return the scaled dot-product attention: for each query, a weighted mean of the values.

    out = softmax(q k^T / sqrt(D)) v

    q, k, v:  f32, shapes (..., Tq, D), (..., Tk, D) and (..., Tk, Dv). The leading axes are equal, such as (B, heads).
    causal:   True weights only the keys 0 to t for query t. Needs Tq = Tk.
    mask:     bool or f32, broadcastable to (..., Tq, Tk). `causal` applies in addition.
              bool: True where a query may weight a key. A query without such a key gets zeros.
              f32:  added to the scores q k^T / sqrt(D). A query whose scores are all -inf gets NaN.
    dropout:  the probability that a weight becomes 0; the others are multiplied by 1 / (1 - dropout). Pass 0 outside of
              training.
    Returns:  f32, shape (..., Tq, Dv).
    Gradient: to q, k, v and an f32 mask.
    Raises:   ShapeError if the shapes do not fit; DTypeError if q, k or v is not f32 or the mask is i32 or u32;
              InputError if `dropout` is outside [0, 1].

    As torch.nn.functional.scaled_dot_product_attention (Vaswani et al. 2017).

    >>> q = k = tg.zeros((2, 4))                      # equal scores, so each query takes the mean over its keys
    >>> tg.attention(q, k, [[1.0], [3.0]], causal=True)
    tensor([[1.],
            [2.]])
    """
    q, k, v = as_tensor(q), as_tensor(k), as_tensor(v)
    _check_attention(q, k, v, causal)
    scores = (q @ k.swapaxes(-1, -2)) * _scale(q)
    seen = None if mask is None else _mask(mask, scores)
    if seen is not None:
        scores = scores + seen if seen.dtype.is_float else where(seen, scores, HIDDEN)
    weights = softmax_causal(scores) if causal else softmax(scores)
    if seen is not None and not seen.dtype.is_float:
        weights = where(seen, weights, 0.0)
    if dropout:
        weights = random.dropout(weights, random.probability(dropout, "attention: dropout"))
    value = weights @ v
    return value if dropout or seen is not None else bind(ATTEND, value, weights, q, k, v, causal=causal)


def _mask(mask: Any, scores: Tensor) -> Tensor:
    m = as_tensor(mask)
    if m.dtype.is_int:
        raise DTypeError(f"a mask is bool, True where a query sees a key, or f32, got {m.type}; write mask != 0")
    if m.ndim > scores.ndim or any(a not in (1, b) for a, b in zip(m.shape[::-1], scores.shape[::-1])):
        raise ShapeError(f"the mask {m.type} does not broadcast to the scores {scores.type}")
    return m
