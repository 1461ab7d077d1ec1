"""Kernels as NumPy: straight lines over preallocated arrays, products by BLAS.

A launch becomes a function `bind(np, view, scratch, memory, at)` that builds its views, index tables and scratch once
and returns `run()`, which only computes. A load whose index is linear is a strided view; any other static load,
padding included, is one `take` through a table. Every memory array ends with one zero, which padding reads.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from tracegrad.dtypes import f32, strides_of
from tracegrad.ir.nodes import PRIMITIVES
from tracegrad.kernel_source import BoundLaunch
from tracegrad.kernels.axes import unroll
from tracegrad.kernels.axis_pieces import in_pieces
from tracegrad.kernels.expr import Value
from tracegrad.kernels.form import SIZE, Axis, Fold, Kernel, Product, Scatter, Store, operands_of, points
from tracegrad.render.gathered import blas_ready
from tracegrad.render.numpy_values import Arrays, Values, text_of


def render_numpy(launch: BoundLaunch) -> str:
    """Return one function for kernels of one launch; in NumPy they run one after the other."""
    setup: list[str] = []
    run: list[str] = []
    for number, x in enumerate(launch.kernels):
        suffix = f"_{number}" if len(launch.kernels) > 1 else ""
        parts = in_pieces(unroll(x.kernel))
        for k, part in enumerate(parts):
            writer = _Writer(part, suffix + (f"_p{k}" if len(parts) > 1 else ""), x.first, x.binding_of)
            writer.write()
            setup += writer.arrays.setup
            run += writer.arrays.lines
    body = [f"    {line}" for line in setup]
    body += ["    def run():"] + [f"        {line}" for line in run] + ["    return run"]
    sized = f", {SIZE}" if any(SIZE in line for line in body) else ""
    return "\n".join([f"def bind(np, view, scratch, memory, at{sized}):", *body]) + "\n"


class _Writer:
    """Writes the statements of one kernel."""

    def __init__(self, kernel: Kernel, suffix: str, first: int, binding_of: Sequence[int]) -> None:
        self.kernel = kernel
        self.arrays = Arrays(kernel, suffix, first, binding_of)
        self.values = Values(self.arrays, [root for s in kernel.body for root in operands_of(s)])

    def write(self) -> None:
        """Write all lines of the kernel."""
        for s in self.kernel.body:
            if isinstance(s, Fold):
                self.fold(s)
        # An update in place must load each element before it stores there. So stores that copy come last.
        stores = [self.store(s) for s in self.kernel.stores]
        self.arrays.lines += [f"{target} = {value}" for target, value in filter(None, stores)]

    def fold(self, f: Fold) -> None:
        uniform = self.kernel.uniform
        shape = (*(1 if uniform else a.size for a in self.kernel.outer), *(1 for _ in self.kernel.inner))
        if f.scatter is not None:
            name = self.scatter(f, f.scatter, shape)
        elif f.product is not None:
            name = self.product(f.product)
        else:
            source = self.values.value(f.value)
            name = self.arrays.allocate(shape, f.value.dtype.numpy)
            self.arrays.lines += self.reduction(f, source, name)
            self.values.release(f.value)
        self.values.names[f.local] = name
        self.arrays.shapes[name] = shape

    def reduction(self, f: Fold, source: str, out: str) -> list[str]:
        """Return a fold in NumPy's fastest form: `reduce` takes about 15 ns a result, a product with ones less."""
        reducer, outer = PRIMITIVES[f.prim.combine].array, len(self.kernel.outer)
        inner = tuple(range(outer, len(self.arrays.axes)))
        full = self.spread(f.value, source)
        strides = self.strided(f.value, source)
        last = self.arrays.axes[-1]
        if (
            reducer == "add"
            and f.value.dtype.is_float
            and strides
            and strides[2].get(last.name) == 1
            and last.size >= 8
        ):
            ones, rows = self.arrays.fresh("r"), self.arrays.fresh("r")
            self.arrays.setup.append(f"{ones} = np.ones(({last.size}, 1), 'float32')")
            if len(inner) == 1:
                return [f"np.matmul({full}, {ones}, out={out})"]
            return [
                f"{rows} = np.matmul({full}, {ones})",
                f"np.add.reduce({rows}, axis={inner}, out={out}, keepdims=True)",
            ]
        return [f"np.{reducer}.reduce({full}, axis={inner}, out={out}, keepdims=True)"]

    def spread(self, v: Value, name: str) -> str:
        """Return `name` broadcast over every axis."""
        once = self.kernel.outer if self.kernel.uniform else ()
        full = tuple(1 if a in once else a.size for a in self.arrays.axes)
        return name if v.op != "const" and self.values.shape(v) == full else f"np.broadcast_to({name}, {full})"

    def product(self, p: Product) -> str:
        inner = self.kernel.inner
        a, b = self.operand(p.a, p.batch, p.m, inner), self.operand(p.b, p.batch, inner, p.n)
        full = (*(x.size for x in self.kernel.outer), *(1 for _ in inner))
        out, shaped = self.arrays.allocate(full, "float32"), self.arrays.fresh("p")
        self.arrays.setup.append(f"{shaped} = {out}.reshape({(*(x.size for x in p.batch), points(p.m), points(p.n))})")
        self.arrays.lines.append(f"np.matmul({a}, {b}, out={shaped})")
        self.values.release(p.a, p.b)
        return out

    def operand(self, v: Value, batch: Sequence[Axis], rows: Sequence[Axis], columns: Sequence[Axis]) -> str:
        """Return a matrix, or a stack, that BLAS accepts: a view where strides allow it, else a packed copy."""
        name = self.values.value(v)
        groups = [*([a] for a in batch), list(rows), list(columns)]
        source = self.strided(v, name)
        matrix = blas_ready(groups, source[2]) if source is not None else None
        if source is not None and matrix is not None:
            out, (sizes, steps) = self.arrays.fresh("p"), matrix
            self.arrays.setup.append(f"{out} = view({source[0]}, {source[1]}, {sizes}, {steps})")
            return out
        order = [a for group in groups for a in group]
        have = self.values.shape(v)
        # a matrix that a whole batch shares is packed once
        sizes = tuple(a.size if have[self.arrays.position[a.name]] > 1 or a not in batch else 1 for a in order)
        packed, out, moved = self.arrays.allocate(sizes, "float32"), self.arrays.fresh("p"), self.arrays.fresh("p")
        keep = [self.arrays.position[a.name] for a in order]
        drop = [k for k in range(len(self.arrays.axes)) if k not in keep]
        self.arrays.setup += [
            f"{moved} = np.broadcast_to({name}, {have}).transpose({(*keep, *drop)})"
            f".reshape({tuple(have[k] for k in keep)})",
            f"{out} = {packed}.reshape({(*sizes[: len(batch)], points(rows), points(columns))})",
        ]
        self.arrays.lines.append(f"np.copyto({packed}, {moved})")
        return out

    def strided(self, v: Value, name: str) -> tuple[str, str, dict[str, int]] | None:
        """Return array, offset, and stride along each axis of a value in memory or in scratch; else None."""
        # otherwise half precision was converted into scratch memory
        as_it_lies = v.op == "load" and self.kernel.loaded(v) is f32
        if as_it_lies and v.arg[1].linear:
            array, offset = self.arrays.memory(v.arg[0])
            return array, f"{offset} + {v.arg[1].const}", v.arg[1].strides
        if name in self.arrays.scratch_of:
            shape = self.arrays.scratch_of[name][0]
            steps = zip(self.arrays.axes, shape, strides_of(shape))
            return f"{name}.reshape(-1)", "0", {a.name: step for a, n, step in steps if n > 1}
        return None

    def scatter(self, f: Fold, s: Scatter, shape: tuple[int, ...]) -> str:
        """Fold the updates at flat positions, in the order of the updates."""
        target, update = self.values.value(s.target), self.values.value(s.update)
        out = self.arrays.allocate(shape, s.update.dtype.numpy)
        outer = [a.size for a in self.kernel.outer]
        steps = strides_of(outer)
        row = s.row.strides
        assert f.prim.identity is not None
        full = [a.size for a in self.arrays.axes]
        axis_of_row = [k for k, a in enumerate(self.arrays.axes) if a.name in row]
        for k in axis_of_row:
            full[k] = 1
        others = [
            f"{self.arrays.variable(k)} * {steps[k]}"
            for k in range(len(outer))
            if k not in axis_of_row and outer[k] > 1
        ]
        base, flat = self.arrays.fresh("x"), self.arrays.fresh("p")
        self.arrays.setup.append(f"{base} = np.asarray({' + '.join([*others, '0'])})")
        self.arrays.setup.append(f"{flat} = {out}.reshape(-1)")
        step = min((steps[k] for k in axis_of_row), default=1)
        length = math.prod([outer[k] for k in axis_of_row])
        at = f"np.clip({target}, 0, {length - 1}).astype('int64') * {step} + {base}"
        self.arrays.lines += [
            f"{flat}[...] = {text_of(f.prim.identity)}",
            f"np.{PRIMITIVES[f.prim.combine].array}.at({flat}, np.broadcast_to({at}, {tuple(full)}).reshape(-1), "
            f"np.broadcast_to({update}, {tuple(full)}).reshape(-1))",
        ]
        self.values.release(s.target, s.update)
        return out

    def store(self, s: Store) -> tuple[str, str] | None:
        """Compute directly into memory if that is safe; otherwise return (target, value) to copy at the end."""
        if not s.index.linear:
            return self.scattered(s), self.kept(s.value)
        target, slot = self.arrays.view(s.slot, s.index), self.kernel.slots[s.slot]
        direct = s.value.op == "map" and s.value not in self.values.names and self.values.uses[s.value] == 1
        if (
            direct
            and slot.dtype.name == "f32"
            and slot.replaces < 0
            and self.values.shape(s.value) == self.arrays.shapes[target]
        ):
            self.values.value(s.value, target)
            return None
        return f"{target}[...]", self.kept(s.value)

    def kept(self, v: Value) -> str:
        """Return a value to be stored last, as a copy if later writes would change a view of it."""
        name = self.values.value(v)
        if v.op != "load" or not self.overwritten(v.arg[0]):
            return name
        copied = self.arrays.allocate(self.values.shape(v), v.dtype.numpy)
        self.arrays.lines.append(f"np.copyto({copied}, {name})")
        return copied

    def scattered(self, s: Store) -> str:
        """Return the target of a store whose index is not linear: a table of offsets."""
        array, offset = self.arrays.memory(s.slot)
        places = self.arrays.fresh("x")
        self.arrays.setup.append(f"{places} = {self.arrays.table(s.index)} + {offset}")
        dtype = self.kernel.slots[s.slot].dtype.name
        return f"{array}.view('uint32')[{places}]" if dtype == "u32" else f"{array}[{places}]"

    def overwritten(self, slot: int) -> bool:
        """Return whether the kernel writes the memory that it reads through `slot`."""
        return any(s.replaces == slot for s in self.kernel.slots)
