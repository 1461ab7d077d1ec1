"""How a call of a public op becomes the run of a plan: its arguments' types are the key."""

# The engine's modules share the slots of GradTensor, which users have no business with.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator
from typing import Any, cast

from tracegrad.arrays import np
from tracegrad.errors import DTypeError
from tracegrad.imperative import streams
from tracegrad.imperative.plans import Plan, Spec, traced
from tracegrad.imperative.tensors import NUMBER, GradTensor, ran
from tracegrad.imperative.values import operand, typed
from tracegrad.ir import Tensor

MOST = 4096  # plans of one op; a loop over ever new shapes or numbers must not fill the memory
BUFFERS = (GradTensor, array, memoryview, bytearray)
PLAIN = frozenset((int, str, type(None)))  # parts of a key as they are
kind_of = cast("Callable[[Any], type[object]]", type)


class _TracedError(Exception):
    """A traced tensor is among the arguments."""


class _Call:
    """The arguments of a call: their types as a key, and the arrays among them in order."""

    __slots__ = ("arrays", "double", "raw", "specs", "tensors")

    def __init__(self, double: bool = False):
        self.arrays: list[Any] = []
        self.specs: list[Any] = []
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
        if kind is np.ndarray and not self.double:
            self.raw = True
            return self.add(*operand(a), None)
        if kind is tuple and PLAIN.issuperset(map(kind_of, a)):
            return kind, a
        if isinstance(a, (tuple, list)):
            return kind, tuple([self.key(x) for x in cast("list[Any]", a)])
        if kind is slice:
            return kind, a.start, a.stop, a.step
        if isinstance(a, Tensor):
            raise _TracedError
        if isinstance(a, np.generic):
            return self.key(a.item())
        if is_array(a):
            self.raw = True
            double = self.double and np.asarray(a).dtype.kind == "f"
            return self.add(*(typed(a, "float64") if double else operand(a)), None)
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


def run(f: Callable[..., Any], plans: dict[Any, Plan], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The result of the op `f`, at once; NotImplemented if an operand is traced."""
    if not kwargs and args and type(args[0]) is GradTensor:
        plan = _plan_of_one(plans, args)
        if plan is not None:
            return ran(plan, (args[0]._array,), args[:1])
    try:
        call, key = _keyed(f, args, kwargs, double=False)
        if call.raw and any(type(s) is Spec and s.double for s in call.specs):
            call, key = _keyed(f, args, kwargs, double=True)
    except _TracedError:
        return NotImplemented
    plan = plans.get(key)
    if plan is None:
        if len(plans) >= MOST:
            plans.clear()
        plan = plans[key] = traced(f, lambda leaves: _filled(args, kwargs, call.specs, iter(leaves)), call.specs)
    if plan.streams:
        return ran(plan, [*call.arrays, *streams.values(plan.streams)], call.tensors)
    return ran(plan, call.arrays, call.tensors)


def _plan_of_one(plans: dict[Any, Plan], args: tuple[Any, ...]) -> Plan | None:
    """The plan of the most frequent kind of call, an op on one tensor with a few settings, if there is one."""
    key: list[Any] = [args[0]._spec]
    for a in args[1:]:
        kind = kind_of(a)
        if kind in PLAIN:
            key.append(a)
        elif kind is bool or (kind is tuple and PLAIN.issuperset(map(kind_of, a))):
            key.append((kind, a))
        else:
            return None
    plan = plans.get(tuple(key))
    return None if plan is None or plan.streams else plan


def _keyed(f: Any, args: tuple[Any, ...], kwargs: dict[str, Any], *, double: bool) -> tuple[_Call, Any]:
    call = _Call(double)
    if len(args) == 2 and hasattr(f, "rowwise") and not kwargs:
        a, b = args
        number = _number(b)
        if number is not None and _is_float(a):
            return call, (call.key(a), call.add(float(number), NUMBER, None))
        number = _number(a)
        if number is not None and _is_float(b):
            return call, (call.add(float(number), NUMBER, None), call.key(b))
    key: list[Any] = []
    for a in (*args, *kwargs.values()) if kwargs else args:
        kind = kind_of(a)
        if kind is GradTensor:
            key.append(call.add(a._array, a._spec, a))
        else:
            key.append(a if kind in PLAIN else call.key(a))
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
    args: tuple[Any, ...], kwargs: dict[str, Any], specs: list[Any], leaves: Iterator[Tensor]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments with leaves in the places of arrays."""
    if NUMBER in specs:
        return tuple(leaves), {}

    def fill(a: Any) -> Any:
        if isinstance(a, (tuple, list)):
            return type(cast("Any", a))([fill(x) for x in cast("list[Any]", a)])
        return next(leaves) if is_array(a) else a

    return tuple([fill(a) for a in args]), {name: fill(a) for name, a in kwargs.items()}
