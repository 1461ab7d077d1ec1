"""RunProgram: a compiled program with the state that the worker needs to run it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from tracegrad.arrays import np
from tracegrad.compiler.build import Built, ProgramSource, at_sizes
from tracegrad.compiler.dispatches import blamed_lines
from tracegrad.compiler.inputtypes import Sizes
from tracegrad.dtypes import Shape
from tracegrad.engine.inputs import blank
from tracegrad.hypers import PREFIX
from tracegrad.ir.graph import Graph
from tracegrad.program import Field, Program
from tracegrad.runtime.base import Session, load_on
from tracegrad.sites import PATCH

if TYPE_CHECKING:
    from tracegrad.compiler.rooms import Cut

UNLOADED = -1
AUX, CAPTURE = "aux.", "capture."  # prefixes of output names
Direct = Callable[[Mapping[str, Any]], dict[str, Any] | None]


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

        source, sizes: if calls choose sizes, those of this program, and the source it was built from.
        base:          the program at its capacity, if this program is the same at another size.
        version:       of the model, for a forward.
        """
        self.source, self.sizes, self.base, self.version = source, sizes, base, version
        self.handle = UNLOADED
        self.commits = False  # false: a step that is not applied changes nothing, and neither do later ones
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
        """The graph in the shapes of a run. Of a program for many sizes, it is traced again."""
        if self.base is None or self.source is None:
            return self.built.graph
        return at_sizes(self.source, self.sizes).traced().graph

    @property
    def step(self) -> RunProgram:
        """The program that is rebuilt if the source of a step changes."""
        return self

    def given(self, arrays: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the values of the graph's inputs in a run on `arrays`."""
        return arrays

    def take(self, built: Built) -> None:
        """Use the program `built` from now on."""
        self.built = built
        self.at_once = 1  # runs that are worth one batch
        self.numbers = numbers_of(built)  # inputs that follow the size
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
        """Return the program's handle, after loading it."""
        if self.handle == UNLOADED and self.base is not None and self._runs_base:
            self.handle = self.base.load(session)
        elif self.handle == UNLOADED and self.base is not None:
            self.handle = session.load(self.program, self.base.load(session))
        elif self.handle == UNLOADED:
            with blamed_lines(self.built.graph, self.program):
                self.handle = load_on(session, self.program)
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
