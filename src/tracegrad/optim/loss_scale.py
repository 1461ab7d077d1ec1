"""Dynamic loss scaling, so that gradients stay within the range of half precision in the backward pass.

The step computes the gradient of scale * loss, and first divides it by the scale in f32. A step whose gradient
overflows
is *skipped*: it updates nothing and halves the scale. After 2000 steps without an overflow the scale is doubled. Scales
are powers of two, so scaling does not round. As torch.amp.GradScaler (Micikevicius et al. 2018, section 3.2), except
that the first scale is half of PyTorch's, and that the scale is bounded.
"""

from __future__ import annotations

from typing import NamedTuple

from tracegrad.dtypes import TensorType, f32
from tracegrad.ir import Tensor
from tracegrad.prims.elementwise import cast, minimum, where
from tracegrad.prims.folds import pack
from tracegrad.prims.leaves import counter, leaf
from tracegrad.prims.views import reshape

FIRST = 2.0**15
SMALLEST = 1.0  # a gradient that overflows unscaled is an error, as in DeepSpeed
LARGEST = 2.0**24  # as in Apex: the scale itself would overflow if gradients stay zero for long
PATIENCE = 2000.0  # steps without an overflow after which the scale is doubled
SCALE, GOOD, SKIPPED = "loss_scale", "good_steps", "skipped_steps"
STATE = {SCALE: FIRST, GOOD: 0.0, SKIPPED: 0.0}  # arrays of one element each, with their first values


class LossScale(NamedTuple):
    """The scale of one step: f32[] each. Counts are exact up to 2^24."""

    scale: Tensor
    good: Tensor  # steps since the scale last changed
    skipped: Tensor  # steps skipped so far
    at: str = ""

    @staticmethod
    def traced(at: str = "") -> LossScale:
        """Return the scale as stored on the device before the step. at: prefix of the array names."""
        scale, good, skipped = (reshape(leaf("state", at + name, TensorType(f32, (1,))), ()) for name in STATE)
        return LossScale(scale, good, skipped, at)

    def unscaled(self, g: Tensor) -> Tensor:
        """Return the gradient of the loss itself."""
        return g * (1.0 / self.scale)

    def updates(self) -> Tensor:
        """Return the number of this update, from 1 on. Skipped steps do not count."""
        # A pack is stored before it is read: readers of the count need not wait for the kernel that writes `skipped`.
        return reshape(pack([reshape(cast(counter("step"), f32) - self.skipped, (1,))]), ())

    def hopeless(self) -> Tensor:
        """Return bool[]: True if no smaller scale is left to try."""
        return self.scale <= SMALLEST

    def after(self, skipped: Tensor, bad: Tensor) -> dict[str, Tensor]:
        """Return the new states. A `bad` step changes nothing unless it is also `skipped`; both are bool[]."""
        ripe = self.good + 1.0 >= PATIENCE
        grown = where(ripe, minimum(self.scale * 2.0, LARGEST), self.scale)
        scale = where(skipped, self.scale * 0.5, where(bad, self.scale, grown))
        good = where(skipped, 0.0, where(bad, self.good, where(ripe, 0.0, self.good + 1.0)))
        new = {SCALE: scale, GOOD: good, SKIPPED: self.skipped + where(skipped, 1.0, 0.0)}
        return {self.at + name: reshape(x, (1,)) for name, x in new.items()}
