"""Gradients whose squares overflow or vanish, and steps that cannot be taken: what they change."""

from __future__ import annotations

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import optim
from tracegrad.engine import bounds

N = 300
RNG = np.random.default_rng(0)
DIRECTION = {"W": RNG.standard_normal((N // 3, 3)).astype(np.float32), "b": RNG.standard_normal(7).astype(np.float32)}


class Linear(tg.Module):
    def __init__(self):
        self.W = self.param((N // 3, 3), init=tg.init.randn(0.1))
        self.b = self.param((7,), init=tg.init.ones())


def loss(m, w, b, scale):
    """The gradients are scale * w and scale * b; the loss itself stays finite."""
    value = tg.sum(m.W * w) * scale + tg.sum(m.b * b) * scale
    return value - tg.stop_gradient(value)


def compiled(optimizer, device="cpu", **more):
    return tg.compile(
        model=Linear(), loss=loss, inputs={"w": (N // 3, 3), "b": (7,), "scale": ()}, optimizer=optimizer,
        device=device, seed=0, **more,
    )  # fmt: skip


def step(train, scale):
    w, b = (DIRECTION[n] / np.abs(DIRECTION[n]).max() for n in ("W", "b"))
    return train.step(w=w, b=b, scale=np.float32(scale)).result()


def expected(scale, clip):
    """-g * min(1, clip / (norm + 1e-6)) in double precision."""
    g = {n: scale * (x / np.abs(x).max()).astype(np.float64) for n, x in DIRECTION.items()}
    norm = np.sqrt(sum(np.square(x).sum() for x in g.values()))
    return {n: -x * min(1.0, clip / (norm + 1e-6)) for n, x in g.items()}


SCALES = [1e-36, 1e-30, 1e-19, 1e-6, 1.0, 1e18, 3e19, 1e25, 1e38, 3e38]


def test_clipping_is_right_for_every_finite_gradient(device_name):
    with compiled(optim.sgd(1.0, clip_grad_norm=0.5), device_name) as train:
        for scale in SCALES:
            train.upload_params({"W": np.zeros((N // 3, 3)), "b": np.zeros(7)})
            result = step(train, scale)
            assert isinstance(result, tg.Completed), result
            for n, want in expected(scale, 0.5).items():
                np.testing.assert_allclose(train.download_params()[n], want, rtol=3e-5, atol=1e-37, err_msg=str(scale))
        train.set(clip_grad_norm=1e-8)
        train.upload_params({"W": np.zeros((N // 3, 3)), "b": np.zeros(7)})
        assert isinstance(step(train, 1e30), tg.Completed)
        for n, want in expected(1e30, 1e-8).items():
            np.testing.assert_allclose(train.download_params()[n], want, rtol=3e-5, err_msg=n)


def test_plain_descent_takes_every_finite_gradient(device_name):
    for optimizer in (optim.sgd(1e-37), optim.lion(0.1)):
        with compiled(optimizer, device_name) as train:
            for scale in (1.0, 3e19, 3e38):
                train.upload_params({"W": np.zeros((N // 3, 3)), "b": np.zeros(7)})
                assert isinstance(step(train, scale), tg.Completed)
                moved = train.download_params()["W"]
                if "sgd" in optimizer.name:
                    np.testing.assert_allclose(moved, expected(scale * 1e-37, 1e30)["W"], rtol=1e-5, atol=1e-37)
                else:
                    np.testing.assert_allclose(np.abs(moved), 0.1, rtol=1e-6)


def test_normalized_gradients_are_right_for_every_finite_gradient(device_name):
    with compiled(optim.sgd(1.0, normalize_grads=True), device_name) as train:
        for scale in SCALES[3:]:
            train.upload_params({"W": np.zeros((N // 3, 3)), "b": np.zeros(7)})
            assert isinstance(step(train, scale), tg.Completed)
            for n, x in DIRECTION.items():
                g = scale * (x / np.abs(x).max()).astype(np.float64)
                got = train.download_params()[n]
                np.testing.assert_allclose(got, -g / (np.linalg.norm(g) + 1e-8), rtol=3e-5, err_msg=f"{n} {scale}")


OPTIMIZERS = {
    "adam": lambda: optim.adam(0.1),
    "adam clipped, ema": lambda: optim.adamw(0.1, clip_grad_norm=1.0, ema=0.9),
    "adam barely clipped": lambda: optim.adam(0.1, clip_grad_norm=1e30),
    "accumulating": lambda: optim.adam(0.1, accumulate=2, clip_grad_norm=1.0, ema=0.9),
    "rmsprop": lambda: optim.rmsprop(0.1, momentum=0.9, centered=True),
    "muon": lambda: optim.muon(0.1, ema=0.9),
    "adafactor": lambda: optim.adafactor(0.1),
    "lion": lambda: optim.lion(0.1, weight_decay=0.1),
    "sgd normalized": lambda: optim.sgd(0.1, momentum=0.9, normalize_grads=True),
}


def everything(train):
    """Parameters and every array of the optimizer, as a checkpoint has them."""
    stepper = train.store.stepper
    passing = bounds.array_of(stepper.program)
    names = [b.name for b in stepper.program.buffers if b.role in ("param", "state") and b.name != passing]
    return train.worker.call(lambda session: {n: np.array(session.read(n)) for n in names})


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_large_gradients_train_or_fail_and_leave_everything_finite(name):
    """Squares of f32 overflow at 1.8e19: Adam, which keeps them, fails; none goes on without learning."""
    with compiled(OPTIMIZERS[name]()) as train:
        assert isinstance(step(train, 1.0), tg.Completed)
        before, digest = everything(train), train.digest()
        result = step(train, 1e21)
        after = everything(train)
        assert all(np.isfinite(x).all() for x in after.values())
        if isinstance(result, tg.Failed):
            assert isinstance(result.error, tg.NonFiniteError) and "the update" in str(result.error)
            assert all(np.array_equal(before[n], after[n]) for n in before) and train.digest() == digest
        failing = ("adam", "adam barely clipped", "rmsprop", "muon", "adafactor")
        assert isinstance(result, tg.Failed) == (name in failing)
        assert step(train, 1.0).step == 2 + isinstance(result, tg.Completed)


def test_a_large_gradient_among_queued_steps():
    """The step is done again, and those behind it after it, in their order."""
    scales = [1.0, 2.0, 1e30, 3.0, 1e25, 1e26, 0.5]

    def run(wait):
        with compiled(optim.adam(0.1, clip_grad_norm=1.0)) as train:
            w, b = (DIRECTION[n] / np.abs(DIRECTION[n]).max() for n in ("W", "b"))
            queued = []
            for scale in scales:
                queued.append(train.step(w=w, b=b, scale=np.float32(scale)))
                if wait:
                    queued[-1].result()
            assert [q.step for q in queued] == list(range(1, 8))
            many = train.run_steps(3, w=w, b=b, scale=np.array([1.0, 1e22, 1e-3], np.float32)).result()
            assert many.step == 10 and len(many.losses) == 3
            return train.digest()

    assert run(True) == run(False)


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_step_that_is_not_finite_changes_nothing(name):
    fails(OPTIMIZERS[name](), "cpu", "f32", np.nan)


@pytest.mark.parametrize("name", ["accumulating", "adam clipped, ema"])
def test_a_step_that_is_not_finite_changes_no_loss_scale(name):
    fails(OPTIMIZERS[name](), "cpu", "f16", np.nan)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_step_that_is_not_finite_changes_nothing_on_any_runtime(device_name, bad):
    fails(OPTIMIZERS["accumulating"](), device_name, "f32", bad)
    fails(OPTIMIZERS["muon"](), device_name, "f32", bad)


class Dropping(tg.Module):
    def __init__(self):
        self.a, self.b = self.param((6, 24)), self.param((24, 2), init=tg.init.randn(1.0))


def dropping(m, x):
    return tg.mean(tg.square(tg.dropout(x @ m.a, 0.5) @ m.b - 1.0))


def fails(optimizer, device, precision, bad):
    x = np.random.default_rng(1).standard_normal((4, 6)).astype(np.float32)
    wrong = x.copy()
    wrong[2, 3] = bad

    def compile_again():
        return tg.compile(model=Dropping(), loss=dropping, inputs={"x": (4, 6)}, optimizer=optimizer, device=device,
                          seed=0, precision=precision)  # fmt: skip

    with compile_again() as train, compile_again() as other:
        for k in range(3):
            before, digest = everything(train), train.digest()
            failed = train.step(x=wrong).result()
            assert isinstance(failed, tg.Failed) and isinstance(failed.error, tg.NonFiniteError)
            after = everything(train)
            assert all(np.array_equal(before[n], after[n]) for n in before) and train.digest() == digest
            assert train.step(x=x).loss == other.step(x=x).loss, k  # the same dropout: the stream did not go on
        assert train.digest() == other.digest()
