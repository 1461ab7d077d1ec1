"""The interface between a Program and a device, and the table of runtimes."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

from tracegrad.compiler.joined import joined
from tracegrad.errors import DeviceError
from tracegrad.program import Program
from tracegrad.refusals import Value

if TYPE_CHECKING:
    from tracegrad.runtime.doors import Door


@dataclass(frozen=True, slots=True)
class DeviceInfo(Value):
    """A usable device, as `tg.devices()` lists it and `train.device` names it.

    name:        the name for `device=`: "webgpu", "cpu" or "jax".
    description: such as "NVIDIA H200 (Vulkan)".
    software:    True for a CPU that acts as a GPU: correct and slow. "auto" takes it only if TRACEGRAD_DEVICE says so.
    gpu:         True for every WebGPU adapter, and for JAX unless a training found that it computes on a CPU.
    sizes:       how programs serve sizes that calls choose. "exact": one program serves many sizes, and computes
                 each at its own size if the model allows it, else as "room". "room": one program serves many sizes,
                 each padded to a larger size, which costs time. "one": each size gets its own program.
    precisions:  valid values of `precision=`.
    share:       with several processes, (k, n): this process gives part k, from 0, of n equal parts of each batch.
    process:     the index of this process, from 0.

    >>> train.device.name, train.device.gpu    # train: as in the example of tg.compile
    ('cpu', False)
    """

    name: str
    description: str
    software: bool = False
    gpu: bool = True
    sizes: str = "room"
    precisions: tuple[str, ...] = ("f32", "f16")
    share: tuple[int, int] = (0, 1)
    process: int = 0

    def __str__(self) -> str:
        return f"{self.name} ({self.description})"


def as_run(program: Program, info: DeviceInfo) -> Program:
    """Return the form of a program for a device: for a GPU, loops in one launch; for a software adapter, no barriers.

    Devices other than WebGPU's run the program unchanged.
    """
    if info.name != "webgpu":
        return program
    return program.without_barriers() if info.software else joined(program)


def persistent(arrays: Mapping[str, Any], name: str) -> Any:
    """Return a session's persistent array by name. Raise DeviceError for an unknown name."""
    if name not in arrays:
        raise DeviceError(f"no persistent array {name!r}; there are {', '.join(arrays) or 'none'}")
    return arrays[name]


def check_open(closed: bool) -> None:
    """Raise DeviceError for a session that was closed."""
    if closed:
        raise DeviceError("this session is closed")


def check_within(name: str, first: int, size: int, whole: int) -> None:
    """Raise DeviceError unless `size` elements from `first` on are within a persistent array of `whole` elements."""
    if first < 0 or first + size > whole:
        raise DeviceError(f"elements {first} to {first + size} are outside {name!r}, which has {whole}")


def check_precision_of(info: DeviceInfo, precision: str) -> None:
    """Raise DeviceError for a precision that the device lacks."""
    if precision not in info.precisions:
        raise DeviceError.here(
            f'precision={precision!r} needs device="jax"; {info.name!r} has {" and ".join(map(repr, info.precisions))}'
        )


@dataclass(frozen=True, slots=True)
class Timings:
    """The start and end of each dispatch of a program, in seconds, in order of execution, for each of several runs."""

    clock: str  # the clock that was read
    runs: tuple[tuple[tuple[float, float], ...], ...]

    @property
    def quickest(self) -> float:
        """Return the sum of the times of all dispatches in the fastest run."""
        return min(sum(end - begin for begin, end in spans) for spans in self.runs)


class Batch(Protocol):
    """Runs of one program that a session executes together. Callers may drop a batch and never read its outputs."""

    def outputs(self) -> list[dict[str, Any]]:
        """Wait, and return the outputs of each run by name. Called once."""
        ...


class Done(list[dict[str, Any]]):
    """A batch that `run` computed before returning: the outputs of each run."""

    def outputs(self) -> list[dict[str, Any]]:
        """Return the list itself."""
        return self


class Session(Protocol):
    """A device with named, persistent buffers.

    Programs loaded into one session share every buffer of role "param", "grad" or "state" with the same name; the
    first program with a name allocates the buffer, filled with `Buffer.fill`. Every method but `interrupt` runs on the
    one thread that owns the session. A session executes batches in order; the engine decides which runs share a batch.
    Arrays are NumPy arrays of the field's dtype and shape.
    """

    ahead: int  # how many batches to begin before reading the outputs of the first
    batch_seconds: float  # target duration of a batch: waiting for a run means waiting for its whole batch

    @property
    def door(self) -> Door | None:
        """The `Door` by which other threads run programs while the session's thread sleeps; None without one."""
        ...

    @property
    def info(self) -> DeviceInfo:
        """The device."""
        ...

    def load(self, program: Program, like: int | None = None) -> int:
        """Allocate, build each distinct kernel once, and return a handle. Raise DeviceError if the device is too small.

        like: handle of the same program at another size, whose memory and kernels to share. Only if the device's
              `DeviceInfo.sizes` is "exact".
        """
        ...

    def unload(self, handle: int) -> None:
        """Free what only this program uses."""
        ...

    def capacity(self, handle: int) -> int:
        """Return the most runs of a program in one batch."""
        ...

    def run(self, handle: int, inputs: Sequence[Mapping[str, Any]]) -> Batch:
        """Begin one batch: a run for each element of `inputs`, which holds all inputs of the program by name.

        inputs:  If the same array object comes again, its contents must not have changed: the session is free to skip
                 the copy.
        Raises:  errors that occur before anything runs; `Batch.outputs` raises all others.
        """
        ...

    def timings(self, handle: int, inputs: Mapping[str, Any], runs: int) -> Timings:
        """Run `runs` times after an untimed run, and time every dispatch. No other batch must be in flight."""
        ...

    def read(self, name: str) -> Any:
        """Return a persistent buffer, flat."""
        ...

    def write(self, name: str, values: Any, offset: int = 0) -> None:
        """Overwrite part of a persistent buffer."""
        ...

    def interrupt(self) -> None:
        """End long work such as a compilation, because the session is about to be closed. Another thread calls this."""
        ...

    def close(self) -> None:
        """Free everything. A second call does nothing."""
        ...


RUNTIMES = ("webgpu", "cpu", "jax")  # in the order in which "auto" tries them; add the name of a new runtime here
DEVICES = ("auto", *RUNTIMES)


class Runtime(Protocol):
    """The functions that the module of a runtime must have."""

    def devices(self) -> list[DeviceInfo]:
        """Return the runtime's usable devices, the best first."""
        ...

    def begin(self, device: str) -> Callable[[], Session | None]:
        """Begin to look for a device, import its code, and return a function that opens the device.

        Call the function on the session's thread.

        device: the runtime's own name, or "auto". For "auto", the function returns None if no device is suitable.
        Raises: DeviceError, here or in the function.
        """
        ...


def runtime(name: str) -> Runtime:
    """Import and return the runtime of that name. Importing all of them would make importing tracegrad slower."""
    return cast("Runtime", importlib.import_module(f"tracegrad.runtime.{name}"))
