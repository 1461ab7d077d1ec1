"""What an update rule may ask of the host: hyperparameters, the step, and the layout of the parameters."""

from __future__ import annotations

from typing import NamedTuple

from tracegrad.dtypes import f32
from tracegrad.hypers import COMPLEMENT, UNIT, scalar
from tracegrad.ir import Tensor
from tracegrad.optim.arena import Arena
from tracegrad.prims.elementwise import cast, expm1, log1p
from tracegrad.prims.leaves import counter


class Host(NamedTuple):
    """Given to every update rule. All scalars are f32 of rank 0 and may change at every step without recompiling."""

    arena: Arena
    updates: Tensor | None = None  # the number of this update, where that is not the step's
    guarded: Tensor | None = None  # the gradient whose squares the guard sums, in `unit`

    def hyper(self, name: str) -> Tensor:
        """The hyperparameter `name`; its first value stands in the transform's `hyper`."""
        return scalar(name)

    def complement(self, name: str) -> Tensor:
        """1 - hyper(name), computed in double precision: 1 - f32(0.999) would be wrong in the fifth digit."""
        return scalar(COMPLEMENT + name)

    @property
    def unit(self) -> Tensor:
        """What to multiply gradients by before they are squared: 2^10, or where their squares overflow 2^-80."""
        return scalar(UNIT)

    @property
    def step(self) -> Tensor:
        """The number of this update, 1 at the first. Exact up to 2^24."""
        return cast(counter("step"), f32) if self.updates is None else self.updates

    def bias_correction(self, name: str) -> Tensor:
        """1 - b^step for a running mean with the factor b = hyper(name); exact also while it is small."""
        return -expm1(self.step * log1p(-self.complement(name)))
