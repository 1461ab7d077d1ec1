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


class Ended(NamedTuple):
    """Which points of a product count: of each period, the first `times` for each unit of the i32 in `size`."""

    size: View
    period: int
    times: int


class ProductStep(NamedTuple):
    """A call that computes out = a b. limits: those of `Product`, as the bits of `limit_bits`.

    ends: which rows, columns and terms count. None: all.
    """

    a: View
    b: View
    out: View
    limits: int
    ends: tuple[Ended | None, ...] = (None, None, None)


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
    terms:   which terms count. None: all.
    """

    a: Spread
    b: Spread
    out: View
    k: int
    stacked: bool = False
    end: View | None = None
    terms: Ended | None = None


Step = FunctionStep | ProductStep | GatheredStep


class CSource(NamedTuple):
    """A launch in C: the texts of its functions, and the order of the calls."""

    functions: tuple[str, ...]
    steps: tuple[Step, ...]
