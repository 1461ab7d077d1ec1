"""Compute a graph in the shapes of larger sizes, its *room*, so that one program serves all sizes up to these.

Every value has its shape at the room. Elements beyond a run's sizes are padding, and can hold anything. If a node would
read padding to compute a valid element, the padding is masked: a sum, for instance, reads 0 instead. `passes/growth.py`
finds the padding.

The graph at the room is compared with the graph at other sizes, node by node. So each length, and each position in an
attribute, is known as a number or as a size plus a number. All else is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from tracegrad.dtypes import TensorType, i32
from tracegrad.ir import ambient
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor, bind, rebind, toposort
from tracegrad.kernels.form import UnsizedError
from tracegrad.methods import METHODS
from tracegrad.passes.alike import Numbers, aligned, numbered, unnumbered
from tracegrad.passes.growth import Axis, Grown, Sizes
from tracegrad.passes.padded_views import VIEWS, counted
from tracegrad.passes.padding import ONE, Room, Value, replaced
from tracegrad.prims.folds import GATHER, identity_of
from tracegrad.prims.leaves import CONST, IOTA, LITERAL, const, fitting, iota, leaf
from tracegrad.prims.views import RESHAPE, broadcast_to, reshape
from tracegrad.transforms.loops import Body, graph_of, inner_leaf, item

# Inputs that hold a size, plus a number: T - 1 is the length of what is predicted from predecessors, T + 1 the length
# with a first token. No hyperparameter has a space in its name.
LENGTHS = {0: "size of {}", -1: "size of {} - 1", 1: "size of {} + 1"}


class Padded(NamedTuple):
    """A graph with room, and how its results depend on sizes."""

    graph: Graph
    results: Mapping[str, tuple[Axis, ...]]


class Looped(NamedTuple):
    """A loop in the room: how its iterations and its results grow.

    lasts: carry -> the result with all of its values, among which the last is found. So the loop can end there.
    """

    length: Axis
    roots: list[tuple[Axis, ...]]
    lasts: Mapping[int, int]


@ambient.restored
def in_room(room: Graph, other: Graph, sizes: Sizes, names: Sequence[str], exact: int | None) -> Padded:
    """Return the graph at the room, changed to be correct for smaller sizes too. The sizes become inputs.

    other:  the same graph at other sizes.
    names:  the names of the sizes.
    exact:  the index of a size without padding, for which nothing is masked.
    Raises: UnsizedError with the line of a node that cannot be computed with padding.
    """
    with ambient.rewriting() as here:
        lengths = {f: leaf("hyper", name, TensorType(i32, ())) for name, f in lengths_of(names, sizes).items()}
        walk = _Walk(sizes, lengths, exact, here)
        walk.nodes(room, other, ({}, {}))
    found = {name: walk.of[t.serial].axes for name, t in room.results.items()}
    graph = room.with_roots([walk.of[t.serial].tensor for t in room.roots])
    return Padded(graph, found)


def lengths_of(names: Sequence[str], sizes: Sizes) -> dict[str, Grown]:
    """Return the inputs that hold lengths, by name. names: those of the sizes."""
    found = {text.format(name): Grown(k, more) for k, name in enumerate(names) for more, text in LENGTHS.items()}
    return found | {f"size of ({names[q.size]} + {q.more}) // {q.by}": q for q in sizes.quotients}


class _Walk(Room):
    """Walks over two graphs in parallel, and stores for each node its value in the shapes of the room."""

    def __init__(self, sizes: Sizes, lengths: Mapping[Grown, Tensor], exact: int | None, here: Any) -> None:
        super().__init__(sizes, lengths, exact)
        self.here = here
        self.inputs = {f: x.name for f, x in lengths.items()}
        self.loops: dict[int, Looped] = {}  # by serial of a new loop

    def nodes(self, room: Graph, other: Graph, numbers: Sequence[Numbers]) -> None:
        """Store the value of each node in `of`, in order. numbers: as for `aligned`."""
        graphs = room, other
        for t, u in aligned(graphs, [unnumbered(g, seen) for g, seen in zip(graphs, numbers)], numbers):
            if t.serial not in self.of:
                self.here.site = t.site
                try:
                    self.of[t.serial] = self.checked(t, u)
                except UnsizedError as e:
                    raise type(e)(f"{t.prim.name}{f', {t.site.short}' if t.site else ''}: {e}") from None

    def checked(self, t: Tensor, u: Tensor) -> Value:
        """Return the value of `t`, after a check that its axes fit the types in both traces. u: `t` at other sizes."""
        differ = UnsizedError(f"{t.type} is {u.type} at other sizes")
        if t.dtype is not u.dtype or t.ndim != u.ndim:
            raise differ
        value = self.value(t, u, [self.of[x.serial] for x in t.inputs])
        if t.prim.family != "scan":
            assert value.tensor.type == t.type, (value.tensor.type, t)
            pairs = zip(t.shape, u.shape, strict=True)
            if not all(self.sizes.fits(axis.length, pair) for axis, pair in zip(value.axes, pairs, strict=True)):
                raise differ
        return value

    def value(self, t: Tensor, u: Tensor, inputs: Sequence[Value]) -> Value:
        """Return the value of `t`. u: the same node at other sizes. inputs: the values of the inputs of `t`."""
        axes = [axis for x in inputs for axis in x.axes]
        if any(axis.counts for axis in axes) and t.prim is not RESHAPE:
            if t.prim.family == "map" and t.ndim == 1 and all(axis.parts is None for axis in axes):
                return self.alike(t, u, inputs, (axes[0]._replace(counts=True),))
            inputs = [self.settled(y, x) for y, x in zip(t.inputs, inputs)]
        if t.prim in VIEWS:
            return VIEWS[t.prim](self, t, u, inputs[0])
        rule = FAMILIES.get(t.prim.family)
        if rule is not None:
            return rule(self, t, u, *inputs)
        if any(axis.grows for x in inputs for axis in x.axes):
            raise UnsizedError("puts parts together")
        return self.alike(t, u, inputs, tuple([self.sizes.axis((n, n)) for n in t.shape]))

    def settled(self, t: Tensor, x: Value) -> Value:
        """Return the value of a node; if it is a coordinate, with its parts in the order of joined blocks."""
        axes = tuple([axis.stacked for axis in x.axes])
        return Value(counted(self, t, axes, t.shape), axes) if any(a.counts for a in x.axes) else x

    def alike(self, t: Tensor, u: Tensor, inputs: Sequence[Value], axes: tuple[Axis, ...]) -> Value:
        """Return the value of a node whose attributes do not depend on the sizes."""
        self.same(t, u)
        return Value(rebind(t, [x.tensor for x in inputs]), axes)

    def map(self, t: Tensor, u: Tensor, *inputs: Value) -> Value:
        """Return a value that is computed element by element."""
        return self.alike(t, u, inputs, self.agreed([x.axes for x in inputs if x.tensor.ndim == t.ndim]))

    def fold(self, t: Tensor, u: Tensor, x: Value) -> Value:
        """Return a fold. Padding in its input is masked by the fold's identity."""
        axes = tuple([ONE if d in t.axes else a for d, a in enumerate(x.axes)])
        return self.alike(t, u, [x._replace(tensor=self.masked(x, t.axes, identity_of(t.prim, t.dtype)))], axes)

    def running(self, t: Tensor, u: Tensor, x: Value) -> Value:
        """Return a composite along an axis, such as running sums. Padding in its input is masked by its identity."""
        axes = replaced(x.axes, t.axis, x.axes[t.axis].stacked)
        given = self.masked(Value(x.tensor, axes), (t.axis,), identity_of(t.prim, t.dtype))
        return self.alike(t, u, [Value(given, axes)], axes)

    def source(self, t: Tensor, u: Tensor) -> Value:
        """Return a leaf or a formula."""
        if t.prim is CONST:  # numbers that depend on a size are inputs already
            self.same(t, u)
            return Value(t, ())
        axes = tuple(map(self.sizes.axis, zip(t.shape, u.shape)))
        if t.prim is IOTA:
            self.same(t, u, "shape")
            if axes[t.axis].parts is None and t.ndim > 1:
                axes = replaced(axes, t.axis, axes[t.axis].stacked)
                along = tuple([n if d == t.axis else 1 for d, n in enumerate(t.shape)])
                return Value(broadcast_to(self.numbers(axes[t.axis : t.axis + 1], along), t.shape), axes)
            return Value(t, replaced(axes, t.axis, axes[t.axis]._replace(counts=axes[t.axis].parts is None)))
        self.same(t, u, "type")
        grows = any(a.grows for a in axes)
        if grows and (t.prim is LITERAL or t.attrs["role"] != "input" or any(a.parts is None for a in axes)):
            raise UnsizedError(f"{t.type} is {u.type} at other sizes")
        return Value(t, axes)

    def product(self, t: Tensor, u: Tensor, a: Value, b: Value) -> Value:
        """Return a matrix product. Padding of the summed axis is masked in both operands: 0 times inf is not 0."""
        self.same(t, u)
        k, last = t.ndim - 1, t.ndim - 2
        batch = self.agreed([a.axes[:last], b.axes[:last]])
        (summed,) = self.agreed([(a.axes[k],), (b.axes[last],)])
        left = self.masked(Value(a.tensor, (*a.axes[:k], summed)), (k,), 0.0)
        right = self.masked(Value(b.tensor, (*b.axes[:last], summed, b.axes[k])), (last,), 0.0)
        return Value(bind(t.prim, left, right, **t.attrs), (*batch, a.axes[last], b.axes[k]))

    def lookup(self, t: Tensor, u: Tensor, x: Value, indices: Value) -> Value:
        """Return a gather or scatter, whose indices are those of a run's sizes."""
        d = t.axis
        self.same(t, u, "length")
        others = self.agreed([(*v.axes[:d], *v.axes[d + 1 :]) for v in (x, indices)])
        if t.prim is GATHER:
            at = self.placed(indices.tensor, x.axes[d])
            return Value(bind(GATHER, x.tensor, at, axis=d), (*others[:d], indices.axes[d], *others[d:]))
        target = self.sizes.axis((t.shape[d], u.shape[d]))
        if target.parts is None:
            raise UnsizedError("adds into an axis of several parts")
        (given,) = self.agreed([(x.axes[d],), (indices.axes[d],)])
        updates = self.masked(x._replace(axes=replaced(x.axes, d, given)), (d,), identity_of(t.prim, t.dtype))
        at = self.placed(indices.tensor, target)
        return Value(bind(t.prim, updates, at, **t.attrs), (*others[:d], target, *others[d:]))

    def scan(self, t: Tensor, u: Tensor, *inputs: Value) -> Value:
        """Return a loop. Iterations beyond a run's size change no carry."""
        self.same(t, u, "body", "length")
        body: Body = t.attrs["body"]
        other: Body = u.attrs["body"]
        if body.counts != other.counts:
            raise UnsizedError("has another body at other sizes")
        length = self.sizes.axis((t.attrs["length"], u.attrs["length"]))
        self.single(length)
        carries, xs, consts = body.split([x.tensor for x in inputs])
        n = len(carries)
        given = [x.axes[1:] if n <= k < n + len(xs) else x.axes for k, x in enumerate(inputs)]
        outer = self.lengths
        self.lengths = inner = {f: inner_leaf("const", x.type) for f, x in outer.items()}
        try:
            roots = self.iteration(body, other, given)
            new = [x.tensor for x in roots]
            at = inner_leaf("x", TensorType(i32, ()))
            until: dict[str, Any] = {}
            lasts: dict[int, int] = {}
            if self.has_room(length):
                new = _unchanged_where(at >= self.scalar(length.length), body, new, t.attrs["reverse"])
                (factor,) = length.length.factors
                if factor in self.inputs:
                    until = {"until": self.inputs[factor]}
                    kept = _output_carries(body, new)
                    lasts = {k: len(new) + i for i, k in enumerate(kept)}
                    new += [new[k] for k in kept]
        finally:
            self.lengths = outer
        read = {x.serial for x in toposort(new)}
        used = [f for f, x in inner.items() if x.serial in read]
        leaves = (*body.xs, at), (*body.consts, *[inner[f] for f in used])
        made = Body(body.carries, *leaves, tuple(new[:n]), tuple(new[n:]))
        places, now = iota((t.attrs["length"],), 0), [outer[f] for f in used]
        scan = bind(t.prim, *carries, *xs, places, *consts, *now, **{**t.attrs, **until, "body": made})
        self.loops[scan.serial] = Looped(length, [x.axes for x in (*roots, *[roots[k] for k in lasts])], lasts)
        return Value(scan, ())

    def iteration(self, body: Body, other: Body, given: list[tuple[Axis, ...]]) -> list[Value]:
        """Return the roots of one iteration. given: the axes of its leaves."""
        known = dict(self.of)
        for _ in range(2 + len(body.carries)):
            self.of = known | {x.serial: Value(x, axes) for x, axes in zip(body.leaves, given)}
            self.nodes(graph_of(body), graph_of(other), [numbered(body), numbered(other)])
            roots = [self.of[x.serial] for x in body.roots]
            carried = [self.agreed([given[k], roots[k].axes]) for k in range(len(body.carries))]
            if carried == given[: len(carried)]:
                self.of = known
                return roots
            given = [*carried, *given[len(carried) :]]
        raise UnsizedError("has a carry that grows otherwise in each iteration")

    def item(self, t: Tensor, u: Tensor, scan: Value) -> Value:
        """Return a result of a loop."""
        self.same(t, u, "type")
        looped = self.loops[scan.tensor.serial]
        index: int = t.attrs["index"]
        made, axes = item(scan.tensor, index), looped.roots[index]
        if index in looped.lasts:
            every = item(scan.tensor, looped.lasts[index])
            at = reshape(self.scalar(looped.length.length) - 1, [1] * every.ndim)
            made = reshape(bind(GATHER, every, broadcast_to(at, (1, *made.shape)), axis=0), made.shape)
        return Value(made, axes if made.ndim == len(axes) else (looped.length, *axes))


# Packs have no rule, because they put parts together. The views in `VIEWS` have rules of their own
FAMILIES: Mapping[str, Callable[..., Value]] = {
    "leaf": _Walk.source,
    "formula": _Walk.source,
    "map": _Walk.map,
    "view": _Walk.map,
    "fold": _Walk.fold,
    "composite": _Walk.running,
    "product": _Walk.product,
    "gather": _Walk.lookup,
    "scatter": _Walk.lookup,
    "scan": _Walk.scan,
    "item": _Walk.item,
}


def _output_carries(body: Body, roots: Sequence[Tensor]) -> list[int]:
    """Return the carries whose old or new values a loop outputs in each iteration. roots: those of an iteration."""
    n = len(body.carries)
    every = {x.serial for x in roots[n:]}
    return [k for k in range(n) if not every.isdisjoint((body.carries[k].serial, roots[k].serial))]


def _unchanged_where(beyond: Tensor, body: Body, roots: Sequence[Tensor], reverse: bool) -> list[Tensor]:
    """Return the roots of an iteration, of which carries keep their old values if it is beyond a run's size.

    A root that is also a carry stays the same value, so that it is stored once. Not in a loop in reverse: if all values
    of a carry are stored together, the place of the first one depends on the size.
    """

    def kept(old: Tensor, t: Tensor) -> Tensor:
        return METHODS["where"](broadcast_to(reshape(beyond, [1] * t.ndim), t.shape), old, t)

    def zero(t: Tensor) -> Tensor:
        return broadcast_to(const(fitting(0, t.dtype), t.dtype), t.shape)

    given = [kept(old, t) for old, t in zip(body.carries, roots)]
    others = roots[len(given) :]
    if reverse:
        old = {t.serial for t in body.carries}
        return [*given, *[kept(zero(t), t) if t.serial in old else t for t in others]]
    new = {t.serial: x for t, x in reversed([*zip(roots, given)])}
    return [*given, *[new.get(t.serial, t) for t in others]]
