"""What moves work along: threads of its own, or the event loop of a browser's tab, which has none."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Generator
from typing import Any, Protocol, TypeVar, cast

from tracegrad.runtime import tab
from tracegrad.runtime.aside import aside

T = TypeVar("T")
Turns = Generator[Any, None, None]  # each gives what to wait for: a ticket of the session, or None for more work


def beside(fn: Callable[[], T]) -> Callable[[], T]:
    """Call `fn` on another thread, in a tab when the result is asked for: what waits for it and gives it."""
    return fn if tab.IN_TAB else aside(fn).result


class Drive(Protocol):
    """Runs `turns` until they end."""

    ident: int  # of the thread on which results are resolved

    def __init__(self, turns: Turns, woken: threading.Condition, idle: Callable[[], bool]) -> None:
        """Begin. idle: is there nothing to do now?"""
        ...

    def wake(self) -> None:
        """There is something to do. Called with `woken` held."""
        ...

    def end(self) -> None:
        """The turns were told to end: see that they do."""
        ...


class ThreadDrive:
    """Turns on a thread, which blocks where a turn has to wait."""

    def __init__(self, turns: Turns, woken: threading.Condition, idle: Callable[[], bool]) -> None:
        self._turns, self._woken, self._idle = turns, woken, idle
        self._thread = threading.Thread(target=self._run, name="tracegrad", daemon=True)
        self._thread.start()
        self.ident = cast("int", self._thread.ident)

    def wake(self) -> None:
        """See `Drive`."""
        self._woken.notify()

    def end(self) -> None:
        """Wait for the thread."""
        with self._woken:
            self._woken.notify()
        if threading.get_ident() != self.ident:
            self._thread.join()

    def _run(self) -> None:
        for awaited in self._turns:
            if awaited is None:  # a ticket is waited for where it is collected
                with self._woken:
                    self._woken.wait_for(lambda: not self._idle())


class TabDrive:
    """Turns of the event loop: there is one thread, so a turn that has to wait gives way to the rest of the tab."""

    ident = -1  # no thread's: waiting is possible everywhere, since other stacks go on

    def __init__(self, turns: Turns, woken: threading.Condition, idle: Callable[[], bool]) -> None:
        self._turns = turns
        self._task: Any = None
        next(turns, None)  # as far as the first wait: the session is made

    def wake(self) -> None:
        """See `Drive`."""
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
