"""Ask for this machine's WebGPU adapters without loading a driver here: a child process lists them.

Drivers can crash or hang at the first call, and Mesa prints to stderr. In a tab, the browser is asked instead.
"""

from __future__ import annotations

import ctypes
import importlib.util
import json
import os
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tracegrad.refusals import remedies
from tracegrad.runtime import remembered, tab, wgpu_types
from tracegrad.runtime.process import quiet_stderr
from tracegrad.runtime.wgpu_adapter import (
    ADAPTER,
    INSTALL,
    AdapterInfo,
    described,
    enumerate_here,
    is_software,
    load_wgpu,
    ranked,
)

if TYPE_CHECKING:
    import subprocess

PROBE_SECONDS = 60  # a driver that takes longer is assumed to hang

# Runs in the child. The driver can print to stdout too, so a marker precedes the answer.
PROBE = """
import json, os, sys
try:
    names = {}
    exec(open(sys.argv[1]).read(), names)
    with names["known"](open(sys.argv[2]).read()):
        import wgpu.backends.wgpu_native
except BaseException:
    pass
try:
    import wgpu
except BaseException as e:
    print("\\nTRACEGRAD" + json.dumps({"error": f"{type(e).__name__}: {e}"})); sys.exit()
try:
    from wgpu.backends.wgpu_native.extras import set_instance_extras
    set_instance_extras(backends=["Primary"])
except Exception:
    pass
rows = [{"info": dict(a.info), "limits": dict(a.limits), "features": sorted(a.features)}
        for a in wgpu.gpu.enumerate_adapters_sync()]
print("\\nTRACEGRAD" + json.dumps({"rows": rows}), flush=True)
os._exit(0)  # drivers take their time to go
"""


@dataclass(frozen=True, slots=True)
class Answer:
    """The adapters that a child process found, or why it found none."""

    adapters: tuple[AdapterInfo, ...] = ()
    reason: str = ""
    detail: str = ""
    rows: remembered.Rows = field(default_factory=list[Any])  # as wgpu describes them

    def explain(self) -> str:
        """Return the reason in words for a user, with the remedy."""
        if self.reason == "browser":
            return self.detail
        why = remedies()["webgpu"][self.reason].format(detail=self.detail, install=INSTALL, seconds=PROBE_SECONDS)
        return f'{why} (device="cpu" works without)'


def known() -> Answer | None:
    """Return what a child has answered in this environment; None if none was asked."""
    return ANSWERS.get(_environment())


def _environment() -> tuple[str, ...]:
    names = ("VK_ICD_FILENAMES", "VK_DRIVER_FILES", "WGPU_LIB_PATH", "WGPU_BACKEND_TYPE", ADAPTER)
    return tuple(os.environ.get(n, "") for n in names)


ANSWERS: dict[tuple[str, ...], Answer] = {}  # environment -> the child's answer, asked once


def ask(child: subprocess.Popen[bytes] | None = None) -> Answer:
    """Return the answer of a child that is already running, or of a new one."""
    key = _environment()
    if key not in ANSWERS:
        ANSWERS[key] = _probe(child)
    return ANSWERS[key]


def _probe(child: subprocess.Popen[bytes] | None) -> Answer:
    """Ask a child process for the adapters; in a tab, ask the browser; in a frozen program, list them here."""
    if tab.IN_TAB:
        return _probe_browser()
    if importlib.util.find_spec("wgpu") is None:
        return Answer(reason="no-wgpu")
    import subprocess

    child = child or started_child()
    try:
        text = _probe_here() if child is None else _probe_child(child)
    except subprocess.TimeoutExpired:
        return Answer(reason="driver-hangs")
    except _ChildDiedError as e:
        return Answer(reason="driver-crashed", detail=str(e))
    said = json.loads(text)
    if "error" in said:
        return Answer(reason="broken-wgpu", detail=said["error"])
    if found := ranked(said["rows"]):
        return Answer(found, rows=said["rows"])
    return Answer(reason="no-driver" if _has_loader() else "no-loader")


def _has_loader() -> bool:
    """Return False on a Linux without the library that finds Vulkan's drivers."""
    if not sys.platform.startswith("linux"):
        return True
    try:
        ctypes.CDLL("libvulkan.so.1")
    except OSError:
        return False
    return True


def _probe_browser() -> Answer:
    """Return the browser's adapter. If Python cannot wait for it, a browser with WebGPU counts as having one."""
    if tab.can_wait():
        said = tab.wait(tab.javascript().support(), "asking for adapters")
        error = getattr(said, "error", None)
        if error is not None:
            return Answer(reason="browser", detail=str(error.message))
        name = str(said.value)
    elif tab.has_webgpu():
        name = "the browser's"
    else:
        return Answer(reason="browser", detail="this browser does not offer WebGPU")
    found = AdapterInfo(
        name=name,
        backend="browser",
        type="Unknown",
        driver="",
        software=is_software(name),
        limits={},
        features=(),
    )
    return Answer((found,))


class _ChildDiedError(Exception):
    """Raised if the child ends without an answer."""


def started_child() -> subprocess.Popen[bytes] | None:
    """Start PROBE in a child with this process's import path. None if the executable is not Python, or without wgpu."""
    if getattr(sys, "frozen", False) or not sys.executable or importlib.util.find_spec("wgpu") is None:
        return None
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)}
    command = [sys.executable, "-P", "-c", PROBE, wgpu_types.__file__, str(remembered.types_file())]
    import subprocess

    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment)


def _probe_child(child: subprocess.Popen[bytes]) -> str:
    """Wait for the child, and return its answer as JSON. Raises _ChildDiedError if there is none."""
    try:
        out, err = child.communicate(timeout=PROBE_SECONDS)
    except BaseException:
        child.kill()
        child.communicate()
        raise
    answer = out.decode(errors="replace").rpartition("\nTRACEGRAD")[2]
    if not answer.startswith("{"):
        last = err.decode(errors="replace").strip().splitlines()[-1:]
        raise _ChildDiedError(f"exit status {child.returncode}" + "".join(f": {line}" for line in last))
    return answer.splitlines()[0]


def _probe_here() -> str:
    """List the adapters in this process, for a frozen program whose executable is not Python. Return JSON."""
    try:
        load_wgpu()
        with quiet_stderr():
            found = enumerate_here()
    except Exception as e:
        return json.dumps({"error": str(e)})
    return json.dumps({"rows": [described(a) for a in found]})
