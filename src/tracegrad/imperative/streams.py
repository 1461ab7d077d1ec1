"""Random numbers of ops that run at once: the compiled programs' streams, numbered in the order of calls."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from tracegrad.arrays import checked_seed, np, seed_or_new
from tracegrad.refusals import helpful

_place = [seed_or_new(None), 0, 0]  # see `place`
COUNTERS = {"seed": 0, "step": 1}  # leaves by their index in `_place`; any other leaf is the salt of a random site


@helpful
def manual_seed(seed: int, step: int = 0) -> None:
    """Restart the random numbers of eager ops: those that run at once, outside of a compiled loss or forward.

    seed: an integer from 0 to 2^32 - 1. Without this call, each run of Python draws another seed.
    step: the training step, counted from 1, whose numbers to draw. The k-th random op from here on draws what the k-th
          random op of a loss compiled with this seed draws in that step. The default 0 is no training step.

    The seed also applies to parameters that `tg.eager` and `tg.instantiate` draw.
    Raises InputError unless `seed` fits u32. No shape, no gradient: it takes no tensor. As torch.manual_seed.

    >>> tg.manual_seed(0)
    >>> first = np.asarray(tg.randn((3,)))
    >>> tg.manual_seed(0)
    >>> bool((np.asarray(tg.randn((3,))) == first).all())
    True
    """
    move((checked_seed(seed, "manual_seed: seed"), step, 0))


@contextmanager
def at(seed: int, step: int, site: int = 0) -> Generator[None]:
    """Draw the numbers of step `step` of a program with this seed, inside the block."""
    before = place()
    move((seed, step, site))
    try:
        yield
    finally:
        move(before)


def place() -> tuple[int, int, int]:
    """Return seed, step, and the number of random ops so far. Compiled programs count a trace's sites instead."""
    seed, step, site = _place
    return seed, step, site


def move(to: tuple[int, int, int]) -> None:
    """Continue from a place."""
    _place[:] = to


def values(names: Sequence[str]) -> list[Any]:
    """Return the counters of one call, by the names of its leaves: "seed", "step", and a new "salt" for each site."""
    out: list[Any] = []
    for name in names:
        k = COUNTERS.get(name, 2)
        _place[2] += k == 2
        out.append(np.asarray(_place[k], np.uint32))
    return out
