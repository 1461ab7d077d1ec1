"""Estimate the work of a traced function, to decide how to call it."""

from __future__ import annotations

from collections.abc import Iterator
from math import inf, prod
from typing import Any

# Steps of fewer FLOPs share a loop on the device. On a CPU (two cores of an x86-64 VM), a step of 7e6
# takes 0.08 ms in a loop and 0.12 ms without, one of 5e8 takes 5.9 and 4.2 ms. A call costs a GPU's host 0.2 ms.
LOOPED = {"cpu": 2e7}
LOOPED_ELSEWHERE = 1e9
# Ops that XLA's CPU passes to a library, but computes on one thread inside a loop: a small CNN took 361 instead of 27
# ms.
SLOW_IN_LOOPS = {"cpu": {"conv_general_dilated"}}


def loops(jaxpr: Any, platform: str) -> bool:
    """Return whether it is worth running the function several times in one call."""
    return flops(jaxpr, SLOW_IN_LOOPS.get(platform, set())) < LOOPED.get(platform, LOOPED_ELSEWHERE)


def flops(jaxpr: Any, never: set[str]) -> float:
    """Return roughly how many arithmetic operations it does; infinite if it uses one of the primitives `never`."""
    total = 0.0
    for eqn in jaxpr.eqns:
        name = eqn.primitive.name
        inner = sum(flops(one, never) for one in _inner(eqn.params))
        total += inner * eqn.params.get("length", 1) if inner else 0.0
        size = float(sum(prod(v.aval.shape) for v in eqn.outvars))
        if name in never:
            return inf
        if name == "dot_general":
            (contracted, _), _ = eqn.params["dimension_numbers"]
            size *= 2 * prod(eqn.invars[0].aval.shape[k] for k in contracted)
        elif name == "conv_general_dilated":
            kernel = eqn.invars[1].aval.shape
            size *= 2 * prod(kernel) / kernel[eqn.params["dimension_numbers"].rhs_spec[0]]
        total += size
    return total


def _inner(params: dict[str, Any]) -> Iterator[Any]:
    """Yield the functions that an equation calls."""
    for value in params.values():
        for one in list(value) if type(value) in (tuple, list) else [value]:
            called = getattr(one, "jaxpr", one)
            if hasattr(called, "eqns"):
                yield called
