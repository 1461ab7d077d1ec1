"""The guard: a step is applied as a whole or not at all, and never stores an infinite or NaN value.

The device keeps a bound for the parameters and for each state of the optimizer: a number that no |element| exceeds.
Each step first computes new bounds, which hold for every gradient shorter than `LONGEST`; see `Transform.bounds`. If
the new bounds are finite, every value that the step writes is finite too, and no pass has to check. Otherwise, or if
the gradient is longer, the step is not applied. The host then repeats the step as a trial: it checks every written
value, and restores the old values if one is not finite.

Under precision="f16" the loss is scaled, so that gradients stay within the range of half precision in the backward
pass. The step computes the gradient of scale * loss, and first divides it by the scale in f32. A step whose gradient
overflows is *skipped*: it updates nothing and halves the scale. After 2000 steps without an overflow the scale is
doubled. Scales are powers of two, so scaling does not round. As torch.amp.GradScaler (Micikevicius et al. 2018, section
3.2), except that the first scale is half of PyTorch's, and that the scale is bounded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import inf
from typing import NamedTuple

from tracegrad.dtypes import TensorType, f32
from tracegrad.hypers import NORMAL
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.optim.transform import Host, Transform
from tracegrad.prims.elementwise import cast, maximum, minimum, nonfinite, where
from tracegrad.prims.folds import SUM, pack
from tracegrad.prims.leaves import as_tensor, counter, iota, leaf
from tracegrad.prims.views import broadcast_to, reshape, slice_

FIRST_SCALE = 2.0**15
SMALLEST_SCALE = 1.0  # a gradient that overflows unscaled is an error, as in DeepSpeed
LARGEST_SCALE = 2.0**24  # as in Apex: the scale itself would overflow if gradients stay zero for long
PATIENCE = 2000.0  # steps without an overflow after which the scale is doubled
SCALE, GOOD, SKIPPED = "loss_scale", "good_steps", "skipped_steps"
SCALE_STATE = {SCALE: FIRST_SCALE, GOOD: 0.0, SKIPPED: 0.0}  # arrays of one element each, with their first values


class LossScale(NamedTuple):
    """The loss scale in one step, and counts that are exact up to 2^24. Each field is f32[]."""

    scale: Tensor
    good: Tensor  # steps since the scale last changed
    skipped: Tensor  # steps skipped so far
    at: str = ""

    @staticmethod
    def traced(at: str = "") -> LossScale:
        """Return the scale as stored on the device before the step. at: prefix of the array names."""
        scale, good, skipped = (reshape(leaf("state", at + name, TensorType(f32, (1,))), ()) for name in SCALE_STATE)
        return LossScale(scale, good, skipped, at)

    def updates(self) -> Tensor:
        """Return the number of this update, from 1 on. Skipped steps do not count."""
        # A pack is stored before it is read: readers of the count need not wait for the kernel that writes `skipped`.
        return reshape(pack([reshape(cast(counter("step"), f32) - self.skipped, (1,))]), ())

    def hopeless(self) -> Tensor:
        """Return bool[]: True if no smaller scale is left to try."""
        return self.scale <= SMALLEST_SCALE

    def after(self, skipped: Tensor, bad: Tensor) -> dict[str, Tensor]:
        """Return the values of the loss scale's states after the step, by name.

        A `skipped` step halves the scale. A step that is `bad` and not skipped changes nothing. Both are bool[].
        """
        ripe = self.good + 1.0 >= PATIENCE
        grown = where(ripe, minimum(self.scale * 2.0, LARGEST_SCALE), self.scale)
        scale = where(skipped, self.scale * 0.5, where(bad, self.scale, grown))
        good = where(skipped, 0.0, where(bad, self.good, where(ripe, 0.0, self.good + 1.0)))
        new = {SCALE: scale, GOOD: good, SKIPPED: self.skipped + where(skipped, 1.0, 0.0)}
        return {self.at + name: reshape(x, (1,)) for name, x in new.items()}


PARAMS = "params"
LONGEST = 2.0**65 / NORMAL  # squares of a longer gradient, in the usual unit, have no finite sum
SLACK = 1.0 + 2.0**-20  # exceeds the rounding errors of a step
TRIAL = -1.0  # the host writes this as the first bound to apply the step without regard to bounds


def bounded_arrays(transform: Transform) -> tuple[str, ...]:
    """Return the names of the arrays that have a bound, in order."""
    return (PARAMS, *transform.state) if transform.bounds is not None else ()


def array_name(bounded: Sequence[str]) -> str:
    """Return the name of the array of bounds. It contains the length: programs of a session share arrays by name."""
    return f"bounds.{len(bounded)}"


class Guard(NamedTuple):
    """The result of checking the bounds before a step."""

    poison: Tensor  # f32[]: infinite if the step could write a value that is not finite, else 0
    writes: dict[str, Tensor]  # the bounds after the step

    @staticmethod
    def traced(transform: Transform, host: Host, at: str = "") -> Guard | None:
        """Return the guard of a step; None if the transform has no bounds. at: prefix of the array name."""
        names = bounded_arrays(transform)
        if transform.bounds is None:
            return None
        host = host._replace(largest=True)
        held = leaf("state", at + array_name(names), TensorType(f32, (len(names),)))
        old = {name: reshape(slice_(held, 0, k, 1), ()) for k, name in enumerate(names)}
        state = {name: x for name, x in old.items() if name != PARAMS}
        step, after = transform.bounds(as_tensor(LONGEST), old[PARAMS], state, host)
        after = {PARAMS: old[PARAMS] + step, **after}
        # A step that is not applied keeps the old values, so the old bounds stay valid
        new = [maximum(old[name], after[name] * SLACK) for name in names]
        beyond = nonfinite(reduce(lambda a, b: a + b, new))
        kept = [where(beyond, old[name], x) for name, x in zip(names, new, strict=True)]
        # A pack, so that a separate kernel computes them early, and the last kernels load one number
        found = pack([_vector([where(beyond & (old[PARAMS] >= 0.0), inf, 0.0), *kept])])
        return Guard(reshape(slice_(found, 0, 0, 1), ()), {at + array_name(names): slice_(found, 0, 1, len(names))})


class NewStates:
    """The values that a step writes into states of the model: all are applied with the step, or none."""

    def __init__(self, written: Mapping[str, tuple[Tensor, Tensor]]):
        """written: the old and the new value of each state, by name."""
        self.old = {name: x for name, (x, _) in written.items()}
        self.new = new = {name: x for name, (_, x) in written.items()}
        self.odd: Tensor | None = None  # bool[]: is one of the new values infinite or NaN?
        floats = {name: x for name, x in new.items() if x.dtype.is_float}
        if not floats:
            return
        # A pack stores them all in memory: one kernel checks them before the last kernels write them to the states
        flat = pack([reshape(x, (x.size,)) for x in floats.values()])
        at = 0
        for name, x in floats.items():
            new[name] = reshape(slice_(flat, 0, at, x.size), x.shape)
            at += x.size
        self.odd = any_nonfinite({"states": flat})

    def unless(self, bad: Tensor) -> dict[str, Tensor]:
        """Return the states after the step: the old values if `bad`, bool[], else the new ones."""
        return {name: where(broadcast_to(~bad, x.shape), x, self.old[name]) for name, x in self.new.items()}


def any_nonfinite(arrays: Mapping[str, Tensor]) -> Tensor:
    """Return bool[]: True if an element of one of these flat arrays is infinite or NaN."""
    odd: dict[int, Tensor] = {}
    for x in arrays.values():
        odd[x.size] = odd[x.size] | nonfinite(x) if x.size in odd else nonfinite(x)
    counts = [reshape(bind(SUM, where(x, 1, 0), axes=(0,)), ()) for x in odd.values()]
    return reduce(lambda a, b: a + b, counts) > 0


def _vector(elements: Sequence[Tensor]) -> Tensor:
    at = iota((len(elements),), 0)
    out = broadcast_to(elements[0], at.shape)
    for k, x in enumerate(elements):
        out = where(at == k, x, out) if k else out
    return out
