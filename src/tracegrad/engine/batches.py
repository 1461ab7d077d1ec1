"""What a worker's queue holds, and what it makes of it: a run of a program, a call of a function, a batch under way."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tracegrad.engine.results import Aborted, Failed, Pending
from tracegrad.errors import AbortedError
from tracegrad.runtime.base import Batch, Session
from tracegrad.tuning import QUEUED_BYTES


class Runnable(Protocol):
    """What a run is a run of: a program, and how many of its runs one batch should have."""

    at_once: int
    commits: bool  # a run changes what it reads itself: it cannot be run again, behind a step that was not applied


class Run(Protocol):
    """One run of a program, as the worker sees it. Every method runs on the worker's thread."""

    pending: Pending[Any]

    @property
    def checked(self) -> object:
        """Not None behind `begin`: nothing may follow before `finish`, which compares what the run has left."""
        ...

    @property
    def of(self) -> Runnable:
        """Runs of the same one share batches."""
        ...

    def begin(self, session: Session) -> tuple[int, Mapping[str, Any]] | None:
        """The program's handle, and its inputs; None to skip this run. Called again when the run comes again."""
        ...

    def finish(self, session: Session, outputs: dict[str, Any]) -> bool:
        """Take the outputs. False: the run changed nothing, and nor did those behind it."""
        ...

    def recover(self, session: Session, outputs: dict[str, Any]) -> None:
        """After `finish` gave False, and the runs behind are queued again: make the session ready for them."""
        ...

    def fail(self, error: BaseException) -> None:
        """The run raised."""
        ...


class Task(NamedTuple):
    """A function to run on the worker's thread, alone."""

    fn: Callable[[Session], Any]
    pending: Pending[Any]
    urgent: bool


class UnderWay(NamedTuple):
    """When a batch began, its program, the runs in it, and the session's part."""

    began: float
    handle: int
    runs: Sequence[Run]
    batch: Batch


def queued(session: Session, most: int, inputs: Mapping[str, Any]) -> int:
    """How many runs with such inputs may wait: `most`, or what QUEUED_BYTES hold if the session computes at once."""
    size = sum(getattr(x, "nbytes", 0) for x in inputs.values()) if session.ahead == 1 else 0
    return min(most, max(1, QUEUED_BYTES // max(1, size)))


def waited(pending: Pending[Any]) -> Any:
    """The result of `pending`. Raises the error of a Failed, and AbortedError for an Aborted."""
    result = pending.result()
    if isinstance(result, Failed):
        raise result.error
    if isinstance(result, Aborted):
        raise AbortedError(result.reason)
    return result
