"""Code blocks of Markdown pages, and how tests run them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

HOME = Path(__file__).parents[1]
DOCS = HOME / "docs"
NAV = (HOME / "mkdocs.yml").read_text(encoding="utf-8")
FENCE = re.compile(r"^(?:<!-- (?P<note>[\w-]+)\b.*-->\n)?```(?P<language>\w*)\n(?P<code>.*?)^```$", re.M | re.S)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, its text, its first line in the page, and the first word of a comment above it."""

    language: str
    code: str
    line: int
    note: str


def blocks(text: str, language: str = "python") -> list[Block]:
    """The blocks of one language."""
    return [
        Block(m["language"], m["code"], text.count("\n", 0, m.start("code")) + 1, m["note"] or "")
        for m in FENCE.finditer(text)
        if m["language"] == language
    ]


def run(
    code: str, name: str, folder: Path, monkeypatch: pytest.MonkeyPatch, names: dict[str, Any] | None = None
) -> dict[str, Any]:
    """Run a block in a folder of its own, on the CPU; its names."""
    monkeypatch.chdir(folder)
    monkeypatch.setenv("TRACEGRAD_DEVICE", "cpu")
    path = folder / f"{name}.py"
    path.write_text(code, encoding="utf-8")  # so that errors and graphs find their lines
    names = {"__name__": "__main__"} if names is None else names
    exec(compile(code, str(path), "exec"), names)
    return names
