"""Run a script with other values of `tracegrad/tuning.py`, which stay as they are in the file.

python bench/tuned.py LANES=8 COLUMNS=32 -- bench/compare.py . --models gpt --device cpu

Only this process has them: a script that starts others, as `compare.py` does, must start those through this file too.
"""

from __future__ import annotations

import ast
import importlib.util
import runpy
import sys
from collections.abc import Sequence


def load(settings: Sequence[str]) -> None:
    """Put `tracegrad.tuning` with these settings, each NAME=VALUE, where all modules will find it."""
    package = importlib.util.find_spec("tracegrad")  # found, but not imported: modules read the values when they are
    assert package is not None and package.submodule_search_locations
    path = f"{package.submodule_search_locations[0]}/tuning.py"
    spec = importlib.util.spec_from_file_location("tracegrad.tuning", path)
    assert spec is not None and spec.loader is not None
    tuning = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tuning)
    for setting in settings:
        name, _, value = setting.partition("=")
        if not hasattr(tuning, name):
            raise SystemExit(f"{path} has no {name}")
        setattr(tuning, name, ast.literal_eval(value))
    sys.modules["tracegrad.tuning"] = tuning


if __name__ == "__main__":
    if "--" not in sys.argv:
        print(__doc__)
        sys.exit("--help" not in sys.argv)
    end = sys.argv.index("--")
    load(sys.argv[1:end])
    sys.argv = sys.argv[end + 1 :]
    runpy.run_path(sys.argv[0], run_name="__main__")
