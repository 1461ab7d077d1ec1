"""The artifact: everything a runtime needs for one step, as plain data.

The native, CPU, browser and Pyodide runtimes execute this very object. Memory is a handful of flat arrays; a value is
a field in one of them. A kernel sees each array it touches once, and learns from its offsets where its values begin,
so that repeated layers share one kernel.
"""

from __future__ import annotations

import base64
import functools
import json
import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from itertools import repeat
from typing import TYPE_CHECKING, Any, cast, get_args, get_origin, get_type_hints

from tracegrad.dtypes import DTYPES, STORED, TensorType

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
    numpy: str = field(repr=False)
    c: str = field(default="", repr=False)  # functions for all but products,
    calls: str = field(default="", repr=False)  # and Python that binds them and the products, in order
    serial_wgsl: str = field(default="", repr=False)  # the same without workgroup memory, where that is used
    serial_grid: tuple[int, int] = (0, 0)  # workgroups of each dispatch of serial_wgsl

    @staticmethod
    def spelled(spell: Mapping[str, Callable[[], str]], **known: Any) -> KernelSource:
        """A kernel whose texts `spell` makes, by field, when they are asked for."""
        made = object.__new__(KernelSource)
        for name, value in {"_spell": spell, **known}.items():
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
        return _unrolled(self.dispatches, 0, len(self.dispatches), self.loops, ())

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

    def to_json(self) -> str:
        """Canonical text: equal programs give equal bytes."""
        return json.dumps({"version": VERSION, **asdict(self)}, separators=(",", ":"), sort_keys=True)

    @staticmethod
    def from_json(text: str) -> Program:
        """The program that `to_json` wrote."""
        d = json.loads(text)
        if d.pop("version") != VERSION:
            raise ValueError(f"a program of another version; this library reads version {VERSION}")
        return _built(Program, d)


def _unrolled(
    dispatches: Sequence[Dispatch], begin: int, end: int, loops: Sequence[Loop], at: tuple[int, ...]
) -> Iterator[Dispatch]:
    """Dispatches `begin` to `end` in iteration `at` of the loops around them; `loops` are those inside."""
    while begin < end:
        if loops and loops[0].begin == begin:
            loop, inner = loops[0], [x for x in loops[1:] if x.end <= loops[0].end]
            for k in range(loop.count):
                yield from _unrolled(dispatches, begin, loop.end, inner, (*at, k))
            begin, loops = loop.end, loops[1 + len(inner) :]
            continue
        d = dispatches[begin]
        if d.moves:
            offsets = list(d.offsets)
            for slot, move in d.moves:
                offsets[slot] += move.step * (at[move.depth] % move.ring)
            d = Dispatch(d.kernel, d.buffers, tuple(offsets), d.grid)
        yield d
        begin += 1


_kinds = functools.cache(get_type_hints)


def _built(kind: Any, value: Any) -> Any:
    """What a field of type `kind` holds, from what JSON has of it."""
    if is_dataclass(kind):
        return cast("Any", kind)(**{name: _built(_kinds(kind)[name], v) for name, v in value.items()})
    if get_origin(kind) is tuple:
        kinds = get_args(kind)
        return tuple(map(_built, repeat(kinds[0]) if ... in kinds else kinds, value))
    return value


def field_named(fields: Sequence[Field], name: str) -> Field:
    """The field of that name."""
    return next(f for f in fields if f.name == name)
