"""The arrays of a NumPy kernel: views of memory, index tables, masks and scratch, all made once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from tracegrad.kernels.expr import Index, Quotient, Var, atoms_of
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
        k = self.first + slot
        return f"memory[{self.binding_of[k]}]", f"at[{k}]"

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
        """Return a static index over all its points, computed once."""
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
        """Return an i32 view of an array made in the setup."""
        if name not in self._int_views:
            self._int_views[name] = self.fresh("b")
            where = self.setup if name in self.scratch_of or name.startswith(("m", "x")) else self.lines
            where.append(f"{self._int_views[name]} = {name}.view('int32')")
        return self._int_views[name]
