"""The rows behind `scan`: a graph that runs repeatedly, and the values that are read from it.

A SCAN holds the graph of one iteration, its *body*, for any number of iterations. So tracing, differentiating and
compiling cost as much as for one iteration. A SCAN has many results, and an ITEM reads one of them: the last value of a
carry, or the values of a node of the body in all iterations. Values that no ITEM reads are never stored.
"""

# The rules are lambdas, whose parameters cannot be annotated.
# pyright: reportUnknownLambdaType=false, reportUnknownArgumentType=false, reportUnknownMemberType=false

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar, cast

from tracegrad.dtypes import Shape, TensorType, f32
from tracegrad.ir.graph import Graph, beside, computed_once, depending, reached
from tracegrad.ir.nodes import Primitive, Tensor, bind, graft, register, toposort
from tracegrad.prims.leaves import LEAF, const
from tracegrad.prims.rules import spread
from tracegrad.prims.views import broadcast_to, reshape
from tracegrad.transforms.walks import arriving, batches, repeated, tangents

_number = itertools.count()

T = TypeVar("T")

# Families that cost nothing inside a kernel. Values that they alone make of constants are repeated in every iteration
# instead of stored before the first.
FREE = ("formula", "map", "view")
# Families that a backward iteration does not recompute but reads from the forward pass.
COSTLY = ("fold", "product", "scatter", "item", "composite")


@dataclass(frozen=True, slots=True, eq=False)
class Body:
    """One iteration: the new carries and further values, computed from leaves.

    carries, xs, consts: leaves, in the order of the SCAN's inputs: results of the last iteration, elements of arrays,
                         and values that all iterations share
    new:   the new value of each carry
    each:  nodes whose values ITEMs can read, one value an iteration
    """

    carries: tuple[Tensor, ...]
    xs: tuple[Tensor, ...]
    consts: tuple[Tensor, ...]
    new: tuple[Tensor, ...]
    each: tuple[Tensor, ...]

    @property
    def leaves(self) -> tuple[Tensor, ...]:
        """The leaves in the order of the SCAN's inputs."""
        return (*self.carries, *self.xs, *self.consts)

    @property
    def roots(self) -> list[Tensor]:
        """All nodes that an iteration computes."""
        return [*self.new, *self.each]

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of carries, elements, constants and further values."""
        return len(self.carries), len(self.xs), len(self.consts), len(self.each)

    def split(self, values: Sequence[T]) -> tuple[Sequence[T], Sequence[T], Sequence[T]]:
        """Split values of all leaves into those of the carries, of the elements and of the constants."""
        n, m = len(self.carries), len(self.carries) + len(self.xs)
        return values[:n], values[n:m], values[m:]

    def with_roots(self, roots: Sequence[Tensor]) -> Body:
        """Return a body with the same leaves and other roots, in the order of `roots`."""
        n = len(self.new)
        return Body(self.carries, self.xs, self.consts, tuple(roots[:n]), tuple(roots[n:]))

    def __str__(self) -> str:
        asked = self.each if len(self.each) < len(toposort(self.roots)) else ()  # a new body lists all its nodes
        results = {f"carry.{k}": t for k, t in enumerate(self.new)} | {f"each.{k}": t for k, t in enumerate(asked)}
        return str(Graph(results))

    def __repr__(self) -> str:
        return f"<Body of {len(toposort(self.roots))} nodes; print it for all of them>"


def graph_of(body: Body) -> Graph:
    """Return one iteration as a graph, whose outputs are the roots in order."""
    return Graph({str(k): t for k, t in enumerate(body.roots)})


def inner_leaf(kind: str, type: TensorType) -> Tensor:
    """Return a leaf of a body, whose value differs between iterations. `kind`: "carry", "x" or "const"."""
    return bind(LEAF, role="inner", name=f"{kind}.{next(_number)}", type=type)


class Results:
    """Values of some results of a SCAN, by the index of the item: cotangents, tangents, or `n` values of each."""

    def __init__(self, items: Mapping[int, Tensor], shape: Shape = ()) -> None:
        self.items = dict(items)
        self.type = TensorType(f32, shape)

    def __add__(self, other: Results) -> Results:
        both = dict(self.items)
        for k, ct in other.items.items():
            both[k] = both[k] + ct if k in both else ct
        return Results(both)


def _scan_vjp(ct: Any, y: Tensor, *inputs: Tensor, body: Body, length: int, reverse: bool) -> tuple[Tensor | None, ...]:
    """Differentiate a scan by a scan in the other direction. It carries cotangents of carries, and sums for constants.

    The backward scan reads the saved carries and the costly values of the forward pass, and recomputes the other
    values.
    """
    given = cast("Results", ct).items
    n, shared = len(body.new), {t.serial for t in body.consts}
    ct_each = [(body.each[k - n], inner_leaf("x", body.each[k - n].type), ct) for k, ct in given.items() if k >= n]
    back = _backward(body, {*given}, [(t, leaf) for t, leaf, _ in ct_each])
    carries = [body.carries[k] for k in back.carries]
    met = [t for t in (*body.xs, *body.consts) if back.found.get(t.serial) is not None]
    sums = [(t, inner_leaf("carry", t.type)) for t in met if t.serial in shared]
    parts = [t for t in met if t.serial not in shared]
    roots = [*map(back.of, carries), *(leaf + back.of(t) for t, leaf in sums), *map(back.of, parts)]
    roots, elements = _from_the_forward(roots, y, inputs)
    elements += [(leaf, ct) for _, leaf, ct in ct_each]
    starts = [_or_zeros(given.get(k), t.type) for k, t in zip(back.carries, carries)]
    starts += [_or_zeros(None, t.type) for t, _ in sums]
    consts = list(zip(body.consts, body.split(inputs)[2]))
    leaves = [*back.leaves, *(leaf for _, leaf in sums)]
    made = scanned(leaves, elements, consts, starts, roots, length, not reverse)
    owners = [*carries, *(t for t, _ in sums), *parts]
    results = {t.serial: ct for t, ct in zip(owners, (*made.last, *made.each))}
    return tuple([results.get(t.serial) for t in body.leaves])


class _Backward(NamedTuple):
    """The derivative of one iteration, from which `_scan_vjp` makes the body of the backward scan."""

    carries: list[int]  # of the forward scan, those with a cotangent in some iteration
    leaves: list[Tensor]  # of each of these, the cotangent that comes from the later iteration
    found: dict[int, Tensor | None]  # serial of a leaf of the forward body -> its cotangent

    def of(self, t: Tensor) -> Tensor:
        """Return the cotangent of a leaf."""
        return _or_zeros(self.found[t.serial], t.type)


def _backward(body: Body, given: set[int], each: Sequence[tuple[Tensor, Tensor]]) -> _Backward:
    """Differentiate one iteration.

    given: indices of the results that have a cotangent.
    each:  for those that are no carries, the node and the leaf of its cotangent.
    """
    wrt = [t for t in body.leaves if t.dtype.is_float]
    carries = [k for k, t in enumerate(body.carries) if t.dtype.is_float]
    while True:
        leaves = [inner_leaf("carry", body.carries[k].type) for k in carries]
        seeds = [*zip([body.new[k] for k in carries], leaves), *each]
        found = dict(zip([t.serial for t in wrt], arriving([t for t, _ in seeds], [ct for _, ct in seeds], wrt)))
        cts = {k: (leaf, found[body.carries[k].serial]) for k, leaf in zip(carries, leaves)}
        left = _nonzero(cts, given, [leaf for _, leaf in each])
        if left == carries:
            return _Backward(carries, leaves, found)
        carries = left  # the cotangent of the others is 0, and 0 times an infinite derivative would be NaN


def _nonzero(cts: Mapping[int, tuple[Tensor, Tensor | None]], given: set[int], xs: Iterable[Tensor]) -> list[int]:
    """Return the numbers of the carries whose cotangent is nonzero in at least one iteration.

    cts:   of each carry, the cotangent that comes from the later iteration, and the one that goes to the earlier
    given: results with a cotangent
    xs:    cotangents of results that are no carries
    """
    earlier = {leaf.serial: [] if ct is None else [ct] for leaf, ct in cts.values()}
    sources = {t.serial for t in (*xs, *[leaf for k, (leaf, _) in cts.items() if k in given])}

    def arrives(leaf: Tensor) -> bool:
        """Return whether a source reaches a cotangent, through any number of iterations."""
        return any(t.serial in sources for t in reached([leaf], lambda t: earlier.get(t.serial, t.inputs)))

    return [k for k, (leaf, _) in cts.items() if arrives(leaf)]


def _moved(body: Body, moving: Sequence[Tensor]) -> list[int]:
    """Return the numbers of the f32 carries that depend on the leaves `moving` through floats, in any iteration."""
    order = toposort(body.roots)
    while True:
        found = depending(order, moving, floats=True)
        carries = [k for k, t in enumerate(body.new) if not found.isdisjoint((t.serial, body.carries[k].serial))]
        floats = [k for k in carries if body.carries[k].dtype.is_float]
        if all(body.carries[k].serial in found for k in floats):
            return floats
        moving = [*moving, *[body.carries[k] for k in floats]]


def _scan_jvp(
    ts: Sequence[Tensor | None], y: Tensor, *inputs: Tensor, body: Body, length: int, reverse: bool
) -> Results:
    """Compute tangents by a second scan, whose carries are the tangents of the carries."""
    _, of_xs, of_consts = body.split(ts)
    moving = _moved(body, [t for t, d in zip(body.leaves, ts) if d is not None])
    carries = {k: inner_leaf("carry", body.carries[k].type) for k in moving}
    xs, consts = (
        [(t, inner_leaf(kind, t.type), d) for t, d in zip(leaves, given) if d is not None]
        for kind, leaves, given in (("x", body.xs, of_xs), ("const", body.consts, of_consts))
    )
    known = {body.carries[k]: leaf for k, leaf in carries.items()} | {t: leaf for t, leaf, _ in (*xs, *consts)}
    wanted = [*carries, *[k for k, t in enumerate(body.each, len(body.new)) if t.dtype.is_float]]
    roots, elements = _from_the_forward(tangents([body.roots[k] for k in wanted], known), y, inputs)
    elements += [(leaf, d) for _, leaf, d in xs]
    shared = [*zip(body.consts, body.split(inputs)[2]), *[(leaf, d) for _, leaf, d in consts]]
    starts = [_or_zeros(ts[k], body.carries[k].type) for k in carries]
    beside = scanned([*carries.values()], elements, shared, starts, roots, length, reverse)
    return Results(dict(zip(wanted, (*beside.last, *beside.each))))


def _scan_batch(n: int, y: Tensor, *inputs: Tensor, body: Body, length: int, reverse: bool) -> Results:
    """Return a scan whose body computes `n` values of each node that differs between elements; others stay single."""
    c, m = len(body.new), len(body.new) + len(body.xs)
    one, leaves, many = _mapped(body, n, [k for k, x in enumerate(inputs) if x.shape[0] == 1 and n > 1])
    roots = [t if x is None else x for t, x in zip(body.roots, many)]
    roots[:c] = [repeated(many[k], t, n) if k not in one else t for k, t in enumerate(body.new)]
    outer = [reshape(x, x.shape[1:]) if k in one else spread(n, x) for k, x in enumerate(inputs)]
    outer[c:m] = [x if k in one else x.swapaxes(0, 1) for k, x in enumerate(outer[c:m], c)]
    pairs = list(zip(leaves, outer))
    made = scanned(leaves[:c], pairs[c:m], pairs[m:], outer[:c], roots, length, reverse)
    items = {k: repeated(None if k in one else t, t, n) for k, t in enumerate(made.last)}
    items |= {k: repeated(None if many[k] is None else t.swapaxes(0, 1), t, n) for k, t in enumerate(made.each, c)}
    return Results(items, (n,))


def _mapped(body: Body, n: int, one: list[int]) -> tuple[list[int], list[Tensor], list[Tensor | None]]:
    """Map one iteration over `n` elements. one: numbers of the leaves whose first value is the same for all elements.

    Returns the numbers of the leaves that keep one value, the leaves of the mapped body, and for each root its
    `n` values, or None if all are equal.
    """
    while True:
        types = [t.type if k in one else TensorType(t.dtype, (n, *t.shape)) for k, t in enumerate(body.leaves)]
        leaves = [t if k in one else inner_leaf("x", types[k]) for k, t in enumerate(body.leaves)]
        given = {t: leaf for k, (t, leaf) in enumerate(zip(body.leaves, leaves)) if k not in one}
        many = batches(body.roots, given, n)
        grown = [k for k in one if k < len(body.new) and many[k] is not None]
        if not grown:
            return one, leaves, many
        one = [k for k in one if k not in grown]


def _from_the_forward(
    roots: Sequence[Tensor], y: Tensor, inputs: Sequence[Tensor]
) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
    """Return the roots of a body that reads saved values of the scan `y`, and the elements of this body.

    roots:    nodes computed from the body of `y`. In the result, leaves take the place of saved values.
    elements: pairs of a leaf and its array: saved values of the forward pass, then the xs.
    """
    body: Body = y.attrs["body"]
    n, place = len(body.new), {t.serial: k for k, t in enumerate(body.each)}
    saved = [(t, inner_leaf("x", t.type)) for t in _saved(roots, body)]
    elements = [(leaf, item(y, n + place[t.serial])) for t, leaf in saved]
    return graft(roots, {t.serial: leaf for t, leaf in saved}), elements + list(zip(body.xs, inputs[n:]))


def _or_zeros(ct: Tensor | None, type: TensorType) -> Tensor:
    return broadcast_to(const(0.0), type.shape) if ct is None else ct


def _saved(roots: Sequence[Tensor], body: Body) -> list[Tensor]:
    """Return the forward values to save for `roots`: carries, and the nearest values that are not recomputed."""
    forward = {t.serial for t in toposort(body.roots)}
    at_hand = {t.serial for t in (*body.carries, *body.new)}
    # otherwise the backward pass would compare a recomputed value with the stored extremum
    at_hand |= computed_once(toposort(roots))
    plain = {t.serial for t in (*body.xs, *body.consts)}

    def kept(t: Tensor) -> bool:
        return t.serial in forward and (t.serial in at_hand or t.prim.family in COSTLY)

    nodes = reached(roots, lambda t: () if kept(t) or t.serial in plain else t.inputs)
    return _finished(sorted(filter(kept, nodes), key=attrgetter("serial")), roots, forward - at_hand)


def _finished(saved: Sequence[Tensor], roots: Sequence[Tensor], forward: set[int]) -> list[Tensor]:
    """Replace a saved value that has one elementwise reader by the reader: save tanh(x @ w + b), not x @ w.

    The reader takes as much memory, and needs no recomputation.
    """
    readers: dict[int, list[Tensor]] = {}
    for t in toposort(roots, min((t.serial for t in saved), default=0)):
        for x in t.inputs:
            readers.setdefault(x.serial, []).append(t)
    wanted = {t.serial for t in roots}
    found: dict[int, Tensor] = {}
    for t in saved:
        while t.serial not in wanted and len(readers.get(t.serial, ())) == 1:
            (reader,) = readers[t.serial]
            if reader.serial not in forward or reader.prim.family != "map" or reader.type != t.type:
                break
            t = reader
        found[t.serial] = t
    return [found[serial] for serial in sorted(found)]


# The type means nothing: a SCAN has many results, and ITEMs read them. `until` is a hyperparameter that holds a length.
# Elements from this one on change no carry, and nothing reads their results: passes/padded.py.
SCAN = register(
    Primitive(
        "scan",
        "scan",
        lambda *xs, body, length, reverse, until=None: TensorType(f32, ()),
        vjp=_scan_vjp,
        jvp=_scan_jvp,  # pyright: ignore[reportArgumentType]
        batch=_scan_batch,  # pyright: ignore[reportArgumentType]
    )
)

# Result `index` of a SCAN: the last value of carry `index`; beyond the carries, all values of a node, stacked.
ITEM = register(
    Primitive(
        "item",
        "item",
        lambda scan, *, index, type: type,
        array=lambda xp, results, *, index, type: results[index],
        vjp=lambda ct, y, scan, *, index, type: (Results({index: ct}),),  # pyright: ignore[reportArgumentType]
        jvp=lambda ts, y, scan, *, index, type: ts[0].items.get(index),
        batch=lambda n, y, scan, *, index, type: scan.items[index],
    )
)


def item(scan: Tensor, index: int) -> Tensor:
    """Return result `index` of a SCAN."""
    body: Body = scan.attrs["body"]
    t = body.roots[index]
    shape = t.shape if index < len(body.new) else (scan.attrs["length"], *t.shape)
    return bind(ITEM, scan, index=index, type=TensorType(t.dtype, shape))


class Scanned(NamedTuple):
    """The results of a scan: the last value of each carry, and the stacked values of each further root."""

    last: list[Tensor]
    each: list[Tensor]


def scanned(
    carries: Sequence[Tensor],
    xs: Sequence[tuple[Tensor, Tensor]],
    consts: Sequence[tuple[Tensor, Tensor]],
    init: Sequence[Tensor],
    roots: Sequence[Tensor],
    length: int,
    reverse: bool,
) -> Scanned:
    """Bind a SCAN. `xs` and `consts`: pairs of a body's leaf and its value; `roots`: the new carries first."""
    leaves = [*carries, *(t for t, _ in xs), *(t for t, _ in consts)]
    if length == 1:  # no loop: launches of one iteration cannot merge with those around it
        elements = [(t, reshape(x, t.shape)) for t, x in xs]
        pairs = (*zip(carries, init), *elements, *consts)
        values = graft(roots, {t.serial: x for t, x in pairs})
        rest = [reshape(t, (1, *t.shape)) for t in values[len(carries) :]]
        return Scanned(values[: len(carries)], rest)
    roots, around = _closed(roots, leaves)
    order = toposort(roots)
    used = {t.serial for t in order}
    xs, consts = ([pair for pair in pairs if pair[0].serial in used] for pairs in (xs, (*consts, *around)))
    new, rest = tuple(roots[: len(carries)]), roots[len(carries) :]
    each = [t for t in order if t.prim.family != "scan"]
    body = Body(tuple(carries), tuple([t for t, _ in xs]), tuple([t for t, _ in consts]), new, tuple(each))
    inputs = [*init, *(x for _, x in xs), *(x for _, x in consts)]
    scan = bind(SCAN, *inputs, body=body, length=length, reverse=reverse)
    place = {t.serial: len(new) + k for k, t in enumerate(each)}
    return Scanned([item(scan, k) for k in range(len(new))], [item(scan, place[t.serial]) for t in rest])


def _closed(roots: Sequence[Tensor], leaves: Sequence[Tensor]) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
    """Return `roots` over leaves of the body alone, and (leaf, tensor) pairs for the tensors they use from outside.

    Values that are the same in all iterations are computed once, outside, unless they are views or made of constants.
    """
    inside = {t.serial for t in leaves}
    bare: set[int] = set()
    for t in toposort(roots):
        if any(x.serial in inside for x in t.inputs):
            inside.add(t.serial)
        elif t.prim.family in FREE and all(x.serial in bare for x in t.inputs):
            bare.add(t.serial)
    own = inside | bare
    outside = beside(roots, lambda t: t.serial in own or t.prim.family == "view")
    outer = [(inner_leaf("const", t.type), t) for t in outside]
    return graft(roots, {t.serial: leaf for leaf, t in outer}), outer
