"""RunProgram: a compiled program with the state that the worker needs to run it, and the items of its queue."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from tracegrad.arrays import np
from tracegrad.compiler.build import Built, ProgramSource, at_sizes
from tracegrad.compiler.dispatches import blamed_lines
from tracegrad.compiler.inputtypes import Sizes
from tracegrad.dtypes import Shape
from tracegrad.engine.inputs import blank
from tracegrad.engine.pending import Pending
from tracegrad.engine.results import Aborted, Failed
from tracegrad.errors import AbortedError
from tracegrad.hypers import PREFIX
from tracegrad.ir.graph import Graph
from tracegrad.program import Field, Program
from tracegrad.runtime.base import Batch, Session
from tracegrad.sites import PATCH
from tracegrad.tuning import QUEUED_BYTES

if TYPE_CHECKING:
    from tracegrad.compiler.rooms import Cut
    from tracegrad.runtime.doors import Direct

UNLOADED = -1
AUX, CAPTURE = "aux.", "capture."  # prefixes of output names


class RunProgram:
    """A compiled program, with what the worker needs to run it. Only the worker's thread loads and unloads it."""

    __slots__ = (
        "at_once", "base", "built", "commits", "direct", "fed", "handle", "hyper", "indexed", "inputs", "numbers",
        "patched", "results", "room", "sizes", "source", "tells_more", "unpatched", "version",
    )  # fmt: skip
    inputs: tuple[Field, ...]
    hyper: tuple[Field, ...]

    def __init__(
        self,
        built: Built,
        source: ProgramSource | None = None,
        sizes: Sizes = (),
        base: RunProgram | None = None,
        version: object = None,
    ) -> None:
        """Make a program that is not loaded.

        source, sizes: if calls choose sizes, the source it was built from, and the sizes of this program.
        base:          the program at its capacity, if this program is the same at another size.
        version:       of the model, for a forward.
        """
        self.source, self.sizes, self.base, self.version = source, sizes, base, version
        self.handle = UNLOADED
        self.commits = False  # true for a forward that writes states, which no halt prevents
        self.direct: Direct | None = None  # see `runtime.doors.Door`
        self.patched: RunProgram | None = None  # the program with its patch sites, made at the first run that patches
        self.fed: RunProgram | None = None  # the program that makes its own batches; see training/placing.py
        self.room: Mapping[str, Shape] = {}  # shapes of inputs in `base`, if they are larger there
        self.results: Mapping[str, Cut] = {}  # where results are in those of `base`
        self.take(built)

    @property
    def program(self) -> Program:
        """The program as plain data."""
        return self.built.program

    @property
    def graph(self) -> Graph:
        """The graph in the shapes of a run. If the program serves many sizes, each access traces the graph again."""
        if self.base is None or self.source is None:
            return self.built.graph
        return at_sizes(self.source, self.sizes).traced().graph

    @property
    def step(self) -> RunProgram:
        """The step's own program. A `FedProgram`, which also makes the batch, returns the program it was made from."""
        return self

    def given(self, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values of the graph's inputs in a run on `arrays`."""
        return arrays

    def take(self, built: Built) -> None:
        """Use the program `built` from now on."""
        self.built = built
        self.at_once = 1  # runs that are worth one batch
        self.numbers = numbers_of(built)  # inputs that depend on the size
        fields = built.program.inputs
        self.tells_more = any(f.name.startswith((AUX, CAPTURE)) for f in built.program.outputs)  # more than the loss
        self.hyper = tuple(f for f in fields if f.name.startswith(PREFIX) and f.name not in built.numbers)
        self.unpatched = blank([f for f in fields if f.name.startswith(PATCH)])  # inputs of unpatched sites
        self.inputs = tuple(f for f in fields if not f.name.startswith((PREFIX, PATCH)))
        self.indexed = any("range" in f.spec for f in self.inputs)  # are inputs used as indices?

    def in_room(self, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return inputs in the shapes that the device computes with."""
        if not self.room:
            return arrays
        found = dict(arrays)
        for name, shape in self.room.items():
            found[name] = np.zeros(shape, arrays[name].dtype)
            found[name][tuple([slice(n) for n in arrays[name].shape])] = arrays[name]
        return found

    def of_room(self, outputs: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the outputs of a run in the program's shapes."""
        if not self.results:
            return outputs
        found = dict(outputs)
        for name, cut in self.results.items():
            counting = found[name].reshape(cut.room)[tuple([slice(n) for n in cut.counts])]
            found[name] = np.ascontiguousarray(counting).reshape(cut.shape)
        return found

    @property
    def _runs_base(self) -> bool:
        """True if runs use the program `base` itself, which has room for these sizes."""
        return self.base is not None and not self.base.program.capacity

    def load(self, session: Session) -> int:
        """Return the program's handle; load the program first if needed."""
        if self.handle == UNLOADED and self.base is not None and self._runs_base:
            self.handle = self.base.load(session)
        elif self.handle == UNLOADED and self.base is not None:
            self.handle = session.load(self.program, self.base.load(session))
        elif self.handle == UNLOADED:
            with blamed_lines(self.built.graph, self.program):
                self.handle = session.load(self.program)
        return self.handle

    def unload(self, session: Session) -> None:
        """Free what only this program uses."""
        if self.handle != UNLOADED and not self._runs_base:
            session.unload(self.handle)
        self.handle = UNLOADED
        for other in (self.patched, self.fed):
            if other is not None:
                other.unload(session)


def numbers_of(built: Built) -> dict[str, Any]:
    """Return, as arrays, the inputs of a program whose values depend on the size."""
    return {name: np.asarray(value, dtype) for name, (dtype, value) in built.numbers.items()}


class Run(Protocol):
    """One run of a program, from the worker's view. Every method runs on the worker's thread."""

    pending: Pending[Any]

    @property
    def checked(self) -> object:
        """None, unless `finish` compares the results; then, after `begin`, no other run is submitted until `finish`."""
        ...

    @property
    def of(self) -> RunProgram:
        """The program to run. Runs of the same program can share a batch."""
        ...

    def begin(self, session: Session) -> tuple[int, Mapping[str, Any]] | None:
        """Return the program's handle and its inputs; None to skip this run. Called again if the run is repeated."""
        ...

    def finish(self, session: Session, outputs: dict[str, Any]) -> bool:
        """Take the outputs. Return False if this run was not applied; no later run of the batch was applied then."""
        ...

    def recover(self, session: Session, outputs: dict[str, Any]) -> None:
        """Prepare the session for later runs, after `finish` returned False and the later runs were queued again."""
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
    """Return how many runs with these inputs can be queued.

    That is `most`; but if the session has one batch under way at most, only as many as fit QUEUED_BYTES.
    """
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
