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
from tracegrad.runtime import native as runtime, wgpu_compiled
from tracegrad.runtime.native import NativeSession
s = NativeSession(SUPPORT.adapter, calls="{calls}")
x = {{"x": np.ones(4, np.float32)}}
handle = s.load(accumulator())
ticket = s.submit(handle, x)
{body}
print("SURVIVED")
"""

PATHS = {
    "lost device": """
s.collect(ticket)
s._device.destroy()
for call in (lambda: s.collect(s.submit(handle, x)), lambda: s.submit(handle, x), lambda: s.read("total")):
    try:
        call(); print("no error")
    except DeviceLostError as e:
        print(e)
s.close()""",
    "lost in flight": """
s._device.destroy()
for call in (lambda: s.collect(ticket), lambda: s.collect(s.submit(handle, x))):
    try:
        call()
    except DeviceError as e:
        print(type(e), e)""",
    "lost before many are sent, and behind them": """
s.collect(ticket)
runtime.SECONDS_AT_ONCE = 1e9
for before in (True, False):
    many = [s.submit(handle, x) for _ in range(9)]
    if not before:
        s.flush()
    s._device.destroy()
    for t in many:
        try:
            s.collect(t); print("no error")
        except DeviceError as e:
            print(e)
    s.close()
    s = NativeSession(SUPPORT.adapter, calls="{calls}")
    handle = s.load(accumulator())
    s.collect(s.submit(handle, x))""",
    "exit while many are sent": """
runtime.SECONDS_AT_ONCE = 1e9
s.collect(ticket)
for _ in range(9):
    s.submit(handle, x)
s.flush()""",
    "dropped while many are sent": """
import gc
runtime.SECONDS_AT_ONCE = 1e9
late = wgpu_compiled.SOURCE.replace("void send_now(", "#include <unistd.h>\\nvoid send_now(", 1)
head = "sender_ *s, job_ *job) {"
runtime.SOURCE = late.replace(head, head + " if (job->count > 2) usleep(100000);", 1)
for _ in range(3):
    s = NativeSession(SUPPORT.adapter, calls="{calls}")
    handle = s.load(accumulator())
    s.collect(s.submit(handle, x))
    for _ in range(9):
        s.submit(handle, x)
    s.flush()
    s = None
    gc.collect()""",
    "unload in flight": """
s.unload(handle)
again = s.load(accumulator())
assert s.collect(s.submit(again, x))["y"].tolist() == [1.0] * 4""",
    "a buffer that goes with a write pending": """
s.write("total", x["x"])
s.unload(handle)
again = s.load(accumulator())
assert s.collect(s.submit(again, x))["y"].tolist() == [1.0] * 4""",
    "a wait that was interrupted leaves its slot alone": """
fetch = s.calls.fetch
def interrupted(buffer, size, mark):
    fetch(buffer, size, mark)
    buffer.map_async("READ_NOSYNC", 0, size).sync_wait()
    raise KeyboardInterrupt
s.calls.fetch = interrupted
try:
    s.collect(ticket)
except KeyboardInterrupt:
    pass
s.calls.fetch = fetch
del ticket
assert s.collect(s.submit(handle, x))["y"].tolist() == [2.0] * 4""",
    "exit without close": "",
}


@pytest.mark.skipif(not SUPPORT.ok, reason=f"no WebGPU adapter: {SUPPORT.message}")
@pytest.mark.parametrize("calls", ["compiled", "direct", "public"])
@pytest.mark.parametrize("path", PATHS)
def test_misuse_never_aborts_the_process(path: str, calls: str) -> None:
    code = GUARDED.format(calls=calls, body=textwrap.dedent(PATHS[path]).replace("{calls}", calls))
    environment = {**os.environ, VARIABLE: "", "PYTHONPATH": os.pathsep.join([SRC, str(Path(__file__).parent)])}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "SURVIVED" in done.stdout and "no error" not in done.stdout
