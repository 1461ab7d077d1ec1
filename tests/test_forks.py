"""Forked processes: a child trains on its own, and is told what belongs to its parent. Nothing hangs."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import multiprocessing
import os
import signal
import threading
import time
import weakref
from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
import pytest
import torch
import wgpu

import tracegrad as tg
from tracegrad import kernel_source, nn, optim
from tracegrad.engine.worker import Worker
from tracegrad.render.c_engine import ENGINE
from tracegrad.runtime.adapters import check_webgpu
from tracegrad.runtime.c_compiler import compiler_named
from tracegrad.runtime.process import Generation
from tracegrad.runtime.wgpu_adapter import enumerate_here

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork"),
    pytest.mark.filterwarnings("ignore:.*use of fork:DeprecationWarning"),
    pytest.mark.usefixtures("c_compiler"),
]

N = 256  # products of this size are split between threads
X = np.random.default_rng(0).standard_normal((N, N)).astype(np.float32)
SECONDS = 60  # for a child


class Wide(tg.Module):
    def __init__(self) -> None:
        self.a, self.b = nn.Linear(N, N), nn.Linear(N, N)


def predict(m: Wide, x: tg.Tensor) -> tg.Tensor:
    return m.b(tg.tanh(m.a(x)))


def loss(m: Wide, x: tg.Tensor, y: tg.Tensor) -> tg.Tensor:
    return tg.mse_loss(predict(m, x), y)


def compiled(device: str = "cpu") -> tg.CompiledTraining:
    inputs = {"x": (N, N), "y": (N, N)}
    return tg.compile(model=Wide(), loss=loss, inputs=inputs, optimizer=optim.adam(1e-3), seed=0, device=device)


def losses(train: tg.CompiledTraining, n: int = 3) -> list[float]:
    return [train.step(x=X, y=X).loss for _ in range(n)]


def in_child(body: Callable[[], object]) -> str:
    """What `body` gives in a forked child, as text; it ends by force after SECONDS."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        signal.alarm(SECONDS)
        try:
            said = repr(body())
        except BaseException as e:
            said = f"{type(e).__name__}: {e}"
        os.write(write, said.encode()[:4000])
        os._exit(0)
    os.close(write)
    with os.fdopen(read, "rb") as pipe:
        said = pipe.read().decode()
    _, status = os.waitpid(pid, 0)
    assert status == 0, f"the child ended with status {status}, having said {said!r}"
    return said


@contextlib.contextmanager
def stepping(train: tg.CompiledTraining) -> Iterator[None]:
    """Another thread trains meanwhile."""
    stop = threading.Event()

    def go() -> None:
        while not stop.is_set():
            train.step(x=X, y=X)

    thread = threading.Thread(target=go)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@pytest.fixture(scope="module")
def train() -> Iterator[tg.CompiledTraining]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TRACEGRAD_CC", "")
        with compiled() as made:
            yield made


def test_a_child_that_compiles_its_own_training_trains_as_its_parent_does(train: tg.CompiledTraining) -> None:
    with compiled() as reference:
        want = repr(losses(reference))
    losses(train)  # the helpers sleep
    assert in_child(lambda: losses(compiled())) == want
    with stepping(train):
        for wait in (0.0, 0.004):
            time.sleep(wait)
            assert in_child(lambda: losses(compiled())) == want


def test_the_engine_starts_anew_in_a_child_whatever_its_parent_held() -> None:
    """The parent forks while a thread of its own is inside of a call, so that the lock of the helpers is held."""
    found = compiler_named("")
    engine = found and found.library(ENGINE)
    if engine is None:
        pytest.skip("no C compiler")
    with compiled() as one, compiled() as two, stepping(one), stepping(two):
        time.sleep(0.01)
        assert in_child(lambda: len(losses(compiled()))) == "3"


def test_multiprocessing_by_fork_and_workers_of_a_loader(train: tg.CompiledTraining) -> None:
    want = losses(compiled())
    with stepping(train), multiprocessing.get_context("fork").Pool(2) as pool:
        assert pool.map_async(child_losses, range(2)).get(timeout=SECONDS) == [want, want]

    class Labelled(torch.utils.data.Dataset[Any]):
        """Each worker runs a forward of its own."""

        def __len__(self) -> int:
            return 4

        def __getitem__(self, k: int) -> np.ndarray:
            with compiled() as mine:
                return np.asarray([*losses(mine, 1), float(k)])

    loader = torch.utils.data.DataLoader(Labelled(), batch_size=None, num_workers=2, timeout=SECONDS)
    with stepping(train):
        rows = sorted(tuple(np.asarray(row)) for row in loader)
    assert rows == [(want[0], float(k)) for k in range(4)]


def child_losses(_: int) -> list[float]:
    return losses(compiled())


def test_what_a_child_does_with_its_parents_training_is_an_error_that_says_what_to_do(
    train: tg.CompiledTraining,
) -> None:
    infer = train.attach(forward=predict, inputs={"x": (N, N)})
    gate = threading.Event()
    train.worker.post(lambda _: gate.wait(SECONDS))
    under_way = train.step(x=X, y=X)
    locks = (train._lock, infer._lock, kernel_source.spelling)
    held = threading.Barrier(2)

    def hold() -> None:
        with contextlib.ExitStack() as stack:
            for lock in locks:
                stack.enter_context(lock)
            held.wait(SECONDS)
            gate.wait(SECONDS)

    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(SECONDS)

    async def awaited() -> Any:
        return await under_way

    def calls() -> list[str]:
        told = [under_way.result().error, asyncio.run(awaited()).error, train.step(x=X, y=X).result().error]
        told.append(infer.run(x=X).result().error)
        for call in (lambda: train.set_lr(0.1), train.download_params, lambda: train.set(beta1=0.5), train.profile):
            try:
                call()
            except tg.DeviceError as e:
                told.append(e)
        infer.close()
        train.close()
        return [str(e) for e in told]

    try:
        told = in_child(calls)
        assert told.count("forked from the one that opened the device") == 8
        assert told.count("Compile in this process") == 8
        assert in_child(lambda: len(losses(compiled()))) == "3"  # though a thread of the parent was spelling kernels
    finally:
        gate.set()
        holder.join()
    assert under_way.step > 0  # the parent's own


def test_a_child_forked_while_a_device_opens_is_not_left_waiting() -> None:
    gate = threading.Event()
    worker = Worker(lambda: cast("Any", gate.wait(SECONDS)))
    told = in_child(worker.opened)
    gate.set()
    worker.close()
    assert "forked from the one that opened the device" in told


def test_drivers_of_a_gpu_are_not_called_in_a_child(webgpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    software = check_webgpu().reason == "software"
    with (
        pytest.warns(RuntimeWarning, match="software") if software else contextlib.nullcontext(),
        compiled("webgpu") as gpu,
    ):
        gpu.step(x=X, y=X)
        told = in_child(lambda: compiled("webgpu"))
        assert told.startswith("DeviceError") and "does not survive a fork" in told and "'spawn'" in told

        monkeypatch.setattr("tracegrad.runtime.adapters.may_have_gpu", lambda: True)

        def automatic() -> Any:
            with pytest.warns(RuntimeWarning, match="runs on the CPU"), compiled("auto") as made:
                return made.device.name, len(losses(made))

        assert in_child(automatic) == "('cpu', 3)"
        assert gpu.step(x=X, y=X).step == 2


def test_a_child_releases_no_gpu_object_of_its_parent(webgpu: None) -> None:
    """Not even garbage that the parent had not collected: a release calls the driver, whose threads are gone."""
    device = enumerate_here()[0].request_device_sync()
    kept, dropped = (device.create_buffer(size=16, usage=wgpu.BufferUsage.STORAGE) for _ in range(2))
    alive = [weakref.ref(kept), weakref.ref(dropped)]
    here = Cycle(dropped)
    gc.disable()
    try:
        del here, dropped

        def collected() -> list[bool]:
            nonlocal kept
            del kept
            gc.collect()
            return [ref() is not None for ref in alive]

        assert in_child(collected) == "[True, True]"
        gc.collect()
        assert [ref() is not None for ref in alive] == [True, False]  # the parent releases its own
    finally:
        gc.enable()


class Cycle:
    """Garbage that only the collector of cycles frees."""

    def __init__(self, thing: object) -> None:
        self.thing, self.me = thing, self


def test_generations_are_counted() -> None:
    here = Generation.number
    assert in_child(lambda: Generation.number - here) == "1" and Generation.number == here
