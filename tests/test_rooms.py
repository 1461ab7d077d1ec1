"""Programs with room for several sizes: their runs are those of programs that are compiled for the sizes."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from fuzzing import polymorphic
from tracegrad import nn, optim
from tracegrad.compiler.build import ForwardSource
from tracegrad.compiler.rooms import Rooms, build_rooms
from tracegrad.engine import programs, room_programs, stepper
from tracegrad.engine.results import CompletedRun
from xla import quickly

pytestmark = pytest.mark.usefixtures("quick_c")

D = 8
BOTH = ((2, 9), (5, 3), (4, 11), (7, 12), (1, 5), (6, 1), (2, 2), (9, 17))


class Model(tg.Module):
    def __init__(self) -> None:
        self.a, self.b = nn.Linear(D, D), nn.Linear(D, 1)
        self.block, self.gru, self.rnn = nn.TransformerBlock(D, 2), nn.GRU(D, D), nn.LSTM(D, D)
        self.conv, self.e = nn.Conv1d(D, D, 3, padding=1), nn.Embedding(7, D)
        self.causal = nn.TransformerBlock(D, 2, causal=True)
        self.place = self.param((40, D), init=tg.init.randn(0.3))


def whole(m: Any, x: Any) -> Any:
    return m.b(tg.tanh(m.a(x))).mean()


def attention(m: Any, x: Any) -> Any:
    return m.b(m.block(x)).square().mean()


def causal(m: Any, x: Any) -> Any:
    return m.b(m.causal(x + m.place[: x.shape[1]])).square().mean()


def by_hand(m: Any, x: Any) -> Any:
    n, t, d = x.shape
    q, k = m.a(x).reshape(n, t, 2, d // 2).permute(0, 2, 1, 3), x.reshape(n, t, 2, d // 2).permute(0, 2, 1, 3)
    s = q @ k.swapaxes(-1, -2) / d
    s = tg.where(tg.tril(tg.ones((t, t))) > 0, s, -1e9)
    y = (tg.softmax(s, -1) @ k).permute(0, 2, 1, 3).reshape(n, t, d)
    return m.b(y).square().mean()


def recurrent(m: Any, x: Any) -> Any:
    y, last = m.gru(x)
    return m.b(y).square().mean() + m.b(last).mean()


def lstm(m: Any, x: Any) -> Any:
    y, _ = m.rnn(tg.flip(x, 1))
    return m.b(y[:, -1]).square().mean()


def convolution(m: Any, x: Any) -> Any:
    y = tg.relu(m.conv(x.swapaxes(1, 2)))
    return y.max(2).square().mean() + y.mean()


def last(m: Any, x: Any) -> Any:
    return m.b(tg.tanh(m.a(x[:, -1]))).square().mean() + m.b(x[:, 0]).mean()


def shifted(m: Any, x: Any) -> Any:
    y = tg.concat([tg.zeros((x.shape[0], 1, D)), m.a(x)], 1)
    return tg.square(y[:, 1:] - y[:, :-1]).mean() + m.b(tg.pad(y, [(0, 0), (2, 1), (0, 0)])).std()


def flat(m: Any, x: Any) -> Any:
    y = m.a(x).reshape(-1, D)
    return tg.logsumexp(y, 0).sum() + tg.max(y) + tg.cosine_similarity(y, x.reshape(-1, D), 1).mean()


def dropped(m: Any, x: Any) -> Any:
    return m.b(tg.dropout(m.a(x), 0.3, True) + 0.1 * tg.randn(x.shape)).square().mean()


def times_time(m: Any, x: Any) -> Any:
    return m.b(tg.einsum("btd,bsd->tsd", m.a(x), x)).square().mean() / x.shape[1]


def counted(m: Any, x: Any) -> Any:
    at = tg.arange(x.shape[0] * x.shape[1]).reshape(x.shape[:2])
    return (m.b(x)[:, :, 0] * tg.sin(tg.cast(at, tg.f32))).mean() + tg.cast(tg.argmax(x[:, :, 0], 1), tg.f32).mean()


def normalized(m: Any, x: Any) -> Any:
    y = m.a(x)
    y = (y - y.mean((0, 1))) / tg.sqrt(y.var((0, 1)) + 1e-5)
    return m.b(tg.cumsum(y, 1)).square().mean() + tg.sum(tg.min(y, (1, 2)))


def windows(m: Any, x: Any) -> Any:
    y = tg.pad(m.a(x), [(0, 0), (1, 1), (0, 0)]).swapaxes(1, 2)
    return tg.avg_pool1d(y, 3, stride=1).square().mean() + tg.roll(x, 1, 1).mean()


def looked_up(m: Any, x: Any) -> Any:
    i = tg.cast(tg.argmax(x, 2) % 7, tg.i32)
    order = tg.argsort(tg.sum(x, 2), 1)
    return m.b(m.e(i)).square().mean() + tg.mean(tg.cast(order, tg.f32) * x[:, :, 0])


def bounded(m: Any, x: Any) -> Any:
    lengths = tg.cast(tg.clip(tg.abs(x[:, 0, 0]) * 3, 1, 2), tg.i32)
    real = tg.arange(x.shape[1])[None] < lengths[:, None]
    return tg.sum(tg.where(real, m.b(x)[:, :, 0], 0.0)) / tg.sum(tg.cast(real, tg.f32))


def scanned(m: Any, x: Any) -> Any:
    def each(h: Any, z: Any) -> Any:
        h = tg.tanh(m.a(z) + h - h.mean(0))
        return h, h.sum(1)

    h, ys = tg.scan(each, tg.zeros((x.shape[0], D)), x.swapaxes(0, 1))
    return m.b(h).square().mean() + ys.mean()


def summed(m: Any, x: Any) -> Any:
    rows = tg.cast(tg.argmax(x, 2), tg.i32).reshape(-1)
    return m.b(tg.segment_sum(m.a(x).reshape(-1, D), rows, D)).square().mean() / x.shape[0]


def contrast(m: Any, x: Any) -> Any:
    """Two views of a batch, put together: each row should be like the other view's, and unlike all others."""
    n = x.shape[0]
    z = tg.concat([m.a(x[:, 0]), tg.tanh(m.a(x[:, -1]))], 0)
    s = tg.where(tg.eye(2 * n) > 0, -1e9, z @ z.T / D)
    return tg.cross_entropy(s, tg.concat([tg.arange(n) + n, tg.arange(n)], 0))


def joined(m: Any, x: Any) -> Any:
    t = x.shape[1]
    y = tg.concat([x, m.a(x), tg.flip(x, 1), m.place[:t] + x], 1)
    at = tg.cast(tg.arange(4 * t), tg.f32)[None, :, None] / t
    pair = y[:, t : 3 * t] * tg.softmax(y, 1)[:, 2 * t :]
    return m.b(tg.sin(at) * y).square().mean() + pair.sum(1).std() + tg.cast(tg.arange(3 * t), tg.f32).mean()


def thinned(m: Any, x: Any) -> Any:
    """A convolutional network for sequences: steps of two, pools, halves, and an upsampling with a skip."""
    y = tg.relu(tg.conv1d(x.swapaxes(1, 2), m.conv.W, stride=2, padding=1))
    z = tg.avg_pool1d(tg.pad(m.conv(y), [(0, 0), (0, 0), (1, 1)]), 3, stride=2)
    up = tg.repeat(tg.max_pool1d(y, 3, stride=2, padding=1), 2, 2)[:, :, : y.shape[2]]
    n = x.shape[1] - x.shape[1] // 2
    ends = x[:, :n] * x[:, x.shape[1] // 2 :] - x[:, ::2] * x[:, ::-2]
    return (y * up).square().mean() + z.max(2).mean() + m.b(tg.softmax(ends, 1)).square().mean()


LOSSES = [whole, attention, causal, by_hand, recurrent, lstm, convolution, last, shifted, flat, dropped, times_time,
          counted, normalized, windows, looked_up, bounded, scanned, summed, contrast, joined, thinned]  # fmt: skip


def nothing(*_: Any) -> None:
    """In place of a search for a shared program."""


def _steps(loss: Callable[..., Any], device: str, sizes: Any) -> tuple[list[Any], Any]:
    train = tg.compile(
        model=Model(), loss=loss, optimizer=optim.sgd(0.01), inputs={"x": ("B", "T", D)}, device=device, seed=3
    )
    rng, found = np.random.default_rng(1), list[Any]()
    for n, t in sizes:
        step = train.step(x=rng.standard_normal((n, t, D), np.float32))
        found.append(float(step.loss))
    return found, train


@cache
def _by_numpy(loss: Callable[..., Any], sizes: Any) -> tuple[list[Any], dict[str, Any]]:
    """Losses, and parameters at the end, of programs that are compiled for each size: once for all runtimes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEGRAD_CC", "off")
        patch.setattr(programs.SizedPrograms, "_of_many", nothing)
        losses, train = _steps(loss, "cpu", sizes)
        return losses, train.download_params()


def on_each() -> list[tuple[Callable[..., Any], str]]:
    """All losses in C; some in NumPy, under XLA and on WebGPU, where a software adapter takes a minute for each."""
    return [
        *((loss, "c") for loss in LOSSES),
        *((loss, "numpy") for loss in (causal, scanned, lstm, counted, joined, thinned)),
        *((loss, "webgpu") for loss in (by_hand, scanned, thinned)), *((loss, "jax") for loss in (causal, thinned)),
    ]  # fmt: skip


@pytest.mark.parametrize(("loss", "runner"), on_each())
def test_steps_are_those_of_programs_for_each_size(
    loss: Callable[..., Any], runner: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TRACEGRAD_CC", "" if runner == "c" else "off")
    monkeypatch.setattr(stepper, "OWN_SIZES_ON_GPU", 2)
    if runner == "jax":
        pytest.importorskip("jax")
    device = runner if runner in ("webgpu", "jax") else "cpu"
    sizes = BOTH[:6] if runner == "jax" else BOTH
    expected, params = _by_numpy(loss, sizes)
    with quickly() if runner == "jax" else nullcontext():
        found, train = _steps(loss, device, sizes)
        np.testing.assert_allclose(found, expected, rtol=2e-5, atol=1e-6)
        for name, x in train.download_params().items():
            np.testing.assert_allclose(x, params[name], rtol=2e-5, atol=2e-6, err_msg=name)
    assert not [kind for kind in train.store.stepper.sized._rooms.refused if 0 not in kind]


def forward(m: Any, x: Any) -> Any:
    y = m.causal(m.a(x) + m.place[: x.shape[1]])
    tg.capture("scores", x @ x.swapaxes(1, 2))
    return {"all": y, "flat": y.reshape(-1, D), "last": y[:, -1], "ones": tg.ones((x.shape[0] * x.shape[1], 2))}


@pytest.mark.parametrize("device", ["cpu", "webgpu"])
def test_results_have_the_shapes_of_a_call(device: str) -> None:
    made = tg.compile_forward(model=Model(), forward=forward, inputs={"x": ("B", "T", D)}, device=device, seed=1)
    rng = np.random.default_rng(2)
    for n, t in BOTH if device == "cpu" else BOTH[1:5]:
        x = rng.standard_normal((n, t, D), np.float32)
        with tg.compile_forward(model=Model(), forward=forward, inputs={"x": x.shape}, device=device, seed=1) as one:
            given, wanted = made.run(x=x).result(), one.run(x=x).result()
        assert isinstance(given, CompletedRun) and isinstance(wanted, CompletedRun), given
        for name, value in wanted.output.items():
            np.testing.assert_allclose(given.output[name], value, rtol=1e-4, atol=1e-5, err_msg=f"{name} {n} {t}")
        np.testing.assert_allclose(given.captures["scores"], wanted.captures["scores"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("seed", range(12))
def test_random_functions(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Values and gradients of functions of many ops; `tools/fuzz --sizes` runs more of them."""
    monkeypatch.setenv("TRACEGRAD_CC", "off")
    _, differences = polymorphic.compared(seed, "cpu", exact=seed % 2 == 0)
    assert not differences


def test_functions_on_numpy_leave_c_to_the_next_runner(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(polymorphic, "SIZES", polymorphic.SIZES[:1])
    monkeypatch.setenv("TRACEGRAD_CC", "gcc")
    polymorphic.explored(range(1), "numpy", 60.0)
    assert os.environ["TRACEGRAD_CC"] == "gcc"


def test_a_call_as_long_as_a_table_refuses_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slice as long as the table is no slice, so this one call has a program of its own."""
    monkeypatch.setenv("TRACEGRAD_CC", "off")

    def attending(m: Any, x: Any) -> Any:
        h = x + m.place[: x.shape[1]]
        return tg.softmax(h @ h.swapaxes(1, 2), -1)

    with tg.compile_forward(model=Model(), forward=attending, inputs={"x": (2, "T", D)}, device="cpu", seed=0) as made:
        for t in (9, 12, 40, 33, 37):
            y = made.run(x=np.full((2, t, D), 0.01, np.float32)).output
            assert y.shape == (2, t, t)
            np.testing.assert_allclose(y.sum(-1), 1, rtol=1e-5)
        assert "of a program for sizes up to" in made.explain().title


def test_calls_that_become_longer_try_few_rooms(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each of them is the largest so far, and no room can be built for any."""
    monkeypatch.setenv("TRACEGRAD_CC", "off")
    tried, built = list[Any](), room_programs.built
    monkeypatch.setattr(room_programs, "built", lambda *given: (tried.append(given), built(*given))[1])

    def every_second(m: Any, x: Any) -> Any:
        return x[:, ::2] * float(x.shape[1] ** 2 % 7)

    with tg.compile_forward(model={}, forward=every_second, inputs={"x": (2, "T")}, device="cpu") as made:
        for t in range(5, 20):
            assert made.run(x=np.ones((2, t), np.float32)).output.shape == (2, -(-t // 2))
    assert 0 < len(tried) <= 2 * room_programs.MOST_FAILED  # one size without padding, or with it


def test_an_input_that_nothing_reads_has_the_sizes_of_a_call_too() -> None:
    def squared(m: Any, x: Any, y: Any) -> Any:
        return tg.softmax(x @ x.swapaxes(1, 2), -1)

    inputs = {"x": ("B", "T", D), "y": ("B", "T")}
    made = tg.compile_forward(model=Model(), forward=squared, inputs=inputs, device="cpu", seed=0)
    with made:
        for n, t in BOTH:
            assert made.run(x=np.ones((n, t, D), np.float32), y=np.ones((n, t), np.float32)).output.shape == (n, t, t)


def thirds(x: Any, step: Callable[[Any], Any]) -> Any:
    """The gradient of what three steps in a row give."""
    return tg.grad(lambda x: tg.sum(tg.square(step(tg.tanh(step(tg.tanh(step(x.swapaxes(1, 2)))))))))(x)


RUNNING: dict[str, Callable[[Any], Any]] = {
    "sums": lambda x: tg.cumsum(x, 1),
    "sums from the end": lambda x: tg.flip(tg.cumsum(tg.flip(x, 1), 1), 1),
    "products": lambda x: tg.cumprod(1 + 0.1 * x, 1),
    "maxima": lambda x: tg.cummax(x, 1),
    "whole minima": lambda x: tg.cast(tg.cummin(tg.cast(9 * x, tg.i32), 1), tg.f32) * x,
    "of a batch": lambda x: tg.cumsum(x.reshape(-1, 2), 0),
    "of a table": lambda x: x[:, :, 0] * tg.cast(tg.cumsum(tg.ones((x.shape[1], 3)), 0), tg.f32)[:, 1],
    "in steps of two": lambda x: thirds(x, lambda y: tg.conv1d(y, np.ones((2, 2, 3), np.float32), stride=2, padding=1)),
    "in pools": lambda x: thirds(x, lambda y: tg.max_pool1d(y, 3, stride=2, padding=1)),
    "in a loop": lambda x: tg.scan(lambda h, z: (h + tg.cumsum(z, 0)[-1], tg.cumsum(z, 0)), tg.zeros(2), x)[1],
}


@pytest.mark.parametrize("name", RUNNING)
def test_what_runs_along_a_size_has_room(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """More than a block long, so the ops for one size depend on its divisors."""
    monkeypatch.setenv("TRACEGRAD_CC", "off")

    def sized(m: Any, x: Any) -> Any:
        return RUNNING[name](x)

    made = tg.compile_forward(model={}, forward=sized, inputs={"x": ("B", "T", 2)}, device="cpu", seed=0)
    rng = np.random.default_rng(3)
    with made:
        for n, t in ((2, 64), (3, 45), (4, 90), (2, 50), (3, 97), (5, 61), (2, 3), (4, 41)):
            x = rng.standard_normal((n, t, 2), np.float32)
            wanted = np.asarray(RUNNING[name](tg.tensor(x)))
            np.testing.assert_allclose(made.run(x=x).output, wanted, rtol=1e-5, atol=1e-5)
        assert "of a program for sizes up to" in made.explain().title


def test_a_room_as_large_as_a_layer_needs_no_trace_at_other_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """At 32 examples a comparison finds their number equal to that of an LSTM's gates, and takes another branch."""
    monkeypatch.setenv("TRACEGRAD_CC", "off")
    train = tg.compile(model=Model(), loss=lstm, optimizer=optim.sgd(0.01), inputs={"x": (None, 6, D)}, device="cpu")
    with train:
        for n in (32, 31, 30):
            train.step(x=np.ones((n, 6, D), np.float32))
        monkeypatch.setattr(Rooms, "_traced", None)
        for n in (29, 17, 8, 2):
            assert np.isfinite(train.step(x=np.ones((n, 6, D), np.float32)).loss)
        assert "of a program for sizes up to" in train.explain().title


@pytest.mark.usefixtures("quick_xla")
def test_xla_compiles_few_programs_for_random_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A room for each power of two, and one program for each of the first sizes, of which a GPU would have more."""
    monkeypatch.setattr(stepper, "OWN_SIZES_ON_GPU", 2)
    monitoring = pytest.importorskip("jax").monitoring
    compiled: list[str] = []

    def count(name: str, *_: Any, **more: Any) -> None:
        if name.endswith("backend_compile_duration") and "_run_" in str(more.get("fun_name", "_run_")):
            compiled.append(name)

    given: Any = {"model": Model(), "loss": whole, "optimizer": optim.sgd(0.01), "seed": 0, "device": "jax"}
    x = np.random.default_rng(0).standard_normal((64, 3, D), np.float32)
    sizes = np.random.default_rng(1).integers(2, 65, 30)
    monitoring.register_event_duration_secs_listener(count)
    try:
        train = tg.compile(**given, inputs={"x": (None, 3, D)})
        losses = [train.step(x=x[:n]).loss for n in sizes]
    finally:
        monitoring.unregister_event_duration_listener(count)
    assert len(set(sizes)) > 20 and 0 < len(compiled) <= 10, compiled
    assert "of a program for sizes up to" in train.explain().title
    given["device"] = "cpu"
    alone = tg.compile(**given, inputs={"x": (None, 3, D)})
    np.testing.assert_allclose(losses, [alone.step(x=x[:n]).loss for n in sizes], rtol=1e-5, atol=1e-6)


def test_sizes_that_often_run_get_a_program_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(programs, "ROOM_RUNS", 3)
    monkeypatch.setattr(programs, "OWN_RUNS", 8)
    made = tg.compile_forward(model=Model(), forward=forward, inputs={"x": ("B", "T", D)}, device="cpu", seed=1)
    for n, t in BOTH:
        made.run(x=np.ones((n, t, D), np.float32)).result()
    x = np.random.default_rng(2).standard_normal((8, 13, D), np.float32)
    outputs = [made.run(x=x).output["all"] for _ in range(3)]
    assert "of a program for sizes up to" in made.explain().title
    outputs += [made.run(x=x).output["all"] for _ in range(7)]
    assert "of a program for sizes up to" not in made.explain().title
    for y in outputs:
        np.testing.assert_allclose(y, outputs[-1], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("named", [("B",), ("B", "T")], ids=["one name", "two names"])
def test_labels_out_of_range_are_refused_at_each_size(named: tuple[str, ...]) -> None:
    def loss(m: Any, x: Any, label: Any) -> Any:
        if len(named) == 2:
            x = tg.softmax(x @ tg.swapaxes(x, -1, -2), -1) @ x
        return tg.cross_entropy(m(x).reshape(-1, 3), label.reshape(-1))

    inputs = {"x": (*named, 2), "label": tg.i32[named]}
    with tg.compile(model=nn.Linear(2, 3), loss=loss, inputs=inputs, optimizer=optim.sgd(0.1), device="cpu") as train:
        for b, t in BOTH:
            shape = (b, t)[: len(named)]
            x = np.ones((*shape, 2), np.float32)
            for label, error in ((2, ""), (3, "label: value 3 ")):
                r = train.step(x=x, label=np.full(shape, label, np.int32)).result()
                assert error in str(getattr(r, "error", "")) and bool(error) == hasattr(r, "error"), (shape, r)


def test_rows_of_a_room_keep_one_index_each() -> None:
    """An index for each element is slower: no vector loads or adds whole rows."""

    def forward(m: Any, x: Any, e: Any) -> Any:
        return tg.segment_sum(tg.take(x, e[:, 0], axis=0), e[:, 1], x.shape[0])

    def at(n: Any) -> ForwardSource:
        return ForwardSource(nn.Linear(1, 1), forward, {"x": (n[0], D), "e": tg.i32[n[1], 2]})

    graph = build_rooms(at, {"N": 16, "E": 64}, None, gpu=False).built.graph
    looked_up = [t.inputs[1] for t in graph.nodes if t.prim.family in ("gather", "scatter")]
    assert [x.prim.name for x in looked_up] == ["broadcast", "broadcast"]
