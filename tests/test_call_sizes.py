"""Sizes that each call chooses: a step at a size is the step of a training compiled for it, bit for bit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from oracle import torch
from tracegrad import nn, optim
from tracegrad.engine import forward

RNG = np.random.default_rng(14)
X = RNG.standard_normal((9, 5, 3)).astype(np.float32)
Y = RNG.standard_normal((9, 2)).astype(np.float32)
NAMED = {"x": ("B", "T", 3), "y": ("B", 2)}


class Pooled(tg.Module):
    """Averages over the second axis, and counts its steps in a state."""

    def __init__(self) -> None:
        self.a, self.b = nn.Linear(3, 8), nn.Linear(8, 2)
        self.seen = self.state((), dtype=tg.i32)

    def __call__(self, x: Any) -> Any:
        return self.b(tg.mean(tg.tanh(self.a(x)), 1))


def loss(m: Pooled, x: Any, y: Any) -> Any:
    m.seen.assign(m.seen + x.shape[0])
    return tg.mean(tg.square(tg.dropout(m(x), 0.25, True) - y)), {"rows": tg.sum(tg.ones((x.shape[0],)))}


def compiled(inputs: Any, device: str = "cpu", **more: Any) -> Any:
    given = {"model": Pooled(), "loss": loss, "inputs": inputs, "seed": 3, "device": device}
    return tg.compile(**{**given, "optimizer": optim.adamw(0.05, accumulate=2, clip_grad_norm=1.0), **more})


def batch(b: int, t: int = 5) -> dict[str, Any]:
    return {"x": X[:b, :t], "y": Y[:b]}


@pytest.mark.filterwarnings("ignore:.*software adapter")
def test_each_step_is_that_of_a_training_compiled_for_its_size(device_name: str, tmp_path: Path) -> None:
    file, sizes = tmp_path / "at.safetensors", [(9, 5), (4, 5), (9, 5), (2, 3), (4, 5), (9, 5)]
    with compiled(NAMED, device_name, max_cached_shapes=2) as train:
        pending = [train.step(batch(*size)) for size in sizes]  # all queued before the first is waited for
        assert len(train.store.stepper.sized.kept) == 2
        found, digest = [p.loss for p in pending], train.digest()
        assert [p.aux["rows"] for p in pending] == [b for b, _ in sizes]
        assert int(train.states()["seen"]) == sum(b for b, _ in sizes) and pending[-1].step == 6
        train.save(file)
        after = train.step(batch(2, 3)).loss
        train.load(file)
        assert train.digest() == digest and train.step(batch(2, 3)).loss == after
    file.unlink()
    fixed = {s: compiled({"x": (s[0], s[1], 3), "y": (s[0], 2)}, device_name) for s in set(sizes)}
    try:
        for expected, size in zip(found, sizes, strict=True):
            one = fixed[size]
            if file.exists():
                one.load(file)
            assert one.step(batch(*size)).loss == expected
            one.save(file)
        assert fixed[sizes[-1]].digest() == digest
    finally:
        for one in fixed.values():
            one.close()


def test_a_failed_step_changes_nothing_and_those_of_other_sizes_behind_it_run() -> None:
    bad = batch(4) | {"x": np.full((4, 5, 3), np.nan, np.float32)}
    with compiled(NAMED) as a, compiled(NAMED) as b:
        pending = [a.step(x) for x in (batch(9), bad, batch(2), bad, batch(9))]
        assert [isinstance(p.result(), tg.Failed) for p in pending] == [False, True, False, True, False]
        assert [pending[k].step for k in (0, 2, 4)] == [1, 2, 3]
        for size in (9, 2, 9):
            b.step(batch(size)).result()
        assert a.digest() == b.digest()


def test_sizes_of_run_steps_are_behind_the_axis_of_steps() -> None:
    with compiled({"x": (None, 5, 3), "y": (None, 2)}) as a, compiled(NAMED) as b:
        stacked = np.stack([X[:4], X[5:]])
        many = a.run_steps(2, x=stacked, y=Y[:4])
        one = [b.step(x=x, y=Y[:4]).loss for x in stacked]
        assert many.losses.tolist() == [np.float32(x) for x in one] and a.digest() == b.digest()
        # without the axis of steps, an array of the declared rank is used for all of them
        assert a.run_steps(2, x=X[:3], y=np.stack([Y[:3], Y[3:6]])).step == 4
        assert [dict(s) for s in a.store.stepper.sized.kept] == [{"None at axis 0": 4}, {"None at axis 0": 3}]


def test_values_and_frozen_parameters_hold_at_every_size() -> None:
    with compiled(NAMED, optimizer=optim.sgd(0.1)) as train:
        train.step(batch(4)).result()
        train.set(momentum=0.9)  # compiled again
        train.freeze("a.*")
        before = train.download_params()
        for size in (4, 2):
            train.step(batch(size)).result()
        after = train.download_params()
        assert all(np.array_equal(before[n], after[n]) == n.startswith("a.") for n in before)
        assert train.step(batch(4)).step == 4
        train.replace_model(Pooled())
        assert train.step(batch(2)).step == 1


def test_a_data_loader_trains_with_its_last_batch_as_in_pytorch() -> None:
    data = torch.utils.data.TensorDataset(torch.tensor(X.mean(1)), torch.tensor(Y))
    loader = torch.utils.data.DataLoader(data, batch_size=4)  # the last batch has one row
    twin = torch.nn.Linear(3, 2)
    opt = torch.optim.Adam(twin.parameters(), lr=0.05)
    expected = []
    with tg.compile(model=nn.Linear(3, 2), loss=lambda m, x, y: tg.mean(tg.square(m(x) - y)), device="cpu",
                    inputs={"x": (None, 3), "y": (None, 2)}, optimizer=optim.adam(0.05)) as train:  # fmt: skip
        train.upload_params({"W": twin.weight.detach().numpy().T, "b": twin.bias.detach().numpy()})
        history = train.fit(loader, epochs=2, progress=False)
        for x, y in [*loader, *loader]:
            opt.zero_grad()
            value = torch.mean((twin(x) - y) ** 2)
            value.backward()
            opt.step()
            expected.append(value.item())
        np.testing.assert_allclose(history.loss, expected, rtol=2e-5)
        np.testing.assert_allclose(train.download_params()["W"], twin.weight.detach().numpy().T, rtol=1e-4, atol=1e-6)


def test_a_forward_has_names_too_and_all_are_checked() -> None:
    with compiled(NAMED, max_cached_shapes=1) as train:
        infer = train.attach(forward=lambda m, x: m(x), inputs={"x": ("B", "T", 3)})
        assert infer.run(x=X[:2, :4]).output.shape == (2, 2)
        assert infer.cached_shapes == [{"B": 2, "T": 4}]
        text = str(train.step(x=X, y=Y[:4]).result().error)
        assert "dimensions named 'B' of a call must have equal sizes: x axis 0 is 9, y axis 0 is 4" in text
        assert "'T' must be at least 1" in str(train.step(x=X[:, :0], y=Y).result().error)
        assert "y: missing, expected f32[B,2]" in str(train.step(x=X).result().error)
        with pytest.raises(tg.InputError, match="take a step first"):
            train.explain()
        with pytest.raises(tg.InputError, match="each call of step chooses a size of x: f32\\[B,T,3\\]"):
            train.export("unused")
        train.step(batch(4)).result()
        assert train.explain().program.dispatches and train.profile(1).table() and train.profile(1, batch(2)).table()
    with pytest.raises(tg.InputError, match="the name of a size is made of letters"):
        compiled({"x": ("B 1", 5, 3), "y": ("B", 2)})
    with pytest.raises(tg.InputError, match=r"one axis of any size is \(None,\)"):
        compiled({"x": (9, 5, 3), "y": None})


def test_a_name_alone_is_the_shape_of_one_axis() -> None:
    declared = {"x": ("B", 3), "weight": "B"}
    forward = lambda m, x, weight: weight[:, None] * m(x)
    with tg.compile_forward(model=nn.Linear(3, 2), forward=forward, inputs=declared, device="cpu", seed=0) as f:
        for n in (4, 7):
            assert f.run(x=np.ones((n, 3)), weight=np.ones(n)).output.shape == (n, 2)


def test_a_loss_is_traced_at_compile_with_sizes_that_it_takes() -> None:
    def pairs(m: Any, x: Any) -> Any:
        assert x.shape[0] % 6 == 0, "rows come in sixes"
        return tg.mean(tg.square(m(x.reshape(-1, 2, 3)[:, 0])))

    with tg.compile(model=nn.Linear(3, 2), loss=pairs, inputs={"x": (None, 3)}, optimizer=optim.sgd(0.1),
                    device="cpu") as train:  # fmt: skip
        assert train.step(x=X.reshape(-1, 3)[:6]).step == 1
        assert "sixes" in str(train.step(x=X[0]).result().error)
    with pytest.raises(tg.ShapeError, match="matmul"):
        tg.compile(model=nn.Linear(4, 2), loss=pairs, inputs={"x": (None, 3)}, optimizer=optim.sgd(0.1), device="cpu")


def test_cached_shapes_can_be_read_while_another_thread_adds_one(monkeypatch: pytest.MonkeyPatch) -> None:
    model = nn.Linear(3, 2)
    with tg.compile_forward(model=model, forward=lambda m, x: m(x), inputs={"x": ("B", 3)}, seed=0) as f:
        for rows in (2, 3):
            f.run(x=X[:rows, 0]).result()

        def read_late(sizes: Any) -> int:
            f.run(x=X[:4, 0]).result()
            return sizes[0][1]

        monkeypatch.setattr(forward, "as_read", read_late)
        assert f.cached_shapes == [2, 3]
