"""The worker and its steps, over a session that computes one small model and runs as far ahead as a GPU would."""

from __future__ import annotations

import threading
import time
from typing import Any, NamedTuple

import numpy as np
import pytest

from tracegrad import lr
from tracegrad.compiler.build import Built, StepSource
from tracegrad.dtypes import TensorType, f32
from tracegrad.engine.knobs import Knobs, Rate
from tracegrad.engine.pending import Pending
from tracegrad.engine.results import Aborted, CompletedStep, Failed
from tracegrad.engine.run_program import RunProgram
from tracegrad.engine.stepper import Stepper
from tracegrad.engine.steps import StepCall
from tracegrad.engine.worker import Worker
from tracegrad.errors import AbortedError, DeviceError, NonFiniteError
from tracegrad.ir import ambient
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import bind
from tracegrad.prims.elementwise import log, mul
from tracegrad.prims.folds import SUM
from tracegrad.prims.leaves import leaf
from tracegrad.program import Buffer, Field, Program
from tracegrad.runtime.base import DeviceInfo


def program():
    """loss = sum(w * log(x)), w <- w - lr * log(x)."""
    with ambient.tracing():
        w = leaf("param", "w", TensorType(f32, (2,)))
        x = leaf("input", "x", TensorType(f32, (2,)))
        loss = bind(SUM, mul(w, log(x)), axes=(0,))
    scalar = lambda name, dtype="f32": Field(name, 0, 0, dtype, ())
    return Program(
        kernels=(), dispatches=(),
        buffers=(Buffer("params", "f32", 2, "param"), Buffer("halted", "i32", 1, "state")),
        inputs=(Field("x", 0, 0, "f32", (2,)), scalar("hyper.lr"), scalar("hyper.step", "u32")),
        outputs=(scalar("loss"), scalar("halted", "i32")),
        params=(Field("w", 0, 0, "f32", (2,), {"init": {"kind": "ones"}}),),
        states=(Field("halted", 1, 0, "i32", (1,)),),
    ), Graph({"loss": loss})  # fmt: skip


class AheadBatch(NamedTuple):
    session: Any
    steps: list
    results: list

    def outputs(self):
        self.session.gate.wait(5)
        if self.session.fail_read & set(self.steps):
            self.session.fail_read.clear()
            raise DeviceError("lost the readback")
        return self.results


class AheadSession:
    """Executes a batch in `run`, as a queue on a device does, and lets outputs be read much later."""

    info = DeviceInfo("fake", "test")
    ahead, batch_seconds, door = 2, 1e9, None

    def __init__(self):
        self.buffers = {"params": np.zeros(2, np.float32), "halted": np.zeros(1, np.int32)}
        self.ran, self.sizes, self.most, self.fail_read, self.fail_run, self.closed = [], [], 4, set(), set(), False
        self.gate = threading.Event()
        self.gate.set()
        self.thread = threading.get_ident()

    def load(self, program):
        return 0

    def unload(self, handle):
        pass

    def capacity(self, handle):
        return self.most

    def run(self, handle, inputs):
        assert threading.get_ident() == self.thread
        self.sizes.append(len(inputs))
        steps = [int(given["hyper.step"]) for given in inputs]
        if self.fail_run & set(steps):
            self.fail_run.clear()
            raise MemoryError("full")
        return AheadBatch(self, steps, [self.step(given) for given in inputs])

    def step(self, inputs):
        step = int(inputs["hyper.step"])
        with np.errstate(all="ignore"):
            w, d = self.buffers["params"], np.log(inputs["x"])
            loss = float((w * d).sum())
        ok = bool(np.isfinite(loss)) and not self.buffers["halted"][0]
        if ok:
            w -= inputs["hyper.lr"] * d
            self.ran.append((step, float(inputs["hyper.lr"])))
        else:
            self.buffers["halted"][0] = 1
        return {"loss": np.float32(loss), "halted": np.int32(not ok)}

    def read(self, name):
        return self.buffers[name].copy()

    def write(self, name, values, offset=0):
        self.buffers[name][offset : offset + len(values)] = values

    def interrupt(self):
        pass

    def close(self):
        self.closed = True


def stepper(seed, knobs):
    source = StepSource(model=None, loss=lambda m, x: None, inputs={}, optimizer=None, precision="f32")
    return Stepper(source, RunProgram(Built(*program())), seed, knobs)


class Trainer:
    """A worker, a stepper, and `step`."""

    def __init__(self, schedule=0.5, max_in_flight=8):
        self.sessions = []

        def factory():
            self.sessions.append(AheadSession())
            return self.sessions[-1]

        self.worker = Worker(factory, max_in_flight)
        self.knobs = Knobs(Rate(lr.as_schedule(schedule)), {})
        self.stepper = stepper(0, self.knobs)
        self.worker.call(self.stepper.install)

    @property
    def session(self):
        return self.sessions[-1]

    def step(self, x, n=1):
        pending = Pending("step", self.worker.ident)
        x = np.asarray(x, np.float32)
        call = StepCall(self.stepper, self.knobs, pending, n, "step", self.stepper.main)
        self.worker.enqueue(call.runs({"x": x[k] if n > 1 else x} for k in range(n)), pending)
        return pending

    def w(self):
        return self.worker.call(lambda s: s.read("params"))


@pytest.fixture
def trainer():
    t = Trainer()
    yield t
    t.session.gate.set()
    t.worker.close()


GOOD, BAD = (np.e, 1.0), (0.0, 1.0)


def test_a_failed_step_changes_nothing_and_those_queued_behind_it_are_run_again(trainer):
    trainer.knobs = Knobs(Rate(lr.linear(peak=1.0, final=0.0, steps=10)), {})
    trainer.session.gate.clear()  # nothing is collected before all are queued
    pending = [trainer.step(x) for x in (GOOD, BAD, GOOD, BAD, GOOD, GOOD)]
    trainer.session.gate.set()
    results = [p.result(timeout=5) for p in pending]
    assert [type(r) for r in results] == [CompletedStep, Failed, CompletedStep, Failed, CompletedStep, CompletedStep]
    assert [r.step for r in results if isinstance(r, CompletedStep)] == [1, 2, 3, 4]
    # each applied step ran once, with the learning rate of its own number
    assert trainer.session.ran == [(k, pytest.approx(1 - (k - 1) / 10)) for k in (1, 2, 3, 4)]
    np.testing.assert_allclose(trainer.w(), [1 - (1 + 0.9 + 0.8 + 0.7), 1], rtol=1e-6)
    assert trainer.stepper.counter == 4 and trainer.session.buffers["halted"][0] == 0


def test_the_error_names_the_op_and_the_line(trainer):
    error = trainer.step(BAD).result(timeout=5).error
    assert isinstance(error, NonFiniteError)
    text = str(error)
    assert "step 1: the loss is -inf; nothing was changed" in text
    assert "first non-finite value: log, f32[2], 1 infinite of 2 values" in text and "test_worker.py" in text


def test_a_schedule_begins_at_the_first_step_that_is_applied_under_it(trainer):
    trainer.session.gate.clear()
    first = trainer.step(GOOD)
    trainer.knobs = trainer.knobs.with_rate(lr.linear(peak=1.0, final=0.0, steps=4))
    behind = [trainer.step(x) for x in (BAD, GOOD, GOOD)]
    trainer.session.gate.set()
    assert isinstance(behind[0].result(5), Failed) and behind[2].result(5).step == 3 and first.step == 1
    assert trainer.session.ran == [(1, 0.5), (2, 1.0), (3, 0.75)]


def test_several_steps_of_one_call(trainer):
    r = trainer.step([GOOD, GOOD, GOOD], n=3).result(5)
    assert r.step == 3 and r.losses.shape == (3,) and r.losses.dtype == np.float32
    np.testing.assert_allclose(r.losses, [1.0, 0.5, 0.0], atol=1e-6)
    failed, after = trainer.step([GOOD, BAD, GOOD, GOOD], n=4), trainer.step(GOOD)
    assert "step 2 of 4; those before it were applied" in str(failed.result(5).error)
    assert after.step == 5 and [k for k, _ in trainer.session.ran] == [1, 2, 3, 4, 5]


def test_calls_see_what_was_queued_before_them_only(trainer):
    trainer.session.gate.clear()
    for _ in range(3):
        trainer.step(GOOD)
    seen = []
    reader = threading.Thread(target=lambda: seen.append(trainer.w()))
    reader.start()
    time.sleep(0.02)
    trainer.session.gate.set()
    reader.join(5)
    np.testing.assert_allclose(seen[0], [-0.5, 1], atol=1e-6)


def test_step_waits_when_too_many_are_queued_behind_those_on_the_device():
    t = Trainer(max_in_flight=2)
    t.session.gate.clear()
    made = []
    thread = threading.Thread(target=lambda: made.extend(t.step(GOOD) for _ in range(9)))
    thread.start()
    time.sleep(0.1)
    assert not made[0].done() and 2 <= len(made) <= t.session.most * t.session.ahead + 2  # the next one waits
    t.session.gate.set()
    thread.join(5)
    assert [p.step for p in made] == list(range(1, 10))
    t.worker.close()


def test_where_the_device_takes_more_at_once_more_are_queued_and_few_wait_to_be_more():
    t = Trainer(max_in_flight=2)
    batches, t.session.most = t.session.sizes, 20
    t.step(GOOD).result(5)
    t.step(GOOD).result(5)
    assert t.worker.max_in_flight == 40
    t.session.gate.clear()
    under_way = t.step(GOOD)
    while len(batches) < 3:
        time.sleep(0.001)
    made = [t.step(GOOD) for _ in range(9)]  # fewer than a batch of 20 should have
    time.sleep(0.05)
    assert not under_way.done() and batches == [1, 1, 1]
    t.session.gate.set()
    assert [p.step for p in made] == list(range(4, 13)) and batches == [1, 1, 1, 9]
    t.worker.close()


def test_calls_that_are_done_leave_room_for_a_step():
    t = Trainer(max_in_flight=2)
    gate = threading.Event()
    t.worker.post(lambda session: gate.wait())
    while t.worker._queue:
        time.sleep(0.001)
    for _ in range(2):
        t.worker.post(lambda session: None)
    made = []
    thread = threading.Thread(target=lambda: made.append(t.step(GOOD)))
    thread.start()
    time.sleep(0.05)
    assert not made
    gate.set()
    thread.join(5)
    assert made[0].step == 1
    t.worker.close()


def test_close_wakes_a_step_that_waits_for_room():
    t = Trainer(max_in_flight=1)
    t.session.gate.clear()
    made = []
    thread = threading.Thread(target=lambda: made.extend(t.step(GOOD) for _ in range(9)))
    thread.start()
    time.sleep(0.05)
    closer = threading.Thread(target=t.worker.close)
    closer.start()
    time.sleep(0.02)
    t.session.gate.set()
    closer.join(5)
    thread.join(5)
    assert len(made) == 9 and isinstance(made[-1].result(5), Aborted)


def test_a_callback_may_queue_more_and_may_not_wait():
    t = Trainer(max_in_flight=1)
    results, errors = [], []

    def more(p):
        if p.result().step < 3:
            following = t.step(GOOD)
            try:
                following.result()
            except RuntimeError as e:
                errors.append(str(e))
            following.add_done_callback(more)
        else:
            results.append(p.result().step)

    t.step(GOOD).add_done_callback(more)
    deadline = time.perf_counter() + 5
    while not results and time.perf_counter() < deadline:
        time.sleep(0.005)
    assert results == [3] and "a wait in the callback would never end" in errors[0]
    t.worker.close()


def test_close_aborts_what_is_in_flight_and_wakes_who_waits():
    t = Trainer(max_in_flight=2)
    t.session.gate.clear()
    pending = [t.step(GOOD), t.step(GOOD)]
    waiting = []
    thread = threading.Thread(target=lambda: waiting.append(t.step(GOOD).result(5)))
    thread.start()
    closer = threading.Thread(target=t.worker.close)
    time.sleep(0.02)
    closer.start()
    time.sleep(0.02)
    t.session.gate.set()
    closer.join(5)
    thread.join(5)
    assert [p.result(5) for p in pending] == [Aborted("closed")] * 2 and waiting == [Aborted("closed")]
    assert t.session.closed and isinstance(t.step(GOOD).result(5), Aborted)
    t.worker.close()
    with pytest.raises(AbortedError):
        t.w()


def test_a_device_error_fails_its_batch_and_runs_none_twice(trainer):
    trainer.session.fail_read.add(2)
    trainer.session.most = 1
    trainer.session.gate.clear()
    pending = [trainer.step(GOOD) for _ in range(4)]
    trainer.session.gate.set()
    results = [p.result(5) for p in pending]
    assert isinstance(results[1].error, DeviceError)
    assert [r.step for k, r in enumerate(results) if k != 1] == [1, 3, 4]
    assert [k for k, _ in trainer.session.ran] == [1, 2, 3, 4]


def test_an_error_before_anything_ran_fails_its_batch_and_gives_the_numbers_back(trainer):
    trainer.session.fail_run.add(2)
    hold = threading.Event()
    trainer.worker.post(lambda session: hold.wait(5))
    first, failed = trainer.step(GOOD), trainer.step(GOOD)
    hold.set()
    error = failed.result(5).error  # the first was still under way
    assert "MemoryError: full" in str(error) and isinstance(error.__cause__, MemoryError)
    assert [first.step, trainer.step(GOOD).step] == [1, 2]


def test_swap_aborts_what_is_in_flight_or_leaves_everything(trainer):
    old = trainer.session
    old.gate.clear()
    pending = [trainer.step(GOOD) for _ in range(3)]

    def refuse(session):
        raise DeviceError("too small")

    threading.Timer(0.05, old.gate.set).start()
    with pytest.raises(DeviceError, match="too small"):
        trainer.worker.swap(refuse, "displaced")
    assert trainer.sessions[1].closed and not old.closed
    assert [p.step for p in pending] == [1, 2, 3]

    old.gate.clear()
    pending = [trainer.step(GOOD) for _ in range(5)]
    threading.Timer(0.05, old.gate.set).start()
    new = stepper(1, trainer.knobs)
    trainer.worker.swap(new.install, "displaced")
    late = [r for r in (p.result(5) for p in pending) if isinstance(r, Aborted)]
    assert late and late[0].reason == "displaced" and old.closed
    trainer.stepper = new
    assert trainer.step(GOOD).step == 1


def test_a_session_that_cannot_be_opened_raises_in_the_caller():
    def factory():
        raise DeviceError("no adapter")

    with pytest.raises(DeviceError, match="no adapter"):
        Worker(factory).opened()
