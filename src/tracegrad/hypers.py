"""Hyperparameters: scalars that the host sets before each step, so that a change needs no compilation.

`RANGES` defines their valid values. Optimizers, `train.set`, schedules and checkpoints check values against it. So do
exported pages, which find the ranges in the metadata of the program.
"""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Iterable, Mapping
from inspect import signature
from typing import Any, NamedTuple, cast

from tracegrad.dtypes import LARGEST_F32, f32, nearest_f32
from tracegrad.errors import CallError, InputError, TraceError
from tracegrad.ir.ambient import building, require
from tracegrad.ir.nodes import Tensor
from tracegrad.methods import METHODS
from tracegrad.prims.leaves import counter
from tracegrad.refusals import shown
from tracegrad.wrong_calls import helpful, shown_argument

PREFIX = "hyper."  # prefix of their names among the inputs of a program
COMPLEMENT = "1-"  # a leaf "1-beta1" is uploaded as 1 - beta1: 1 - f32(0.999) would lose five digits
RESERVED = ("seed", "step")  # counters of the trace, not hyperparameters
GROUP = "@"  # in names: "weight_decay@0" is the "weight_decay" of the first group of parameters
UNIT = "norm-unit"  # a leaf: the factor for gradients before they are squared. Users cannot choose this name
NORMAL = 2.0**10  # the usual unit: squares of gradients of length 1e-22 to 1e16 have a finite sum that is not 0
LARGE = 2.0**-80  # a unit in which squares of every finite f32, and sums of 2^31 of them, are finite


class Range(NamedTuple):
    """Finite f32 numbers x with low <= x < high. None means no bound on that side.

    above: `low` itself is out of range.
    """

    low: float | None = None
    high: float | None = None
    above: bool = False

    def holds(self, x: float) -> bool:
        """Return whether `x` is within both bounds. NaN never is."""
        low = self.low is None or (x > self.low if self.above else x >= self.low)
        return low and (self.high is None or x < self.high)

    def __str__(self) -> str:
        """Return the range in words, such as `at least 0 and below 1`."""
        low = "" if self.low is None else f"{'above' if self.above else 'at least'} {self.low:g}"
        return " and ".join(filter(None, (low, "" if self.high is None else f"below {self.high:g}")))


ANY, AT_LEAST_0, POSITIVE, SHARE = Range(), Range(0.0), Range(0.0, above=True), Range(0.0, 1.0)

# Hyperparameters of the optimizers, with the ranges of PyTorch's constructors
RANGES: Mapping[str, Range] = {
    "lr": AT_LEAST_0, "weight_decay": AT_LEAST_0, "momentum": AT_LEAST_0, "clip_grad_norm": POSITIVE,
    "beta1": SHARE, "beta2": SHARE, "alpha": SHARE, "ema": SHARE,
    "eps": AT_LEAST_0, "adam_eps": AT_LEAST_0, "adam_lr_scale": AT_LEAST_0,
}  # fmt: skip

# Values that switch a hyperparameter off: the optimizer then leaves it out of the program
OFF: Mapping[str, float] = {"weight_decay": 0.0, "momentum": 0.0, "clip_grad_norm": LARGEST_F32}


def ranges_of(meta: Mapping[str, Any]) -> dict[str, Range]:
    """Return the ranges of a program's hyperparameters, by name, from its meta data."""
    return {name: Range(**spec) for name, spec in meta.get("ranges", {}).items()}


def checked(name: str, value: Any, range: Range = ANY, what: str = "") -> float:
    """Return `value` as a float. Raises InputError unless it is a number within `range` and finite in f32.

    what: the call that takes the value, for the error.
    """
    who = f"{what}: {name}" if what else name
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        hint = "; pass float(x)" if getattr(value, "shape", None) == () else ""
        raise InputError.here(f"{who} must be a number, got {shown(value)} ({type(value).__name__}){hint}")
    try:
        x = float(value)
    except OverflowError:  # an integer of 400 digits
        x = math.inf
    if not range.holds(x):
        raise InputError.here(f"{who} must be {range}, got {value!r}")
    if not math.isfinite(nearest_f32(x)):
        largest = f"; the largest f32 is {LARGEST_F32:.4g}" if math.isfinite(x) else ""
        raise InputError.here(f"{who} must be finite in f32, got {value!r}{largest}")
    return x


def checked_whole(name: str, value: Any, what: str = "", low: int = 1) -> int:
    """Return `value` as an int. Raises InputError unless it is an integer of at least `low`."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < low:
        raise InputError.here(f"{what and what + ': '}{name} must be an integer of at least {low}, got {shown(value)}")
    return int(value)


def checked_all(values: Mapping[str, Any], ranges: Mapping[str, Range], what: str) -> dict[str, float]:
    """Check each of `values` by `checked`, and return them. A name without a range takes any finite number."""
    return {name: checked(name, value, ranges.get(name, ANY), what) for name, value in values.items()}


def scalar(name: str) -> Tensor:
    """Return the f32 scalar leaf `name` of the trace, the same at each call."""
    return counter(name, f32, f"hyperparameter {name!r}")


@helpful
def hyper(name: str, default: float) -> Tensor:
    """Return a named scalar for a loss. `train.set(name=...)` changes it during training.

    name:     a Python identifier. The same name gives the same value. A name of the optimizer, such as "lr" or
              "weight_decay", gives the optimizer's value.
    default:  the value until you set another one; in eager code, the value always.
    Returns:  f32[]. No gradient flows to it.
    Raises:   TraceError if a name has two defaults; InputError for a name that is no identifier, or a default that is
              no number. As optax.inject_hyperparams.

    >>> loss = lambda m, x: tg.mean(m(x)) * tg.hyper("weight", 1.0)
    >>> train = tg.compile(model=nn.Linear(2, 1), loss=loss, inputs={"x": (4, 2)}, optimizer=optim.sgd(lr=0.1), seed=0)
    >>> train.set(weight=0.0)
    >>> train.step(x=np.ones((4, 2))).loss
    0.0
    """
    running = None if not building() else require("tg.hyper")
    name_ = cast("object", name)
    if not (isinstance(name_, str) and name_.isidentifier()) or name in RESERVED:
        raise InputError.here(f"tg.hyper: {name!r} cannot be a name; use a Python identifier other than seed and step")
    value = checked(f"the default of {name!r}", default, what="tg.hyper")
    if running is None:
        return METHODS["cast"](value, f32)  # outside of a trace nothing can set it
    known = running.hypers.setdefault(name, value)
    if known != value:
        raise TraceError.here(f"tg.hyper: {name!r} has two defaults, {known!r} before and {value!r} here; use one")
    return scalar(name)


def leaf_value(name: str, values: Mapping[str, float]) -> float:
    """Return the value that the host uploads for the leaf `name`, in double precision. values: hyperparameters."""
    bare = name.removeprefix(COMPLEMENT)
    value = values.get(bare, NORMAL if bare == UNIT else OFF.get(bare))
    if value is None and GROUP in bare:  # the step was queued before its program had the group
        shared = bare.partition(GROUP)[0]
        value = 1.0 if shared == "lr" else values.get(shared, OFF.get(shared))
    assert value is not None, name
    return 1.0 - value if name.startswith(COMPLEMENT) else value


def settable(names: Iterable[str]) -> list[str]:
    """Return the names that `train.set` takes: the hyperparameters among the inputs `names`, without counters.

    Values of groups are not included: `train.set` takes them by pattern.
    """
    hyper = [name.removeprefix(PREFIX).removeprefix(COMPLEMENT) for name in names if name.startswith(PREFIX)]
    return [name for name in dict.fromkeys(hyper) if name not in (*RESERVED, UNIT) and GROUP not in name]


def kind_of(cls: type) -> str:
    """Return the name of a class of plain data in its `spec()`, such as `cosine_annealing` for lr.CosineAnnealing."""
    return "".join(f"_{c.lower()}" if c.isupper() else c for c in cls.__name__).lstrip("_")


def check_positions(what: str, core: Callable[..., Any], args: tuple[Any, ...]) -> None:
    """Raise CallError for arguments by position after a weight decay, where other libraries have the betas."""
    names = list(signature(core).parameters)
    if len(args) > 2 and names[1] == "weight_decay":
        given = ", ".join([f"{n}={shown_argument(x)}" for n, x in zip(names[1:], args[1:])])
        raise CallError.here(
            f"{what}: takes at most two arguments by position, because their order differs between libraries; as "
            f"given, it is {what}({shown_argument(args[0])}, {given}); name those that you mean"
        )
