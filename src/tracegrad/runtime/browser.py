"""The browser's WebGPU, for Python in its tab: Programs on the JavaScript runtime, in the thread that Python runs in.

A program is passed to JavaScript once, as JSON. The runs of a batch are passed together, as one submission to the
device, and their results come back together. Only `read` and `Batch.outputs` wait, and `load` if Python can wait.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

from tracegrad import errors
from tracegrad.arrays import HAVE_NUMPY, np
from tracegrad.dtypes import DTYPES
from tracegrad.errors import DeviceError, TracegradError
from tracegrad.program import Buffer, Program
from tracegrad.runtime.base import DeviceInfo, Timings, check_open, check_within, persistent
from tracegrad.runtime.memory import from_storage, to_storage
from tracegrad.runtime.tab import can_wait, javascript, pyodide, wait
from tracegrad.tuning import TAB_BYTES, TAB_RUNS, TAB_SECONDS


class Batch:
    """Runs of one program that were passed to JavaScript together. Await it to get the outputs or the error."""

    __slots__ = ("answer", "error", "program", "raw", "runs")

    def __init__(self, program: Program, runs: int, answer: Any) -> None:
        self.program, self.runs, self.answer = program, runs, answer  # JavaScript's promise
        self.raw: bytes | None = None
        self.error: Exception | None = None

    def __await__(self) -> Generator[Any, None, None]:
        yield from self._arrived().__await__()

    async def _arrived(self) -> None:
        """Wait for the answer. `outputs` raises its error."""
        try:
            self.raw = value_of(await self.answer).to_bytes()
        except Exception as e:
            self.error = e

    def outputs(self) -> list[dict[str, Any]]:
        """Return the outputs of each run by name. Raises the error of the runs if there is one."""
        if self.raw is None and self.error is None:
            wait(self, "waiting for a run")
        if self.raw is None:
            raise self.error or DeviceError("the runs returned no result")
        found: list[dict[str, Any]] = []
        at = 0
        for _ in range(self.runs):
            outputs: dict[str, Any] = {}
            for f in self.program.outputs:
                kind = DTYPES[DTYPES[f.dtype].storage].numpy
                flat = np.frombuffer(self.raw, dtype=kind, count=f.size, offset=at)
                outputs[f.name] = from_storage(flat, type(f)(f.name, 0, 0, f.dtype, f.shape))
                at += 4 * f.size
            found.append(outputs)
        return found


class BrowserSession:
    """The browser's WebGPU device; `runtime.base.Session` documents each method.

    Without stack switching (JSPI), `load` cannot wait. Then the first run reports errors of the device or program.
    """

    def __init__(self) -> None:
        self.ahead, self.batch_seconds, self.door = 2, TAB_SECONDS, None
        self._tab: Any = javascript().Tab.new()
        self._programs: dict[int, Program] = {}
        self._buffers: dict[str, Buffer] = {}
        self._next = 0
        self._closed = False

    @property
    def info(self) -> DeviceInfo:
        """The device, with its adapter's name once it is open."""
        name = str(self._tab.adapter) or "the browser's"
        return DeviceInfo("webgpu", f"{name} (browser)", "swiftshader" in name.lower())

    def load(self, program: Program, like: int | None = None) -> int:
        """Pass the program to JavaScript, and return a handle. Kernels are compiled in parallel, and checked once."""
        self._next += 1
        answer = self._tab.load(self._next, program.to_json(), check_of(program))
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
        if self._programs.pop(handle, None) is not None:
            self._tab.unload(handle)

    def capacity(self, handle: int) -> int:
        """Return the most runs that browsers accept without resetting the device."""
        program = self._programs[handle]
        largest = max(sum(4 * f.size for f in fields) for fields in (program.inputs, program.outputs))
        return max(1, min(TAB_RUNS, TAB_BYTES // max(1, largest)))

    def run(self, handle: int, inputs: Sequence[Mapping[str, Any]]) -> Batch:
        """Send the runs to JavaScript."""
        check_open(self._closed)
        program = self._programs[handle]
        data = b"".join(to_storage(given[f.name], f.dtype).tobytes() for given in inputs for f in program.inputs)
        return Batch(program, len(inputs), self._tab.run(handle, len(inputs), sent(data)))

    def timings(self, handle: int, inputs: Mapping[str, Any], runs: int) -> Timings:
        """Raise DeviceError: a browser gives no timings."""
        raise DeviceError("profile: not in a browser's Python; profile on a desktop, or use the browser's own profiler")

    def read(self, name: str) -> Any:
        """Return a persistent buffer, flat."""
        b: Buffer = persistent(self._buffers, name)
        answer = wait(self._tab.read(name), f"reading {name!r}")
        return np.frombuffer(value_of(answer).to_bytes(), dtype=DTYPES[b.dtype].numpy, count=b.size)

    def write(self, name: str, values: Any, offset: int = 0) -> None:
        """Overwrite part of a persistent buffer, after everything submitted so far."""
        b: Buffer = persistent(self._buffers, name)
        flat = np.ascontiguousarray(values, dtype=DTYPES[b.dtype].numpy).reshape(-1)
        check_within(name, offset, flat.size, b.size)
        self._tab.write(name, sent(flat.tobytes()), offset)

    def interrupt(self) -> None:
        """Do nothing, because nothing here takes long."""

    def close(self) -> None:
        """Free everything. A second call does nothing."""
        if not self._closed:
            self._closed = True
            self._tab.destroy()


def sent(data: bytes | bytearray) -> Any:
    """Return a copy of the data as a JavaScript Uint8Array."""
    return pyodide("ffi").to_js(data)


def value_of(answer: Any) -> Any:
    """Return JavaScript's answer; raise its error as Python's error of the same name."""
    error = getattr(answer, "error", None)
    if error is None:
        return answer.value
    kind = getattr(errors, str(error.name), DeviceError)
    raised = (kind if isinstance(kind, type) and issubclass(kind, TracegradError) else DeviceError)(str(error.message))
    if isinstance(raised, errors.CompileError):
        raised.kernel = error.kernel
    raise raised


def check_of(program: Program) -> Any:
    """Return the function that JavaScript calls to get the check of unverified kernels; None without NumPy."""
    if not HAVE_NUMPY:
        return None
    from tracegrad.runtime.recorded import file_of, recorded
    from tracegrad.runtime.verify import enabled

    def told() -> Any:
        check = recorded(program, {})
        return sent(file_of({"program": check} if check else {}))

    return pyodide("ffi").create_proxy(told) if enabled() else None
