"""What follows from a batch's size: numbers such as the divisor of a mean, which become inputs of the program.

One trace tells what a program for many sizes needs to know of each size: that a trace at it has the same nodes, and
the constants of this trace. The trace gets numbers that remember how they follow from the size. They record each
comparison, as a condition on the size. They record each conversion to a plain number, after which nothing more is
known: Python's own functions can read it unnoticed. They are no ints, because functions in C, such as `math.gcd`, take
the value of an int without a call. Only their `__class__` says int, so that `isinstance` holds.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from types import FrameType
from typing import Any, NamedTuple, cast

from tracegrad.compiler.uniform import Pair, roots_in
from tracegrad.dtypes import DType, TensorType
from tracegrad.graph import Graph
from tracegrad.hypers import PREFIX
from tracegrad.ir import Tensor, rewrite
from tracegrad.kernels.form import UnsizedError
from tracegrad.passes.expand import expand_composites
from tracegrad.passes.scans import everywhere
from tracegrad.prims.leaves import CONST, leaf
from tracegrad.transforms.loops import Body, graph_of

NUMBERS = (bool, int, float)
PLAIN = (*NUMBERS, str, bytes, type(None), DType)


class Instruction(NamedTuple):
    """One computation. The arguments are plain numbers, and numbers of other instructions in `Reference`s."""

    compute: Callable[..., Any]
    arguments: tuple[Any, ...]


class Reference(int):
    """The number of an instruction."""


class Record:
    """What a trace computed from a size, and what it decided by it."""

    def __init__(self, size: int) -> None:
        self.instructions: list[Instruction] = []
        self.values: list[Any] = [size]  # of the size and of each instruction, in this trace
        self.conditions: dict[int, Any] = {}  # instruction -> its value, which decided something
        self.escaped = False  # was a number made a plain one?
        self._known: dict[Any, int] = {}

    def size(self) -> Any:
        """Return the size as a number that is recorded."""
        return Symbol(self, 0)

    def number(self, compute: Callable[..., Any], *operands: Any) -> int:
        """Return the number of an instruction, of which there is one of each kind."""
        arguments = tuple([Reference(x.index) if type(x) is Symbol else x for x in operands])
        key = (compute, repr([(type(x).__name__, x) for x in arguments]))
        found = self._known.get(key)
        if found is None:
            plain = [self.values[x] if type(x) is Reference else x for x in arguments]
            value = compute(*plain)
            found = self._known[key] = len(self.values)
            self.instructions.append(Instruction(compute, arguments))
            self.values.append(value)
        return found

    def at(self, size: int) -> list[Any] | None:
        """Return the values of all instructions at another size; None if a trace at it would decide otherwise."""
        values: list[Any] = [size]
        try:
            for compute, arguments in self.instructions:
                values.append(compute(*[values[x] if type(x) is Reference else x for x in arguments]))
        except ArithmeticError:
            return None
        return values if all(values[k] == known for k, known in self.conditions.items()) else None


class Symbol:
    """One number of a record."""

    __slots__ = ("index", "record")
    record: Record
    index: int

    def __init__(self, record: Record, index: int) -> None:
        self.record, self.index = record, index

    @property
    def value(self) -> Any:
        """The number in this trace."""
        return self.record.values[self.index]

    @property
    def __class__(self) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        value: int | float = self.value
        return type(value)

    def note(self) -> None:
        """Record that the number becomes a plain one."""
        self.record.escaped = True

    def as_float(self) -> Any:
        """Return the number as a float."""
        return Symbol(self.record, self.record.number(float, self))

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        self.note()
        return getattr(self.value, name)


def _computed(compute: Callable[..., Any], turned: bool) -> Callable[..., Any]:
    def method(self: Symbol, *others: Any) -> Any:
        kept = [x.value if type(x) is Symbol and x.record is not self.record else x for x in others]  # of another trace
        if any(type(x) not in (*NUMBERS, Symbol) for x in kept):
            return NotImplemented
        operands = (*kept, self) if turned else (self, *kept)
        return Symbol(self.record, self.record.number(compute, *operands))

    return method


def _compared(compute: Callable[..., Any]) -> Callable[..., Any]:
    def method(self: Symbol, *others: Any) -> Any:
        made = _computed(compute, False)(self, *others)
        return made if made is NotImplemented else _decided(made)

    return method


def _decided(made: Symbol) -> Any:
    made.record.conditions[made.index] = made.value
    return made.value


def _bool(self: Symbol) -> bool:
    return _decided(Symbol(self.record, self.record.number(bool, self)))


def _escaping(name: str) -> Callable[..., Any]:
    def method(self: Symbol, *others: Any) -> Any:
        self.note()
        plain = [x.value if type(x) is Symbol else x for x in others]
        return getattr(self.value, name)(*plain)

    return method


for _name in ("add", "sub", "mul", "floordiv", "mod", "truediv", "pow"):
    setattr(Symbol, f"__{_name}__", _computed(getattr(operator, _name), False))
    setattr(Symbol, f"__r{_name}__", _computed(getattr(operator, _name), True))
for _name in ("neg", "pos", "abs"):
    setattr(Symbol, f"__{_name}__", _computed(getattr(operator, _name), False))
for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    setattr(Symbol, f"__{_name}__", _compared(getattr(operator, _name)))
Symbol.__bool__ = _bool  # pyright: ignore[reportAttributeAccessIssue]
# A set or dict would look for equal numbers only among those of equal hash, so a hash tells more than a comparison
ESCAPES = """hash int float index str repr format divmod rdivmod and rand or ror xor rxor lshift rlshift rshift rrshift
             invert round ceil floor trunc reduce_ex"""  # a copy would record elsewhere
for _name in ESCAPES.split():
    setattr(Symbol, f"__{_name}__", _escaping(f"__{_name}__"))


def _array(self: Symbol, *_: Any, **__: Any) -> Any:
    self.note()
    return sys.modules["numpy"].asarray(self.value)  # NumPy is loaded, because it calls this


Symbol.__array__ = _array  # pyright: ignore[reportAttributeAccessIssue]


NAME = "size {}"  # of such an input: no hyperparameter has a space in its name
At = tuple[str, str]  # the value of a constant at two sizes


class Number(NamedTuple):
    """An input that follows the size."""

    field: str
    dtype: DType
    at: At


def expanded(graph: Graph) -> Graph:
    """Return the graph without composites, which can hide such numbers: a variance divides by the batch's size."""
    return graph.with_roots(everywhere(graph.roots, expand_composites))


def constants_of(graph: Graph) -> list[Tensor]:
    """Return the constants of a graph and of its loops in order."""
    found: list[Tensor] = []
    for t in graph.nodes:
        if t.prim is CONST:
            found.append(t)
        elif t.prim.family == "scan":
            found += constants_of(graph_of(t.attrs["body"]))
    return found


def pairs_of(one: Graph, other: Graph) -> list[At]:
    """Return the value of each constant at two sizes."""
    both = zip(constants_of(one), constants_of(other), strict=True)
    return [(repr(x.attrs["value"]), repr(y.attrs["value"])) for x, y in both]


def numbers_of(one: Graph, other: Graph) -> tuple[list[Number], list[dict[int, int]]]:
    """Return the numbers that follow the size; and in both graphs, by serial, the number of each such constant.

    Raises: UnsizedError for a constant in a loop that follows the size.
    """
    found: dict[tuple[DType, At], int] = {}
    place: list[dict[int, int]] = [{}, {}]
    outside = {t.serial for t in one.nodes}
    for x, y, at in zip(constants_of(one), constants_of(other), pairs_of(one, other), strict=True):
        if at[0] != at[1]:
            if x.serial not in outside:
                raise UnsizedError(f"{x.site.short if x.site else 'a loop'}: a number in a loop follows the size")
            place[0][x.serial] = place[1][y.serial] = found.setdefault((x.dtype, at), len(found))
    return [Number(PREFIX + NAME.format(k), dtype, at) for (dtype, at), k in found.items()], place


def counted(graph: Graph, place: Mapping[int, int]) -> Graph:
    """Return the graph with an input in place of some constants. place: number of the input, by serial."""

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


NOT_SEEN = {"tracegrad", *sys.stdlib_module_names}  # modules whose own instructions tell nothing
Ran = list[tuple[Any, int]]  # the instructions of Python that ran: code and place


class Followed(NamedTuple):
    """How all that differs between traces follows from the size."""

    record: Record
    fixed: Sequence[int]  # numbers of the record that are the same at all sizes of the program
    growing: Sequence[int]  # numbers that are proportional to the size
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


def follow_size(
    graph_at: Callable[[Any], Graph], sizes: Pair, numbers: Sequence[Number], constants: int
) -> Followed | None:
    """Trace on a number that records what becomes of it; None if the trace does not tell all.

    Then a size became a plain number, or Python ran other instructions than on plain sizes: only a type that is
    compared by `is` tells them apart.
    numbers:   of the graphs at the two sizes.
    constants: how many constants of each graph are one of the numbers.
    """
    record, on_plain = Record(sizes.a), lambda: graph_at(sizes.a)
    graphs: list[Graph] = []
    try:
        if sys.version_info >= (3, 12):  # reports the instructions of a function from its second call on
            graphs.append(_watched(on_plain)[0])
        graph, ran = _watched(lambda: graph_at(record.size()))
        plain, plain_ran = _watched(on_plain)
    except UnsizedError:  # such as a function in C that takes nothing but an int
        return None
    if record.escaped or ran != plain_ran or not all(_equal(g, plain) for g in (graph, *graphs)):
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
    if sum(map(len, given.values())) != constants:
        return None
    fixed = [k for k in sized if repr(later[k]) == repr(record.values[k])]
    growing = [k for k in sized if k not in fixed]
    found = Followed(record, fixed, growing, [(n, list(dict.fromkeys(given[n.at]))) for n in numbers])
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
    return roots_in(graph, numbers[0]) == roots_in(plain, numbers[1]) and _equal_nodes(graph, plain, numbers)


def _equal_nodes(graph: Graph, plain: Graph, numbers: Sequence[Mapping[int, int]]) -> bool:
    """numbers: of the nodes of both graphs, by serial. Negative ones are leaves of a body."""
    nodes = [[t for t in g.nodes if seen[t.serial] >= 0] for g, seen in zip((graph, plain), numbers)]
    return len(nodes[0]) == len(nodes[1]) and all(
        x.prim is y.prim
        and x.attrs.keys() == y.attrs.keys()
        and [numbers[0][i.serial] for i in x.inputs] == [numbers[1][i.serial] for i in y.inputs]
        and all(map(_same, (x.type, *x.attrs.values()), (y.type, *y.attrs.values())))
        for x, y in zip(*nodes)
    )


def _equal_bodies(body: Body, plain: Body) -> bool:
    graphs = graph_of(body), graph_of(plain)
    numbers = [
        {**{t.serial: k for k, t in enumerate(g.nodes)}, **{t.serial: -1 - k for k, t in enumerate(b.leaves)}}
        for g, b in zip(graphs, (body, plain))
    ]
    return (
        body.counts == plain.counts
        and all(_same(x.type, y.type) for x, y in zip(body.leaves, plain.leaves))
        and [numbers[0][t.serial] for t in body.roots] == [numbers[1][t.serial] for t in plain.roots]
        and _equal_nodes(*graphs, numbers)
    )


def _same(x: Any, y: Any) -> bool:
    """Return whether an attribute is equal in the trace on plain sizes. One of an unknown kind is not."""
    if type(x) is Symbol:
        return repr(x.value) == repr(y)
    if isinstance(x, Body):
        return isinstance(y, Body) and _equal_bodies(x, y)
    if isinstance(x, tuple):
        xs, ys = cast("tuple[Any, ...]", x), cast("tuple[Any, ...]", y)
        return isinstance(y, tuple) and len(xs) == len(ys) and all(map(_same, xs, ys))
    return isinstance(x, PLAIN) and repr(x) == repr(y)


def _numbers_in(graph: Graph) -> Iterator[int]:
    """Yield the numbers of the record in types and attributes, except in values of constants."""

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
