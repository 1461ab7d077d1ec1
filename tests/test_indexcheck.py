"""TRACEGRAD_CHECK=1 reports indices that the model computes and that lie outside."""

from __future__ import annotations

from typing import Any

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


class Tables(tg.Module):
    def __init__(self) -> None:
        self.rows = nn.Embedding(5, 3)


SLICES: dict[str, tuple[Any, list[tuple[int, int]]]] = {  # how elements are picked, and which of [3, 4] are used
    "a column": (lambda k: k[:, 1], [(r, 1) for r in range(3)]),
    "backwards": (lambda k: tg.flip(k, 1)[:, :2].T, [(r, c) for r in range(3) for c in (2, 3)]),
    "rows, then columns": (lambda k: k[1:][:, 2:], [(1, 2), (1, 3), (2, 2), (2, 3)]),
    "two": (lambda k: tg.concat([k[:2, 0], k[1:, 1]]), []),
    "reshaped": (lambda k: k.reshape(12)[:2], []),
    "all": (lambda k: k, []),
}


@pytest.mark.parametrize("name", SLICES)
def test_only_elements_that_are_used_must_be_in_range(name: str, device_name: str) -> None:
    pick, used = SLICES[name]
    inputs = {"k": tg.i32[3, 4]}
    with tg.compile_forward(
        model=Tables(), forward=lambda m, k: m.rows(pick(k)), inputs=inputs, seed=0, device=device_name
    ) as forward:
        for at in np.ndindex(3, 4):
            k = np.ones((3, 4), np.int32)
            k[at] = 7
            result = forward.run(k=k).result()
            if used:
                assert isinstance(result, tg.Failed) == (at in used), at
            if isinstance(result, tg.Failed):
                assert f"value 7 at [{at[0]},{at[1]}] is out of range" in str(result.error)


@pytest.mark.parametrize("weight", [None, np.ones(3, np.float32)])
@pytest.mark.parametrize("op", [tg.cross_entropy, tg.nll_loss])
def test_a_gradient_alone_checks_the_classes_of_its_loss(op: Any, weight: Any) -> None:
    def slopes(x: Any, t: Any) -> Any:
        return tg.grad(lambda x: op(x, t, weight=weight, ignore_index=9))(x)

    x = np.zeros((2, 3), np.float32)
    with pytest.raises(IndexError, match="value 7 is out of range"):
        tg.grad(lambda x, t: op(x, t, weight=weight))(x, np.array([7, 0], np.int32))
    inputs = {"x": (2, 3), "t": tg.i32[2]}
    with tg.compile_forward(model={}, forward=lambda m, x, t: slopes(x, t), inputs=inputs, device="cpu") as forward:
        failed = forward.run(x=x, t=np.array([7, 0], np.int32)).result()
        assert isinstance(failed, tg.Failed) and "7" in str(failed.error)
        assert forward.run(x=x, t=np.array([9, 0], np.int32)).output[0].tolist() == [0.0, 0.0, 0.0]
