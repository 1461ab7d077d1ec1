"""Random interleavings of all that a training is told, by several hands: every result comes once, and of its kind.

TRACEGRAD_EXAMPLES sets how many sequences are tried.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import tempfile
import threading
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, precondition, rule

import tracegrad as tg
from models import SineMLP, sine_loss, sine_predict
from tracegrad import optim
from tracegrad.engine.results import CompletedRun, CompletedStep

X = np.random.default_rng(0).uniform(-3, 3, (8, 1)).astype(np.float32)
BATCH = {"x": X, "y": np.sin(X)}
NAN = {"x": X, "y": np.full_like(X, np.nan)}
SECONDS = 30


@dataclass
class Call:
    """A call, and what became of it."""

    what: str
    pending: tg.Pending[Any]
    model: int  # which of the models that were trained, one after the other
    results: list[Any] = field(default_factory=list[Any])  # of each time that its callback was called

    def __post_init__(self) -> None:
        self.pending.add_done_callback(lambda p: self.results.append(p.result()))

    def check(self) -> None:
        """Once, the same again, and one of the kinds that it may be."""
        result = self.pending.result(SECONDS)
        assert self.pending.result() is result and self.results == [result] and self.results[0] is result, self
        kinds: dict[str, tuple[type, ...]] = {
            "step": (CompletedStep, tg.Aborted),
            "run": (CompletedRun, tg.Aborted),
            "nan": (tg.NonFiniteError, tg.Aborted),
            "shape": (tg.InputError, tg.Aborted),
        }
        found = result.error if isinstance(result, tg.Failed) else result
        assert isinstance(found, kinds[self.what]), (self.what, result)


class Cancellation(RuleBasedStateMachine):
    """A training on the CPU. `hold` keeps its thread busy, so that calls pile up behind it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name, "train.safetensors")
        self.gate = threading.Event()
        self.gate.set()
        self.behind = 0  # calls since `hold`, counted here: how many are still queued depends on the clock
        self.calls: list[Call] = []
        self.model, self.queued, self.failed = 0, 0, 0
        self.closed = False
        self.train = tg.compile(
            model=SineMLP(2), loss=sine_loss, inputs={"x": (8, 1), "y": (8, 1)}, optimizer=optim.sgd(1e-3), seed=0,
            device="cpu",
        )  # fmt: skip
        self.infer = self.train.attach(forward=sine_predict, inputs={"x": (8, 1)})
        self.train.save(self.path)

    def made(self, what: str, pending: tg.Pending[Any]) -> tg.Pending[Any]:
        self.calls.append(Call(what, pending, self.model))
        self.behind += 1
        return pending

    def room(self) -> bool:
        """Would a call go through without waiting for room? While the thread is held there is none to wait for."""
        return self.gate.is_set() or self.closed or self.behind < 6

    @rule()
    def hold(self) -> None:
        if self.gate.is_set() and not self.closed:
            self.gate, held = threading.Event(), threading.Event()
            self.train.worker.post(lambda _, gate=self.gate: (held.set(), gate.wait(SECONDS)))
            assert held.wait(SECONDS)  # all calls before are under way: the queue is empty
            self.behind = 0

    @rule()
    def release(self) -> None:
        self.gate.set()

    @precondition(room)
    @rule()
    def step(self) -> None:
        self.made("step", self.train.step(BATCH))

    @precondition(room)
    @rule(n=st.integers(1, 3))
    def run_steps(self, n: int) -> None:
        self.made("step", self.train.run_steps(n, BATCH))
        self.behind += n - 1

    @precondition(room)
    @rule(what=st.sampled_from(["nan", "shape"]))
    def wrong_step(self, what: str) -> None:
        self.made(what, self.train.step(NAN if what == "nan" else {"x": X, "y": X[:3]}))

    @precondition(room)
    @rule()
    def run(self) -> None:
        self.made("run", self.infer.run(x=X))

    @precondition(room)
    @rule(timeout=st.sampled_from([0.0, 1e-6, 1e-3]))
    def time_out(self, timeout: float) -> None:
        pending = self.made("step", self.train.step(BATCH))
        with contextlib.suppress(TimeoutError):
            pending.result(timeout)

    @precondition(room)
    @rule(timeout=st.sampled_from([0.0, 1e-4, 1e-3]))
    def cancel(self, timeout: float) -> None:
        """A task that awaits a step is cancelled; the step itself goes on."""

        async def body() -> None:
            waiting = [asyncio.ensure_future(wait(p)) for p in (self.train.step(BATCH), self.infer.run(x=X))]
            await asyncio.sleep(timeout)
            for task in waiting:
                task.cancel()
            for result in await asyncio.gather(*waiting, return_exceptions=True):
                assert isinstance(result, (tg.Completed, tg.Aborted, asyncio.CancelledError)), result

        async def wait(pending: tg.Pending[Any]) -> Any:
            self.made("run" if "run" in repr(pending) else "step", pending)
            return await pending

        asyncio.run(body())

    @rule(lr=st.floats(1e-5, 1e-2))
    def set_lr(self, lr: float) -> None:
        self.train.set_lr(lr)

    @rule(path=st.booleans())
    def save_and_load(self, path: bool) -> None:
        self.gate.set()
        try:
            self.train.save(self.path)
            self.train.load(self.path)
        except tg.AbortedError:
            assert self.closed

    @rule(width=st.sampled_from([2, 2, 3]))
    def replace(self, width: int) -> None:
        if self.closed:
            return
        threading.Timer(0.002, self.gate.set).start()  # while it waits behind the held thread
        self.train.replace_model(SineMLP(width))
        self.gate.set()
        self.model += 1

    @precondition(lambda self: self.gate.is_set() and not self.closed)
    @rule()
    def close_under_load(self) -> None:
        for _ in range(5):
            self.made("step", self.train.step(BATCH))
        closer = threading.Thread(target=self.train.close)
        closer.start()
        for _ in range(5):
            self.made("step", self.train.step(BATCH))
            self.made("run", self.infer.run(x=X))
        closer.join(SECONDS)
        assert not closer.is_alive()
        self.closed = True

    def teardown(self) -> None:
        self.gate.set()
        for call in self.calls[-1:]:
            call.pending.result(SECONDS)
        self.train.close()
        for call in self.calls:
            call.check()
        steps = [c.pending.result() for c in self.calls if c.what == "step"]
        numbers = [(c.model, r.step - len(r.losses) + 1, r.step)
                   for c, r in zip([c for c in self.calls if c.what == "step"], steps, strict=True)
                   if isinstance(r, CompletedStep)]  # fmt: skip
        for (model, _, before), (following, first, _) in itertools.pairwise(numbers):
            assert first == before + 1 if model == following else first == 1, numbers
        assert isinstance(self.train.step(BATCH).result(1), tg.Aborted)
        self.folder.cleanup()


TestCancellation = Cancellation.TestCase
TestCancellation.settings = settings(
    max_examples=int(os.environ.get("TRACEGRAD_EXAMPLES", "25")), stateful_step_count=20, deadline=None,
    suppress_health_check=list(HealthCheck), derandomize="TRACEGRAD_EXAMPLES" not in os.environ,
)  # fmt: skip
pytestmark = pytest.mark.filterwarnings("ignore:.*its result was never read")
