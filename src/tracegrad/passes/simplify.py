"""The pass that merges equal nodes, folds constants, removes empty values, and applies cheap identities."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tracegrad.ir.nodes import Tensor, bind, rebind, rewrite, toposort
from tracegrad.kernels.reads import read_by
from tracegrad.prims.elementwise import isnan, logical_not, logical_or, nonfinite, where
from tracegrad.prims.folds import MATMUL, pack
from tracegrad.prims.leaves import const, constant
from tracegrad.prims.views import RESHAPE, SLICE, broadcast_to, permute, reshape, slice_, unmoved


def simplify(roots: Sequence[Tensor]) -> list[Tensor]:
    """Merge equal nodes and apply the identities below, from the leaves up."""
    seen: dict[Any, Tensor] = {}

    def rule(t: Tensor, inputs: tuple[Tensor, ...]) -> Tensor:
        new = of_nothing(t, inputs)
        shortcut = SHORTCUTS.get(t.prim.name)
        if new is None and shortcut is not None:
            new = shortcut(t, inputs)
        if new is None:
            new = t
        key = _key(new)
        return seen.setdefault(key, new)

    return without_idle_waits(sliced_products(rewrite(roots, rule)))


def of_nothing(t: Tensor, inputs: Sequence[Tensor]) -> Tensor | None:
    """Return a replacement for `t` if it or an input is empty, such as 0 for sum(x[:0]); None if `t` can stay."""
    family = t.prim.family
    if 0 in t.type.shape and family != "leaf":
        return broadcast_to(const(0, t.dtype), t.shape)
    some = [x for x in inputs if 0 not in x.type.shape]
    if len(some) == len(inputs):
        return None
    if family == "pack":
        return pack(some)
    if family in ("fold", "product", "scatter", "view"):  # a view of an empty input, such as a pad, is all zeros
        return broadcast_to(const(t.prim.identity or 0, t.dtype), t.shape)
    return None


def sliced_products(roots: Sequence[Tensor]) -> list[Tensor]:
    """Rewrite slice(a @ b) to a @ slice(b), for columns of a product that has no other reader.

    The gradient of a padded image is a product, of which the padding's columns are cut off.
    """
    order = toposort(roots)
    reads = Counter([x.serial for t in order for x in t.inputs] + [t.serial for t in roots])
    cuts = [_cuts_product(t, reads) for t in order]
    if not any(cuts):
        return list(roots)
    each = iter(cuts)  # `rewrite` goes through the nodes in this order
    return rewrite(roots, lambda t, _: _columns_of_product(t) if next(each) else None)


def _cuts_product(t: Tensor, reads: Mapping[int, int]) -> bool:
    """Return whether `t` is some columns of a product that nothing else reads."""
    if t.prim is not SLICE or t.axis != t.ndim - 1 or t.attrs["step"] != 1:
        return False
    x = t.inputs[0]
    y = x.inputs[0] if x.prim is RESHAPE else x
    return y.prim is MATMUL and y.shape[-1] == x.shape[-1] and reads[x.serial] == reads[y.serial] == 1


def _columns_of_product(t: Tensor) -> Tensor:
    (x,) = t.inputs
    a, b = (x.inputs[0] if x.prim is RESHAPE else x).inputs
    return reshape(bind(MATMUL, a, slice_(b, b.ndim - 1, t.attrs["start"], t.shape[-1])), t.shape)


def without_idle_waits(roots: Sequence[Tensor]) -> list[Tensor]:
    """Rewrite barrier(x, y, z) to barrier(x, y) if nothing reads z; with nothing left to wait for, to x.

    A recomputation waits for the value that it recomputes. If only the gradient of the value is needed, nothing reads
    the value itself, and no kernel should compute it.
    """
    order = toposort(roots)
    if not any(map(_waits, order)):
        return list(roots)
    read = read_by(roots)
    new: dict[int, Tensor] = {}
    for t in order:
        if t.serial in read:
            inputs = [new[x.serial] for x in t.inputs if x.serial in read]
            new[t.serial] = inputs[0] if _waits(t) and len(inputs) == 1 else rebind(t, inputs)
    return [new[t.serial] for t in roots]


def _waits(t: Tensor) -> bool:
    return len(t.operands) < len(t.inputs)


def _key(t: Tensor) -> Any:
    """Return a key that is equal for equal nodes. The type of a node with inputs follows from them."""
    if t.inputs:
        return (t.prim.name, *t.attrs.items(), *[x.serial for x in t.inputs])
    attrs = tuple([(k, repr(v) if k == "value" else v) for k, v in t.attrs.items()])
    return (t.prim.name, attrs, t.type)


def _is(t: Tensor, value: float) -> bool:
    """Return whether every element is this number; a float zero must also have its sign."""
    c = constant(t)
    signed = t.dtype.is_float
    return c is not None and c == value and (not signed or math.copysign(1.0, c) == math.copysign(1.0, value))


Shortcut = Callable[[Tensor, tuple[Tensor, ...]], Tensor | None]


def _arithmetic(
    f: Callable[..., float], right: float, left: float | None = None, same: Callable[[Tensor], Tensor] | None = None
) -> Shortcut:
    """Return a rule for the op `f`: f(x, right) and f(left, x) are x, f(x, x) is `same`, and constants are folded."""

    def rule(t: Tensor, xs: tuple[Tensor, ...]) -> Tensor | None:
        a, b = xs
        if same is not None and a is b and t.dtype.is_float:
            return same(a)
        if _is(b, right):
            return a
        return b if left is not None and _is(a, left) else _folded(t, xs, f)

    return rule


# x - x, x / x, x == x, x != x, x * 0, x / 0, x / inf and 0 / x keep their NaN and infinities. WGSL lets drivers assume
# finite numbers, so drivers would fold these for every x.
def _difference(x: Tensor) -> Tensor:
    """Return x - x."""
    return where(nonfinite(x), math.nan, 0.0)


def _ratio(x: Tensor) -> Tensor:
    """Return x / x."""
    return where(logical_or(nonfinite(x), x == 0.0), math.nan, 1.0)


OfConstant = Callable[[Tensor, float], Tensor | None]  # None: drivers do not fold this constant


def _signed(x: Tensor, size: float) -> Tensor:
    """Return `size`, negated where `x` is below 0."""
    return where(x < 0.0, -size, size)


def _times(x: Tensor, c: float) -> Tensor | None:
    """Return x * 0 for c = 0; None for any other c."""
    if c != 0.0:
        return None
    return where(nonfinite(x), math.nan, where(x == 0.0, x if math.copysign(1.0, c) > 0 else -x, _signed(x, c)))


def _over(x: Tensor, c: float) -> Tensor | None:
    """Return x / c if c is 0 or infinite; else None."""
    if c == 0.0:
        return where(logical_or(isnan(x), x == 0.0), math.nan, _signed(x, math.copysign(math.inf, c)))
    return _times(x, math.copysign(0.0, c)) if math.isinf(c) else None


def _under(x: Tensor, c: float) -> Tensor | None:
    """Return 0 / x for c = 0; None for any other c."""
    return None if c != 0.0 else where(logical_or(isnan(x), x == 0.0), math.nan, _signed(x, c))


def _with_constant(left: OfConstant, right: OfConstant, rest: Shortcut) -> Shortcut:
    """Return a rule for the op `f`: with a constant c, f(c, x) is `left`, f(x, c) is `right`; else `rest` applies."""

    def rule(t: Tensor, xs: tuple[Tensor, ...]) -> Tensor | None:
        a, b = xs
        for x, other, f in ((b, a, left), (a, b, right)):
            c = constant(other) if t.dtype.is_float and constant(x) is None else None
            special = None if c is None else f(x, c)
            if special is not None:
                return special
        return rest(t, xs)

    return rule


def _compared(same: Callable[[Tensor], Tensor]) -> Shortcut:
    """Return a rule for the op `f`: f(x, x) is `same`."""
    return lambda t, xs: same(xs[0]) if xs[0] is xs[1] and xs[0].dtype.is_float else None


def _neg(t: Tensor, xs: tuple[Tensor, ...]) -> Tensor | None:
    if xs[0].prim.name == "neg":
        return xs[0].inputs[0]
    return _folded(t, xs, float.__neg__)


def _folded(t: Tensor, xs: tuple[Tensor, ...], f: Callable[..., float]) -> Tensor | None:
    """Return the constant `f` of constants, for f32 only: a double result rounds to the result of the f32 op."""
    if not t.dtype.is_float:
        return None
    values = [constant(x) for x in xs]
    if any(v is None or not math.isfinite(v) for v in values):
        return None
    return broadcast_to(const(f(*values), t.dtype), t.shape)


def _quotient(a: float, b: float) -> float:
    """Return a / b by IEEE 754, also for b = 0, where Python's division raises an error."""
    if b:
        return a / b
    return math.copysign(math.inf, math.copysign(1.0, a) * b) if a else math.nan


def _reshape(t: Tensor, xs: tuple[Tensor, ...]) -> Tensor | None:
    (x,) = xs
    return reshape(x, t.shape) if x.prim.name == "reshape" or x.shape == t.shape else None


def _permute(t: Tensor, xs: tuple[Tensor, ...]) -> Tensor | None:
    (x,) = xs
    if x.prim.name == "permute":
        inner = x.attrs["axes"]
        return permute(x.inputs[0], tuple(inner[a] for a in t.attrs["axes"]))
    return None


def _broadcast(t: Tensor, xs: tuple[Tensor, ...]) -> Tensor | None:
    (x,) = xs
    return broadcast_to(x.inputs[0], t.shape) if x.prim.name == "broadcast" else None


def _unchanged(t: Tensor, xs: tuple[Tensor, ...]) -> Tensor | None:
    """Return the input if it has the result's type, as for a fold over axes of size 1 or a cast to its own type."""
    return xs[0] if xs[0].type == t.type else None


def _moved(t: Tensor, xs: tuple[Tensor, ...]) -> Tensor | None:
    """Return the input of a slice or place that changes nothing."""
    return xs[0] if unmoved(xs[0], **t.attrs) else None


SHORTCUTS: dict[str, Shortcut] = {
    "add": _arithmetic(float.__add__, -0.0, -0.0),  # -0.0 + 0.0 is 0.0
    "sub": _arithmetic(float.__sub__, 0.0, same=_difference),
    "mul": _with_constant(_times, _times, _arithmetic(float.__mul__, 1.0, 1.0)),
    "div": _with_constant(_under, _over, _arithmetic(_quotient, 1.0, same=_ratio)),
    "equal": _compared(lambda x: logical_not(isnan(x))), "not_equal": _compared(isnan),
    "neg": _neg, "reshape": _reshape, "permute": _permute, "broadcast": _broadcast,
    "slice": _moved, "place": _moved,
    **dict.fromkeys(("sum", "max", "peak", "min", "prod", "cast", "stop_gradient", "variable"), _unchanged),
}  # fmt: skip
