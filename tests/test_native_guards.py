"""Misuse of a native session in a child process: whatever happens, the process must live to say so."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tracegrad.runtime import adapters as finding
from tracegrad.runtime.c_compiler import VARIABLE

SUPPORT = finding.check_webgpu()
SRC = str(Path(__file__).parent.parent / "src")

GUARDED = """
import numpy as np
from test_native import accumulator, SUPPORT
from tracegrad.errors import *
from tracegrad.runtime import wgpu_session as runtime, wgpu_compiled
from tracegrad.runtime.wgpu_session import NativeSession
s = NativeSession(SUPPORT.adapter, calls="{calls}")
x = {{"x": np.ones(4, np.float32)}}
handle = s.load(accumulator())
batch = s.run(handle, [x])
{body}
print("SURVIVED")
"""

PATHS = {
    "lost device": """
batch.outputs()
s._device.destroy()
for call in (lambda: s.run(handle, [x]).outputs()[0], lambda: s.run(handle, [x, x]), lambda: s.read("total")):
    try:
        call(); print("no error")
    except DeviceLostError as e:
        print(e)
s.close()""",
    "lost in flight": """
s._device.destroy()
for call in (batch.outputs, lambda: s.run(handle, [x]).outputs()[0]):
    try:
        call()
    except DeviceError as e:
        print(type(e), e)""",
    "lost before many are sent, and behind them": """
batch.outputs()
for before in (True, False):
    if before:
        s._device.destroy()
    try:
        many = s.run(handle, [x] * 9)
        s._settle()  # destroyed between finishing and submitting, as no call of ours does it, wgpu aborts
        s._device.destroy()
        many.outputs(); print("no error")
    except DeviceError as e:
        print(e)
    s.close()
    s = NativeSession(SUPPORT.adapter, calls="{calls}")
    handle = s.load(accumulator())
    s.run(handle, [x]).outputs()""",
    "exit while many are sent": """
batch.outputs()
batch = s.run(handle, [x] * 9)""",
    "dropped while many are sent": """
import gc
late = wgpu_compiled.SOURCE.replace("void send_now(", "#include <unistd.h>\\nvoid send_now(", 1)
head = "sender_ *s, job_ *job) {"
runtime.SOURCE = late.replace(head, head + " if (job->count > 2) usleep(100000);", 1)
for _ in range(3):
    s = NativeSession(SUPPORT.adapter, calls="{calls}")
    handle = s.load(accumulator())
    s.run(handle, [x]).outputs()
    s.run(handle, [x] * 9)
    s = None
    gc.collect()""",
    "unload in flight": """
s.unload(handle)
again = s.load(accumulator())
assert s.run(again, [x]).outputs()[0]["y"].tolist() == [1.0] * 4""",
    "a buffer that goes with a write pending": """
s.write("total", x["x"])
s.unload(handle)
again = s.load(accumulator())
assert s.run(again, [x]).outputs()[0]["y"].tolist() == [1.0] * 4""",
    "a wait that was interrupted leaves its memory alone": """
fetch = s.calls.fetch
def interrupted(buffer, size, mark):
    fetch(buffer, size, mark)
    buffer.map_async("READ_NOSYNC", 0, size).sync_wait()
    raise KeyboardInterrupt
s.calls.fetch = interrupted
try:
    batch.outputs()
except KeyboardInterrupt:
    pass
s.calls.fetch = fetch
del batch
assert s.run(handle, [x]).outputs()[0]["y"].tolist() == [2.0] * 4""",
    "exit without close": "",
}


@pytest.mark.skipif(not SUPPORT.ok, reason=f"no WebGPU adapter: {SUPPORT.message}")
@pytest.mark.parametrize("calls", ["compiled", "direct"])
@pytest.mark.parametrize("path", PATHS)
def test_misuse_never_aborts_the_process(path: str, calls: str) -> None:
    code = GUARDED.format(calls=calls, body=textwrap.dedent(PATHS[path]).replace("{calls}", calls))
    found = os.pathsep.join([SRC, str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, VARIABLE: "", "PYTHONPATH": found}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "SURVIVED" in done.stdout and "no error" not in done.stdout
