"""Run one call at a time, and keep only the newest waiting one."""

from __future__ import annotations

import sys
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any, cast

from tracegrad.engine.pending import Pending
from tracegrad.engine.results import Aborted, Failed
from tracegrad.wrong_calls import check_takes, helpful


@dataclass(slots=True)
class _Flight:
    """The state of one `single_flight` function."""

    lock: Any = field(default_factory=threading.RLock)
    running: bool = False
    queued: tuple[Any, Pending[Any], Any] | None = None  # argument, its Pending, the caller's event loop


@helpful
def single_flight(fn: Callable[[Any], Any]) -> Callable[[Any], Pending[Any]]:
    """Return a function that runs one call of `fn` at a time and keeps at most one waiting: the newest.

    fn:       a function of one argument that returns a `Pending` or an awaitable.
    Returns:  a function of one argument that returns a `Pending` at once. If a newer call comes while a call is queued,
              the queued call resolves to `Aborted`, and the newer one takes its place. If `fn` raises, the call
              resolves to `Failed`.

    For example, a page that calls the model at every move of the mouse computes for the newest position only. A queued
    call starts on the event loop of its caller. Without an event loop, it starts on the thread that finished the
    previous call.

    >>> newest = tg.single_flight(lambda x: infer.run(x=x))    # infer: as in the example of tg.compile_forward
    >>> newest([[1.0, 2.0]]).result().output.shape
    (1, 1)
    """
    check_takes("single_flight", "fn", fn, ("argument",))
    flight = _Flight()
    name = getattr(fn, "__name__", "call")

    def call(argument: Any) -> Pending[Any]:
        mine: Pending[Any] = Pending(f"single_flight({name})")
        loop = _running_loop()
        displaced = None
        with flight.lock:
            start = not flight.running
            if start:
                flight.running = True
            else:
                displaced, flight.queued = flight.queued, (argument, mine, loop)
        if displaced is not None:
            displaced[1].resolve(Aborted("displaced by a newer call"))
        if start:
            _start(fn, flight, argument, mine)
        return mine

    return call


def _start(fn: Callable[[Any], Any], flight: _Flight, argument: Any, mine: Pending[Any]) -> None:
    """Run one call; when it is done, start the queued one."""

    def finish(result: Any) -> None:
        with flight.lock:
            following, flight.queued = flight.queued, None
            flight.running = following is not None
        mine.resolve(result)
        if following is None:
            return
        next_argument, next_pending, next_loop = following
        if next_loop is not None and next_loop is not _running_loop() and not next_loop.is_closed():
            next_loop.call_soon_threadsafe(_start, fn, flight, next_argument, next_pending)
        else:
            _start(fn, flight, next_argument, next_pending)

    try:
        under_way = fn(argument)
    except Exception as e:
        finish(Failed(e))
        return
    if isinstance(under_way, Pending):
        cast("Pending[Any]", under_way).add_done_callback(lambda p: finish(p.result()))
    elif isinstance(under_way, Awaitable):
        _follow(cast("Awaitable[Any]", under_way), finish)
    else:
        finish(under_way)


def _follow(awaitable: Awaitable[Any], finish: Callable[[Any], None]) -> None:
    """Call `finish` with the result of the awaitable, or with a Failed."""
    if _running_loop() is None:
        if hasattr(awaitable, "close"):
            cast("Any", awaitable).close()  # a coroutine that is never awaited would warn
        finish(Failed(RuntimeError("single_flight: an async function needs a running event loop")))
        return
    future = cast("Any", sys.modules["asyncio"]).ensure_future(awaitable)

    def done(f: Any) -> None:
        if f.cancelled():
            finish(Aborted("cancelled"))
        else:
            finish(f.result() if f.exception() is None else Failed(f.exception()))

    future.add_done_callback(done)


def _running_loop() -> Any:
    """Return the event loop that runs in this thread, or None."""
    asyncio = sys.modules.get("asyncio")
    if asyncio is None:
        return None
    try:
        return cast("Any", asyncio).get_running_loop()
    except RuntimeError:
        return None
