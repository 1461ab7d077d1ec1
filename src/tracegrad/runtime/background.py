"""One call on a thread of its own, while other things are done."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from concurrent.futures import Future

T = TypeVar("T")


def in_background(fn: Callable[[], T]) -> Future[T]:
    """What `fn` will give. The thread is a daemon: an interpreter that exits does not wait for `fn`."""
    from concurrent.futures import Future

    result: Future[T] = Future()

    def run() -> None:
        try:
            result.set_result(fn())
        except BaseException as e:
            result.set_exception(e)

    threading.Thread(target=run, name="tracegrad aside", daemon=True).start()
    return result
