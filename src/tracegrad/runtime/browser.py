"""The browser's WebGPU, for Python in its tab: Programs on the JavaScript runtime, in the thread that Python runs in.

A program crosses over once, as JSON. Runs submitted one behind the other cross over together and are one submission
of the device; their results come back together. Nothing here waits but `read`, and `load` where it can.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

from tracegrad import errors
from tracegrad.arrays import np
from tracegrad.dtypes import DTYPES, Shape
from tracegrad.errors import DeviceError, TracegradError
from tracegrad.init import Initializer, Literal
from tracegrad.program import Buffer, Program
from tracegrad.runtime.base import DeviceInfo, Timings, nothing
from tracegrad.runtime.storage import from_storage, to_storage
from tracegrad.runtime.tab import can_wait, javascript, pyodide, wait

RUNS_AT_ONCE = 64  # in one submission
SECONDS_AT_ONCE = 0.1  # that one submission should take: browsers give up on devices that seem to hang
BYTES_AT_ONCE = 1 << 26  # of inputs or outputs in one submission


class Batch:
    """Runs of one program that cross over together."""

    __slots__ = ("answer", "data", "error", "handle", "n", "outputs", "sent")

    def __init__(self, handle: int) -> None:
        self.handle, self.n, self.data = handle, 0, bytearray()
        self.answer: Any = None  # JavaScript's promise, once sent
        self.sent = 0.0
        self.outputs: bytes | None = None
        self.error: Exception | None = None


class Ticket:
    """One run under way. Awaiting it sends it, and ends when its outputs or its error are there."""

    __slots__ = ("batch", "index", "session")

    def __init__(self, session: BrowserSession, batch: Batch, index: int) -> None:
        self.session, self.batch, self.index = session, batch, index

    def __await__(self) -> Generator[Any, None, None]:
        yield from self.session.arrived(self.batch).__await__()


class BrowserSession:
    """The browser's WebGPU device; `runtime.base.Session` has the meaning of each method.

    Without stack switching `load` cannot wait: what is wrong with device or program is said by the first run.
    """

    def __init__(self) -> None:
        self.at_once, self.submissions = 1, 2  # the former by what the last one took
        self._landed = 0.0  # when that was there
        self._tab: Any = javascript().Tab.new()
        self._programs: dict[int, Program] = {}
        self._buffers: dict[str, Buffer] = {}
        self._batch: Batch | None = None
        self._next = 0
        self._closed = False

    @property
    def info(self) -> DeviceInfo:
        """The adapter's name is known once the device is open."""
        name = str(self._tab.adapter) or "the browser's"
        return DeviceInfo("webgpu", f"{name} (browser)", "swiftshader" in name.lower())

    def load(self, program: Program) -> int:
        """Hand the program over: allocated, and every kernel compiled in parallel; a handle."""
        self.flush()
        self._next += 1
        answer = self._tab.load(self._next, program.to_json())
        if can_wait():
            try:
                value_of(wait(answer, "loading a program"))
            except BaseException:
                self._tab.unload(self._next)
                raise
        self._programs[self._next] = program
        self._buffers |= {b.name: b for b in program.buffers}
        return self._next

    def unload(self, handle: int) -> None:
        """Free what only this program uses."""
        self.flush()
        if self._programs.pop(handle, None) is not None:
            self._tab.unload(handle)

    def submit(self, handle: int, inputs: Mapping[str, Any]) -> Ticket:
        """Add one run to those that cross over next."""
        self._check_open()
        batch = self._batch
        if batch is None or batch.handle != handle or batch.n >= RUNS_AT_ONCE:
            self.flush()
            batch = self._batch = Batch(handle)
        for f in self._programs[handle].inputs:
            batch.data += to_storage(inputs[f.name], f.dtype).tobytes()
        batch.n += 1
        return Ticket(self, batch, batch.n - 1)

    def flush(self, free: Callable[[], object] = nothing) -> None:
        """Let the runs submitted so far cross over."""
        self._check_open()
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.sent = time.perf_counter()
            batch.answer = self._tab.run(batch.handle, batch.n, sent(batch.data))

    def collect(self, ticket: Ticket) -> dict[str, Any]:
        """Outputs of that run by name."""
        self._check_open()
        batch = ticket.batch
        if batch.outputs is None and batch.error is None:
            wait(ticket, "collecting a run")
        if batch.error is not None:
            raise batch.error
        assert batch.outputs is not None
        fields = self._programs[batch.handle].outputs
        at = ticket.index * (len(batch.outputs) // batch.n)
        out: dict[str, Any] = {}
        for f in fields:
            kind = DTYPES[DTYPES[f.dtype].storage].numpy
            flat = np.frombuffer(batch.outputs, dtype=kind, count=f.size, offset=at)
            out[f.name] = from_storage(flat, type(f)(f.name, 0, 0, f.dtype, f.shape))
            at += 4 * f.size
        return out

    def timings(self, handle: int, inputs: Mapping[str, Any], runs: int) -> Timings:
        """Refused: DeviceError."""
        raise DeviceError("profile: not in a browser's Python; profile on a desktop, or use the browser's own profiler")

    def read(self, name: str) -> Any:
        """A persistent buffer, flat."""
        self.flush()
        b = self._persistent(name)
        answer = wait(self._tab.read(name), f"reading {name!r}")
        return np.frombuffer(value_of(answer).to_bytes(), dtype=DTYPES[b.dtype].numpy, count=b.size)

    def write(self, name: str, values: Any, offset: int = 0) -> None:
        """Overwrite part of a persistent buffer, after everything submitted so far."""
        self.flush()
        b = self._persistent(name)
        flat = np.ascontiguousarray(values, dtype=DTYPES[b.dtype].numpy).reshape(-1)
        if offset < 0 or offset + flat.size > b.size:
            raise DeviceError(f"elements {offset} to {offset + flat.size} of {name!r}, which has {b.size}")
        self._tab.write(name, sent(flat.tobytes()), offset)

    def interrupt(self) -> None:
        """Nothing here takes long."""

    def close(self) -> None:
        """Free everything. Closing twice is fine."""
        if not self._closed:
            self._closed = True
            self._tab.destroy()

    async def arrived(self, batch: Batch) -> None:
        """Send `batch` if that was not done, and take its answer. What goes wrong is raised by `collect`."""
        try:
            if batch is self._batch:
                self.flush()
            outputs: bytes = value_of(await batch.answer).to_bytes()
        except Exception as e:
            batch.error = e
            return
        if batch.outputs is None:  # another run of it may have been awaited meanwhile
            batch.outputs = outputs
            each = max(1, len(batch.data) // batch.n, len(outputs) // batch.n)
            now = time.perf_counter()
            quick = int(batch.n * SECONDS_AT_ONCE / max(now - max(batch.sent, self._landed), 1e-6))
            self._landed = now
            self.at_once = max(1, min(RUNS_AT_ONCE, BYTES_AT_ONCE // each, quick))

    def _persistent(self, name: str) -> Buffer:
        if name not in self._buffers:
            raise DeviceError(f"no persistent buffer {name!r}; there are {', '.join(self._buffers) or 'none'}")
        return self._buffers[name]

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError("the session is closed")


def sent(data: bytes | bytearray) -> Any:
    """A copy as a JavaScript Uint8Array."""
    return pyodide("ffi").to_js(data)


def value_of(answer: Any) -> Any:
    """What JavaScript answered; its error is raised as Python's of the same name."""
    error = getattr(answer, "error", None)
    if error is None:
        return answer.value
    kind = getattr(errors, str(error.name), DeviceError)
    raise (kind if isinstance(kind, type) and issubclass(kind, TracegradError) else DeviceError)(str(error.message))


def draw(specs: Sequence[tuple[Shape, Initializer]], seed: int) -> list[Any]:
    """First values of parameters by js/random.js, whose numbers are those of `runtime.draw` bit for bit."""
    dtypes = [init.dtype.name if isinstance(init, Literal) else "f32" for _, init in specs]
    fields = [
        {"shape": shape, "dtype": dtype, "spec": {"init": init.spec()}}
        for (shape, init), dtype in zip(specs, dtypes, strict=True)
    ]
    parts = javascript().drawn(json.dumps(fields), seed)
    return [
        np.frombuffer(init.data if isinstance(init, Literal) else part.to_bytes(), DTYPES[dtype].numpy).reshape(shape)
        for part, (shape, init), dtype in zip(parts, specs, dtypes, strict=True)
    ]
