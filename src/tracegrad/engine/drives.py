"""Drives, which run a worker's turns: on a thread, or in the event loop of a browser's tab, which has no threads."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
from queue import SimpleQueue
from typing import Any, TypeVar, cast

from tracegrad.engine.pending import LOOK_SECONDS, Pending
from tracegrad.runtime import tab
from tracegrad.runtime.process import in_background

T = TypeVar("T")
Turns = Generator[Any, None, None]  # each yields what to wait for: a batch of the session, or None for more work


def beside(fn: Callable[[], T]) -> Callable[[], T]:
    """Start `fn` on another thread, and return a function that waits for its result. In a tab, return `fn` itself."""
    return fn if tab.IN_TAB else in_background(fn).result


class ThreadDrive:
    """Runs a worker's turns on a thread of their own, which blocks if a turn has to wait.

    Ctrl-C can interrupt Python's main thread at any point of `wake` and `end`. So these methods block only in C
    code: an interrupt can lose the locks of `threading.Condition` and `Thread.join`.
    """

    def __init__(
        self, turns: Turns, lock: Any, idle: Callable[[], bool], died: Callable[[BaseException], object]
    ) -> None:
        """Make the thread that runs `turns` until they end; `start` starts the thread.

        lock:  an RLock, held by the caller of `wake`.
        idle:  returns whether there is nothing to do now.
        died:  called with the exception that ended the thread before the turns did.
        """
        self._turns, self._lock, self._idle, self._died = turns, lock, idle, died
        self._bell: SimpleQueue[None] = SimpleQueue()
        # How often the thread fell asleep, and the last of these times for which it was woken. Not a flag: a signal
        # handler can interrupt `wake`, wake the thread itself, and wait until the thread sleeps again. The interrupted
        # `wake` would then reset the flag of the new sleep.
        self._slept = self._woken = 0
        self._over: Pending[None] = Pending("closing")
        self._crowd: deque[threading.Lock] = deque()  # one for each thread that waits for room, held by that thread
        self._thread = threading.Thread(target=self._run, name="tracegrad", daemon=True)

    def start(self) -> int:
        """Start the thread, and return its ident. Code on that thread must not wait for the worker's results."""
        self._thread.start()
        return cast("int", self._thread.ident)

    def wake(self) -> None:
        """Wake the thread, because there is work, or will be before `lock` is released. Called with `lock` held."""
        slept = self._slept
        if slept != self._woken:
            self._bell.put(None)  # first: an interrupt between the two lines then only rings twice, which is harmless
            self._woken = slept

    @property
    def asleep(self) -> bool:
        """True if the thread had nothing to do, and `wake` was not called since then."""
        return self._slept != self._woken

    def await_room(self, full: Callable[[], bool], unanswered: Callable[[], Iterable[Pending[Any]]]) -> None:
        """Wait while the queue is `full`, but not on the worker's own thread: that wait would never end."""
        while threading.get_ident() != self._thread.ident:
            gate = threading.Lock()
            gate.acquire()
            with self._lock:
                if not full():
                    return
                self._crowd.append(gate)
            gate.acquire(timeout=LOOK_SECONDS)  # or until `let_in` releases it

    def let_in(self, roomy: Callable[[], bool]) -> None:
        """Wake threads that wait for room in the queue, if there is room."""
        if self._crowd:
            with self._lock:
                while self._crowd and roomy():
                    self._crowd.popleft().release()

    def end(self) -> None:
        """Wait until the turns have ended. The caller has already told them to end."""
        with self._lock:
            self.wake()
        if threading.get_ident() != self._thread.ident:
            while self._thread.is_alive():
                with contextlib.suppress(TimeoutError):
                    self._over.result(LOOK_SECONDS)
                    break
            self._thread.join()  # the thread is at its last instruction

    def _run(self) -> None:
        """Run all turns. Another thread can raise an exception in this one at any point, even in the handler."""
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
            if awaited is None:  # for a batch, reading its outputs waits
                with self._lock:
                    asleep = self._idle()
                    self._slept += asleep
                if asleep:
                    self._bell.get()


class TabDrive:
    """Runs a worker's turns in a tab's event loop. A turn that has to wait lets the rest of the tab run."""

    asleep = False  # no other thread could work meanwhile

    def __init__(
        self, turns: Turns, lock: Any, idle: Callable[[], bool], died: Callable[[BaseException], object]
    ) -> None:
        self._turns = turns
        self._task: Any = None

    def start(self) -> int:
        """Run the turns up to the first wait, so that the session is made. Return -1, the ident of no thread."""
        next(self._turns, None)
        return -1

    def wake(self) -> None:
        """Do the same as `ThreadDrive.wake`."""
        if self._task is None:
            self._task = tab.event_loop().create_task(self._run())

    def await_room(self, full: Callable[[], bool], unanswered: Callable[[], Iterable[Pending[Any]]]) -> None:
        """Do the same as `ThreadDrive.await_room`, if the tab can wait."""
        while full() and tab.can_wait():
            oldest = next((pending for pending in unanswered() if not pending.done()), None)
            if oldest is None:
                return
            tab.wait(tab.resolved(oldest), "a free place in the queue")

    def let_in(self, roomy: Callable[[], bool]) -> None:
        """Do nothing: a waiting caller checks again whenever a run is resolved."""

    def end(self) -> None:
        """End turns that wait; running turns end by themselves."""
        with contextlib.suppress(ValueError):
            self._turns.close()

    async def _run(self) -> None:
        for awaited in self._turns:
            if awaited is None:
                break
            if hasattr(awaited, "__await__"):
                await awaited
        self._task = None
