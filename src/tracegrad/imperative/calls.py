"""Calls written out: for the Python types of an op's arguments, a function that leads straight to the plan.

It looks at nothing but what a plan depends on: types of tensors and arrays, values of settings. What those that it has
not met yet mean, `dispatch` finds out.
"""

# The engine's modules share the slots of GradTensor, which users have no business with.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from keyword import iskeyword
from types import EllipsisType
from typing import Any, cast

from tracegrad.ambient import building
from tracegrad.arrays import np
from tracegrad.dtypes import DType
from tracegrad.imperative import tape
from tracegrad.imperative.plans import Number, Plan, Spec
from tracegrad.imperative.running import recorded, written
from tracegrad.imperative.spell import defined
from tracegrad.imperative.tensors import GradTensor
from tracegrad.imperative.values import taking

# What stands for an argument in the key of its plan. A function is of one choice of types, so True is not 1 there.
KEYS = {
    GradTensor: "{0}._spec",
    **dict.fromkeys((int, bool, str, type(None), EllipsisType), "{0}"),
    float: "{0} or repr({0})",  # 0.0 is not -0.0
    tuple: "spread({0})",
    slice: "bounds({0})",
    DType: "{0}.name",
}
SETTINGS = frozenset((int, bool, str, type(None), EllipsisType, slice, tuple))  # what such a tuple may hold
BOUNDS = frozenset(product((int, type(None)), repeat=3))  # start, stop and step of such a slice
UNFIT = object()  # stands in a key for what has no place in one
kind_of = cast("Callable[[Any], type[object]]", type)
_flat: dict[tuple[type[object], ...], bool] = {}  # types of a tuple's items -> are they parts of a key as they are?


def spread(x: tuple[Any, ...]) -> Any:
    """A tuple of settings, as a part of a key."""
    kinds = tuple(map(kind_of, x))
    flat = _flat.get(kinds)
    if flat is None:
        if not SETTINGS.issuperset(kinds):
            return UNFIT
        flat = _flat[kinds] = slice not in kinds and tuple not in kinds
    if not flat:
        x = tuple([bounds(k) if type(k) is slice else spread(k) if type(k) is tuple else k for k in x])
    return kinds, x


def bounds(k: slice) -> Any:
    """A slice, as a part of a key: in Python 3.11 it has no hash."""
    start, stop, step = k.start, k.stop, k.step
    return (start, stop, step) if (type(start), type(stop), type(step)) in BOUNDS else UNFIT


def fits(key: Any) -> bool:
    """Can a plan be found by `key`?"""
    return key is not UNFIT and (type(key) is not tuple or all(map(fits, cast("tuple[Any, ...]", key))))


class Ready:
    """A plan for arrays as they come: those of tensors, and the user's own, which may change later."""

    __slots__ = ("plan", "run", "takes")

    def __init__(self, plan: Plan, takes: Sequence[Callable[[Any], Any] | None]):
        """takes: for each of the user's arrays, what makes an operand of it."""
        self.plan, self.takes = plan, takes
        # Results that are new memory do not mind what becomes of the array
        needed = [None if plan.fresh and take is np.ndarray.copy else take for take in takes]
        self.run = written(plan, needed)

    def record(self, arrays: Sequence[Any], tensors: Sequence[Any]) -> Any:
        """The result, where gradients are asked for: the backward reads the arrays later."""
        return recorded(self.plan, [x if f is None else f(x) for x, f in zip(arrays, self.takes)], tensors)


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument of a written call. value: a number that the plan takes with each call, instead of its key."""

    name: str
    kind: Any
    value: bool

    @property
    def own(self) -> bool:
        """Is it an array of the user's?"""
        return self.kind is np.ndarray

    @property
    def brings(self) -> bool:
        """Does an array of it go to the plan?"""
        return self.value or self.own or self.kind is GradTensor

    @property
    def keys(self) -> Sequence[str]:
        """What stands for it in the key."""
        if self.own:
            return f"{self.name}.dtype", f"{self.name}.shape"
        return () if self.value else (KEYS[self.kind].format(self.name),)

    @property
    def array(self) -> str:
        """What goes to the plan."""
        if self.kind is GradTensor:
            return f"{self.name}._array"
        return f"float({self.name})" if self.kind is int else self.name

    @property
    def owner(self) -> str:
        """Whose gradient may be asked for."""
        return self.name if self.kind is GradTensor else "None"


@dataclass(slots=True, eq=False)
class Call:
    """The call of an op with arguments of given types, the last ones by name."""

    arguments: list[Argument]
    names: Sequence[str]
    found: dict[Any, Ready] = field(default_factory=dict[Any, Ready])

    def add(self, key: Any, plan: Plan, arrays: Sequence[Any], specs: Sequence[Spec | Number], most: int) -> None:
        """Keep `plan` for calls of this key, if such calls always mean it."""
        brought = [a for a in self.arguments if a.brings]
        if [a.value for a in brought] != [isinstance(s, Number) for s in specs] or not fits(key):
            return  # such as an array of rank 0: its value decides, as that of a number
        if len(self.found) >= most:
            self.found.clear()
        takes = [taking(x.dtype, cast("Spec", s)) if a.own else None for a, x, s in zip(brought, arrays, specs)]
        self.found[key] = Ready(plan, takes)

    def written(self, missed: Callable[..., Any]) -> Callable[..., Any]:
        """As a function. missed: (key, arrays, args, kwargs) -> the result of a call with a new key."""
        names = [a.name for a in self.arguments]
        positional = names[: len(names) - len(self.names)]
        tensors = [a.name for a in self.arguments if a.kind is GradTensor]
        arrays = _tuple([a.array for a in self.arguments if a.brings])
        keys = [part for a in self.arguments for part in a.keys]
        lines = [
            f"_key = {keys[0] if len(keys) == 1 else _tuple(keys)}",
            "_ready = _find(_key)",
            "if _ready is None:",
            f"    return _missed(_key, {arrays}, {_tuple(positional)}, dict({', '.join(f'{n}={n}' for n in self.names)}))",
        ]
        if tensors:
            owners = _tuple([a.owner for a in self.arguments if a.brings])
            lines.append(f"if ({' or '.join([f'{t}._requires' for t in tensors])}) and _recording():")
            lines.append(f"    return _ready.record({arrays}, {owners})")
        else:
            lines[:0] = ["if _building():", "    return NotImplemented"]
        lines.append(f"return _ready.run{arrays.replace(',)', ')')}")
        body = "".join(f"    {line}\n" for line in lines)
        scope = {"_find": self.found.get, "_missed": missed, "_recording": tape.recording.get, "_building": building}
        return defined(f"def call({', '.join(names)}):\n{body}", {**scope, "spread": spread, "bounds": bounds})["call"]


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if items else ''})"


def call_of(kinds: Any, rowwise: bool) -> Call | None:
    """The call of an op whose arguments are of `kinds`, as `methods.op` says them; None if more than types decides.

    rowwise: a number beside a tensor is a value, not a setting.
    """
    parts = cast("tuple[Any, ...]", kinds if isinstance(kinds, tuple) else (kinds,))
    names = [k for k in parts if isinstance(k, str)]
    types = [k for k in parts if not isinstance(k, str)]
    if not all(k in KEYS or k is np.ndarray for k in types):
        return None
    if not all(n.isidentifier() and not iskeyword(n) and not n.startswith("_") for n in names):
        return None
    value = rowwise and len(types) == 2 and not names and (GradTensor in types or np.ndarray in types)
    spelled = [f"_{k}" for k in range(len(types) - len(names))] + names
    return Call([Argument(n, k, value and k in (int, float)) for n, k in zip(spelled, types)], names)
