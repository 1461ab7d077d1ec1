"""More ordinary programs beside PyTorch: graphs, experts, critics, triplets, and mixed labels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

import tracegrad as tg
from test_practice import RUNTIMES, Program, classes, dense, net, numbers, run, theirs
from tracegrad import nn, optim


def graph() -> Program:
    """A graph attention network (Velickovic et al. 2018) on graphs of any numbers of nodes and edges."""
    heads, width = 2, 8

    def attend(h: Any, a: Any, b: Any, edges: Any) -> Any:
        h, (source, target) = h.reshape(-1, heads, width), edges
        score = tg.leaky_relu((h * a).sum(-1)[source] + (h * b).sum(-1)[target], 0.2)
        share = tg.segment_softmax(score, target, h.shape[0])
        return tg.segment_sum(share[:, :, None] * h[source], target, h.shape[0]).reshape(-1, heads * width)

    class Model(tg.Module):
        def __init__(self) -> None:
            self.l1, self.out = nn.Linear(6, heads * width, bias=False), nn.Linear(heads * width, 3)
            self.a, self.b = self.param((heads, width)), self.param((heads, width))

    def loss(m: Any, x: Any, edges: Any, y: Any) -> Any:
        return tg.cross_entropy(m.out(tg.elu(attend(m.l1(x), m.a, m.b, edges))), y)

    def their_loss(m: Any, x: Any, edges: Any, y: Any) -> Any:
        h, (source, target) = m.l1(x).view(-1, heads, width), edges
        score = F.leaky_relu((h * m.a).sum(-1)[source] + (h * m.b).sum(-1)[target], 0.2)
        weight = torch.exp(score - score.max())
        share = weight / torch.zeros(len(x), heads, dtype=x.dtype).index_add(0, target, weight)[target]
        mixed = torch.zeros_like(h).index_add(0, target, share[:, :, None] * h[source])
        return F.cross_entropy(m.out(F.elu(mixed.flatten(1))), y)

    other = net(
        l1=torch.nn.Linear(6, heads * width, bias=False), out=torch.nn.Linear(heads * width, 3),
        a=torch.nn.Parameter(torch.randn(heads, width)), b=torch.nn.Parameter(torch.randn(heads, width)),
    )  # fmt: skip
    batches = [
        {"x": numbers(n, 6), "edges": np.c_[classes(n, 2, e), [np.arange(n, dtype=np.int32)] * 2], "y": classes(3, n)}
        for n, e in ((30, 90), (24, 70), (30, 64))
    ]
    return Program(
        Model(), loss, {"x": ("N", 6), "edges": tg.i32[2, "E"], "y": tg.i32["N"]}, optim.sgd(0.2), other, their_loss,
        lambda m: torch.optim.SGD(m.parameters(), 0.2), batches,
    )  # fmt: skip


def experts() -> Program:
    """A mixture of four experts, of which two serve each row, with a loss that balances them (Shazeer et al. 2017)."""

    class Model(tg.Module):
        def __init__(self) -> None:
            self.gate, self.experts = nn.Linear(8, 4), [dense(8, 16, 1) for _ in range(4)]

    def loss(m: Any, x: Any, y: Any) -> Any:
        scores = m.gate(x)
        best, which = tg.topk(scores, 2)
        picked = tg.take_along_axis(tg.concat([e(x) for e in m.experts], 1), which, 1)
        load = tg.one_hot(which, 4).sum(1).mean(0)
        balance = 4 * tg.sum(tg.softmax(scores).mean(0) * load)
        return tg.mse_loss(tg.sum(tg.softmax(best) * picked, axis=1), y) + 0.01 * balance

    def their_loss(m: Any, x: Any, y: Any) -> Any:
        scores = m.gate(x)
        best, which = scores.topk(2)
        picked = torch.cat([e(x) for e in m.experts], 1).gather(1, which)
        load = F.one_hot(which, 4).sum(1).to(x.dtype).mean(0)
        balance = 4 * (scores.softmax(-1).mean(0) * load).sum()
        return F.mse_loss((best.softmax(-1) * picked).sum(1), y) + 0.01 * balance

    other = net(gate=torch.nn.Linear(8, 4), experts=torch.nn.ModuleList([theirs(8, 16, 1) for _ in range(4)]))
    return Program(
        Model(), loss, {"x": (None, 8), "y": (None,)}, optim.sgd(0.1, momentum=0.9), other, their_loss,
        lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9),
        [{"x": numbers(n, 8), "y": numbers(n)} for n in (32, 32, 9)],
    )  # fmt: skip


def critic() -> Program:
    """The critic of a WGAN with a penalty on its gradient (Gulrajani et al. 2017): a gradient inside of the loss."""

    class Model(tg.Module):
        def __init__(self) -> None:
            self.net = dense(2, 32, 32, 1, act=tg.silu)

    def loss(m: Any, real: Any, fake: Any, share: Any) -> Any:
        slope = tg.grad(lambda x: tg.sum(m.net(x)))(share * real + (1 - share) * fake)
        penalty = tg.mean((tg.norm(slope, axis=1) - 1) ** 2)
        return tg.mean(m.net(fake)) - tg.mean(m.net(real)) + 10 * penalty

    def their_loss(m: Any, real: Any, fake: Any, share: Any) -> Any:
        mixed = (share * real + (1 - share) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(m.net(mixed).sum(), mixed, create_graph=True)
        return m.net(fake).mean() - m.net(real).mean() + 10 * ((slope.norm(dim=1) - 1) ** 2).mean()

    return Program(
        Model(), loss, {"real": (None, 2), "fake": (None, 2), "share": (None, 1)}, optim.sgd(1e-2),
        net(net=theirs(2, 32, 32, 1, act=torch.nn.SiLU)), their_loss, lambda m: torch.optim.SGD(m.parameters(), 1e-2),
        [{"real": numbers(n, 2) + 2, "fake": numbers(n, 2), "share": abs(numbers(n, 1)) % 1} for n in (32, 32, 11)],
    )  # fmt: skip


def triplets() -> Program:
    """Embeddings of unit length by a triplet loss."""

    class Model(tg.Module):
        def __init__(self) -> None:
            self.net = dense(10, 32, 8)

    def loss(m: Any, a: Any, p: Any, n: Any) -> Any:
        return tg.triplet_margin_loss(*(tg.normalize(m.net(x)) for x in (a, p, n)), margin=0.5)

    def their_loss(m: Any, a: Any, p: Any, n: Any) -> Any:
        return F.triplet_margin_loss(*(F.normalize(m.net(x)) for x in (a, p, n)), margin=0.5)

    return Program(
        Model(), loss, dict.fromkeys("apn", (None, 10)), optim.sgd(0.5), net(net=theirs(10, 32, 8)), their_loss,
        lambda m: torch.optim.SGD(m.parameters(), 0.5), [{k: numbers(n, 10) for k in "apn"} for n in (24, 24, 5)],
    )  # fmt: skip


def mixed() -> Program:
    """Mixup (Zhang et al. 2018): examples and one-hot labels are mixed, and rare classes weigh more."""
    rare = [1.0, 2.0, 0.5]

    class Model(tg.Module):
        def __init__(self) -> None:
            self.net = dense(6, 24, 3)

    def loss(m: Any, x: Any, y: Any, order: Any, share: Any) -> Any:
        labels = tg.one_hot(y, 3)
        labels = share * labels + (1 - share) * labels[order]
        return tg.cross_entropy(m.net(share * x + (1 - share) * x[order]), labels, label_smoothing=0.1, weight=rare)

    def their_loss(m: Any, x: Any, y: Any, order: Any, share: Any) -> Any:
        labels = F.one_hot(y, 3).to(x.dtype)
        labels, weight = share * labels + (1 - share) * labels[order], torch.tensor(rare, dtype=x.dtype)
        logits = m.net(share * x + (1 - share) * x[order])
        return F.cross_entropy(logits, labels, label_smoothing=0.1, weight=weight)

    shuffle = np.random.default_rng(0).permutation
    return Program(
        Model(), loss, {"x": (None, 6), "y": tg.i32[None], "order": tg.i32[None], "share": ()}, optim.sgd(0.5),
        net(net=theirs(6, 24, 3)), their_loss, lambda m: torch.optim.SGD(m.parameters(), 0.5),
        [{"x": numbers(n, 6), "y": classes(3, n), "order": shuffle(n).astype(np.int32), "share": np.float32(s)}
         for n, s in ((32, 0.3), (32, 0.9), (9, 0.6))],
    )  # fmt: skip


PROGRAMS = {f.__name__: f for f in (graph, experts, critic, triplets, mixed)}


@RUNTIMES
@pytest.mark.parametrize("name", PROGRAMS)
def test_more_programs_are_pytorchs(name: str, device_name: str) -> None:
    """As near to PyTorch in double precision as PyTorch is in single."""
    torch.manual_seed(1)
    p = PROGRAMS[name]()
    first = {n: x.clone() for n, x in p.net.state_dict().items()}
    with tg.compile(
        model=p.model, loss=p.loss, inputs=p.inputs, optimizer=p.optimizer, seed=0, device=device_name
    ) as train:
        assert tg.from_torch(first, train).complete
        losses = [train.step(batch).loss for batch in p.batches]
        found = {n: x.numpy() for n, x in tg.to_torch(train).items()}
    (single, arrays), (true, exact) = (run(p, first, dtype) for dtype in (torch.float32, torch.float64))
    assert found.keys() == exact.keys()
    for got, rounded, want in [(losses, single, true), *((found[n], arrays[n], exact[n]) for n in exact)]:
        apart = 8 * np.linalg.norm(np.subtract(rounded, want)) + 2e-6 * np.linalg.norm(want)
        assert np.linalg.norm(np.subtract(got, want)) <= apart
