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
from dataclasses import field, replace
from typing import Any, cast

from tracegrad.dtypes import DTYPES, STORED, TensorType
from tracegrad.errors import InputError
from tracegrad.ir import Graph
from tracegrad.jsontext import parse, shown
from tracegrad.kernels.form import Kernel
from tracegrad.kernels.tiling import Reach, Tiling, grid_of
from tracegrad.lazy import dataclass
from tracegrad.program_json import LOCAL, built, check, plain

VERSION = 1
PERSISTENT = ("param", "grad", "state", "data")  # roles whose buffers outlive a step and are shared by name
MARGIN = 4096  # elements before and behind every array of a CPU, which kernels in C may read and which mean nothing
FILED = ("wgsl", "serial_wgsl")  # the languages of files
DRAWN = "init"  # the `Buffer.fill` of the model's states: each is drawn by the initialiser in its field's spec
COUNTS = "counts"  # in an output's spec: a run sets it to 0 or adds 1, so its last value tells those of all runs


@dataclass(frozen=True, slots=True)
class Buffer:
    """A flat array. `role` is "param", "grad", "state", "data", "input", "fed", "output", "temp" or "const"."""

    name: str
    dtype: str  # "f32" or "i32"; role "temp": also "f16"
    size: int  # elements; role "data": 0 where the host decides how many examples there are
    role: str
    fill: float | str = 0.0  # what a persistent buffer holds at first, parameters aside; "params" is a copy of them;
    # "init": its fields are drawn
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
    spec: Mapping[str, Any] = field(default_factory=dict[str, Any])  # param, state: init; input: range; output: COUNTS
    per: int = field(default=0, repr=False, compare=False, metadata=LOCAL)  # axis 0 is so many times a run's size

    @property
    def type(self) -> TensorType:
        """Element type and shape; prints as `f32[2,3]`."""
        return TensorType(DTYPES[self.dtype], self.shape)

    @property
    def size(self) -> int:
        """Number of elements."""
        return self.type.size

    def at(self, size: int) -> Field:
        """The same in a run of some size."""
        if not self.per:
            return self
        n, spec, box = self.per * size, self.spec, self.spec.get("box")
        if box and box[0] == [0, self.shape[0] - 1]:
            spec = {**spec, "box": [[0, n - 1], *box[1:]]}
        return replace(self, shape=(n, *self.shape[1:]), spec=spec)


@dataclass(frozen=True, slots=True)
class Binding:
    """One array a kernel touches, in @binding order."""

    dtype: str
    written: bool
    size: int = 0  # elements that the kernel's text declares: a bound known beforehand is cheap to check; 0 is any


@dataclass(frozen=True, slots=True)
class BoundLaunch:
    """Kernels that run side by side, and where their slots lie: what a renderer spells."""

    kernels: Sequence[Kernel]
    tilings: Sequence[Tiling]
    binding_of: Sequence[int]  # of each slot, kernels one after the other
    bindings: Sequence[Binding]
    aligned: Sequence[bool]  # of each slot, do all dispatches have it begin at a multiple of four elements?


SPELLING = [threading.RLock()]  # kernels share what expressions are made of, which spelling adds to


def _forked() -> None:
    """In a forked child: a thread of the parent may have held the lock."""
    SPELLING[0] = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Texts:
    """A kernel in each language. `spell` makes one when it is first read, by any thread: a device reads one of several.

    Only files and WebGPU know the two dialects of WGSL, so two kernels are equal if these are.
    """

    __slots__ = ("_known", "_spell")

    def __init__(self, spell: Callable[[str], Any] | None = None, **known: Any) -> None:
        self._spell, self._known = spell, known if spell else {"serial_wgsl": None, **known}

    def __getitem__(self, language: str) -> Any:
        if language not in self._known and self._spell is not None:
            with SPELLING[0]:
                if language not in self._known:  # while it waited, another thread may have spelled it
                    self._known[language] = self._spell(language)
        return self._known[language]

    def lacks(self, language: str) -> bool:
        """Is it known that there is none? A text that is not spelled yet is not looked at."""
        return self._known.get(language, self._spell) is None

    @staticmethod
    def filed(wgsl: str, serial_wgsl: str = "") -> Texts:
        """Those that a file holds."""
        return Texts(wgsl=Shader(wgsl), serial_wgsl=Shader(serial_wgsl) if serial_wgsl else None)

    def shader(self, language: str) -> str:
        """The text in a dialect of WGSL; "" if there is none."""
        found: Shader | None = self[language]
        return found.text() if found else ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Texts) and all(self.shader(k) == other.shader(k) for k in FILED)

    def __hash__(self) -> int:
        return hash(self.shader("wgsl"))


@dataclass(frozen=True, slots=True)
class Shader:
    """WGSL. A text of this process declares its offsets between `head` and `body`; that of a file is all head."""

    head: str
    body: str = ""
    offsets: int = 0  # to be declared
    constant: bool = False  # does the body read them at constant positions?

    def text(self, offsets: Sequence[int] = ()) -> str:
        """All of it. With `offsets` they are constants, else a device reads them from a buffer."""
        declared = ""
        if self.offsets:
            kind = f"array<vec4<i32>, {-(-self.offsets // 4)}>"
            numbers = [*offsets, 0, 0, 0]
            fours = ", ".join(f"vec4<i32>{tuple(numbers[k : k + 4])}" for k in range(0, len(offsets), 4))
            declared = f"const at = {kind}({fours});" if offsets else f"@group(1) @binding(0) var<uniform> at: {kind};"
        return self.head + declared + "\n" * bool(declared) + self.body


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One kernel, in every language it is spelled in."""

    label: str
    bindings: tuple[Binding, ...]
    slots: int  # how many offsets a dispatch gives
    workgroup_memory: int  # bytes
    texts: Texts = field(repr=False, metadata={"filed": FILED, "read": Texts.filed})
    serial_grid: tuple[int, int] = (0, 0)  # workgroups of each dispatch of serial_wgsl
    # made by the compiler in this process: the CPU runs no other, and a GPU checks the indices of all others
    own: bool = field(default=False, repr=False, compare=False, metadata=LOCAL)
    # what its texts spell, and the binding of each of their slots: the device's results are checked by these
    forms: tuple[Kernel, ...] = field(default=(), repr=False, compare=False, metadata=LOCAL)
    binding_of: tuple[int, ...] = field(default=(), repr=False, compare=False, metadata=LOCAL)
    # where a run's size decides: how many workgroups of wgsl, and of serial_wgsl
    reach: Reach | None = field(default=None, repr=False, compare=False, metadata=LOCAL)
    serial_reach: Reach | None = field(default=None, repr=False, compare=False, metadata=LOCAL)

    @property
    def wgsl(self) -> str:
        """What a GPU runs."""
        return self.texts.shader("wgsl")

    @property
    def serial_wgsl(self) -> str:
        """The same without workgroup memory, where that is used."""
        return self.texts.shader("serial_wgsl")

    def without_barriers(self) -> KernelSource:
        """What an adapter that runs on a CPU runs: barriers are ruinous there."""
        if self.texts.lacks("serial_wgsl"):
            return self
        texts = Texts(lambda _: self.texts["serial_wgsl"], serial_wgsl=None)
        return replace(self, texts=texts, workgroup_memory=0)

    def at(self, size: int) -> KernelSource:
        """The same for runs of some size."""
        if self.serial_reach is None:
            return self
        return replace(self, serial_grid=grid_of(self.serial_reach.at(size)))

    def with_offsets(self, offsets: Sequence[int]) -> KernelSource:
        """The same with constant offsets, if all it reads are at constant positions: a launch binds one group fewer."""
        shader: Shader = self.texts["wgsl"]
        return replace(self, slots=0, texts=Texts(wgsl=Shader(shader.text(offsets)))) if shader.constant else self


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
    """One step (or one forward) as plain data.

    >>> train.program
    <Program: 4 kernels, 4 dispatches, 10 buffers>
    """

    kernels: tuple[KernelSource, ...]
    buffers: tuple[Buffer, ...]
    dispatches: tuple[Dispatch, ...]
    inputs: tuple[Field, ...]  # written by the host before each run; hyperparameters are named "hyper.lr" and so on
    outputs: tuple[Field, ...]  # read after a run: "loss", "halted", "aux.*", "capture.*" or "output"
    params: tuple[Field, ...]  # by declaration order
    states: tuple[Field, ...]  # persistent optimizer arrays and flags, and the states of the model
    needs: Needs
    meta: Mapping[str, Any] = field(default_factory=dict[str, Any])  # hyperparameters, schedule, optimizer: plain data
    copies: tuple[tuple[int, int], ...] = ()
    loops: tuple[Loop, ...] = ()  # in the order of their first dispatch, outer before inner
    capacity: int = field(default=0, repr=False, compare=False, metadata=LOCAL)  # the largest size of a run; 0: of one
    size: int = field(default=0, repr=False, compare=False, metadata=LOCAL)  # of runs
    # what it was compiled from: a runtime with a compiler of its own needs no kernels
    graph: Graph | None = field(default=None, repr=False, compare=False, metadata=LOCAL)

    def at(self, size: int) -> Program:
        """The same for runs of another size up to the capacity: texts, buffers and places stay."""
        assert 0 < size <= self.capacity, size
        reaches = [k.reach for k in self.kernels]
        grids = [reach and grid_of(reach.at(size)) for reach in reaches]
        return replace(
            self,
            kernels=tuple([k.at(size) for k in self.kernels]),
            dispatches=tuple([replace(d, grid=grids[d.kernel] or d.grid) for d in self.dispatches]),
            inputs=tuple([f.at(size) for f in self.inputs]),
            outputs=tuple([f.at(size) for f in self.outputs]),
            size=size,
        )

    def unrolled(self) -> Iterator[Dispatch]:
        """All dispatches in the order they run, those in loops once an iteration, with the offsets of that."""
        return _unrolled(self, range(len(self.dispatches)), range(len(self.loops)), ())

    @property
    def model_states(self) -> tuple[Field, ...]:
        """The states of the model, named `state/<path>`; the others are the optimizer's."""
        return tuple(f for f in self.states if "init" in f.spec)

    @property
    def part(self) -> str:
        """The loss whose step it is, where there are several; else ""."""
        return self.meta.get("part", {}).get("name", "")

    @property
    def first(self) -> int:
        """Where the optimizer's run of the array "params" begins: of several losses, each has one of its own."""
        return self.meta.get("part", {}).get("first", 0)

    @property
    def trained(self) -> tuple[Field, ...]:
        """The parameters that a step trains, as they lie in the gradients and in arrays of the optimizer."""
        fields = [f for f in self.params if f.spec.get("trainable", True)]
        names = self.meta.get("part", {}).get("trains", [f.name for f in fields])
        return tuple(replace(f, offset=f.offset - self.first) for f in fields if f.name in names)

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
        kernels = tuple(k.without_barriers() for k in self.kernels)
        grids = [old.serial_grid if new is not old else None for old, new in zip(self.kernels, kernels)]
        dispatches = tuple(replace(d, grid=grids[d.kernel] or d.grid) for d in self.dispatches)
        return replace(self, kernels=kernels, dispatches=dispatches)

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
