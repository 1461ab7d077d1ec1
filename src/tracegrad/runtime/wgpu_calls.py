"""Call wgpu-native's C functions without the layers of wgpu-py.

Encoding a step is most of what the host does, so `Calls` issues prepared C calls through wgpu-py's cffi handles. These
handles are private to wgpu-py: `load_wgpu` refuses other versions, and a session tries the handles on a small program
when it opens.

An error inside `wgpuQueueSubmit` or `wgpuBufferGetConstMappedRange` aborts the process, so both get only valid
arguments. A command buffer lives inside one call of `submit`, which submits it only if finishing it reported no error;
a lost device shows there too. A mapped range is requested only after a successful map.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import logging
from collections.abc import Callable, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tracegrad.arrays import Array, np
from tracegrad.errors import DeviceError, DeviceLostError

# The remedy where a program needs more than a GPU has
SMALLER = "device='cpu' has no such limit, and a smaller batch or model can need less"


class BoundDispatch(NamedTuple):
    """One dispatch: wgpu objects, and the positions of its offsets in the uniform buffer (bytes)."""

    pipeline: Any
    group: Any
    offsets: Any  # bind group of the uniform buffer, or None
    at: int
    grid: tuple[int, int]


@dataclass(frozen=True, slots=True)
class Copy:
    """A copy of `size` bytes from one buffer to another."""

    source: Any
    source_offset: int
    target: Any
    target_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Write:
    """A write of `size` bytes to a buffer, from byte `at` on: contiguous `values`, else an array given to `submit`."""

    buffer: Any
    at: int
    size: int
    values: Array | None


class Commands(NamedTuple):
    """The contents of one submission: the writes, one compute pass with the launches of all runs, then the copies."""

    writes: Sequence[Write]
    runs: Sequence[Any]
    copies: Sequence[Copy]

    def written(self, given: Sequence[Array]) -> Iterator[tuple[Write, Array]]:
        """Yield each write with its values."""
        rest = iter(given)
        return ((w, next(rest) if w.values is None else w.values) for w in self.writes)


def changes(launches: Iterable[BoundDispatch]) -> Iterator[tuple[BoundDispatch, bool, bool]]:
    """Yield each dispatch, and whether its pipeline and its group differ from those of the dispatch before."""
    pipeline = group = None
    for x in launches:
        yield x, x.pipeline is not pipeline, x.group is not group
        pipeline, group = x.pipeline, x.group


class Calls:
    """The calls of wgpu that a session needs for each run: wgpu-native's C functions on wgpu-py's handles.

    Errors are DeviceError or wgpu's own.
    """

    def __init__(self, device: Any) -> None:
        native: Any = importlib.import_module("wgpu.backends.wgpu_native")
        api: Any = importlib.import_module("wgpu.backends.wgpu_native._api")
        self._lib, self._ffi, self._errors = native.lib, native.ffi, api.error_handler
        self._api = api
        self._device, self._queue = device._internal, device.queue._internal
        self._owner = device  # keeps the handles alive
        self._commands = self._ffi.new("WGPUCommandBuffer[1]")
        self._mark = self._ffi.new("WGPUSubmissionIndex *")
        self._map_status = 0

        def mapped(status: int, _message: Any, _first: Any, _second: Any) -> None:
            self._map_status = status

        self._mapped = self._ffi.callback("void(WGPUMapAsyncStatus, WGPUStringView, void *, void *)", mapped)
        info = self._ffi.new("WGPUBufferMapCallbackInfo *")
        info.mode, info.callback = self._lib.WGPUCallbackMode_AllowProcessEvents, self._mapped
        self._map_info = info

    def module(self, label: str, code: str, *, trusted: bool) -> Any:
        """Return a shader module. Untrusted code runs with the driver's checks of indices and loops.

        Kernels of this process's compiler are trusted: it proves that its indices are in range, or clamps them.
        """
        if not trusted:
            return self._owner.create_shader_module(label=label, code=code)
        api, ffi = self._api, self._ffi
        source = ffi.new("WGPUShaderSourceWGSL *")
        text, name = ffi.new("char[]", code.encode()), ffi.new("char[]", label.encode())
        source.chain.sType = self._lib.WGPUSType_ShaderSourceWGSL
        source.code.data, source.code.length = text, len(text) - 1
        descriptor = ffi.new("WGPUShaderModuleDescriptor *")
        descriptor.nextInChain = ffi.cast("WGPUChainedStruct *", source)
        descriptor.label.data, descriptor.label.length = name, len(name) - 1
        made = api.libf.wgpuDeviceCreateShaderModuleTrusted(self._device, descriptor, 0)
        return api.GPUShaderModule(label, made, self._owner)

    def prepare(self, launches: Sequence[BoundDispatch]) -> Any:
        """Return calls as (C function, arguments after the pass), and objects to keep alive as long as the calls.

        Calls that would change nothing are left out.
        """
        pointer, u32, size = ctypes.c_void_p, ctypes.c_uint32, ctypes.c_size_t
        set_pipeline, set_group, dispatch = self._recording()
        calls: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
        kept: list[Any] = list(launches)  # keeps the handles alive
        for x, new_pipeline, new_group in changes(launches):
            if new_pipeline:
                calls.append((set_pipeline, (self._pointer(x.pipeline),)))
            if new_group:
                calls.append((set_group, (u32(0), self._pointer(x.group), size(0), pointer())))
            if x.offsets is not None:
                kept.append(u32(x.at))
                at = pointer(ctypes.addressof(kept[-1]))
                calls.append((set_group, (u32(1), self._pointer(x.offsets), size(1), at)))
            calls.append((dispatch, (u32(x.grid[0]), u32(x.grid[1]), u32(1))))
        return calls, kept

    def _pointer(self, x: Any) -> ctypes.c_void_p:
        return ctypes.c_void_p(self._address(x._internal))

    def _address(self, handle: Any) -> int:
        return int(self._ffi.cast("uintptr_t", handle))

    def _recording(self) -> list[Callable[..., None]]:
        """Return the functions that record a dispatch, for arguments that are C's already: a call converts nothing.

        They return at once, so they keep Python's lock. Otherwise a waiting thread would get the lock at every call,
        and each exchange costs as much as a hundred calls. If wgpu's log is traced, they release the lock, because code
        that logs can hold a lock of wgpu's while it waits for Python's.
        """
        kind = ctypes.CFUNCTYPE if logging.getLogger("wgpu").isEnabledFor(logging.INFO) else ctypes.PYFUNCTYPE
        names = ("SetPipeline", "SetBindGroup", "DispatchWorkgroups")
        found = [self._ffi.addressof(self._lib, f"wgpuComputePassEncoder{name}") for name in names]
        return [kind(None)(self._address(x)) for x in found]

    def prepared(self, commands: Commands) -> Any:
        """Return commands in the form that `submit` takes. They can be submitted again after they were sent."""
        return commands

    def submit(self, commands: Any, given: Sequence[Array] = ()) -> Any:
        """Queue commands and return a mark for later calls.

        given:  arrays for the writes without values, in their order.

        Sending can continue in the background until `sent`: the written values must not change before, and an error can
        come then.
        """
        lib, ffi = self._lib, self._ffi
        command = encoder = ffi.NULL
        try:
            with self.watched():
                encoder = lib.wgpuDeviceCreateCommandEncoder(self._device, ffi.NULL)
                if commands.runs and commands.runs[0][0]:
                    run = lib.wgpuCommandEncoderBeginComputePass(encoder, ffi.NULL)
                    at = ctypes.c_void_p(self._address(run))
                    for calls, _ in commands.runs:
                        for call, args in calls:
                            call(at, *args)
                    lib.wgpuComputePassEncoderEnd(run)
                    lib.wgpuComputePassEncoderRelease(run)
                copy = lib.wgpuCommandEncoderCopyBufferToBuffer
                for c in commands.copies:
                    copy(encoder, c.source._internal, c.source_offset, c.target._internal, c.target_offset, c.size)
                for w, values in commands.written(given):
                    lib.wgpuQueueWriteBuffer(self._queue, w.buffer._internal, w.at, ffi.from_buffer(values), w.size)
                command = lib.wgpuCommandEncoderFinish(encoder, ffi.NULL)
            self._commands[0] = command
            return lib.wgpuQueueSubmitForIndex(self._queue, 1, self._commands)
        finally:
            if encoder:
                lib.wgpuCommandEncoderRelease(encoder)
            if command:
                lib.wgpuCommandBufferRelease(command)

    def sent(self, mark: Any) -> None:
        """Wait until the device has the submission of `mark`, which must be the last one."""

    def write(self, buffer: Any, offset: int, values: Array) -> None:
        """Queue a write of contiguous `values` at `offset` bytes; they can change as soon as this returns."""
        with self.watched():
            data = self._ffi.from_buffer(values)
            self._lib.wgpuQueueWriteBuffer(self._queue, buffer._internal, offset, data, values.nbytes)

    def fetch(self, buffer: Any, size: int, mark: Any) -> Array:
        """Wait for the submission of `mark`, which was sent, and copy the first `size` bytes of a mappable buffer."""
        lib, handle = self._lib, buffer._internal
        self._map_status = 0
        self._mark[0] = mark
        with self.watched():
            lib.wgpuBufferMapAsync(handle, lib.WGPUMapMode_Read, 0, size, self._map_info[0])
            lib.wgpuDevicePoll(self._device, True, self._mark)
            if self._map_status == 0:  # the mark was reached, but the map is not noticed yet
                lib.wgpuDevicePoll(self._device, True, self._ffi.NULL)
        self.check_mapped(self._map_status)
        view = self._ffi.buffer(lib.wgpuBufferGetConstMappedRange(handle, 0, size), size)
        result = np.frombuffer(view, np.uint8).copy()
        lib.wgpuBufferUnmap(handle)
        return result

    @contextlib.contextmanager
    def watched(self) -> Generator[None]:
        """Raise DeviceError for an error that wgpu reports inside the block."""
        self._errors.capture("tracegrad")
        try:
            yield
        finally:
            error = self._errors.release("tracegrad")
        if error is not None:
            raise device_error(error[1])

    def check_mapped(self, status: int) -> None:
        """Raise DeviceError unless the status says that a buffer was mapped."""
        if status != self._lib.WGPUMapAsyncStatus_Success:
            raise device_error(f"mapping a buffer ended with status {status}")

    def close(self) -> None:
        """End the calls: nothing is called after this."""


class LogTap(logging.Handler):
    """Notes a lost device in wgpu's messages. Without logging set up, Python prints none of them."""

    def __init__(self) -> None:
        super().__init__()
        self.lost = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Remember a lost device, unless it was closed."""
        text = record.getMessage()
        if "device was lost" in text and "(destroyed)" not in text:
            self.lost = " ".join(text.split())

    def attach(self) -> LogTap:
        """Listen to wgpu's logger."""
        logging.getLogger("wgpu").addHandler(self)
        return self

    def detach(self) -> None:
        """Stop listening."""
        logging.getLogger("wgpu").removeHandler(self)


def device_error(message: str, doing: str = "") -> DeviceError:
    """Convert wgpu's message to a DeviceError, or to a DeviceLostError if it reports a loss."""
    text = "; ".join(line.strip() for line in message.splitlines() if line.strip())
    lost = any(word in message.lower() for word in ("device is lost", "device lost", "device was lost"))
    return (DeviceLostError if lost else DeviceError)(f"{doing}: {text}" if doing else text)
