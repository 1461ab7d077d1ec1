"""Work, and what moves it along: threads of its own, or the event loop of a browser's tab, which has none."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Iterable
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
        """For `turns`, which `start` begins to run, until they end.

        lock:  an RLock, held by the caller of `wake`.
        idle:  is there nothing to do now?
        died:  called with what ended the thread before the turns did.
        """
        self._turns, self._lock, self._idle, self._died = turns, lock, idle, died
        self._bell: SimpleQueue[None] = SimpleQueue()
        # How often the thread fell asleep, and for which of these times it was woken. Not a flag: a signal handler may
        # wake the thread and wait while it falls asleep again, and then what was interrupted would reset the flag.
        self._slept = self._woken = 0
        self._over: Pending[None] = Pending("closing")
        self._crowd: deque[threading.Lock] = deque()  # one for each thread that waits for room, which holds it
        self._thread = threading.Thread(target=self._run, name="tracegrad", daemon=True)

    def start(self) -> int:
        """Begin; the thread's ident. Waiting for work on it would never end."""
        self._thread.start()
        return cast("int", self._thread.ident)

    def wake(self) -> None:
        """There is something to do, or there will be before `lock` is released. Called with `lock` held."""
        slept = self._slept
        if slept != self._woken:
            self._bell.put(None)  # first: an interrupt between the two lines rings twice, which does no harm
            self._woken = slept

    @property
    def asleep(self) -> bool:
        """Was nothing to do, and `wake` not called since?"""
        return self._slept != self._woken

    def await_room(self, full: Callable[[], bool], unanswered: Callable[[], Iterable[Pending[Any]]]) -> None:
        """Wait while the queue is `full`. The thread itself (a done callback) would wait forever."""
        while threading.get_ident() != self._thread.ident:
            gate = threading.Lock()
            gate.acquire()
            with self._lock:
                if not full():
                    return
                self._crowd.append(gate)
            gate.acquire(timeout=LOOK_SECONDS)  # or until `let_in` releases it

    def let_in(self, roomy: Callable[[], bool]) -> None:
        """Wake who waits for room, once there is some."""
        if self._crowd:
            with self._lock:
                while self._crowd and roomy():
                    self._crowd.popleft().release()

    def end(self) -> None:
        """The turns were told to end: wait until they did."""
        with self._lock:
            self.wake()
        if threading.get_ident() != self._thread.ident:
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
                    asleep = self._idle()
                    self._slept += asleep
                if asleep:
                    self._bell.get()


class TabDrive:
    """Turns of the event loop: there is one thread, so a turn that has to wait gives way to the rest of the tab."""

    asleep = False  # there is no other thread that could work meanwhile

    def __init__(
        self, turns: Turns, lock: Any, idle: Callable[[], bool], died: Callable[[BaseException], object]
    ) -> None:
        self._turns = turns
        self._task: Any = None

    def start(self) -> int:
        """Begin: as far as the first wait, the session is made. No thread's ident: other stacks go on everywhere."""
        next(self._turns, None)
        return -1

    def wake(self) -> None:
        """As `ThreadDrive.wake`."""
        if self._task is None:
            self._task = tab.event_loop().create_task(self._run())

    def await_room(self, full: Callable[[], bool], unanswered: Callable[[], Iterable[Pending[Any]]]) -> None:
        """As `ThreadDrive.await_room`, if it can wait."""
        while full() and tab.can_wait():
            oldest = next((pending for pending in unanswered() if not pending.done()), None)
            if oldest is None:
                return
            tab.wait(tab.resolved(oldest), "a free place in the queue")

    def let_in(self, roomy: Callable[[], bool]) -> None:
        """Who waits looks again whenever a run is answered."""

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
