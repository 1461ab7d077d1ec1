"""Time each dispatch of a loaded program.

Each dispatch gets its own pass, whose start and end the device stamps. For a device without timestamps, or with only
zeros, the host waits after every dispatch instead, which adds the round trip to each.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

from tracegrad.arrays import np
from tracegrad.runtime.base import Timings
from tracegrad.runtime.wgpu_calls import BoundDispatch, Commands
from tracegrad.runtime.wgpu_program import Loaded
from tracegrad.runtime.wgpu_shared import COPY_DST, COPY_SRC, MAP_READ, Shared

QUERY_RESOLVE = 0x200  # GPUBufferUsage
IN_A_SET = 4096  # queries: what every device allows

Span = tuple[float, float]


def time_launches(loaded: Loaded, runs: int) -> Timings:
    """Time `runs` runs, with the inputs of the last submitted run. A dispatch without workgroups takes no time."""
    shared, launches = loaded.shared, loaded.dispatched
    timed: list[list[Span]] = []
    clock = "timestamps of the device"
    if "timestamp-query" in shared.device.features and launches:
        timed = stamped(shared, launches, runs)
    if not any(end > begin for spans in timed for begin, end in spans):
        clock = "the host's clock, waiting after each dispatch (the device has no timestamps): every time is too long"
        timed = [list(waited(shared, launches)) for _ in range(runs)]
    return Timings(clock, tuple(tuple(_with_empty(loaded, spans)) for spans in timed))


def _with_empty(loaded: Loaded, spans: Sequence[Span]) -> Iterator[Span]:
    """Yield a span for every dispatch of the program, in the order they run."""
    rest, now = iter(spans), spans[0][0] if spans else 0.0
    for d in loaded.program.unrolled():
        span = next(rest) if all(d.grid) else (now, now)
        now = span[1]
        yield span


def stamped(shared: Shared, launches: Sequence[BoundDispatch], runs: int) -> list[list[Span]]:
    """Return, for each run, the start and end of each launch in seconds, by the device's clock."""
    device, count = shared.device, 2 * len(launches)
    sets = [
        device.create_query_set(type="timestamp", count=min(IN_A_SET, count - k)) for k in range(0, count, IN_A_SET)
    ]
    buffer = shared.allocate("timestamps", 8 * count, QUERY_RESOLVE | COPY_SRC)
    out: list[list[Span]] = []
    try:
        for _ in range(runs):
            encoder = device.create_command_encoder()
            for k, x in enumerate(launches):
                number, at = divmod(2 * k, IN_A_SET)
                writes = {
                    "query_set": sets[number],
                    "beginning_of_pass_write_index": at,
                    "end_of_pass_write_index": at + 1,
                }
                run = encoder.begin_compute_pass(timestamp_writes=writes)
                run.set_pipeline(x.pipeline)
                run.set_bind_group(0, x.group)
                if x.offsets is not None:
                    run.set_bind_group(1, x.offsets, [x.at])
                run.dispatch_workgroups(*x.grid)
                run.end()
            for number, queries in enumerate(sets):
                encoder.resolve_query_set(queries, 0, queries.count, buffer, 8 * IN_A_SET * number)
            device.queue.submit([encoder.finish()])
            stamps = np.frombuffer(device.queue.read_buffer(buffer), np.uint64).reshape(-1, 2).tolist()
            out.append([(1e-9 * begin, 1e-9 * end) for begin, end in stamps])
    finally:
        buffer.destroy()
        for queries in sets:
            queries.destroy()
    return out


def waited(shared: Shared, launches: Sequence[BoundDispatch]) -> Iterator[Span]:
    """Yield spans by the host's clock, from before a submission until it is done."""
    calls, done = shared.calls, shared.allocate("done", 4, MAP_READ | COPY_DST)
    try:
        for x in launches:
            commands = calls.prepared(Commands([], [calls.prepare([x])], []))
            begin = time.perf_counter()
            mark = calls.submit(commands)
            calls.sent(mark)
            calls.fetch(done, 4, mark)
            yield begin, time.perf_counter()
    finally:
        done.destroy()
