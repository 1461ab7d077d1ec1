"""Dynamic loss scaling, so that gradients keep within the range of half precision while they are passed on.

The gradient of scale * loss is computed, and divided by the scale in f32 before anything else is done with it. A step
whose gradients still overflow is *skipped*: it updates nothing and halves the scale. After 2000 steps without an
overflow the scale is doubled. Scales are powers of two, so that scaling rounds nothing. This is torch.amp.GradScaler
(Micikevicius et al. 2018, section 3.2), but for the first scale, half of PyTorch's, and bounds, which it has not.
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
LARGEST = 2.0**24  # as in Apex: else the scale itself would overflow where gradients are zeros for long
PATIENCE = 2000.0  # steps without an overflow after which the scale is doubled
SCALE, GOOD, SKIPPED = "loss_scale", "good_steps", "skipped_steps"
STATE = {SCALE: FIRST, GOOD: 0.0, SKIPPED: 0.0}  # arrays of one element each, and what they hold at first


class LossScale(NamedTuple):
    """The scale of one step: f32[] each. Counts are exact up to 2^24."""

    scale: Tensor
    good: Tensor  # steps since the scale was changed last
    skipped: Tensor  # steps skipped so far
    at: str = ""

    @staticmethod
    def traced(at: str = "") -> LossScale:
        """As the device holds it before the step. at: begins the names of its arrays."""
        scale, good, skipped = (reshape(leaf("state", at + name, TensorType(f32, (1,))), ()) for name in STATE)
        return LossScale(scale, good, skipped, at)

    def unscaled(self, g: Tensor) -> Tensor:
        """Return the gradient of the loss itself."""
        return g * (1.0 / self.scale)

    def updates(self) -> Tensor:
        """Return the number of this update, 1 at the first: skipped steps do not count."""
        # A pack lies in memory before it is read: what reads the count need not wait for the kernel that writes it.
        return reshape(pack([reshape(cast(counter("step"), f32) - self.skipped, (1,))]), ())

    def hopeless(self) -> Tensor:
        """bool[]: no smaller scale is left to try."""
        return self.scale <= SMALLEST

    def after(self, skipped: Tensor, bad: Tensor) -> dict[str, Tensor]:
        """Return the new states. `bad` steps change nothing unless they are `skipped`, bool[] both."""
        ripe = self.good + 1.0 >= PATIENCE
        grown = where(ripe, minimum(self.scale * 2.0, LARGEST), self.scale)
        scale = where(skipped, self.scale * 0.5, where(bad, self.scale, grown))
        good = where(skipped, 0.0, where(bad, self.good, where(ripe, 0.0, self.good + 1.0)))
        new = {SCALE: scale, GOOD: good, SKIPPED: self.skipped + where(skipped, 1.0, 0.0)}
        return {self.at + name: reshape(x, (1,)) for name, x in new.items()}
