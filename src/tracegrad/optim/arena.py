"""The layout of all trainable parameters in one flat array.

Gradients and every optimizer state have the same layout, so an update written on flat arrays is one dispatch
for the whole model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

from tracegrad.dtypes import Shape
from tracegrad.ir import Tensor
from tracegrad.prims.folds import pack
from tracegrad.prims.leaves import const, iota
from tracegrad.prims.views import reshape, slice_


class Slot(NamedTuple):
    """One parameter's place."""

    name: str
    shape: Shape
    offset: int  # in elements
    decay: bool  # weight decay applies

    @property
    def size(self) -> int:
        """Number of elements. As numpy.ndarray.size."""
        return math.prod(self.shape)


def _alignment(size: int) -> int:
    """Return a sort key: sizes divisible by 64 first, then by 4. Kernels can read aligned parameters as vectors."""
    return 0 if size % 64 == 0 else 1 if size % 4 == 0 else 2


class Arena(NamedTuple):
    """The layout of a flat f32[size] array. Decayed parameters come first, so one comparison finds them.

    With several losses, this order holds within each group of parameters that the same losses train.
    """

    slots: tuple[Slot, ...]
    size: int
    decayed_size: int  # elements that weight decay applies to

    @staticmethod
    def of(entries: Iterable[tuple[str, Shape, bool]]) -> Arena:
        """Return the layout for parameters given as (name, shape, decay)."""
        ordered = sorted(entries, key=lambda e: (not e[2], _alignment(math.prod(e[1]))))
        slots: list[Slot] = []
        at = decayed = 0
        for name, shape, decay in ordered:
            slots.append(Slot(name, shape, at, decay))
            at += slots[-1].size
            decayed = at if decay else decayed
        return Arena(tuple(slots), at, decayed)

    @staticmethod
    def at(slots: Sequence[Slot]) -> Arena:
        """Return the layout of adjacent parameters."""
        return Arena(tuple(slots), sum(s.size for s in slots), sum(s.size for s in slots if s.decay))

    def shaped(self, shape: Callable[[Shape], Shape | None]) -> Arena:
        """Return the layout of arrays with one part per parameter, of shape `shape(parameter.shape)`; None: no part.

        If no parameter has a part, the array has one element: arrays on a device are never empty.
        """
        slots: list[Slot] = []
        at = 0
        for slot in self.slots:
            part = shape(slot.shape)
            if part is not None:
                slots.append(Slot(slot.name, part, at, slot.decay))
                at += slots[-1].size
        return Arena(tuple(slots), max(at, 1), 0)

    def view(self, flat: Tensor, slot: Slot) -> Tensor:
        """Return the part of `flat` for one parameter, in the parameter's shape."""
        return reshape(slice_(flat, 0, slot.offset, slot.size), slot.shape)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the part of `flat` for every parameter, by name. As torch.nn.utils.vector_to_parameters."""
        return {slot.name: self.view(flat, slot) for slot in self.slots}

    def pack(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Join one tensor for each parameter into a flat array. As torch.nn.utils.parameters_to_vector."""
        if not self.slots:
            return reshape(const(0.0), (1,))
        return pack([reshape(parts[slot.name], (slot.size,)) for slot in self.slots])

    def each(self, fn: Callable[..., Tensor], *flats: Tensor) -> Tensor:
        """Apply `fn` to each parameter's views of `flats`, and pack the results. Costs kernels for each parameter."""
        return self.pack({slot.name: fn(*(self.view(flat, slot) for flat in flats)) for slot in self.slots})

    def decayed(self) -> Tensor:
        """Return bool[size], True where weight decay applies. As the mask of optax.add_decayed_weights."""
        ends = [0, *(a.offset + a.size for a, b in pairwise(self.slots) if a.decay != b.decay), self.size]
        runs = list(pairwise(ends))[0 if self.slots[0].decay else 1 :: 2]
        at = iota((self.size,), 0)
        inside = [at < end if begin == 0 else (at >= begin) & (at < end) for begin, end in runs]
        return reduce(lambda a, b: a | b, inside)
