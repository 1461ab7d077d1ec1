"""The axes of a kernel: taken from the value it computes, then split and merged until its indices are simple.

An array language such as NumPy pays for a call per operation and a loop per innermost row. Rows of two or three
elements, as in pooling windows, cost ten times as much in overhead as in arithmetic. So `unroll` replaces the loop over
a short axis by one expression for each point.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import replace

from tracegrad.dtypes import DType
from tracegrad.ir.graph import postorder
from tracegrad.kernels.expr import Dynamic, Guard, Index, Quotient, Space, Value, Var, indices_of, quotients_of, walk
from tracegrad.kernels.form import Axis, Fold, Kernel, Statement, Store, points
from tracegrad.kernels.fuse import Cluster
from tracegrad.kernels.tails import End
from tracegrad.tuning import SHORT_AXIS, UNROLLED, UNROLLED_ROWS, WHOLE_FOLD, WORTH_UNROLLING

# The axes of a kernel in groups: batch, m, n and k for products and scatters; outer and inner for all others. A group
# lists its natural axes, and for each of them the sizes of the axes into which it is split.
Domain = tuple[tuple[str, tuple[tuple[int, ...], ...]], ...]


def natural_domain(c: Cluster) -> Domain:
    """Return one axis per dimension over which the cluster's main node computes or folds."""
    t = c.main
    groups: tuple[tuple[str, Sequence[int]], ...]
    if c.kind == "product":
        k = t.inputs[0].shape[-1:]
        groups = ("b", t.shape[:-2]), ("m", t.shape[-2:-1]), ("n", t.shape[-1:]), ("k", k)
    elif c.kind == "scatter":
        a, k = t.axis, t.inputs[0].shape[t.axis]
        groups = ("b", t.shape[:a]), ("m", t.shape[a : a + 1]), ("n", t.shape[a + 1 :]), ("k", (k,))
    elif c.kind == "points":
        folded = next((s.inputs[0].shape for s in c.scalars if s.prim.family == "fold"), ())
        groups = ("i", t.shape), ("j", folded)
    elif c.kind == "rows":
        shape = t.inputs[0].shape
        first = min((d for d in t.axes if shape[d] > 1), default=len(shape))
        groups = ("i", shape[:first]), ("j", shape[first:])
    else:
        shape = t.inputs[0].shape
        groups = ("i", [n for d, n in enumerate(shape) if d not in t.axes]), ("j", [shape[d] for d in sorted(t.axes)])
    return tuple([(group, tuple([(n,) for n in sizes])) for group, sizes in groups])


def all_indices(kernel: Kernel) -> list[Index]:
    """Return every index that the kernel uses."""
    stored = [s.index for s in kernel.stores]
    return [*stored, *(index for v in walk([s.value for s in kernel.body]) for index in indices_of(v))]


def split_axes(kernel: Kernel, indices: Sequence[Index], domain: Domain) -> Domain | None:
    """Return the domain with some axes split, or None if no axis can be split. indices: all that the kernel uses.

    An axis is split if an index divides its variable, alone or plus a constant, by a divisor of the axis's size.
    """
    sizes = {a.name: a.size for a in (*kernel.outer, *kernel.inner)}
    cuts: dict[str, int] = {}
    for q in quotients_of(indices):
        if len(q.index.terms) == 1:
            ((var, c),) = q.index.terms
            if c == 1 and isinstance(var, Var) and sizes[var.name] % q.d == 0 and sizes[var.name] > q.d > 1:
                cuts[var.name] = min(q.d, cuts.get(var.name, q.d))
    if not cuts:
        return None

    def cut(group: str, factors: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        found = (cuts.get(f"{group}{k}") for k in itertools.count())
        parts = [[(n,) if d is None else (n // d, d) for n, d in zip(natural, found)] for natural in factors]
        return tuple([tuple(itertools.chain(*each)) for each in parts])

    return tuple((group, cut(group, factors)) for group, factors in domain)


def cut_axes(domain: Domain, ends: Sequence[End]) -> Domain:
    """Return the domain with axes cut where loops can end, so that an axis has the size of a call."""

    def cut(group: str, factors: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
        sizes = tuple([math.prod(natural) for natural in factors])
        found = {at[0]: (at[1], x.tail.size) for x in ends if x.group == group and (at := x.tail.axis(sizes))}
        parts = [(n // (size * step), size, step) for d, n in enumerate(sizes) for step, size in [found.get(d, (1, n))]]
        return tuple([tuple([n for n in each if n > 1]) or (1,) for each in parts])

    return tuple([(group, cut(group, factors)) for group, factors in domain])


def ended_axes(domain: Domain, ends: Sequence[End]) -> dict[str, int]:
    """Return the axes whose loops can end, by name, and the serials of the inputs that say where."""
    known = {(x.group, x.tail.step, x.tail.size): x.tail.end for x in ends}
    found: dict[str, int] = {}
    for group, factors in domain:
        flat = [n for natural in factors for n in natural]
        places = [(f"{group}{k}", known.get((group, math.prod(flat[k + 1 :]), n))) for k, n in enumerate(flat)]
        found |= {name: end for name, end in places if end is not None}
    return found


def merge_axes(indices: Sequence[Index], domain: Domain, apart: Container[str] = ()) -> Domain | None:
    """Return the domain with fewer axes, or None if nothing changes.

    Neighbouring axes are merged if every index treats them as one, except those `apart`. Axes of size 1 are dropped.
    """
    coefficients = [x.strides for x in (*indices, *(q.index for q in quotients_of(indices)))]
    changed = False
    groups: list[tuple[str, tuple[tuple[int, ...], ...]]] = []
    for group, factors in domain:
        flat = [n for natural in factors for n in natural]
        merged: list[int] = []
        names: list[str] = []
        for k, n in enumerate(flat):
            name = f"{group}{k}"
            if n == 1:
                continue
            # In every index, the coefficient of the last kept axis is n times the coefficient of this axis
            alone = name in apart or (merged and names[-1] in apart)
            if merged and not alone and all(c.get(names[-1], 0) == n * c.get(name, 0) for c in coefficients):
                merged[-1] *= n
                names[-1] = name
            else:
                merged.append(n)
                names.append(name)
        changed = changed or len(merged) < len(flat) > 1
        groups.append((group, (tuple(merged),) if factors else ()))
    return tuple(groups) if changed else None


def unroll(kernel: Kernel, rows: int = 0) -> Kernel:
    """Return the same kernel with its short axes unrolled, or the kernel itself if there are none.

    rows: in languages without a call per operation, the least number of rows for which a short fold is unrolled whole;
          0 for array languages.
    """
    axes = short_axes(kernel, rows)
    if not axes:
        return kernel
    space = Space()
    points = itertools.product(*(map(space.number, range(a.size)) for a in axes))
    copies = [Replaced(space, dict(zip([a.name for a in axes], at))) for at in points]
    left = [tuple(a for a in group if a not in axes) for group in (kernel.outer, kernel.inner)]
    # without rows, all values are computed before the first store: it can replace what a written-out fold reads
    whole = all(a.size == 1 for a in left[1]) and any(s.replaces >= 0 for s in kernel.slots)
    body: list[Statement] = []
    for s in kernel.body:
        if isinstance(s, Fold):
            body += _folds(s, copies, space, kernel)
        else:
            inner = s.inner or any(a in kernel.outer for a in axes)
            made = [c.store(s) for c in (copies if inner else copies[:1])]
            body += [replace(x, inner=False) for x in made] if whole else made
    return Kernel(left[0], left[1], kernel.slots, tuple(body), kernel.label, kernel.uniform)


def short_axes(kernel: Kernel, rows: int = 0) -> list[Axis]:
    """Return the axes to unroll. rows: as for `unroll`."""
    folds = kernel.folds
    worth = kernel.work >= WORTH_UNROLLING
    if any(f.product or f.scatter for f in folds):
        return []
    inner = [a for a in kernel.inner if a.size > 1]
    many = kernel.rows >= rows if rows else worth and kernel.rows >= UNROLLED_ROWS * kernel.length
    fixed = all(a.fixed for a in inner)
    if folds and kernel.length <= WHOLE_FOLD and many and fixed:
        return inner
    if not worth:
        return []
    candidates = inner if folds else [*kernel.outer, *inner]
    chosen = [a for a in candidates if 1 < a.size <= SHORT_AXIS]
    while points(chosen) > UNROLLED:
        chosen.pop(0)
    return chosen


def _folds(f: Fold, copies: Sequence[Replaced], space: Space, kernel: Kernel) -> list[Statement]:
    """Return a fold for each copy over the axes that are not unrolled; an empty list if all folded axes are unrolled.

    The copies then use the combination of all folds, or of all values, as the value of the local.
    """
    values = [c.value(f.value) for c in copies]
    out: list[Statement] = []
    if kernel.length > len(copies):
        parts: list[Value] = []
        for k, v in enumerate(values):
            out.append(Fold(f"{f.local}_{k}", f.prim, v))
            parts.append(space.value("local", v.dtype, f"{f.local}_{k}"))
        values = parts
    combined = values[0]
    for v in values[1:]:
        combined = space.value("map", v.dtype, (f.prim.combine, ()), (combined, v))
    for c in copies:
        c.locals[f.local] = combined
    return out


class Replaced:
    """Rebuilds the values of a kernel with an index in place of some variables, such as a point of unrolled axes.

    at: if given, maps (slot, index) to the index at which the element is stored.
    """

    def __init__(
        self, space: Space, replaced: Mapping[str, Index], at: Callable[[int, Index], Index] = lambda _, index: index
    ) -> None:
        self.space, self.replaced, self.at = space, replaced, at
        self.locals: dict[str, Value] = {}  # name -> the value in its place
        self._values: dict[Value, Value] = {}

    def store(self, s: Store) -> Store:
        return Store(s.slot, self.at(s.slot, self.index(s.index)), self.value(s.value), s.inner)

    def index(self, x: Index) -> Index:
        out = self.space.number(x.const)
        for atom, c in x.terms:
            out = out + self.atom(atom) * c
        return out

    def atom(self, atom: Var | Quotient | Dynamic) -> Index:
        if isinstance(atom, Var):
            return self.replaced.get(atom.name) or self.space.var(atom.name, atom.size)
        if isinstance(atom, Quotient):
            inner = self.index(atom.index)
            return inner % atom.d if atom.mod else inner // atom.d
        return self.space.dynamic(self.value(atom.value), atom.hi + 1)

    def value(self, root: Value) -> Value:
        """Return `root`, rebuilt."""
        made = self._values
        if root not in made:
            for v in postorder([root], lambda v: [a for a in v.args if a not in made]):
                made[v] = self.rebuilt(v, tuple([made[a] for a in v.args]))
        return made[root]

    def rebuilt(self, v: Value, args: tuple[Value, ...]) -> Value:
        if v.op == "const":
            return self.space.const(v.arg, v.dtype)
        if v.op == "index":
            return self.space.of_index(self.index(v.arg))
        if v.op == "load":
            return self.space.load(v.arg[0], self.at(v.arg[0], self.index(v.arg[1])), v.dtype)
        if v.op == "local":
            return self.locals.get(v.arg) or self.space.value("local", v.dtype, v.arg)
        if v.op == "inside":
            return self.inside(v.arg, args[0], v.dtype)
        return self.space.value("map", v.dtype, v.arg, args)

    def inside(self, guards: Sequence[Guard], value: Value, dtype: DType) -> Value:
        known = [self.space.guard(self.index(g.index), g.lo, g.hi, g.step) for g in guards]
        if False in known:
            return self.space.const(0, dtype)
        return self.space.inside([g for g in known if isinstance(g, Guard)], value)


class Scaled(Replaced):
    """Values with replaced variables: None drops a variable; (index, d) turns c * variable into (c // d) * index."""

    def __init__(self, space: Space, scaled: Mapping[str, tuple[Index, int] | None]) -> None:
        super().__init__(space, {})
        self.scaled = scaled

    def index(self, x: Index) -> Index:
        out = self.space.number(x.const)
        for atom, c in x.terms:
            new = self.scaled.get(atom.name if isinstance(atom, Var) else "", (self.atom(atom), 1))
            if new is not None:
                out = out + new[0] * (c // new[1])
        return out
