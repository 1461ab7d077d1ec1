"""Masks that freeze parameters, switched on and off between steps.

A mask is an array on the device, written by the host: 1 where a step changes nothing, else 0. Parameters, and states in
the layout of the parameters, share one mask. A state of another layout (`PerParameter`) has its own. Programs have
masks from the first `train.freeze` on. The update reads one more array for each mask.

Optimizers with bias corrections count the updates of each parameter, as PyTorch does: freezing a parameter stops its
count. The step counter is common to all parameters, so an array on the device counts the steps that each element missed
while frozen. The array begins at 0, whatever the step is.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from types import MappingProxyType
from typing import NamedTuple

from tracegrad.dtypes import TensorType, f32
from tracegrad.ir.nodes import Tensor
from tracegrad.optim.arena import Arena
from tracegrad.optim.transform import PerParameter, Transform
from tracegrad.prims.leaves import leaf

PREFIX = "freeze-mask"  # of the arrays' names
PARAMS = PREFIX
MISSED = "freeze-missed"  # the name of the array of missed steps


class Mask(NamedTuple):
    """One mask: its name, its number of elements, and the range of each parameter in it."""

    name: str
    size: int
    parts: tuple[tuple[str, int, int], ...]  # (parameter, offset, elements)

    def free(self) -> Tensor:
        """Return bool[size], True where a step can change elements."""
        return leaf("state", self.name, TensorType(f32, (self.size,))) == 0.0


NONE: Mapping[str, Mask] = MappingProxyType({})


def masks(arena: Arena, transform: Transform, at: str = "") -> dict[str, Mask]:
    """Return the masks that a training with this optimizer needs, by name. at: prefix of the array names."""
    layouts = {PARAMS: arena}
    for name, kept in transform.state.items():
        if isinstance(kept, PerParameter):
            layouts[f"{PREFIX}.{name}"] = kept.layout(arena)
    return {n: Mask(at + n, a.size, tuple((s.name, s.offset, s.size) for s in a.slots)) for n, a in layouts.items()}


def missed_of(arena: Arena, transform: Transform, freeze: Mapping[str, Mask], at: str = "") -> Tensor | None:
    """Return the array of missed steps; None if the optimizer does not read it, or the program freezes nothing."""
    return leaf("state", at + MISSED, TensorType(f32, (arena.size,))) if freeze and transform.counts else None


def mask_of(array: str, found: Container[str]) -> str:
    """Return the name of the mask for the parameters or for a state."""
    own = f"{PREFIX}.{array}"
    return own if own in found else PARAMS
