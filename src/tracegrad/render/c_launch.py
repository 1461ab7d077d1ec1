"""A launch as calls: C functions for values computed point by point, and the library's own functions for products.

A kernel with a product becomes up to four steps: a function for each operand that cannot be read in place,
the product, and a function that uses the results. The functions for products are in c_product.py and c_gathered.py.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace

from tracegrad import tuning
from tracegrad.dtypes import DType, f32, strides_of
from tracegrad.kernel_source import BoundLaunch
from tracegrad.kernels.axes import unroll
from tracegrad.kernels.expr import Index, Value, variables_of, walk
from tracegrad.kernels.form import SIZE, Axis, Extent, Fold, Kernel, Product, Slot, Store, flat_index, points
from tracegrad.render.c_ends import ended_axis, plain, unmasked, without_ends
from tracegrad.render.c_orders import OrderedFunction, running, scatter_loops
from tracegrad.render.c_product import limit_bits
from tracegrad.render.c_steps import (
    CSource,
    Ended,
    FunctionStep,
    GatheredStep,
    Place,
    ProductStep,
    RunSize,
    Scratch,
    Spread,
    Step,
    View,
)
from tracegrad.render.c_tiles import paired, side_by_side
from tracegrad.render.emit import Statement
from tracegrad.render.gathered import Lay, Operand, blas_ready, gathered, in_memory_order, neighbours_of, reach, span

NAME = "NAME"  # a placeholder for a function's name, until the text is known


def render_c(launch: BoundLaunch) -> CSource:
    """Return the C functions of a launch, and its steps."""
    steps: list[Step] = []
    functions: dict[str, str] = {}
    for x in launch.kernels:
        kernel = _folding(x.kernel)
        f = OrderedFunction(kernel, {})
        whole = any(found is not None for found in (running(kernel), paired(f), side_by_side(f)))
        writer = _Writer(kernel if whole else unroll(kernel, tuning.C_UNROLLED_ROWS), x.first)
        writer.write()
        steps += writer.steps
        functions |= writer.functions
    return CSource(tuple(functions.values()), tuple(steps))


def _folding(kernel: Kernel) -> Kernel:
    """Return the kernel with products that are not worth a call as ordinary folds.

    If an operand is one row or one column, a fold reads the other operand just as fast in place.
    """

    def plain_fold(s: Fold | Store) -> Fold | Store:
        called = not isinstance(s, Fold) or s.product is None or _is_called(kernel, s.product)
        return s if called else replace(s, product=None)

    return replace(kernel, body=tuple(map(plain_fold, kernel.body)))


def _is_called(kernel: Kernel, p: Product) -> bool:
    """Return whether a product is worth a call."""
    matrices = min(points(p.m), points(p.n)) > 1
    return kernel.length > tuning.FEW_PRODUCTS and (matrices or _slides(kernel, p))


def _slides(kernel: Kernel, p: Product) -> bool:
    """Return whether one row is multiplied by contiguous columns that overlap in memory."""
    right = Operand(p.b, p.batch, kernel.inner, p.n)
    if points(p.m) > 1 or points(p.n) < tuning.LANES or _matrix(kernel, right) is not None:
        return False
    found = gathered(kernel, right)
    if found is None:
        return False
    lays = [found.lays.get(a.name, Lay(1, 0)) for a in p.n]
    return any(x.step == 1 for x in lays if x.size >= tuning.FEW_LANES) or span(lays) is not None


def _matrix(kernel: Kernel, operand: Operand) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    """Return the sizes and steps of an operand in place, if its strides allow this; else None."""
    v, batch, *matrix_axes = operand
    if v.op != "load" or kernel.loaded(v) is not f32 or not v.arg[1].linear:
        return None
    return blas_ready([*([a] for a in batch), *matrix_axes], v.arg[1].strides)


class _Writer:
    """Writes the steps of one kernel."""

    def __init__(self, kernel: Kernel, first: int) -> None:
        self.kernel, self.first = kernel, first
        self.steps: list[Step] = []
        self.functions: dict[str, str] = {}
        self.scratch: list[Slot] = []  # slots after the kernel's own
        self.flat = flat_index(kernel, kernel.outer)

    def write(self) -> None:
        """Write all steps of the kernel."""
        loaded: dict[str, tuple[int, Index]] = {}
        for f in self.kernel.folds:
            if f.scatter is not None:
                slot = self.target(f.local, f.scatter.update.dtype)
                if any(slot == other for other, _ in loaded.values()):
                    slot = self.allocate(self.kernel.rows, f.scatter.update.dtype)
                function = OrderedFunction(self.extended(), {})
                self.call(function, scatter_loops(function, f, slot))
                loaded[f.local] = slot, self.flat
            elif f.product is not None:
                loaded[f.local] = self.product(f, f.product)
        rest = [s for s in self.kernel.body if not (isinstance(s, Fold) and s.local in loaded)]
        rest = [s for s in rest if not self.in_place(s, loaded)]
        if rest:
            function = OrderedFunction(replace(self.extended(), body=tuple(rest)), loaded)
            self.call(function, function.body())

    def in_place(self, s: Fold | Store, loaded: dict[str, tuple[int, Index]]) -> bool:
        """Return whether a product or scatter has already written what `s` would store."""
        return isinstance(s, Store) and s.value.op == "local" and loaded.get(s.value.arg) == (s.slot, s.index)

    def allocate(self, size: int, dtype: DType = f32) -> int:
        """Return a new slot of scratch memory."""
        self.scratch.append(Slot(dtype, int(size), True))
        return len(self.kernel.slots) + len(self.scratch) - 1

    def extended(self) -> Kernel:
        """Return the kernel with the slots of scratch memory added."""
        return replace(self.kernel, slots=(*self.kernel.slots, *self.scratch))

    def place(self, slot: int) -> Place:
        """Return the place of a slot."""
        number = slot - len(self.kernel.slots)
        if number < 0:
            return self.first + slot
        return Scratch(number, self.scratch[number].size, self.scratch[number].dtype.numpy)

    def call(self, function: OrderedFunction, lines: Sequence[Statement]) -> None:
        """Add a step that calls a function of these lines."""
        text = function.text(NAME, lines)
        name = "k" + hashlib.sha256(text.encode()).hexdigest()[:20]
        self.functions[name] = text.replace(NAME, name)
        slots = range(len(function.kernel.slots))
        size = [RunSize()] if SIZE in text else []
        self.steps.append(FunctionStep(name, function.parts, (*map(self.place, slots), *size)))

    def product(self, f: Fold, p: Product) -> tuple[int, Index]:
        """Add the step of a product; return the slot of the result, and the index of a point there."""
        inner = self.kernel.inner
        ends = tuple([self.end(axes, several=axes is not p.n and not p.limits) for axes in (p.m, p.n, inner)])
        if ends[2]:
            k = ended_axis(inner)
            p = replace(p, a=unmasked(p.a, k), b=unmasked(p.b, k))
        whole = without_ends(p)
        right = Operand(whole.b, whole.batch, plain(inner), whole.n)
        inner = plain(inner, but=ended_axis(inner) if ends[2] else None)
        left, ended = Operand(p.a, p.batch, p.m, inner), Operand(p.b, p.batch, inner, p.n)
        # views in place if their strides allow this, otherwise packed copies
        a, b = self.as_it_lies(left), self.as_it_lies(ended)
        small = self.small(p, a, b) if a and b and not p.limits and not ends[2] else None
        if small is not None:
            out = self.target(f.local)
            self.steps.append(GatheredStep(*small, self.result(out, p), points(inner), stacked=True))
            return out, self.flat
        spread = self.spread(right) if b is None and not p.limits else None
        if spread is not None:
            return self.gathered(f, whole, spread, ends[1] and ends[1].size, ends[2])
        out = self.target(f.local)
        a, b = a or self.packed(left), b or self.packed(ended)
        self.steps.append(ProductStep(a, b, self.result(out, p), limit_bits(p.limits), ends))
        return out, self.flat

    def end(self, axes: Sequence[Axis], several: bool) -> Ended | None:
        """Return how many points along one side of a product count, as in `ProductStep`; None if all do."""
        a = ended_axis(axes)
        behind = axes[axes.index(a) + 1 :] if a is not None else ()
        alone = sum(x.size > 1 for x in axes) == 1
        if a is None or not (alone or several) or not all(x.fixed for x in behind):
            return None
        times = int(points(behind))
        return Ended(self.view(a.end, 0, (1,), (1,)), int(a.size) * times, times)

    def result(self, out: int, p: Product) -> View:
        """Return the view of a product's result in a slot."""
        sizes = (*(x.size for x in p.batch), points(p.m), points(p.n))
        return self.view(out, 0, sizes, strides_of([int(n) for n in sizes]))

    def gathered(self, f: Fold, p: Product, b: Spread, end: View | None, terms: Ended | None) -> tuple[int, Index]:
        """Add a step of a product whose right operand is spread, with axes ordered so that neighbours in memory adjoin.

        Another order of k needs a packed left operand. Another order of columns transposes the result.
        end, terms: as in `GatheredStep`.
        """
        inner = self.kernel.inner
        k, n = in_memory_order(inner, b.rows), in_memory_order(p.n, b.columns)
        if k is not None and (terms or not (inner[0].fixed or k[0].name == inner[0].name)):
            k = None  # terms that count must stay the first ones
        many = math.prod(int(a.size) for a in (*p.batch, *p.n))
        if n is not None and points(inner) < points(p.m):
            n = None  # transposing the result would cost more than it saves
        if n is not None or points(p.m) > many:
            k = None  # packing the left operand would cost more than it saves
        if k is not None:
            b = b._replace(rows=tuple([b.rows[inner.index(a)] for a in k]))
        a = self.rows_of(p, k)
        if n is not None:
            b = b._replace(columns=tuple([b.columns[p.n.index(a)] for a in n]))
        apart = max([x.by * x.step for x in b.columns if x.size > 1][-1:], default=1)  # of neighbouring columns
        few = points(p.m) * apart**2 <= tuning.SPANNED_ROWS
        width = span(b.columns) if few else None
        side_by_side = self.stacks(p, b)
        if width is not None and not side_by_side:
            return self.spanned(p, a, b, n or p.n, width, terms)
        if n is None:
            out, at = self.target(f.local), self.flat
        else:
            out, at = self.allocate(self.kernel.rows), flat_index(self.kernel, (*p.batch, *p.m, *n))
        self.steps.append(GatheredStep(a, b, self.result(out, p), points(inner), side_by_side, end, terms))
        return out, at

    def stacks(self, p: Product, b: Spread) -> bool:
        """Return whether each vector should hold one element of several products, not several elements of one product.

        This is faster if the product has few rows. Vectors along a right operand that overlaps itself would cross cache
        lines.
        """
        m, n, k = points(p.m), points(p.n), points(self.kernel.inner)
        near = max(n, reach([*b.rows, *b.columns])) <= tuning.STACKED
        fixed = not (isinstance(m, Extent) or isinstance(k, Extent))
        small = fixed and m <= tuning.STACKED_ROWS and k <= tuning.STACKED_TERMS and near
        return small and fills(p) and neighbours_of(b.columns) >= tuning.STACKED_RUN and n <= tuning.STACKED_COLUMNS * k

    def small(self, p: Product, a: View, b: View) -> tuple[Spread, Spread] | None:
        """Return spread operands of many small products, where a call for each would cost too much; else None."""
        sides = [points(x) for x in (p.m, p.n, self.kernel.inner)]
        large = any(isinstance(x, Extent) or x > tuning.STACKED_SIDE for x in sides)
        if large or not fills(p) or min(b.steps[-2:]) < 0:
            return None
        spread = spread_of(b)
        return (spread_of(a), spread) if reach([*spread.rows, *spread.columns]) <= 2 * math.prod(sides[1:]) else None

    def spanned(
        self, p: Product, a: Spread, b: Spread, n: Sequence[Axis], width: int, terms: Ended | None
    ) -> tuple[int, Index]:
        """Add a step that computes whole vectors: the columns, and the elements between them, which nothing reads."""
        sizes = [*(x.size for x in p.batch), points(p.m), width]
        whole = [int(n) for n in sizes]
        slot = self.allocate(math.prod(whole))
        out = self.view(slot, 0, sizes, strides_of(whole))
        spanning = b._replace(columns=(Lay(width, 1),))
        self.steps.append(GatheredStep(a, spanning, out, points(self.kernel.inner), terms=terms))
        at = flat_index(self.kernel, (*p.batch, *p.m)) * width
        for x, lay in zip(n, b.columns):
            at = at + at.space.var(x.name, int(x.size)) * (lay.by * lay.step)
        return slot, at

    def spread(self, operand: Operand) -> Spread | None:
        """Return an operand in place, or a copy that has shared elements once; None if `gathered` finds no layout."""
        found = gathered(self.kernel, operand)
        if found is None:
            return None
        slot = found.slot
        if found.copy is not None:
            order, value = found.copy
            slot = self.allocate(points(order))
            self.written(slot, order, value)
        lays = [[found.lays.get(a.name, Lay(1, 0)) for a in group] for group in operand[1:]]
        steps = tuple([lay.step for lay in lays[0]])
        return Spread(self.place(slot), found.first, steps, tuple(lays[1]), tuple(lays[2]))

    def rows_of(self, p: Product, order: Sequence[Axis] | None = None) -> Spread:
        """Return the left operand of a gathered product, for k in this order."""
        inner = plain(order or self.kernel.inner)
        left = Operand(p.a, p.batch, p.m, inner)
        found = self.as_it_lies(left)
        if found is None and order is None and len(p.m) == 1:
            lying = gathered(self.kernel, left)
            spread = self.spread(left) if lying is not None and lying.copy is None else None
            if spread is not None:
                return spread
        turned = found is not None and found.steps[-2] == 1 and points(inner) * found.steps[-1] <= tuning.IN_PLACE
        if found is None or (found.steps[-1] != 1 and not turned):
            found = self.packed(left, by_rows=True)
        return spread_of(found)

    def target(self, local: str, dtype: DType = f32) -> int:
        """Return the slot of a fold's results: an output of this layout that later steps can overwrite, or scratch."""
        alike = [
            s
            for s in self.kernel.stores
            if s.index is self.flat
            and self.kernel.slots[s.slot].dtype is dtype
            and self.kernel.slots[s.slot].replaces < 0
        ]
        alike.sort(key=lambda s: not (s.value.op == "local" and s.value.arg == local))
        return alike[0].slot if alike else self.allocate(self.kernel.rows, dtype)

    def view(self, slot: int, first: int, sizes: Sequence[int], steps: Sequence[int]) -> View:
        return View(self.place(slot), first, tuple(sizes), tuple(steps))

    def as_it_lies(self, operand: Operand) -> View | None:
        """Return the operand as a view in place, if its strides allow this; else None."""
        matrix = _matrix(self.kernel, operand)
        return None if matrix is None else self.view(operand[0].arg[0], operand[0].arg[1].const, *matrix)

    def written(self, slot: int, order: Sequence[Axis], v: Value) -> None:
        """Add a step that writes a value for each point of some axes, in this order."""
        store = Store(slot, flat_index(self.kernel, order), v, False)
        function = OrderedFunction(
            replace(self.extended(), outer=tuple(order), inner=(), body=(store,), uniform=False), {}
        )
        self.call(function, function.body())

    def packed(self, operand: Operand, by_rows: bool = False) -> View:
        """Return a copy made by a C function. A matrix that a whole batch shares is packed once.

        The copy is by columns if the axis that is contiguous in memory is one of the rows, unless `by_rows`.
        """
        v, batch, rows, columns = operand
        varies = variables_of(v)
        own = [a for a in batch if a.name in varies]
        last = next(
            (name for x in walk([v]) if x.op == "load" for name, c in x.arg[1].strides.items() if c == 1),
            "",
        )
        turned = last in {a.name for a in rows} and not by_rows
        order = [*own, *columns, *rows] if turned else [*own, *rows, *columns]
        slot = self.allocate(points(order))
        self.written(slot, order, v)
        m, n = points(rows), points(columns)
        strides = dict(zip([a.name for a in own], strides_of([*(int(a.size) for a in own), int(m * n)])))
        sizes = [*(a.size if a in own else 1 for a in batch), m, n]
        steps = [*(strides.get(a.name, 0) for a in batch), *((1, int(m)) if turned else (int(n), 1))]
        return self.view(slot, 0, sizes, steps)


def spread_of(v: View) -> Spread:
    """Return a view as a spread operand."""
    (m, n), (step, along) = v.sizes[-2:], v.steps[-2:]
    return Spread(v.place, v.first, v.steps[:-2], (Lay(int(m), step),), (Lay(int(n), along),))


def fills(p: Product) -> bool:
    """Return whether a stack has enough products to fill vectors that hold one element of each."""
    stack = math.prod(int(a.size) for a in p.batch)
    return tuning.STACKED_FILL * (-(-stack // tuning.LANES) * tuning.LANES) <= stack
