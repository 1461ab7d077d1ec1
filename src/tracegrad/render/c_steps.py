"""What a launch in C consists of: calls of functions, and of products of matrices that lie in memory."""

from __future__ import annotations

from typing import NamedTuple

from tracegrad.render.gathered import Lay


class Scratch(NamedTuple):
    """Memory that lives while its kernel runs. Kernels run one at a time, so they share scratch memory by number."""

    number: int
    size: int  # elements
    dtype: str  # NumPy's name


class RunSize:
    """The place that holds the size of the run, after a function's slots."""

    def __repr__(self) -> str:
        return "size"


Place = int | Scratch | RunSize  # a slot of the launch, scratch memory, or the size of the run


class View(NamedTuple):
    """A matrix, or a stack of matrices, that begins at an element of a place; steps are in elements."""

    place: Place
    first: int
    sizes: tuple[int, ...]
    steps: tuple[int, ...]


class FunctionStep(NamedTuple):
    """A call of a function, which can be split into at most `parts` parts."""

    name: str
    parts: int
    places: tuple[Place, ...]

    @property
    def sized(self) -> bool:
        """True if the loops of the function depend on the size of a run."""
        return isinstance(self.places[-1], RunSize)


class ProductStep(NamedTuple):
    """A call that computes out = a b. limits: those of `Product`, as the bits of `limit_bits`.

    ends: for m, n and k, an i32 and a period: only so many points of each period count. None: all count.
    """

    a: View
    b: View
    out: View
    limits: int
    ends: tuple[tuple[View, int] | None, ...] = (None, None, None)


class Spread(NamedTuple):
    """An operand whose elements are at sums of offsets, one per axis, relative to an element of a place."""

    place: Place
    first: int
    batch: tuple[int, ...]  # steps
    rows: tuple[Lay, ...]
    columns: tuple[Lay, ...]


class GatheredStep(NamedTuple):
    """out = a b, where b overlaps itself in memory or products are many and small. Rows of `a` are evenly spaced.

    stacked: True if a vector holds one element of each of several products.
    k:       the number of terms; it can depend on the size of a run.
    end:     an i32, if only so many columns count.
    terms:   an i32 and a period, if only so many terms of each period count.
    """

    a: Spread
    b: Spread
    out: View
    k: int
    stacked: bool = False
    end: View | None = None
    terms: tuple[View, int] | None = None


Step = FunctionStep | ProductStep | GatheredStep


class CSource(NamedTuple):
    """A launch in C: the texts of its functions, and the order of the calls."""

    functions: tuple[str, ...]
    steps: tuple[Step, ...]
