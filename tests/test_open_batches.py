"""Batches of any size whose axis is not in front of every value: one program computes no more than a call has."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.engine import room_programs, stepper

SIZES = (9, 2, 17, 3, 33)
Net = Callable[["Layers", Any], Any]


class Layers(tg.Module):
    def __init__(self) -> None:
        self.gru, self.lstm = nn.GRU(6, 8, bidirectional=True), nn.LSTM(16, 8)
        self.a, self.b, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 4)
        self.heads = self.param((3, 6, 8))


def of_sequences(m: Layers, x: Any) -> Any:
    return tg.mean(m.lstm(m.gru(x)[0])[0], axis=1)


def of_a_loop_whose_elements_are_constants(m: Layers, x: Any) -> Any:
    def step(h: Any, _: Any) -> tuple[Any, Any]:
        h = h + 0.1 * tg.tanh(m.b(h))
        return h, h[:, :3]

    h, path = tg.scan(step, m.a(x[:, 0]), tg.arange(5))
    return h * tg.mean(path)


def of_time_in_front(m: Layers, x: Any) -> Any:
    def step(h: Any, v: Any) -> tuple[Any, Any]:
        h = tg.tanh(m.a(v) + m.b(h))
        return h, h

    h, each = tg.scan(step, tg.zeros((x.shape[0], 8)), tg.swapaxes(x, 0, 1), reverse=True)
    return h + tg.max(each, axis=0)


def of_heads(m: Layers, x: Any) -> Any:
    return tg.mean(tg.tanh(tg.matmul(x[None, :, 0], m.heads)), axis=0)


def of_stacked(m: Layers, x: Any) -> Any:
    return tg.max(tg.stack([tg.relu(m.a(x[:, 1])), tg.tanh(m.a(x[:, 2]))]), axis=0)


def of_columns(m: Layers, x: Any) -> Any:
    return tg.swapaxes(tg.tanh(tg.matmul(tg.swapaxes(m.heads[0], 0, 1), tg.swapaxes(x[:, 0], 0, 1))), 0, 1)


def of_an_inner_loop(m: Layers, x: Any) -> Any:
    def step(h: Any, v: Any) -> tuple[Any, Any]:
        k, ks = tg.scan(lambda k, w: (tg.tanh(m.b(k) + w), k), h, tg.stack([m.a(v), m.a(v * 2.0)]))
        return k, tg.sum(ks, axis=0)

    h, each = tg.scan(step, m.a(x[:, 0]), tg.swapaxes(x, 0, 1))
    return h + tg.mean(each, axis=0)


NETS: list[Net] = [
    of_sequences, of_a_loop_whose_elements_are_constants, of_time_in_front, of_heads, of_stacked, of_columns,
    of_an_inner_loop,
]  # fmt: skip


def compiled(net: Net, n: int | None, device: str) -> Any:
    def loss(m: Layers, x: Any, y: Any) -> Any:
        return tg.cross_entropy(m.out(net(m, x)), y)

    inputs = {"x": tg.f32[n, 5, 6], "y": tg.i32[n]}
    return tg.compile(model=Layers(), loss=loss, inputs=inputs, optimizer=optim.sgd(0.5), seed=0, device=device)


def batch(n: int) -> dict[str, Any]:
    rng = np.random.default_rng(n)
    return {"x": rng.normal(size=(n, 5, 6)).astype(np.float32), "y": rng.integers(0, 4, n).astype(np.int32)}


@cache
def by_numpy(net: Net, n: int) -> list[float]:
    """The losses of a training that is compiled for one size: once for all runtimes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEGRAD_CC", "off")
        with compiled(net, n, "cpu") as one:
            return [one.step(batch(n)).loss for _ in range(3)]


def shared_on(runner: str, monkeypatch: pytest.MonkeyPatch) -> str:
    """The device of a runner, on which all sizes of a training share a program."""
    monkeypatch.setenv("TRACEGRAD_CC", "" if runner == "c" else "off")
    for name in ("OWN_SIZES", "OWN_SIZES_ON_GPU"):
        monkeypatch.setattr(stepper, name, 0)
    return "webgpu" if runner == "webgpu" else "cpu"


@pytest.mark.filterwarnings("ignore:.*software adapter", "ignore:the loss does not use")
@pytest.mark.parametrize(
    ("net", "runner"),
    [*((net, runner) for net in NETS for runner in ("numpy", "c")), (of_sequences, "webgpu"), (of_heads, "webgpu")],
)
def test_steps_of_every_batch_are_those_of_a_training_compiled_for_it(
    net: Net, runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = shared_on(runner, monkeypatch)
    kinds: set[Any] = set()
    built = room_programs.built
    monkeypatch.setattr(room_programs, "built", lambda *a: kinds.add(a[3]) or built(*a))
    with compiled(net, None, device) as train:
        for n in SIZES:
            train.reset()
            found = [train.step(batch(n)).loss for _ in range(3)]
            np.testing.assert_allclose(found, by_numpy(net, n), rtol=2e-5, err_msg=str(n))
    assert kinds == {(0,)}  # no size has room


@pytest.mark.parametrize("runner", ["numpy", "c"])
def test_results_have_the_batch_where_the_model_has_it(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEGRAD_CC", "" if runner == "c" else "off")

    def forward(m: Layers, x: Any) -> Any:
        h, each = tg.scan(lambda h, v: (tg.tanh(m.a(v) + m.b(h)),) * 2, m.a(x[:, 0]), tg.swapaxes(x, 0, 1))
        return {"last": h, "each": each, "turned": tg.swapaxes(each, 0, 1), "columns": h.T}

    options: Any = {"model": Layers(), "forward": forward, "seed": 0, "device": "cpu"}
    with tg.compile_forward(**options, inputs={"x": tg.f32[None, 5, 6]}) as f:
        for n in SIZES:
            with tg.compile_forward(**options, inputs={"x": tg.f32[n, 5, 6]}) as one:
                x = batch(n)["x"]
                found, want = f.run(x=x).output, one.run(x=x).output
                for name in want:
                    np.testing.assert_allclose(found[name], want[name], rtol=2e-5, atol=1e-6, err_msg=f"{name} at {n}")


def read_in_all_orders(_: Any, x: Any) -> Any:
    """A value that is stored with time in front of its rows, and readers with other strides, shifts and padding."""
    n = x.shape[0]
    y = tg.cumsum(tg.swapaxes(x, 0, 1), 0)
    turned = tg.permute(tg.reshape(y, (5, n, 2, 3)), (0, 1, 3, 2))
    later = tg.cumsum(tg.softmax(turned, -1), 0)
    return {
        "turned": later,
        "turned again": tg.softmax(tg.permute(later, (3, 1, 0, 2)), -1),
        "padded": tg.cumsum(tg.pad(y, ((1, 0), (0, 0), (2, 1))), 2),
        "shifted": tg.softmax(tg.roll(y, 1, 0) * tg.flip(y, 2), -1),
        "every other": tg.cumsum(y[::-2, :, ::-2], 0),
        "rows": tg.sort(tg.reshape(tg.swapaxes(y, 0, 1), (n, -1))[:, 4:-3], 1)[0],
    }


@pytest.mark.parametrize("runner", ["numpy", "c"])
def test_readers_of_rows_behind_other_axes_read_their_own_rows(runner: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TRACEGRAD_CC", "" if runner == "c" else "off")
    kinds: set[Any] = set()
    built = room_programs.built
    monkeypatch.setattr(room_programs, "built", lambda *a: kinds.add(a[3]) or built(*a))
    types = {"x": tg.f32[None, 5, 6]}
    with tg.compile_forward(model=Layers(), forward=read_in_all_orders, inputs=types, seed=0, device="cpu") as f:
        for n in SIZES:
            x = batch(n)["x"]
            found, want = f.run(x=x).output, read_in_all_orders(None, tg.tensor(x))
            for name, y in want.items():
                np.testing.assert_allclose(found[name], y.numpy(), rtol=2e-5, atol=2e-6, err_msg=f"{name} at {n}")
    assert kinds == {(0,)}  # no size has room


def _of_heads_in_one_row(x: Any) -> Any:
    return tg.softmax(tg.reshape(x, (1, -1)) * tg.reshape(tg.arange(1.0, 4.0), (3, 1)), -1)


@pytest.mark.parametrize(
    "of",
    [
        lambda p: {"y": tg.reshape(p, (3, -1, 2))},
        lambda p: {"y": tg.sin(tg.reshape(tg.cumsum(p, 0), (3, -1, 2)))},
        lambda p: {"y": p @ tg.tanh(p.T)},
    ],
)
def test_neighbours_of_one_row_are_stored_behind_other_axes(of: Callable[[Any], Any]) -> None:
    """A fold stores all its points, two for each row of the batch, for each of three heads."""

    def forward(_: Any, x: Any) -> Any:
        return of(_of_heads_in_one_row(x))

    with tg.compile_forward(model=Layers(), forward=forward, inputs={"x": (None, 2)}, seed=0, device="cpu") as f:
        for n in (40, 17, 7, 5, 9, 3, 2, 11, 12, 13):
            x = np.random.default_rng(n).normal(size=(n, 2)).astype(np.float32)
            np.testing.assert_allclose(f.run(x=x).output["y"], of(_of_heads_in_one_row(x))["y"], atol=1e-6)


class Words(tg.Module):
    def __init__(self) -> None:
        self.table, self.a, self.out = nn.Embedding(32, 32), nn.Linear(32, 48), nn.Linear(48, 4)


@pytest.mark.filterwarnings("ignore:.*software adapter")
@pytest.mark.parametrize(("runner", "in_front"), [("numpy", False), ("c", True), ("webgpu", False)])
def test_long_sums_over_a_batch_and_words_have_parts(
    runner: str, in_front: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradients of weights and of tables sum over both. In one part, few workgroups of a GPU would have work.

    On a CPU, products have one part.
    """
    device = shared_on(runner, monkeypatch)

    def loss(m: Words, x: Any, y: Any) -> Any:
        h = m.table(x)
        h = tg.tanh(m.a(tg.swapaxes(h, 0, 1) if in_front else h))
        return tg.cross_entropy(m.out(tg.mean(h, axis=0 if in_front else 1)), y)

    def compiled(n: int | None) -> Any:
        inputs = {"x": tg.i32[n, 96], "y": tg.i32[n]}
        return tg.compile(model=Words(), loss=loss, inputs=inputs, optimizer=optim.sgd(0.5), seed=0, device=device)

    rng = np.random.default_rng(0)
    with compiled(None) as train:
        for n in (33, 2, 17):
            data = {"x": rng.integers(0, 32, (n, 96)), "y": rng.integers(0, 4, n)}
            train.reset()
            found = [train.step(data).loss for _ in range(2)]
            with compiled(n) as one:
                np.testing.assert_allclose(found, [one.step(data).loss for _ in range(2)], rtol=2e-5, err_msg=str(n))
        forms = [f for k in train.program.kernels for f in k.forms if f.product]
    over_words = [f for f in forms if f.scatter or f.rows >= 32 * 48]
    assert len(over_words) >= 2
    assert all(f.length < 96 * 8 for f in over_words if f.scatter or runner == "webgpu")
