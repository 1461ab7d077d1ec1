"""`fit` on whole arrays: the same steps as a plain loop, hooks that see their own step, validation, resuming."""

from __future__ import annotations

import csv
import io
import signal
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import lr, nn, optim, safetensors
from tracegrad.engine.pending import Pending

RNG = np.random.default_rng(0)
X = RNG.standard_normal((40, 3)).astype(np.float32)
Y = (X @ [[1.0], [2.0], [-1.0]] + 0.5).astype(np.float32)


def loss(m, x, y):
    error = m(x) - y
    return tg.mean(tg.square(error)), {"mae": tg.mean(tg.abs(error))}


def compiled(size=8, rate=0.05, device="cpu"):
    return tg.compile(
        model=nn.Linear(3, 1), loss=loss, inputs={"x": (size, 3), "y": (size, 1)}, optimizer=optim.adam(lr=rate),
        seed=0, device=device,
    )  # fmt: skip


@pytest.fixture
def train():
    with compiled() as t:
        yield t


@pytest.mark.parametrize("device", ["c", "webgpu", "numpy"])
def test_arrays_give_the_numbers_of_a_plain_loop(device, monkeypatch):
    monkeypatch.setenv("TRACEGRAD_CC", "" if device == "c" else "off")
    device = "webgpu" if device == "webgpu" else "cpu"
    with compiled(device=device) as train, compiled(device=device) as alone:
        got = train.fit(x=X, y=Y, epochs=2, progress=False)
        want = []
        for epoch in (1, 2):
            order = np.random.default_rng([0, 0, epoch]).permutation(40)
            want += [alone.step(x=X[i], y=Y[i]).loss for i in order.reshape(5, 8)]
        assert got.loss == want and train.digest() == alone.digest()


def test_arrays_by_position_and_by_name_are_the_same():
    runs = []
    for given, named in (((), {"x": X, "y": Y}), ((X, Y), {}), ((X,), {"y": Y}), ((X.tolist(), Y.tolist()), {})):
        with compiled() as train:
            runs.append((train.fit(*given, **named, epochs=2, progress=False).loss, train.step(X[:8], Y[:8]).loss))
            infer = train.attach(forward=lambda m, x: m(x), inputs={"x": (None, 3)})
            assert (infer.run(X).output == infer.run(x=X).output).all()
            assert train.run_steps(2, X[:8], y=Y[:8]).losses.shape == (2,)
    assert runs == [runs[0]] * 4


def test_other_arguments_by_position_are_refused(train):
    for given, said in (
        ((X, Y, 8), "got 8"), ((X, Y, X), "got 3 arrays"), (([(X, Y)], 10), "got 10"), ((X, None), "got None"),
        ((zip(X, Y), 7), "got 7"), (([(X, Y)], [(X, Y)]), "got "), ((X, Y, (X, Y)), "got a tuple of arrays"),
    ):  # fmt: skip
        with pytest.raises(tg.InputError, match=rf"fit\(x, y, batch_size=\.\.\.\).*{said}"):
            train.fit(*given, progress=False)
    with pytest.raises(tg.InputError, match="not both"):
        train.fit([(X, Y)], y=Y)


def test_as_pytorch():
    torch = pytest.importorskip("torch")
    model = torch.nn.Linear(3, 1)
    with compiled() as train:
        start = train.download_params()
        model.load_state_dict({"weight": torch.tensor(start["W"]).T, "bias": torch.tensor(start["b"])})
        got = train.fit((torch.tensor(X), torch.tensor(Y)), epochs=2, shuffle=False, progress=False)
    step, want = torch.optim.Adam(model.parameters(), lr=0.05), []
    for k in [*range(0, 40, 8)] * 2:
        value = torch.nn.functional.mse_loss(model(torch.tensor(X[k : k + 8])), torch.tensor(Y[k : k + 8]))
        step.zero_grad(), value.backward(), step.step()
        want.append(value.item())
    np.testing.assert_allclose(got.loss, want, rtol=1e-4)


def test_last_batches(train):
    assert len(train.fit({"x": X[:30], "y": Y[:30]}, progress=False).loss) == 3  # dropped: sizes are fixed
    with compiled(None) as free:
        assert len(free.fit(x=X[:30], y=Y[:30], batch_size=8, progress=False).loss) == 4
    with pytest.raises(tg.InputError, match="do not fill a batch of 8"):
        train.fit(x=X[:5], y=Y[:5])
    with pytest.raises(tg.InputError, match=r"batch_size is 4, inputs= has 8"):
        train.fit(x=X, y=Y, batch_size=4)


def test_data_that_turn_out_to_have_no_length(train):
    class Endless(list):
        def __len__(self):
            raise TypeError("a DataLoader over an iterable says so")

    batches = [(X[:8], Y[:8]), (X[8:16], Y[8:16])]
    assert len(train.fit(Endless(batches), epochs=2, progress=False).loss) == 4


def test_validation_is_the_loss_of_all_examples_and_changes_nothing(train):
    metrics = {"r2": lambda m, x, y: tg.metrics.r2_score(m(x), y)}
    h = train.fit(x=X[:32], y=Y[:32], validation=(X[:20], Y[:20]), metrics=metrics, progress=False)
    p = train.download_params()
    error = X[:20] @ p["W"] + p["b"] - Y[:20]
    np.testing.assert_allclose(h.metrics[-1]["val_loss"], np.mean(error**2), rtol=1e-5)
    np.testing.assert_allclose(h.metrics[-1]["val_mae"], np.mean(abs(error)), rtol=1e-5)
    assert "val_r2" in h.metrics[-1]
    with compiled() as alone:
        assert alone.fit(x=X[:32], y=Y[:32], progress=False).loss == h.loss and alone.digest() == train.digest()
    assert len(train.fit(x=X, y=Y, validation=0.4, progress=False).loss) == 3


def test_hooks_see_their_own_step_and_stop_at_once(train):
    seen = []

    def on_step(state):
        seen.append((state.step, state.loss, state.aux["mae"], state.lr, len(state.history.loss)))
        if state.step == 7:
            state.stop()

    h = train.fit(x=X, y=Y, epochs=50, on_step=on_step, progress=False)
    assert [s[0] for s in seen] == [s[4] for s in seen] == h.step == list(range(1, 8))
    assert [s[1] for s in seen] == h.loss and seen[0][3] == train.lr == 0.05
    assert train.step(x=X[:8], y=Y[:8]).step == 8


def test_a_kept_state_keeps_its_values_and_a_blind_hook_waits_for_none(train):
    kept = []
    h = train.fit(x=X, y=Y, epochs=3, on_step=kept.append, progress=False)
    assert [s.loss for s in kept] == h.loss and [s.step for s in kept] == h.step


def test_early_stopping_restores_the_best(train, tmp_path):
    path, saved = tmp_path / "log.csv", []
    values = iter([3.0, 1.0, 2.0, 1.0, 0.0])

    def evaluate(t):
        saved.append(t.digest())
        return {"val_loss": next(values)}

    stopping = tg.EarlyStopping("val_loss", patience=2)
    h = train.fit(
        x=X, y=Y, epochs=50, evaluate=evaluate, callbacks=[stopping, tg.CSVLogger(path)], progress=False
    )  # fmt: skip
    assert [m["val_loss"] for m in h.metrics] == [3, 1, 2, 1] and train.digest() == saved[1]
    rows = list(csv.DictReader(path.open()))
    assert [r["epoch"] for r in rows] == ["1", "2", "3", "4"] and rows[2]["val_loss"] == "2.0"
    with pytest.raises(tg.InputError, match="no metric 'val_f1'"):
        train.fit(x=X, y=Y, validation=0.3, callbacks=[tg.EarlyStopping("val_f1")], progress=False)


def test_a_hook_of_a_subclass_runs_when_fit_begins_not_before() -> None:
    class Logged(tg.EarlyStopping):
        def __init__(self) -> None:
            super().__init__("loss")
            self.begun = 0

        def on_begin(self) -> None:
            super().on_begin()
            self.begun += 1

    assert Logged().begun == 0


def test_training_losses_can_be_watched(train, tmp_path):
    path, means, digests = tmp_path / "best.safetensors", [], []

    def on_evaluate(state):
        means.append(state.means["loss"])
        digests.append(state.train.digest())

    callbacks = [tg.Checkpoint(path, best="loss"), tg.EarlyStopping("loss", patience=2, min_delta=1e9)]
    h = train.fit(x=X, y=Y, epochs=9, callbacks=callbacks, on_evaluate=on_evaluate, progress=False)
    assert len(h.loss) == 15 and h.metrics == []
    assert means == pytest.approx(np.mean(np.reshape(h.loss, (3, 5)), 1)) and means[0] > means[1] > means[2]
    assert train.digest() == digests[0]  # restored
    train.load(path)
    assert train.digest() == digests[2]
    with pytest.raises(tg.InputError, match="no metric 'accuracy'; there are: loss"):
        train.fit(x=X, y=Y, callbacks=[tg.EarlyStopping("accuracy")], progress=False)


def test_a_mode_says_which_values_are_better(train, tmp_path):
    stopping = tg.EarlyStopping("val_gain", patience=2, mode="max")
    path, values = tmp_path / "best.safetensors", iter([1.0, 3.0, 2.0, 1.0])
    kept = tg.Checkpoint(path, best="val_gain", mode="max")
    saved = []

    def evaluate(t):
        saved.append(t.digest())
        return {"val_gain": next(values)}

    h = train.fit(x=X, y=Y, epochs=9, evaluate=evaluate, callbacks=[stopping, kept], progress=False)
    assert [m["val_gain"] for m in h.metrics] == [1, 3, 2, 1] and train.digest() == saved[1]
    train.load(path)
    assert train.digest() == saved[1]


def test_checkpoints_keep_the_best(train, tmp_path):
    path = tmp_path / "best.safetensors"
    values, digests = iter([3.0, 1.0, 2.0]), []
    train.fit(
        x=X, y=Y, epochs=3, evaluate=lambda t: digests.append(t.digest()) or {"val_loss": next(values)},
        callbacks=[tg.Checkpoint(path)], progress=False,
    )  # fmt: skip
    train.load(path)
    assert train.digest() == digests[1]


@pytest.mark.parametrize("at", [7, 10])
def test_resumed_within_an_epoch_it_gives_the_same_bits(train, tmp_path, at):
    path = tmp_path / "train.safetensors"

    def on_step(state):
        if state.step == at:
            state.train.save(path)

    whole = train.fit(x=X, y=Y, epochs=4, on_step=on_step, progress=False)
    with compiled() as again:
        rest = again.fit(x=X, y=Y, epochs=4, resume=path, progress=False)
        assert rest.loss == whole.loss[at:] and again.digest() == train.digest()


def test_an_interrupt_does_not_lose_the_step_that_fit_waits_for(train, monkeypatch):
    result, once = Pending.result, []

    def interrupted(self, timeout=None):
        if once:
            once.clear()
            raise KeyboardInterrupt
        return result(self, timeout)

    monkeypatch.setattr(Pending, "result", interrupted)
    monkeypatch.setattr(Pending, "done", lambda _: False)
    h = train.fit(x=X, y=Y, epochs=1, progress=False, on_step=lambda s: once.append(1) if s.step == 5 else None)
    assert h.interrupted and h.step == [1, 2, 3, 4, 5] and train.step(x=X[:8], y=Y[:8]).step == 6


def test_steps_end_after_an_interrupt_if_some_came_before_fit(train, monkeypatch):
    """However long they take: no compiler is at work."""
    train.step(x=X[:8], y=Y[:8]).result()
    monkeypatch.setattr(Pending, "done", lambda _: False)
    monkeypatch.setattr(Pending, "result", never_in_time)

    def stopped(state):
        if state.step == 4:
            raise KeyboardInterrupt

    h = train.fit(x=X, y=Y, epochs=1, progress=False, on_step=stopped)
    assert h.interrupted and h.step == [2, 3, 4]


def test_interrupted_it_returns_and_goes_on(train, tmp_path):
    def on_step(state):
        if state.step == 8:
            signal.raise_signal(signal.SIGINT)

    h = train.fit(x=X, y=Y, epochs=4, on_step=on_step, progress=False)
    assert h.interrupted and len(h.loss) == 8
    train.save(tmp_path / "t")
    rest = train.fit(x=X, y=Y, epochs=4, resume=tmp_path / "t", progress=False)
    with compiled() as alone:
        assert alone.fit(x=X, y=Y, epochs=4, progress=False).loss == h.loss + rest.loss


def test_plateau_and_loggers():
    class Writer:
        def __init__(self):
            self.seen = []

        def add_scalar(self, name, value, step):
            self.seen.append((name, step))

    writer = Writer()
    with compiled(rate=lr.plateau(0.05, patience=0, threshold=10.0, threshold_mode="abs")) as train:
        train.fit(x=X, y=Y, epochs=3, validation=(X, Y), log=writer, progress=False)
        assert train.lr == pytest.approx(0.0005)
    assert ("loss", 15) in writer.seen and ("val_loss", 15) in writer.seen


# each metric after the first one is no improvement of such a threshold
STUCK = {"patience": 0, "threshold": 10.0, "threshold_mode": "abs"}


def test_a_plateau_gets_the_training_loss_without_validation():
    with compiled(rate=lr.plateau(0.05, **STUCK)) as train:
        train.fit(x=X, y=Y, epochs=3, progress=False)
        assert train.lr == pytest.approx(0.0005)
    with compiled(rate=lr.plateau(0.05, patience=0)) as train:  # the loss falls, the rate does not
        h = train.fit(x=X, y=Y, epochs=3, progress=False)
        assert train.lr == 0.05
        assert train.store.knobs.rate.schedule.best == pytest.approx(np.mean(h.loss[-5:]))


def test_a_plateau_after_a_warmup_gets_it_too(tmp_path):
    with compiled(rate=lr.warmup(0.05, 3, lr.plateau(0.05, **STUCK))) as train:
        train.fit(x=X, y=Y, epochs=3, progress=False)
        assert train.lr == pytest.approx(0.0005)
        train.save(tmp_path / "t")
        train.reset()
        assert train.lr == pytest.approx(0.05 / 3)
        train.load(tmp_path / "t")
        assert train.lr == pytest.approx(0.0005)
        train.lr_metric(100.0)
        assert train.lr == pytest.approx(0.00005)


def test_a_metric_of_a_hook_takes_the_place_of_fits_own():
    for hooks in ({"on_epoch": lambda s: s.train.lr_metric(7.0)}, {"on_evaluate": lambda s: s.train.lr_metric(7.0)}):
        with compiled(rate=lr.plateau(0.05, **STUCK)) as train:
            train.fit(x=X, y=Y, epochs=3, validation=(X, Y), progress=False, **hooks)
            assert train.lr == pytest.approx(0.0005)
            assert train.store.knobs.rate.schedule.best == 7.0


def test_a_plateau_maximizes_metrics_or_what_evaluate_returns():
    worst = {**STUCK, "mode": "max"}
    metrics = {"score": lambda m, x, y: tg.mean(m(x)) * 0.0 + 3.0}
    with compiled(rate=lr.plateau(0.05, **worst)) as train:
        train.fit(x=X, y=Y, epochs=2, validation=(X, Y), metrics=metrics, progress=False)
        assert train.lr == pytest.approx(0.005) and train.store.knobs.rate.schedule.best == 3.0
        train.reset()
        train.fit(x=X, y=Y, epochs=2, evaluate=lambda train: {"score": 4.0}, progress=False)
        assert train.lr == pytest.approx(0.005) and train.store.knobs.rate.schedule.best == 4.0
        for more in ({}, {"validation": (X, Y)}):
            with pytest.raises(tg.InputError, match=r'lr.plateau\(mode="max"\) is to maximize; pass validation='):
                train.fit(x=X, y=Y, progress=False, **more)


def test_each_loss_has_a_plateau_of_its_own():
    def loss(m, x, y):
        return tg.mse_loss(m(x), y)

    rates = {"a": optim.sgd(lr.plateau(0.05, **STUCK)), "b": optim.sgd(lr.plateau(0.05, patience=5))}
    with tg.compile(
        model=nn.Linear(3, 1),
        losses={"a": loss, "b": loss},
        inputs={"x": (8, 3), "y": (8, 1)},
        optimizer=rates,
        seed=0,
        device="cpu",
    ) as train:
        h = train.fit(x=X, y=Y, epochs=3, schedule=("a", "b"), progress=False)
        rate = {name: s.knobs.rate.schedule for name, s in train.store.steppers.items()}
        assert rate["a"].now == pytest.approx(0.0005) and rate["b"].now == 0.05
        assert rate["b"].best == pytest.approx(np.mean([x for x, t in zip(h.loss[-5:], h.turn[-5:]) if t == "b"]))


def test_a_plateau_goes_on_with_a_resumed_fit(tmp_path):
    for at in (10, 12):
        with compiled(rate=lr.plateau(0.05, **STUCK)) as train:
            save = {"on_step": lambda s, at=at, train=train: s.step == at and train.save(tmp_path / "t")}
            whole = train.fit(x=X, y=Y, epochs=4, validation=(X, Y), progress=False, **save)
            again = train.fit(x=X, y=Y, epochs=4, validation=(X, Y), progress=False, resume=tmp_path / "t")
            assert again.loss == whole.loss[at:]
    with compiled(rate=lr.plateau(0.05, **STUCK)) as train:
        save = {"on_epoch": lambda s: s.epoch == 2 and s.train.save(tmp_path / "t")}
        whole = train.fit(x=X, y=Y, epochs=4, progress=False, **save)
        again = train.fit(x=X, y=Y, epochs=4, progress=False, resume=tmp_path / "t")
        assert again.loss == whole.loss[10:]


def test_what_it_goes_on_with_must_be_what_was_saved(train, tmp_path):
    path = tmp_path / "t"
    train.fit(x=X, y=Y, steps=7, progress=False)
    train.save(path)
    before = train.digest()
    with pytest.raises(tg.InputError, match=r"other data: examples and batches were \[40, 5\], and are \[32, 4\]"):
        train.fit(x=X[:32], y=Y[:32], resume=path)
    train.step(x=X[:8], y=Y[:8])
    train.save(tmp_path / "by-hand")
    with pytest.raises(tg.InputError, match="steps were taken by hand since"):
        train.fit(x=X, y=Y, resume=tmp_path / "by-hand")
    file = safetensors.read(path)
    safetensors.write(path, file.tensors, {**file.metadata, "fit": '{"epoch": 1, "batch": -1, "key": [0, 0]}'})
    with pytest.raises(tg.InputError, match="is damaged: 'fit' in its metadata"):
        train.fit(x=X, y=Y, resume=path)
    train.load(tmp_path / "by-hand")
    assert train.step(x=X[:8], y=Y[:8]).step == 9 and before != train.digest()


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"metrics": {"a": lambda m, x, y: m(x)}, "validation": 0.2}, "'a' must be one number"),
        ({"metrics": {"mae": lambda m, x, y: tg.mean(m(x))}, "validation": 0.2}, "gives 'mae' already"),
        ({"metrics": {"a": lambda m, x, y: tg.mean(m(x))}}, "pass validation="),
        ({"schedule": ("d", "g")}, "leave it out"),
        ({"callbacks": [tg.EarlyStopping("val_loss")]}, "nothing measures 'val_loss'"),
        ({"log": 3}, "log must be a path"),
    ],
)
def test_what_cannot_be_measured_is_refused(train, given, said):
    with pytest.raises(tg.InputError, match=said):
        train.fit(x=X, y=Y, progress=False, **given)


@pytest.mark.parametrize(
    ("values", "dtype", "said"),
    [
        ([1.0, None], "Float32", "x has values that are not numbers: .*NAType"),
        (["a", "1"], object, "x has text in it; .* of categories, take their codes"),
        (["2", "1"], object, "x has text in it"),
        ([b"2", b"1"], object, "x has text in it"),
    ],
)
def test_frames_with_something_other_than_numbers_are_refused(train, values, dtype, said):
    pandas = pytest.importorskip("pandas")
    frame = pandas.DataFrame({"a": pandas.array(values * 4, dtype=dtype), "b": np.zeros(8)})
    with pytest.raises(tg.InputError, match=said):
        train.fit(x=frame, y=np.zeros((8, 1)), progress=False)


def test_callbacks_without_a_known_method_are_refused(train):
    class Keras:
        def on_epoch_end(self, epoch, logs):
            pass

    with pytest.raises(tg.InputError, match="callbacks has a Keras, which has none of the methods on_step, on_epoch"):
        train.fit(x=X, y=Y, progress=False, callbacks=[Keras()])


def test_frames_histories_and_the_bar_of_others(train, monkeypatch, capsys):
    pandas, auto = pytest.importorskip("pandas"), pytest.importorskip("tqdm.auto")
    pytest.importorskip("matplotlib")

    class Terminal(io.StringIO):
        def isatty(self):
            return True

    screen = Terminal()
    monkeypatch.setattr("sys.stderr", screen)
    frame = {"x": X[:, 0], "y": Y[:, 0]}
    with tg.compile(
        model=nn.Linear(1, 1), loss=lambda m, x, y: tg.mse_loss(m(tg.expand_dims(x, 1))[:, 0], y),
        inputs={"x": (8,), "y": (8,)}, optimizer=optim.sgd(lr=0.1), seed=0, device="cpu",
    ) as small:  # fmt: skip
        h = small.fit(pandas.DataFrame(frame), epochs=2, validation=0.2, on_epoch=lambda s: auto.tqdm.write("above"))
        small.reset()
        assert small.fit(frame, epochs=2, validation=0.2, progress=False).loss == h.loss
    assert "8/8" in screen.getvalue() and "loss" in screen.getvalue() and capsys.readouterr().out.count("above") == 2
    table = h.to_frame()
    assert list(table.columns) == ["loss", "val_loss"] and table["loss"].tolist() == h.loss
    assert [line.get_label() for line in h.plot().get_lines()] == ["loss", "val_loss"]


def test_a_training_without_inputs_takes_one_step_a_pass() -> None:
    class Point(tg.Module):
        def __init__(self) -> None:
            self.at = self.param(3, init=tg.init.zeros())

    def loss(m: Any) -> Any:
        return tg.sum(tg.square(m.at - 1.0))

    with tg.compile(model=Point(), loss=loss, inputs={}, optimizer=optim.sgd(0.25), device="cpu") as train:
        h = train.fit(steps=3, progress=False)
        assert h.loss == [3.0, 0.75, 0.1875] and train.fit(epochs=2, progress=False).step == [4, 5]


def test_a_metric_gets_the_inputs_that_it_names() -> None:
    def loss(m: Any, x: Any, y: Any, weight: Any) -> Any:
        return tg.mean(weight * tg.square(m(x)[:, 0] - y))

    x = np.eye(4, 3, dtype=np.float32)
    data = {"x": x, "y": x[:, 0], "weight": np.arange(4.0)}
    inputs: dict[str, Any] = {"x": (None, 3), "y": (None,), "weight": (None,)}
    with tg.compile(model=nn.Linear(3, 1), loss=loss, inputs=inputs, optimizer=optim.sgd(0.0), device="cpu") as train:

        def measured(metric: Any) -> Any:
            return train.fit(x=data, validation=data, metrics={"a": metric}, progress=False).metrics[0]["val_a"]

        assert measured(lambda m, weight: tg.mean(weight)) == 1.5
        assert measured(lambda m, **all: tg.sum(all["x"])) == 3.0
        with pytest.raises(tg.InputError, match="the metric 'a' takes 'z', which is not declared"):
            measured(lambda m, x, z: tg.mean(x))


@pytest.mark.parametrize("every", [None, 3])
@pytest.mark.parametrize("at", [6, 7, 10])
def test_a_resumed_fit_of_some_steps_does_the_rest_of_them(train, tmp_path, at, every):
    path, seen = tmp_path / "t", list[int]()

    def fit(training, resume=None, **hooks):
        return training.fit(
            x=X, y=Y, steps=13, every=every, validation=(X, Y), resume=resume, progress=False,
            on_evaluate=lambda s: seen.append(s.step), **hooks,
        )  # fmt: skip

    whole = fit(train, on_step=lambda s: s.step == at and s.train.save(path))
    evaluated = [n for n in seen if n >= at]
    with compiled() as again:
        seen.clear()
        rest = fit(again, path)
        assert rest.loss == whole.loss[at:] and again.digest() == train.digest()
        assert [n for n in seen if n > at] == [n for n in evaluated if n > at]
        assert fit(again, path).loss == whole.loss[at:]  # from an older checkpoint


def never_in_time(self, timeout=None, result=Pending.result):
    if timeout is not None:
        raise TimeoutError
    return result(self)


@pytest.mark.parametrize("left", [False, True])  # whether the interrupt leaves steps under way
@pytest.mark.parametrize("at", [3, 7, 12])
def test_the_mean_that_a_plateau_gets_includes_what_was_before_an_interrupt(tmp_path, monkeypatch, at, left):
    def stopped(state):
        if state.step == at:
            raise KeyboardInterrupt

    with compiled(rate=lr.plateau(0.05, **STUCK)) as train, compiled(rate=lr.plateau(0.05, **STUCK)) as other:
        train.fit(x=X, y=Y, epochs=4, progress=False)
        with monkeypatch.context() as patch:
            if left:
                patch.setattr(Pending, "done", lambda _: False)
                patch.setattr(Pending, "result", never_in_time)
            h = other.fit(x=X, y=Y, epochs=4, progress=False, on_step=stopped, log=tmp_path / "log")
            assert h.interrupted and (len(h.loss) < at) == left
        known = [*h.loss]
        other.save(tmp_path / "t")
        assert h.loss == known
        with compiled(rate=lr.plateau(0.05, **STUCK)) as last:
            last.fit(x=X, y=Y, epochs=4, progress=False, resume=tmp_path / "t")
            assert last.digest() == train.digest()


def test_each_validation_draws_the_same_numbers_also_after_resuming(tmp_path):
    def noisy(m, x, y):
        return tg.mse_loss(m(x) + tg.randn(y.shape), y)

    def make():
        inputs = {"x": (None, 3), "y": (None, 1)}
        return tg.compile(
            model=nn.Linear(3, 1), loss=noisy, inputs=inputs, optimizer=optim.sgd(lr=0.0), seed=0, device="cpu"
        )

    def fit(train, epochs, resume=None):
        return train.fit(
            x=X, y=Y, batch_size=24, epochs=epochs, validation=(X, Y), resume=resume, progress=False
        ).metrics

    with make() as train:
        values = [m["val_loss"] for m in fit(train, 3)]
        train.save(tmp_path / "t")
        assert len(set(values)) == 1
    with make() as again:
        assert fit(again, 4, tmp_path / "t")[-1]["val_loss"] == values[0]
