"""Give every value the program must deliver memory of its own, at the place where it is wanted."""

from __future__ import annotations

from collections.abc import Callable

from tracegrad.ir import Graph, Tensor, bind, rebind, rewrite, toposort
from tracegrad.kernels.clusters import array_of
from tracegrad.kernels.reads import IN_MEMORY, base, reads_of
from tracegrad.kernels.stored import COMPUTED
from tracegrad.prims.elementwise import COPY
from tracegrad.prims.folds import pack
from tracegrad.prims.views import reshape

COMPUTING = (*COMPUTED, "map", "gather")


def place_results(graph: Graph) -> Graph:
    """Copy what cannot be computed in place: leaves, views, and values wanted in two places.

    Afterwards every root, and every part of a pack, is a reshape of a computing node that nothing else claims.
    """
    claimed: set[int] = set()

    def own(t: Tensor) -> Tensor:
        b = base(t)
        if b.prim.family in COMPUTING and b.serial not in claimed:
            claimed.add(b.serial)
            return t
        copied = bind(COPY, t)
        claimed.add(copied.serial)
        return copied

    def rule(t: Tensor, inputs: tuple[Tensor, ...]) -> Tensor | None:
        if t.prim.family == "pack":
            return rebind(t, [own(x) for x in inputs])
        if t.prim.family == "scan":  # it writes over the first values of its carries, so they are nobody else's
            carries = len(t.attrs["body"].carries)
            return rebind(t, [*(bind(COPY, x) for x in inputs[:carries]), *map(in_memory, inputs[carries:])])
        return None

    roots = rewrite(graph.roots, rule)
    writes = graph.with_roots(roots).writes
    nodes = toposort(roots) if writes else []
    stored = {t.serial for t in nodes if t.prim.family in COMPUTED}
    read = {array_of(t) for t in nodes if t.prim.name == "leaf"}
    written = [_written(name, t, own, stored, name in read) for name, t in writes.items()]
    states = {base(t).serial for t in written}  # a result that is a new state is read where the state lies
    kept = [t if base(t).serial in states else own(t) for t in roots[: len(roots) - len(writes)]]
    return graph.with_roots([*kept, *written])


def in_memory(t: Tensor) -> Tensor:
    """`t`, or a copy of it where it is computed by its readers only."""
    return t if base(t).prim.family in (*COMPUTING, *IN_MEMORY, "leaf") else bind(COPY, t)


def write_through_copies(graph: Graph) -> Graph:
    """The same graph whose states are all written by a copy at the end. Nothing reads a copy, so any order is right.

    A pack between, because its parts are stored: inlined into the copy, the value would be no help.
    """
    copied = [t if t.prim.family == "pack" else bind(COPY, pack([t])) for t in graph.writes.values()]
    states = {base(t).serial: new for t, new in zip(graph.writes.values(), copied)}
    given = graph.results.values()
    results = [reshape(states[base(t).serial], t.shape) if base(t).serial in states else t for t in given]
    return graph.with_roots([*results, *copied])


def _written(name: str, t: Tensor, own: Callable[[Tensor], Tensor], stored: set[int], read: bool) -> Tensor:
    """The new value of a persistent array; through a copy if the old value, if it is `read`, is so after it exists."""
    if t.prim.family == "pack":
        return own(bind(COPY, t)) if read else t  # nobody waits for the parts of a pack before writing the next
    # A pack, because its parts are stored: inlined into the copy it would be no help.
    if read and _reads_elsewhere(name, base(t), stored):
        return own(bind(COPY, pack([own(t)])))
    return own(t)


def _reads_elsewhere(name: str, t: Tensor, stored: set[int]) -> bool:
    """Does the kernel that computes `t` read the old array at other points than it writes, as a flip or a product?"""
    leaves = reads_of(t, stored).leaves.values()
    return any(qs != {1} or leaf.size != t.size for leaf, qs in leaves if array_of(leaf) == name)
