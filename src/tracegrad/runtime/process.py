"""This process: its processors and threads, its forks, and the stderr of C code in it.

A forked child has a copy of its parent's objects, but none of its parent's threads.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future
import contextlib
import ctypes
import gc
import sys
from collections.abc import Generator

from tracegrad.errors import DeviceError

T = TypeVar("T")


def in_background(fn: Callable[[], T]) -> Future[T]:
    """Return a future of `fn()`. The thread is a daemon: an interpreter that exits does not wait for it."""
    from concurrent.futures import Future

    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(fn())
        except BaseException as e:
            result.set_exception(e)

    threading.Thread(target=run, name="tracegrad aside", daemon=True).start()
    return result


def processors() -> int:
    """Return how many processors this process can use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextlib.contextmanager
def quiet_stderr() -> Generator[None, None, None]:
    """Suppress output of C code to stderr inside the block; do nothing if stderr is not a real file.

    Also do nothing if TRACEGRAD_DEBUG is set: the compiler prints at the same time, on another thread.
    """
    if os.environ.get("TRACEGRAD_DEBUG"):
        yield
        return
    try:
        sys.stderr.flush()
        saved = os.dup(2)
    except (OSError, AttributeError, ValueError):
        yield
        return
    import tempfile

    with tempfile.TemporaryFile() as sink:
        os.dup2(sink.fileno(), 2)
        try:
            yield
        finally:
            os.dup2(saved, 2)
            os.close(saved)


FORKED = (
    "this process was forked from the one that opened the device, which stays with its parent. Compile in this "
    "process. For a GPU, start the process by multiprocessing.get_context('spawn')"
)


FORKED_DRIVERS = (
    "this process was forked from one that uses a GPU, whose driver does not survive a fork; start it by "
    "multiprocessing.get_context('spawn')"
)


class Generation:
    """Counts the forks of the process since Python started. An object of another generation has no threads here.

    drivers: the generation that loaded graphics drivers.
    """

    number = 0
    drivers: int | None = None


def load_drivers() -> None:
    """Note that graphics drivers are loaded now."""
    Generation.drivers = Generation.number


def inherited_drivers() -> bool:
    """Return whether graphics drivers were loaded before a fork: their threads are gone, so calls would hang."""
    return Generation.drivers is not None and Generation.drivers != Generation.number


def forked_error() -> DeviceError:
    """Return the error for work that needs a thread of the parent."""
    return DeviceError.here(FORKED)


def _begin() -> None:
    Generation.number += 1
    if inherited_drivers():
        _keep_objects_of_drivers()


def _keep_objects_of_drivers() -> None:
    """Keep the parent's GPU objects, garbage included, as long as this process lives.

    Python would release them with their last reference, and each release calls the driver, which would hang.
    """
    wgpu = sys.modules["wgpu"]
    classes = (wgpu.GPUAdapter, wgpu.GPUObjectBase)
    kept = [thing for thing in gc.get_objects() if isinstance(thing, classes)]
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))  # never undone: the end of the process releases nothing either


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin)
