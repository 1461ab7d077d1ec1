"""Lend a session's memory while its thread sleeps: another thread can do one run of a program, in one C call.

Python handles signals between its instructions, never inside a C call. So Ctrl-C comes before or after a run.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tracegrad.arrays import Array, np
from tracegrad.program import Field
from tracegrad.runtime.calls import BoundCalls
from tracegrad.runtime.storage import address, taken, to_storage

Direct = Callable[[Mapping[str, Any]], dict[str, Any] | None]


class DirectParts(NamedTuple):
    """The parts of a run of a program."""

    calls: BoundCalls
    given: dict[str, Array]  # the arrays that the session believes to be in the inputs' memory
    inputs: Sequence[tuple[Field, Array]]  # the memory of each input
    outputs: Sequence[tuple[Field, Array]]


COPY = "PPl"  # a copy that `run_direct` makes before or after the calls: to, from, bytes


class Door:
    """Tells who can use a session's memory: the session's thread, or any thread for the length of one run.

    engine: render.c_engine's library.
    """

    def __init__(self, engine: ctypes.CDLL, parts: Callable[[int], DirectParts | None]) -> None:
        self._state, self._parts = ctypes.c_int(0), parts
        self._at = ctypes.addressof(self._state)
        self._open, self._shut, self._run = engine.open_door, engine.shut_door, engine.run_direct
        pointer, count = ctypes.c_void_p, ctypes.c_long
        for function in (self._open, self._shut):
            function.argtypes, function.restype = (pointer,), None
        self._run.argtypes = (pointer, pointer, count, pointer, count, count, pointer, count)
        self._run.restype = ctypes.c_int

    def open(self) -> None:
        """Let other threads in: the session's thread is about to sleep."""
        self._open(self._at)

    def shut(self) -> None:
        """Keep other threads out: the session's thread works again. Waits for a run under way."""
        self._shut(self._at)

    def direct(self, handle: int) -> Direct | None:
        """Return a function from inputs to outputs that does one run on its caller's thread; None if there can be none.

        The function returns None, and does nothing, if the door is shut or another thread is inside.
        """
        parts = self._parts(handle)
        if parts is None:
            return None
        into = [(f.name, f.dtype, x.ctypes.data, x.nbytes) for f, x in parts.inputs]
        out_of = [(f, x, x.ctypes.data, x.nbytes) for f, x in parts.outputs]
        rows_in, rows_out = struct.Struct(COPY * len(into)), struct.Struct(COPY * len(out_of))
        calls, given = parts.calls, parts.given

        def run(arrays: Mapping[str, Any]) -> dict[str, Any] | None:
            given.clear()
            sources = [to_storage(arrays[name], dtype) for name, dtype, _, _ in into]
            results = [np.empty_like(x) for _, x, _, _ in out_of]
            first = rows_in.pack(*[v for (_, _, to, n), x in zip(into, sources) for v in (to, address(x), n)])
            last = rows_out.pack(*[v for (_, _, at, n), x in zip(out_of, results) for v in (address(x), at, n)])
            if not self._run(self._at, first, len(into), *calls.given, last, len(out_of)):
                return None
            return {f.name: taken(x, f) if f.dtype == "bool" else x for (f, _, _, _), x in zip(out_of, results)}

        return run
