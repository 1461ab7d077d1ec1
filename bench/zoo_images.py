"""Convolutional models of bench/zoo.py."""

from __future__ import annotations

from typing import Any

from zoo_parts import Model, batch_norm, conv, conv_transpose, cross_entropy, group_norm, linear, normal, numbers

import tracegrad as tg
from tracegrad import nn

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    jax = jnp = None

# --- a residual network with batch norm ---

STAGES = ((16, 16, 1), (16, 32, 2), (32, 64, 2))


class Block(tg.Module):
    def __init__(self, a: int, b: int, stride: int) -> None:
        self.conv1 = nn.Conv2d(a, b, 3, stride=stride, padding=1, bias=False)
        self.conv2 = nn.Conv2d(b, b, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm(b), nn.BatchNorm(b)
        self.skip = nn.Conv2d(a, b, 1, stride=stride, bias=False) if stride > 1 else None

    def __call__(self, x: Any) -> Any:
        y = self.norm2(self.conv2(tg.relu(self.norm1(self.conv1(x), training=True))), training=True)
        return tg.relu(y + (self.skip(x) if self.skip else x))


class ResNet(tg.Module):
    def __init__(self) -> None:
        self.stem, self.norm = nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm(16)
        self.blocks = [Block(*s) for s in STAGES]
        self.head = nn.Linear(64, 10)

    def __call__(self, x: Any) -> Any:
        x = tg.relu(self.norm(self.stem(x), training=True))
        for block in self.blocks:
            x = block(x)
        return self.head(tg.mean(x, (2, 3)))


def resnet_torch() -> Any:
    import torch
    from torch.nn import functional as F

    class Block(torch.nn.Module):
        def __init__(self, a: int, b: int, stride: int) -> None:
            super().__init__()
            self.conv1 = torch.nn.Conv2d(a, b, 3, stride, 1, bias=False)
            self.conv2 = torch.nn.Conv2d(b, b, 3, 1, 1, bias=False)
            self.norm1, self.norm2 = torch.nn.BatchNorm2d(b), torch.nn.BatchNorm2d(b)
            self.skip = torch.nn.Conv2d(a, b, 1, stride, bias=False) if stride > 1 else torch.nn.Identity()

        def forward(self, x: Any) -> Any:
            return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))) + self.skip(x))

    class ResNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.norm = torch.nn.Conv2d(3, 16, 3, 1, 1, bias=False), torch.nn.BatchNorm2d(16)
            self.blocks = torch.nn.Sequential(*[Block(*s) for s in STAGES])
            self.head = torch.nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))

    return ResNet(), lambda net, x, y: F.cross_entropy(net(x), y.long())


def resnet_jax(p: Any, x: Any, y: Any) -> Any:
    x = jax.nn.relu(batch_norm(p, "norm", conv(p, "stem", x, 1, 1)))
    for k, (_, _, stride) in enumerate(STAGES):
        name = f"blocks.{k}"
        h = jax.nn.relu(batch_norm(p, f"{name}.norm1", conv(p, f"{name}.conv1", x, stride, 1)))
        h = batch_norm(p, f"{name}.norm2", conv(p, f"{name}.conv2", h, 1, 1))
        x = jax.nn.relu(h + (conv(p, f"{name}.skip", x, stride) if stride > 1 else x))
    return cross_entropy(linear(p, "head", x.mean((2, 3))), y)


# --- a U-Net with batch norm ---

WIDTHS = (16, 32, 64)


class Twice(tg.Module):
    def __init__(self, a: int, b: int) -> None:
        self.conv1, self.conv2 = nn.Conv2d(a, b, 3, padding=1), nn.Conv2d(b, b, 3, padding=1)
        self.norm1, self.norm2 = nn.BatchNorm(b), nn.BatchNorm(b)

    def __call__(self, x: Any) -> Any:
        x = tg.relu(self.norm1(self.conv1(x), training=True))
        return tg.relu(self.norm2(self.conv2(x), training=True))


class UNet(tg.Module):
    def __init__(self) -> None:
        a, b, c = WIDTHS
        self.down1, self.down2, self.middle = Twice(3, a), Twice(a, b), Twice(b, c)
        self.up2, self.up1 = nn.ConvTranspose2d(c, b, 2, stride=2), nn.ConvTranspose2d(b, a, 2, stride=2)
        self.join2, self.join1 = Twice(2 * b, b), Twice(2 * a, a)
        self.out = nn.Conv2d(a, 1, 1)

    def __call__(self, x: Any) -> Any:
        one = self.down1(x)
        two = self.down2(tg.max_pool2d(one, 2))
        x = self.middle(tg.max_pool2d(two, 2))
        x = self.join2(tg.concat([self.up2(x), two], 1))
        return self.out(self.join1(tg.concat([self.up1(x), one], 1)))


def unet_torch() -> Any:
    import torch
    from torch.nn import functional as F

    class Twice(torch.nn.Module):
        def __init__(self, a: int, b: int) -> None:
            super().__init__()
            self.conv1, self.conv2 = torch.nn.Conv2d(a, b, 3, 1, 1), torch.nn.Conv2d(b, b, 3, 1, 1)
            self.norm1, self.norm2 = torch.nn.BatchNorm2d(b), torch.nn.BatchNorm2d(b)

        def forward(self, x: Any) -> Any:
            return F.relu(self.norm2(self.conv2(F.relu(self.norm1(self.conv1(x))))))

    class UNet(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            a, b, c = WIDTHS
            self.down1, self.down2, self.middle = Twice(3, a), Twice(a, b), Twice(b, c)
            self.up2, self.up1 = torch.nn.ConvTranspose2d(c, b, 2, 2), torch.nn.ConvTranspose2d(b, a, 2, 2)
            self.join2, self.join1 = Twice(2 * b, b), Twice(2 * a, a)
            self.out = torch.nn.Conv2d(a, 1, 1)

        def forward(self, x: Any) -> Any:
            one = self.down1(x)
            two = self.down2(F.max_pool2d(one, 2))
            x = self.middle(F.max_pool2d(two, 2))
            x = self.join2(torch.cat([self.up2(x), two], 1))
            return self.out(self.join1(torch.cat([self.up1(x), one], 1)))

    return UNet(), lambda net, x, y: F.mse_loss(net(x), y)


def unet_jax(p: Any, x: Any, y: Any) -> Any:
    def twice(name: str, x: Any) -> Any:
        x = jax.nn.relu(batch_norm(p, f"{name}.norm1", conv(p, f"{name}.conv1", x, 1, 1)))
        return jax.nn.relu(batch_norm(p, f"{name}.norm2", conv(p, f"{name}.conv2", x, 1, 1)))

    pool = lambda x: jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 1, 2, 2), (1, 1, 2, 2), "VALID")
    one = twice("down1", x)
    two = twice("down2", pool(one))
    x = twice("middle", pool(two))
    x = twice("join2", jnp.concatenate([conv_transpose(p, "up2", x, 2, 0), two], 1))
    x = twice("join1", jnp.concatenate([conv_transpose(p, "up1", x, 2, 0), one], 1))
    return jnp.mean((conv(p, "out", x) - y) ** 2)


# --- depthwise separable convolutions ---

DEPTH = 4


class Separable(tg.Module):
    def __init__(self) -> None:
        self.stem = nn.Conv2d(3, 32, 3, padding=1)
        self.deep = [nn.Conv2d(32, 32, 3, padding=1, groups=32) for _ in range(DEPTH)]
        self.point = [nn.Conv2d(32, 32, 1) for _ in range(DEPTH)]
        self.head = nn.Linear(32, 10)

    def __call__(self, x: Any) -> Any:
        x = tg.relu(self.stem(x))
        for deep, point in zip(self.deep, self.point):
            x = x + tg.relu(point(tg.relu(deep(x))))
        return self.head(tg.mean(x, (2, 3)))


def separable_torch() -> Any:
    import torch
    from torch.nn import functional as F

    class Separable(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = torch.nn.Conv2d(3, 32, 3, padding=1)
            each = lambda *a, **k: torch.nn.ModuleList([torch.nn.Conv2d(*a, **k) for _ in range(DEPTH)])
            self.deep, self.point = each(32, 32, 3, padding=1, groups=32), each(32, 32, 1)
            self.head = torch.nn.Linear(32, 10)

        def forward(self, x: Any) -> Any:
            x = F.relu(self.stem(x))
            for deep, point in zip(self.deep, self.point):
                x = x + F.relu(point(F.relu(deep(x))))
            return self.head(x.mean((2, 3)))

    return Separable(), lambda net, x, y: F.cross_entropy(net(x), y.long())


def separable_jax(p: Any, x: Any, y: Any) -> Any:
    relu = jax.nn.relu
    x = relu(conv(p, "stem", x, 1, 1))
    for k in range(DEPTH):
        x = x + relu(conv(p, f"point.{k}", relu(conv(p, f"deep.{k}", x, 1, 1, groups=32))))
    return cross_entropy(linear(p, "head", x.mean((2, 3))), y)


# --- a convolutional autoencoder ---


class Autoencoder(tg.Module):
    def __init__(self) -> None:
        self.c1, self.c2 = nn.Conv2d(1, 16, 4, stride=2, padding=1), nn.Conv2d(16, 32, 4, stride=2, padding=1)
        self.code, self.back = nn.Linear(32 * 49, 32), nn.Linear(32, 32 * 49)
        self.t2 = nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1)
        self.t1 = nn.ConvTranspose2d(16, 1, 4, stride=2, padding=1)

    def __call__(self, x: Any) -> Any:
        h = tg.flatten(tg.relu(self.c2(tg.relu(self.c1(x)))))
        h = tg.relu(self.back(self.code(h))).reshape(-1, 32, 7, 7)
        return self.t1(tg.relu(self.t2(h)))


def autoencoder_torch() -> Any:
    import torch
    from torch.nn import functional as F

    class Autoencoder(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.c1, self.c2 = torch.nn.Conv2d(1, 16, 4, 2, 1), torch.nn.Conv2d(16, 32, 4, 2, 1)
            self.code, self.back = torch.nn.Linear(32 * 49, 32), torch.nn.Linear(32, 32 * 49)
            self.t2, self.t1 = torch.nn.ConvTranspose2d(32, 16, 4, 2, 1), torch.nn.ConvTranspose2d(16, 1, 4, 2, 1)

        def forward(self, x: Any) -> Any:
            h = F.relu(self.c2(F.relu(self.c1(x)))).flatten(1)
            return self.t1(F.relu(self.t2(F.relu(self.back(self.code(h))).view(-1, 32, 7, 7))))

    return Autoencoder(), lambda net, x: F.mse_loss(net(x), x)


def autoencoder_jax(p: Any, x: Any) -> Any:
    relu = jax.nn.relu
    h = relu(conv(p, "c2", relu(conv(p, "c1", x, 2, 1)), 2, 1)).reshape(x.shape[0], -1)
    h = relu(linear(p, "back", linear(p, "code", h))).reshape(-1, 32, 7, 7)
    return jnp.mean((conv_transpose(p, "t1", relu(conv_transpose(p, "t2", h, 2, 1)), 2, 1) - x) ** 2)


# --- one step of a diffusion model ---


class Denoiser(tg.Module):
    def __init__(self) -> None:
        self.time, self.stem = nn.Linear(32, 48), nn.Conv2d(3, 48, 3, padding=1)
        self.convs = [nn.Conv2d(48, 48, 3, padding=1) for _ in range(4)]
        self.norms = [nn.GroupNorm(8, 48) for _ in range(4)]
        self.out = nn.Conv2d(48, 3, 3, padding=1)

    def __call__(self, x: Any, t: Any) -> Any:
        a = t.reshape(-1, 1) * tg.exp(tg.linspace(0.0, -6.0, 16))
        t = self.time(tg.concat([tg.sin(a), tg.cos(a)], 1)).reshape(-1, 48, 1, 1)
        x = self.stem(x)
        for c, n in zip(self.convs, self.norms):
            x = x + c(tg.silu(n(x) + t))
        return self.out(x)


def denoiser_loss(m: Any, x: Any, noise: Any, t: Any) -> Any:
    signal = tg.cos(t * 1.5).reshape(-1, 1, 1, 1)
    noisy = signal * x + tg.sqrt(1.0 - signal * signal) * noise
    return tg.mean(tg.square(m(noisy, t * 1000.0) - noise))


def denoiser_torch() -> Any:
    import torch
    from torch.nn import functional as F

    class Denoiser(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.time, self.stem = torch.nn.Linear(32, 48), torch.nn.Conv2d(3, 48, 3, padding=1)
            self.convs = torch.nn.ModuleList([torch.nn.Conv2d(48, 48, 3, padding=1) for _ in range(4)])
            self.norms = torch.nn.ModuleList([torch.nn.GroupNorm(8, 48) for _ in range(4)])
            self.out = torch.nn.Conv2d(48, 3, 3, padding=1)

        def forward(self, x: Any, t: Any) -> Any:
            a = t.view(-1, 1) * torch.exp(torch.linspace(0.0, -6.0, 16, device=t.device))
            t = self.time(torch.cat([torch.sin(a), torch.cos(a)], 1)).view(-1, 48, 1, 1)
            x = self.stem(x)
            for c, n in zip(self.convs, self.norms):
                x = x + c(F.silu(n(x) + t))
            return self.out(x)

    def loss(net: Any, x: Any, noise: Any, t: Any) -> Any:
        signal = torch.cos(t * 1.5).view(-1, 1, 1, 1)
        return F.mse_loss(net(signal * x + torch.sqrt(1.0 - signal * signal) * noise, t * 1000.0), noise)

    return Denoiser(), loss


def denoiser_jax(p: Any, x: Any, noise: Any, t: Any) -> Any:
    signal = jnp.cos(t * 1.5).reshape(-1, 1, 1, 1)
    x = signal * x + jnp.sqrt(1.0 - signal * signal) * noise
    a = (t * 1000.0).reshape(-1, 1) * jnp.exp(jnp.linspace(0.0, -6.0, 16))
    t = linear(p, "time", jnp.concatenate([jnp.sin(a), jnp.cos(a)], 1)).reshape(-1, 48, 1, 1)
    x = conv(p, "stem", x, 1, 1)
    for k in range(4):
        x = x + conv(p, f"convs.{k}", jax.nn.silu(group_norm(p, f"norms.{k}", x, 8) + t), 1, 1)
    return jnp.mean((conv(p, "out", x, 1, 1) - noise) ** 2)


def labelled(m: Any, x: Any, y: Any) -> Any:
    return tg.cross_entropy(m(x), y)


IMAGES = {
    "resnet": Model(
        lambda r: {"x": normal(r, 32, 3, 32, 32), "y": numbers(r, 10, 32)},
        lambda: (ResNet(), labelled), resnet_torch, resnet_jax, channels_last=True,
    ),
    "unet": Model(
        lambda r: {"x": normal(r, 4, 3, 48, 48), "y": normal(r, 4, 1, 48, 48)},
        lambda: (UNet(), lambda m, x, y: tg.mse_loss(m(x), y)), unet_torch, unet_jax, channels_last=True,
    ),
    "depthwise": Model(
        lambda r: {"x": normal(r, 16, 3, 32, 32), "y": numbers(r, 10, 16)},
        lambda: (Separable(), labelled), separable_torch, separable_jax, channels_last=True,
    ),
    "autoencoder": Model(
        lambda r: {"x": normal(r, 32, 1, 28, 28)},
        lambda: (Autoencoder(), lambda m, x: tg.mse_loss(m(x), x)), autoencoder_torch, autoencoder_jax,
    ),
    "diffusion": Model(
        lambda r: {"x": normal(r, 8, 3, 16, 16), "noise": normal(r, 8, 3, 16, 16), "t": r.random(8, "f4")},
        lambda: (Denoiser(), denoiser_loss), denoiser_torch, denoiser_jax, channels_last=True,
    ),
}  # fmt: skip
