"""Equal nodes once, constants folded, and identities that cost nothing to see."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tracegrad.dtypes import nearest_f32
from tracegrad.ir import Tensor, rewrite
from tracegrad.prims.elementwise import CAST
from tracegrad.prims.leaves import const
from tracegrad.prims.views import broadcast_to, permute, reshape


def simplify(roots: Sequence[Tensor]) -> list[Tensor]:
    """Merge equal nodes and apply the identities below, from the leaves up."""
    seen: dict[Any, Tensor] = {}

    def rule(t: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        new = t
        shortcut = SHORTCUTS.get(t.prim.name)
        if shortcut is not None:
            shorter = shortcut(t, inputs)
            new = t if shorter is None else shorter
        key = _key(new)
        return seen.setdefault(key, new)

    return rewrite(roots, rule)


def _key(t: Tensor) -> Any:
    attrs = tuple([(k, repr(v) if k == "value" else v) for k, v in t.attrs.items()])
    return (t.prim.name, attrs, t.type, tuple([x.serial for x in t.inputs]))


def constant(t: Tensor) -> float | None:
    """The number that every element of `t` is, as its dtype holds it; seen through views that keep all elements."""
    while t.prim.name in ("broadcast", "reshape", "permute"):
        t = t.inputs[0]
    if t.prim.name != "const":
        return None
    value = float(t.attrs["value"])
    return nearest_f32(value) if t.dtype.is_float else value


def _is(t: Tensor, value: float) -> bool:
    c = constant(t)
    return c is not None and c == value and math.copysign(1.0, c) == math.copysign(1.0, value)


def _mul(t: Tensor, xs: tuple[Tensor, ...]) -> Tensor | None:
    a, b = xs
    if _is(b, 1.0):
        return a
    if _is(a, 1.0):
        return b
    return _folded(t, xs, float.__mul__)


def _add(t: Tensor, xs: tuple[Tensor, ...]) -> Tensor | None:
    # -0.0 is the neutral element: -0.0 + 0.0 is 0.0
    a, b = xs
    if _is(b, -0.0 if t.dtype.is_float else 0.0):
        return a
    if _is(a, -0.0 if t.dtype.is_float else 0.0):
        return b
    return _folded(t, xs, float.__add__)


def _sub(t: Tensor, xs: tuple[Tensor, ...]) -> Tensor | None:
    return xs[0] if _is(xs[1], 0.0) else _folded(t, xs, float.__sub__)


def _div(t: Tensor, xs: tuple[Tensor, ...]) -> Tensor | None:
    if _is(xs[1], 1.0):
        return xs[0]
    return _folded(t, xs, float.__truediv__) if constant(xs[1]) else None


def _neg(t: Tensor, xs: tuple[Tensor, ...]) -> Tensor | None:
    if xs[0].prim.name == "neg":
        return xs[0].inputs[0]
    return _folded(t, xs, float.__neg__)


def _folded(t: Tensor, xs: tuple[Tensor, ...], f: Callable[..., float]) -> Tensor | None:
    """The constant that `f` of constants is. f32 only: of f32 operands, a double result rounds to what the op gives."""
    if not t.dtype.is_float:
        return None
    values = [constant(x) for x in xs]
    if any(v is None or not math.isfinite(v) for v in values):
        return None
    return broadcast_to(const(f(*values), t.dtype), t.shape)


def _reshape(t: Tensor, xs: tuple[Tensor, ...]) -> Tensor | None:
    (x,) = xs
    if x.prim.name == "reshape" or x.shape == t.shape:
        return reshape(x, t.shape)
    return _constant_view(t, x)


def _permute(t: Tensor, xs: tuple[Tensor, ...]) -> Tensor | None:
    (x,) = xs
    if x.prim.name == "permute":
        inner = x.attrs["axes"]
        return permute(x.inputs[0], tuple(inner[a] for a in t.attrs["axes"]))
    return _constant_view(t, x)


def _broadcast(t: Tensor, xs: tuple[Tensor, ...]) -> Tensor | None:
    (x,) = xs
    if x.prim.name == "broadcast":
        return broadcast_to(x.inputs[0], t.shape)
    return None


def _constant_view(t: Tensor, x: Tensor) -> Tensor | None:
    """A view of a broadcast scalar is that scalar broadcast."""
    if x.prim.name == "broadcast" and x.inputs[0].size == 1 and x.inputs[0].prim.name in ("reshape", "const"):
        return broadcast_to(reshape(x.inputs[0], ()), t.shape)
    return None


def _sum(t: Tensor, xs: tuple[Tensor, ...]) -> Tensor | None:
    """A fold over nothing, or over axes of size 1, is its input."""
    (x,) = xs
    return x if x.shape == t.shape else None


def _cast(t: Tensor, xs: tuple[Tensor, ...]) -> Tensor | None:
    (x,) = xs
    return x if x.dtype == t.dtype else None


SHORTCUTS: dict[str, Callable[[Tensor, tuple[Tensor, ...]], Tensor | None]] = {
    "mul": _mul, "add": _add, "sub": _sub, "div": _div, "neg": _neg, "reshape": _reshape, "permute": _permute,
    "broadcast": _broadcast, "sum": _sum, "max": _sum, "min": _sum, "prod": _sum, CAST.name: _cast,
    "stop_gradient": lambda t, xs: xs[0], "variable": lambda t, xs: xs[0],
}  # fmt: skip
