"""What follows from a batch's size: numbers such as the divisor of a mean, which become inputs of the program.

One trace tells what a program for many sizes needs to know of each size, instead of a trace at each.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple, cast

from tracegrad.compiler.symbols import Record, Symbol
from tracegrad.compiler.uniform import Pair, roots_in
from tracegrad.dtypes import DType, TensorType
from tracegrad.graph import Graph
from tracegrad.hypers import PREFIX
from tracegrad.ir import Tensor, rewrite
from tracegrad.kernels.form import UnsizedError
from tracegrad.passes.expand import expand_composites
from tracegrad.prims.leaves import CONST, leaf

NAME = "size {}"  # of such an input: no hyperparameter has a space in its name
At = tuple[str, str]  # the value of a constant at two sizes


class Number(NamedTuple):
    """An input that follows the size."""

    field: str
    dtype: DType
    at: At


def expanded(graph: Graph) -> Graph:
    """Return the graph without composites, which can hide such numbers: a variance divides by the batch's size."""
    return graph.with_roots(expand_composites(graph.roots))


def constants_of(graph: Graph) -> list[Tensor]:
    """Return the constants of a graph in order."""
    return [t for t in graph.nodes if t.prim is CONST]


def pairs_of(one: Graph, other: Graph) -> list[At]:
    """Return the value of each constant at two sizes."""
    both = zip(constants_of(one), constants_of(other), strict=True)
    return [(repr(x.attrs["value"]), repr(y.attrs["value"])) for x, y in both]


def numbers_of(one: Graph, other: Graph) -> tuple[list[Number], list[list[Tensor]]]:
    """Return the numbers that follow the size, and their constants in both graphs."""
    found: list[Number] = []
    constants: list[list[Tensor]] = [[], []]
    for x, y, at in zip(constants_of(one), constants_of(other), pairs_of(one, other), strict=True):
        if at[0] != at[1]:
            found.append(Number(PREFIX + NAME.format(len(found)), x.dtype, at))
            constants[0].append(x)
            constants[1].append(y)
    return found, constants


def counted(graph: Graph, constants: Sequence[Tensor]) -> Graph:
    """Return the graph with an input in place of each of some constants."""
    place = {t.serial: k for k, t in enumerate(constants)}

    def rule(t: Tensor, _: tuple[Tensor, ...]) -> Tensor | None:
        k = place.get(t.serial)
        return None if k is None else leaf("hyper", NAME.format(k), TensorType(t.dtype, ()))

    return graph.with_roots(rewrite(graph.roots, rule))


def values_at(graph: Graph, pairs: Sequence[At]) -> dict[At, Any]:
    """Return the value of each number at a third size, keyed by its values at two sizes.

    Raises: UnsizedError for a constant that is equal at the two sizes and differs at the third.
    """
    values: dict[At, Any] = {}
    constants = constants_of(graph)
    if len(constants) != len(pairs):
        raise UnsizedError(f"there are {len(constants)} constants, not {len(pairs)}")
    for t, at in zip(constants, pairs):
        value = t.attrs["value"]
        if repr(values.setdefault(at, value)) != repr(value) or (at[0] == at[1] and at[0] != repr(value)):
            where = f"{t.site.short}: " if t.site else ""
            raise UnsizedError(f"{where}{value!r} is decided by the size in a way of its own")
    return values


PLAIN = (bool, int, float, str, bytes, type(None), DType)
NOT_SEEN = {"tracegrad", *sys.stdlib_module_names}  # modules whose own instructions tell nothing
Ran = list[tuple[Any, int]]  # the instructions of Python that ran: code and place


class Followed(NamedTuple):
    """How all that differs between traces follows from the size."""

    record: Record
    fixed: Sequence[int]  # numbers of the record that are the same at all sizes of the program
    growing: Sequence[int]  # and those that are proportional to the size
    numbers: Sequence[tuple[Number, Sequence[int]]]  # with the constants that are this number at the two sizes

    def at(self, size: int) -> Mapping[str, Any] | None:
        """Return the numbers at a size; None if a trace at this size could differ."""
        values = self.record.at(size)
        if values is None:
            return None
        then = self.record.values
        if any(repr(values[k]) != repr(then[k]) for k in self.fixed):
            return None
        if any(values[k] * then[0] != then[k] * size for k in self.growing):
            return None
        if any(repr(values[k]) != repr(values[ks[0]]) for _, ks in self.numbers for k in ks):
            return None
        return {number.field: (number.dtype.numpy, values[ks[0]]) for number, ks in self.numbers}


def follow_size(graph_at: Callable[[Any], Graph], sizes: Pair, numbers: Sequence[Number]) -> Followed | None:
    """Trace on a number that records what becomes of it; None if the trace does not tell all.

    Then a size became a plain number, or Python ran other instructions than on plain sizes: only a type that is
    compared by `is` tells them apart.
    numbers: of the graphs at the two sizes.
    """
    record, on_plain = Record(sizes.a), lambda: graph_at(sizes.a)
    try:
        if sys.version_info >= (3, 12):  # reports the instructions of a function from its second call on
            _watched(on_plain)
        graph, ran = _watched(lambda: graph_at(record.size()))
        plain, plain_ran = _watched(on_plain)
    except UnsizedError:  # such as a function in C that takes nothing but an int
        return None
    if record.escaped or ran != plain_ran or not _equal(graph, plain):
        return None
    given: dict[At, list[int]] = {n.at: [] for n in numbers}
    later = record.at(sizes.b)
    if later is None:
        return None
    sized = set(_numbers_in(graph))
    for t in constants_of(graph):
        value: Any = t.attrs["value"]
        if type(value) is not Symbol:
            continue
        at = repr(value.value), repr(later[value.index])
        if at in given:
            given[at].append(value.index)
        else:
            sized.add(value.index)
    if sum(map(len, given.values())) != len(numbers):
        return None
    fixed = [k for k in sized if repr(later[k]) == repr(record.values[k])]
    growing = [k for k in sized if k not in fixed]
    found = Followed(record, fixed, growing, [(n, given[n.at]) for n in numbers])
    return found if found.at(sizes.b) is not None else None


def _watched(trace: Callable[[], Graph]) -> tuple[Graph, Ran]:
    """Trace, and return what ran outside of tracegrad, too."""
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


def _equal(graph: Graph, plain: Graph) -> bool:
    """Return whether two graphs are equal, node by node."""
    numbers: list[dict[int, int]] = [{t.serial: k for k, t in enumerate(g.nodes)} for g in (graph, plain)]
    return (
        roots_in(graph, numbers[0]) == roots_in(plain, numbers[1])
        and len(graph.nodes) == len(plain.nodes)
        and all(
            x.prim is y.prim
            and x.attrs.keys() == y.attrs.keys()
            and [numbers[0][i.serial] for i in x.inputs] == [numbers[1][i.serial] for i in y.inputs]
            and all(map(_same, (x.type, *x.attrs.values()), (y.type, *y.attrs.values())))
            for x, y in zip(graph.nodes, plain.nodes)
        )
    )


def _same(x: Any, y: Any) -> bool:
    """Return whether an attribute is equal in the trace on plain sizes. One of an unknown kind is not."""
    if type(x) is Symbol:
        return repr(x.value) == repr(y)
    if isinstance(x, tuple):
        xs, ys = cast("tuple[Any, ...]", x), cast("tuple[Any, ...]", y)
        return isinstance(y, tuple) and len(xs) == len(ys) and all(map(_same, xs, ys))
    return isinstance(x, PLAIN) and repr(x) == repr(y)


def _numbers_in(graph: Graph) -> Iterator[int]:
    """Yield the numbers of the record in types and attributes, except in values of constants."""

    def inside(x: Any) -> Iterator[int]:
        if type(x) is Symbol:
            yield x.index
        elif isinstance(x, tuple):
            for part in cast("tuple[Any, ...]", x):
                yield from inside(part)

    for t in graph.nodes:
        yield from inside(t.type)
        if t.prim is not CONST:
            yield from inside(tuple(t.attrs.values()))
