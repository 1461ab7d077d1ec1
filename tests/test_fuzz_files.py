"""Files that once failed, and some hundred damaged ones: each is read or refused. `tools/fuzz_files` draws more."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzzing.files import CORPUS, check, draw, main, seeds

READ = {  # what takes a file that another reader refuses
    "boolean-of-2.safetensors": {"inspect"}, "escapes.safetensors": {"inspect", "tensors"},
    "program-escapes.json": {"inspect", "program"},
}  # fmt: skip


@pytest.mark.parametrize("name", sorted(p.name for p in CORPUS.iterdir()))
def test_what_once_failed_is_refused_or_read(name: str, tmp_path: Path) -> None:
    wanted = {"inspect", "tensors"} if name.startswith("checkpoint-") else READ.get(name, set())
    assert check(name, (CORPUS / name).read_bytes(), tmp_path) == wanted


def test_files_without_faults_are_read(tmp_path: Path) -> None:
    assert {name: set(check(name, data, tmp_path)) for name, data in seeds().files.items()} == {
        "checkpoint.safetensors": {"inspect", "tensors", "checkpoint"},
        "some.safetensors": {"inspect", "tensors"},
        "program.json": {"inspect", "program"},
        "manifest.json": {"inspect"},
        "page.html": {"inspect"},
    }


def test_damaged_files_are_read_or_refused(tmp_path: Path) -> None:
    refused = sum(not check(*draw(seed), tmp_path) for seed in range(120))
    assert 60 < refused < 120


def test_the_command_says_what_came_of_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--examples", "5", "--seed", "7"]) == 0
    assert "0 failed" in capsys.readouterr().out
