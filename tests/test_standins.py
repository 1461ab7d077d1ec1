"""Sizes before a call has chosen any: errors print their names, and different names are different sizes."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim
from tracegrad.compiler.inputtypes import StandIn, stand_in, tried


def compiled(loss: Callable[..., Any], **inputs: Any) -> tg.CompiledTraining:
    return tg.compile(model=nn.Linear(4, 5), loss=loss, inputs=inputs, optimizer=optim.sgd(0.1), device="cpu")


WRONG: dict[str, tuple[Callable[..., Any], str]] = {
    "loss": (lambda m, x, y: tg.mse_loss(m(x), y), "mse_loss: shapes differ: f32[B,T,5] and f32[T,B,5]"),
    "sum": (lambda m, x, y: tg.mean(m(x) - y), "sub: shapes do not broadcast: f32[B,T,5] and f32[T,B,5]"),
    "rows": (lambda m, x, y: tg.mean(tg.where(y > 0, m(x), y)), "f32[B,T,5] and f32[T,B,5]"),
    "flat": (lambda m, x, y: tg.mean(m(tg.reshape(x, (-1, 8)))), "a is f32[B*T//2,8], b is f32[4,5]"),
    "joined": (lambda m, x, y: tg.mean(tg.concat([m(x[:, 1:]), y], 1)), "f32[B,T-1,5]"),
}


@pytest.mark.parametrize("loss, message", WRONG.values(), ids=WRONG)
def test_an_error_before_the_first_call_names_open_sizes(loss: Callable[..., Any], message: str) -> None:
    with pytest.raises(tg.ShapeError, match=re.escape(message)):
        compiled(loss, x=("B", "T", 4), y=("T", "B", 5))


def test_sizes_without_a_name_may_be_equal() -> None:
    """An adjacency matrix is (None, None): its axes are two sizes, and nothing says that they differ."""

    def loss(m: Any, x: Any, near: Any) -> Any:
        return tg.mean(tg.square(near @ m(x)))

    def wrong(m: Any, x: Any, near: Any) -> Any:
        return tg.mean(near @ m(x)[1:])

    with compiled(loss, x=(None, 4), near=(None, None)) as train:
        assert train.step(x=np.ones((3, 4), np.float32), near=np.eye(3, dtype=np.float32)).loss > 0
    with pytest.raises(tg.ShapeError, match=re.escape("matmul: inner dimensions differ: a is f32[None,None]")):
        compiled(wrong, x=(None, 4), near=(None, None))


def test_a_loss_with_limits_still_compiles() -> None:
    """At most 8 positions, or a length of which a half is halved again: smaller or rounder numbers are tried."""

    def short(m: Any, x: Any) -> Any:
        return tg.mean(m(x) + tg.zeros((8, 1))[: x.shape[1]])

    def even(m: Any, x: Any) -> Any:
        return tg.mean(m(x.reshape((x.shape[0], x.shape[1] // 16, 16, 4))))

    for loss in (short, even):
        compiled(loss, x=("B", "T", 4)).close()


def test_no_two_names_have_a_number_in_common() -> None:
    for sizes in tried({"B": "B", "T": "T", "U": "U", "None at axis 3": None}):
        b, t, u, none = (n for _, n in sizes)
        assert len({b, t, u, 1}) == 4 and none == u, sizes
        assert [str(n) for n in (b, t, u, none)] == ["B", "T", "U", "None"]


def test_a_stand_in_computes_as_a_number_and_prints_as_its_name() -> None:
    b, t = stand_in(6, {("B",): 1}), stand_in(10, {("T",): 1})
    shown = {
        2 * b * t - 1: (119, "2*B*T-1"),
        t * b * 6 // (2 * b): (30, "3*T"),
        (t + 2 - 3) // 2 + 1: (5, "(T-1)//2+1"),
        -(-t // 4): (3, "-((-T)//4)"),
        t + -t % 4: (12, "T+(-T)%4"),
        1 - b: (-5, "1-B"),
        7 // b: (1, "7//B"),
        b * ((t - 1) // 2) * 2: (48, "2*((T-1)//2)*B"),
    }
    for made, (value, text) in shown.items():
        assert isinstance(made, StandIn) and (int(made), str(made)) == (value, text)
    assert type(b - b) is int and type(b * t // t // b) is int
    assert b * 0.5 == 3.0 and f"{b:3d}|{b}" == "  6|B" and repr(copy.deepcopy(b)) == "B"
