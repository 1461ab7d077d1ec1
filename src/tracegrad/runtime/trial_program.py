"""A program of trials checks kernels on a device. It fills memory, runs kernels in turn, and picks elements.

Filling and picking happen on the device. So only patterns and some indices are sent, and only some elements read back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from tracegrad.arrays import Array, np
from tracegrad.kernel_source import Binding, KernelSource, Texts
from tracegrad.program import Buffer, Dispatch, Field, Program
from tracegrad.runtime.repeated import PERIOD, STRIDE, Kind
from tracegrad.runtime.trials import Contents, Name, Trial

THREADS = 64
ROW = 32768  # workgroups in x
NOWHERE = (0, 0)  # the grid of an extra dispatch, so that a kernel's offsets are not constants in its text
FIXED = ("table", "picks", "found")  # the first buffers: bits of patterns, indices, and picked bits


class TrialDispatch(NamedTuple):
    """How a trial dispatches its kernel."""

    grid: tuple[int, int]
    constant: bool  # are its offsets constants in its text?
    # of a turn of a loop: all slots of the loop, the first slot of the turn, and how far its slots have moved
    turn: tuple[int, int, tuple[int, ...]] | None = None
    number: int = 0  # of the turn, which is taken alone

    def offsets(self, own: Sequence[int]) -> tuple[int, ...]:
        """Return the offsets to pass for a kernel whose values are at `own`."""
        if self.turn is None:
            return tuple(own)
        slots, first, moved = self.turn
        out = [0] * slots
        out[first : first + len(own)] = [x - more for x, more in zip(own, moved, strict=True)]
        out[-2:] = self.number, self.number + 1
        return tuple(out)


class TrialProgram:
    """A program that runs some trials, one after the other on the same arrays."""

    def __init__(self, sizes: Mapping[Name, int]) -> None:
        self.contents, self.sizes = Contents(sizes), sizes
        self.arrays = {name: len(FIXED) + k for k, name in enumerate(sizes)}
        self.kernels: dict[KernelSource, int] = {}
        self.dispatches: list[Dispatch] = []
        self.table, self.picks = list[Array](), list[Array]()
        self.entries: dict[Kind, int] = {}  # where patterns and numbers begin in the table
        self.picked: dict[bytes, int] = {}  # where a set of indices begins among all
        self.tried: list[int] = []  # for each trial, the dispatch of its kernel
        self.places: list[list[int]] = []  # for each trial, where its checks begin among the picked bits
        self.found = 0

    def add(self, trial: Trial, how: TrialDispatch) -> None:
        """Add a trial: fill the memory that it needs, run its kernel, and pick the elements to compare."""
        for f in self.contents.lacking(trial):
            begin = self._entry(f.kind, trial.patterns.of(f.kind))
            self._move(f.array, begin, f.begin, f.end - f.begin, PATTERN + f.array[0] * STRIDE % PERIOD)
        for array, value in dict.fromkeys((p.array, p.value) for p in trial.puts):
            bits = np.full(1, value, np.int32 if array[1] == "i32" else np.float32).view(np.int32)
            begin = self._entry(("one", int(bits[0])), bits)
            at = [p.at for p in trial.puts if (p.array, p.value) == (array, value)]
            self._move(array, begin, *self._picked(at), SINGLE)
        kernel, buffers = trial.plan.kernel, tuple(self.arrays[name] for name in trial.plan.layout.arrays)
        memory, texts = kernel.workgroup_memory, Texts(wgsl=kernel.texts["wgsl"])
        alone = KernelSource(kernel.label, kernel.bindings, kernel.slots, memory, texts, own=True)  # unchecked
        number = self.kernels.setdefault(alone, len(self.kernels))
        self.tried.append(len(self.dispatches))
        offsets = kernel.numbers(how.offsets(trial.plan.layout.offsets))
        self.dispatches.append(Dispatch(number, buffers, offsets, how.grid))
        if not how.constant:
            self.dispatches.append(Dispatch(number, buffers, tuple(x + 4 for x in offsets), NOWHERE))
        begins: dict[int, int] = {}
        for array in dict.fromkeys(c.array for c in trial.checks):
            checks = [(k, c.at) for k, c in enumerate(trial.checks) if c.array == array]
            self._move(array, self.found, *self._picked([at for _, at in checks]), PICKED)
            for k, at in checks:
                begins[k], self.found = self.found, self.found + at.size
        self.places.append([begins[k] for k in range(len(begins))])

    def _entry(self, key: Kind, values: Array) -> int:
        """Return the index in the table at which these values begin."""
        if key not in self.entries:
            self.entries[key] = sum(x.size for x in self.table)
            self.table.append(values.astype(np.float32 if values.dtype.kind == "f" else np.int32).view(np.int32))
        return self.entries[key]

    def _picked(self, elements: Sequence[Array]) -> tuple[int, int]:
        """Return where these indices begin in the list of all indices, and their number."""
        added = np.concatenate([x.reshape(-1) for x in elements]).astype(np.int32)
        key = added.tobytes()  # indices poisoned before a run are mostly the ones picked afterwards
        if key not in self.picked:
            self.picked[key] = sum(x.size for x in self.picks)
            self.picks.append(added)
        return self.picked[key], added.size

    def _move(self, array: Name, first: int, second: int, size: int, what: int) -> None:
        """Add a dispatch that sets elements of an array or, if `what` is PICKED, copies some to "found"."""
        ends, dtypes = (FIXED.index("table"), self.arrays[array]), ("i32", array[1])
        if what == PICKED:
            ends, dtypes = (self.arrays[array], FIXED.index("found")), (array[1], "i32")
        number = self.kernels.setdefault(mover(*dtypes), len(self.kernels))
        groups = -(-size // (THREADS * RUN))
        grid = (min(groups, ROW), -(-groups // ROW))
        self.dispatches.append(Dispatch(number, (*ends, FIXED.index("picks")), (first, second, size, what), grid))

    def built(self, sizes: Mapping[str, int]) -> Program:
        """Return the whole program, with inputs of these sizes."""
        fields = [Field(n, k, 0, "i32", (sizes.get(n, self.found + 1),)) for k, n in enumerate(FIXED)]
        buffers = [Buffer(f.name, f.dtype, f.size, "output" if f.name == "found" else "input") for f in fields]
        buffers += [Buffer(f"verify.{k}.{dtype}", dtype, size, "temp") for (k, dtype), size in self.sizes.items()]
        return Program(
            kernels=tuple(self.kernels),
            buffers=tuple(buffers),
            dispatches=tuple(self.dispatches),
            inputs=tuple(fields[:2]),
            outputs=tuple(fields[2:]),
            params=(),
            states=(),
        )


# at[0] has two offsets, the number of elements, and the kind of copy. A copy writes one number to single elements,
# picks single elements, or writes a pattern, shifted by the kind minus PATTERN. A thread copies RUN elements,
# because a software adapter takes longer for a division than for an element.
MOVE = """let what = at[0].w;
  var x = at[0].x;
  if (what >= {pattern}) {{
    var p = (at[0].y + first + what - {pattern}) % {period};
    for (var i = first; i < end; i += {threads}) {{
      b1[at[0].y + i] = {pattern_moved};
      p = select(p + {threads}, p + {threads} - {period}, p >= {period} - {threads});
    }}
    return;
  }}
  for (var i = first; i < end; i += {threads}) {{
    var e = at[0].y + i;
    if (what == {single}) {{ e = b2[e]; }} else {{ x = b2[e]; e = at[0].x + i; }}
    b1[e] = {moved};
  }}"""
BITS = "b0[x]"  # the bits of any array except one of halves
RUN = 16
SINGLE, PICKED, PATTERN = 0, 1, 2


def mover(source: str, target: str) -> KernelSource:
    """Return a kernel that copies bits between arrays of these element types. Only halves change its text."""
    moved = {"f16": f"bitcast<i32>(f32({BITS}))"}.get(source, BITS)
    moved = f"f16(bitcast<f32>({moved}))" if target == "f16" else moved
    bindings = (Binding(source, False), Binding(target, True), Binding("i32", False))
    along = moved.replace(BITS, "b0[x + p]")
    text = MOVE.format(single=SINGLE, pattern=PATTERN, period=PERIOD, threads=THREADS, pattern_moved=along, moved=moved)
    lines = [
        *(["enable f16;"] if "f16" in (source, target) else []),
        *[
            f"@group(0) @binding({k}) var<storage, {access}> b{k}: array<{'f16' if b.dtype == 'f16' else 'i32'}>;"
            for k, (b, access) in enumerate(zip(bindings, ("read", "read_write", "read")))
        ],
        "@group(1) @binding(0) var<uniform> at: array<vec4<i32>, 1>;",
        f"@compute @workgroup_size({THREADS})",
        "fn main(@builtin(workgroup_id) wid: vec3u, @builtin(local_invocation_index) lid: u32) {",
        f"  let begin = i32(wid.x + wid.y * {ROW}u) * {THREADS * RUN};",
        f"  let end = min(begin + {THREADS * RUN}, at[0].z);",
        "  let first = begin + i32(lid);",
        f"  {text}",
        "}",
    ]
    return KernelSource("move", bindings, 4, 0, Texts.filed("\n".join(lines)), own=True)
