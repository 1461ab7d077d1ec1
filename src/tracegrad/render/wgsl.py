"""Kernels as WGSL. Each kernel of a launch is a function; `main` gives every workgroup to one of them.

Four skeletons: one thread a point, one or a few threads a row, a tile of a product a workgroup, a square of one a
thread.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tracegrad.dtypes import f16
from tracegrad.ir import PRIMITIVES
from tracegrad.kernels.form import Fold, Kernel, Store, fold_batches
from tracegrad.kernels.tiling import Tiling, workgroup_arrays
from tracegrad.program import Binding
from tracegrad.render.emit import Emitter, decode, identity, indented
from tracegrad.render.wgsl_square import Square
from tracegrad.render.wgsl_tile import XYZW, Tile

GRID_X = 32768  # workgroups along x; a dimension may have 65 535


def grid_of(workgroups: int) -> tuple[int, int]:
    """Workgroups in x and y."""
    return (workgroups, 1) if workgroups <= GRID_X else (GRID_X, -(-workgroups // GRID_X))


def render_wgsl(
    kernels: Sequence[Kernel], tilings: Sequence[Tiling], binding_of: Sequence[int], bindings: Sequence[Binding]
) -> str:
    """One shader for kernels that run side by side; slot `s` of the launch lies in the binding `binding_of[s]`."""
    functions: list[_Function] = []
    helpers: dict[str, None] = {}
    first = 0
    for kernel, tiling in zip(kernels, tilings):
        writer = _Writer(kernel, tiling, first, binding_of)
        made = _Function(writer.body(), tiling, first, len(kernel.slots))
        helpers.update(writer.emit.helpers)
        first += len(kernel.slots)
        if functions and functions[-1].does(made):
            functions[-1].times += 1
        else:
            functions.append(made)
    texts = [f.text(f"k{number}") for number, f in enumerate(functions)]
    text = "\n".join([*helpers, *texts, *_main(functions)])
    return "\n".join([*_declarations(tilings, bindings, first, text), text]) + "\n"


@dataclass(slots=True)
class _Function:
    """What computes a kernel, or several neighbours that differ in nothing but where their arrays begin."""

    body: list[str]
    tiling: Tiling
    first: int  # slot of the launch
    slots: int
    times: int = 1

    def does(self, other: _Function) -> bool:
        """Can `other` be this function, called with other offsets? Drivers compile the text once then."""
        return (self.body, self.tiling, self.slots) == (other.body, other.tiling, other.slots)

    def text(self, name: str) -> str:
        """The function."""
        slots = range(self.slots)
        if self.times == 1:
            places = [f"at[{(self.first + s) // 4}].{XYZW[(self.first + s) % 4]}" for s in slots]
        else:
            places = [f"at[(first + {s}) / 4][(first + {s}) % 4]" for s in slots]
        arguments = "w: i32, lid: i32" + (", first: i32" if self.times > 1 else "")
        offsets = [f"let o{s} = {place};" for s, place in zip(slots, places)]
        return "\n".join([f"fn {name}({arguments}) {{", *indented([*offsets, *self.body]), "}"])


def _declarations(tilings: Sequence[Tiling], bindings: Sequence[Binding], slots: int, text: str) -> list[str]:
    """Bindings in order. An array that is both read and written is bound once, read_write."""
    out = ["enable f16;"] if any(b.dtype == f16.storage for b in bindings) else []
    for k, b in enumerate(bindings):
        access, size = "read_write" if b.written else "read", f", {b.size}" if b.size else ""
        out.append(f"@group(0) @binding({k}) var<storage, {access}> mem{k}: array<{b.dtype}{size}>;")
    if slots:
        out.append(f"@group(1) @binding(0) var<uniform> at: array<vec4<i32>, {-(-slots // 4)}>;")
    for name, size in workgroup_arrays(tilings).items():
        if f"{name}[" in text:
            out.append(f"var<workgroup> {name}: array<{SHARED[name]}, {size}>;")
    out += [f"var<private> {n}: u32 = {bits};" for n, bits in SPECIAL.items() if n in text]
    return out


SHARED = {"sf": "f32", "si": "i32", "su": "u32", "sv": "vec4<f32>"}
SPECIAL = {"inf_bits": "0x7f800000u", "nan_bits": "0x7fc00000u"}


def _main(functions: Sequence[_Function]) -> list[str]:
    lines = [
        f"@compute @workgroup_size({functions[0].tiling.threads})",
        "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {",
        f"  let w = i32(wid.x + wid.y * {GRID_X}u);",
    ]
    begin = 0
    for number, f in enumerate(functions):
        each = f.tiling.workgroups
        call = f"k{number}(w - {begin}, i32(lid));"
        if f.times > 1:
            arguments = f"w - {begin} - n * {each}, i32(lid), {f.first} + n * {f.slots}"
            call = f"let n = (w - {begin}) / {each}; k{number}({arguments});"
        lines.append(f"  if (w >= {begin} && w < {begin + f.times * each}) {{ {call} }}")
        begin += f.times * each
    return [*lines, "}"]


class _Writer:
    """Writes what computes one kernel."""

    def __init__(self, kernel: Kernel, tiling: Tiling, first: int, binding_of: Sequence[int]) -> None:
        self.kernel, self.tiling, self.first, self.binding_of = kernel, tiling, first, binding_of
        self.emit = Emitter(self.load, [a.name for a in kernel.inner])
        self.done: list[Fold] = []

    def element(self, slot: int, index: str) -> str:
        """A memory location of a slot."""
        return f"mem{self.binding_of[self.first + slot]}[o{slot} + {index}]"

    def load(self, slot: int, index: str) -> str:
        """An element of a slot, as what it is computed with."""
        text = self.element(slot, index)
        return f"f32({text})" if self.kernel.slots[slot].dtype is f16 else text

    def body(self) -> list[str]:
        """The function's, where `o0`, `o1` and so on are the offsets of the slots."""
        return {"points": self.points, "rows": self.rows, "tile": self.tile, "square": self.square}[self.tiling.kind]()

    def stores(self, stores: Sequence[Store], loop: bool) -> list[str]:
        """Values first, then the writes: in place, every load precedes the store to its element."""
        values = self.emit.values([s.value for s in stores], loop)
        named = [f"let s{s.slot} = {v};" for s, v in zip(stores, values)]
        writes = [f"{self.element(s.slot, self.emit.index(s.index, loop))} = {self.stored(s)};" for s in stores]
        return [*named, *writes]

    def stored(self, s: Store) -> str:
        dtype = self.kernel.slots[s.slot].dtype.name
        spelled = {"bool": "select(0, 1, {})", "u32": "bitcast<i32>({})", "f16": "f16({})"}.get(dtype, "{}")
        return spelled.format(f"s{s.slot}")

    def flush(self) -> list[str]:
        """Statements that the emitter put outside of loops since the last call."""
        lines, self.emit.outer[:] = list(self.emit.outer), []
        return lines

    # one thread a point
    def points(self) -> list[str]:
        stores = [s for s in self.kernel.body if isinstance(s, Store)]
        first = f"w * {self.tiling.threads} + lid"
        if not self.kernel.uniform:
            written = self.stores(stores, loop=False)
            check = f"if (e >= {self.kernel.rows}) {{ return; }}"
            return [f"let e = {first};", check, *decode("e", self.kernel.outer), *self.flush(), *written]
        lines = [f"let lane = {'lid' if self.tiling.lanes > 1 else '0'};"]
        for folds in fold_batches(self.kernel):
            lines += self.folds(folds)
        written = self.stores(stores, loop=False)
        step = self.tiling.threads * self.tiling.workgroups
        return [
            *lines,
            f"for (var e = {first}; e < {self.kernel.rows}; e += {step}) {{",
            *indented([*decode("e", self.kernel.outer), *self.flush(), *written]),
            "}",
        ]

    # one or a few threads a row
    def rows(self) -> list[str]:
        t, k = self.tiling, self.kernel
        per_group = t.threads // t.lanes
        row, lane = f"lid / {t.lanes}", f"lid % {t.lanes}"
        if t.lanes == 1:
            row, lane = "lid", "0"
        elif per_group == 1:
            row, lane = "0", "lid"
        elif t.rows_fastest:
            row, lane = f"lid % {per_group}", f"lid / {per_group}"
        lines = [
            f"let row = w * {per_group} + {row};",
            f"let lane = {lane};",
        ]
        if t.lanes == 1:
            lines += [f"if (row >= {k.rows}) {{ return; }}", *decode("row", k.outer)]
        else:  # no thread may leave before a barrier
            lines += [f"let r = min(row, {k.rows - 1});", *decode("r", k.outer)]
        for folds in fold_batches(self.kernel):
            lines += self.folds(folds)
        outer = [s for s in k.body if isinstance(s, Store) and not s.inner]
        inner = [s for s in k.body if isinstance(s, Store) and s.inner]
        if inner:
            written = self.stores(inner, loop=True)
            loop = [*decode("j", k.inner), *self.emit.inner, *written]
            lines += [*self.flush(), f"if (row < {k.rows}) {{", *self.loop(loop, t.lanes), "}"]
        if outer:
            written = self.stores(outer, loop=False)
            lines += self.flush()
            if t.lanes > 1 and any(k.slots[s.slot].replaces >= 0 for s in outer):
                lines.append("storageBarrier();")  # every lane reads what lane 0 is about to overwrite
            lines += [f"if (row < {k.rows} && lane == 0) {{", *indented(written), "}"]
        return lines

    def loop(self, lines: Sequence[str], step: int) -> list[str]:
        return [
            f"  for (var j = lane; j < {self.kernel.length}; j += {step}) {{",
            *indented(indented(lines)),
            "  }",
        ]

    def folds(self, folds: Sequence[Fold]) -> list[str]:
        t = self.tiling
        dtypes = [f.value.dtype.name for f in folds]
        values = self.emit.values([f.value for f in folds], loop=True)
        combined = [f"t{f.local} = {self.combine(f, f't{f.local}', v)};" for f, v in zip(folds, values)]
        loop = ["{", *self.loop([*decode("j", self.kernel.inner), *self.emit.inner, *combined], t.parts), "}"]
        start = [(f"t{f.local}", identity(f.prim, d)) for f, d in zip(folds, dtypes)]
        lines = [*self.flush(), *(f"var {name} = {identity};" for name, identity in start)]
        if t.parts > t.lanes:
            lines += self.parts(folds, [*(f"{name} = {identity};" for name, identity in start), *loop])
        else:
            lines += loop
        for f, d in zip(folds, dtypes):
            lines += self.tree(f, d) if t.lanes > 1 else []
            lines.append(f"let {f.local} = t{f.local};")
        return lines

    def parts(self, folds: Sequence[Fold], loop: Sequence[str]) -> list[str]:
        """Every part in turn by one thread, combined in the order of `tree`.

        Parts come in the order of their number's bits reversed: two whose turns differ in the last bit are those that
        `tree` combines first. What waits for its other half at level b stands in a variable, as digits of a counter.
        """
        levels = range(self.tiling.parts.bit_length() - 1)
        merge: list[str] = []
        for b in levels:
            wait = " ".join(f"{f.local}_{b} = t{f.local};" for f in folds)
            merge.append(f"if ((turn & {1 << b}) == 0) {{ {wait} continue; }}")
            merge += [f"t{f.local} = {self.combine(f, f'{f.local}_{b}', f't{f.local}')};" for f in folds]
        return [
            *(f"var {f.local}_{b} = t{f.local};" for f in folds for b in levels),
            f"for (var turn = 0; turn < {self.tiling.parts}; turn++) {{",
            f"  let lane = i32(reverseBits(u32(turn)) >> {32 - len(levels)}u);",
            *indented([*loop, *merge]),
            "}",
        ]

    def combine(self, f: Fold, a: str, b: str) -> str:
        """Two partial results as one."""
        p = PRIMITIVES[f.prim.combine]
        self.emit.need(p.helper)
        return p.wgsl.format(a, b, t=f.value.dtype.name)

    def tree(self, f: Fold, dtype: str) -> list[str]:
        """Combine the lanes of each row in workgroup memory."""
        sh, acc = {"f32": "sf", "i32": "si", "u32": "su"}[dtype], f"t{f.local}"
        per_group = self.tiling.threads // self.tiling.lanes
        stride = per_group if self.tiling.rows_fastest else 1
        lines = [f"{sh}[lid] = {acc};", "workgroupBarrier();"]
        half = self.tiling.lanes // 2
        while half:
            both = self.combine(f, f"{sh}[lid]", f"{sh}[lid + {half * stride}]")
            lines += [f"if (lane < {half}) {{ {sh}[lid] = {both}; }}", "workgroupBarrier();"]
            half //= 2
        first = f"{sh}[lid - lane * {stride}]"
        return [*lines, f"{acc} = {first};", "workgroupBarrier();"]

    # a tile of a product a workgroup
    def tile(self) -> list[str]:
        assert self.tiling.tile is not None
        tile = Tile(self.kernel, self.tiling.tile, self.load, self.emit.helpers)
        return [*tile.before_stores(), *tile.stores(self.result)]

    # a square of a product a thread
    def square(self) -> list[str]:
        square = Square(self.kernel, self.tiling, self.load, self.emit.helpers)
        return [*square.before_stores(), *square.stores(self.result)]

    def result(self) -> list[str]:
        """The stores of one result of a product."""
        written = self.stores([s for s in self.kernel.body if isinstance(s, Store)], loop=False)
        return [*self.flush(), *written]
