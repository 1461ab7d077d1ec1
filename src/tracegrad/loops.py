"""Loops over the dispatches of a program: how offsets change per iteration, and the order of all launches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from tracegrad.files.jsontext import LOCAL

BY_SIZE = -1  # the `Move.depth` of an offset that depends on the size of a run


@dataclass(frozen=True, slots=True)
class Move:
    """An offset that moves: in iteration `t`, it is `step * (t % ring)` elements larger.

    depth: the loop that counts `t`, 0 for the outermost. With BY_SIZE, `t` is the size of the run instead.
    """

    depth: int
    step: int
    ring: int

    def at(self, t: int) -> int:
        """Return how many elements the offset is larger in iteration `t`."""
        return self.step * (t % self.ring)


class Until(NamedTuple):
    """Which elements of a loop count in a run. A runtime can leave out the others: they change no carry.

    size:  the input that says how many elements count in a run.
    turns: a multiple of so many elements can be left out, so that last values of carries are in their places.
    """

    size: str
    turns: int
    reverse: bool  # the last element comes first


@dataclass(frozen=True, slots=True)
class Loop:
    """The dispatches from `begin` up to `end` run `count` times.

    If the number of iterations depends on the size of a run, `count` is that of a run at the capacity. A smaller run
    does the first iterations, or with `reverse` the last ones: a reversed loop begins at the last element.
    """

    begin: int
    end: int
    count: int
    per: int = field(default=0, repr=False, metadata=LOCAL)  # iterations for each unit of a run's size; 0: fixed
    reverse: bool = field(default=False, repr=False, metadata=LOCAL)
    until: Until | None = field(default=None, repr=False, metadata=LOCAL)  # None: all iterations count

    def left_out(self, t: int) -> int:
        """Return the largest size, in the input `until.size`, at which a run can leave out iteration `t`."""
        assert self.until is not None
        element = self.count - 1 - t if self.until.reverse else t
        return element - (self.count - element) % self.until.turns

    def iterations(self, size: int) -> range:
        """Return the iterations of a run of this size."""
        if not self.per:
            return range(self.count)
        n = self.per * size
        return range(self.count - n, self.count) if self.reverse else range(n)


def order(
    loops: Sequence[Loop], dispatches: range, size: int, at: tuple[int, ...] = ()
) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the numbers of some dispatches in execution order, each with the iterations of the loops around it.

    loops: those in this range, in the order of their first dispatch, outer before inner.
    size:  the size of the run.
    at:    the iterations of the loops around the range.
    """
    for k, loop, inside in _parts(loops, dispatches):
        if loop is None:
            yield k, at
            continue
        for t in loop.iterations(size):
            yield from order(inside, range(k, loop.end), size, (*at, t))


def kept(loops: Sequence[Loop], dispatches: range, size: int, first: int = 0) -> tuple[list[int], int]:
    """Return which launches of a run at the capacity a run of `size` makes, and the number of launches at the capacity.

    first: the number of launches of the dispatches before these.
    """
    found: list[int] = []
    count = 0
    for k, loop, inside in _parts(loops, dispatches):
        if loop is None:
            found.append(first + count)
            count += 1
            continue
        own, each = kept(inside, range(k, loop.end), size, first + count)
        for t in loop.iterations(size):
            found += [n + t * each for n in own]
        count += loop.count * each
    return found, count


def _parts(loops: Sequence[Loop], dispatches: range) -> Iterator[tuple[int, Loop | None, Sequence[Loop]]]:
    """Yield ranges of dispatches outside of loops, and the outermost loops, each with the loops inside it."""
    k = dispatches.start
    while k < dispatches.stop:
        if loops and loops[0].begin == k:
            loop, others = loops[0], loops[1:]
            inside = [x for x in others if x.end <= loop.end]
            yield k, loop, inside
            k, loops = loop.end, others[len(inside) :]
        else:
            yield k, None, ()
            k += 1
