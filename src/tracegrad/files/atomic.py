"""Atomic writes, which leave the old file intact after a crash, a kill or a full disk; and safe opening for reading.

A file is written next to its target under a temporary name, flushed to the disk, and renamed over the target. The
writer holds a lock on the partial file. So a later write into the folder can distinguish leftovers of dead writers from
partial files of other processes. Without locks, leftovers are deleted after an hour.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import os
import stat
import sys
import time
from collections.abc import Generator, Iterable, Mapping
from io import BufferedReader
from typing import IO, Any

from tracegrad.errors import InputError

Path = str | os.PathLike[str]
PARTIAL = (".tracegrad-", ".part")  # prefix and suffix of the names of partial files
PERMISSIONS = 0o777
SECONDS_FOR_A_READER = 5.0  # time that a write to a pipe waits for a reader
ABANDONED_AFTER = 3600.0  # seconds since the last write after which a partial file is a leftover, without locks
WITHOUT_WAITING, NO_LINKS = getattr(os, "O_NONBLOCK", 0), getattr(os, "O_NOFOLLOW", 0)
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)  # errors of file systems without locks

# Windows has no fcntl. In a browser, locks exclude no one, and there is only one process
WITHOUT_LOCKS = os.name != "posix" or sys.platform == "emscripten"
fcntl: Any = None if WITHOUT_LOCKS else importlib.import_module("fcntl")


def replace_file(path: Path, parts: Iterable[bytes]) -> None:
    """Write one file by the rules of `replace_files`."""
    replace_files({path: parts})


def replace_files(contents: Mapping[Path, Iterable[bytes]]) -> None:
    """Write files atomically: all of them are complete on the disk before the first replaces an old one.

    - A symbolic link is followed: its target is replaced, and the link is kept.
    - An existing file keeps its permission bits, and its owner and group if the system allows it. The umask sets the
      permissions of a new file.
    - Other hard links of a file keep the old contents.
    - A character device or a pipe gets the bytes, and is not replaced.

    Raises: OSError naming the file. Partial files are removed. The old files are unchanged, unless the error came while
            files were renamed, or bytes were written into a device or a pipe.
    """
    staged: list[tuple[str, str]] = []
    if not all(os.fspath(path) for path in contents):
        raise InputError.here("the path is empty; name a file")
    with contextlib.ExitStack() as held:
        try:
            for path, parts in contents.items():
                with naming(path):
                    found = _status(path)
                    if found is not None and not stat.S_ISREG(found.st_mode):
                        _write_through(path, found, parts)
                        continue
                target = os.path.realpath(path)
                with naming(path, "" if found is None else "; the old file is unchanged"):
                    staged.append((_stage(held, target, found, parts), target))
            while staged:
                partial, target = staged[0]
                with naming(target):
                    os.replace(partial, target)
                del staged[0]
                _flush_folder(os.path.dirname(target))
        finally:
            for partial, _ in staged:
                with contextlib.suppress(OSError):
                    os.unlink(partial)


@contextlib.contextmanager
def open_regular(path: Path) -> Generator[BufferedReader]:
    """Open a regular file for reading, without waiting for a pipe.

    Raises: InputError for a device or pipe; OSError for a folder, or a file that cannot be opened.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | WITHOUT_WAITING)) as f:
        if not stat.S_ISREG(os.fstat(f.fileno()).st_mode):
            raise InputError(f"{os.fspath(path)} is not a regular file")
        yield f


@contextlib.contextmanager
def naming(path: Path, and_so: str = "") -> Generator[None]:
    """Put the target's path into errors of the system, which name a partial file or none. and_so: end of the text."""
    try:
        yield
    except OSError as e:
        if e.errno is None:  # raised by the iterable of bytes
            raise
        raise OSError(e.errno, f"{e.strerror}{and_so}", os.fspath(path)) from e


def _status(path: Path) -> os.stat_result | None:
    """Return the status of `path`, or None if it does not exist. Raises OSError if it cannot be written."""
    try:
        found = os.stat(path)
    except FileNotFoundError:
        folder = os.path.dirname(os.path.realpath(path))
        if not os.path.isdir(folder):
            raise FileNotFoundError(errno.ENOENT, f"there is no folder {folder} to write to") from None
        return None
    if stat.S_ISDIR(found.st_mode):
        raise IsADirectoryError(errno.EISDIR, "this is a folder; name a file in it")
    if stat.S_ISREG(found.st_mode) and not os.access(
        path, os.W_OK, effective_ids=os.access in os.supports_effective_ids
    ):
        raise PermissionError(errno.EACCES, "the file is write-protected")
    if not (stat.S_ISREG(found.st_mode) or stat.S_ISCHR(found.st_mode) or stat.S_ISFIFO(found.st_mode)):
        raise OSError(errno.EINVAL, "neither a file, nor a pipe, nor a character device")
    return found


def _stage(held: contextlib.ExitStack, target: str, old: os.stat_result | None, parts: Iterable[bytes]) -> str:
    """Write the partial file of `target`, with its final permissions. Returns its name. `held` keeps it locked."""
    folder = os.path.dirname(target)
    _delete_leftovers(folder)
    f, partial = _partial(held, folder, 0o666 if old is None else 0o600)
    try:
        f.writelines(parts)
        f.flush()
        if old is not None:
            _take_over(f.fileno(), partial, old)
        os.fsync(f.fileno())
        if fcntl is None:  # Windows cannot rename an open file
            f.close()
    except BaseException:
        with contextlib.suppress(OSError):  # close() tries to write the buffer, which fails again
            f.close()
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    return partial


def _partial(held: contextlib.ExitStack, folder: str, mode: int) -> tuple[IO[bytes], str]:
    """Create a partial file and lock it. Returns the file and its name."""
    while True:
        name = os.path.join(folder, os.urandom(8).hex().join(PARTIAL))
        f = open(name, "xb", opener=lambda path, flags: os.open(path, flags, mode))  # noqa: SIM115
        held.callback(f.close)
        # another process may have deleted it as a leftover before it was locked
        if _locked(f, wait=True) is None or os.fstat(f.fileno()).st_nlink:
            return f, name
        f.close()


def _locked(f: IO[bytes], *, wait: bool = False) -> bool | None:
    """Lock a file until it is closed. Returns False if another process holds the lock, None if locks do not work."""
    if fcntl is None:
        return None
    try:
        fcntl.flock(f.fileno(), fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as e:
        if e.errno not in NO_LOCKS:
            raise
        return None
    return True


def _delete_leftovers(folder: str) -> None:
    """Delete partial files that no process has locked: their writers were killed."""
    try:
        names = [x for x in os.listdir(folder) if x.startswith(PARTIAL[0]) and x.endswith(PARTIAL[1])]
    except OSError:  # the folder is writable but not readable
        return
    for name in names:
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            with open(path, "rb", opener=lambda path, flags: os.open(path, flags | NO_LINKS)) as f:
                free = _locked(f)
                if free is None:  # without locks, only the age tells whether a process still writes it
                    free = os.fstat(f.fileno()).st_mtime < time.time() - ABANDONED_AFTER
                if free and fcntl is not None:
                    os.unlink(path)  # while it is locked: its writer may have just created it
            if free and fcntl is None:
                os.unlink(path)


def _take_over(handle: int, partial: str, old: os.stat_result) -> None:
    """Give the partial file the permissions of the old one, and its owner and group if allowed."""
    mode = old.st_mode & PERMISSIONS
    new = os.fstat(handle)
    if hasattr(os, "fchown") and (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.fchown(handle, old.st_uid, old.st_gid)
        except OSError:
            try:
                os.fchown(handle, -1, old.st_gid)
            except OSError:  # another group must not get the old group's permissions
                mode &= ~0o070 | (mode & 0o007) << 3
    os.chmod(handle if os.chmod in os.supports_fd else partial, mode)


def _flush_folder(folder: str) -> None:
    """Flush the folder, so that the rename is on the disk. Ignores file systems that do not support it."""
    if hasattr(os, "O_DIRECTORY"):
        with contextlib.suppress(OSError):
            handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            try:
                os.fsync(handle)
            finally:
                os.close(handle)


def _write_through(path: Path, found: os.stat_result, parts: Iterable[bytes]) -> None:
    """Write into a device or a pipe."""
    pipe = stat.S_ISFIFO(found.st_mode)
    with open(_opened_pipe(path) if pipe else os.open(path, os.O_WRONLY | getattr(os, "O_NOCTTY", 0)), "wb") as f:
        f.writelines(parts)


def _opened_pipe(path: Path) -> int:
    """Open a pipe for writing, and wait for a reader. Returns the file descriptor. Raises OSError after 5 s."""
    until = time.monotonic() + SECONDS_FOR_A_READER
    while True:
        try:
            handle = os.open(path, os.O_WRONLY | WITHOUT_WAITING)
            os.set_blocking(handle, True)
            return handle
        except OSError as e:
            if e.errno != errno.ENXIO:
                raise
            if time.monotonic() > until:
                raise OSError(errno.ENXIO, "no process reads from this pipe") from None
            time.sleep(0.02)
