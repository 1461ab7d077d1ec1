"""Writing of checkpoints in the background, while the training goes on."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import Any

from tracegrad.engine.pending import Pending
from tracegrad.engine.results import Failed
from tracegrad.runtime import tab

_writing: set[threading.Thread] = set()


@functools.cache
def _wait_at_exit() -> None:
    """At exit, wait for all writes before executors refuse new work: Orbax writes with executors.

    Python joins threads only later. Exit hooks run in reverse order, so this module first imports that of executors.
    """
    from concurrent.futures import thread as _  # noqa: F401

    def wait() -> None:
        for thread in list(_writing):
            thread.join()

    threading._register_atexit(wait)  # pyright: ignore  # the standard library's executors use it too


class Saving:
    """A queue of files to write on a background thread, one at a time and in the order of the calls."""

    def __init__(self) -> None:
        self._last: Pending[Any] | None = None

    def begin(self, write: Callable[[], None], path: str | os.PathLike[str]) -> Pending[Any]:
        """Start writing a file. The result resolves to the path, or to Failed. The interpreter waits for it at exit."""
        pending: Pending[Any] = Pending("save")
        before, self._last = self._last, pending

        def run() -> None:
            if before is not None:
                before.add_done_callback(lambda _: done.set())
                done.wait()
            try:
                write()
            except Exception as e:
                pending.resolve(Failed(e))
            else:
                pending.resolve(os.fspath(path))
            _writing.discard(threading.current_thread())

        done = threading.Event()
        if tab.IN_TAB:  # there are no threads
            run()
        else:
            thread = threading.Thread(target=run, name="tracegrad saves")
            _writing.add(thread)
            _wait_at_exit()
            thread.start()
        return pending

    def finish(self) -> None:
        """Wait until all files are written, whether or not they could be."""
        if self._last is not None:
            self._last.result()
