"""Stand-ins: the sizes to trace a step with before a call has chosen any. Errors print the name, not the number."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from tracegrad.dtypes import Dimension

# Losses can refuse some sizes, so the first accepted one counts. 840 has all divisors up to 8; the small sizes are
# within most limits.
TRIED = (16, 840, 64, 12, 4, 1)
Terms = Mapping[tuple[str, ...], int]  # factors, sorted -> how often their product is counted


class StandIn(int):
    """A number in place of a size that calls choose. It computes as an int, and prints as the user named the size.

    terms: the sum of products of names that it stands for, such as 2*B*T-1
    """

    terms: Terms

    @property
    def text(self) -> str:
        """The size in names."""
        made = ""
        for factors, n in self.terms.items():
            parts = [*factors] if n == 1 and len(factors) == 1 else [_enclosed(f) for f in factors]
            parts = parts if parts and abs(n) == 1 else [str(abs(n)), *parts]
            made += ("-" if n < 0 else "+") + "*".join(parts)
        return made.removeprefix("+")

    def note(self) -> None:
        """Ignore that code decides by the size: each call is traced again, at its own."""

    def __repr__(self) -> str:
        return self.text

    __str__ = __repr__

    def __format__(self, spec: str) -> str:
        return format(int(self), spec) if spec else self.text


def stand_in(value: int, terms: Terms) -> int:
    """Return the number `value` that stands for `terms`; a plain int if no name is left in them."""
    terms = {factors: n for factors, n in terms.items() if n}
    if not any(terms):
        return value
    made = StandIn(value)
    made.terms = terms
    return made


def tried(names: Mapping[str, Dimension]) -> Iterator[tuple[tuple[str, int], ...]]:
    """Yield sizes to trace with, by name. Different names get different numbers, so that none passes for another.

    names: each name, and what the user wrote; a None promises nothing, so all of these get one number.

    The last name gets the least number: the first is mostly the batch, of which models ask least.
    """
    told = [name for name, written in names.items() if written is not None]
    for least in TRIED:
        least = max(least, min(2, len(told)))  # rows of 1 are broadcast, which would hide the name
        numbers = {name: least * max(2, 2 * k + 1) // 2 for k, name in enumerate(reversed(told))}
        yield tuple([(n, stand_in(numbers.get(n, least), {(str(written),): 1})) for n, written in names.items()])


def _terms(n: int) -> Terms:
    return n.terms if isinstance(n, StandIn) else {(): int(n)}


def _sum(a: Terms, b: Terms, sign: int = 1) -> Terms:
    return {factors: a.get(factors, 0) + sign * b.get(factors, 0) for factors in (*a, *b)}


def _product(a: Terms, b: Terms) -> Terms:
    made: Terms = {}
    for f, n in a.items():
        for g, m in b.items():
            made = _sum(made, {tuple(sorted(f + g)): n * m})
    return made


def _quotient(a: Terms, b: Terms) -> Terms | None:
    """Return a / b if b is one product that divides each term of a."""
    if len(b) != 1:
        return None
    ((divisor, by),) = b.items()
    made: dict[tuple[str, ...], int] = {}
    for factors, n in a.items():
        left = list(factors)
        if n % by or any(left.count(f) < divisor.count(f) for f in divisor):
            return None
        for f in divisor:
            left.remove(f)
        made[tuple(left)] = n // by
    return made


def _named(a: int, sign: str, b: int) -> Terms:
    """Return a result that is no sum of products, under a name of its own."""
    return {(f"{_enclosed(str(a))}{sign}{_enclosed(str(b))}",): 1}


def _enclosed(text: str) -> str:
    """Return a name, a number or a product as it is, and anything else in parentheses."""
    return text if re.fullmatch(r"[\w*]+", text) else f"({text})"


OPERATIONS: dict[str, Callable[[int, int], Terms]] = {
    "add": lambda a, b: _sum(_terms(a), _terms(b)),
    "sub": lambda a, b: _sum(_terms(a), _terms(b), -1),
    "mul": lambda a, b: _product(_terms(a), _terms(b)),
    "floordiv": lambda a, b: _quotient(_terms(a), _terms(b)) or _named(a, "//", b),
    "mod": lambda a, b: _named(a, "%", b),
}


def _computed(name: str, terms: Callable[[int, int], Terms], back: bool) -> Callable[[StandIn, Any], Any]:
    of_int: Callable[..., Any] = getattr(int, f"__r{name}__" if back else f"__{name}__")

    def compute(self: StandIn, other: Any) -> Any:
        value = of_int(self, other)
        operands: Sequence[Any] = (other, self) if back else (self, other)
        return stand_in(value, terms(*operands)) if isinstance(value, int) else value  # the rest: not of integers

    return compute


for _name, _rule in OPERATIONS.items():
    setattr(StandIn, f"__{_name}__", _computed(_name, _rule, back=False))
    setattr(StandIn, f"__r{_name}__", _computed(_name, _rule, back=True))
setattr(StandIn, "__neg__", lambda self: self * -1)  # noqa: B010
