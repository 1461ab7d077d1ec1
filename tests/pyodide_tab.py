"""Python in Chromium: Pyodide of the npm package, in a worker or in the page, with the wheel that `pip` builds."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from browser import open_page

ROOT = Path(__file__).parents[1]
WORKER = """
import { loadPyodide } from "/pyodide/pyodide.mjs";
let python;
onmessage = async ({ data: [wheel, files, code] }) => {
  try {
    if (!python) {
      python = await loadPyodide();
      await python.loadPackage(wheel, { messageCallback: () => {} });
    }
    for (const [name, text] of Object.entries(files)) python.FS.writeFile(name, text);
    postMessage({ value: await python.runPythonAsync(code, { globals: python.toPy({}) }) });
  } catch (e) {
    postMessage({ error: String(e) });
  }
};
"""
CALL = """(message) => new Promise((resolve) => {
  globalThis.worker ??= new Worker("/python.js", { type: "module" });
  worker.onmessage = ({ data }) => resolve(data);
  worker.onerror = (e) => resolve({ error: e.message });
  worker.postMessage(message);
})"""


def find_pyodide() -> Path | None:
    """The npm package: what TRACEGRAD_PYODIDE names, or what tools/test installed."""
    places = [os.environ.get("TRACEGRAD_PYODIDE", ""), ROOT / "node_modules" / "pyodide"]
    return next((Path(p) for p in places if p and (Path(p) / "pyodide.mjs").exists()), None)


@pytest.fixture(scope="session")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a release would upload."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "-w", str(folder), str(ROOT)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return next(folder.glob("*.whl"))


@pytest.fixture(scope="module")
def pyodide(served: tuple[str, Path], wheel: Path) -> tuple[str, Path]:
    """`served`, with Pyodide at /pyodide and the wheel beside it."""
    found = find_pyodide()
    if found is None:
        pytest.skip("Pyodide is needed: npm install --no-save pyodide, or TRACEGRAD_PYODIDE names the package's folder")
    url, folder = served
    (folder / "pyodide").symlink_to(found)
    shutil.copy(wheel, folder)
    (folder / "python.js").write_text(WORKER)
    return url, folder


class Python:
    """A tab with Pyodide in a worker."""

    def __init__(self, browser: Any, pyodide: tuple[str, Path], wheel: Path) -> None:
        self.url, self.folder = pyodide
        self.wheel = f"/{wheel.name}"
        self.page = open_page(browser, f"{self.url}/blank.html")

    def run(self, code: str, files: dict[str, str] | None = None, **given: Any) -> Any:
        """What `answer` is at the end of `code`, through JSON; `given` are its variables."""
        lines = [
            "import json, math, sys",
            "import tracegrad as tg",
            *(f"{name} = json.loads({json.dumps(value)!r})" for name, value in given.items()),
            textwrap.dedent(code),
            "json.dumps(answer)",
        ]
        said = self.page.evaluate(CALL, [self.wheel, files or {}, "\n".join(lines)])
        assert "error" not in said, said["error"]
        return json.loads(said["value"])


@pytest.fixture(scope="module")
def python(browser: Any, pyodide: tuple[str, Path], wheel: Path) -> Iterator[Python]:
    """One for the module: it takes seconds to start."""
    made = Python(browser, pyodide, wheel)
    yield made
    assert made.page.problems == []
    made.page.context.close()
