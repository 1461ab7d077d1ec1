"""Whole arrays on a device: steps of `fit` make their batches there, from the numbers of the rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tracegrad.arrays import Array, np
from tracegrad.compiler.build import Built
from tracegrad.compiler.feed import PREFIX, ROWS, data_of, fed, make_feed
from tracegrad.engine.inputs import check_inputs
from tracegrad.engine.programs import UNLOADED, RunProgram
from tracegrad.errors import InputError
from tracegrad.program import Field, with_rows
from tracegrad.runtime.base import Session
from tracegrad.runtime.storage import to_storage


class FedProgram(RunProgram):
    """A step's program behind a feed: a run has the numbers of rows in place of the inputs."""

    __slots__ = ("_made", "_of", "arrays")

    def __init__(self, step: RunProgram, arrays: Mapping[str, Array]) -> None:
        self._of, self._made, self.arrays = step, step.built, arrays
        super().__init__(self._behind_feed())

    @property
    def step(self) -> RunProgram:
        """The step's program."""
        return self._of

    def given(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        """Return the batch of a run."""
        return {name: x[arrays[ROWS]] for name, x in self.arrays.items()}

    def load(self, session: Session) -> int:
        """Return the handle; first follow the step, if it was compiled again."""
        if self._made is not self._of.built:
            self.unload(session)
            self._made = self._of.built
            self.take(self._behind_feed())
        return super().load(session)

    def takes(self, arrays: Mapping[str, Array]) -> bool:
        """Return whether the feed serves these examples, too."""
        return [x.shape for x in arrays.values()] == [x.shape for x in self.arrays.values()]

    def _behind_feed(self) -> Built:
        step = self._made.program
        count = len(next(iter(self.arrays.values())))
        return self._made._replace(program=fed(step, make_feed(step, self.arrays, count)))


class Examples:
    """The examples of a `fit`, by input name, in persistent arrays of a device."""

    def __init__(self, fields: Sequence[Field], arrays: Mapping[str, Any]) -> None:
        """fields: the inputs of a step on one batch. Raises InputError for arrays that a batch could not be made of."""
        count = len(next(iter(arrays.values())))
        self._given, self._fields = arrays, [_of_all(f, count) for f in fields]
        self._arrays = self._checked()
        self._program, self._handle = data_of({f.name: f.type for f in self._fields}), UNLOADED
        self._fed: list[FedProgram] = []

    def of(self, step: RunProgram) -> RunProgram | None:
        """Return the program that makes its batches of these examples; None if the step's program serves all sizes."""
        known = step.fed
        if step.base is not None or known in self._fed:
            return known
        if not isinstance(known, FedProgram) or not known.takes(self._arrays):
            known = step.fed = FedProgram(step, self._arrays)
        known.arrays = self._arrays
        self._fed.append(known)
        return known

    def begin(self, session: Session) -> None:
        """Allocate the arrays, and write them."""
        self._handle = session.load(self._program)
        self._write(session)

    def write(self, session: Session) -> None:
        """Write the given arrays as they are now. Raises InputError if their values have become invalid."""
        self._arrays = self._checked()
        for program in self._fed:
            program.arrays = self._arrays
        self._write(session)

    def _write(self, session: Session) -> None:
        for f in self._fields:
            session.write(PREFIX + f.name, to_storage(self._arrays[f.name], f.dtype))

    def _checked(self) -> dict[str, Array]:
        return check_inputs(self._fields, self._given, "fit", copied=np.ascontiguousarray)

    def end(self, session: Session) -> None:
        """Free the arrays. The programs stay compiled."""
        for program in self._fed:
            program.unload(session)
        session.unload(self._handle)


def _of_all(f: Field, count: int) -> Field:
    """Return the input for all examples. Raise InputError if only some rows of a batch are indices."""
    n = f.shape[0]
    for spec in (f.spec, *f.spec.get("others", ())):
        if spec.get("box", [[0, n - 1]])[0] != [0, n - 1]:
            raise InputError(f"{f.name}: rows of a batch have different limits")
    return replace(f, shape=(count, *f.shape[1:]), spec=with_rows(f.spec, n, count))
