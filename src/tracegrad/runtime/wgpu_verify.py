"""Check kernels on a native WebGPU device: those without a verdict run in trials before the program does.

A trial uses a dispatch's own offsets, so its pipeline is the one that the program runs.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from tracegrad.arrays import Array, np
from tracegrad.errors import CompileError, DeviceError, DeviceLostError
from tracegrad.kernel_source import Binding, KernelSource, Texts
from tracegrad.program import Buffer, Dispatch, Field, Program
from tracegrad.runtime import verify
from tracegrad.runtime.base import Session
from tracegrad.runtime.cache import RIGHT, Verdicts, key_of
from tracegrad.runtime.points import Name
from tracegrad.runtime.trial_program import TrialDispatch, TrialProgram, mover
from tracegrad.runtime.trials import Layout, layout_of, sizes_of
from tracegrad.runtime.wgpu_program import offsets_of_kernels

SELF_TEST = Program(
    kernels=(
        KernelSource(
            label="self_test",
            bindings=(Binding("f32", False), Binding("f32", True)),
            slots=2,
            workgroup_memory=0,
            texts=Texts.filed("""
@group(0) @binding(0) var<storage, read> b0: array<f32>;
@group(0) @binding(1) var<storage, read_write> b1: array<f32>;
@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 1>;
@compute @workgroup_size(1)
fn main(@builtin(workgroup_id) wid: vec3u) {
  b1[at[0].y + i32(wid.x)] = 2.0 * b0[at[0].x + i32(wid.x)];
}
"""),
            own=True,
        ),
    ),
    buffers=(Buffer("x", "f32", 4, "input"), Buffer("y", "f32", 8, "output")),
    dispatches=(Dispatch(0, (0, 1), (1, 5), (1, 1)), Dispatch(0, (0, 1), (2, 5), (2, 1))),
    inputs=(Field("x", 0, 0, "f32", (4,)),),
    outputs=(Field("y", 1, 5, "f32", (2,)),),
    params=(),
    states=(),
)

Dispatched = Mapping[str, TrialDispatch]  # of each kernel


class Unchecked:
    """The kernels of a program that have no verdict yet."""

    def __init__(self, program: Program, verdicts: Verdicts) -> None:
        self.program, self.verdicts = program, verdicts
        self.numbers: dict[str, int] = {}
        self.kernels: dict[str, tuple[KernelSource, Layout]] = {}
        self.dispatched: dict[str, TrialDispatch] = {}
        self.trials: verify.Trials = ()
        self.helpers: list[Any] = []  # pipelines of the trials, kept until they were used

    def begin(self, compiled: Callable[[KernelSource], Any]) -> None:
        """Compute expected results while other threads compile pipelines; `compiled` gives them one more kernel."""
        known, kernels = self.verdicts.known, self.program.kernels
        if verify.enabled():
            firsts = {d.kernel: d for d in reversed(self.program.dispatches)}
            used = {n: kernels[n] for n in sorted(firsts)}
            keys = {key_of(k.wgsl, repr(k.bindings)): n for n, k in used.items() if k.forms}
            self.numbers = {key: n for key, n in keys.items() if known(key) != RIGHT}
            constant = offsets_of_kernels(self.program)
            for key, n in self.numbers.items():
                self.kernels[key] = kernels[n], layout_of(kernels[n], firsts[n].offsets)
                self.dispatched[key] = TrialDispatch(firsts[n].grid, n in constant)
            for n, k in used.items():
                if k.turns:
                    self._begin_loop(k, firsts[n])
            dtypes = sorted({dtype for _, at in self.kernels.values() for _, dtype in at.arrays})
            self.helpers = [compiled(mover(*ends)) for d in dtypes for ends in (("i32", d), (d, "i32"))]
            self.trials = verify.trials_of(self.kernels)

    def _begin_loop(self, loop: KernelSource, first: Dispatch) -> None:
        """Add the kernels of loops that are one launch. Each kernel runs alone, in iteration 1 if there are several."""
        for k, turn in enumerate(loop.turns):
            turns, u = turn.nest.turns, int(turn.nest.count(turn.number) > 1)
            t = int(turn.nest.iterations > 1)
            key = key_of(loop.wgsl, f"{loop.bindings} {k}")
            if self.verdicts.known(key) != RIGHT:
                moved = tuple(sum(move.at((t, u)[move.depth]) for move in moves) for moves in turn.moves)
                own = [x + more for x, more in zip(first.offsets[turn.first :], moved)]
                self.numbers[key] = turn.kernel
                self.kernels[key] = turn.source, layout_of(turn.source, own)
                self.dispatched[key] = TrialDispatch(
                    first.grid, False, (loop.slots, turn.first, moved), t * turns + turn.nest.turn(turn.number, u)
                )

    def refuse_wrong(self, session: Session) -> None:
        """Run the kernels. Raise CompileError, with the kernel's number, for a wrong one."""
        if not self.numbers:
            return
        found = _checked(self.kernels, self.trials, self.dispatched, session)
        self.verdicts.add(found)
        self.helpers = []
        for key, how in found.items():
            if how:
                error = CompileError(
                    f"kernel {self.kernels[key][0].label!r} computes wrongly on this device: {how}. Another version of "
                    'the driver, another adapter or device="cpu" may do better; `tracegrad doctor` checks many kernels'
                )
                error.kernel = self.numbers[key]
                raise error


def _checked(
    kernels: verify.Kernels, trials: verify.Trials, dispatched: Dispatched, session: Session
) -> dict[str, str]:
    """Describe what each kernel computes wrongly. If memory does not suffice for all kernels, check them in halves."""
    try:
        run = partial(_run, session, sizes_of(x for _, x in kernels.values()), dispatched)
        return verify.faults(trials, run, verify.FURTHER)
    except DeviceLostError:
        raise
    except DeviceError as e:  # too little memory beside the program's own
        if len(kernels) == 1:
            ((kernel, _),) = kernels.values()
            warnings.warn(f"kernel {kernel.label!r} could not be checked: {e}", RuntimeWarning, stacklevel=2)
            return {}
        halves = [trials[0::2], trials[1::2]]
        parts = [_checked({key: kernels[key] for key, _ in half}, half, dispatched, session) for half in halves]
        return parts[0] | parts[1]


def _run(
    session: Session, sizes: Mapping[Name, int], dispatched: Dispatched, trials: verify.Trials
) -> list[list[Array]]:
    """Return the device's results at the elements that each trial checks."""
    all_trials = TrialProgram(sizes)
    for key, trial in trials:
        all_trials.add(trial, dispatched[key])
    inputs = {"table": np.concatenate(all_trials.table), "picks": np.concatenate(all_trials.picks)}
    handle = session.load(all_trials.built({name: x.size for name, x in inputs.items()}))
    try:
        (outputs,) = session.run(handle, [inputs]).outputs()
    finally:
        session.unload(handle)
    bits, out = outputs["found"], list[list[Array]]()
    for (_, trial), begins in zip(trials, all_trials.places):
        parts = [bits[begin : begin + c.at.size] for c, begin in zip(trial.checks, begins)]
        out.append([x if c.array[1] == "i32" else x.view(np.float32) for c, x in zip(trial.checks, parts)])
    return out
