"""The Program: everything that a runtime needs for one step, as plain data.

All runtimes execute this object: WebGPU, CPU, browser and Pyodide. Memory consists of a few flat arrays. A value is a
range of one of them, a field. A kernel binds each array once, and gets the beginnings of its values as offsets. So
repeated layers share one kernel.
"""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, cast

from tracegrad.dtypes import DTYPES, STORED, TensorType, axis_first
from tracegrad.errors import InputError
from tracegrad.files.jsontext import LOCAL, built, demand, distinct, dumped, index, natural, parse, plain, shown
from tracegrad.ir.graph import Graph
from tracegrad.kernel_source import Binding, KernelSource, check_grid, check_kernel
from tracegrad.loops import BY_SIZE, Loop, Move, kept, order

VERSION = 2
ROLES = ("param", "grad", "state", "data", "input", "fed", "output", "temp", "const")
PERSISTENT = ("param", "grad", "state", "data")  # roles whose buffers outlive a step and are shared by name
MARGIN = 4096  # padding elements before and after every array on a CPU: C kernels can read them, but not use them
INDEX = 2**31  # offsets are i32
MAX_RANK = 64
DEEPEST_LOOPS = 32
MOST_LAUNCHES = 2**22  # launches of one run, with loops unrolled
DRAWN = "init"  # the `Buffer.fill` of the model's states: the initialiser in each field's spec draws it
# in an output's spec: each run sets it to 0 or adds 1, so its last value gives the values of earlier runs
COUNTS = "counts"


@dataclass(frozen=True, slots=True)
class Buffer:
    """A flat array. `role` is "param", "grad", "state", "data", "input", "fed", "output", "temp" or "const"."""

    name: str
    dtype: str  # "f32" or "i32"; role "temp": also "f16"
    size: int  # elements; role "data": 0 if the host decides the number of examples
    role: str
    fill: float | str = 0.0  # first values of a persistent buffer other than parameters; "params": a copy of these;
    # "init": initialisers draw its fields
    data: str = ""  # role "const": the bytes, base64

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return STORED[self.dtype].itemsize * self.size

    def contents(self) -> bytes:
        """Return the bytes of a constant."""
        return base64.b64decode(self.data)


@dataclass(frozen=True, slots=True)
class Field:
    """A named value: `size` elements of a buffer from `offset` on, read as `dtype[shape]`."""

    name: str
    buffer: int
    offset: int
    dtype: str  # "f32", "i32", "u32" or "bool"
    shape: tuple[int, ...]
    spec: Mapping[str, Any] = field(default_factory=dict[str, Any])  # param, state: init; input: range; output: COUNTS
    per: int = field(default=0, repr=False, compare=False, metadata=LOCAL)  # `axis` is this multiple of the run's size
    axis: int = field(default=0, repr=False, compare=False, metadata=LOCAL)  # memory has this axis first

    @property
    def stored(self) -> tuple[int, ...]:
        """The shape in memory, where the axis `axis` comes first."""
        return axis_first(self.shape, self.axis) if self.axis else self.shape

    @property
    def type(self) -> TensorType:
        """Element type and shape; prints as `f32[2,3]`."""
        return TensorType(DTYPES[self.dtype], self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.type.size

    def at(self, size: int) -> Field:
        """Return the field for a run of `size`."""
        if not self.per:
            return self
        n, k = self.per * size, self.axis
        shape = (*self.shape[:k], n, *self.shape[k + 1 :])
        return replace(self, shape=shape, spec=with_rows(self.spec, self.shape[k], n, k))


def with_rows(spec: Mapping[str, Any], rows: int, n: int, axis: int = 0) -> Mapping[str, Any]:
    """Return the index range in `spec` for `n` rows along `axis` instead of `rows`. A box of all rows gets all `n`."""
    box, others = spec.get("box"), spec.get("others")
    if box and box[axis] == [0, rows - 1]:
        spec = {**spec, "box": [*box[:axis], [0, n - 1], *box[axis + 1 :]]}
    return {**spec, "others": [with_rows(other, rows, n, axis) for other in others]} if others else spec


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One launch of a kernel: its buffers, the offsets of its values in them, and the number of workgroups."""

    kernel: int  # index into Program.kernels
    buffers: tuple[int, ...]  # buffer ids, in @binding order
    offsets: tuple[int, ...]  # where each value of the kernel begins in its buffer, in elements
    grid: tuple[int, int]  # workgroups in x and y
    moves: tuple[tuple[int, Move], ...] = ()  # inside loops: (number of the offset, its move)

    def with_grid(self, grid: tuple[int, int]) -> Dispatch:
        """Return the dispatch with another grid. `dataclasses.replace` would take three times as long."""
        return self if grid == self.grid else Dispatch(self.kernel, self.buffers, self.offsets, grid, self.moves)

    def moved(self, at: tuple[int, ...], size: int) -> Dispatch:
        """Return the dispatch with its offsets in iteration `at` of the loops around it, in a run of `size`."""
        if not self.moves:
            return self
        offsets = list(self.offsets)
        for slot, move in self.moves:
            offsets[slot] += move.at(size if move.depth == BY_SIZE else at[move.depth])
        left = tuple([m for m in self.moves if m[1].depth == BY_SIZE])
        return Dispatch(self.kernel, self.buffers, tuple(offsets), self.grid, left)


@dataclass(frozen=True, slots=True)
class Program:
    """A compiled training step or forward, as plain data: all that a runtime needs to execute it.

    As torch.export.ExportedProgram.

    kernels:    the texts of the kernels, and what they bind.
    buffers:    the flat arrays on the device.
    dispatches: launches of kernels, in order, each with its buffers and the offsets of its values.
    inputs:     values that the host writes before each run. Hyperparameters are named "hyper.lr" and so on.
    outputs:    values read after a run: "loss", "halted", "aux.NAME", "capture.NAME" or "output". "halted" is 0 if
                the device accepts the step, else the number of steps in a row that it refused. It refuses a step with
                a value that is not finite, and each step after a refused one.
    params:     names, shapes and initialisers of the parameters, in declaration order; no trained values.
    states:     the optimizer's arrays and flags, and the states of the model.
    meta:       hyperparameters, schedule and optimizer, as plain data.
    largest:    the largest temporary value, for the error of a device that is too small; "" if there is none.
    loops:      ranges of dispatches that run repeatedly, in order of their first dispatch, outer before inner.
    capacity:   if calls choose a size, such as the rows of a batch, the largest that this program serves; else 0.
    size:       the chosen size, for which `inputs` and `outputs` have their shapes, from 1 to `capacity`; else 0.
    graph:      the traced graph, for a runtime with a compiler of its own.

    >>> train.program    # train: as in the example of tg.compile
    <Program: 4 kernels, 4 dispatches, 10 buffers>
    """

    kernels: tuple[KernelSource, ...]
    buffers: tuple[Buffer, ...]
    dispatches: tuple[Dispatch, ...]
    inputs: tuple[Field, ...]
    outputs: tuple[Field, ...]
    params: tuple[Field, ...]
    states: tuple[Field, ...]
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])
    largest: str = ""
    loops: tuple[Loop, ...] = ()
    capacity: int = field(default=0, repr=False, compare=False, metadata=LOCAL)
    size: int = field(default=0, repr=False, compare=False, metadata=LOCAL)
    graph: Graph | None = field(default=None, repr=False, compare=False, metadata=LOCAL)

    def at(self, size: int) -> Program:
        """Return the program for a chosen size, from 1 to `capacity`: its inputs and outputs have that size.

        Kernels, buffers and `dispatches` do not change; `launched()` gives the numbers of workgroups for the size.
        """
        assert 0 < size <= self.capacity, size
        inputs, outputs = (tuple([f.at(size) for f in fields]) for fields in (self.inputs, self.outputs))
        return replace(self, inputs=inputs, outputs=outputs, size=size)

    def launched(self) -> tuple[Dispatch, ...]:
        """Return the dispatches as a GPU launches them: each with as many workgroups as the program's size needs.

        C and NumPy do not read the numbers of workgroups.
        """
        if self.size == self.capacity:
            return self.dispatches
        grids = [k.grid(self.size) for k in self.kernels]
        return tuple([d.with_grid(grids[d.kernel] or d.grid) for d in self.dispatches])

    def unrolled(self) -> Iterator[Dispatch]:
        """Yield all dispatches in execution order; those of a loop once per iteration, with the iteration's offsets.

        Offsets that depend on the size that a call chooses are those for the program's `size`.
        """
        dispatches = self.launched()
        for k, at in self.order():
            yield dispatches[k].moved(at, self.size)

    def order(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Yield (k, iterations) for each launch of a kernel, in execution order.

        k:          the index of the dispatch in `dispatches`.
        iterations: the index, from 0, in each loop around it, outermost first.
        """
        return order(self.loops, range(len(self.dispatches)), self.size)

    def kept(self) -> list[int]:
        """Return the indices of the launches that a run at `size` makes, among the launches of a run at `capacity`."""
        return kept(self.loops, range(len(self.dispatches)), self.size)[0]

    @property
    def model_states(self) -> tuple[Field, ...]:
        """The states of the model, such as running means, named "state/PATH"; without those of the optimizer."""
        return tuple(f for f in self.states if "init" in f.spec)

    @property
    def part(self) -> str:
        """The name of the loss whose step this is, if there are several losses; else ""."""
        return self.meta.get("part", {}).get("name", "")

    @property
    def first(self) -> int:
        """The offset, in elements, of this loss's parameters in the buffer "params"; 0 if there is only one loss."""
        return self.meta.get("part", {}).get("first", 0)

    @property
    def trained(self) -> tuple[Field, ...]:
        """The parameters that the step trains, with offsets into the arrays of gradients and optimizer state."""
        fields = [f for f in self.params if f.spec.get("trainable", True)]
        names = self.meta.get("part", {}).get("trains", [f.name for f in fields])
        return tuple(replace(f, offset=f.offset - self.first) for f in fields if f.name in names)

    @property
    def needs_f16(self) -> bool:
        """True if a WebGPU device needs the feature shader-f16 to run the program."""
        return any(b.dtype == "f16" for b in self.buffers)

    def __repr__(self) -> str:
        sizes = f"{len(self.kernels)} kernels, {len(self.dispatches)} dispatches, {len(self.buffers)} buffers"
        if self.loops:
            sizes += ", loops of " + ", ".join(f"{x.end - x.begin} dispatches x {x.count}" for x in self.loops)
        return f"<Program: {sizes}>"

    def without_barriers(self) -> Program:
        """Return the program with kernels that use no workgroup barriers, which are very slow in WebGPU on a CPU."""
        kernels = tuple(k.without_barriers() for k in self.kernels)
        grids = [new.serial_grid if new is not old else None for old, new in zip(self.kernels, kernels)]
        dispatches = tuple([d.with_grid(grids[d.kernel] or d.grid) for d in self.dispatches])
        return replace(self, kernels=kernels, dispatches=dispatches)

    def to_data(self) -> dict[str, Any]:
        """Return the program as data for `json.dumps` and `from_data`. Kernels are in WGSL, the language of WebGPU."""
        return plain(self)

    @staticmethod
    def from_data(data: Any, where: str = "program") -> Program:
        """Make a program from the data of `to_data`. Raises InputError for the first fault.

        where: what error messages put before the place of the fault.
        """
        program: Program = built(Program, data, where)
        check(program, where)
        return program

    def to_json(self) -> str:
        """Return the program as JSON, with kernels in WGSL. Equal programs give equal bytes. `from_json` reads it."""
        return dumped({"version": VERSION, **self.to_data()}, separators=(",", ":"), sort_keys=True)

    @staticmethod
    def from_json(text: str | bytes) -> Program:
        """Make a program from the text of `to_json`.

        A program from a file is not trusted. It has no code for the host, so a CPU refuses it. A GPU runs its kernels
        with the driver's bounds checks.
        Raises: InputError for text that is not JSON, or of another version. Also for a field that is unknown, missing
                or of another type, and for an index, size, offset or loop that does not fit the rest.
        """
        d = parse(text)
        if not isinstance(d, dict) or "version" not in d:
            raise InputError("program: this is not a program of tracegrad, which is a JSON object with a version")
        data = cast("dict[str, Any]", d)
        version = data.pop("version")
        if type(version) is not int or version != VERSION:
            raise InputError(f"program: version {shown(version)}; this library reads version {VERSION}")
        return Program.from_data(data)


def check(p: Program, where: str) -> None:
    """Check that each index, size, offset, type and loop fits the rest of the program. Raises InputError otherwise.

    The texts of kernels are not checked: the device must keep them within their buffers.
    """
    distinct([b.name for b in p.buffers], f"{where}.buffers")
    for k, b in enumerate(p.buffers):
        _check_buffer(b, f"{where}.buffers[{k}]")
    for k, kernel in enumerate(p.kernels):
        check_kernel(kernel, f"{where}.kernels[{k}]")
    for name in ("inputs", "outputs", "params", "states"):
        rows: Sequence[Field] = getattr(p, name)
        distinct([f.name for f in rows], f"{where}.{name}")
        for k, f in enumerate(rows):
            _check_field(f, p.buffers, f"{where}.{name}[{k}]")
    depths = _check_loops(p.loops, len(p.dispatches), where)
    for k, d in enumerate(p.dispatches):
        _check_dispatch(d, p, depths[k], f"{where}.dispatches[{k}]")


def _check_buffer(b: Buffer, where: str) -> None:
    demand(b.dtype in STORED, f"{where}.dtype", b.dtype, f"one of {', '.join(STORED)}")
    demand(b.role in ROLES, f"{where}.role", b.role, f"one of {', '.join(ROLES)}")
    natural(b.size, f"{where}.size")
    finite = math.isfinite(b.fill) if isinstance(b.fill, float | int) else b.fill in ("params", "init")
    demand(finite, f"{where}.fill", b.fill, 'a finite number, "params" or "init"')
    try:
        length = len(base64.b64decode(b.data, validate=True))
    except (binascii.Error, ValueError):
        raise InputError(f"{where}.data is not base64") from None
    expected = b.bytes if b.role == "const" else 0
    if length != expected:
        raise InputError(f"{where}.data has {length} bytes; a {b.role} of {b.size} {b.dtype} has {expected}")


def _check_field(f: Field, buffers: Sequence[Buffer], where: str) -> None:
    b = buffers[index(f.buffer, len(buffers), f"{where}.buffer", "buffers")]
    demand(f.dtype in DTYPES, f"{where}.dtype", f.dtype, f"one of {', '.join(DTYPES)}")
    demand(DTYPES[f.dtype].storage == b.dtype, f"{where}.dtype", f.dtype, f"a type that is stored as {b.dtype}")
    if len(f.shape) > MAX_RANK:
        raise InputError(f"{where}.shape has {len(f.shape)} axes; the limit is {MAX_RANK}")
    for n in f.shape:
        natural(n, f"{where}.shape")
    natural(f.offset, f"{where}.offset")
    if f.offset + f.size > b.size:
        end = shown(f.offset + f.size)
        raise InputError(f"{where} ends at element {end} of {shown(b.name)}, which has {b.size}")


def _check_loops(loops: Iterable[Loop], dispatches: int, where: str) -> list[int]:
    """Return the number of loops around each dispatch. Raises InputError unless loops are disjoint or nested."""
    depths, times = [0] * dispatches, [1] * dispatches
    around: list[Loop] = []
    last = 0
    for k, x in enumerate(loops):
        at = f"{where}.loops[{k}]"
        while around and around[-1].end <= x.begin:
            around.pop()
        end = around[-1].end if around else dispatches
        if not last <= x.begin < x.end <= end:
            what = f"the dispatches {shown(x.begin)} to {shown(x.end)}"
            raise InputError(f"{at} runs {what}; they must begin at {last} or later, and end by {end}")
        natural(x.count, f"{at}.count")
        last = x.begin
        around.append(x)
        if len(around) > DEEPEST_LOOPS:
            raise InputError(f"{at} is nested deeper than the limit of {DEEPEST_LOOPS}")
        for n in range(x.begin, x.end):
            depths[n] += 1
            times[n] = min(times[n] * x.count, MOST_LAUNCHES + 1)
    if sum(times) > MOST_LAUNCHES:
        raise InputError(f"{where}.loops make more than {MOST_LAUNCHES} launches a run")
    return depths


def _check_dispatch(d: Dispatch, p: Program, depth: int, where: str) -> None:
    kernel = p.kernels[index(d.kernel, len(p.kernels), f"{where}.kernel", "kernels")]
    if len(d.buffers) != len(kernel.bindings):
        raise InputError(f"{where}.buffers has {len(d.buffers)} values; the kernel has {len(kernel.bindings)} bindings")
    for n, (number, binding) in enumerate(zip(d.buffers, kernel.bindings)):
        at = f"{where}.buffers[{n}]"
        _check_binding(p.buffers[index(number, len(p.buffers), at, "buffers")], binding, at)
    if len(d.offsets) != kernel.slots:
        raise InputError(f"{where}.offsets has {len(d.offsets)} values; the kernel has {kernel.slots} slots")
    for n, offset in enumerate(d.offsets):
        demand(0 <= offset < INDEX, f"{where}.offsets[{n}]", offset, f"0 to {INDEX - 1}")
    for n, (slot, move) in enumerate(d.moves):
        at = f"{where}.moves[{n}]"
        index(slot, kernel.slots, at, "slots")
        index(move.depth, depth, f"{at}.depth", "loops around it")
        demand(0 < move.ring < INDEX, f"{at}.ring", move.ring, "at least 1")
        reach = d.offsets[slot] + move.step * (move.ring - 1)
        demand(-INDEX <= reach < INDEX and abs(move.step) < INDEX, f"{at}.step", move.step, "offsets that fit i32")
    check_grid(d.grid, f"{where}.grid")


def _check_binding(b: Buffer, binding: Binding, where: str) -> None:
    if b.dtype != binding.dtype:
        raise InputError(f"{where} is {shown(b.name)} of {b.dtype}; the kernel wants {binding.dtype}")
    if binding.size > b.size:
        raise InputError(f"{where} is {shown(b.name)} of {b.size} elements; the kernel declares {binding.size}")
