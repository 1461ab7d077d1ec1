"""Several losses over one array of parameters: the run of elements that each optimizer works on.

Parameters that the same losses train are adjacent. They are ordered so that each loss trains one contiguous run, if
such an order exists; for two losses it always does. Otherwise a run includes parameters of other losses, which masks
protect.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from itertools import permutations

from tracegrad.dtypes import Shape
from tracegrad.optim.arena import Arena, Slot
from tracegrad.tuning import MOST_ORDERED

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
        own:    the run of `whole` that this optimizer works on, from `first` on.
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
    for kind in _ordered({kind: sum(math.prod(shapes[n]) for n in names) for kind, names in kinds.items()}):
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


def _ordered(sizes: Mapping[Kind, int]) -> Sequence[Kind]:
    """Return the kinds in the order with the fewest elements in runs of losses that do not train them."""
    first = sorted(sizes, reverse=True)
    if len(first) > MOST_ORDERED:
        return first

    def holes(order: Sequence[Kind]) -> int:
        total = 0
        for loss in range(len(order[0])):
            begin, end = _run([kind[loss] for kind in order])
            total += sum(sizes[kind] for kind in order[begin:end] if not kind[loss])
        return total

    return min(permutations(first), key=holes)


def _run(wanted: Sequence[bool]) -> tuple[int, int]:
    """Return the range from the first wanted element to the last, end excluded."""
    return wanted.index(True), len(wanted) - [*reversed(wanted)].index(True)
