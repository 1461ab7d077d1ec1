"""Memory for the runs of a batch: each run has its own inputs and outputs, so no write or copy comes between runs.

An array of inputs or outputs is as large as all runs of a batch need together, and the k-th run binds the k-th part. So
the host writes all inputs at once, one pass runs all dispatches, and one copy per array returns all outputs. Outputs
that live in persistent arrays are copied once, after the last run.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from tracegrad.arrays import np
from tracegrad.dtypes import DTYPES
from tracegrad.errors import InputError
from tracegrad.program import COUNTS, Field, Program
from tracegrad.runtime.memory import in_shape
from tracegrad.runtime.wgpu_calls import Write
from tracegrad.tuning import FEW_ELEMENTS, INPUT_GAP, LARGE_INPUT, OUTPUT_GAP, RING_BYTES, RING_MEMORY, RUNS_AT_ONCE

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Place = tuple[str, tuple[int, ...], NDArray[Any]]  # of a field: its name, its shape, and its staging memory
    # an output, whether it is small, its view of what is copied back, and what to subtract to get each run's count
    Lying = tuple[Field, bool, tuple[tuple[int, ...], np.dtype[Any], int, tuple[int, ...]], NDArray[Any] | None]

VECTOR = 16  # bytes: kernels can read memory by whole vectors
ALIGN = 256  # bytes: the alignment of bound offsets that every device accepts


@dataclass(slots=True, eq=False)
class Array:
    """A flat array on the device. `users` counts the loaded programs that share a persistent array."""

    name: str
    dtype: str
    size: int
    buffer: Any
    users: int = 1
    stride: int = 0  # bytes from one run's part to the next; 0: all runs share the array

    def part(self, run: int) -> dict[str, Any]:
        """Return the part of the array to bind in the `run`-th run of a batch."""
        if not self.stride:
            return {"buffer": self.buffer}
        return {"buffer": self.buffer, "offset": run * self.stride, "size": whole(4 * max(self.size, 1))}


def depth_of(program: Program) -> int:
    """Return how many runs of a program one batch can have."""
    ring = [b for b in program.buffers if b.role in ("input", "output")]
    elsewhere = any(program.buffers[f.buffer].role != "output" and not f.spec.get(COUNTS) for f in program.outputs)
    if elsewhere:
        return 1  # such outputs would need a copy after each run
    given = sum(stride_of(f.size) for f in program.inputs) + sum(stride_of(b.size) for b in ring if b.role == "output")
    memory = sum(stride_of(b.size) for b in ring)
    return max(1, min(RUNS_AT_ONCE, RING_BYTES // max(1, min(given, memory)), RING_MEMORY // max(1, memory)))


def stride_of(size: int) -> int:
    """Return the bytes between the parts of an array of `size` elements."""
    return ALIGN * -(-4 * max(size, 1) // ALIGN)


def whole(size: int) -> int:
    """Round bytes up to a whole vector."""
    return VECTOR * -(-size // VECTOR)


def stored_dtype(dtype: str) -> str:
    """Return NumPy's name for a dtype's 32 bits on the device: booleans are integers there."""
    return "int32" if dtype == "bool" else DTYPES[dtype].numpy


@dataclass(frozen=True, slots=True, eq=False)
class Inputs:
    """The writes of the host before a batch.

    Small values are staged. Large values are written from the caller's array, which must not change until the batch is
    sent.
    """

    fields: tuple[Field, ...]
    arrays: dict[int, Array]  # by number of the buffer
    depth: int  # runs
    names: Set[str]
    large: tuple[Field, ...]
    between: dict[int, list[tuple[int, int]]]  # array not written whole -> ranges of small values (elements)


class Staging:
    """The memory of one batch under way: its inputs on the host, its outputs on the device. All sizes share it.

    Each array of inputs has a copy on the host, with a row for each run.
    """

    def __init__(self, plan: Inputs, results: Any) -> None:
        self.results = results  # a mappable buffer
        self.rows: dict[int, NDArray[Any]] = {
            k: np.empty((plan.depth, a.stride // 4 or a.size), stored_dtype(a.dtype)) for k, a in plan.arrays.items()
        }
        self.put: list[dict[str, Any]] = [{} for _ in range(plan.depth)]  # for each run: the small values last staged


class Stagings:
    """The memory of a program's batches, made as it is needed."""

    def __init__(self) -> None:
        self.made, self.free = list[Staging](), list[Staging]()

    def take(self, plan: Inputs, results: Callable[[], Any]) -> Staging:
        """Return memory that no batch under way uses. results: makes the buffer of new memory."""
        if not self.free:
            self.made.append(Staging(plan, results()))
            return self.made[-1]
        return self.free.pop()

    def destroy(self) -> None:
        """Free all memory on the device."""
        for staging in self.made:
            staging.results.destroy()


class BatchMemory:
    """The memory of one batch under way, for a program at one size.

    All of it stays in place, so commands are prepared once for each number of runs.
    """

    def __init__(self, plan: Inputs, staging: Staging) -> None:
        self.staging, self.results = staging, staging.results
        self.prepared: dict[int, Any] = {}  # commands, by number of runs
        self._plan, self._rows = plan, staging.rows
        self._views: list[list[Place]] = []  # for each run: its small values
        self._large = [(f, np.dtype(stored_dtype(f.dtype))) for f in plan.large]
        self._given: list[NDArray[Any]] = []  # large values of the runs staged so far

    def put(self, run: int, given: Mapping[str, Any]) -> None:
        """Stage the values of the `run`-th run: booleans as 0 and 1, u32 as the same 32 bits.

        Raises InputError for missing and unknown inputs.
        """
        plan = self._plan
        if given.keys() != plan.names:
            missing, extra = sorted(plan.names - given.keys()), sorted(given.keys() - plan.names)
            raise InputError(f"inputs do not fit the program: missing {missing}, unknown {extra}")
        while len(self._views) <= run:
            self._views.append([self._place(f, len(self._views)) for f in plan.fields if f not in plan.large])
        staged = self.staging.put[run]
        for name, shape, view in self._views[run]:
            value = given[name]
            if staged.get(name) is value:  # most hyperparameters are unchanged since the last step
                continue
            check_shape(name, value, shape)
            view[...] = value
            staged[name] = value if view.size <= FEW_ELEMENTS else None
        large: list[NDArray[Any]] = []
        for f, dtype in self._large:
            value = given[f.name]
            check_shape(f.name, value, f.shape)
            large.append(np.ascontiguousarray(np.moveaxis(value, f.axis, 0) if f.axis else value, dtype))
        self._given[run * len(large) :] = large

    def given(self) -> list[NDArray[Any]]:
        """Return and forget the large values of the runs staged so far."""
        found, self._given = self._given, []
        return found

    def writes(self, runs: int) -> list[Write]:
        """Return the writes of `runs` runs. Large values are left open: `given` returns them in the same order."""
        plan = self._plan
        found: list[Write] = []
        for run in range(runs):
            for f in plan.large:
                array = plan.arrays[f.buffer]
                found.append(Write(array.buffer, run * array.stride + 4 * f.offset, 4 * f.size, None))
        for k, array in plan.arrays.items():
            if k not in plan.between:
                rows = self._rows[k][:runs]
                found += [Write(array.buffer, 0, rows.nbytes, rows)] if rows.size else []
                continue
            for begin, end in plan.between[k]:
                parts = [(run * array.stride + 4 * begin, self._rows[k][run, begin:end]) for run in range(runs)]
                found += [Write(array.buffer, at, part.nbytes, part) for at, part in parts]
        return found

    def _place(self, f: Field, run: int) -> Place:
        part = self._rows[f.buffer][run, f.offset : f.offset + f.size]
        return f.name, f.shape, in_shape(part.view(stored_dtype(f.dtype)), f)


def check_shape(name: str, value: Any, shape: tuple[int, ...]) -> None:
    """Raise InputError if a value has another shape: NumPy would broadcast it silently."""
    if getattr(value, "shape", None) != shape and np.shape(value) != shape:
        raise InputError(f"input {name!r} has shape {np.shape(value)}, not {shape}")


def plan_inputs(program: Program, arrays: list[Array], depth: int) -> Inputs:
    """Return the inputs of a program, for `depth` runs."""
    found = {f.buffer: arrays[f.buffer] for f in program.inputs}
    names = {f.name for f in program.inputs}
    large = tuple(f for f in program.inputs if 4 * f.size >= LARGE_INPUT)
    # in a run smaller than the capacity, values are not contiguous; a feed writes other values of such an array later
    apart = program.size < program.capacity
    given = Counter[int]()
    for f in program.inputs:
        given[f.buffer] += f.size
    parts_of = [f for f in program.inputs if apart or f in large or given[f.buffer] < program.buffers[f.buffer].size]
    between: dict[int, list[tuple[int, int]]] = {
        f.buffer: [] for f in parts_of if program.buffers[f.buffer].size > INPUT_GAP
    }
    for f in sorted(program.inputs, key=lambda f: f.offset):
        if f.buffer in between and f not in large and f.size:
            parts = between[f.buffer]
            begin = parts.pop()[0] if parts and f.offset - parts[-1][1] <= INPUT_GAP else f.offset
            parts.append((begin, f.offset + f.size))
    return Inputs(program.inputs, found, depth, names, large, between)


@dataclass(frozen=True, slots=True)
class Delivery:
    """Bytes that a batch copies back: `size` bytes from `start` on, from each run's part if it has one."""

    array: Array
    start: int
    size: int

    def bytes(self, runs: int) -> int:
        """Return the number of bytes for `runs` runs, to the end of the last run's part."""
        return (runs - 1) * self.array.stride + self.size


@dataclass(slots=True, eq=False)
class Outputs:
    """The outputs of a batch, and the place of each output."""

    fields: tuple[Field, ...]
    deliveries: list[Delivery] = field(default_factory=list[Delivery])
    places: list[tuple[int, int]] = field(default_factory=list[tuple[int, int]])  # field -> delivery, first element
    lying: dict[int, list[Lying]] = field(default_factory=dict[int, "list[Lying]"])  # by number of runs

    def bytes(self, runs: int) -> int:
        """Return how many bytes the deliveries of `runs` runs take together."""
        return sum(d.bytes(runs) for d in self.deliveries)

    def of_runs(self, raw: NDArray[np.uint8], runs: int) -> list[dict[str, Any]]:
        """Return the outputs of each run by name. Large outputs are copies: keeping one keeps no other in memory."""
        if runs not in self.lying:
            self.lying[runs] = list(self._lying(runs))
        found: list[dict[str, Any]] = [{} for _ in range(runs)]
        for f, few, (shape, dtype, first, strides), before in self.lying[runs]:
            rows = np.ndarray(shape, dtype, raw, first, strides)
            if f.axis:
                rows = np.moveaxis(rows, 1, f.axis + 1)
            if few:
                rows = rows != 0 if f.dtype == "bool" else rows.copy()
            if before is not None:
                rows = np.maximum(rows - before, 0)
            for k, outputs in enumerate(found):
                part = rows[k, ...]  # an array, where `rows[k]` can be a number
                outputs[f.name] = part if few else part != 0 if f.dtype == "bool" else part.copy()
        return found

    def _lying(self, runs: int) -> Iterator[Lying]:
        """Yield each output of `runs` runs. Computed once, because a short step takes hardly longer than this."""
        starts = [0, *accumulate(d.bytes(runs) for d in self.deliveries)]
        for f, (number, first) in zip(self.fields, self.places, strict=True):
            stride, dtype = self.deliveries[number].array.stride, np.dtype(stored_dtype(f.dtype))
            parts = runs if stride else 1
            inner = [4 * math.prod(f.stored[k + 1 :]) for k in range(len(f.stored))]
            place = (parts, *f.stored), dtype, starts[number] + 4 * first, (stride, *inner)
            before = None
            if parts < runs:  # COUNTS after the last run
                before = np.arange(runs - 1, -1, -1, dtype=dtype).reshape(-1, *(1 for _ in f.shape))
            yield f, f.size <= FEW_ELEMENTS, place, before


def plan_outputs(program: Program, arrays: list[Array]) -> Outputs:
    """Return a delivery for each array of outputs; in other arrays one for each output, with neighbours joined."""
    outputs = Outputs(program.outputs)
    places: dict[str, tuple[int, int]] = {}
    last = (-1, 0, 0)  # buffer, start and stop of the last delivery (elements)
    for f in sorted(program.outputs, key=lambda f: (f.buffer, f.offset)):
        array, stop = arrays[f.buffer], f.offset + f.size
        near = f.buffer == last[0] and (array.stride or f.offset - last[2] <= OUTPUT_GAP)
        start = last[1] if near else 0 if array.stride else f.offset
        stop = max(last[2], stop) if near else stop
        if near:
            outputs.deliveries.pop()
        outputs.deliveries.append(Delivery(array, 4 * start, 4 * (stop - start)))
        last = (f.buffer, start, stop)
        places[f.name] = (len(outputs.deliveries) - 1, f.offset - start)
    outputs.places = [places[f.name] for f in program.outputs]
    return outputs
