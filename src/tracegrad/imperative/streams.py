"""Random numbers of ops that run at once: the compiled programs' streams, numbered as the calls come."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from tracegrad.arrays import np
from tracegrad.engine.inputs import checked_seed, seed_or_new

_place = [seed_or_new(None), 0, 0]  # see `place`
COUNTERS = {"seed": 0, "step": 1}  # leaves by their index there; any other is the salt of a random site


def manual_seed(seed: int, step: int = 0) -> None:
    """Start the random numbers of ops outside of a trace over, keyed by `seed`.

    The k-th random op from here on has the numbers of the k-th random op of a forward or loss that is compiled with
    the same seed, in its training step number `step`. Without it, seed and numbers differ from one run of Python to the
    next. Also the seed of parameters that `tg.eager` and `tg.instantiate` draw.
    Raises InputError unless it fits u32.
    No gradient and no shape: it concerns the random ops alone. As torch.manual_seed.

    >>> tg.manual_seed(0)
    >>> first = np.asarray(tg.randn((3,)))
    >>> tg.manual_seed(0)
    >>> bool((np.asarray(tg.randn((3,))) == first).all())
    True
    """
    move((checked_seed(seed, "manual_seed: seed"), step, 0))


@contextmanager
def at(seed: int, step: int, site: int = 0) -> Generator[None]:
    """Inside, the numbers of step `step` of a program with that seed."""
    before = place()
    move((seed, step, site))
    try:
        yield
    finally:
        move(before)


def place() -> tuple[int, int, int]:
    """Seed, step, and how many random ops there have been. Compiled programs count the sites of one trace instead."""
    seed, step, site = _place
    return seed, step, site


def move(to: tuple[int, int, int]) -> None:
    """Go on from there."""
    _place[:] = to


def values(names: Sequence[str]) -> list[Any]:
    """The counters of one call, by the names of its leaves: "seed", "step", and a new "salt" for each random site."""
    out: list[Any] = []
    for name in names:
        k = COUNTERS.get(name, 2)
        _place[2] += k == 2
        out.append(np.asarray(_place[k], np.uint32))
    return out
