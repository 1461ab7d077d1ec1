"""Evaluate a kernel at some of its points: choose the points, and compute the values that a device must write there.

Outer points run along the first axis, and the row that each point folds along the last. So every value has shape
(points, 1), (1, row) or (points, row). Several trials add a leading axis. Nothing depends on the text of a kernel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache, reduce
from typing import Any, NamedTuple, cast

from tracegrad.arrays import Array, np
from tracegrad.dtypes import nearest_f32
from tracegrad.ir.evaluate import function_of
from tracegrad.ir.nodes import PRIMITIVES, Primitive
from tracegrad.kernels.expr import Atom, Dynamic, Guard, Index, Quotient, Value, Var, atoms_of, walk
from tracegrad.kernels.form import Axis, Fold, Kernel, Product, Store, points
from tracegrad.kernels.triangles import CHOICE
from tracegrad.runtime.repeated import drawn

Name = tuple[int, str]  # of an array: a number and the dtype of its elements
Read = Callable[[int, Array], Array]  # returns elements of a slot, at these indices

WORK = 2**13  # most points of a kernel to compute, including those of folded rows
MOST = 96  # points, however short the rows
EDGE = 8  # points to choose at either end, where vectors, tails and the work of threads end
CANDIDATES = 512  # candidates among which points on both sides of every guard are searched
OF_EACH_SIDE = 3
SIDES = 16  # points at least, if guards have so many sides and rows are long
OF_EACH_END = 6  # points at the end of each axis
OTHERS = 6  # workgroups beside those at ends and guards, where few are to run
AROUND = 8  # the distance of further points in the same workgroup from the first point
# with at most so many values, a comparison can have one outcome by chance; with more, it is one like x < 1e30
FEW = 256


class Written(NamedTuple):
    """The result of one store at the points: `values` in elements `at` of a slot, where `counts`."""

    slot: int
    at: Array
    values: Array
    counts: Array


def chosen(kernel: Kernel, seed: int, group: Callable[[Array], Array] | None = None) -> Array:
    """Choose outer points: all if they are few, else both ends, both sides of every guard, and others.

    group: returns the workgroup of each point. All other points are then in the same workgroups, or in a few more.
    """
    rows = kernel.rows
    most = max(2, min(MOST, WORK // max(1, points(kernel.inner))))
    if rows <= most:
        return np.arange(rows)
    edge = max(1, min(EDGE, most // 4))
    ends = [*range(edge), *range(rows - edge, rows)]
    candidates = np.floor(rows * drawn(seed, CANDIDATES)).astype(np.int64)
    if group is None:
        candidates = np.concatenate([_last(kernel.outer, candidates), candidates])
    sides = _sides(kernel, candidates)
    different = sorted(set(sides.tolist()))  # np.unique imports numpy.ma, which takes 20 ms
    picked = [candidates[sides == side][:OF_EACH_SIDE] for side in different] if len(different) > 1 else []
    if group is not None:
        candidates = _together(kernel, group, np.concatenate([candidates[:OTHERS], ends, *picked]))
    firsts = [p[:1] for p in picked]  # of each side one point at least, even if rows are long
    found = dict.fromkeys(np.concatenate([ends, *firsts, *picked, candidates]).tolist())
    return np.asarray(sorted([*found][: max(most, min(2 * edge + len(firsts), SIDES))]), np.int64)


def _last(axes: Sequence[Axis], candidates: Array) -> Array:
    """Return points at the last coordinate that counts of each axis: a loop leaves it out if it ends too early."""
    first, stride, moved = candidates[:OF_EACH_END], 1, list[Array]()
    for a, x in zip(reversed(axes), _coordinates(axes, first).values()):
        moved.append(first + stride * (a.tried - 1 - x))
        stride *= int(a.size)
    return np.concatenate(moved)


def _together(kernel: Kernel, group: Callable[[Array], Array], first: Array) -> Array:
    """Return different points around the `first` ones, in the same workgroups."""
    begin, flat, stride = np.resize(first, CANDIDATES), np.zeros(CANDIDATES, np.int64), 1
    for k, (a, x) in enumerate(zip(reversed(kernel.outer), _coordinates(kernel.outer, begin).values())):
        moved = x + np.floor((2 * AROUND + 1) * drawn(k, CANDIDATES)).astype(np.int64) - AROUND
        flat, stride = flat + stride * np.clip(moved, 0, int(a.size) - 1), stride * int(a.size)
    wanted, known = set(group(first).tolist()), set(first.tolist())
    inside = dict.fromkeys(p for p, g in zip(flat.tolist(), group(flat).tolist()) if g in wanted)
    return np.asarray([p for p in inside if p not in known], np.int64)


def _sides(kernel: Kernel, candidates: Array) -> Array:
    """Return a number for each candidate: equal ones if all guards and comparisons of coordinates come out alike."""
    tests = dict.fromkeys(_static_tests(kernel))
    if not tests:
        return np.zeros(len(candidates), np.int64)
    at = Points(kernel, unread, candidates, np.float64)
    number = np.zeros((len(candidates), 1), np.int64)
    for test in tests:
        number = (2 * number + (at.holds(test) if isinstance(test, Guard) else at.value(test))) % (2**31 - 1)
    return np.broadcast_to(number, (len(candidates), 1)).reshape(-1)


def _static_tests(kernel: Kernel) -> Iterator[Guard | Value]:
    """Yield the guards and comparisons that depend on coordinates of outer points alone."""
    free = {a.name for a in kernel.outer}
    static: set[Value] = set()  # such values
    for v in walk([s.value for s in kernel.body]):
        if v.op == "inside":
            yield from (g for g in v.arg if _is_static(g.index, free))
        elif v.op not in ("load", "local") and all(x in static for x in v.args):
            if v.op != "index" or _is_static(v.arg, free):
                static.add(v)
            if v.op == "map" and v.dtype.name == "bool":
                yield v


def _is_exact(v: Value) -> bool:
    """Return whether a value is a constant, or an integer converted to a float."""
    return v.op == "const" or (v.op == "map" and v.arg[0] == "cast" and not v.args[0].dtype.is_float)


def _is_static(index: Index, free: set[str]) -> bool:
    """Return whether an index depends on coordinates of outer points only."""
    return all(isinstance(a, Quotient) or (isinstance(a, Var) and a.name in free) for a in atoms_of(index))


def _at_least(x: Array, shape: tuple[int, ...]) -> Array:
    """Broadcast an array to a shape; the axis of trials, if it has one, stays."""
    return np.broadcast_to(x, np.broadcast_shapes(x.shape, shape))


def unread(slot: int, at: Array) -> Array:
    """Fail: this is the `read` of `Points` for values that depend on coordinates only."""
    raise AssertionError("coordinates alone decide here")


class Points:
    """The values of a kernel at outer points, given by their numbers; `read` returns the contents of memory.

    kind: float32 or float64, the type of all computations.
    """

    def __init__(self, kernel: Kernel, read: Read, outer: Array, kind: Any) -> None:
        self.kernel, self.read, self.kind, self.outer = kernel, read, kind, outer
        inner = np.arange(points(kernel.inner))
        self.at = {
            **{n: x.reshape(-1, 1) for n, x in _coordinates(kernel.outer, outer).items()},
            **{n: x.reshape(1, -1) for n, x in _coordinates(kernel.inner, inner).items()},
        }
        self.row = inner.reshape(1, -1)
        self.known: dict[Value, Array] = {}
        self.locals: dict[str, Array] = {}
        self.folded: list[Array] = []
        self.counts = np.ones((len(outer), 1), bool)

    def scale(self) -> float:
        """Return the largest rounded value or sum of magnitudes, to which errors by cancellation are proportional."""
        rounded = [x for v, x in self.known.items() if not _is_exact(v)]
        found = [*rounded, *(np.abs(x).sum(axis=-1) for x in self.folded)]
        return max([largest(x) for x in found if x.dtype.kind == "f"], default=0.0)

    def one_sided(self, trial: int = 0) -> frozenset[tuple[Value, object]]:
        """Return the comparisons, and choices of one of two operands, with one outcome for all of a few values.

        trial: which of several to look at.
        """
        found = [(v, self._side(v, trial)) for v in self.known if v.op == "map"]
        return frozenset([x for x in found if x[1] is not None])

    def _side(self, v: Value, trial: int) -> object:
        x = self._of_trial(v, trial)
        if not 0 < x.size <= FEW:
            return None
        if v.dtype.name == "bool":
            first = bool(x.flat[0])
            return None if (x != first).any() else first
        operands = [a for a in v.args if a.dtype is v.dtype] if len(v.args) == 2 else []
        return next((a for a in operands if _equal(x, self._of_trial(a, trial))), None)

    def _of_trial(self, v: Value, trial: int) -> Array:
        x = self.known[v]
        return x[trial] if x.ndim > 2 else x

    def written(self) -> Iterator[Written]:
        """Yield the result of every store."""
        for s in self.kernel.body:
            if isinstance(s, Fold):
                self.locals[s.local] = self.fold(s)
            else:
                yield self.stored(s)

    def stored(self, s: Store) -> Written:
        at, values = np.asarray(self.index(s.index)), self.value(s.value)
        shape = (len(self.outer), self.row.size if s.inner else 1)
        ended = [a for a in (*self.kernel.outer, *(self.kernel.inner if s.inner else ())) if a.end >= 0]
        within = [self.at[a.name] < self.read(a.end, np.zeros((1, 1), np.int64)) for a in ended]
        at, values, counts = (_at_least(x, shape) for x in (at, values, reduce(np.logical_and, within, self.counts)))
        return Written(s.slot, at, values, counts)

    def fold(self, f: Fold) -> Array:
        """Fold the values of each row. The terms that a product's limits exclude count as zero."""
        values = _at_least(self.value(f.value), (len(self.outer), self.row.size))
        if f.product is not None:
            values = cast("Array", np.where(self.counted(f.product), values, values.dtype.type(0)))
        self.folded.append(values)
        with np.errstate(all="ignore"):
            return self.combined(f.prim, values)

    def combined(self, prim: Primitive, values: Array) -> Array:
        """Combine the values of each row into one."""
        return combination(prim).reduce(values, axis=-1, keepdims=True).astype(values.dtype)

    def counted(self, p: Product) -> Array:
        """Return which points of the rows are summed. Remove results that nothing reads from `counts`."""
        sides = {"m": self.flat(p.m), "n": self.flat(p.n), "k": self.row}
        out = np.ones((1, 1), bool)
        for limit in p.limits:
            within = sides[limit.low] <= sides[limit.high]
            if limit.of_results:
                self.counts = self.counts & within
            else:
                out = out & within
        return out

    def flat(self, axes: Sequence[Axis]) -> Array:
        """Return, for each point, the row-major index of its coordinates along `axes`."""
        out = np.zeros((1, 1), np.int64)
        for a in axes:
            out = out * a.size + self.at[a.name]
        return out

    def value(self, v: Value) -> Array:
        """Return a value at every point."""
        with np.errstate(all="ignore"):
            for x in _order(v):
                if x not in self.known:
                    self.known[x] = self.one(x)
        return self.known[v]

    def one(self, v: Value) -> Array:
        """Return a value at every point, given those of its operands in `known`."""
        if v.op == "const":
            number = nearest_f32(float(v.arg)) if v.dtype.is_float else v.arg
            return np.full((1, 1), number, self.kind if v.dtype.is_float else v.dtype.numpy)
        if v.op == "index":
            return np.asarray(self.index(v.arg)).astype(np.int32)
        if v.op == "load":
            return self.as_computed(self.read(v.arg[0], self.index(v.arg[1])))
        if v.op == "local":
            return self.locals[v.arg]
        if v.op == "inside":
            x, held = self.known[v.args[0]], reduce(np.logical_and, map(self.holds, v.arg))
            return cast("Array", np.where(held, x, x.dtype.type(0)))
        return self.mapped(PRIMITIVES[v.arg[0]], _function(v.arg, len(v.args)), [self.known[a] for a in v.args])

    def mapped(self, p: Primitive, function: Callable[..., Array], operands: Sequence[Array]) -> Array:
        """Return a primitive's result, computed by `function`."""
        return self.as_computed(function(*operands))

    def as_computed(self, x: Array) -> Array:
        """Return floats in the dtype of this evaluation, `kind`; return any other array unchanged."""
        return x.astype(self.kind, copy=False) if x.dtype.kind == "f" else x

    def holds(self, g: Guard) -> Array:
        """Return a boolean for every point: whether a guard holds there."""
        x = self.index(g.index)
        return (x >= g.lo) & (x < g.hi) & (x % g.step == 0)

    def index(self, x: Index) -> Array:
        """Return an index at every point."""
        out = np.full((1, 1), x.const, np.int64)
        for atom, c in x.terms:
            out = out + c * self.atom(atom)
        return out

    def atom(self, a: Atom) -> Array:
        if isinstance(a, Var):
            return self.at.get(a.name, np.zeros((1, 1), np.int64))
        if isinstance(a, Dynamic):
            if a.value not in self.known:
                self.value(a.value)
            return np.clip(self.known[a.value].astype(np.int64), 0, a.hi)
        inner = self.index(a.index)
        return inner % a.d if a.mod else inner // a.d


def _equal(x: Array, y: Array) -> bool:
    """Return whether all elements are equal; the first ones mostly differ."""
    return x.flat[0] == y.flat[0] and bool((x == y).all())


def largest(x: Array) -> float:
    """Return the largest magnitude among finite elements."""
    return float(np.abs(x[np.isfinite(x)]).max(initial=0.0))


def combination(prim: Primitive) -> Any:
    """Return the NumPy function (a ufunc) that combines two elements of a fold."""
    return getattr(np, str(PRIMITIVES[prim.combine].array))


@lru_cache(256)
def _order(v: Value) -> tuple[Value, ...]:
    """Return `v` and all values that it depends on, operands first. Cached, because trials of a kernel share them."""
    return tuple(walk([v]))


@lru_cache(256)
def _function(row: tuple[str, Any], operands: int) -> Callable[..., Array]:
    """Return the array function of a primitive, given by its name and attributes."""
    return function_of(PRIMITIVES[row[0]], operands, dict(row[1]), np)


def forget() -> None:
    """Clear the caches above, which would keep the kernels of closed models alive."""
    _order.cache_clear()
    _function.cache_clear()


def left_out(form: Kernel, outer: Array) -> Iterator[tuple[int, Array]]:
    """Yield slots of a product's operands, and elements that limits exclude here, which are zeros in memory."""
    p = form.product
    if p is None or not p.limits:
        return
    at = Points(form, unread, outer, np.float64)
    sides = {"m": at.flat(p.m), "n": at.flat(p.n), "k": at.row}
    for limit in p.limits:
        operand = p.a if "m" in (limit.low, limit.high) else p.b
        masked = operand.args[1] if operand.op == "map" and operand.arg[0] == CHOICE else operand
        load = masked.args[0] if masked.op == "inside" else masked
        if limit.of_results or load.op != "load" or not load.arg[1].linear:
            continue
        elements, hidden = np.broadcast_arrays(at.index(load.arg[1]), sides[limit.low] > sides[limit.high])
        yield load.arg[0], elements[hidden]


def _coordinates(axes: Sequence[Axis], flat: Array) -> Mapping[str, Array]:
    """Return, by the name of each axis, its coordinate at the points with these row-major numbers."""
    out: dict[str, Array] = {}
    for a in reversed(axes):
        out[a.name] = flat % a.size
        flat = flat // a.size
    return out
