"""Tuning constants: each has a unit, a meaning and a machine, is read, and can be tried at other values."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "tracegrad"
TEXT = (SOURCE / "tuning.py").read_text(encoding="utf-8")
LINES = [line for line in TEXT.splitlines() if re.match("[A-Z_]+ = ", line)]
ROW = re.compile(r"[A-Z_]+ = [\d_.e*< ]+  # [^|]+ \| [^|]+ \| (H200|H100|2 cores|llvmpipe|[?]|-)")


@pytest.mark.parametrize("line", LINES, ids=lambda line: line.split()[0])
def test_a_row_says_unit_meaning_and_where_it_was_measured(line: str):
    assert ROW.fullmatch(line), line


def test_modules_read_every_row():
    read: set[str] = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.module == "tracegrad.tuning":
                read |= {alias.name for alias in node.names}
            elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "tuning":
                read.add(node.attr)
    assert sorted(read) == sorted(line.split()[0] for line in LINES)


def tuned(tmp_path: Path, *settings: str) -> subprocess.CompletedProcess[str]:
    """What a script prints that reads a constant and looks for tiles in a kernel made with it."""
    script = tmp_path / "script.py"
    script.write_text(
        "import tracegrad as tg\n"
        "from tracegrad.compiler.build import ForwardSource\n"
        "from tracegrad import tuning\n"
        "built = ForwardSource(tg.nn.Linear(20, 12), lambda m, x: m(x), {'x': (64, 20)}).traced().compiled()\n"
        "print(tuning.TILE_FROM, any('sv: array' in k.wgsl for k in built.program.kernels))\n"
    )
    command = [sys.executable, str(ROOT / "bench" / "tuned.py"), *settings, "--", str(script)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_a_script_can_run_with_other_values(tmp_path: Path):
    assert tuned(tmp_path).stdout.split() == ["16", "False"]
    assert tuned(tmp_path, "TILE_FROM=8").stdout.split() == ["8", "True"]
    assert "has no TILES_FROM" in tuned(tmp_path, "TILES_FROM=2").stderr
