"""C texts as loaded libraries: by the compiler of this machine, kept in the user's cache directory.

A library is found again by what decides its bytes: source, compiler, flags and processor. It lies in a directory that
only this user may write, under a name that contains the hash of its contents, and what does not fit its name is never
loaded. It is written under another name first: a reader sees all of it or nothing.

The libraries of the directory take at most MOST_BYTES: after a compilation those used longest ago are deleted. Another
process may have them open, which keeps them; one that was about to load them compiles them anew.

A library is unloaded with the last object of Python that refers to it. A library with threads of its own stays.
"""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
import weakref
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path

from tracegrad.lazy import dataclass
from tracegrad.runtime.background import in_background
from tracegrad.runtime.cache import cache_folder, is_own
from tracegrad.runtime.children import Children, StoppedError

VARIABLE = "TRACEGRAD_CC"  # a compiler, or "off"
OTHER_FLAGS = "TRACEGRAD_CFLAGS"  # flags in the place of GCC_FLAGS; they follow all others
CANDIDATES = ("cc", "gcc", "clang")
# NaN and infinities are kept, and sums are added in the order of the source. Contraction to fused products is the
# default of both compilers.
NATIVE = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
FLAGS = (
    "-O3", NATIVE, "-fno-math-errno", "-fno-trapping-math", "-fwrapv", "-std=gnu11", "-w", "-shared", "-fPIC",
    "-pthread",
)  # fmt: skip
# Neither flag decides whether the numbers are right: tools/compilers runs every check without them, too.
# GCC would not contract a lone chain of sums for some processors: a row would have other bits than among others.
# Longer loops written out took a quarter of the compiler's time for a CNN and made nothing faster.
GCC_FLAGS = ("--param=max-completely-peeled-insns=64", "--param=avoid-fma-max-bits=0")
CRASH = re.compile(r"internal compiler error|PLEASE submit a bug report")  # of GCC, and of Clang
OTHERWISE = {"-O3": "-O1"}
SECONDS = 30.0  # a compiler that takes longer has failed, or what LIMIT says; and for a long text
CHARACTERS = 1000  # of it as many seconds more as it has of these: more than ten times what compilers take
LIMIT = "TRACEGRAD_CC_SECONDS"
FORGOTTEN_AFTER = 60 * 86400  # seconds without a use
MOST_BYTES = 256 << 20  # of all libraries together: twelve thousand of the usual size

_hung: set[Compiler] = set()  # that did not end: each is waited for once
_told: set[tuple[Compiler, str]] = set()  # what was said of which
_kept: dict[str, ctypes.CDLL] = {}  # libraries that stay, by key


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler that was found."""

    path: str
    version: str  # the first line of what it says

    @property
    def flags(self) -> tuple[str, ...]:
        """How it is called."""
        more = os.environ.get(OTHER_FLAGS)
        if more is not None:
            return (*FLAGS, *shlex.split(more))
        return FLAGS if "clang" in self.version else FLAGS + GCC_FLAGS

    @property
    def state(self) -> tuple[str, ...]:
        """All that decides what it makes of a text."""
        return (self.path, self.version, *self.flags, processor())

    def begin(self, source: str, children: Children | None = None, keep: bool = False) -> Future[ctypes.CDLL | None]:
        """The library of `source`, while other things are done; see `library`."""
        return in_background(lambda: self.library(source, children=children, keep=keep))

    def library(
        self,
        source: str,
        otherwise: str = "kernels run as NumPy",
        more: tuple[str, ...] = (),
        children: Children | None = None,
        keep: bool = False,
    ) -> ctypes.CDLL | None:
        """The loaded library. None, with a warning, if it cannot be had: the compiler's message says why.

        more:     flags of its own.
        children: runs the compiler, and can end it; then the result is None without a warning.
        keep:     never unload it.
        """
        key = hashlib.sha256("\0".join([source, *self.state, *more]).encode()).hexdigest()[:40]
        if key in _kept:
            return _kept[key]
        try:
            loaded = self._loaded(source, key, more, children or Children())
        except StoppedError:
            return None
        except (OSError, subprocess.SubprocessError) as e:
            self._warn(e, otherwise)
            return None
        if keep:
            return _kept.setdefault(key, loaded)
        weakref.finalize(loaded, _ctypes.dlclose, loaded._handle).atexit = False
        return loaded

    def _loaded(self, source: str, key: str, more: tuple[str, ...], children: Children) -> ctypes.CDLL:
        try:
            folder = cache_folder()
        except OSError as e:
            warnings.warn(f"libraries are compiled anew each time: {e}", RuntimeWarning, stacklevel=2)
            with tempfile.TemporaryDirectory() as temporary:
                return ctypes.CDLL(str(self.compiled(source, key, Path(temporary), more, children)))
        path = find(folder, key)
        if path is not None:
            try:
                return ctypes.CDLL(str(path))
            except OSError:
                if path.exists():
                    raise  # else another process deleted it just now
        with tempfile.TemporaryDirectory(dir=folder, prefix="new-") as temporary:
            path = self.compiled(source, key, Path(temporary), more, children)
            loaded = ctypes.CDLL(str(path))  # before other processes see it, for they may delete it at once
            path.replace(folder / f"{key}-{digest(path)}.so")
        forget(folder)
        return loaded

    def compiled(
        self, source: str, key: str, folder: Path, more: tuple[str, ...] = (), children: Children | None = None
    ) -> Path:
        """Compile into a file of `folder` that is named by the key."""
        if self in _hung:
            raise subprocess.TimeoutExpired(self.path, seconds())
        out = folder / f"{key}.so"
        command = [self.path, *self.flags, *more, "-x", "c", "-", "-o", str(out)]
        children = children or Children()
        try:
            self._run(command, source, children)
        except subprocess.TimeoutExpired:
            _hung.add(self)
            children.stop()  # one library that is missing is as good as none
            raise
        out.chmod(0o700)
        return out

    @staticmethod
    def _run(command: Sequence[str], source: str, children: Children) -> None:
        """Run the compiler; where it crashes, once more with less optimisation, which most of its defects are in.

        GCC 12 crashes on some rows of choices at -O3 for processors with SSE2 alone.
        """
        limit = seconds() + len(source) / CHARACTERS
        try:
            children.run(command, source, limit)
        except subprocess.CalledProcessError as e:
            if e.returncode >= 0 and not CRASH.search(str(e.stderr)):
                raise
            children.run([OTHERWISE.get(x, x) for x in command], source, limit)

    def _warn(self, e: Exception, otherwise: str) -> None:
        """Say why there is no library, once: a program has several, which fail for the same reason."""
        why = f"It said: {str(e.stderr).strip()[:2000]}" if isinstance(e, subprocess.CalledProcessError) else str(e)
        if isinstance(e, subprocess.TimeoutExpired):
            why = f"It did not end within {seconds():g} s, which {LIMIT} sets"
        same = (self, re.sub(r"\S*/\S*|0x\w+", "", why))  # temporary files have other names each time
        if same not in _told:
            _told.add(same)
            text = f"{self.path} failed, so {otherwise}; {VARIABLE}=off chooses that without a warning. {why}"
            warnings.warn(text, RuntimeWarning, stacklevel=3)


def seconds() -> float:
    """How long a compiler may take, by LIMIT or SECONDS."""
    try:
        return max(0.0, float(os.environ.get(LIMIT) or SECONDS))
    except ValueError:
        return SECONDS


def digest(path: Path) -> str:
    """The hash of a file's contents."""
    return hashlib.sha256(path.read_bytes()).hexdigest()[:40]


def find(folder: Path, key: str) -> Path | None:
    """The library of that key, if it is what its name says and no other user could have written it."""
    for path in folder.glob(f"{key}-*.so"):
        with contextlib.suppress(FileNotFoundError):  # another process deletes it
            if is_own(path) and path.stem == f"{key}-{digest(path)}":
                os.utime(path)
                return path
            path.unlink()
    return None


def forget(folder: Path) -> None:
    """Delete what has not been used for long, what an interrupted process left, and libraries beyond MOST_BYTES."""
    libraries: list[tuple[int, int, Path]] = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process deletes it
            found = path.lstat()
            if found.st_mtime < time.time() - FORGOTTEN_AFTER:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            elif path.suffix == ".so":
                libraries.append((found.st_mtime_ns, found.st_size, path))
    beyond = sum(size for _, size, _ in libraries) - MOST_BYTES
    for _, size, path in sorted(libraries):
        if beyond <= 0:
            break
        path.unlink(missing_ok=True)
        beyond -= size


def compiler() -> Compiler | None:
    """The C compiler of this machine: TRACEGRAD_CC, CC, or the first of cc, gcc and clang. None if there is none."""
    return compiler_named(os.environ.get(VARIABLE, ""))


def begin_library(source: str, otherwise: str) -> Future[ctypes.CDLL | None]:
    """The library of `source` by this machine's compiler, looked for and called while other things are done.

    The library stays loaded: it may have threads.
    """

    def made() -> ctypes.CDLL | None:
        found = compiler()
        return found.library(source, otherwise, keep=True) if found else None

    return in_background(made)


@functools.cache
def compiler_named(asked: str) -> Compiler | None:
    """The same for one value of TRACEGRAD_CC."""
    if asked.lower() in ("off", "0", "no") or os.name != "posix" or sys.platform == "emscripten":
        return None
    for name in [asked] if asked else [os.environ.get("CC", ""), *CANDIDATES]:
        path = shutil.which(name) if name else None
        if path:
            try:
                said = Children().run([path, "--version"], "", seconds())
            except (OSError, subprocess.SubprocessError):
                continue
            return Compiler(path, said.splitlines()[0] if said else "unknown version")
    if asked:
        warnings.warn(f"{VARIABLE}={asked!r} is no C compiler here; Python does its work", RuntimeWarning, stacklevel=2)
    return None


@functools.cache
def processor() -> str:
    """What `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.release()}"
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU part")
    found = {name: value for name, _, value in (line.partition(":") for line in lines) if name.strip() in wanted}
    return " ".join([platform.machine(), *found.values()])
