"""C kernels under every compiler of this machine, for old and new processors. `tools/compilers` checks more."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from test_short_rows import GRADIENTS, VIEWS, compare
from tracegrad.dtypes import f32
from tracegrad.runtime.c_compiler import OTHER_FLAGS, compiler_named
from tracegrad.runtime.cpu import CpuSession

NAME = re.compile(r"(gcc|clang)(-\d+)?")
FLAGS = ("", "-march=x86-64-v3", "-march=x86-64")  # without those for GCC alone; with vectors of 8 and of 4


def compilers() -> list[str]:
    """The names of all on the path; one of several names for the same file."""
    found: dict[Path, str] = {}
    for folder in os.environ.get("PATH", "").split(os.pathsep):
        if os.path.isdir(folder):
            for path in sorted(Path(folder).iterdir()):
                if NAME.fullmatch(path.name):
                    found.setdefault(path.resolve(), path.name)
    return sorted(found.values()) or ["cc"]


@pytest.mark.filterwarnings("error::RuntimeWarning")
@pytest.mark.parametrize("flags", FLAGS)
@pytest.mark.parametrize("name", compilers())
def test_short_rows(name: str, flags: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if "x86" in flags and os.uname().machine != "x86_64":
        return
    monkeypatch.setenv(OTHER_FLAGS, flags)
    monkeypatch.setenv("TRACEGRAD_VERIFY", "off")
    compiler = compiler_named(name)
    if compiler is None:
        pytest.skip("no C compiler")
    session = CpuSession(compiler)
    try:
        compare(session, [*VIEWS, *GRADIENTS], f32, [(5, 3), (64, 3), (17, 5), (33, 2)])
    finally:
        session.close()
