"""Arrays and values of NumPy kernels.

Views of memory, index tables, constant masks and scratch are made once. Every shared value is computed once, by ufuncs
with `out=`, and scratch is reused as soon as it is free.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

from tracegrad.dtypes import f16, f32, nearest_f32
from tracegrad.ir.graph import postorder
from tracegrad.ir.nodes import PRIMITIVES
from tracegrad.kernels.expr import Dynamic, Guard, Index, Quotient, Value, Var, atoms_of, indices_of, used_by, uses_of
from tracegrad.kernels.form import Kernel

Shape = tuple[int, ...]


class Arrays:
    """Names and lines of one kernel. Every array has all axes, with size 1 along axes on which it does not depend."""

    def __init__(self, kernel: Kernel, suffix: str, first: int, binding_of: Sequence[int]) -> None:
        self.kernel, self.suffix, self.first, self.binding_of = kernel, suffix, first, binding_of
        self.axes = [*kernel.outer, *kernel.inner]
        self.position = {a.name: k for k, a in enumerate(self.axes)}
        self.setup: list[str] = []  # lines of bind
        self.lines: list[str] = []  # lines of run
        self.shapes: dict[str, Shape] = {}
        self.scratch_of: dict[str, tuple[Shape, str]] = {}
        self._free: dict[tuple[Shape, str], list[str]] = {}
        self._tables: dict[str, str] = {}
        self._int_views: dict[str, str] = {}
        self._count = 0

    def fresh(self, prefix: str) -> str:
        """Return an unused name."""
        self._count += 1
        return f"{prefix}{self._count}{self.suffix}"

    def allocate(self, shape: tuple[int, ...], dtype: str) -> str:
        """Return a scratch array that nothing live uses."""
        reusable = self._free.get((shape, dtype))
        if reusable:
            return reusable.pop()
        name = self.fresh("t")
        self.scratch_of[name] = (shape, dtype)
        self.setup.append(f"{name} = scratch({len(self.scratch_of) - 1}, {shape}, '{dtype}')")
        return name

    def give_back(self, name: str) -> None:
        """Free a scratch array."""
        self._free.setdefault(self.scratch_of[name], []).append(name)

    def shape_of(self, index: Index) -> Shape:
        """Return the sizes along the axes on which a static index depends."""
        out = [1] * len(self.axes)
        for atom in atoms_of(index):
            if isinstance(atom, Var):
                at = self.position[atom.name]
                out[at] = self.axes[at].size
        return tuple(out)

    def joined(self, shapes: Iterable[Shape]) -> Shape:
        """Return the shape that all of `shapes` broadcast to."""
        out = [1] * len(self.axes)
        for shape in shapes:
            out = [max(n, m) for n, m in zip(out, shape)]
        return tuple(out)

    def memory(self, slot: int) -> tuple[str, str]:
        """Return the array of a slot, and the slot's offset in it."""
        return f"memory[{self.binding_of[slot]}]", f"at[{self.first + slot}]"

    def view(self, slot: int, index: Index) -> str:
        """Return a strided view of linear memory: sizes and strides over all axes."""
        array, offset = self.memory(slot)
        strides = [0] * len(self.axes)
        for atom, c in index.terms:
            assert isinstance(atom, Var)
            strides[self.position[atom.name]] = c
        shape = self.shape_of(index)
        name = self.fresh("m")
        self.setup.append(f"{name} = view({array}, {offset} + {index.const}, {shape}, {tuple(strides)})")
        dtype = self.kernel.slots[slot].dtype.name
        if dtype == "u32":
            self.setup.append(f"{name} = {name}.view('uint32')")
        self.shapes[name] = shape
        return name

    def table(self, index: Index, dtype: str = "int64") -> str:
        """Return the name of an array that holds a static index at all its points, computed once."""
        key = f"{index} {dtype} {self.shape_of(index)}"
        if key not in self._tables:
            name = self.fresh("x")
            shape = self.shape_of(index)
            self.setup.append(f"{name} = np.broadcast_to(np.asarray({self.table_text(index)}, '{dtype}'), {shape})")
            self._tables[key] = name
            self.shapes[name] = shape
        return self._tables[key]

    def table_text(self, index: Index) -> str:
        """Return an expression for a static index over all its points."""
        parts = [f"{self.atom_text(a)} * {c}" for a, c in index.terms] + [str(index.const)]
        return " + ".join(parts)

    def atom_text(self, atom: object) -> str:
        """Return an expression for one atom of a static index."""
        if isinstance(atom, Var):
            return self.variable(self.position[atom.name])
        assert isinstance(atom, Quotient)
        return f"(({self.table_text(atom.index)}) {'%' if atom.mod else '//'} {atom.d})"

    def variable(self, k: int) -> str:
        """Return an expression for the coordinate along axis `k`."""
        shape = tuple(a.size if d == k else 1 for d, a in enumerate(self.axes))
        return f"np.arange({self.axes[k].size}).reshape({shape})"

    def viewed(self, name: str) -> str:
        """Return an i32 view of an array. The setup makes the view if it makes the array."""
        if name not in self._int_views:
            self._int_views[name] = self.fresh("b")
            where = self.setup if name in self.scratch_of or name.startswith(("m", "x")) else self.lines
            where.append(f"{self._int_views[name]} = {name}.view('int32')")
        return self._int_views[name]


class Values:
    """Computes values of one kernel into named arrays."""

    def __init__(self, arrays: Arrays, roots: Sequence[Value]) -> None:
        self.arrays = arrays
        self.names: dict[Value | str, str] = {}  # of values, and of the kernel's locals
        self.uses = uses_of(roots, operands)
        self._shapes: dict[Value, Shape] = {}

    def shape(self, v: Value) -> tuple[int, ...]:
        """Return the sizes along the axes on which a value depends, and 1 along the others."""
        found = self._shapes.get(v)
        if found is None:
            if v.op == "local":
                found = self.arrays.shapes[self.names[str(v.arg)]]
            else:
                shapes = [self.shape_of_index(i) for i in indices_of(v)] + [self.shape(a) for a in v.args]
                found = self.arrays.joined(shapes)
            self._shapes[v] = found
        return found

    def shape_of_index(self, index: Index) -> Shape:
        """Return the sizes along the axes on which an index depends, also through the values it is computed from."""
        dynamic = [self.shape(a.value) for a in atoms_of(index) if isinstance(a, Dynamic)]
        return self.arrays.joined([self.arrays.shape_of(index), *dynamic])

    def release(self, *values: Value) -> None:
        """Count one use of each value as done; the last use frees its scratch."""
        for v in values:
            self.uses[v] -= 1
            name = self.names.get(v)
            if self.uses[v] == 0 and name in self.arrays.scratch_of:
                self.arrays.give_back(name)

    def value(self, v: Value, out: str | None = None) -> str:
        """Write lines that compute `v`; return the result's name or literal. `out` is as for `compute`."""
        if v.op == "const":
            return constant(v)
        if v.op == "local":
            return self.names[str(v.arg)]
        if v not in self.names:
            for x in self.pending(v):
                self.names[x] = self.compute(x, None)
                self.arrays.shapes.setdefault(self.names[x], self.shape(x))
            name = self.compute(v, out)
            self.names[v] = name
            self.arrays.shapes.setdefault(name, self.shape(v))
        return self.names[v]

    def pending(self, root: Value) -> list[Value]:
        """Return the values that `root` needs and that have no name yet, operands first."""

        def unnamed(v: Value) -> list[Value]:
            return [x for x in reversed(operands(v)) if x not in self.names and x.op not in ("const", "local")]

        return list(postorder(unnamed(root), unnamed))

    def name_of(self, v: Value) -> str:
        """Return the name or literal of a computed value."""
        return constant(v) if v.op == "const" else self.names[str(v.arg) if v.op == "local" else v]

    def compute(self, v: Value, out: str | None) -> str:
        """Write lines for one value whose operands are computed. out: an array for a value of the op "map"."""
        if v.op == "index" and _depends(v.arg):
            name = self.arrays.fresh("d")
            now = self.index_now(v.arg)
            self.arrays.lines.append(f"{name} = np.broadcast_to({now}, {self.shape(v)}).astype('int32')")
            return name
        if v.op == "index":
            return self.arrays.table(v.arg, "int32")
        if v.op == "load":
            return self.load(v)
        if v.op == "inside":
            return self.inside(v)
        return self.map(v, out)

    def load(self, v: Value) -> str:
        """Return a value from memory."""
        slot, index = v.arg
        if _depends(index):
            return self.gather(v, slot, index)
        if index.linear:
            return self.as_computed(v, self.arrays.view(slot, index))
        array, offset = self.arrays.memory(slot)
        name = self.arrays.fresh("x")
        self.arrays.setup.append(f"{name} = {self.arrays.table(index)} + {offset}")
        return self.take(v, array, name, self.shape_of_index(index))

    def as_computed(self, v: Value, name: str) -> str:
        """Convert a value from memory: booleans are stored as integers, and some f32 in half precision."""
        halves = self.arrays.kernel.loaded(v) is f16
        if not halves and v.dtype.name != "bool":
            return name
        out = self.arrays.allocate(self.arrays.shapes[name], v.dtype.numpy)
        self.arrays.lines.append(f"np.copyto({out}, {name})" if halves else f"np.not_equal({name}, 0, out={out})")
        if name in self.arrays.scratch_of:
            self.arrays.give_back(name)
        return out

    def take(self, v: Value, array: str, indices: str, shape: tuple[int, ...]) -> str:
        """Return elements of an array at computed offsets."""
        stored = self.arrays.kernel.loaded(v)
        out = self.arrays.allocate(shape, stored.numpy if stored in (f16, f32) else "int32")
        self.arrays.lines.append(f"np.take({array}, {indices}, out={out}, mode='wrap')")
        self.arrays.shapes[out] = shape
        if v.dtype.name == "u32":
            name = self.arrays.fresh("u")
            self.arrays.setup.append(f"{name} = {out}.view('uint32')")
            return name
        return self.as_computed(v, out)

    def gather(self, v: Value, slot: int, index: Index) -> str:
        """Return a load at an index that is computed at run time."""
        array, offset = self.arrays.memory(slot)
        static = [(a, c) for a, c in index.terms if not _varies(a)]
        name = self.arrays.fresh("x")
        base = self.arrays.fresh("x")
        text = " + ".join([f"{self.arrays.atom_text(a)} * {c}" for a, c in static] + [str(index.const), offset])
        shape = self.shape_of_index(index)  # the other terms can be constants, which have no axes
        self.arrays.setup.append(f"{base} = np.array({text}, 'int64', ndmin={len(shape)})")
        picked = [f"{self.atom_now(a)} * {c}" for a, c in index.terms if _varies(a)]
        self.arrays.lines.append(f"{name} = {' + '.join([base, *picked])}")
        for a, _ in index.terms:
            if isinstance(a, Dynamic):
                self.release(a.value)
        return self.take(v, array, name, shape)

    def index_now(self, index: Index) -> str:
        """Return an expression for an index that depends on values."""
        return " + ".join([f"{self.atom_now(a)} * {c}" for a, c in index.terms] + [str(index.const)])

    def atom_now(self, atom: object) -> str:
        """Return an expression for one atom of such an index."""
        if isinstance(atom, Dynamic):
            return f"np.clip({self.name_of(atom.value)}, 0, {atom.hi}).astype('int64')"
        if isinstance(atom, Quotient) and _varies(atom):
            return f"(({self.index_now(atom.index)}) {'%' if atom.mod else '//'} {atom.d})"
        name = self.arrays.fresh("x")
        self.arrays.setup.append(f"{name} = {self.arrays.atom_text(atom)}")
        return name

    def mask(self, guards: Sequence[Guard]) -> str:
        """Return the name of a boolean array that is True where all guards hold."""
        name, moving = self.arrays.fresh("g"), any(_depends(g.index) for g in guards)
        text, lines = (self.index_now, self.arrays.lines) if moving else (self.arrays.table_text, self.arrays.setup)
        parts: list[str] = []
        for g in guards:
            t = self.arrays.fresh("x")
            lines.append(f"{t} = np.asarray({text(g.index)})")
            parts.append(f"({t} >= {g.lo}) & ({t} < {g.hi})" + (f" & ({t} % {g.step} == 0)" if g.step > 1 else ""))
        lines.append(f"{name} = {' & '.join(parts)}")
        return name

    def inside(self, v: Value) -> str:
        """Return a value where guards hold, else 0."""
        (x,) = v.args
        mask = self.mask(v.arg)
        shape = self.shape(v)
        if _static_inside(v):
            slot, index = x.arg
            array, offset = self.arrays.memory(slot)
            name = self.arrays.fresh("x")
            # the last element of every array is 0
            self.arrays.setup.append(
                f"{name} = np.where({mask}, {self.arrays.table(index)} + {offset}, {array}.size - 1)"
            )
            return self.take(x, array, name, shape)
        source, out = self.name_of(x), self.arrays.allocate(shape, v.dtype.numpy)
        self.arrays.lines += [f"{out}[...] = 0", f"np.copyto({out}, {source}, where={mask})"]
        self.release(x)
        return out

    def map(self, v: Value, out: str | None) -> str:
        """Write the lines of an elementwise op, and return the name of its result."""
        name, attrs = v.arg
        rule = PRIMITIVES[name].array
        args = [self.name_of(a) for a in v.args]
        shape, dtype = self.shape(v), v.dtype.numpy
        if not isinstance(rule, str) or name == "where" or "{0}" in rule:
            # before the operands are freed, because the text uses them several times
            out = out or self.arrays.allocate(shape, dtype)
            called = f"primitives[{name!r}].array(np, {', '.join(args)}, **{dict(attrs)})"
            text = rule.format(*args, **dict(attrs)).replace("xp.", "np.") if isinstance(rule, str) else called
            self.arrays.lines += self.choice(v, args, out) if name == "where" else [f"np.copyto({out}, {text})"]
            self.release(*v.args)
            return out
        self.release(*v.args)  # first, because an elementwise ufunc can overwrite its own operand
        out = out or self.arrays.allocate(shape, dtype)
        self.arrays.lines.append(f"np.{rule}({', '.join(args)}, out={out})")
        return out

    def choice(self, v: Value, args: Sequence[str], out: str) -> list[str]:
        """Return lines that compute `where` on bits: NumPy's masked copies are 20 times slower on random masks."""
        condition, a, b = args
        if v.dtype.name == "bool":
            spare = self.arrays.allocate(self.shape(v), "bool")
            lines = [
                f"np.logical_and({condition}, {a}, out={out})",
                f"np.logical_and(np.logical_not({condition}), {b}, out={spare})",
                f"np.logical_or({out}, {spare}, out={out})",
            ]
            self.arrays.give_back(spare)
            return lines
        mask = self.arrays.allocate(self.shape(v.args[0]), "int32")
        bits = f"np.asarray({condition}).view('int8')"
        if v.args[0].op != "const":
            bits = f"{condition}.view('int8')"
        left, right, target = self.bits(v.args[1], a), self.bits(v.args[2], b), self.arrays.viewed(out)
        chosen = f"np.negative({bits}, out={mask}, dtype='int32', casting='unsafe')"
        others = f"np.subtract({bits}, np.int8(1), out={mask}, dtype='int32', casting='unsafe')"
        if right == "np.int32(0)":
            lines = [chosen, f"np.bitwise_and({left}, {mask}, out={target})"]
        elif left == "np.int32(0)":
            lines = [others, f"np.bitwise_and({right}, {mask}, out={target})"]
        else:
            lines = [
                chosen,
                f"np.bitwise_xor({left}, {right}, out={target})",
                f"np.bitwise_and({target}, {mask}, out={target})",
                f"np.bitwise_xor({target}, {right}, out={target})",
            ]
        self.arrays.give_back(mask)
        return lines

    def bits(self, v: Value, name: str) -> str:
        """Return the bits of a value as i32."""
        if v.op != "const":
            return self.arrays.viewed(name)
        code = {"f32": "<f", "i32": "<i", "u32": "<I"}[v.dtype.name]
        number = nearest_f32(float(v.arg)) if code == "<f" else int(v.arg)
        return f"np.int32({struct.unpack('<i', struct.pack(code, number))[0]})"


def _depends(index: Index) -> bool:
    """Return whether any part of an index is read from memory."""
    return any(isinstance(a, Dynamic) for a in atoms_of(index))


def _varies(atom: object) -> bool:
    return isinstance(atom, Dynamic) or (isinstance(atom, Quotient) and _depends(atom.index))


def _static_inside(v: Value) -> bool:
    """Return whether `v` is a guarded load whose index and guards are known before the kernel runs."""
    if v.op != "inside" or v.args[0].op != "load":
        return False
    return not any(_depends(i) for i in (*indices_of(v), *indices_of(v.args[0])))


def operands(v: Value) -> Sequence[Value]:
    """Return the values to compute before `v`. A guarded static load is one step with its guard."""
    return [] if _static_inside(v) else used_by(v)


def constant(v: Value) -> str:
    """Return a NumPy literal."""
    if v.dtype.name == "bool":
        return "np.True_" if v.arg else "np.False_"
    return f"np.{v.dtype.numpy}({text_of(v.arg if v.dtype.name != 'f32' else float(v.arg))})"


def text_of(x: float) -> str:
    """Return a Python number as NumPy's kernels spell it."""
    text = repr(x)
    return {"inf": "np.inf", "-inf": "-np.inf", "nan": "np.nan"}.get(text, text)
