"""Run a program as one list of calls into libraries of C functions.

Large inputs are read in place, from the copy of the caller's array, and large outputs are computed in the arrays that
the caller gets. Their addresses are arguments of the calls that use them, and are set for each run.
"""

from __future__ import annotations

import ctypes
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from tracegrad.arrays import Array, np
from tracegrad.kernel_source import KernelSource
from tracegrad.kernels.form import Extent, decided
from tracegrad.loops import BY_SIZE, Move
from tracegrad.program import Program
from tracegrad.render.c_steps import FunctionStep, GatheredStep, Place, ProductStep, Spread, Step
from tracegrad.render.gathered import Lay
from tracegrad.runtime.memory import address, lying
from tracegrad.runtime.process import processors
from tracegrad.tuning import POOL_FROM, PRODUCT_GRAIN, PRODUCT_PARTS, PRODUCT_SIDE, PRODUCT_STACK, PRODUCT_STORE

Shape = tuple[int, ...]
FIRST_OF_PRODUCT, FIRST_OF_GATHERED = 9, 4  # argument that is the left operand's address; the right's follows


# size of a run -> the arguments that it changes, by number, and the most parts; equal for calls that change alike
AtSize = Callable[[int], tuple[Mapping[int, int], int]]


class SizedParts(NamedTuple):
    """How a call depends on the size of a run if its function reads the size: by the number of parts."""

    parts: int  # at the capacity
    capacity: int

    def __call__(self, size: int) -> tuple[Mapping[int, int], int]:
        """Return the arguments that change with the size, by number, and the largest number of parts."""
        return {}, max(1, self.parts * size // self.capacity)


class SizedProduct(NamedTuple):
    """How the call of a product depends on the size of a run, which gives one of the product's sizes."""

    sizes: tuple[int, ...]  # the axes of the stack, m, n and k

    def __call__(self, size: int) -> tuple[Mapping[int, int], int]:
        """Return the arguments that change with the size, by number, and the largest number of parts."""
        return _product_of([decided(x, size) for x in self.sizes])


class SizedGathered(NamedTuple):
    """How the call of a product with gathered operands depends on the size of a run, which gives one of its sizes."""

    sizes: tuple[int, ...]  # the axes of the stack, m and n
    k: int  # apart, because calls that change alike are found by equality: this tuple equals no `SizedProduct`

    def __call__(self, size: int) -> tuple[Mapping[int, int], int]:
        """Return the arguments that change with the size, by number, and the largest number of parts."""
        *batch, m, n, k = [decided(x, size) for x in (*self.sizes, self.k)]
        count, side = math.prod(batch), max(PRODUCT_SIDE, m)
        most = max(1, min(count * m * n * k // PRODUCT_GRAIN, PRODUCT_PARTS))
        across = max(1, min(-(-most // count), n // side))
        return {0: count, 1: m, 2: n, 3: k, 17: across}, min(most, count * across)


class Call(NamedTuple):
    """A function, its arguments, and the largest number of parts of the call. Keeps the addressed arrays alive."""

    function: int
    arguments: Any
    parts: int
    arrays: tuple[Array, ...]
    at: AtSize | None = None  # None: the call is the same in runs of all sizes


class Moving(NamedTuple):
    """An argument that is an address, and moves with the size of a run."""

    arguments: Any
    word: int
    value: int  # without the move
    move: Move


# columns of the rows that `run_calls` reads: function, arguments, parts, the address of a size, until
PARTS, SIZE, COLUMNS = 2, 3, 5


class BoundCalls:
    """The calls of a program, ready to run at one size."""

    def __init__(
        self,
        libraries: Sequence[ctypes.CDLL],
        calls: Sequence[Call],
        ends: Sequence[int],
        alike: Mapping[AtSize, Sequence[int]],
        rows: Array,
        sets: Array,
        moving: Sequence[Moving] = (),
    ) -> None:
        """Make the calls of one size.

        ends:   where each dispatch ends.
        alike:  the numbers of the calls that depend on the size in the same way.
        rows:   a row of COLUMNS for each call, for `run_calls`.
        sets:   rows of (address, value), which `run_calls` stores first: all that the size decides.
        moving: the addresses that depend on the size.
        """
        self._libraries, self._calls, self._ends, self._alike = libraries, calls, ends, alike
        self._moving = moving
        self._rows, self._sets = rows, sets
        self._run, self._time, threads = libraries[0].run_calls, libraries[0].time_calls, processors()
        word, number = ctypes.c_void_p, ctypes.c_long
        self._run.argtypes, self._run.restype = (word, number, word, number, number), None
        self._time.argtypes, self._time.restype = (word, number, word, number, word, number, word), None
        self.given = address(sets), len(sets), address(rows), len(rows), threads  # arguments of `run_calls`

    def whole(self) -> None:
        """Run all calls."""
        self._run(*self.given)

    def timed(self) -> tuple[tuple[float, float], ...]:
        """Run all calls, and return when each dispatch began and ended."""
        sets, n, rows, _, threads = self.given
        ends, marks = np.array((0, *self._ends), np.int64), np.empty(len(self._ends) + 1)
        self._time(sets, n, rows, threads, address(ends), len(self._ends), address(marks))
        return tuple(itertools.pairwise(marks.tolist()))

    def at(self, size: int, cell: Array, kept: Sequence[int] | None = None) -> BoundCalls:
        """Return the calls for runs of a size. They share all arguments with these calls; a run sets what changes.

        cell: the memory from which functions read the size.
        kept: which dispatches run at this size; all by default.
        """
        rows, sets = self._rows.copy(), [address(cell), size]
        for follows, numbers in self._alike.items():
            words, parts = follows(size)
            rows[numbers, PARTS] = parts
            for first in [ctypes.addressof(self._calls[k].arguments) for k in numbers if words]:
                for word, value in words.items():
                    sets += (first + 8 * word, value)
        for words, word, value, move in self._moving:
            sets += (ctypes.addressof(words) + 8 * word, value + move.at(size))
        made, ends = np.array(sets, np.int64).reshape(-1, 2), np.array(self._ends, np.int64)
        if kept is not None:
            begins = np.append(0, ends[:-1])[kept]
            lengths = ends[kept] - begins
            ends = np.cumsum(lengths)
            rows = rows[np.arange(lengths.sum()) + np.repeat(begins - (ends - lengths), lengths)]
        return BoundCalls(self._libraries, self._calls, ends.tolist(), self._alike, rows, made, self._moving)


class CallList:
    """Collects the calls of a program.

    engine:    render.c_engine's library.
    libraries: the libraries of the kernels.
    size:      the memory from which functions read the size of a run; here it holds the capacity.
    """

    def __init__(self, engine: ctypes.CDLL, libraries: Sequence[ctypes.CDLL], size: Array) -> None:
        self.engine, self._libraries, self.size = engine, (engine, *libraries), size
        self.lent: Sequence[Lent] = ()  # what calls read in place
        self._calls: list[Call] = []
        self._ends: list[int] = []  # where each dispatch ends
        self._moving: list[Moving] = []
        self._addresses: dict[str, int] = {}
        self._offsets: dict[tuple[Shape, tuple[Shape, ...]], Array] = {}

    def add(self, calls: Sequence[Call]) -> None:
        """Add the calls of the next dispatch."""
        self._calls += calls
        self._ends.append(len(self._calls))

    def follow(self, call: Call, step: Step, slot: int, itemsize: int, move: Move, size: int) -> None:
        """Make the addresses of a slot move with the size of a run. size: the size for which the call was made."""
        moved = Move(move.depth, move.step * itemsize, move.ring)
        for word, place in pointers(step):
            if place == slot:
                at = (call.arguments[word] or 0) - moved.at(size)
                self._moving.append(Moving(call.arguments, word, at, moved))

    def call(self, name: str, parts: int, memory: Sequence[tuple[Array, int]], at: AtSize | None = None) -> Call:
        """Return a call of the function `name` on memory: (array, first element) for each argument."""
        places = [array.ctypes.data + array.itemsize * offset for array, offset in memory]
        arrays = tuple([array for array, _ in memory])
        return Call(self._address(name), (ctypes.c_void_p * len(places))(*places), parts, arrays, at)

    def product(
        self,
        a: Array,
        b: Array,
        out: Array,
        limits: int = 0,
        sizes: Sequence[int] = (),
        ends: Sequence[tuple[Array, int, int] | None] = (None, None, None),
    ) -> Call:
        """Return the call of out = a b, for matrices or stacks, within limits. The rows of `out` are contiguous.

        sizes: the axes of the stack, m, n and k; one can be an Extent.
        ends:  as in `ProductStep`, with the i32 in an array of one element.
        """
        batch, (m, n), k = out.shape[:-2], out.shape[-2:], a.shape[-1]
        arrays = (np.broadcast_to(a, (*batch, m, k)), np.broadcast_to(b, (*batch, k, n)), out)
        steps = tuple([tuple([s // 4 for s in x.strides]) for x in arrays])
        key = (batch, tuple([s[:-2] for s in steps]))
        if key not in self._offsets:
            self._offsets[key] = offsets_in(batch, key[1])
        offsets = self._offsets[key]
        addresses = [x.ctypes.data for x in (*arrays, offsets)]
        whole, parts = _product_of((*batch, m, n, k))
        words = [*steps[0][-2:], *steps[1][-2:], steps[2][-2], *addresses, limits]
        ended = [w for x in ends for w in ((x[0].ctypes.data, *x[1:]) if x else (0, 0, 0))]
        words = [*[whole[i] for i in range(4)], *words, *ended]
        at = SizedProduct(tuple(sizes)) if grows(sizes) else None
        arguments = (ctypes.c_int64 * len(words))(*words)
        held = (*arrays, offsets, *[x[0] for x in ends if x])
        return Call(self._address("product"), arguments, parts, held, at)

    def gathered(
        self,
        a: tuple[tuple[Array, int], Spread],
        b: tuple[tuple[Array, int], Spread],
        out: Array,
        sizes: Sequence[int],
        stacked: bool,
        end: Array | None = None,
        terms: tuple[Array, int, int] | None = None,
    ) -> Call:
        """Return the call of out = a b, with the elements of `b` at sums of offsets. Rows of `out` are contiguous.

        sizes:   the axes of the stack, m, n and k; one of the stack, m or k can be an Extent.
        stacked: as in `GatheredStep`.
        end:     how many columns count, in an array of one element; None: all.
        terms:   which k count, as in `GatheredStep`, with the i32 likewise.
        """
        batch, m = out.shape[:-2], out.shape[-2]
        ((x, x_first), left), ((y, y_first), right) = a, b
        offsets = offsets_in(batch, (left.batch, right.batch, [s // 4 for s in out.strides[:-2]]))
        tables = [places(left.columns), places(right.rows), places(right.columns)]
        runs = [neighbours(t) for t in tables]
        k = len(tables[0])
        how = 3 if stacked else 1 if runs[2].mean() >= runs[1].mean() else 2  # if columns are not read where they lie
        whole, parts = SizedGathered(out.shape, k)(0)
        words = [whole[0], m, whole[2], k]
        words += [x.ctypes.data + 4 * x_first, y.ctypes.data + 4 * y_first, out.ctypes.data, offsets.ctypes.data]
        words += [left.rows[0].step if left.rows else 0, out.strides[-2] // 4]
        reach = int(tables[1].max() + tables[2].max()) + 1
        words += [t.ctypes.data for t in (*tables, *runs)]
        words += [how, whole[17], self._address("tracegrad_tiles"), reach]
        steps = np.diff(tables[0])
        words.append(1 if k == 1 else int(steps[0]) if (steps == steps[0]).all() else 0)
        words.append(end.ctypes.data if end is not None else 0)
        words += [terms[0].ctypes.data, *terms[1:]] if terms is not None else [0, k, 1]
        at = SizedGathered(tuple(sizes[:-1]), sizes[-1]) if grows(sizes) else None
        arguments, held = (ctypes.c_int64 * len(words))(*words), (x, y, out, offsets, *tables, *runs)
        return Call(self._address("gathered"), arguments, parts, held, at)

    def bound(self, left_out: Iterable[tuple[int, int]] = ()) -> BoundCalls:
        """Return the calls, ready to run. left_out: for each dispatch, what the function `left_out` yields."""
        alike: dict[AtSize, list[int]] = {}
        for k, c in enumerate(self._calls):
            if c.at is not None:
                alike.setdefault(c.at, []).append(k)
        rows = [(c.function, ctypes.addressof(c.arguments), c.parts, 0, 0) for c in self._calls]
        made = np.array(rows, np.int64).reshape(-1, COLUMNS)
        for (begin, end), most in zip(itertools.pairwise((0, *self._ends)), left_out):
            made[begin:end, SIZE:] = most
        return BoundCalls(
            self._libraries, list(self._calls), self._ends, alike, made, np.empty((0, 2), np.int64), self._moving
        )

    def _address(self, name: str) -> int:
        """Return the address of a function."""
        found = self._addresses.get(name)
        if found is None:
            library = next(x for x in self._libraries if hasattr(x, name))
            found = ctypes.cast(getattr(library, name), ctypes.c_void_p).value
            assert found is not None
            self._addresses[name] = found
        return found


def left_out(program: Program, memory: Mapping[str, Array]) -> Iterator[tuple[int, int]]:
    """Yield, for each dispatch, the address of a size and the largest value of it at which runs leave it out."""
    fields = {f.name: f for f in program.inputs}
    for k, at in program.order():
        around = [x for x in program.loops if x.begin <= k < x.end]
        ended = [(x.until.size, x.left_out(t)) for x, t in zip(around, at) if x.until and x.until.size in fields]
        name, most = ended[0] if ended else ("", 0)  # all of an iteration is left out, inner loops included
        f = fields.get(name)
        yield address(lying(memory[program.buffers[f.buffer].name], f)) if f else 0, most


def offsets_in(batch: Shape, steps: Iterable[Sequence[int]]) -> Array:
    """Return the offset of each matrix of a stack in several arrays, given their steps along the stack's axes."""
    points = np.array(list(itertools.product(*map(range, batch))), np.int64).reshape(math.prod(batch), len(batch))
    return np.stack([points @ np.asarray(s, np.int64) for s in steps], axis=-1)


def grows(sizes: Sequence[int]) -> bool:
    """Return whether one of these sizes depends on the size of a run."""
    return any(isinstance(x, Extent) for x in sizes)


def _product_of(sizes: Sequence[int]) -> tuple[Mapping[int, int], int]:
    """Return the arguments of a product that depend on its sizes, by number, and the largest number of parts.

    A smaller run uses the first points of the stack, because all axes before the one that grows have size 1.
    """
    *batch, m, n, k = sizes
    count = math.prod(batch)
    most = count if count >= PRODUCT_STACK else max(m, n) // PRODUCT_SIDE
    parts = max(1, min(count * m * n * (k + PRODUCT_STORE) // PRODUCT_GRAIN, most, PRODUCT_PARTS))
    return {0: count, 1: m, 2: n, 3: k}, parts


def places(lays: Sequence[Lay]) -> Array:
    """Return the offsets of the points of some axes, the last axis fastest."""
    found = np.zeros(1, np.int64)
    for lay in lays:
        t = np.arange(lay.size, dtype=np.int64) * lay.by
        found = (found[:, None] + (t // lay.of * lay.step + t % lay.of * lay.other)).reshape(-1)
    return found


def neighbours(at: Array) -> Array:
    """Return for each offset the length of the run of contiguous offsets that begins with it."""
    ends = np.append(np.flatnonzero(np.diff(at) != 1) + 1, len(at))
    each = np.arange(len(at))
    return ends[np.searchsorted(ends, each, side="right")] - each


class Lent:
    """An input that is read in place, or an output that is computed there.

    It knows the arguments of calls that point to it.
    """

    def __init__(self, flat: Array, offset: int, size: int) -> None:
        """flat: the array with memory for the value. offset, size: in elements."""
        self.flat, self.first, self.end = flat, offset, offset + size
        self.home = address(flat) + flat.itemsize * offset
        self.pointers: list[tuple[Any, int, int]] = []  # (arguments, index, distance from the value's begin)

    def note(
        self, call: Call, kernel: KernelSource, memory: Sequence[Array], offsets: Sequence[int], step: Step
    ) -> None:
        """Record which arguments of a call point into this value."""
        for k, place in pointers(step):
            if not isinstance(place, int) or memory[kernel.binding_of[place]] is not self.flat:
                continue
            if self.first <= offsets[place] < self.end:
                self.pointers.append((call.arguments, k, call.arguments[k] - self.home))

    def point(self, at: int | None = None) -> None:
        """Let the calls of the next run use this address; by default that in the array with memory for the value."""
        for arguments, k, behind in self.pointers:
            arguments[k] = (self.home if at is None else at) + behind

    def arguments(self) -> list[tuple[int, int]]:
        """Return the address of each argument, and its distance from the value's begin."""
        return [(ctypes.addressof(arguments) + 8 * k, behind) for arguments, k, behind in self.pointers]


def lent_fields(program: Program, memory: Mapping[str, Array], role: str) -> dict[str, Lent]:
    """Return, by name, the fields large enough to be used in place, if memory has their axes in the caller's order.

    role: "input", or "output": results that are no states, in memory that no call addresses by the size of a run.
    """
    arrays, fields = [memory[b.name] for b in program.buffers], program.inputs
    if role == "output":
        moves = [(d, k) for d in program.dispatches for k, move in d.moves if move.depth == BY_SIZE]
        apart = {d.buffers[program.kernels[d.kernel].binding_of[k]] for d, k in moves}
        apart |= {k for k, b in enumerate(program.buffers) if b.role != role}
        fields = [f for f in program.outputs if f.buffer not in apart and f.dtype != "bool"]
    large = [f for f in fields if not f.axis and lying(arrays[f.buffer], f).nbytes >= POOL_FROM]
    return {f.name: Lent(arrays[f.buffer], f.offset, f.size) for f in large}


def pointers(step: Step) -> list[tuple[int, Place]]:
    """Return the arguments of a call that are addresses, by number, and the place that each points to."""
    if isinstance(step, FunctionStep):
        return list(enumerate(step.places))
    first = FIRST_OF_GATHERED if isinstance(step, GatheredStep) else FIRST_OF_PRODUCT
    assert isinstance(step, GatheredStep | ProductStep)
    return [(first, step.a.place), (first + 1, step.b.place), (first + 2, step.out.place)]
