"""Examples of `fit` that stay on the device: results are the same bits as with batches from the host."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.compiler.feed import fed, make_feed
from tracegrad.program import Program
from tracegrad.runtime.base import DeviceInfo
from tracegrad.training import placing

RNG = np.random.default_rng(0)
X = RNG.standard_normal((103, 6), dtype=np.float32)
Y = RNG.integers(0, 4, 103).astype(np.int32)


@pytest.fixture(params=["c", "numpy", "webgpu"])
def device(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A device that would make batches on the host: a software adapter, or a CPU, whose memory is the host's."""
    if request.param == "webgpu":
        request.getfixturevalue("webgpu")
        return "webgpu"
    monkeypatch.setenv("TRACEGRAD_CC", "" if request.param == "c" else "off")
    return "cpu"


@pytest.fixture
def places(monkeypatch: pytest.MonkeyPatch) -> Callable[[bool], list[Any]]:
    """A function that lets `fit` place all examples, or none; it returns a list of those placed."""

    def choose(there: bool) -> list[Any]:
        made: list[Any] = []
        real = placing.placed

        def noted(*args: Any) -> Any:
            found = real(*args)
            made.extend([found] if found is not None else [])
            return found

        monkeypatch.setattr(placing, "gathers", lambda device: there)
        monkeypatch.setattr("tracegrad.training.fit.placed", noted)
        for name in ("FED_FROM", "FED_TOTAL"):
            monkeypatch.setattr(placing, name, 0)
        return made

    return choose


def classify(m: Any, x: Any, y: Any) -> Any:
    logits = m(x)
    return tg.cross_entropy(logits, y), {"accuracy": tg.metrics.accuracy(logits, y)}


def training(device: str, size: int | None = None, **more: Any) -> Any:
    return tg.compile(
        model=nn.Sequential(nn.Linear(6, 5), tg.tanh, nn.Linear(5, 4)), loss=classify,
        inputs={"x": (size, 6), "y": tg.i32[size]}, optimizer=optim.adam(1e-2), seed=0, device=device, **more,
    )  # fmt: skip


def both(places: Any, run: Callable[[], Any]) -> Any:
    """Run with batches from the host, then with examples on the device; results must be equal. Return them."""
    assert not places(False)
    wanted = run()
    made = places(True)
    found = run()
    assert made, "no examples were placed"
    assert found == wanted
    return found


@pytest.mark.filterwarnings("ignore:.*software adapter")
@pytest.mark.parametrize("size", [16, None])
def test_the_same_bits_as_from_the_host(device, places, size):
    def run() -> Any:
        with training(device, size) as train:
            history = train.fit(x=X, y=Y, batch_size=16, epochs=3, progress=False)
            again = train.fit(x=X[:50], y=Y[:50], batch_size=16, steps=7, shuffle=False, progress=False)
            return history.loss, history.aux, again.loss, train.digest()

    losses = both(places, run)[0]
    assert len(losses) == 3 * (6 if size else 7) and losses[-1] < losses[0]


@pytest.mark.filterwarnings("ignore:.*software adapter")
def test_other_dtypes_and_several_axes(device, places):
    given = {
        "image": RNG.standard_normal((40, 2, 3, 5)),  # f64
        "words": RNG.integers(0, 7, (40, 3)).astype(np.int64),
        "keep": RNG.random(40) < 0.7,
        "code": RNG.integers(0, 2**32, 40, dtype=np.uint32),
    }

    class Net(tg.Module):
        def __init__(self) -> None:
            self.table, self.line = nn.Embedding(7, 3), nn.Linear(30, 9)

        def __call__(self, image: Any, words: Any) -> Any:
            return self.line(image.reshape(image.shape[0], -1)) * self.table(words).reshape(-1, 9)

    def loss(m: Any, image: Any, words: Any, keep: Any, code: Any) -> Any:
        bits = tg.cast(code, tg.f32)[:, None] * 2.0**-32
        return tg.mean(tg.where(keep[:, None], tg.square(m(image, words) - bits), 0.0))

    inputs = {"image": (8, 2, 3, 5), "words": tg.i32[8, 3], "keep": tg.bool_[8], "code": tg.u32[8]}

    def run() -> Any:
        with tg.compile(
            model=Net(), loss=loss, inputs=inputs, optimizer=optim.sgd(0.1), seed=0, device=device
        ) as train:
            return train.fit(given, epochs=3, progress=False).loss, train.digest()

    both(places, run)


@pytest.mark.filterwarnings("ignore:.*software adapter")
def test_loops_of_a_recurrent_model(device, places):
    class Net(tg.Module):
        def __init__(self) -> None:
            self.gru, self.line = nn.GRU(3, 4), nn.Linear(4, 4)

        def __call__(self, x: Any) -> Any:
            return self.line(self.gru(x)[1][-1])

    def run() -> Any:
        with tg.compile(
            model=Net(), loss=lambda m, x, y: tg.cross_entropy(m(x), y), inputs={"x": (8, 9, 3), "y": tg.i32[8]},
            optimizer=optim.adam(1e-2), seed=0, device=device,
        ) as train:  # fmt: skip
            assert train.program.loops
            history = train.fit(x=np.resize(X, (30, 9, 3)), y=Y[:30], epochs=3, progress=False)
            return history.loss, train.digest()

    both(places, run)


@pytest.mark.filterwarnings("ignore:.*software adapter")
def test_several_losses_take_turns(device, places):
    class Two(tg.Module):
        def __init__(self) -> None:
            self.a, self.b = nn.Linear(6, 4), nn.Linear(6, 1)

    losses = {
        "a": lambda m, x, y: tg.cross_entropy(m.a(x), y),
        "b": lambda m, x: tg.mean(tg.square(m.b(x) - 1.0)),
    }

    def run() -> Any:
        with tg.compile(
            model=Two(), losses=losses, inputs={"x": (None, 6), "y": tg.i32[None]},
            optimizer={"a": optim.adam(1e-2), "b": optim.sgd(0.1)}, params={"a": "a.*", "b": "b.*"}, seed=0,
            device=device,
        ) as train:  # fmt: skip
            history = train.fit(x=X, y=Y, batch_size=20, epochs=4, schedule=("a", "a", "b"), progress=False)
            return history.loss, train.digest()

    both(places, run)


@pytest.mark.filterwarnings("ignore:.*software adapter")
def test_hooks_can_change_the_training_and_the_arrays(device, places):
    """Weight decay that was off compiles the step once more, freezing too; both happen while examples are placed."""

    def run() -> Any:
        x = X.copy()
        with training(device, 16) as train:

            def change(state: Any) -> None:
                x[...] = X * (1 + state.epoch)
                if state.epoch == 2:
                    train.set(clip_grad_norm=0.1)
                if state.epoch == 3:
                    train.freeze("layers.0.*")

            history = train.fit(x=x, y=Y, epochs=5, on_epoch=change, progress=False)
            return history.loss, train.digest()

    both(places, run)


@pytest.mark.filterwarnings("ignore:.*software adapter")
def test_validation_early_stopping_and_resuming(device, places, tmp_path):
    def run() -> Any:
        stop = tg.EarlyStopping("val_loss", patience=1)
        with training(device) as train:
            history = train.fit(
                x=X, y=Y, batch_size=16, epochs=4, validation=0.2, callbacks=[stop], progress=False,
                on_epoch=lambda state: train.save(tmp_path / "at.safetensors") if state.epoch == 2 else None,
            )  # fmt: skip
            first = history.loss, history.metrics, train.digest()
        with training(device) as train:
            rest = train.fit(
                x=X, y=Y, batch_size=16, epochs=4, validation=0.2, resume=tmp_path / "at.safetensors", progress=False
            )
            return *first, rest.loss, train.digest()

    both(places, run)


@pytest.mark.filterwarnings("ignore:.*software adapter")
def test_a_nan_is_found_in_its_batch(device, places):
    x = X.copy()
    x[40, 3] = np.nan

    def run() -> Any:
        with training(device, 16) as train, pytest.raises(tg.NonFiniteError) as e:
            train.fit(x=x, y=Y, epochs=2, progress=False)
        return str(e.value)

    assert "input 'x', f32[16,6], is not finite itself: 1 NaN of 96 values" in both(places, run)


def test_a_wrong_label_is_reported_by_its_step(places):
    """The host makes the batches then, so the message names the place in the batch."""
    y = Y.copy()
    y[7] = 4
    messages = []
    for there in (False, True):
        made = places(there)
        with training("cpu", 16) as train, pytest.raises(tg.InputError) as e:
            train.fit(x=X, y=y, epochs=2, shuffle=False, progress=False)
        messages.append(str(e.value))
        assert not made
    assert messages[0] == messages[1] and "value 4 at [7] is out of range" in messages[0]


@pytest.mark.filterwarnings("ignore:.*software adapter")
def test_the_reference_agrees(device, places, monkeypatch):
    monkeypatch.setenv("TRACEGRAD_CHECK", "1")
    both(places, lambda: fitted(device))


def fitted(device: str) -> Any:
    with training(device, 16) as train:
        return train.fit(x=X, y=Y, epochs=2, progress=False).loss


@pytest.mark.filterwarnings("ignore:.*software adapter")
def test_nothing_is_left_on_the_device(device, places):
    made = places(True)
    with training(device, 16) as train:
        for _ in range(2):
            train.fit(x=X, y=Y, epochs=2, progress=False)
            with pytest.raises(tg.DeviceError, match=r"no persistent array 'data\.x'"):
                train.worker.call(lambda session: session.read("data.x"))
    assert [len(placed._fed) for placed in made] == [1, 1]  # one program served all steps of a fit
    gc.collect()


@pytest.mark.parametrize(
    "more", [{"epochs": 1}, {"epochs": 2, "on_step": lambda state: None}], ids=["one pass", "a hook of each step"]
)
def test_the_host_makes_batches_where_that_is_better(places, more):
    made = places(True)
    with training("cpu", 16) as train:
        train.fit(x=X, y=Y, progress=False, **more)
    assert not made


FITS = {"FED_FROM": 16 * 28, "FED_TOTAL": 12 * 16 * 28, "FED_MOST": 103 * 28}  # steps of 16 rows, each of 28 bytes


@pytest.mark.parametrize(
    "steps, name, off, there",
    [
        (12, "FED_FROM", 0, True), (12, "FED_FROM", 1, False), (12, "FED_TOTAL", 0, True), (12, "FED_TOTAL", 1, False),
        (12, "FED_MOST", 0, True), (12, "FED_MOST", -1, False), (11, "FED_FROM", 0, False),
    ],
)  # fmt: skip
def test_bytes_and_steps_decide(places, monkeypatch, steps, name, off, there):
    made = places(True)
    monkeypatch.setattr(placing, name, FITS[name] + off)
    run, real = list[Any](), placing.StepCall
    monkeypatch.setattr(placing, "StepCall", lambda *call: run.append(call[-1]) or real(*call))
    with training("cpu", 16) as train:
        train.fit(x=X, y=Y, steps=steps, progress=False)
    assert len(made) == there and len(run) == steps * there and None not in run


@pytest.mark.parametrize(
    "name, software, faster", [("webgpu", False, True), ("webgpu", True, False), ("cpu", False, False)]
)
def test_a_gpu_makes_batches_faster_than_the_host(name, software, faster):
    assert placing.gathers(DeviceInfo(name, "one", software=software)) is faster


def test_small_fits_stay_on_the_host(monkeypatch):
    monkeypatch.setattr(placing, "gathers", lambda device: pytest.fail("asked too early"))
    with training("cpu", 16) as train:
        train.fit(x=X, y=Y, epochs=3, progress=False)


def test_a_device_that_is_too_small(places, monkeypatch, caplog):
    made = places(True)
    caplog.set_level("INFO", "tracegrad")

    def refuses(self: Any, session: Any) -> None:
        raise tg.DeviceError("out of memory")

    monkeypatch.setattr("tracegrad.training.placing.Placed.begin", refuses)
    with training("cpu", 16) as train:
        assert len(train.fit(x=X, y=Y, epochs=2, progress=False).loss) == 12
    assert not made and "the host makes the batches of fit: out of memory" in caplog.text


def test_a_fit_inside_a_fit_makes_its_batches_on_the_host(places):
    """Both have arrays of the same shapes, which must not take each other's place."""

    def run() -> Any:
        losses: list[list[float]] = []
        with training("cpu", 16) as train:

            def again(state: Any) -> None:
                if len(losses) < 1:
                    losses.append(train.fit(x=-X, y=Y, epochs=2, progress=False).loss)

            losses.append(train.fit(x=X, y=Y, epochs=3, callbacks=[Between(again)], progress=False).loss)
            return losses, train.digest()

    assert not places(False)
    wanted = run()
    made = places(True)
    assert run() == wanted and len(made) == 1


class Between:
    """A callback that is called after each epoch."""

    def __init__(self, call: Any) -> None:
        self.on_epoch = call


def step_of(**inputs: Any) -> Program:
    def loss(m: Any, **given: Any) -> Any:
        return sum((tg.sum(tg.cast(x, tg.f32)) for x in given.values()), tg.sum(m.W))

    model = nn.Linear(6, 1, bias=False)
    with tg.compile(model=model, loss=loss, inputs=inputs, optimizer=optim.sgd(0.1), device="cpu") as train:
        return train.program


def test_drawn_inputs_have_one_length_and_others_any():
    step = step_of(x=(4, 2), y=(3, 2), s=())
    feed = make_feed(step, ["x"])
    assert {b.name: b.size for b in feed.buffers if b.role == "data"} == {"data.x": 0, "data.y": 6, "data.s": 1}
    for drawn in (["x", "y"], ["s"], ["x", "s"]):
        with pytest.raises(tg.InputError, match="the same first axis"):
            make_feed(step, drawn)


def test_examples_of_any_size_can_be_drawn():
    """A page draws from as many as indices of 32 bits can reach."""
    assert make_feed(step_of(x=(2, 300, 300), y=(2,)), ["x", "y"]).dispatches


def test_a_step_behind_a_feed_has_the_kernels_of_both():
    step = step_of(x=(4, 2), y=(4, 3))
    feed = make_feed(step, ["x", "y"])
    both = fed(step, feed)
    run = [[p.kernels[d.kernel] for d in p.dispatches] for p in (feed, step, both)]
    assert len({d.kernel for d in feed.dispatches}) > 1 and run[0] + run[1] == run[2]


def test_batches_from_the_host_are_copied_once():
    """Batches of shuffled rows are gathered straight into the memory that a step keeps."""
    from tracegrad.runtime.copy_pool import CopyPool

    pool, x = CopyPool(), RNG.standard_normal((300, 700), dtype=np.float32)
    at = RNG.permutation(300)[:100]
    assert np.array_equal(pool.rows(x, at), x[at])
    assert np.array_equal(pool.rows(x[:, ::2], at), x[at, ::2])
    assert np.array_equal(pool.rows(x[:5], at[:0]), x[at[:0]])
