"""Short slices of the long runs that bench/soak.py makes: memory is flat, two halves are one run, nothing stays."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SOAK = Path(__file__).parent.parent / "bench" / "soak.py"
pytestmark = pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="reads Linux's /proc")


def soak(folder: Path, *arguments: str) -> str:
    environment = {**os.environ, "XDG_CACHE_HOME": str(folder), "PYTHONPATH": os.pathsep.join(sys.path)}
    environment["TRACEGRAD_CC"] = ""
    environment["MALLOC_ARENA_MAX"] = "1"  # each arena keeps what is free, and threads have their own
    done = subprocess.run(
        [sys.executable, str(SOAK), *arguments], capture_output=True, text=True, timeout=250, check=False,
        env=environment,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(("device", "steps"), [("cpu", 4000), ("webgpu", 600)])
def test_a_run_is_flat_and_the_same_in_two_halves(
    device: str, steps: int, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    if device == "webgpu":
        request.getfixturevalue("webgpu")
    said = soak(tmp_path, "steps", "--device", device, "--steps", str(steps), "--no-speed")
    one, halves = (line.split()[-1] for line in said.splitlines() if line.startswith("digest"))
    assert one == halves and len(one) == 64


def test_models_that_are_compiled_and_closed_leave_nothing_behind(tmp_path: Path) -> None:
    said = soak(tmp_path, "models", "--count", "25", "--variants", "3")
    first, last = (line for line in said.splitlines() if "threads" in line)
    assert first.split()[3] == last.split()[3]
