"""CompiledTraining and CompiledForward on the CPU: the guarantees of the interface, one by one."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import subprocess
import sys
import threading
import warnings

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import lr, nn, optim, safetensors


class MLP(tg.Module):
    def __init__(self, width=8):
        self.l1, self.l2 = nn.Linear(2, width, init=tg.init.kaiming()), nn.Linear(width, 1, init=tg.init.xavier())


def predict(m, x):
    return m.l2(tg.tanh(m.l1(x)))


def loss(m, x, y):
    return tg.mean(tg.square(predict(m, x) - y))


RNG = np.random.default_rng(0)
X = RNG.standard_normal((16, 2)).astype(np.float32)
Y = (X[:, :1] * X[:, 1:]).astype(np.float32)
SHAPES = {"x": (16, 2), "y": (16, 1)}


def compiled(model=None, loss=loss, inputs=SHAPES, optimizer=None, seed=0, device="cpu", **more):
    optimizer = optim.adam(lr=0.05) if optimizer is None else optimizer
    return tg.compile(
        model=MLP() if model is None else model, loss=loss, inputs=inputs, optimizer=optimizer, seed=seed,
        device=device, **more,
    )  # fmt: skip


@pytest.fixture
def train():
    with compiled() as t:
        yield t


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def run(t, n, **more):
    return [t.step(x=X, y=Y, **more).loss for _ in range(n)]


# --- steps and results ---


def test_training_lowers_the_loss_and_counts_steps(train):
    pending = [train.step(x=X, y=Y) for _ in range(60)]
    assert pending[-1].loss < 0.5 * pending[0].loss
    assert [p.step for p in pending] == list(range(1, 61))
    assert isinstance(pending[0].loss, float)


def test_inputs_may_be_given_as_a_dict_and_in_any_array_form(train):
    a = train.step({"x": X.tolist(), "y": Y.astype(np.float64)}).loss
    with compiled() as other:
        assert other.step({"x": X}, y=Y).loss == a


def test_the_callers_array_may_be_reused_at_once():
    with compiled() as a, compiled() as b:
        buffer = X.copy()
        pending = []
        for k in range(8):
            buffer[:] = X + k
            pending.append(a.step(x=buffer, y=Y))
            buffer[:] = np.nan
        assert [p.loss for p in pending] == [b.step(x=X + np.float32(k), y=Y).loss for k in range(8)]


def test_bad_inputs_are_failed_and_change_nothing(train):
    before = train.download_params()
    r = train.step(x=X[:3], z=1).result()
    assert isinstance(r, tg.Failed) and isinstance(r.error, tg.InputError)
    for part in ("3 problems", "z: unknown", "y: missing", "x: expected f32[16,2], got f32[3,2]", "test_training.py"):
        assert part in str(r.error)
    assert isinstance(train.step(3).result(), tg.Failed)
    assert same(before, train.download_params()) and train.step(x=X, y=Y).step == 1


def test_a_non_finite_loss_fails_and_changes_nothing_at_all():
    with compiled() as a, compiled() as b:
        run(a, 3), run(b, 3)
        bad = X.copy()
        bad[3, 1] = np.inf
        failed = a.step(x=bad, y=Y)
        assert isinstance(failed.result(), tg.Failed)
        error = failed.result().error
        assert isinstance(error, tg.NonFiniteError) and "step 4" in str(error)
        with pytest.raises(tg.NonFiniteError):
            _ = failed.loss
        assert run(a, 3) == run(b, 3)
        assert same(a.download_params(), b.download_params())
        assert a.step(x=X, y=Y).step == 7


def risky(m, x, y):
    return tg.mean(tg.log(tg.square(predict(m, x)) - 1e9 * y))  # the op to blame


def test_the_error_names_the_first_op_and_its_line():
    with compiled(loss=risky) as t:
        error = t.step(x=X, y=np.ones_like(Y)).result().error
        assert "log" in str(error) and "the op to blame" in str(error) and "f32[16,1]" in str(error)


def kinked(m, x, y):
    return tg.mean(tg.sqrt(tg.square(predict(m, x)) * y))


def test_a_non_finite_gradient_with_a_finite_loss_fails():
    with compiled(loss=kinked) as t:
        before = t.download_params()
        error = t.step(x=X, y=np.zeros_like(Y)).result().error
        assert isinstance(error, tg.NonFiniteError) and "a gradient is not finite" in str(error)
        assert same(before, t.download_params())
        assert np.isfinite(t.step(x=X, y=np.ones_like(Y)).loss)


def test_mask_fills_are_not_blamed():
    def masked(m, x, y):
        scores = tg.where(y > 0, x, -np.inf)
        return tg.mean(tg.softmax(scores)) + tg.mean(predict(m, x)) / tg.mean(tg.abs(y - 1))

    with compiled(loss=masked, inputs={"x": (4, 2), "y": (4, 1)}) as t:
        error = str(t.step(x=X[:4], y=np.ones((4, 1))).result().error)
        assert "div" in error and "where" not in error


def test_aux_comes_back_by_name():
    def with_aux(m, x, y):
        out = predict(m, x)
        return tg.mean(tg.square(out - y)), {"out": out, "worst": tg.max(tg.abs(out - y))}

    with compiled(loss=with_aux) as t:
        r = t.step(x=X, y=Y)
        assert r.aux["out"].shape == (16, 1) and r.aux["worst"].shape == ()
        np.testing.assert_allclose(r.loss, np.mean((r.aux["out"] - Y) ** 2), rtol=1e-5)


def test_captures_have_shape_and_dtype_and_are_kept_apart():
    def captured(m, x, y):
        tg.capture("hidden", tg.tanh(m.l1(x)))
        tg.capture("big", y > 0)
        return loss(m, x, y)

    with compiled(loss=captured) as t:
        a, b = t.step(x=X, y=Y).captures, t.step(x=X, y=Y).captures
        assert a["hidden"].shape == (16, 8) and a["hidden"].dtype == np.float32
        assert a["big"].dtype == np.bool_ and np.array_equal(a["big"], Y > 0)
        assert not np.array_equal(a["hidden"], b["hidden"]) and set(a) == {"hidden", "big"}


def test_run_steps_is_the_same_as_steps():
    with compiled() as a, compiled() as b:
        xs = np.stack([X, X + 1, X - 1])
        r = a.run_steps(3, x=xs, y=Y)
        assert r.losses.tolist() == [b.step(x=x, y=Y).loss for x in xs]
        assert r.losses.dtype == np.float32 and r.step == 3 and r.loss == r.losses[-1]
        assert same(a.download_params(), b.download_params())
        assert isinstance(a.run_steps(0, x=xs, y=Y).result(), tg.Failed)
        assert isinstance(a.run_steps(2, x=xs, y=Y).result(), tg.Failed)


def test_an_unseen_failure_is_reported(train):
    with pytest.warns(RuntimeWarning, match="step failed and its result was never read"):
        train.step(x=X)
        gc.collect()
    with pytest.warns(RuntimeWarning, match="NonFiniteError"):
        train.step(x=X * np.inf, y=Y)
        train.download_params()
        gc.collect()


@pytest.mark.parametrize("device", ["cpu", "webgpu"])
@pytest.mark.filterwarnings("ignore:.*software adapter")
def test_failures_among_many_queued_steps_leave_the_others_as_they_are(device):
    if device == "webgpu" and not tg.is_webgpu_available():
        pytest.skip("no WebGPU adapter")
    bad = X * np.nan
    optimizer = optim.adamw(lr=lr.linear(peak=0.1, final=0.0, steps=20), weight_decay=0.1)
    fails = [k in (2, 3, 7) for k in range(12)]
    make = lambda: compiled(loss=noisy, optimizer=optimizer, device=device)
    with make() as a, make() as b:
        infer = a.attach(forward=predict, inputs={"x": (16, 2)})
        pending, runs = [], []
        for fail in fails:
            pending.append(a.step(x=bad if fail else X, y=Y))
            runs.append(infer.run(x=X))
        assert [isinstance(p.result(), tg.Failed) for p in pending] == fails
        good = [p for p, fail in zip(pending, fails, strict=True) if not fail]
        assert [p.loss for p in good] == run(b, 9) and [p.step for p in good] == list(range(1, 10))
        assert same(a.download_params(), b.download_params())
        outputs = [r.output for r in runs]
        assert np.array_equal(outputs[1], outputs[2]) and not np.array_equal(outputs[3], outputs[4])


def test_steps_may_be_awaited():
    async def main(t):
        results = await asyncio.gather(*(t.step(x=X, y=Y) for _ in range(5)))
        return [r.step for r in results], (await t.attach(forward=predict, inputs={"x": (None, 2)}).run(x=X)).output

    with compiled() as t:
        steps, output = asyncio.run(main(t))
        assert steps == [1, 2, 3, 4, 5] and output.shape == (16, 1)


def test_single_flight_keeps_the_newest(train):
    infer = train.attach(forward=predict, inputs={"x": (None, 2)})
    call = tg.single_flight(lambda n: infer.run(x=X[:n]))
    results = [call(n) for n in (1, 2, 3, 4, 5)]
    kinds = [type(p.result(timeout=5)).__name__ for p in results]
    assert kinds[0] == kinds[-1] == "CompletedRun" and results[-1].output.shape == (5, 1)


def test_many_threads_may_step_at_once(train):
    def work():
        for _ in range(20):
            assert train.step(x=X, y=Y).result(timeout=10).step > 0

    threads = [threading.Thread(target=work) for _ in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert train.step(x=X, y=Y).step == 81


# --- closing ---


def test_closing_aborts_and_is_idempotent():
    t = compiled()
    pending = [t.step(x=X, y=Y) for _ in range(8)]
    infer = t.attach(forward=predict, inputs={"x": (None, 2)})
    t.close()
    t.close()
    assert all(isinstance(p.result(), (tg.Completed, tg.Aborted)) for p in pending)
    assert isinstance(t.step(x=X, y=Y).result(), tg.Aborted)
    assert isinstance(infer.run(x=X).result(), tg.Aborted)
    with pytest.raises(tg.AbortedError):
        t.download_params()
    assert "closed" in repr(t)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_forked_child_is_told_that_the_device_is_its_parents():
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FORK], capture_output=True, text=True, timeout=60, check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("this process was forked from the one that opened the device") == 3
    assert done.stdout.splitlines()[-1] == "the parent goes on at step 3"


FORK = """
import os
from test_training import *
t = compiled()
infer = t.attach(forward=predict, inputs={"x": (16, 2)})
run(t, 2)
if os.fork() == 0:
    for call in (lambda: run(t, 1), t.download_params, lambda: infer.run(x=X).output):
        try:
            call()
        except tg.DeviceError as e:
            print(e, flush=True)
    t.close()
    os._exit(0)
os.wait()
print("the parent goes on at step", t.step(x=X, y=Y).step)
"""


def test_a_forgotten_training_ends_its_thread():
    before = set(threading.enumerate())
    t = compiled()
    t.step(x=X, y=Y).result()
    names = [th for th in threading.enumerate() if th.name == "tracegrad" and th not in before]
    assert names
    del t
    gc.collect()
    for th in names:
        th.join(20)
    assert not any(th.is_alive() for th in names)


# --- parameters ---


def test_params_travel_by_name(train):
    record = train.download_params()
    assert list(record) == train.param_names == ["l1.W", "l1.b", "l2.W", "l2.b"]
    assert record["l1.W"].shape == (2, 8) and not record["l1.b"].any()
    train.upload_params({"l1.b": np.arange(8)})
    after = train.download_params()
    assert after["l1.b"].tolist() == list(range(8)) and np.array_equal(after["l1.W"], record["l1.W"])
    train.upload_params(record, strict=True)
    assert same(train.download_params(), record)


def test_bad_records_are_refused_before_anything_is_written(train):
    before = train.download_params()
    with pytest.raises(tg.InputError) as e:
        train.upload_params({"l1.b": np.ones(8), "l2.b": np.ones(3), "l3.b": np.ones(1)})
    for part in ("nothing was written", "l3.b: no such parameter", "l2.b: expected f32[1], got float64[3]", "l1.W"):
        assert part in str(e.value)
    with pytest.raises(tg.InputError, match=r"l2\.W: missing"):
        train.upload_params({"l1.b": np.ones(8)}, strict=True)
    assert same(before, train.download_params())


def test_frozen_parameters_do_not_change():
    class Frozen(MLP):
        def __init__(self):
            super().__init__()
            self.scale = self.param((1,), init=tg.init.ones(), trainable=False)

    with compiled(Frozen(), loss=lambda m, x, y: tg.mean(tg.square(predict(m, x) * m.scale - y))) as t:
        run(t, 3)
        assert t.download_params()["scale"].tolist() == [1]
        t.upload_params({"scale": [0.0]})
        np.testing.assert_allclose(t.step(x=X, y=Y).loss, np.mean(Y**2), rtol=1e-5)


def test_gradients_of_the_last_step():
    with compiled() as t, pytest.raises(tg.InputError, match="keep_grads=True"):
        t.download_grads()
    with compiled(optimizer=optim.sgd(lr=0.5), keep_grads=True) as t:
        before = t.download_params()
        t.step(x=X, y=Y).result()
        after, grads = t.download_params(), t.download_grads()
        for name, g in grads.items():
            np.testing.assert_allclose(after[name], before[name] - 0.5 * g, rtol=1e-6, atol=1e-7)


# --- checkpoints ---


def test_resuming_is_bit_exact(tmp_path):
    schedule = lr.cosine_annealing(peak=0.05, final=0.001, steps=12)

    def make(seed):
        return compiled(loss=noisy, optimizer=optim.adamw(lr=schedule, weight_decay=0.1), seed=seed)

    with make(3) as a, make(4) as b:
        run(a, 5)
        a.set(beta1=0.8)
        a.set_lr(lr.linear(peak=0.02, final=0.0, steps=10))
        run(a, 2)
        a.save(tmp_path / "c.safetensors")
        expected = run(a, 6)
        assert json.loads(safetensors.read(tmp_path / "c.safetensors").metadata["lr_start"]) == 6
        b.load(tmp_path / "c.safetensors")
        assert b.seed == 3 and run(b, 6) == expected
        assert same(a.download_params(), b.download_params())


def noisy(m, x, y):
    return tg.mean(tg.square(m.l2(tg.dropout(tg.tanh(m.l1(x)), 0.25)) - y))


def test_a_checkpoint_is_readable_and_names_everything(train, tmp_path):
    run(train, 2)
    train.save(tmp_path / "c")
    file = safetensors.read(tmp_path / "c")
    names = ["l1.W", "l1.b", "l2.W", "l2.b"]
    assert set(file.tensors) >= {f"param/{n}" for n in names}
    states = {n.split("/")[1] for n in file.tensors if n.startswith("opt/")}
    assert states and all(f"opt/{s}/{n}" in file.tensors for s in states for n in names)
    assert file.metadata["step"] == "2" and file.metadata["seed"] == "0"


def test_a_checkpoint_of_another_model_changes_nothing(train, tmp_path):
    with compiled(MLP(4)) as other:
        other.save(tmp_path / "c")
    before = train.download_params()
    with pytest.raises(tg.InputError, match=r"nothing was changed\n  param/l1.W: expected f32\[2,8\], got f32\[2,4\]"):
        train.load(tmp_path / "c")
    with compiled(optimizer=optim.sgd(lr=0.1)) as other:
        other.save(tmp_path / "c")
    with pytest.raises(tg.InputError, match="missing"):
        train.load(tmp_path / "c")
    safetensors.write(tmp_path / "w", before)
    with pytest.raises(tg.InputError, match=r"not a checkpoint.*optimizer=False"):
        train.load(tmp_path / "w")
    assert same(before, train.download_params())


def test_reset_starts_over():
    with compiled(loss=noisy, optimizer=optim.adam(lr=lr.linear(0.1, 0.0, 10))) as t:
        first = t.download_params()
        losses = run(t, 5)
        t.reset()
        assert same(first, t.download_params()) and run(t, 5) == losses
        kept = t.download_params()
        t.reset(params=False)
        assert same(kept, t.download_params()) and t.step(x=X, y=Y).step == 1
        t.reset(optimizer=False)
        assert same(first, t.download_params()) and t.step(x=X, y=Y).step == 2
        t.reset(seed=7)
        with compiled(loss=noisy, optimizer=optim.adam(lr=lr.linear(0.1, 0.0, 10)), seed=7) as other:
            assert same(other.download_params(), t.download_params()) and run(t, 5) == run(other, 5)
        with pytest.raises(tg.InputError, match="seed must be an integer"):
            t.reset(seed=-1)


# --- hot values ---


def test_set_lr_takes_effect_at_the_next_step():
    with compiled(optimizer=optim.sgd(lr=0.1), keep_grads=True) as t:

        def moved():
            before = t.download_params()["l1.W"]
            t.step(x=X, y=Y).result()
            g = t.download_grads()["l1.W"]
            return np.median((before - t.download_params()["l1.W"]) / g)

        assert moved() == pytest.approx(0.1, rel=1e-3)
        t.set_lr(0.2)
        assert moved() == pytest.approx(0.2, rel=1e-3)
        t.set_lr(lr.linear(peak=0.4, final=0.0, steps=4))
        assert [moved() for _ in range(3)] == pytest.approx([0.4, 0.3, 0.2], rel=1e-3)
        t.set_lr(lr.linear(peak=0.8, final=0.0, steps=8, start=3))
        assert moved() == pytest.approx(0.8 * (1 - 3 / 8), rel=1e-3)  # step 6
        t.set(lr=np.float32(0.1))
        assert moved() == pytest.approx(0.1, rel=1e-3)


def test_queued_steps_keep_the_values_they_were_called_with():
    with compiled() as a, compiled() as b:
        for k in range(6):
            a.set(beta1=0.5 + k / 20)
            a.set_lr(0.01 * (k + 1))
            p = a.step(x=X, y=Y)
            b.set(beta1=0.5 + k / 20)
            b.set_lr(0.01 * (k + 1))
            b.step(x=X, y=Y).result()
        p.result()
        assert same(a.download_params(), b.download_params())


def test_setting_what_is_not_there_names_what_is(train):
    with pytest.raises(tg.InputError, match=r"momentum, nonsense.*these can be set: .*beta1.*"):
        train.set(momentum=0.9, nonsense=1, beta1=0.5)
    with pytest.raises(tg.InputError, match="beta2 must be at least 0 and below 1, got nan"):
        train.set(beta2=float("nan"))
    with pytest.raises(tg.InputError):
        train.set_lr(-1)


def test_named_hyperparameters():
    def weighted(m, x, y):
        return tg.hyper("weight", 2.0) * loss(m, x, y)

    with compiled(loss=weighted, optimizer=optim.sgd(lr=0.0)) as t:
        once = t.step(x=X, y=Y).loss
        t.set(weight=3.0)
        assert t.step(x=X, y=Y).loss == pytest.approx(1.5 * once, rel=1e-6)


# --- replace_model ---


def test_replace_model_keeps_the_handle():
    with compiled() as t, compiled(MLP(4), seed=7) as fresh:
        infer = t.attach(forward=predict, inputs={"x": (None, 2)})
        run(t, 3)
        assert infer.run(x=X).output.shape == (16, 1)
        t.replace_model(MLP(4), seed=7)
        assert t.seed == 7 and t.download_params()["l1.W"].shape == (2, 4)
        assert same(t.download_params(), fresh.download_params())
        assert run(t, 3) == run(fresh, 3)
        w = t.download_params()
        expected = np.tanh(X @ w["l1.W"] + w["l1.b"]) @ w["l2.W"] + w["l2.b"]
        np.testing.assert_allclose(infer.run(x=X).output, expected, rtol=1e-5, atol=1e-6)


def test_a_model_that_does_not_compile_leaves_the_old_one(train):
    class Wrong(tg.Module):
        def __init__(self):
            self.l1 = nn.Linear(3, 1)

    with compiled() as other:
        run(train, 2), run(other, 2)
        with pytest.raises((tg.ShapeError, AttributeError)):
            train.replace_model(Wrong())
        assert run(train, 2) == run(other, 2)


# --- forwards ---


def test_an_attached_forward_sees_the_steps_before_it(train):
    infer = train.attach(forward=predict, inputs={"x": (16, 2)})
    for _ in range(3):
        expected = train.step(x=X, y=Y)
        before = infer.run(x=X)
        after = np.mean((before.output - Y) ** 2)
        assert after != pytest.approx(expected.loss, rel=1e-6)
        assert train.step(x=X, y=Y).loss == pytest.approx(after, rel=1e-5)
    assert infer.param_names == train.param_names and same(infer.download_params(), train.download_params())


def test_a_none_dimension_compiles_once_a_size_and_drops_the_oldest(train, monkeypatch):
    monkeypatch.setattr("tracegrad.engine.programs.SHARED_SIZES", 1)  # beside those with memory of their own
    infer = train.attach(forward=predict, inputs={"x": (None, 2)}, max_cached_shapes=2)
    w = train.download_params()
    expected = np.tanh(X @ w["l1.W"] + w["l1.b"]) @ w["l2.W"] + w["l2.b"]
    pending = [(n, infer.run(x=X[:n])) for n in (1, 2, 1, 3, 2, 16, 1)]
    for n, p in pending:
        np.testing.assert_allclose(p.output, expected[:n], rtol=1e-5, atol=1e-6)
    assert infer.cached_shapes == [16, 1]
    assert infer.graph_for(x=X[:3]).inputs[0].shape == (3, 2)


def test_sizes_of_a_call_must_agree(train):
    both = train.attach(forward=lambda m, a, b: predict(m, a) + predict(m, b), inputs={"a": (None, 2), "b": (None, 2)})
    assert both.run(a=X, b=X).output.shape == (16, 1)
    assert "must agree: a axis 0 is 16, b axis 0 is 3" in str(both.run(a=X, b=X[:3]).result().error)
    error = str(both.run(a=X[0], c=1).result().error)
    assert "c: unknown" in error and "b: missing, expected f32[None,2]" in error and "got f32[2]" in error
    assert "at least 1" in str(both.run(a=X[:0], b=X[:0]).result().error)


def test_tuples_and_dicts_come_back_as_such(train):
    two = train.attach(forward=lambda m, x: (predict(m, x), x * 2), inputs={"x": (None, 2)})
    a, b = two.run(x=X).output
    assert a.shape == (16, 1) and np.array_equal(b, X * 2)
    named = train.attach(forward=lambda m, x: {"y": predict(m, x), "sum": tg.sum(x)}, inputs={"x": (16, 2)})
    out = named.run(x=X).output
    assert set(out) == {"y", "sum"} and out["sum"].shape == ()
    assert out["sum"] == pytest.approx(X.sum(), rel=1e-4, abs=1e-5)


def test_errors_of_an_attach_are_raised_and_leave_the_training(train):
    with pytest.raises(tg.ShapeError):
        train.attach(forward=predict, inputs={"x": (16, 3)})
    wrong = train.attach(forward=predict, inputs={"x": (None, 3)}).run(x=np.zeros((4, 3)))
    assert isinstance(wrong.result().error, tg.ShapeError)
    run(train, 1)


def test_a_closed_forward_leaves_the_training(train):
    infer = train.attach(forward=predict, inputs={"x": (None, 2)})
    with infer:
        infer.run(x=X).result()
    infer.close()
    assert isinstance(infer.run(x=X).result(), tg.Aborted)
    assert run(train, 1)


def test_a_forward_of_its_own():
    with tg.compile_forward(model=MLP(), forward=predict, inputs={"x": (None, 2)}, seed=0, device="cpu",
                            max_cached_shapes=1) as f, compiled() as t:  # fmt: skip
        assert same(f.download_params(), t.download_params())
        a = f.run(x=X).output
        f.upload_params({"l2.b": [1.0]})
        np.testing.assert_allclose(f.run(x=X).output, a + 1, rtol=1e-5)
        np.testing.assert_allclose(f.run(x=X[:3]).output, a[:3] + 1, rtol=1e-5)
        np.testing.assert_allclose(f.run(x=X).output, a + 1, rtol=1e-5)
        with pytest.raises(tg.InputError):
            f.upload_params({"nope": 1})
    assert isinstance(f.run(x=X).result(), tg.Aborted)


def test_index_ranges_are_checked_on_the_host():
    class Table(tg.Module):
        def __init__(self):
            self.table = nn.Embedding(10, 4)

    def lookup(m, tokens):
        return tg.mean(tg.square(m.table(tokens)))

    with compiled(Table(), loss=lookup, inputs={"tokens": tg.i32[3]}) as t:
        assert t.step(tokens=[0, 9, 3]).loss > 0
        error = t.step(tokens=[0, 10, 3]).result().error
        assert isinstance(error, tg.InputError) and "tokens: value 10 at [1] is out of range" in str(error)
        assert "0 to 9" in str(error)


def test_inspection(train):
    assert train.device.name == "cpu" and "cpu" in repr(train) and train.output_shape == ()
    assert train.memory["param"] == 4 * (2 * 8 + 8 + 8 + 1) and train.memory["total"] >= 3 * train.memory["param"]
    assert len(train.kernels) <= len(train.program.dispatches) and str(train.graph).count("\n") > 5
    assert train.seed == 0
    with compiled(seed=None) as t:
        assert 0 <= t.seed < 2**32
    with pytest.raises(tg.InputError, match="seed must be"):
        compiled(seed=-1)


def test_nothing_warns_in_ordinary_use():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with compiled() as t:
            run(t, 3)
            t.attach(forward=predict, inputs={"x": (None, 2)}).run(x=X).result()
        gc.collect()


def test_a_parameter_an_input_a_state_and_a_hyperparameter_may_share_names():
    class Same(tg.Module):
        def __init__(self):
            self.v, self.x = self.param((2, 1), init=tg.init.ones()), self.param((1,), init=tg.init.zeros())
            self.params, self.lr = self.param((1,), init=tg.init.ones()), self.param((1,), init=tg.init.zeros())

    def fn(m, x, lr, loss):
        return tg.mean(tg.square(x @ m.v * m.params + m.x + m.lr - lr)) * loss

    inputs = {"x": (4, 2), "lr": (4, 1), "loss": ()}
    with compiled(Same(), loss=fn, inputs=inputs, optimizer=optim.adam(lr=0.1)) as t:
        x, target = np.ones((4, 2)), np.zeros((4, 1))
        assert t.step(x=x, lr=target, loss=1).loss == 4
        assert t.step(x=x, lr=target, loss=1).loss < 4
        w = t.download_params()
        assert w["v"].shape == (2, 1) and w["x"].shape == (1,)
        error = str(t.step(x=x, lr=target, loss=np.inf).result().error)
        assert "input 'loss', f32[], is not finite itself: 1 infinite of 1 values" in error
