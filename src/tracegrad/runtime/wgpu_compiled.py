"""wgpu's calls of a whole submission as three calls of C, where there is a C compiler.

They run without Python's lock, so that whoever queues steps goes on meanwhile, and take it back three times a
submission instead of ten times and more. `DirectCalls` stands in where there is no compiler.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from tracegrad.arrays import np
from tracegrad.errors import DeviceError
from tracegrad.runtime.base import nothing
from tracegrad.runtime.wgpu_calls import Copy, DirectCalls, Launch, device_error

if TYPE_CHECKING:
    from tracegrad.runtime.wgpu_calls import Bytes, Write

SOURCE = """#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { const char *data; size_t length; } text_;
typedef void notice_(int, text_, void *, void *);
typedef struct { void *next; int mode; notice_ *notice; void *first, *second; } notify_;

typedef struct { /* wgpu-native's functions, in the order of FUNCTIONS */
  void *(*encoder)(void *device, const void *);
  void *(*begin)(void *encoder, const void *);
  void (*pipeline)(void *pass, void *);
  void (*group)(void *pass, uint32_t, void *, size_t, const uint32_t *);
  void (*dispatch)(void *pass, uint32_t, uint32_t, uint32_t);
  void (*end)(void *pass), (*drop_pass)(void *);
  void (*copy)(void *encoder, void *, uint64_t, void *, uint64_t, uint64_t);
  void *(*finish)(void *encoder, const void *);
  void (*drop_encoder)(void *);
  void (*write)(void *queue, void *, uint64_t, const void *, size_t);
  uint64_t (*submit)(void *queue, size_t, void *const *);
  void (*drop_commands)(void *);
  uint64_t (*map)(void *buffer, uint64_t, size_t, size_t, notify_);
  uint32_t (*poll)(void *device, uint32_t, const uint64_t *);
  const void *(*mapped)(void *buffer, size_t, size_t);
  void (*unmap)(void *buffer);
} wgpu_;

typedef struct { void *pipeline, *group, *offsets; uint32_t at, x, y; } launch_; /* null: as before */
typedef struct { void *source, *target; uint64_t from, to, size; } copy_;
typedef struct { void *buffer; const void *values; uint64_t at, size; } write_;

/* Queue the writes; the commands of `count` runs, which have `length` launches each, and of the copies. */
void *encode(const wgpu_ *w, void *device, void *queue, const write_ *writes, long written,
             launch_ *const *runs, long count, long length, const copy_ *copies, long copied) {
  void *encoder = w->encoder(device, 0);
  for (const write_ *x = writes; x < writes + written; x++) w->write(queue, x->buffer, x->at, x->values, x->size);
  void *pass = count && length ? w->begin(encoder, 0) : 0;
  for (long k = 0; pass && k < count; k++) {
    for (const launch_ *x = runs[k]; x < runs[k] + length; x++) {
      if (x->pipeline) w->pipeline(pass, x->pipeline);
      if (x->group) w->group(pass, 0, x->group, 0, 0);
      if (x->offsets) w->group(pass, 1, x->offsets, 1, &x->at);
      w->dispatch(pass, x->x, x->y, 1);
    }
  }
  if (pass) w->end(pass), w->drop_pass(pass);
  for (const copy_ *x = copies; x < copies + copied; x++) {
    w->copy(encoder, x->source, x->from, x->target, x->to, x->size);
  }
  void *commands = w->finish(encoder, 0);
  w->drop_encoder(encoder);
  return commands;
}

uint64_t submit(const wgpu_ *w, void *queue, void *commands) {
  const uint64_t mark = w->submit(queue, 1, &commands);
  w->drop_commands(commands);
  return mark;
}

static void landed(int status, text_ message, void *to, void *nothing) { *(volatile int *)to = status; }

/* Wait for a mark, and copy out a buffer. The status of mapping it: 0 if that never ended, 1 if all is well. */
int fetch(const wgpu_ *w, void *device, void *buffer, uint64_t mark, void *to, uint64_t size) {
  volatile int *status = calloc(1, sizeof(int)); /* not on the stack: a map that fails may say so later */
  w->map(buffer, 1, 0, size, (notify_){0, 2, landed, (void *)status, 0});
  w->poll(device, 1, &mark);
  if (!*status) w->poll(device, 1, 0); /* the mark was reached, the map not yet noticed */
  const int result = *status;
  if (result == 1) memcpy(to, w->mapped(buffer, 0, size), size), w->unmap(buffer);
  if (result) free((void *)status);
  return result;
}
"""

FUNCTIONS = (
    "DeviceCreateCommandEncoder", "CommandEncoderBeginComputePass", "ComputePassEncoderSetPipeline",
    "ComputePassEncoderSetBindGroup", "ComputePassEncoderDispatchWorkgroups", "ComputePassEncoderEnd",
    "ComputePassEncoderRelease", "CommandEncoderCopyBufferToBuffer", "CommandEncoderFinish", "CommandEncoderRelease",
    "QueueWriteBuffer", "QueueSubmitForIndex", "CommandBufferRelease", "BufferMapAsync", "DevicePoll",
    "BufferGetConstMappedRange", "BufferUnmap",
)  # fmt: skip
POINTER, LONG, U64 = ctypes.c_void_p, ctypes.c_long, ctypes.c_uint64


class _Launch(ctypes.Structure):
    _fields_ = (*((n, POINTER) for n in ("pipeline", "group", "offsets")), *((n, ctypes.c_uint32) for n in "axy"))


class _Copy(ctypes.Structure):
    _fields_ = (("source", POINTER), ("target", POINTER), ("from_", U64), ("to", U64), ("size", U64))


class _Write(ctypes.Structure):
    _fields_ = (("buffer", POINTER), ("values", POINTER), ("at", U64), ("size", U64))


class CompiledCalls(DirectCalls):
    """`DirectCalls`, a submission at a time. `library` is SOURCE, compiled."""

    name = "compiled"

    def __init__(self, device: Any, library: ctypes.CDLL | None) -> None:
        if library is None:
            raise DeviceError("there is no C compiler")
        super().__init__(device)
        functions = [self._address(self._ffi.addressof(self._lib, f"wgpu{name}")) for name in FUNCTIONS]
        self._functions = (POINTER * len(functions))(*functions)
        self._places = tuple(map(self._address, (self._device, self._queue)))
        self._encode, self._submit, self._fetch = library.encode, library.submit, library.fetch
        self._encode.argtypes = (*[POINTER] * 4, LONG, POINTER, LONG, LONG, POINTER, LONG)
        self._encode.restype = POINTER
        self._submit.argtypes, self._submit.restype = (POINTER,) * 3, U64
        self._fetch.argtypes, self._fetch.restype = (*[POINTER] * 3, U64, POINTER, U64), ctypes.c_int

    def prepare(self, launches: Sequence[Launch]) -> Any:
        """An array of C's, and what keeps its handles alive."""
        rows = (_Launch * len(launches))()
        pipeline = group = None
        for row, x in zip(rows, launches, strict=True):
            if x.pipeline is not pipeline:
                pipeline = x.pipeline
                row.pipeline = self._address(pipeline._internal)
            if x.group is not group:
                group = x.group
                row.group = self._address(group._internal)
            if x.offsets is not None:
                row.offsets, row.a = self._address(x.offsets._internal), x.at
            row.x, row.y = x.grid
        return rows, tuple(launches)

    def prepare_copies(self, copies: Sequence[Copy]) -> Any:
        pairs = [(self._address(c.source._internal), self._address(c.target._internal)) for c in copies]
        offsets = [(c.source_offset, c.target_offset, c.size) for c in copies]
        return (_Copy * len(copies))(*[(*a, *b) for a, b in zip(pairs, offsets)]), tuple(copies)

    def submit(
        self, writes: Sequence[Write], runs: Sequence[Any], copies: Any, free: Callable[[], object] = nothing
    ) -> Any:
        given = [(self._address(b._internal), x.ctypes.data, at, x.nbytes) for b, at, x in writes]
        written = (_Write * len(given))(*given)
        recorded = (POINTER * len(runs))(*[ctypes.addressof(rows) for rows, _ in runs])
        length = len(runs[0][0]) if runs else 0
        free()
        self._errors.capture("tracegrad")
        commands = None
        try:
            commands = self._encode(
                self._functions, *self._places, written, len(given), recorded, len(runs), length, *_listed(copies[0])
            )
        finally:
            error = self._errors.release("tracegrad")
        if error is not None:
            if commands:
                self._lib.wgpuCommandBufferRelease(self._ffi.cast("WGPUCommandBuffer", commands))
            raise device_error(error[1])
        return self._submit(self._functions, self._places[1], commands)

    def fetch(self, buffer: Any, size: int, mark: Any) -> Bytes:
        result = np.empty(size, np.uint8)
        self._errors.capture("tracegrad")
        try:
            place = self._address(buffer._internal)
            status = self._fetch(self._functions, self._places[0], place, mark, result.ctypes.data, size)
        finally:
            error = self._errors.release("tracegrad")
        if error is not None or status != self._lib.WGPUMapAsyncStatus_Success:
            raise device_error(error[1] if error else f"mapping a buffer ended with status {status}")
        return result


def _listed(x: Any) -> tuple[Any, int]:
    return x, len(x)
