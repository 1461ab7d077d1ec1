"""The time of each dispatch of a step, and how near it is to the limits of the device."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from tracegrad.arrays import np
from tracegrad.compiler.build import Built
from tracegrad.compiler.dispatches import COUNTED, DispatchInfo, dispatches_of
from tracegrad.compiler.layout import Persistent
from tracegrad.compiler.pipeline import make_program
from tracegrad.dtypes import TensorType, f32
from tracegrad.files.jsontext import dumped
from tracegrad.introspection.tables import Table, amount, escape, fragment, written
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.ops.linalg import matmul
from tracegrad.prims.leaves import leaf
from tracegrad.program import Buffer, Program
from tracegrad.runtime.base import Session, Timings, as_run

GPU = 4096, 2**25  # side of the matmul, elements copied: 3 ms and 0.1 ms on an NVIDIA H200; neither fits its cache
CPU = 512, 2**24  # for a CPU and for a software adapter: tens of milliseconds
RUNS, SECONDS = 50, 0.3  # the fastest of RUNS runs counts, or of the runs within SECONDS
A, B, RESULT = "profile.a", "profile.b", "profile.result"  # no array of a user's program has a dot in its name


class Limits(NamedTuple):
    """The highest rates that the device has reached: operations, and bytes of memory, per second."""

    flops: float
    bytes: float
    side: int  # of the product's matrices
    copied: int  # elements

    def share(self, flops: int, bytes: int, seconds: float) -> tuple[float, str]:
        """Return the share of the device's limit that this work reaches, and the limit: "compute" or "memory"."""
        compute, memory = flops / self.flops, bytes / self.bytes
        return max(compute, memory) / seconds if seconds else 0.0, "compute" if compute > memory else "memory"

    def __str__(self) -> str:
        side, copied = f"{self.side} x {self.side}", amount(8 * self.copied, "B")
        return (
            f"limits, measured here: {amount(self.flops, 'FLOP/s')} (a product of {side} matrices), "
            f"{amount(self.bytes, 'B/s')} (a copy, {copied} read and written)"
        )


class Holder(Protocol):
    """The owner of a session. It keeps the measured limits of the session's device."""

    limits: Limits | None


def measure_limits(session: Session) -> Limits:
    """Measure the limits: run a matmul and a copy on the session's device, and unload them."""
    info = session.info
    side, copied = GPU if info.gpu and not info.software else CPU
    return Limits(
        2 * side**3 / _fastest(session, _product(side)), 8 * copied / _fastest(session, _copy(copied)), side, copied
    )


def _fastest(session: Session, program: Program) -> float:
    """Return the seconds of the fastest run, on random numbers: zeros are faster on some devices."""
    handle = session.load(program)
    try:
        numbers: Any = np.random.default_rng(0)
        for b in program.buffers:
            if b.name in (A, B):
                session.write(b.name, numbers.random(b.size, np.float32))
        first = session.timings(handle, {}, 1).quickest
        return session.timings(handle, {}, min(RUNS, 3 + int(SECONDS / first))).quickest
    finally:
        session.unload(handle)


def _product(side: int) -> Program:
    a, b = (_array(name, side * side) for name in (A, B))
    return _program(matmul(a.reshape(side, side), b.reshape(side, side)).reshape(side * side), A, B)


def _copy(size: int) -> Program:
    return _program(-_array(A, size), A)


def _array(name: str, size: int) -> Tensor:
    return leaf("state", name, TensorType(f32, (size,)))


def _program(result: Tensor, *names: str) -> Program:
    buffers = tuple(Buffer(name, "f32", result.size, "state") for name in (*names, RESULT))
    return make_program(Graph({}, {}, {RESULT: result}), Persistent(buffers), {}, {})


SHOWN = 40  # rows of the text; the HTML has all rows
HEAD = ("#", "what", "time", "share", "bytes", "FLOP", "B/s", "FLOP/s", "of limit", "lines")


class TimedDispatch(NamedTuple):
    """One dispatch and its time: the median of all runs. In a loop, times are summed within a run."""

    info: DispatchInfo
    seconds: float
    share: float  # of the time of all dispatches
    of_limit: float  # share of the device's limit; 1 is the limit
    limit: str  # the nearer limit: "compute" or "memory"

    @property
    def bytes_per_second(self) -> float:
        """Bytes read and written, per second."""
        return self.info.cost.bytes / self.seconds if self.seconds else 0.0

    @property
    def flops_per_second(self) -> float:
        """Floating-point operations per second."""
        return self.info.cost.flops / self.seconds if self.seconds else 0.0


@dataclass(frozen=True, slots=True, repr=False)
class Profile:
    """The times of every dispatch of a step or run, in order. Prints as a table, the slowest first.

    rows:     one `TimedDispatch` per dispatch, with `info`, `seconds`, `share`, `of_limit`, `limit`.
    order:    numbers of the rows in execution order. Rows in loops occur several times.
    timings:  start and end of each dispatch, in the order of `order`, for each run.
    """

    device: str
    rows: tuple[TimedDispatch, ...]
    order: tuple[int, ...]
    timings: Timings
    limits: Limits

    @property
    def seconds(self) -> float:
        """The time of all dispatches together."""
        return sum(row.seconds for row in self.rows)

    def table(self) -> Table:
        """Return a table of all dispatches, the slowest first."""
        rows = sorted(self.rows, key=lambda row: -row.seconds)
        return Table(HEAD, [_cells(row) for row in rows], left=("what", "lines"))

    @property
    def notes(self) -> tuple[str, ...]:
        """The lines of text below the table, which explain its numbers."""
        runs = len(self.timings.runs)
        return (
            f"{len(self.rows)} dispatches on {self.device}: {duration(self.seconds)}",
            f"time: median of {runs} runs, by {self.timings.clock}",
            COUNTED,
            f"of limit: the nearer of the two {self.limits}",
            "more than 100%: the kernel read from a cache, or it read fewer bytes than counted",
        )

    def __str__(self) -> str:
        table = self.table()
        rest = sorted((row.share for row in self.rows), reverse=True)[SHOWN:]
        more = [f"... {len(rest)} more, {sum(rest):.1%} of the time"] if rest else []
        return "\n".join([Table(table.head, table.rows[:SHOWN], table.left).text(), *more, "", *self.notes])

    __repr__ = __str__

    def _repr_html_(self) -> str:
        return fragment(self.table().html(), *(f"<div>{escape(note)}</div>" for note in self.notes))

    def trace(self) -> dict[str, Any]:
        """Return the runs as a Chrome trace: one event per dispatch, in microseconds from the first one."""
        zero = min((spans[0][0] for spans in self.timings.runs if spans), default=0.0)
        events: list[dict[str, Any]] = [
            {"ph": "M", "name": "process_name", "pid": 1, "tid": 1, "args": {"name": self.device}},
            {"ph": "M", "name": "thread_name", "pid": 1, "tid": 1, "args": {"name": "dispatches"}},
        ]
        for run, spans in enumerate(self.timings.runs):
            for number, (begin, end) in zip(self.order, spans):
                d = self.rows[number].info
                seen = {
                    "run": run, "dispatch": d.number, "lines": d.lines, "workgroups": d.workgroups,
                    "flops": d.cost.flops, "bytes_read": d.cost.read, "bytes_written": d.cost.written,
                }  # fmt: skip
                at = {"ts": 1e6 * (begin - zero), "dur": 1e6 * (end - begin), "pid": 1, "tid": 1}
                events.append({"ph": "X", "cat": "dispatch", "name": d.label, **at, "args": seen})
        return {"traceEvents": events, "displayTimeUnit": "ns", "otherData": {"clock": self.timings.clock}}

    def save(self, path: str | os.PathLike[str]) -> Path:
        """Write the Chrome trace, a JSON file for ui.perfetto.dev or chrome://tracing. Returns its path."""
        return written(path, dumped(self.trace()))


def profiled(built: Built, timings: Timings, session: Session, holder: Holder) -> Profile:
    """Compute the median times, and their shares of the total and of the device's limits. Needs the worker's thread."""
    device, limits = session.info, holder.limits or measure_limits(session)
    holder.limits = limits
    program = as_run(built.program, device)
    order = [number for number, _ in program.order()]
    sums = [[0.0] * len(program.dispatches) for _ in timings.runs]
    for spans, run in zip(timings.runs, sums):
        for number, (begin, end) in zip(order, spans, strict=True):
            run[number] += end - begin
    seconds = [float(np.median(each)) for each in zip(*sums, strict=True)]
    total = sum(seconds)
    rows: list[TimedDispatch] = []
    for d, s in zip(dispatches_of(built.graph, program), seconds, strict=True):
        rows.append(TimedDispatch(d, s, s / total if total else 0.0, *limits.share(d.cost.flops, d.cost.bytes, s)))
    return Profile(str(device), tuple(rows), tuple(order), timings, limits)


def _cells(row: TimedDispatch) -> tuple[str, ...]:
    d = row.info
    return (
        str(d.number), d.what, duration(row.seconds), f"{row.share:.1%}", amount(d.cost.bytes, "B"),
        amount(d.cost.flops), amount(row.bytes_per_second, "B/s"), amount(row.flops_per_second),
        f"{row.of_limit:.0%} {row.limit}", d.lines,
    )  # fmt: skip


def duration(seconds: float) -> str:
    """Return a time as text, such as `12.3 µs`."""
    scale, unit = (1e6, "µs") if seconds < 1e-3 else (1e3, "ms") if seconds < 1 else (1, "s")
    return f"{seconds * scale:.3g} {unit}"
