"""How a call of a public op becomes the run of a plan: its arguments' types are the key."""

# The engine's modules share the slots of GradTensor, which users have no business with.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from functools import partial
from operator import index
from typing import Any, cast

from tracegrad.ambient import building
from tracegrad.arrays import HAVE_NUMPY, np
from tracegrad.errors import DTypeError
from tracegrad.imperative import calls
from tracegrad.imperative.calls import Call
from tracegrad.imperative.plans import OpPlan, ran, traced
from tracegrad.imperative.tensors import GradTensor
from tracegrad.imperative.values import NUMBER, Spec, typed
from tracegrad.ir import Tensor
from tracegrad.methods import AT_ONCE, Op

BUFFERS = (GradTensor, array, memoryview, bytearray)
kind_of = cast("Callable[[Any], type[object]]", type)
PLAIN = frozenset((int, str, type(None)))  # parts of a key as they are


class _TracedError(Exception):
    """A traced tensor is among the arguments."""


class _Operands:
    """The arguments of a call: their types as a key, and the arrays among them in order."""

    __slots__ = ("arrays", "double", "raw", "specs", "tensors")

    def __init__(self, double: bool = False):
        self.arrays: list[Any] = []
        self.specs: list[Spec] = []
        self.tensors: list[Any] = []  # whose gradients are asked for, perhaps
        self.double, self.raw = double, False

    def key(self, a: Any) -> Any:
        """The part of the key for one argument; True is not 1 there, and 0.0 is not -0.0."""
        kind = kind_of(a)
        if kind is GradTensor:
            return self.add(a._array, a._spec, a)
        if kind in PLAIN:
            return a
        if kind is bool:
            return kind, a
        if kind is float:
            return kind, repr(a)
        if kind is np.ndarray and not a.shape:
            return self.key(a.item())  # as in a trace, a number
        if isinstance(a, (tuple, list)):
            return kind, tuple([self.key(x) for x in cast("list[Any]", a)])
        if kind is slice:
            return kind, *[index(k) if hasattr(k, "__index__") else (kind_of(k), k) for k in (a.start, a.stop, a.step)]
        if isinstance(a, Tensor):
            raise _TracedError
        if isinstance(a, np.generic):
            return self.key(a.item())
        if is_array(a):
            self.raw = True
            double = self.double and np.asarray(a).dtype.kind == "f"
            return self.add(*typed(a, "float64" if double else None), None)
        try:
            hash(a)
        except TypeError:
            raise DTypeError(f"a {kind.__module__}.{kind.__qualname__} is no operand") from None
        return kind, a

    def add(self, array: Any, spec: Any, tensor: Any) -> Any:
        """One more array; its part of the key."""
        self.arrays.append(array)
        self.specs.append(spec)
        self.tensors.append(tensor)
        return spec


def is_array(a: Any) -> bool:
    """Does `a` come with each call, rather than being a part of the plan?"""
    if isinstance(a, np.ndarray):
        return bool(cast("Any", a).shape)
    return isinstance(a, BUFFERS) or (hasattr(a, "__array__") and not isinstance(a, (type, np.generic)))


def run(op: Op, kinds: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of an op, at once; NotImplemented if it belongs to a trace.

    kinds: the Python types of its arguments; the next call with such types goes the way that is written here for it.
           None: it has no such ways, and is no op of a trace.
    """
    if kinds is None:
        return general(op, args, kwargs)

    def function(call: Call) -> Callable[..., Any]:
        if not call.is_known:
            return call.unknown(partial(_missed, op, None))
        return call.written(partial(_missed, op, call))

    call = Call(op, kinds)
    if call.sequences and Tensor not in call.kinds:
        op.calls[kinds] = call.chosen(lambda items: function(Call(op, kinds, items)))
    else:
        op.calls[kinds] = function(call)
    return NotImplemented if building() else general(op, args, kwargs)


def _missed(op: Op, call: Call | None, key: Any, arrays: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of a written call that met no such key before, or belongs to a trace."""
    if building():
        return op.function(*args, **kwargs)

    def keep(plan: OpPlan, specs: list[Spec]) -> None:
        if call is not None and key is not None:
            call.add(key, plan, arrays, specs)

    result = general(op, args, kwargs, keep)
    return op.function(*args, **kwargs) if result is NotImplemented else result


def general(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], keep: Callable[..., Any] | None = None) -> Any:
    """The result for arguments of any kind; NotImplemented if it belongs to a trace. keep: what else gets the plan."""
    try:
        operands, key = _keyed(op, args, kwargs, double=False)
        if operands.raw and any(s.double for s in operands.specs):
            operands, key = _keyed(op, args, kwargs, double=True)
    except _TracedError:
        return NotImplemented
    plan: OpPlan | None = op.plans.get(key)
    if plan is None:
        if len(op.plans) >= calls.MOST:
            op.plans.clear()
        leaves_for = partial(_filled, args, kwargs, operands.specs)
        plan = op.plans[key] = traced(op.function, lambda leaves: leaves_for(iter(leaves)), operands.specs)
    if keep is not None:
        keep(plan, operands.specs)
    return ran(plan, operands.arrays, operands.tensors)


def _keyed(op: Op, args: tuple[Any, ...], kwargs: dict[str, Any], *, double: bool) -> tuple[_Operands, Any]:
    call = _Operands(double)
    if len(args) == 2 and hasattr(op.function, "rowwise") and not kwargs:
        a, b = args
        number = _number(b)
        if number is not None and _is_float(a):
            return call, (call.key(a), call.add(float(number), NUMBER, None))
        number = _number(a)
        if number is not None and _is_float(b):
            return call, (call.add(float(number), NUMBER, None), call.key(b))
    key = [call.key(a) for a in (*args, *kwargs.values())]
    if kwargs:
        key.append(tuple(kwargs))
    return call, tuple(key)


def _number(a: Any) -> int | float | None:
    """`a` if it is a number, whoever made it."""
    kind = kind_of(a)
    if kind is float or kind is int:
        return a
    scalar = isinstance(a, np.generic) or (kind is np.ndarray and not a.shape)
    return cast("Any", a).item() if scalar and cast("Any", a).dtype.kind in "fiu" else None


def _is_float(a: Any) -> bool:
    if type(a) is GradTensor:
        return a._spec.type.dtype.is_float
    return isinstance(a, np.ndarray) and cast("Any", a).dtype.kind == "f"


def _filled(
    args: tuple[Any, ...], kwargs: dict[str, Any], specs: list[Spec], leaves: Iterator[Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with leaves in the places of arrays."""
    if NUMBER in specs:
        return tuple(leaves), {}

    def fill(a: Any) -> Any:
        if isinstance(a, (tuple, list)):
            return type(cast("Any", a))([fill(x) for x in cast("list[Any]", a)])
        return next(leaves) if is_array(a) else a

    return tuple([fill(a) for a in args]), {name: fill(a) for name, a in kwargs.items()}


def install() -> None:
    """Enter the engine that runs ops at once. Without NumPy there is nothing to enter: ops then ask for a trace."""
    if HAVE_NUMPY:
        AT_ONCE.append(run)
