"""What follows from sizes: numbers such as the divisor of a mean, which become inputs of the program.

One trace tells what a program for many sizes needs to know of each size: that a trace at it has the same nodes, and
the constants of this trace. The trace gets numbers that remember how they follow from the sizes. They record each
comparison, as a condition on the size. They record each conversion to a plain number, after which nothing more is
known: Python's own functions can read it unnoticed. They are no ints, because functions in C, such as `math.gcd`, take
the value of an int without a call. Only their `__class__` says int, so that `isinstance` holds.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import FrameType
from typing import Any, NamedTuple, TypeVar, cast

from tracegrad.compiler.alike import Comparison
from tracegrad.dtypes import DType, TensorType
from tracegrad.graph import Graph
from tracegrad.hypers import PREFIX
from tracegrad.ir import Tensor, bind, rewrite
from tracegrad.kernels.form import UnsizedError
from tracegrad.passes.growth import Length, Sizes
from tracegrad.prims.leaves import CONST, leaf
from tracegrad.transforms.loops import Body, graph_of, inner_leaf

T = TypeVar("T")
NUMBERS = (bool, int, float)
PLAIN = (*NUMBERS, str, bytes, type(None), DType)


class Instruction(NamedTuple):
    """One computation. The arguments are plain numbers, and numbers of other instructions in `Reference`s."""

    compute: Callable[..., Any]
    arguments: tuple[Any, ...]


class Reference(int):
    """The number of an instruction."""


class Record:
    """What a trace computed from sizes, and what it decided by them."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.instructions: list[Instruction] = []
        self.values: list[Any] = [*sizes]  # of the sizes and of each instruction, in this trace
        self.count = len(sizes)
        self.conditions: dict[int, Any] = {}  # instruction -> its value, which decided something
        self.escaped = False  # was a number made a plain one?
        self._known: dict[Any, int] = {}

    def sizes(self) -> list[Any]:
        """Return the sizes as numbers that are recorded."""
        return [Symbol(self, k) for k in range(self.count)]

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

    def computed(self, sizes: Sequence[int]) -> list[Any] | None:
        """Return all values at other sizes; None if they cannot be computed."""
        values: list[Any] = [*sizes]
        try:
            for compute, arguments in self.instructions:
                values.append(compute(*[values[x] if type(x) is Reference else x for x in arguments]))
        except ArithmeticError:
            return None
        return values

    def holds(self, values: Sequence[Any]) -> bool:
        """Whether a trace at other sizes would decide as this one. values: at these."""
        return all(values[k] == known for k, known in self.conditions.items())

    def at(self, sizes: Sequence[int]) -> list[Any] | None:
        """Return all values at other sizes; None if a trace at them would decide otherwise."""
        values = self.computed(sizes)
        return values if values is not None and self.holds(values) else None


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

    def decided(self) -> Any:
        """Return the value, and record that the trace depends on it."""
        self.record.conditions[self.index] = self.value
        return self.value

    def as_float(self) -> Any:
        """Return the number as a float."""
        return Symbol(self.record, self.record.number(float, self))

    def __bool__(self) -> bool:
        return Symbol(self.record, self.record.number(bool, self)).decided()

    def __array__(self, *_: Any, **__: Any) -> Any:
        self.note()
        return sys.modules["numpy"].asarray(self.value)  # NumPy is loaded, because it calls this

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
        return made if made is NotImplemented else made.decided()

    return method


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
# A set or dict would look for equal numbers only among those of equal hash, so a hash tells more than a comparison
ESCAPES = """hash int float index str repr format divmod rdivmod and rand or ror xor rxor lshift rlshift rshift rrshift
             invert round ceil floor trunc reduce_ex"""  # a copy would record elsewhere
for _name in ESCAPES.split():
    setattr(Symbol, f"__{_name}__", _escaping(f"__{_name}__"))


NAME = "size {}"  # of such an input: no hyperparameter has a space in its name
At = tuple[str, str]  # the value of a constant at two sizes


class Number(NamedTuple):
    """An input that follows the size."""

    field: str
    dtype: DType
    at: At


def constants_of(graph: Graph) -> list[Tensor]:
    """Return the constants of a graph and of its loops in order."""
    found: list[Tensor] = []
    for t in graph.nodes:
        if t.prim is CONST:
            found.append(t)
        elif t.prim.family == "scan":
            found += constants_of(graph_of(t.attrs["body"]))
    return found


def paired(one: Sequence[T], other: Sequence[T]) -> list[tuple[T, T]]:
    """Return what is at the same place in two traces. Raises UnsizedError if one has more."""
    if len(one) != len(other):
        raise UnsizedError(f"there are {len(one)} constants, and {len(other)} at other sizes")
    return list(zip(one, other))


def pairs_of(one: Graph, other: Graph) -> list[At]:
    """Return the value of each constant at two sizes. Raises UnsizedError if one has other constants."""
    both = paired(constants_of(one), constants_of(other))
    return [(repr(x.attrs["value"]), repr(y.attrs["value"])) for x, y in both]


def numbers_of(one: Graph, other: Graph) -> tuple[list[Number], list[dict[int, int]]]:
    """Return the numbers that follow the size; and in both graphs, by serial, the number of each such constant."""
    found: dict[tuple[DType, At], int] = {}
    place: list[dict[int, int]] = [{}, {}]
    for (x, y), at in zip(paired(constants_of(one), constants_of(other)), pairs_of(one, other), strict=True):
        if at[0] != at[1]:
            place[0][x.serial] = place[1][y.serial] = found.setdefault((x.dtype, at), len(found))
    return [Number(PREFIX + NAME.format(k), dtype, at) for (dtype, at), k in found.items()], place


def counted(graph: Graph, place: Mapping[int, int]) -> Graph:
    """Return the graph with an input in place of some constants. place: number of the input, by serial."""

    def given(k: int, dtype: DType) -> Tensor:
        return leaf("hyper", NAME.format(k), TensorType(dtype, ()))

    return graph.with_roots(_counted(graph.roots, place, given))


def _counted(roots: Sequence[Tensor], place: Mapping[int, int], given: Callable[[int, DType], Tensor]) -> list[Tensor]:
    """Replace constants in a graph and its loops. given: returns the value of a number there."""

    def rule(t: Tensor, inputs: tuple[Tensor, ...]) -> Tensor | None:
        if t.prim.family == "scan":
            body: Body = t.attrs["body"]
            inner: dict[int, Tensor] = {}

            def shared(k: int, dtype: DType) -> Tensor:
                if k not in inner:
                    inner[k] = inner_leaf("const", TensorType(dtype, ()))
                return inner[k]

            made = body.with_roots(_counted(body.roots, place, shared))
            made = replace(made, consts=(*body.consts, *inner.values()))
            more = [given(k, x.dtype) for k, x in inner.items()]
            return bind(t.prim, *inputs, *more, **{**t.attrs, "body": made}) if inner else None
        k = place.get(t.serial)
        return None if k is None else given(k, t.dtype)

    return rewrite(roots, rule)


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
    """How all that differs between traces follows from the sizes."""

    record: Record
    fixed: Sequence[int]  # numbers of the record that are the same at all sizes of the program
    growing: Sequence[tuple[int, Length]]  # numbers that follow sizes, and how
    numbers: Sequence[tuple[Number, Sequence[int]]]  # with the constants that are this number at the two sizes

    def at(self, sizes: Sequence[int]) -> Mapping[str, Any] | None:
        """Return the numbers at some sizes; None if a trace at these could differ."""
        values = self.record.at(sizes)
        if values is None or not self.agrees(values, sizes):
            return None
        return {number.field: (number.dtype.numpy, values[ks[0]]) for number, ks in self.numbers}

    def agrees(self, values: Sequence[Any], sizes: Sequence[int]) -> bool:
        """Whether the values at some sizes are what the program takes them for."""
        then = self.record.values
        return not (
            any(repr(values[k]) != repr(then[k]) for k in self.fixed)
            or any(values[k] != length.at(sizes) for k, length in self.growing)
            or any(repr(values[k]) != repr(values[ks[0]]) for _, ks in self.numbers for k in ks)
        )


GraphAt = Callable[[Sequence[Any]], Graph]


def recorded(graph_at: GraphAt, sizes: Sequence[int]) -> tuple[Record, Graph] | None:
    """Trace on numbers that record what becomes of them; None if the trace does not tell all.

    Then a size became a plain number, or Python ran other instructions than on plain sizes: only a type that is
    compared by `is` tells them apart.
    """
    record, on_plain = Record(sizes), lambda: graph_at(sizes)
    graphs: list[Graph] = []
    try:
        if sys.version_info >= (3, 12):  # reports the instructions of a function from its second call on
            graphs.append(_watched(on_plain)[0])
        graph, ran = _watched(lambda: graph_at(record.sizes()))
        plain, plain_ran = _watched(on_plain)
    except UnsizedError:  # such as a function in C that takes nothing but an int
        return None
    alike = all(_is(g, record.values, plain) for g in (graph, *graphs))
    return (record, graph) if alike and not record.escaped and ran == plain_ran else None


def follow_sizes(graph_at: GraphAt, sizes: Sizes, numbers: Sequence[Number], constants: int) -> Followed | None:
    """Return how all follows from the sizes; None if a trace does not tell.

    numbers:   of the graphs at the two sizes.
    constants: how many constants of each graph are one of the numbers.
    """
    found = recorded(graph_at, sizes.one)
    if found is None:
        return None
    record, graph = found
    given: dict[At, list[int]] = {n.at: [] for n in numbers}
    later = record.computed(sizes.other)
    # Such a trace can decide otherwise, because a size equals another one there, and be the same graph nevertheless
    if later is None or not (record.holds(later) or _is(graph, later, graph_at(sizes.other))):
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
    try:
        growing = [(k, sizes.length((record.values[k], later[k]))) for k in sized if k not in fixed]
    except UnsizedError:
        return None
    made = Followed(record, fixed, growing, [(n, list(dict.fromkeys(given[n.at]))) for n in numbers])
    return made if made.agrees(later, sizes.other) else None


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


class ButNumbers(Comparison):
    """Compares two traces in all but their numbers, and collects these: those at the same place are a pair."""

    def __init__(self) -> None:
        self.pairs: list[tuple[Any, Any]] = []

    def same(self, node: Tensor, name: str, values: Sequence[Any]) -> bool:
        """Return whether the values are equal but for their numbers. One of an unknown kind is not."""
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
    """Return whether a graph is that of a trace on plain sizes, where its record has these values."""
    numbers = ButNumbers()
    try:
        numbers.check((graph, plain))
    except UnsizedError:
        return False
    return numbers.equal(values, ())


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
