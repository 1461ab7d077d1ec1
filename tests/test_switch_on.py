"""Hyperparameters that were off at compile: `set` switches them on, and training goes on as PyTorch's does."""

from __future__ import annotations

import threading

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import lr, nn, optim

torch = pytest.importorskip("torch")

rng = np.random.default_rng(0)
X = rng.standard_normal((12, 6, 4)).astype(np.float32)


class Net(tg.Module):
    def __init__(self):
        self.a, self.b = nn.Linear(4, 5), nn.Linear(5, 2)


def loss(m, x):
    return tg.mean(tg.square(m.b(tg.tanh(m.a(x))) - 3.0))


def compiled(optimizer, device="cpu", loss=loss):
    return tg.compile(model=Net(), loss=loss, inputs={"x": (6, 4)}, optimizer=optimizer, device=device, seed=1)


class Torch:
    """The same net, decay on the weights alone."""

    def __init__(self, params, make, **options):
        self.p = {n: torch.tensor(x.copy(), requires_grad=True) for n, x in params.items()}
        groups = [[x for n, x in self.p.items() if n.endswith(which)] for which in ("W", "b")]
        self.optimizer = make([{"params": g} for g in groups], **options)
        self.clip = None

    def set(self, **values):
        self.clip = values.pop("clip_grad_norm", self.clip)
        for k, group in enumerate(self.optimizer.param_groups):
            for name, value in values.items():
                if name in ("beta1", "beta2"):
                    group["betas"] = tuple(value if name == f"beta{i + 1}" else b for i, b in enumerate(group["betas"]))
                elif not (name == "weight_decay" and k == 1):
                    group[name] = value

    def step(self, x):
        p = self.p
        h = torch.tanh(torch.tensor(x) @ p["a.W"] + p["a.b"])
        y = torch.mean(torch.square(h @ p["b.W"] + p["b.b"] - 3.0))
        self.optimizer.zero_grad()
        y.backward()
        if self.clip is not None:
            torch.nn.utils.clip_grad_norm_(p.values(), self.clip)
        self.optimizer.step()
        return y.item()


T = torch.optim
PLANS = {  # optimizer, PyTorch's, and what is set before which step
    "sgd": (
        optim.sgd(0.1), (T.SGD, {"lr": 0.1}),
        {2: {"momentum": 0.9}, 4: {"weight_decay": 0.3}, 6: {"clip_grad_norm": 0.5}, 8: {"momentum": 0.0},
         9: {"lr": 0.05, "momentum": 0.5, "weight_decay": 0.0}, 10: {"clip_grad_norm": None}},
    ),
    "nesterov": (
        optim.sgd(0.1, momentum=0.9, nesterov=True), (T.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
        {3: {"weight_decay": 0.2, "clip_grad_norm": 0.3}, 5: {"momentum": 0.5}},
    ),
    "adam": (
        optim.adam(0.05), (T.Adam, {"lr": 0.05}),
        {2: {"clip_grad_norm": 0.1}, 4: {"beta1": 0.0, "eps": 1e-3}, 6: {"beta1": 0.5, "beta2": 0.0},
         8: {"beta2": 0.9, "eps": 1e-8}},
    ),
    "adamw": (
        optim.adamw(0.05, weight_decay=0.0), (T.AdamW, {"lr": 0.05, "weight_decay": 0.0}),
        {2: {"weight_decay": 0.5}, 4: {"clip_grad_norm": 0.1, "lr": 0.01}, 6: {"beta1": 0.5, "weight_decay": 0.0}},
    ),
    "rmsprop": (
        optim.rmsprop(0.01, weight_decay=0.0), (T.RMSprop, {"lr": 0.01}),
        {2: {"weight_decay": 0.3}, 4: {"clip_grad_norm": 0.3}, 6: {"alpha": 0.5, "eps": 1e-4}},
    ),
}  # fmt: skip


def test_training_goes_on_on_every_runtime(device_name):
    compare("sgd", device_name)


@pytest.mark.parametrize("name", [name for name in PLANS if name != "sgd"])
def test_training_goes_on_as_pytorchs_with_changed_param_groups(name):
    compare(name, "cpu")


def compare(name, device_name):
    optimizer, (make, options), plan = PLANS[name]
    with compiled(optimizer, device_name) as train:
        other = Torch(train.download_params(), make, **options)
        infer = train.attach(forward=lambda m, x: m.a(x), inputs={"x": (6, 4)})
        infer.run(x=X[0]).result()  # loaded before the step is compiled again
        for k, x in enumerate(X):
            train.set(**plan.get(k, {}))
            other.set(**plan.get(k, {}))
            result = train.step(x=x).result()
            assert result.step == k + 1
            assert result.loss == pytest.approx(other.step(x), rel=1e-4), k
        now = train.download_params()
        for n, p in other.p.items():
            np.testing.assert_allclose(now[n], p.detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=n)
        np.testing.assert_allclose(infer.run(x=X[0]).output, X[0] @ now["a.W"] + now["a.b"], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "make", [lambda **o: optim.lion(0.01, **o), lambda **o: optim.muon(0.01, **({"weight_decay": 0.0} | o)),
             lambda **o: optim.rmsprop(0.01, **o)], ids=["lion", "muon", "rmsprop"],
)  # fmt: skip
def test_what_is_switched_on_is_as_if_it_had_been_there(make):
    """From the first step on; with momentum, too, where PyTorch's RMSprop raises KeyError."""
    values = {"weight_decay": 0.3, "clip_grad_norm": 0.2, "momentum": 0.8}
    values = {n: x for n, x in values.items() if n != "momentum" or "lion" not in make().name}
    with compiled(make()) as train, compiled(make(**values)) as other:
        train.set(**values)
        for x in X[:4]:
            assert train.step(x=x).loss == other.step(x=x).loss
        now, then = train.download_params(), other.download_params()
        assert all(np.array_equal(now[n], then[n]) for n in now)


def test_nothing_else_changes(tmp_path):
    """Parameters, averages, the step, the schedule and the random stream stay; files hold what is on."""

    def dropping(m, x):
        return loss(m, tg.dropout(x, 0.5))

    def make(**o):
        return compiled(optim.sgd(lr.linear(0.1, 0.0, 20), ema=0.9, accumulate=2, **o), loss=dropping)

    with make() as train, make(momentum=1e-30) as other:  # so small a momentum changes no bit
        for k, x in enumerate(X):
            if k == 5:
                before = train.download_params(), train.download_params(ema=True)
                train.set(momentum=1e-30)
                for then, now in zip(before, (train.download_params(), train.download_params(ema=True)), strict=True):
                    assert all(np.array_equal(then[n], now[n]) for n in now)
            assert train.step(x=x).loss == other.step(x=x).loss, k
        a, b = train.download_params(ema=True), other.download_params(ema=True)
        assert all(np.array_equal(a[n], b[n]) for n in a)
        assert {b.name for b in train.program.buffers if b.role == "state"} >= {"momentum", "ema", "accumulated"}
        assert train.set(momentum=0.5) is None and len(train.program.dispatches) == len(other.program.dispatches)
        train.save(tmp_path / "on.safetensors")
        other.load(tmp_path / "on.safetensors")
        assert train.step(x=X[0]).loss == other.step(x=X[0]).loss


def test_setting_what_is_off_to_off_compiles_nothing_and_mistakes_change_nothing():
    with compiled(optim.sgd(0.1)) as train:
        program = train.program
        train.set(momentum=0.0, weight_decay=0, clip_grad_norm=None)
        assert train.program is program
        for bad in ({"momentum": -1.0}, {"momentum": 0.9, "beta1": 0.5}, {"weight_decay": "x"}, {"momentum": None},
                    {"clip_grad_norm": 0.0}, {"momentum": 0.9, "lr": float("nan")}):  # fmt: skip
            with pytest.raises(tg.InputError):
                train.set(**bad)
            assert train.program is program
        assert program.meta["off"] == ["momentum", "weight_decay", "clip_grad_norm"]
    with compiled(optim.adam(0.1)) as train, pytest.raises(tg.InputError, match="momentum is not a value"):
        train.set(momentum=0.1)


def test_a_hyperparameter_of_the_loss_is_not_the_optimizers():
    def decaying(m, x):
        return loss(m, x) + tg.hyper("weight_decay", 0.0) * tg.sum(tg.square(m.a.W))

    with compiled(optim.sgd(0.1), loss=decaying) as train:
        program = train.program
        train.set(weight_decay=-2.0)
        assert train.program is program


def test_steps_that_are_queued_keep_what_they_were_called_with():
    with compiled(optim.sgd(0.1)) as train, compiled(optim.sgd(0.1, momentum=0.9)) as other:
        other.set(momentum=0.0)  # leaves its array alone
        queued = [train.step(x=x) for x in X[:6]]
        train.set(momentum=0.9)
        queued += [train.step(x=x) for x in X[6:]]
        for x, q in zip(X[:6], queued, strict=False):
            assert q.loss == other.step(x=x).loss
        other.set(momentum=0.9)
        for x, q in zip(X[6:], queued[6:], strict=True):
            assert q.loss == pytest.approx(other.step(x=x).loss, rel=1e-6)


def test_other_threads_may_step_meanwhile():
    with compiled(optim.sgd(0.01)) as train:
        results = []
        thread = threading.Thread(target=lambda: results.extend(train.step(x=X[k % 12]).result() for k in range(200)))
        thread.start()
        train.set(momentum=0.5)
        train.set(clip_grad_norm=1.0)
        thread.join()
        assert [r.step for r in results] == list(range(1, 201))


def test_a_file_may_have_on_what_is_off_here(tmp_path):
    path = tmp_path / "on.safetensors"
    with compiled(optim.sgd(0.1)) as train, compiled(optim.sgd(0.1)) as fresh:
        program = fresh.program
        train.set(momentum=0.9, clip_grad_norm=0.5)
        for x in X[:3]:
            train.step(x=x).result()
        train.save(path)
        fresh.load(path)
        assert fresh.program is not program
        assert [fresh.step(x=x).loss for x in X[3:6]] == [train.step(x=x).loss for x in X[3:6]]
        assert fresh.digest() == train.digest()
    with compiled(optim.adam(0.1)) as other:
        program = other.program
        with pytest.raises(tg.InputError, match="nothing was changed"):
            other.load(path)
        assert other.program is program and other.step(x=X[0]).step == 1


def test_a_file_may_have_values_that_were_on_and_are_off_again(tmp_path):
    path = tmp_path / "off.safetensors"
    with compiled(optim.sgd(0.1)) as train, compiled(optim.sgd(0.1)) as fresh:
        train.set(momentum=0.9, clip_grad_norm=0.5)
        train.step(x=X[0]).result()
        train.set(momentum=0.0, clip_grad_norm=None)
        train.step(x=X[1]).result()
        train.save(path)
        fresh.load(path)
        assert fresh.digest() == train.digest()
        assert [fresh.step(x=x).loss for x in X[2:5]] == [train.step(x=x).loss for x in X[2:5]]


def test_what_was_set_to_off_is_not_in_the_file(tmp_path):
    with compiled(optim.sgd(0.1)) as train, compiled(optim.sgd(0.1)) as fresh:
        train.set(momentum=0.0, clip_grad_norm=None)
        train.save(tmp_path / "never.safetensors")
        program = fresh.program
        fresh.load(tmp_path / "never.safetensors")
        assert fresh.program is program and fresh.digest() == train.digest()


@pytest.mark.parametrize("name", ["weight_decay", "momentum", "clip_grad_norm"])
def test_a_file_does_not_switch_on_what_its_loss_calls_by_an_optimizers_name(name, tmp_path):
    def named(m, x):
        return loss(m, x) + tg.hyper(name, 2.0) * tg.sum(tg.square(m.a.W))

    with compiled(optim.sgd(0.01), loss=named) as train, compiled(optim.sgd(0.01), loss=named) as other:
        train.set(**{name: -0.5})
        train.step(x=X[0]).result()
        train.save(tmp_path / "named.safetensors")
        other.load(tmp_path / "named.safetensors")
        assert [other.step(x=x).loss for x in X[1:5]] == [train.step(x=x).loss for x in X[1:5]]
