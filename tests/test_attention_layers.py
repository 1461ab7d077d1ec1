"""Attention: masks, grouped queries, memory, and a cache that generates what the whole sequence gives."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from oracle import torch
from tracegrad import nn

RNG = np.random.default_rng(11)
B, T, D = 2, 6, 8
X = RNG.standard_normal((B, T, D)).astype(np.float32)


class Model(tg.Module):
    def __init__(self, **more: Any) -> None:
        self.block = nn.TransformerBlock(D, 4, kv_heads=2, causal=True, **more)


@pytest.mark.parametrize("rope", [None, 100.0])
def test_a_cache_gives_what_the_whole_sequence_gives(rope: float | None, device_name: str) -> None:
    def whole(m: Model, x: Any) -> Any:
        return m.block(x)

    def part(m: Model, x: Any, at: Any) -> Any:
        return m.block(x, position=at)

    model = Model(cache=(B, 9), rope=rope)
    with tg.compile_forward(model=model, forward=whole, inputs={"x": X.shape}, seed=0, device=device_name) as infer:
        want, params = infer.run(x=X).output, infer.download_params()
    with tg.compile_forward(model=model, forward=part, inputs={"x": (B, None, D), "at": tg.i32[()]}, seed=1,
                            device=device_name, writes=True) as infer:  # fmt: skip
        infer.upload_params(params)
        for _ in range(2):  # the second time over what the first has left
            got = [infer.run(x=X[:, :3], at=0).output]
            got += [infer.run(x=X[:, t : t + 1], at=t).output for t in range(3, T)]
            np.testing.assert_allclose(np.concatenate(got, 1), want, rtol=2e-5, atol=2e-5)
        keys = infer.states()["block.self_attn.keys"]
        assert keys.shape == (B, 2, 9, D // 4) and not keys[:, :, T:].any() and keys[:, :, :T].all()
        infer.run(x=X[:, :3], at=6).result()  # ends with the cache
        kept = infer.states()
        for at, n, most in ((7, 3, 6), (9, 1, 8), (-1, 1, 8)):
            with pytest.raises(tg.InputError, match=rf"at: value {at} is out of range; valid values are 0 to {most}"):
                _ = infer.run(x=X[:, :n], at=at).output
        np.testing.assert_array_equal(infer.states()["block.self_attn.keys"], kept["block.self_attn.keys"])


def test_masks_and_memory_are_pytorchs() -> None:
    lengths, memory = np.array([3, 6], np.int32), RNG.standard_normal((B, 6, D)).astype(np.float32)
    added = RNG.standard_normal((T, 6)).astype(np.float32)

    def forward(m: Any, x: Any, memory: Any, n: Any) -> Any:
        seen = (tg.arange(6) < n[:, None])[:, None, None]
        return m(x, memory, mask=seen), m(x, mask=added)

    layer = torch.nn.MultiheadAttention(D, 4, batch_first=True)
    inputs = {"x": X.shape, "memory": memory.shape, "n": tg.i32[B]}
    with tg.compile_forward(model=nn.MultiheadAttention(D, 4), forward=forward, inputs=inputs, device="cpu") as infer:
        assert tg.from_torch(layer, infer).complete
        crossed, biased = infer.run(x=X, memory=memory, n=lengths).output
    x, mem = torch.tensor(X), torch.tensor(memory)
    hidden = torch.arange(6)[None] >= torch.tensor(lengths)[:, None]
    want = layer(x, mem, mem, key_padding_mask=hidden)[0].detach(), layer(x, x, x, attn_mask=torch.tensor(added))[0]
    np.testing.assert_allclose(crossed, want[0], rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(biased, want[1].detach(), rtol=1e-5, atol=1e-5)


def test_a_query_that_sees_no_key_is_zero_and_has_no_nan() -> None:
    def both(q: Any) -> Any:
        return tg.sum(tg.attention(q, q, q, mask=np.array([[True, False], [False, False]])))

    q = tg.tensor(RNG.standard_normal((2, 4)))
    assert not tg.attention(q, q, q, mask=np.array([[True, False], [False, False]])).numpy()[1].any()
    assert np.isfinite(tg.grad(both)(q).numpy()).all()


def test_dropout_is_of_training_only() -> None:
    m = tg.instantiate(Model(dropout=0.5), seed=0)
    assert np.array_equal(m.block(X).numpy(), m.block(X).numpy())
    assert not np.array_equal(m.block(X).numpy(), m.block(X, training=True).numpy())


def test_rotary_positions_of_a_layer() -> None:
    """Attention of the layer's own projections, rotated by `tg.rope`."""
    m = tg.instantiate(nn.MultiheadAttention(D, 2, causal=True, rope=100.0), seed=0)
    q, k, v = (tg.split_heads(p(X), 2) for p in (m.q_proj, m.k_proj, m.v_proj))
    want = m.out_proj(tg.merge_heads(tg.attention(*tg.rope(q, k, 100), v, causal=True)))
    np.testing.assert_allclose(m(X), want, rtol=1e-6, atol=1e-6)
    near, far = tg.rope(q, k, position=3)[0], tg.rope(q, k, position=np.arange(3, 3 + T)[None, None])[0]
    np.testing.assert_array_equal(near, far)
    whole = tg.rope(tg.concat([q, q, q], -2), k)[0]
    np.testing.assert_allclose(tg.rope(q, k, position=T)[0], whole[..., T : 2 * T, :], rtol=1e-5, atol=1e-6)


def test_what_does_not_fit_is_an_error() -> None:
    with pytest.raises(tg.ShapeError, match="needs heads of even size, got 3"):
        nn.MultiheadAttention(6, 2, rope=10000)
    with pytest.raises(tg.InputError, match="MultiheadAttention: rope must be a number, got True"):
        nn.MultiheadAttention(8, 2, rope=True)
    wrong = [
        (0.5, tg.DTypeError, "must be i32"),
        ([1, 2], tg.ShapeError, r"position must be i32\[\] or broadcastable to \[6\], got i32\[2\]"),
        ([[0] * T] * 2, tg.ShapeError, r"position must be i32\[\] or broadcastable to \[6\]"),
    ]
    for position, kind, text in wrong:
        with pytest.raises(kind, match=text):
            tg.rope(X[0], X[0], position=position)
    with pytest.raises(tg.ShapeError, match=r"write k.repeat\(n, axis=-3\)"):
        tg.attention(X[None], X[None, :1], X[None, :1])
    with pytest.raises(tg.ShapeError, match="n_heads=3 must divide dim=8"):
        nn.MultiheadAttention(8, 3)
    with pytest.raises(tg.TraceError, match="pass causal=True with cache="):
        nn.MultiheadAttention(8, 2, cache=(1, 4))
    with pytest.raises(tg.DTypeError, match=r"attention: a mask is bool.*write mask != 0"):
        tg.attention(X, X, X, mask=np.ones((T, T), np.int32))
    with pytest.raises(tg.ShapeError, match=r"attention: the mask .*\[5,6\] does not broadcast to the scores"):
        tg.attention(X, X, X, mask=np.ones((5, 6), bool))
    m = tg.instantiate(nn.MultiheadAttention(8, 2), seed=0)
    with pytest.raises(tg.TraceError, match="position= needs a cache"):
        m(X, position=0)


@pytest.mark.parametrize("at", [-1, 3])
def test_a_position_outside_of_the_cache(at):
    m = tg.instantiate(nn.MultiheadAttention(8, 2, causal=True, cache=(1, 5)))
    with pytest.raises(tg.InputError, match="out of range; valid are 0 to 2"):
        m(np.zeros((1, 3, 8), np.float32), position=at)
    with pytest.raises(tg.ShapeError, match=r"must be \[B, T, 8\], got"):
        m(X[0])


def test_a_transposed_convolution_keeps_the_size_of_what_passes() -> None:
    m = tg.instantiate(nn.ConvTranspose2d(64, 3, 4, stride=2, padding=1), seed=0)
    y = m(RNG.standard_normal((4, 64, 8, 8)).astype(np.float32)).numpy()
    assert 1.2 < y.std() < 1.6  # sqrt(2), as behind any layer that begins with kaiming()
    with pytest.raises(tg.ShapeError, match="Conv3d: kernel_size must be an integer or three, for depth"):
        nn.Conv3d(1, 2, (3, 3))


def test_query_key_and_value_as_pytorch_and_causal_whatever_gives_the_keys() -> None:
    other, value = (RNG.standard_normal((B, 6, D)).astype(np.float32) for _ in range(2))
    layer = tg.instantiate(nn.MultiheadAttention(D, 4, causal=True), 0)
    plain = tg.instantiate(nn.MultiheadAttention(D, 4), 0)
    theirs = torch.nn.MultiheadAttention(D, 4, batch_first=True)
    with tg.compile_forward(
        model=nn.MultiheadAttention(D, 4), forward=lambda m, x: m(x), inputs={"x": X.shape}, seed=0
    ) as f:
        theirs.load_state_dict(tg.to_torch(f))
    x, o, v = torch.tensor(X), torch.tensor(other), torch.tensor(value)
    later = torch.ones(6, 6).triu(1) > 0
    want = theirs(x, o, v, need_weights=False)[0].detach().numpy()
    np.testing.assert_allclose(np.asarray(plain(X, other, value).numpy()), want, rtol=1e-4, atol=1e-5)
    for args, keys in (((X,), (x, x)), ((X, X, X), (x, x)), ((X, other), (o, o)), ((X, other, value), (o, v))):
        want = theirs(x, *keys, attn_mask=later, need_weights=False)[0].detach().numpy()
        np.testing.assert_allclose(np.asarray(layer(*args).numpy()), want, rtol=1e-4, atol=1e-5)
    with pytest.raises(
        tg.ShapeError, match=r"causal=True needs a key for each query, .*without causal=True, or pass mask="
    ):
        layer(X, other[:, :4])
    with pytest.raises(tg.ShapeError, match="value must be as the keys"):
        plain(X, other, value[:, :4])
