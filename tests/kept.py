"""Texts that are kept in files, and compared with what is written today. TRACEGRAD_GOLDEN=1 writes the files anew."""

from __future__ import annotations

import os
from pathlib import Path


def assert_as_kept(path: Path, text: str) -> None:
    """The file has this text, or gets it."""
    if os.environ.get("TRACEGRAD_GOLDEN") == "1":
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    assert path.exists(), f"{path} is missing; TRACEGRAD_GOLDEN=1 writes it"
    assert text == path.read_text(encoding="utf-8")
