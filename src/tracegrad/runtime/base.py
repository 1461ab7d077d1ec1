"""The seam between a Program and a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tracegrad.program import Program


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A usable device, as `tg.devices()` lists it."""

    name: str  # what `device=` takes: "webgpu" or "cpu"
    description: str  # e.g. "NVIDIA H200 (Vulkan)"
    software: bool = False  # a CPU posing as a GPU: correct, slow, never chosen by "auto"

    def __str__(self) -> str:
        return f"{self.name} ({self.description})"


def as_run(program: Program, info: DeviceInfo) -> Program:
    """The form of a program that a WebGPU device runs."""
    return program.without_barriers() if info.software else program


@dataclass(frozen=True, slots=True)
class Timings:
    """When each dispatch of a program began and ended, in seconds, in the order they ran; for each of some runs."""

    clock: str  # what was read
    runs: tuple[tuple[tuple[float, float], ...], ...]

    @property
    def quickest(self) -> float:
        """All dispatches of the run in which they took least."""
        return min(sum(end - begin for begin, end in spans) for spans in self.runs)


def nothing() -> None:
    """For callers of `flush` with no thread that waits."""


class Session(Protocol):
    """A device with named, persistent buffers.

    Programs loaded into one session share every buffer of role "param", "grad" or "state" that has the same name; the
    first program that brings a name allocates it, filled with `Buffer.fill`. Every method but `interrupt` runs on the
    one thread that owns the session. `submit` queues a run and returns at once where the device allows it; `collect`
    waits for it. Runs may share a submission of the device. Arrays are NumPy arrays of the field's dtype and shape.
    """

    at_once: int  # runs worth one submission of the device; 1 where `submit` itself computes
    submissions: int  # worth having under way before the first is collected

    @property
    def info(self) -> DeviceInfo:
        """What it is."""
        ...

    def load(self, program: Program) -> int:
        """Allocate, build kernels once per content; a handle. DeviceError if the device is too small."""
        ...

    def unload(self, handle: int) -> None:
        """Free what only this program uses."""
        ...

    def submit(self, handle: int, inputs: Mapping[str, Any]) -> Any:
        """Run once with the program's `inputs` (all of them, hyperparameters too); a ticket.

        An array that is given again holds what it held before: it may not be copied a second time.
        """
        ...

    def flush(self, free: Callable[[], object] = nothing) -> None:
        """See that the runs submitted so far begin, where they wait for others to be submitted with.

        `free` is called, if at all, before a part of it that leaves Python's lock to other threads for long.
        """
        ...

    def collect(self, ticket: Any) -> dict[str, Any]:
        """Outputs of that run by name, waiting for it."""
        ...

    def timings(self, handle: int, inputs: Mapping[str, Any], runs: int) -> Timings:
        """Run `runs` times, after a run that is not timed, and time every dispatch. Nothing may be in flight."""
        ...

    def read(self, name: str) -> Any:
        """A persistent buffer, flat."""
        ...

    def write(self, name: str, values: Any, offset: int = 0) -> None:
        """Overwrite part of a persistent buffer."""
        ...

    def interrupt(self) -> None:
        """The session is about to be closed: end what takes long, such as a compiler. Called by another thread."""
        ...

    def close(self) -> None:
        """Free everything. Closing twice is fine."""
        ...
