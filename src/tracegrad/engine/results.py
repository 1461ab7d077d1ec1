"""The results of a call: a Pending at once, and later one of Completed, Aborted, Failed."""

from __future__ import annotations

import contextlib
import math
import os
import sys
import threading
import time
import warnings
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar, cast

from tracegrad.arrays import handed_out, np
from tracegrad.errors import AbortedError, DeviceError, InputError, MissingKeyError, MissingNameError, TracegradError
from tracegrad.habits import PENDINGS
from tracegrad.refusals import NoArray, absent
from tracegrad.runtime import tab
from tracegrad.runtime.forks import Generation, forked_error

T = TypeVar("T")
OWN = ("loss", "aux", "captures", "losses", "step", "output", "result", "done")  # of a Pending
LOOK_SECONDS = 1.0  # between looks of a waiting thread, in case nothing wakes it
_SETTLING = threading.RLock()  # shared: a lock of its own would be half the cost of a Pending
if hasattr(os, "register_at_fork"):  # so that no child finds it held by a thread that it lacks
    os.register_at_fork(before=_SETTLING.acquire, after_in_parent=_SETTLING.release, after_in_child=_SETTLING.release)


class Captures(Mapping[str, Any]):
    """The arrays that `tg.capture(name, x)` kept, by name.

    >>> len(tg.Captures())
    0
    """

    __slots__ = ("_arrays",)

    def __init__(self, arrays: Mapping[str, Any] | None = None):
        self._arrays = dict(arrays or {})

    def __getitem__(self, name: str) -> Any:
        try:
            return self._arrays[name]
        except KeyError:
            known = ", ".join(self._arrays) or "none; tg.capture(name, x) in the loss or forward makes one"
            raise MissingKeyError.here(f"captures: there is no {name!r}; there are: {known}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"Captures({', '.join(f'{k}{list(v.shape)}' for k, v in self._arrays.items())})"

    def per_head(self, name: str) -> list[Any]:
        """Return one array per head of an attention map: `[B,H,T,T]` gives H of `[B,T,T]`, `[H,T,T]` gives H of
        `[T,T]`.

        Raises: KeyError for an unknown name; InputError for an array of another rank.
        """
        x = self[name]
        if x.ndim not in (3, 4):
            raise InputError(
                f"per_head({name!r}): an attention map is [B,H,T,T] or [H,T,T], got {x.ndim} dimensions {list(x.shape)}"
            )
        x = np.asarray(x)
        return [handed_out(x[..., h, :, :]) for h in range(x.shape[-3])]


class Aux(dict[str, Any]):
    """The extra outputs of a loss, by name. A dict whose KeyError lists the valid names."""

    def __missing__(self, name: str) -> Any:
        hint = ", ".join(self) or 'none; return (loss, {"name": tensor}) from the loss'
        raise MissingKeyError.here(f"aux: there is no {name!r}; there are: {hint}")


@dataclass(frozen=True, slots=True)
class Completed:
    """The result of finished work: a `CompletedStep` of a training, or a `CompletedRun` of a forward.

    Match them with `case Completed(loss=...)`, `case Completed(output=...)`, or `case Completed(value)`, where value is
    the loss of a step or the output of a run.

    >>> infer = tg.compile_forward(model=nn.Linear(2, 1), forward=lambda m, x: m(x), inputs={"x": (1, 2)}, seed=0)
    >>> type(infer.run(x=[[1.0, 2.0]]).result()).__name__
    'CompletedRun'
    """

    __match_args__: ClassVar[tuple[str, ...]] = ("value",)

    captures: Captures

    @property
    def value(self) -> Any:
        """The loss of a step, or the output of a run."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True, match_args=False)
class CompletedStep(Completed):
    """A training step that was applied.

    loss:     the loss before the update; of `run_steps`, that of the last step.
    aux:      the extra tensors of the loss function, as arrays.
    captures: see `Captures`.
    step:     the number of this step; the first is 1.
    losses:   float32 array, one element per step that the call ran.
    skipped:  how many steps of the call did not change parameters and optimizer state, because gradients overflowed in
              half precision; the loss scale was halved. 0 under precision="f32".
    """

    loss: float
    aux: Mapping[str, Any]
    step: int
    losses: Any
    skipped: int = 0

    @property
    def value(self) -> float:
        """The loss."""
        return self.loss


@dataclass(frozen=True, slots=True, match_args=False)
class CompletedRun(Completed):
    """A forward that was run. `output` is an array, or a tuple or dict of arrays, as the forward returns it."""

    output: Any

    @property
    def value(self) -> Any:
        """The output."""
        return self.output


@dataclass(frozen=True, slots=True)
class Aborted:
    """The result of work that was displaced before it was done and changed nothing.

    >>> tg.Aborted("closed").reason
    'closed'
    """

    reason: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The result of work that failed and changed nothing.

    >>> infer = tg.compile_forward(model=nn.Linear(2, 1), forward=lambda m, x: m(x), inputs={"x": (1, 2)}, seed=0)
    >>> result = infer.run(x=[[1.0]]).result()
    >>> type(result).__name__, type(result.error).__name__
    ('Failed', 'InputError')
    """

    error: BaseException


StepResult = CompletedStep | Aborted | Failed
RunResult = CompletedRun | Aborted | Failed


class Demand:
    """Tells whether the result of the latest call was requested."""

    __slots__ = ("asked",)

    def __init__(self) -> None:
        self.asked = False


def _let_go(lock: Any) -> int:
    """Release an RLock as often as this thread holds it, and return that number."""
    times = 0
    with contextlib.suppress(RuntimeError):  # this thread does not hold it
        while True:
            lock.release()
            times += 1
    return times


class Pending(NoArray, Generic[T]):
    """Work under way. `result()` or `await` returns Completed, Aborted or Failed; the shortcuts wait too.

    `loss`, `aux`, `captures`, `losses`, `step` and `output` wait, then raise the error of a `Failed`, and
    `tg.AbortedError` for an `Aborted`. A `Failed` that is never read is reported once through `warnings`.

    >>> infer = tg.compile_forward(model=nn.Linear(2, 1), forward=lambda m, x: m(x), inputs={"x": (1, 2)}, seed=0)
    >>> infer.run(x=[[1.0, 2.0]]).result(timeout=60).output.shape
    (1, 1)
    """

    instead: ClassVar[str] = "read .loss of a step, or .output of a run, which wait for the result"
    owner: Any = None  # the training or forward, kept alive until the result was read
    demand: Demand | None = None  # of the calls that include this one

    def __dir__(self) -> list[str]:
        """Return what a caller uses, for tab completion."""
        return [*OWN, "add_done_callback"]

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> Any:
            if name.startswith("__"):
                raise AttributeError(name)
            if name in OWN:  # a property whose error is an AttributeError
                return object.__getattribute__(self, name)
            raise absent(f"a Pending (the result of {'run' if self._what == 'run' else 'step'})", name, PENDINGS, OWN)

    def __init__(self, what: str = "call", worker: int | None = None, lock: Any = None):
        """lock: an RLock that the worker needs to resolve this."""
        self._what, self._lock = what, lock
        self._worker = worker  # the thread that resolves this: waiting there would block forever
        self._generation = Generation.number
        self._result: Any = None
        self._done = False
        self._unseen: _Unseen | None = None
        self._wanted = False
        self._callbacks: list[Callable[[Pending[T]], object]] = []

    def done(self) -> bool:
        """Return True once the result is there.

        >>> p = train.step(x=x, y=y)
        >>> r = p.result()
        >>> p.done()
        True
        """
        return self._done or self._left_behind()

    @property
    def wanted(self) -> bool:
        """True if a caller waits for the result, so it should be fetched before more work is queued."""
        return self._wanted

    def result(self, timeout: float | None = None) -> T:
        """Wait, and return Completed, Aborted or Failed.

        Raises: TimeoutError if `timeout` seconds pass first.

        >>> train.step(x=x, y=y).result().step
        1
        """
        if not self.done():
            if threading.get_ident() == self._worker:
                raise RuntimeError(
                    f"{self._what}: a callback runs on the thread that does the work, so a wait in the callback "
                    "would never "
                    "end; use add_done_callback on the new call instead"
                )
            self._wanted = True
            if not self._wait(timeout):
                raise TimeoutError(f"{self._what}: no result after {timeout} s")
        if self._unseen is not None:
            self._unseen.seen = True
        if self.demand is not None:
            self.demand.asked = True
        self.owner = None
        return self._result

    def _wait(self, timeout: float | None) -> bool:
        """Wait until the result is there, or `timeout` seconds have passed."""
        if tab.IN_TAB:
            with contextlib.suppress(TimeoutError):
                tab.wait(self, f"the result of {self._what}", timeout)
            return self._done
        # a signal handler waits on top of what it interrupted, which may hold locks that the worker needs
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
        """Fail this if the process was forked since, because the thread that resolves it is the parent's."""
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
        """Call `callback(self)` when the result is there: at once if it is, else on the library's worker thread.

        >>> p = train.step(x=x, y=y)
        >>> p.add_done_callback(lambda pending: None)
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
        """The loss of a step."""
        return self._of_kind("loss")

    @property
    def losses(self) -> Any:
        """The loss of every step of the call, as an array."""
        return self._of_kind("losses")

    @property
    def step(self) -> int:
        """The number of the step."""
        return self._of_kind("step")

    @property
    def aux(self) -> Mapping[str, Any]:
        """The extra outputs of the loss."""
        return self._of_kind("aux")

    @property
    def output(self) -> Any:
        """The output of a forward."""
        return self._of_kind("output")

    @property
    def captures(self) -> Captures:
        """The captured arrays."""
        return self._completed().captures

    def resolve(self, result: T) -> None:
        """Set the result, once; later calls change nothing. For the code that does the work."""
        with _SETTLING:
            if not self._done:
                self._unseen = _Unseen(self._what, result.error) if isinstance(result, Failed) else None
                self._result, self._done = result, True
        while self._callbacks:  # includes callbacks that an earlier, interrupted call left
            callback = self._callbacks.pop(0)
            if tab.IN_TAB:  # on a separate stack, so that it can wait for work that this one continues
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
    """Warns of a Failed that was never read. Only these have a finalizer, because an interrupt could be lost in it."""

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


def failure(error: BaseException, what: str) -> Failed:
    """Return `error` as a Failed. An error that is not tracegrad's becomes the cause of a DeviceError."""
    if isinstance(error, TracegradError):
        return Failed(error)
    wrapped = DeviceError(f"{what}: the work could not be executed: {type(error).__name__}: {error}")
    wrapped.__cause__ = error
    return Failed(wrapped)


def _wake(loop: Any, future: Any) -> None:
    def finish() -> None:
        if not future.done():
            future.set_result(None)

    try:
        loop.call_soon_threadsafe(finish)
    except RuntimeError:  # the loop was closed during the work, so nothing waits any more
        if not loop.is_closed():
            raise


def output_of(outputs: Mapping[str, Any], structure: Any) -> Any:
    """Return the result in the forward's form: an array, or a tuple or dict of arrays, as `Built.structure` tells."""
    if structure is None:
        return handed_out(outputs["output"])
    if isinstance(structure, tuple):
        return tuple(handed_out(outputs[name]) for name in cast("tuple[str, ...]", structure))
    return {key: handed_out(outputs[name]) for key, name in cast("dict[Any, str]", structure).items()}
