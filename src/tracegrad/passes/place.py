"""Give every result of the program its own memory, at its final place."""

from __future__ import annotations

from collections.abc import Container

from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor, bind, rebind, rewrite, toposort
from tracegrad.kernels.reads import IN_MEMORY, base, region_of
from tracegrad.kernels.storage import COMPUTED, Storage, analyse
from tracegrad.prims.elementwise import COPY
from tracegrad.prims.folds import pack
from tracegrad.prims.views import reshape
from tracegrad.sites import rewriting

COMPUTING = (*COMPUTED, "map", "gather")


def place_results(graph: Graph) -> Graph:
    """Copy values that cannot be computed in place: leaves, views, and values needed in two places.

    Afterwards every root, and every part of a pack, is a reshape of a computing node that no other root or part uses.
    Only outputs that equal a new state share its node.
    """
    claimed: set[int] = set()

    def own(t: Tensor) -> Tensor:
        b = base(t)
        if b.prim.family in COMPUTING and b.serial not in claimed:
            claimed.add(b.serial)
            return t
        copied = copy_of(t)
        claimed.add(copied.serial)
        return copied

    def rule(t: Tensor, inputs: tuple[Tensor, ...]) -> Tensor | None:
        if t.prim.family == "pack":
            return rebind(t, [own(x) for x in inputs])
        if t.prim.family == "scan":  # a scan overwrites the initial values of its carries, so each needs a copy
            carries = len(t.attrs["body"].carries)
            return rebind(t, [*map(copy_of, inputs[:carries]), *map(in_memory, inputs[carries:])])
        return None

    roots = rewrite(graph.roots, rule)
    writes = graph.with_roots(roots).writes
    read = {region_of(t) for t in toposort(roots) if t.prim.name == "leaf"} if writes else set[str]()
    # A state that is read needs the copy of a pack: nothing waits for one part before the next part is written.
    written = [
        t if t.prim.family == "pack" and name not in read else own(copy_of(t) if t.prim.family == "pack" else t)
        for name, t in writes.items()
    ]
    states = {base(t).serial for t in written}  # a result that equals a new state is read from the state's place
    kept = [t if base(t).serial in states else own(t) for t in roots[: len(roots) - len(writes)]]
    return graph.with_roots([*kept, *written])


def copy_of(t: Tensor) -> Tensor:
    """Return a copy of `t` in memory of its own, with the site of `t`."""
    with rewriting() as here:
        here.site = t.site
        return bind(COPY, t)


def in_memory(t: Tensor) -> Tensor:
    """Return `t`, or a copy of it if it is computed only inside its readers, as a view is."""
    return t if base(t).prim.family in (*COMPUTING, *IN_MEMORY, "leaf") else copy_of(t)


def settled(storage: Storage) -> Storage:
    """Return the storage if every new state can be written in place; else let a copy at the end write the state."""
    misread = {name for serial, name in storage.writes.items() if _reads_elsewhere(storage, serial, name)}
    if misread:
        storage = analyse(_through_copies(storage.graph, misread))
    if storage.sequence is None:
        storage = analyse(_through_copies(storage.graph, storage.writes.values()))
    return storage


def _reads_elsewhere(storage: Storage, serial: int, name: str) -> bool:
    """Return whether the new array reads the old one at other points than it writes, as a flip does."""
    size, leaves = storage.nodes[serial].size, storage.reads[serial].leaves.values()
    return any(qs != {1} or leaf.size != size for leaf, qs in leaves if region_of(leaf) == name)


def _through_copies(graph: Graph, names: Container[str]) -> Graph:
    """Return the graph with copies that write some states at the end. Nothing reads a copy, so any order is right.

    A pack comes between value and copy, because its parts are stored: a value inlined into the copy would not help.
    """
    copied = {base(t).serial: copy_of(pack([t])) for name, t in graph.writes.items() if name in names}

    def new(t: Tensor) -> Tensor:
        copy = copied.get(base(t).serial)
        return t if copy is None else reshape(copy, t.shape)

    return graph.with_roots([new(t) for t in graph.roots])
