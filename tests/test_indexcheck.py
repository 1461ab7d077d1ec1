"""TRACEGRAD_CHECK=1 reports indices that the model computes and that lie outside."""

from __future__ import annotations

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim


class Table(tg.Module):
    def __init__(self) -> None:
        self.rows = nn.Embedding(5, 3)


def shifted(m: Table, k: tg.Tensor) -> tg.Tensor:
    return m.rows(k + 1)  # the last index has no row behind it


def loss(m: Table, k: tg.Tensor) -> tg.Tensor:
    return tg.mean(tg.square(shifted(m, k)))


GOOD, BAD = np.array([0, 3], np.int32), np.array([0, 4], np.int32)


def test_computed_indices_are_reported_only_when_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    inputs = {"k": tg.i32[2]}
    with tg.compile(model=Table(), loss=loss, inputs=inputs, optimizer=optim.adam(), seed=0, device="cpu") as train:
        forward = train.attach(forward=shifted, inputs=inputs)
        assert isinstance(train.step(k=BAD).result(), tg.Completed)  # clamped
        before = train.download_params()["rows.W"]
        monkeypatch.setenv("TRACEGRAD_CHECK", "1")
        for pending in (train.step(k=BAD), forward.run(k=BAD)):
            failed = pending.result()
            assert isinstance(failed, tg.Failed) and isinstance(failed.error, tg.InputError)
            assert "computed index 5 is out of range; valid are 0 to 4" in str(failed.error)
            assert "m.rows(k + 1)" in str(failed.error)
        np.testing.assert_array_equal(train.download_params()["rows.W"], before)
        assert train.step(k=GOOD).result().step == 2
        assert forward.run(k=GOOD).output.shape == (2, 3)
