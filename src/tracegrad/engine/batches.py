"""The items of a worker's queue: runs of programs, calls of functions, and batches that were submitted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from tracegrad.engine.pending import Pending
from tracegrad.engine.results import Aborted, Failed
from tracegrad.engine.run_program import RunProgram
from tracegrad.errors import AbortedError
from tracegrad.runtime.base import Batch, Session
from tracegrad.tuning import QUEUED_BYTES


class Run(Protocol):
    """One run of a program, from the worker's view. Every method runs on the worker's thread."""

    pending: Pending[Any]

    @property
    def checked(self) -> object:
        """If not None after `begin`, no other run is submitted before `finish`, which compares the results."""
        ...

    @property
    def of(self) -> RunProgram:
        """The program to run. Runs of the same program can share a batch."""
        ...

    def begin(self, session: Session) -> tuple[int, Mapping[str, Any]] | None:
        """Return the program's handle and its inputs; None to skip this run. Called again if the run is repeated."""
        ...

    def finish(self, session: Session, outputs: dict[str, Any]) -> bool:
        """Take the outputs. Return False if the run was not applied, and so no later run of the batch."""
        ...

    def recover(self, session: Session, outputs: dict[str, Any]) -> None:
        """Prepare the session for later runs, after `finish` gave False and they were queued again."""
        ...

    def fail(self, error: BaseException) -> None:
        """Take the error that the run raised."""
        ...


class Task(NamedTuple):
    """A function to run on the worker's thread, alone."""

    fn: Callable[[Session], Any]
    pending: Pending[Any]
    urgent: bool


class UnderWay(NamedTuple):
    """A batch that was submitted: when it began, its program, its runs, and the session's handle of it."""

    began: float
    handle: int
    runs: Sequence[Run]
    batch: Batch


def queued(session: Session, most: int, inputs: Mapping[str, Any]) -> int:
    """Return how many such runs can wait: `most`, or as many as fit QUEUED_BYTES if the session runs at once."""
    size = sum(getattr(x, "nbytes", 0) for x in inputs.values()) if session.ahead == 1 else 0
    return min(most, max(1, QUEUED_BYTES // max(1, size)))


def waited(pending: Pending[Any]) -> Any:
    """Return the result of `pending`. Raise the error of a Failed, and AbortedError for an Aborted."""
    result = pending.result()
    if isinstance(result, Failed):
        raise result.error
    if isinstance(result, Aborted):
        raise AbortedError(result.reason)
    return result
