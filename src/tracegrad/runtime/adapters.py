"""WebGPU adapters: list them, choose one, and explain in plain words why there is none.

Drivers can crash or hang at the first call, and Mesa prints to stderr. So a child process lists the adapters first.
This process only opens an adapter that a child has listed, now or for an earlier process (`remembered`).
"""

from __future__ import annotations

import contextlib
import ctypes
import glob
import importlib
import importlib.util
import json
import os
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from tracegrad.errors import DeviceError
from tracegrad.refusals import helpful, remedies
from tracegrad.runtime import process, remembered, tab, wgpu_types
from tracegrad.runtime.process import quiet_stderr

if TYPE_CHECKING:
    import subprocess

T = TypeVar("T")
INSTALL = 'pip install "wgpu>=0.32,<0.33"'
PINNED = "0.32."  # the wgpu-py whose private handles wgpu_calls.py knows
PROBE_SECONDS = 60  # a driver that takes longer is assumed to hang
BACKENDS = ("Vulkan", "Metal", "D3D12")  # OpenGL computes too, but aborts and prints on many machines
ADAPTER = "TRACEGRAD_ADAPTER"  # an environment variable: a part of the name of the adapter to use
SOFTWARE = ("llvmpipe", "swiftshader", "lavapipe", "basic render")
KINDS = ("DiscreteGPU", "IntegratedGPU", "Unknown", "CPU")  # best first
FEATURES = ("shader-f16", "subgroup", "timestamp-query")  # requested where offered
GPU_NODES = ("/dev/dri/renderD*", "/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg", "/dev/mali*", "/dev/nvhost-gpu")

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
class AdapterInfo:
    """One adapter: a GPU, or a CPU that acts as one, seen through one graphics interface."""

    name: str
    backend: str  # "Vulkan", "Metal" or "D3D12"
    type: str  # "DiscreteGPU", "IntegratedGPU", "CPU" or "Unknown"
    driver: str
    software: bool
    limits: Mapping[str, int] = field(repr=False)
    features: tuple[str, ...] = field(repr=False)

    @property
    def description(self) -> str:
        """The adapter's name and graphics interface, such as `NVIDIA H200 (Vulkan)`."""
        return f"{self.name} ({self.backend})"


@dataclass(frozen=True, slots=True)
class WebGPUSupport:
    """The result of `tg.check_webgpu`: whether `device="webgpu"` can work here, and if not, why.

    ok:      whether it can. `bool(result)` is `ok`, so `if tg.check_webgpu():` works.
    reason:  "ok", or "software": it works, but slowly, so "auto" does not choose it. Where it cannot work, one of
             "browser", "no-wgpu", "broken-wgpu", "driver-crashed", "driver-hangs", "no-loader", "no-driver" and
             "no-such-adapter" (see `TRACEGRAD_ADAPTER`).
    message: the reason in a sentence, with a remedy.
    adapter: the GPU that would be used, or None.

    >>> tg.WebGPUSupport(False, "no-driver", "there is no GPU here").ok
    False
    """

    ok: bool
    reason: str
    message: str
    adapter: AdapterInfo | None = None

    def __bool__(self) -> bool:
        return self.ok


@dataclass(frozen=True, slots=True)
class _Answer:
    """The adapters that a child process found, or why it found none."""

    adapters: tuple[AdapterInfo, ...] = ()
    reason: str = ""
    detail: str = ""
    rows: remembered.Rows = field(default_factory=list[Any])  # as wgpu describes them


def adapters() -> list[AdapterInfo]:
    """Return all adapters of this machine that can compute, the best first. Never raises."""
    return list(_ask().adapters)


@helpful
def check_webgpu() -> WebGPUSupport:
    """Return whether this machine can compute through WebGPU, and if not, why, as a `WebGPUSupport`. Never raises.

        print(tg.check_webgpu().message)

    >>> tg.check_webgpu().ok in (True, False)
    True
    """
    answer = _ask()
    if answer.reason:
        return WebGPUSupport(False, answer.reason, _explain(answer))
    if why := _unnamed(answer):
        return WebGPUSupport(False, "no-such-adapter", why)
    best = answer.adapters[0]
    if best.software:
        message = f'{best.description} is a software adapter: device="webgpu" works and is slow'
        message += "" if tab.IN_TAB else '; device="auto" uses the CPU runtime instead'
        return WebGPUSupport(True, "software", message, best)
    return WebGPUSupport(True, "ok", f"WebGPU is available: {best.description}", best)


@dataclass(slots=True)
class Search:
    """A search in progress for the adapter of `device`, among those an earlier process found, or that a child lists."""

    device: str
    rows: remembered.Rows | None = None
    child: subprocess.Popen[bytes] | None = None
    loaded: bool = False  # is wgpu imported, because there can be an adapter?


def search(device: str) -> Search:
    """Begin a search, and load wgpu meanwhile if there can be an adapter; `opened` ends the search. Never raises."""
    found = Search(device)
    if (device == "auto" and not may_have_gpu()) or process.inherited_drivers():
        return found
    answer = _ANSWERS.get(_environment())
    if answer is None:
        found.rows = remembered.take()
        if found.rows is None:
            found.child = _started_child()
    with contextlib.suppress(DeviceError, KeyError, TypeError, ValueError):  # `opened` reports the error
        if found.rows is not None:
            answer = _Answer(_sorted(found.rows))
        if answer is None or _chosen(device, answer) is not None:
            load_wgpu()
            found.loaded = True
    return found


def opened(found: Search, open: Callable[[AdapterInfo], T]) -> T | None:
    """Return the result of `open` for the adapter; None if "auto" finds no real GPU. Can be called again.

    In a process forked from one that uses a GPU, "auto" warns and returns None.
    If an adapter that an earlier process found does not open, a child process lists the adapters again.
    Raises: DeviceError for "webgpu" on a machine without adapters, or in a process forked from one that uses a GPU;
            and any error of `open`.
    """
    if found.device == "auto" and not may_have_gpu():
        return None
    if process.inherited_drivers():
        if found.device != "auto":
            raise DeviceError(f'device="webgpu": {process.FORKED_DRIVERS}')
        warnings.warn(f"{process.FORKED_DRIVERS}. This training runs on the CPU", RuntimeWarning, stacklevel=2)
        return None
    if found.rows is not None:
        with contextlib.suppress(DeviceError, KeyError, TypeError, ValueError):
            return _kept(found.device, _Answer(_sorted(found.rows), rows=found.rows), open)
    child, found.rows, found.child = found.child, None, None
    return _kept(found.device, _ask(child), open)


def _kept(device: str, answer: _Answer, open: Callable[[AdapterInfo], T]) -> T | None:
    chosen = _chosen(device, answer)
    made = None if chosen is None else open(chosen)
    if answer.rows:
        remembered.keep(answer.rows)
    return made


def _chosen(device: str, answer: _Answer) -> AdapterInfo | None:
    """Return the best adapter for "webgpu", or raise; for "auto", the best adapter if it is a real GPU."""
    best = answer.adapters[0] if answer.adapters else None
    if why := _unnamed(answer) or (_explain(answer) if best is None and device != "auto" else ""):
        raise DeviceError(f'device="{device}": {why}')
    return None if best is None or (device == "auto" and best.software) else best


def _unnamed(answer: _Answer) -> str:
    """Return the error if there are adapters, but none with the wanted name; "" if not, and in a tab."""
    wanted, names = os.environ.get(ADAPTER, ""), ", ".join([a.description for a in answer.adapters])
    if tab.IN_TAB or not names or wanted.lower() in answer.adapters[0].description.lower():
        return ""
    return f"{ADAPTER} is {wanted!r}, which is in no name of {names}; give it a part of one, or unset it"


def may_have_gpu() -> bool:
    """Return False without the package wgpu, and on Linux without a GPU's device file; else True.

    If False, "auto" need not list adapters, which takes a second.
    """
    if importlib.util.find_spec("wgpu") is None:  # as in a tab
        return False
    return not sys.platform.startswith("linux") or any(glob.glob(node) for node in GPU_NODES)


def open_device(adapter: AdapterInfo) -> Any:
    """Return a new `wgpu.GPUDevice` with the adapter's limits and its FEATURES. Raises DeviceError if it refuses."""
    load_wgpu()
    with quiet_stderr():
        try:
            for found in enumerate_here():
                row = _row({"info": dict(found.info), "limits": dict(found.limits), "features": found.features})
                if (row.name, row.backend, row.type) == (adapter.name, adapter.backend, adapter.type):
                    wanted = [f for f in FEATURES if f in row.features]
                    return found.request_device_sync(label="tracegrad", required_features=wanted)
        except Exception as e:
            raise DeviceError(f"{adapter.description} cannot be opened: {e}") from e
    raise DeviceError(f"{adapter.description} is no longer available")


def load_wgpu() -> Any:
    """Return the wgpu module, without loading a driver. Raises DeviceError if the package cannot be loaded."""
    try:
        with wgpu_types.known(remembered.types()):
            importlib.import_module("wgpu.backends.wgpu_native")
        wgpu: Any = importlib.import_module("wgpu")
        if not wgpu.__version__.startswith(PINNED):
            raise ImportError(f"this is wgpu {wgpu.__version__}, tracegrad needs {PINNED}x")
        return wgpu
    except Exception as e:
        raise DeviceError(f"the Python package wgpu cannot be loaded ({e}); {INSTALL}") from e


def enumerate_here() -> list[Any]:
    """Return wgpu's adapters, without its OpenGL backend unless the program uses wgpu already. This loads drivers."""
    extras: Any = importlib.import_module("wgpu.backends.wgpu_native.extras")
    process.load_drivers()
    with contextlib.suppress(Exception):  # a RuntimeError if the instance exists: then it is the user's
        extras.set_instance_extras(backends=["Primary"])
    return importlib.import_module("wgpu").gpu.enumerate_adapters_sync()


def _environment() -> tuple[str, ...]:
    names = ("VK_ICD_FILENAMES", "VK_DRIVER_FILES", "WGPU_LIB_PATH", "WGPU_BACKEND_TYPE", ADAPTER)
    return tuple(os.environ.get(n, "") for n in names)


_ANSWERS: dict[tuple[str, ...], _Answer] = {}  # environment -> the child's answer, asked once


def _ask(child: subprocess.Popen[bytes] | None = None) -> _Answer:
    """Return the answer of a child that is already running, or of a new one."""
    key = _environment()
    if key not in _ANSWERS:
        _ANSWERS[key] = _probe(child)
    return _ANSWERS[key]


def _probe(child: subprocess.Popen[bytes] | None) -> _Answer:
    """Ask a child process for the adapters; in a tab, ask the browser; in a frozen program, list them here."""
    if tab.IN_TAB:
        return _probe_browser()
    if importlib.util.find_spec("wgpu") is None:
        return _Answer(reason="no-wgpu")
    import subprocess

    child = child or _started_child()
    try:
        text = _probe_here() if child is None else _probe_child(child)
    except subprocess.TimeoutExpired:
        return _Answer(reason="driver-hangs")
    except _ChildDiedError as e:
        return _Answer(reason="driver-crashed", detail=str(e))
    said = json.loads(text)
    if "error" in said:
        return _Answer(reason="broken-wgpu", detail=said["error"])
    if found := _sorted(said["rows"]):
        return _Answer(found, rows=said["rows"])
    return _Answer(reason="no-driver" if _has_loader() else "no-loader")


def _has_loader() -> bool:
    """Return False on a Linux without the library that finds Vulkan's drivers."""
    with contextlib.suppress(OSError):
        return not sys.platform.startswith("linux") or bool(ctypes.CDLL("libvulkan.so.1"))
    return False


def _probe_browser() -> _Answer:
    """Return the browser's adapter. If Python cannot wait for it, a browser with WebGPU counts as having one."""
    if tab.can_wait():
        said = tab.wait(tab.javascript().support(), "asking for adapters")
        error = getattr(said, "error", None)
        if error is not None:
            return _Answer(reason="browser", detail=str(error.message))
        name = str(said.value)
    elif tab.has_webgpu():
        name = "the browser's"
    else:
        return _Answer(reason="browser", detail="this browser does not offer WebGPU")
    software = any(word in name.lower() for word in SOFTWARE)
    return _Answer((AdapterInfo(name, "browser", "Unknown", "", software, {}, ()),))


class _ChildDiedError(Exception):
    """Raised if the child ends without an answer."""


def _started_child() -> subprocess.Popen[bytes] | None:
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
    rows = [{"info": dict(a.info), "limits": dict(a.limits), "features": sorted(a.features)} for a in found]
    return json.dumps({"rows": rows})


def _sorted(rows: remembered.Rows) -> tuple[AdapterInfo, ...]:
    """Return the adapters that can compute, the best first."""
    return tuple(sorted((a for a in map(_row, rows) if a.backend in BACKENDS), key=_rank))


def _row(raw: Mapping[str, Any]) -> AdapterInfo:
    """Return an adapter from wgpu's description."""
    info = raw["info"]
    name = str(info["device"] or info["description"] or info["vendor"] or "unnamed adapter")
    kind = str(info["adapter_type"])
    software = kind == "CPU" or any(word in name.lower() for word in SOFTWARE)
    limits = {str(k): int(v) for k, v in raw["limits"].items()}
    described = name, str(info["backend_type"]), kind, str(info["description"])
    return AdapterInfo(*described, software, limits, tuple(sorted(raw["features"])))


def _rank(a: AdapterInfo) -> tuple[bool, bool, int, int]:
    """Return a sort key: the wanted first, GPUs before software, discrete before integrated, the platform's own API."""
    kind = KINDS.index(a.type) if a.type in KINDS else KINDS.index("Unknown")
    other = os.environ.get(ADAPTER, "").lower() not in a.description.lower()
    return other, a.software, kind, BACKENDS.index(a.backend)


def _explain(answer: _Answer) -> str:
    """Return the reason in words for a user, with the remedy."""
    if answer.reason == "browser":
        return answer.detail
    why = remedies()["webgpu"][answer.reason].format(detail=answer.detail, install=INSTALL, seconds=PROBE_SECONDS)
    return f'{why} (device="cpu" works without)'
