"""The files of tracegrad/js, joined but not altered, for where modules cannot import each other."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "js"  # importlib.resources would take a tenth of importing tracegrad
# files of their own in a site: what validates files, values, steps and kernels, and draws numbers
CHECKS = ("checks", "manifest", "trial", "random", "verify")
CORE = ("arrays", "schedules", "safetensors", "session", "queue", "training", "serve")  # needed ones first


def runtime() -> str:
    """The modules of the runtime in one, as they are but for the imports between them. It imports those of `CHECKS`."""
    imports = ""
    for name in CHECKS:
        names = re.findall(r"^export (?:const|(?:async )?function) (\w+)", source(f"{name}.js"), flags=re.MULTILINE)
        imports += f'import {{ {", ".join(names)} }} from "./{name}.js";\n'
    return f"{imports}{joined(CORE)}{without_imports('tracegrad.js')}"


def core() -> str:
    """What runs in the worker, as a plain script: from file:// a worker cannot be a module."""
    return joined((*CHECKS, *CORE))


def joined(names: Iterable[str]) -> str:
    """Modules as one plain script, each after those that it needs."""
    return re.sub(r"^export ", "", "\n".join(without_imports(f"{name}.js") for name in names), flags=re.MULTILINE)


def without_imports(name: str) -> str:
    """A module, for a text in which what it needs stands before it."""
    return re.sub(r"^import .*\n", "", source(name), flags=re.MULTILINE)


def source(name: str) -> str:
    """A file of tracegrad/js."""
    return (FOLDER / name).read_text(encoding="utf-8")
