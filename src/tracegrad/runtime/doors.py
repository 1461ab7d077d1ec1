"""While a session's thread sleeps, let another thread run a program in the session's memory, as one C call.

Python handles signals between its instructions, never inside a C call. So Ctrl-C comes before or after a run.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from operator import add
from typing import Any, NamedTuple

from tracegrad.arrays import Array, np
from tracegrad.program import Field
from tracegrad.runtime.calls import BoundCalls, Lent
from tracegrad.runtime.storage import address, readable_around, taken

Direct = Callable[[Mapping[str, Any]], dict[str, Any] | None]


class DirectParts(NamedTuple):
    """The parts of a run of a program."""

    calls: BoundCalls
    given: dict[str, Array]  # the arrays that the session believes to be in the inputs' memory
    inputs: Sequence[tuple[Field, Array]]  # the memory of each input
    outputs: Sequence[tuple[Field, Array]]
    lent: Mapping[str, Lent]  # inputs that can be read in place
    handed: Mapping[str, Lent]  # outputs that are computed in the caller's arrays
    empty: Callable[..., Array]  # makes such an array, given its shape and type


FIXED = "PPlPllPlll"  # the argument of `run_direct` that all runs share: `direct_`, followed by its places
POINTER = "Pll"  # an argument of a call: its address, and the number of a place and the distance from its begin
USED = 1 << 62  # in the address of an array: it is used in place
PLACE = "Pl"  # the memory of an input or output: address, bytes


class Door:
    """A lock on a session's memory: either the session's thread uses it, or any thread for one run.

    engine: render.c_engine's library.
    """

    def __init__(self, engine: ctypes.CDLL, parts: Callable[[int], DirectParts | None]) -> None:
        self._state, self._parts = ctypes.c_int(0), parts
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
        instead of a function if other threads cannot run this program.
        """
        parts = self._parts(handle)
        if parts is None:
            return None
        into = [(f.name, np.int32 if f.dtype == "bool" else x.dtype) for f, x in parts.inputs]
        out_of = [(f, x.shape, x.dtype) for f, x in parts.outputs]
        handed = [parts.handed.get(f.name) for f, _ in parts.outputs]
        lent = [parts.lent.get(f.name) for f, _ in parts.inputs]
        places = [v for _, x in (*parts.inputs, *parts.outputs) for v in (address(x), x.nbytes)]
        moved = enumerate([*lent, *handed])
        pointers = [v for k, x in moved if x for at, behind in x.arguments() for v in (at, k, behind)]
        moving = ctypes.create_string_buffer(struct.pack(POINTER * (len(pointers) // 3), *pointers))
        words = (self._at, *parts.calls.given, address(moving), len(pointers) // 3, len(into), len(out_of), *places)
        fixed = ctypes.create_string_buffer(struct.pack(FIXED + PLACE * (len(into) + len(out_of)), *words))
        looks = [f.dtype if x else "" for (f, _), x in zip(parts.inputs, lent)]  # of inputs that can be read in place
        makers = [parts.empty if x else np.empty for x in handed]
        there = [USED if x else 0 for x in handed]
        at, pack = ctypes.addressof(fixed), struct.Struct("P" * (1 + len(into) + len(out_of))).pack

        def run(arrays: Mapping[str, Any]) -> dict[str, Any] | None:
            parts.given.clear()
            sources = [np.ascontiguousarray(arrays[name], dtype) for name, dtype in into]
            results = [made(shape, dtype) for made, (_, shape, dtype) in zip(makers, out_of)]
            # packed for each run: threads and signal handlers call this at the same time
            read = [address(x) + (USED if t and readable_around(x, t) else 0) for x, t in zip(sources, looks)]
            if not self._run(pack(at, *read, *map(add, map(address, results), there))):
                return None
            _ = fixed, moving  # and `parts`: keep the addressed memory alive
            return {f.name: taken(x, f) if f.dtype == "bool" else x for (f, _, _), x in zip(out_of, results)}

        return run
