"""Groups of parameters with rates and decays of their own, and parameters that steps leave alone: as in PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import lr, nn, optim
from tracegrad.errors import InputError

torch = pytest.importorskip("torch")
T = torch.optim
BATCH, STEPS = 8, 12


class Net(tg.Module):
    """A backbone of two layers and a head."""

    def __init__(self) -> None:
        self.backbone = [nn.Linear(3, 5), nn.Linear(5, 4)]
        self.head = nn.Linear(4, 2)


def loss(m: Net, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    for layer in m.backbone:
        x = tg.tanh(layer(x))
    return tg.mean(tg.square(m.head(x) - y))


INPUTS = {"x": (BATCH, 3), "y": (BATCH, 2)}


def batch(k: int) -> dict[str, Any]:
    rng = np.random.default_rng(k)
    return {"x": rng.standard_normal((BATCH, 3)).astype("f4"), "y": rng.standard_normal((BATCH, 2)).astype("f4")}


def compiled(optimizer: Any, device: str = "cpu", **more: Any) -> Any:
    return tg.compile(model=Net(), loss=loss, inputs=INPUTS, optimizer=optimizer, seed=4, device=device, **more)


class Torch:
    """The same model there, its parameters by our names."""

    def __init__(self, params: dict[str, Any]):
        self.params = {n: torch.tensor(x.copy(), requires_grad=True) for n, x in params.items()}

    def group(self, *starts: str) -> list[Any]:
        return [p for n, p in self.params.items() if n.startswith(starts)]

    def step(self, optimizer: Any, k: int) -> None:
        optimizer.zero_grad()
        x, y = (torch.tensor(v) for v in batch(k).values())
        for layer in ("backbone.0", "backbone.1"):
            x = torch.tanh(x @ self.params[f"{layer}.W"] + self.params[f"{layer}.b"])
        ((x @ self.params["head.W"] + self.params["head.b"] - y) ** 2).mean().backward()
        optimizer.step()

    def compare(self, train: Any) -> None:
        for name, x in train.download_params().items():
            np.testing.assert_allclose(x, self.params[name].detach().numpy(), rtol=2e-5, atol=2e-6, err_msg=name)


GROUPS = {"backbone.0.*": {"lr": 0.1}, "head.*": {"lr": 0.5, "weight_decay": 0.3}}
EVERY = {"decay_filter": lambda _: True, "weight_decay": 0.1}
PAIRS = {  # ours, PyTorch's, rate
    "adamw": (optim.adamw, T.AdamW, 1e-2),
    "sgd": (optim.sgd, T.SGD, 5e-2),
    "rmsprop": (optim.rmsprop, T.RMSprop, 1e-2),
    "adagrad": (optim.adagrad, T.Adagrad, 5e-2),
    "adadelta": (optim.adadelta, T.Adadelta, 1.0),
    "nadam": (optim.nadam, T.NAdam, 1e-2),
    "radam": (optim.radam, T.RAdam, 1e-2),
}


def in_groups(theirs: Torch, *values: dict[str, float]) -> list[dict[str, Any]]:
    """PyTorch's groups: of the two layers of the backbone and of the head."""
    parts = (theirs.group(start) for start in ("backbone.0", "backbone.1", "head"))
    return [{"params": part, **more} for part, more in zip(parts, values, strict=True)]


@pytest.mark.parametrize("name", PAIRS)
def test_rates_and_decays_of_groups_are_pytorchs(name: str, device_name: str) -> None:
    make, cls, rate = PAIRS[name]
    schedule = lr.exponential(rate, 0.9)
    with compiled(make(lr=schedule, groups=GROUPS, **EVERY), device_name) as train:
        theirs = Torch(train.download_params())
        low, high = {"lr": rate * 0.1}, {"lr": rate * 0.5, "weight_decay": 0.3}
        other = cls(in_groups(theirs, low, {}, high), lr=rate, weight_decay=0.1)
        following = T.lr_scheduler.ExponentialLR(other, 0.9)
        for k in range(STEPS):
            assert train.step(**batch(k)).loss > 0
            theirs.step(other, k)
            following.step()
        theirs.compare(train)


def test_other_values_of_groups_are_pytorchs(device_name: str) -> None:
    groups = {"backbone.0.*": {"beta1": 0.5, "eps": 1e-2}, "*.b": {"beta2": 0.9}}
    with compiled(optim.adam(1e-2, groups=groups), device_name) as train:
        theirs = Torch(train.download_params())
        first, biases = theirs.group("backbone.0"), [theirs.params[n] for n in ("backbone.1.b", "head.b")]
        rest = [theirs.params[n] for n in ("backbone.1.W", "head.W")]
        other = T.Adam(
            [
                {"params": first, "betas": (0.5, 0.999), "eps": 1e-2},
                {"params": biases, "betas": (0.9, 0.9)},
                {"params": rest},
            ],
            lr=1e-2,
        )
        for k in range(STEPS):
            train.step(**batch(k))
            theirs.step(other, k)
        theirs.compare(train)


def test_groups_of_adafactor_and_muon_take_rate_and_decay() -> None:
    for make, cls in ((optim.adafactor, T.Adafactor), (optim.muon, None)):
        with pytest.raises(InputError, match=r"momentum|d is not a value of a group.*it has lr, weight_decay"):
            make(groups={"head.*": {"d": 2.0, "momentum": 0.5}}, weight_decay=0.1)
        with compiled(make(1e-2, groups={"head.*": {"weight_decay": 0.5}}, **EVERY)) as train:
            theirs = Torch(train.download_params())
            if cls is None:
                assert train.step(**batch(0)).loss > 0
                continue
            other = cls(in_groups(theirs, {}, {}, {"weight_decay": 0.5}), lr=1e-2, weight_decay=0.1)
            for k in range(STEPS):
                train.step(**batch(k))
                theirs.step(other, k)
            theirs.compare(train)


def test_a_decay_that_only_a_group_has() -> None:
    with compiled(optim.sgd(0.05, groups={"head.*": {"weight_decay": 0.4}}, decay_filter=lambda _: True)) as train:
        theirs = Torch(train.download_params())
        other = T.SGD(in_groups(theirs, {}, {}, {"weight_decay": 0.4}), lr=0.05)
        for k in range(STEPS):
            train.step(**batch(k))
            theirs.step(other, k)
        theirs.compare(train)


def test_groups_change_while_training(device_name: str) -> None:
    """Values that are there change without compiling; a new group compiles once. Steps queued before keep theirs."""
    with compiled(optim.adamw(1e-2, groups=GROUPS, **EVERY), device_name) as train:
        theirs = Torch(train.download_params())
        other = T.AdamW(
            in_groups(theirs, {"lr": 1e-3}, {}, {"lr": 5e-3, "weight_decay": 0.3}), lr=1e-2, weight_decay=0.1
        )
        for k in range(4):
            train.step(**batch(k))
            theirs.step(other, k)
        program = train.program
        train.set(groups={"head.*": {"lr": 0.0}, "backbone.0.*": {"lr": 2.0}})
        assert train.program is program
        other.param_groups[2]["lr"], other.param_groups[0]["lr"] = 0.0, 2e-2
        for k in range(4, 8):
            train.step(**batch(k))
            theirs.step(other, k)
        train.set(groups={"backbone.1.*": {"lr": 0.25}, "head.*": {"lr": 1.0}})
        assert train.program is not program
        other.param_groups[1]["lr"], other.param_groups[2]["lr"] = 0.25e-2, 1e-2
        for k in range(8, STEPS):
            train.step(**batch(k))
            theirs.step(other, k)
        theirs.compare(train)


def test_what_groups_cannot_be() -> None:
    for groups, said in [
        ({"head.*": {"learning_rate": 0.1}}, r"groups\['head.\*'\]: learning_rate is not a value of a group"),
        ({"head.*": {"clip_grad_norm": 0.1}}, "clip_grad_norm is not a value"),
        ({"head.*": {"lr": -1.0}}, "lr must be at least 0"),
        ({"head.*": 0.1}, "must be a dict of values"),
        ({3: {"lr": 0.1}}, "chosen by a pattern"),
        ([("head.*", {})], "groups map patterns to values"),
    ]:
        with pytest.raises(InputError, match=said):
            optim.adamw(1e-2, clip_grad_norm=1.0, groups=groups)
    with pytest.raises(InputError, match=r"'heads.\*' matches no parameter; they are backbone.0.W"):
        compiled(optim.adamw(1e-2, groups={"heads.*": {"lr": 0.1}}))
    with compiled(optim.adamw(1e-2, groups=GROUPS)) as train:
        before = train.digest()
        for given in ({"nothing.*": {"lr": 1.0}}, {"head.*": {"lr": -1.0}}, {"head.*": {"nope": 1.0}}, 3):
            with pytest.raises(InputError):
                train.set(groups=given)
        assert train.digest() == before


def test_groups_keep_one_launch_and_choose_by_functions() -> None:
    plain, grouped = optim.adamw(1e-2), optim.adamw(1e-2, groups={lambda name: name.endswith("b"): {"lr": 0.5}})
    with compiled(plain) as a, compiled(grouped) as b:
        assert len(a.program.dispatches) == len(b.program.dispatches)
        first = a.download_params()
        for train in (a, b):
            train.step(**batch(0))
        changes = [{n: x - first[n] for n, x in t.download_params().items()} for t in (a, b)]
    for name in first:
        np.testing.assert_allclose(changes[1][name], changes[0][name] * (0.5 if name.endswith("b") else 1.0), atol=1e-7)


def frozen_step(theirs: Torch, other: Any, k: int, *names: str) -> None:
    """PyTorch leaves alone what has no gradient."""
    for n, p in theirs.params.items():
        p.requires_grad_(not n.startswith(names) if names else True)
        p.grad = None
    theirs.step(other, k)


@pytest.mark.parametrize("clip", [None, 0.1])
def test_freezing_is_pytorchs(clip: float | None, device_name: str) -> None:
    """No update, no decay, no change of state, no part in the norm; then as if the steps between had not been."""
    if clip is None:
        optimizer, make = optim.sgd(0.05, momentum=0.9, **EVERY), lambda ps: T.SGD(ps, 0.05, 0.9, weight_decay=0.1)
    else:
        optimizer, make = optim.sgd(0.05, clip_grad_norm=clip, **EVERY), lambda ps: T.SGD(ps, 0.05, weight_decay=0.1)
    with compiled(optimizer, device_name) as train:
        theirs = Torch(train.download_params())
        other = make(list(theirs.params.values()))
        if clip is not None:
            step = other.step
            other.step = lambda: (torch.nn.utils.clip_grad_norm_(theirs.params.values(), clip), step())  # type: ignore
        programs = set()
        for k, names in enumerate([(), ("backbone",), ("backbone",), ("head", "backbone.0"), (), ()]):
            if k:
                train.unfreeze()
                programs.add(id(train.program))
            if names:
                train.freeze([f"{n}.*" for n in names])
            train.step(**batch(k)).result()
            frozen_step(theirs, other, k, *names)
            theirs.compare(train)
        assert len(programs) == 1  # compiled once, at the first call


COUNTING = {  # ours, PyTorch's: what depends on the number of updates, which PyTorch counts for each parameter
    "adam": (optim.adam(1e-2), lambda ps: T.Adam(ps, 1e-2)),
    "nadam": (optim.nadam(1e-2, momentum_decay=0.2), lambda ps: T.NAdam(ps, 1e-2, momentum_decay=0.2)),
    "radam": (optim.radam(1e-2, beta2=0.6), lambda ps: T.RAdam(ps, 1e-2, betas=(0.9, 0.6))),
    "adagrad": (optim.adagrad(5e-2, lr_decay=0.5), lambda ps: T.Adagrad(ps, 5e-2, lr_decay=0.5)),
    "adafactor": (optim.adafactor(0.5), lambda ps: T.Adafactor(ps, 0.5)),
}


@pytest.mark.parametrize("name", COUNTING)
def test_each_parameter_counts_its_own_updates(name: str, device_name: str, tmp_path: Path) -> None:
    """Frozen from the beginning, or for some steps, and thawed; through a file into a training that never froze."""
    optimizer, make = COUNTING[name]
    with compiled(optimizer, device_name) as train:
        theirs = Torch(train.download_params())
        other = make(list(theirs.params.values()))
        train.freeze("backbone.0.*")
        for k, names in enumerate([("backbone.0",), ("backbone.0",), ("backbone.0", "head"), ("head",), (), ()]):
            train.unfreeze()
            if names:
                train.freeze([f"{n}.*" for n in names])
            train.step(**batch(k)).result()
            frozen_step(theirs, other, k, *names)
            theirs.compare(train)
        train.save(tmp_path / "t")
        frozen_step(theirs, other, 6)
        if device_name != "cpu":
            return
    with compiled(optimizer) as train:
        train.save(tmp_path / "before")
        train.load(tmp_path / "t")
        train.step(**batch(6)).result()
        theirs.compare(train)
        train.load(tmp_path / "before")  # a file without counts: nothing has missed a step
        train.step(**batch(0)).result()
        with compiled(optimizer) as fresh:
            fresh.step(**batch(0)).result()
            for n, x in fresh.download_params().items():
                np.testing.assert_allclose(train.download_params()[n], x, rtol=1e-6, atol=1e-7)


def test_updates_of_accumulated_gradients_are_counted_for_each_parameter() -> None:
    with compiled(optim.adam(1e-2, accumulate=2)) as train, compiled(optim.adam(1e-2, accumulate=2)) as late:
        first = train.download_params()
        late.freeze("head.*")
        for _ in range(4):
            late.step(**batch(0))
        late.set_params(first)
        late.unfreeze()
        for one in (train, late):
            one.run_steps(2, **batch(0)).result()
        for n in ("head.W", "head.b"):
            np.testing.assert_allclose(late.download_params()[n], train.download_params()[n], rtol=1e-5, atol=1e-6)


def test_gradients_collected_before_a_freeze_have_no_part_in_the_norm() -> None:
    optimizer = optim.sgd(0.1, accumulate=2, clip_grad_norm=1e-2)
    with compiled(optimizer) as train, compiled(optimizer, frozen="head.*") as never:
        train.step(**batch(0))
        train.freeze("head.*")
        train.step(**batch(1)).result()
        never.step(**batch(0))
        never.step(**batch(1)).result()
        for n, x in never.download_params().items():
            np.testing.assert_allclose(train.download_params()[n], x, rtol=1e-6, atol=1e-7)
        train.unfreeze()
        before = train.download_params()["head.W"]
        train.run_steps(2, **batch(2)).result()  # with what was collected before
        assert (train.download_params()["head.W"] != before).all()


@pytest.mark.parametrize(
    "make", [optim.adamw, optim.adafactor, optim.muon, optim.nadam, optim.lamb], ids=lambda f: f.__name__
)
def test_freezing_leaves_every_state_alone(make: Any, tmp_path: Path) -> None:
    def states(train: Any) -> dict[str, Any]:
        train.save(tmp_path / "now")
        tensors = tg.safetensors.read(tmp_path / "now").tensors
        return {name: x for name, x in tensors.items() if "freeze-missed" not in name}

    with compiled(make(1e-2, ema=0.9)) as train:
        train.step(**batch(0)).result()
        train.freeze("*")
        before = states(train)
        train.step(**batch(1)).result()
        for name, x in states(train).items():
            np.testing.assert_array_equal(x, before[name], err_msg=name)
        train.unfreeze("head.*")
        train.step(**batch(2)).result()
        after = states(train)
        changed = {n for n, x in after.items() if not np.array_equal(x, before[n])}
        assert {"param/head.W", "param/head.b"} <= changed
        assert not [n for n in changed if "backbone" in n]


def test_checkpoints_hold_groups_and_what_is_frozen(tmp_path: Path) -> None:
    path = tmp_path / "t.safetensors"
    with compiled(optim.adamw(1e-2, groups=GROUPS)) as train:
        train.freeze("backbone.1.*")
        train.set(groups={"head.*": {"lr": 0.75}})
        train.step(**batch(0))
        train.save(path)
        train.step(**batch(1))
        want = train.digest()
    with compiled(optim.adamw(1e-2, groups=GROUPS)) as train:
        train.load(path)
        train.step(**batch(1))
        assert train.digest() == want
        train.reset()  # what is frozen stays so
        first = train.download_params()
        train.step(**batch(2)).result()
        np.testing.assert_array_equal(train.download_params()["backbone.1.W"], first["backbone.1.W"])


def test_what_is_frozen_at_compile_has_no_gradient() -> None:
    class Fixed(Net):
        def __init__(self) -> None:
            self.backbone = [nn.Linear(3, 5, trainable=False), nn.Linear(5, 4, trainable=False)]
            self.head = nn.Linear(4, 2)

    optimizer = optim.adamw(1e-2, **EVERY)
    with (
        compiled(optimizer) as free,
        compiled(optimizer, frozen="backbone.*", keep_grads=True) as train,
        tg.compile(model=Fixed(), loss=loss, inputs=INPUTS, optimizer=optimizer, seed=4, device="cpu") as fixed,
    ):
        assert len(train.program.dispatches) < len(free.program.dispatches)
        theirs = Torch(train.download_params())
        other = T.AdamW(theirs.group("head"), lr=1e-2, weight_decay=0.1)
        for k in range(STEPS):
            train.step(**batch(k))
            fixed.step(**batch(k))
            frozen_step(theirs, other, k, "backbone")
        theirs.compare(train)
        theirs.compare(fixed)
        assert train.download_grads().keys() == {"head.W", "head.b"}
        infer = train.attach(
            forward=lambda m, x: m.head(tg.tanh(m.backbone[1](tg.tanh(m.backbone[0](x))))), inputs={"x": (None, 3)}
        )
        x = batch(0)["x"]
        now = train.download_params()
        want = np.tanh(
            np.tanh(x @ now["backbone.0.W"] + now["backbone.0.b"]) @ now["backbone.1.W"] + now["backbone.1.b"]
        )
        np.testing.assert_allclose(infer.run(x=x).output, want @ now["head.W"] + now["head.b"], rtol=1e-5, atol=1e-6)
        with pytest.raises(InputError, match="compiled without a gradient"):
            train.unfreeze("backbone.*")


def test_freezing_names_what_is_there() -> None:
    with compiled(optim.adam(1e-2)) as train:
        program = train.program
        with pytest.raises(InputError, match=r"freeze: 'tail.\*' matches no parameter; they are"):
            train.freeze("tail.*")
        assert train.program is program
    with pytest.raises(InputError, match=r"frozen: 'tail.\*' matches no parameter"):
        compiled(optim.adam(1e-2), frozen="tail.*")
    with pytest.raises(tg.TraceError, match=r"nn.Linear\(..., trainable=False\).*frozen='layer"):
        Net().head.W.requires_grad = False


def test_steps_queued_before_are_as_they_were_called() -> None:
    with compiled(optim.sgd(0.1)) as train, compiled(optim.sgd(0.1)) as other:
        pending = [train.step(**batch(k)) for k in range(5)]
        train.freeze("*")
        train.step(**batch(6)).result()
        for k in range(5):
            other.step(**batch(k))
        want = other.download_params()
        for name, x in train.download_params().items():
            np.testing.assert_array_equal(x, want[name])
        assert all(p.result().loss > 0 for p in pending)
