"""One program for loops of every length: at each length it gives what the program compiled for that length gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.compiler.build import ForwardSource
from tracegrad.compiler.rooms import build_rooms
from tracegrad.engine import programs, stepper
from tracegrad.loops import BY_SIZE

pytestmark = pytest.mark.usefixtures("quick_c")

B, LENGTHS, FEW = 5, (9, 4, 5, 1, 2, 3, 12, 40), (9, 4, 2, 5)  # few where each length takes a second to compile
Loss = Callable[[Any, Any, Any], Any]


class Cell(tg.Module):
    def __init__(self) -> None:
        self.given, self.state, self.out = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)


def along(m: Any, x: Any, reverse: bool = False) -> tuple[Any, Any]:
    def step(h: Any, v: Any) -> tuple[Any, Any]:
        h = tg.tanh(m.given(v) + m.state(h))
        return h, h

    return tg.scan(step, tg.zeros((B, 16)), x, reverse=reverse)


def of_last(m: Any, x: Any, y: Any) -> Any:
    return tg.cross_entropy(m.out(along(m, x)[0]), y)


def of_mean(m: Any, x: Any, y: Any) -> Any:
    return tg.cross_entropy(m.out(tg.mean(along(m, x)[1], axis=0)), y)


def of_both_directions(m: Any, x: Any, y: Any) -> Any:
    last, each = along(m, x, reverse=True)
    return tg.cross_entropy(m.out(last + tg.mean(along(m, each[:, :, :8])[1], axis=0)), y)


def of_turns(m: Any, x: Any, y: Any) -> Any:
    """Carries in two places in turns, which change places in each iteration."""
    first = tg.zeros((B, 8)), tg.ones((B, 8))
    (a, b), _ = tg.scan(lambda c, v: ((c[1], c[0] * 0.5 + v), None), first, m.given.W[0, 0] * x)
    (c, d), _ = tg.scan(lambda c, v: ((c[1], c[0] * 0.5 + v), None), first, m.given.W[0, 1] * x, reverse=True)
    return tg.cross_entropy((a * 2.0 + b + c * 3.0 - d)[:, :4], y)


def of_a_loop_in_a_loop(m: Any, x: Any, y: Any) -> Any:
    def step(h: Any, v: Any) -> tuple[Any, Any]:
        k, _ = tg.scan(lambda k, w: (tg.tanh(k + m.given(w)), None), h, tg.stack([v, v * 2.0]))
        return tg.tanh(k + m.state(h)), k

    h, ks = tg.scan(step, tg.zeros((B, 16)), x)
    return tg.cross_entropy(m.out(h + tg.mean(ks, axis=0)), y)


def of_what_a_loop_reads_whole(m: Any, x: Any, y: Any) -> Any:
    """Each iteration attends to all elements, and forgets most of them, so that rounding does not grow."""

    def step(h: Any, v: Any) -> tuple[Any, Any]:
        scores = tg.softmax(tg.sum(x * h[None, :, :8], axis=2), axis=0)
        h = tg.tanh(0.3 * (m.given(tg.sum(scores[:, :, None] * x, axis=0) + v) + m.state(h)))
        return h, None

    return tg.cross_entropy(m.out(tg.scan(step, tg.zeros((B, 16)), x)[0]), y)


LOSSES: list[Loss] = [of_last, of_mean, of_both_directions, of_turns, of_a_loop_in_a_loop]


def batch(n: int) -> dict[str, Any]:
    rng = np.random.default_rng(n)
    x = rng.normal(size=(n, B, 8)).astype(np.float32)
    return {"x": x, "y": rng.integers(0, 4, B).astype(np.int32)}


def compiled(loss: Loss, length: Any, device: str, **given: Any) -> Any:
    inputs = {"x": tg.f32[length, B, 8], "y": tg.i32[B]}
    return tg.compile(model=Cell(), loss=loss, inputs=inputs, optimizer=optim.sgd(0.1), seed=0, device=device, **given)


@pytest.fixture
def all_shared(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OWN_SIZES", "OWN_SIZES_ON_GPU"):
        monkeypatch.setattr(stepper, name, 0)


def check(
    made: Callable[[Any], Any],
    given: Callable[[int], dict[str, Any]],
    runner: str,
    monkeypatch: pytest.MonkeyPatch,
    shared: bool = True,
) -> None:
    """Compare the steps of a training of open length with those of trainings compiled for a length.

    made: the training for a length, or for the name of one.
    """
    alone: list[Any] = []
    built = programs.SizedPrograms.built
    with made("T") as train:
        for n in LENGTHS if runner == "numpy" else FEW:
            train.reset()
            monkeypatch.setattr(programs.SizedPrograms, "built", lambda *a: alone.append(a[2]) or built(*a))
            found = [train.step(given(n)).loss for _ in range(3)]
            monkeypatch.setattr(programs.SizedPrograms, "built", built)
            with made(n) as one:
                want = [one.step(given(n)).loss for _ in range(3)]
            np.testing.assert_allclose(found, want, rtol=2e-5, err_msg=str(n))
    assert ({at for sizes in alone for _, at in sizes} <= {1}) is shared  # one element can be broadcast


def device_of(runner: str, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setenv("TRACEGRAD_CC", "" if runner == "c" else "off")
    return "webgpu" if runner == "webgpu" else "cpu"


RUNNERS = pytest.mark.parametrize("runner", ["numpy", "c", "webgpu"])


def on_each(names: Any, on_webgpu: Any) -> list[tuple[Any, str]]:
    """Each case on a CPU; some on WebGPU, where a software adapter takes seconds for each length."""
    return [*((n, runner) for n in names for runner in ("numpy", "c")), *((n, "webgpu") for n in on_webgpu)]


@pytest.mark.parametrize(("loss", "runner"), on_each(LOSSES, [of_both_directions]))
@pytest.mark.usefixtures("all_shared")
def test_steps_of_every_length_are_those_of_a_training_compiled_for_it(
    loss: Loss, runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = device_of(runner, monkeypatch)
    check(lambda n: compiled(loss, n, device), batch, runner, monkeypatch)


@pytest.mark.usefixtures("all_shared")
@RUNNERS
@pytest.mark.usefixtures("all_shared")
def test_what_grows_in_each_iteration_has_room(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The gradient of attention stores as many scores for each iteration as there are elements."""
    device = device_of(runner, monkeypatch)
    check(lambda n: compiled(of_what_a_loop_reads_whole, n, device), batch, runner, monkeypatch)


class Reader(tg.Module):
    """Sequences of tokens, i32[B,T]: the length is no leading axis, and other values are as long."""

    def __init__(self, net: Any, out: int = 16) -> None:
        self.embed, self.net, self.out = nn.Embedding(30, 12), net, nn.Linear(out, 4)

    def __call__(self, x: Any, lengths: Any = None) -> Any:
        return self.net(self.embed(x), lengths=lengths)


def of_the_state(m: Any, x: Any, y: Any) -> Any:
    return tg.cross_entropy(m.out(m(x)[1][-1]), y)


def of_lengths(m: Any, x: Any, y: Any) -> Any:
    n = tg.sum(tg.cast(x > 3, tg.i32), axis=1)
    each = tg.sum(m(x, n)[0], axis=1) / tg.maximum(tg.cast(n, tg.f32), 1.0)[:, None]
    return tg.cross_entropy(m.out(each), y)


def of_labels(m: Any, x: Any, y: Any) -> Any:
    """A label for each token: batch and length become one axis."""
    return tg.cross_entropy(m.out(m(x)[0]).reshape(-1, 4), (x % 4).reshape(-1))


def of_weights(m: Any, x: Any, y: Any) -> Any:
    h = m(x)[0]
    h = tg.layer_norm(h + tg.relu(h))
    weights = tg.softmax(tg.max(h, axis=2), axis=1)
    return tg.cross_entropy(m.out(tg.sum(h * weights[:, :, None], axis=1)), y)


READERS: dict[str, tuple[Callable[[], Any], Loss]] = {
    "gru": (lambda: Reader(nn.GRU(12, 16)), of_the_state),
    "gru_both_lengths": (lambda: Reader(nn.GRU(12, 16, bidirectional=True), 32), of_lengths),
    "lstm_labels": (lambda: Reader(nn.LSTM(12, 16, layers=2)), of_labels),
    "rnn_weights": (lambda: Reader(nn.RNN(12, 16)), of_weights),
}


def tokens(n: int) -> dict[str, Any]:
    rng = np.random.default_rng(n)
    return {"x": rng.integers(0, 30, (B, n)).astype(np.int32), "y": rng.integers(0, 4, B).astype(np.int32)}


@pytest.mark.parametrize(("name", "runner"), on_each(READERS, ["lstm_labels"]))
@pytest.mark.usefixtures("all_shared")
def test_the_length_can_be_an_inner_axis(name: str, runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model, loss = READERS[name]
    device = device_of(runner, monkeypatch)

    def made(n: Any) -> Any:
        inputs = {"x": tg.i32[B, n], "y": tg.i32[B]}
        return tg.compile(model=model(), loss=loss, inputs=inputs, optimizer=optim.sgd(0.3), seed=0, device=device)

    check(made, tokens, runner, monkeypatch)


@RUNNERS
@pytest.mark.usefixtures("all_shared")
def test_outputs_and_large_inputs_are_in_the_callers_order(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Memory has the length first; callers do not."""
    device = device_of(runner, monkeypatch)

    def forward(m: Any, x: Any, mask: Any) -> dict[str, Any]:
        y = tg.swapaxes(m.out(along(m, tg.swapaxes(x, 0, 1))[1]), 0, 1)
        return {"each": y, "hidden": tg.where(mask, x[:, :, 0], 0.0), "first": mask & (x[:, :, 1] > 0.0)}

    def made(n: Any) -> Any:
        inputs = {"x": tg.f32[B, n, 8], "mask": tg.bool_[B, n]}
        return tg.compile_forward(model=Cell(), forward=forward, inputs=inputs, device=device, seed=0)

    rng = np.random.default_rng(0)
    with made("T") as shared:
        for n in (700, 3, 699):
            given = {"x": rng.normal(size=(B, n, 8)).astype(np.float32), "mask": rng.random((B, n)) < 0.5}
            with made(n) as one:
                found_all = shared.run(**given).output
                for name, want in one.run(**given).output.items():
                    found = found_all[name]
                    assert (found.shape, found.dtype) == (want.shape, want.dtype)
                    np.testing.assert_allclose(found, want, rtol=1e-5, atol=1e-6, err_msg=f"{name} {n}")


@pytest.mark.parametrize("runner", ["numpy", "c"])
def test_one_sequence_of_any_length(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The batch is open, too, and of one row in every call."""
    device = device_of(runner, monkeypatch)

    def made(b: Any, n: Any) -> Any:
        forward = lambda m, x: m.out(m(x)[0])
        return tg.compile_forward(
            model=Reader(nn.GRU(12, 16)), forward=forward, inputs={"x": tg.i32[b, n]}, device=device, seed=0
        )

    with made("B", "T") as shared:
        for n in (5, 6, 3, 9):
            x = tokens(n)["x"][:1]
            with made(1, n) as one:
                np.testing.assert_allclose(shared.run(x=x).output, one.run(x=x).output, rtol=1e-5, atol=1e-6)
        assert "of a program for sizes up to" in shared.explain().title


@pytest.mark.usefixtures("all_shared")
def test_losses_of_random_lengths_are_pytorchs() -> None:
    t = torch.nn
    theirs = t.ModuleList([t.Embedding(30, 12), t.GRU(12, 16, batch_first=True), t.Linear(16, 4)])
    train = tg.compile(
        model=Reader(nn.GRU(12, 16)), loss=of_the_state, inputs={"x": tg.i32["B", "T"], "y": tg.i32["B"]},
        optimizer=optim.sgd(0.3), seed=0, device="cpu",
    )  # fmt: skip
    with train:
        for ours, p in zip(train.params().values(), theirs.parameters(), strict=True):
            mine = np.asarray(ours)
            p.data.copy_(torch.tensor(mine if mine.shape == tuple(p.shape) else mine.T))
        descent = torch.optim.SGD(theirs.parameters(), 0.3)
        for n in np.random.default_rng(1).integers(1, 50, 30):
            given = tokens(int(n))
            x, y = (torch.tensor(a.astype(np.int64)) for a in given.values())
            want = t.functional.cross_entropy(theirs[2](theirs[1](theirs[0](x))[1][-1]), y)
            descent.zero_grad()
            want.backward()
            descent.step()
            assert train.step(given).loss == pytest.approx(float(want.detach()), rel=2e-4), n


@pytest.mark.parametrize("reverse", [False, True])
def test_only_the_ends_of_a_loop_follow_the_length(reverse: bool) -> None:
    def forward(m: Any, x: Any) -> Any:
        return m.out(along(m, x, reverse)[0])

    made = build_rooms(lambda n: ForwardSource(Cell(), forward, {"x": (n[0], B, 8)}), {"T": 16}, "T", gpu=False)
    program = made.built.program
    (loop,) = program.loops
    inside = range(loop.begin, loop.end)
    follow = {k for k, d in enumerate(program.dispatches) for _, move in d.moves if move.depth == BY_SIZE}
    assert follow.isdisjoint(inside)
    now = program.at(7)
    assert [k for k, _ in now.order()].count(loop.begin) == 7
    assert len(now.kept()) == len([*now.unrolled()]) == len([*program.at(8).unrolled()]) - len(inside)


def test_lengths_that_a_loop_computes_with() -> None:
    """Numbers in a body can follow the length."""

    def scaled(m: Any, x: Any) -> Any:
        return tg.scan(lambda h, v: (h + v / x.shape[0], None), tg.zeros((B, 8)), x)[0]

    made = build_rooms(lambda n: ForwardSource(Cell(), scaled, {"x": (n[0], B, 8)}), {"T": 16}, "T", gpu=False)
    assert made.numbers
    for forward in (scaled, lambda m, x: along(m, x)[0]):
        made = tg.compile_forward(model=Cell(), forward=forward, inputs={"x": tg.f32["T", B, 8]}, device="cpu", seed=0)
        for n in (3, 4, 5, 6, 7):
            x = batch(n)["x"]
            with tg.compile_forward(model=Cell(), forward=forward, inputs={"x": x.shape}, device="cpu", seed=0) as one:
                np.testing.assert_allclose(made.run(x=x).output, one.run(x=x).output, rtol=1e-5, atol=1e-6)
