"""Compile one program for all sizes that calls choose, up to a capacity for each: its *room*.

A program of `compiler/sized.py` computes exactly the elements of a run. But only one size can vary there, along one
axis of each value. All other sizes have room: the program computes in the shapes of the largest sizes. A size that is
the length of several axes, as in the scores of attention, has room too.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any, NamedTuple

from tracegrad.compiler.build import Built, ProgramSource, uncollected
from tracegrad.compiler.followed import Followed, follow_sizes
from tracegrad.compiler.inputtypes import input_ranges
from tracegrad.compiler.numbers import At, Number, constants_of, counted, numbers_of, pairs_of, values_at
from tracegrad.compiler.pipeline import lift
from tracegrad.compiler.sized import LEAST, Whole, prime_from, shared_program, whole_of
from tracegrad.compiler.uniform import Pair, check_graphs
from tracegrad.dtypes import Shape, i32
from tracegrad.errors import CompileError, DTypeError, ShapeError
from tracegrad.hypers import PREFIX
from tracegrad.ir import ambient
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.kernels.form import UnsizedError
from tracegrad.nn.module import children, like
from tracegrad.passes.alike import Comparison
from tracegrad.passes.growth import AmbiguousError, Axis, Sizes
from tracegrad.passes.padded import Padded, in_room, lengths_of
from tracegrad.passes.padding import replaced
from tracegrad.prims.leaves import CONST
from tracegrad.program import Field

SourceAt = Callable[[Sequence[int]], ProgramSource]  # the source of a step or forward, at some sizes
# Distances of the sizes in the second trace from the room. If two traces are ambiguous, the next distances are tried
APART = (5, 7, 11, 13, 17, 19), (7, 13, 5, 19, 11, 17), (11, 5, 17, 7, 19, 13)
NEAR = (2, 3, 5, 7, 11, 13)  # for small rooms, since a second trace at larger sizes could be refused
LEAST_ABOVE = 23  # the third prime from `LEAST` on


class Cut(NamedTuple):
    """The part of a value in the shapes of the room that is the result of a run."""

    room: Shape  # the parts of all axes
    counts: Shape  # how many of each part count
    shape: Shape


class Fitted(NamedTuple):
    """A program at the sizes of a call, and how its inputs and results fit into the room."""

    built: Built
    fields: Mapping[str, Field]  # inputs, as calls give them
    inputs: Mapping[str, Shape]  # shapes of inputs that are larger in the room
    results: Mapping[str, Cut]


class Rooms(NamedTuple):
    """A program that serves all sizes up to its room: a capacity for each size that calls choose."""

    built: Built  # at the room
    sizes: Sizes  # of both traces; the first are the room
    source_at: SourceAt
    wholes: tuple[Whole, Whole]
    results: Mapping[str, tuple[Axis, ...]]  # how the axes of each result grow; {} if no size has room
    names: Sequence[str]
    constants: Sequence[At]  # of both traces
    numbers: Sequence[Number]
    followed: Followed | None  # how values depend on the sizes, if one trace shows it
    shown: dict[tuple[int, ...], Mapping[str, Any] | None]  # sizes -> their numbers, or None if their trace differed
    specs: tuple[Mapping[str, Any], Mapping[str, Any]]
    exact: int | None  # the index of the size that runs compute exactly

    @property
    def room(self) -> dict[str, int]:
        """The largest sizes, by name."""
        return dict(zip(self.names, self.sizes.one))

    def fits(self, sizes: Sequence[int]) -> bool:
        """Return whether there is room for some sizes."""
        return all(n <= m for n, m in zip(sizes, self.sizes.one))

    def at(self, sizes: Sequence[int]) -> Fitted | None:
        """Return the program at some sizes; None if it does not serve them.

        Unless `followed` knows the sizes, the user's functions are traced at them too. Python's own functions can read
        a size, so only a trace shows that `if math.gcd(x.shape[0], 16) == 16` changes nothing here.
        """
        numbers = self._numbers(tuple(sizes)) if self.fits(sizes) else None
        if numbers is None:
            return None
        lengths = {PREFIX + name: (i32.numpy, f.at(sizes)) for name, f in lengths_of(self.names, self.sizes).items()}
        numbers = {**numbers, **lengths}
        then = _Then(self.sizes, sizes)
        specs, results = self.shapes_at(sizes)
        program = self.built.program if self.exact is None else self.built.program.at(sizes[self.exact])
        known = {f.name: f for f in program.inputs}
        types, others = (w.traced.inputs for w in self.wholes)
        shapes: dict[str, Shape] = {n: then.of(t.shape, others[n].shape) for n, t in types.items() if n in known}
        given = {
            n: replace(known[n], shape=shape, spec={**known[n].spec, **specs.get(n, {})}) for n, shape in shapes.items()
        }
        first, second = (w.traced.sites for w in self.wholes)
        sites = tuple([s._replace(type=then.of(s.type, z.type)) for s, z in zip(first, second)])
        now, most = (_listed(self.names, n) for n in (sizes, self.sizes.one))
        built = self.built._replace(
            program=program,
            sites=sites,
            numbers={name: value for name, value in numbers.items() if name in known},
            serves=f"at {now}, of a program for sizes up to {most}",
        )
        larger = {n: known[n].shape for n, shape in shapes.items() if known[n].shape != shape}
        return Fitted(built, known | given, larger, results)

    def _numbers(self, sizes: tuple[int, ...]) -> Mapping[str, Any] | None:
        """Return the constants of a trace at some sizes; None if the trace differs."""
        numbers = self.followed.at(sizes) if self.followed is not None else None
        if numbers is None and sizes not in self.shown:
            try:
                self.shown[sizes] = self._traced(sizes)
            except UnsizedError:
                self.shown[sizes] = None
        return self.shown[sizes] if numbers is None else numbers

    def graph_at(self, sizes: Sequence[Any]) -> Graph:
        """Return the graph of a trace at some sizes, without composites."""
        return whole_of(self.source_at(sizes)).graph

    def shapes_at(self, sizes: Sequence[Any]) -> tuple[dict[str, Any], dict[str, Cut]]:
        """Return the specs of inputs, and the parts that are results, at some sizes."""
        room = self.sizes.one if self.exact is None else replaced(self.sizes.one, self.exact, sizes[self.exact])
        growing = {name: axes for name, axes in self.results.items() if any(a.grows for a in axes)}
        cuts = {name: _cut(axes, room, sizes) for name, axes in growing.items()}
        return _Then(self.sizes, sizes).of(*self.specs), cuts

    @uncollected
    @ambient.restored
    def _traced(self, sizes: Sequence[int]) -> Mapping[str, Any]:
        """Return the constants of a trace at some sizes. Raises UnsizedError if the trace differs."""
        third = whole_of(self.source_at(sizes))
        self.wholes[0].check_form(third)
        first, second = self.wholes
        if self.exact is not None and len(sizes) == 1:
            # also refuses size 1 where it would be broadcast
            check_graphs(first.graph, third.graph, Pair(self.sizes.one[0], sizes[0]))
        else:
            _Then(self.sizes, sizes).check((first.graph, second.graph, third.graph))
        known = values_at(third.graph, self.constants)
        return {n.field: (n.dtype.numpy, known[n.at]) for n in self.numbers}


class _Then(Comparison):
    """Derives from two traces the values that a trace at other sizes must have."""

    def __init__(self, sizes: Sizes, at: Sequence[int]) -> None:
        self.sizes, self.then = sizes, at
        self.known: dict[tuple[int, int], int] = {}

    def of(self, one: Any, other: Any) -> Any:
        """Return a value at the other sizes, each number by its formula. Raises UnsizedError if a number has none."""
        if type(one) is int is type(other) and one != other:
            pair = one, other
            if pair not in self.known:
                self.known[pair] = self.sizes.length(pair).at(self.then)
            return self.known[pair]
        parts, others = children(one), children(other)
        if parts and others and parts.keys() == others.keys():
            found = {k: self.of(x, others[k]) for k, x in parts.items()}
            return found if isinstance(one, dict) else like(one, found.values())
        if type(one) is not type(other) or repr(one) != repr(other):
            raise UnsizedError(f"{one} is {other} at other sizes")
        return one

    def same(self, node: Tensor, name: str, values: Sequence[Any]) -> bool:
        """Return whether a third trace has the value that two traces predict. Constants are compared elsewhere."""
        one, other, third = values
        return (node.prim is CONST and name == "value") or self.of(one, other) == third


def _listed(names: Sequence[str], sizes: Sequence[int]) -> str:
    return " and ".join([f"{name}={n}" if len(names) > 1 else str(n) for name, n in zip(names, sizes)])


def _cut(axes: Sequence[Axis], room: Sequence[int], sizes: Sequence[int]) -> Cut:
    """Return the part of a value of the room that counts at some sizes."""
    whole: list[int] = []
    counts: list[int] = []
    for a in axes:
        if a.parts is None:  # all elements are equal, so the first ones are right
            whole.append(a.length.at(room))
            counts.append(a.length.at(sizes))
            continue
        whole += [p if isinstance(p, int) else p.at(room) for p in a.parts]
        counts += [p if isinstance(p, int) else p.at(sizes) for p in a.parts]
    return Cut(tuple(whole), tuple(counts), tuple([a.length.at(sizes) for a in axes]))


@uncollected
@ambient.restored
def build_rooms(source_at: SourceAt, room: Mapping[str, int], exact_name: str | None, gpu: bool) -> Rooms:
    """Return the program that serves all sizes up to `room`.

    source_at:  takes sizes in the order of `room`.
    exact_name: the name of the size that runs compute exactly, if any. Its capacity can be a few more than its room.
    gpu:        True if the program runs in the languages of GPUs.
    Raises: UnsizedError with the reason why one program cannot serve them.
    """
    sizes = list(room.values())
    near = [NEAR] if _too_small(sizes, APART[0]) and not _too_small(sizes, NEAR) else []
    for apart in (*near, *APART):
        with suppress(AmbiguousError):
            return _built(source_at, room, exact_name, gpu, apart)
    raise UnsizedError("traces do not show how a length depends on the sizes")


def _built(
    source_at: SourceAt, room: Mapping[str, int], exact_name: str | None, gpu: bool, apart: Sequence[int]
) -> Rooms:
    names = list(room)
    exact = names.index(exact_name) if exact_name is not None else None
    at, wholes = _traces(source_at, list(room.values()), exact, apart)
    for whole in wholes[1:]:
        wholes[0].check_form(whole)
    one, other, last = wholes[0], wholes[1], wholes[-1]
    pair = Pair(at[0][exact], at[-1][exact]) if exact is not None else None
    if pair:  # checked first, because the steps below take longer
        check_graphs(one.graph, last.graph, pair)
    sizes = Sizes(at[0], at[1])
    numbers, places = numbers_of(one.graph, other.graph)
    constants = pairs_of(one.graph, other.graph)
    followed = follow_sizes(lambda n: whole_of(source_at(n)).graph, sizes, numbers, len(places[0]), exact)
    beside = other.graph
    if followed:
        sizes, beside = sizes._replace(known=followed.lengths, formula=followed.length), followed.graph
        places[1] = numbers_of(one.graph, beside)[1][1]
    specs = input_ranges(one.traced.graph), input_ranges(other.traced.graph)
    known = _Then(sizes, sizes.one)  # raises now what `Rooms.at` would raise at each size
    known.of(*specs)
    known.of(*[[t.shape for t in w.traced.inputs.values()] for w in (one, other)])
    known.of(*[[s.type for s in w.traced.sites] for w in (one, other)])
    given = [counted(one.graph, places[0]), counted(beside, places[1])]
    padded = [Padded(graph, {}) for graph in given]
    if names != [exact_name]:
        if pair:
            values_at(last.graph, constants)  # raises if a constant differs from those of the other traces
            alike = zip(constants_of(one.graph), constants_of(last.graph))
            given.append(
                counted(last.graph, {t.serial: places[0][x.serial] for x, t in alike if x.serial in places[0]})
            )
        try:  # first, because masks would hide the sums of loops
            padded = _in_rooms([lift(graph) for graph in given], sizes, at[-1], names, exact)
        except UnsizedError:  # such as: memory that is worth it at one size only
            padded = _in_rooms(given, sizes, at[-1], names, exact)
    ends = None if gpu else tuple([name for name, f in lengths_of(names, sizes).items() if f.size != exact])
    graphs = [replace(r.graph, ends=ends) for r in padded]
    try:
        if pair:
            built = shared_program((one.traced, last.traced), graphs, pair, gpu)
        else:
            built = one.traced._replace(graph=graphs[0]).compiled()
    except (CompileError, ShapeError, DTypeError) as e:
        raise UnsizedError(str(e)) from e
    both, results = (one, other), padded[0].results
    return Rooms(built, sizes, source_at, both, results, names, constants, numbers, followed, {}, specs, exact)


def _in_rooms(
    graphs: Sequence[Graph], sizes: Sizes, third: tuple[int, ...], names: Sequence[str], exact: int | None
) -> list[Padded]:
    """Return what `in_room` makes of the first graph and, if there is a third, of this one. third: the sizes of it."""
    one, other, *last = graphs
    found = [in_room(one, other, sizes, names, exact)]
    return found + [in_room(graph, other, sizes._replace(one=third), names, exact) for graph in last]


def _too_small(room: Sequence[int], apart: Sequence[int]) -> bool:
    """Return whether a size is less than half as large in a trace so far below the room: T // 4 could be 1 there."""
    return any(2 * (n - d) < n for n, d in zip(room, apart))


def _traces(
    source_at: SourceAt, room: Sequence[int], exact: int | None, apart: Sequence[int]
) -> tuple[list[tuple[int, ...]], list[Whole]]:
    """Return sizes, and the traces at them: the room, and sizes that all differ from it.

    If one size is exact, primes stand for it. The last trace is at the room with another prime.
    """
    far = [(n, d) for k, (n, d) in enumerate(zip(room, apart)) if k != exact]
    up = not far or _too_small([n for n, _ in far], [d for _, d in far])
    # all sizes move in one direction, so that their products differ, too
    other = [n + d if up else n - d for n, d in zip(room, apart)]
    if exact is None:
        at = [tuple(room), tuple(other)]
        return at, [whole_of(source_at(n)) for n in at]
    p = prime_from(max(room[exact], LEAST if up else LEAST_ABOVE))
    while True:
        q = _prime_beside(p, up)
        between = [replaced(other, exact, _prime_beside(q, up))] if far else []
        at = [replaced(room, exact, p), *between, replaced(room, exact, q)]
        wholes = [whole_of(source_at(n)) for n in at]
        one, last = ({n for t in wholes[k].graph.nodes for n in t.shape if n} for k in (0, -1))
        if not any(n % m == 0 for n in one & last for m in (p, q)):
            return at, wholes
        p = prime_from(p + 1)


def _prime_beside(p: int, up: bool) -> int:
    """Return the next prime after `p` if `up`, else the last prime before `p`."""
    n = p + 1 if up else p - 1
    while not up and n != prime_from(n):
        n -= 1
    return prime_from(n)
