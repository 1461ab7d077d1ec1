"""Write a graph as straight-line Python over NumPy: the code of an eager op and of its backward pass.

Each node is one line with the array rule of its row. The code decides nothing at run time, so a call costs little more
than its NumPy functions.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter
from typing import Any

from tracegrad.arrays import Array, np
from tracegrad.dtypes import broadcast_shapes, f32
from tracegrad.errors import ShapeError
from tracegrad.imperative.values import f64
from tracegrad.ir.evaluate import array_rule, spelled
from tracegrad.ir.graph import reached
from tracegrad.ir.nodes import Tensor
from tracegrad.methods import compiled
from tracegrad.prims.folds import MATMUL
from tracegrad.prims.rules import Indexed
from tracegrad.prims.views import BROADCAST, RESHAPE
from tracegrad.tuning import KEPT_VALUES

FUNCTION = re.compile(r"\bxp\.([\w.]+)")


def reach(roots: Iterable[Tensor], known: Collection[int]) -> list[Tensor]:
    """Return the nodes to compute for `roots` if the nodes of serial `known` are given; inputs before their readers."""

    def new(nodes: Iterable[Tensor]) -> list[Tensor]:
        return [t for t in nodes if t.serial not in known]

    return sorted(reached(new(roots), lambda t: new(read_by(t))), key=attrgetter("serial"))


def read_by(t: Tensor) -> Sequence[Tensor]:
    """Return the nodes that the line of `t` reads: its inputs, seen through broadcasts that NumPy does itself.

    NumPy's elementwise functions broadcast at no cost, and `broadcast_to` costs more than most of them.
    """
    if t.prim.family == "map" and isinstance(t.prim.array, str):
        inner = [broadcast_from(x) for x in t.inputs]
        if _joint(inner) == t.shape:
            return inner
    return t.inputs


def is_fixed(t: Tensor) -> bool:
    """Return whether a node depends on no input, so that its value can be computed once."""
    return not t.inputs and t.prim.array is not None


class Writer:
    """Writes the body of one function: names of values, lines, and the objects that the lines refer to."""

    def __init__(self, double: bool):
        """double: compute in float64 what the graph has in f32."""
        self.double = double
        self.names: dict[int, str] = {}
        self.lines: list[str] = []
        self.constants: dict[int, Any] = {}  # values that all calls share
        self.scope: dict[str, Any] = {"xp": np, "__name__": __name__}  # the module of NumPy's warnings

    def write(self, roots: Sequence[Tensor]) -> None:
        """Write lines for everything that `roots` need and that has no name yet."""
        for t in reach(roots, self.names):
            if is_fixed(t) or self._derived(t):
                self._constant(t)
            else:
                text = self._call(t)
                self.names[t.serial] = name = f"v{t.serial}"
                self.lines.append(f"{name} = {text}")

    def tuple(self, roots: Sequence[Tensor | None]) -> str:
        """Return the text of a tuple of values; a root None gives None. Readers must accept Python numbers in it."""
        return "(" + "".join(f"{self.names[t.serial] if t is not None else None}, " for t in roots) + ")"

    def function(self, parameters: str, result: str) -> Callable[..., Any]:
        """Return the finished function."""
        body = "".join(f"    {line}\n" for line in [*self.lines, f"return {result}"])
        return defined(f"def run({parameters}):\n{body}", self.scope)["run"]

    def _derived(self, t: Tensor) -> bool:
        """Return whether `t` is computed from constants alone, and small enough to be kept as a constant."""
        few = t.size <= KEPT_VALUES and t.inputs and t.prim.family != "scan"
        return bool(few) and all(x.serial in self.constants for x in read_by(t))

    def _constant(self, t: Tensor) -> None:
        with np.errstate(all="ignore"):
            value = array_rule(_doubled(t) if self.double else t, np)(*[self.constants[x.serial] for x in read_by(t)])
        self.constants[t.serial] = value
        # An array even for one number: a Python number would double the cost of a NumPy function
        self.names[t.serial] = name = f"k{t.serial}"
        self.scope[name] = value

    def _call(self, t: Tensor) -> str:
        if t.prim.family == "scan":
            return self._scan(t)
        rule, attrs = t.prim.array, _attrs(t) if self.double else t.attrs
        if rule is None:
            raise NotImplementedError(f"{t.prim.name} has no array rule")
        operands = [self.names[x.serial] for x in read_by(t)]
        if isinstance(rule, Indexed):
            self.scope[f"i{t.serial}"] = rule.key(**attrs)
            return f"{operands[0]}[i{t.serial}]"
        if not isinstance(rule, str):
            self.scope[f"r{t.serial}"], self.scope[f"a{t.serial}"] = rule, attrs
            return f"r{t.serial}(xp, {', '.join(operands)}, **a{t.serial})"
        if "{0}" in rule:
            return FUNCTION.sub(self._function, spelled(rule, operands, attrs))
        if t.prim is MATMUL and t.ndim == 2:
            rule = "dot"  # the same product, without matmul's overhead for more axes
        return FUNCTION.sub(self._function, f"xp.{rule}({', '.join(operands)})")

    def _function(self, name: re.Match[str]) -> str:
        """Return a name for a function such as `xp.add.reduce`, looked up now and not at each call."""
        own = name[0].replace(".", "_")
        self.scope[own] = attrgetter(name[1])(np)
        return own

    def _scan(self, t: Tensor) -> str:
        body = t.attrs["body"]
        inner = Writer(self.double)
        inner.names = {x.serial: f"x{k}" for k, x in enumerate(body.leaves)}
        inner.write(body.roots)
        step = inner.function(", ".join(inner.names[x.serial] for x in body.leaves), inner.tuple(body.roots))
        run = _looped(step, len(body.carries), len(body.xs), t.attrs["length"], t.attrs["reverse"])
        self.scope[f"r{t.serial}"] = run
        return f"r{t.serial}({', '.join([self.names[x.serial] for x in t.inputs])})"


def _looped(step: Callable[..., Any], n: int, m: int, length: int, reverse: bool) -> Callable[..., list[Array]]:
    """Return a scan whose first `n` inputs are carries and the next `m` arrays of elements; `step` is one iteration."""

    def run(*inputs: Array) -> list[Array]:
        carry, xs, shared = inputs[:n], inputs[n : n + m], inputs[n + m :]
        rows: list[Sequence[Array]] = []
        for k in reversed(range(length)) if reverse else range(length):
            values = step(*carry, *(x[k] for x in xs), *shared)
            carry = values[:n]
            rows.append(values[n:])
        return [*carry, *(np.stack(column) for column in zip(*(rows[::-1] if reverse else rows)))]

    return run


def broadcast_from(t: Tensor) -> Tensor:
    """Return `t` without a broadcast, and without a reshape that only adds leading axes of size 1.

    NumPy's elementwise functions broadcast their operands themselves.
    """
    if t.prim is BROADCAST:
        t = t.inputs[0]
    if t.prim is RESHAPE:
        x = t.inputs[0]
        if t.shape == (1,) * (t.ndim - x.ndim) + x.shape:
            return x
    return t


def _joint(xs: Sequence[Tensor]) -> tuple[int, ...] | None:
    try:
        return broadcast_shapes(*(x.shape for x in xs))
    except ShapeError:
        return None


def _attrs(t: Tensor) -> dict[str, Any]:
    return {k: f64 if v is f32 else v for k, v in t.attrs.items()}


def _doubled(t: Tensor) -> Tensor:
    """Return `t` in double precision; the bytes of a literal stay f32, and NumPy promotes them in use."""
    return t if t.prim.family == "leaf" else Tensor(t.prim, t.inputs, _attrs(t), t.type, t.site)


def defined(source: str, scope: dict[str, Any]) -> dict[str, Any]:
    """Return `scope` with the definitions of the source."""
    exec(compiled(source), scope)
    return scope
