"""The artifact: everything a runtime needs for one step, as plain data.

The native, CPU, browser and Pyodide runtimes execute this very object. Memory is a handful of flat arrays; a value is
a field in one of them. A kernel sees each array it touches once, and learns from its offsets where its values begin,
so that repeated layers share one kernel.
"""

from __future__ import annotations

import base64
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, cast

from tracegrad.dtypes import DTYPES, STORED, TensorType
from tracegrad.errors import InputError
from tracegrad.jsontext import parse, shown
from tracegrad.kernels.form import Kernel
from tracegrad.program_json import LOCAL, built, check, plain

VERSION = 1
PERSISTENT = ("param", "grad", "state", "data")  # roles whose buffers outlive a step and are shared by name
COUNTS = "counts"  # in an output's spec: a run sets it to 0 or adds 1, so its last value tells those of all runs


@dataclass(frozen=True, slots=True)
class Buffer:
    """A flat array. `role` is "param", "grad", "state", "data", "input", "fed", "output", "temp" or "const"."""

    name: str
    dtype: str  # "f32" or "i32"; role "temp": also "f16"
    size: int  # elements; role "data": 0 where the host decides how many examples there are
    role: str
    fill: float | str = 0.0  # what a persistent buffer holds at first, parameters aside; "params" is a copy of them
    data: str = ""  # role "const": the bytes, base64

    @property
    def bytes(self) -> int:
        """Size in bytes."""
        return STORED[self.dtype].itemsize * self.size

    def contents(self) -> bytes:
        """The bytes of a constant."""
        return base64.b64decode(self.data)


@dataclass(frozen=True, slots=True)
class Field:
    """A named value: `size` elements of a buffer from `offset` on, read as `dtype[shape]`."""

    name: str
    buffer: int
    offset: int
    dtype: str  # "f32", "i32", "u32" or "bool"
    shape: tuple[int, ...]
    spec: Mapping[str, Any] = field(default_factory=dict[str, Any])  # param: init, decay; input: range; output: COUNTS

    @property
    def type(self) -> TensorType:
        """Element type and shape; prints as `f32[2,3]`."""
        return TensorType(DTYPES[self.dtype], self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.type.size


@dataclass(frozen=True, slots=True)
class Binding:
    """One array a kernel touches, in @binding order."""

    dtype: str
    written: bool
    size: int = 0  # elements that the kernel's text declares: a bound known beforehand is cheap to check; 0 is any


SPELLING = [threading.RLock()]  # kernels share what expressions are made of, which spelling adds to


def _forked() -> None:
    """In a forked child: a thread of the parent may have held the lock."""
    SPELLING[0] = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Spelled:
    """Texts that are made when they are first asked for, by any thread: a device reads one language of several."""

    __slots__ = ("_spell",)

    if not TYPE_CHECKING:  # the fields of the class below have their types

        def __getattr__(self, name: str) -> str:
            spell = object.__getattribute__(self, "_spell").get(name)
            if spell is None:
                raise AttributeError(name)
            with SPELLING[0]:
                try:  # while it waited, another thread may have spelled it
                    return object.__getattribute__(self, name)
                except AttributeError:
                    object.__setattr__(self, name, spell())
            return object.__getattribute__(self, name)


@dataclass(frozen=True, slots=True)
class KernelSource(Spelled):
    """One kernel in every language it is spelled in."""

    label: str
    bindings: tuple[Binding, ...]
    slots: int  # how many offsets a dispatch gives
    workgroup_memory: int  # bytes
    wgsl: str = field(repr=False)
    numpy: str = field(repr=False, compare=False, metadata=LOCAL)  # host code, as the next two are: no file holds it
    c: str = field(default="", repr=False, compare=False, metadata=LOCAL)  # functions for all but products,
    calls: str = field(default="", repr=False, compare=False, metadata=LOCAL)  # and Python that binds both, in order
    serial_wgsl: str = field(default="", repr=False)  # the same without workgroup memory, where that is used
    serial_grid: tuple[int, int] = (0, 0)  # workgroups of each dispatch of serial_wgsl
    # made by the compiler in this process: the CPU runs no other, and a GPU checks the indices of all others
    own: bool = field(default=False, repr=False, compare=False, metadata=LOCAL)
    # what its texts spell, and the binding of each of their slots: the device's results are checked by these
    forms: tuple[Kernel, ...] = field(default=(), repr=False, compare=False, metadata=LOCAL)
    binding_of: tuple[int, ...] = field(default=(), repr=False, compare=False, metadata=LOCAL)

    @staticmethod
    def spelled(spell: Mapping[str, Callable[[], str]], **known: Any) -> KernelSource:
        """A kernel whose texts `spell` makes, by field, when they are asked for."""
        made = object.__new__(KernelSource)
        for name, value in {"_spell": spell, "own": True, **known}.items():
            object.__setattr__(made, name, value)
        return made


@dataclass(frozen=True, slots=True)
class Move:
    """In iteration `t` of the loop at nesting `depth`, 0 being the outermost: `step * (t % ring)` elements further."""

    depth: int
    step: int
    ring: int


@dataclass(frozen=True, slots=True)
class Loop:
    """The dispatches from `begin` up to `end` run `count` times."""

    begin: int
    end: int
    count: int


@dataclass(frozen=True, slots=True)
class Dispatch:
    """One launch."""

    kernel: int  # index into Program.kernels
    buffers: tuple[int, ...]  # buffer ids, in @binding order
    offsets: tuple[int, ...]  # where each value of the kernel begins in its buffer, in elements
    grid: tuple[int, int]  # workgroups in x and y
    moves: tuple[tuple[int, Move], ...] = ()  # inside loops: which of the offsets move, and how


@dataclass(frozen=True, slots=True)
class Needs:
    """What a device must offer: the largest of each over the program."""

    storage_buffers: int  # in one kernel
    binding_bytes: int
    buffer_bytes: int
    workgroup_memory: int
    largest: str  # the name of the largest buffer, for the error


@dataclass(frozen=True, slots=True)
class Program:
    """One step (or one forward) as plain data."""

    kernels: tuple[KernelSource, ...]
    buffers: tuple[Buffer, ...]
    dispatches: tuple[Dispatch, ...]
    inputs: tuple[Field, ...]  # written by the host before each run; hyperparameters are named "hyper.lr" and so on
    outputs: tuple[Field, ...]  # read after a run: "loss", "halted", "aux.*", "capture.*" or "output"
    params: tuple[Field, ...]  # by declaration order
    states: tuple[Field, ...]  # persistent optimizer arrays and flags
    needs: Needs
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])  # hyperparameters, schedule, optimizer: plain data
    copies: tuple[tuple[int, int], ...] = ()
    loops: tuple[Loop, ...] = ()  # in the order of their first dispatch, outer before inner

    def unrolled(self) -> Iterator[Dispatch]:
        """All dispatches in the order they run, those in loops once an iteration, with the offsets of that."""
        return _unrolled(self, range(len(self.dispatches)), range(len(self.loops)), ())

    @property
    def needs_f16(self) -> bool:
        """Does a WebGPU device need the feature shader-f16 for it?"""
        return any(b.dtype == "f16" for b in self.buffers)

    def __repr__(self) -> str:
        sizes = f"{len(self.kernels)} kernels, {len(self.dispatches)} dispatches, {len(self.buffers)} buffers"
        if self.loops:
            sizes += ", loops of " + ", ".join(f"{x.end - x.begin} dispatches x {x.count}" for x in self.loops)
        return f"<Program: {sizes}>"

    def without_barriers(self) -> Program:
        """The same for an adapter that runs on a CPU, where barriers are ruinous: the same sums, bit for bit."""
        serial = [bool(k.serial_wgsl) for k in self.kernels]
        return replace(
            self,
            kernels=tuple(
                replace(k, wgsl=k.serial_wgsl, workgroup_memory=0) if s else k for k, s in zip(self.kernels, serial)
            ),
            dispatches=tuple(
                replace(d, grid=self.kernels[d.kernel].serial_grid) if serial[d.kernel] else d for d in self.dispatches
            ),
        )

    def to_data(self) -> dict[str, Any]:
        """Plain data without the host code of its kernels."""
        return plain(self)

    @staticmethod
    def from_data(data: Any, where: str = "program") -> Program:
        """The program that `to_data` gave. InputError naming the first fault; `where` begins its place."""
        program: Program = built(Program, data, where)
        check(program, where)
        return program

    def to_json(self) -> str:
        """Canonical text: equal programs give equal bytes. It holds WGSL, and no code for the host."""
        return json.dumps({"version": VERSION, **self.to_data()}, separators=(",", ":"), sort_keys=True)

    @staticmethod
    def from_json(text: str | bytes) -> Program:
        """The program that `to_json` wrote.

        A program from a file is data of unknown origin. It carries no code for the host, so a CPU refuses it; a GPU
        runs its kernels with the driver's bounds checks.
        Raises: InputError, in one sentence, for text that is not JSON, another version, a field that is unknown,
                missing or of another type, and an index, size, offset or loop that does not fit the rest.
        """
        d = parse(text)
        if not isinstance(d, dict) or "version" not in d:
            raise InputError("program: this is no program of tracegrad; its JSON is an object with a version")
        data = cast("dict[str, Any]", d)
        version = data.pop("version")
        if type(version) is not int or version != VERSION:
            raise InputError(f"program: version {shown(version)}; this library reads version {VERSION}")
        return Program.from_data(data)


def _unrolled(p: Program, dispatches: range, loops: range, at: tuple[int, ...]) -> Iterator[Dispatch]:
    """Some dispatches in iteration `at` of the loops around them; `loops` are those inside."""
    k, end = dispatches.start, dispatches.stop
    x = loops.start
    while k < end:
        if x < loops.stop and p.loops[x].begin == k:
            loop, after = p.loops[x], x + 1
            while after < loops.stop and p.loops[after].end <= loop.end:
                after += 1
            for t in range(loop.count):
                yield from _unrolled(p, range(k, loop.end), range(x + 1, after), (*at, t))
            k, x = loop.end, after
            continue
        d = p.dispatches[k]
        if d.moves:
            offsets = list(d.offsets)
            for slot, move in d.moves:
                offsets[slot] += move.step * (at[move.depth] % move.ring)
            d = Dispatch(d.kernel, d.buffers, tuple(offsets), d.grid)
        yield d
        k += 1


def field_named(fields: Sequence[Field], name: str) -> Field:
    """The field of that name."""
    return next(f for f in fields if f.name == name)
