"""Keep in the user's cache directory which kernels a device computed correctly, for the next process.

A verdict depends on a kernel's text and on everything that compiles or runs it: the processor and the compiler with its
flags, or the adapter with its driver. A file holds the verdicts of one such state, one per line.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from tracegrad.runtime.cache import cache_folder, is_own

VERSION = "4"  # of the checks and of the file
RIGHT, WRONG = "right", "wrong"
DIGITS = 40


def key_of(*parts: str) -> str:
    """Return a name for some texts."""
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:DIGITS]


class Verdicts:
    """The verdicts on kernels of one device in one state. Without a cache directory of its own, it keeps none."""

    def __init__(self, state: Sequence[str]) -> None:
        self._path: Path | None = None
        self._known: dict[str, str] = {}
        with contextlib.suppress(OSError):
            path = cache_folder() / f"verdicts-{key_of(VERSION, *state)}"
            if not path.exists() or is_own(path):
                self._path = path
                self._known = _read(path)

    def known(self, key: str) -> str | None:
        """Return RIGHT, WRONG, or None for a kernel that was not checked yet."""
        return self._known.get(key)

    def add(self, found: Mapping[str, str]) -> None:
        """Store verdicts. Lines are appended in one write, so that processes do not mix their lines."""
        verdicts = {key: WRONG if how else RIGHT for key, how in found.items()}
        self._known |= verdicts
        if self._path is None or not found:
            return
        text = "".join(f"{key} {verdict}\n" for key, verdict in verdicts.items()).encode()
        with contextlib.suppress(OSError):
            file = os.open(self._path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                os.write(file, text)
            finally:
                os.close(file)


def _read(path: Path) -> dict[str, str]:
    """Return the complete lines."""
    try:
        lines = path.read_text(encoding="ascii").splitlines()
    except (FileNotFoundError, ValueError):
        return {}
    parts = [line.split(" ") for line in lines]
    return {p[0]: p[1] for p in parts if len(p) == 2 and len(p[0]) == DIGITS and p[1] in (RIGHT, WRONG)}
