"""What a step is drawn from: values that exist, sizes that matter, axes and indices."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fuzzing.bounds import Known, certain
from fuzzing.exact import double
from fuzzing.program import Input, Step

# Short rows, odd and prime ones, and 16 n ± 1: where vectors, tiles and unrolled loops have a rest
SHORT = (1, 2, 3, 5, 6, 7, 4, 8)
LONG = (9, 11, 13, 15, 16, 17, 31, 32, 33, 47, 49, 63, 64, 65)
LARGE = (127, 129, 255, 257, 1023, 2049)
LIMIT = 4096  # elements of a value
MOST_INPUTS = 8


@dataclass
class Pool:
    """The values of a program that grows, each with its reference and bound, and the random numbers it grows by."""

    rng: np.random.Generator
    depth: int = 0
    flavour: str = "uniform"
    inputs: list[Input] = field(default_factory=list)
    steps: list[Step] = field(default_factory=list)
    known: dict[int, Known] = field(default_factory=dict)
    fresh: bool = True  # new inputs may be made: not inside a body

    def chance(self, one_in: int) -> bool:
        """True once in `one_in` times."""
        return self.below(one_in) == 0

    def below(self, n: int) -> int:
        """An integer from 0 to n - 1."""
        return int(self.rng.integers(0, n))

    def between(self, low: int, high: int) -> int:
        """An integer from low to high."""
        return int(self.rng.integers(low, high + 1))

    def one(self, of: Sequence[Any]) -> Any:
        """One of some things."""
        return of[self.below(len(of))]

    def size(self) -> int:
        """A size that matters."""
        roll = self.below(20)
        return self.one(LARGE) if roll == 0 and not self.depth else self.one(LONG) if roll < 5 else self.one(SHORT)

    def shape(self, rank: int | None = None) -> tuple[int, ...]:
        """A shape of at most LIMIT elements; any rank up to 4."""
        rank = self.one((0, 1, 1, 2, 2, 2, 3, 3, 4)) if rank is None else rank
        while True:
            shape = tuple(self.size() for _ in range(rank))
            if math.prod(shape) <= LIMIT // 2:
                return shape

    def dtype(self, k: int) -> str:
        """Of a value."""
        return {"f": "f32", "i": "i32", "b": "bool", "u": "u32"}[self.known[k].v.dtype.kind]

    def of(self, k: int) -> tuple[int, ...]:
        """The shape of a value."""
        return self.known[k].v.shape

    def find(self, fits: Callable[[int], bool]) -> int | None:
        """A value that fits, rather a late one: chains grow long, and values are still shared."""
        found = [k for k in self.known if fits(k)]
        if not found:
            return None
        return self.one(found[-4:]) if self.below(3) else self.one(found)

    def pick(self, dtype: str = "f32", rank: int = 0, most: int = LIMIT) -> int:
        """A value of that dtype and at least that rank; a new input where there is none."""
        found = self.find(lambda k: self.dtype(k) == dtype and len(self.of(k)) >= rank and self.known[k].v.size <= most)
        if found is not None and not (self.fresh and self.chance(6)):
            return found
        return self.new(dtype, self.shape(max(rank, self.one((1, 2, 2, 3)))))

    def shaped(self, shape: tuple[int, ...], dtype: str = "f32", low: float = -2.0, high: float = 2.0) -> int:
        """A value of exactly this type: one that exists, or a new input."""
        usual = (low, high) == (-2.0, 2.0) and dtype not in ("i32", "u32")
        if usual and self.chance(2):
            found = self.find(lambda k: self.dtype(k) == dtype and self.of(k) == shape)
            if found is not None:
                return found
        return self.new(dtype, shape, low, high)

    def new(self, dtype: str, shape: tuple[int, ...], low: float = -2.0, high: float = 2.0) -> int:
        """The number of a new input; inside a body there are none."""
        if not self.fresh or 0 in shape or len(self.inputs) >= MOST_INPUTS:
            raise UnfitError
        kind = {"f32": self.flavour, "i32": "below", "u32": "wild", "bool": "bools"}[dtype]
        if dtype == "f32" and (low, high) != (-2.0, 2.0):
            kind = "uniform"
        if dtype == "i32" and low < 0:  # no index: all numbers will do
            kind = self.one(("below", "wild"))
            low, high = 0, max(high, 3)
        x = Input(dtype, tuple(shape), kind, self.below(2**31), low, high)
        number = ~len(self.inputs)
        self.inputs.append(x)
        self.known[number] = certain(double(x.array()))
        return number

    def broadcastable(self, shape: tuple[int, ...], dtype: str = "f32") -> int:
        """A value that broadcasts to `shape`."""

        def fits(k: int) -> bool:
            own = self.of(k)
            aligned = zip(reversed(own), reversed(shape))
            return self.dtype(k) == dtype and len(own) <= len(shape) and all(n in (1, m) for n, m in aligned)

        found = self.find(fits)
        if found is not None and not self.chance(4):
            return found
        if 0 in shape:
            raise UnfitError
        part = tuple(1 if self.chance(3) else n for n in shape)[self.below(len(shape) + 1) :]
        return self.shaped(part, dtype)

    def axes(self, rank: int) -> tuple[int, ...] | int | None:
        """An argument `axis` of a reduction."""
        if not rank or self.chance(4):
            return None
        some = [a for a in range(rank) if self.chance(2)] or [self.below(rank)]
        if len(some) == 1:
            return some[0] - rank * self.below(2)
        return tuple(some)

    def axis(self, rank: int) -> int:
        """One axis, counted from either end."""
        return self.below(rank) - rank * self.below(2)

    def number(self) -> float:
        """A constant that f32 holds exactly."""
        return self.one((0.5, -0.5, 2.0, 1.0, -1.0, 0.25, 3.0, -1.5, 0.0, 1.25))


class UnfitError(Exception):
    """No such step can be drawn here; another one is."""
