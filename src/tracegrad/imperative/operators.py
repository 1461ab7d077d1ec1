"""Operators of eager tensors without the general way: one dictionary look-up between Python and the plan."""

# The engine's modules share the slots of GradTensor, which users have no business with.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from tracegrad.arrays import HAVE_NUMPY
from tracegrad.imperative.dispatch import kind_of, run
from tracegrad.imperative.plans import Plan
from tracegrad.imperative.tape import recording
from tracegrad.imperative.tensors import NUMBER, GradTensor, ran, wrap
from tracegrad.methods import AT_ONCE, METHODS

BINARY = {"add": "add", "sub": "sub", "mul": "mul", "truediv": "div", "matmul": "matmul", "pow": "pow"}
UNARY = ("neg", "abs", "exp", "log", "sqrt", "tanh", "square", "relu", "sigmoid", "sin", "cos", "silu")


def _operator(name: str) -> Callable[[GradTensor, Any], Any]:
    """`a op b`. The key of two tensors is that of `dispatch`: both find the same plan."""
    op = METHODS[name]
    plans = cast("dict[Any, Plan]", cast("Any", op).plans)
    numbers = hasattr(cast("Any", op).__wrapped__, "rowwise")

    def spelled(a: GradTensor, b: Any) -> Any:
        kind = kind_of(b)
        if kind is GradTensor:
            plan = plans.get((a._spec, b._spec))
            if plan is None:
                return op(a, b)
            if (a._requires or b._requires) and recording.get():
                return ran(plan, (a._array, b._array), (a, b))
            value = plan.forward(a._array, b._array)
        elif numbers and (kind is float or kind is int):
            plan = plans.get((a._spec, NUMBER))
            if plan is None:
                return op(a, b)
            b = float(b)
            if a._requires and recording.get():
                return ran(plan, (a._array, b), (a, None))
            value = plan.forward(a._array, b)
        else:
            return op(a, b)
        return wrap(value, plan.spec)

    return spelled


def _unary(name: str) -> Callable[[GradTensor], Any]:
    op = METHODS[name]
    plans = cast("dict[Any, Plan]", cast("Any", op).plans)

    def spelled(a: GradTensor) -> Any:
        plan = plans.get((a._spec,))
        if plan is None:
            return op(a)
        return ran(plan, (a._array,), (a,))

    return spelled


def install() -> None:
    """Give eager tensors these operators and methods, and enter the engine that runs all other calls.

    Without NumPy there is nothing to enter: ops then ask for a trace.
    """
    if not HAVE_NUMPY:
        return
    for spelling, name in BINARY.items():
        setattr(GradTensor, f"__{spelling}__", _operator(name))
    for name in set(BINARY.values()):
        setattr(GradTensor, name, _operator(name))
    for name in UNARY:
        setattr(GradTensor, name, _unary(name))
        if name in ("neg", "abs"):
            setattr(GradTensor, f"__{name}__", _unary(name))
    AT_ONCE.append(run)
