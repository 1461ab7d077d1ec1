"""The least work that a kernel does: floating-point operations, and bytes read from and written to memory.

Every element of memory counts once, however many threads load it. Every value counts once at each point where it is
computed. So the counts assume perfect caches, tiles and common subexpressions. Integer arithmetic (indices, the bits of
random numbers) counts nothing.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tracegrad.kernels.expr import Dynamic, Index, Value, Var, atoms_of, indices_of, walk
from tracegrad.kernels.form import Fold, Kernel, Scatter, Store, points


@dataclass(frozen=True, slots=True)
class Cost:
    """Floating-point operations, and bytes read and written."""

    flops: int = 0
    read: int = 0
    written: int = 0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.read + other.read, self.written + other.written)

    def repeated(self, times: int) -> Cost:
        """Return the cost of running `times` times."""
        return Cost(times * self.flops, times * self.read, times * self.written)

    @property
    def bytes(self) -> int:
        """Bytes read and written."""
        return self.read + self.written

    @property
    def intensity(self) -> float:
        """Floating-point operations per byte."""
        return self.flops / self.bytes if self.bytes else 0.0


def cost_of(kernel: Kernel, sizes: Sequence[int]) -> Cost:
    """Return the cost of one run. sizes: the elements in each slot that is read, in the order of the slots."""
    count = _Counting(kernel)
    for s in kernel.body:
        count.store(s) if isinstance(s, Store) else count.fold(s)
    bytes_of = [s.dtype.itemsize for s in kernel.slots]
    read = sum(bytes_of[slot] * min(sum(parts.values()), sizes[slot]) for slot, parts in count.loads.items())
    written = sum(bytes_of[slot] * n for slot, n in count.stores.items())
    return Cost(count.flops, read, written)


class _Counting:
    """Counts statement by statement; a value that several statements share counts once."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self.sizes = {a.name: a.size for a in (*kernel.outer, *kernel.inner)}
        self.inner = {a.name for a in kernel.inner}
        self.flops = 0
        self.stores: dict[int, int] = {}  # slot -> elements written
        self.loads: dict[int, dict[Index, int]] = {}  # slot -> index -> elements it reaches
        self.axes: dict[Value, frozenset[str]] = {}  # the axes that a value depends on, for all values counted so far

    def store(self, s: Store) -> None:
        computed = [atom.value for atom, _ in s.index.terms if isinstance(atom, Dynamic)]
        self.values([s.value, *computed])
        written = self.everywhere if s.inner else self.results
        self.stores[s.slot] = self.stores.get(s.slot, 0) + written

    def fold(self, f: Fold) -> None:
        k = self.kernel
        if f.scatter is not None:
            self.scatter(f.scatter)
        elif f.product is not None:
            p = f.product
            batch, m, n, length = points(p.batch), points(p.m), points(p.n), points(k.inner)
            self.values([p.a], batch * m * length)
            self.values([p.b], batch * n * length)
            left = [x.left({"m": m, "n": n, "k": length}) for x in p.limits]
            self.flops += 2 * batch * min([m * n * length, *left])
        else:
            self.values([f.value])
            self.flops += (k.length if k.uniform else self.everywhere) * f.value.dtype.is_float

    def scatter(self, s: Scatter) -> None:
        """Count a scatter. Each update is added to one row, so no axis of rows multiplies the work."""
        updates = self.everywhere // self.reach(self.axes_of(s.row))
        self.values([s.target, s.update], updates)
        self.flops += updates * s.update.dtype.is_float

    @property
    def results(self) -> int:
        """The number of outer points whose values have a reader."""
        p = self.kernel.product
        if p is None:
            return self.kernel.rows
        sizes = {"m": points(p.m), "n": points(p.n)}
        return points(p.batch) * min([math.prod(sizes.values()), *(x.left(sizes) for x in p.limits if x.of_results)])

    @property
    def everywhere(self) -> int:
        return self.kernel.rows * self.kernel.length

    def values(self, roots: Iterable[Value], times: int | None = None) -> None:
        """Count all values that `roots` are computed from, each `times`, or at every point of its level."""
        for v in walk(roots):
            if v in self.axes:
                continue
            indices = indices_of(v)
            self.axes[v] = frozenset[str]().union(*map(self.axes.__getitem__, v.args), *map(self.axes_of, indices))
            if v.op == "load":
                slot, index = v.arg
                reached = min(self.reach(self.axes_of(index)), index.hi - index.lo + 1)
                self.loads.setdefault(slot, {})[index] = reached
            elif v.op == "map" and any(x.dtype.is_float for x in (v, *v.args)):
                self.flops += self.points_of(v) if times is None else times

    def points_of(self, v: Value) -> int:
        """Return at how many points a value of a fold or an epilogue is computed."""
        if not self.axes[v] & self.inner:
            return self.kernel.rows
        return self.kernel.length if self.kernel.uniform else self.everywhere

    def axes_of(self, index: Index) -> frozenset[str]:
        """Return the axes that an index depends on, through computed indices too."""
        atoms = list(atoms_of(index))
        direct = {a.name for a in atoms if isinstance(a, Var)}
        return frozenset(direct).union(*(self.axes[a.value] for a in atoms if isinstance(a, Dynamic)))

    def reach(self, axes: Iterable[str]) -> int:
        return math.prod(self.sizes[name] for name in axes)
