"""The values that the host provides to an update rule: hyperparameters, the step number, and the parameter layout."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import reduce
from types import MappingProxyType
from typing import NamedTuple

from tracegrad.dtypes import f32
from tracegrad.hypers import COMPLEMENT, GROUP, UNIT, scalar
from tracegrad.ir import Tensor
from tracegrad.optim.arena import Arena, Slot
from tracegrad.optim.groups import NO_GROUPS, Groups
from tracegrad.prims.elementwise import cast, expm1, log1p, maximum, where
from tracegrad.prims.leaves import as_tensor, counter, iota
from tracegrad.prims.views import broadcast_to, reshape, slice_

NO_VALUES: Mapping[str, Tensor] = MappingProxyType({})


def _is_factor(leaf: str) -> bool:
    """Return whether `leaf` is the rate of a group, which is a factor on the schedule."""
    return leaf.startswith(f"lr{GROUP}")


class Host(NamedTuple):
    """The argument `host` of every update rule. Scalars are f32[], and can change at each step without compiling."""

    arena: Arena
    updates: Tensor | None = None  # the number of this update, if it differs from the step number
    guarded: Tensor | None = None  # the gradient whose squares the guard sums, in `unit`
    groups: Groups = NO_GROUPS
    largest: bool = False  # if groups override a value, give the largest: for `Transform.bounds`
    missed: Tensor | None = None  # f32[n]: for each element, the updates that it missed while it was frozen
    own: Mapping[str, Tensor] = NO_VALUES  # values of one member of a sweep, which replace those of all members

    def hyper(self, name: str) -> Tensor:
        """Return the hyperparameter `name`. Its first value is in the transform's `hyper`. As optax.inject_hyperparams.

        f32[]; or f32[n] if groups override the name: for each element the value of its group.
        """
        return self._spread(
            name, lambda leaf: self._leaf(name) * scalar(leaf) if _is_factor(leaf) else self._leaf(leaf)
        )

    def complement(self, name: str) -> Tensor:
        """Return 1 - hyper(name), computed in double precision: 1 - f32(0.999) would be wrong in the fifth digit."""
        return self._spread(name, lambda leaf: self._leaf(COMPLEMENT + leaf))

    def _leaf(self, name: str) -> Tensor:
        if name not in self.own:
            return scalar(name)
        return self.own[name] * scalar(name) if name == "lr" else self.own[name]  # a rate is a factor on the schedule

    def _spread(self, name: str, value: Callable[[str], Tensor]) -> Tensor:
        if name not in self.groups.names:
            return value(name)
        runs = self.groups.runs(name, ((slot.name, slot.offset + slot.size) for slot in self.arena.slots))
        found = {leaf: value(leaf) for leaf, _ in runs}
        if self.largest:
            return reduce(maximum, found.values())
        return self._chosen(runs, found, iota((self.arena.size,), 0))

    def _chosen(self, runs: list[tuple[str, int]], values: Mapping[str, Tensor], at: Tensor) -> Tensor:
        out = broadcast_to(values[runs[-1][0]], at.shape)
        for leaf, end in reversed(runs[:-1]):
            out = where(at < end, values[leaf], out)
        return out

    @property
    def unit(self) -> Tensor:
        """The factor for gradients before they are squared: 2^10, or 2^-80 if the squares would overflow."""
        return scalar(UNIT)

    @property
    def step(self) -> Tensor:
        """The number of this update, 1 at the first. Exact up to 2^24. As state["step"] of torch.optim.Adam."""
        return cast(counter("step"), f32) if self.updates is None else self.updates

    @property
    def steps(self) -> Tensor:
        """The number of this update for each parameter, 1 at its first: `step` less the updates while it was frozen.

        f32[]; or f32[n] in programs that can freeze. A transform that reads it says so by `counts`.
        """
        if self.missed is None:
            return self.step
        # The first update has the largest correction, which bounds those of all parameters
        return as_tensor(1.0) if self.largest else maximum(self.step - self.missed, 1.0)

    def steps_of(self, slot: Slot) -> Tensor:
        """Return `steps` of one parameter, f32[]."""
        if self.missed is None:
            return self.step
        return reshape(slice_(self.steps, 0, slot.offset, 1), ()) if slot.size else self.step

    def bias_correction(self, name: str) -> Tensor:
        """Return 1 - b^steps for a running mean with factor b = hyper(name), also exact while the result is small.

        Kingma and Ba 2015, section 3.
        """
        return -expm1(self.steps * log1p(-self.complement(name)))
