"""Modules of tracegrad/js under Node, for what needs no device."""

from __future__ import annotations

import json
import shutil
import subprocess
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


def run_node(code: str, *arguments: Any, heap: int = 256, timeout: float = 60) -> Any:
    """What the body of an async function returns; `a` has the arguments. heap: MiB that JavaScript may use."""
    text = PRELUDE.format(folder=json.dumps(f"{SOURCES.as_uri()}/"), arguments=json.dumps(arguments), code=code)
    command = [str(NODE), f"--max-old-space-size={heap}", "--input-type=module", "-"]
    done = subprocess.run(command, input=text, capture_output=True, text=True, timeout=timeout, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return json.loads(done.stdout)
