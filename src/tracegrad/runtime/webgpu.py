"""WebGPU: through wgpu on an adapter of this machine, or, in a browser's tab, by the browser."""

from __future__ import annotations

from collections.abc import Callable

from tracegrad.arrays import need_numpy
from tracegrad.runtime.adapters import adapters, check_webgpu, opened, search
from tracegrad.runtime.base import DeviceInfo, Session
from tracegrad.runtime.browser import BrowserSession
from tracegrad.runtime.c_compiler import compiler
from tracegrad.runtime.tab import IN_TAB
from tracegrad.runtime.wgpu_adapter import AdapterInfo
from tracegrad.wrong_calls import helpful


def devices() -> list[DeviceInfo]:
    """Return one device for each adapter."""
    return [DeviceInfo("webgpu", a.description, a.software, sizes="exact") for a in adapters()]


@helpful
def is_webgpu_available() -> bool:
    """Return whether `device="webgpu"` can work here. `tg.check_webgpu` says why not. As torch.cuda.is_available.

    >>> tg.is_webgpu_available() in (True, False)
    True
    """
    return check_webgpu().ok


def begin(device: str) -> Callable[[], Session | None]:
    """Begin to look for an adapter, and import its code; return a function that opens it.

    The import comes now, because later it would wait for the caller, which compiles next.
    """
    if IN_TAB:
        return BrowserSession
    need_numpy(device)
    found = search(device)
    compiler()  # asks its version here, where an interrupt can end the wait; the session's thread gets no interrupt
    if found.loaded:
        native_runtime()
    return lambda: opened(found, lambda adapter: native_runtime()(adapter))


def native_runtime() -> Callable[[AdapterInfo], Session]:
    """Return the function that opens an adapter, imported on first use."""
    from tracegrad.runtime.wgpu_session import NativeSession

    return NativeSession
