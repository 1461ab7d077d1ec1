"""tg.sweep: every member trains as it would alone, and what differs between members stays apart."""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import lr, nn, optim

STEPS = 12
SEEDS = [0, 1, 0]
EXAMPLES = Path(__file__).parents[1] / "examples"
DATA = np.random.default_rng(0).normal(size=(STEPS, 32, 3)).astype(np.float32)
X, Y = DATA[0], np.sin(DATA[0, :, :1])
INPUTS = {"x": (32, 3), "y": (32, 1)}


class MLP(tg.Module):
    def __init__(self) -> None:
        self.l1, self.l2 = nn.Linear(3, 16), nn.Linear(16, 1)

    def __call__(self, x: Any) -> Any:
        return self.l2(tg.tanh(self.l1(x)))


def loss(m: Any, x: Any, y: Any) -> Any:
    return tg.mse_loss(m(x), y)


def swept(optimizer: optim.Optimizer, model: Any = None, seeds: Any = SEEDS, **more: Any) -> tg.Sweep:
    return tg.sweep(
        model=model or MLP(), loss=loss, inputs=INPUTS, optimizer=optimizer, seeds=seeds, device="cpu", **more
    )


def alone(optimizer: optim.Optimizer, seed: int, model: Any = None) -> tg.CompiledTraining:
    return tg.compile(model=model or MLP(), loss=loss, inputs=INPUTS, optimizer=optimizer, seed=seed, device="cpu")


def far(a: Mapping[str, Any], b: Mapping[str, Any]) -> float:
    return max(float(np.abs(a[n] - b[n]).max()) for n in a)


CASES: dict[str, tuple[Callable[..., optim.Optimizer], dict[str, list[Any]]]] = {
    "sgd": (optim.sgd, {"lr": [0.1, 0.01, 0.05]}),
    "momentum and L2": (
        optim.sgd,
        {"lr": [0.1, 0.01, 0.05], "momentum": [0.0, 0.9, 0.5], "weight_decay": [0.0, 0.1, 0.3]},
    ),
    "adam": (optim.adam, {"lr": [0.01, 0.03, 0.003], "beta1": [0.9, 0.8, 0.5], "beta2": [0.999, 0.99, 0.9]}),
    "adamw, clipped": (
        optim.adamw,
        {"lr": [0.01, 0.03, 0.003], "weight_decay": [0.0, 0.1, 0.5], "clip_grad_norm": [0.1, None, 0.3]},
    ),
    "normalized, averaged": (
        lambda **k: optim.sgd(normalize_grads=True, ema=0.9, **k),
        {"lr": [0.1, 0.01, 0.05]},
    ),
    "groups": (
        lambda **k: optim.adamw(groups={"l2.*": {"lr": 0.5, "weight_decay": 0.2}}, **k),
        {"lr": [0.01, 0.03, 0.003], "weight_decay": [0.0, 0.1, 0.5]},
    ),
    "accumulated": (lambda **k: optim.adam(accumulate=3, clip_grad_norm=0.2, **k), {"lr": [0.01, 0.03, 0.003]}),
    "muon": (optim.muon, {"lr": [0.01, 0.03, 0.003], "weight_decay": [0.0, 0.1, 0.5]}),
    "adafactor": (optim.adafactor, {"lr": [0.01, 0.03, 0.003]}),
    "lamb": (optim.lamb, {"lr": [0.01, 0.03, 0.003]}),
}


@pytest.mark.parametrize("name", CASES)
def test_each_member_trains_as_it_would_alone(name: str) -> None:
    """Within 16 times of what one rounding of the first parameters comes to, by a twin that begins with it."""
    make, values = CASES[name]
    sweep = swept(make(), **values)
    first = [sweep.params(k) for k in range(3)]
    sweep.run_steps(STEPS, x=DATA, y=np.sin(DATA[:, :, :1]))
    for k, seed in enumerate(SEEDS):
        own = make(**{n: x[k] for n, x in values.items()})
        train, twin = alone(own, seed), alone(own, seed)
        assert far(train.download_params(), first[k]) == 0.0
        sign = np.random.default_rng(k)
        twin.upload_params(
            {
                n: (x * (1 + 2.0**-23 * sign.choice([-1.0, 1.0], x.shape))).astype(np.float32)
                for n, x in first[k].items()
            }
        )
        r = train.run_steps(STEPS, x=DATA, y=np.sin(DATA[:, :, :1]))
        twin.run_steps(STEPS, x=DATA, y=np.sin(DATA[:, :, :1])).result()
        tolerance = 16 * far(train.download_params(), twin.download_params())
        assert far(train.download_params(), first[k]) > 100 * tolerance, "the test cannot fail"
        assert far(train.download_params(), sweep.params(k)) <= tolerance
        assert sweep.losses[k] == pytest.approx(r.loss, rel=1e-3)


def test_no_update_joins_the_parameters_of_a_member() -> None:
    """A choice between parameters for each element takes longer than the step."""
    with contextlib.closing(swept(optim.adamw(clip_grad_norm=1.0, ema=0.9))) as sweep:
        size = sum(x.size for x in sweep.params(0).values())
        graph = sweep.train.program.graph
        assert graph and (sweep.members, size) not in {t.shape for t in graph.nodes}


def test_the_average_of_the_parameters_begins_at_the_members_own() -> None:
    sweep = swept(optim.sgd(ema=0.5), lr=[0.1, 0.1, 0.1])
    train = alone(optim.sgd(lr=0.1, ema=0.5), 1)
    for t in (sweep, train):
        t.step(x=X, y=Y).result()
    averages = sweep.train.download_params(ema=True)
    for name, x in train.download_params(ema=True).items():
        np.testing.assert_allclose(averages[f"models.{name}"][1], x, rtol=0, atol=1e-6)


def test_a_schedule_is_shared_and_lr_is_a_factor_on_it() -> None:
    make = lambda peak: optim.sgd(lr=lr.linear(peak=peak, final=0.0, steps=STEPS))
    sweep, train = swept(make(1.0), lr=[0.1, 0.2, 0.05]), alone(make(0.2), 1)
    for t in (sweep, train):
        t.run_steps(STEPS, x=X, y=Y).result()
    assert far(train.download_params(), sweep.params(1)) < 1e-5


def test_a_member_that_diverges_stops_and_the_others_go_on() -> None:
    sweep, train = (
        swept(optim.adamw(clip_grad_norm=1.0), seeds=0, lr=[0.01, 3e38, 0.01]),
        alone(optim.adamw(lr=0.01, clip_grad_norm=1.0), 0),
    )
    for _ in range(STEPS):
        sweep.step(x=X, y=Y).result()
        train.step(x=X, y=Y).result()
    assert not np.isfinite(sweep.losses[1]) and np.isfinite(sweep.losses[[0, 2]]).all()
    assert far(sweep.params(0), train.download_params()) < 1e-4 and sweep.best() in (0, 2)
    assert all(np.isfinite(x).all() for x in sweep.params(1).values())


def test_a_step_fails_where_no_member_has_a_finite_loss() -> None:
    sweep = swept(optim.sgd(), seeds=0, lr=[0.1, 0.2])
    before = sweep.params(1)
    r = sweep.step(x=np.full_like(X, 3e38), y=Y * 1e38).result()
    assert isinstance(r, tg.Failed) and isinstance(r.error, tg.NonFiniteError)
    assert far(before, sweep.params(1)) == 0.0
    with pytest.raises(tg.NonFiniteError):
        _ = sweep.losses


def test_inputs_may_differ_between_members() -> None:
    sweep = tg.sweep(
        model=MLP(), loss=loss, inputs={"x": (3, 32, 3), "y": (32, 1)}, optimizer=optim.sgd(lr=0.1), seeds=[4, 4, 4],
        each=["x"], device="cpu",
    )  # fmt: skip
    sweep.step(x=DATA[:3], y=Y).result()
    for k in range(3):
        train = alone(optim.sgd(lr=0.1), 4)
        assert train.step(x=DATA[k], y=Y).loss == pytest.approx(sweep.losses[k], rel=1e-5)
        assert far(train.download_params(), sweep.params(k)) < 1e-6


def test_parameters_that_are_not_trained_and_arrays_of_a_model_stay() -> None:
    class Scaled(tg.Module):
        def __init__(self) -> None:
            self.inner, self.scale = MLP(), np.full((3,), 0.5, np.float32)
            self.fixed = self.param(1, init=tg.init.randn(1.0), trainable=False)

        def __call__(self, x: Any) -> Any:
            return self.inner(x * self.scale) + self.fixed

    sweep, train = swept(optim.sgd(lr=0.1), Scaled(), seeds=[2, 3]), alone(optim.sgd(lr=0.1), 3, Scaled())
    for t in (sweep, train):
        t.run_steps(3, x=X, y=Y).result()
    assert far(train.download_params(), sweep.params(1)) < 1e-6
    assert (sweep.params(0)["fixed"] != sweep.params(1)["fixed"]).all()


def test_dropout_differs_between_members() -> None:
    def dropped(m: Any, x: Any) -> Any:
        y = tg.dropout(x, 0.5)
        return tg.mean(m(y)), {"kept": y}

    sweep = tg.sweep(
        model=MLP(), loss=dropped, inputs={"x": (32, 3)}, optimizer=optim.sgd(), seeds=[0, 0], device="cpu"
    )
    kept = sweep.step(x=np.ones((32, 3))).aux["kept"]
    assert kept.shape == (2, 32, 3) and (kept[0] != kept[1]).any()


def test_values_change_without_compiling() -> None:
    sweep, train = swept(optim.sgd(), seeds=0, lr=[0.1, 0.2]), alone(optim.sgd(lr=0.2), 0)
    program = sweep.train.program
    for t in (sweep, train):
        t.step(x=X, y=Y).result()
    sweep.set(lr=[0.1, 0.05])
    train.set_lr(0.05)
    for t in (sweep, train):
        t.step(x=X, y=Y).result()
    assert sweep.train.program is program and sweep.values == {"lr": (0.1, 0.05)}
    assert far(train.download_params(), sweep.params(1)) < 1e-6
    sweep.reset()
    train.reset()
    for t in (sweep, train):
        t.step(x=X, y=Y).result()
    assert far(train.download_params(), sweep.params(1)) < 1e-6


def test_a_sweep_is_saved_and_goes_on_and_so_does_a_member(tmp_path: Path) -> None:
    sweep = swept(optim.adam(), lr=[0.01, 0.02, 0.03])
    sweep.run_steps(3, x=X, y=Y).result()
    sweep.set(lr=[0.03, 0.02, 0.01])
    sweep.save(tmp_path / "all.safetensors")
    sweep.save(tmp_path / "one.safetensors", member=2)
    sweep.run_steps(3, x=X, y=Y).result()
    other = swept(optim.adam(), lr=[0.01, 0.02, 0.03])
    other.load(tmp_path / "all.safetensors")
    assert other.values["lr"] == pytest.approx((0.03, 0.02, 0.01))
    other.run_steps(3, x=X, y=Y).result()
    assert all(far(other.params(k), sweep.params(k)) == 0.0 for k in range(3))
    other.load(tmp_path / "all.safetensors")
    infer = tg.load_forward(
        tmp_path / "one.safetensors", model=MLP(), forward=lambda m, x: m(x), inputs={"x": (None, 3)}, device="cpu"
    )
    every = other.attach(forward=lambda m, x: m(x), inputs={"x": (None, 3)}).run(x=X).output
    assert every.shape == (3, 32, 1)
    np.testing.assert_allclose(infer.run(x=X).output, every[2], atol=1e-6)


def test_fit_trains_all_members() -> None:
    with swept(optim.adam(), lr=[0.01, 0.02, 0.03]) as sweep:
        history = sweep.train.fit(x=X, y=Y, epochs=20, batch_size=32, progress=False)
        assert history.loss[-1] < history.loss[0]


@pytest.mark.parametrize("device", ["webgpu", "jax"])
def test_other_devices_agree(device: str) -> None:
    if device == "webgpu" and not tg.is_webgpu_available():
        pytest.skip("no WebGPU")
    values = {"lr": [0.01, 0.02, 0.03], "clip_grad_norm": [0.1, 1.0, 10.0]}
    sweeps = [
        tg.sweep(model=MLP(), loss=loss, inputs=INPUTS, optimizer=optim.adamw(), seeds=SEEDS, device=d, **values)
        for d in ("cpu", device)
    ]
    for s in sweeps:
        s.run_steps(5, x=X, y=Y).result()
    for k in range(3):
        assert far(sweeps[0].params(k), sweeps[1].params(k)) < 1e-5


class Normed(tg.Module):
    """A layer whose running averages each step writes, and a state that counts the steps."""

    def __init__(self) -> None:
        self.l1, self.norm, self.l2, self.n = nn.Linear(3, 8), nn.BatchNorm(8), nn.Linear(8, 1), self.state(())

    def __call__(self, x: Any, training: bool = False) -> Any:
        if training:
            self.n.assign(self.n + 1.0)
        return self.l2(tg.tanh(self.norm(self.l1(x), training=training)))


def normed_loss(m: Normed, x: Any, y: Any) -> Any:
    return tg.mse_loss(m(x, training=True), y)


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_members_have_states_of_their_own(device: str, tmp_path: Path) -> None:
    """Those of a member are what it would have alone; one that diverges keeps its states, as its parameters."""
    if device == "jax":
        pytest.importorskip("jax")
    rates = [0.1, 0.01, 3e38]
    sweep = tg.sweep(model=Normed(), loss=normed_loss, inputs=INPUTS, optimizer=optim.sgd(), seeds=SEEDS, lr=rates,
                     device=device)  # fmt: skip
    for x in DATA[:4]:
        sweep.step(x=x, y=Y).result()
    for k in (0, 1):
        train = tg.compile(model=Normed(), loss=normed_loss, inputs=INPUTS, optimizer=optim.sgd(lr=rates[k]),
                           seed=SEEDS[k], device=device)  # fmt: skip
        for x in DATA[:4]:
            train.step(x=x, y=Y).result()
        assert far(train.params(), sweep.params(k)) < 1e-5
        assert train.states().keys() == sweep.states(k).keys() and far(train.states(), sweep.states(k)) < 1e-5
        assert sweep.states(k)["n"] == 4
    assert sweep.states(2)["n"] < 4 and all(np.isfinite(x).all() for x in sweep.states(2).values())
    path = tmp_path / "one.safetensors"
    sweep.save(path, member=1)
    infer = tg.load_forward(path, model=Normed(), forward=lambda m, x: m(x), inputs={"x": (None, 3)}, device=device)
    every = sweep.attach(forward=lambda m, x: m(x), inputs={"x": (None, 3)}).run(x=X).output
    np.testing.assert_allclose(infer.run(x=X).output, every[1], atol=1e-5)
    with pytest.raises(tg.TraceError, match=r"assigned inside tg\.vmap"):
        sweep.attach(forward=lambda m, x: m(x, training=True), inputs={"x": (4, 3)}).run(x=X[:4]).output  # noqa: B018


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"seeds": [0, 1], "lr": [0.1, 0.2, 0.3]}, "seeds 2, lr 3"),
        ({"seeds": 0}, "got seeds=0"),
        ({"seeds": [0, 1], "weight_decy": [0.1, 0.2]}, "'weight_decy' is not a hyper.*; did you mean weight_decay"),
        ({"seed": [0, 1, 2], "lr": [0.1, 0.2, 0.3]}, "'seed' is not a hyperparameter of .*; write seeds="),
        ({"seeds": [0, 1], "lr": [0.1, -0.2]}, "lr must be at least 0, got -0.2"),
        ({"seeds": [0, -1]}, "seed must be an integer"),
        ({"seeds": [0, 1], "each": ["z"]}, "each names 'z'"),
    ],
)
def test_what_is_refused(given: dict[str, Any], said: str) -> None:
    with pytest.raises(tg.InputError, match=said):
        swept(optim.adam(), **given)


def test_members_and_values_that_there_are_not() -> None:
    sweep = swept(optim.adam(), lr=[0.1, 0.2, 0.3])
    for call in (
        lambda: sweep.params(3), lambda: sweep.set(beta1=[0.9, 0.8, 0.7]), lambda: sweep.set(lr=[0.1]),
        lambda: sweep.best([1.0]), lambda: sweep.best([np.nan] * 3), lambda: sweep.losses,
    ):  # fmt: skip
        with pytest.raises(tg.InputError):
            call()


def test_optuna_finds_a_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna")
    monkeypatch.setenv("TRACEGRAD_DEVICE", "cpu")
    study = runpy.run_path(str(EXAMPLES / "optuna_sweep.py"))["main"](rounds=2, members=4, steps=60)
    values = [t.value for t in study.trials if t.value is not None]
    assert len(study.trials) == 8 and study.best_value == min(values) < np.median(values)
    assert 1e-4 <= study.best_params["lr"] <= 1.0


RAY = """
import runpy, sys
results = runpy.run_path(sys.argv[1])["main"](samples=3, steps=60, folder=sys.argv[2])
print([r.metrics["score"] for r in results])
"""

if importlib.util.find_spec("ray"):  # it is large, and no dependency of the tests

    @pytest.mark.slow
    def test_ray_tune_runs_sweeps_in_processes_of_its_own(tmp_path: Path) -> None:
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        ran = subprocess.run(
            [sys.executable, "-c", RAY, str(EXAMPLES / "ray_sweep.py"), str(tmp_path)], env=environment,
            capture_output=True, text=True, timeout=300, check=True,
        )  # fmt: skip
        scores = json.loads(ran.stdout.splitlines()[-1])
        assert len(scores) == 3 and all(0.0 < x < 1.0 for x in scores) and "best of 3 trials" in ran.stdout
