"""Pending, the future that `step` and `run` return at once, and the ways to wait for its result."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Mapping
from numbers import Real
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from tracegrad.engine.results import Aborted, Captures, CompletedStep, Failed
from tracegrad.errors import AbortedError, InputError, MissingNameError, shortened
from tracegrad.refusals import NoArray, absent
from tracegrad.runtime import tab
from tracegrad.runtime.process import Generation, forked_error

T = TypeVar("T")
OWN = ("loss", "aux", "captures", "losses", "step", "skipped", "output", "result", "done")  # of a Pending
LOOK_SECONDS = 1.0  # between looks of a waiting thread, in case nothing wakes it
_SETTLING = threading.RLock()  # shared: a lock of its own would be half the cost of a Pending
if hasattr(os, "register_at_fork"):  # so that no child finds it held by a thread that it lacks
    os.register_at_fork(before=_SETTLING.acquire, after_in_parent=_SETTLING.release, after_in_child=_SETTLING.release)


def _let_go(lock: Any) -> int:
    """Release an RLock as often as this thread holds it, and return that number."""
    times = 0
    with contextlib.suppress(RuntimeError):  # this thread does not hold it
        while True:
            lock.release()
            times += 1
    return times


class Pending(NoArray, Generic[T]):
    """The future that `step` and `run` return: `result()` or `await` waits for its `Completed`, `Aborted` or `Failed`.

    That of a step is a `CompletedStep`, a kind of `Completed`. The properties `loss`, `losses`, `step`, `skipped`,
    `aux`, `output` and `captures` wait too, and return that part of a `Completed`. For a `Failed` they raise its
    `error`, and for an `Aborted` they raise `tg.AbortedError`. The library warns if you never read a `Failed`. `result`
    does not raise the error, unlike that of concurrent.futures.Future.

    >>> pending = train.step(x=x, y=y)    # train, x, y: as in the example of tg.compile, with a batch x, y
    >>> pending.step
    1
    >>> type(pending.result()).__name__
    'CompletedStep'
    """

    instead: ClassVar[str] = "read .loss of a step, or .output of a run, which wait for the result"
    owner: Any = None  # the training or forward, kept alive until the result was read, and told that it was

    def __dir__(self) -> list[str]:
        """Return what a caller uses, for tab completion."""
        return [*OWN, "add_done_callback"]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            if name in OWN:  # a property whose error is an AttributeError
                return object.__getattribute__(self, name)
            what = f"a Pending (the result of {'run' if self._what == 'run' else 'step'})"
            raise absent(what, name, OWN, "pendings", "objects")

    def __init__(self, what: str = "call", worker: int | None = None, lock: Any = None):
        """Make a pending that is not done; `resolve` ends it.

        what:   a word for messages, such as "step".
        worker: the identifier of the thread that resolves this; `result` raises RuntimeError there.
        lock:   an RLock that the worker needs to resolve this.
        """
        self._what, self._lock = what, lock
        self._worker = worker  # the thread that resolves this: waiting there would block forever
        self._generation = Generation.number
        self._result: Any = None
        self._done = False
        self._unseen: _Unseen | None = None
        self._wanted = False
        self._callbacks: list[Callable[[Pending[T]], object]] = []

    def done(self) -> bool:
        """Return whether the work has ended, without waiting.

        >>> p = train.step(x=x, y=y)
        >>> r = p.result()
        >>> p.done()
        True
        """
        return self._done or self._left_behind()

    @property
    def wanted(self) -> bool:
        """True once a caller waits for the result. The library then copies it from the device before further work."""
        return self._wanted

    def result(self, timeout: float | None = None) -> T:
        """Wait, and return `Completed`, `Aborted` or `Failed`. Does not raise the error of a `Failed`.

        timeout: the longest wait, in seconds; None: without a limit.
        Raises:  TimeoutError after `timeout` seconds; InputError if `timeout` is not a number; RuntimeError in a
                 callback, where waiting for unfinished work would never end.

        >>> train.step(x=x, y=y).result().step
        1
        """
        if timeout is not None and not (isinstance(timeout, Real) and timeout == timeout):
            raise InputError.here(f"result: timeout must be a number of seconds or None, got {timeout!r}")
        if not self.done():
            if threading.get_ident() == self._worker:
                raise RuntimeError(
                    f"{self._what}: a callback runs on the thread that does the work, so a wait in the callback would "
                    "never end; use add_done_callback on the new call instead"
                )
            self._wanted = True
            if not self._wait(timeout):
                raise TimeoutError(f"{self._what}: no result after {timeout} s")
        if self._unseen is not None:
            self._unseen.seen = True
        owner, self.owner = self.owner, None
        if owner is not None:
            owner.__dict__["waited"] = True  # quicker than __setattr__, which looks at the name
        return self._result

    def _wait(self, timeout: float | None) -> bool:
        """Wait until the result is there, or `timeout` seconds have passed."""
        if tab.IN_TAB:
            with contextlib.suppress(TimeoutError):
                tab.wait(self, f"the result of {self._what}", timeout)
            return self._done
        # a signal handler can wait here, while the code that it interrupted holds locks that the worker needs
        held = [(lock, _let_go(lock)) for lock in (self._lock, _SETTLING) if lock is not None]
        try:
            return self._wait_for_worker(timeout)
        finally:
            for lock, times in held:
                for _ in range(times):
                    lock.acquire()

    def _wait_for_worker(self, timeout: float | None) -> bool:
        ready = threading.Lock()  # cheaper than an Event, and enough for one waiter
        ready.acquire()
        callback: Callable[[Pending[T]], object] = lambda _: ready.release()
        self.add_done_callback(callback)
        end = math.inf if timeout is None else time.monotonic() + timeout
        try:
            while not self._done:  # a callback is lost if the thread that calls it is killed, so check now and then
                left = min(end - time.monotonic(), LOOK_SECONDS)
                if not ready.acquire(timeout=max(left, 0)) and time.monotonic() >= end:
                    return self._done
            return True
        finally:
            self._forget(callback)

    def _left_behind(self) -> bool:
        """Fail this in a forked child, because the thread that would resolve it belongs to the parent."""
        if self._generation == Generation.number:
            return False
        self._callbacks = []  # the parent's: they run there
        self.resolve(cast("T", Failed(forked_error())))
        return True

    def _forget(self, callback: Callable[[Pending[T]], object]) -> None:
        """Remove a callback, because its waiter was interrupted or timed out."""
        if not self._done:
            with _SETTLING, contextlib.suppress(ValueError):
                self._callbacks.remove(callback)

    def add_done_callback(self, callback: Callable[[Pending[T]], object]) -> None:
        """Call `callback(self)` when the work ends, on the library's worker thread.

        If the work has ended already, the callback runs at once, in this thread.
        As concurrent.futures.Future.add_done_callback.

        >>> p = train.step(x=x, y=y)
        >>> r = p.result()
        >>> p.add_done_callback(lambda pending: print("step", pending.step))
        step 1
        """
        self.done()  # a forked child gets its result now
        with _SETTLING:
            if not self._done:
                self._callbacks.append(callback)
                return
        self._call(callback)

    def __await__(self) -> Generator[Any, None, T]:
        if not self.done():
            loop = tab.event_loop()
            future = loop.create_future()
            self._wanted = True
            callback: Callable[[Pending[T]], object] = lambda _: _wake(loop, future)
            self.add_done_callback(callback)
            try:
                yield from future
            finally:
                self._forget(callback)
        return self.result()

    @property
    def loss(self) -> float:
        """The step's loss, computed before its update, as a float. For `run_steps`, the loss of the last step.

        Waits for the step. Raises AbortedError if the step was aborted, and the step's error if it failed.
        """
        return self._of_kind("loss")

    @property
    def losses(self) -> Any:
        """The losses of all steps of the call, a NumPy array float32[number of steps]. Waits and raises as `loss`."""
        return self._of_kind("losses")

    @property
    def step(self) -> int:
        """The index of the step, from 1. For `run_steps`, the index of the last step. Waits, and raises as `loss`."""
        return self._of_kind("step")

    @property
    def aux(self) -> Mapping[str, Any]:
        """The tensors that the loss returned beside its value, as NumPy arrays by name.

        For `run_steps`, they are from the last step. Waits and raises as `loss`.
        """
        return self._of_kind("aux")

    @property
    def skipped(self) -> int:
        """The number of steps that overflowed in half precision, and so changed nothing. Waits and raises as `loss`."""
        return self._of_kind("skipped")

    @property
    def output(self) -> Any:
        """The forward's result, in the form that it returns: a NumPy array, or a tuple or dict of them.

        Waits for the run. Raises AbortedError if the run was aborted, and the run's error if it failed.
        """
        return self._of_kind("output")

    @property
    def captures(self) -> Captures:
        """The NumPy arrays that `tg.capture(name, x)` kept in this step or run, by name.

        For `run_steps`, they are from the last step. Waits and raises as `loss`.
        """
        return self._completed().captures

    def resolve(self, result: T) -> None:
        """Set the result, for code that makes a `Pending` of its own. Only the first call counts.

        result: a `Completed`, `Aborted` or `Failed`.

        >>> p = tg.Pending()
        >>> p.resolve(tg.Aborted("cancelled"))
        >>> p.result()
        Aborted(reason='cancelled')
        """
        with _SETTLING:
            if not self._done:
                self._unseen = _Unseen(self._what, result.error) if isinstance(result, Failed) else None
                self._result, self._done = result, True
        while self._callbacks:  # includes callbacks that an earlier, interrupted call left
            callback = self._callbacks.pop(0)
            if tab.IN_TAB:  # on a separate stack, so that it can wait for work that goes on after this call
                tab.event_loop().call_soon(self._call, callback)
            else:
                self._call(callback)

    def _call(self, callback: Callable[[Pending[T]], object]) -> None:
        try:
            callback(self)
        except (Exception, SystemExit) as e:  # the worker must survive errors of a user's callback
            warnings.warn(f"{self._what}: a done callback raised {e!r}", RuntimeWarning, stacklevel=2)

    def _completed(self) -> Any:
        result = self.result()
        if isinstance(result, Failed):
            with shortened:
                raise result.error
        if isinstance(result, Aborted):
            hint = "; work on a training inside its with block, before close()" if "closed" in result.reason else ""
            raise AbortedError.here(f"{self._what} was aborted: {result.reason}{hint}")
        return result

    def _of_kind(self, name: str) -> Any:
        result = self._completed()
        if not hasattr(result, name):
            has = "loss, aux and captures" if isinstance(result, CompletedStep) else "output and captures"
            raise MissingNameError.here(f"the result of {self._what} has no {name}; it has {has}")
        return getattr(result, name)

    def __repr__(self) -> str:
        result = self._result
        found = f"{type(result).__name__}, loss {result.loss:.6g}" if isinstance(result, CompletedStep) else None
        return f"<Pending {self._what}: {found or type(result).__name__ if self._done else 'under way'}>"


class _Unseen:
    """Warns of a Failed that was never read. Other results have no finalizer, which could lose an interrupt."""

    __slots__ = ("error", "seen", "what")

    def __init__(self, what: str, error: BaseException):
        self.what, self.error, self.seen = what, error, False

    def __del__(self) -> None:
        if not self.seen and not sys.is_finalizing():
            warnings.warn(
                f"{self.what} failed and its result was never read: {type(self.error).__name__}: {self.error}",
                RuntimeWarning,
                stacklevel=1,
            )


def resolved(result: T, what: str = "call") -> Pending[T]:
    """Return a Pending that is done already."""
    p: Pending[T] = Pending(what)
    p.resolve(result)
    return p


def _wake(loop: Any, future: Any) -> None:
    def finish() -> None:
        if not future.done():
            future.set_result(None)

    try:
        loop.call_soon_threadsafe(finish)
    except RuntimeError:  # the loop was closed during the work, so nothing waits any more
        if not loop.is_closed():
            raise
