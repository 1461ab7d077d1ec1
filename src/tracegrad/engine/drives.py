"""Work, and what moves it along: threads of its own, or the event loop of a browser's tab, which has none."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from tracegrad.engine.results import LOOK_SECONDS, Pending
from tracegrad.runtime import tab
from tracegrad.runtime.background import in_background

T = TypeVar("T")
Turns = Generator[Any, None, None]  # each gives what to wait for: a batch of the session, or None for more work


def beside(fn: Callable[[], T]) -> Callable[[], T]:
    """Call `fn` on another thread, in a tab when the result is requested: what waits for it and gives it."""
    return fn if tab.IN_TAB else in_background(fn).result


class ThreadDrive:
    """Turns on a thread, which blocks where a turn has to wait.

    Threads that call `wake` and `end` may be interrupted at any point of them, as Python's main thread is by Ctrl-C. So
    these wait only inside of C: the locks of `threading.Condition` and `Thread.join` can be lost to an interrupt.
    """

    def __init__(
        self, turns: Turns, lock: Any, idle: Callable[[], bool], died: Callable[[BaseException], object]
    ) -> None:
        """Begin to run `turns` until they end.

        lock:  an RLock, held by the caller of `wake`.
        idle:  is there nothing to do now?
        died:  called with what ended the thread before the turns did.
        """
        self._turns, self._lock, self._idle, self._died = turns, lock, idle, died
        self._bell: SimpleQueue[None] = SimpleQueue()
        self.asleep = False  # nothing was to do, and `wake` was not called since
        self._over: Pending[None] = Pending("closing")
        self._thread = threading.Thread(target=self._run, name="tracegrad", daemon=True)
        self._thread.start()
        self.ident = cast("int", self._thread.ident)

    def wake(self) -> None:
        """There is something to do, or there will be before `lock` is released. Called with `lock` held."""
        if self.asleep:
            self._bell.put(None)  # first: an interrupt between the two lines rings twice, which does no harm
            self.asleep = False

    def end(self) -> None:
        """The turns were told to end: wait until they did."""
        with self._lock:
            self.wake()
        if threading.get_ident() != self.ident:
            while self._thread.is_alive():
                with contextlib.suppress(TimeoutError):
                    self._over.result(LOOK_SECONDS)
                    break
            self._thread.join()  # at its last instruction

    def _run(self) -> None:
        """All turns. Another thread may have an exception raised in this one at any point, even in the handler."""
        error: BaseException | None = None
        for _ in range(4):
            try:
                if error is None:
                    self._go()
                else:
                    self._died(error)
                break
            except BaseException as e:
                error = e
        self._over.resolve(None)

    def _go(self) -> None:
        for awaited in self._turns:
            if awaited is None:  # a batch is waited for where its outputs are read
                with self._lock:
                    asleep = self.asleep = self._idle()
                if asleep:
                    self._bell.get()


class TabDrive:
    """Turns of the event loop: there is one thread, so a turn that has to wait gives way to the rest of the tab."""

    asleep = False  # there is no other thread that could work meanwhile
    ident = -1  # no thread's: waiting is possible everywhere, since other stacks go on

    def __init__(
        self, turns: Turns, lock: Any, idle: Callable[[], bool], died: Callable[[BaseException], object]
    ) -> None:
        self._turns = turns
        self._task: Any = None
        next(turns, None)  # as far as the first wait: the session is made

    def wake(self) -> None:
        """As `ThreadDrive.wake`."""
        if self._task is None:
            self._task = tab.event_loop().create_task(self._run())

    def end(self) -> None:
        """End the turns where they wait; those that are running end by themselves."""
        with contextlib.suppress(ValueError):
            self._turns.close()

    async def _run(self) -> None:
        for awaited in self._turns:
            if awaited is None:
                break
            if hasattr(awaited, "__await__"):
                await awaited
        self._task = None
