"""Python in a browser's tab (Pyodide): waiting there, and the JavaScript runtime beside it."""

from __future__ import annotations

import functools
import importlib
import sys
from collections.abc import Awaitable
from typing import Any, cast

from tracegrad.errors import DeviceError
from tracegrad.runtime.javascript import CHECKS, joined

IN_TAB = sys.platform == "emscripten"  # one thread, whose event loop is the browser's


def pyodide(name: str) -> Any:
    """A module of Pyodide's, which exists in tabs only."""
    return importlib.import_module(f"pyodide.{name}")


def can_wait() -> bool:
    """May a plain function wait for what the event loop brings? In a tab only where stacks can be switched (JSPI)."""
    if not IN_TAB:
        return True
    return bool(pyodide("ffi").can_run_sync())


def wait(awaitable: Awaitable[Any], what: str, timeout: float | None = None) -> Any:
    """The result of `awaitable`; the tab stays alive meanwhile.

    Raises: TimeoutError after `timeout` seconds; DeviceError where a plain function cannot wait.
    """
    if not can_wait():
        raise DeviceError.here(
            f"{what}: here Python cannot wait for the browser, because it cannot switch stacks (JSPI) or was called by "
            "JavaScript directly. `await` steps and runs; for the rest use a browser that can, and run Python by "
            "runPythonAsync"
        )
    return pyodide("ffi").run_sync(cast("Any", sys.modules["asyncio"]).wait_for(awaitable, timeout))


def has_webgpu() -> bool:
    """Does the browser know WebGPU? Whether it has an adapter only waiting can tell."""
    return bool(getattr(importlib.import_module("js").navigator, "gpu", None))


def event_loop() -> Any:
    """The one that runs. Who awaits has asyncio loaded, and so has Pyodide; importing it here would cost 40 ms."""
    return cast("Any", sys.modules["asyncio"]).get_running_loop()


async def resolved(pending: Any) -> None:
    """Wait until `pending` is resolved. It does not count as looked at."""
    future = event_loop().create_future()
    pending.add_done_callback(lambda _: future.done() or future.set_result(None))
    await future


@functools.cache
def javascript() -> Any:
    """What js/pyodide.js exports. The runtime is evaluated once, in the thread that Python runs in."""
    text = joined((*CHECKS, "arrays", "safetensors", "session", "pyodide"))
    return pyodide("code").run_js(f'(() => {{ "use strict";\n{text}\nreturn {{ Tab, drawn, support }};\n}})()')
