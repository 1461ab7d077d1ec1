"""Places for runs that share a submission: each has inputs and outputs of its own, so that nothing comes between them.

An array of inputs or outputs is as many times as large as runs go into one submission, and the k-th run binds the k-th
part of it. So the host writes all inputs at once, one pass runs all dispatches, and one copy an array brings back all
outputs. What the runs leave in persistent arrays is copied once, behind the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from tracegrad.arrays import np
from tracegrad.dtypes import DTYPES
from tracegrad.errors import InputError
from tracegrad.program import COUNTS, Field, Program

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tracegrad.runtime.wgpu_calls import Bytes

    Rows = NDArray[Any] | list[NDArray[Any]]  # one for each run

ALIGN = 256  # bytes: of offsets into a buffer that is bound, what every device accepts
GAP = 64  # outputs this close (elements) are copied together: a copy costs more than these bytes
RUNS_AT_ONCE = 32  # in one submission: one costs the host about three runs of a small model
RING_BYTES = 8 << 20  # of all arrays of inputs and outputs together, unless one run needs more


@dataclass(slots=True, eq=False)
class Array:
    """A flat array on the device. `users` counts the loaded programs that share a persistent one."""

    name: str
    dtype: str
    size: int
    buffer: Any
    users: int = 1
    stride: int = 0  # bytes from one run's part to the next; 0: all runs have the same

    def part(self, run: int) -> dict[str, Any]:
        """What the `run`-th run of a submission binds."""
        if not self.stride:
            return {"buffer": self.buffer}
        return {"buffer": self.buffer, "offset": run * self.stride, "size": 4 * self.size}


def depth_of(program: Program) -> int:
    """How many runs of a program one submission may have."""
    ring = [b for b in program.buffers if b.role in ("input", "output")]
    elsewhere = any(program.buffers[f.buffer].role != "output" and not f.spec.get(COUNTS) for f in program.outputs)
    if program.copies or elsewhere:
        return 1  # they would have to be copied between the runs
    return max(1, min(RUNS_AT_ONCE, RING_BYTES // max(1, sum(stride_of(b.size) for b in ring))))


def stride_of(size: int) -> int:
    """Bytes between the parts of an array of `size` elements."""
    return ALIGN * -(-4 * max(size, 1) // ALIGN)


def stored_dtype(dtype: str) -> str:
    """NumPy's name for a dtype's 32 bits on the device: booleans are integers there."""
    return "int32" if dtype == "bool" else DTYPES[dtype].numpy


@dataclass(slots=True, eq=False)
class Inputs:
    """What the host writes before a submission: for each array of inputs one on the host, with a row for each run."""

    fields: tuple[Field, ...]
    arrays: list[Array]
    rows: list[NDArray[Any]]
    numbers: list[int]  # of a field: which of them
    views: list[list[tuple[str, tuple[int, ...], NDArray[Any]]]]  # of a run: name, shape and place of each field
    names: set[str]

    def stage(self, run: int, given: Mapping[str, Any]) -> None:
        """Put the values of the `run`-th run in place: booleans as 0 and 1, u32 as the same 32 bits."""
        if set(given) != self.names:
            missing, extra = sorted(self.names - given.keys()), sorted(given.keys() - self.names)
            raise InputError(f"inputs do not fit the program: missing {missing}, unknown {extra}")
        while len(self.views) <= run:
            self.views.append(self._of_run(len(self.views)))
        for name, shape, view in self.views[run]:
            value = given[name]
            if getattr(value, "shape", None) != shape and np.shape(value) != shape:  # NumPy would broadcast it silently
                raise InputError(f"input {name!r} has shape {np.shape(value)}, not {shape}")
            view[...] = value

    def writes(self, runs: int) -> list[tuple[Any, NDArray[Any]]]:
        """Device buffers, and what to write to their beginning."""
        return [(array.buffer, rows[:runs]) for array, rows in zip(self.arrays, self.rows, strict=True)]

    def _of_run(self, run: int) -> list[tuple[str, tuple[int, ...], NDArray[Any]]]:
        parts = [self.rows[k][run, f.offset : f.offset + f.size] for k, f in zip(self.numbers, self.fields)]
        return [(f.name, f.shape, x.view(stored_dtype(f.dtype)).reshape(f.shape)) for f, x in zip(self.fields, parts)]


def plan_inputs(program: Program, arrays: list[Array], depth: int) -> Inputs:
    """The inputs of a program, for `depth` runs."""
    used = list(dict.fromkeys(f.buffer for f in program.inputs))
    found = [arrays[k] for k in used]
    names = {f.name for f in program.inputs}
    rows = [np.zeros((depth, a.stride // 4 or a.size), stored_dtype(a.dtype)) for a in found]
    return Inputs(program.inputs, found, rows, [used.index(f.buffer) for f in program.inputs], [], names)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Bytes that a submission copies back: `size` from `start` on, or a part for each run."""

    array: Array
    start: int
    size: int

    def bytes(self, runs: int) -> int:
        """How many, for so many runs."""
        return runs * self.array.stride or self.size


@dataclass(slots=True, eq=False)
class Outputs:
    """What comes back of a submission, and where each output is in it."""

    fields: tuple[Field, ...]
    deliveries: list[Delivery] = field(default_factory=list[Delivery])
    places: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # of a field: delivery, first element

    def bytes(self, runs: int) -> int:
        """All of them."""
        return sum(d.bytes(runs) for d in self.deliveries)

    def columns(self, raw: Bytes, runs: int) -> list[Rows]:
        """The outputs of all runs, a row for each, in the order of the fields."""
        starts = [0, *accumulate(d.bytes(runs) for d in self.deliveries)]
        found: list[Rows] = []
        for f, (number, first) in zip(self.fields, self.places, strict=True):
            words = raw[starts[number] : starts[number + 1]].view(stored_dtype(f.dtype))
            if self.deliveries[number].array.stride:
                found.append(words.reshape(runs, -1)[:, first : first + f.size])
            else:  # as the last run left it
                last = words[first : first + f.size]
                counted = runs > 1 and f.spec.get(COUNTS) and last.any()
                found.append([np.maximum(last - k, 0) for k in range(runs)][::-1] if counted else [last] * runs)
        return found

    def of_run(self, columns: list[Rows], run: int) -> dict[str, Any]:
        """The outputs of one run by name, in memory of their own."""
        result: dict[str, Any] = {}
        for f, rows in zip(self.fields, columns, strict=True):
            flat = rows[run]
            result[f.name] = (flat != 0 if f.dtype == "bool" else flat.copy()).reshape(f.shape)
        return result


def plan_outputs(program: Program, arrays: list[Array]) -> Outputs:
    """A delivery for each array of outputs; elsewhere for each output, neighbours in one."""
    outputs = Outputs(program.outputs)
    places: dict[str, tuple[int, int]] = {}
    last = (-1, 0, 0)  # buffer, start and stop of the last delivery (elements)
    for f in sorted(program.outputs, key=lambda f: (f.buffer, f.offset)):
        array, stop = arrays[f.buffer], f.offset + f.size
        near = f.buffer == last[0] and (array.stride or f.offset - last[2] <= GAP)
        start = last[1] if near else 0 if array.stride else f.offset
        stop = max(last[2], stop) if near else stop
        if near:
            outputs.deliveries.pop()
        outputs.deliveries.append(Delivery(array, 4 * start, 4 * (stop - start)))
        last = (f.buffer, start, stop)
        places[f.name] = (len(outputs.deliveries) - 1, f.offset - start)
    outputs.places = [places[f.name] for f in program.outputs]
    return outputs
