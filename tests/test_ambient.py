"""An interrupt anywhere in a trace leaves nothing behind: no open trace, no rewrite, the collector as it was.

Also while somebody holds the exception, as a notebook does with the last one.
"""

from __future__ import annotations

import gc
import random
import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from models import SineMLP, build_forward, build_training, sine_loss
from tracegrad import nn, optim, sites

X = np.ones((4, 2), np.float32)
TRIES = 60


def step() -> object:
    inputs: dict[str, Any] = {"x": (16, 1), "y": (16, 1)}
    return build_training(SineMLP(8), sine_loss, inputs, optim.adam(1e-3))


def forward() -> object:
    return build_forward(nn.Linear(2, 3), lambda m, x: tg.softmax(m(x)), {"x": (4, 2)})


def graph() -> object:
    return tg.trace_forward(model=nn.Linear(2, 3), forward=lambda m, x: tg.relu(m(x)), inputs={"x": (4, 2)})


def gradient() -> object:
    return tg.grad(lambda x: tg.sum(tg.tanh(x)))(X)


def eager() -> object:
    x = tg.tensor(X, requires_grad=True)
    y = tg.logsumexp(x * 2.0 + random.random(), axis=0).sum() + tg.logsumexp(x * 3.0, axis=1).sum()
    y.backward()
    return x.grad


class Interrupt:
    """Raises KeyboardInterrupt at the call with one number.

    Python looks for signals there: inside a function that begins, or behind one of C.
    """

    def __init__(self, at: int | None, only: Callable[[FrameType], bool] | None = None) -> None:
        self.at, self.only, self.seen = at, only, 0

    def __call__(self, frame: FrameType, event: str, arg: object) -> None:
        if event not in ("call", "c_return") or (self.only is not None and not self.only(frame)):
            return
        if self.seen == self.at:
            sys.setprofile(None)
            raise KeyboardInterrupt
        self.seen += 1


def interrupted(action: Callable[[], object], interrupt: Interrupt) -> BaseException | None:
    """Do it, interrupted; the exception."""
    sys.setprofile(interrupt)
    try:
        action()
    except KeyboardInterrupt as e:
        return e
    finally:
        sys.setprofile(None)
    return None


def of_ambient(frame: FrameType) -> bool:
    """Is it where blocks begin and end?"""
    return frame.f_code.co_filename == sites.__file__ and frame.f_code.co_name in ("__enter__", "__exit__", "call")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of generators that are let go
@pytest.mark.parametrize("only", [None, of_ambient], ids=["anywhere", "at-blocks"])
@pytest.mark.parametrize("action", [step, forward, graph, gradient, eager], ids=lambda f: f.__name__)
def test_an_interrupt_anywhere_leaves_no_trace_open(action: Any, only: Any) -> None:
    action()  # plans that are kept are made
    counted = Interrupt(None, only)
    assert interrupted(action, counted) is None
    before, enabled, held = sites.STATE(), gc.isenabled(), []
    rng = random.Random(0)
    for _ in range(TRIES):
        e = interrupted(action, Interrupt(rng.randrange(max(1, counted.seen)), only))
        held.append(e)
        assert sites.STATE() is before, "a trace is still open"
        assert gc.isenabled() == enabled
    assert any(held) or not counted.seen
    value = action()
    del held[:], e
    gc.collect()
    assert sites.STATE() is before
    if isinstance(value, np.ndarray):
        np.testing.assert_array_equal(value, np.asarray(action()))
