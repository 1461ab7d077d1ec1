"""Join the files of tracegrad/js, unchanged, for places where modules cannot import each other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "js"  # importlib.resources would take a tenth of the time to import tracegrad
# separate files in a site: they validate files, values, steps and kernels, and draw numbers
CHECKS = ("checks", "arrays", "rooms", "safetensors", "manifest", "trial", "random", "verify")
CORE = ("schedules", "session", "queue", "checkpoint", "loss", "training", "serve")  # in order of dependence


def runtime() -> str:
    """Return the runtime's modules as one, unchanged but for imports between them. It imports those of `CHECKS`."""
    imports, text = "", f"{joined(CORE)}{without_imports('tracegrad.js')}"
    used = set(re.findall(r"\w+", text))
    for name in CHECKS:
        names = re.findall(r"^export (?:const|(?:async )?function) (\w+)", source(f"{name}.js"), flags=re.MULTILINE)
        imports += f'import {{ {", ".join(n for n in names if n in used)} }} from "./{name}.js";\n'
    return imports + text


def core() -> str:
    """Return the worker's code as a plain script: from file:// a worker cannot be a module."""
    return joined((*CHECKS, *CORE))


def joined(names: Iterable[str]) -> str:
    """Return modules as one plain script, each after the modules that it needs."""
    return re.sub(r"^export ", "", "\n".join(without_imports(f"{name}.js") for name in names), flags=re.MULTILINE)


def without_imports(name: str) -> str:
    """Return a module without its imports, for a text in which the modules that it needs come first."""
    return re.sub(r"^import .*\n", "", source(name), flags=re.MULTILINE)


def source(name: str) -> str:
    """Return a file of tracegrad/js."""
    return (FOLDER / name).read_text(encoding="utf-8")
