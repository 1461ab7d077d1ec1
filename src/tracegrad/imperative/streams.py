"""Random numbers of ops that run at once: the streams of compiled programs, in the order of calls."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from tracegrad.arrays import checked_seed, np, seed_or_new
from tracegrad.wrong_calls import helpful

_place = [seed_or_new(None), 0, 0]  # see `place`
COUNTERS = {"seed": 0, "step": 1}  # leaves by their index in `_place`; any other leaf is the salt of a random site


@helpful
def manual_seed(seed: int, step: int = 0) -> None:
    """Set the seed of eager random ops, and start their random numbers again. As torch.manual_seed.

    Eager ops run at once, outside of a compiled loss or forward. The seed also determines the parameters that
    `tg.eager` draws, and those that `tg.instantiate` draws without a seed.

    seed:     an integer in [0, 2^32). Without this call, each run of Python draws another seed.
    step:     k, to repeat training step k (from 1) of a loss compiled with this seed. The n-th random op that follows
              draws the numbers of the loss's n-th random op in that step. The default, 0, draws numbers that no step
              draws.
    Gradient: none: this takes no tensor.
    Raises:   InputError unless `seed` and `step` are integers in [0, 2^32).

    >>> tg.manual_seed(0)
    >>> first = np.asarray(tg.randn((3,)))
    >>> tg.manual_seed(0)
    >>> bool((np.asarray(tg.randn((3,))) == first).all())
    True
    """
    move((checked_seed(seed, "manual_seed: seed"), checked_seed(step, "manual_seed: step"), 0))


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
    """Return seed, step, and the number of random ops so far. A compiled program counts the random ops of its trace."""
    seed, step, site = _place
    return seed, step, site


def move(to: tuple[int, int, int]) -> None:
    """Continue the random numbers from `to`, a result of `place`."""
    _place[:] = to


def values(names: Sequence[str]) -> list[Any]:
    """Return the counters of one call, by the names of its leaves: "seed", "step", and a new "salt" for each site."""
    out: list[Any] = []
    for name in names:
        k = COUNTERS.get(name, 2)
        _place[2] += k == 2
        out.append(np.asarray(_place[k], np.uint32))
    return out
