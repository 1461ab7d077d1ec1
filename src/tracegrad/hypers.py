"""Hyperparameters: scalars that the host sets before each step, so that changing one never recompiles."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import cast

from tracegrad.ambient import building, require
from tracegrad.dtypes import TensorType, f32
from tracegrad.errors import InputError, TraceError
from tracegrad.ir import Tensor
from tracegrad.methods import METHODS
from tracegrad.prims.leaves import leaf

PREFIX = "hyper."  # of their names among the inputs of a program
COMPLEMENT = "1-"  # a leaf "1-beta1" is uploaded as 1 - beta1: 1 - f32(0.999) would lose five digits
RESERVED = ("seed", "step")  # counters of the trace, not hyperparameters


def scalar(name: str) -> Tensor:
    """The f32 scalar of that name, one leaf a trace."""
    running = require(f"hyperparameter {name!r}")
    if name not in running.counters:
        running.counters[name] = leaf("hyper", name, TensorType(f32, ()))
    return running.counters[name]


def hyper(name: str, default: float) -> Tensor:
    """A named scalar of a loss that can be changed while training, with `train.set(name=...)`.

    An f32 tensor of rank 0 with the value `default` until it is set. The same name twice is the same value, and a
    name of the optimizer's (lr, weight_decay, ...) reads the optimizer's value. No gradient flows to it.
    Outside of a trace it is its default. Raises TraceError where the name has two defaults, InputError for a name or
    default that cannot be one.
    """
    running = None if not building() else require("tg.hyper")
    name_, value = cast("object", name), float(default)
    if not (isinstance(name_, str) and name_.isidentifier()) or name in RESERVED:
        raise InputError.here(f"tg.hyper: {name!r} is no name to set it by; use an identifier, not seed or step")
    if not math.isfinite(value):
        raise InputError.here(f"tg.hyper: the default of {name!r} must be finite, got {default!r}")
    if running is None:
        return METHODS["cast"](value, f32)  # outside of a trace nothing can set it
    known = running.hypers.setdefault(name, value)
    if known != value:
        raise TraceError.here(f"tg.hyper: {name!r} has the default {known!r} elsewhere and {value!r} here")
    return scalar(name)


def leaf_value(name: str, values: Mapping[str, float]) -> float:
    """What the host uploads for the leaf `name`, given the hyperparameters by name; in double precision."""
    return 1.0 - values[name.removeprefix(COMPLEMENT)] if name.startswith(COMPLEMENT) else values[name]
