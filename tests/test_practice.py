"""Ordinary programs that are not in examples/, as a new user writes them, each beside PyTorch with its weights."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tracegrad as tg
from tracegrad import init, lr, nn, optim

rng = np.random.default_rng(0)
RUNTIMES = pytest.mark.parametrize("device_name", ["c", "jax"], indirect=True)


def numbers(*shape: int) -> Any:
    return rng.standard_normal(shape).astype(np.float32)


def classes(below: int, *shape: int) -> Any:
    return rng.integers(0, below, shape).astype(np.int32)


class Program(NamedTuple):
    """A program, and the same in PyTorch."""

    model: Any
    loss: Callable[..., Any]
    inputs: Mapping[str, Any]
    optimizer: Any
    net: torch.nn.Module
    theirs: Callable[..., Any]
    theirs_optimizer: Callable[[Any], Any]
    batches: list[dict[str, Any]]
    clip: float | None = None
    schedule: Callable[[int], float] | None = None  # the rate at each step, from 0 on
    free: tuple[str, ...] = ()  # parameters whose gradient is 0 but for rounding, which Adam enlarges


def dense(*sizes: int, act: Any = tg.relu) -> Any:
    layers = [x for a, b in itertools.pairwise(sizes) for x in (act, nn.Linear(a, b))]
    return nn.Sequential(*layers[1:])


def theirs(*sizes: int, act: Any = torch.nn.ReLU) -> torch.nn.Sequential:
    layers = [x for a, b in itertools.pairwise(sizes) for x in (act(), torch.nn.Linear(a, b))]
    return torch.nn.Sequential(*layers[1:])


def net(**parts: Any) -> torch.nn.Module:
    made = torch.nn.Module()
    for name, part in parts.items():
        setattr(made, name, part)
    return made


def audio() -> Program:
    """Sounds of any length and number: convolutions, group norms, a mean over time, smoothed labels, clipping."""

    class Model(tg.Module):
        def __init__(self) -> None:
            self.c1, self.n1 = nn.Conv1d(1, 16, 9, stride=4, padding=4), nn.GroupNorm(4, 16)
            self.c2, self.n2, self.out = (
                nn.Conv1d(16, 32, 9, stride=4, padding=4),
                nn.GroupNorm(8, 32),
                nn.Linear(32, 5),
            )

        def __call__(self, x: Any) -> Any:
            return self.out(tg.gelu(self.n2(self.c2(tg.gelu(self.n1(self.c1(x)))))).mean(2))

    other = net(
        c1=torch.nn.Conv1d(1, 16, 9, 4, 4), n1=torch.nn.GroupNorm(4, 16), c2=torch.nn.Conv1d(16, 32, 9, 4, 4),
        n2=torch.nn.GroupNorm(8, 32), out=torch.nn.Linear(32, 5),
    )  # fmt: skip

    def their_loss(m: Any, x: Any, y: Any) -> Any:
        h = F.gelu(m.n2(m.c2(F.gelu(m.n1(m.c1(x))))))
        return F.cross_entropy(m.out(h.mean(2)), y, label_smoothing=0.1)

    return Program(
        Model(), lambda m, x, y: tg.cross_entropy(m(x), y, label_smoothing=0.1),
        {"x": ("B", 1, "T"), "y": tg.i32["B"]}, optim.adam(1e-3, clip_grad_norm=0.5), other, their_loss,
        lambda m: torch.optim.Adam(m.parameters(), 1e-3),
        [{"x": numbers(b, 1, t), "y": classes(5, b)} for b, t in ((8, 400), (8, 400), (5, 333), (3, 256))], clip=0.5,
        free=("c1.bias", "c2.bias"),
    )  # fmt: skip


def siamese() -> Program:
    """Pairs of points, near if they are alike, behind one network."""

    def loss(m: Any, a: Any, b: Any, same: Any) -> Any:
        d = tg.norm(m.net(a) - m.net(b), axis=1)
        return tg.mean(same * d**2 + (1 - same) * tg.relu(1.0 - d) ** 2)

    def their_loss(m: Any, a: Any, b: Any, same: Any) -> Any:
        d = torch.norm(m.net(a) - m.net(b), dim=1)
        return (same * d**2 + (1 - same) * torch.relu(1 - d) ** 2).mean()

    class Model(tg.Module):
        def __init__(self) -> None:
            self.net = dense(10, 32, 8)

    return Program(
        Model(), loss, {"a": (None, 10), "b": (None, 10), "same": (None,)},
        optim.sgd(0.05, momentum=0.9, nesterov=True), net(net=theirs(10, 32, 8)), their_loss,
        lambda m: torch.optim.SGD(m.parameters(), 0.05, momentum=0.9, nesterov=True),
        [{"a": numbers(n, 10), "b": numbers(n, 10), "same": classes(2, n).astype(np.float32)} for n in (16, 16, 7)],
    )  # fmt: skip


def mixture() -> Program:
    """A mixture density network: y has several values for one x."""

    def loss(m: Any, x: Any, y: Any) -> Any:
        h = tg.tanh(m.h(x))
        log_sigma = m.sigma(h)
        log_p = -0.5 * ((y - m.mu(h)) / tg.exp(log_sigma)) ** 2 - log_sigma - 0.5 * math.log(2 * math.pi)
        return -tg.mean(tg.logsumexp(tg.log_softmax(m.pi(h)) + log_p, axis=1))

    def their_loss(m: Any, x: Any, y: Any) -> Any:
        h = torch.tanh(m.h(x))
        spread = torch.distributions.Normal(m.mu(h), m.sigma(h).exp(), validate_args=False)
        return -torch.logsumexp(torch.log_softmax(m.pi(h), -1) + spread.log_prob(y), 1).mean()

    class Model(tg.Module):
        def __init__(self) -> None:
            self.h, self.pi, self.mu, self.sigma = nn.Linear(1, 32), *(nn.Linear(32, 5) for _ in range(3))

    linear, batches = torch.nn.Linear, list[dict[str, Any]]()
    for _ in range(5):
        y = rng.uniform(-8, 8, (64, 1)).astype(np.float32)
        batches.append({"x": 7 * np.sin(0.75 * y) + 0.5 * y, "y": y})
    return Program(
        Model(), loss, {"x": (64, 1), "y": (64, 1)}, optim.rmsprop(1e-3),
        net(h=linear(1, 32), pi=linear(32, 5), mu=linear(32, 5), sigma=linear(32, 5)), their_loss,
        lambda m: torch.optim.RMSprop(m.parameters(), 1e-3), batches,
    )  # fmt: skip


def flow() -> Program:
    """A normalising flow of affine couplings, with a warmup and a cosine."""
    constant = 2 * math.log(2 * math.pi)

    def loss(m: Any, x: Any) -> Any:
        total = 0.0
        for k, net in enumerate(m.nets):
            a, b = tg.split(x, 2, axis=1)[:: -1 if k % 2 else 1]
            scale, shift = tg.split(net(a), 2, axis=1)
            b = b * tg.exp(tg.tanh(scale)) + shift
            x = tg.concat([b, a] if k % 2 else [a, b], axis=1)
            total = total + tg.sum(tg.tanh(scale), axis=1)
        return tg.mean(0.5 * tg.sum(x**2, axis=1) + constant - total)

    def their_loss(m: Any, x: Any) -> Any:
        total = 0.0
        for k, net in enumerate(m.nets):
            a, b = x.chunk(2, 1)[:: -1 if k % 2 else 1]
            scale, shift = net(a).chunk(2, 1)
            b = b * torch.tanh(scale).exp() + shift
            x = torch.cat([b, a] if k % 2 else [a, b], 1)
            total = total + torch.tanh(scale).sum(1)
        return (0.5 * (x**2).sum(1) + constant - total).mean()

    class Model(tg.Module):
        def __init__(self) -> None:
            self.nets = [dense(2, 32, 4, act=tg.tanh) for _ in range(4)]

    nets = torch.nn.ModuleList(theirs(2, 32, 4, act=torch.nn.Tanh) for _ in range(4))
    return Program(
        Model(), loss, {"x": (None, 4)}, optim.adam(lr.warmup(1e-3, 3, after=lr.cosine_annealing(1e-3, 0.0, 20))),
        net(nets=nets), their_loss, lambda m: torch.optim.Adam(m.parameters()),
        [{"x": 2 * numbers(n, 4)} for n in (64, 64, 33, 64, 64)],
        schedule=lambda k: 1e-3 * ((k + 1) / 3 if k < 3 else 0.5 * (1 + math.cos(math.pi * (k - 3) / 20))),
    )  # fmt: skip


def style() -> Program:
    """An image is what is trained; the network is fixed, and no input goes in."""
    target = rng.uniform(size=(1, 3, 16, 16)).astype(np.float32)

    class Model(tg.Module):
        def __init__(self) -> None:
            first, second = (nn.Conv2d(n, 8, 3, padding=1, trainable=False) for n in (3, 8))
            self.net, self.target = nn.Sequential(first, tg.relu, second), target
            self.image = self.param((1, 3, 16, 16), init=init.uniform(0, 1))

    def gram(f: Any) -> Any:
        f = f.reshape(8, -1)
        return f @ f.swapaxes(0, 1) / (8 * 256)

    def loss(m: Any) -> Any:
        rough = tg.mean(tg.abs(m.image[:, :, 1:] - m.image[:, :, :-1]))
        return 1e3 * tg.mean(tg.square(gram(m.net(m.image)) - gram(m.net(m.target)))) + 0.01 * rough

    def their_loss(m: Any) -> Any:
        rough = (m.image[:, :, 1:] - m.image[:, :, :-1]).abs().mean()
        wanted = gram(m.net(torch.tensor(target, dtype=m.image.dtype)))
        return 1e3 * ((gram(m.net(m.image)) - wanted) ** 2).mean() + 0.01 * rough

    conv = torch.nn.Conv2d
    layers = torch.nn.Sequential(conv(3, 8, 3, padding=1), torch.nn.ReLU(), conv(8, 8, 3, padding=1))
    image = torch.nn.Parameter(torch.rand(1, 3, 16, 16))
    return Program(
        Model(), loss, {}, optim.adam(0.02), net(net=layers, image=image), their_loss,
        lambda m: torch.optim.Adam([m.image], 0.02), [{}] * 5,
    )  # fmt: skip


def several_tasks() -> Program:
    """Two heads in a dict, whose losses are weighted by what the model learns of their noise."""

    class Model(tg.Module):
        def __init__(self) -> None:
            self.trunk, self.heads = nn.Linear(12, 32), {"age": nn.Linear(32, 1), "kind": nn.Linear(32, 4)}
            self.noise = self.param(2, init=init.zeros())

    def loss(m: Any, x: Any, age: Any, kind: Any) -> Any:
        h = tg.relu(m.trunk(x))
        a, k = tg.mse_loss(m.heads["age"](h)[:, 0], age), tg.cross_entropy(m.heads["kind"](h), kind)
        return tg.exp(-m.noise[0]) * a + tg.exp(-m.noise[1]) * k + tg.sum(m.noise), {"age": a, "kind": k}

    def their_loss(m: Any, x: Any, age: Any, kind: Any) -> Any:
        h = torch.relu(m.trunk(x))
        a, k = F.mse_loss(m.heads["age"](h)[:, 0], age), F.cross_entropy(m.heads["kind"](h), kind)
        return torch.exp(-m.noise[0]) * a + torch.exp(-m.noise[1]) * k + m.noise.sum()

    heads = torch.nn.ModuleDict({"age": torch.nn.Linear(32, 1), "kind": torch.nn.Linear(32, 4)})
    other = net(trunk=torch.nn.Linear(12, 32), heads=heads, noise=torch.nn.Parameter(torch.zeros(2)))
    return Program(
        Model(), loss, {"x": (None, 12), "age": (None,), "kind": tg.i32[None]}, optim.adagrad(0.05), other,
        their_loss, lambda m: torch.optim.Adagrad(m.parameters(), 0.05),
        [{"x": numbers(n, 12), "age": numbers(n), "kind": classes(4, n)} for n in (30, 30, 10)],
    )  # fmt: skip


def weighted() -> Program:
    """Rare examples count five times."""

    def loss(m: Any, x: Any, y: Any, weight: Any) -> Any:
        each = tg.binary_cross_entropy_with_logits(m.out(x)[:, 0], y, reduction="none")
        return tg.sum(weight * each) / tg.sum(weight)

    def their_loss(m: Any, x: Any, y: Any, weight: Any) -> Any:
        each = F.binary_cross_entropy_with_logits(m.out(x)[:, 0], y, reduction="none")
        return (weight * each).sum() / weight.sum()

    class Model(tg.Module):
        def __init__(self) -> None:
            self.out = nn.Linear(5, 1)

    batches = list[dict[str, Any]]()
    for n in (32, 32, 26):
        x = numbers(n, 5)
        y = (x[:, 0] > 1).astype(np.float32)
        batches.append({"x": x, "y": y, "weight": np.where(y > 0, 5, 1).astype(np.float32)})
    return Program(
        Model(), loss, {"x": (None, 5), "y": (None,), "weight": (None,)}, optim.nadam(0.01),
        net(out=torch.nn.Linear(5, 1)), their_loss, lambda m: torch.optim.NAdam(m.parameters(), 0.01), batches,
    )  # fmt: skip


def masked() -> Program:
    """A transformer reads texts of any number and length, and does not look behind their ends."""

    class Model(tg.Module):
        def __init__(self) -> None:
            big = init.normal(0, 1)
            self.words, self.places = nn.Embedding(30, 32, init=big), nn.Embedding(64, 32, init=big)
            block = nn.TransformerBlock(32, 4, hidden=64, norm_first=False, activation=tg.relu)
            self.block, self.out = block, nn.Linear(32, 3)

    def loss(m: Any, tokens: Any, lengths: Any, y: Any) -> Any:
        places = tg.arange(tokens.shape[1])
        keep = places[None, :] < lengths[:, None]
        h = m.block(m.words(tokens) + m.places(places), mask=keep[:, None, None, :])
        weight = tg.cast(keep, tg.f32)[:, :, None]
        return tg.cross_entropy(m.out(tg.sum(h * weight, axis=1) / tg.sum(weight, axis=1)), y)

    def their_loss(m: Any, tokens: Any, lengths: Any, y: Any) -> Any:
        places = torch.arange(tokens.shape[1])
        keep = places[None] < lengths[:, None]
        h = m.block(m.words(tokens) + m.places(places), src_key_padding_mask=~keep)
        weight = keep.to(h.dtype)[:, :, None]
        return F.cross_entropy(m.out((h * weight).sum(1) / weight.sum(1)), y)

    layer = torch.nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
    other = net(words=torch.nn.Embedding(30, 32), places=torch.nn.Embedding(64, 32), block=layer,
                out=torch.nn.Linear(32, 3))  # fmt: skip
    return Program(
        Model(), loss, {"tokens": tg.i32["B", "T"], "lengths": tg.i32["B"], "y": tg.i32["B"]}, optim.sgd(0.1), other,
        their_loss, lambda m: torch.optim.SGD(m.parameters(), 0.1),
        [{"tokens": classes(30, b, t), "lengths": 1 + classes(t, b), "y": classes(3, b)}
         for b, t in ((8, 10), (8, 16), (5, 7))],
    )  # fmt: skip


PROGRAMS = {f.__name__: f for f in (audio, siamese, mixture, flow, style, several_tasks, weighted, masked)}


def run(p: Program, first: Mapping[str, Any], dtype: torch.dtype) -> tuple[list[float], dict[str, Any]]:
    """PyTorch's losses and arrays."""
    p.net.load_state_dict(first)
    p.net.to(dtype)
    optimizer, losses = p.theirs_optimizer(p.net), list[float]()
    for k, batch in enumerate(p.batches):
        for group in optimizer.param_groups if p.schedule else ():
            group["lr"] = p.schedule(k) if p.schedule else None
        given = {n: torch.tensor(x, dtype=torch.int64 if x.dtype == np.int32 else dtype) for n, x in batch.items()}
        optimizer.zero_grad()
        loss = p.theirs(p.net, **given)
        loss.backward()
        if p.clip is not None:
            torch.nn.utils.clip_grad_norm_(p.net.parameters(), p.clip)
        optimizer.step()
        losses.append(loss.item())
    return losses, {n: x.numpy().copy() for n, x in p.net.state_dict().items()}


@RUNTIMES
@pytest.mark.parametrize("name", PROGRAMS)
def test_ordinary_programs_are_pytorchs(name: str, device_name: str) -> None:
    """As near to PyTorch in double precision as PyTorch is in single."""
    torch.manual_seed(1)
    p = PROGRAMS[name]()
    first = {n: x.clone() for n, x in p.net.state_dict().items()}
    how: dict[str, Any] = {"model": p.model, "loss": p.loss, "inputs": p.inputs, "optimizer": p.optimizer}
    with tg.compile(**how, seed=0, device=device_name) as train:
        assert tg.from_torch(first, train).complete
        losses = [train.step(batch).loss for batch in p.batches]
        found = {n: x.numpy() for n, x in tg.to_torch(train).items()}
    (single, arrays), (true, exact) = (run(p, first, dtype) for dtype in (torch.float32, torch.float64))

    def near(got: Any, theirs: Any, want: Any) -> bool:
        apart = 8 * np.linalg.norm(np.subtract(theirs, want)) + 2e-6 * np.linalg.norm(want)
        return bool(np.linalg.norm(np.subtract(got, want)) <= apart)

    assert near(losses, single, true), (losses, true)
    assert found.keys() == exact.keys()
    for n in exact.keys() - {*p.free}:
        assert near(found[n], arrays[n], exact[n]), n


@RUNTIMES
def test_text_is_read_on_with_the_state_of_the_step_before(device_name: str) -> None:
    """Truncated backpropagation: an LSTM's states are states of the model."""
    size, each, width = 20, 12, 24

    class Model(tg.Module):
        def __init__(self) -> None:
            self.words, self.lstm, self.out = nn.Embedding(size, 16), nn.LSTM(16, width), nn.Linear(width, size)
            self.h, self.c = self.state((1, 4, width)), self.state((1, 4, width))

    def loss(m: Any, x: Any, y: Any) -> Any:
        read, (h, c) = m.lstm(m.words(x), (m.h, m.c))
        m.h.assign(h)
        m.c.assign(c)
        return tg.cross_entropy(m.out(read), y)

    torch.manual_seed(1)
    other = net(words=torch.nn.Embedding(size, 16), lstm=torch.nn.LSTM(16, width, batch_first=True),
                out=torch.nn.Linear(width, size))  # fmt: skip
    text, inputs = classes(size, 4, 5 * each + 1), {"x": tg.i32[4, each], "y": tg.i32[4, each]}
    optimizer = torch.optim.SGD(other.parameters(), 0.5)
    with tg.compile(model=Model(), loss=loss, inputs=inputs, optimizer=optim.sgd(0.5), device=device_name) as train:
        tg.from_torch(other.state_dict(), train)
        state: Any = None
        for k in range(0, 5 * each, each):
            x, y = text[:, k : k + each], text[:, k + 1 : k + each + 1]
            got = train.step(x=x, y=y).loss
            read, state = other.lstm(other.words(torch.tensor(x).long()), state)
            state = tuple(s.detach() for s in state)
            want = F.cross_entropy(other.out(read).flatten(0, 1), torch.tensor(y).long().flatten())
            optimizer.zero_grad()
            want.backward()
            optimizer.step()
            assert got == pytest.approx(want.item(), rel=1e-5)
        np.testing.assert_allclose(train.states()["h"], state[0], rtol=1e-4, atol=1e-6)


def test_a_student_learns_from_a_teacher_that_was_trained_before() -> None:
    def loss(m: Any, x: Any, y: Any, heat: float = 3.0) -> Any:
        student = m.student(x)
        soft = tg.kl_div(tg.log_softmax(student / heat), tg.softmax(m.teacher(x) / heat), reduction="batchmean")
        return 0.5 * heat**2 * soft + 0.5 * tg.cross_entropy(student, y)

    class Both(tg.Module):
        def __init__(self) -> None:
            self.student, self.teacher = dense(20, 16, 5), nn.as_states(dense(20, 64, 5))

    x, y = numbers(64, 20), classes(5, 64)
    inputs: dict[str, Any] = {"x": (None, 20), "y": tg.i32[None]}
    how: dict[str, Any] = {"inputs": inputs, "optimizer": optim.sgd(0.1), "device": "cpu", "seed": 0}
    plain: Any = lambda m, x, y: tg.cross_entropy(m(x), y)
    with tg.compile(model=dense(20, 64, 5), loss=plain, **how) as teacher:
        teacher.fit(x=x, y=y, epochs=2, progress=False)
        taught, weights = tg.to_torch(teacher), teacher.params()
    other = net(student=theirs(20, 16, 5), teacher=theirs(20, 64, 5).requires_grad_(False))
    other.teacher.load_state_dict(taught)
    optimizer = torch.optim.SGD(other.student.parameters(), 0.1)
    with tg.compile(model=Both(), loss=loss, **how) as train:
        tg.from_torch(other.student.state_dict(), train, rename=lambda n: f"student.{n}")
        train.set_states({f"teacher.{n}": x for n, x in weights.items()})
        for rows in (slice(0, 32), slice(32, 64), slice(0, 20)):
            got = train.step(x=x[rows], y=y[rows]).loss
            student, at = other.student(torch.tensor(x[rows])), torch.tensor(x[rows])
            soft = F.kl_div(F.log_softmax(student / 3, -1), F.softmax(other.teacher(at) / 3, -1), reduction="batchmean")
            want = 4.5 * soft + 0.5 * F.cross_entropy(student, torch.tensor(y[rows]).long())
            optimizer.zero_grad()
            want.backward()
            optimizer.step()
            assert got == pytest.approx(want.item(), rel=1e-5)


def test_gradients_of_several_batches_and_an_odd_last_one_add_up() -> None:
    x = numbers(90, 5)
    y = x @ numbers(5, 1)
    other = torch.nn.Linear(5, 1)
    optimizer, count = torch.optim.Adam(other.parameters(), 0.1), 0
    inputs: dict[str, Any] = {"x": (None, 5), "y": (None, 1)}
    loss: Any = lambda m, x, y: tg.mse_loss(m(x), y)
    with tg.compile(model=nn.Linear(5, 1), loss=loss, inputs=inputs, optimizer=optim.adam(0.1, accumulate=4),
                    device="cpu") as train:  # fmt: skip
        tg.from_torch(other.state_dict(), train)
        for begin in [*range(0, 90, 16)] * 3:
            rows = slice(begin, begin + 16)
            got = train.step(x=x[rows], y=y[rows]).loss
            want = F.mse_loss(other(torch.tensor(x[rows])), torch.tensor(y[rows]))
            (want / 4).backward()
            count += 1
            if count % 4 == 0:
                optimizer.step()
                optimizer.zero_grad()
            assert got == pytest.approx(want.item(), rel=1e-4)


def lookahead(every: int = 5, share: float = 0.5) -> optim.Transform:
    def update(g: Any, p: Any, state: Any, host: Any) -> Any:
        fast, slow = p + g, state["slow"]
        now = host.step - tg.floor(host.step / every) * every == 0.0
        slow = tg.where(now, slow + share * (fast - slow), slow)
        return tg.where(now, slow, fast) - p, {"slow": slow}

    return optim.Transform({"slow": "params"}, update)


def test_lookahead_goes_on_after_the_learning_rate() -> None:
    """Zhang et al. 2019: slow weights follow those of Adam. The rate counts once, as `scale_by_lr` is in the chain."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((64, 6)).astype(np.float32), rng.integers(0, 3, 64)
    model = nn.Sequential(nn.Linear(6, 16), tg.relu, nn.Linear(16, 3))
    chain = optim.chain(optim.scale_by_adam(), optim.scale_by_lr(), lookahead())
    net = torch.nn.Sequential(torch.nn.Linear(6, 16), torch.nn.ReLU(), torch.nn.Linear(16, 3))
    with tg.compile(
        model=model, loss=lambda m, x, y: tg.cross_entropy(m(x), y), inputs={"x": (64, 6), "y": tg.i32[64]},
        optimizer=optim.custom(chain, lr=1e-2), seed=0, device="cpu",
    ) as train:  # fmt: skip
        net.load_state_dict(tg.to_torch(train))
        found = [train.step(x=x, y=y).loss for _ in range(12)]
    adam, slow = torch.optim.Adam(net.parameters(), lr=1e-2), [p.detach().clone() for p in net.parameters()]
    wanted = []
    for step in range(1, 13):
        loss = torch.nn.functional.cross_entropy(net(torch.tensor(x)), torch.tensor(y))
        adam.zero_grad()
        loss.backward()
        adam.step()
        wanted.append(loss.item())
        if step % 5 == 0:
            for p, s in zip(net.parameters(), slow, strict=True):
                s += 0.5 * (p.detach() - s)
                p.data.copy_(s)
    np.testing.assert_allclose(found, wanted, rtol=1e-5)
