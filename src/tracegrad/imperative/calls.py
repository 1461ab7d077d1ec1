"""Calls written out: for the Python types of an op's arguments, a function that leads straight to the plan.

It looks at nothing but what a plan depends on: types of tensors and arrays, values of settings. What those that it has
not met yet mean, `dispatch` finds out.
"""

# The engine's modules share the slots of GradTensor, which users have no business with.
# pyright: reportPrivateUsage=false

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from types import EllipsisType
from typing import Any, NamedTuple, cast

from tracegrad.ambient import BUILDING
from tracegrad.arrays import HAVE_NUMPY, np
from tracegrad.dtypes import DType
from tracegrad.imperative import tape
from tracegrad.imperative.plans import OpPlan, Take
from tracegrad.imperative.spell import defined
from tracegrad.imperative.tensors import GradTensor
from tracegrad.imperative.values import NUMBER, Spec, taking
from tracegrad.methods import Op

# What stands for an argument in the key of its plan. A function is of one choice of types, so True is not 1 there.
KEYS: dict[Any, tuple[str, ...]] = {
    GradTensor: ("{0}._spec",),
    **({np.ndarray: ("{0}.dtype", "{0}.shape")} if HAVE_NUMPY else {}),
    **dict.fromkeys((int, bool, str), ("{0}",)),
    **dict.fromkeys((type(None), EllipsisType), ()),
    float: ("{0} or repr({0})",),  # 0.0 is not -0.0
    slice: ("{0}.start", "{0}.stop", "{0}.step"),
    DType: ("{0}.name",),
    tuple: ("{0}",),  # inside another one, as in pad(x, ((1, 1), (0, 0)))
}
BOUNDS = frozenset(product((int, type(None)), repeat=3))  # types of start, stop and step
INTS = frozenset((int,)).issuperset
# What is not taken: keys hold plain numbers only, which stay the same and equal nothing else
UNLESS = {
    slice: "(_type({0}.start), _type({0}.stop), _type({0}.step)) not in _bounds",
    tuple: "not _ints(_map(_type, {0}))",
}
TENSORS = frozenset((GradTensor, np.ndarray) if HAVE_NUMPY else ())
MOST = 4096  # plans of one op; a loop over ever new shapes or numbers must not fill the memory
MOST_ARGUMENTS = 16  # of a call that is written out; items of tuples and lists count
MOST_KINDS = 256  # choices of types in the tuples of an op that are remembered


class Argument(NamedTuple):
    """One argument of a written call. value: a number that the plan takes with each call, instead of its key."""

    name: str
    kind: Any
    value: bool = False

    @property
    def own(self) -> bool:
        """Is it an array of the user's, who may change it?"""
        return self.kind is np.ndarray

    @property
    def brings(self) -> bool:
        """Does an array of it go to the plan?"""
        return self.value or self.own or self.kind is GradTensor

    @property
    def keys(self) -> Sequence[str]:
        """What stands for it in the key."""
        return [part.format(self.name) for part in (() if self.value else KEYS[self.kind])]

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

    @property
    def asks(self) -> str:
        """Is it asked for?"""
        return f"{self.name}._requires" if self.kind is GradTensor else "False"


class Call:
    """The calls of an op with arguments of given types, and the plans that were found for them."""

    __slots__ = ("arguments", "kinds", "op", "plans", "quick", "sequences", "slow", "unpacked")

    def __init__(self, op: Op, kinds: Any, items: Sequence[Sequence[Any]] = ()):
        """kinds: the type of each argument; of a single one as it is. items: the types in each tuple and list."""
        self.op = op
        self.kinds = types = cast("tuple[Any, ...]", kinds if isinstance(kinds, tuple) else (kinds,))
        self.sequences = [p for p, k in zip(op.parameters, types) if k in (tuple, list)]
        number = hasattr(op.function, "rowwise") and not TENSORS.isdisjoint(types)
        self.arguments: list[Argument] = []
        self.unpacked: list[str] = []
        inside = iter(items)
        for p, k in zip(op.parameters, types):
            if k in (tuple, list):
                inner = [Argument(f"_{p}_{at}", item) for at, item in enumerate(next(inside, ()))]
                self.arguments += inner
                self.unpacked.append(f"{_tuple([x.name for x in inner])} = {p}")
            else:
                self.arguments.append(Argument(p, k, number and k in (int, float)))
        # By key: what computes the result; with whose gradients are wanted, what also prepares for the backward
        self.quick: dict[Any, Callable[..., Any]] = {}
        self.slow: dict[Any, Callable[..., Any]] = {}
        self.plans: dict[Any, tuple[OpPlan, Sequence[Take | None]]] = {}

    @property
    def is_known(self) -> bool:
        """Do the types decide how the arguments are read?"""
        return len(self.arguments) <= MOST_ARGUMENTS and all(a.kind in KEYS for a in self.arguments)

    def add(self, key: Any, plan: OpPlan, arrays: Sequence[Any], specs: Sequence[Spec]) -> None:
        """Keep `plan` for calls with this key, if that always means it."""
        brought = [a for a in self.arguments if a.brings]
        if [a.value for a in brought] != [s is NUMBER for s in specs]:
            return  # such as an array of rank 0: its value decides, as that of a number
        if len(self.quick) >= MOST:
            for kept in (self.quick, self.slow, self.plans):
                kept.clear()
        takes = [taking(x.dtype, s) if a.own else None for a, x, s in zip(brought, arrays, specs)]
        self.plans[key] = plan, takes
        # Where results are new memory, nobody minds what becomes of the user's arrays
        needed = [None if plan.fresh and take is np.ndarray.copy else take for take in takes]
        self.quick[key] = plan.written(needed) if any(needed) else plan.run

    def recorder(self, key: Any, *mask: bool) -> Callable[..., Any]:
        """What runs the plan of a key where the arrays of `mask` want a gradient. The backward reads arrays later."""
        plan, takes = self.plans[key]
        run = plan.recorder(mask)

        def of_own(*xs: Any) -> Any:
            return run(*[x if take is None else take(x) for x, take in zip(xs, takes)], *xs[len(takes) :])

        self.slow[key, *mask] = of_own if any(takes) else run
        return self.slow[key, *mask]

    def written(self, missed: Callable[..., Any]) -> Callable[..., Any]:
        """As a function. missed: (key, arrays, args, kwargs) -> the result for a new key."""
        tensors = [a.name for a in self.arguments if a.kind is GradTensor]
        arrays = [a.array for a in self.arguments if a.brings]
        keys = [part for a in self.arguments for part in a.keys]
        lines = list(self.unpacked)
        other = ["_trace() is not None or _rewriting() is not None"]
        other += [UNLESS[a.kind].format(a.name) for a in self.arguments if a.kind in UNLESS]
        lines += [f"if {' or '.join(other)}:", f"    return _missed(None, (), {self.op.given})"]
        lines += [
            f"_key = {keys[0] if len(keys) == 1 else _tuple(keys)}",
            "try:",
            "    _run = _quick[_key]",
            "except KeyError:",
            "    _run = None",
            "if _run is None:",
            f"    return _missed(_key, {_tuple(arrays)}, {self.op.given})",
        ]
        if tensors:
            owners = [a.owner for a in self.arguments if a.brings]
            mask = ", ".join(["_key", *[a.asks for a in self.arguments if a.brings]])
            lines += [
                f"if ({' or '.join([f'{t}._requires' for t in tensors])}) and _recording():",
                "    try:",
                f"        _run = _slow[{mask}]",
                "    except KeyError:",
                "        _run = None",
                f"    return (_run or _recorder({mask}))({', '.join([*arrays, *owners])})",
            ]
        scope = {
            "_quick": self.quick,
            "_slow": self.slow,
            "_recorder": self.recorder,
            "_missed": missed,
            "_bounds": BOUNDS,
            "_ints": INTS,
        }
        scope |= {"_type": type, "_map": map, "_recording": tape.recording.get}
        scope |= dict(zip(("_trace", "_rewriting"), BUILDING))
        return self._function([*lines, f"return _run({', '.join(arrays)})"], scope)

    def unknown(self, missed: Callable[..., Any]) -> Callable[..., Any]:
        """The function of a call of which the types do not say how to read it."""
        return self._function([f"return _missed(None, (), {self.op.given})"], {"_missed": missed})

    def chosen(self, open: Callable[[Any], Callable[..., Any]]) -> Callable[..., Any]:
        """The function that goes on by the types in tuples and lists. open: these types -> the function for them."""
        known: dict[Any, Callable[..., Any]] = {}

        def opened(kinds: Any) -> Callable[..., Any]:
            if len(known) >= MOST_KINDS:
                known.clear()
            known[kinds] = open(kinds)
            return known[kinds]

        lines = [
            f"_kinds = {_tuple([f'_tuple(_map(_type, {p}))' for p in self.sequences])}",
            "try:",
            "    _call = _known[_kinds]",
            "except KeyError:",
            "    _call = None",
            f"return (_call or _open(_kinds))({', '.join(self.op.parameters)})",
        ]
        return self._function(lines, {"_known": known, "_open": opened, "_tuple": tuple, "_map": map, "_type": type})

    def _function(self, lines: Sequence[str], scope: dict[str, Any]) -> Callable[..., Any]:
        body = "".join([f"    {line}\n" for line in lines])
        return defined(f"def _call({', '.join(self.op.parameters)}):\n{body}", scope)["_call"]


def _tuple(items: Sequence[str]) -> str:
    return f"({', '.join(items)}{',' if items else ''})"
