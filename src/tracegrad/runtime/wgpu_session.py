"""The native WebGPU runtime: Programs on a wgpu device. The runs of a batch share a submission and its pass.

Host time on a two-core machine (wgpu 0.32.0, llvmpipe, medians). A dispatch with its pipeline, bind group and
offsets costs 4.9 µs by the public API and 2.8 µs by direct calls, its share of finishing the command buffer included.
`submit` of a two-dispatch program costs 64 and 29 µs, a 4 KB write 3.5 and 2.2 µs. A step of eight dispatches, in a
submission of several steps, costs this thread 95 µs by direct calls and 67 compiled (on a slower day, empty grids).
Offsets cost 2.01 µs by one bind group with a dynamic offset, and 2.02 µs by a bind group for each dispatch (direct
calls, empty grids). The session uses a dynamic offset, which needs only one object.

A batch may be encoded and sent by another thread (wgpu_compiled.py) while the caller stages the next and reads the
outputs of the one before. All other calls to the device wait until that thread is idle.

Some errors abort the process inside wgpu: a mapped or destroyed buffer in a submission, or a mapped range of an
unmapped buffer. Three rules prevent them. Memory is free only if it never was mapped or was unmapped since. Arrays are
destroyed only with the program that submits them. An ended session or lost device rejects every call in Python. The
only remaining case is a device that is lost between finishing a command buffer and submitting it, or during a wait.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import logging
from collections.abc import Generator, Mapping, Sequence
from typing import Any

from tracegrad.arrays import np
from tracegrad.errors import DeviceError, DeviceLostError, TracegradError
from tracegrad.program import Program
from tracegrad.runtime.base import DeviceInfo, Timings, as_run, check_within, persistent
from tracegrad.runtime.c_compiler import compiler
from tracegrad.runtime.cache import Verdicts
from tracegrad.runtime.memory import check_memory
from tracegrad.runtime.process import in_background
from tracegrad.runtime.wgpu_adapter import AdapterInfo, load_wgpu, open_device
from tracegrad.runtime.wgpu_calls import Calls, Commands, Copy, LogTap, device_error
from tracegrad.runtime.wgpu_compiled import SOURCE, CompiledCalls
from tracegrad.runtime.wgpu_program import Loaded, build, resized
from tracegrad.runtime.wgpu_rings import Array, BatchMemory, stored_dtype
from tracegrad.runtime.wgpu_shared import COPY_DST, MAP_READ, Shared, check_limits
from tracegrad.runtime.wgpu_timing import time_launches
from tracegrad.runtime.wgpu_verify import SELF_TEST, Unchecked
from tracegrad.tuning import AHEAD, BATCH_SECONDS, READ_BYTES

log = logging.getLogger("tracegrad")


class Batch:
    """Runs of one program under way; `runtime.base.Batch` documents it. Dropping a batch frees its memory."""

    __slots__ = ("__weakref__", "error", "loaded", "mark", "memory", "read", "runs", "session")

    def __init__(self, session: NativeSession, loaded: Loaded, memory: BatchMemory, runs: int) -> None:
        self.session, self.loaded, self.runs, self.read = session, loaded, runs, False
        self.memory: BatchMemory | None = memory  # until the outputs are read
        self.mark: Any = None  # the mark of its submission
        self.error: Exception | None = None  # the reason why it was not submitted

    def outputs(self) -> list[dict[str, Any]]:
        """Wait for the runs and return their outputs by name. Batches can be read in any order, each once."""
        return self.session.outputs_of(self)

    def __del__(self) -> None:
        if self.memory is not None and self.loaded.alive:
            # the queue runs copies in order, so early reuse is safe
            self.loaded.stagings.free.append(self.memory.staging)


def _library() -> ctypes.CDLL | None:
    """Return the library of SOURCE, which stays loaded, because it has threads; None without a C compiler."""
    found = compiler()
    return found.library(SOURCE, "steps are submitted by Python", keep=True) if found else None


class NativeSession:
    """A wgpu device with named, persistent buffers; `runtime.base.Session` documents each method.

    adapter: what to open, from `adapters()`.
    calls:   how to call wgpu: "compiled", which needs a C compiler, or "direct". A session calls wgpu directly also if
             there is no C compiler, or if compiled calls compute wrongly.
    Raises:  DeviceError if the device cannot be opened or computes wrongly.
    """

    def __init__(self, adapter: AdapterInfo, *, calls: str = "compiled") -> None:
        self.info = DeviceInfo("webgpu", adapter.description, adapter.software, sizes="exact")
        self._closed = False
        self._lost = ""
        library = in_background(_library) if calls == "compiled" else None
        load_wgpu()  # before the tap, because wgpu requires that it creates its logger itself
        self._tap = LogTap().attach()
        self._programs: dict[int, Loaded] = {}
        self._next = 0
        self._sending: Batch | None = None  # the last batch, until it is known to be sent
        self.ahead, self.batch_seconds, self.door = AHEAD, BATCH_SECONDS, None
        try:
            self._device: Any = open_device(adapter)
        except BaseException:
            self._tap.detach()
            raise
        self.limits: Mapping[str, int] = dict(self._device.limits)
        self.features: frozenset[str] = frozenset(self._device.features)
        self._verdicts = Verdicts(
            ("webgpu", adapter.description, adapter.driver, adapter.type, importlib.metadata.version("wgpu"))
        )
        self._shared = Shared(self._device, Calls(self._device))
        try:
            self._pick_calls(library.result() if library else None)
        except BaseException:
            self.close()
            raise

    @property
    def calls(self) -> Calls:
        """How wgpu is called."""
        return self._shared.calls

    def load(self, program: Program, like: int | None = None) -> int:
        """Allocate and build a program; return a handle.

        Raises: DeviceError if the device is too small; CompileError naming a kernel that is refused or wrong.
        """
        self._settle()
        if like is not None:
            self._next += 1
            self._programs[self._next] = resized(program, self._loaded(like))
            return self._next
        program = as_run(program, self.info)
        with self._using_device("loading a program"):
            check_limits(program, self.limits, self.features, self.info.description)
            if self.info.software:  # software devices use this machine's memory
                check_memory({b.name: b.bytes for b in program.buffers}, "the program")
            unchecked = Unchecked(program, self._verdicts)
            loaded = build(program, self._shared, unchecked.begin)
        self._next += 1
        handle, self._programs[self._next] = self._next, loaded
        try:
            unchecked.refuse_wrong(self)
        except BaseException:
            self.unload(handle)
            raise
        return handle

    def unload(self, handle: int) -> None:
        """Free what only this program uses, including persistent buffers that no other program names."""
        self._settle()
        loaded = self._programs.pop(handle, None)
        if loaded is not None:
            loaded.release()

    def capacity(self, handle: int) -> int:
        """Return the largest number of runs of a program in one batch."""
        return self._loaded(handle).depth

    def run(self, handle: int, inputs: Sequence[Mapping[str, Any]]) -> Batch:
        """Submit a batch and return; any number can be under way.

        Raises: InputError for missing, unknown or misshapen inputs; DeviceError, DeviceLostError.
        """
        loaded = self._loaded(handle)
        if not loaded.stagings.free:
            self._settle()  # the error watch of a batch being sent would catch errors of a new buffer
        with self._using_device("submitting a run"):
            memory = loaded.take_memory()
            batch = Batch(self, loaded, memory, len(inputs))
            for k, given in enumerate(inputs):
                memory.put(k, given)
            self._settle()
            commands = loaded.commands(memory, len(inputs))
            batch.mark = self.calls.submit(commands, memory.given())
        self._sending = batch
        return batch

    def outputs_of(self, batch: Batch) -> list[dict[str, Any]]:
        """Do the work of `Batch.outputs`.

        Raises DeviceError for outputs that were read, or whose program was unloaded.
        """
        self._check_open()
        loaded, memory = batch.loaded, batch.memory
        if not loaded.alive:
            raise DeviceError("the program of these runs was unloaded")
        if batch.read or memory is None:
            raise DeviceError("the outputs of these runs were read already")
        batch.read = True
        if batch is self._sending:
            self._settle()
        if batch.error is not None:
            raise batch.error
        # a failed wait can leave the memory mapped, so it is not used again
        mark, batch.memory, batch.mark = batch.mark, None, None
        size = loaded.outputs.bytes(batch.runs)
        raw = np.zeros(0, np.uint8)
        if size:
            with self._using_device("waiting for a run"):
                raw = self.calls.fetch(memory.results, size, mark)
        loaded.stagings.free.append(memory.staging)
        return loaded.outputs.of_runs(raw, batch.runs)

    def _settle(self) -> None:
        """Wait until the last batch was sent. Its `outputs` raises the error, if any."""
        batch, self._sending = self._sending, None
        if batch is not None:
            try:
                self.calls.sent(batch.mark)
            except Exception as e:
                batch.error = self._error(e, "submitting a run")

    def timings(self, handle: int, inputs: Mapping[str, Any], runs: int) -> Timings:
        """Time each dispatch in a pass of its own, by the device's timestamps, or else by the host's clock."""
        loaded = self._loaded(handle)
        self._settle()
        self.run(handle, [inputs]).outputs()  # uploads the inputs, which the runs below use again
        with self._using_device("timing a program"):
            return time_launches(loaded, runs)

    def read(self, name: str) -> Any:
        """Return a persistent buffer, flat, after everything queued so far."""
        self._settle()
        self._check_open()
        array: Array = persistent(self._shared.arrays, name)
        result = np.empty(array.size, stored_dtype(array.dtype))
        flat = result.view(np.uint8)
        with self._using_device(f"reading {name!r}"):
            staging = self._shared.allocate("read", min(flat.nbytes, READ_BYTES), MAP_READ | COPY_DST)
            try:
                for at in range(0, flat.nbytes, READ_BYTES):
                    size = min(READ_BYTES, flat.nbytes - at)
                    commands = Commands([], [], [Copy(array.buffer, at, staging, 0, size)])
                    mark = self.calls.submit(self.calls.prepared(commands))
                    self.calls.sent(mark)
                    flat[at : at + size] = self.calls.fetch(staging, size, mark)
            finally:
                staging.destroy()
        return result

    def write(self, name: str, values: Any, offset: int = 0) -> None:
        """Overwrite a persistent buffer from element `offset` on, after everything queued so far."""
        self._settle()
        self._check_open()
        array: Array = persistent(self._shared.arrays, name)
        flat = np.ascontiguousarray(values, dtype=stored_dtype(array.dtype)).reshape(-1)
        check_within(name, offset, flat.size, array.size)
        if flat.size:
            with self._using_device(f"writing {name!r}"):
                self.calls.write(array.buffer, 4 * offset, flat)

    def interrupt(self) -> None:
        """Do nothing, because nothing here takes long enough."""

    def close(self) -> None:
        """Free everything. A second call does nothing; any other call afterwards raises DeviceError."""
        if self._closed:
            return
        self._closed = True
        self._settle()
        for loaded in self._programs.values():
            loaded.release()
        self._programs.clear()
        self.calls.close()
        with contextlib.suppress(Exception):  # a lost device has nothing left to free
            self._device.destroy()
        self._tap.detach()

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError("the session is closed")
        if self._lost:
            raise DeviceLostError(self._lost)

    def _loaded(self, handle: int) -> Loaded:
        self._check_open()
        if handle not in self._programs:
            raise DeviceError(f"no program {handle} is loaded")
        loaded = self._programs[handle]
        if not loaded.alive:
            raise DeviceError("the program whose memory this one uses was unloaded")
        return loaded

    @contextlib.contextmanager
    def _using_device(self, doing: str) -> Generator[None, None, None]:
        """Require an open session. Turn wgpu's errors into DeviceError, and end the session after a loss."""
        self._check_open()
        try:
            yield
        except Exception as e:
            raise self._error(e, doing) from e

    def _error(self, e: Exception, doing: str) -> TracegradError:
        """Return the error to raise for an error of wgpu. After a lost device, the session refuses all calls."""
        error = e if isinstance(e, TracegradError) else device_error(str(e), doing)
        if self._tap.lost and type(error) is DeviceError:
            error = DeviceLostError(f"{error}; {self._tap.lost}")
        if isinstance(error, DeviceLostError):
            self._lost = f"the device was lost while {doing}: {error}"
            return DeviceLostError(self._lost)
        return error

    def _pick_calls(self, library: ctypes.CDLL | None) -> None:
        """Call wgpu from C if that computes correctly, else from Python. Raises DeviceError if neither does."""
        direct = self.calls
        if library is not None:
            try:
                self._shared.calls = CompiledCalls(self._device, library)
                self._self_test()
                return
            except Exception as e:
                self.calls.close()
                log.info("wgpu is called from Python, which is slower: %s", e)
        self._shared.calls = direct
        self._self_test()

    def _self_test(self) -> None:
        """Run SELF_TEST twice in one batch and once alone, and compare."""
        handle = self.load(SELF_TEST)
        try:
            got: list[Any] = []
            for together in ((0, 1), (2,)):
                batch = self.run(handle, [{"x": np.arange(4, dtype=np.float32) + k} for k in together])
                got += [outputs["y"].tolist() for outputs in batch.outputs()]
        finally:
            self.unload(handle)
        if got != [[4.0, 6.0], [6.0, 8.0], [8.0, 10.0]]:
            raise DeviceError(f"{self.info.description} computes wrongly: {got}")
