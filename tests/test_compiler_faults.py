"""A C compiler that hangs, fails or is interrupted: a bounded wait, NumPy instead, one warning, nothing left behind."""

from __future__ import annotations

import gc
import os
import re
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from models import SineMLP, sine_loss
from tracegrad import optim
from tracegrad.runtime import c_compiler as module
from tracegrad.runtime.c_compiler import LIMIT, VARIABLE, compiler_named
from tracegrad.runtime.cache import cache_folder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="there is no C compiler to call")
X = np.random.default_rng(0).uniform(-3, 3, (32, 1)).astype(np.float32)
BATCH = {"x": X, "y": np.sin(X)}

# A compiler as GCC is: the process that is called starts another one, which does the work and holds the pipes.
HANGS = '#!/bin/sh\n[ "$1" = --version ] && echo hanging 1.0 && exit 0\nsleep 600 & echo $! >> {log}\nwait\n'
HANGS_AT_ONCE = "#!/bin/sh\nsleep 600 & echo $! >> {log}\nwait\n"
FAILS = '#!/bin/sh\n[ "$1" = --version ] && echo broken 1 && exit\ncat >/dev/null\necho out of order $8 >&2\nexit 1\n'


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Path]:
    """Make a script the C compiler; where it writes the numbers of its processes."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    log = tmp_path / "processes"
    log.touch()

    def made(text: str) -> Path:
        path = tmp_path / "cc"
        path.write_text(text.format(log=log))
        path.chmod(0o700)
        monkeypatch.setenv(VARIABLE, str(path))
        compiler_named.cache_clear()
        return log

    return made


def compiled(width: int = 8, device: str = "cpu", **more: Any) -> tg.CompiledTraining:
    return tg.compile(
        model=SineMLP(width), loss=sine_loss, inputs={"x": (32, 1), "y": (32, 1)}, optimizer=optim.adam(1e-3), seed=0,
        device=device, **more,
    )  # fmt: skip


def alive(log: Path) -> list[int]:
    """Processes of the compiler that still run."""
    found = []
    for number in map(int, log.read_text().split()):
        try:
            state = Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            continue
        found += [number] * (state != "Z")
    return found


def eventually(true: Callable[[], bool], seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while not true() and time.monotonic() < end:
        time.sleep(0.01)
    return true()


@pytest.mark.parametrize("text", [HANGS, HANGS_AT_ONCE], ids=["hangs", "hangs when asked for its version"])
def test_a_compiler_that_hangs_is_given_up_and_numpy_trains(
    text: str, fake: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(VARIABLE, "off")
    with compiled() as train:
        want = [train.step(BATCH).loss for _ in range(3)]
    log = fake(text)
    monkeypatch.setenv(LIMIT, "0.2")
    monkeypatch.setattr(module, "CHARACTERS", 1e9)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        started: list[int] = []
        for _ in range(2):
            with compiled() as train:
                assert [train.step(BATCH).loss for _ in range(3)] == want
                assert "NumPy" in train.device.description and "compiled by" not in train.device.description
            started.append(len(log.read_text().split()))
    assert started[0] == started[1]  # the second does not try again
    assert len(said) == 1 and issubclass(said[0].category, RuntimeWarning), [str(w.message) for w in said]
    wanted = f"did not end within 0.2 s, which {LIMIT} sets" if text is HANGS else "--version did not end within 0.2 s"
    assert wanted in str(said[0].message)
    assert log.read_text() and eventually(lambda: not alive(log))
    assert not [p for p in cache_folder().iterdir() if p.name.startswith("new-")]


def test_a_compiler_that_does_not_say_its_version_costs_seconds(
    fake: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The limit is not that of compiling."""
    fake(HANGS_AT_ONCE)
    monkeypatch.setenv(LIMIT, "600")
    monkeypatch.setattr(module, "ANSWERS", 0.2)
    begun = time.monotonic()
    with pytest.warns(RuntimeWarning, match=r"--version did not end within 0.2 s"):
        assert compiler_named(os.environ[VARIABLE]) is None
    assert time.monotonic() - begun < 20


def test_a_compiler_that_fails_is_told_of_once_and_the_device_says_numpy(fake: Callable[[str], Path]) -> None:
    fake(FAILS)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with compiled() as train:
            assert train.step(BATCH).step == 1
            path = os.environ[VARIABLE]
            assert train.device.description == f"NumPy, because {path} failed, on this machine's CPU"
    assert len(said) == 1 and "out of order" in str(said[0].message)


def test_closing_ends_the_compiler_and_what_waits_is_aborted(
    fake: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    log = fake(HANGS)
    monkeypatch.setenv(LIMIT, "600")
    train = compiled()
    pending = [train.step(BATCH) for _ in range(3)]
    assert eventually(lambda: len(alive(log)) >= 2)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        train.close()
    assert eventually(lambda: not alive(log))
    assert [type(p.result(0)) for p in pending] == [tg.Aborted] * 3


INTERRUPTED = """
import importlib, os, signal, threading
from test_compiler_faults import *
train = compiled()
pending = train.step(BATCH)
def interrupt():
    while not os.path.getsize({log!r}):  # until the compiler is at work
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
try:
    threading.Thread(target=interrupt).start()
    pending.result()
except KeyboardInterrupt:
    print("interrupted", flush=True)
if {closes}:
    train.close()
    print(pending.result())
"""


@pytest.mark.parametrize("closes", [True, False])
def test_an_interrupt_ends_the_wait_for_a_compiler_and_so_does_the_end_of_python(
    closes: bool, fake: Callable[[str], Path]
) -> None:
    log = fake(HANGS)
    # a wait for the compiler would exceed the time that the process has
    environment = {**os.environ, LIMIT: "600", "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED.format(closes=closes, log=str(log))], capture_output=True, text=True,
        timeout=250,
        env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["interrupted", *(["Aborted(reason='closed')"] if closes else [])]
    assert log.read_text() and eventually(lambda: not alive(log))


FIT = """
import importlib, os, signal, threading
from test_compiler_faults import *
importlib.import_module("tracegrad.training.fit").ENDS = 600 if {twice} else 0.2
train, log, queued, fitted = compiled(), Path({log!r}), threading.Event(), threading.Event()
def batches():
    yield BATCH
    queued.set()
    while True:
        yield BATCH
def interrupt():
    queued.wait()
    while not log.read_text():  # until the compiler is at work
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
    if {twice} and not fitted.wait(2.0):  # while `fit` waits for steps to end
        os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt, daemon=True).start()
history = train.fit(batches(), progress=False)
fitted.set()
print(history.interrupted, history.loss, flush=True)
steps = train.fitted.done
for process in alive(log):
    os.kill(process, signal.SIGKILL)  # the compiler ends without a library
print(steps > 0, train.step(BATCH).step == steps + 1, flush=True)
"""


@pytest.mark.parametrize("twice", [False, True])
def test_fit_returns_its_history_when_interrupted_while_a_compiler_hangs(
    twice: bool, fake: Callable[[str], Path]
) -> None:
    """Steps that are queued then are applied later."""
    log = fake(HANGS)
    environment = {**os.environ, LIMIT: "600", "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", FIT.format(twice=twice, log=str(log))], capture_output=True, text=True,
        timeout=250, env=environment, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout.splitlines()) == (0, ["True []", "True True"]), done.stderr
    assert eventually(lambda: not alive(log))


INTERRUPTED_AT_ONCE = """
import os, signal, threading
from test_compiler_faults import *
module.ANSWERS = 1e6
begin = subprocess.Popen.__init__
def slow(*args, **named):  # so that the interrupt comes before the caller has the process
    begin(*args, **named)
    time.sleep(0.5)
subprocess.Popen.__init__ = slow
def interrupt():
    while not os.path.getsize({log!r}):  # until the compiler is asked for its version
        time.sleep(0.01)
    os.kill(os.getpid(), signal.SIGINT)
threading.Thread(target=interrupt).start()
try:
    compiled(device={device!r})
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""


@pytest.mark.parametrize("device", ["cpu", "auto"])
def test_an_interrupt_ends_the_wait_for_the_version_of_a_compiler(device: str, fake: Callable[[str], Path]) -> None:
    log = fake(HANGS_AT_ONCE)
    environment = {**os.environ, LIMIT: "1e6", "PYTHONPATH": os.pathsep.join([str(Path(__file__).parent), *sys.path])}
    code = INTERRUPTED_AT_ONCE.format(log=str(log), device=device)
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=250, env=environment, check=False
    )
    assert (done.returncode, done.stdout) == (0, "interrupted\n"), done.stderr
    assert eventually(lambda: not alive(log))


def mapped() -> set[str]:
    """Libraries of kernels in this process's memory."""
    return set(re.findall(r"/\S*/tracegrad/libraries/\w+/\w+-\w+\.so", Path("/proc/self/maps").read_text()))


@pytest.mark.skipif(not Path("/proc/self/maps").exists(), reason="needs Linux's /proc")
def test_libraries_are_unloaded_with_the_last_training_that_uses_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(VARIABLE, "")
    if compiler_named("") is None:
        pytest.skip("no C compiler")
    with compiled(8) as train:
        train.step(BATCH).result()  # loads the engine, which stays
    del train
    gc.collect()
    before = mapped()
    first, second = compiled(9), compiled(9)
    assert first.step(BATCH).loss == second.step(BATCH).loss
    assert "compiled by" in first.device.description
    assert len(mapped() - before) >= 1
    first.close()
    del first
    gc.collect()
    assert second.step(BATCH).step == 2 and mapped() - before
    second.close()
    del second
    gc.collect()
    assert eventually(lambda: mapped() <= before), mapped() - before
    assert threading.active_count() < 20
