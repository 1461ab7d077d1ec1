"""`tracegrad inspect` on files of others: one sentence for a fault, and nothing that a terminal would act on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn, optim, safetensors
from tracegrad.commands import cli

HOSTILE = "\x1b[2J\x1b]0;owned\x07\r\u202e\u0085\nfake line"


def inspected(path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    capsys.readouterr()
    code = cli.main(["inspect", str(path)])
    said = capsys.readouterr()
    assert not said.out or not said.err
    text = said.out + said.err
    assert all(c.isprintable() or c == "\n" for c in text) and "\nfake line" not in text
    return code, text


@pytest.mark.parametrize(
    "text",
    [
        "", "hello", "[1]", "{}", '{"train": 1}', '{"train": {}, "version": 2}', "[" * 100_000, '{"version": 2e400}',
        '{"version": "\\u001b[2J"}', "<html>",
        '<script type="application/json" id="program">{</script>', "\x00" * 8 + "{",
        '{"version": 2, "train": 3}', '{"version": 2, "version": 2}', "\udcff",
    ],
)  # fmt: skip
def test_inspect_refuses_what_is_not_ours(text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    (tmp_path / "x.json").write_bytes(text.encode("utf-8", "surrogateescape"))
    code, said = inspected(tmp_path / "x.json", capsys)
    assert code == 1 and ("is not a file of tracegrad" in said or "not a valid safetensors" in said)
    assert said.count("\n") == 1 and len(said) < 500
    assert inspected(tmp_path / "none.json", capsys)[0] == 1
    os.mkfifo(tmp_path / "pipe")
    assert "not a regular file" in inspected(tmp_path / "pipe", capsys)[1]


def test_inspect_shows_terminal_escapes_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    path, one = tmp_path / "x.safetensors", np.float32([1])
    safetensors.write(path, {HOSTILE: one, "y" * 500: one}, {HOSTILE: HOSTILE, "long": "z" * 9999})
    code, said = inspected(path, capsys)
    assert code == 0 and r"\x1b[2J\x1b]0;owned\x07\r\u202e\x85\nfake line" in said and len(said) < 2000
    path.write_bytes(path.read_bytes().replace(b"F32", b"F\x1b2", 1))
    assert inspected(path, capsys)[0] == 1
    odd = tmp_path / f"{HOSTILE[:20]}.json"
    odd.write_text("{}")
    assert inspected(odd, capsys)[0] == 1


def test_inspect_reads_headers_only_and_knows_checkpoints_by_their_contents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
):
    safetensors.write(tmp_path / "c", {"w": np.zeros((1000, 1000), np.float32)}, {"tracegrad": "1", "step": "7"})
    tracemalloc.start()
    try:
        code, said = inspected(tmp_path / "c", capsys)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert code == 0 and peak < 1_000_000
    assert "c: a checkpoint, 1 tensors, 4 MB" in said and "f32[1000,1000]" in said and "step: 7" in said


def test_inspect_reads_pages_with_hostile_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]):
    x = {"x": (4, 2)}
    with tg.compile(
        model=nn.Linear(2, 1), loss=lambda m, x: m(x).sum(), inputs=x, optimizer=optim.sgd(lr=0.1), device="cpu"
    ) as train:
        infer = train.attach(forward=lambda m, x: m(x), inputs=x)
        train.export(tmp_path / "page.html", forwards={HOSTILE: infer}, title=HOSTILE, single_file=True)
        train.export(tmp_path / "site", forwards={HOSTILE: infer}, title=HOSTILE)
    for name in ("page.html", "site"):
        code, said = inspected(tmp_path / name, capsys)
        assert code == 0 and r"\x1b[2J" in said and "W f32[2,1]" in said and "Forward" in said
    manifest = json.loads((tmp_path / "site/program.json").read_text())
    manifest["train"]["kernels"][0]["label"] = HOSTILE
    (tmp_path / "site/program.json").write_text(json.dumps(manifest))
    assert r"\x1b[2J" in inspected(tmp_path / "site", capsys)[1]
    manifest["train"]["kernels"][0]["numpy"] = "import os"
    (tmp_path / "site/program.json").write_text(json.dumps(manifest))
    code, said = inspected(tmp_path / "site", capsys)
    assert code == 1 and "train.kernels[0] has a field 'numpy'; it has label" in said


def test_inspect_writes_to_narrow_encodings_and_closed_pipes(tmp_path: Path):
    safetensors.write(tmp_path / "x.safetensors", {f"名é{k}": np.float32([1]) for k in range(20_000)})
    command = [sys.executable, "-m", "tracegrad", "inspect", str(tmp_path / "x.safetensors")]
    environment = {**os.environ, "PYTHONIOENCODING": "ascii"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment) as running:
        assert running.stdout is not None and running.stderr is not None
        lines = [running.stdout.readline() for _ in range(5)]
        running.stdout.close()
        assert b"\\u540d\\xe90" in b"".join(lines)
        assert running.stderr.read() == b"" and running.wait(60) == 1
