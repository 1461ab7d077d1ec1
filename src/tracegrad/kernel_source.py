"""The source text of a kernel, in each language that a device reads. A text is generated when it is first read."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tracegrad.dtypes import STORED
from tracegrad.files.jsontext import LOCAL, demand, natural
from tracegrad.kernels.blocks import Blocks
from tracegrad.kernels.form import Kernel
from tracegrad.kernels.tiling import Reach, Tiling, grid_of
from tracegrad.loops import Loop, Move

FILED = ("wgsl", "serial_wgsl")  # the languages stored in files


@dataclass(frozen=True, slots=True)
class Binding:
    """One array that a kernel reads or writes, in @binding order."""

    dtype: str
    written: bool
    size: int = 0  # elements that the text declares, or 0 for any: a size known in advance makes bounds checks cheap


@dataclass(frozen=True, slots=True)
class BoundKernel:
    """A kernel of a launch, and what it binds."""

    kernel: Kernel
    tiling: Tiling
    first: int  # the number of its first slot in the launch
    binding_of: Sequence[int]  # of each slot
    aligned: Sequence[bool]  # for each slot: does it begin at a multiple of four elements in all dispatches?
    reach: Reach | None = None  # if the workgroups of several kernels of the launch depend on the size of a run


@dataclass(frozen=True, slots=True)
class BoundLaunch:
    """The input of a renderer: kernels that run side by side in one launch, and the bindings that they share."""

    kernels: Sequence[BoundKernel]
    bindings: Sequence[Binding]
    capacity: int = 0  # the largest size of a run, if the text reads the size; else 0


@dataclass(frozen=True, slots=True)
class BoundLoop:
    """The input of a renderer: all iterations of a loop in one launch. A workgroup runs them for each block."""

    blocks: Blocks
    binding_of: Sequence[int]  # binding of each slot, for one kernel after the other
    bindings: tuple[Binding, ...]
    moves: Mapping[int, Sequence[Move]]  # slot -> how its offset moves in this loop, and in the loop inside of it
    nest: Nest


@dataclass(frozen=True, slots=True)
class Nest:
    """The turns of a loop: each kernel takes one in each iteration, but some repeat in a loop inside.

    iterations: how many there are at most. inside: loops over the numbers of the kernels, in order.
    """

    iterations: int
    kernels: int
    inside: tuple[Loop, ...] = ()

    @property
    def turns(self) -> int:
        """The number of turns of an iteration."""
        return self.turn(self.kernels, 0)

    def count(self, kernel: int) -> int:
        """Return how often a kernel runs in an iteration."""
        return next((x.count for x in self.inside if x.begin <= kernel < x.end), 1)

    def turn(self, kernel: int, u: int) -> int:
        """Return the number of a kernel's turn in iteration `u` of the loop inside."""
        before = sum((x.count - 1) * (x.end - x.begin) for x in self.inside if x.end <= kernel)
        return before + kernel + u * next((x.end - x.begin for x in self.inside if x.begin <= kernel < x.end), 0)


spelling = threading.RLock()  # generating a text changes expressions that several kernels share


def _another_lock() -> None:
    """Make a lock that is free: in a child, a thread of the parent may have held the old one."""
    global spelling
    spelling = threading.RLock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_another_lock)


class Texts:
    """The texts of a kernel by language. `spell` generates a text at its first read: a device reads one of several.

    Two kernels are equal if both of their WGSL dialects are equal. Only files and WebGPU use these.
    """

    __slots__ = ("_known", "_spell")

    def __init__(self, spell: Callable[[str], Any] | None = None, **known: Any) -> None:
        self._spell, self._known = spell, known if spell else {"serial_wgsl": None, **known}

    def __getitem__(self, language: str) -> Any:
        if language not in self._known and self._spell is not None:
            with spelling:
                if language not in self._known:  # another thread may have generated it in the meantime
                    self._known[language] = self._spell(language)
        return self._known[language]

    def lacks(self, language: str) -> bool:
        """Return whether the text is known to be missing. A text that is not generated yet counts as present."""
        return self._known.get(language, self._spell) is None

    @staticmethod
    def filed(wgsl: str, serial_wgsl: str = "") -> Texts:
        """Make the texts of a kernel from a file."""
        return Texts(wgsl=Shader(wgsl), serial_wgsl=Shader(serial_wgsl) if serial_wgsl else None)

    def shader(self, language: str) -> str:
        """Return the text in a dialect of WGSL, or "" without one."""
        found: Shader | None = self[language]
        return found.text() if found else ""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Texts) and all(self.shader(k) == other.shader(k) for k in FILED)

    def __hash__(self) -> int:
        return hash(self.shader("wgsl"))


@dataclass(frozen=True, slots=True)
class Shader:
    """A text in WGSL. In this process, offsets are declared between `head` and `body`; a file's text is only `head`."""

    head: str
    body: str = ""
    offsets: int = 0  # how many are declared; the last is the number of the first workgroup
    constant: bool = False  # does the body read them at constant positions?

    def text(self, offsets: Sequence[int] = ()) -> str:
        """Return the whole text. `offsets` become constants; without them, the device reads offsets from a buffer."""
        declared = ""
        if self.offsets:
            kind = f"array<vec4<i32>, {-(-self.offsets // 4)}>"
            numbers = [*offsets, 0, 0, 0, 0]
            fours = ", ".join(f"vec4<i32>{tuple(numbers[k : k + 4])}" for k in range(0, self.offsets, 4))
            declared = f"const at = {kind}({fours});" if offsets else f"@group(1) @binding(0) var<uniform> at: {kind};"
        return self.head + declared + "\n" * bool(declared) + self.body


@dataclass(frozen=True, slots=True)
class KernelSource:
    """One kernel, with its texts in every language."""

    label: str
    bindings: tuple[Binding, ...]
    slots: int  # number of offsets in a dispatch
    workgroup_memory: int  # bytes
    texts: Texts = field(repr=False, metadata={"filed": FILED, "read": Texts.filed})
    serial_grid: tuple[int, int] = (0, 0)  # workgroups of each dispatch of serial_wgsl
    # True if compiled in this process. The CPU runs no other kernels, and a GPU checks the indices of other kernels
    own: bool = field(default=False, repr=False, compare=False, metadata=LOCAL)
    # the kernels behind the texts, and the binding of each slot: verification computes results from these
    forms: tuple[Kernel, ...] = field(default=(), repr=False, compare=False, metadata=LOCAL)
    binding_of: tuple[int, ...] = field(default=(), repr=False, compare=False, metadata=LOCAL)
    # for a loop in one launch: the kernels of an iteration, in order
    turns: tuple[Turn, ...] = field(default=(), repr=False, compare=False, metadata=LOCAL)
    # what a software adapter runs for `wgsl` and `serial_wgsl`, if it can run workgroups separately
    apart: tuple[Tiling, ...] = field(default=(), repr=False, compare=False, metadata=LOCAL)
    # the largest size of a run, if the text for a GPU reads the size; else 0
    capacity: int = field(default=0, repr=False, compare=False, metadata=LOCAL)
    # does a loop of one of the kernels end where the size of a run says?
    follows: bool = field(default=False, repr=False, compare=False, metadata=LOCAL)
    # if the number of workgroups depends on the size of a run: that of each kernel, for wgsl and for serial_wgsl
    reaches: tuple[Reach, ...] = field(default=(), repr=False, compare=False, metadata=LOCAL)
    serial_reaches: tuple[Reach, ...] = field(default=(), repr=False, compare=False, metadata=LOCAL)

    @property
    def launches(self) -> int:
        """The number of dispatches per iteration that a launch of this loop replaces; 1 if the kernel is no loop."""
        return self.turns[-1].launch + 1 if self.turns else 1

    @property
    def wgsl(self) -> str:
        """The text for a GPU."""
        return self.texts.shader("wgsl")

    @property
    def serial_wgsl(self) -> str:
        """The text without workgroup memory, if `wgsl` uses it; else ""."""
        return self.texts.shader("serial_wgsl")

    def grid(self, size: int) -> tuple[int, int] | None:
        """Return the workgroups of a run of this size; None if all runs have as many as the dispatch says."""
        return grid_of(sum([reach.at(size) for reach in self.reaches])) if self.reaches else None

    def numbers(self, offsets: tuple[int, ...], size: int = 0) -> tuple[int, ...]:
        """Return the integers that the device reads in a launch: the offsets, and the run's size if the text reads it.

        Between them is the number of the first workgroup.
        """
        return (*offsets, 0, size or self.capacity) if self.capacity else offsets

    def without_barriers(self) -> KernelSource:
        """Return the kernel for an adapter that runs on a CPU, where barriers are very slow."""
        if self.texts.lacks("serial_wgsl"):
            return self
        texts = Texts(lambda _: self.texts["serial_wgsl"], serial_wgsl=None)
        return replace(self, texts=texts, workgroup_memory=0, reaches=self.serial_reaches)

    def with_offsets(self, offsets: Sequence[int]) -> KernelSource:
        """Return the kernel with constant offsets, which saves a bind group, if it reads them at constant positions."""
        shader: Shader = self.texts["wgsl"]
        return replace(self, slots=0, texts=Texts(wgsl=Shader(shader.text(offsets)))) if shader.constant else self


@dataclass(frozen=True, slots=True)
class Turn:
    """A kernel of a loop that runs in one launch.

    Two offsets, after those of all kernels, say which turns to run, so a launch can run one kernel alone. If an
    iteration has n turns, turn k of iteration t is number t * n + k of all. Kernel `number` takes turn
    `nest.turn(number, u)` of an iteration.
    """

    source: KernelSource  # with the form and the bindings of this kernel
    first: int  # the number of its first slot
    moves: tuple[Sequence[Move], ...]  # of each of its slots
    nest: Nest
    number: int  # of the kernel in the nest
    kernel: int  # its number among the kernels of the program whose loop is not in one launch
    launch: int  # the number of its dispatch in an iteration there


def check_kernel(k: KernelSource, where: str) -> None:
    """Check the sizes, grid and types of a kernel. Raises InputError for an invalid one."""
    for name in ("slots", "workgroup_memory"):
        natural(getattr(k, name), f"{where}.{name}")
    check_grid(k.serial_grid, f"{where}.serial_grid")
    for n, b in enumerate(k.bindings):
        demand(b.dtype in STORED, f"{where}.bindings[{n}].dtype", b.dtype, f"one of {', '.join(STORED)}")
        natural(b.size, f"{where}.bindings[{n}].size")


def check_grid(grid: tuple[int, int], where: str) -> None:
    """Check the numbers of workgroups. Raises InputError for invalid ones."""
    for n in grid:
        demand(0 <= n < 2**32, where, grid, "workgroups in x and y, each below 2**32")
