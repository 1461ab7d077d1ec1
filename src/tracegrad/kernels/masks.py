"""Guard loads by the mask that selects them, so that a kernel reads no memory where it uses another value.

For GPUs only: a row kernel there waits for memory alone, and a guard costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracegrad.dtypes import i32
from tracegrad.kernels.expr import Dynamic, Guard, Space, Value, atoms_of, indices_of, walk
from tracegrad.kernels.form import Fold, Kernel, Store
from tracegrad.kernels.triangles import CHOICE

Guards = tuple[Guard, ...]


def behind_masks(kernel: Kernel) -> Kernel:
    """Return the same kernel with masked loads guarded, or the kernel itself if there are none.

    A kernel with a product stays as it is, because its loads are of vectors.
    """
    if any(isinstance(s, Fold) and (s.product or s.scatter) for s in kernel.body):
        return kernel
    space = next(s.index.space for s in kernel.body if isinstance(s, Store))
    masked = _Masked(space, [s.value for s in kernel.body])
    return replace(kernel, body=tuple([replace(s, value=masked.new[s.value]) for s in kernel.body]))


class _Masked:
    """The values of a kernel, each with the guards that hold wherever a reader needs the value."""

    def __init__(self, space: Space, roots: Sequence[Value]) -> None:
        self.space = space
        self.known: dict[Value, tuple[Guard, Guard] | None] = {}
        self.guards: dict[Value, Guards] = dict.fromkeys(roots, ())
        order = list(walk(roots))
        for v in reversed(order):
            self.visit(v)
        self.new: dict[Value, Value] = {}
        for v in order:
            self.new[v] = self.made(v)

    def visit(self, v: Value) -> None:
        """Record what `v` reads, and under which guards. All readers of `v` have been visited."""
        own, sides = self.guards[v], self.sides(v)
        for k, x in enumerate(v.args):
            self.read(x, (*own, sides[k - 1]) if sides and k else own)
        for index in indices_of(v):
            for a in atoms_of(index):
                if isinstance(a, Dynamic):
                    self.read(a.value, ())

    def read(self, x: Value, guards: Guards) -> None:
        """Add a reader that needs `x` only where `guards` hold."""
        before = self.guards.get(x)
        self.guards[x] = guards if before is None else tuple([g for g in before if g in guards])

    def sides(self, v: Value) -> tuple[Guard, Guard] | None:
        """Return the guards of both values that `v` chooses from, if it chooses by coordinates."""
        if v.op != "map" or v.arg[0] != CHOICE or v.args[0].op != "map":
            return None
        if v not in self.known:
            self.known[v] = self.compared(v.args[0])
        return self.known[v]

    def compared(self, mask: Value) -> tuple[Guard, Guard] | None:
        """Return the guards under which a comparison of coordinates holds, and fails."""
        least = {"less_equal": 0, "less": 1}.get(mask.arg[0])
        if least is None or any(x.op not in ("index", "const") or x.dtype is not i32 for x in mask.args):
            return None
        a, b = (x.arg if x.op == "index" else self.space.number(x.arg) for x in mask.args)
        beyond = a - b  # in the form in which views write guards, so that equal guards are one object
        first = beyond - beyond.const
        sides = [
            self.space.guard(first, first.lo, 1 - least - beyond.const, 1),
            self.space.guard(beyond, 1 - least, beyond.hi + 1, 1),
        ]
        holds, fails = (g if isinstance(g, Guard) else None for g in sides)
        return (holds, fails) if holds and fails else None

    def made(self, v: Value) -> Value:
        """Return `v`, rebuilt from its rebuilt operands."""
        load = v.args[0] if v.op == "inside" else v
        if load.op == "load":
            own = set(atoms_of(load.arg[1]))
            if any(isinstance(a, Dynamic) for a in own):
                return v
            # Use only guards along the load's own axes: an element that many points read is loaded once, before any
            # loop.
            along = [g for g in self.guards[v] if own.issuperset(atoms_of(g.index))]
            return self.space.inside((*(v.arg if v is not load else ()), *along), load) if along else v
        args = tuple([self.new[a] for a in v.args])
        return v if args == v.args else self.space.value(v.op, v.dtype, v.arg, args)
