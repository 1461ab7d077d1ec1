"""Checkpoints in folders: what eight devices wrote restores on any mesh, on one device, and on the CPU, bit for bit."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from xla import devices

pytest.importorskip("orbax.checkpoint", reason="Orbax is not installed")
CHILD = Path(__file__).parent / "sharded_child.py"


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    command = [sys.executable, str(CHILD), str(tmp_path_factory.mktemp("folders"))]
    ran = subprocess.run(command, capture_output=True, text=True, env=devices(8))
    assert ran.returncode == 0, ran.stderr
    result = json.loads(ran.stdout.splitlines()[-1])
    assert result["devices"] == 8
    return result


@pytest.mark.parametrize("name", ["adamw", "adafactor", "two"])
def test_a_folder_restores_everywhere(found: dict[str, Any], name: str) -> None:
    """Parameters of any dtype, states, and optimizer state of any shape; of one loss and of two."""
    one = found[name]
    assert one["numbers"] == ["2"], "the older checkpoint is gone, and nothing else lies there"
    for where in ("tensor", "one", "cpu"):
        assert one["found"][where] == one["saved"], where
        assert one["found"][f"{where} goes on"] == "True"


def test_what_does_not_fit_is_told_and_changes_nothing(found: dict[str, Any]) -> None:
    nan, width, optimizer, empty, damaged, full, later, device = found["errors"]
    assert "param/l1.b: 32 NaN of 32 values" in nan
    assert "param/l1.W: expected f32[8,16], got f32[8,32]" in width
    assert "opt/" in optimizer and "nothing was changed" in optimizer
    assert "is no folder of checkpoints by tracegrad, or is damaged: it has no complete one" in empty
    assert "is no folder of checkpoints by tracegrad, or is damaged: Expecting" in damaged
    assert full.startswith("[Errno 27] File too large; an older checkpoint is unchanged: '")
    # Threads of Orbax can still write what the first save left, so the second can fail for this reason.
    assert re.match(r"\[Errno (17|27|39)\] [^;]+; an older checkpoint is unchanged: '", later), later
    assert "save(sharded=True): this training is on 'cpu'" in device
