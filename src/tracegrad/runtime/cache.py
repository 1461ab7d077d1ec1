"""The user's cache directory, the check that its files can be trusted, and the verdicts on kernels in it.

Libraries found there are loaded into the process. So every folder on the way to them must be protected from other
users, as `sshd` requires for its keys.

A verdict records for later processes whether a device computed a kernel correctly. It depends on a kernel's text and on
everything that compiles or runs it: the processor and the compiler with its flags, or the adapter with its driver. A
file holds the verdicts of one such state, one per line.
"""

from __future__ import annotations

import contextlib
import hashlib
import importlib
import os
import stat
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

OTHERS_MAY_WRITE = 0o022
ROOT = 0
WITHOUT_OWNERS = not hasattr(os, "getuid")  # Windows: a profile's folder is private by its access list, not by bits


def is_own(path: Path) -> bool:
    """Return whether the file is this user's, not writable by other users, and not a link."""
    found = path.lstat()
    if WITHOUT_OWNERS:
        return not path.is_symlink()
    return found.st_uid == os.getuid() and not found.st_mode & OTHERS_MAY_WRITE and not path.is_symlink()


def cache_folder() -> Path:
    """Return tracegrad's cache directory, and make it if needed: this user's, private, without links in its path.

    Raises: PermissionError if another user could write into it, or exchange it or a folder above it; OSError if it
            cannot be made.
    """
    folder = _base() / "tracegrad"
    for missing in [p for p in reversed(folder.parents) if not p.exists()]:
        missing.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    if not is_own(folder):
        raise PermissionError(f"{folder} is a link, belongs to another user, or others may write to it")
    folder = Path(os.path.realpath(folder))
    if WITHOUT_OWNERS:
        return folder
    for above in folder.parents:
        if reason := _unsafe(above.stat()):
            raise PermissionError(f"{above} {reason}; set XDG_CACHE_HOME to a folder that only you can write")
    if stat.S_IMODE(folder.stat().st_mode) & 0o077:
        folder.chmod(0o700)
    return folder


def _base() -> Path:
    """Return the folder for caches of this user."""
    asked = os.environ.get("XDG_CACHE_HOME", "")
    if os.path.isabs(asked):  # the specification of XDG_CACHE_HOME says to ignore relative paths
        return Path(asked)
    try:
        if WITHOUT_OWNERS and not asked and os.environ.get("LOCALAPPDATA"):
            return Path(os.environ["LOCALAPPDATA"])
        return Path.home() / ("Library/Caches" if sys.platform == "darwin" else ".cache")
    except RuntimeError as e:
        raise FileNotFoundError(f"{e} Set XDG_CACHE_HOME") from None


def _unsafe(found: os.stat_result) -> str:
    """Return why another user could exchange files in this folder; "" if only root and this user could."""
    if found.st_uid not in (ROOT, os.getuid()):
        return "belongs to another user"
    if found.st_mode & stat.S_ISVTX:  # as in /tmp: only the owner of an entry, who is checked next, can rename it
        return ""
    if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_private_group(found.st_gid)):
        return "can be written by others"
    return ""


def _is_private_group(number: int) -> bool:
    """Return whether the group is this user's private one. Some systems let groups write by default."""
    if number == ROOT:  # its members are as powerful as root
        return True
    with contextlib.suppress(KeyError, ImportError):
        groups: Any = importlib.import_module("grp")
        users: Any = importlib.import_module("pwd")
        user, group = users.getpwuid(os.getuid()), groups.getgrgid(number)
        others = any(u.pw_gid == number and u.pw_uid != user.pw_uid for u in users.getpwall())
        return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name} and not others
    return False


def put(path: Path, data: bytes) -> None:
    """Write a file there: completely or not at all, even if another process writes at the same time."""
    import tempfile

    handle, name = tempfile.mkstemp(dir=path.parent, prefix="new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise


VERSION = "4"  # of the checks and of the file
RIGHT, WRONG = "right", "wrong"
DIGITS = 40
_last_read: dict[Path, tuple[bytes, dict[str, str]]] = {}


def digest(data: bytes) -> str:
    """Return the hash of data."""
    return hashlib.sha256(data).hexdigest()[:DIGITS]


def key_of(*parts: str) -> str:
    """Return a hash of some texts, as a file name."""
    return digest("\0".join(parts).encode())


def find(folder: Path, key: str) -> Path | None:
    """Return the file of the key whose name has the hash of its contents, and that only this user could have written.

    Delete files of the key that fail this test. Return None if there is no valid file.
    """
    for path in folder.glob(f"{key}-*"):
        with contextlib.suppress(OSError):  # another process can delete it, or the folder be read-only
            if is_own(path) and path.stem == f"{key}-{digest(path.read_bytes())}":
                os.utime(path)  # files that are unused for long are deleted
                return path
            path.unlink()
    return None


class Verdicts:
    """The verdicts on kernels of one device in one state. Later processes know them only if a file can be written."""

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
        """Store verdicts; found: what is wrong with each kernel, or "". One write appends all lines, so none mix."""
        verdicts = {key: WRONG if how else RIGHT for key, how in found.items()}
        self._known = self._known | verdicts
        if self._path is None or not found:
            return
        text = "".join(f"{key} {verdict}\n" for key, verdict in verdicts.items()).encode()
        private = partial(os.open, mode=0o600)
        with contextlib.suppress(OSError), open(self._path, "ab", buffering=0, opener=private) as file:
            file.write(text)


def _read(path: Path) -> dict[str, str]:
    """Return the verdicts in complete lines. Parse only lines appended since this process last read the file."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    before, known = _last_read.get(path, (b"", {}))
    if not data.startswith(before):
        before, known = b"", {}
    data = data[: data.rfind(b"\n") + 1]
    parts = [line.split(" ") for line in data[len(before) :].decode("ascii", "replace").splitlines()]
    new = {p[0]: p[1] for p in parts if len(p) == 2 and len(p[0]) == DIGITS and p[1] in (RIGHT, WRONG)}
    known = known | new if new else known
    _last_read[path] = data, known
    return known
