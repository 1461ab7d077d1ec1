"""What differs between Linux, macOS and Windows, played on the system at hand by taking away what another one lacks."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import tracegrad as tg
from pages import HOME
from tracegrad import nn, optim
from tracegrad.files import atomic as files
from tracegrad.runtime import c_compiler, cache, children, cpu


def test_windows_ends_a_child_without_groups_of_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(os, "killpg", raising=False)
    with pytest.raises(subprocess.TimeoutExpired):
        children.Children().run([sys.executable, "-c", "import time; time.sleep(60)"], "", 0.5)


def test_windows_keeps_caches_in_the_local_profile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "WITHOUT_OWNERS", True)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setenv("LOCALAPPDATA", str(tmp_path / "Local"))
    assert cache.cache_folder() == Path(os.path.realpath(tmp_path)) / "Local" / "tracegrad"


def test_a_mac_keeps_caches_in_its_library_or_where_it_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An unsafe folder's error says to set XDG_CACHE_HOME, which a Mac ignored."""
    monkeypatch.setattr(cache.sys, "platform", "darwin")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for told, folder in (
        ("", "home/Library/Caches"),
        ("here", "home/Library/Caches"),
        (str(tmp_path / "told"), "told"),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", told)
        assert cache.cache_folder() == Path(os.path.realpath(tmp_path)) / folder / "tracegrad"


def test_where_kernels_cannot_be_c_numpy_takes_over_and_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    c_compiler.compiler_named.cache_clear()
    with monkeypatch.context() as windows:
        windows.setattr(cpu.os, "name", "nt")
        assert c_compiler.compiler_named("") is None
        assert "NumPy, because kernels in C need Linux or macOS," in cpu.cpu_info(None).description
    c_compiler.compiler_named.cache_clear()


def test_files_are_replaced_whole_without_locks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "fcntl", None)
    path = tmp_path / "a.safetensors"
    loss = lambda m, x: tg.mean(tg.square(m(x)))
    with tg.compile(
        model=nn.Linear(2, 1), loss=loss, inputs={"x": (4, 2)}, optimizer=optim.adam(), device="cpu"
    ) as train:
        for _ in range(2):
            train.step(x=np.ones((4, 2)))
            train.save(path)
        train.load(path)
    assert [p.name for p in tmp_path.iterdir()] == ["a.safetensors"]


def test_the_portable_tests_exist() -> None:
    for line in (HOME / "tests" / "portable.txt").read_text(encoding="utf-8").split():
        assert (HOME / line).exists(), line


@pytest.mark.slow
def test_the_portable_tests_are_collected_without_pytorch_and_jax() -> None:
    code = (
        "import sys; sys.modules |= {'torch': None, 'jax': None}; import pytest; "
        "sys.exit(pytest.main(['--collect-only', '-q', '-p', 'no:cacheprovider', '@tests/portable.txt']))"
    )
    environment = {**os.environ, "TRACEGRAD_NO_SKIP": "0", "CI": ""}
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=HOME, capture_output=True, text=True, timeout=240, env=environment
    )
    assert done.returncode == 0, done.stdout[-2000:]
