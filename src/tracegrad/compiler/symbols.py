"""Symbols: numbers that stand for sizes, and record all computations and comparisons of a trace on them.

A comparison is recorded as a condition on the size. A conversion to a plain number is recorded, too: after it, the
record is incomplete. Symbols are not ints, because functions in C, such as `math.gcd`, read the value of an int
without a call. Only their `__class__` is int, so that `isinstance` holds.
"""

from __future__ import annotations

import operator
import sys
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

NUMBERS = (bool, int, float)


class Instruction(NamedTuple):
    """One computation. Its arguments are plain numbers, and `Reference`s to sizes and results of instructions."""

    compute: Callable[..., Any]
    arguments: tuple[Any, ...]


class Reference(int):
    """The index in `Record.values` of a size, or of the result of an instruction."""


class Record:
    """The computations of a trace on sizes, and the conditions on which it branched."""

    def __init__(self, sizes: Sequence[int]) -> None:
        self.instructions: list[Instruction] = []
        self.values: list[Any] = [*sizes]  # of the sizes and of each instruction, in this trace
        self.count = len(sizes)
        self.conditions: dict[int, Any] = {}  # index of a value -> this value, on which the trace branched
        self.escaped = False  # was a symbol converted to a plain number?
        self.ended = False  # is the trace over, so that comparisons are no branches of it?
        self._known: dict[Any, int] = {}

    def sizes(self) -> list[Any]:
        """Return the sizes as numbers that are recorded."""
        return [Symbol(self, k) for k in range(self.count)]

    def number(self, compute: Callable[..., Any], *operands: Any) -> int:
        """Record a computation, and return the index of its result in `values`. Equal computations share one index."""
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
        """Return whether a trace at other sizes takes the same branches. values: the record's values there."""
        return all(values[k] == known for k, known in self.conditions.items())

    def at(self, sizes: Sequence[int]) -> list[Any] | None:
        """Return all values at other sizes; None if a trace there would take other branches."""
        values = self.computed(sizes)
        return values if values is not None and self.holds(values) else None


class Symbol:
    """A number that records all computations on it."""

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
        """Record that the symbol is converted to a plain number."""
        self.record.escaped = True

    def decided(self) -> Any:
        """Return the value, and record that the trace depends on it."""
        if not self.record.ended:
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
        kept = [int(x) if type(x) not in (*NUMBERS, Symbol) and isinstance(x, int) else x for x in kept]  # x.size
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
# Sets and dicts compare only numbers of equal hash, so a hash counts as a conversion to a plain number
ESCAPES = """hash int float index str repr format divmod rdivmod and rand or ror xor rxor lshift rlshift rshift rrshift
             invert round ceil floor trunc reduce_ex"""  # a copy would have another record
for _name in ESCAPES.split():
    setattr(Symbol, f"__{_name}__", _escaping(f"__{_name}__"))
