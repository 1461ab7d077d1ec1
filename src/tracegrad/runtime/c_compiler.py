"""Compile C texts to loaded libraries with this machine's compiler, and keep them in the user's cache directory.

The key of a library is a hash of everything that decides its bytes: source, compiler, flags and processor. The library
is in a directory that only this user can write. Its file name contains the hash of its contents; a file that does not
match its name is never loaded. Writing uses another name first, so a reader sees the whole file or nothing.

Libraries lie in folders by the first digits of their keys, because looking through a folder takes time for each file in
it. A folder takes at most its part of MOST_BYTES: after a compilation the least recently used libraries are deleted. A
process that has loaded a deleted library keeps it; a process about to load it compiles it again.

A library is unloaded with the last Python object that refers to it. A library with threads of its own stays.
"""

from __future__ import annotations

import _ctypes
import contextlib
import ctypes
import functools
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
from dataclasses import dataclass
from pathlib import Path

from tracegrad.runtime.cache import cache_folder, digest, find, key_of
from tracegrad.runtime.children import Children, StoppedError
from tracegrad.runtime.process import in_background

VARIABLE = "TRACEGRAD_CC"  # a compiler, or "off"
OTHER_FLAGS = "TRACEGRAD_CFLAGS"  # flags that replace WIDE, GCC_FLAGS and TUNED; they come last
CANDIDATES = ("cc", "gcc", "clang")
# These flags keep NaN and infinities, and add sums in the order of the source. By default, both compilers contract
# products and sums to fused operations.
NATIVE = "-mcpu=native" if platform.machine() in ("arm64", "aarch64") else "-march=native"
FLAGS = (
    "-O3", NATIVE, "-fno-math-errno", "-fno-trapping-math", "-fwrapv", "-std=gnu11", "-w", "-shared", "-fPIC",
    "-pthread",
)  # fmt: skip
# The numbers are right without the flags below, too: tools/compilers runs every check without them. GCC from 13 on and
# Clang use vectors of 8 elements on most processors of Intel's that have 16. Functions then take 1.2 to 1.6 times as
# long. Other processors take no notice.
WIDE = ("-mprefer-vector-width=512",) if platform.machine() in ("x86_64", "AMD64") else ()
# Without the second flag, GCC does not contract a lone chain of sums for some processors, so a row alone has other bits
# than in a batch.
# Unrolling longer loops took a quarter of the compiler's time for a CNN and made nothing faster.
GCC_FLAGS = ("--param=max-completely-peeled-insns=64", "--param=avoid-fma-max-bits=0")
# GCC writes no gathers for processors that are newer than itself, so reads at computed places took three times as long.
# What is known of the first processor with this property holds for later ones; GCC knows it from 11 on.
TUNED = ("-mtune=sapphirerapids",)
KNOWN_TO = re.compile(r"\) (1[1-9]|[2-9]\d)\.\d")  # in the first line of `gcc --version`
CRASH = re.compile(r"internal compiler error|PLEASE submit a bug report")  # crash messages of GCC and of Clang
OTHERWISE = {"-O3": "-O1"}
SECONDS = 30.0  # a compiler that takes longer than this, or than LIMIT, has failed; long texts get more time
CHARACTERS = 1000  # for each of so many characters of a text, one second is added: ten times as long as compilers take
LIMIT = "TRACEGRAD_CC_SECONDS"
ANSWERS = 10.0  # seconds for `--version`, which takes milliseconds
FORGOTTEN_AFTER = 60 * 86400  # seconds without use
MOST_BYTES = 256 << 20  # of all libraries together: twelve thousand of the usual size
FOLDER_DIGITS = 1  # of a key, which name the folder of its library

_hung: set[Compiler] = set()  # compilers that did not end in time: no second call waits for them
_told: set[tuple[Compiler, str]] = set()  # warnings given so far, by compiler
_kept: dict[str, ctypes.CDLL] = {}  # libraries that stay loaded, by key


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C compiler that exists on this machine."""

    path: str
    version: str  # the first line of `--version`

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags of every call."""
        more = os.environ.get(OTHER_FLAGS)
        if more is not None:
            return (*FLAGS, *shlex.split(more))
        if "clang" in self.version:
            return FLAGS + WIDE
        found = set(processor().split())
        tuned = {"GenuineIntel", "avx512_fp16"} <= found and KNOWN_TO.search(self.version)
        return FLAGS + WIDE + GCC_FLAGS + (TUNED if tuned else ())

    @property
    def state(self) -> tuple[str, ...]:
        """Everything about the compiler that decides the library of a text."""
        return (self.path, self.version, *self.flags, processor())

    def begin(self, source: str, children: Children | None = None, keep: bool = False) -> Future[ctypes.CDLL | None]:
        """Compile in the background; see `library`."""
        return in_background(lambda: self.library(source, children=children, keep=keep))

    def library(
        self,
        source: str,
        otherwise: str = "kernels run as NumPy",
        more: tuple[str, ...] = (),
        children: Children | None = None,
        keep: bool = False,
    ) -> ctypes.CDLL | None:
        """Return the loaded library. Return None, with a warning that has the compiler's message, if compiling fails.

        otherwise: what happens without a library, for the warning.
        more:      additional flags.
        children:  runs the compiler, and can end it; then the result is None without a warning.
        keep:      whether never to unload the library.
        """
        key = key_of(source, *self.state, *more)
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
            folder = folder_of(key)
        except OSError as e:
            warnings.warn(
                f"libraries cannot be cached, so each process compiles them again: {e}", RuntimeWarning, stacklevel=2
            )
            with tempfile.TemporaryDirectory() as temporary:
                return ctypes.CDLL(str(self.compiled(source, key, Path(temporary), more, children)))
        path = find(folder, key)
        if path is not None:
            try:
                return ctypes.CDLL(str(path))
            except OSError:
                if path.exists():
                    raise  # if there is no such file, another process has just deleted it
        with tempfile.TemporaryDirectory(dir=folder, prefix="new-") as temporary:
            path = self.compiled(source, key, Path(temporary), more, children)
            loaded = ctypes.CDLL(str(path))  # before other processes see the file, because they can delete it at once
            path.replace(folder / f"{key}-{digest(path.read_bytes())}.so")
        forget(folder)
        return loaded

    def compiled(
        self, source: str, key: str, folder: Path, more: tuple[str, ...] = (), children: Children | None = None
    ) -> Path:
        """Compile into a file of `folder` that is named by the key.

        Raises TimeoutExpired if the compiler takes too long.
        """
        if self in _hung:
            raise subprocess.TimeoutExpired(self.path, seconds())
        out = folder / f"{key}.so"
        command = [self.path, *self.flags, *more, "-x", "c", "-", "-o", str(out)]
        children = children or Children()
        try:
            self._run(command, source, children)
        except subprocess.TimeoutExpired:
            _hung.add(self)
            children.stop()  # without one of its libraries, a program cannot run in C, so stop all other compilations
            raise
        out.chmod(0o700)
        return out

    @staticmethod
    def _run(command: Sequence[str], source: str, children: Children) -> None:
        """Run the compiler; if it crashes, run it again with less optimisation, where most of its defects are.

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
        """Warn once why there is no library: a program has several libraries, which fail for the same reason."""
        why = f"It said: {str(e.stderr).strip()[:2000]}" if isinstance(e, subprocess.CalledProcessError) else str(e)
        if isinstance(e, subprocess.TimeoutExpired):
            why = f"It did not end within {seconds():g} s, which {LIMIT} sets"
        same = (self, re.sub(r"\S*/\S*|0x\w+", "", why))  # temporary files have other names each time
        if same not in _told:
            _told.add(same)
            text = f"{self.path} failed, so {otherwise}; {VARIABLE}=off chooses that without a warning. {why}"
            warnings.warn(text, RuntimeWarning, stacklevel=3)


def seconds() -> float:
    """Return the time limit of a compiler: LIMIT or SECONDS."""
    try:
        return max(0.0, float(os.environ.get(LIMIT) or SECONDS))
    except ValueError:
        return SECONDS


def folder_of(key: str) -> Path:
    """Return the directory of a key's library, and make it."""
    folder = cache_folder() / "libraries" / key[:FOLDER_DIGITS]
    folder.parent.mkdir(mode=0o700, exist_ok=True)
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder


def forget(folder: Path) -> None:
    """Delete libraries unused for long, leftovers of interrupted processes, and libraries beyond the folder's bytes."""
    libraries: list[tuple[int, int, Path]] = []
    for path in folder.iterdir():
        with contextlib.suppress(FileNotFoundError):  # another process can delete it
            found = path.lstat()
            if found.st_mtime < time.time() - FORGOTTEN_AFTER:
                shutil.rmtree(path) if path.is_dir() else path.unlink()
            elif path.suffix == ".so":
                libraries.append((found.st_mtime_ns, found.st_size, path))
    beyond = sum(size for _, size, _ in libraries) - MOST_BYTES // 16**FOLDER_DIGITS
    libraries.sort(reverse=True)
    while beyond > 0:
        _, size, path = libraries.pop()
        path.unlink(missing_ok=True)
        beyond -= size


def compiler() -> Compiler | None:
    """Return this machine's C compiler: TRACEGRAD_CC, CC, or the first of cc, gcc and clang. None if there is none."""
    return compiler_named(os.environ.get(VARIABLE, ""))


@functools.cache
def compiler_named(asked: str) -> Compiler | None:
    """Return the compiler for one value of TRACEGRAD_CC; None if there is none, or if the value switches C off.

    Warn of a compiler that hangs when asked for its version, and of a value that is not a compiler.
    """
    if asked.lower() in ("off", "0", "no") or os.name != "posix" or sys.platform == "emscripten":
        return None
    limit = min(seconds(), ANSWERS)
    for name in [asked] if asked else [os.environ.get("CC", ""), *CANDIDATES]:
        path = shutil.which(name) if name else None
        if path:
            try:
                said = Children().answer([path, "--version"], limit)
            except subprocess.TimeoutExpired:
                warnings.warn(
                    f"{path} --version did not end within {limit:g} s, so this compiler is not used; "
                    f"{VARIABLE} names another, and {VARIABLE}=off chooses NumPy",
                    RuntimeWarning,
                    stacklevel=2,
                )
                if asked:
                    return None
            except (OSError, subprocess.SubprocessError):
                continue
            else:
                return Compiler(path, said.splitlines()[0] if said else "unknown version")
    if asked:
        warnings.warn(
            f"{VARIABLE}={asked!r} is not a C compiler on this machine; Python is used instead",
            RuntimeWarning,
            stacklevel=2,
        )
    return None


@functools.cache
def processor() -> str:
    """Return the properties of the processor that `-march=native` depends on."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()} {platform.release()}"
    wanted = ("vendor_id", "cpu family", "model", "model name", "stepping", "flags", "Features", "CPU part")
    found = {name: value for name, _, value in (line.partition(":") for line in lines) if name.strip() in wanted}
    return " ".join([platform.machine(), *found.values()])
