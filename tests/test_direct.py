"""Short runs of a forward whose results are read one by one are computed by the thread that reads."""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from models import SineMLP, sine_loss
from tracegrad import nn, optim
from tracegrad.engine.worker import Worker

X = np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)


class Many(tg.Module):
    def __init__(self) -> None:
        self.a = nn.Linear(4, 3)


def typed(m: Many, x: Any, on: Any, k: Any) -> Any:
    """Inputs and outputs of every dtype, a capture, a random number."""
    y = m.a(tg.capture("x", x)) + tg.uniform((3,))
    return {"f32": tg.where(on[:, None], y, 0.0), "i32": tg.argmax(y, axis=-1), "bool": y > 0, "u32": k + k}


class Counter(tg.Module):
    """Each run adds 1 to every element."""

    def __init__(self) -> None:
        self.count = self.state((64,))

    def __call__(self, x: Any) -> Any:
        self.count.assign(self.count + 1.0)
        return self.count + x


@pytest.fixture
def handed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many runs each call handed to the worker."""
    counts: list[int] = []
    enqueue = Worker.enqueue
    monkeypatch.setattr(Worker, "enqueue", lambda self, runs, p: (counts.append(len(runs)), enqueue(self, runs, p)))
    return counts


@pytest.fixture
def forward(c_compiler: None) -> Iterator[tg.CompiledForward]:
    with tg.compile_forward(
        model=nn.Linear(4, 3), forward=lambda m, x: m(x), inputs={"x": (None, 4)}, seed=0, device="cpu"
    ) as f:
        yield f


def warm(f: tg.CompiledForward, **inputs: Any) -> None:
    """Until a run is not handed over. A busy machine takes long for some runs, so that the worker gets the next."""
    for _ in range(200):
        f.run(inputs).result()
        time.sleep(0.001)
        if f.run(inputs).done():
            f.run(inputs).result()
            time.sleep(0.001)
            return
    raise AssertionError("every run was handed over")


def test_a_caller_who_waits_computes_short_runs(forward: tg.CompiledForward, handed: list[int]) -> None:
    first = forward.run(x=X).output
    warm(forward, x=X)
    handed.clear()
    p = forward.run(x=X)
    assert p.done() and not handed
    np.testing.assert_array_equal(p.output, first)


def test_a_caller_who_does_not_wait_hands_them_over(forward: tg.CompiledForward, handed: list[int]) -> None:
    warm(forward, x=X)
    handed.clear()
    kept = [forward.run(x=X) for _ in range(5)]
    assert sum(handed) >= 4, "the first may still be computed at once"
    assert all(isinstance(p.result(), tg.Completed) for p in kept)


def test_every_dtype_captures_and_random_numbers_are_those_of_the_worker(c_compiler: None) -> None:
    inputs = {"x": (8, 4), "on": tg.bool_[8], "k": tg.u32[8]}
    rng = np.random.default_rng(1)
    calls = [
        {"x": X * k, "on": rng.uniform(size=8) > 0.5, "k": rng.integers(0, 2**31, 8).astype(np.uint32)}
        for k in range(20)
    ]
    found: list[list[Any]] = []
    for wait in (True, False):
        with tg.compile_forward(model=Many(), forward=typed, inputs=inputs, seed=3, device="cpu") as f:
            pending: list[Any] = []
            for call in calls:
                pending.append(f.run(call))
                if wait:
                    pending[-1].result()
            found.append([(p.output, p.captures["x"]) for p in pending])
    for (mine, x), (want, y) in zip(*found, strict=True):
        np.testing.assert_array_equal(x, y)
        for name, value in want.items():
            np.testing.assert_array_equal(mine[name], value, err_msg=name)
            assert mine[name].dtype == value.dtype


def test_sizes_that_calls_choose(forward: tg.CompiledForward, handed: list[int]) -> None:
    for n in (3, 8, 5):
        warm(forward, x=X[:n])
    w, b = (forward.params()[name] for name in ("W", "b"))
    for n in (5, 8, 3, 8, 5):
        np.testing.assert_allclose(forward.run(x=X[:n]).output, X[:n] @ w + b, rtol=1e-5, atol=1e-6)


def test_a_run_sees_all_that_was_queued_before_it(c_compiler: None) -> None:
    x = np.linspace(-3, 3, 16, dtype=np.float32)[:, None]
    batch = {"x": x, "y": np.sin(x)}
    rng = np.random.default_rng(0)
    types = {"x": (16, 1), "y": (16, 1)}
    seen: list[list[Any]] = []
    order = rng.integers(0, 6, 400)
    for wait in (True, False):
        with tg.compile(
            model=SineMLP(8), loss=sine_loss, inputs=types, optimizer=optim.adam(1e-2), seed=0, device="cpu"
        ) as train:
            infer = train.attach(forward=lambda m, x: sine_loss(m, x, tg.sin(x)), inputs={"x": (16, 1)})
            outputs: list[Any] = []
            for what in order:
                if what == 0:
                    train.step(batch)
                elif what == 1:
                    if wait:
                        train.set_params(train.params())
                else:
                    p = infer.run(x=x)
                    outputs.append(p.output if wait else p)
            seen.append(outputs if wait else [p.output for p in outputs])
    assert seen[0] == seen[1]


def test_new_parameters_are_used_at_once(forward: tg.CompiledForward) -> None:
    warm(forward, x=X)
    for k in range(20):
        forward.set_params({"b": np.full(3, k, np.float32), "W": np.zeros((4, 3), np.float32)})
        assert (forward.run(x=X).output == k).all()
        assert (forward.run(x=X).output == k).all()


def test_threads_share_a_forward(forward: tg.CompiledForward) -> None:
    warm(forward, x=X)
    w, b = (forward.params()[name] for name in ("W", "b"))
    wrong: list[int] = []

    def client(k: int) -> None:
        mine = X * (k + 1)
        want = mine @ w + b
        for _ in range(200):
            if not np.allclose(forward.run(x=mine).output, want, rtol=1e-4, atol=1e-5):
                wrong.append(k)

    threads = [threading.Thread(target=client, args=(k,)) for k in range(4)]
    for t in threads:
        t.start()
    for t in threads:
        t.join(60)
    assert not wrong and not any(t.is_alive() for t in threads)


def test_bad_inputs_and_a_closed_forward_are_results(forward: tg.CompiledForward) -> None:
    warm(forward, x=X)
    assert isinstance(forward.run(x=X[:, :2]).result(), tg.Failed)
    assert isinstance(forward.run(x=X).result(), tg.Completed)
    forward.close()
    assert isinstance(forward.run(x=X).result(), tg.Aborted)


def test_an_interrupted_run_has_written_all_of_a_state_or_nothing(c_compiler: None) -> None:
    zero = np.zeros(64, np.float32)
    with tg.compile_forward(
        model=Counter(), forward=lambda m, x: m(x), inputs={"x": (64,)}, seed=0, device="cpu", writes=True
    ) as f:
        warm(f, x=zero)
        before, rng, cut = float(f.states()["count"][0]), np.random.default_rng(0), 0
        old = signal.signal(signal.SIGALRM, signal.default_int_handler)
        try:
            end, last, calls = time.monotonic() + 2, before, 0
            while time.monotonic() < end:
                try:
                    signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-6, 1e-3))
                    for _ in range(20):
                        calls += 1
                        now = f.run(x=zero).output
                        assert (now == now[0]).all() and now[0] > last
                        last = float(now[0])
                    signal.setitimer(signal.ITIMER_REAL, 0)
                except KeyboardInterrupt:
                    cut += 1
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
        count = f.states()["count"]
        assert cut and (count == count[0]).all() and last <= count[0] <= before + calls


def test_a_signal_handler_may_ask_the_worker(forward: tg.CompiledForward) -> None:
    warm(forward, x=X)
    want, bias, found = forward.run(x=X).output, forward.params()["b"], list[Any]()
    old = signal.signal(signal.SIGALRM, lambda *_: found.append(forward.params()["b"]))
    try:
        end = time.monotonic() + 1
        while time.monotonic() < end:
            signal.setitimer(signal.ITIMER_REAL, 2e-4)
            for _ in range(20):
                np.testing.assert_array_equal(forward.run(x=X).output, want)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert found and all((x == bias).all() for x in found)


def test_kernels_in_numpy_are_left_to_the_worker(monkeypatch: pytest.MonkeyPatch, handed: list[int]) -> None:
    monkeypatch.setenv("TRACEGRAD_CC", "off")
    with tg.compile_forward(
        model=nn.Linear(4, 3), forward=lambda m, x: m(x), inputs={"x": (8, 4)}, seed=0, device="cpu"
    ) as f:
        for _ in range(20):
            f.run(x=X).result()
    assert sum(handed) == 20


def test_a_signal_handler_may_run_the_forward_that_it_interrupted() -> None:
    runs, inside = [0], [False]
    with tg.compile_forward(
        model=Many(), forward=lambda m, x: m.a(x), inputs={"x": (None, 4)}, seed=0, device="cpu"
    ) as infer:
        expected = infer.run(x=X).output

        def again(*_: Any) -> None:
            if not inside[0]:
                inside[0] = True
                runs[0] += np.array_equal(infer.run(x=X).output, expected)
                inside[0] = False

        before = signal.signal(signal.SIGALRM, again)
        signal.setitimer(signal.ITIMER_REAL, 0.001, 0.00037)
        try:
            end = time.monotonic() + 4
            while time.monotonic() < end:
                for n in (8, 3, 5):  # sizes are looked up and dropped meanwhile
                    result: Any = infer.run(x=X[:n]).result(20)
                    np.testing.assert_array_equal(result.output, expected[:n])
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)
        assert infer.device.name == "cpu"
    assert runs[0] > 100


@pytest.mark.parametrize("new", [False, True], ids=["a size it has", "new sizes"])
def test_a_signal_handler_may_run_at_any_line_that_chooses_a_program(new: bool) -> None:
    """Signals come anywhere. Here a tracer runs the forward at each line, or for new sizes at some."""
    inside, lines = [False], [0]
    with tg.compile_forward(
        model=Many(), forward=lambda m, x: m.a(x), inputs={"x": (None, 4)}, seed=0, device="cpu"
    ) as infer:
        rows = np.tile(X, (8, 1))
        expected = infer.run(x=rows).output

        def tracer(frame: FrameType, event: str, _: Any) -> Any:
            if not frame.f_code.co_filename.endswith(("engine/programs.py", "engine/room_programs.py")):
                return None
            lines[0] += event == "line" and not inside[0]
            if event == "line" and not inside[0] and (not new or lines[0] % 40 == 0):
                inside[0] = True
                n = lines[0] % 60 + 1 if new else len(rows)
                np.testing.assert_array_equal(infer.run(x=rows[:n]).output, expected[:n])
                inside[0] = False
            return tracer

        before = sys.gettrace()
        try:
            for n in (8, 3, 5, 2, 40, 7, 1, 3, 60, 12, 33, 17, 50):  # programs for many sizes are made and dropped
                sys.settrace(tracer)
                result: Any = infer.run(x=rows[:n]).result(60)
                sys.settrace(before)
                np.testing.assert_array_equal(result.output, expected[:n])
        finally:
            sys.settrace(before)
        assert infer.device.name == "cpu"
    assert lines[0] > 100


LIKE: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda x: np.ascontiguousarray(x.T).T,
    "with gaps": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "backwards": lambda x: x[::-1].copy()[::-1],
    "read-only": lambda x: np.frombuffer(x.tobytes(), np.float32).reshape(x.shape),
    "misaligned": lambda x: np.frombuffer(bytearray(b"\0" + x.tobytes()), np.float32, offset=1).reshape(x.shape),
    "of the other byte order": lambda x: x.astype(">f4"),
    "of doubles": lambda x: x.astype(np.float64),
    "masked": np.ma.masked_array,
    "nested lists": lambda x: x.tolist(),
    "a broadcast row": lambda x: np.broadcast_to(x[:1], x.shape),
}


@pytest.mark.parametrize("name", LIKE)
def test_inputs_in_any_memory(name: str, forward: tg.CompiledForward, handed: list[int]) -> None:
    given = LIKE[name](X)
    want = forward.run(x=np.array(given, np.float32)).output
    warm(forward, x=given)
    handed.clear()
    np.testing.assert_array_equal(forward.run(x=given).output, want)
    assert not handed


def test_outputs_and_inputs_are_the_callers_alone(forward: tg.CompiledForward, handed: list[int]) -> None:
    warm(forward, x=X)
    handed.clear()
    mine = X.copy()
    first = forward.run(x=mine)
    kept = first.output.copy()
    mine[:] = 7.0
    np.testing.assert_array_equal(first.output, kept)
    second = forward.run(x=mine).output
    second[:] = -1.0
    np.testing.assert_array_equal(first.output, kept)
    np.testing.assert_array_equal(forward.run(x=X).output, kept)
    assert not handed and not np.shares_memory(first.output, second)


def program_of(f: tg.CompiledForward) -> Any:
    found: Any = f
    return found._programs.current.latest


def test_a_run_that_is_handed_over_after_all_has_inputs_of_its_own(
    forward: tg.CompiledForward, handed: list[int]
) -> None:
    want = forward.run(x=X).output
    warm(forward, x=X)
    program_of(forward).direct = lambda arrays: None  # as if another thread were inside
    handed.clear()
    mine, entered, release = X.copy(), threading.Event(), threading.Event()

    def hold(_: Any) -> None:
        entered.set()
        release.wait(20)

    forward.store.worker.post(hold)
    entered.wait(20)
    p = forward.run(x=mine)
    mine[:] = 7.0
    release.set()
    np.testing.assert_array_equal(p.output, want)
    assert handed == [1]


def test_a_run_that_fails_midway_is_a_result(forward: tg.CompiledForward, monkeypatch: pytest.MonkeyPatch) -> None:
    want = forward.run(x=X).output
    warm(forward, x=X)
    program = program_of(forward)
    direct = program.direct

    def failing(arrays: Any) -> Any:
        direct(arrays)
        raise MemoryError

    program.direct = failing
    failed = forward.run(x=X).result()
    assert isinstance(failed, tg.Failed) and isinstance(failed.error.__cause__, MemoryError)
    program.direct = direct
    np.testing.assert_array_equal(forward.run(x=X).output, want)


def test_indices_are_copied_before_they_are_checked(c_compiler: None, monkeypatch: pytest.MonkeyPatch) -> None:
    with tg.compile_forward(
        model=nn.Embedding(9, 4), forward=lambda m, k: m(k), inputs={"k": tg.i32[5]}, seed=0, device="cpu"
    ) as f:
        k = np.arange(5, dtype=np.int32)
        warm(f, k=k)
        program, seen = program_of(f), list[Any]()
        direct = program.direct
        program.direct = lambda arrays: (seen.append(arrays["k"]), direct(arrays))[1]
        f.run(k=k).result()
        assert seen and not np.shares_memory(seen[0], k)
        assert isinstance(f.run(k=k + 5).result(), tg.Failed)


def test_a_forked_child_is_refused_and_its_parent_goes_on(forward: tg.CompiledForward) -> None:
    want = forward.run(x=X).output
    warm(forward, x=X)
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if isinstance(forward.run(x=X).result(), tg.Failed) else 1)
        finally:
            os._exit(2)
    assert os.waitpid(pid, 0)[1] == 0
    np.testing.assert_array_equal(forward.run(x=X).output, want)
