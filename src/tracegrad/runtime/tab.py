"""Python in a browser's tab (Pyodide): waiting for promises, and access to the JavaScript runtime."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Awaitable
from typing import Any, cast

from tracegrad.errors import DeviceError

IN_TAB = sys.platform == "emscripten"  # one thread, whose event loop is the browser's


def pyodide(name: str) -> Any:
    """Return a module of Pyodide, which exists in tabs only."""
    return importlib.import_module(f"pyodide.{name}")


def can_wait() -> bool:
    """Return whether a plain function can wait for the event loop. In a tab, only if stacks can be switched (JSPI)."""
    if not IN_TAB:
        return True
    return bool(pyodide("ffi").can_run_sync())


def wait(awaitable: Awaitable[Any], what: str, timeout: float | None = None) -> Any:
    """Wait for `awaitable` and return its result; the tab stays responsive.

    Raises: TimeoutError after `timeout` seconds; DeviceError if a plain function cannot wait.
    """
    if not can_wait():
        raise DeviceError.here(
            f"{what}: here Python cannot wait for the browser, because it cannot switch stacks (JSPI) or was called by "
            "JavaScript directly. `await` steps and runs; for the rest use a browser that can, and run Python by "
            "runPythonAsync"
        )
    return pyodide("ffi").run_sync(cast("Any", sys.modules["asyncio"]).wait_for(awaitable, timeout))


def has_webgpu() -> bool:
    """Return whether the browser knows WebGPU. Only waiting can tell whether it has an adapter."""
    return bool(getattr(importlib.import_module("js").navigator, "gpu", None))


def event_loop() -> Any:
    """Return the running event loop. Callers have loaded asyncio already; importing it here would take 40 ms."""
    return cast("Any", sys.modules["asyncio"]).get_running_loop()


async def resolved(pending: Any) -> None:
    """Wait until `pending` is resolved, without marking its result as read."""
    future = event_loop().create_future()
    pending.add_done_callback(lambda _: future.done() or future.set_result(None))
    await future


@functools.cache
def javascript() -> Any:
    """Return the exports of js/pyodide.js. The runtime is evaluated once, in the thread that Python runs in."""
    from tracegrad.runtime.javascript import CHECKS, joined  # reads files, which only a tab and an export need

    text = joined((*CHECKS, "session", "pyodide"))
    return pyodide("code").run_js(f'(() => {{ "use strict";\n{text}\nreturn {{ Tab, drawn, support }};\n}})()')
