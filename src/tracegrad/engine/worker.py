"""The thread that owns a Session: it runs batches, calls functions between them, and repeats runs after failures."""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from typing import Any, TypeVar, cast

from tracegrad.engine.drives import TabDrive, ThreadDrive
from tracegrad.engine.pending import Pending
from tracegrad.engine.results import Aborted, Failed, failure
from tracegrad.engine.run_program import Run, Task, UnderWay, queued, waited
from tracegrad.errors import AbortedError, DeviceError
from tracegrad.runtime import tab
from tracegrad.runtime.base import Session
from tracegrad.runtime.process import Generation, forked_error
from tracegrad.tuning import MAX_IN_FLIGHT

T = TypeVar("T")
AnyLock = TypeVar("AnyLock")


class Worker:
    """Owns a session on a thread of its own; in a browser's tab, which has no threads, in turns of the event loop.

    The worker alone decides the batches: successive runs of one program become a batch that takes about
    `session.batch_seconds`. Up to `session.ahead` batches are under way; then the outputs of the first are read. A step
    that was not applied leaves the device halted: later runs are queued again, in order. A function passed to `call`
    runs after all work queued before it, and before all work queued after it.
    """

    def __init__(self, factory: Callable[[], Session], max_in_flight: int = MAX_IN_FLIGHT):
        """Make the session on the worker's thread, while the caller continues; see `opened`."""
        self.max_in_flight = self._least_queued = max_in_flight
        self._factory, self._generation = factory, Generation.number
        self._lock = threading.RLock()  # reentrant, because garbage collection can close this while the lock is held
        self._queue: deque[Run | Task] = deque()
        self._window: deque[UnderWay] = deque()  # used by the worker only
        self._landed = 0.0  # when the last batch's outputs arrived
        self._taken: list[Run] = []  # out of the queue, and not yet in a batch
        self._held: Run | Task | None = None  # the thread's current item, so that none is lost if the thread is killed
        self._closed: str | None = None
        self._cause: BaseException | None = None  # the error that ended the thread, unless `close` ended it
        self.limits: Any = None  # of the device, once a profile has measured them
        self._started: Pending[Any] = Pending("opening the device")
        drive = TabDrive if tab.IN_TAB else ThreadDrive
        self._drive = drive(self._main(), self._lock, self._rests, self._died)
        self.ident = self._drive.start()

    def opened(self) -> Worker:
        """Return this worker, once it has its session. Raise the error of `factory`."""
        waited(self._started)
        return self

    @property
    def closed(self) -> str | None:
        """The reason why no more work is accepted; None while it is."""
        return self._closed

    @property
    def refusal(self) -> Aborted | Failed | None:
        """Return the result of new work that is refused; None while work is accepted."""
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

    def enqueue(self, runs: Sequence[Run], pending: Pending[Any]) -> None:
        """Queue the runs of one call, which resolve `pending`; wait first while `max_in_flight` or more are queued."""
        if self._full() and not self.forked:
            self._drive.await_room(self._full, lambda: [x.pending for x in (*self._begun(), *self._queue)])
        self._put(runs, pending)

    @property
    def forked(self) -> bool:
        """Return whether this is a forked child, without the worker's thread: nothing would resolve a Pending."""
        return self._generation != Generation.number

    def pending(self, what: str) -> Pending[Any]:
        """Return a new Pending, which this worker resolves."""
        return Pending(what, self.ident, self._lock)

    def own(self, lock: AnyLock) -> AnyLock:
        """Return `lock` for `with`. Raise DeviceError in a forked child, where a thread of the parent can hold it."""
        if self.forked:
            raise forked_error()
        return lock

    def _put(self, work: Sequence[Run | Task], pending: Pending[Any], urgent: bool = False) -> None:
        """Queue the work that resolves `pending`. If it is refused, resolve `pending` with the reason."""
        if self.forked:
            pending.resolve(Failed(forked_error()))
            return
        with self._lock:
            if self._closed is None:
                self._wake()  # first: an interrupt between the two then queues nothing
                (self._queue.extendleft if urgent else self._queue.extend)(work)
                self._wake()  # again: a signal handler that waited in between let the thread sleep
                return
        pending.resolve(self.refusal)

    def _wake(self) -> None:
        """Wake the thread: there is, or will be, something in the queue. Called with the lock held."""
        if self._drive.asleep and self._session.door is not None:
            self._session.door.shut()  # from now on, work on any thread comes after the work to be queued
        self._drive.wake()

    def _full(self) -> bool:
        """Return whether callers should wait before they queue more."""
        return len(self._queue) >= self.max_in_flight and self._closed is None

    def _roomy(self) -> bool:
        """Return whether half of the queue is free: waking a thread is expensive."""
        return len(self._queue) <= self.max_in_flight // 2

    def call(self, fn: Callable[[Session], T], urgent: bool = False) -> T:
        """Run `fn(session)` on the worker's thread and wait for it; `urgent` work goes before everything queued.

        Raises: any error of `fn`; AbortedError if the worker is closed.
        """
        return cast("tuple[T]", waited(self.post(fn, urgent)))[0]

    def begin(self, fn: Callable[[Session], Any]) -> None:
        """Do the same as `call`, before all other work. If a tab cannot wait, an error closes the worker."""
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
        """Do the same as `call`, without waiting; the Pending resolves to (result,), Failed or Aborted."""
        pending: Pending[Any] = self.pending("device call")
        self._put([Task(fn, pending, urgent)], pending, urgent)
        return pending

    def swap(self, load: Callable[[Session], T], reason: str) -> T:
        """Change to a new session once `load(session)` has succeeded on it; all work under way is Aborted.

        If anything raises, the old session stays and its work continues.
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
            with contextlib.suppress(Exception):  # the new session is in use, even if closing the old one fails
                old.close()
            return out

        return self.call(switch, urgent=True)

    def close(self, reason: str = "closed") -> None:
        """Abort work under way, close the session, and end the thread. A second call does nothing."""
        if self.forked:
            return  # the thread and its locks belong to the parent
        with self._lock:
            if self._closed is None:
                self._closed = reason
            self._wake()
        with contextlib.suppress(AttributeError):  # if there is no session yet
            self._session.interrupt()
        self._drive.end()

    # --- on the worker's thread ---

    def _rests(self) -> bool:
        """Return whether there is nothing to do; then other threads can run programs until `_wake`. Needs the lock."""
        idle = not self._queue and not self._window and self._closed is None
        if idle and self._session.door is not None:
            self._session.door.open()
        return idle

    def _main(self) -> Generator[Any, None, None]:
        """Do all the work. Yield what to wait for before continuing: a batch, or None for new work."""
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
                if self._turn():
                    continue
                oldest = self._window[0] if self._window else None
                yield oldest and oldest.batch
                if oldest is not None and self._closed is None:
                    self._read(oldest)
        except GeneratorExit:
            self._closed = self._closed or "closed"
        except BaseException as e:
            self._died(e)
        self._end()

    def _died(self, e: BaseException) -> None:
        """Take the error that ended the thread: waiting and later calls get it."""
        if self._closed is None:
            self._cause, said = e, f"{type(e).__name__}: {e}".removesuffix(": ")
            self._closed = (
                f"broken: its worker thread ended with {said}. Parameters and optimizer state on the device are lost; "
                "compile again and load the last checkpoint"
            )
        self._end()

    def _end(self) -> None:
        """Refuse all queued work, and free the device."""
        refusal = self.refusal or Aborted("closed")
        self._started.resolve(refusal)
        self._abort_all(refusal)
        if self._held is not None:
            self._held.pending.resolve(refusal)
        with contextlib.suppress(Exception):  # the device can be lost, or was never opened; callers know by now
            self._session.close()

    def _turn(self) -> bool:
        """Run one task, or begin one batch. Return False if there is nothing to do except wait."""
        with self._lock:
            first = self._held = self._queue[0] if self._queue else None
            if isinstance(first, Task):
                if self._window and not first.urgent:
                    return False
                self._queue.popleft()
            elif first is not None:
                room = self._room_for(first)
                while room > len(self._taken) and self._queue:
                    run = self._queue[0]
                    if isinstance(run, Task) or run.of is not first.of:
                        break
                    self._taken.append(run)
                    self._queue.popleft()
        if isinstance(first, Task):
            self._run_task(first)
        elif self._taken:
            self._run_batch()
        else:
            return False
        self._drive.let_in(self._roomy)
        return True

    def _room_for(self, first: Run) -> int:
        """Return how many runs to take for a batch now: 0 if outputs should be read first."""
        at_once = first.of.at_once
        if self._window:
            oldest, latest = self._window[0].runs[0].pending, self._window[-1].runs[0]
            full = len(self._window) >= self._session.ahead or latest.checked is not None
            if full or (oldest.wanted and oldest is not first.pending):
                return 0
            if first.of.commits and latest.of is not first.of:
                return 0
            if len(self._queue) < at_once // 2 and not self._queue[-1].pending.wanted:
                return 0  # a batch costs as much as several short runs: more will come while one is under way
        return at_once

    def _run_task(self, task: Task) -> None:
        try:
            result: Any = (task.fn(self._session),)
        except (Exception, KeyboardInterrupt) as e:
            result = Failed(e)  # raised unchanged in the caller's thread
        task.pending.resolve(result)

    def _run_batch(self) -> None:
        """Pass the taken runs to the session."""
        session, handle = self._session, 0
        runs: list[Run] = []
        inputs: list[Mapping[str, Any]] = []
        for k, run in enumerate(self._taken):
            try:
                begun = run.begin(session)
            except Exception as e:
                self._fail([run], e)
                continue
            if begun is not None:
                handle, given = begun
                runs.append(run)
                inputs.append(given)
                if run.checked is not None:
                    with self._lock:
                        self._queue.extendleft(reversed(self._taken[k + 1 :]))
                    break
        if runs:
            self.max_in_flight = max(queued(session, self._least_queued, inputs[0]), runs[0].of.at_once * session.ahead)
            try:
                self._window.append(UnderWay(time.perf_counter(), handle, runs, session.run(handle, inputs)))
            except Exception as e:
                self._fail(reversed(runs), e)  # the last one first, because each gives its number back
        self._taken = []

    def _fail(self, runs: Iterable[Run], error: Exception) -> None:
        for run in runs:
            if self._closed is None:
                run.fail(error)
            else:  # `close` interrupted the session
                run.pending.resolve(Aborted(self._closed))

    def _read(self, oldest: UnderWay) -> None:
        """Take the outputs of the oldest batch."""
        runs, session = oldest.runs, self._session
        try:
            results = oldest.batch.outputs()
            most = session.capacity(oldest.handle) if session.batch_seconds else 1
        except Exception as e:
            # It is unknown whether the device did these runs and later ones, so none is repeated.
            self._fail(runs, e)
            self._window.popleft()
            return
        if session.batch_seconds:
            now = time.perf_counter()
            seconds = max(now - max(oldest.began, self._landed), 1e-6) / len(runs)
            self._landed = now
            runs[0].of.at_once = max(1, min(most, int(session.batch_seconds / seconds)))
        for k, (run, outputs) in enumerate(zip(runs, results)):
            if self._closed is not None:
                return  # `_end` resolves the rest
            try:
                applied = run.finish(session, outputs)
            except Exception as e:
                run.fail(e)
                continue
            if not applied:
                self._held = run
                self._replay(runs[k + 1 :])
                try:
                    run.recover(session, outputs)
                except Exception as e:
                    run.fail(e)
                return
        self._window.popleft()

    def _begun(self) -> list[Run]:
        return [*(run for under_way in self._window for run in under_way.runs), *self._taken]

    def _replay(self, behind: Sequence[Run]) -> None:
        """Queue again, in order, the runs after one that was not applied: the rest of its batch, and later batches."""
        dropped = [*behind, *(run for under_way in list(self._window)[1:] for run in under_way.runs)]
        with self._lock:
            self._queue.extendleft(reversed(dropped))
        self._window.clear()

    def _abort_all(self, result: Aborted | Failed) -> None:
        with self._lock:
            waiting = [*self._begun(), *self._queue]
            self._queue.clear()
            self._drive.let_in(self._roomy)
        self._window.clear()
        self._taken = []
        for x in waiting:
            x.pending.resolve(result)
