"""Run a program as one list of calls into libraries of C functions.

Large inputs are read in place, from the copy of the caller's array. The address of an input is an argument of the calls
that read it, and is set for each run.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tracegrad.arrays import Array, np
from tracegrad.kernel_source import KernelSource
from tracegrad.program import Program
from tracegrad.render.c_calls import FunctionStep, GatheredStep, Place, ProductStep, Spread, Step
from tracegrad.render.gathered import Lay
from tracegrad.runtime.process import processors
from tracegrad.runtime.storage import address, lying
from tracegrad.tuning import LANES, LYING, POOL_FROM, PRODUCT_GRAIN, PRODUCT_PARTS, PRODUCT_SIDE, PRODUCT_STACK

Shape = tuple[int, ...]
FIRST_OF_PRODUCT, FIRST_OF_GATHERED = 9, 4  # argument that is the left operand's address; the right's follows


@dataclass(frozen=True, slots=True)
class Call:
    """A function, its arguments, and the most parts it can be split into. Keeps the addressed arrays alive."""

    function: int
    arguments: Any
    parts: int
    arrays: tuple[Array, ...]


class BoundCalls(NamedTuple):
    """The functions that run the calls of a program."""

    each: list[Callable[[], None]]  # one for each dispatch
    whole: Callable[[], None]  # runs all calls, and keeps the addressed arrays alive
    given: tuple[int, int, int]  # address and number of the rows, and the number of threads: arguments of `run_calls`


class _CallRow(ctypes.Structure):
    """A row that `run_calls` reads."""

    _fields_ = (("function", ctypes.c_void_p), ("at", ctypes.c_void_p), ("parts", ctypes.c_long))


class CallList:
    """Collects the calls of a program. `engine` is render.c_engine's library; `libraries` hold the kernels."""

    def __init__(self, engine: ctypes.CDLL, libraries: Sequence[ctypes.CDLL]) -> None:
        self._engine, self._libraries = engine, (engine, *libraries)
        self._calls: list[Call] = []
        self._ends: list[int] = []  # where each dispatch ends
        self._addresses: dict[str, int] = {}
        self._offsets: dict[tuple[Shape, tuple[Shape, ...]], Array] = {}

    def add(self, calls: Sequence[Call]) -> None:
        """Add the calls of the next dispatch."""
        self._calls += calls
        self._ends.append(len(self._calls))

    def call(self, name: str, parts: int, memory: Sequence[tuple[Array, int]]) -> Call:
        """Return a call of the function `name` over memory that begins at these elements."""
        places = [array.ctypes.data + array.itemsize * offset for array, offset in memory]
        arrays = tuple([array for array, _ in memory])
        return Call(self._address(name), (ctypes.c_void_p * len(places))(*places), parts, arrays)

    def product(self, a: Array, b: Array, out: Array, limits: int = 0, part: int = 0) -> Call:
        """out = a b, for matrices or stacks of them, within limits. The rows of `out` are contiguous.

        part: how many k to sum at a time, 0 for all; the outermost axis of the stack counts the parts.
        """
        batch, (m, n), k = out.shape[:-2], out.shape[-2:], a.shape[-1]
        arrays = (np.broadcast_to(a, (*batch, m, k)), np.broadcast_to(b, (*batch, k, n)), out)
        steps = tuple([tuple([s // 4 for s in x.strides]) for x in arrays])
        count = math.prod(batch)
        key = (batch, tuple([s[:-2] for s in steps]))
        if key not in self._offsets:
            points = np.array(list(itertools.product(*map(range, batch))), np.int64).reshape(count, len(batch))
            self._offsets[key] = np.stack([points @ np.asarray(s, np.int64) for s in key[1]], axis=-1)
        offsets = self._offsets[key]
        words = [count, m, n, k, *steps[0][-2:], *steps[1][-2:], steps[2][-2]]
        words += [*(x.ctypes.data for x in (*arrays, offsets)), limits, part or k, count // batch[0] if part else count]
        most = count if count >= PRODUCT_STACK else max(m, n) // PRODUCT_SIDE
        parts = max(1, min(count * m * n * (part or k) // PRODUCT_GRAIN, most, PRODUCT_PARTS))
        return Call(self._address("product"), (ctypes.c_int64 * len(words))(*words), parts, (*arrays, offsets))

    def gathered(self, a: tuple[tuple[Array, int], Spread], b: tuple[tuple[Array, int], Spread], out: Array) -> Call:
        """Return the call of out = a b, with the elements of `b` at sums of offsets. Rows of `out` are contiguous."""
        batch, (m, n) = out.shape[:-2], out.shape[-2:]
        ((x, x_first), left), ((y, y_first), right) = a, b
        points = np.array(list(itertools.product(*map(range, batch))), np.int64).reshape(math.prod(batch), len(batch))
        steps = (left.batch, right.batch, [s // 4 for s in out.strides[:-2]])
        offsets = np.stack([points @ np.asarray(s, np.int64) for s in steps], axis=-1)
        tables = [places(left.columns), places(right.rows), places(right.columns)]
        runs = [neighbours(t) for t in tables]
        k, vectors = len(tables[0]), int(np.sum(runs_of(runs[2], LANES)))
        lies = n > LANES and n >= LYING * LANES * vectors  # tiles read two vectors at a time
        how = 0 if lies else 1 if runs[2].mean() >= runs[1].mean() else 2
        most = max(1, min(len(points) * m * n * k // PRODUCT_GRAIN, PRODUCT_PARTS))
        across = max(1, min(-(-most // len(points)), n // max(PRODUCT_SIDE, m)))
        words = [len(points), m, n, k]
        words += [x.ctypes.data + 4 * x_first, y.ctypes.data + 4 * y_first, out.ctypes.data, offsets.ctypes.data]
        words += [left.rows[0].step if left.rows else 0, out.strides[-2] // 4]
        words += [t.ctypes.data for t in (*tables, *runs)] + [how, across, self._address("tracegrad_tiles")]
        held, parts = (x, y, out, offsets, *tables, *runs), min(most, len(points) * across)
        return Call(self._address("gathered"), (ctypes.c_int64 * len(words))(*words), parts, held)

    def bound(self) -> BoundCalls:
        """Return the calls, ready to run."""
        held, libraries = list(self._calls), self._libraries
        entries = (_CallRow * len(held))(*[(c.function, ctypes.addressof(c.arguments), c.parts) for c in held])
        function, threads = self._engine.run_calls, processors()
        function.argtypes, function.restype = (ctypes.c_void_p, ctypes.c_long, ctypes.c_long), None

        def between(begin: int, end: int) -> Callable[[], None]:
            at = ctypes.addressof(entries) + begin * ctypes.sizeof(_CallRow)

            def run() -> None:
                function(at, end - begin, threads)
                _ = held, entries, libraries  # keeps the addressed arrays alive

            return run

        each = [between(b, e) for b, e in zip([0, *self._ends], self._ends)]
        return BoundCalls(each, between(0, len(held)), (ctypes.addressof(entries), len(held), threads))

    def _address(self, name: str) -> int:
        """Return the address of a function."""
        found = self._addresses.get(name)
        if found is None:
            library = next(x for x in self._libraries if hasattr(x, name))
            found = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
            assert found is not None
            self._addresses[name] = found
        return found


def places(lays: Sequence[Lay]) -> Array:
    """Return the offsets of the points of some axes, the last axis fastest."""
    found = np.zeros(1, np.int64)
    for lay in lays:
        t = np.arange(lay.size, dtype=np.int64) * lay.by
        found = (found[:, None] + (t // lay.of * lay.step + t % lay.of * lay.other)).reshape(-1)
    return found


def neighbours(at: Array) -> Array:
    """Return for each offset the number of contiguous ones from there on."""
    ends = np.append(np.flatnonzero(np.diff(at) != 1) + 1, len(at))
    each = np.arange(len(at))
    return ends[np.searchsorted(ends, each, side="right")] - each


def runs_of(neighbours: Array, lanes: int) -> Array:
    """Return for each run of neighbours the number of vectors that cover it."""
    first = np.append(True, neighbours[:-1] == 1)
    return -(-neighbours[first] // lanes)


class Lent:
    """One input: where it is now, and which arguments of calls point to it."""

    def __init__(self, flat: Array, offset: int, size: int) -> None:
        """flat: the array with memory for the input. offset, size: in elements."""
        self.flat, self.first, self.end = flat, offset, offset + size
        self.home = self.at = address(flat) + flat.itemsize * offset
        self.pointers: list[tuple[Any, int, int]] = []  # (arguments, index, distance from the input's begin)

    def note(
        self, call: Call, kernel: KernelSource, memory: Sequence[Array], offsets: Sequence[int], step: Step
    ) -> None:
        """Record which arguments of a call point into this input."""
        for k, place in _pointers(step):
            if not isinstance(place, int) or memory[kernel.binding_of[place]] is not self.flat:
                continue
            if self.first <= offsets[place] < self.end:
                self.pointers.append((call.arguments, k, call.arguments[k] - self.home))

    def point(self, at: int) -> None:
        """Let the calls read the input at this address from now on."""
        if at != self.at:
            for arguments, k, behind in self.pointers:
                arguments[k] = at + behind
            self.at = at


def lent_inputs(program: Program, memory: Mapping[str, Array]) -> dict[str, Lent]:
    """Return the inputs of a program that are large enough, by name."""
    arrays = [memory[b.name] for b in program.buffers]
    large = [f for f in program.inputs if lying(arrays[f.buffer], f).nbytes >= POOL_FROM]
    return {f.name: Lent(arrays[f.buffer], f.offset, f.size) for f in large}


def _pointers(step: Step) -> list[tuple[int, Place]]:
    """Return which arguments of a call are addresses, and of which places."""
    if isinstance(step, FunctionStep):
        return list(enumerate(step.places))
    first = FIRST_OF_GATHERED if isinstance(step, GatheredStep) else FIRST_OF_PRODUCT
    assert isinstance(step, GatheredStep | ProductStep)
    return [(first, step.a.place), (first + 1, step.b.place)]
