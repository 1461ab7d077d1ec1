"""Kernels checked on a WebGPU device: `verify` with one program that fills memory, runs all kernels and picks elements.

What is filled and picked stays on the device: patterns and some indices go there, and some elements come back. A trial
uses a dispatch's own offsets, so its pipeline is the one that the program runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from tracegrad.arrays import np
from tracegrad.errors import CompileError, DeviceError, DeviceLostError
from tracegrad.program import Binding, Buffer, Dispatch, Field, KernelSource, Needs, Program
from tracegrad.runtime.base import Batch
from tracegrad.runtime.verdicts import RIGHT, Verdicts, key_of
from tracegrad.runtime.verify import (
    PERIOD,
    STRIDE,
    Contents,
    Kind,
    Layout,
    Name,
    Trial,
    enabled,
    faults,
    layout_of,
    sizes_of,
)

Array = Any
Placed = Mapping[str, tuple[KernelSource, Layout]]

THREADS = 64
ROW = 32768  # workgroups in x
NOWHERE = (0, 0)  # the grid of a launch that is there so that offsets are not constants in a kernel's text


class Runner(Protocol):
    """What is needed of a session."""

    def load(self, program: Program) -> int: ...
    def run(self, handle: int, inputs: Sequence[Mapping[str, Any]]) -> Batch: ...
    def unload(self, handle: int) -> None: ...


def refuse_wrong(program: Program, runner: Runner, verdicts: Verdicts) -> None:
    """Check the kernels that have no verdict yet. CompileError, with the kernel's number, for one that is wrong."""
    if not enabled():
        return
    numbers = {key_of(k.wgsl, repr(k.bindings)): n for n, k in enumerate(program.kernels) if k.forms}
    firsts = {d.kernel: d for d in reversed(program.dispatches)}
    unknown = {key: firsts[n] for key, n in numbers.items() if verdicts.known(key) != RIGHT}
    kernels = {key: program.kernels[d.kernel] for key, d in unknown.items()}
    placed = {key: (k, layout_of(k, unknown[key].offsets)) for key, k in kernels.items()}
    found = _checked(placed, {key: _Launch(program, d) for key, d in unknown.items()}, runner)
    verdicts.add(found)
    for key, how in found.items():
        if how:
            error = CompileError(
                f"kernel {kernels[key].label!r} computes wrongly on this device: {how}. Another version of the driver, "
                'another adapter or device="cpu" may do better; `tracegrad doctor` checks many kernels'
            )
            error.kernel = numbers[key]
            raise error


class _Launch:
    """How a program launches a kernel: its grid, and whether always with the same offsets."""

    def __init__(self, program: Program, d: Dispatch) -> None:
        self.grid = d.grid
        self.single = len({x.offsets for x in program.unrolled() if x.kernel == d.kernel}) == 1


def _checked(placed: Placed, launches: Mapping[str, _Launch], runner: Runner) -> dict[str, str]:
    """What each kernel computes wrongly. Those that memory does not suffice for together are checked in halves."""
    if not placed:
        return {}
    try:
        return faults(placed, partial(_run, runner, sizes_of(placed), launches))
    except DeviceLostError:
        raise
    except DeviceError as e:  # too little memory beside the program's own
        if len(placed) == 1:
            ((kernel, _),) = placed.values()
            warnings.warn(f"kernel {kernel.label!r} could not be checked: {e}", RuntimeWarning, stacklevel=2)
            return {}
        parts = [list(placed.items())[k::2] for k in range(2)]
        return {key: how for part in parts for key, how in _checked(dict(part), launches, runner).items()}


def _run(
    runner: Runner, sizes: Mapping[Name, int], launches: Mapping[str, _Launch], trials: Sequence[tuple[str, Trial]]
) -> list[list[Array]]:
    """What the device leaves where each trial looks."""
    bench = _Bench(sizes)
    for key, trial in trials:
        bench.add(trial, launches[key])
    handle = runner.load(bench.program())
    try:
        return bench.picked(*runner.run(handle, [bench.inputs()]).outputs())
    finally:
        runner.unload(handle)


class _Bench:
    """The program of some trials, one behind the other on the same arrays."""

    def __init__(self, sizes: Mapping[Name, int]) -> None:
        self.contents, self.sizes = Contents(), sizes
        self.arrays = {name: len(FIXED) + k for k, name in enumerate(sizes)}
        self.kernels: dict[KernelSource, int] = {}
        self.dispatches: list[Dispatch] = []
        self.tables: dict[str, dict[Kind | float, tuple[int, Array]]] = {"table.f32": {}, "table.i32": {}}
        self.picks: list[Array] = []
        self.found = {"found.f32": 0, "found.i32": 0}
        self.places: list[list[tuple[str, int, int]]] = []  # of each trial's checks, in what is found
        self.memory = self.bindings = 4

    def add(self, trial: Trial, launch: _Launch) -> None:
        """Prepare memory, run the kernel, and pick."""
        for f in self.contents.lacking(trial):
            table, x = self._entry(f.array, f.kind, trial.drawn.of(f.kind))
            self._help("fill", f.array, (x, f.begin, f.end - f.begin, f.array[0] * STRIDE), (table,))
        for array, at, value in trial.puts:
            table, x = self._entry(array, value, np.full(1, value))
            self._help("put", array, (x, self._picked(at), at.size, 0), (table, "picks"))
        kernel = trial.kernel
        number = self.kernels.setdefault(_alone(kernel), len(self.kernels))
        buffers = tuple(self.arrays[name] for name in trial.arrays())
        self.dispatches.append(Dispatch(number, buffers, trial.layout.offsets, launch.grid))
        if not launch.single:
            self.dispatches.append(Dispatch(number, buffers, tuple(x + 4 for x in trial.layout.offsets), NOWHERE))
        self.memory, self.bindings = max(self.memory, kernel.workgroup_memory), max(self.bindings, len(buffers))
        self.places.append([])
        for c in trial.checks:
            found = f"found.{_plain(c.array[1])}"
            self.places[-1].append((found, self.found[found], self.found[found] + c.at.size))
            self._help("pick", c.array, (self.found[found], self._picked(c.at), c.at.size, 0), (found, "picks"))
            self.found[found] += c.at.size

    def _entry(self, array: Name, key: Kind | float, values: Array) -> tuple[str, int]:
        """A table of values for this array, and where they begin in it."""
        name = f"table.{_plain(array[1])}"
        entries = self.tables[name]
        if key not in entries:
            entries[key] = sum(x.size for _, x in entries.values()), values
        return name, entries[key][0]

    def _picked(self, elements: Array) -> int:
        """Where these indices begin among all."""
        self.picks.append(elements.reshape(-1).astype(np.int32))
        return sum(x.size for x in self.picks[:-1])

    def _help(self, what: str, array: Name, offsets: tuple[int, ...], others: Sequence[str]) -> None:
        """Launch one of the helpers on an array."""
        number = self.kernels.setdefault(helper(what, array[1]), len(self.kernels))
        first, *more = [FIXED.index(name) for name in others]
        groups = -(-offsets[2] // THREADS)
        grid = (min(groups, ROW), -(-groups // ROW))
        self.dispatches.append(Dispatch(number, (first, self.arrays[array], *more), offsets, grid))

    def inputs(self) -> dict[str, Array]:
        """What the host gives."""
        tables = {name: [x for _, x in entries.values()] for name, entries in self.tables.items()}
        kinds = zip(FIXED, (np.float32, np.int32, np.int32), (*tables.values(), self.picks))
        return {name: np.concatenate([*parts, np.zeros(1)]).astype(kind) for name, kind, parts in kinds}

    def picked(self, outputs: Mapping[str, Array]) -> list[list[Array]]:
        """The elements of each check of each trial."""
        return [[outputs[found][begin:end] for found, begin, end in trial] for trial in self.places]

    def program(self) -> Program:
        """All of it."""
        sizes = {n: x.size for n, x in self.inputs().items()} | {n: size + 1 for n, size in self.found.items()}
        fields = [Field(n, k, 0, n[-3:] if n != "picks" else "i32", (sizes[n],)) for k, n in enumerate(FIXED)]
        buffers = [Buffer(f.name, f.dtype, f.size, "input" if k < 3 else "output") for k, f in enumerate(fields)]
        buffers += [Buffer(f"verify.{k}.{dtype}", dtype, size, "state") for (k, dtype), size in self.sizes.items()]
        largest = max(buffers, key=lambda b: b.bytes)
        return Program(
            kernels=tuple(self.kernels),
            buffers=tuple(buffers),
            dispatches=tuple(self.dispatches),
            inputs=tuple(fields[:3]),
            outputs=tuple(fields[3:]),
            params=(),
            states=(),
            needs=Needs(self.bindings, largest.bytes, largest.bytes, self.memory, largest.name),
        )


FIXED = ("table.f32", "table.i32", "picks", "found.f32", "found.i32")  # the first buffers


def _plain(dtype: str) -> str:
    """What the host gives and takes for a dtype."""
    return "i32" if dtype == "i32" else "f32"


def _alone(kernel: KernelSource) -> KernelSource:
    """The same without what would have it checked again."""
    return KernelSource.spelled(
        {"wgsl": lambda: kernel.wgsl, "serial_wgsl": str, "numpy": str, "c": str, "calls": str},
        label=kernel.label,
        bindings=kernel.bindings,
        slots=kernel.slots,
        workgroup_memory=kernel.workgroup_memory,
        serial_grid=NOWHERE,
        forms=(),
        binding_of=(),
    )


TEXTS: Mapping[str, str] = {  # at[0]: two places, how many elements, and how far the pattern is shifted
    "fill": "b1[at[0].y + i] = {own}(b0[at[0].x + (at[0].y + i + at[0].w) % {period}]);",
    "put": "b1[b2[at[0].y + i]] = {own}(b0[at[0].x]);",
    "pick": "b0[at[0].x + i] = {plain}(b1[b2[at[0].y + i]]);",
}


def helper(what: str, dtype: str) -> KernelSource:
    """A kernel that fills an array with a pattern, puts a number at some of its elements, or picks some."""
    bindings = [Binding(_plain(dtype), what == "pick"), Binding(dtype, what != "pick"), Binding("i32", False)]
    declared = [
        f"@group(0) @binding({k}) var<storage, {'read_write' if b.written else 'read'}> b{k}: array<{b.dtype}>;"
        for k, b in enumerate(bindings[: 2 if what == "fill" else 3])
    ]
    lines = [
        *(["enable f16;"] if dtype == "f16" else []),
        *declared,
        "@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 1>;",
        f"@compute @workgroup_size({THREADS})",
        "fn main(@builtin(workgroup_id) wid: vec3u, @builtin(local_invocation_index) lid: u32) {",
        f"  let i = i32(wid.x + wid.y * {ROW}u) * {THREADS} + i32(lid);",
        f"  if (i < at[0].z) {{ {TEXTS[what].format(own=dtype, plain=_plain(dtype), period=PERIOD)} }}",
        "}",
    ]
    return KernelSource(what, tuple(bindings[: len(declared)]), 4, 0, "\n".join(lines), "", own=True)
