"""Faults while a training runs: each ends in a defined result, nothing hangs, and the training can go on."""

from __future__ import annotations

import asyncio
import ctypes
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from models import SineMLP, sine_loss, sine_predict
from tracegrad import optim
from tracegrad.engine.results import CompletedRun, CompletedStep
from tracegrad.kernel_source import Texts
from tracegrad.runtime import wgpu_shared
from tracegrad.runtime.wgpu_session import NativeSession

X = np.random.default_rng(0).uniform(-3, 3, (16, 1)).astype(np.float32)
BATCH = {"x": X, "y": np.sin(X)}
HERE = Path(__file__).parent
SECONDS = float(os.environ.get("TRACEGRAD_FAULT_SECONDS", "2"))  # of random interrupts and kills
pytestmark = pytest.mark.filterwarnings("ignore:.*is a software adapter:RuntimeWarning")


@pytest.fixture(params=["cpu", "webgpu"])
def device(request: pytest.FixtureRequest) -> str:
    """Each device there is."""
    if request.param == "webgpu":
        request.getfixturevalue("webgpu")
    return request.param


def compiled(device: str = "cpu", **changes: Any) -> tg.CompiledTraining:
    arguments: dict[str, Any] = {
        "model": SineMLP(8), "loss": sine_loss, "inputs": {"x": (16, 1), "y": (16, 1)}, "optimizer": optim.adam(1e-3),
        "seed": 0, "device": device,
    }  # fmt: skip
    return tg.compile(**{**arguments, **changes})


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return a.keys() == b.keys() and all(np.array_equal(a[n], b[n]) for n in a)


def python(*arguments: str, seconds: float = 120) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    return subprocess.run(
        [sys.executable, "-W", "ignore", *arguments], capture_output=True, text=True, timeout=seconds, check=False,
        env=environment,
    )  # fmt: skip


# --- interrupts ---


def test_an_interrupt_at_any_moment_leaves_all_of_a_call_or_nothing(device: str) -> None:
    seed = random.randrange(2**32)
    done = python(str(HERE / "interrupts.py"), device, str(SECONDS), str(seed), seconds=SECONDS + 120)
    assert done.returncode == 0, f"seed {seed}: {done.stdout[-1000:]}{done.stderr[-4000:]}"
    assert int(done.stdout.split()[0]) > 20, done.stdout


# --- the worker's thread ---


def kill(thread: int) -> None:
    """Raise SystemExit in a thread, wherever it is."""
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread), ctypes.py_object(SystemExit))


def test_a_worker_that_is_killed_fails_what_waits_and_says_how_to_go_on(tmp_path: Path) -> None:
    train = compiled()
    infer = train.attach(forward=sine_predict, inputs={"x": (16, 1)})
    path = tmp_path / "train.safetensors"
    losses = [train.step(BATCH).loss for _ in range(3)]
    train.save(path)
    kill(train.worker.ident)  # while it sleeps
    result = train.step(BATCH).result(10)
    assert isinstance(result, tg.Failed) and isinstance(result.error, tg.DeviceError)
    assert "ended with SystemExit" in str(result.error) and "load the last checkpoint" in str(result.error)
    assert isinstance(result.error.__cause__, SystemExit)
    for pending in (train.step(BATCH), infer.run(x=X)):
        assert isinstance(pending.result(1), tg.Failed)
    for call in (train.download_params, lambda: train.save(path), lambda: train.replace_model(train.model)):
        with pytest.raises(tg.DeviceError, match="compile again"):
            call()
    assert "broken" in repr(train)
    train.close()
    with compiled(seed=1) as again:
        again.load(path)
        step = again.step(BATCH)
        assert step.step == 4 and step.loss < losses[0]


@pytest.mark.filterwarnings(
    "ignore:Exception ignored:pytest.PytestUnraisableExceptionWarning", "ignore:.*its result was never read"
)
def test_a_worker_killed_under_load_leaves_no_result_open(device: str) -> None:
    rng, end, broken = random.Random(0), time.monotonic() + SECONDS / 2, 0
    while time.monotonic() < end:
        train = compiled(device)
        pending: list[tg.Pending[Any]] = []
        stop = threading.Event()

        def go(train: tg.CompiledTraining = train, made: list[Any] = pending, stop: threading.Event = stop) -> None:
            while not stop.is_set():
                made.append(train.step(BATCH))
                made.append(train.worker.post(lambda session: None))

        threads = [threading.Thread(target=go) for _ in range(2)]
        for thread in threads:
            thread.start()
        time.sleep(rng.uniform(0, 0.03))
        kill(train.worker.ident)
        results = [train.step(BATCH).result(20) for _ in range(3)]
        stop.set()
        for thread in threads:
            thread.join(20)
            assert not thread.is_alive()
        results += [p.result(20) for p in pending]
        assert all(isinstance(r, (tg.Completed, tg.Failed, tuple)) for r in results), set(map(type, results))
        broken += any(isinstance(r, tg.Failed) for r in results)
        train.close()
    assert broken


def test_a_callback_that_exits_does_not_end_the_worker() -> None:
    with compiled() as train:
        with pytest.warns(RuntimeWarning, match="a done callback raised SystemExit"):
            train.step(BATCH).add_done_callback(lambda _: sys.exit(3))
            train.step(BATCH).result()
        assert train.step(BATCH).step == 3


# --- the device ---


def session_of(train: tg.CompiledTraining) -> NativeSession:
    found = train.worker._session
    assert isinstance(found, NativeSession)
    return found


@pytest.mark.usefixtures("webgpu")
def test_a_lost_device_fails_its_steps_and_another_goes_on_from_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "train.safetensors"
    with compiled("webgpu") as alone:
        want = [alone.step(BATCH).loss for _ in range(6)]
        last = alone.download_params()
    with compiled("webgpu") as train:
        infer = train.attach(forward=sine_predict, inputs={"x": (16, 1)})
        infer.run(x=X).result()
        assert [train.step(BATCH).loss for _ in range(3)] == want[:3]
        train.save(path)
        pending = [train.step(BATCH) for _ in range(40)]
        train.worker.call(lambda _: session_of(train)._device.destroy())  # between calls: wgpu aborts during some
        pending += [train.step(BATCH) for _ in range(40)]
        results = [p.result(30) for p in pending]
        failed = [r for r in results if isinstance(r, tg.Failed)]
        assert failed and len(failed) + sum(isinstance(r, tg.Completed) for r in results) == 80
        assert all(isinstance(r.error, tg.DeviceLostError) for r in failed[-40:])
        with pytest.raises(tg.DeviceLostError):
            train.download_params()
        with pytest.raises(tg.DeviceLostError):
            train.save(path)
        train.replace_model(train.model)  # a new device
        train.load(path)
        assert [train.step(BATCH).loss for _ in range(3)] == want[3:]
        assert same(train.download_params(), last)
        assert infer.run(x=X).output.shape == (16, 1)


class Huge(tg.Module):
    def __init__(self, shape: tuple[int, ...]) -> None:
        self.w = self.param(shape)


def test_what_no_memory_can_hold_is_refused_and_the_process_goes_on(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    side = 1 << 15  # 2**30 elements: four gigabytes
    monkeypatch.setattr("tracegrad.runtime.memory.host_memory", lambda: 1 << 30)

    def loss(m: Huge, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
        return tg.mean(tg.tanh(x @ m.w) - y)

    with pytest.raises(tg.DeviceError, match="bytes"):
        compiled(device, model=Huge((1, side)), loss=lambda m, x, y: tg.mean(tg.tanh(tg.tanh(x @ m.w).T @ y @ m.w)),
                 inputs={"x": (side, 1), "y": (side, 1)})  # fmt: skip
    with pytest.raises(tg.DeviceError, match="bytes"):
        compiled(device, model=Huge((side, side)), loss=loss, inputs={"x": (1, side), "y": (1, side)})
    with compiled(device) as train:
        before = train.step(BATCH).loss
        with pytest.raises(tg.DeviceError, match="bytes"):
            train.replace_model(SineMLP(side))
        assert train.step(BATCH).loss < before  # the old model stays
        big = train.attach(forward=lambda m, x: sine_predict(m, x), inputs={"x": (1 << 27, 1)})
        assert isinstance(big.run(x=np.broadcast_to(X[:1], (1 << 27, 1))).result(), tg.Failed)
        assert train.step(BATCH).step == 3


def test_memory_that_the_system_refuses_is_a_device_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with compiled() as train:
        zeros = np.zeros

        def refuse(shape: Any, *more: Any, **named: Any) -> np.ndarray:
            if np.prod(shape) > 5000:
                raise MemoryError("no more")
            return zeros(shape, *more, **named)

        with monkeypatch.context() as patch:
            patch.setattr(np, "zeros", refuse)
            with pytest.raises(tg.DeviceError, match=r"not enough memory for the .* bytes of the program: no more"):
                train.replace_model(SineMLP(200))
        assert train.step(BATCH).step == 1


@pytest.mark.usefixtures("webgpu")
def test_a_limit_a_feature_and_a_shader_that_a_device_refuses_leave_the_training(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with compiled("webgpu") as train:
        train.step(BATCH).result()
        with monkeypatch.context() as patch:
            limited = wgpu_shared.check_limits
            tiny = {"max-storage-buffer-binding-size": 64}
            patch.setattr("tracegrad.runtime.wgpu_session.check_limits",
                          lambda p, limits, *more: limited(p, {**limits, **tiny}, *more))  # fmt: skip
            with pytest.raises(
                tg.DeviceError, match=r"allows 64 .max-storage-buffer-binding-size.; device='cpu' has no"
            ):
                train.replace_model(SineMLP(16))
            with pytest.raises(tg.DeviceError, match="max-storage-buffer-binding-size"):
                compiled("webgpu")
            tiny = {"max-compute-invocations-per-workgroup": 64}
            with pytest.raises(tg.DeviceError, match=r"needs 256 threads in one workgroup; .* allows 64"):
                compiled("webgpu")
        with monkeypatch.context() as patch:
            patch.setattr("tracegrad.runtime.wgpu_session.check_limits",
                          lambda p, limits, features, device: limited(p, limits, set(), device))  # fmt: skip
            with pytest.raises(tg.DeviceError, match=r"needs shader-f16, which .* does not offer"):
                compiled("webgpu", precision="f16")
        with monkeypatch.context() as patch:
            spelled = wgpu_shared.Shared.pipeline

            def refused(self: Any, kernel: Any) -> Any:
                wrong = kernel.wgsl.replace("fn main(", "fn main(nonsense: nothing, ")
                known = {n: getattr(kernel, n) for n in ("label", "bindings", "slots", "workgroup_memory")}
                return spelled(self, type(kernel)(**known, texts=Texts.filed(wrong)))

            patch.setattr(wgpu_shared.Shared, "pipeline", refused)
            patch.setattr(NativeSession, "_self_test", lambda self: None)
            with pytest.raises(tg.CompileError, match=r"kernel .* was refused by the device"):
                train.replace_model(SineMLP(16))
        assert train.step(BATCH).step == 2


# --- threads and loops ---


def test_many_threads_and_loops_share_a_training_that_is_replaced_and_closed(device: str) -> None:
    train = compiled(device)
    infer = train.attach(forward=sine_predict, inputs={"x": (16, 1)})
    made: list[tg.Pending[Any]] = []
    seen: list[Any] = []
    errors: list[BaseException] = []
    stop = threading.Event()

    def guarded(body: Any) -> threading.Thread:
        def run() -> None:
            try:
                while not stop.is_set():
                    body()
            except (tg.AbortedError, tg.InputError):
                pass
            except BaseException as e:
                errors.append(e)

        return threading.Thread(target=run)

    def step() -> None:
        made.append(train.step(BATCH))

    def run() -> None:
        made.append(infer.run(x=X))
        made[-1].result(20)

    def loop() -> None:
        async def body() -> None:
            async def impatient() -> Any:
                return await asyncio.wait_for(train.step(BATCH), 0.001)

            results = await asyncio.gather(
                train.step(BATCH), infer.run(x=X), train.run_steps(2, BATCH), impatient(), return_exceptions=True
            )
            seen.extend(results[:3])

        asyncio.run(asyncio.wait_for(body(), 60))

    threads = [guarded(body) for body in (step, step, run, loop, loop, train.download_params)]
    for thread in threads:
        thread.start()
    for _ in range(3):
        time.sleep(0.05)
        train.replace_model(train.model)
    time.sleep(0.05)
    train.close()
    stop.set()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    assert not errors, errors[0]
    kinds = {type(r) for r in [*seen, *(p.result(10) for p in made)]}
    assert kinds <= {CompletedStep, CompletedRun, tg.Aborted} and CompletedStep in kinds


# --- the end of Python ---

BEGIN = """
import asyncio, contextlib, sys, threading, time
from test_faults import *
train = compiled({device!r})
train.step(BATCH).result()
"""
ENDS = {
    "queued": "made = [train.step(BATCH) for _ in range(50)]",
    "a thread that steps": """
def go():
    while True: train.step(BATCH)
threading.Thread(target=go, daemon=True).start()
time.sleep(0.05)""",
    "a thread that waits": """
def go():
    while True: train.step(BATCH).result()
threading.Thread(target=go, daemon=True).start()
time.sleep(0.05)""",
    "a callback that steps": """
def again(p):
    train.step(BATCH).add_done_callback(again)
train.step(BATCH).add_done_callback(again)""",
    "a loop that is left": """
async def body():
    waiting = [asyncio.ensure_future(asyncio.wait_for(train.step(BATCH), 5)) for _ in range(20)]
    await waiting[0]
asyncio.run(body())""",
    "while another compiles": """
def other():
    with contextlib.suppress(tg.DeviceError, tg.AbortedError):  # it may hear of the end
        compiled({device!r})
threading.Thread(target=other, daemon=True).start()
time.sleep(0.02)""",
    "in a cycle with its pendings": "train.self = [train, train.step(BATCH)]\ndel train",
    "sys.exit": "made = [train.step(BATCH) for _ in range(50)]\nsys.exit(0)",
}


def test_python_ends_quietly_whatever_is_under_way(device: str) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])}
    running = {
        name: subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", (BEGIN + body).replace("{device!r}", repr(device))],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
        )
        for name, body in ENDS.items()
        if device == "cpu" or name in ("queued", "a thread that steps", "a callback that steps")
    }  # fmt: skip
    for name, child in running.items():
        try:
            out, err = child.communicate(timeout=120)
        finally:
            child.kill()
        assert (child.returncode, out, err) == (0, "", ""), (name, child.returncode, out, err[-3000:])


@pytest.fixture(autouse=True)
def threads_end() -> Iterator[None]:
    """No test here leaves a thread behind."""
    before = set(threading.enumerate())
    yield
    end = time.monotonic() + 10
    while (left := set(threading.enumerate()) - before) and time.monotonic() < end:
        time.sleep(0.01)
    assert not left
