"""Load the operands of a tile into workgroup memory, a step of k at a time, as lines of vectors.

There are three ways to make the vectors:

- An operand whose rows (or columns) are neighbours in an array of vectors is copied: four neighbours are a vector.
- An operand whose k are neighbours comes in blocks, four rows by four k, which a thread transposes in registers.
- Any other operand comes element by element. The four rows of a vector are then a quarter of the tile apart. So a
  thread makes whole vectors, and neighbouring threads load neighbouring elements. (Threads that write parts of one
  vector would race, because a device can write all of it.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from tracegrad.dtypes import f16, f32
from tracegrad.kernel_source import BoundKernel
from tracegrad.kernels.expr import Index, Value, Var, names_of, walk
from tracegrad.kernels.form import Axis, Kernel, divides, points
from tracegrad.kernels.tiles import TileShape
from tracegrad.kernels.tiling import Tiling
from tracegrad.render.emit import Block, Emitter, Statement, copied, decode, when
from tracegrad.tuning import LOAD_PAIR, LOAD_RUN, WORKGROUP

XYZW = "xyzw"  # components of a vector


def vector_bindings(kernels: Iterable[BoundKernel]) -> set[int]:
    """Return the bindings of a launch whose arrays are of vectors."""
    by_element: set[int] = set()
    by_vector: set[int] = set()
    for x in kernels:
        found = slots_by_vectors(x.kernel, x.tiling)
        for number, (slot, binding) in enumerate(zip(x.kernel.slots, x.binding_of)):
            if x.aligned[number] and number in found:
                by_vector.add(binding)
            elif slot.written:
                by_element.add(binding)
    return by_vector - by_element


def slots_by_vectors(kernel: Kernel, tiling: Tiling) -> set[int]:
    """Return the slots that a tile can read or write by vectors."""
    p = kernel.product
    if tiling.kind != "tile" or tiling.tile is None or p is None:
        return set()
    stores = kernel.stores
    rows, columns, k = (x[-1] if x else None for x in (p.m, p.n, tiling.tile.summed(kernel)))
    floats = [slot.dtype in (f32, f16) for slot in kernel.slots].__getitem__
    loads = [
        *(v for axis in (rows, k) for v in vector_loads([p.a], axis, floats)),
        *(v for axis in (columns, k) for v in vector_loads([p.b], axis, floats)),
        *vector_loads([s.value for s in stores], columns, floats),
    ]
    written = [s.slot for s in stores if floats(s.slot) and columns and steps_by_one(s.index, columns)]
    return {v.arg[0] for v in loads} | set(written)


def vector_loads(roots: Iterable[Value], axis: Axis | None, vectors: Callable[[int], bool]) -> list[Value]:
    """Return the loads below `roots` that are of neighbouring elements along `axis`, from arrays of vectors."""
    if axis is None:
        return []
    found = list(walk(roots))
    guarded = {v.args[0] for v in found if v.op == "inside"}
    loads = (v for v in found if v.op == "load" and v not in guarded)
    return [v for v in loads if vectors(v.arg[0]) and steps_by_one(v.arg[1], axis)]


def steps_by_one(index: Index, axis: Axis) -> bool:
    """Return whether every fourth point along `axis` begins a vector, and the next point is the next element."""
    others = [(atom, c) for atom, c in index.terms if not (isinstance(atom, Var) and atom.name == axis.name)]
    whole = divides(4, axis.size) and index.const % 4 == 0 and all(c % 4 == 0 for _, c in others)
    return index.strides.get(axis.name) == 1 and whole and axis.name not in names_of(atom for atom, _ in others)


@dataclass(slots=True)
class Operand:
    """Lines before the loop over k, lines that load the thread's part into registers, and lines that write it out."""

    before: list[str]
    load: list[Statement]
    put: list[str]


@dataclass(frozen=True, slots=True)
class Access:
    """How a kernel reads memory: an emitter, code for a vector at an index, and whether a slot has vectors."""

    emit: Emitter
    vector: Callable[[int, str], str]
    vectors: Callable[[int], bool]


@dataclass(frozen=True, slots=True)
class Side:
    """One operand. apart: the four elements of its vectors are a quarter of the tile apart, not side by side."""

    name: str
    value: Value
    axes: Sequence[Axis]  # its rows, or columns
    extent: int  # how many of them a tile has
    line: int  # vectors of a line
    base: int  # where the operand begins in a part, in vectors
    first: str  # the tile's first row
    along_rows: Sequence[Value]  # loads that are vectors along the rows
    along_k: Sequence[Value]  # loads that are vectors along k
    apart: bool

    @property
    def size(self) -> int:
        """The number of rows of the whole product."""
        return points(self.axes)

    def row(self, group: str, element: int) -> str:
        """Return the row of a vector's element. Beyond the edge the last rows repeat, and nothing reads them."""
        row = f"{self.first} + {group} + {element * self.extent // 4}"
        last = self.size - 1
        if not self.apart:
            row, last = f"{self.first} + 4 * {group}", self.size - 4
        row = row if self.size % self.extent == 0 else f"min({row}, {last})"
        return row if self.apart else f"{row} + {element}"


class Loads:
    """Writes the loads of one tile kernel."""

    def __init__(self, kernel: Kernel, shape: TileShape, access: Access) -> None:
        self.shape, self.access = shape, access
        self.k = points(kernel.inner)
        self.inner = shape.summed(kernel)
        # A step goes along the last axis only. If this axis is all of k, a step can go beyond its end.
        self.stepped = bool(self.inner) and (len(self.inner) == 1 or divides(shape.k_step, self.inner[-1].size))

    def operand(self, side: Side) -> Operand:
        """Return the lines that load an operand into workgroup memory. Those independent of the step come first."""
        out = Operand([], [], [])
        blocks = not side.along_rows and len(side.along_k) > 0
        loads = self.shape.k_step * side.extent // (16 if blocks else 4)
        for u in range(max(1, loads // WORKGROUP)):
            (self.block if blocks else self.one)(side, u, out, loads)
        return out

    def one(self, side: Side, u: int, out: Operand, loads: int) -> None:
        """Write one load of the thread: a vector of four rows at one k, at once or element by element."""
        name, vectors = f"{side.name}{u}", side.extent // 4
        g, k, put = (f"{x}_{name}" for x in ("g", "k", "put"))
        vector, kj = self.place(side, u, vectors)
        out.before += [
            f"let {g} = {vector};",
            f"let {k} = {kj};",
            f"let {put} = {k} * {side.line} + {side.base} + {g};",
            f"var {name} = vec4<f32>();",
        ]
        load: list[str] = []
        first = self.defined(side, f"_{name}", side.row(g, 0), k)
        known = self.known(side, side.along_rows, f"_{name}", first, out, load)
        values: list[str] = []
        for e in range(4):
            copy = f"_{name}_{e}"
            loaded = {v: f"{w}.{XYZW[e]}" for v, w in known.items()}
            before = self.defined(side, copy, side.row(g, e), k)
            values.append(self.value(side, copy, before, loaded, out, load))
        here = f"sv[{put}] = {name};"
        load.append(f"{name} = vec4<f32>({', '.join(values)});")
        out.load += self.loaded([name], k, load)
        out.put.append(f"if (lid < {loads}) {{ {here} }}" if loads < WORKGROUP else here)

    def block(self, side: Side, u: int, out: Operand, loads: int) -> None:
        """Write one load of the thread: four vectors along k, of four rows."""
        name, vectors = f"{side.name}{u}", side.extent // 4
        g, k, put = (f"{x}_{name}" for x in ("g", "k", "put"))
        q = f"(lid + {WORKGROUP * u})" if u else "lid"
        out.before += [
            f"let {g} = {q} / {LOAD_PAIR} % {vectors};",
            f"let {k} = ({q} % {LOAD_PAIR} + {q} / {LOAD_PAIR * vectors} * {LOAD_PAIR}) * 4;",
            f"let {put} = {k} * {side.line} + {side.base} + {g};",
        ]
        load: list[str] = []
        rows = [[""] * 4 for _ in range(4)]
        for e in range(4):
            copy, row = f"_{name}_{e}", side.row(g, e)
            known = self.known(side, side.along_k, copy, self.defined(side, copy, row, k), out, load)
            for j in range(4):
                loaded = {v: f"{w}.{XYZW[j]}" for v, w in known.items()}
                before = self.defined(side, f"{copy}_{j}", row, f"{k} + {j}")
                rows[j][e] = self.value(side, f"{copy}_{j}", before, loaded, out, load, j)
        registers = [f"{name}_{j}" for j in range(4)]
        out.before += [f"var {register} = vec4<f32>();" for register in registers]
        load += [f"{register} = vec4<f32>({', '.join(row)});" for register, row in zip(registers, rows)]
        loading = self.loaded(registers, k, load)
        puts = [f"sv[{put} + {j * side.line}] = {register};" for j, register in enumerate(registers)]
        whole = loads >= WORKGROUP
        out.load += loading if whole else [when(f"lid < {loads}", loading)]
        out.put += puts if whole else [f"if (lid < {loads}) {{ {' '.join(puts)} }}"]

    def defined(self, side: Side, copy: str, row: str, k: str) -> list[str]:
        """Return lines that define the axes of a copy."""
        lines = [f"let row{copy} = {row};", *decode(f"row{copy}", copied(side.axes, copy))]
        return [*lines, f"let {self.inner[-1].name}{copy} = {k};"] if self.stepped else lines

    def known(
        self, side: Side, loads: Sequence[Value], copy: str, before: Sequence[str], out: Operand, load: list[str]
    ) -> dict[Value, str]:
        """Load the vectors that begin at some loads."""
        emit = self.emitter(side.axes, copy)
        found = {v: emit.vector(v, self.access.vector, loop=True) for v in loads}
        out.before += [*before, *emit.outer] if found else []
        load += emit.inner
        return found

    def value(
        self,
        side: Side,
        copy: str,
        before: Sequence[str],
        loaded: Mapping[Value, str],
        out: Operand,
        load: list[str],
        turn: int = 0,
    ) -> str:
        """Return one element of an operand; a plain load needs no lines before it. turn: its k in a block."""
        if side.value in loaded:
            return loaded[side.value]
        emit = self.emitter(side.axes, copy, loaded, turn)
        (value,) = emit.values([side.value], loop=True)
        out.before += [*before, *emit.outer]
        if turn and not self.stepped:
            last = self.inner[-1].name
            load.append(f"let {last}{copy} = {last} + {turn};")
        load += emit.inner
        return value

    def emitter(
        self, axes: Sequence[Axis], copy: str, loaded: Mapping[Value, str] | None = None, turn: int = 0
    ) -> Emitter:
        """Return an emitter for the element of an operand in one row."""
        inner = [a.name for a in self.inner]
        own = [a.name for a in axes] + (inner[-1:] if self.stepped or turn else [])
        step = (inner[-1], "ks") if self.stepped else ("", "")
        return self.access.emit.beside(inner, own, copy, step, loaded)

    def loaded(self, registers: Sequence[str], k: str, load: Sequence[str]) -> list[Statement]:
        """Return the lines of a load, with all axes of k if they come from the flat index; zeros beyond its end."""
        lines: list[Statement] = [*load]
        if not self.stepped:
            lines = [f"let kj = kc + {k};", *decode("kj", self.inner), *load]
        if not divides(self.shape.k_step, self.k):
            zeros = [f"{register} = vec4<f32>();" for register in registers]
            lines = [*zeros, when(f"kc + {k} < {self.k}", lines)]
        return [Block("", lines)]

    def place(self, side: Side, u: int, vectors: int) -> tuple[str, str]:
        """Return the vector of a line and the k that load number `u` of a thread reads.

        Neighbouring threads read neighbouring memory: in runs along k if the operand is contiguous along k.
        """
        k = self.inner
        q = f"(lid + {WORKGROUP * u})" if u else "lid"
        loads = self.shape.k_step * vectors
        if loads < WORKGROUP:  # the other threads repeat loads that are already assigned
            q = f"(lid % {loads})"
        if side.along_rows or not contiguous_along(side.value, k[-1].name if k else ""):
            return f"{q} % {vectors}", f"{q} / {vectors}"
        return f"{q} / {LOAD_RUN} % {vectors}", f"{q} % {LOAD_RUN} + {q} / {LOAD_RUN * vectors} * {LOAD_RUN}"

    def stands_still(self) -> list[str]:
        """Return lines that define k's axes but the last, and `ks`, a step's start on it; none if not `stepped`."""
        if not self.stepped:
            return []
        *others, last = self.inner
        if not others:
            return ["let ks = kc;"]
        return [f"let ks = kc % {last.size};", *decode(f"(kc / {last.size})", others)]


def contiguous_along(v: Value, name: str) -> bool:
    """Return whether the first load below `v` steps by 1 along the variable `name`."""
    stack = [v]
    while stack:
        x = stack.pop()
        if x.op == "load":
            return any(getattr(a, "name", "") == name and c == 1 for a, c in x.arg[1].terms)
        stack += x.args
    return False
