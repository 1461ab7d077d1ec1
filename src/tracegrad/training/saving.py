"""Checkpoints of a training: written at once or in the background, and loaded."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tracegrad.engine.pending import Pending
from tracegrad.engine.results import Failed
from tracegrad.engine.stepper import Stepper, take_all
from tracegrad.engine.stores import TrainedParameters
from tracegrad.files.atomic import Path
from tracegrad.runtime import tab
from tracegrad.runtime.base import Session

if TYPE_CHECKING:
    from tracegrad.training.data import Position

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

    def save(
        self, store: TrainedParameters, path: Path, wait: bool, sharded: bool, fitted: Position | None
    ) -> Pending[Any] | None:
        """Write a checkpoint; see `CompiledTraining.save`. fitted: the place of the last `fit`."""
        if sharded:
            self.finish()  # Orbax numbers checkpoints by the complete ones
        write = _folder_of(store, path, fitted) if sharded else _file_of(store, path, fitted)
        if not wait:
            return self.begin(write, path)
        write()
        return None

    def begin(self, write: Callable[[], None], path: Path) -> Pending[Any]:
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


def _file_of(store: TrainedParameters, path: Path, fitted: Position | None) -> Callable[[], None]:
    """Copy the state, and return a function that writes it to a file."""
    from tracegrad.files import checkpoints

    snapshots = store.call(take_all)
    more, first = _more(fitted, sum(s.step for s in snapshots)), store.worker.info.process == 0
    return lambda: checkpoints.save(snapshots, path, more) if first else None


def _folder_of(store: TrainedParameters, path: Path, fitted: Position | None) -> Callable[[], None]:
    """Copy the state, begin to write it, and return a function that waits until the folder is complete."""
    from tracegrad.files import sharded

    def begin(session: Session, stepper: Stepper) -> Callable[[], None]:
        return sharded.save(session, stepper, path, _more(fitted, sum(s.counter for s in stepper.together)))

    return store.call(begin)


def _more(fitted: Position | None, steps: int) -> dict[str, str]:
    """Return the metadata of a `fit` that has done this many steps."""
    place = fitted.at(steps) if fitted else None
    return {"fit": place} if place else {}


def load(store: TrainedParameters, path: Path, optimizer: bool) -> None:
    """Load a file or folder; see `CompiledTraining.load`."""
    from tracegrad import safetensors
    from tracegrad.files import checkpoints, sharded

    folder = os.path.isdir(path)
    if optimizer and folder and store.worker.info.name == "jax":
        sharded.load(path, store)
        return
    arrays = sharded.read(path) if folder else safetensors.read(path)
    if optimizer:
        checkpoints.load(path, arrays, store)
    else:
        store.load(path, arrays)
