"""How the constants of a program depend on its sizes, found by one trace.

A program for many sizes must know, for each size, that a trace at this size has the same nodes, and which constants
the trace has. One trace shows both: its sizes are objects that record all computations on them (`symbols.py`).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple, cast

from tracegrad.compiler.numbers import At, Number, constants_of
from tracegrad.compiler.symbols import NUMBERS, Record, Reference, Symbol
from tracegrad.dtypes import DType
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.kernels.form import UnsizedError
from tracegrad.passes.alike import Comparison
from tracegrad.passes.growth import Grown, Length, Sizes
from tracegrad.prims.leaves import CONST
from tracegrad.transforms.loops import Body, graph_of

PLAIN = (*NUMBERS, str, bytes, type(None), DType)
NOT_SEEN = {"tracegrad", *sys.stdlib_module_names}  # modules whose own instructions are not compared
Ran = list[tuple[Any, int]]  # the instructions of Python that ran: code and place


class Followed(NamedTuple):
    """For each value that differs between traces: how it is computed from the sizes."""

    record: Record
    graph: Graph  # of the trace, with symbols
    known: Mapping[int, Length]  # the recorded numbers that are lengths, by index
    fixed: Sequence[int]  # indices of recorded numbers that are the same at all sizes of the program
    growing: Sequence[tuple[int, Length]]  # indices of recorded numbers that depend on sizes, and their formulas
    numbers: Sequence[tuple[Number, Sequence[int]]]  # each with the indices of the recorded numbers that equal it

    @property
    def lengths(self) -> tuple[Length, ...]:
        """The lengths that the trace computed."""
        return tuple(dict.fromkeys(self.known.values()))

    def length(self, n: Any) -> Length | None:
        """Return the formula of a number of the graph; None if it is not a recorded length."""
        return self.known.get(n.index) if type(n) is Symbol else None

    def at(self, sizes: Sequence[int]) -> Mapping[str, Any] | None:
        """Return the numbers at some sizes; None if a trace at these could differ."""
        values = self.record.at(sizes)
        if values is None or not self.agrees(values, sizes):
            return None
        return {number.field: (number.dtype.numpy, values[ks[0]]) for number, ks in self.numbers}

    def agrees(self, values: Sequence[Any], sizes: Sequence[int]) -> bool:
        """Return whether the recorded values at some sizes equal the values that the program uses there."""
        then = self.record.values
        return not (
            any(repr(values[k]) != repr(then[k]) for k in self.fixed)
            or any(values[k] != length.at(sizes) for k, length in self.growing)
            or any(repr(values[k]) != repr(values[ks[0]]) for _, ks in self.numbers for k in ks)
        )


GraphAt = Callable[[Sequence[Any]], Graph]


def recorded(graph_at: GraphAt, sizes: Sequence[int]) -> tuple[Record, Graph] | None:
    """Trace on numbers that record all computations on them. Return record and graph; None if the record is incomplete.

    A record is incomplete if a size became a plain number, or if Python ran other instructions than on plain sizes.
    This happens after `type(n) is int`, for instance.
    """
    record, on_plain = Record(sizes), lambda: graph_at(sizes)
    graphs: list[Graph] = []
    try:
        if sys.version_info >= (3, 12):  # Python reports a function's instructions only from its second call on
            graphs.append(_watched(on_plain)[0])
        graph, ran = _watched(lambda: graph_at(record.sizes()))
        plain, plain_ran = _watched(on_plain)
    except UnsizedError:  # for instance, a function in C refused a symbol: it takes only an int
        return None
    record.ended = True
    alike = all(_is(g, record.values, plain) for g in (graph, *graphs))
    return (record, graph) if alike and not record.escaped and ran == plain_ran else None


def follow_sizes(
    graph_at: GraphAt, sizes: Sizes, numbers: Sequence[Number], constants: int, exact: int | None
) -> Followed | None:
    """Return how values depend on the sizes; None if a trace does not show it.

    numbers:   of the graphs at the two sizes.
    constants: how many constants of each graph are one of the numbers.
    exact:     the index of a size without padding. Programs have no lengths that are quotients of it.
    """
    # not at the room: its sizes are powers of two, as widths of models are, so comparisons would often find them equal
    found = recorded(graph_at, sizes.other)
    if found is None:
        return None
    record, graph = found
    given: dict[At, list[int]] = {n.at: [] for n in numbers}
    room = record.computed(sizes.one)
    # A trace in which two sizes are equal can take another branch, and still give the same graph
    if room is None or not (record.holds(room) or _is(graph, room, graph_at(sizes.one))):
        return None
    sized = set(_numbers_in(graph))
    for t in constants_of(graph):
        value: Any = t.attrs["value"]
        if type(value) is not Symbol:
            continue
        at = repr(room[value.index]), repr(value.value)
        if at in given:
            given[at].append(value.index)
        else:
            sized.add(value.index)
    if sum(map(len, given.values())) != constants:
        return None
    known = {k: n for k, n in lengths_in(record).items() if all(f.by == 1 or f.size != exact for f in n.factors)}
    fixed = [k for k in sized if repr(room[k]) == repr(record.values[k]) and k not in known]
    sizes = sizes._replace(known=tuple(dict.fromkeys(known.values())))
    try:
        growing = [(k, known.get(k) or sizes.length((room[k], record.values[k]))) for k in sized if k not in fixed]
    except UnsizedError:
        return None
    made = Followed(record, graph, known, fixed, growing, [(n, list(dict.fromkeys(given[n.at]))) for n in numbers])
    return made if made.agrees(room, sizes.one) else None


def lengths_in(record: Record) -> dict[int, Length]:
    """Return the recorded numbers that are lengths, by index, such as 2 * T, T - 1, B * T and (T + 1) // 2."""
    known: dict[int, Term] = {k: Length(1, (Grown(k),)) for k in range(record.count)}  # `times` can be negative
    for index, (compute, arguments) in enumerate(record.instructions, record.count):
        rule = RULES.get(compute.__name__)
        values = [known.get(int(x)) if type(x) is Reference else x for x in arguments]
        made = rule(*values) if rule and all(type(x) in (int, Length) for x in values) else None
        if made is not None:
            known[index] = made
    return {k: length for k, length in known.items() if isinstance(length, Length) and length.times > 0}


Term = Length | int


def _sum(a: Term, b: Term) -> Length | None:
    a, b = (a, b) if isinstance(a, Length) else (b, a)
    assert isinstance(a, Length)
    if isinstance(b, Length):
        return _sum_of_both(a, b)
    one = len(a.factors) == 1 and b % a.times == 0
    return Length(a.times, (a.factors[0].plus(b // a.times),)) if one else None


def _sum_of_both(a: Length, b: Length) -> Length | None:
    """Return the sum of equal lengths, or T - T // 2."""
    if a.factors == b.factors:
        return Length(a.times + b.times, a.factors) if a.times != -b.times else None
    if (a.times, b.times) == (-1, 1):
        a, b = b, a
    if (a.times, b.times, len(a.factors), len(b.factors)) != (1, -1, 1, 1):
        return None
    (whole, half) = (*a.factors, *b.factors)
    if (whole.size, whole.by, half.by) != (half.size, 1, 2):
        return None
    return Length(1, (Grown(whole.size, 2 * whole.more - half.more + 1, 2),))


def _minus(a: Term) -> Term:
    return Length(-a.times, a.factors) if isinstance(a, Length) else -a


def _product(a: Term, b: Term) -> Length | None:
    times = [x.times if isinstance(x, Length) else x for x in (a, b)]
    factors = sorted([f for x in (a, b) if isinstance(x, Length) for f in x.factors])
    return Length(times[0] * times[1], tuple(factors)) if all(times) else None


def _quotient(a: Term, n: Term) -> Length | None:
    """Return a length divided by a number and rounded down. A negative one is -ceil(-a / n)."""
    if not (isinstance(a, Length) and isinstance(n, int)) or n < 1:
        return None
    if a.times % n == 0:
        return Length(a.times // n, a.factors)
    factor, *more = a.factors
    if more or n % abs(a.times):
        return None
    n //= abs(a.times)
    return Length(1, (factor.over(n),)) if a.times > 0 else Length(-1, (factor.plus(n - 1).over(n),))


def _difference(a: Term, b: Term) -> Length | None:
    return _sum(a, _minus(b))


RULES: Mapping[str, Callable[..., Term | None]] = {
    "add": _sum, "sub": _difference, "neg": _minus, "mul": _product, "floordiv": _quotient,
}  # fmt: skip


def _watched(trace: Callable[[], Graph]) -> tuple[Graph, Ran]:
    """Trace, and also return the instructions that ran outside of tracegrad and the standard library."""
    ran: Ran = []

    def each(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            ran.append((frame.f_code, frame.f_lasti))
        return each

    def begin(frame: FrameType, event: str, argument: Any) -> Any:
        name = str(frame.f_globals.get("__name__", ""))
        if name.partition(".")[0] in NOT_SEEN or name.startswith("namedtuple_"):
            return None
        frame.f_trace_opcodes = True
        return each(frame, event, argument)

    before = sys.gettrace()
    sys.settrace(begin)
    try:
        return trace(), ran
    finally:
        sys.settrace(before)


class ButNumbers(Comparison):
    """Compares two traces except for their numbers, and collects numbers at the same place as pairs."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Any, Any]] = []

    def same(self, node: Tensor, name: str, values: Sequence[Any]) -> bool:
        """Return whether the values are equal except for their numbers. Values of unknown types count as different."""
        return self._same(*values)

    def _same(self, x: Any, y: Any) -> bool:
        if type(x) in (Symbol, *NUMBERS) and type(y) in (Symbol, *NUMBERS):
            self.pairs.append((x, y))
            return True
        if isinstance(x, tuple):
            xs, ys = cast("tuple[Any, ...]", x), cast("tuple[Any, ...]", y)
            return isinstance(y, tuple) and len(xs) == len(ys) and all(map(self._same, xs, ys))
        return isinstance(x, PLAIN) and repr(x) == repr(y)

    def equal(self, one: Sequence[Any], other: Sequence[Any]) -> bool:
        """Return whether all pairs are equal where the records of the traces have these values."""
        return all(_value(x, one) == _value(y, other) for x, y in self.pairs)


def _value(x: Any, values: Sequence[Any]) -> str:
    return repr(values[x.index] if type(x) is Symbol else x)


def _is(graph: Graph, values: Sequence[Any], plain: Graph) -> bool:
    """Return whether a graph, with these values of its record, equals the graph of a trace on plain sizes."""
    numbers = ButNumbers()
    try:
        numbers.check((graph, plain))
    except UnsizedError:
        return False
    return numbers.equal(values, ())


def _numbers_in(graph: Graph) -> Iterator[int]:
    """Yield the index of each recorded number in types and attributes, except in values of constants."""

    def inside(x: Any) -> Iterator[int]:
        if type(x) is Symbol:
            yield x.index
        elif isinstance(x, Body):
            yield from _numbers_in(graph_of(x))
        elif isinstance(x, tuple):
            for part in cast("tuple[Any, ...]", x):
                yield from inside(part)

    for t in graph.nodes:
        yield from inside(t.type)
        if t.prim is not CONST:
            yield from inside(tuple(t.attrs.values()))
