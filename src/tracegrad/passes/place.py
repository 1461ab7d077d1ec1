"""Give every value the program must deliver memory of its own, at the place where it is wanted."""

from __future__ import annotations

from collections.abc import Container

from tracegrad.ir import Graph, Tensor, bind, rebind, rewrite, toposort
from tracegrad.kernels.reads import IN_MEMORY, base, region_of
from tracegrad.kernels.storage import Storage, analyse
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
        if t.prim.family == "scan":  # it writes over the first values of its carries, so no other value lies there
            carries = len(t.attrs["body"].carries)
            return rebind(t, [*(bind(COPY, x) for x in inputs[:carries]), *map(in_memory, inputs[carries:])])
        return None

    roots = rewrite(graph.roots, rule)
    writes = graph.with_roots(roots).writes
    read = {region_of(t) for t in toposort(roots) if t.prim.name == "leaf"} if writes else set[str]()
    # nothing waits for the parts of a pack before it writes the next
    written = [
        t if t.prim.family == "pack" and name not in read else own(bind(COPY, t) if t.prim.family == "pack" else t)
        for name, t in writes.items()
    ]
    states = {base(t).serial for t in written}  # a result that is a new state is read where the state lies
    kept = [t if base(t).serial in states else own(t) for t in roots[: len(roots) - len(writes)]]
    return graph.with_roots([*kept, *written])


def in_memory(t: Tensor) -> Tensor:
    """`t`, or a copy of it where it is computed by its readers only."""
    return t if base(t).prim.family in (*COMPUTING, *IN_MEMORY, "leaf") else bind(COPY, t)


def settled(storage: Storage) -> Storage:
    """The same, where every new state can be written in place; else with a copy at the end that writes it."""
    misread = {name for serial, name in storage.writes.items() if _reads_elsewhere(storage, serial, name)}
    if misread:
        storage = analyse(_through_copies(storage.graph, misread))
    if storage.sequence is None:
        storage = analyse(_through_copies(storage.graph, storage.writes.values()))
    return storage


def _reads_elsewhere(storage: Storage, serial: int, name: str) -> bool:
    """Is the old array read, where the new one is computed, at other points than are written, as by a flip?"""
    size, leaves = storage.nodes[serial].size, storage.reads[serial].leaves.values()
    return any(qs != {1} or leaf.size != size for leaf, qs in leaves if region_of(leaf) == name)


def _through_copies(graph: Graph, names: Container[str]) -> Graph:
    """The same graph, where copies write some states at the end. Nothing reads a copy, so any order is right.

    A pack between, because its parts are stored: inlined into the copy, the value would be no help.
    """
    copied = {base(t).serial: bind(COPY, pack([t])) for name, t in graph.writes.items() if name in names}

    def new(t: Tensor) -> Tensor:
        copy = copied.get(base(t).serial)
        return t if copy is None else reshape(copy, t.shape)

    return graph.with_roots([new(t) for t in graph.roots])
