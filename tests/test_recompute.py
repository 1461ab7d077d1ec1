"""Large elementwise values are computed again in the backward pass: the same numbers, in less memory."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from memory_check import check_memory, planned_training
from models import BUDGET, SMALL, Training, gpt
from tracegrad import optim
from tracegrad.compiler.build import build_training
from tracegrad.compiler.inputtypes import concrete_type
from tracegrad.passes import recompute

GPT = gpt(batch=2, vocabulary=11, context=8, width=8, layers=2, p=0.1)
TRAININGS = (*SMALL, GPT)


def temporaries(t: Training) -> int:
    return sum(b.size for b in t.build().program.buffers if b.role == "temp")


def trained(t: Training, steps: int = 3) -> tuple[list[float], dict[str, Any]]:
    """Losses and parameters of a few steps on the CPU."""
    rng = np.random.default_rng(0)
    arguments = t.arguments()
    types = {n: concrete_type(n, spec) for n, spec in arguments["inputs"].items()}
    with tg.compile(**arguments, seed=0, device="cpu") as train:
        losses = []
        for _ in range(steps):
            batch = {n: rng.uniform(0, 5, x.shape).astype(x.dtype.numpy) for n, x in types.items()}
            losses.append(train.step(batch).loss)
        return losses, train.download_params()


@pytest.mark.parametrize("t", TRAININGS, ids=repr)
def test_the_numbers_are_the_same(t: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = trained(t)
    monkeypatch.setattr(recompute, "FROM", 1)
    again = trained(t)
    np.testing.assert_allclose(again[0], kept[0], rtol=1e-6)
    for name, x in kept[1].items():
        np.testing.assert_allclose(again[1][name], x, rtol=1e-5, atol=1e-7, err_msg=name)


@pytest.mark.parametrize("t", TRAININGS, ids=repr)
def test_no_dispatch_computes_with_the_wrong_memory(t: Training, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recompute, "FROM", 1)
    arguments = t.arguments()
    check_memory(planned_training(arguments, build_training(**arguments)))


def test_a_gpt_keeps_what_goes_into_its_gelus_only(monkeypatch: pytest.MonkeyPatch) -> None:
    large = BUDGET["gpt"][0]
    less = temporaries(large)
    monkeypatch.setattr(recompute, "FROM", 2**62)
    kept = temporaries(large)
    hidden = 4 * 32 * 64 * 512  # elements of the widest values of all four layers
    assert kept - less > 1.5 * hidden


class One(tg.Module):
    """A hidden layer, of which only products are made."""

    def __init__(self) -> None:
        self.w, self.v = self.param((8, 1024)), self.param((1024, 8))


def test_what_would_keep_something_else_alive_is_not_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of tanh(x w) its result is kept: its gradient reads that, and nothing reads x w."""
    monkeypatch.setattr(recompute, "FROM", 1)

    def loss(m: One, x: tg.Tensor) -> tg.Tensor:
        return tg.mean(tg.square(tg.tanh(x @ m.w) @ m.v))

    program = build_training(One(), loss, {"x": (5, 8)}, optim.sgd(lr=0.1)).program
    assert sum("tanh" in program.kernels[d.kernel].label for d in program.dispatches) == 1
