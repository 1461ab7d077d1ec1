"""Kernels as WGSL. Each kernel of a launch is a function; `main` assigns every workgroup to one of them.

There are six skeletons, one for each kind of `Tiling`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tracegrad.dtypes import f16
from tracegrad.kernel_source import Binding, BoundLaunch, Shader
from tracegrad.kernels.blocks import BLOCK, Copy, local
from tracegrad.kernels.form import SIZE, Axis, Kernel, Store, divides, fold_batches, plus, points
from tracegrad.kernels.tiling import GRID_X, Reach, Tiling, takes_first, without_barriers, workgroup_arrays
from tracegrad.loops import Move
from tracegrad.render.emit import Block, Emitter, Loop, Statement, copied, decode, spelled, when
from tracegrad.render.wgsl_loads import XYZW, Access, vector_bindings, vector_loads
from tracegrad.render.wgsl_rows import BlockFold, Rows
from tracegrad.render.wgsl_scatter import Scattering
from tracegrad.render.wgsl_tile import Result, Square, Tile


def render_serial_wgsl(launch: BoundLaunch) -> Shader:
    """Return one shader without workgroup memory."""
    tilings = without_barriers([x.kernel for x in launch.kernels], [x.tiling for x in launch.kernels])
    return render_wgsl(replace(launch, kernels=[replace(x, tiling=t) for x, t in zip(launch.kernels, tilings)]))


def render_wgsl(launch: BoundLaunch) -> Shader:
    """Return one shader for kernels that run side by side."""
    vectors, tilings = vector_bindings(launch.kernels), [x.tiling for x in launch.kernels]
    functions: list[Function] = []
    slots = sum([len(x.binding_of) for x in launch.kernels])
    for x in launch.kernels:
        by_vectors = [b in vectors for b in x.binding_of]
        made = Function(x.kernel, x.tiling, x.first, by_vectors, x.aligned, [x.binding_of], slots, x.reach)
        if functions and functions[-1].does(made):
            functions[-1].bound += made.bound
        else:
            functions.append(made)
    elements = [f"vec4<{b.dtype}>" if k in vectors else b.dtype for k, b in enumerate(launch.bindings)]
    helpers: dict[str, None] = {}
    texts: list[str] = []
    for number, f in enumerate(functions):
        writer = Writer(f, f"k{number}", elements)
        lines = writer.function()
        helpers.update(writer.emit.helpers)
        texts += [*writer.puts.values(), *lines]
    base = slots > 0 and takes_first(tilings)
    text = "\n".join([*helpers, *texts, *_main(functions, slots if base else None)])
    head, body = declared(launch.bindings, elements), [*variables(tilings, text), text]
    constant = all(f.times == 1 for f in functions) and slots > 0 and not launch.capacity
    numbers = slots + 2 if launch.capacity else slots + base
    start, rest = ("".join(f"{line}\n" for line in lines) for lines in (head, body))
    return Shader(start, rest, numbers, constant)


@dataclass(slots=True)
class Function:
    """A function for a kernel, or for equal neighbouring kernels that differ in offsets and written arrays only."""

    kernel: Kernel
    tiling: Tiling
    first: int  # the first slot in the launch
    vectors: Sequence[bool]  # of each slot: is its array one of vectors?
    aligned: Sequence[bool]  # of each slot: does it begin at a whole vector?
    bound: list[Sequence[int]]  # of each kernel, the bindings of its slots
    slots: int = 0  # of the launch
    reach: Reach | None = None  # the workgroups of each kernel, if they depend on the size of a run
    moves: Mapping[int, Sequence[Move]] | None = None  # in a loop: how the offset of a slot moves, see `moved`
    fixed: frozenset[int] = frozenset()  # in a loop: slots whose elements are the same in all iterations
    room: int = 0  # in a loop: how many numbers a thread may keep in registers
    copies: Mapping[int, Copy] = field(default_factory=dict[int, Copy])  # in a loop: slots in workgroup memory, too

    @property
    def times(self) -> int:
        """The number of kernels that the function computes."""
        return len(self.bound)

    @property
    def reads(self) -> list[int]:
        """The bindings of the slots that are only read."""
        return [b for b, slot in zip(self.bound[0], self.kernel.slots) if not slot.written]

    def does(self, other: Function) -> bool:
        """Return whether this function can compute `other` with other offsets: drivers then compile the text once."""
        mine, others = ((f.kernel, f.tiling, f.reads, f.vectors, f.aligned, f.reach) for f in (self, other))
        return mine == others


def declared(bindings: Sequence[Binding], elements: Sequence[str]) -> list[str]:
    """Return declarations of the bindings. An array that is both read and written is bound once, as read_write."""
    out = ["enable f16;"] if any(b.dtype == f16.storage for b in bindings) else []
    for k, (b, element) in enumerate(zip(bindings, elements)):
        sized = b.size and element == b.dtype  # arrays of vectors have no size: memory comes in units of 16 bytes
        access, size = "read_write" if b.written else "read", f", {b.size}" if sized else ""
        out.append(f"@group(0) @binding({k}) var<storage, {access}> mem{k}: array<{element}{size}>;")
    return out


def variables(tilings: Sequence[Tiling], text: str) -> list[str]:
    """Return the variables that functions share."""
    sizes = {name: size for name, size in workgroup_arrays(tilings).items() if f"{name}[" in text}
    return [
        *(f"var<workgroup> {name}: array<{SHARED[name]}, {size}>;" for name, size in sizes.items()),
        *(f"var<private> {n}: u32 = {bits};" for n, bits in SPECIAL.items() if n in text),
    ]


SHARED = {"sf": "f32", "si": "i32", "su": "u32", "sv": "vec4<f32>", "sa": "atomic<u32>"}
SPECIAL = {"inf_bits": "0x7f800000u", "nan_bits": "0x7fc00000u"}


def _main(functions: Sequence[Function], base: int | None) -> list[str]:
    """Return the entry point. base: where `at` has the first workgroup's number; None if this number is always 0."""
    begins = "" if base is None else f" + at[{base // 4}].{XYZW[base % 4]}"
    lines = [
        f"@compute @workgroup_size({functions[0].tiling.threads})",
        "fn main(@builtin(workgroup_id) wid: vec3<u32>, @builtin(local_invocation_index) lid: u32) {",
        f"  let w = i32(wid.x + wid.y * {GRID_X}u){begins};",
    ]
    if any(f.reach for f in functions):
        lines.append(f"  {size_of_run(functions[0].slots)}")
    begin, end = "0", 0
    for number, f in enumerate(functions):
        each, end = f"{f.tiling.workgroups}", end + f.times * f.tiling.workgroups
        until = f"{end}"
        if f.reach:
            each, until = f"each{number}", f"end{number}"
            lines += [f"  let {each} = {f.reach.text(SIZE)};", f"  let {until} = {begin} + {f.times} * {each};"]
        call = f"k{number}(w - {begin}, i32(lid));"
        if f.times > 1:
            arguments = f"w - {begin} - n * {each}, i32(lid), n, {f.first} + n * {len(f.kernel.slots)}"
            call = f"let n = (w - {begin}) / {each}; k{number}({arguments});"
        lines.append(f"  if (w >= {begin} && w < {until}) {{ {call} }}")
        begin = until
    return [*lines, "}"]


def size_of_run(slots: int) -> str:
    """Return the line that reads a run's size, behind the offsets of a launch and the first workgroup's number."""
    return f"let {SIZE} = at[{(slots + 1) // 4}].{XYZW[(slots + 1) % 4]};"


def moved(move: Move) -> str:
    """Return how far an offset has moved in iteration `t` of a loop, or `u` of the loop inside of it."""
    return f"({move.step}) * ({'tu'[move.depth]} % {move.ring})"


class Writer:
    """Writes a function. elements: the element type of every binding's array."""

    def __init__(self, function: Function, name: str, elements: Sequence[str]) -> None:
        self.of, self.name, self.elements = function, name, elements
        self.kernel, self.tiling = function.kernel, function.tiling
        self.vectors, self.aligned = function.vectors, function.aligned
        self.puts: dict[int, str] = {}  # slot -> the function that stores into the array of the current kernel
        inner = [a.name for a in self.kernel.inner]
        self.emit = Emitter(self.load, inner, inner)

    def function(self) -> list[str]:
        """Return the function's lines."""
        lines: list[Statement] = [*self.offsets(), *self.body()]
        text = spelled([Block(f"fn {self.name}({self.arguments})", lines)], "var")
        if any(SIZE in line for line in text):
            text.insert(1, f"  {size_of_run(self.of.slots)}")
        return text

    @property
    def arguments(self) -> str:
        """The parameters of the function."""
        several = ", n: i32, first: i32" if self.of.times > 1 else ""
        return "w: i32, lid: i32" + several + (f", {BLOCK}: i32, t: i32, u: i32" if self.of.moves is not None else "")

    def offsets(self) -> list[str]:
        """Return the lines that define `o0`, `o1` and so on, the offsets of the slots."""
        f, slots = self.of, range(len(self.kernel.slots))
        if f.times == 1:
            places = [f"at[{(f.first + s) // 4}].{XYZW[(f.first + s) % 4]}" for s in slots]
        else:
            places = [f"at[(first + {s}) / 4][(first + {s}) % 4]" for s in slots]
        if f.moves is not None:
            places = [" + ".join([p, *map(moved, f.moves.get(s, ()))]) for s, p in enumerate(places)]
        copies = [f"let c{s} = {copy.at('t')};" for s, copy in f.copies.items()]
        return [*(f"let o{s} = {place};" for s, place in zip(slots, places)), *copies]

    def memory(self, slot: int) -> str:
        """Return the name of the array that a slot lies in."""
        return f"mem{self.of.bound[0][slot]}"

    def vector(self, slot: int, index: str) -> str:
        """Return four neighbouring elements in the type that kernels compute with."""
        text = f"{self.memory(slot)}[(o{slot} + {index}) >> 2u]"
        return f"vec4<f32>({text})" if self.kernel.slots[slot].dtype is f16 else text

    def store(self, slot: int, at: str, value: str) -> str:
        """Store `value` at `at` in a slot's array, which can differ between the kernels of one function."""
        arrays = [f"mem{bound[slot]}" for bound in self.of.bound]
        if len(set(arrays)) == 1:
            return f"{arrays[0]}[{at}] = {value};"
        put, element = f"put_{self.name}_{slot}", self.elements[self.of.bound[0][slot]]
        others = {a: [str(n) for n, x in enumerate(arrays) if x == a] for a in arrays if a != arrays[-1]}
        cases = " ".join(f"case {', '.join(numbers)}: {{ {a}[i] = x; }}" for a, numbers in others.items())
        switch = f"switch n {{ {cases} default: {{ {arrays[-1]}[i] = x; }} }}"
        self.puts[slot] = f"fn {put}(n: i32, i: i32, x: {element}) {{ {switch} }}"
        return f"{put}(n, {at}, {value});"

    def by_vectors(self, slot: int) -> bool:
        """Return whether a slot can be read by vectors."""
        return self.vectors[slot] and self.aligned[slot]

    def load(self, slot: int, index: str) -> str:
        """Return an element of a slot in the type that kernels compute with."""
        if slot in self.of.copies:
            return f"{self.of.copies[slot].array}[c{slot} + {index}]"
        at = f"o{slot} + {index}"
        text = self.memory(slot) + (f"[({at}) >> 2u][({at}) & 3]" if self.vectors[slot] else f"[{at}]")
        return f"f32({text})" if self.kernel.slots[slot].dtype is f16 else text

    def body(self) -> list[Statement]:
        """Return the body, in which `o0`, `o1` and so on are the offsets of the slots."""
        kinds = {"points": self.points, "rows": self.rows, "tile": self.tile, "square": self.square}
        return (kinds | {"scatter": self.scatter, "block": self.block})[self.tiling.kind]()

    def stores(self, stores: Sequence[Store], loop: bool) -> list[str]:
        """Return lines that compute all values, then lines that store them: in place, loads must precede stores."""
        values, writes = self.written(self.emit, stores, loop)
        return [*values, *writes]

    def written(self, emit: Emitter, stores: Sequence[Store], loop: bool) -> tuple[list[str], list[str]]:
        """Return lines that compute the stored values, and lines that store them."""
        named = self.named(emit, stores, loop)
        places = [f"o{s.slot} + {emit.index(s.index, loop)}" for s in stores]
        writes = [self.store(s.slot, at, self.stored(s, emit.copy)) for s, at in zip(stores, places)]
        for s in stores:
            if s.slot in self.of.copies:
                at = emit.index(local(s.index), loop)
                writes.append(f"{self.of.copies[s.slot].array}[c{s.slot} + {at}] = {self.stored(s, emit.copy)};")
        return named, writes

    def named(self, emit: Emitter, stores: Sequence[Store], loop: bool) -> list[str]:
        """Return lines that compute the stored values and name them."""
        values = emit.values([s.value for s in stores], loop)
        return [f"let s{s.slot}{emit.copy} = {v};" for s, v in zip(stores, values)]

    def stored(self, s: Store, copy: str) -> str:
        return self.emit.stored(self.kernel.slots[s.slot].dtype.name, f"s{s.slot}{copy}")

    def side_by_side(self, copies: Sequence[Point], axis: Axis | None = None) -> list[Statement]:
        """Return all stores for some points at once: first all values, then all writes.

        Along `axis`, if given, every four points are neighbours, which vectors read and write where memory allows. If
        points came one after the other, the loads of each would wait for the writes of the one before. A driver cannot
        rule out that they touch the same memory.
        """
        stores = self.kernel.stores
        lines: list[str] = []
        writes: list[Statement] = []
        size = 4 if axis else 1
        for four in (copies[k : k + size] for k in range(0, len(copies), size)):
            base = self.emit.beside((), four[0].own, four[0].name)
            loads = vector_loads([s.value for s in stores], axis, self.by_vectors)
            names = {v: base.vector(v, self.vector, loop=False) for v in loads}
            emits = [
                self.emit.beside((), c.own, c.name, loaded={v: f"{names[v]}.{XYZW[j]}" for v in loads})
                for j, c in enumerate(four)
            ]
            named = [self.named(emit, stores, loop=False) for emit in emits]
            written = [line for s in stores for line in self.writes(s, base, emits)]
            lines += [line for c in four for line in c.before]
            lines += base.outer
            lines += [line for emit, values in zip(emits, named) for line in (*emit.outer, *values)]
            inside = four[0].inside
            writes += [when(inside, written)] if inside else written
        return [*lines, *writes]

    def writes(self, s: Store, base: Emitter, emits: Sequence[Emitter]) -> list[str]:
        """Return the stores of neighbours: one store if the array is of vectors."""
        if self.vectors[s.slot]:
            values = ", ".join(self.stored(s, emit.copy) for emit in emits)
            vector = f"{self.elements[self.of.bound[0][s.slot]]}({values})"
            return [self.store(s.slot, f"(o{s.slot} + {base.index(s.index, False)}) >> 2u", vector)]
        places = [f"o{s.slot} + {emit.index(s.index, False)}" for emit in emits]
        return [self.store(s.slot, at, self.stored(s, emit.copy)) for at, emit in zip(places, emits)]

    # one thread a point
    def points(self) -> list[Statement]:
        t, rows = self.tiling, self.kernel.rows
        together = t.threads * t.each
        if self.kernel.uniform:
            lines: list[Statement] = [f"let lane = {'lid' if t.lanes > 1 else '0'};"]
            folding = self.folding()
            for folds in fold_batches(self.kernel):
                lines += folding.folds(folds)
            turn = self.side_by_side([self.point("turn", u) for u in range(t.each)])
            return [*lines, *self.emit.flush(), Loop("turn", rows, turn, f"w * {together}", together * t.workgroups)]
        if t.each > 1:
            return self.side_by_side([self.point(f"w * {together}", u) for u in range(t.each)])
        written = self.stores(self.kernel.stores, loop=False)
        check = f"if (e >= {rows}) {{ return; }}"
        return [f"let e = w * {t.threads} + lid;", check, *decode("e", self.kernel.outer), *self.emit.flush(), *written]

    def point(self, first: str, number: int) -> Point:
        """Return one of the points that a thread computes side by side. first: the workgroup's first point."""
        t, rows, copy = self.tiling, self.kernel.rows, f"_{number}"
        e, edge = f"e{copy}", not divides(t.threads * t.each, rows)
        before = [f"let {e} = {first} + lid + {t.threads * number};"]
        inside = f"{e} < {rows}" if edge else ""
        if edge:
            before.append(f"let r{copy} = min({e}, {plus(rows, -1)});")
        before += decode(f"r{copy}" if edge else e, copied(self.kernel.outer, copy))
        return Point(copy, [a.name for a in self.kernel.outer], before, inside)

    # one or more threads a row
    def rows(self) -> list[Statement]:
        return self.folding().lines()

    def folding(self) -> Rows:
        """Return a writer of folds, and of stores for all points of a row."""
        return Rows(self.kernel, self.tiling, self.emit, self.written)

    # a tile of a product a workgroup
    def tile(self) -> list[Statement]:
        access = Access(self.emit, self.vector, self.by_vectors)
        stored = any(self.vectors[s.slot] for s in self.kernel.stores)
        assert self.tiling.tile is not None and self.kernel.product is not None
        tile = Tile(self.kernel, self.tiling.tile, access, stored)
        axis = None if tile.right.apart else self.kernel.product.n[-1]
        return [*tile.before_stores(), *tile.stores(lambda results: self.results(results, axis))]

    # a square of a product a thread
    def square(self) -> list[Statement]:
        square = Square(self.kernel, self.tiling, self.emit)
        return [*square.before_stores(), *square.stores(self.results)]

    # a rectangle of a scatter a workgroup
    def scatter(self) -> list[Statement]:
        scatter = Scattering(self.kernel, self.tiling, self.emit)
        return [*scatter.before_stores(), *scatter.stores(self.results)]

    # all rows of a block a workgroup
    def block(self) -> list[Statement]:
        stores = self.kernel.stores

        def stored() -> list[str]:
            written = self.stores(stores, loop=False)
            return [*self.emit.flush(), *written]

        return self.block_fold().lines(stored)

    def block_fold(self) -> BlockFold:
        """Return a writer of the kernel's fold."""
        assert self.tiling.block is not None
        return BlockFold(
            self.kernel, self.tiling.block, self.tiling.threads, self.emit, self.of.fixed, self.of.room, self.name
        )

    def results(self, results: Sequence[Result], axis: Axis | None = None) -> list[Statement]:
        """Return the stores of some results of a product or scatter; along `axis` every four are neighbours."""
        return self.side_by_side([self.result(r) for r in results], axis)

    def result(self, r: Result) -> Point:
        p, copy = self.kernel.product or self.kernel.scatter, r.copy
        assert p is not None
        fold = self.kernel.folds[0]
        before, inside = list(r.before), ""
        for name, text, axes in ((f"mm{copy}", r.row, p.m), (f"nn{copy}", r.column, p.n)):
            before.append(f"let {name} = {text};")
            if r.edge:
                inside += f"{' & ' if inside else ''}({name} < {points(axes)})"
            flat = f"min({name}, {points(axes) - 1})" if r.edge else name
            before += decode(f"({flat})", copied(axes, copy))
        own = [a.name for a in (*p.m, *p.n)]
        return Point(copy, [*own, fold.local], [*before, f"let {fold.local}{copy} = {r.value};"], inside)


@dataclass(frozen=True, slots=True)
class Point:
    """A point that a thread computes side by side with others.

    name:   the suffix of all names of the point.
    own:    the axes and folds of the point; the lines in `before` define them.
    inside: the condition under which the results are stored, if there is one.
    """

    name: str
    own: Sequence[str]
    before: Sequence[str]
    inside: str
