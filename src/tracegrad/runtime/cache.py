"""The user's cache directory, and which files in it can be trusted.

Libraries found there are loaded into the process. So every folder on the way to them must be safe from other users, as
`sshd` demands for its keys.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import stat
import sys
from pathlib import Path
from typing import Any

OTHERS_MAY_WRITE = 0o022
ROOT = 0
WITHOUT_OWNERS = not hasattr(os, "getuid")  # Windows: a profile's folder is private by its access list, not by bits


def is_own(path: Path) -> bool:
    """Is it this user's, writable by no other user, and no link?"""
    found = path.lstat()
    if WITHOUT_OWNERS:
        return not path.is_symlink()
    return found.st_uid == os.getuid() and not found.st_mode & OTHERS_MAY_WRITE and not path.is_symlink()


def cache_folder() -> Path:
    """The directory, made if it is not there: this user's, private, without links in its path.

    Raises: PermissionError if another user could have put something into it, or could exchange it or a folder above;
            OSError if it cannot be made.
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
    """Where caches of this user go."""
    asked = os.environ.get("XDG_CACHE_HOME", "")
    try:
        if sys.platform == "darwin":
            return Path.home() / "Library" / "Caches"
        if WITHOUT_OWNERS and not asked and os.environ.get("LOCALAPPDATA"):
            return Path(os.environ["LOCALAPPDATA"])
        # the specification of XDG_CACHE_HOME ignores paths that are not absolute
        return Path(asked) if os.path.isabs(asked) else Path.home() / ".cache"
    except RuntimeError as e:
        raise FileNotFoundError(f"{e} Set XDG_CACHE_HOME") from None


def _unsafe(found: os.stat_result) -> str:
    """Why another user could exchange what is in this folder; "" if only root could."""
    if found.st_uid not in (ROOT, os.getuid()):
        return "belongs to another user"
    if found.st_mode & stat.S_ISVTX:  # as /tmp: only the owner of an entry, checked in turn, may rename it
        return ""
    if found.st_mode & stat.S_IWOTH or (found.st_mode & stat.S_IWGRP and not _is_private_group(found.st_gid)):
        return "can be written by others"
    return ""


def _is_private_group(number: int) -> bool:
    """Is it this user's group of the same name, with no other member? Some systems let groups write by default."""
    if number == ROOT:  # its members are root's equals
        return True
    with contextlib.suppress(KeyError, ImportError):
        groups: Any = importlib.import_module("grp")
        users: Any = importlib.import_module("pwd")
        user, group = users.getpwuid(os.getuid()), groups.getgrgid(number)
        others = any(u.pw_gid == number and u.pw_uid != user.pw_uid for u in users.getpwall())
        return group.gr_name == user.pw_name and set(group.gr_mem) <= {user.pw_name} and not others
    return False


def put(path: Path, data: bytes) -> None:
    """Write a file there: all of it or nothing, even if another process writes at the same time."""
    import tempfile

    handle, name = tempfile.mkstemp(dir=path.parent, prefix="new-")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.replace(name, path)
    except BaseException:
        os.unlink(name)
        raise
