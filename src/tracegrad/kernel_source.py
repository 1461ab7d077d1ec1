"""A kernel as text: one mapping from languages to texts, each of which is spelled when it is first read."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from typing import Any

from tracegrad.dtypes import STORED
from tracegrad.jsontext import LOCAL, demand, natural
from tracegrad.kernels.form import Kernel
from tracegrad.kernels.tiling import Reach, Tiling, grid_of
from tracegrad.lazy import dataclass

FILED = ("wgsl", "serial_wgsl")  # the languages of files


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
        """Return the text in a dialect of WGSL; "" if there is none."""
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
    offsets: int = 0  # to be declared, the number of the first workgroup included
    constant: bool = False  # does the body read them at constant positions?

    def text(self, offsets: Sequence[int] = ()) -> str:
        """All of it. With `offsets` they are constants, else a device reads them from a buffer."""
        declared = ""
        if self.offsets:
            kind = f"array<vec4<i32>, {-(-self.offsets // 4)}>"
            numbers = [*offsets, 0, 0, 0, 0]
            fours = ", ".join(f"vec4<i32>{tuple(numbers[k : k + 4])}" for k in range(0, self.offsets, 4))
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
    # of each form, what a software adapter runs, if it can run some workgroups without the others
    apart: tuple[Tiling, ...] = field(default=(), repr=False, compare=False, metadata=LOCAL)
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
        """Return the same for runs of some size."""
        if self.serial_reach is None:
            return self
        return replace(self, serial_grid=grid_of(self.serial_reach.at(size)))

    def with_offsets(self, offsets: Sequence[int]) -> KernelSource:
        """The same with constant offsets, if all it reads are at constant positions: a launch binds one group fewer."""
        shader: Shader = self.texts["wgsl"]
        return replace(self, slots=0, texts=Texts(wgsl=Shader(shader.text(offsets)))) if shader.constant else self


def check_kernel(k: KernelSource, where: str) -> None:
    """InputError for a size, grid or type that cannot be."""
    for name in ("slots", "workgroup_memory"):
        natural(getattr(k, name), f"{where}.{name}")
    check_grid(k.serial_grid, f"{where}.serial_grid")
    for n, b in enumerate(k.bindings):
        demand(b.dtype in STORED, f"{where}.bindings[{n}].dtype", b.dtype, f"one of {', '.join(STORED)}")
        natural(b.size, f"{where}.bindings[{n}].size")


def check_grid(grid: tuple[int, int], where: str) -> None:
    """InputError for workgroups that cannot be."""
    for n in grid:
        demand(0 <= n < 2**32, where, grid, "workgroups in x and y, each below 2**32")
