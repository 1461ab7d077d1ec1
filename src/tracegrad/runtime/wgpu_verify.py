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
    Kernels,
    Kind,
    Layout,
    Name,
    Trial,
    Trials,
    enabled,
    faults,
    layout_of,
    sizes_of,
    trials_of,
)
from tracegrad.runtime.wgpu_program import offsets_of_kernels

Array = Any
Launches = Mapping[str, tuple[tuple[int, int], bool]]  # of each kernel: its grid, and whether its offsets never change

THREADS = 64
ROW = 32768  # workgroups in x
NOWHERE = (0, 0)  # the grid of a launch that is there so that offsets are not constants in a kernel's text
FIXED = ("table", "picks", "found")  # the first buffers: bits of patterns, indices, and bits that come back


class Runner(Protocol):
    """What is needed of a session."""

    def load(self, program: Program) -> int: ...
    def run(self, handle: int, inputs: Sequence[Mapping[str, Any]]) -> Batch: ...
    def unload(self, handle: int) -> None: ...


class Unchecked:
    """The kernels of a program that have no verdict yet."""

    def __init__(self, program: Program, verdicts: Verdicts) -> None:
        self.program, self.verdicts = program, verdicts
        self.numbers: dict[str, int] = {}
        self.kernels: dict[str, tuple[KernelSource, Layout]] = {}
        self.trials: Trials = ()

    def begin(self) -> None:
        """Find what kernels must compute, while pipelines are compiled."""
        known, kernels = self.verdicts.known, self.program.kernels
        if enabled():
            keys = {key_of(k.wgsl, repr(k.bindings)): n for n, k in enumerate(kernels) if k.forms}
            self.numbers = {key: n for key, n in keys.items() if known(key) != RIGHT}
            firsts = {d.kernel: d.offsets for d in reversed(self.program.dispatches)}
            self.kernels = {key: (kernels[n], layout_of(kernels[n], firsts[n])) for key, n in self.numbers.items()}
            self.trials = trials_of(self.kernels)

    def refuse_wrong(self, runner: Runner) -> None:
        """Run them. CompileError, with the kernel's number, for one that is wrong."""
        if not self.numbers:
            return
        grids, constant = {d.kernel: d.grid for d in self.program.dispatches}, offsets_of_kernels(self.program)
        launches = {key: (grids[n], n in constant) for key, n in self.numbers.items()}
        found = _checked(self.kernels, self.trials, launches, runner)
        self.verdicts.add(found)
        for key, how in found.items():
            if how:
                error = CompileError(
                    f"kernel {self.kernels[key][0].label!r} computes wrongly on this device: {how}. Another version of "
                    'the driver, another adapter or device="cpu" may do better; `tracegrad doctor` checks many kernels'
                )
                error.kernel = self.numbers[key]
                raise error


def _checked(kernels: Kernels, trials: Trials, launches: Launches, runner: Runner) -> dict[str, str]:
    """What each kernel computes wrongly. Those that memory does not suffice for together are checked in halves."""
    try:
        return faults(kernels, trials, partial(_run, runner, sizes_of(x for _, x in kernels.values()), launches))
    except DeviceLostError:
        raise
    except DeviceError as e:  # too little memory beside the program's own
        if len(kernels) == 1:
            ((kernel, _),) = kernels.values()
            warnings.warn(f"kernel {kernel.label!r} could not be checked: {e}", RuntimeWarning, stacklevel=2)
            return {}
        halves = [trials[0::2], trials[1::2]]
        parts = [_checked({key: kernels[key] for key, _ in half}, half, launches, runner) for half in halves]
        return parts[0] | parts[1]


def _run(runner: Runner, sizes: Mapping[Name, int], launches: Launches, trials: Trials) -> list[list[Array]]:
    """What the device leaves where each trial looks."""
    bench = _Bench(sizes)
    for key, trial in trials:
        bench.add(trial, *launches[key])
    inputs = {"table": np.concatenate(bench.table), "picks": np.concatenate(bench.picks)}
    handle = runner.load(bench.program({name: x.size for name, x in inputs.items()}))
    try:
        (outputs,) = runner.run(handle, [inputs]).outputs()
    finally:
        runner.unload(handle)
    bits, out = outputs["found"], list[list[Array]]()
    for (_, trial), begins in zip(trials, bench.places):
        parts = [bits[begin : begin + c.at.size] for c, begin in zip(trial.checks, begins)]
        out.append([x if c.array[1] == "i32" else x.view(np.float32) for c, x in zip(trial.checks, parts)])
    return out


class _Bench:
    """The program of some trials, one behind the other on the same arrays."""

    def __init__(self, sizes: Mapping[Name, int]) -> None:
        self.contents, self.sizes = Contents(sizes), sizes
        self.arrays = {name: len(FIXED) + k for k, name in enumerate(sizes)}
        self.kernels: dict[KernelSource, int] = {}
        self.dispatches: list[Dispatch] = []
        self.table, self.picks = list[Array](), list[Array]()
        self.entries: dict[Kind | tuple[str, float], int] = {}  # where they begin in the table
        self.places: list[list[int]] = []  # of each trial's checks, in what is found
        self.found, self.memory, self.bindings = 0, 0, 4

    def add(self, trial: Trial, grid: tuple[int, int], constant: bool) -> None:
        """Prepare memory, run the kernel, and pick."""
        for f in self.contents.lacking(trial):
            begin = self._entry(f.kind, trial.drawn.of(f.kind))
            self._help("set", f.array, begin, f.begin, f.end - f.begin, f.array[0] * STRIDE)
        for array, value in dict.fromkeys((p.array, p.value) for p in trial.puts):
            begin = self._entry(("one", value), np.full(1, value, np.int32 if array[1] == "i32" else np.float32))
            at = [p.at for p in trial.puts if (p.array, p.value) == (array, value)]
            self._help("set", array, begin, *self._picked(at), -1)
        kernel, buffers = trial.kernel, tuple(self.arrays[name] for name in trial.layout.arrays)
        memory, text = kernel.workgroup_memory, kernel.wgsl
        alone = KernelSource(kernel.label, kernel.bindings, kernel.slots, memory, text, "", own=True)  # unchecked
        number = self.kernels.setdefault(alone, len(self.kernels))
        self.dispatches.append(Dispatch(number, buffers, trial.layout.offsets, grid))
        if not constant:
            self.dispatches.append(Dispatch(number, buffers, tuple(x + 4 for x in trial.layout.offsets), NOWHERE))
        self.memory, self.bindings = max(self.memory, memory), max(self.bindings, len(buffers))
        begins: dict[int, int] = {}
        for array in dict.fromkeys(c.array for c in trial.checks):
            checks = [(k, c.at) for k, c in enumerate(trial.checks) if c.array == array]
            self._help("pick", array, self.found, *self._picked([at for _, at in checks]), 0)
            for k, at in checks:
                begins[k], self.found = self.found, self.found + at.size
        self.places.append([begins[k] for k in range(len(begins))])

    def _entry(self, key: Kind | tuple[str, float], values: Array) -> int:
        """Where these values begin in the table."""
        if key not in self.entries:
            self.entries[key] = sum(x.size for x in self.table)
            self.table.append(values.astype(np.float32 if values.dtype.kind == "f" else np.int32).view(np.int32))
        return self.entries[key]

    def _picked(self, elements: Sequence[Array]) -> tuple[int, int]:
        """Where these indices begin among all, and how many they are."""
        begin, added = sum(x.size for x in self.picks), [x.reshape(-1).astype(np.int32) for x in elements]
        self.picks += added
        return begin, sum(x.size for x in added)

    def _help(self, what: str, array: Name, first: int, second: int, size: int, shift: int) -> None:
        """Launch one of the helpers on an array."""
        number = self.kernels.setdefault(helper(what, array[1]), len(self.kernels))
        groups = -(-size // THREADS)
        buffers = (FIXED.index("found" if what == "pick" else "table"), self.arrays[array], FIXED.index("picks"))
        grid = (min(groups, ROW), -(-groups // ROW))
        self.dispatches.append(Dispatch(number, buffers, (first, second, size, shift), grid))

    def program(self, sizes: Mapping[str, int]) -> Program:
        """All of it, with inputs of these sizes."""
        fields = [Field(n, k, 0, "i32", (sizes.get(n, self.found + 1),)) for k, n in enumerate(FIXED)]
        buffers = [Buffer(f.name, f.dtype, f.size, "output" if f.name == "found" else "input") for f in fields]
        buffers += [Buffer(f"verify.{k}.{dtype}", dtype, size, "state") for (k, dtype), size in self.sizes.items()]
        largest = max(buffers, key=lambda b: b.bytes)
        return Program(
            kernels=tuple(self.kernels),
            buffers=tuple(buffers),
            dispatches=tuple(self.dispatches),
            inputs=tuple(fields[:2]),
            outputs=tuple(fields[2:]),
            params=(),
            states=(),
            needs=Needs(self.bindings, largest.bytes, largest.bytes, self.memory, largest.name),
        )


# at[0]: two places, how many elements, and how far the pattern is shifted; -1 stands for one number at single elements
SET = """var e = at[0].y + i;
  var x = at[0].x;
  if (at[0].w < 0) {{ e = b2[e]; }} else {{ x += (e + at[0].w) % {period}; }}
  b1[e] = {given};"""
PICK = "b0[at[0].x + i] = {taken};"
GIVEN, TAKEN = "b0[x]", "b1[b2[at[0].y + i]]"  # bits: whatever is in an array, but halves


def helper(what: str, dtype: str) -> KernelSource:
    """A kernel that sets elements of an array, or picks some."""
    half = dtype == "f16"
    bindings = (Binding("i32", what == "pick"), Binding("f16" if half else "i32", what == "set"), Binding("i32", False))
    given, taken = (f"f16(bitcast<f32>({GIVEN}))", f"bitcast<i32>(f32({TAKEN}))") if half else (GIVEN, TAKEN)
    text = (SET if what == "set" else PICK).format(period=PERIOD, given=given, taken=taken)
    lines = [
        *(["enable f16;"] if half else []),
        *(
            f"@group(0) @binding({k}) var<storage, {'read_write' if b.written else 'read'}> b{k}: array<{b.dtype}>;"
            for k, b in enumerate(bindings)
        ),
        "@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 1>;",
        f"@compute @workgroup_size({THREADS})",
        "fn main(@builtin(workgroup_id) wid: vec3u, @builtin(local_invocation_index) lid: u32) {",
        f"  let i = i32(wid.x + wid.y * {ROW}u) * {THREADS} + i32(lid);",
        "  if (i >= at[0].z) { return; }",
        f"  {text}",
        "}",
    ]
    return KernelSource(what, bindings, 4, 0, "\n".join(lines), "", own=True)
