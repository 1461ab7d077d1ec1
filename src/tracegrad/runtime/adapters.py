"""WebGPU adapters: list them, choose one, and say in plain words why there is none.

A child process lists the adapters (`adapter_probe`). This process only opens an adapter that a child has listed, now
or for an earlier process (`remembered`).
"""

from __future__ import annotations

import contextlib
import glob
import importlib.util
import os
import sys
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from tracegrad.errors import DeviceError
from tracegrad.runtime import adapter_probe, process, remembered, tab
from tracegrad.runtime.adapter_probe import Answer
from tracegrad.runtime.wgpu_adapter import ADAPTER, AdapterInfo, load_wgpu, ranked
from tracegrad.wrong_calls import helpful

if TYPE_CHECKING:
    import subprocess

T = TypeVar("T")
GPU_NODES = ("/dev/dri/renderD*", "/dev/nvidia[0-9]*", "/dev/kfd", "/dev/dxg", "/dev/mali*", "/dev/nvhost-gpu")


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


def adapters() -> list[AdapterInfo]:
    """Return all adapters of this machine that can compute, the best first. Never raises."""
    return list(adapter_probe.ask().adapters)


@helpful
def check_webgpu() -> WebGPUSupport:
    """Return whether this machine can compute through WebGPU, and if not, why, as a `WebGPUSupport`. Never raises.

        print(tg.check_webgpu().message)

    >>> tg.check_webgpu().ok in (True, False)
    True
    """
    answer = adapter_probe.ask()
    if answer.reason:
        return WebGPUSupport(False, answer.reason, answer.explain())
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
    answer = adapter_probe.known()
    if answer is None:
        found.rows = remembered.take()
        if found.rows is None:
            found.child = adapter_probe.started_child()
    with contextlib.suppress(DeviceError, KeyError, TypeError, ValueError):  # `opened` reports the error
        if found.rows is not None:
            answer = Answer(ranked(found.rows))
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
        try:
            return _kept(found.device, Answer(ranked(found.rows), rows=found.rows), open)
        except (DeviceError, KeyError, TypeError, ValueError):
            found.rows = None  # a child lists the adapters again
    child, found.child = found.child, None
    return _kept(found.device, adapter_probe.ask(child), open)


def _kept(device: str, answer: Answer, open: Callable[[AdapterInfo], T]) -> T | None:
    chosen = _chosen(device, answer)
    made = None if chosen is None else open(chosen)
    if answer.rows:
        remembered.keep(answer.rows)
    return made


def _chosen(device: str, answer: Answer) -> AdapterInfo | None:
    """Return the best adapter for "webgpu", or raise; for "auto", the best adapter if it is a real GPU."""
    best = answer.adapters[0] if answer.adapters else None
    if why := _unnamed(answer) or (answer.explain() if best is None and device != "auto" else ""):
        raise DeviceError(f'device="{device}": {why}')
    return None if best is None or (device == "auto" and best.software) else best


def _unnamed(answer: Answer) -> str:
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
