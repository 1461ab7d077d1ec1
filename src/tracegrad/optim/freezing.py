"""Masks by which a training leaves parameters alone, switched on and off between steps.

A mask is an array on the device that the host writes: 1 where a step changes nothing, else 0. The parameters and states
of their layout share one. A state of another layout (`PerParameter`) has its own. Programs have masks from the first
`train.freeze` on: each costs the update one array more to read.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import NamedTuple

from tracegrad.dtypes import TensorType, f32
from tracegrad.ir import Tensor
from tracegrad.optim.arena import Arena
from tracegrad.optim.transform import PerParameter, Transform
from tracegrad.prims.leaves import leaf

PREFIX = "freeze-mask"  # of the arrays' names
PARAMS = PREFIX


class Mask(NamedTuple):
    """One of these arrays."""

    name: str
    size: int
    parts: tuple[tuple[str, int, int], ...]  # (parameter, offset, elements)

    def free(self) -> Tensor:
        """bool[size]: where a step may change something."""
        return leaf("state", self.name, TensorType(f32, (self.size,))) == 0.0


NONE: Mapping[str, Mask] = MappingProxyType({})


def masks(arena: Arena, transform: Transform, at: str = "") -> dict[str, Mask]:
    """Return the masks that a training with this optimizer needs, by name. at: begins the names of their arrays."""
    layouts = {PARAMS: arena}
    for name, kept in transform.state.items():
        if isinstance(kept, PerParameter):
            layouts[f"{PREFIX}.{name}"] = kept.layout(arena)
    return {n: Mask(at + n, a.size, tuple((s.name, s.offset, s.size) for s in a.slots)) for n, a in layouts.items()}


def mask_of(array: str, found: Mapping[str, Mask]) -> str:
    """Return the mask for the parameters or a state."""
    own = f"{PREFIX}.{array}"
    return own if own in found else PARAMS
