"""The commands of tools/ as modules: they have no suffix, so `import` does not find them."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

FOLDER = Path(__file__).parent.parent / "tools"


def tool(name: str) -> ModuleType:
    """tools/`name`."""
    loader = importlib.machinery.SourceFileLoader(name, str(FOLDER / name))
    spec = importlib.util.spec_from_loader(name, loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look their module up
    loader.exec_module(module)
    return module
