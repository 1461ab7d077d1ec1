"""One call on a thread of its own, while other things are done."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def aside(fn: Callable[[], T]) -> Future[T]:
    """What `fn` will give."""
    pool = ThreadPoolExecutor(1)
    result = pool.submit(fn)
    pool.shutdown(wait=False)
    return result
