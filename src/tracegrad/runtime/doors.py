"""A program in the memory of a CPU's session, and a door that lets another thread run it while the session's sleeps.

Such a run is one C call. Python handles signals between its instructions, never inside a C call. So Ctrl-C comes before
or after a run.
"""

from __future__ import annotations

import ctypes
import struct
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from itertools import pairwise
from operator import add
from typing import Any

from tracegrad.arrays import Array, np
from tracegrad.program import Field, Program
from tracegrad.runtime.c_calls import BoundCalls, Lent
from tracegrad.runtime.memory import address, readable_around, taken

Direct = Callable[[Mapping[str, Any]], dict[str, Any] | None]


class InTurn(list[Callable[[], None]]):
    """Kernels in NumPy, one for each dispatch."""

    def whole(self) -> None:
        """Run them all."""
        with np.errstate(all="ignore"):
            for run in self:
                run()

    def timed(self) -> tuple[tuple[float, float], ...]:
        """Run them all, and return when each began and ended."""
        marks = [time.perf_counter()]
        with np.errstate(all="ignore"):
            for run in self:
                run()
                marks.append(time.perf_counter())
        return tuple(pairwise(marks))


@dataclass(slots=True)
class CpuProgram:
    """A program bound to memory."""

    program: Program
    memory: dict[str, Array]
    libraries: list[Future[ctypes.CDLL | None]]  # of its kernels, the engine first; empty if the kernels are in NumPy
    wrong: bool | None = None  # does C compute a kernel wrongly? None: not checked yet
    inputs: list[tuple[Field, Array]] = field(default_factory=list[tuple[Field, Array]])  # the memory of each input
    outputs: list[tuple[Field, Array]] = field(default_factory=list[tuple[Field, Array]])
    given: dict[str, Array] = field(default_factory=dict[str, Array])  # the array last copied into each input's memory
    lent: dict[str, Lent] = field(default_factory=dict[str, Lent])  # large inputs that are read in place
    handed: dict[str, Lent] = field(default_factory=dict[str, Lent])  # large outputs that are computed in place
    # bound kernels in NumPy, by number, buffers and offsets; all sizes share kernels that do not read the size
    made: dict[Any, Callable[[], None]] = field(default_factory=dict[Any, "Callable[[], None]"])
    calls: BoundCalls | InTurn | None = None  # all dispatches in C or in NumPy, once they are bound
    like: CpuProgram | None = None  # the program at its capacity, if this is the same at another size
    size: Array = field(init=False)  # of the run under way, in the memory that kernels in C read

    def __post_init__(self) -> None:
        self.size = self.like.size if self.like is not None else np.array([self.program.size], np.int64)


FIXED = "PPlPllPlll"  # the argument of `run_direct` that all runs share: `direct_`, followed by its places
POINTER = "Pll"  # an argument of a call: its address, and the number of a place and the distance from its begin
USED = 1 << 62  # in the address of an array: it is used in place
PLACE = "Pl"  # the memory of an input or output: address, bytes


class Door:
    """A lock on a session's memory: either the session's thread uses it, or any thread for one run.

    engine: the library of `render/c_engine.py`.
    ready:  returns a loaded program, bound to memory.
    empty:  makes an array of a shape and type, for an output that is computed in the caller's memory.
    """

    def __init__(self, engine: ctypes.CDLL, ready: Callable[[int], CpuProgram], empty: Callable[..., Array]) -> None:
        self._state, self._ready, self._empty = ctypes.c_int(0), ready, empty
        self._at = ctypes.addressof(self._state)
        self._open, self._shut, self._run = engine.open_door, engine.shut_door, engine.run_direct
        for function in (self._open, self._shut, self._run):
            function.argtypes, function.restype = (ctypes.c_void_p,), None
        self._run.restype = ctypes.c_int

    def open(self) -> None:
        """Let other threads in: the session's thread is about to sleep."""
        self._open(self._at)

    def shut(self) -> None:
        """Keep other threads out: the session's thread works again. Waits for a run under way."""
        self._shut(self._at)

    def direct(self, handle: int) -> Direct | None:
        """Return a function that does one run on its caller's thread, from inputs to outputs.

        The function returns None, and does nothing, if the door is shut or another thread is inside. Return None
        instead of a function if other threads cannot run this program: in NumPy an interrupt could end a kernel midway.
        Also None if memory has the axes of an input or output in another order.
        """
        p = self._ready(handle)
        if not isinstance(p.calls, BoundCalls) or any(f.axis for f, _ in (*p.inputs, *p.outputs)):
            return None
        into = [(f.name, np.int32 if f.dtype == "bool" else x.dtype) for f, x in p.inputs]
        out_of = [(f, x.shape, x.dtype) for f, x in p.outputs]
        handed = [p.handed.get(f.name) for f, _ in p.outputs]
        lent = [p.lent.get(f.name) for f, _ in p.inputs]
        places = [v for _, x in (*p.inputs, *p.outputs) for v in (address(x), x.nbytes)]
        moved = enumerate([*lent, *handed])
        pointers = [v for k, x in moved if x for at, behind in x.arguments() for v in (at, k, behind)]
        moving = ctypes.create_string_buffer(struct.pack(POINTER * (len(pointers) // 3), *pointers))
        words = (self._at, *p.calls.given, address(moving), len(pointers) // 3, len(into), len(out_of), *places)
        fixed = ctypes.create_string_buffer(struct.pack(FIXED + PLACE * (len(into) + len(out_of)), *words))
        looks = [f.dtype if x else "" for (f, _), x in zip(p.inputs, lent)]  # of inputs that can be read in place
        makers = [self._empty if x else np.empty for x in handed]
        there = [USED if x else 0 for x in handed]
        at, pack = ctypes.addressof(fixed), struct.Struct("P" * (1 + len(into) + len(out_of))).pack

        def run(arrays: Mapping[str, Any]) -> dict[str, Any] | None:
            p.given.clear()
            sources = [np.ascontiguousarray(arrays[name], dtype) for name, dtype in into]
            results = [made(shape, dtype) for made, (_, shape, dtype) in zip(makers, out_of)]
            # packed for each run: threads and signal handlers call this at the same time
            read = [address(x) + (USED if t and readable_around(x, t) else 0) for x, t in zip(sources, looks)]
            if not self._run(pack(at, *read, *map(add, map(address, results), there))):
                return None
            _ = fixed, moving  # and `p`: keep the addressed memory alive
            return {f.name: taken(x, f) if f.dtype == "bool" else x for (f, _, _), x in zip(out_of, results)}

        return run
