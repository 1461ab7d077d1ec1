"""Attention layers: MultiheadAttention, with a cache of keys and values for generation, and TransformerBlock."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracegrad import init as inits
from tracegrad.dtypes import check_integers
from tracegrad.errors import InputError, ShapeError, TraceError, is_function
from tracegrad.hypers import POSITIVE, checked
from tracegrad.ir.nodes import Tensor
from tracegrad.nn.layers import LayerNorm, Linear
from tracegrad.nn.module import Module
from tracegrad.ops import activation, constants, indexing, random, shaping
from tracegrad.ops.attention import attention, merge_heads, rope, split_heads
from tracegrad.prims.elementwise import where

__all__ = ["MultiheadAttention", "TransformerBlock"]

Cache = tuple[int, int]


class MultiheadAttention(Module):
    """Multi-head attention, softmax(q k^T / sqrt(d)) v with d = dim / n_heads, as torch.nn.MultiheadAttention.

    dim, n_heads: the size of the vector at each position (PyTorch's embed_dim), and the number of heads, which
                  divides `dim`.
    kv_heads:     number of heads of keys and values, a divisor of n_heads; None: n_heads. Each serves
                  n_heads / kv_heads heads of queries (Ainslie et al. 2023).
    bias:         False leaves out the b of the four `Linear` layers.
    causal:       True: the result at position t depends on positions up to t only.
    cache:        (batch, length) of a cache of keys and values for generation, in the states `keys` and `values`,
                  f32[batch, kv_heads, length, d]. Needs causal=True.
    rope:         the base of rotary positions, such as 10000: `tg.rope` rotates queries and keys. None: no positions.
    The attributes q_proj, k_proj, v_proj and out_proj are `Linear` layers: W from tg.init.xavier_uniform(), b zeros.

    layer(x, memory=None, value=None, *, mask=None, position=None, dropout=0.0) gives f32[B, T, dim]:
    x:        f32[B, T, dim]: the queries, and without `memory` the keys and values, too.
    memory:   f32[B, S, dim]: another sequence for keys and values. With `causal`, S must be T.
    value:    f32[B, S, dim]: another sequence for values only, as PyTorch's layer(query, key, value).
    mask:     bool, broadcastable to [B, n_heads, T, S]: True where a query sees a key, the opposite of PyTorch's
              attn_mask; or f32, added to the scores. For sequences of different lengths, pass
              (tg.arange(S) < lengths[:, None])[:, None, None].
    position: i32[], with a cache: where in the sequence `x` begins. Earlier positions are read from the cache, and
              those of `x` are written to it, so the forward needs writes=True. Position 0 begins new
              sequences. `position` + T must not exceed the cache's length. If it does, a run whose position is an
              input is Failed; a computed position is clamped without an error, and the result is wrong.
    dropout:  the probability of dropping an attention weight. Pass 0 outside of training.
    Raises:   ShapeError for sizes that do not fit; InputError unless `rope` is above 0; TraceError for a cache without
              `causal`, and for a position without a cache or with `memory`. When called, DTypeError for a mask of
              integers, and InputError if `dropout` is outside [0, 1].

    >>> x = np.zeros((2, 5, 8), np.float32)
    >>> tg.instantiate(nn.MultiheadAttention(8, 2), seed=0)(x).shape
    (2, 5, 8)
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        *,
        kv_heads: int | None = None,
        bias: bool = True,
        causal: bool = False,
        cache: Cache | None = None,
        rope: float | None = None,
    ) -> None:
        kv_heads = n_heads if kv_heads is None else kv_heads
        check_integers("MultiheadAttention", dim=dim, n_heads=n_heads, kv_heads=kv_heads)
        if n_heads < 1 or dim % n_heads or kv_heads < 1 or n_heads % kv_heads:
            raise ShapeError.here(
                f"MultiheadAttention: n_heads={n_heads} must divide dim={dim}, and kv_heads={kv_heads} divide n_heads"
            )
        if cache and not causal:
            raise TraceError.here(
                "MultiheadAttention: a cache holds earlier elements only; pass causal=True with cache="
            )
        if rope is not None and dim // n_heads % 2:
            raise ShapeError.here(f"MultiheadAttention: rope= needs heads of even size, got {dim // n_heads}")
        self.rope = None if rope is None else checked("rope", rope, POSITIVE, "MultiheadAttention")
        self.n_heads, self.kv_heads, self.causal = n_heads, kv_heads, causal
        width = dim // n_heads * kv_heads
        self.q_proj, self.k_proj, self.v_proj, self.out_proj = [
            Linear(dim, n, bias, init=inits.xavier_uniform()) for n in (dim, width, width, dim)
        ]
        shape = (cache[0], kv_heads, cache[1], dim // n_heads) if cache else None
        self.keys, self.values = (self.state(shape), self.state(shape)) if shape else (None, None)

    def __call__(
        self, x: Tensor, memory: Any = None, value: Any = None, *, mask: Any = None, position: Any = None,
        dropout: float = 0.0,
    ) -> Tensor:  # fmt: skip
        """Apply to f32[B, T, dim]; see the class.

        Raises: ShapeError for another size or rank, and for causal=True with more or fewer keys than queries;
        TraceError for a position without a cache, or with `memory`.
        """
        x, dim = constants.asarray(x), self.q_proj.W.shape[0]
        keys = x if memory is None else constants.asarray(memory)
        values = keys if value is None else constants.asarray(value)
        if x.ndim != 3 or keys.ndim != 3 or {x.shape[2], keys.shape[2]} != {dim}:
            more = "" if memory is None else f" and memory {keys.type}"
            raise ShapeError.here(f"MultiheadAttention: x and memory must be [B, T, {dim}], got {x.type}{more}")
        if values.shape != keys.shape:
            raise ShapeError.here(f"MultiheadAttention: value must be as the keys, {keys.type}, got {values.type}")
        if self.causal and keys.shape[1] != x.shape[1]:
            raise ShapeError.here(
                f"MultiheadAttention: causal=True needs a key for each query, got {x.type} and memory {keys.type}; "
                "make a layer for memory without causal=True, or pass mask="
            )
        q = split_heads(self.q_proj(x), self.n_heads)
        k, v = split_heads(self.k_proj(keys), self.kv_heads), split_heads(self.v_proj(values), self.kv_heads)
        causal = self.causal
        if self.rope is not None:
            q, k = rope(q, k, self.rope, position)
        if position is not None:
            k, v, seen = self._cached(k, v, position, keys is not x or values is not x)
            mask, causal = seen if mask is None else mask & seen, False
        k, v = self._for_all(k), self._for_all(v)
        return self.out_proj(merge_heads(attention(q, k, v, causal, mask, dropout)))

    def _for_all(self, t: Any) -> Any:
        """Repeat keys or values, so that each head of the queries has its own."""
        b, h, n, d = t.shape
        each = self.n_heads // h
        t = shaping.broadcast_to(shaping.reshape(t, (b, h, 1, n, d)), (b, h, each, n, d))
        return shaping.reshape(t, (b, h * each, n, d))

    def _cached(self, k: Any, v: Any, position: Any, crossing: bool) -> tuple[Any, Any, Any]:
        """Return all keys and values so far, and a mask of the keys that each query sees. Writes the cache."""
        if self.keys is None or self.values is None or crossing:
            raise TraceError.here(
                "MultiheadAttention: position= needs a cache of this layer's own elements: make it with "
                "cache=(batch, length), and leave out memory"
            )
        at, n, length = constants.asarray(position), k.shape[2], self.keys.shape[2]
        if at.shape != () or not at.dtype.is_int:
            raise ShapeError.here(f"MultiheadAttention: position must be i32[], got {at.type}")
        if k.shape[0] != self.keys.shape[0] or n > length:
            raise ShapeError.here(f"MultiheadAttention: {n} elements of {k.shape[0]} sequences do not fit the cache, "
                                  f"{self.keys.type}")  # fmt: skip
        indexing.one_hot(at, length - n + 1)  # raises for negative positions, which `take` would accept
        at = indexing.take(indexing.arange(length - n + 1), at, 0)  # an index, so that the host checks its range
        place = indexing.arange(length) - at  # for each element of the cache, its index in `x`
        new = shaping.reshape((place >= 0) & (place < n), (length, 1))
        for cache, rows in ((self.keys, k), (self.values, v)):
            rows = rows if n == 1 else indexing.take(rows, place.clip(0, n - 1), 2)
            cache.assign(where(new, rows, cache))
        seen = shaping.reshape(place, (1, length)) <= shaping.reshape(indexing.arange(n), (n, 1))
        return self.keys, self.values, seen


class TransformerBlock(Module):
    """Attention, then a feed-forward network of two layers, each with a residual. As torch.nn.TransformerEncoderLayer.

    norm_first=True:  h = x + attention(norm1(x)),  y = h + linear2(f(linear1(norm2(h))))
    norm_first=False: h = norm1(x + attention(x)),  y = norm2(h + linear2(f(linear1(h)))) (PyTorch's default)

    dim, n_heads, kv_heads, causal, cache, rope: as for `MultiheadAttention`, the attribute `self_attn`.
    hidden:       size between linear1 and linear2, by default 4 dim.
    activation:   f, by default tg.gelu; PyTorch's default is relu.
    dropout:      the probability, if training=True, of dropping attention weights, results of f, and results of both
                  branches before they are added.
    bias:         False leaves out the b of all layers.
    eps:          the `eps` of the two `LayerNorm` layers.

    block(x, *, mask=None, position=None, training=False) gives f32[B, T, dim], the shape of x. `MultiheadAttention`
    describes `mask` and `position`.
    Raises:       as `MultiheadAttention`; InputError unless you can call `activation`.

    >>> tg.instantiate(nn.TransformerBlock(8, 2, causal=True), seed=0)(np.zeros((2, 5, 8), np.float32)).shape
    (2, 5, 8)
    """

    def __init__(
        self,
        dim: int,
        n_heads: int,
        *,
        hidden: int | None = None,
        causal: bool = False,
        dropout: float = 0.0,
        activation: Callable[[Any], Any] = activation.gelu,
        norm_first: bool = True,
        kv_heads: int | None = None,
        bias: bool = True,
        cache: Cache | None = None,
        eps: float = 1e-5,
        rope: float | None = None,
    ) -> None:
        self.self_attn = MultiheadAttention(
            dim, n_heads, kv_heads=kv_heads, bias=bias, causal=causal, cache=cache, rope=rope
        )
        hidden = 4 * dim if hidden is None else hidden
        self.linear1, self.linear2 = Linear(dim, hidden, bias), Linear(hidden, dim, bias)
        self.norm1, self.norm2 = LayerNorm(dim, eps, bias), LayerNorm(dim, eps, bias)
        if not is_function(activation):
            raise InputError.here(
                f"TransformerBlock: activation must be a function, such as tg.gelu, got {activation!r}"
            )
        self.norm_first, self.activation = norm_first, activation
        self.dropout = random.probability(dropout, "TransformerBlock: dropout")

    def __call__(self, x: Tensor, *, mask: Any = None, position: Any = None, training: bool = False) -> Tensor:
        """Apply the block to f32[B, T, dim]; see the class."""
        p = self.dropout if training else 0.0

        def attend(h: Any) -> Any:
            return random.dropout(self.self_attn(h, mask=mask, position=position, dropout=p), p)

        def feed(h: Any) -> Any:
            h = random.dropout(self.activation(self.linear1(h)), p)
            return random.dropout(self.linear2(h), p)

        if self.norm_first:
            x = x + attend(self.norm1(x))
            return x + feed(self.norm2(x))
        x = self.norm1(x + attend(x))
        return self.norm2(x + feed(x))
