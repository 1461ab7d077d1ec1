"""Kernels as NumPy: straight lines over preallocated arrays, products by BLAS.

A kernel becomes a function `bind(np, view, scratch, memory, at)` that builds its views, index tables and scratch once
and returns `run()`, which only computes. A load whose index is linear is a strided view; any other static load,
padding included, is one `take` through a table. Every memory array ends with one zero, which padding reads.
"""

from __future__ import annotations

import itertools
import struct
from collections.abc import Sequence

from tracegrad.ir import PRIMITIVES
from tracegrad.kernels.expr import Dynamic, Guard, Index, Quotient, Value, Var, atoms_of, indices_of, walk
from tracegrad.kernels.form import Axis, Fold, Kernel, Product, Scatter, Store

REDUCERS = {"sum": "add", "max": "maximum", "min": "minimum", "prod": "multiply"}
UNROLL = 16  # folds of so few points are written out,
UNROLL_ROWS = 64  # if there are so many results for each of them
NUMPY = {"f32": "float32", "i32": "int32", "u32": "uint32", "bool": "bool"}


def render_numpy(kernels: Sequence[Kernel], binding_of: Sequence[int]) -> str:
    """One function for kernels that run side by side; here they run one after the other."""
    setup: list[str] = []
    run: list[str] = []
    first = 0
    for number, kernel in enumerate(kernels):
        writer = _Writer(kernel, f"_{number}" if len(kernels) > 1 else "", first, binding_of)
        writer.write()
        setup += writer.setup
        run += writer.lines
        first += len(kernel.slots)
    body = [f"    {line}" for line in setup]
    body += ["    def run():"] + [f"        {line}" for line in run] + ["    return run"]
    return "\n".join(["def bind(np, view, scratch, memory, at):", *body]) + "\n"


class _Writer:
    """Writes one kernel. Every value is an array over all axes, of size 1 along those it does not vary along."""

    def __init__(self, kernel: Kernel, suffix: str, first: int, binding_of: Sequence[int]) -> None:
        self.kernel, self.suffix, self.first, self.binding_of = kernel, suffix, first, binding_of
        self.axes = [*kernel.outer, *kernel.inner]
        self.position = {a.name: k for k, a in enumerate(self.axes)}
        self.setup: list[str] = []
        self.lines: list[str] = []
        self.names: dict[Value | str, str] = {}
        self.shapes: dict[str, tuple[int, ...]] = {}
        self.uses: dict[Value, int] = {}
        self.free: dict[tuple[tuple[int, ...], str], list[str]] = {}
        self.scratch_of: dict[str, tuple[tuple[int, ...], str]] = {}
        self.count = 0
        self._shapes: dict[Value, tuple[int, ...]] = {}
        self.tables: dict[str, str] = {}
        self.int_views: dict[str, str] = {}

    def write(self) -> None:
        """Setup and run lines of the whole kernel."""
        stores = [s for s in self.kernel.body if isinstance(s, Store)]
        folds = [s for s in self.kernel.body if isinstance(s, Fold)]
        roots = [root for s in self.kernel.body for root in _roots(s)]
        for v in [*roots, *(x for v in walk(roots) for x in _operands(v))]:
            self.uses[v] = self.uses.get(v, 0) + 1
        for f in folds:
            self.fold(f)
        # In place, every load precedes the store to its element: what is not written directly is written last.
        pending = [pair for s in stores if (pair := self.store(s)) is not None]
        self.lines += [f"{target}[...] = {value}" for target, value in pending]

    # names and shapes
    def fresh(self, prefix: str) -> str:
        self.count += 1
        return f"{prefix}{self.count}{self.suffix}"

    def shape(self, v: Value) -> tuple[int, ...]:
        """Sizes along the axes the value varies along, 1 along the others."""
        found = self._shapes.get(v)
        if found is None:
            if v.op == "local":
                found = self.shapes[self.names[str(v.arg)]]
            else:
                shapes = [self.shape_of_index(i) for i in indices_of(v)] + [self.shape(a) for a in v.args]
                found = _broadcast(shapes, len(self.axes))
            self._shapes[v] = found
        return found

    def shape_of_index(self, index: Index) -> tuple[int, ...]:
        out = [1] * len(self.axes)
        shapes: list[tuple[int, ...]] = []
        for atom in atoms_of(index):
            if isinstance(atom, Var):
                out[self.position[atom.name]] = atom.size
            elif isinstance(atom, Dynamic):
                shapes.append(self.shape(atom.value))
        return _broadcast([tuple(out), *shapes], len(self.axes))

    def allocate(self, shape: tuple[int, ...], dtype: str) -> str:
        """A scratch array that nothing live uses."""
        reusable = self.free.get((shape, dtype))
        if reusable:
            return reusable.pop()
        name = self.fresh("t")
        self.scratch_of[name] = (shape, dtype)
        self.setup.append(f"{name} = scratch({len(self.scratch_of) - 1}, {shape}, '{dtype}')")
        return name

    def release(self, *values: Value) -> None:
        """One use of each value is done; at the last its scratch is free again."""
        for v in values:
            self.uses[v] -= 1
            name = self.names.get(v)
            if self.uses[v] == 0 and name in self.scratch_of:
                self.free.setdefault(self.scratch_of[name], []).append(name)

    # memory
    def memory(self, slot: int) -> tuple[str, str]:
        """The array of a slot and its offset there."""
        k = self.first + slot
        return f"memory[{self.binding_of[k]}]", f"at[{k}]"

    def view(self, slot: int, index: Index) -> str:
        """A strided view of linear memory: sizes and strides over all axes."""
        array, offset = self.memory(slot)
        strides = [0] * len(self.axes)
        for atom, c in index.terms:
            assert isinstance(atom, Var)
            strides[self.position[atom.name]] = c
        shape = self.shape_of_index(index)
        name = self.fresh("m")
        self.setup.append(f"{name} = view({array}, {offset} + {index.const}, {shape}, {tuple(strides)})")
        dtype = self.kernel.slots[slot].dtype.name
        if dtype == "u32":
            self.setup.append(f"{name} = {name}.view('uint32')")
        self.shapes[name] = shape
        return name

    def table(self, index: Index, dtype: str = "int64") -> str:
        """A static index over all its points, computed once."""
        key = f"{index} {dtype} {self.shape_of_index(index)}"
        if key not in self.tables:
            name = self.fresh("x")
            shape = self.shape_of_index(index)
            self.setup.append(f"{name} = np.broadcast_to(np.asarray({self.table_text(index)}, '{dtype}'), {shape})")
            self.tables[key] = name
            self.shapes[name] = shape
        return self.tables[key]

    def table_text(self, index: Index) -> str:
        parts = [f"{self.atom_text(a)} * {c}" for a, c in index.terms] + [str(index.const)]
        return " + ".join(parts)

    def atom_text(self, atom: object) -> str:
        if isinstance(atom, Var):
            shape = [1] * len(self.axes)
            shape[self.position[atom.name]] = atom.size
            return f"np.arange({atom.size}).reshape({tuple(shape)})"
        assert isinstance(atom, Quotient)
        return f"(({self.table_text(atom.index)}) {'%' if atom.mod else '//'} {atom.d})"

    def mask(self, guards: Sequence[Guard]) -> str:
        """Where all guards hold, computed once."""
        parts: list[str] = []
        for g in guards:
            t = f"np.asarray({self.table_text(g.index)})"
            parts.append(f"({t} >= {g.lo}) & ({t} < {g.hi})" + (f" & ({t} % {g.step} == 0)" if g.step > 1 else ""))
        name = self.fresh("g")
        self.setup.append(f"{name} = {' & '.join(parts)}")
        self.shapes[name] = _broadcast([self.shape_of_index(g.index) for g in guards], len(self.axes))
        return name

    # values
    def value(self, v: Value, out: str | None = None) -> str:
        """Lines that compute `v`; the name or literal of the result. `out` is an array to compute it into."""
        if v.op == "const":
            return _constant(v)
        if v.op == "local":
            return self.names[str(v.arg)]
        if v not in self.names:
            for x in self.pending(v):
                self.names[x] = self.compute(x, None)
                self.shapes.setdefault(self.names[x], self.shape(x))
            name = self.compute(v, out)
            self.names[v] = name
            self.shapes.setdefault(name, self.shape(v))
        return self.names[v]

    def pending(self, root: Value) -> list[Value]:
        """What `root` needs that has no name yet, operands first."""
        found: list[Value] = []
        seen: set[Value] = set()
        stack = [(x, False) for x in reversed(_operands(root))]
        while stack:
            v, ready = stack.pop()
            if ready:
                found.append(v)
            elif v not in seen and v not in self.names and v.op not in ("const", "local"):
                seen.add(v)
                stack.append((v, True))
                stack.extend((x, False) for x in reversed(_operands(v)))
        return found

    def name_of(self, v: Value) -> str:
        return _constant(v) if v.op == "const" else self.names[str(v.arg) if v.op == "local" else v]

    def compute(self, v: Value, out: str | None) -> str:
        if v.op == "index":
            return self.table(v.arg, "int32")
        if v.op == "load":
            return self.load(v, out)
        if v.op == "inside":
            return self.inside(v, out)
        return self.map(v, out)

    def load(self, v: Value, out: str | None) -> str:
        slot, index = v.arg
        if not any(isinstance(a, Dynamic) for a in atoms_of(index)):
            if all(isinstance(a, Var) for a, _ in index.terms):
                name = self.view(slot, index)
                return self.as_bool(v, name)
            array, offset = self.memory(slot)
            name = self.fresh("x")
            self.setup.append(f"{name} = {self.table(index)} + {offset}")
            return self.take(v, array, name, self.shape_of_index(index), out)
        return self.gather(v, slot, index, out)

    def as_bool(self, v: Value, name: str) -> str:
        if v.dtype.name != "bool":
            return name
        out = self.allocate(self.shapes[name], "bool")
        self.lines.append(f"np.not_equal({name}, 0, out={out})")
        return out

    def take(self, v: Value, array: str, indices: str, shape: tuple[int, ...], out: str | None) -> str:
        stored = "float32" if v.dtype.is_float else "int32"
        out = out or self.allocate(shape, stored)
        self.lines.append(f"np.take({array}, {indices}, out={out}, mode='wrap')")
        self.shapes.setdefault(out, shape)
        if v.dtype.name == "u32":
            name = self.fresh("u")
            self.setup.append(f"{name} = {out}.view('uint32')")
            return name
        return self.as_bool(v, out)

    def gather(self, v: Value, slot: int, index: Index, out: str | None) -> str:
        """A load at an index that is computed at run time."""
        array, offset = self.memory(slot)
        static = [(a, c) for a, c in index.terms if not isinstance(a, Dynamic)]
        name = self.fresh("x")
        base = self.fresh("x")
        text = " + ".join([f"{self.atom_text(a)} * {c}" for a, c in static] + [str(index.const), offset])
        self.setup.append(f"{base} = np.asarray({text}, 'int64')")
        picked = [
            f"np.clip({self.name_of(a.value)}, 0, {a.hi}).astype('int64') * {c}"
            for a, c in index.terms
            if isinstance(a, Dynamic)
        ]
        self.lines.append(f"{name} = {' + '.join([base, *picked])}")
        for a, _ in index.terms:
            if isinstance(a, Dynamic):
                self.release(a.value)
        return self.take(v, array, name, self.shape_of_index(index), out)

    def inside(self, v: Value, out: str | None) -> str:
        (x,) = v.args
        mask = self.mask(v.arg)
        shape = self.shape(v)
        if x.op == "load" and not any(isinstance(a, Dynamic) for a in atoms_of(x.arg[1])):
            slot, index = x.arg
            array, offset = self.memory(slot)
            name = self.fresh("x")
            # the last element of every array is 0
            self.setup.append(f"{name} = np.where({mask}, {self.table(index)} + {offset}, {array}.size - 1)")
            return self.take(x, array, name, shape, out)
        source = self.name_of(x)
        if out is None or out == source:
            out = self.allocate(shape, NUMPY[v.dtype.name])
        self.lines += [f"{out}[...] = 0", f"np.copyto({out}, {source}, where={mask})"]
        self.release(x)
        return out

    def map(self, v: Value, out: str | None) -> str:
        name, attrs = v.arg
        rule = PRIMITIVES[name].array
        args = [self.name_of(a) for a in v.args]
        shape, dtype = self.shape(v), NUMPY[v.dtype.name]
        assert isinstance(rule, str), f"{name} needs a textual array rule"
        if name == "where":
            out = out or self.allocate(shape, dtype)  # before the operands are free: it is written more than once
            self.lines += self.choice(v, args, out)
            self.release(*v.args)
            return out
        if "{0}" in rule:
            text = rule.format(*args, **dict(attrs)).replace("xp.", "np.")
            out = out or self.allocate(shape, dtype)
            self.lines.append(f"np.copyto({out}, {text})")
            self.release(*v.args)
            return out
        self.release(*v.args)  # first: an elementwise ufunc may write over its own operand
        out = out or self.allocate(shape, dtype)
        self.lines.append(f"np.{rule}({', '.join(args)}, out={out})")
        return out

    def choice(self, v: Value, args: Sequence[str], out: str) -> list[str]:
        """`where` on bits. NumPy's own masked copies branch on every element: 20 times slower on random masks."""
        condition, a, b = args
        if v.dtype.name == "bool":
            spare = self.allocate(self.shape(v), "bool")
            lines = [
                f"np.logical_and({condition}, {a}, out={out})",
                f"np.logical_and(np.logical_not({condition}), {b}, out={spare})",
                f"np.logical_or({out}, {spare}, out={out})",
            ]
            self.free.setdefault(self.scratch_of[spare], []).append(spare)
            return lines
        mask = self.allocate(self.shape(v.args[0]), "int32")
        bits = f"np.asarray({condition}).view('int8')"
        if v.args[0].op != "const":
            bits = f"{condition}.view('int8')"
        left, right, target = self.bits(v.args[1], a), self.bits(v.args[2], b), self.viewed(out)
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
        self.free.setdefault(self.scratch_of[mask], []).append(mask)
        return lines

    def bits(self, v: Value, name: str) -> str:
        """The bits of a value as i32."""
        if v.op != "const":
            return self.viewed(name)
        code = {"f32": "<f", "i32": "<i", "u32": "<I"}[v.dtype.name]
        number = float(v.arg) if code == "<f" else int(v.arg)
        return f"np.int32({struct.unpack('<i', struct.pack(code, number))[0]})"

    def viewed(self, name: str) -> str:
        """An i32 view of an array made in the setup."""
        if name not in self.int_views:
            self.int_views[name] = self.fresh("b")
            where = self.setup if name in self.scratch_of or name.startswith(("m", "x")) else self.lines
            where.append(f"{self.int_views[name]} = {name}.view('int32')")
        return self.int_views[name]

    # statements
    def fold(self, f: Fold) -> None:
        shape = (*(a.size for a in self.kernel.outer), *(1 for _ in self.kernel.inner))
        if f.product is not None:
            name = self.product(f.product)
        elif f.scatter is not None:
            name = self.scatter(f.scatter, shape)
        else:
            source = self.value(f.value)
            name = self.allocate(shape, NUMPY[f.value.dtype.name])
            self.lines += self.reduction(f, source, name)
            self.release(f.value)
        self.names[f.local] = name
        self.shapes[name] = shape

    def reduction(self, f: Fold, source: str, out: str) -> list[str]:
        """The fold in the form that NumPy does fastest: a reduce pays about 15 ns for every result."""
        reducer, outer = REDUCERS[f.prim.name], len(self.kernel.outer)
        inner = tuple(range(outer, len(self.axes)))
        full = self.spread(f.value, source)
        sizes = [a.size for a in self.kernel.inner]
        length = self.kernel.length
        if length <= UNROLL and self.kernel.rows >= UNROLL_ROWS * length:
            points = list(itertools.product(*(range(n) for n in sizes)))
            parts: list[str] = []
            for p in points:
                parts.append(self.fresh("r"))
                at = ", ".join([":"] * outer + [f"{k}:{k + 1}" for k in p])
                self.setup.append(f"{parts[-1]} = {full}[{at}]")
            lines = (
                [f"np.{reducer}({parts[0]}, {parts[1]}, out={out})"] if len(parts) > 1 else [f"{out}[...] = {parts[0]}"]
            )
            return lines + [f"np.{reducer}({out}, {part}, out={out})" for part in parts[2:]]
        strides = self.strided(f.value, source)
        last = self.axes[-1]
        if (
            reducer == "add"
            and f.value.dtype.is_float
            and strides
            and strides[2].get(last.name) == 1
            and last.size >= 8
        ):
            ones, rows = self.fresh("r"), self.fresh("r")
            self.setup.append(f"{ones} = np.ones(({last.size}, 1), 'float32')")
            if len(inner) == 1:
                return [f"np.matmul({full}, {ones}, out={out})"]
            return [
                f"{rows} = np.matmul({full}, {ones})",
                f"np.add.reduce({rows}, axis={inner}, out={out}, keepdims=True)",
            ]
        return [f"np.{reducer}.reduce({full}, axis={inner}, out={out}, keepdims=True)"]

    def spread(self, v: Value, name: str) -> str:
        """`name` over every axis, also those the value does not vary along."""
        full = tuple(a.size for a in self.axes)
        return name if v.op != "const" and self.shape(v) == full else f"np.broadcast_to({name}, {full})"

    def product(self, p: Product) -> str:
        inner = self.kernel.inner
        a, b = self.operand(p.a, p.batch, p.m, inner), self.operand(p.b, p.batch, inner, p.n)
        full = (*(x.size for x in self.kernel.outer), *(1 for _ in inner))
        out, shaped = self.allocate(full, "float32"), self.fresh("p")
        self.setup.append(f"{shaped} = {out}.reshape({(*(x.size for x in p.batch), _size(p.m), _size(p.n))})")
        self.lines.append(f"np.matmul({a}, {b}, out={shaped})")
        self.release(p.a, p.b)
        return out

    def operand(self, v: Value, batch: Sequence[Axis], rows: Sequence[Axis], columns: Sequence[Axis]) -> str:
        """A matrix (or a stack of them) that BLAS takes: a view where strides allow it, else a packed copy."""
        name = self.value(v)
        groups = [*([a] for a in batch), list(rows), list(columns)]
        source = self.strided(v, name)
        if source is not None:
            array, offset, strides = source
            folded = [f for f in (_collapse(group, strides) for group in groups) if f is not None]
            if len(folded) == len(groups) and _blas_ready(folded):
                out = self.fresh("p")
                sizes, steps = tuple(f[0] for f in folded), tuple(f[1] for f in folded)
                self.setup.append(f"{out} = view({array}, {offset}, {sizes}, {steps})")
                return out
        order = [a for group in groups for a in group]
        have = self.shape(v)
        # a matrix that all of a batch share is packed once
        sizes = tuple(a.size if have[self.position[a.name]] > 1 or a not in batch else 1 for a in order)
        packed, out, moved = self.allocate(sizes, "float32"), self.fresh("p"), self.fresh("p")
        keep = [self.position[a.name] for a in order]
        drop = [k for k in range(len(self.axes)) if k not in keep]
        self.setup += [
            f"{moved} = np.broadcast_to({name}, {have}).transpose({(*keep, *drop)})"
            f".reshape({tuple(have[k] for k in keep)})",
            f"{out} = {packed}.reshape({(*sizes[: len(batch)], _size(rows), _size(columns))})",
        ]
        self.lines.append(f"np.copyto({packed}, {moved})")
        return out

    def strided(self, v: Value, name: str) -> tuple[str, str, dict[str, int]] | None:
        """Flat array, offset, and stride along each axis of a value in memory or in scratch."""
        if v.op == "load" and all(isinstance(a, Var) for a, _ in v.arg[1].terms):
            array, offset = self.memory(v.arg[0])
            strides = {a.name: c for a, c in v.arg[1].terms if isinstance(a, Var)}
            return array, f"{offset} + {v.arg[1].const}", strides
        if name in self.scratch_of:
            shape = self.scratch_of[name][0]
            steps = zip(self.axes, shape, _steps(shape))
            return f"{name}.reshape(-1)", "0", {a.name: step for a, n, step in steps if n > 1}
        return None

    def scatter(self, s: Scatter, shape: tuple[int, ...]) -> str:
        """Sum the updates into zeros at flat positions, in the order of the updates."""
        target, update = self.value(s.target), self.value(s.update)
        out = self.allocate(shape, "float32")
        outer = [a.size for a in self.kernel.outer]
        steps = _steps(outer)
        row = {a.name: c for a, c in s.row.terms if isinstance(a, Var)}
        full = [a.size for a in self.axes]
        axis_of_row = [k for k, a in enumerate(self.axes) if a.name in row]
        for k in axis_of_row:
            full[k] = 1
        others = [
            f"{self.atom_text_of(k)} * {steps[k]}" for k in range(len(outer)) if k not in axis_of_row and outer[k] > 1
        ]
        base, flat = self.fresh("x"), self.fresh("p")
        self.setup.append(f"{base} = np.asarray({' + '.join([*others, '0'])})")
        self.setup.append(f"{flat} = {out}.reshape(-1)")
        step = min((steps[k] for k in axis_of_row), default=1)
        length = 1
        for k in axis_of_row:
            length *= outer[k]
        at = f"np.clip({target}, 0, {length - 1}).astype('int64') * {step} + {base}"
        self.lines += [
            f"{flat}[...] = 0",
            f"np.add.at({flat}, np.broadcast_to({at}, {tuple(full)}).reshape(-1), "
            f"np.broadcast_to({update}, {tuple(full)}).reshape(-1))",
        ]
        self.release(s.target, s.update)
        return out

    def atom_text_of(self, k: int) -> str:
        shape = [1] * len(self.axes)
        shape[k] = self.axes[k].size
        return f"np.arange({self.axes[k].size}).reshape({tuple(shape)})"

    def store(self, s: Store) -> tuple[str, str] | None:
        """Compute straight into memory where that is safe; else say what to copy at the end."""
        target, slot = self.view(s.slot, s.index), self.kernel.slots[s.slot]
        direct = s.value.op == "map" and s.value not in self.names and self.uses[s.value] == 1
        if direct and slot.dtype.name == "f32" and slot.replaces < 0 and self.shape(s.value) == self.shapes[target]:
            self.value(s.value, target)
            return None
        value = self.value(s.value)
        if s.value.op == "load" and self.overwritten(s.value.arg[0]):  # a view would show the new elements
            kept = self.allocate(self.shape(s.value), NUMPY[s.value.dtype.name])
            self.lines.append(f"np.copyto({kept}, {value})")
            value = kept
        return target, value

    def overwritten(self, slot: int) -> bool:
        """Does this kernel write into the array that `slot` lies in, in place?"""
        written = [self.binding_of[self.first + k] for k, s in enumerate(self.kernel.slots) if s.replaces >= 0]
        return self.binding_of[self.first + slot] in written


def _roots(s: Fold | Store) -> list[Value]:
    if isinstance(s, Store):
        return [s.value]
    if s.product is not None:
        return [s.product.a, s.product.b]
    if s.scatter is not None:
        return [s.scatter.target, s.scatter.update]
    return [s.value]


def _operands(v: Value) -> list[Value]:
    """What must be computed before `v`. A guarded static load is one step with its guard."""
    if v.op == "inside" and v.args[0].op == "load":
        if not any(isinstance(a, Dynamic) for a in atoms_of(v.args[0].arg[1])):
            return []
    inside = [a.value for i in indices_of(v) for a in atoms_of(i) if isinstance(a, Dynamic)]
    return [*v.args, *inside]


def _constant(v: Value) -> str:
    if v.dtype.name == "bool":
        return "np.True_" if v.arg else "np.False_"
    text = repr(v.arg) if v.dtype.name != "f32" else repr(float(v.arg))
    text = {"inf": "np.inf", "-inf": "-np.inf", "nan": "np.nan"}.get(text, text)
    return f"np.{NUMPY[v.dtype.name]}({text})"


def _broadcast(shapes: Sequence[tuple[int, ...]], ndim: int) -> tuple[int, ...]:
    out = [1] * ndim
    for shape in shapes:
        for k, n in enumerate(shape):
            out[k] = max(out[k], n)
    return tuple(out)


def _size(axes: Sequence[Axis]) -> int:
    size = 1
    for a in axes:
        size *= a.size
    return size


def _steps(sizes: Sequence[int]) -> list[int]:
    out = [1] * len(sizes)
    for k in range(len(sizes) - 2, -1, -1):
        out[k] = out[k + 1] * sizes[k + 1]
    return out


def _collapse(axes: Sequence[Axis], strides: dict[str, int]) -> tuple[int, int] | None:
    """Size and stride of several axes as one; None if they do not lie evenly."""
    size, stride = 1, 0
    for a in reversed(axes):
        step = strides.get(a.name, 0)
        if a.size == 1:
            continue
        if size == 1:
            size, stride = a.size, step
        elif step == stride * size:
            size *= a.size
        else:
            return None
    return size, stride


def _blas_ready(groups: Sequence[tuple[int, int]]) -> bool:
    """One of the two matrix axes must be contiguous, and neither may repeat an element."""
    (m, step_m), (n, step_n) = groups[-2:]
    if (m > 1 and step_m == 0) or (n > 1 and step_n == 0):
        return False
    return (step_n == 1 or n == 1) or (step_m == 1 or m == 1)
