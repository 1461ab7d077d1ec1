"""Find the memory layout of the operands of a product.

BLAS, and the products of c_product.py, read some operands without a copy. Some others have each element at the
sum of an offset for k and an offset for the row or column.

Windows of an image read an element at i * stride + k * dilation. The image and the zeros around it are written once (or
are in memory already), not once for every window. The rule looks at indices only: two axes that always occur together,
in one proportion, are one coordinate.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from tracegrad.dtypes import f32, strides_of
from tracegrad.kernels.axes import Scaled
from tracegrad.kernels.expr import Dynamic, Guard, Index, Quotient, Value, atoms_of, indices_of, variables_of, walk
from tracegrad.kernels.form import Axis, Kernel
from tracegrad.tuning import LANES, LYING


class Lay(NamedTuple):
    """The offsets of an axis: point t is at (t * by // of) * step + (t * by % of) * other."""

    size: int
    step: int
    by: int = 1
    of: int = 1
    other: int = 0


class Coordinate(NamedTuple):
    """Axes of a value that always occur in one sum: first * step, and each other axis times its number."""

    first: Axis
    step: int
    others: Mapping[Axis, int]

    @property
    def extent(self) -> int:
        """The number of values of the coordinate."""
        return 1 + sum((a.size - 1) * c for a, c in {self.first: self.step, **self.others}.items())


@dataclass(frozen=True, slots=True)
class Gathered:
    """The elements of an operand: of a slot in place if `copy` is None; else of a copy that is written first.

    copy:  the axes of the copy and its value.
    first: the element that all offsets are counted from.
    lays:  name of an axis -> its offsets; the batch's axes too.
    """

    slot: int
    first: int
    lays: Mapping[str, Lay]
    copy: tuple[tuple[Axis, ...], Value] | None


class Operand(NamedTuple):
    """One side of a product: its value, and the axes of its batch, rows and columns."""

    value: Value
    batch: Sequence[Axis]
    rows: Sequence[Axis]
    columns: Sequence[Axis]


def gathered(kernel: Kernel, operand: Operand) -> Gathered | None:
    """Return the layout of an operand; None if its indices are not sums of fixed axes, or if packing is as good."""
    v, batch, rows, columns = operand
    axes = [a for a in (*batch, *rows, *columns) if a.size != 1]
    indices = [i for x in walk([v]) for i in indices_of(x)]
    atoms = [a for i in indices for a in atoms_of(i)]
    if any(isinstance(a, Dynamic) for a in atoms) or any(x.op == "local" for x in walk([v])):
        return None
    if not all(a.fixed or a.name == kernel.inner[0].name for a in (*rows, *columns)):  # else tables do not fit
        return None
    divided = [a.index for a in atoms if isinstance(a, Quotient)]
    coordinates = coordinates_of([i.strides for i in (*indices, *divided)], rows, columns)
    if v.op == "load" and kernel.loaded(v) is f32 and indices[0].linear and all(p.step == 1 for p in coordinates):
        steps = indices[0].strides
        neighbours = any(steps.get(a.name) == 1 for a in (*rows, *columns))
        lays = {a.name: Lay(int(a.size), steps.get(a.name, 0)) for a in axes}
        return Gathered(v.arg[0], v.arg[1].const, lays, None) if neighbours else None
    return _copied(v, coordinates, axes, batch) if coordinates else None


def coordinates_of(
    terms: Sequence[Mapping[str, int]], rows: Sequence[Axis], columns: Sequence[Axis]
) -> list[Coordinate]:
    """Return coordinates, each of an axis of the rows and one of the columns; an axis is in at most one coordinate.

    A coordinate of step 1 can have more axes.
    """
    found: list[Coordinate] = []
    taken: set[str] = set()
    for x in (*columns, *rows):
        for y in rows if x in columns else columns:
            if {x.name, y.name} & taken or min(x.size, y.size) == 1 or x.size < y.size or not (x.fixed and y.fixed):
                continue
            times = _together(terms, x.name, y.name)
            one = times and Coordinate(x, times[0], {y: times[1]})
            if one and one.extent < x.size * y.size:  # else no element is shared
                found.append(one)
                taken |= {x.name, y.name}
    for i, p in enumerate(found):
        if p.step == 1:
            found[i] = p = _widened(p, terms, [a for a in (*columns, *rows) if a.name not in taken and a.fixed])
            taken |= {a.name for a in p.others}
    return found


def _widened(p: Coordinate, terms: Sequence[Mapping[str, int]], axes: Sequence[Axis]) -> Coordinate:
    """Return a coordinate of step 1, extended by the axes that always occur with it and leave no gaps."""
    found = [(a, c) for a in axes if (c := _together(terms, p.first.name, a.name)) is not None]
    for a, (step, apart) in sorted(found, key=lambda one: one[1]):
        if step == 1 and apart <= p.extent:  # else values in between have no reader
            p = p._replace(others={**p.others, a: apart})
    return p


def _together(terms: Sequence[Mapping[str, int]], x: str, y: str) -> tuple[int, int] | None:
    """Return the proportion of two variables in lowest terms; None if it varies or an index has just one of them."""
    both = [(t.get(x, 0), t.get(y, 0)) for t in terms if x in t or y in t]
    if any(a <= 0 or b <= 0 for a, b in both):
        return None
    found = {(a // math.gcd(a, b), b // math.gcd(a, b)) for a, b in both}
    return found.pop() if len(found) == 1 else None


def _copied(v: Value, coordinates: Sequence[Coordinate], axes: Sequence[Axis], batch: Sequence[Axis]) -> Gathered:
    """Return a copy, with axes in memory order: a coordinate becomes its remainder and its quotient by the step."""
    space = next(i.space for x in walk([v]) for i in indices_of(x))
    load = next((x.arg[1].strides for x in walk([v]) if x.op == "load"), dict[str, int]())
    varies = variables_of(v)
    within = {a.name for p in coordinates for a in (p.first, *p.others)}
    far = {a: load.get(a.name, 0) for a in axes if a.name in varies and a.name not in within}
    apart: list[tuple[Axis, Axis]] = []
    replaced: dict[str, tuple[Index, int] | None] = {}
    guards: list[Guard | bool] = []
    for p in coordinates:
        name = f"{p.first.name}_{p.step}_{p.extent}"
        left, rest = Axis(f"r{name}", min(p.step, p.extent)), Axis(f"u{name}", -(-p.extent // p.step))
        apart.append((left, rest))
        far |= {left: 2**40, rest: load.get(p.first.name, 0)}
        u = space.var(rest.name, rest.size) * p.step + space.var(left.name, left.size)
        replaced |= {p.first.name: (u, p.step), **{a.name: None for a in p.others}}
        guards.append(space.guard(u, 0, p.extent, 1))
    inside = sorted([a for a in far if a not in batch], key=lambda a: -far[a])
    order = [*(a for a in batch if a in far), *inside]
    strides = dict(zip([a.name for a in order], strides_of([int(a.size) for a in order])))
    lays = {a.name: Lay(int(a.size), strides.get(a.name, 0)) for a in axes}
    for p, (left, rest) in zip(coordinates, apart):
        step = strides[rest.name]
        lays[p.first.name] = Lay(p.first.size, step)
        lays |= {a.name: Lay(a.size, step, c, p.step, strides[left.name]) for a, c in p.others.items()}
    value = space.inside([g for g in guards if isinstance(g, Guard)], Scaled(space, replaced).value(v))
    return Gathered(-1, 0, lays, (tuple(order), value))


def blas_ready(
    groups: Sequence[Sequence[Axis]], strides: Mapping[str, int]
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return sizes and strides of a stack of matrices, an axis for each group; None if BLAS does not accept it.

    One axis of the matrices must be contiguous, and neither may repeat an element.
    """
    folded = [f for f in (collapse(group, strides) for group in groups) if f is not None]
    if len(folded) < len(groups):
        return None
    (m, step_m), (n, step_n) = folded[-2:]
    if (m > 1 and step_m == 0) or (n > 1 and step_n == 0) or not (step_n == 1 or n == 1 or step_m == 1 or m == 1):
        return None
    sizes, steps = zip(*folded)
    return sizes, steps


def collapse(axes: Sequence[Axis], strides: Mapping[str, int]) -> tuple[int, int] | None:
    """Return size and stride of several axes as one axis; None if their strides do not fit."""
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


def neighbours_of(lays: Sequence[Lay]) -> int:
    """Return how many points of some axes, the last fastest, are neighbours in memory."""
    run = 1
    for x in reversed([x for x in lays if x.size > 1]):
        if x.of > 1 or x.by * x.step != run:
            break
        run *= x.size
    return run


def reach(lays: Sequence[Lay]) -> int:
    """Return how many elements some axes span in memory."""
    return 1 + sum((x.size - 1) * x.by // x.of * x.step + (x.of - 1) * x.other for x in lays)


def span(lays: Sequence[Lay]) -> int | None:
    """Return how many elements columns span in memory; None if reading them by runs of neighbours is as fast."""
    axes = [(x.size, x.by * x.step) for x in lays if x.size > 1]
    nested = all(step >= n * below for (_, step), (n, below) in pairwise([*axes, (1, 1)]))
    if not nested or any(x.of > 1 for x in lays):
        return None
    columns, reach, run = math.prod(n for n, _ in axes), 1 + sum((n - 1) * step for n, step in axes), 1
    for n, step in reversed(axes):
        run *= n if step == run else 1  # neighbours in memory
    vectors = columns // run * -(-run // LANES)
    return reach if reach <= LANES * vectors and columns < LYING * LANES * vectors else None


def in_memory_order(axes: Sequence[Axis], lays: Sequence[Lay]) -> tuple[Axis, ...] | None:
    """Return axes by descending step, so that neighbours in memory adjoin; None if the last or no axis has step 1."""
    steps = {a.name: lay.step if lay.of == 1 else math.inf for a, lay in zip(axes, lays) if a.size > 1}
    last = next((steps[a.name] for a in reversed(axes) if a.size > 1), 1)
    if last == 1 or 1 not in steps.values():
        return None
    return tuple(sorted(axes, key=lambda a: -steps.get(a.name, math.inf)))
