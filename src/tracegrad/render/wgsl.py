"""Kernels as WGSL. Each kernel of a launch is a function; `main` gives every workgroup to one of them.

Four skeletons: one thread a point, one or a few threads a row, a tile of a product a workgroup, a square of one a
thread.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from tracegrad.dtypes import f16
from tracegrad.ir import PRIMITIVES
from tracegrad.kernels.form import Axis, Fold, Kernel, Store, fold_batches, points
from tracegrad.kernels.tiling import TOGETHER, Tiling, workgroup_arrays
from tracegrad.program import Binding
from tracegrad.render.emit import Emitter, copied, decode, identity, indented
from tracegrad.render.wgsl_square import Square
from tracegrad.render.wgsl_tile import XYZW, Memory, Result, Tile
from tracegrad.render.wgsl_vectors import vector_loads, vector_slots

GRID_X = 32768  # workgroups along x; a dimension may have 65 535


def grid_of(workgroups: int) -> tuple[int, int]:
    """Workgroups in x and y."""
    return (workgroups, 1) if workgroups <= GRID_X else (GRID_X, -(-workgroups // GRID_X))


def render_wgsl(
    kernels: Sequence[Kernel],
    tilings: Sequence[Tiling],
    binding_of: Sequence[int],
    bindings: Sequence[Binding],
    aligned: Sequence[bool],
) -> str:
    """One shader for kernels that run side by side; slot `s` of the launch lies in the binding `binding_of[s]`.

    aligned: of each slot, do all dispatches have it begin at a multiple of four elements?
    """
    functions: list[_Function] = []
    helpers: dict[str, None] = {}
    vectors = vector_slots(list(zip(kernels, tilings)), binding_of, aligned)
    first = 0
    for kernel, tiling in zip(kernels, tilings):
        writer = _Writer(kernel, tiling, first, binding_of, vectors, aligned)
        made = _Function(writer.body(), tiling, first, len(kernel.slots))
        helpers.update(writer.emit.helpers)
        first += len(kernel.slots)
        if functions and functions[-1].does(made):
            functions[-1].times += 1
        else:
            functions.append(made)
    texts = [f.text(f"k{number}") for number, f in enumerate(functions)]
    text = "\n".join([*helpers, *texts, *_main(functions)])
    vectored = {b for b, vector in zip(binding_of, vectors) if vector}
    return "\n".join([*_declarations(tilings, bindings, vectored, first, text), text]) + "\n"


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


def _declarations(
    tilings: Sequence[Tiling], bindings: Sequence[Binding], vectored: Collection[int], slots: int, text: str
) -> list[str]:
    """Bindings in order. An array that is both read and written is bound once, read_write."""
    out = ["enable f16;"] if any(b.dtype == f16.storage for b in bindings) else []
    for k, b in enumerate(bindings):
        access, size = "read_write" if b.written else "read", f", {b.size}" if b.size else ""
        element = f"{b.dtype}{size}"
        if k in vectored:
            element = f"vec4<{b.dtype}>"  # as many as there are whole ones: memory comes by 16 bytes
        out.append(f"@group(0) @binding({k}) var<storage, {access}> mem{k}: array<{element}>;")
    if slots:
        out.append(f"@group(1) @binding(0) var<uniform> at: array<vec4<i32>, {-(-slots // 4)}>;")
    for name, size in workgroup_arrays(tilings).items():
        if f"{name}[" in text:
            out.append(f"var<workgroup> {name}: array<{SHARED[name]}, {size}>;")
    out += [f"var<private> {n}: u32 = {bits};" for n, bits in SPECIAL.items() if n in text]
    return out


def with_offsets(wgsl: str, offsets: Sequence[int]) -> str | None:
    """A kernel's text with these offsets in it, not read from a buffer; None if it computes which of them it needs."""
    lines = [line for line in wgsl.splitlines(keepends=True) if "var<uniform> at:" not in line]
    text = re.sub(r"\bat\[(\d+)\]\.([xyzw])", lambda m: f"{offsets[4 * int(m[1]) + XYZW.index(m[2])]}", "".join(lines))
    return None if re.search(r"\bat\[", text) else text


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

    def __init__(
        self,
        kernel: Kernel,
        tiling: Tiling,
        first: int,
        binding_of: Sequence[int],
        vectors: Sequence[bool],
        aligned: Sequence[bool],
    ) -> None:
        mine = slice(first, first + len(kernel.slots))
        self.kernel, self.tiling = kernel, tiling
        self.binding_of, self.vectors, self.aligned = binding_of[mine], vectors[mine], aligned[mine]
        inner = [a.name for a in kernel.inner]
        self.emit = Emitter(self.load, inner, inner)
        self.done: list[Fold] = []

    def element(self, slot: int, index: str) -> str:
        """A memory location of a slot."""
        memory, at = f"mem{self.binding_of[slot]}", f"o{slot} + {index}"
        return f"{memory}[({at}) >> 2u][({at}) & 3]" if self.vectors[slot] else f"{memory}[{at}]"

    def vector(self, slot: int, index: str) -> str:
        """Four of them side by side."""
        return f"mem{self.binding_of[slot]}[(o{slot} + {index}) >> 2u]"

    def by_vectors(self, slot: int) -> bool:
        """Can a slot be read by vectors?"""
        return self.vectors[slot] and self.aligned[slot]

    def load(self, slot: int, index: str) -> str:
        """An element of a slot, as what it is computed with."""
        text = self.element(slot, index)
        return f"f32({text})" if self.kernel.slots[slot].dtype is f16 else text

    def body(self) -> list[str]:
        """The function's, where `o0`, `o1` and so on are the offsets of the slots."""
        return {"points": self.points, "rows": self.rows, "tile": self.tile, "square": self.square}[self.tiling.kind]()

    def stores(self, stores: Sequence[Store], loop: bool) -> list[str]:
        """Values first, then the writes: in place, every load precedes the store to its element."""
        values, writes = self.written(self.emit, stores, loop)
        return [*values, *writes]

    def written(self, emit: Emitter, stores: Sequence[Store], loop: bool) -> tuple[list[str], list[str]]:
        """Lines that compute what is stored, and those that store it."""
        named = self.named(emit, stores, loop)
        places = [self.element(s.slot, emit.index(s.index, loop)) for s in stores]
        return named, [f"{place} = {self.stored(s, emit.copy)};" for s, place in zip(stores, places)]

    def named(self, emit: Emitter, stores: Sequence[Store], loop: bool) -> list[str]:
        """What is stored, by names."""
        values = emit.values([s.value for s in stores], loop)
        return [f"let s{s.slot}{emit.copy} = {v};" for s, v in zip(stores, values)]

    def stored(self, s: Store, copy: str) -> str:
        dtype = self.kernel.slots[s.slot].dtype.name
        spelled = {"bool": "select(0, 1, {})", "u32": "bitcast<i32>({})", "f16": "f16({})"}.get(dtype, "{}")
        return spelled.format(f"s{s.slot}{copy}")

    def side_by_side(self, copies: Sequence[Copy], axis: Axis | None = None) -> list[str]:
        """All stores for some points at once: the values of all of them, then the writes. Along `axis`, if one is
        given, every four of them are neighbours, which are read and written by vectors where memory allows.

        One after the other, the loads of each would wait for the writes of the one before, which may be to the same
        memory for all that a driver knows.
        """
        stores = [s for s in self.kernel.body if isinstance(s, Store)]
        lines: list[str] = []
        writes: list[str] = []
        size = 4 if axis else 1
        for four in (copies[k : k + size] for k in range(0, len(copies), size)):
            base = Emitter(self.load, (), four[0].own, four[0].name)
            loads = vector_loads([s.value for s in stores], axis, self.by_vectors)
            names = {v: base.vector(v, self.vector, loop=False) for v in loads}
            emits = [
                Emitter(self.load, (), c.own, c.name, loaded={v: f"{names[v]}.{XYZW[j]}" for v in loads})
                for j, c in enumerate(four)
            ]
            named = [self.named(emit, stores, loop=False) for emit in emits]
            written = [line for s in stores for line in self.writes(s, base, emits)]
            lines += [line for c in four for line in c.before]
            lines += base.outer
            for emit, values in zip(emits, named):
                self.emit.helpers.update(emit.helpers)
                lines += [*emit.outer, *values]
            inside = four[0].inside
            writes += [f"if ({inside}) {{", *indented(written), "}"] if inside else written
        return [*lines, *writes]

    def writes(self, s: Store, base: Emitter, emits: Sequence[Emitter]) -> list[str]:
        """The stores of neighbours: one where the array is of vectors."""
        if self.vectors[s.slot]:
            values = ", ".join(f"s{s.slot}{emit.copy}" for emit in emits)
            return [f"{self.vector(s.slot, base.index(s.index, False))} = vec4<f32>({values});"]
        places = [self.element(s.slot, emit.index(s.index, False)) for emit in emits]
        return [f"{place} = {self.stored(s, emit.copy)};" for place, emit in zip(places, emits)]

    def flush(self) -> list[str]:
        """Statements that the emitter put outside of loops since the last call."""
        lines, self.emit.outer[:] = list(self.emit.outer), []
        return lines

    # one thread a point
    def points(self) -> list[str]:
        stores = [s for s in self.kernel.body if isinstance(s, Store)]
        first = f"w * {self.tiling.threads} + lid"
        if not self.kernel.uniform and self.tiling.each > 1:
            return self.side_by_side([self.point(u) for u in range(self.tiling.each)])
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

    def point(self, number: int) -> Copy:
        """One of the points that a thread computes side by side."""
        t, rows, copy = self.tiling, self.kernel.rows, f"_{number}"
        e, edge = f"e{copy}", rows % (t.threads * t.each) > 0
        before = [f"let {e} = w * {t.threads * t.each} + lid + {t.threads * number};"]
        inside = f"{e} < {rows}" if edge else ""
        if edge:
            before.append(f"let r{copy} = min({e}, {rows - 1});")
        before += decode(f"r{copy}" if edge else e, copied(self.kernel.outer, copy))
        return Copy(copy, [a.name for a in self.kernel.outer], before, inside)

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
            loop = self.loop(lambda: self.written(self.emit, inner, loop=True), t.lanes)
            lines += [*self.flush(), f"if (row < {k.rows}) {{", *indented(loop), "}"]
        if outer:
            written = self.stores(outer, loop=False)
            lines += self.flush()
            if t.lanes > 1 and any(k.slots[s.slot].replaces >= 0 for s in outer):
                lines.append("storageBarrier();")  # every lane reads what lane 0 is about to overwrite
            lines += [f"if (row < {k.rows} && lane == 0) {{", *indented(written), "}"]
        return lines

    def loop(self, turn: Callable[[], tuple[list[str], list[str]]], step: int) -> list[str]:
        """The loop over the points of a row that are a thread's: some turns side by side, first what each of them
        computes, so that their loads do not wait for each other, then what it does with that.
        """
        k, together = self.kernel, 1
        if self.tiling.lanes > 1:
            together = min(TOGETHER, -(-k.length // step))
        edge = k.length % (step * together) > 0
        first: list[str] = []
        then: list[str] = []
        for u in range(together):
            copy = self.emit.copy = f"_{u}" if together > 1 else ""
            values, uses = turn()
            if together > 1:
                at = f"j + {step * u}"
                first.append(f"let j{copy} = {f'min({at}, {k.length - 1})' if edge else at};")
                uses = [f"if ({at} < {k.length}) {{", *indented(uses), "}"] if edge else uses
            first += [*decode(f"j{copy}", copied(k.inner, copy)), *self.emit.inner, *values]
            then += uses
        self.emit.copy = ""
        return [f"for (var j = lane; j < {k.length}; j += {step * together}) {{", *indented([*first, *then]), "}"]

    def folds(self, folds: Sequence[Fold]) -> list[str]:
        t = self.tiling
        dtypes = [f.value.dtype.name for f in folds]

        def turn() -> tuple[list[str], list[str]]:
            copy = self.emit.copy
            values = self.emit.values([f.value for f in folds], loop=True)
            named = [f"let x{f.local}{copy} = {v};" for f, v in zip(folds, values)]
            return named, [f"t{f.local} = {self.combine(f, f't{f.local}', f'x{f.local}{copy}')};" for f in folds]

        loop = ["{", *indented(self.loop(turn, t.parts)), "}"]
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
        memory = Memory(self.load, self.vector, self.by_vectors)
        stored = any(self.vectors[s.slot] for s in self.kernel.body if isinstance(s, Store))
        assert self.tiling.tile is not None and self.kernel.product is not None
        tile = Tile(self.kernel, self.tiling.tile, memory, self.emit.helpers, stored)
        axis = None if tile.right.apart else self.kernel.product.n[-1]
        return [*tile.before_stores(), *tile.stores(lambda results: self.results(results, axis))]

    # a square of a product a thread
    def square(self) -> list[str]:
        square = Square(self.kernel, self.tiling, self.load, self.emit.helpers)
        return [*square.before_stores(), *square.stores(self.results)]

    def results(self, results: Sequence[Result], axis: Axis | None = None) -> list[str]:
        """The stores of some results of a product; along `axis` every four are neighbours."""
        return self.side_by_side([self.result(r) for r in results], axis)

    def result(self, r: Result) -> Copy:
        p, copy = self.kernel.product, r.copy
        assert p is not None
        fold = next(s for s in self.kernel.body if isinstance(s, Fold))
        before, inside = list(r.before), ""
        for name, text, axes in ((f"mm{copy}", r.row, p.m), (f"nn{copy}", r.column, p.n)):
            before.append(f"let {name} = {text};")
            if r.edge:
                inside += f"{' & ' if inside else ''}({name} < {points(axes)})"
            flat = f"min({name}, {points(axes) - 1})" if r.edge else name
            before += decode(f"({flat})", copied(axes, copy))
        own = [a.name for a in (*p.m, *p.n)]
        return Copy(copy, [*own, fold.local], [*before, f"let {fold.local}{copy} = {r.value};"], inside)


@dataclass(frozen=True, slots=True)
class Copy:
    """A point that is computed beside others.

    name:   what ends the names of all that belongs to it.
    own:    the axes and folds that are its own; `before` are the lines that define them.
    inside: the condition under which its results are stored, if there is one.
    """

    name: str
    own: Sequence[str]
    before: Sequence[str]
    inside: str
