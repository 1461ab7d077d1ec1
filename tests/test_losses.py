"""Several losses of one model: a step of each on the same parameters and states, against PyTorch, step by step."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from oracle import torch
from tracegrad import nn, optim
from tracegrad.optim.arena import parts_of

RNG = np.random.default_rng(15)
X = RNG.standard_normal((12, 8, 3)).astype(np.float32)
CLOSE = {"rtol": 2e-4, "atol": 2e-6}


class Two(tg.Module):
    """Discriminator and generator, or critic and actor behind an encoder."""

    def __init__(self) -> None:
        self.enc, self.D, self.G = nn.Linear(3, 6), nn.Linear(6, 1), nn.Linear(6, 3)


def d_loss(m: Any, x: Any, z: Any) -> Any:
    fake = tg.tanh(m.enc(m.G(tg.tanh(m.enc(z)))))
    return tg.mean(tg.softplus(-m.D(tg.tanh(m.enc(x))))) + tg.mean(tg.softplus(m.D(fake)))


def g_loss(m: Any, z: Any) -> Any:
    return tg.mean(tg.softplus(-m.D(tg.tanh(m.enc(m.G(tg.tanh(m.enc(z))))))))


LOSSES = {"d": d_loss, "g": g_loss}
APART = {"d": "D.*", "g": "G.*"}
ADAMS = {"d": optim.adam(0.05), "g": optim.adamw(0.02, weight_decay=0.1)}


def compiled(device: str = "cpu", **more: Any) -> Any:
    given = {
        "model": Two(),
        "losses": LOSSES,
        "inputs": {"x": (8, 3), "z": (8, 3)},
        "optimizer": ADAMS,
        "params": APART,
    }
    return tg.compile(**{**given, "seed": 1, "device": device, **more})


class Twin:
    """The same model in PyTorch, with an optimizer for each loss. `steps` gives the loss of each step."""

    def __init__(self, first: Mapping[str, Any], optimizers: Mapping[str, Any], chosen: Mapping[str, str]) -> None:
        self.p = {n: torch.tensor(x, requires_grad=True) for n, x in first.items()}
        self.opt = {k: make([self.p[n] for n in self.p if n[0] in chosen[k]]) for k, make in optimizers.items()}

    def linear(self, name: str, x: Any) -> Any:
        return x @ self.p[f"{name}.W"] + self.p[f"{name}.b"]

    def loss(self, k: str, x: Any, z: Any) -> Any:
        h = torch.nn.functional.softplus
        fake = self.linear("D", self.linear("enc", self.linear("G", self.linear("enc", z).tanh())).tanh())
        if k == "g":
            return h(-fake).mean()
        return h(-self.linear("D", self.linear("enc", x).tanh())).mean() + h(fake).mean()

    def step(self, k: str, x: Any, z: Any) -> float:
        for one in self.p.values():
            one.grad = None
        value = self.loss(k, torch.tensor(x), torch.tensor(z))
        value.backward()
        self.opt[k].step()
        return value.item()


def follow(train: Any, twin: Twin, schedule: str) -> None:
    """Do the steps in both, and compare losses and parameters after each."""
    for k, name in enumerate(schedule):
        x, z = X[k], X[-1 - k]
        given = {"x": x, "z": z} if name == "d" else {"z": z}
        assert train.step(name, given).loss == pytest.approx(twin.step(name, x, z), rel=1e-4)
        for n, value in train.download_params().items():
            np.testing.assert_allclose(value, twin.p[n].detach().numpy(), err_msg=f"{n} after step {k}", **CLOSE)


@pytest.mark.filterwarnings("ignore:.*software adapter")
def test_a_gan_with_two_optimizers_is_pytorchs(device_name: str) -> None:
    with compiled(device_name) as train:
        twin = Twin(
            train.download_params(),
            {"d": lambda p: torch.optim.Adam(p, 0.05),
             "g": lambda p: torch.optim.AdamW([{"params": [p[0]], "weight_decay": 0.1},
                                               {"params": [p[1]], "weight_decay": 0.0}], 0.02)},
            {"d": "D", "g": "G"},
        )  # fmt: skip
        follow(train, twin, "ddgdgg")
        assert [train.store.steppers[k].counter for k in "dg"] == [3, 3]


def test_an_actor_and_a_critic_share_an_encoder(c_compiler: None) -> None:
    """Both train it, each with optimizer state of its own."""
    params = {"d": ["enc.*", "D.*"], "g": lambda name: not name.startswith("D")}
    optimizers = {"d": optim.sgd(0.1, momentum=0.9, weight_decay=0.01, decay_filter=lambda name: name == "D.W"),
                  "g": optim.adam(0.01, ema=0.5)}  # fmt: skip
    with compiled(params=params, optimizer=optimizers) as train:

        def sgd(p: Any) -> Any:
            groups = [{"params": [x], "weight_decay": 0.01 * (x.shape == (6, 1))} for x in p]
            return torch.optim.SGD(groups, 0.1, momentum=0.9)

        chosen = {"d": "eD", "g": "eG"}
        twin = Twin(train.download_params(), {"d": sgd, "g": lambda p: torch.optim.Adam(p, 0.01)}, chosen)
        follow(train, twin, "dgdggd")
        sizes = {f.name: f.size for s in train.store.steppers.values() for f in s.program.states if "/" in f.name}
        assert sizes["d/momentum"] == 24 + 7 and sizes["g/ema"] == 24 + 21
        averaged, now = train.download_params(ema=True), train.download_params()
        assert {n for n in now if not np.array_equal(averaged[n], now[n])} == {"enc.W", "enc.b", "G.W", "G.b"}


@pytest.mark.filterwarnings("ignore:the loss does not use D")
def test_three_losses_whose_parameters_have_no_order_without_holes() -> None:
    trains = {"x": {"a": True, "b": True}, "y": {"b": True, "c": False}, "z": {"c": True, "a": True}}
    parts = parts_of({"a": (4,), "b": (2,), "c": (3,)}, trains)
    assert sum(len(p.holes) for p in parts.values()) == 1 and all(p.shared for p in parts.values())
    assert parts_of({"a": (4,), "b": (2,)}, {"x": {"b": True}})["x"].whole.size == 2
    losses = {"x": lambda m, x: tg.mean(tg.square(m.enc(x))), "d": d_loss, "g": g_loss}
    chosen = {"x": "eD", "d": "DG", "g": "eG"}
    params = {k: [f"{n}*" for n in names] for k, names in chosen.items()}
    with compiled(losses=losses, params=params, optimizer=dict.fromkeys(losses, optim.adamw(0.05, 0.1))) as train:
        assert [p for p in (s.source.part.holes for s in train.store.steppers.values()) if p]

        def adamw(p: Any) -> Any:
            return torch.optim.AdamW([{"params": [x], "weight_decay": 0.1 * (x.ndim == 2)} for x in p], 0.05)

        twin = Twin(train.download_params(), dict.fromkeys("dg", adamw), chosen)
        follow(train, twin, "dgdgd")


class Bandit(tg.Module):
    """A Q network, and its target in states."""

    def __init__(self) -> None:
        self.q = nn.Linear(3, 2)
        self.target = nn.as_states(self.q)


def td_loss(m: Any, x: Any, z: Any) -> Any:
    return tg.mean(tg.square(tg.max(m.q(x), 1) - 0.9 * tg.max(m.target(z), 1) - 1.0))


def sync(m: Any) -> Any:
    m.target.W.assign(m.q.W)
    m.target.b.assign(m.q.b)
    return m.q.b


def test_a_dqn_with_a_target_network_in_states() -> None:
    losses = {"td": td_loss, "prior": lambda m, x: tg.mean(tg.square(m.q(x) - m.target(x)))}
    optimizers = {"td": optim.adam(0.05), "prior": optim.sgd(0.1)}
    with compiled(model=Bandit(), losses=losses, params=None, optimizer=optimizers,
                  inputs={"x": (None, 3), "z": (None, 3)}) as train:  # fmt: skip
        copy = train.attach(forward=sync, inputs={}, writes=True)
        first = train.download_params()
        q = torch.nn.Linear(3, 2)
        with torch.no_grad():
            q.weight.copy_(torch.tensor(first["q.W"].T)), q.bias.copy_(torch.tensor(first["q.b"]))
        target, opts = torch.nn.Linear(3, 2), {"td": torch.optim.Adam(q.parameters(), 0.05),
                                               "prior": torch.optim.SGD(q.parameters(), 0.1)}  # fmt: skip
        target.load_state_dict(q.state_dict())
        found: list[Any] = []
        expected: list[float] = []
        for k, name in enumerate(["td", "td", "sync", "prior", "td", "sync", "td", "prior", "td"]):
            x, z = X[k, : 8 - k % 3], X[-1 - k, : 8 - k % 3]  # three sizes
            if name == "sync":
                copy.run()
                target.load_state_dict(q.state_dict())
                continue
            found.append(train.step(name, {"x": x, "z": z} if name == "td" else {"x": x}))  # nothing waits in between
            a, b = torch.tensor(x), torch.tensor(z)
            value = (q(a) - target(a)).square().mean()
            if name == "td":
                value = (q(a).max(1).values - 0.9 * target(b).max(1).values.detach() - 1).square().mean()
            opts[name].zero_grad(), value.backward(), opts[name].step()
            expected.append(value.item())
        np.testing.assert_allclose([p.loss for p in found], expected, rtol=1e-4, atol=1e-6)
        assert [p.step for p in found] == [1, 2, 1, 3, 4, 2, 5]
        np.testing.assert_allclose(train.download_params()["q.W"], q.weight.detach().numpy().T, **CLOSE)


def batches(schedule: str) -> Iterator[tuple[str, dict[str, Any]]]:
    for k, name in enumerate(schedule):
        yield name.lower(), {"x": X[k], "z": X[k + 1]} if name in "dD" else {"z": X[k]}


@pytest.mark.parametrize("checked", ["0", "1"])
def test_a_failed_step_of_one_loss_leaves_both_and_those_behind_it_run(checked: str, monkeypatch: Any) -> None:
    monkeypatch.setenv("TRACEGRAD_CHECK", checked)
    bad = {"z": np.full((8, 3), np.nan, np.float32)}
    given = [*batches("dgdgd")]
    with compiled() as a, compiled() as b:
        pending = [a.step(*one) for one in [*given[:2], ("g", bad), *given[2:4], ("d", {**bad, "x": X[0]}), given[4]]]
        assert [isinstance(p.result(), tg.Failed) for p in pending] == [False, False, True, False, False, True, False]
        for one in given:
            b.step(*one).result()
        assert a.digest() == b.digest() and [s.counter for s in a.store.steppers.values()] == [3, 2]


def noisy(m: Any, z: Any) -> Any:
    return tg.mean(tg.square(m.G(tg.tanh(m.enc(z))) - tg.randn((8, 3))))


@pytest.mark.filterwarnings("ignore:the loss does not use D")
def test_checkpoints_hold_all_losses(tmp_path: Path) -> None:
    file = tmp_path / "two.safetensors"
    losses = {"d": d_loss, "g": noisy}
    with compiled(losses=losses) as a, compiled(losses=losses, seed=5) as b, compiled(losses={"d": d_loss, "h": g_loss},
            optimizer={"d": ADAMS["d"], "h": ADAMS["g"]}, params=None) as other:  # fmt: skip
        for one in batches("dgg"):
            a.step(*one).result()
        a.set(loss="g", weight_decay=0.2)
        a.set_lr(tg.lr.linear(0.1, 0.0, 10), loss="d")
        a.freeze("G.b")
        frozen = a.download_params()["G.b"]
        a.step("d", x=X[0], z=X[1]).result()
        a.save(file)
        b.load(file)
        assert b.digest() == a.digest() and b.seed == 1
        for name, given in batches("gdgd"):
            assert a.step(name, given).loss == b.step(name, given).loss
        assert a.digest() == b.digest() and np.array_equal(a.download_params()["G.b"], frozen)
        assert {"opt/d/m/D.W", "opt/g/v/G.b"} <= tg.safetensors.read(file).tensors.keys()
        with pytest.raises(tg.InputError, match="this training has"):
            other.load(file)
        alone = tg.compile(model=Two(), loss=noisy, inputs={"z": (8, 3)}, optimizer=optim.adam(), device="cpu")
        with alone, pytest.raises(tg.InputError, match="the optimizer is another"):
            alone.load(file)


@pytest.mark.filterwarnings("ignore:the loss does not use D")
def test_each_loss_has_random_numbers_and_values_of_its_own() -> None:
    losses = {"a": noisy, "b": noisy}
    with compiled(losses=losses, optimizer={"a": optim.sgd(0.0), "b": optim.sgd(0.0)}, params=None, keep_grads=True,
                  inputs={"z": (8, 3)}) as train, tg.compile(model=Two(), loss=noisy, inputs={"z": (8, 3)},
                  optimizer=optim.sgd(0.0), seed=1, device="cpu") as one:  # fmt: skip
        first, second = (train.run_steps(name, 3, z=X[0]).losses.tolist() for name in losses)
        assert not {*first} & {*second} and one.run_steps(3, z=X[0]).losses.tolist() == first
        train.reset()
        assert train.run_steps("b", 3, {"z": X[0]}).losses.tolist() == second
        assert train.run_steps("a", 2, z=X[0]).losses.tolist() == first[:2]
        grads = {name: train.download_grads(loss=name) for name in losses}
        assert not np.array_equal(grads["a"]["G.W"], grads["b"]["G.W"])
        train.set_lr(0.5, loss="b")
        before = train.download_params()
        train.step("a", z=X[0]).result()
        assert np.array_equal(before["G.W"], train.download_params()["G.W"])
        train.step("b", z=X[0]).result()
        assert not np.array_equal(before["G.W"], train.download_params()["G.W"])
        infer = train.attach(forward=lambda m, z: m.G(tg.tanh(m.enc(z))), inputs={"z": (8, 3)})
        assert infer.run(z=X[0]).output.shape == (8, 3)
        train.replace_model(Two(), seed=2, optimizer={"a": optim.adam(0.1)})
        assert train.step("b", z=X[0]).step == 1 and train.input_names == ["z"]


def test_what_is_looked_at_is_of_a_loss() -> None:
    with compiled() as train:
        assert train.memory["state"] < 3 * train.memory["param"] and train.memory["grad"] < train.memory["param"]
        assert "g/m" in str(train.why("g/m", loss="g")) and train.explain(loss="g").program is not train.program
        assert train.profile(1, loss="g").table() and "step 0 of d, step 0 of g" in repr(train)


def test_what_is_refused_says_what_to_write() -> None:
    def error(call: Any) -> str:
        with pytest.raises(tg.TracegradError) as caught:
            call()
        return str(caught.value)

    with compiled() as train:
        assert "say which loss is meant, as in train.step('d', ...); the losses are 'd', 'g'" in str(
            train.step(z=X[0]).result().error)  # fmt: skip
        assert "there is no loss 'e'" in str(train.run_steps("e", 2, z=X[0]).result().error)
        assert "x: unknown; inputs are z f32[8,3]" in str(train.step("g", x=X[0], z=X[0]).result().error)
        assert "train.set_lr(..., loss='d')" in error(lambda: train.set_lr(0.1))
        assert "schedule must be a sequence of names of losses" in error(
            lambda: train.export("unused", schedule=("d", "e"))
        )
    assert "optimizer: missing for the loss 'g'" in error(lambda: compiled(optimizer={"d": optim.adam()}))
    assert "params: there is no loss 'e'" in error(lambda: compiled(params={"e": "*"}))
    assert "'Q.*' matches no parameter" in error(lambda: compiled(params={"d": "Q.*"}))
    assert "no loss takes" in error(lambda: compiled(inputs={"x": (8, 3), "z": (8, 3), "y": (8,)}))
    assert "leave out one" in error(lambda: compiled(loss=d_loss))
    assert "cannot name a loss" in error(lambda: compiled(losses={"a b": d_loss}))
    assert "such as 'a_b'" in error(lambda: compiled(losses={"a b": d_loss}))
    assert "such as 'state_loss'" in error(lambda: compiled(losses={"state": d_loss}))
    assert "give one for each by name" in error(lambda: compiled(losses={}))


def test_what_is_not_trainable_stays() -> None:
    class Fixed(Two):
        def __init__(self) -> None:
            super().__init__()
            self.G = nn.Linear(6, 3, trainable=False)

    with compiled(model=Fixed(), params={"d": "D.*"}) as train:
        before = train.download_params()
        assert train.step("g", z=X[0]).loss > 0
        for name, value in train.download_params().items():
            assert np.array_equal(value, before[name]) == name.startswith("G."), name


def test_a_loss_with_options_takes_all_inputs() -> None:
    def both(m: Any, x: Any, **others: Any) -> Any:
        return d_loss(m, x, others["z"])

    with compiled(losses={"d": both, "g": g_loss}) as train, compiled() as named:
        assert train.step("d", x=X[0], z=X[1]).loss == named.step("d", x=X[0], z=X[1]).loss


def test_one_optimizer_serves_all_losses_with_states_of_their_own() -> None:
    one = optim.adam(1e-2)
    with compiled(optimizer=one) as train, compiled(optimizer={"d": one, "g": one}) as alone:
        for t in (train, alone):
            t.step("d", x=X[0], z=X[1]), t.step("g", z=X[2])
        assert train.digest() == alone.digest()


def test_fit_gives_each_loss_its_turns() -> None:
    data = [{"x": x, "z": z} for x, z in zip(X[:6], X[6:], strict=True)]
    with compiled() as train, compiled() as alone:
        h = train.fit(data, epochs=2, schedule=("d", "d", "g"), progress=False)
        want = list[float]()
        for k, batch in enumerate([*data, *data]):
            step = alone.step("g", z=batch["z"]) if k % 3 == 2 else alone.step("d", **batch)
            want.append(step.loss)
        assert h.loss == want and train.digest() == alone.digest()
        assert h.step == [*range(1, 13)] and h.turn == ["d", "d", "g"] * 4
        frame = h.to_frame()
        assert list(frame["d/loss"].dropna().index) == [1, 2, 4, 5, 7, 8, 10, 11]
        assert list(frame["g/loss"].dropna()) == want[2::3]
        records, rates = list[dict[str, Any]](), list[float]()
        train.set_lr(0.5, loss="g")
        train.fit(data[:3], schedule=("d", "d", "g"), log=records.append, on_step=lambda s: rates.append(s.lr),
                  progress=False)  # fmt: skip
        assert [[*r] for r in records] == [["step", "d/loss"]] * 2 + [["step", "g/loss"]]
        assert [r["step"] for r in records] == [13, 14, 15] and rates[2] == 0.5 != rates[1]
        with pytest.raises(tg.InputError, match=r"name their order, as in schedule=\('d', 'g'\)"):
            train.fit(data)
        with pytest.raises(tg.InputError, match=r"must be a sequence of names of losses.*got 'd'"):
            train.fit(data, schedule="d")
        with pytest.raises(tg.InputError, match="use evaluate="):
            train.fit(data, schedule=("d", "g"), validation=data)
        digests, values = list[str](), iter([1.0, 2.0])

        def evaluate(t: Any) -> dict[str, float]:
            digests.append(t.digest())
            return {"wrong": next(values)}

        patient = tg.EarlyStopping("wrong", patience=1)
        train.fit(data, epochs=9, schedule=("d", "g"), evaluate=evaluate, callbacks=[patient], progress=False)
        assert len(digests) == 2 and train.digest() == digests[0]


@pytest.mark.parametrize("of", [tg.cross_entropy, tg.nll_loss])
@pytest.mark.parametrize("ignored", [(1, 2), 1.5, True])
def test_only_an_integer_is_ignored(of: Any, ignored: Any) -> None:
    with pytest.raises(tg.ShapeError, match="ignore_index must be an integer"):
        of(np.zeros((2, 3), np.float32), np.array([0, 1]), ignore_index=ignored)
