"""The thread that owns a Session: calls and runs in order, submitted ahead, replayed after a step that failed."""

from __future__ import annotations

import contextlib
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from typing import Any, TypeVar, cast

from tracegrad.engine.drives import Call, Drive, TabDrive, ThreadDrive, Work
from tracegrad.engine.results import LOOK_SECONDS, Aborted, Failed, Pending, failure
from tracegrad.errors import AbortedError, DeviceError
from tracegrad.introspection.limits import Limits, measure_limits
from tracegrad.runtime import tab
from tracegrad.runtime.base import Session
from tracegrad.runtime.forks import Generation, forked_error

T = TypeVar("T")
_GOES_ON = object()  # what a turn gives where nothing is to be waited for

MAX_IN_FLIGHT = 8  # runs queued before `step` waits, or as many as may be under way where those are more


Group = deque[tuple[Work, Any]]  # runs submitted together, with their tickets


class Worker:
    """Owns a session on a thread of its own; in a browser's tab, where there are none, in turns of the event loop.

    What is queued is submitted together, as a group of `session.at_once` runs at most; up to `session.submissions`
    groups are under way, and then the first is collected. A step that was not applied leaves the device halted: what
    was submitted behind it is dropped and submitted again, in order. A call made with `call` sees everything queued
    before it finished, and nothing queued after it begun.
    """

    def __init__(self, factory: Callable[[], Session], max_in_flight: int = MAX_IN_FLIGHT):
        """Make the session where the work will be done, while the caller goes on; see `opened`."""
        self.max_in_flight = self._least_queued = max_in_flight
        self._factory, self._generation = factory, Generation.number
        self._lock = threading.RLock()  # reentrant: garbage may be collected, and this closed, while it is held
        self._crowd: deque[threading.Lock] = deque()  # one for each thread that waits for room, which holds it
        self._queue: deque[Work | Call] = deque()
        self._window: deque[Group] = deque()  # submitted, not collected; the worker's own
        self._begun = False  # to collect the oldest of them
        self._taken: deque[Work] = deque()  # out of the queue, to be submitted
        self._held: Work | Call | None = None  # what the thread is at: a thread that is killed loses no work
        self._closed: str | None = None
        self._cause: BaseException | None = None  # what ended the thread, where that was not `close`
        self._limits: Limits | None = None
        self._started: Pending[Any] = Pending("opening the device")
        drive = TabDrive if tab.IN_TAB else ThreadDrive
        self._drive: Drive = drive(self._main(), self._lock, self._idle, self._died)
        self.ident = self._drive.ident

    def opened(self) -> Worker:
        """This worker, once it has its session. Raises what `factory` raised."""
        opened = self._started.result()
        if isinstance(opened, Failed):
            raise opened.error
        if isinstance(opened, Aborted):
            raise AbortedError(opened.reason)
        return self

    @property
    def closed(self) -> str | None:
        """Why no more work is taken; None while it is."""
        return self._closed

    @property
    def refusal(self) -> Aborted | Failed | None:
        """What new work resolves to; None while work is taken."""
        if self._closed is None or self._cause is None:
            return None if self._closed is None else Aborted(self._closed)
        error = DeviceError(self._closed)
        error.__cause__ = self._cause
        return Failed(error)

    def check_open(self, what: str) -> None:
        """Raise AbortedError if this was closed, DeviceError if its thread has ended otherwise."""
        refusal = self.refusal
        if isinstance(refusal, Failed):
            raise refusal.error
        if refusal is not None:
            raise AbortedError.here(f"this {what} is {refusal.reason}; use it before close()")

    @property
    def info(self) -> Any:
        """The session's DeviceInfo."""
        return self.opened()._session.info

    def limits(self) -> Limits:
        """What the device can do, measured at the first call. On the worker's thread."""
        if self._limits is None:
            self._limits = measure_limits(self._session)
        return self._limits

    def enqueue(self, works: Sequence[Work], pending: Pending[Any]) -> None:
        """Queue the runs of one call, which resolve `pending`; wait first while `max_in_flight` or more are queued."""
        if self._forked(pending):
            return
        if len(self._queue) >= self.max_in_flight:
            self._make_room()
        with self._lock:
            if self._closed is None:
                self._drive.wake()  # first: an interrupt between the two queues nothing
                self._queue.extend(works)
                return
        pending.resolve(self.refusal)

    @property
    def forked(self) -> bool:
        """Is this a child of the process that has the thread? Then nothing would ever resolve a Pending."""
        return self._generation != Generation.number

    def own(self, lock: threading.Lock) -> threading.Lock:
        """`lock`, for `with`. DeviceError in a forked child, where a thread of the parent may hold it for ever."""
        if self.forked:
            raise forked_error()
        return lock

    def _forked(self, pending: Pending[Any]) -> bool:
        if self.forked:
            pending.resolve(Failed(forked_error()))
        return self.forked

    def _make_room(self) -> None:
        """Wait until fewer runs are queued. The worker's own thread (a done callback) would wait forever."""
        if tab.IN_TAB:
            while len(self._queue) >= self.max_in_flight and tab.can_wait():
                jobs = [*self._submitted(), *self._queue]
                oldest = next((job.pending for job in jobs if not job.pending.done()), None)
                if oldest is None:
                    return
                tab.wait(_done(oldest), "a free place in the queue")
        elif threading.get_ident() != self.ident:
            while True:
                gate = threading.Lock()
                gate.acquire()
                with self._lock:
                    if len(self._queue) < self.max_in_flight or self._closed is not None:
                        return
                    self._crowd.append(gate)
                gate.acquire(timeout=LOOK_SECONDS)  # or until `_let_in` releases it

    def call(self, fn: Callable[[Session], T], urgent: bool = False) -> T:
        """Run `fn(session)` on the worker's thread and wait for it; `urgent` goes before all that is queued.

        Raises: what `fn` raises; AbortedError when the worker is closed.
        """
        result = self.post(fn, urgent).result()
        if isinstance(result, Failed):
            raise result.error
        if isinstance(result, Aborted):
            raise AbortedError(result.reason)
        return cast("tuple[T]", result)[0]

    def begin(self, fn: Callable[[Session], Any]) -> None:
        """As `call`, before all other work. Where a tab cannot wait, an error closes the worker instead of raising."""
        if tab.can_wait():
            self.call(fn)
            return

        def first(session: Session) -> None:
            try:
                fn(session)
            except Exception as e:
                self.close(f"closed: {type(e).__name__}: {e}")

        self.post(first)

    def post(self, fn: Callable[[Session], Any], urgent: bool = False) -> Pending[Any]:
        """As `call`, without waiting; resolves to a tuple of one, Failed or Aborted."""
        pending: Pending[Any] = Pending("device call", self.ident)
        if self._forked(pending):
            return pending
        with self._lock:
            if self._closed is None:
                job = Call(fn, pending, urgent)
                self._drive.wake()
                (self._queue.appendleft if urgent else self._queue.append)(job)
                return pending
        pending.resolve(self.refusal)
        return pending

    def swap(self, load: Callable[[Session], T], reason: str) -> T:
        """Go over to a new session once `load(session)` has succeeded on it; all work under way is Aborted.

        If anything raises, the old session stays and its work goes on.
        """

        def switch(old: Session) -> T:
            new = self._factory()
            try:
                out = load(new)
            except BaseException:
                new.close()
                raise
            self._abort_all(Aborted(reason))
            self._session = new
            with contextlib.suppress(Exception):  # the new one is in use, whatever became of the old
                old.close()
            return out

        return self.call(switch, urgent=True)

    def close(self, reason: str = "closed") -> None:
        """Abort what is under way, close the session, end the thread. Closing twice is fine."""
        if self.forked:
            return  # the thread and its locks are the parent's
        with self._lock:
            if self._closed is None:
                self._closed = reason
        with contextlib.suppress(AttributeError):  # where there is no session yet
            self._session.interrupt()
        self._drive.end()

    # --- on the worker's thread ---

    def _idle(self) -> bool:
        return not self._queue and not self._window and self._closed is None

    def _main(self) -> Generator[Any, None, None]:
        """All the work. Gives what should be waited for before it goes on: a ticket, or None for something to do."""
        try:
            self._session = self._factory()
        except BaseException as e:
            self._closed = self._closed or "the device could not be opened"
            self._started.resolve(failure(e, "opening the device") if isinstance(e, Exception) else Failed(e))
            self._abort_all(Aborted(self._closed))
            return
        self._started.resolve(None)
        try:
            while self._closed is None:
                awaited = self._turn()
                if awaited is not _GOES_ON:
                    yield awaited
                    if awaited is not None and self._closed is None:
                        self._collect_oldest()
        except GeneratorExit:
            self._closed = self._closed or "closed"
        except BaseException as e:
            self._died(e)
        self._end()

    def _died(self, e: BaseException) -> None:
        """Something ended the thread: who waits, or calls later, gets it as an error."""
        if self._closed is None:
            self._cause, said = e, f"{type(e).__name__}: {e}".removesuffix(": ")
            self._closed = (
                f"broken: its worker thread ended with {said}. Parameters and optimizer state on the device are lost; "
                "compile again and load the last checkpoint"
            )
        self._end()

    def _end(self) -> None:
        """Nothing that was queued is done any more; the device is free."""
        refusal = self.refusal or Aborted("closed")
        self._started.resolve(refusal)
        self._abort_all(refusal)
        if self._held is not None:
            self._held.pending.resolve(refusal)
        with contextlib.suppress(Exception):  # the device may be gone, or was never opened; callers know by now
            self._session.close()

    def _turn(self) -> Any:
        """Do one thing, or say what to wait for: the oldest ticket, or None for more to do."""
        if self._begun:
            return self._window[0][0][1]
        with self._lock:
            job = self._held = self._queue[0] if self._queue else None
            if isinstance(job, Call):
                job = self._queue.popleft() if job.urgent or not self._window else None
            elif job is not None:
                room = self._room_for(job)
                while self._queue and len(self._taken) < room and not isinstance(self._queue[0], Call):
                    self._taken.append(self._queue[0])
                    self._queue.popleft()
        if isinstance(job, Call):
            self._run_call(job)
            self._let_in()
        elif self._taken:
            self._submit()
        else:
            return self._window[0][0][1] if self._window else None
        return _GOES_ON

    def _room_for(self, following: Work) -> int:
        """How many runs to submit now: none if results should be collected first."""
        session = self._session
        if self._window:
            oldest = self._window[0][0][0].pending
            if len(self._window) >= session.submissions or (oldest.wanted and oldest is not following.pending):
                return 0
            if len(self._queue) < session.at_once // 2 and not self._queue[-1].pending.wanted:
                return 0  # a submission costs as much as several short runs: more will come while one is under way
        return session.at_once

    def _run_call(self, job: Call) -> None:
        try:
            result = (job.fn(self._session),)
        except (Exception, KeyboardInterrupt) as e:
            job.pending.resolve(Failed(e))  # raised in the caller's thread as it is
        else:
            job.pending.resolve(result)

    def _submit(self) -> None:
        """Submit what was taken, as a group."""
        self._window.append(group := deque())
        while self._taken:
            self._held = work = self._taken[0]
            self._taken.popleft()
            try:
                ticket = work.submit(self._session)
            except Exception as e:
                if self._closed is None:
                    work.fail(e)
                else:  # `close` ended what it was doing
                    work.pending.resolve(Aborted(self._closed))
                continue
            if ticket is not None:
                group.append((work, ticket))
        if not group:
            self._window.pop()
        # where runs are short as many as are under way: more groups are only begun while some are queued
        self.max_in_flight = max(self._least_queued, self._session.at_once * self._session.submissions)
        self._session.flush(self._let_in)
        self._let_in()

    def _let_in(self) -> None:
        """Wake who waits for room, once half of it is free: waking a thread costs."""
        if self._crowd:
            with self._lock:
                while self._crowd and len(self._queue) <= self.max_in_flight // 2:
                    self._crowd.popleft().release()

    def _collect_oldest(self) -> None:
        """The results of the oldest group; in a tab, where each may have to be awaited, of its first run."""
        group = self._window[0]
        while group and self._closed is None:
            work, ticket = group[0]
            self._held = work
            group.popleft()
            if not group:
                self._window.popleft()
            outputs: dict[str, Any] = {}
            try:
                outputs = self._session.collect(ticket)
                if self._closed is not None:
                    work.pending.resolve(Aborted(self._closed))
                    return
                applied = work.finish(outputs)
            except Exception as e:
                # Whether the device did this run and those behind it is unknown, so none is run a second time.
                work.fail(e)
            else:
                if not applied:
                    self._drop_window()
                    self._recover(work, outputs)
                    return
            if tab.IN_TAB:
                break
        self._begun = bool(group)

    def _recover(self, work: Work, outputs: dict[str, Any]) -> None:
        try:
            work.recover(self._session, outputs)
        except Exception as e:
            work.fail(e)

    def _submitted(self) -> list[Work]:
        return [*(work for group in self._window for work, _ in group), *self._taken]

    def _drop_window(self) -> None:
        """Forget the results of what was submitted behind a failed step, and queue it again in the same order."""
        dropped = self._submitted()
        self._window.clear()
        self._begun = False
        with self._lock:
            self._queue.extendleft(reversed(dropped))

    def _abort_all(self, result: Aborted | Failed) -> None:
        with self._lock:
            jobs = [*self._submitted(), *self._queue]
            self._queue.clear()
            self._let_in()
        self._window.clear()
        self._taken.clear()
        self._begun = False
        for job in jobs:
            job.pending.resolve(result)


async def _done(pending: Pending[Any]) -> None:
    """Until `pending` is resolved. It does not count as looked at."""
    future = tab.event_loop().create_future()
    pending.add_done_callback(lambda _: future.done() or future.set_result(None))
    await future
