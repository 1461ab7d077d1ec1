"""Modules of tracegrad/js under Node, for what needs no device."""

from __future__ import annotations

import atexit
import functools
import json
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import pytest

from browser import SOURCES

NODE = shutil.which("node")
needs_node = pytest.mark.skipif(NODE is None, reason="needs Node")

# `told` runs a function and gives [what it returned, null], or [null, [name of its error, message]]
PRELUDE = """
const source = (name) => import({folder} + name + ".js");
const told = (fn) => {{
  try {{
    return [fn() ?? null, null];
  }} catch (e) {{
    return [null, [e.name, e.message]];
  }}
}};
const a = {arguments};
const answer = await (async () => {{ {code} }})();
process.stdout.write(JSON.stringify(answer));
"""


@functools.cache
def modules() -> Path:
    """A copy of the sources in a folder that says that they are modules: some versions of Node do not look."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    (folder / "package.json").write_text('{"type": "module"}')
    shutil.copytree(SOURCES, folder / "js")
    return folder / "js"


def run_node(code: str, *arguments: Any, heap: int = 256, timeout: float = 60) -> Any:
    """What the body of an async function returns; `a` has the arguments. heap: MiB that JavaScript may use."""
    text = PRELUDE.format(folder=json.dumps(f"{modules().as_uri()}/"), arguments=json.dumps(arguments), code=code)
    command = [str(NODE), f"--max-old-space-size={heap}", "--input-type=module", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
