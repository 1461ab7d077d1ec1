"""The user's cache directory, and which files in it can be trusted."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

OTHERS_MAY_WRITE = 0o022


def is_own(path: Path) -> bool:
    """Is it this user's, writable by nobody else, and no link?"""
    found = path.lstat()
    return found.st_uid == os.getuid() and not found.st_mode & OTHERS_MAY_WRITE and not path.is_symlink()


def cache_folder() -> Path:
    """The directory, made if it is not there. PermissionError if others could have put something into it."""
    if sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = base / "tracegrad"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not is_own(folder):
        raise PermissionError(f"{folder} belongs to another user, or others may write to it")
    return folder


def put(path: Path, data: bytes) -> None:
    """Write a file there: all of it or nothing, whoever else writes at the same time."""
    handle, name = tempfile.mkstemp(dir=path.parent, prefix="new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
