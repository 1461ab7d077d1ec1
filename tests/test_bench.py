"""The scripts of bench/ start, and `--help` explains them: it is never taken for a path or a number."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]

# One process for all: PyTorch and JAX are imported once. A script's imports of its own folder must not meet another's.
ASK = """
import contextlib, io, runpy, sys
for script in sys.argv[1:]:
    before, path, said = set(sys.modules), list(sys.path), io.StringIO()
    sys.argv, sys.path[0] = [script, "--help"], script.rpartition("/")[0]
    with contextlib.redirect_stdout(said), contextlib.suppress(SystemExit):
        runpy.run_path(script, run_name="__main__")
        print("went on")
    print(script, "usage:" in said.getvalue() or "python bench/" in said.getvalue(), "went on" in said.getvalue())
    for name in set(sys.modules) - before:
        if (getattr(sys.modules[name], "__file__", None) or "").startswith(sys.path[0]):
            del sys.modules[name]
    sys.path[:] = path
"""


def test_every_script_answers_help(tmp_path: Path) -> None:
    scripts = [str(p) for p in sorted((ROOT / "bench").rglob("*.py")) if "__main__" in p.read_text(encoding="utf-8")]
    done = subprocess.run([sys.executable, "-c", ASK, *scripts], cwd=tmp_path, capture_output=True, text=True)
    assert done.stdout.splitlines() == [f"{script} True False" for script in scripts], done.stderr
    assert not any(tmp_path.iterdir())
