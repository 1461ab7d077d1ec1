"""The native WebGPU runtime: Programs on a wgpu device. Runs queued behind each other share a submission and its pass.

Host time on a two-core machine (wgpu 0.32.0, llvmpipe, medians): a dispatch with its pipeline, bind group and
offsets costs 4.9 µs by the public API and 2.8 µs by direct calls, its share of finishing the command buffer included;
`submit` of a two-dispatch program 64 and 29 µs, a 4 KB write 3.5 and 2.2 µs. A step of eight dispatches, with others in
a submission, costs this thread 95 µs by direct calls and 67 compiled (on a slower day, no workgroups). Offsets by one
bind group with a dynamic offset or by a group for each dispatch: 2.01 and 2.02 µs (direct, no workgroups), so the
former: it needs one object.

Runs wait for each other until there are as many as one submission should have, or the caller flushes, collects one of
them, reads or writes. A submission may be encoded and sent by another thread (wgpu_compiled.py) while the caller stages
the next and collects the one before. Whatever else it asks of the device waits until that thread has nothing to do.

Errors that would abort the process inside wgpu (a mapped or destroyed buffer in a submission, a mapped range of an
unmapped buffer) cannot be reached: a slot is free only if it never was mapped or was unmapped since, arrays are
destroyed only with the program that submits them, and an ended session or lost device refuses every call in Python.
What remains is a device that is lost between finishing a command buffer and submitting it, or while it is waited for.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import logging
import time
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from typing import Any

from tracegrad.arrays import np
from tracegrad.errors import DeviceError, DeviceLostError, TracegradError
from tracegrad.program import Program
from tracegrad.runtime.adapters import AdapterInfo, load_wgpu, open_device
from tracegrad.runtime.base import DeviceInfo, Timings, as_run, nothing
from tracegrad.runtime.c_compiler import begin_library
from tracegrad.runtime.self_test import SELF_TEST
from tracegrad.runtime.storage import check_memory
from tracegrad.runtime.verdicts import Verdicts
from tracegrad.runtime.wgpu_calls import Calls, Copy, DirectCalls, Job, LogTap, PublicCalls, device_error
from tracegrad.runtime.wgpu_compiled import SOURCE, CompiledCalls
from tracegrad.runtime.wgpu_program import (
    COPY_DST,
    MAP_READ,
    Kernels,
    Loaded,
    Slot,
    allocate,
    build,
    check_limits,
    job_of,
    release,
    take_slot,
)
from tracegrad.runtime.wgpu_rings import Array, stored_dtype
from tracegrad.runtime.wgpu_timing import time_launches
from tracegrad.runtime.wgpu_verify import refuse_wrong

READ_BYTES = 64 << 20  # persistent buffers are read in pieces of this size
SUBMISSIONS = 3  # under way: one that the device works at, one that is being sent, and one that is being filled
SECONDS_AT_ONCE = 0.01  # that one submission should take: whoever waits for a run waits for all of its submission

log = logging.getLogger("tracegrad")


class Submission:
    """Runs of one program that are submitted together. Dropping it unfetched is fine: its slot is used again."""

    __slots__ = ("__weakref__", "error", "loaded", "mark", "outputs", "runs", "sent", "slot")

    def __init__(self, loaded: Loaded, slot: Slot) -> None:
        self.loaded, self.runs, self.mark, self.sent = loaded, 0, None, 0.0
        self.slot: Slot | None = slot  # until it is fetched
        self.outputs: list[Any] | None = None
        self.error: Exception | None = None

    def takes_one_more(self, loaded: Loaded) -> bool:
        """Is there room for a run of this program?"""
        return self.loaded is loaded and self.runs < runs_at_once(loaded)

    def fail(self, error: Exception) -> None:
        """It was not submitted."""
        self.error = error
        self._give_back()

    def _give_back(self) -> None:
        slot, self.slot = self.slot, None
        if slot is not None and self.loaded.alive:
            self.loaded.free.append(slot)  # the queue runs copies in order, so reuse before its end is safe

    __del__ = _give_back


class Ticket:
    """One run of a submission. It may be dropped uncollected."""

    __slots__ = ("collected", "number", "submission")

    def __init__(self, submission: Submission, number: int) -> None:
        self.submission, self.number, self.collected = submission, number, False


class NativeSession:
    """A wgpu device with named, persistent buffers; `runtime.base.Session` has the meaning of each method.

    adapter: what to open, from `adapters()`.
    calls:   how to call wgpu, the quickest first: "compiled" (where there is a C compiler), "direct" or "public". What
             cannot be had here, or computes wrongly, gives way to the next.
    Raises:  DeviceError if the device cannot be opened or computes wrongly.
    """

    def __init__(self, adapter: AdapterInfo, *, calls: str = "compiled") -> None:
        self.info = DeviceInfo("webgpu", adapter.description, adapter.software)
        self._closed = False
        self._lost = ""
        library = begin_library(SOURCE, "steps are submitted by Python") if calls == "compiled" else None
        load_wgpu()  # before the tap: wgpu insists on creating its logger itself
        self._tap = LogTap().attach()
        self._shared: dict[str, Array] = {}
        self._programs: dict[int, Loaded] = {}
        self._waiting: Submission | None = None  # not sent yet
        self._landed = 0.0  # when the last submission fetched was there
        self._next = 0
        self._sending: Submission | None = None  # the last one, until it is known to be sent
        self.at_once, self.submissions = 1, SUBMISSIONS
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
        self.calls: Calls = PublicCalls(self._device)
        try:
            self._kernels = Kernels(self._device)
            self._pick_calls(calls, library)
        except BaseException:
            self.close()
            raise

    def load(self, program: Program) -> int:
        """Allocate and build; a handle.

        Raises: DeviceError if the device is too small; CompileError naming a kernel that is refused or wrong.
        """
        self._settled()
        program = as_run(program, self.info)
        with self._using_device("loading a program"):
            check_limits(program, self.limits, self.features, self.info.description)
            if self.info.software:  # its memory is this machine's
                check_memory({b.name: b.bytes for b in program.buffers}, "the program")
            loaded = build(program, self._device, self.calls, self._kernels, self._shared)
        self._next += 1
        handle, self._programs[self._next] = self._next, loaded
        if any(k.forms for k in program.kernels):
            try:
                refuse_wrong(program, self, self._verdicts)
            except BaseException:
                self.unload(handle)
                raise
        return handle

    def unload(self, handle: int) -> None:
        """Free what only this program uses: persistent buffers too, where no other program names them."""
        self._settled()
        loaded = self._programs.pop(handle, None)
        if loaded is not None:
            release(loaded, self._shared)

    def submit(self, handle: int, inputs: Mapping[str, Any]) -> Ticket:
        """Queue one run and return; any number may be in flight.

        Raises: InputError for missing, unknown or misshapen inputs; DeviceError, DeviceLostError.
        """
        loaded = self._loaded(handle)
        if self._waiting is not None and not self._waiting.takes_one_more(loaded):
            self.flush()
        submission = self._waiting or self._new_submission(loaded)
        assert submission.slot is not None
        submission.slot.stage.put(submission.runs, inputs)
        submission.runs += 1
        self._waiting = submission
        return Ticket(submission, submission.runs - 1)

    def _new_submission(self, loaded: Loaded) -> Submission:
        with self._using_device("submitting a run"):
            if not loaded.free:
                self._settle()  # what watches for errors while a submission is sent would take that of a new buffer
            return Submission(loaded, take_slot(loaded, self._device))

    def collect(self, ticket: Ticket) -> dict[str, Any]:
        """Wait for a run; its outputs by name. Tickets may be collected in any order, each once."""
        submission, loaded = ticket.submission, ticket.submission.loaded
        self._check_open()
        if not loaded.alive:
            raise DeviceError("the program of this run was unloaded")
        if ticket.collected:
            raise DeviceError("this run was collected already")
        ticket.collected = True
        if submission is self._waiting:
            self.flush()
        if submission is self._sending:
            self._settle()
        if submission.error is not None:
            raise submission.error
        if submission.outputs is None:
            submission.outputs = self._fetch(submission)
        return loaded.outputs.of_run(submission.outputs, ticket.number)

    def flush(self, free: Callable[[], object] = nothing) -> None:
        """Submit the runs that wait. If that fails, collecting them raises the error."""
        submission, self._waiting = self._waiting, None
        if submission is None:
            return
        self._settle()
        slot = submission.slot
        assert slot is not None
        given = slot.stage.given()
        try:
            with self._using_device("submitting a run"):
                job = job_of(slot, submission.loaded, submission.runs, self.calls, self._kernels)
                submission.sent = time.perf_counter()
                submission.mark = self.calls.submit(job, given, free)
                self._sending = submission
        except Exception as e:
            submission.fail(e)

    def _settle(self) -> None:
        """Wait until the last submission was sent. Collecting its runs raises the error, if there is one."""
        submission = self._sending
        if submission is None:
            return
        try:
            self.calls.sent(submission.mark)
        except Exception as e:
            submission.fail(self._error(e, "submitting a run"))
        self._sending = None

    def _settled(self) -> None:
        """Submit the runs that wait, and see them sent: the device is this thread's alone."""
        self.flush()
        self._settle()

    def _fetch(self, submission: Submission) -> list[Any]:
        """Wait for a submission; its outputs."""
        loaded, slot, runs, mark = submission.loaded, submission.slot, submission.runs, submission.mark
        assert slot is not None
        submission.slot = submission.mark = None  # if the wait fails it may be left mapped: it is never used again
        size = loaded.outputs.bytes(runs)
        raw = np.zeros(0, np.uint8)
        try:
            if size:
                with self._using_device("waiting for a run"):
                    raw = self.calls.fetch(slot.results, size, mark)
        except Exception as e:
            submission.error = e
            raise
        now = time.perf_counter()
        loaded.seconds = (now - max(submission.sent, self._landed)) / runs
        self._landed = now
        self.at_once = runs_at_once(loaded)
        loaded.free.append(slot)
        return loaded.outputs.columns(raw, runs)

    def timings(self, handle: int, inputs: Mapping[str, Any], runs: int) -> Timings:
        """By the device's timestamps where it has them, each dispatch in a pass of its own."""
        loaded = self._loaded(handle)
        self._settled()
        self.collect(self.submit(handle, inputs))  # brings the inputs, which the runs below use again
        with self._using_device("timing a program"):
            return time_launches(self._device, loaded, runs)

    def read(self, name: str) -> Any:
        """A persistent buffer, flat, after everything queued so far."""
        self._settled()
        array = self._persistent(name)
        result = np.empty(array.size, stored_dtype(array.dtype))
        flat = result.view(np.uint8)
        with self._using_device(f"reading {name!r}"):
            staging = allocate(self._device, "read", min(flat.nbytes, READ_BYTES), MAP_READ | COPY_DST)
            try:
                for at in range(0, flat.nbytes, READ_BYTES):
                    size = min(READ_BYTES, flat.nbytes - at)
                    job = Job([], [], [Copy(array.buffer, at, staging, 0, size)])
                    mark = self.calls.submit(self.calls.job(job))
                    self.calls.sent(mark)
                    flat[at : at + size] = self.calls.fetch(staging, size, mark)
            finally:
                staging.destroy()
        return result

    def write(self, name: str, values: Any, offset: int = 0) -> None:
        """Overwrite a persistent buffer from element `offset` on, after everything queued so far."""
        self._settled()
        array = self._persistent(name)
        flat = np.ascontiguousarray(values, dtype=stored_dtype(array.dtype)).reshape(-1)
        if offset < 0 or offset + flat.size > array.size:
            raise DeviceError(f"elements {offset} to {offset + flat.size} of {name!r}, which has {array.size}")
        if flat.size:
            with self._using_device(f"writing {name!r}"):
                self.calls.write(array.buffer, 4 * offset, flat)

    def interrupt(self) -> None:
        """Nothing here takes long enough."""

    def close(self) -> None:
        """Free everything. Closing twice is fine; anything else afterwards is a DeviceError."""
        if self._closed:
            return
        self._closed, self._waiting = True, None
        self._settle()
        for loaded in self._programs.values():
            release(loaded, self._shared)
        self._programs.clear()
        self.calls.close()
        with contextlib.suppress(Exception):  # a lost device has nothing left to free
            self._device.destroy()
        self._tap.detach()

    @property
    def pipelines(self) -> int:
        """How many compiled kernels are held."""
        return len(self._kernels)

    def _check_open(self) -> None:
        if self._closed:
            raise DeviceError("the session is closed")
        if self._lost:
            raise DeviceLostError(self._lost)

    def _loaded(self, handle: int) -> Loaded:
        self._check_open()
        if handle not in self._programs:
            raise DeviceError(f"no program {handle} is loaded")
        return self._programs[handle]

    def _persistent(self, name: str) -> Array:
        self._check_open()
        if name not in self._shared:
            raise DeviceError(f"no persistent buffer {name!r}; there are {', '.join(self._shared) or 'none'}")
        return self._shared[name]

    @contextlib.contextmanager
    def _using_device(self, doing: str) -> Generator[None, None, None]:
        """Only on an open session; wgpu's errors become DeviceErrors, and a loss ends the session's use."""
        self._check_open()
        try:
            yield
        except Exception as e:
            raise self._error(e, doing) from e

    def _error(self, e: Exception, doing: str) -> TracegradError:
        """What to raise for an error of wgpu's. After a loss the session refuses everything."""
        error = e if isinstance(e, TracegradError) else device_error(str(e), doing)
        if self._tap.lost and type(error) is DeviceError:
            error = DeviceLostError(f"{error}; {self._tap.lost}")
        if isinstance(error, DeviceLostError):
            self._lost = f"the device was lost while {doing}: {error}"
            return DeviceLostError(self._lost)
        return error

    def _pick_calls(self, first: str, library: Future[ctypes.CDLL | None] | None) -> None:
        """The first of the three ways that computes rightly. The last of them must."""
        ways: dict[str, Callable[[], Calls]] = {
            "compiled": lambda: CompiledCalls(self._device, library.result() if library else None),
            "direct": lambda: DirectCalls(self._device),
            "public": lambda: PublicCalls(self._device),
        }
        for name in [*ways][[*ways].index(first) :]:
            try:
                self.calls = ways[name]()
                self._self_test()
                return
            except Exception as e:
                self.calls.close()
                if name == "public":
                    raise
                log.info("wgpu by calls that are slower than %r: %s", name, e)

    def _self_test(self) -> None:
        """Run SELF_TEST twice in one submission, once alone, and compare."""
        handle = self.load(SELF_TEST)
        self._programs[handle].seconds = SECONDS_AT_ONCE / 2  # what runs so long shares a submission
        try:
            got: list[Any] = []
            for together in ((0, 1), (2,)):
                tickets = [self.submit(handle, {"x": np.arange(4, dtype=np.float32) + k}) for k in together]
                got += [self.collect(t)["y"].tolist() for t in tickets]
        finally:
            self.unload(handle)
        if got != [[4.0, 6.0], [6.0, 8.0], [8.0, 10.0]]:
            raise DeviceError(f"{self.info.description} computes wrongly by the {self.calls.name} interface: {got}")


def runs_at_once(loaded: Loaded) -> int:
    """How many runs of a program should share a submission."""
    return max(1, min(loaded.depth, int(SECONDS_AT_ONCE / loaded.seconds)))
