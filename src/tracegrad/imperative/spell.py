"""A graph as straight-line Python over NumPy: what an eager op runs, and what its backward runs.

Each node is one line with the array rule of its row. Nothing is decided while it runs, so that a call costs little more
than the NumPy functions in it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache
from types import CodeType
from typing import Any

from tracegrad.arrays import np
from tracegrad.dtypes import DType, f32, nearest_f32
from tracegrad.errors import ShapeError
from tracegrad.evaluate import array_rule
from tracegrad.ir import Tensor
from tracegrad.prims.views import BROADCAST, RESHAPE
from tracegrad.shapes import broadcast_shapes

Array = Any
f64 = DType("f64", "float64", "", "", 8)  # of eager tensors only: no shader language has it everywhere


def reach(roots: Iterable[Tensor], known: Collection[int]) -> list[Tensor]:
    """The nodes that are computed for `roots` when those of serial `known` are given; inputs before their readers."""
    seen: dict[int, Tensor] = {}
    stack = list(roots)
    while stack:
        t = stack.pop()
        if t.serial not in seen and t.serial not in known:
            seen[t.serial] = t
            stack.extend(read_by(t))
    return [seen[serial] for serial in sorted(seen)]


def read_by(t: Tensor) -> Sequence[Tensor]:
    """The nodes that the line of `t` reads: its inputs, without the broadcasts that NumPy does itself.

    NumPy's elementwise functions broadcast at no cost, and `broadcast_to` costs more than most of them.
    """
    if t.prim.family == "map" and isinstance(t.prim.array, str):
        inner = [_broadcast_from(x) for x in t.inputs]
        if _joint(inner) == t.shape:
            return inner
    return t.inputs


def constant(t: Tensor) -> bool:
    """Does a node depend on nothing, so that its value can be kept?"""
    return not t.inputs and t.prim.array is not None


class Writer:
    """The body of one function: names of values, lines, and the objects that the lines refer to."""

    def __init__(self, double: bool, numbers: Collection[int] = ()):
        """double: f32 stands for f64. numbers: serials of inputs that are Python numbers."""
        self.double, self.numbers = double, numbers
        self.names: dict[int, str] = {}
        self.lines: list[str] = []
        self.scope: dict[str, Any] = {"xp": np}
        self.literals: dict[int, str] = {}  # scalar constants, as Python spells them

    def write(self, roots: Sequence[Tensor]) -> None:
        """Lines for everything that `roots` need beyond what has a name."""
        for t in reach(roots, self.names):
            if constant(t):
                self._constant(t)
            else:
                text = self._call(t)
                self.names[t.serial] = name = f"v{t.serial}"
                self.lines.append(f"{name} = {text}")

    def tuple(self, roots: Sequence[Tensor | None]) -> str:
        """Values as a tuple, None for none; Python numbers only where the reader takes them."""
        return "(" + "".join(f"{self.names[t.serial] if t is not None else None}, " for t in roots) + ")"

    def function(self, parameters: str, result: str) -> Callable[..., Any]:
        """The finished function."""
        body = "".join(f"    {line}\n" for line in [*self.lines, f"return {result}"])
        return _defined(f"def run({parameters}):\n{body}", self.scope)

    def _constant(self, t: Tensor) -> None:
        with np.errstate(over="ignore"):
            value = array_rule(_doubled(t) if self.double else t, np)()
        self.names[t.serial] = name = f"k{t.serial}"
        self.scope[name] = value
        number = value.item() if np.ndim(value) == 0 else None
        if isinstance(number, float) and np.isfinite(number):
            # A Python number takes the dtype of the other operand, and costs NumPy half as much as an array
            self.literals[t.serial] = repr(number if self.double else nearest_f32(number))

    def _call(self, t: Tensor) -> str:
        if t.prim.family == "scan":
            return self._scan(t)
        rule, attrs = t.prim.array, _attrs(t) if self.double else t.attrs
        if rule is None:
            raise NotImplementedError(f"{t.prim.name} has no array rule")
        if not isinstance(rule, str):
            self.scope[f"r{t.serial}"], self.scope[f"a{t.serial}"] = rule, attrs
            return f"r{t.serial}(xp, {', '.join(map(self._array, t.inputs))}, **a{t.serial})"
        operands = self._operands(t)
        if "{0}" in rule:
            return rule.format(*operands, **attrs)
        self.scope[rule] = getattr(np, rule)
        return f"{rule}({', '.join(operands)})"

    def _scan(self, t: Tensor) -> str:
        body = t.attrs["body"]
        inner = Writer(self.double)
        inner.names = {x.serial: f"x{k}" for k, x in enumerate(body.leaves)}
        inner.write(body.roots)
        step = inner.function(", ".join(inner.names[x.serial] for x in body.leaves), inner.tuple(body.roots))
        run = _looped(step, len(body.carries), len(body.xs), t.attrs["length"], t.attrs["reverse"])
        self.scope[f"r{t.serial}"] = run
        return f"r{t.serial}({', '.join(map(self._array, t.inputs))})"

    def _operands(self, t: Tensor) -> list[str]:
        """What the line of `t` reads; of a function that takes arrays and numbers, numbers as they are."""
        xs = read_by(t)
        plain = [x.serial in self.literals or x.serial in self.numbers for x in xs]
        # A number takes the dtype of a float beside it; with none, as in where(mask, 1.0, 2.0), it would stay a double
        beside = any(x.dtype.is_float and not p for x, p in zip(xs, plain))
        if t.prim.family != "map" or "{0}" in str(t.prim.array) or not beside:
            plain = [False] * len(xs)
        return [self._number(x) if p else self._array(x) for x, p in zip(xs, plain)]

    def _number(self, t: Tensor) -> str:
        return self.literals.get(t.serial) or self.names[t.serial]

    def _array(self, t: Tensor) -> str:
        name = self.names[t.serial]
        return f"xp.asarray({name}, '{'float64' if self.double else 'float32'}')" if t.serial in self.numbers else name


def _looped(step: Callable[..., Any], n: int, m: int, length: int, reverse: bool) -> Callable[..., list[Array]]:
    """A scan, whose first `n` inputs are carries and the next `m` arrays of elements; `step` is one iteration."""

    def run(*inputs: Array) -> list[Array]:
        carry, xs, shared = inputs[:n], inputs[n : n + m], inputs[n + m :]
        rows: list[Sequence[Array]] = []
        for k in reversed(range(length)) if reverse else range(length):
            values = step(*carry, *(x[k] for x in xs), *shared)
            carry = values[:n]
            rows.append(values[n:])
        return [*carry, *(np.stack(column) for column in zip(*(rows[::-1] if reverse else rows)))]

    return run


def _broadcast_from(t: Tensor) -> Tensor:
    """What `t` is the broadcast of, or `t`."""
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
    """`t` in double precision; the bytes of a literal are f32, and NumPy promotes them where they are used."""
    return t if t.prim.family == "leaf" else Tensor(t.prim, t.inputs, _attrs(t), t.type, t.site)


def _defined(source: str, scope: dict[str, Any]) -> Callable[..., Any]:
    exec(_compiled(source), scope)
    return scope["run"]


@cache
def _compiled(source: str) -> CodeType:
    return compile(source, "<eager op>", "exec")
