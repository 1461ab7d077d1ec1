"""`train.save(wait=False)`: the file of the moment of the call, whole, in order, while the training goes on."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.files import checkpoints

X = np.linspace(-1, 1, 8, dtype=np.float32).reshape(8, 1)


def compiled(device: str = "cpu") -> tg.CompiledTraining:
    return tg.compile(
        model=nn.Linear(1, 1), loss=lambda m, x: tg.mean(tg.square(m(x) - x)), inputs={"x": (8, 1)},
        optimizer=optim.adam(0.1), seed=0, device=device,
    )  # fmt: skip


@pytest.mark.parametrize("device", ["cpu", "jax"])
def test_the_file_is_that_of_the_moment_and_steps_go_on(
    device: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if device == "jax":
        pytest.importorskip("jax")
    gate, plain = threading.Event(), checkpoints.save

    def slow(*given: Any) -> None:
        assert gate.wait(60)
        plain(*given)

    with compiled(device) as train:
        train.step(x=X).result()
        train.save(tmp_path / "now.safetensors")
        monkeypatch.setattr(checkpoints, "save", slow)
        pending = train.save(tmp_path / "later.safetensors", wait=False)
        assert train.step(x=X).step == 2, "a step, while nothing was written yet"
        second = train.save(tmp_path / "later.safetensors", wait=False)
        assert pending is not None and second is not None and not pending.done() and not second.done()
        gate.set()
        assert pending.result(60) == second.result(60) == str(tmp_path / "later.safetensors")
        monkeypatch.undo()
        train.load(tmp_path / "later.safetensors")
        assert train.step(x=X).step == 3, "the second file came behind the first"


def test_parameters_and_states_alone_are_loaded_for_another_optimizer(tmp_path: Path) -> None:
    class Net(tg.Module):
        def __init__(self) -> None:
            self.norm, self.out = nn.BatchNorm(1), nn.Linear(1, 1)

    def loss(m: Net, x: Any) -> Any:
        return tg.mse_loss(m.out(m.norm(x, training=True)), x)

    def made(optimizer: Any) -> tg.CompiledTraining:
        return tg.compile(model=Net(), loss=loss, inputs={"x": (8, 1)}, optimizer=optimizer, seed=0, device="cpu")

    with made(optim.sgd(0.1, momentum=0.9)) as first, made(optim.adam(0.1)) as other:
        first.run_steps(3, x=X).result()
        first.save(tmp_path / "sgd.safetensors")
        other.step(x=X).result()
        with pytest.raises(tg.InputError, match="optimizer=False"):
            other.load(tmp_path / "sgd.safetensors")
        other.load(tmp_path / "sgd.safetensors", optimizer=False)
        for name, x in {**first.params(), **first.states()}.items():
            assert np.array_equal({**other.params(), **other.states()}[name], x)
        assert other.step(x=X).result().step == 2  # counters and state go on


def test_files_are_equal_and_an_error_is_told(tmp_path: Path) -> None:
    with compiled() as train:
        train.step(x=X).result()
        train.save(tmp_path / "a.safetensors")
        pending = train.save(tmp_path / "b.safetensors", wait=False)
        assert pending is not None and pending.result() and train.step(x=X).step == 2
        assert (tmp_path / "a.safetensors").read_bytes() == (tmp_path / "b.safetensors").read_bytes()
        failed = train.save(tmp_path / "none" / "c.safetensors", wait=False)
        assert failed is not None
        result = failed.result()
        assert isinstance(result, tg.Failed) and isinstance(result.error, OSError)
    callback = tg.Checkpoint(tmp_path / "fit.safetensors", best=None, wait=False)
    with compiled() as train:
        train.fit(x={"x": np.tile(X, (4, 1))}, epochs=3, callbacks=[callback], progress=False)
        train.save(tmp_path / "last.safetensors", wait=False).result()  # pyright: ignore[reportOptionalMemberAccess]
        train.load(tmp_path / "fit.safetensors")
        assert train.step(x=X).step == 13
