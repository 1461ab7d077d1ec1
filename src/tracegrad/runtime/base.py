"""The seam between a Program and a device."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from tracegrad.errors import DeviceError
from tracegrad.lazy import dataclass
from tracegrad.program import Program


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """A usable device, as `tg.devices()` lists it.

    >>> train.device.name
    'cpu'
    """

    name: str  # what `device=` takes: "webgpu", "cpu" or "jax"
    description: str  # e.g. "NVIDIA H200 (Vulkan)"
    software: bool = False  # a CPU posing as a GPU: correct, slow, never chosen by "auto"
    gpu: bool = True  # is it called as a GPU?
    resizes: bool = False  # do its sessions run a program at any size up to its capacity?
    precisions: tuple[str, ...] = ("f32", "f16")  # what `precision=` may be
    share: tuple[int, int] = (0, 1)  # of several processes: which of how many equal parts of each batch this one gives
    process: int = 0  # its number

    def __str__(self) -> str:
        return f"{self.name} ({self.description})"


def as_run(program: Program, info: DeviceInfo) -> Program:
    """The form of a program that a WebGPU device runs."""
    return program.without_barriers() if info.software else program


def load_on(session: Session, program: Program) -> int:
    """Load a program; its handle. DeviceError for a precision that the device does not have."""
    precision = program.graph.precision if program.graph else "f32"
    if precision not in session.info.precisions:
        raise DeviceError(
            f'precision={precision!r} is XLA\'s: compile with device="jax"; {session.info.name!r} has '
            f"{' and '.join(map(repr, session.info.precisions))}"
        )
    return session.load(program)


@dataclass(frozen=True, slots=True)
class Timings:
    """When each dispatch of a program began and ended, in seconds, in the order they ran; for each of some runs."""

    clock: str  # what was read
    runs: tuple[tuple[tuple[float, float], ...], ...]

    @property
    def quickest(self) -> float:
        """All dispatches of the run in which they took least."""
        return min(sum(end - begin for begin, end in spans) for spans in self.runs)


class Batch(Protocol):
    """Runs of one program that a session executes together. It may be dropped without reading its outputs."""

    def outputs(self) -> list[dict[str, Any]]:
        """Wait, and return the outputs of each run by name. Called once."""
        ...


class Done(list[dict[str, Any]]):
    """A batch that was computed by `run` itself: the outputs of each run."""

    def outputs(self) -> list[dict[str, Any]]:
        """The list itself."""
        return self


class Door(Protocol):
    """Whose memory a session's is: that of its own thread, or of any thread for the length of one run."""

    def open(self) -> None:
        """The session's thread is about to sleep."""
        ...

    def shut(self) -> None:
        """It is at work again. Waits for a run under way."""
        ...

    def direct(self, handle: int) -> Callable[[Mapping[str, Any]], dict[str, Any] | None] | None:
        """A function from inputs to outputs that does one run on its caller's thread; None if there can be none.

        It gives None where the door is shut or another thread is inside, and nothing was done.
        """
        ...


class Session(Protocol):
    """A device with named, persistent buffers.

    Programs loaded into one session share every buffer of role "param", "grad" or "state" that has the same name; the
    first program that brings a name allocates it, filled with `Buffer.fill`. Every method but `interrupt` runs on the
    one thread that owns the session. A session executes batches in order; the engine decides which runs share a batch.
    Arrays are NumPy arrays of the field's dtype and shape.
    """

    ahead: int  # batches worth having under way before the outputs of the first are read
    batch_seconds: float  # that one batch should take: a wait for a run is a wait for all of its batch

    @property
    def door(self) -> Door | None:
        """For runs on other threads while the session's own sleeps; None if there can be none."""
        ...

    @property
    def info(self) -> DeviceInfo:
        """What it is."""
        ...

    def load(self, program: Program, like: int | None = None) -> int:
        """Allocate, build kernels once per content; a handle. DeviceError if the device is too small.

        like: of a loaded program that this one is at another size: they share memory and kernels. Only where the
              device's `DeviceInfo.resizes`.
        """
        ...

    def unload(self, handle: int) -> None:
        """Free what only this program uses."""
        ...

    def capacity(self, handle: int) -> int:
        """The most runs of a program that one batch may have."""
        ...

    def run(self, handle: int, inputs: Sequence[Mapping[str, Any]]) -> Batch:
        """Begin one batch: a run for each element of `inputs`, which has all inputs of the program by name.

        inputs:  If the same array object comes again, its contents must not have changed: the session is free to skip
                 the copy.
        Raises:  what went wrong before anything ran; `Batch.outputs` raises the rest.
        """
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
