"""TRACEGRAD_CHECK=1 compares every run with the reference, and names the first op that differs."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.kernel_source import Texts
from tracegrad.runtime.cpu import CpuSession


class Wave(tg.Module):
    def __init__(self) -> None:
        self.l1, self.l2 = nn.Linear(3, 8), nn.Linear(8, 1)


def predict(m: Wave, x: tg.Tensor) -> tg.Tensor:
    hidden = tg.tanh(m.l1(x))
    return m.l2(tg.dropout(tg.sin(hidden), 0.25))


def loss(m: Wave, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mse_loss(predict(m, x), y)


X, Y = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3), np.ones((4, 1), np.float32)
SHAPES = {"x": (4, 3), "y": (4, 1)}


def compiled(**how: Any) -> tg.CompiledTraining:
    return tg.compile(
        model=Wave(), loss=loss, inputs=SHAPES, optimizer=optim.adamw(lr=0.01, weight_decay=0.1), seed=0, device="cpu",
        **how,
    )  # fmt: skip


def test_steps_and_forwards_that_agree_go_on_as_usual(monkeypatch: pytest.MonkeyPatch) -> None:
    with compiled() as train:
        plain = [train.step(x=X, y=Y).loss for _ in range(4)]
        train.reset()
        monkeypatch.setenv("TRACEGRAD_CHECK", "1")
        forward = train.attach(forward=predict, inputs={"x": (None, 3)})
        assert [train.step(x=X, y=Y).loss for _ in range(3)] == plain[:3]
        assert list(train.run_steps(1, x=X, y=Y).result().losses) == plain[3:]
        assert forward.run(x=X).output.shape == (4, 1)


class Wrong(CpuSession):
    """A device whose sine is off by a thousandth: far below what an eye sees in a loss."""

    def load(self, program: tg.Program) -> int:
        wrong = r"np.sin(\1, out=\2); np.multiply(\2, np.float32(1.001), out=\2)"
        kernels = tuple(
            replace(k, texts=Texts(numpy=re.sub(r"np\.sin\((\w+), out=(\w+)\)", wrong, k.texts["numpy"])))
            for k in program.kernels
        )
        assert any("1.001" in k.texts["numpy"] for k in kernels)
        return super().load(replace(program, kernels=kernels))


def test_a_device_that_computes_a_function_wrongly_is_found_and_the_op_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tracegrad.runtime.cpu.CpuSession", Wrong)
    with compiled() as train:
        before = train.download_params()
        monkeypatch.setenv("TRACEGRAD_CHECK", "1")
        first, second = train.step(x=X, y=Y), train.step(x=X, y=Y)
        for pending in (first, second):
            failed = pending.result()
            assert isinstance(failed, tg.Failed) and isinstance(failed.error, tg.DeviceError)
            assert "first op that differs: " in str(failed.error)
            assert "tg.sin(hidden)" in str(failed.error)
            assert "step 1" in str(failed.error)
        for name, value in train.download_params().items():
            np.testing.assert_array_equal(value, before[name])
        forward = train.attach(forward=predict, inputs={"x": (None, 3)})
        with pytest.raises(tg.DeviceError, match=r"tg\.sin\(hidden\)"):
            _ = forward.run(x=X).output
        monkeypatch.delenv("TRACEGRAD_CHECK")
        assert isinstance(train.step(x=X, y=Y).result(), tg.Completed)


def test_a_constant_that_makes_the_loss_infinite_is_named() -> None:
    """No value overflows here: the label is a class that the mask excludes."""

    def masked(m: nn.Linear, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
        return tg.cross_entropy(tg.where([True, False], m(x), -np.inf), y)

    with tg.compile(
        model=nn.Linear(3, 2), loss=masked, inputs={"x": (4, 3), "y": tg.i32[4]}, optimizer=optim.sgd(lr=0.1), seed=0,
        device="cpu",
    ) as train:  # fmt: skip
        assert np.isfinite(train.step(x=X, y=[0, 0, 0, 0]).loss)
        with pytest.raises(
            tg.NonFiniteError, match=r"the loss is inf(.|\n)*infinite constant (.|\n)*tg.where"
        ) as caught:
            _ = train.step(x=X, y=[0, 1, 0, 0]).loss
    assert "reaches the result: const, f32[]" in str(caught.value)
