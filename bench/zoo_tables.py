"""Models of bench/zoo.py of vectors, tables, sets, graphs and functions."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
from zoo_parts import Model, cross_entropy, linear, normal, numbers

import tracegrad as tg
from tracegrad import nn

try:
    import jax
    import jax.numpy as jnp
except ImportError:
    jax = jnp = None


class Dense(tg.Module):
    """Linear layers with a function between."""

    def __init__(self, *widths: int, act: Any = tg.relu) -> None:
        self.layers = [nn.Linear(a, b) for a, b in itertools.pairwise(widths)]
        self.act = act

    def __call__(self, x: Any) -> Any:
        for layer in self.layers[:-1]:
            x = self.act(layer(x))
        return self.layers[-1](x)


def dense_torch(*widths: int, act: Any = None) -> Any:
    import torch

    class Dense(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = torch.nn.ModuleList([torch.nn.Linear(a, b) for a, b in itertools.pairwise(widths)])

        def forward(self, x: Any) -> Any:
            for layer in self.layers[:-1]:
                x = (act or torch.relu)(layer(x))
            return self.layers[-1](x)

    return Dense()


def dense_jax(p: Any, x: Any, name: str = "", act: Any = None) -> Any:
    n = sum(k.startswith(f"{name}layers.") and k.endswith(".W") for k in p)
    for k in range(n - 1):
        x = (act or jax.nn.relu)(linear(p, f"{name}layers.{k}", x))
    return linear(p, f"{name}layers.{n - 1}", x)


def torch_loss(make: Any) -> Any:
    """`make(torch, F)` gives the parts of a module and its loss."""

    def made() -> Any:
        import torch

        parts, loss = make(torch, torch.nn.functional)
        if isinstance(parts, torch.nn.Module):
            return parts, loss
        net = torch.nn.Module()
        for name, part in parts.items():
            setattr(net, name, part)
        return net, loss

    return made


# --- functions of points: a sine network, one that solves an equation, one that is an equation ---


def siren_torch(torch: Any, F: Any) -> Any:
    net = dense_torch(2, 256, 256, 256, 3, act=lambda x: torch.sin(30.0 * x))
    return net, lambda net, x, y: F.mse_loss(net(x), y)


def siren_jax(p: Any, x: Any, y: Any) -> Any:
    return jnp.mean((dense_jax(p, x, act=lambda x: jnp.sin(30.0 * x)) - y) ** 2)


class Siren(tg.Module):
    def __init__(self) -> None:
        wide = tg.init.uniform(-0.01, 0.01)
        self.layers = [nn.Linear(2, 256, init=tg.init.uniform(-0.5, 0.5))]
        self.layers += [nn.Linear(256, 256, init=wide), nn.Linear(256, 256, init=wide), nn.Linear(256, 3, init=wide)]


def siren_loss(m: Any, x: Any, y: Any) -> Any:
    for layer in m.layers[:-1]:
        x = tg.sin(30.0 * layer(x))
    return tg.mse_loss(m.layers[-1](x), y)


def pinn_loss(m: Any, x: Any) -> Any:
    """u'' = -u at points."""
    u = lambda x: tg.sum(m(x))
    slope = tg.grad(u)
    bend = tg.grad(lambda x: tg.sum(slope(x)))(x)
    return tg.mean(tg.square(bend + m(x))) + tg.square(tg.mean(m(x)) - 1.0)


def pinn_torch(torch: Any, F: Any) -> Any:
    def loss(net: Any, x: Any) -> Any:
        x = x.detach().requires_grad_()
        u = net(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        return ((bend + u) ** 2).mean() + (u.mean() - 1.0) ** 2

    return dense_torch(1, 64, 64, 64, 1, act=torch.tanh), loss


def pinn_jax(p: Any, x: Any) -> Any:
    u = lambda x: dense_jax(p, x, act=jnp.tanh)
    slope = jax.grad(lambda x: u(x).sum())
    bend = jax.grad(lambda x: slope(x).sum())(x)
    return jnp.mean((bend + u(x)) ** 2) + (jnp.mean(u(x)) - 1.0) ** 2


STEPS = 25


def ode_loss(m: Any, x: Any, y: Any) -> Any:
    def step(x: Any) -> Any:
        a = m(x)
        b = m(x + a * (0.5 / STEPS))
        return x + b * (1.0 / STEPS)

    return tg.mse_loss(tg.repeat(step, STEPS, x), y)


def ode_torch(torch: Any, F: Any) -> Any:
    def loss(net: Any, x: Any, y: Any) -> Any:
        for _ in range(STEPS):
            x = x + net(x + net(x) * (0.5 / STEPS)) * (1.0 / STEPS)
        return F.mse_loss(x, y)

    return dense_torch(2, 64, 64, 2, act=torch.tanh), loss


def ode_jax(p: Any, x: Any, y: Any) -> Any:
    f = lambda x: dense_jax(p, x, act=jnp.tanh)
    step = lambda x, _: (x + f(x + f(x) * (0.5 / STEPS)) * (1.0 / STEPS), None)
    return jnp.mean((jax.lax.scan(step, x, None, STEPS)[0] - y) ** 2)


# --- an autoencoder that draws its code ---


class VAE(tg.Module):
    def __init__(self) -> None:
        self.encoder, self.decoder = Dense(784, 400, 40), Dense(20, 400, 784)


def vae_loss(m: Any, x: Any, noise: Any) -> Any:
    mean, spread = tg.split(m.encoder(x), 2, axis=1)
    logits = m.decoder(mean + noise * tg.exp(0.5 * spread))
    fit = tg.sum(tg.binary_cross_entropy_with_logits(logits, x, reduction="none")) / 128.0
    return fit - 0.5 * tg.sum(1.0 + spread - tg.square(mean) - tg.exp(spread)) / 128.0


def vae_torch(torch: Any, F: Any) -> Any:
    def loss(net: Any, x: Any, noise: Any) -> Any:
        mean, spread = net.encoder(x).chunk(2, 1)
        logits = net.decoder(mean + noise * torch.exp(0.5 * spread))
        fit = F.binary_cross_entropy_with_logits(logits, x, reduction="sum") / 128.0
        return fit - 0.5 * (1.0 + spread - mean**2 - spread.exp()).sum() / 128.0

    return {"encoder": dense_torch(784, 400, 40), "decoder": dense_torch(20, 400, 784)}, loss


def vae_jax(p: Any, x: Any, noise: Any) -> Any:
    mean, spread = jnp.split(dense_jax(p, x, "encoder."), 2, 1)
    logits = dense_jax(p, mean + noise * jnp.exp(0.5 * spread), "decoder.")
    fit = jnp.sum(jnp.maximum(logits, 0) - logits * x + jnp.log1p(jnp.exp(-jnp.abs(logits)))) / 128.0
    return fit - 0.5 * jnp.sum(1.0 + spread - mean**2 - jnp.exp(spread)) / 128.0


# --- learning values of actions ---


def dqn_loss(m: Any, x: Any, action: Any, target: Any) -> Any:
    q = tg.squeeze(tg.take_along_axis(m(x), tg.expand_dims(action, 1), 1), 1)
    d = tg.abs(q - target)
    return tg.mean(tg.where(d < 1.0, 0.5 * tg.square(d), d - 0.5))


def dqn_torch(torch: Any, F: Any) -> Any:
    def loss(net: Any, x: Any, action: Any, target: Any) -> Any:
        return F.smooth_l1_loss(net(x).gather(1, action.long()[:, None])[:, 0], target)

    return dense_torch(8, 256, 256, 4), loss


def dqn_jax(p: Any, x: Any, action: Any, target: Any) -> Any:
    d = jnp.abs(jnp.take_along_axis(dense_jax(p, x), action[:, None], 1)[:, 0] - target)
    return jnp.mean(jnp.where(d < 1.0, 0.5 * d * d, d - 0.5))


# --- a graph: messages along edges, by gather and scatter ---

NODES, EDGES = 2000, 12000


class GraphNet(tg.Module):
    def __init__(self) -> None:
        self.own, self.from_others = ([nn.Linear(32, 32), nn.Linear(32, 32)] for _ in range(2))
        self.head = nn.Linear(32, 7)


def graph_loss(m: Any, x: Any, source: Any, target: Any, y: Any) -> Any:
    for own, others in zip(m.own, m.from_others):
        messages = tg.take(others(x), source, 0)
        arriving = tg.scatter_add(tg.zeros((NODES, 32)), target, messages)
        x = tg.relu(own(x) + arriving * (NODES / EDGES))
    return tg.cross_entropy(m.head(x), y)


def graph_torch(torch: Any, F: Any) -> Any:
    each = lambda: torch.nn.ModuleList([torch.nn.Linear(32, 32), torch.nn.Linear(32, 32)])

    def loss(net: Any, x: Any, source: Any, target: Any, y: Any) -> Any:
        source, target = source.long(), target.long()
        for own, others in zip(net.own, net.from_others):
            arriving = torch.zeros_like(x).index_add(0, target, others(x)[source])
            x = F.relu(own(x) + arriving * (NODES / EDGES))
        return F.cross_entropy(net.head(x), y.long())

    return {"own": each(), "from_others": each(), "head": torch.nn.Linear(32, 7)}, loss


def graph_jax(p: Any, x: Any, source: Any, target: Any, y: Any) -> Any:
    for k in range(2):
        arriving = jnp.zeros_like(x).at[target].add(linear(p, f"from_others.{k}", x)[source])
        x = jax.nn.relu(linear(p, f"own.{k}", x) + arriving * (NODES / EDGES))
    return cross_entropy(linear(p, "head", x), y)


# --- large tables ---

USERS, ITEMS = 50_000, 10_000


class Factors(tg.Module):
    def __init__(self) -> None:
        self.user, self.item = nn.Embedding(USERS, 16), nn.Embedding(ITEMS, 16)


def factors_loss(m: Any, user: Any, item: Any, y: Any) -> Any:
    return tg.mse_loss(tg.sum(m.user(user) * m.item(item), axis=1), y)


def factors_torch(torch: Any, F: Any) -> Any:
    parts = {"user": torch.nn.Embedding(USERS, 16), "item": torch.nn.Embedding(ITEMS, 16)}
    return parts, lambda net, user, item, y: F.mse_loss((net.user(user) * net.item(item)).sum(1), y)


def factors_jax(p: Any, user: Any, item: Any, y: Any) -> Any:
    return jnp.mean(((p["user.W"][user] * p["item.W"][item]).sum(1) - y) ** 2)


def logistic_torch(torch: Any, F: Any) -> Any:
    return {"out": torch.nn.Linear(10_000, 1)}, lambda net, x, y: F.binary_cross_entropy_with_logits(net.out(x), y)


def logistic_jax(p: Any, x: Any, y: Any) -> Any:
    z = linear(p, "out", x)
    return jnp.mean(jnp.maximum(z, 0) - z * y + jnp.log1p(jnp.exp(-jnp.abs(z))))


def clicks(rng: np.random.Generator) -> Any:
    """Rows of which one feature in a hundred is not zero."""
    x = normal(rng, 256, 10_000) * (rng.random((256, 10_000), np.float32) < 0.01)
    return {"x": x, "y": (rng.random((256, 1)) < 0.5).astype(np.float32)}


class Logistic(tg.Module):
    def __init__(self) -> None:
        self.out = nn.Linear(10_000, 1)


FIELDS = 8


class Recommender(tg.Module):
    def __init__(self) -> None:
        self.fields = [nn.Embedding(2000, 16) for _ in range(FIELDS)]
        self.net = Dense(FIELDS * 16 + 13, 128, 64, 1)


def recommender_loss(m: Any, x: Any, fields: Any, y: Any) -> Any:
    parts = [field(fields[:, k]) for k, field in enumerate(m.fields)]
    return tg.binary_cross_entropy_with_logits(m.net(tg.concat([*parts, x], 1)), y)


def recommender_torch(torch: Any, F: Any) -> Any:
    def loss(net: Any, x: Any, fields: Any, y: Any) -> Any:
        parts = [field(fields[:, k]) for k, field in enumerate(net.fields)]
        return F.binary_cross_entropy_with_logits(net.net(torch.cat([*parts, x], 1)), y)

    fields = torch.nn.ModuleList([torch.nn.Embedding(2000, 16) for _ in range(FIELDS)])
    return {"fields": fields, "net": dense_torch(FIELDS * 16 + 13, 128, 64, 1)}, loss


def recommender_jax(p: Any, x: Any, fields: Any, y: Any) -> Any:
    parts = [p[f"fields.{k}.W"][fields[:, k]] for k in range(FIELDS)]
    z = dense_jax(p, jnp.concatenate([*parts, x], 1), "net.")
    return jnp.mean(jnp.maximum(z, 0) - z * y + jnp.log1p(jnp.exp(-jnp.abs(z))))


# --- sets, and pairs of views ---


class Sets(tg.Module):
    def __init__(self) -> None:
        self.each, self.all = Dense(3, 64, 64, 64), Dense(64, 64, 10)


def sets_torch(torch: Any, F: Any) -> Any:
    parts = {"each": dense_torch(3, 64, 64, 64), "all": dense_torch(64, 64, 10)}
    return parts, lambda net, x, y: F.cross_entropy(net.all(net.each(x).amax(1)), y.long())


def sets_jax(p: Any, x: Any, y: Any) -> Any:
    return cross_entropy(dense_jax(p, dense_jax(p, x, "each.").max(1), "all."), y)


def contrast_loss(m: Any, x: Any, y: Any) -> Any:
    a, b = m(x), m(y)
    a = a / tg.sqrt(tg.sum(tg.square(a), axis=1, keepdims=True))
    b = b / tg.sqrt(tg.sum(tg.square(b), axis=1, keepdims=True))
    return tg.cross_entropy(a @ tg.transpose(b) * 10.0, tg.arange(256))


def contrast_torch(torch: Any, F: Any) -> Any:
    def loss(net: Any, x: Any, y: Any) -> Any:
        a, b = F.normalize(net(x), dim=1), F.normalize(net(y), dim=1)
        return F.cross_entropy(a @ b.T * 10.0, torch.arange(256, device=x.device))

    return dense_torch(128, 256, 64), loss


def contrast_jax(p: Any, x: Any, y: Any) -> Any:
    a, b = dense_jax(p, x), dense_jax(p, y)
    a, b = (t / jnp.linalg.norm(t, axis=1, keepdims=True) for t in (a, b))
    return cross_entropy(a @ b.T * 10.0, jnp.arange(256))


bce, mse = tg.binary_cross_entropy_with_logits, tg.mse_loss
TABLES = {
    "siren": Model(
        lambda r: {"x": normal(r, 4096, 2), "y": normal(r, 4096, 3)},
        lambda: (Siren(), siren_loss), torch_loss(siren_torch), siren_jax,
    ),
    "pinn": Model(
        lambda r: {"x": normal(r, 512, 1)},
        lambda: (Dense(1, 64, 64, 64, 1, act=tg.tanh), pinn_loss), torch_loss(pinn_torch), pinn_jax,
    ),
    "ode": Model(
        lambda r: {"x": normal(r, 128, 2), "y": normal(r, 128, 2)},
        lambda: (Dense(2, 64, 64, 2, act=tg.tanh), ode_loss), torch_loss(ode_torch), ode_jax,
    ),
    "vae": Model(
        lambda r: {"x": r.random((128, 784), np.float32), "noise": normal(r, 128, 20)},
        lambda: (VAE(), vae_loss), torch_loss(vae_torch), vae_jax,
    ),
    "dqn": Model(
        lambda r: {"x": normal(r, 128, 8), "action": numbers(r, 4, 128), "target": normal(r, 128)},
        lambda: (Dense(8, 256, 256, 4), dqn_loss), torch_loss(dqn_torch), dqn_jax,
    ),
    "graph": Model(
        lambda r: {"x": normal(r, NODES, 32), "source": numbers(r, NODES, EDGES), "target": numbers(r, NODES, EDGES),
                   "y": numbers(r, 7, NODES)},
        lambda: (GraphNet(), graph_loss), torch_loss(graph_torch), graph_jax,
    ),
    "factors": Model(
        lambda r: {"user": numbers(r, USERS, 2048), "item": numbers(r, ITEMS, 2048), "y": normal(r, 2048)},
        lambda: (Factors(), factors_loss), torch_loss(factors_torch), factors_jax,
    ),
    "logistic": Model(
        clicks, lambda: (Logistic(), lambda m, x, y: bce(m.out(x), y)), torch_loss(logistic_torch), logistic_jax,
    ),
    "recommender": Model(
        lambda r: {"x": normal(r, 256, 13), "fields": numbers(r, 2000, 256, FIELDS),
                   "y": r.integers(0, 2, (256, 1)).astype("f4")},
        lambda: (Recommender(), recommender_loss), torch_loss(recommender_torch), recommender_jax,
    ),
    "sets": Model(
        lambda r: {"x": normal(r, 32, 128, 3), "y": numbers(r, 10, 32)},
        lambda: (Sets(), lambda m, x, y: tg.cross_entropy(m.all(tg.max(m.each(x), axis=1)), y)),
        torch_loss(sets_torch), sets_jax,
    ),
    "contrast": Model(
        lambda r: {"x": normal(r, 256, 128), "y": normal(r, 256, 128)},
        lambda: (Dense(128, 256, 64), contrast_loss), torch_loss(contrast_torch), contrast_jax,
    ),
}  # fmt: skip
