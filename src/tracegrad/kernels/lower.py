"""Lower clusters of tensors to kernels: an op is a function from coordinates to a value, and fusing is inlining."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from tracegrad.dtypes import DType, Shape, bool_, f16, f32
from tracegrad.errors import ShapeError, placed
from tracegrad.ir.graph import postorder, reached
from tracegrad.ir.nodes import Tensor
from tracegrad.kernels.axes import Domain, all_indices, cut_axes, ended_axes, merge_axes, natural_domain, split_axes
from tracegrad.kernels.coordinates import ravel, regroup
from tracegrad.kernels.expr import (
    Guard,
    Index,
    Space,
    Value,
    quotients_of,
    variables_of,
)
from tracegrad.kernels.form import Axis, Fold, Kernel, Product, Scatter, Slot, Store, points, with_axes
from tracegrad.kernels.fuse import Cluster
from tracegrad.kernels.reads import IN_MEMORY, region_of
from tracegrad.kernels.storage import COMPUTED, Storage
from tracegrad.prims.elementwise import COPY
from tracegrad.prims.folds import SCATTER_ADD

MAX_REFINEMENTS = 8  # each splits or merges some axes; real models need one to three
# The most points of a kernel, and the largest index. Shaders count in i32, and loops step past the last point by up to
# a workgroup.
LARGEST = 2**31 - 2**16


def external_order(c: Cluster, storage: Storage) -> tuple[list[Tensor], tuple[Any, ...]]:
    """Return the values that the cluster reads from memory, in order of first use, and a key of the cluster's form."""
    stored, halves = storage.stored, storage.halves
    ids: dict[int, int] = {}
    externals: list[Tensor] = []
    key: list[Any] = [c.kind, c.rows, c.length, c.limits]
    mine = {t.serial for t in c.computes}

    loaded: dict[int, bool] = {}

    def read(t: Tensor) -> Iterable[Tensor]:
        serial, family = t.serial, t.prim.family
        outside = family == "leaf" or family in IN_MEMORY or (serial in stored and serial not in mine)
        loaded[serial] = outside
        return () if outside else reversed(t.operands)

    for t in postorder(reversed(c.computes), read):
        if loaded[t.serial]:
            key.append((t.type, "load", t.serial in halves))
            externals.append(t)
        else:
            attrs = tuple((k, repr(v) if k == "value" else v) for k, v in t.attrs.items())
            key.append((t.prim.name, t.type, attrs, tuple([ids[x.serial] for x in t.operands])))
        ids[t.serial] = len(ids)
    outs = {t.serial for t in c.outs}
    replaces = replaced_slots(c, externals, storage.writes)
    key.append(
        tuple([(ids[t.serial], t.serial in outs, t.serial in halves, replaces.get(t.serial)) for t in c.computes])
    )
    key.append(len(c.scalars))
    for x in c.ends:
        t = storage.nodes[x.tail.end]
        if t.serial not in ids:
            ids[t.serial] = len(ids)
            externals.append(t)
        key.append((x.group, x.tail._replace(end=ids[t.serial])))
    return externals, tuple(key)


def replaced_slots(c: Cluster, externals: Sequence[Tensor], writes: Mapping[int, str]) -> dict[int, int]:
    """Return, for each member that overwrites a region that the kernel also reads, the slot that reads it."""
    read = {region_of(t): k for k, t in enumerate(externals) if t.prim.family == "leaf"}
    return {t.serial: read[writes[t.serial]] for t in c.outs if writes.get(t.serial) in read}


def lower(c: Cluster, externals: Sequence[Tensor], storage: Storage) -> Kernel:
    """Return the kernel of a cluster.

    Axes are split until indices need no division, and merged where merging adds no division. Then they are split again,
    because a divisor can divide the size of a merged axis alone. Raises ShapeError for a cluster that is too large.
    """

    def over(domain: Domain) -> Kernel:
        return _Lowering(c, externals, storage, domain).kernel()

    domain = cut_axes(natural_domain(c), c.ends)
    kernel = over(domain)
    merged = False
    for _ in range(MAX_REFINEMENTS):
        indices = all_indices(kernel)
        split = split_axes(kernel, indices, domain)
        changed = split if split or merged else merge_axes(indices, domain, ended_axes(domain, c.ends))
        if changed is None:
            break
        domain, kernel, merged = changed, over(changed), split is None
    if largest_number(kernel) > LARGEST:
        raise _too_large(c)
    slots = {t.serial: k for k, t in enumerate(externals)}
    ended = {name: slots[serial] for name, serial in ended_axes(domain, c.ends).items()}
    return with_axes(kernel, lambda axes: tuple([replace(a, end=ended.get(a.name, -1)) for a in axes]))


def largest_number(kernel: Kernel) -> int:
    """Return the largest number of points or absolute value of an index that the kernel computes."""
    indices = all_indices(kernel)
    inside = [q.index for q in quotients_of(indices)]
    bounds = [bound for i in (*indices, *inside) for bound in (i.hi, -i.lo)]
    return max([points(kernel.outer), points(kernel.inner), *bounds])


def _too_large(c: Cluster) -> ShapeError:
    """Return the error, with the largest tensor of a cluster and its line."""
    t = max(reached(c.computes, lambda t: t.operands), key=lambda t: (t.size, t.serial))
    rule = f"{t.type} has {t.size} elements; kernels count in 32 bits, to {LARGEST}. Compute it in parts, as in tg.scan"
    return placed(ShapeError(rule), t.prim.name, t.site)


class _Lowering:
    """One attempt at a kernel, over the axes of one domain."""

    def __init__(self, c: Cluster, externals: Sequence[Tensor], storage: Storage, domain: Domain) -> None:
        self.c, self.halves, self.space = c, storage.halves, Space()
        self.rounded = {t.serial for t in c.outs if t.serial in self.halves}  # readers in this kernel round them, too
        self.replaces = replaced_slots(c, externals, storage.writes)
        self.slot = {t.serial: k for k, t in enumerate(externals)}
        self.slots = [Slot(self.stored(t), t.size, False) for t in externals]
        self.memo: dict[tuple[int, tuple[Index, ...], tuple[Guard, ...]], Value] = {}
        self.guards: tuple[Guard, ...] = ()  # where the current value is needed: loads must stay in bounds
        self.locals: dict[int, Value] = {}
        self.axes: dict[str, list[Axis]] = {}
        self.natural: dict[str, list[tuple[Index, int]]] = {}  # coordinates and sizes of the natural axes
        for group, factors in domain:
            axes: list[Axis] = []
            natural: list[tuple[Index, int]] = []
            for sizes in factors:
                own = [Axis(f"{group}{len(axes) + k}", n) for k, n in enumerate(sizes)]
                axes += own
                index = ravel([self.space.var(a.name, a.size) for a in own], sizes, self.space)
                natural.append((index, math.prod(sizes)))
            self.axes[group], self.natural[group] = axes, natural

    def kernel(self) -> Kernel:
        """Return the kernel, with statements in the order of the nodes."""
        folds = [self.fold(t) for t in self.c.computes if t.prim.family in COMPUTED]
        outs = {t.serial for t in self.c.outs}
        stores = [self.store(t) for t in self.c.nodes if t.serial in outs]
        outer = [a for g in ("b", "m", "n", "i") for a in self.axes.get(g, ())]
        inner = [a for g in ("k", "j") for a in self.axes.get(g, ())]
        names = list(dict.fromkeys(t.prim.name for t in self.c.computes if t.prim is not COPY))
        label = "+".join(names[:6]) or "copy"
        return Kernel(
            tuple(outer), tuple(inner), tuple(self.slots), (*folds, *stores), label, uniform=bool(self.c.scalars)
        )

    # coordinates
    def coordinates(self, shape: Shape, *groups: str) -> tuple[Index, ...]:
        """Return the current point, as coordinates of a value of `shape` that covers exactly `groups`."""
        natural = [pair for g in groups for pair in self.natural.get(g, ())]
        return regroup([i for i, _ in natural], [n for _, n in natural], shape, self.space)

    def own(self, t: Tensor) -> tuple[tuple[Index, ...], bool]:
        """Return the coordinates of a member at the current point, and whether it is at the inner level."""
        if self.c.kind in ("product", "scatter"):
            return self.coordinates(t.shape, "b", "m", "n"), False
        if self.c.kind == "rows" and t.size != self.c.rows:
            return self.coordinates(t.shape, "i", "j"), True
        return self.coordinates(t.shape, "i"), False

    # statements
    def fold(self, t: Tensor) -> Fold:
        name = f"a{len(self.locals)}"
        if t.prim.family == "product":
            fold = self.product(t, name)
        elif t.prim.family == "scatter":
            fold = self.scatter(t, name)
        else:
            (x,) = t.inputs
            if self.c.kind == "rows":
                coordinates = self.coordinates(x.shape, "i", "j")
            elif self.c.kind == "points":  # a recomputed scalar
                coordinates = self.coordinates(x.shape, "j")
            else:
                folded = t.axes
                outer = iter(self.coordinates(tuple(n for d, n in enumerate(x.shape) if d not in folded), "i"))
                inner = iter(self.coordinates(tuple(x.shape[d] for d in folded), "j"))
                coordinates = tuple(next(inner if d in folded else outer) for d in range(x.ndim))
            fold = Fold(name, t.prim, self.at(x, coordinates))
        self.locals[t.serial] = self.space.value("local", t.dtype, name)
        return fold

    def product(self, t: Tensor, name: str) -> Fold:
        a, b = t.inputs
        batch = self.coordinates(a.shape[:-2], "b")
        ((m, _),), ((n, _),), ((k, _),) = self.natural["m"], self.natural["n"], self.natural["k"]
        left, right = self.at(a, (*batch, m, k)), self.at(b, (*batch, k, n))
        product = Product(left, right, *self.sides(), limits=self.c.limits)
        return Fold(name, t.prim, self.map_value("mul", left, right), product=product)

    def sides(self) -> tuple[tuple[Axis, ...], tuple[Axis, ...], tuple[Axis, ...]]:
        """Return the axes of a product's batch, rows and columns."""
        return tuple(self.axes["b"]), tuple(self.axes["m"]), tuple(self.axes["n"])

    def scatter(self, t: Tensor, name: str) -> Fold:
        x, indices = t.inputs
        axis = t.axis
        out = self.coordinates(t.shape, "b", "m", "n")
        ((k, _),) = self.natural["k"]
        source = (*out[:axis], k, *out[axis + 1 :])
        target, update = self.at(indices, source), self.at(x, source)
        clamped = self.space.of_index(self.space.dynamic(target, t.shape[axis]))
        hit = self.map_value("equal", clamped, self.space.of_index(out[axis]))
        assert t.prim.identity is not None
        value = self.map_value("where", hit, update, self.space.const(t.prim.identity, t.dtype))
        batch, rows, columns = self.sides()
        product = None
        if variables_of(target).intersection([a.name for a in columns]):
            batch, columns = (*batch, *columns), ()
        elif t.prim is SCATTER_ADD and t.dtype.is_float:
            one, none = self.space.const(1.0, f32), self.space.const(0.0, f32)
            product = Product(self.map_value("where", hit, one, none), update, batch, rows, columns)
        return Fold(name, t.prim, value, product, Scatter(target, out[axis], update, batch, rows, columns))

    def map_value(self, name: str, *args: Value) -> Value:
        """Return a value of an elementwise primitive, by its name."""
        dtype = {"where": args[-1].dtype, "equal": bool_}.get(name, args[0].dtype)
        return self.space.value("map", dtype, (name, ()), args)

    def stored(self, t: Tensor) -> DType:
        """Return the type in which memory holds the elements of `t`."""
        return f16 if t.serial in self.halves else t.dtype

    def store(self, t: Tensor) -> Store:
        coordinates, inner = self.own(t)
        value = self.locals.get(t.serial) or self.define(t, coordinates)
        self.slots.append(Slot(self.stored(t), t.size, True, self.replaces.get(t.serial, -1)))
        return Store(len(self.slots) - 1, ravel(coordinates, t.shape, self.space), value, inner)

    # values
    def at(self, t: Tensor, i: tuple[Index, ...]) -> Value:
        """Return the element of `t` at coordinates `i`."""
        key = (t.serial, i, self.guards)
        found = self.memo.get(key)
        if found is None:
            if t.serial in self.slot:
                load = self.space.load(self.slot[t.serial], ravel(i, t.shape, self.space), t.dtype)
                found = self.space.inside(self.guards, load)
            elif t.serial in self.locals:
                found = self.locals[t.serial]
            else:
                found = self.define(t, i)
            if t.serial in self.rounded:
                found = self.map_value("half", found)
            self.memo[key] = found
        return found

    def define(self, t: Tensor, i: tuple[Index, ...]) -> Value:
        """Compute the element of `t` at `i` from its inputs."""
        family = t.prim.family
        if family == "map":
            args = tuple([self.at(x, i) for x in t.inputs])
            if t.prim.passes:
                return args[0]
            return self.space.value("map", t.dtype, (t.prim.name, tuple(t.attrs.items())), args)
        if family == "view":
            return self.view(t, i)
        if family == "gather":
            return self.gather(t, i)
        assert family == "formula" and t.prim.index is not None, f"{t.prim.name} has no value at a point"
        element = t.prim.index(i, **t.attrs)
        return self.space.of_index(element) if isinstance(element, Index) else self.space.const(element, t.dtype)

    def view(self, t: Tensor, i: tuple[Index, ...]) -> Value:
        (x,) = t.operands
        if t.prim.index is None:  # a reshape
            # Guards keep `i` in range. Products gather operands at sums of axes, which remainders would hide. In other
            # kernels remainders help: axes split by them are split where parts of a `concat` end, so no guard is left.
            return self.at(x, regroup(i, t.shape, x.shape, self.space, guarded=self.c.kind == "product"))
        coordinates, guards = t.prim.index(i, x.type, **t.attrs)
        conditions = [self.space.guard(*g) for g in guards]
        if False in conditions:
            return self.space.const(0, t.dtype)
        lifted = tuple([k if isinstance(k, Index) else self.space.number(cast("int", k)) for k in coordinates])
        added = tuple([g for g in conditions if not isinstance(g, bool)])
        before, self.guards = self.guards, (*self.guards, *added)
        value = self.at(x, lifted)
        self.guards = before
        covered = value.op == "inside" and all(g in value.arg for g in added)
        return value if covered else self.space.inside(added, value)

    def gather(self, t: Tensor, i: tuple[Index, ...]) -> Value:
        x, indices = t.inputs
        axis, size = t.axis, x.shape[t.axis]
        picked = self.at(indices, i)
        if picked.op == "index" and picked.arg.lo >= 0 and picked.arg.hi < size:
            index = picked.arg
        else:
            index = self.space.dynamic(picked, size)
        return self.at(x, (*i[:axis], index, *i[axis + 1 :]))
