"""Keep a program that serves many sizes of one dimension, and grows with them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from tracegrad.arrays import np
from tracegrad.compiler.build import Built
from tracegrad.kernels.form import UnsizedError

if TYPE_CHECKING:
    from tracegrad.compiler.sized import Family


def numbers_of(built: Built) -> dict[str, Any]:
    """Return the inputs of a program at a size that follow the size, as arrays."""
    return {name: np.asarray(value, dtype) for name, (dtype, value) in built.numbers.items()}


class Growing:
    """The sizes that calls have chosen so far.

    most: the largest one. why: the reason why there is no program for many sizes.
    """

    def __init__(self, most: int) -> None:
        self.most, self.why = most, ""
        self.family: Family | None = None

    def serves(self, size: int) -> bool:
        """Return whether `at` would compile nothing for this size."""
        return bool(self.why) or (self.family is not None and size <= self.family.built.program.capacity)

    def at(self, size: int, build: Callable[[int], Family]) -> Built | None:
        """Return the program at a size; None if the size gets a program of its own.

        build: returns the program for sizes up to a number. A size beyond the capacity replaces the program by one of
               at least twice the capacity.
        """
        if not self.serves(size):
            self.most = max(size, self.most, 2 * self.family.built.program.capacity if self.family else 0)
            try:
                self.family = build(self.most)
            except UnsizedError as e:
                self.why, self.family = str(e), None
        return self.family.at(size) if self.family else None

    @property
    def note(self) -> str:
        """Return why each size has a program of its own; "" if one can serve many."""
        return f"compiled for each size: {self.why}" if self.why else ""
