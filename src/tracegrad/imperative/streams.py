"""Random numbers of ops that run at once: the compiled programs' streams, numbered as the calls come."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any

from tracegrad.arrays import np
from tracegrad.engine.inputs import checked_seed, seed_or_new


class _Stream:
    """Where the next random op stands. Sites are counted over calls; compiled programs count those of one trace."""

    def __init__(self) -> None:
        self.seed = seed_or_new(None)
        self.step = 0
        self.site = 0


_stream = _Stream()


def manual_seed(seed: int, step: int = 0) -> None:
    """Start the random numbers of ops outside of a trace over, keyed by `seed`.

    The k-th random op from here on has the numbers of the k-th random op of a forward or loss that is compiled with
    the same seed, in its training step number `step`. Without it, seed and numbers differ from one run of Python to the
    next. Also the seed of parameters that `tg.eager` and `tg.instantiate` draw.
    Raises InputError unless it fits u32.
    """
    _stream.seed, _stream.step, _stream.site = checked_seed(seed, "manual_seed: seed"), step, 0


@contextmanager
def at(seed: int, step: int) -> Generator[None]:
    """Inside, the numbers of step `step` of a program with that seed."""
    before = place()
    manual_seed(seed, step)
    try:
        yield
    finally:
        move(before)


def place() -> tuple[int, int, int]:
    """Seed, step, and how many random ops there have been."""
    return _stream.seed, _stream.step, _stream.site


def move(to: tuple[int, int, int]) -> None:
    """Go on from there."""
    _stream.seed, _stream.step, _stream.site = to


def current_seed() -> int:
    """The seed in force."""
    return _stream.seed


def values(names: Sequence[str]) -> list[Any]:
    """The counters of one call, by the names of its leaves: "seed", "step", and a new "salt" for each random site."""
    out: list[Any] = []
    for name in names:
        if name == "seed":
            out.append(np.asarray(_stream.seed, np.uint32))
        elif name == "step":
            out.append(np.asarray(_stream.step, np.uint32))
        else:
            _stream.site += 1
            out.append(np.asarray(_stream.site, np.uint32))
    return out
