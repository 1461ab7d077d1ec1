"""Record eager ops for `backward`, and walk back over the records."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable
from contextvars import ContextVar, Token
from heapq import heappop, heappush
from types import TracebackType
from typing import Any, Protocol, TypeVar

from tracegrad.arrays import Array
from tracegrad.errors import TraceError, TracegradError
from tracegrad.ir import ambient
from tracegrad.refusals import shown

F = TypeVar("F", bound=Callable[..., Any])

recording: ContextVar[bool] = ContextVar("tracegrad_recording", default=True)
age = itertools.count(0, -1).__next__  # of records: the latest has the lowest


class Leaf(Protocol):
    """A tensor that gets a gradient."""

    def accumulate(self, grad: Array) -> None:
        """Add a cotangent to the gradient."""
        ...


class Record:
    """One op that was run: its pullback, the pullback's inputs, and the destinations of its cotangents.

    A record refers to no tensor except leaves that get gradients. It lives as long as a tensor that depends on it.
    """

    __slots__ = ("age", "pullback", "retained", "saved", "sources")

    age: int
    pullback: Callable[[Array, tuple[Array, ...]], tuple[Array, ...]]
    retained: Callable[[], Leaf | None] | None  # weakly, the tensor that keeps its gradient too
    saved: tuple[Array, ...]
    sources: tuple[Record | Leaf, ...]


def backward(root: Record | Leaf, ct: Array) -> None:
    """Add to each leaf behind `root` its gradient, where `ct` is the gradient of `root`."""
    if not isinstance(root, Record):
        root.accumulate(ct)
        return
    cts = {root: ct}
    waiting = [(root.age, root)]  # the latest comes first, because readers of a record's result are newer
    while waiting:
        record = heappop(waiting)[1]
        ct = cts.pop(record)
        if record.retained is not None:
            tensor = record.retained()
            if tensor is not None:
                tensor.accumulate(ct)
        for source, g in zip(record.sources, record.pullback(ct, record.saved)):
            if not isinstance(source, Record):
                source.accumulate(g)
            elif source in cts:
                cts[source] = cts[source] + g
            else:
                cts[source] = g
                heappush(waiting, (source.age, source))


class no_grad:  # noqa: N801 as in PyTorch
    """Run ops without recording them for `backward`: `with tg.no_grad(): ...`, `@tg.no_grad()`, or `tg.no_grad(fn)`.

    Results require no gradient. As torch.no_grad, except that `tg.no_grad(fn)` calls `fn()` at once and returns its
    result. So decorate with `@tg.no_grad()`, not with `@tg.no_grad`.
    Raises TracegradError for an async function or a generator, which would run after recording is on again.
    Raises TraceError in a traced loss or forward: write `tg.stop_gradient(x)` there.

    >>> x = tg.parameter([1.0])
    >>> with tg.no_grad():
    ...     y = x * 2
    >>> y.requires_grad
    False
    """

    _token: Token[bool] | None = None

    def __new__(cls, fn: Callable[[], Any] | None = None) -> Any:
        if fn is None:
            return object.__new__(cls)
        _refuse_late(fn)
        _refuse_arguments(fn)
        with cls():
            result = fn()
        if inspect.isawaitable(result):
            if inspect.iscoroutine(result):
                result.close()
            raise TracegradError.here(LATE)
        return result

    def __call__(self, fn: F) -> F:
        """Decorate `fn`: its calls run without recording."""
        _refuse_late(fn)

        @functools.wraps(fn)
        def quiet(*args: Any, **kwargs: Any) -> Any:
            with no_grad():
                return fn(*args, **kwargs)

        return quiet  # pyright: ignore[reportReturnType]

    def __enter__(self) -> None:
        if self._token is not None:
            raise TracegradError.here("no_grad: this one is in use already; make a new one for each block")
        if ambient.active() is not None:
            raise TraceError.here(
                "no_grad: it works on eager tensors only, not in a traced loss or forward: write "
                "tg.stop_gradient(x) to stop the gradient of x"
            )
        self._token = recording.set(False)

    def __exit__(self, kind: type[BaseException] | None, e: BaseException | None, tb: TracebackType | None) -> None:
        assert self._token is not None
        recording.reset(self._token)
        self._token = None


LATE = "no_grad: an async function or a generator runs after no_grad has ended; write `with tg.no_grad():` inside it"


def _refuse_late(fn: Any) -> None:
    if not callable(fn):
        raise TracegradError.here(f"no_grad takes a function without arguments, or nothing; got {shown(fn)}")
    if inspect.iscoroutinefunction(fn) or inspect.isasyncgenfunction(fn) or inspect.isgeneratorfunction(fn):
        raise TracegradError.here(LATE)


def _refuse_arguments(fn: Callable[..., Any]) -> None:
    try:
        signature = inspect.signature(fn)
    except ValueError:  # some builtins have no signature
        return
    try:
        signature.bind()
    except TypeError as e:
        raise TracegradError.here(
            f"no_grad: it calls its function at once, with no arguments, and {getattr(fn, '__name__', fn)} is "
            f"{e}; to decorate a function write @tg.no_grad()"
        ) from None
