"""Loads behind a mask made of coordinates: guarded by it, so that memory is not read where another value is chosen.

For GPUs, where a row kernel waits for memory only, and a guard costs nothing.
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
    """The same kernel with such loads guarded; itself if there are none, or if it has a product, whose loads are of
    vectors."""
    if any(isinstance(s, Fold) and (s.product or s.scatter) for s in kernel.body):
        return kernel
    space = next(s.index.space for s in kernel.body if isinstance(s, Store))
    masked = _Masked(space, [s.value for s in kernel.body])
    return replace(kernel, body=tuple([replace(s, value=masked.new[s.value]) for s in kernel.body]))


class _Masked:
    """The values of a kernel, each behind the guards that hold wherever any of its readers needs it."""

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
        """What `v` reads, and where. All readers of `v` have been visited."""
        own, sides = self.guards[v], self.sides(v)
        for k, x in enumerate(v.args):
            self.read(x, (*own, sides[k - 1]) if sides and k else own)
        for index in indices_of(v):
            for a in atoms_of(index):
                if isinstance(a, Dynamic):
                    self.read(a.value, ())

    def read(self, x: Value, guards: Guards) -> None:
        """One more reader, which needs `x` only where `guards` hold."""
        before = self.guards.get(x)
        self.guards[x] = guards if before is None else tuple([g for g in before if g in guards])

    def sides(self, v: Value) -> tuple[Guard, Guard] | None:
        """If `v` is a choice by coordinates, the guards of what it chooses from."""
        if v.op != "map" or v.arg[0] != CHOICE or v.args[0].op != "map":
            return None
        if v not in self.known:
            self.known[v] = self.compared(v.args[0])
        return self.known[v]

    def compared(self, mask: Value) -> tuple[Guard, Guard] | None:
        """Where a comparison of coordinates holds, and where it does not."""
        least = {"less_equal": 0, "less": 1}.get(mask.arg[0])
        if least is None or any(x.op not in ("index", "const") or x.dtype is not i32 for x in mask.args):
            return None
        a, b = (x.arg if x.op == "index" else self.space.number(x.arg) for x in mask.args)
        beyond = a - b  # written as views write the guards of what lies side by side: equal ones are one
        first = beyond - beyond.const
        sides = [
            self.space.guard(first, first.lo, 1 - least - beyond.const, 1),
            self.space.guard(beyond, 1 - least, beyond.hi + 1, 1),
        ]
        holds, fails = (g if isinstance(g, Guard) else None for g in sides)
        return (holds, fails) if holds and fails else None

    def made(self, v: Value) -> Value:
        """`v`, made of what its operands became."""
        load = v.args[0] if v.op == "inside" else v
        if load.op == "load":
            own = set(atoms_of(load.arg[1]))
            if any(isinstance(a, Dynamic) for a in own):
                return v
            # An element that is read at many points is read for some of them anyway: once, before any loop.
            along = [g for g in self.guards[v] if own.issuperset(atoms_of(g.index))]
            return self.space.inside((*(v.arg if v is not load else ()), *along), load) if along else v
        args = tuple([self.new[a] for a in v.args])
        return v if args == v.args else self.space.value(v.op, v.dtype, v.arg, args)
