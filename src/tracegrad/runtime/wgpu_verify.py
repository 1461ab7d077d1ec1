"""Kernels checked on a WebGPU device: `verify` with programs that fill memory, run a kernel, and pick elements.

What is filled and picked stays on the device: a pattern and some indices go there, and some elements come back. A
trial uses a dispatch's own offsets, so its pipeline is the one that the program runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from tracegrad.arrays import np
from tracegrad.errors import CompileError, DeviceError, DeviceLostError
from tracegrad.program import Binding, Buffer, Dispatch, Field, KernelSource, Needs, Program
from tracegrad.runtime.verdicts import RIGHT, WRONG, Verdicts, key_of
from tracegrad.runtime.verify import GAP, PERIOD, POISON, Trial, enabled, fault, layout_at

Array = Any

THREADS = 64
ROW = 32768  # workgroups in x
INPUTS = (("table.f32", "f32"), ("table.i32", "i32"), ("picks", "i32"), ("counts", "i32"))
FOUND = (("found.f32", "f32"), ("found.i32", "i32"))
TABLE, PICKS, COUNTS, OUT, OWN = 0, 2, 3, 4, 6  # buffers: of f32, and behind it of i32; then the kernel's own
NOWHERE = (0, 0)  # the grid of a launch that is there so that offsets are not constants in a kernel's text


class Runner(Protocol):
    """What is needed of a session."""

    def load(self, program: Program) -> int: ...
    def submit(self, handle: int, inputs: Mapping[str, Any]) -> Any: ...
    def collect(self, ticket: Any) -> dict[str, Any]: ...
    def unload(self, handle: int) -> None: ...


def refuse_wrong(program: Program, runner: Runner, verdicts: Verdicts) -> None:
    """Check the kernels that have no verdict yet. CompileError, with the kernel's number, for one that is wrong."""
    if not enabled():
        return
    keys = [key_of(k.wgsl, repr(k.bindings)) for k in program.kernels]
    found: dict[str, str] = {}
    checked = [
        k for k, kernel in enumerate(program.kernels) if _is_checked(kernel) and verdicts.known(keys[k]) != RIGHT
    ]
    sizes = _sizes(program, checked)
    held: list[int] = []
    try:
        for k in checked:
            if keys[k] in found:
                continue
            kernel, d = program.kernels[k], next(d for d in program.dispatches if d.kernel == k)
            single = len({x.offsets for x in program.unrolled() if x.kernel == k}) == 1

            def run(trial: Trial, d: Dispatch = d, single: bool = single) -> list[Array]:
                probe = _Probe(trial, d.grid, single, sizes)
                held.append(runner.load(probe.program()))  # until all are done: helpers and memory are shared
                return probe.picked(runner.collect(runner.submit(held[-1], probe.inputs())))

            try:
                how = fault(kernel, layout_at(kernel, d.offsets), run)
            except DeviceLostError:
                raise
            except DeviceError as e:  # too little memory for it beside the program's own
                warnings.warn(f"kernel {kernel.label!r} could not be checked: {e}", RuntimeWarning, stacklevel=2)
                continue
            found[keys[k]] = WRONG if how else RIGHT
            if how:
                error = CompileError(
                    f"kernel {kernel.label!r} computes wrongly on this device: {how}. Another version of the driver, "
                    'another adapter or device="cpu" may do better; `tracegrad doctor` checks many kernels'
                )
                error.kernel = k
                raise error
    finally:
        verdicts.add(found)
        for handle in held:
            runner.unload(handle)


def _is_checked(kernel: KernelSource) -> bool:
    """Only what this process compiled, and not half precision."""
    return bool(kernel.forms) and all(b.dtype != "f16" for b in kernel.bindings)


def _sizes(program: Program, checked: Sequence[int]) -> dict[tuple[int, str], int]:
    """The largest array at each binding, by type: one serves all trials."""
    out: dict[tuple[int, str], int] = {}
    for k in checked:
        kernel, d = program.kernels[k], next(d for d in program.dispatches if d.kernel == k)
        for number, (size, b) in enumerate(zip(layout_at(kernel, d.offsets).sizes, kernel.bindings)):
            out[number, b.dtype] = max(out.get((number, b.dtype), 1), size)
    return out


class _Probe:
    """The program of one trial."""

    def __init__(self, trial: Trial, grid: tuple[int, int], single: bool, sizes: Mapping[tuple[int, str], int]) -> None:
        self.trial, self.grid, self.single, self.sizes = trial, grid, single, sizes
        self.kernels: list[KernelSource] = []
        self.numbers: dict[str, int] = {}
        self.dispatches: list[Dispatch] = []
        self.tables: dict[str, list[Array]] = {"f32": [], "i32": []}
        self.picks: list[Array] = []
        self.counts: list[int] = []
        self.found: dict[str, int] = {"f32": 0, "i32": 0}
        self.places: list[tuple[str, int, int]] = []  # of each check, in what is found
        self._write()

    def _write(self) -> None:
        trial = self.trial
        for c in trial.checks:
            if c.slot.replaces < 0:
                self._zero(c.binding, c.at)
        for f in trial.fills:
            begin, end = max(0, f.offset - GAP), min(trial.layout.sizes[f.binding], f.offset + f.size + GAP)
            self._fill(f.binding, begin, end - begin, np.full(PERIOD, POISON[trial.kernel.bindings[f.binding].dtype]))
        for f in trial.fills:
            self._fill(f.binding, f.offset, f.size, f.values)
        for binding, elements in trial.zeros:
            self._zero(binding, elements)
        own = trial.kernel
        kernel = KernelSource.spelled(
            {"wgsl": lambda: own.wgsl, "serial_wgsl": str, "numpy": str, "c": str, "calls": str},
            label=own.label,
            bindings=own.bindings,
            slots=own.slots,
            workgroup_memory=own.workgroup_memory,
            serial_grid=NOWHERE,
            forms=(),
            binding_of=(),
        )
        number = self._number("kernel", kernel)
        buffers = tuple(OWN + k for k in range(len(own.bindings)))
        self.dispatches.append(Dispatch(number, buffers, trial.layout.offsets, self.grid))
        if not self.single:
            self.dispatches.append(Dispatch(number, buffers, tuple(x + 4 for x in trial.layout.offsets), NOWHERE))
        for c in trial.checks:
            kind = "i32" if own.bindings[c.binding].dtype == "i32" else "f32"
            at, size, begin = self._picked(c.at), c.at.size, self.found[kind]
            self.places.append((kind, begin, size))
            self.found[kind] += size
            to = OUT + (kind == "i32")
            self._launch("pick", c.binding, size, (at, begin), (PICKS, OWN + c.binding, COUNTS, to))

    def _fill(self, binding: int, offset: int, size: int, values: Array) -> None:
        kind = "f32" if values.dtype.kind == "f" else "i32"
        begin = PERIOD * len(self.tables[kind])
        self.tables[kind].append(values.astype(np.float32 if kind == "f32" else np.int32))
        table = TABLE + (kind == "i32")
        self._launch("fill", binding, size, (begin, offset), (table, OWN + binding, COUNTS))

    def _zero(self, binding: int, elements: Array) -> None:
        self._launch("zero", binding, elements.size, (self._picked(elements), 0), (PICKS, OWN + binding, COUNTS))

    def _picked(self, elements: Array) -> int:
        """Where these indices begin among all."""
        self.picks.append(elements.reshape(-1).astype(np.int32))
        return sum(x.size for x in self.picks[:-1])

    def _launch(self, what: str, binding: int, size: int, at: tuple[int, int], buffers: tuple[int, ...]) -> None:
        dtype = self.trial.kernel.bindings[binding].dtype
        number = self._number(f"{what} {dtype}", helper(what, dtype))
        groups = -(-size // THREADS)
        offsets = (*at, len(self.counts))
        self.counts.append(size)
        if not any(d.kernel == number for d in self.dispatches):
            self.dispatches.append(Dispatch(number, buffers, (0, 0, len(self.counts)), NOWHERE))
        self.dispatches.append(Dispatch(number, buffers, offsets, (min(groups, ROW), -(-groups // ROW))))

    def _number(self, name: str, kernel: KernelSource) -> int:
        if name not in self.numbers:
            self.numbers[name] = len(self.kernels)
            self.kernels.append(kernel)
        return self.numbers[name]

    def inputs(self) -> dict[str, Array]:
        """What the host gives."""
        tables = {f"table.{kind}": np.concatenate([*found, np.zeros(1)]) for kind, found in self.tables.items()}
        return {
            "table.f32": tables["table.f32"].astype(np.float32),
            "table.i32": tables["table.i32"].astype(np.int32),
            "picks": np.concatenate([*self.picks, np.zeros(1, np.int32)]),
            "counts": np.asarray([*self.counts, 0], np.int32),
        }

    def picked(self, outputs: Mapping[str, Array]) -> list[Array]:
        """The elements of each check."""
        return [outputs[f"found.{kind}"][begin : begin + size] for kind, begin, size in self.places]

    def program(self) -> Program:
        """All of it."""
        inputs = self.inputs()
        found = {f"found.{kind}": size + 1 for kind, size in self.found.items()}
        bindings = self.trial.kernel.bindings
        buffers = [
            *(Buffer(name, dtype, inputs[name].size, "input") for name, dtype in INPUTS),
            *(Buffer(name, dtype, found[name], "output") for name, dtype in FOUND),
            *(
                Buffer(f"verify.{k}.{b.dtype}", b.dtype, self.sizes[k, b.dtype], "state")
                for k, b in enumerate(bindings)
            ),
        ]
        largest = max(buffers, key=lambda b: b.bytes)
        memory = self.trial.kernel.workgroup_memory
        return Program(
            kernels=tuple(self.kernels),
            buffers=tuple(buffers),
            dispatches=tuple(self.dispatches),
            inputs=tuple(Field(n, k, 0, t, (inputs[n].size,)) for k, (n, t) in enumerate(INPUTS)),
            outputs=tuple(Field(n, OUT + k, 0, t, (found[n],)) for k, (n, t) in enumerate(FOUND)),
            params=(),
            states=(),
            needs=Needs(max(4, len(bindings)), largest.bytes, largest.bytes, memory, largest.name),
        )


TEXTS: Mapping[str, str] = {
    "fill": "if (i < counts[at[0].z]) {{ b1[at[0].y + i] = {own}(b0[at[0].x + i % {period}]); }}",
    "zero": "if (i < counts[at[0].z]) {{ b1[b0[at[0].x + i]] = {own}(0); }}",
    "pick": "if (i < counts[at[0].z]) {{ b3[at[0].y + i] = {plain}(b1[b0[at[0].x + i]]); }}",
}


def helper(what: str, dtype: str) -> KernelSource:
    """A kernel that fills, zeroes or picks elements of an array."""
    plain = "i32" if dtype == "i32" else "f32"
    first, written = (plain, True) if what == "fill" else ("i32", what == "zero")
    bindings = [Binding(first, False), Binding(dtype, written), Binding("i32", False)]
    if what == "pick":
        bindings.append(Binding(plain, True))
    names = ("b0", "b1", "counts", "b3")
    declared = [
        f"@group(0) @binding({k}) var<storage, {'read_write' if b.written else 'read'}> {n}: array<{b.dtype}>;"
        for k, (n, b) in enumerate(zip(names, bindings))
    ]
    lines = [
        *(["enable f16;"] if dtype == "f16" else []),
        *declared,
        "@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 1>;",
        f"@compute @workgroup_size({THREADS})",
        "fn main(@builtin(workgroup_id) wid: vec3u, @builtin(local_invocation_index) lid: u32) {",
        f"  let i = i32(wid.x + wid.y * {ROW}u) * {THREADS} + i32(lid);",
        "  " + TEXTS[what].format(own=dtype, plain=plain, period=PERIOD),
        "}",
    ]
    return KernelSource(what, tuple(bindings), 3, 0, "\n".join(lines), "", own=True)
