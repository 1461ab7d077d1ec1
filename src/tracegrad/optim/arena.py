"""The layout of all trainable parameters in one flat array.

Gradients and every optimizer state have the same layout, so an update written on flat arrays is one dispatch
for the whole model.

With several losses, each optimizer works on one contiguous run of elements. Parameters that the same losses train are
adjacent. With two losses, each loss trains exactly its run. With more losses, a run can include parameters that its
loss does not train, which masks protect.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from itertools import pairwise
from typing import NamedTuple

from tracegrad.dtypes import Shape
from tracegrad.ir.nodes import Tensor
from tracegrad.prims.folds import pack
from tracegrad.prims.leaves import const, iota
from tracegrad.prims.views import reshape, slice_

__all__ = ["Arena", "Slot"]


class Slot(NamedTuple):
    """The place of one parameter in the flat array of an `Arena`.

    name:   the parameter's name, as in `nn.named_parameters`.
    shape:  the parameter's shape.
    offset: index of its first element in the flat array. Its other elements follow in row-major order.
    decay:  whether weight decay applies to the parameter; see `nn.decays`.
    """

    name: str
    shape: Shape
    offset: int
    decay: bool

    @property
    def size(self) -> int:
        """Number of elements of the slot: the product of `shape`. As numpy.ndarray.size."""
        return math.prod(self.shape)


def _alignment(size: int) -> int:
    """Return a sort key: sizes divisible by 64 first, then by 4. Kernels can read aligned parameters as vectors."""
    return 0 if size % 64 == 0 else 1 if size % 4 == 0 else 2


class Arena(NamedTuple):
    """The places of all trained parameters in one flat array, f32[size]. Optimizers update this array as a whole.

    slots:        a `Slot` for each parameter, in the order of the array.
    size:         number of elements of the array.
    decayed_size: number of elements that weight decay applies to. With one loss, these come first in the array.

    With several losses, each optimizer has an arena. Decayed parameters then come first within each group of parameters
    that the same losses train. As jax.flatten_util.ravel_pytree.

    >>> arena = optim.Arena.of([("W", (2, 3), True), ("b", (3,), False)])
    >>> arena.size, arena.slots[1]
    (9, Slot(name='b', shape=(3,), offset=6, decay=False))
    """

    slots: tuple[Slot, ...]
    size: int
    decayed_size: int

    @staticmethod
    def of(entries: Iterable[tuple[str, Shape, bool]]) -> Arena:
        """Make an arena for `entries`, the parameters as (name, shape, decay). Decayed ones come first."""
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
        """Make an arena of slots that are adjacent in the flat array, in this order."""
        return Arena(tuple(slots), sum(s.size for s in slots), sum(s.size for s in slots if s.decay))

    def shaped(self, shape: Callable[[Shape], Shape | None]) -> Arena:
        """Return the arena of a state with other shapes than the parameters, such as one number for each row.

        shape: function of a parameter's shape that returns the shape of its part; None: no part. If no parameter has a
               part, the size is 1, because arrays on a device are never empty.

        >>> arena = optim.Arena.of([("W", (2, 3), True), ("b", (3,), False)])
        >>> arena.shaped(lambda shape: (shape[0], 1) if len(shape) == 2 else None).slots
        (Slot(name='W', shape=(2, 1), offset=0, decay=True),)
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
        """Return the part of `flat`, f32[size], that belongs to one parameter, in the parameter's shape.

        flat: a flat array; `size` is the size of this arena.
        slot: the parameter's place, one of `slots`.
        """
        return reshape(slice_(flat, 0, slot.offset, slot.size), slot.shape)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Return the parts of `flat`, f32[size], by parameter name, each in its parameter's shape.

        `size` is the size of this arena. As torch.nn.utils.vector_to_parameters, but this returns the parts, where
        PyTorch writes them into the parameters.
        """
        return {slot.name: self.view(flat, slot) for slot in self.slots}

    def pack(self, parts: Mapping[str, Tensor]) -> Tensor:
        """Join `parts`, a tensor for each parameter by its name, into a flat array, f32[size]: the inverse of `views`.

        `size` is the size of this arena. As torch.nn.utils.parameters_to_vector.
        """
        if not self.slots:
            return reshape(const(0.0), (1,))
        return pack([reshape(parts[slot.name], (slot.size,)) for slot in self.slots])

    def each(self, fn: Callable[..., Tensor], *flats: Tensor) -> Tensor:
        """Call `fn` once for each parameter, and return the results as one flat array, f32[size].

        fn:    gets one tensor for each of `flats`: this parameter's part, in its shape. It returns a tensor of this
               shape.
        flats: flat arrays, f32[size] with this arena's `size`, such as the gradient.

        Each parameter gets kernels of its own, so many parameters mean many kernels.
        """
        return self.pack({slot.name: fn(*(self.view(flat, slot) for flat in flats)) for slot in self.slots})

    def decayed(self) -> Tensor:
        """Return a mask, bool[size]: True for the elements of parameters whose `Slot.decay` is True.

        `nn.decays` decides for each parameter whether it decays.
        As the mask of optax.add_decayed_weights.
        """
        if self.decayed_size == 0:
            return iota((self.size,), 0) < 0
        ends = [0, *(a.offset + a.size for a, b in pairwise(self.slots) if a.decay != b.decay), self.size]
        runs = list(pairwise(ends))[0 if self.slots[0].decay else 1 :: 2]
        at = iota((self.size,), 0)
        inside = [at < end if begin == 0 else (at >= begin) & (at < end) for begin, end in runs]
        return reduce(lambda a, b: a | b, inside)


Kind = tuple[bool, ...]  # for each loss: does it train the parameter?


class Part:
    """The share of the parameters that belongs to the optimizer of one loss."""

    __slots__ = ("first", "holes", "name", "own", "shared", "whole")

    def __init__(
        self, name: str, whole: Arena, own: Arena, first: int = 0, holes: tuple[str, ...] = (), shared: bool = False
    ) -> None:
        """Describe the share of one loss.

        name:   name of the loss; "" if there is only one.
        whole:  all parameters that some loss trains: the array "params".
        own:    the contiguous part of `whole` that this optimizer works on, from `first` on.
        holes:  parameters in this run that this loss does not train.
        shared: True if another loss trains some of these parameters, too.
        """
        self.name, self.whole, self.own, self.first, self.holes, self.shared = name, whole, own, first, holes, shared

    @property
    def at(self) -> str:
        """The prefix of the names of the optimizer's arrays."""
        return f"{self.name}/" if self.name else ""

    @property
    def trained(self) -> list[Slot]:
        """The parameters that this loss trains, with their places in the optimizer's arrays."""
        return [slot for slot in self.own.slots if slot.name not in self.holes]

    @staticmethod
    def alone(arena: Arena) -> Part:
        """Return the part of the only loss."""
        return Part("", arena, arena)


def parts_of(shapes: Mapping[str, Shape], trains: Mapping[str, Mapping[str, bool]]) -> dict[str, Part]:
    """Return the part of each loss, by name.

    shapes: shapes of the parameters, in declaration order.
    trains: for each loss the parameters it trains, and whether the weight decay of its optimizer applies to them.
    """
    kinds: dict[Kind, list[str]] = {}
    for n in shapes:
        kind = tuple(n in names for names in trains.values())
        if any(kind):
            kinds.setdefault(kind, []).append(n)
    decays = {n: decay for names in reversed([*trains.values()]) for n, decay in names.items()}
    slots: list[Slot] = []
    for kind in sorted(kinds, key=_place):
        at = slots[-1].offset + slots[-1].size if slots else 0
        alike = Arena.of((n, shapes[n], decays[n]) for n in kinds[kind])
        slots += [slot._replace(offset=at + slot.offset) for slot in alike.slots]
    whole = Arena.at(slots)
    return {name: _part(name, whole, own, trains) for name, own in trains.items()}


def _part(name: str, whole: Arena, own: Mapping[str, bool], trains: Mapping[str, Mapping[str, bool]]) -> Part:
    begin, end = _run([s.name in own for s in whole.slots])
    slots = whole.slots[begin:end]
    first = slots[0].offset
    moved = [s._replace(offset=s.offset - first, decay=own.get(s.name, False)) for s in slots]
    holes = tuple(s.name for s in slots if s.name not in own)
    shared = any(own.keys() & others.keys() for other, others in trains.items() if other != name)
    return Part(name, whole, Arena.at(moved), first, holes, shared)


def _place(kind: Kind) -> float:
    """Return a sort key for sets of losses: parameters that two losses share lie between those of each alone."""
    losses = [k for k, trained in enumerate(kind) if trained]
    return sum(losses) / len(losses)


def _run(wanted: Sequence[bool]) -> tuple[int, int]:
    """Return the range from the first wanted element to the last, end excluded."""
    return wanted.index(True), len(wanted) - [*reversed(wanted)].index(True)
