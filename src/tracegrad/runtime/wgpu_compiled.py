"""Make wgpu's calls of a whole submission as one call of C, if there is a C compiler.

wgpu takes as long for a submission of many runs as Python does. So a C thread, which never waits for Python's lock,
encodes and sends each submission, while Python reads the outputs of the one before and stages the next. Without a
compiler, `Calls` is used.
"""

from __future__ import annotations

import ctypes
import weakref
from collections.abc import Sequence
from typing import Any

from tracegrad.arrays import Array, np
from tracegrad.errors import DeviceError
from tracegrad.runtime.wgpu_calls import BoundDispatch, Calls, Commands, changes, device_error

SOURCE = """#include <pthread.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

typedef struct { const char *data; size_t length; } text_;
typedef void notice_(int, text_, void *, void *);
typedef struct { void *next; int mode; notice_ *notice; void *first, *second; } notify_;
typedef void error_(int, int, text_, void *, void *);
typedef struct { void *next; int mode; error_ *error; void *first, *second; } scope_;

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
  void (*watch)(void *device, int);
  uint64_t (*found)(void *device, scope_);
} wgpu_;

typedef struct { void *pipeline, *group, *offsets; uint32_t at, x, y; } launch_; /* null: as before */
typedef struct { void *source, *target; uint64_t from, to, size; } copy_;
typedef struct { void *buffer; const void *values; uint64_t at, size; } write_;

enum { PATIENCE = 100000 }; /* turns of some 0.06 ms to wait for a map whose mark was reached */

typedef struct { /* a submission: the writes, the commands of `count` runs, of `length` launches each, the copies */
  const write_ *writes; launch_ *const *runs; const copy_ *copies;
  long written, count, length, copied;
  uint64_t mark;
  int refused;
  char message[1024];
} job_;

typedef struct {
  const wgpu_ *w;
  void *device, *queue;
  pthread_t thread;
  pthread_mutex_t lock;
  pthread_cond_t changed;
  job_ *job; /* that the thread is at */
  int ended;
  pid_t owner;
} sender_;

static void *encode(const sender_ *s, const job_ *job) {
  const wgpu_ *w = s->w;
  void *encoder = w->encoder(s->device, 0);
  for (const write_ *x = job->writes; x < job->writes + job->written; x++) {
    w->write(s->queue, x->buffer, x->at, x->values, x->size);
  }
  void *pass = job->count && job->length ? w->begin(encoder, 0) : 0;
  for (long k = 0; pass && k < job->count; k++) {
    for (const launch_ *x = job->runs[k]; x < job->runs[k] + job->length; x++) {
      if (x->pipeline) w->pipeline(pass, x->pipeline);
      if (x->group) w->group(pass, 0, x->group, 0, 0);
      if (x->offsets) w->group(pass, 1, x->offsets, 1, &x->at);
      w->dispatch(pass, x->x, x->y, 1);
    }
  }
  if (pass) w->end(pass), w->drop_pass(pass);
  for (const copy_ *x = job->copies; x < job->copies + job->copied; x++) {
    w->copy(encoder, x->source, x->from, x->target, x->to, x->size);
  }
  void *commands = w->finish(encoder, 0);
  w->drop_encoder(encoder);
  return commands;
}

static void told(int status, int type, text_ message, void *of, void *nothing) {
  job_ *job = of;
  if (status == 1 && type == 1) return; /* no error */
  const size_t most = sizeof job->message - 1;
  const int size = message.length < most ? message.length : most;
  if (!job->refused) snprintf(job->message, sizeof job->message, "%.*s", size, message.data ? message.data : "");
  job->refused = 1;
}

/* Encode, and submit what has no error: submitting anything else would abort the process. wgpu-native knows two kinds
   of errors here, and aborts where it is asked for the third. What watches for them is the device's and not a thread's:
   so nothing that may fail runs beside this but `fetch`, which looks at what became of its map. */
void send_now(sender_ *s, job_ *job) {
  const wgpu_ *w = s->w;
  for (int kind = 1; kind <= 2; kind++) w->watch(s->device, kind);
  void *commands = encode(s, job);
  for (int kind = 1; kind <= 2; kind++) w->found(s->device, (scope_){0, 3, told, job, 0});
  if (!job->refused) job->mark = w->submit(s->queue, 1, &commands);
  if (commands) w->drop_commands(commands);
}

static void *send_all(void *at) {
  sender_ *s = at;
  pthread_mutex_lock(&s->lock);
  while (1) {
    while (!s->job && !s->ended) pthread_cond_wait(&s->changed, &s->lock);
    if (!s->job) break;
    pthread_mutex_unlock(&s->lock);
    send_now(s, s->job);
    pthread_mutex_lock(&s->lock);
    s->job = 0;
    pthread_cond_broadcast(&s->changed);
  }
  pthread_mutex_unlock(&s->lock);
  return 0;
}

/* A thread that sends; null if there can be none. */
sender_ *begin_sender(const wgpu_ *w, void *device, void *queue) {
  sender_ *s = calloc(1, sizeof(sender_));
  if (!s) return 0;
  *s = (sender_){.w = w, .device = device, .queue = queue, .owner = getpid()};
  pthread_mutex_init(&s->lock, 0), pthread_cond_init(&s->changed, 0);
  if (!pthread_create(&s->thread, 0, send_all, s)) return s;
  pthread_cond_destroy(&s->changed), pthread_mutex_destroy(&s->lock);
  free(s);
  return 0;
}

/* Wait until everything was sent. */
void settle(sender_ *s) {
  pthread_mutex_lock(&s->lock);
  while (s->job) pthread_cond_wait(&s->changed, &s->lock);
  pthread_mutex_unlock(&s->lock);
}

/* Have the thread send it, once it has nothing else to do. */
void send_later(sender_ *s, job_ *job) {
  settle(s);
  pthread_mutex_lock(&s->lock);
  s->job = job;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
}

void end_sender(sender_ *s) {
  if (s->owner != getpid()) return; /* a forked child has no such thread */
  pthread_mutex_lock(&s->lock);
  s->ended = 1;
  pthread_cond_broadcast(&s->changed);
  pthread_mutex_unlock(&s->lock);
  pthread_join(s->thread, 0);
  pthread_cond_destroy(&s->changed), pthread_mutex_destroy(&s->lock);
  free(s);
}

static void landed(int status, text_ message, void *to, void *nothing) {
  __atomic_store_n((int *)to, status, __ATOMIC_RELEASE);
}

/* Wait for a mark, and copy out a buffer. The status of mapping it: 0 if that never ended, 1 if all is well.

   The thread that sends may be the one that finds the map done, since submitting looks for such: then the mark is
   reached a moment before `landed` is called, there. */
int fetch(const wgpu_ *w, void *device, void *buffer, uint64_t mark, void *to, uint64_t size) {
  int *status = calloc(1, sizeof(int)); /* not on the stack: a map that fails may say so later */
  w->map(buffer, 1, 0, size, (notify_){0, 2, landed, status, 0});
  w->poll(device, 1, &mark);
  int result = __atomic_load_n(status, __ATOMIC_ACQUIRE);
  for (int turn = 0; !result && turn < PATIENCE; turn++) {
    w->poll(device, 0, 0);
    if (turn) nanosleep(&(struct timespec){0, 10000}, 0);
    result = __atomic_load_n(status, __ATOMIC_ACQUIRE);
  }
  if (result == 1) memcpy(to, w->mapped(buffer, 0, size), size), w->unmap(buffer);
  if (result) free(status);
  return result;
}
"""

FUNCTIONS = (
    "DeviceCreateCommandEncoder", "CommandEncoderBeginComputePass", "ComputePassEncoderSetPipeline",
    "ComputePassEncoderSetBindGroup", "ComputePassEncoderDispatchWorkgroups", "ComputePassEncoderEnd",
    "ComputePassEncoderRelease", "CommandEncoderCopyBufferToBuffer", "CommandEncoderFinish", "CommandEncoderRelease",
    "QueueWriteBuffer", "QueueSubmitForIndex", "CommandBufferRelease", "BufferMapAsync", "DevicePoll",
    "BufferGetConstMappedRange", "BufferUnmap", "DevicePushErrorScope", "DevicePopErrorScope",
)  # fmt: skip
POINTER, LONG, U64 = ctypes.c_void_p, ctypes.c_long, ctypes.c_uint64


class _BoundDispatch(ctypes.Structure):
    _fields_ = (*((n, POINTER) for n in ("pipeline", "group", "offsets")), *((n, ctypes.c_uint32) for n in "axy"))


class _Copy(ctypes.Structure):
    _fields_ = (("source", POINTER), ("target", POINTER), ("from_", U64), ("to", U64), ("size", U64))


class _Write(ctypes.Structure):
    _fields_ = (("buffer", POINTER), ("values", POINTER), ("at", U64), ("size", U64))


class _Commands(ctypes.Structure):
    """A submission. `kept` and, until it is sent, `given` keep the targets of its pointers alive."""

    _fields_ = (
        *((n, POINTER) for n in ("writes", "runs", "copies")),
        *((n, LONG) for n in ("written", "n", "length", "copied")),
        ("mark", U64), ("refused", ctypes.c_int), ("message", ctypes.c_char * 1024),
    )  # fmt: skip
    kept: Any = ()
    open: Sequence[_Write] = ()  # writes without values
    given: Any = ()


class CompiledCalls(Calls):
    """`Calls`, one submission at a time. `library` is SOURCE, compiled."""

    def __init__(self, device: Any, library: ctypes.CDLL) -> None:
        super().__init__(device)
        functions = [self._address(self._ffi.addressof(self._lib, f"wgpu{name}")) for name in FUNCTIONS]
        self._functions = (POINTER * len(functions))(*functions)
        self._library, self._fetch = library, library.fetch
        self._fetch.argtypes, self._fetch.restype = (*[POINTER] * 3, U64, POINTER, U64), ctypes.c_int
        library.begin_sender.argtypes, library.begin_sender.restype = [POINTER] * 3, POINTER
        sender = library.begin_sender(self._functions, *map(self._address, (self._device, self._queue)))
        if not sender:
            raise DeviceError("the system allows no more threads")
        self._sender = POINTER(sender)
        self._sending: _Commands | None = None  # the submission that the thread can be working on
        self._end = weakref.finalize(self, library.end_sender, self._sender)  # also if this object is dropped
        self._end.atexit = False  # its owner closes it then

    def prepare(self, launches: Sequence[BoundDispatch]) -> Any:
        """Return a C array of the launches, and the objects that keep its handles alive."""
        rows = (_BoundDispatch * len(launches))()
        for row, (x, new_pipeline, new_group) in zip(rows, changes(launches), strict=True):
            if new_pipeline:
                row.pipeline = self._address(x.pipeline._internal)
            if new_group:
                row.group = self._address(x.group._internal)
            if x.offsets is not None:
                row.offsets, row.a = self._address(x.offsets._internal), x.at
            row.x, row.y = x.grid
        return rows, tuple(launches)

    def prepared(self, commands: Commands) -> Any:
        writes, runs, copies = commands
        places = [None if w.values is None else w.values.ctypes.data for w in writes]
        rows = [(self._address(w.buffer._internal), x, w.at, w.size) for w, x in zip(writes, places)]
        written = (_Write * len(rows))(*rows)
        recorded = (POINTER * len(runs))(*[ctypes.addressof(launches) for launches, _ in runs])
        pairs = [(self._address(c.source._internal), self._address(c.target._internal)) for c in copies]
        offsets = [(c.source_offset, c.target_offset, c.size) for c in copies]
        copied = (_Copy * len(copies))(*[(*a, *b) for a, b in zip(pairs, offsets)])
        length = len(runs[0][0]) if runs else 0
        addresses = map(ctypes.addressof, (written, recorded, copied))
        made = _Commands(*addresses, len(writes), len(runs), length, len(copies))
        made.kept = (commands, written, recorded, copied)
        made.open = [row for row, x in zip(written, places) if x is None]
        return made

    def submit(self, commands: Any, given: Sequence[Array] = ()) -> Any:
        self._library.settle(self._sender)
        for row, values in zip(commands.open, given, strict=True):
            row.values = values.ctypes.data
        commands.given, commands.refused = given, 0
        if commands.n > 1:
            self._sending = commands
            self._library.send_later(self._sender, ctypes.byref(commands))
        else:  # a long step, or one that the caller waits for: faster to do here than to hand over
            self._library.send_now(self._sender, ctypes.byref(commands))
        return commands

    def sent(self, mark: Any) -> None:
        self._library.settle(self._sender)
        mark.given, self._sending = (), None  # so that an unloaded program leaves nothing here
        if mark.refused:
            raise device_error(mark.message.decode(errors="replace"))

    def close(self) -> None:
        self._end()

    def fetch(self, buffer: Any, size: int, mark: Any) -> Array:
        result = np.empty(size, np.uint8)
        device, place = self._address(self._device), self._address(buffer._internal)
        with self.watched():
            status = self._fetch(self._functions, device, place, mark.mark, result.ctypes.data, size)
        self.check_mapped(status)
        return result
