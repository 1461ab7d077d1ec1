"""Sizes that each call chooses: dimensions of inputs that are None or a name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from tracegrad.dtypes import Dimension, InputType

Sizes = tuple[tuple[str, int], ...]  # of a call: each name and its size, in the order of the declaration
# What a step is traced with before the first call: of many losses that refuse some, one is taken. 840 has all divisors
# up to 8, the small ones are within most limits.
TRIED = (16, 840, 64, 12, 4, 1)


class FreeSizes(NamedTuple):
    """The inputs of a step or forward, and where each of the sizes that calls choose occurs in them."""

    types: Mapping[str, InputType]
    axes: Mapping[str, tuple[tuple[str, int], ...]]  # of each name: inputs and axes

    @staticmethod
    def of(types: Mapping[str, InputType]) -> FreeSizes:
        """Those of some inputs. A None is named by its axis, so it is one size of all inputs."""
        axes: dict[str, list[tuple[str, int]]] = {}
        for n, t in types.items():
            for d, size in enumerate(t.shape):
                if not isinstance(size, int):
                    axes.setdefault(name_of(size, d), []).append((n, d))
        return FreeSizes(types, {name: tuple(found) for name, found in axes.items()})

    def sized(self, sizes: Sizes) -> dict[str, InputType]:
        """The inputs in these sizes."""
        known = dict(sizes)
        return {
            n: InputType(
                t.dtype, tuple(s if isinstance(s, int) else known[name_of(s, d)] for d, s in enumerate(t.shape))
            )
            for n, t in self.types.items()
        }

    def all(self, size: int) -> Sizes:
        """Every one of them `size`."""
        return tuple((name, size) for name in self.axes)

    def tried(self) -> Iterator[Sizes]:
        """What to trace with where no call has chosen yet."""
        return map(self.all, TRIED)


def name_of(size: Dimension, axis: int) -> str:
    """The name of a size that calls choose."""
    return size if isinstance(size, str) else f"None at axis {axis}"


def shown(sizes: Sizes) -> int | None | dict[str, int]:
    """As users read it: the size alone if there is one name, None if there is none."""
    return dict(sizes) if len(sizes) > 1 else sizes[0][1] if sizes else None
