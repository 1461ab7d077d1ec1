"""Writing of checkpoints in the background, while the training goes on."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from typing import Any

from tracegrad.engine.pending import Pending
from tracegrad.engine.results import Failed
from tracegrad.runtime import tab


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

        done = threading.Event()
        if tab.IN_TAB:  # there are no threads
            run()
        else:
            threading.Thread(target=run, name="tracegrad saves").start()
        return pending

    def finish(self) -> None:
        """Wait until all files are written, whether or not they could be."""
        if self._last is not None:
            self._last.result()
