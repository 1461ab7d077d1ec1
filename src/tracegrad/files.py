"""Write files so that a crash, a kill or a full disk leaves the old contents whole, and open files for reading safely.

A file is written beside its target under a name of its own, flushed to the disk, and renamed over the target. The
writer holds a lock on the partial file, so that the next write into the folder can tell a dead writer's leftovers from
the partial files of other processes. Where there are no locks, leftovers are deleted after an hour.
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
PARTIAL = (".tracegrad-", ".part")  # how the names of partial files begin and end
PERMISSIONS = 0o777
SECONDS_FOR_A_READER = 5.0  # that a write to a pipe waits for a process that reads it
ABANDONED_AFTER = 3600.0  # seconds since the last write to a partial file, where there are no locks
WITHOUT_WAITING, NO_LINKS = getattr(os, "O_NONBLOCK", 0), getattr(os, "O_NOFOLLOW", 0)
NO_LOCKS = (errno.ENOLCK, errno.ENOTSUP, errno.ENOSYS, errno.EINVAL)  # what file systems without locks answer

# Windows has no such module; a browser's locks exclude no one, and it has one process
WITHOUT_LOCKS = os.name != "posix" or sys.platform == "emscripten"
fcntl: Any = None if WITHOUT_LOCKS else importlib.import_module("fcntl")


def replace_file(path: Path, parts: Iterable[bytes]) -> None:
    """Write one file; `replace_files` has the rules."""
    replace_files({path: parts})


def replace_files(contents: Mapping[Path, Iterable[bytes]]) -> None:
    """Write files: all of them are complete on the disk before the first replaces an old one.

    - A symbolic link is followed: the file that it names is replaced, and the link stays.
    - An existing file keeps its permission bits, and its owner and group where the system allows that. A new file gets
      those of the umask.
    - Other hard links of a file keep the old contents.
    - A character device or a pipe gets the bytes, and stays what it is.

    Raises: OSError naming the file. The old files are then as they were, and no partial file stays.
    """
    staged: list[tuple[str, str]] = []
    with contextlib.ExitStack() as held:
        try:
            for path, parts in contents.items():
                with _naming(path):
                    found = _status(path)
                if found is not None and not stat.S_ISREG(found.st_mode):
                    with _naming(path):
                        _write_through(path, found, parts)
                    continue
                target = os.path.realpath(path)
                with _naming(path, "" if found is None else "; the old file is unchanged"):
                    staged.append((_stage(held, target, found, parts), target))
            while staged:
                partial, target = staged[0]
                with _naming(target):
                    os.replace(partial, target)
                del staged[0]
                _flush_folder(os.path.dirname(target))
        finally:
            for partial, _ in staged:
                with contextlib.suppress(OSError):
                    os.unlink(partial)


@contextlib.contextmanager
def open_regular(path: Path) -> Generator[BufferedReader]:
    """A regular file, opened for reading. Never waits for a pipe.

    Raises: InputError for a device, pipe or folder; OSError.
    """
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | WITHOUT_WAITING)) as f:
        if not stat.S_ISREG(os.fstat(f.fileno()).st_mode):
            raise InputError(f"{os.fspath(path)} is not a regular file")
        yield f


@contextlib.contextmanager
def _naming(path: Path, and_so: str = "") -> Generator[None]:
    """Errors of the system name the target, instead of no file or a partial one."""
    try:
        yield
    except OSError as e:
        if e.errno is None:  # raised by what makes the bytes
            raise
        raise OSError(e.errno, f"{e.strerror}{and_so}", os.fspath(path)) from e


def _status(path: Path) -> os.stat_result | None:
    """What `path` leads to, None if nothing is there. Refuses what cannot be written."""
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
    """Write the partial file of `target`, with its final permissions; its name. `held` keeps it locked."""
    folder = os.path.dirname(target)
    _delete_leftovers(folder)
    f, partial = _partial(held, folder, 0o666 if old is None else 0o600)
    try:
        f.writelines(parts)
        f.flush()
        if old is not None:
            _take_over(f.fileno(), partial, old)
        os.fsync(f.fileno())
        if fcntl is None:  # Windows renames no open file
            f.close()
    except BaseException:
        with contextlib.suppress(OSError):  # what is buffered does not fit now, either
            f.close()
        with contextlib.suppress(OSError):
            os.unlink(partial)
        raise
    return partial


def _partial(held: contextlib.ExitStack, folder: str, mode: int) -> tuple[IO[bytes], str]:
    """Return a new, locked file."""
    while True:
        name = os.path.join(folder, os.urandom(8).hex().join(PARTIAL))
        f = open(name, "xb", opener=lambda path, flags: os.open(path, flags, mode))  # noqa: SIM115
        held.callback(f.close)
        # between its making and its locking another process may have taken it for a leftover
        if _locked(f, wait=True) is None or os.fstat(f.fileno()).st_nlink:
            return f, name
        f.close()


def _locked(f: IO[bytes], *, wait: bool = False) -> bool | None:
    """Lock a file until it is closed. False if another process holds it, None where there are no locks."""
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
    """Delete the partial files of writers that were killed: those that no process has locked."""
    try:
        names = [x for x in os.listdir(folder) if x.startswith(PARTIAL[0]) and x.endswith(PARTIAL[1])]
    except OSError:  # a folder that can be written and not read
        return
    for name in names:
        path = os.path.join(folder, name)
        with contextlib.suppress(OSError):
            with open(path, "rb", opener=lambda path, flags: os.open(path, flags | NO_LINKS)) as f:
                free = _locked(f)
                if free is None:  # nothing tells that a process is at it but its age
                    free = os.fstat(f.fileno()).st_mtime < time.time() - ABANDONED_AFTER
                if free and fcntl is not None:
                    os.unlink(path)  # while it is locked: its writer may have begun just now
            if free and fcntl is None:
                os.unlink(path)


def _take_over(handle: int, partial: str, old: os.stat_result) -> None:
    """Give the partial file the permissions of the old one, and its owner and group where that is allowed."""
    mode = old.st_mode & PERMISSIONS
    new = os.fstat(handle)
    if hasattr(os, "fchown") and (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid):
        try:
            os.fchown(handle, old.st_uid, old.st_gid)
        except OSError:
            try:
                os.fchown(handle, -1, old.st_gid)
            except OSError:  # what its group could do is not for another group
                mode &= ~0o070 | (mode & 0o007) << 3
    os.chmod(handle if os.chmod in os.supports_fd else partial, mode)


def _flush_folder(folder: str) -> None:
    """See the new name on the disk. Some file systems cannot; the rename is done in any case."""
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
    """Return the writing end, once a process reads."""
    until = time.monotonic() + SECONDS_FOR_A_READER
    while True:
        try:
            handle = os.open(path, os.O_WRONLY | WITHOUT_WAITING)
            break
        except OSError as e:
            if e.errno != errno.ENXIO:
                raise
            if time.monotonic() > until:
                raise OSError(errno.ENXIO, "no process reads from this pipe") from None
            time.sleep(0.02)
    os.set_blocking(handle, True)
    return handle
