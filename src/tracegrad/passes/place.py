"""Give every value the program must deliver memory of its own, at the place where it is wanted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tracegrad.ir import Graph, Tensor, bind, rebind, rewrite, toposort
from tracegrad.kernels.fuse import array_of
from tracegrad.kernels.reads import base, reads_of
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
        return rebind(t, tuple(own(x) for x in inputs)) if t.prim.family == "pack" else None

    roots = rewrite(graph.roots, rule)
    writes = graph.with_roots(roots).writes
    kept = [own(t) for t in roots[: len(roots) - len(writes)]]
    crossed = _crossed(writes)
    return graph.with_roots([*kept, *(_written(name, t, own, roots, crossed) for name, t in writes.items())])


def write_through_copies(graph: Graph) -> Graph:
    """The same graph whose states are all written by a copy at the end. Nothing reads a copy, so any order is right.

    A pack between, because its parts are stored: inlined into the copy, the value would be no help.
    """
    results = [*graph.outputs.values(), *graph.captures.values()]
    copied = [t if t.prim.family == "pack" else bind(COPY, pack([t])) for t in graph.writes.values()]
    return graph.with_roots([*results, *copied])


def _written(
    name: str, t: Tensor, own: Callable[[Tensor], Tensor], roots: Sequence[Tensor], crossed: set[str]
) -> Tensor:
    """The new value of a persistent array; through a copy if the old value is still read after it exists."""
    if t.prim.family == "pack":
        read = any(x.prim.name == "leaf" and array_of(x) == name for x in toposort(roots))
        return own(bind(COPY, t)) if read else t  # nobody waits for the parts of a pack before writing the next
    # A pack, because its parts are stored: inlined into the copy it would be no help.
    if name in crossed or _reads_elsewhere(name, base(t)):
        return own(bind(COPY, pack([own(t)])))
    if _read_later(name, t, roots):
        return own(bind(COPY, reshape(t, (t.size,))))
    return own(t)


def _reads_elsewhere(name: str, t: Tensor) -> bool:
    """Does the kernel that computes `t` read the old array at other points than it writes, as a flip or a product?"""
    stored = {x.serial for x in toposort([t]) if x.prim.family in COMPUTED}
    leaves = reads_of(t, stored).leaves.values()
    return any(qs != {1} or leaf.size != t.size for leaf, qs in leaves if array_of(leaf) == name)


def _crossed(writes: Mapping[str, Tensor]) -> set[str]:
    """Arrays to write through a copy, because two new values need each other's old one: neither could be first."""
    needs = {name: _old_arrays(t) & writes.keys() - {name} for name, t in writes.items()}
    crossed: set[str] = set()
    for name in writes:
        seen: set[str] = set()
        stack = list(needs[name] - crossed)
        while stack:
            other = stack.pop()
            if other not in seen:
                seen.add(other)
                stack.extend(needs[other] - crossed)
        if name in seen:
            crossed.add(name)
    return crossed


def _old_arrays(t: Tensor) -> set[str]:
    """Persistent arrays that one kernel computing `t` may read."""
    found: set[str] = set()
    seen: set[int] = set()
    stack = [t]
    while stack:
        x = stack.pop()
        if x.prim.name == "leaf" and x.attrs["role"] == "state":
            found.add(x.attrs["name"])
        elif x.serial not in seen and (x is t or x.prim.family in ("map", "view", "gather")):
            seen.add(x.serial)
            stack.extend(x.inputs)
    return found


def _read_later(name: str, new: Tensor, roots: Sequence[Tensor]) -> bool:
    """Does something that depends on `new` also read the old array `name`?"""
    later = {base(new).serial}
    old: set[int] = set()
    for t in toposort(roots):
        if t.prim.name == "leaf" and t.attrs["role"] == "state" and t.attrs["name"] == name:
            old.add(t.serial)
        elif t.serial not in later and any(x.serial in later for x in t.inputs):
            later.add(t.serial)
            if any(x.serial in old for x in t.inputs):
                return True
        elif t.prim.family in ("view", "map") and any(x.serial in old for x in t.inputs):
            old.add(t.serial)
    return False
