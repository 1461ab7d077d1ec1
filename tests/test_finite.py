"""No step makes a parameter or a state of the optimizer infinite or NaN: it fails, and changes nothing."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import optim
from tracegrad.dtypes import TensorType, f32
from tracegrad.engine import bounds
from tracegrad.hypers import leaf_value
from tracegrad.ir.ambient import tracing
from tracegrad.ir.evaluate import evaluate, named_by_role
from tracegrad.optim.arena import Arena
from tracegrad.optim.guard import LONGEST, bounded_arrays
from tracegrad.optim.transform import Host
from tracegrad.prims.leaves import leaf

N = 6
SHAPE = (N,)


class Vector(tg.Module):
    def __init__(self) -> None:
        self.w = self.param(SHAPE, init=tg.init.zeros(), decay=True)


def loss(m: Vector, g: tg.Tensor) -> tg.Tensor:
    """The gradient is g; the loss itself is 0."""
    return tg.sum((m.w - tg.stop_gradient(m.w)) * g)


def compiled(optimizer: optim.Optimizer, device: str = "cpu", **more: Any) -> Any:
    return tg.compile(
        model=Vector(), loss=loss, inputs={"g": SHAPE}, optimizer=optimizer, device=device, seed=0, **more
    )


def state_of(train: Any) -> dict[str, Any]:
    """What a checkpoint has: parameters, and the optimizer's arrays."""
    stepper = train.store.stepper
    names = [f.name for f in stepper.program.states if f.name != bounds.array_of(stepper.program)]
    return train.worker.call(lambda session: {n: np.array(session.read(n)) for n in ("params", *names)})


def gradient(*first: float) -> Any:
    return np.resize(np.float32([*first, 0.5]), N).astype(np.float32)


def sign_descent() -> optim.Optimizer:
    return optim.custom(optim.Transform({}, lambda g, p, state, host: (g * 2.0, {})), lr=1e38)


def spoiled_state() -> optim.Optimizer:
    """The parameters stay finite, the state does not."""
    transform = optim.Transform({"s": 1.0}, lambda g, p, state, host: (tg.sign(g), {"s": state["s"] * 1e30 + g}))
    return optim.custom(transform, lr=1e-3)


# An optimizer, gradients it takes, and one that makes something infinite or NaN
OVERFLOWS: dict[str, tuple[Callable[[], optim.Optimizer], Sequence[float], float]] = {
    "sgd": (lambda: optim.sgd(1e38), (1e-3, 1.0), 3.0),
    "sgd, momentum": (lambda: optim.sgd(1e38, momentum=0.9), (1e-3, 1.0), 1.9),
    "sgd, momentum that grows": (lambda: optim.sgd(1e-30, momentum=1e19), (1.0, 1.0, 1.0), 1.0),
    "sgd, decay": (lambda: optim.sgd(1e19, weight_decay=1e15), (1.0,), 1.0),
    "clipped": (lambda: optim.sgd(3e38, clip_grad_norm=1.0), (1e9,), 1e9),
    "normalized": (lambda: optim.sgd(3e38, normalize_grads=True), (1.0, 1.0), 1.0),
    "adam": (lambda: optim.adam(2e38), (1.0,), 1.0),
    "adam, v": (lambda: optim.adam(1e-3), (1.0,), 1e21),
    "adam, no eps": (lambda: optim.adam(1e-3, eps=0.0), (1.0, 2.0), np.nan),
    "adamw, ema": (lambda: optim.adamw(2e38, weight_decay=0.0, ema=0.9), (1.0,), 1.0),
    "rmsprop": (lambda: optim.rmsprop(1e-2, eps=1e-38), (1.0,), 1e21),
    "rmsprop, centered": (lambda: optim.rmsprop(1e38, alpha=0.5, centered=True), (1.0,), 1.0),
    "muon": (lambda: optim.muon(2e38, weight_decay=0.0), (1.0,), 1.0),
    "lion": (lambda: optim.lion(2e38), (1.0,), 1.0),
    "accumulating": (lambda: optim.sgd(1.0, accumulate=4), (2e38,), 2e38),
    "custom": (sign_descent, (1.0,), 1.0),
    "custom, state": (spoiled_state, (1.0,), 1.0),
}


@pytest.mark.parametrize("name", OVERFLOWS)
def test_an_update_that_overflows_fails_and_changes_nothing(name: str, device_name: str) -> None:
    make, good, bad = OVERFLOWS[name]
    with compiled(make(), device_name) as train:
        for k, g in enumerate(good):
            assert isinstance(train.step(g=gradient(g)).result(), tg.Completed), k
        before, digest = state_of(train), train.digest()
        for _ in range(2):
            failed = train.step(g=gradient(bad)).result()
            assert isinstance(failed, tg.Failed) and isinstance(failed.error, tg.NonFiniteError)
            after = state_of(train)
            assert all(np.array_equal(before[n], after[n]) for n in before) and train.digest() == digest
            assert all(np.isfinite(x).all() for x in after.values())
        if np.isfinite(bad):
            assert "The update overflows in " in str(failed.error) or "first non-finite value" in str(failed.error)
        train.set_lr(0.0)
        if name in ("sgd, momentum that grows", "custom, state"):
            return  # whatever comes, the state would overflow
        assert train.step(g=gradient(1e-30)).result().step == len(good) + 1


@pytest.mark.parametrize("wait", [True, False])
def test_a_step_that_overflows_among_queued_ones(wait: bool, device_name: str) -> None:
    """Those behind it are done as if it had never been."""
    sizes = [1.0, 1.5, 3.0, -1.0, 2.0, -1.5]

    def run(sizes: Sequence[float]) -> tuple[Any, list[bool]]:
        with compiled(optim.sgd(1e38), device_name) as train:
            queued: list[Any] = []
            for size in sizes:
                queued.append(train.step(g=gradient(size)))
                if wait:
                    queued[-1].result()
            return train.download_params()["w"], [isinstance(q.result(), tg.Completed) for q in queued]

    params, applied = run(sizes)
    assert applied == [True, True, False, True, False, True]
    np.testing.assert_array_equal(params, run([s for s, a in zip(sizes, applied, strict=True) if a])[0])


def test_a_step_with_large_numbers_that_stays_finite_is_done(device_name: str) -> None:
    """Bounds are no more than a hint: what decides is the values."""
    with compiled(optim.sgd(1e38), device_name) as train:
        for k in range(40):
            result = train.step(g=np.full(N, -2.0 if k % 2 else 2.0, np.float32)).result()
            assert isinstance(result, tg.Completed), k
        assert result.step == 40
        train.upload_params({"w": np.full(N, 3.3e38, np.float32)})
        assert isinstance(train.step(g=gradient(1.0)).result(), tg.Completed)
        assert isinstance(train.step(g=np.full(N, -2.0, np.float32)).result(), tg.Failed)


def test_steps_take_the_short_way_while_numbers_are_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    """No step is a trial: not the first, nor one behind an upload, a reset or a checkpoint."""
    trials: list[object] = []
    monkeypatch.setattr(bounds, "lift", lambda *_: trials.append(1))
    optimizer = optim.adamw(1e-2, weight_decay=0.1, clip_grad_norm=1.0, ema=0.99, accumulate=3)
    for one in (
        optimizer,
        optim.sgd(0.1, momentum=0.9, weight_decay=0.1),
        optim.rmsprop(normalize_grads=True, weight_decay=0.1, momentum=0.5),
    ):
        with compiled(one) as train:
            for k in range(30):
                assert isinstance(train.step(g=gradient(10.0**k / 1e15)).result(), tg.Completed)
            train.upload_params({"w": np.full(N, 1e6, np.float32)})
            assert isinstance(train.step(g=gradient(1.0)).result(), tg.Completed)
            train.reset()
            assert isinstance(train.step(g=gradient(1.0)).result(), tg.Completed)
    assert not trials


def test_a_checkpoint_brings_its_bounds(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Loaded states count as computed ones do."""
    with compiled(optim.sgd(1.0, momentum=0.9)) as train:
        train.step(g=np.full(N, 3e38, np.float32)).result()
        train.save(tmp_path / "large")
    with compiled(optim.sgd(1.0, momentum=0.9)) as train:
        assert isinstance(train.step(g=gradient(1.0)).result(), tg.Completed)
        train.load(tmp_path / "large")
        before = state_of(train)
        assert isinstance(train.step(g=np.full(N, 3e38, np.float32)).result(), tg.Failed)
        assert all(np.array_equal(x, before[n]) for n, x in state_of(train).items())


TRANSFORMS: dict[str, Callable[[], optim.Optimizer]] = {
    "sgd": lambda: optim.sgd(0.3, momentum=0.9, nesterov=True, weight_decay=0.2, clip_grad_norm=0.7),
    "sgd normalized": lambda: optim.sgd(0.3, momentum=1.5, normalize_grads=lambda name: name != "b"),
    "adamw": lambda: optim.adamw(0.3, weight_decay=0.4, ema=0.9, clip_grad_norm=3.0),
    "adam": lambda: optim.adam(0.3, beta1=0.5, beta2=0.0, normalize_grads=True),
    "lion": lambda: optim.lion(0.3, weight_decay=0.4, ema=0.5),
    "rmsprop": lambda: optim.rmsprop(0.3, weight_decay=0.1, momentum=0.5),
    "accumulating": lambda: optim.adamw(0.3, accumulate=3, ema=0.7, clip_grad_norm=2.0),
}


@pytest.mark.parametrize("name", TRANSFORMS)
def test_bounds_hold(name: str) -> None:
    """Whatever gradients come, no element exceeds what `Transform.bounds` says; in double precision, 60 steps each."""
    optimizer = TRANSFORMS[name]()
    transform = optimizer.transform
    arena = Arena.of([("a", (5,), True), ("b", (3,), False)])
    names = bounded_arrays(transform)[1:]
    assert transform.bounds is not None
    with tracing() as trace:
        host = Host(arena)
        flat, scalar = TensorType(f32, (arena.size,)), TensorType(f32, ())
        vectors = {n: leaf("state", n, flat) for n in ("g", "p", *names)}
        magnitudes = {n: leaf("state", f"{n}.bound", scalar) for n in ("g", "p", *names)}
        step, new = transform.update(vectors["g"], vectors["p"], {n: vectors[n] for n in names}, host)
        most, after = transform.bounds(magnitudes["g"], magnitudes["p"], {n: magnitudes[n] for n in names}, host)
        hypers = dict(trace.counters)
    values = {"lr": 0.3, **optimizer.hyper}
    rng = np.random.default_rng(0)
    for size in (1e-30, 1e-3, 1.0, 1e6, LONGEST / 4):
        p = rng.standard_normal(arena.size)
        state = {n: np.abs(rng.standard_normal(arena.size)) * min(size, 1e12) for n in names}
        bound = {"p": np.abs(p).max(), **{n: np.abs(x).max() for n, x in state.items()}}
        for k in range(1, 61):
            hyper = {n: np.float64(k if n == "step" else leaf_value(n, values)) for n in hypers}
            env: dict[str, Any] = {f"hyper.{n}": x for n, x in hyper.items()}
            g = rng.standard_normal(arena.size) * size * rng.choice([1e-12, 1.0, 3.0])
            env |= {f"state.{n}": x for n, x in {"g": g, "p": p, **state}.items()}
            before = {"g": np.linalg.norm(g), **bound}
            env |= {f"state.{n}.bound": np.float64(x) for n, x in before.items()}
            found = evaluate(named_by_role([step, *new.values(), most, *after.values()]), env, np)
            p = p + found[0]
            state = dict(zip(new, found[1 : 1 + len(new)], strict=True))
            rest = found[1 + len(new) :]
            bound = {"p": bound["p"] + rest[0], **dict(zip(after, rest[1:], strict=True))}
            bound = {n: max(float(x), float(before[n])) for n, x in bound.items()}
            limit = 3.0 if name == "accumulating" else 1.0  # of the total: see `accumulate`
            assert np.abs(p).max() <= bound["p"] * (1 + 1e-12)
            for n, x in state.items():
                assert np.abs(x).max() <= bound[n] * (limit if n == "accumulated" else 1.0) * (1 + 1e-12), (n, k)
