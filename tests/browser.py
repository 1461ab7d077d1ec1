"""Chromium without a window, on a software WebGPU adapter, and a server for the pages that tests write."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

ARGS = ["--no-sandbox", "--disable-background-networking", "--enable-unsafe-webgpu", "--use-webgpu-adapter=swiftshader"]
ARGS += ["--js-flags=--expose-gc"]  # for `memory_of`
PATIENCE = 60_000  # ms: two busy cores and a software GPU
SOURCES = Path(__file__).parents[1] / "src" / "tracegrad" / "js"


def find_chromium() -> str | None:
    """Debian's, or what TRACEGRAD_CHROMIUM names."""
    names = (os.environ.get("TRACEGRAD_CHROMIUM", ""), "chromium", "chromium-browser", "google-chrome")
    return next((found for name in names if name and (found := shutil.which(name))), None)


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A running Chromium with WebGPU."""
    program = find_chromium()
    if program is None or importlib.util.find_spec("playwright") is None:
        pytest.skip("Chromium and playwright are needed: apt-get install chromium, pip install playwright")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=program, args=ARGS)
        yield running
        running.close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, Path]]:
    """(URL, folder) of a local server; /js are the sources of the runtime, /blank.html an empty page."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "js").symlink_to(SOURCES)
    (folder / "blank.html").write_text("<!doctype html><link rel=icon href=data:,><title>blank</title>")
    handler = functools.partial(_Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}", folder
    server.shutdown()
    server.server_close()


def open_page(browser: Any, url: str, **context: Any) -> Any:
    """A page whose errors fail the test that looks at `page.problems`."""
    page = browser.new_context(**context).new_page()
    page.set_default_timeout(PATIENCE)
    page.problems = []
    page.on("pageerror", lambda e: page.problems.append(str(e)))
    page.on("console", lambda m: page.problems.append(m.text) if m.type == "error" else None)
    page.goto(url)
    return page


def until(page: Any, code: str, arg: Any = None) -> None:
    """Wait until the function `code` is true in the page. Playwright's own way needs eval, which our pages forbid."""
    end = time.monotonic() + PATIENCE / 1000
    while not page.evaluate(code, arg):
        assert time.monotonic() < end, f"not within {PATIENCE} ms: {code}; problems: {page.problems}"
        page.wait_for_timeout(30)


def shader_messages(page: Any, texts: list[str]) -> list[str]:
    """What the browser has to say of some shaders: it analyses them more strictly than native WebGPU."""
    code = """async (texts) => {
      const device = await (await navigator.gpu.requestAdapter()).requestDevice();
      const infos = texts.map((code) => device.createShaderModule({ code }).getCompilationInfo());
      return (await Promise.all(infos)).flatMap(({ messages }) => messages.map((m) => m.message));
    }"""
    return page.evaluate(code, texts)


def plain(arrays: dict[str, Any]) -> dict[str, Any]:
    """Inputs as the page takes them: {data, shape}, lists that `given` turns into typed arrays."""
    return {n: {"data": x.ravel().tolist(), "shape": x.shape, "dtype": str(x.dtype)} for n, x in arrays.items()}


# Helpers of the page: inputs from plain lists; arrays and results as bits, so that NaN and -0 survive the way back.
HELPERS = """
globalThis.given = (inputs) => Object.fromEntries(Object.entries(inputs).map(([name, { data, shape, dtype }]) =>
  [name, { data: dtype.startsWith('float') ? Float32Array.from(data) : Int32Array.from(data), shape }]));
globalThis.bits = (record) => Object.fromEntries(Object.entries(record).map(([name, { data, shape, dtype }]) =>
  [name, { bits: Array.from(new Int32Array(data.buffer, data.byteOffset, data.length)), shape, dtype }]));
globalThis.told = (r) => ({ kind: r.kind, reason: r.reason, error: r.error && [r.error.name, r.error.message],
  step: r.step, losses: r.losses && Array.from(r.losses) });
"""


def from_bits(record: dict[str, Any]) -> dict[str, Any]:
    """Arrays of what `bits` gave."""
    names = {"f32": np.float32, "i32": np.int32, "u32": np.uint32, "bool": np.int32}
    return {n: np.int32(x["bits"]).view(names[x["dtype"]]).reshape(x["shape"]) for n, x in record.items()}


def memory_of(browser: Any, page: Any) -> dict[str, int]:
    """Bytes, after collecting garbage: the page's JavaScript heap; resident in its process and in that of the GPU."""
    for thread in (page, *page.workers):  # what JavaScript has not collected yet keeps memory of the GPU's process
        thread.evaluate("gc()")
    page.wait_for_timeout(1000)
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")  # `gc()` leaves what the call itself and later events hold: megabytes
    heap = session.send("Runtime.getHeapUsage")["usedSize"]
    session.detach()
    rows = browser.new_browser_cdp_session().send("SystemInfo.getProcessInfo")["processInfo"]
    resident: dict[str, int] = {}
    for row in rows:
        status = Path(f"/proc/{row['id']}/status").read_text()
        kilobytes = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
        kind = {"GPU": "gpu", "renderer": "renderer"}.get(row["type"])
        if kind:
            resident[kind] = resident.get(kind, 0) + 1024 * kilobytes
    return {"heap": int(heap), **resident}
