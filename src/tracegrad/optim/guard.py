"""The guard: a step is applied as a whole or not at all, and makes nothing infinite or NaN.

The device keeps a bound for the parameters and for each state of the optimizer: a number that no |element| exceeds.
Before each step it computes them anew, for a gradient of any length below `LONGEST` (`Transform.bounds`). While they
are finite, what the step writes is too, and no pass over it has to look. Where they are not, or the gradient is longer,
the step is not applied. The host then does it as a trial: again, looking at what was written, and putting back what was
there if that is not finite.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from math import inf
from typing import NamedTuple

from tracegrad.dtypes import TensorType, f32
from tracegrad.hypers import NORMAL
from tracegrad.ir import Tensor, bind
from tracegrad.optim.host import Host
from tracegrad.optim.transform import Transform
from tracegrad.prims.elementwise import maximum, nonfinite, where
from tracegrad.prims.folds import SUM, pack
from tracegrad.prims.leaves import as_tensor, iota, leaf
from tracegrad.prims.views import broadcast_to, reshape, slice_

PARAMS = "params"
LONGEST = 2.0**65 / NORMAL  # squares of a longer gradient, in the usual unit, have no finite sum
SLACK = 1.0 + 2.0**-20  # more than the roundings of a step add
TRIAL = -1.0  # the host writes it for the first bound: do the step whatever the bounds say


def bounded_arrays(transform: Transform) -> tuple[str, ...]:
    """Return the arrays that have a bound, in order."""
    return (PARAMS, *transform.state) if transform.bounds is not None else ()


def array_name(bounded: Sequence[str]) -> str:
    """The array of bounds. Programs of one session share arrays by name, so each length has a name of its own."""
    return f"bounds.{len(bounded)}"


class Guard(NamedTuple):
    """What the bounds say of the step to come."""

    poison: Tensor  # f32[]: infinite if the step might write something that is not finite, else 0
    writes: dict[str, Tensor]  # the bounds behind it

    @staticmethod
    def traced(transform: Transform, host: Host, at: str = "") -> Guard | None:
        """Return the guard of a step; None where the transform has no bounds. at: begins the name of its array."""
        names = bounded_arrays(transform)
        if transform.bounds is None:
            return None
        host = host._replace(largest=True)
        held = leaf("state", at + array_name(names), TensorType(f32, (len(names),)))
        old = {name: reshape(slice_(held, 0, k, 1), ()) for k, name in enumerate(names)}
        state = {name: x for name, x in old.items() if name != PARAMS}
        step, after = transform.bounds(as_tensor(LONGEST), old[PARAMS], state, host)
        after = {PARAMS: old[PARAMS] + step, **after}
        # A step that is not applied leaves what was there, whose bounds are the old ones
        new = [maximum(old[name], after[name] * SLACK) for name in names]
        beyond = nonfinite(reduce(lambda a, b: a + b, new))
        kept = [where(beyond, old[name], x) for name, x in zip(names, new, strict=True)]
        # A pack, so that a kernel of its own computes them early, and the last kernels load one number
        found = pack([_vector([where(beyond & (old[PARAMS] >= 0.0), inf, 0.0), *kept])])
        return Guard(reshape(slice_(found, 0, 0, 1), ()), {at + array_name(names): slice_(found, 0, 1, len(names))})


class NewStates:
    """What a step writes into states of the model, which land with it or not at all."""

    def __init__(self, written: Mapping[str, tuple[Tensor, Tensor]]):
        """written: the old and the new value of each state, by name."""
        self.old = {name: x for name, (x, _) in written.items()}
        self.new = new = {name: x for name, (_, x) in written.items()}
        self.odd: Tensor | None = None  # bool[]: is one of the new values infinite or NaN?
        floats = {name: x for name, x in new.items() if x.dtype.is_float}
        if not floats:
            return
        # A pack, so that all of them lie in memory: one kernel looks at them, before the last ones take them over
        flat = pack([reshape(x, (x.size,)) for x in floats.values()])
        at = 0
        for name, x in floats.items():
            new[name] = reshape(slice_(flat, 0, at, x.size), x.shape)
            at += x.size
        self.odd = any_nonfinite({"states": flat})

    def unless(self, bad: Tensor) -> dict[str, Tensor]:
        """Return the states behind the step; what they were where `bad`, bool[]."""
        return {name: where(broadcast_to(~bad, x.shape), x, self.old[name]) for name, x in self.new.items()}


def any_nonfinite(arrays: Mapping[str, Tensor]) -> Tensor:
    """Is an element of one of these flat arrays infinite or NaN? bool[]."""
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
