"""Threads: how many there can be, and one call on its own."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

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
