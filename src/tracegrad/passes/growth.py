"""How lengths and axes depend on several sizes that calls choose, found from two traces.

An axis consists of parts, of which some grow. A reshape of f32[B,T,8] to f32[B*T,8] makes an axis of the parts B and T.
If memory has room for a larger T, an element of this axis is valid if its coordinate along T is below the run's T.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple, cast

from tracegrad.kernels.form import UnsizedError

Both = tuple[int, int]  # a number in two traces
MOST_FACTORS = 3  # most sizes that are multiplied in one length
# a factor of a length is a size plus at most this number; larger shifts are handled by the op that makes them
MOST_MORE = 3
MOST_BELOW = 8  # sizes below the room at which two formulas of a length are compared


class AmbiguousError(UnsizedError):
    """A length can depend on the sizes in several ways that fit two traces. Traces at other sizes can decide."""


class Grown(NamedTuple):
    """A part of an axis whose length is a size plus a number. If `by` is not 1, it is divided and rounded down."""

    size: int  # the index of the size
    more: int = 0
    by: int = 1

    def at(self, sizes: Sequence[int]) -> int:
        """Return the length at some sizes."""
        n = sizes[self.size] + self.more if self.more else sizes[self.size]
        return n if self.by == 1 else n // self.by

    def plus(self, n: int) -> Grown:
        """Return the length that is larger by `n`."""
        return Grown(self.size, self.more + n * self.by, self.by)

    def over(self, n: int) -> Grown:
        """Return the length divided by `n` and rounded down."""
        return Grown(self.size, self.more, self.by * n)


Part = int | Grown
Parts = tuple[Part, ...]  # outermost first; no part is 1, and no two numbers are neighbours


class Length(NamedTuple):
    """A length: `times`, multiplied by a size plus a number for each factor."""

    times: int
    factors: tuple[Grown, ...] = ()

    def at(self, sizes: Sequence[int]) -> int:
        """Return the length at some sizes."""
        return self.times * math.prod([f.at(sizes) for f in self.factors])


class Axis(NamedTuple):
    """How the length of an axis depends on the sizes, and the parts that it consists of."""

    length: Length
    parts: Parts | None  # None: any order of factors is right, because all elements along the axis are equal
    counts: bool = False  # each element is its own coordinate, and the order of factors is not known yet

    @property
    def grows(self) -> bool:
        """True if the length of the axis depends on a size."""
        return bool(self.length.factors)

    @property
    def ordered(self) -> Parts:
        """The parts. If they can have any order, the growing factors come first, and the number is innermost."""
        if self.parts is not None:
            return self.parts
        return (*self.length.factors, self.length.times) if self.length.times != 1 else self.length.factors

    @property
    def stacked(self) -> Axis:
        """This axis. If its parts can have any order, the number of blocks is outermost, as in concatenated blocks."""
        if self.parts is not None:
            return self
        return Axis(self.length, joined((self.length.times, *self.length.factors)))


def nothing(_: Any) -> None:
    """Return no formula."""


class Sizes(NamedTuple):
    """The sizes of two traces, in the same order. Methods find what depends on which size by comparing the traces.

    known: lengths that the traces compute from the sizes, if this was recorded. Two traces alone would not show T // 2.
    formula: returns the formula of a number of the other trace, if this was recorded.
    """

    one: tuple[int, ...]
    other: tuple[int, ...]
    known: tuple[Length, ...] = ()
    formula: Callable[[Any], Length | None] = nothing

    @property
    def quotients(self) -> tuple[Grown, ...]:
        """The factors of known lengths that are rounded down."""
        return tuple(dict.fromkeys([f for length in self.known for f in length.factors if f.by > 1]))

    def of(self, part: Part) -> Both:
        """Return the length of a part in both traces."""
        return (part, part) if isinstance(part, int) else (part.at(self.one), part.at(self.other))

    def length(self, pair: Both) -> Length:
        """Return the formula of a length in terms of the sizes.

        Raises UnsizedError if none of the known formulas fits, and AmbiguousError if several do.
        """
        a, b = pair
        length = Length(a) if a == b and self.formula is not nothing and type(b) is int else self.formula(b)
        if length is not None and length.at(self.one) == a:
            return length
        found = _lengths(self._replace(formula=nothing), (a, int(b)))
        if len(found) > 1:
            raise AmbiguousError(f"lengths of {a} and {b} can depend on the sizes in {len(found)} ways")
        for length in found:
            return length
        raise UnsizedError(f"a length of {a} is {b} at other sizes")

    def fits(self, length: Length, pair: Both) -> bool:
        """Return whether a formula gives a length in both traces, and below the room if that length was recorded."""
        known = self.formula(pair[1])
        below = [tuple([max(n - k, 1) for n in self.one]) for k in range(1, MOST_BELOW)] if known else []
        return (length.at(self.one), length.at(self.other)) == pair and not any(
            known and known.at(n) != length.at(n) for n in below
        )

    def differ(self, one: Any, other: Any) -> bool:
        """Return whether values in both traces differ, or are recorded numbers that differ at other sizes."""
        if repr(one) != repr(other):
            return True
        if isinstance(one, tuple):
            return any(map(self.differ, cast("tuple[Any, ...]", one), other))
        length = self.formula(other)
        return bool(length and length.factors)

    def axis(self, pair: Both) -> Axis:
        """Return an axis of this length along which all elements are equal."""
        length = self.length(pair)
        if not length.factors:
            return Axis(length, (length.times,) if length.times != 1 else ())
        return Axis(length, length.factors if (length.times, len(length.factors)) == (1, 1) else None)

    def taken(self, left: list[Part], wanted: Both) -> Axis:
        """Take parts of this length from the front of `left`, and return their axis. Raise UnsizedError if none fit."""
        found: list[Part] = []
        need = wanted
        while need != (1, 1):
            if not left:
                raise UnsizedError(f"an axis of {wanted[0]} has other parts at other sizes")
            part = left.pop(0)
            n, m = self.of(part)
            if need[0] % n == 0 and need[1] % m == 0:
                found.append(part)
                need = need[0] // n, need[1] // m
            elif isinstance(part, int) and need[0] == need[1] and part % need[0] == 0:
                found.append(need[0])
                left.insert(0, part // need[0])
                need = 1, 1
            else:
                raise UnsizedError(f"an axis of {wanted[0]} has other parts at other sizes")
        grown = tuple([p for p in found if isinstance(p, Grown)])
        return Axis(Length(math.prod([p for p in found if isinstance(p, int)]), grown), joined(found))


def joined(parts: Sequence[Part]) -> Parts:
    """Return parts without 1, and with numbers that are neighbours multiplied."""
    found: list[Part] = []
    for part in parts:
        last = found[-1] if found else None
        if isinstance(part, int) and isinstance(last, int):
            found[-1] = last * part
        elif part != 1:
            found.append(part)
    return tuple(found)


@lru_cache(1 << 10)
def _lengths(sizes: Sizes, pair: Both) -> frozenset[Length]:
    """Return the simplest formulas of the sizes that fit a length in both traces."""
    a, b = pair
    known = frozenset([length for length in sizes.known if (length.at(sizes.one), length.at(sizes.other)) == pair])
    if a == b:
        return known | {Length(a)}
    if known:
        return known
    found = {Length(1, (Grown(k, a - n),)) for k, (n, m) in enumerate(zip(sizes.one, sizes.other)) if a - b == n - m}
    for factors in _products(len(sizes.one)):
        n, m = (math.prod([f.at(s) for f in factors]) for s in (sizes.one, sizes.other))
        if n > 0 and a % n == 0 and a // n * m == b:
            found.add(Length(a // n, factors))
    return frozenset({f for f in found if not any(g.more for g in f.factors)} or found)


@cache
def _products(sizes: int) -> list[tuple[Grown, ...]]:
    """Return products of factors (a size plus a number), the simplest first."""
    found: list[tuple[Grown, ...]] = []
    for count in range(1, MOST_FACTORS + 1):
        most = MOST_MORE if count < MOST_FACTORS else 0
        for which in itertools.combinations_with_replacement(range(sizes), count):
            for more in itertools.product(range(-most, most + 1), repeat=count):
                found.append(tuple([Grown(k, c) for k, c in zip(which, more)]))
    return sorted(found, key=lambda f: sum([abs(g.more) + (g.more != 0) for g in f]))
