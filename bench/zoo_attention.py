"""Models of bench/zoo.py with attention, and their kin."""

from __future__ import annotations

from typing import Any

from zoo_parts import Model, attention, cross_entropy, heads, layer_norm, linear, normal, numbers, rms_norm

import tracegrad as tg
from tracegrad import nn

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    jax = jnp = None

WIDTH, LAYERS, HEADS = 128, 3, 4


def patches(x: Any, size: int = 4) -> Any:
    """[B, 3, 32, 32] in rows of patches: [B, 64, 48]. The same in all libraries."""
    b, c, n = x.shape[0], x.shape[1], x.shape[2] // size
    x = x.reshape(b, c, n, size, n, size)
    x = x.permute(0, 2, 4, 1, 3, 5) if hasattr(x, "permute") else x.transpose(0, 2, 4, 1, 3, 5)
    return x.reshape(b, n * n, c * size * size)


# --- a vision transformer ---


class Block(tg.Module):
    def __init__(self) -> None:
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def __call__(self, x: Any) -> Any:
        q, k, v = (tg.split_heads(t, HEADS) for t in tg.split(self.qkv(self.norm1(x)), 3, axis=-1))
        x = x + self.out(tg.merge_heads(tg.attention(q, k, v)))
        return x + self.down(tg.gelu(self.up(self.norm2(x))))


class ViT(tg.Module):
    def __init__(self) -> None:
        self.patch, self.position = nn.Linear(48, WIDTH), self.param((64, WIDTH))
        self.blocks = [Block() for _ in range(LAYERS)]
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def __call__(self, x: Any) -> Any:
        x = self.patch(patches(x)) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(tg.mean(self.norm(x), 1))


def vit_torch() -> Any:
    import torch
    from torch.nn import functional as F

    class Block(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
            self.qkv, self.out = torch.nn.Linear(WIDTH, 3 * WIDTH), torch.nn.Linear(WIDTH, WIDTH)
            self.up, self.down = torch.nn.Linear(WIDTH, 4 * WIDTH), torch.nn.Linear(4 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            parts = self.qkv(self.norm1(x)).chunk(3, -1)
            q, k, v = (t.unflatten(-1, (HEADS, -1)).transpose(1, 2) for t in parts)
            x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
            return x + self.down(F.gelu(self.up(self.norm2(x))))

    class ViT(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch, self.position = torch.nn.Linear(48, WIDTH), torch.nn.Parameter(torch.zeros(64, WIDTH))
            self.blocks = torch.nn.ModuleList([Block() for _ in range(LAYERS)])
            self.norm, self.head = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 10)

        def forward(self, x: Any) -> Any:
            x = self.patch(patches(x)) + self.position
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x).mean(1))

    return ViT(), lambda net, x, y: F.cross_entropy(net(x), y.long())


def vit_jax(p: Any, x: Any, y: Any) -> Any:
    x = linear(p, "patch", patches(x)) + p["position"]
    for k in range(LAYERS):
        name = f"blocks.{k}"
        h = linear(p, f"{name}.qkv", layer_norm(p, f"{name}.norm1", x))
        q, k, v = (heads(t, HEADS) for t in jnp.split(h, 3, -1))
        x = x + linear(p, f"{name}.out", attention(q, k, v))
        h = jax.nn.gelu(linear(p, f"{name}.up", layer_norm(p, f"{name}.norm2", x)), approximate=False)
        x = x + linear(p, f"{name}.down", h)
    return cross_entropy(linear(p, "head", layer_norm(p, "norm", x).mean(1)), y)


# --- a mixer ---


class Mix(tg.Module):
    def __init__(self) -> None:
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.t1, self.t2 = nn.Linear(64, 64), nn.Linear(64, 64)
        self.c1, self.c2 = nn.Linear(WIDTH, 2 * WIDTH), nn.Linear(2 * WIDTH, WIDTH)

    def __call__(self, x: Any) -> Any:
        h = tg.swapaxes(self.norm1(x), 1, 2)
        x = x + tg.swapaxes(self.t2(tg.gelu(self.t1(h))), 1, 2)
        return x + self.c2(tg.gelu(self.c1(self.norm2(x))))


class Mixer(tg.Module):
    def __init__(self) -> None:
        self.patch = nn.Linear(48, WIDTH)
        self.blocks = [Mix() for _ in range(LAYERS)]
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10)

    def __call__(self, x: Any) -> Any:
        x = self.patch(patches(x))
        for block in self.blocks:
            x = block(x)
        return self.head(tg.mean(self.norm(x), 1))


def mixer_torch() -> Any:
    import torch
    from torch.nn import functional as F

    class Mix(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = torch.nn.LayerNorm(WIDTH), torch.nn.LayerNorm(WIDTH)
            self.t1, self.t2 = torch.nn.Linear(64, 64), torch.nn.Linear(64, 64)
            self.c1, self.c2 = torch.nn.Linear(WIDTH, 2 * WIDTH), torch.nn.Linear(2 * WIDTH, WIDTH)

        def forward(self, x: Any) -> Any:
            x = x + self.t2(F.gelu(self.t1(self.norm1(x).transpose(1, 2)))).transpose(1, 2)
            return x + self.c2(F.gelu(self.c1(self.norm2(x))))

    class Mixer(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.patch = torch.nn.Linear(48, WIDTH)
            self.blocks = torch.nn.Sequential(*[Mix() for _ in range(LAYERS)])
            self.norm, self.head = torch.nn.LayerNorm(WIDTH), torch.nn.Linear(WIDTH, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.norm(self.blocks(self.patch(patches(x)))).mean(1))

    return Mixer(), lambda net, x, y: F.cross_entropy(net(x), y.long())


def mixer_jax(p: Any, x: Any, y: Any) -> Any:
    gelu = lambda x: jax.nn.gelu(x, approximate=False)
    x = linear(p, "patch", patches(x))
    for k in range(LAYERS):
        name = f"blocks.{k}"
        h = layer_norm(p, f"{name}.norm1", x).swapaxes(1, 2)
        x = x + linear(p, f"{name}.t2", gelu(linear(p, f"{name}.t1", h))).swapaxes(1, 2)
        x = x + linear(p, f"{name}.c2", gelu(linear(p, f"{name}.c1", layer_norm(p, f"{name}.norm2", x))))
    return cross_entropy(linear(p, "head", layer_norm(p, "norm", x).mean(1)), y)


# --- a language model of Llama's parts; and a large vocabulary ---


class Gated(tg.Module):
    def __init__(self) -> None:
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH), nn.RMSNorm(WIDTH)
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
        self.gate, self.up = nn.Linear(WIDTH, 344, bias=False), nn.Linear(WIDTH, 344, bias=False)
        self.down = nn.Linear(344, WIDTH, bias=False)

    def __call__(self, x: Any) -> Any:
        h = self.norm1(x)
        q, k, v = (tg.split_heads(p(h), HEADS) for p in (self.q, self.k, self.v))
        q, k = tg.rope(q, k)
        x = x + self.out(tg.merge_heads(tg.attention(q, k, v, causal=True)))
        h = self.norm2(x)
        return x + self.down(tg.silu(self.gate(h)) * self.up(h))


class Language(tg.Module):
    def __init__(self, vocabulary: int, layers: int) -> None:
        self.token = nn.Embedding(vocabulary, WIDTH)
        self.blocks = [Gated() for _ in range(layers)]
        self.norm, self.head = nn.RMSNorm(WIDTH), nn.Linear(WIDTH, vocabulary, bias=False)

    def __call__(self, x: Any) -> Any:
        x = self.token(x)
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def language_torch(vocabulary: int, layers: int) -> Any:
    import torch
    from torch.nn import functional as F

    linear = lambda a, b: torch.nn.Linear(a, b, bias=False)

    def turned(x: Any) -> Any:
        t, d = x.shape[-2:]
        a = torch.arange(t, device=x.device)[:, None] * 10000 ** (-torch.arange(0, d, 2, device=x.device) / d)
        cos, sin = a.cos().repeat(1, 2), a.sin().repeat(1, 2)
        one, two = x.chunk(2, -1)
        return x * cos + torch.cat([-two, one], -1) * sin

    class Gated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = torch.nn.RMSNorm(WIDTH, 1e-6), torch.nn.RMSNorm(WIDTH, 1e-6)
            self.q, self.k, self.v, self.out = (linear(WIDTH, WIDTH) for _ in range(4))
            self.gate, self.up, self.down = linear(WIDTH, 344), linear(WIDTH, 344), linear(344, WIDTH)

        def forward(self, x: Any) -> Any:
            h = self.norm1(x)
            q, k, v = (p(h).unflatten(-1, (HEADS, -1)).transpose(1, 2) for p in (self.q, self.k, self.v))
            mixed = F.scaled_dot_product_attention(turned(q), turned(k), v, is_causal=True)
            x = x + self.out(mixed.transpose(1, 2).flatten(2))
            h = self.norm2(x)
            return x + self.down(F.silu(self.gate(h)) * self.up(h))

    class Language(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.token = torch.nn.Embedding(vocabulary, WIDTH)
            self.blocks = torch.nn.Sequential(*[Gated() for _ in range(layers)])
            self.norm, self.head = torch.nn.RMSNorm(WIDTH, 1e-6), linear(WIDTH, vocabulary)

        def forward(self, x: Any) -> Any:
            return self.head(self.norm(self.blocks(self.token(x))))

    return Language(), lambda net, x, y: F.cross_entropy(net(x).flatten(0, 1), y.flatten().long())


def language_jax(p: Any, x: Any, y: Any) -> Any:
    def turned(x: Any) -> Any:
        t, d = x.shape[-2:]
        a = jnp.arange(t)[:, None] * 10000.0 ** (-jnp.arange(0, d, 2) / d)
        one, two = jnp.split(x, 2, -1)
        return x * jnp.tile(jnp.cos(a), 2) + jnp.concatenate([-two, one], -1) * jnp.tile(jnp.sin(a), 2)

    x = p["token.W"][x]
    for k in range(sum(n.endswith(".gate.W") for n in p)):
        name = f"blocks.{k}"
        h = rms_norm(p, f"{name}.norm1", x)
        q, k, v = (heads(linear(p, f"{name}.{n}", h), HEADS) for n in "qkv")
        x = x + linear(p, f"{name}.out", attention(turned(q), turned(k), v, causal=True))
        h = rms_norm(p, f"{name}.norm2", x)
        h = jax.nn.silu(linear(p, f"{name}.gate", h)) * linear(p, f"{name}.up", h)
        x = x + linear(p, f"{name}.down", h)
    return cross_entropy(linear(p, "head", rms_norm(p, "norm", x)), y)


def labelled(m: Any, x: Any, y: Any) -> Any:
    return tg.cross_entropy(m(x), y)


ATTENTION = {
    "vit": Model(
        lambda r: {"x": normal(r, 16, 3, 32, 32), "y": numbers(r, 10, 16)},
        lambda: (ViT(), labelled), vit_torch, vit_jax,
    ),
    "mixer": Model(
        lambda r: {"x": normal(r, 16, 3, 32, 32), "y": numbers(r, 10, 16)},
        lambda: (Mixer(), labelled), mixer_torch, mixer_jax,
    ),
    "llama": Model(
        lambda r: {"x": numbers(r, 256, 8, 128), "y": numbers(r, 256, 8, 128)},
        lambda: (Language(256, 2), labelled), lambda: language_torch(256, 2), language_jax,
    ),
    "vocabulary": Model(
        lambda r: {"x": numbers(r, 16384, 4, 64), "y": numbers(r, 16384, 4, 64)},
        lambda: (Language(16384, 1), labelled), lambda: language_torch(16384, 1), language_jax,
    ),
}  # fmt: skip
