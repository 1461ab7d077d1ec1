"""Models of sequences of bench/zoo.py: recurrent ones, and convolutions of sounds."""

from __future__ import annotations

from typing import Any

from zoo_parts import Model, conv, cross_entropy, linear, normal, numbers

import tracegrad as tg
from tracegrad import nn

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    jax = jnp = None

# --- LSTM and GRU, by the layers of the libraries ---


class Recurrent(tg.Module):
    def __init__(self, layer: Any, inputs: int, width: int, layers: int = 1) -> None:
        self.layer, self.head = layer(inputs, width, layers), nn.Linear(width, 10)

    def __call__(self, x: Any) -> Any:
        return self.head(self.layer(x)[0][:, -1])


def recurrent_torch(kind: str, inputs: int, width: int, layers: int = 1) -> Any:
    import torch
    from torch.nn import functional as F

    class Recurrent(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = getattr(torch.nn, kind)(inputs, width, layers, batch_first=True)
            self.head = torch.nn.Linear(width, 10)

        def forward(self, x: Any) -> Any:
            return self.head(self.layer(x)[0][:, -1])

    return Recurrent(), lambda net, x, y: F.cross_entropy(net(x), y.long())


def given(p: Any, k: int, x: Any) -> Any:
    return x @ p[f"layer.cells.{k}.W_ih"].T + p[f"layer.cells.{k}.b_ih"]


def recurring(p: Any, k: int, h: Any) -> Any:
    return h @ p[f"layer.cells.{k}.W_hh"].T + p[f"layer.cells.{k}.b_hh"]


def lstm_jax(p: Any, x: Any, y: Any) -> Any:
    x = x.swapaxes(0, 1)
    for k in range(2):
        zeros = jnp.zeros((x.shape[1], p[f"layer.cells.{k}.W_hh"].shape[1]))

        def step(carry: Any, a: Any, k: int = k) -> Any:
            h, c = carry
            i, f, g, o = jnp.split(a + recurring(p, k, h), 4, -1)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        _, x = jax.lax.scan(step, (zeros, zeros), given(p, k, x))
    return cross_entropy(linear(p, "head", x[-1]), y)


def gru_jax(p: Any, x: Any, y: Any) -> Any:
    def step(h: Any, a: Any) -> Any:
        (xr, xz, xn), (hr, hz, hn) = jnp.split(a, 3, -1), jnp.split(recurring(p, 0, h), 3, -1)
        r, z = jax.nn.sigmoid(xr + hr), jax.nn.sigmoid(xz + hz)
        return (1 - z) * jnp.tanh(xn + r * hn) + z * h, None

    h, _ = jax.lax.scan(step, jnp.zeros((x.shape[0], 96)), given(p, 0, x.swapaxes(0, 1)))
    return cross_entropy(linear(p, "head", h), y)


# --- a cell that somebody wrote: it reads its element in the loop, and gives an output ---


class Cell(tg.Module):
    def __init__(self) -> None:
        self.input, self.state = nn.Linear(24, 64), nn.Linear(64, 64, bias=False, init=tg.init.randn(0.1))
        self.output = nn.Linear(64, 8)


def cell_loss(m: Any, x: Any, y: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = tg.tanh(m.input(x) + m.state(h))
        return h, m.output(h)

    _, out = tg.scan(step, tg.zeros((16, 64)), x)
    return tg.mse_loss(out, y)


def cell_torch() -> Any:
    import torch
    from torch.nn import functional as F

    class Cell(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.input, self.state = torch.nn.Linear(24, 64), torch.nn.Linear(64, 64, bias=False)
            self.output = torch.nn.Linear(64, 8)

        def forward(self, x: Any) -> Any:
            h, out = torch.zeros((16, 64), device=x.device), []
            for one in x:
                h = torch.tanh(self.input(one) + self.state(h))
                out.append(self.output(h))
            return torch.stack(out)

    return Cell(), lambda net, x, y: F.mse_loss(net(x), y)


def cell_jax(p: Any, x: Any, y: Any) -> Any:
    def step(h: Any, x: Any) -> Any:
        h = jnp.tanh(linear(p, "input", x) + linear(p, "state", h))
        return h, linear(p, "output", h)

    return jnp.mean((jax.lax.scan(step, jnp.zeros((16, 64)), x)[1] - y) ** 2)


# --- a linear recurrence, gated by the input ---


class StateSpace(tg.Module):
    def __init__(self) -> None:
        self.gate, self.value, self.out = nn.Linear(32, 64), nn.Linear(32, 64), nn.Linear(64, 32)


def space_loss(m: Any, x: Any, y: Any) -> Any:
    a, b = tg.sigmoid(m.gate(x) + 2.0), m.value(x)
    _, h = tg.scan(lambda h, e: 2 * (e[0] * h + (1.0 - e[0]) * e[1],), tg.zeros((16, 64)), (a, b))
    return tg.mse_loss(m.out(tg.silu(h)), y)


def space_torch() -> Any:
    import torch
    from torch.nn import functional as F

    class StateSpace(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate, self.value = torch.nn.Linear(32, 64), torch.nn.Linear(32, 64)
            self.out = torch.nn.Linear(64, 32)

        def forward(self, x: Any) -> Any:
            a, b = torch.sigmoid(self.gate(x) + 2.0), self.value(x)
            h, all = torch.zeros((16, 64), device=x.device), []
            for one, two in zip(a, b):
                h = one * h + (1.0 - one) * two
                all.append(h)
            return self.out(F.silu(torch.stack(all)))

    return StateSpace(), lambda net, x, y: F.mse_loss(net(x), y)


def space_jax(p: Any, x: Any, y: Any) -> Any:
    def step(h: Any, e: Any) -> Any:
        h = e[0] * h + (1.0 - e[0]) * e[1]
        return h, h

    _, h = jax.lax.scan(step, jnp.zeros((16, 64)), (jax.nn.sigmoid(linear(p, "gate", x) + 2.0), linear(p, "value", x)))
    return jnp.mean((linear(p, "out", jax.nn.silu(h)) - y) ** 2)


# --- sounds: strided convolutions, and dilated ones ---

SOUND = ((1, 32, 16, 4), (32, 64, 8, 4), (64, 64, 4, 2))


class Sound(tg.Module):
    def __init__(self) -> None:
        self.convs = [nn.Conv1d(a, b, k, stride=s) for a, b, k, s in SOUND]
        self.head = nn.Linear(64, 10)

    def __call__(self, x: Any) -> Any:
        for c in self.convs:
            x = tg.relu(c(x))
        return self.head(tg.mean(x, 2))


def sound_torch() -> Any:
    import torch
    from torch.nn import functional as F

    class Sound(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.convs = torch.nn.ModuleList([torch.nn.Conv1d(a, b, k, s) for a, b, k, s in SOUND])
            self.head = torch.nn.Linear(64, 10)

        def forward(self, x: Any) -> Any:
            for c in self.convs:
                x = F.relu(c(x))
            return self.head(x.mean(2))

    return Sound(), lambda net, x, y: F.cross_entropy(net(x), y.long())


def sound_jax(p: Any, x: Any, y: Any) -> Any:
    for k, (_, _, _, stride) in enumerate(SOUND):
        x = jax.nn.relu(conv(p, f"convs.{k}", x, stride))
    return cross_entropy(linear(p, "head", x.mean(2)), y)


class Dilated(tg.Module):
    """A temporal network: each layer sees twice as far back."""

    def __init__(self) -> None:
        self.stem, self.head = nn.Conv1d(8, 32, 1), nn.Conv1d(32, 8, 1)
        self.W = [self.param((32, 32, 3), init=tg.init.randn(0.1)) for _ in range(5)]

    def __call__(self, x: Any) -> Any:
        x = self.stem(x)
        for k, w in enumerate(self.W):
            past = tg.pad(x, ((0, 0), (0, 0), (2 * 2**k, 0)))
            x = x + tg.relu(tg.conv1d(past, w, dilation=2**k))
        return self.head(x)


def dilated_torch() -> Any:
    import torch
    from torch.nn import functional as F

    class Dilated(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem, self.head = torch.nn.Conv1d(8, 32, 1), torch.nn.Conv1d(32, 8, 1)
            self.W = torch.nn.ParameterList([torch.zeros(32, 32, 3) for _ in range(5)])

        def forward(self, x: Any) -> Any:
            x = self.stem(x)
            for k, w in enumerate(self.W):
                x = x + F.relu(F.conv1d(F.pad(x, (2 * 2**k, 0)), w, dilation=2**k))
            return self.head(x)

    return Dilated(), lambda net, x, y: F.mse_loss(net(x), y)


def dilated_jax(p: Any, x: Any, y: Any) -> Any:
    x = conv(p, "stem", x)
    for k in range(5):
        past = jnp.pad(x, ((0, 0), (0, 0), (2 * 2**k, 0)))
        x = x + jax.nn.relu(conv({"W.W": p[f"W.{k}"]}, "W", past, dilation=2**k))
    return jnp.mean((conv(p, "head", x) - y) ** 2)


def labelled(m: Any, x: Any, y: Any) -> Any:
    return tg.cross_entropy(m(x), y)


def compared(m: Any, x: Any, y: Any) -> Any:
    return tg.mse_loss(m(x), y)


SEQUENCES = {
    "lstm": Model(
        lambda r: {"x": normal(r, 32, 64, 32), "y": numbers(r, 10, 32)},
        lambda: (Recurrent(nn.LSTM, 32, 128, 2), labelled), lambda: recurrent_torch("LSTM", 32, 128, 2), lstm_jax,
    ),
    "gru": Model(
        lambda r: {"x": normal(r, 16, 128, 24), "y": numbers(r, 10, 16)},
        lambda: (Recurrent(nn.GRU, 24, 96), labelled), lambda: recurrent_torch("GRU", 24, 96), gru_jax,
    ),
    "cell": Model(
        lambda r: {"x": normal(r, 100, 16, 24), "y": normal(r, 100, 16, 8)},
        lambda: (Cell(), cell_loss), cell_torch, cell_jax,
    ),
    "statespace": Model(
        lambda r: {"x": normal(r, 128, 16, 32), "y": normal(r, 128, 16, 32)},
        lambda: (StateSpace(), space_loss), space_torch, space_jax,
    ),
    "audio": Model(
        lambda r: {"x": normal(r, 16, 1, 4096), "y": numbers(r, 10, 16)},
        lambda: (Sound(), labelled), sound_torch, sound_jax,
    ),
    "dilated": Model(
        lambda r: {"x": normal(r, 8, 8, 512), "y": normal(r, 8, 8, 512)},
        lambda: (Dilated(), compared), dilated_torch, dilated_jax,
    ),
}  # fmt: skip
