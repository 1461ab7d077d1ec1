"""Which values of a graph lie in memory, by which rule, and what reads them: decided once, and handed on as a value."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from functools import cached_property
from typing import TypeVar

from tracegrad.dtypes import f16
from tracegrad.inlining import computed_once
from tracegrad.ir import Graph, Tensor, toposort
from tracegrad.kernels.halves import half_nodes
from tracegrad.kernels.reads import Reads, array_named, base, delivered_parts, reads_of, region_of
from tracegrad.kernels.stored import DELIVERED, PART, Rules, rules_of
from tracegrad.lazy import dataclass

T = TypeVar("T")


@dataclass(frozen=True)
class Storage:
    """A graph, and what of it is stored.

    order:  its nodes, inputs before their readers.
    rules:  why each node is stored or inlined; `rules.depth` has what is stored.
    array:  serial -> the named array that it is computed into; all others are temporaries.
    writes: serial -> the region that it replaces; packs, whose parts do, are not among them.
    roots:  serials of results and states, packs excepted.
    once:   serials of what must be computed once.
    halves: serials of what memory holds in half precision.
    """

    graph: Graph
    order: Sequence[Tensor]
    rules: Rules
    array: Mapping[int, str]
    writes: Mapping[int, str]
    roots: Set[int]
    once: Set[int]
    halves: Set[int]

    @property
    def stored(self) -> Mapping[int, int]:
        """Serials of what is stored, and how many ops each inlines into each other."""
        return self.rules.depth

    @cached_property
    def nodes(self) -> dict[int, Tensor]:
        """By serial."""
        return {t.serial: t for t in self.order}

    @cached_property
    def members(self) -> list[Tensor]:
        """What is stored, in order."""
        return [t for t in self.order if t.serial in self.stored]

    @cached_property
    def reads(self) -> dict[int, Reads]:
        """What each stored node reads."""
        return {t.serial: reads_of(t, self.stored) for t in self.members}

    @cached_property
    def before(self) -> dict[int, list[int]]:
        """What must run before each stored node: what it reads or waits for, and whatever reads what it overwrites."""
        before = {
            s: [p for r in (*reads.stored, *sorted(reads.waits)) for p in self.packed(r)]
            for s, reads in self.reads.items()
        }
        for serial, name in self.writes.items():
            before[serial] += [
                s
                for s, reads in self.reads.items()
                if s != serial and any(region_of(leaf) == name for leaf, _ in reads.leaves.values())
            ]
        return before

    @cached_property
    def sequence(self) -> list[Tensor] | None:
        """The stored nodes, each after all that must run before it.

        None where new states and what reads them need each other's old values: no order of in-place writes is right.
        """
        serials = postorder([t.serial for t in self.members], lambda s: reversed(self.before[s]))
        return None if serials is None else [self.nodes[s] for s in serials]

    def array_name(self, serial: int) -> str:
        """The array that a stored node or a pack lies in."""
        return self.array.get(serial) or f"temp.{self.held_as(serial)}"

    def held_as(self, serial: int) -> str:
        """How memory holds the elements of a stored node or a pack: "f32", "f16" or "i32"."""
        return f16.storage if serial in self.halves else self.nodes[serial].dtype.storage

    def packed(self, serial: int) -> list[int]:
        """The stored nodes behind a serial: itself, or the parts of a pack."""
        if serial in self.stored:
            return [serial]
        return [s for x in self.nodes[serial].inputs for s in self.packed(base(x).serial)]

    def parts_read(self, t: Tensor) -> list[int]:
        """What a stored node reads as parts of packs: from memory, where they are not before their kernel has run."""
        return [part for s in self.reads[t.serial].stored if s not in self.stored for part in self.packed(s)]


def analyse(graph: Graph) -> Storage:
    """Decide what is stored of a graph whose results have a place: see `passes.place`."""
    order = toposort(graph.roots)
    roots = {base(t).serial: base(t) for t in graph.roots if t.prim.family != "pack" and t.size}
    parts = {t.serial: t for t in delivered_parts(order)}
    once = computed_once(order, [*roots.values(), *parts.values()])
    rules = rules_of(order, dict.fromkeys(parts, PART) | dict.fromkeys(roots, DELIVERED), once)
    halves: set[int] = set()
    if graph.precision == "f16":
        halves = half_nodes(order, rules, {base(t).serial for t in graph.roots})
    writes = {base(t).serial: name for name, t in graph.writes.items() if t.prim.family != "pack"}
    return Storage(graph, order, rules, placed_arrays(graph), writes, roots.keys(), once, halves)


def placed_arrays(graph: Graph) -> dict[int, str]:
    """Serials of the values that must be computed into a named array: results, new state, and parts of packed state."""
    out = {base(t).serial: f"output.{t.dtype.storage}" for t in graph.results.values()}
    for name, t in graph.writes.items():
        out[base(t).serial] = array_named(name, t.dtype)
        if t.prim.family == "pack":
            out |= {base(x).serial: name for x in t.inputs}
    return out


def postorder(roots: Sequence[T], before: Callable[[T], Iterable[T]]) -> list[T] | None:
    """Each after those before it; None if one is before itself."""
    done: set[T] = set()
    open_: set[T] = set()
    out: list[T] = []
    stack = [(x, False) for x in reversed(roots)]
    while stack:
        x, ready = stack.pop()
        if x in done:
            continue
        if ready:
            done.add(x)
            out.append(x)
        elif x in open_:
            return None
        else:
            open_.add(x)
            stack.append((x, True))
            stack.extend((y, False) for y in reversed([*before(x)]) if y not in done)
    return out
