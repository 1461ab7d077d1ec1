"""How far f32 may be from the reference, element by element: a running error analysis of the graph.

A value is known as (v, e, w): v is the float64 value, e bounds |computed - v|, w is a label. Leaves have e = 0: inputs
are f32 already. With u = 2**-24, half a unit in the last place of 1, every primitive adds to e

    what its operands bring:  the largest |f(x ± e) - f(x)| over all corners of the box that the operands' errors span.
                              For functions that are monotone in each operand, as the elementwise rows are between
                              neighbouring floats, this is the exact range and not a first-order estimate. It needs no
                              derivative, and is as true at a kink or a step: floor(x ± e) shows when x may cross one.
                              A divisor that may be 0 makes e infinite; sin and cos have the Lipschitz constant 1.
    what it rounds itself:    2 u |y| times the units that docs/numerics.md promises for the row (ULPS below).

Sums of n terms add (n - 1) u Σ(|x| + e) (Higham 2002, 4.2: true for every order of additions, so for every schedule).
Products of k terms add k u Σ(|a| + ea)(|b| + eb) to Σ(ea |b| + |a| eb + ea eb).

Exact values stay exact. Where e = 0 and the result is an f32, an operation that rounds correctly has e = 0. A sum is
exact in any order if all terms are multiples of some q = 2**-k and Σ|x| / q < 2**24. So programs of small integers are
compared bit for bit, with all their ties.

A comparison of a and b is undecided where |a - b| <= ea + eb. Then e is infinite, and everything that depends on the
decision differs by as much as the two choices do. But x == max(x) is decided: docs/numerics.md promises that a value
compared with itself is computed once. So each element has a label, which says which computed number it is. Views move
labels; max and min keep the label of the winner where no other element comes within the errors. Equal labels mean equal
numbers; two labels below 0 mean nothing.

An element with infinite e is not compared. Overflow of f32 within e makes e infinite, too.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tracegrad.ir.evaluate import array_rule
from tracegrad.ir.nodes import Tensor
from tracegrad.prims import leaves
from tracegrad.prims.leaves import unviewed

Array = Any
U = 2.0**-24
TINY = 2.0**-125  # a GPU may flush operands and results below 2**-126
LARGEST = float(np.finfo(np.float32).max)
COMPARES = ("less", "less_equal", "equal", "not_equal")
EXACT_ROWS = ("neg", "abs", "sign", "floor", "ceil", "round", "minimum", "maximum", "fmax", "where", "cast")
# Units in the last place, as docs/numerics.md promises them
ULPS = {"add": 0.5, "sub": 0.5, "mul": 0.5, "square": 0.5, "div": 2.5, "sqrt": 2.5, "rsqrt": 5.0, "exp": 3.0,
        "expm1": 4.0, "log": 4.0, "log1p": 4.0, "sin": 4.0, "cos": 4.0, "tanh": 4.0, "erf": 4.0, "pow": 4.0,
        "atan2": 5.0, "cast": 0.5, "modulo": 0.5}  # fmt: skip
# An absolute error beside it: erf is a fit, and `logistic` is promised to 2**-23 of 1
ABSOLUTE = {"erf": 2e-7, "logistic": 2.0**-23}
KEYS = ("bits", "bit_xor")  # of keys to sort by: between the ends of an interval that has one sign, they are monotone
ROUNDED_RIGHT = ("add", "sub", "mul", "square", "cast", "modulo")


@dataclass(frozen=True, slots=True, eq=False)
class Known:
    """A value with its error bound and labels; all arrays have one shape. `parts`: the results of a scan."""

    v: Array
    e: Array
    w: Array
    parts: tuple[Known, ...] = ()


_fresh = itertools.count(1)


def labels(shape: tuple[int, ...]) -> Array:
    """Labels that no other element has."""
    n = int(np.prod(shape, dtype=np.int64))
    start = next(_fresh) << 32
    return (start + np.arange(n, dtype=np.int64)).reshape(shape)


def certain(v: Array) -> Known:
    """A value that is computed without any error."""
    v = np.asarray(v)
    return Known(v, np.zeros(v.shape), labels(v.shape))


def constant(t: Tensor, v: Array) -> Known:
    """A value without operands. A number that f32 cannot hold is off by its rounding: PyTorch and JAX keep it whole."""
    known = certain(v)
    if t.prim.name == "literal" and known.v.dtype.kind == "f":
        whole = known.v * 256 == np.rint(known.v * 256)  # the user's own numbers; others are made by some formula
        return Known(known.v, np.where(whole, 0.0, 2 * U * np.abs(known.v)), known.w)
    if t.prim.name != "const" or known.v.dtype.kind != "f" or not np.isfinite(known.v):
        return known
    return Known(known.v, np.abs(float(t.attrs["value"]) - known.v), known.w)


def bounded(v: Array, e: Array) -> Known:
    """A computed value; beyond the largest f32 nothing is known."""
    v = np.asarray(v)
    e = np.broadcast_to(np.asarray(e, np.float64), v.shape)
    if v.dtype.kind == "f":
        size = np.abs(v)
        over = np.isfinite(v) & (size + e > LARGEST)
        e = np.where(over | np.isnan(e), np.inf, e)
        e = np.where(np.isinf(v) & np.isfinite(e), 0.0, e)
    return Known(v, e, labels(v.shape))


def distance(a: Array, b: Array) -> Array:
    """|a - b|, where equal infinities and two NaN are equal; infinite if one is NaN alone."""
    if a.dtype.kind == "b":
        return np.where(a != b, np.inf, 0.0)
    a, b = a.astype(np.float64), b.astype(np.float64)
    d = np.abs(a - b)
    same = (a == b) | (np.isnan(a) & np.isnan(b))
    return np.where(same, 0.0, np.where(np.isnan(d), np.inf, d))


def is_f32(v: Array) -> Array:
    """Which elements an f32 holds without rounding."""
    return v.astype(np.float32).astype(v.dtype) == v


def sums_exactly(total: Array, terms: Array) -> bool:
    """Is a sum of `terms` exact in every order? `total` is the sum of their sizes, in the same units."""
    for scale in (1.0, 2.0**10):
        scaled = terms * scale
        if np.all(scaled == np.rint(scaled)):
            return bool(np.all(np.abs(total) * scale < 2.0**24))
    return False


def corners(rule: Callable[..., Any], y: Array, xs: Sequence[Known]) -> Array:
    """How far the result moves when the operands move to every corner of their errors."""
    moving = [k for k, x in enumerate(xs) if np.any(x.e > 0)]
    worst = np.zeros(np.shape(y))
    for signs in itertools.product((-1.0, 1.0), repeat=len(moving)):
        at: list[Array] = [x.v for x in xs]
        for k, sign in zip(moving, signs):
            x = xs[k]
            if x.v.dtype.kind == "b":
                at[k] = np.where(x.e > 0, sign > 0, x.v)
            else:
                at[k] = x.v.astype(np.float64) + sign * x.e
            if x.v.dtype.kind in "iu":
                ends = np.iinfo(x.v.dtype)
                at[k] = np.clip(at[k], ends.min, ends.max).astype(x.v.dtype)
        worst = np.maximum(worst, distance(np.asarray(rule(*at)), y))
    unknown = [np.isinf(x.e) for x in xs if x.v.dtype.kind != "b"]
    return np.where(np.any(unknown, axis=0), np.inf, worst) if unknown else worst


def not_monotone(name: str, brought: Array, xs: Sequence[Known]) -> Array:
    """What the corners miss: a divisor or a base that may be 0, a power that may be whole, jumps, and waves."""
    if name in ("sin", "cos"):
        return np.where(np.isinf(xs[0].e), np.inf, np.minimum(xs[0].e, 2.0))
    if name == "div":
        return np.where((xs[1].e > 0) & (np.abs(xs[1].v) <= xs[1].e), np.inf, brought)
    if name == "atan2":  # between the corners it jumps by 2 pi, across 0 on the negative side
        y, x = xs  # also where y is 0, because a GPU may ignore the sign of a zero
        return np.where((np.abs(y.v) <= y.e) & (x.v - x.e <= 0), np.inf, brought)
    if name == "modulo":  # it jumps by the divisor where the quotient passes an integer
        a, b = xs
        with_errors = itertools.product((a.v - a.e, a.v + a.e), (b.v - b.e, b.v + b.e))
        wholes = [np.floor(x / y) for x, y in with_errors]
        passes = np.ptp(np.broadcast_arrays(*wholes), axis=0) != 0  # also where a quotient is NaN
        moving = (a.e > 0) | (b.e > 0)
        return np.where(moving & (passes | (np.abs(b.v) <= b.e)), np.inf, brought)
    if name == "pow":
        base, exponent = xs
        near_0 = (base.e > 0) & (np.abs(base.v) <= base.e)
        whole = (exponent.e > 0) & ((base.v < 0) | (np.isnan(base.v) & (np.abs(exponent.v) <= exponent.e)))
        return np.where(near_0 | whole, np.inf, brought)
    return brought


def undecided(t: Tensor, xs: Sequence[Known]) -> Array:
    """Of a comparison: infinite where rounding may decide it."""
    a, b = xs
    same = (a.w == b.w) & (a.w >= 0)
    apart = distance(a.v, b.v) > a.e + b.e
    return np.where(same | apart | ((a.e == 0) & (b.e == 0)), 0.0, np.inf)


def summed(y: Known, a: Known, b: Known, terms: int) -> Known:
    """`y` = a + b as part of a sum of at most `terms`, in any order: each term is an operand of some addition."""
    size = np.abs(a.v) + a.e + np.abs(b.v) + b.e
    if y.v.dtype.kind != "f" or (not np.any(y.e > 0) and sums_exactly(terms * size, np.stack([a.v, b.v]))):
        return y
    return Known(y.v, y.e + terms * U * size, y.w)


def chosen(xs: Sequence[Known]) -> Known:
    """`where`: the chosen operand; both, where the condition is undecided."""
    c, a, b = xs
    v, e, w = (np.where(c.v, p, q) for p, q in ((a.v, b.v), (a.e, b.e), (a.w, b.w)))
    open_ = c.e > 0
    both = distance(a.v, b.v) + np.maximum(a.e, b.e)
    same = (a.w == b.w) & (a.w >= 0)
    return Known(v, np.where(open_ & ~same, both, e), np.where(open_ & ~same, -1, w))


def elementwise(t: Tensor, xs: Sequence[Known]) -> Known:
    """A row of the family "map"."""
    name = t.prim.name
    rule = array_rule(t, np)
    if t.prim.passes:
        return xs[0]
    if name == "where":
        return chosen(xs)
    v = np.asarray(rule(*[x.v for x in xs]))
    if name in COMPARES and xs[0].v.dtype.kind != "b":
        return Known(v, undecided(t, xs), labels(v.shape))
    if name == "cast" and v.dtype.kind == "b":  # is it 0? Neither end of an interval around 0 is
        return Known(v, np.where((xs[0].e > 0) & (np.abs(xs[0].v) <= xs[0].e), np.inf, 0.0), labels(v.shape))
    brought = not_monotone(name, corners(rule, v, xs), xs)
    if name in EXACT_ROWS and not (name == "cast" and v.dtype.kind == "f" and xs[0].v.dtype.kind in "iu"):
        return _kept(v, brought, name, xs)
    if v.dtype.kind != "f":
        if v.dtype.kind in "iu" and name not in KEYS:
            brought = np.where(brought > 0, np.inf, 0.0)  # integers wrap around: an error has no size
        return Known(v, brought, labels(v.shape))
    own = ULPS.get(name, 3.0) * 2 * U * (np.abs(v) + np.where(np.isfinite(brought), brought, 0.0)) + TINY
    own = np.where(np.isfinite(own), own, 0.0) + ABSOLUTE.get(name, 0.0)
    if name in ROUNDED_RIGHT or _simple_quotient(name, xs):
        own = np.where((brought == 0) & is_f32(v), 0.0, own)
    if name in ("add", "sub") and shared_factor(t):
        own = own + np.where(brought + own > 0, U * np.abs(v), 0.0)
    return bounded(v, brought + own + (distributed(t, xs) if name == "mul" else 0.0))


def shared_factor(t: Tensor) -> bool:
    """Does a sum have the form c a + c d or c + c d? A device may compute c (a + d), which rounds a + d as well.

    WGSL allows that ("reassociation"), and the driver of an NVIDIA H100 does it. An error of a or d weighs the same.
    """
    one, other = map(factors, t.inputs)
    return not one.isdisjoint(other)


def factors(t: Tensor) -> set[int]:
    """The serials of what a product multiplies; of anything else, its own."""
    t = unviewed(t)
    return set().union(*map(factors, t.inputs)) if t.prim.name == "mul" else {t.serial}


def distributed(t: Tensor, xs: Sequence[Known]) -> Array:
    """What a product c (a + d) may be off where a device computes fma(a, c, c d), for numbers c and d of the program.

    WGSL allows that ("reassociation"), and the driver of an NVIDIA H200 does it. c d is rounded, and so is c a where
    the two are not fused: 2 u (|c a| + |c d|), also where a + d is 0. Nothing, where both products are f32.
    """
    off = np.zeros(())
    for c, s, known in zip(t.inputs[::-1], t.inputs, xs, strict=True):
        factor, s, v = number(c), unviewed(s), np.asarray(known.v)
        while factor is not None and s.prim.name == "mul":  # by a number, too
            more = next(filter(None, map(number, s.inputs)), None)
            rest = [x for x in s.inputs if number(x) is None]
            factor, s, v = (factor * more, unviewed(rest[0]), v / more) if more and rest else (None, s, v)
        if factor is None or s.prim.name not in ("add", "sub"):
            continue
        for d in filter(None, map(number, s.inputs)):
            exact = is_f32(np.asarray(factor * d)) & is_f32(v * factor)
            off = np.maximum(off, np.where(exact, 0.0, 2 * U * abs(factor) * (np.abs(v) + 2 * abs(d))))
    return off


def number(t: Tensor) -> float | None:
    """The one number that all elements of a tensor are, if the program says so."""
    t = unviewed(t)
    if t.prim.family != "map" or t.dtype.name != "f32":
        return leaves.constant(t)
    found = [number(x) for x in t.inputs]
    return None if None in found else float(np.asarray(array_rule(t, np)(*map(np.float64, found))))


def _simple_quotient(name: str, xs: Sequence[Known]) -> bool:
    """A division by exact powers of two only scales, on every device."""
    if name != "div":
        return False
    mantissa, _ = np.frexp(xs[1].v)
    return bool(np.all(np.abs(mantissa) == 0.5) and not np.any(xs[1].e > 0))


def _kept(v: Array, brought: Array, name: str, xs: Sequence[Known]) -> Known:
    """Rows that round nothing. The larger of two keeps its label where it is sure to be."""
    known = bounded(v, brought) if v.dtype.kind == "f" else Known(v, brought, labels(v.shape))
    if name not in ("minimum", "maximum", "fmax"):
        return known
    a, b = xs
    apart = np.abs(a.v.astype(np.float64) - b.v) > a.e + b.e
    w = np.where(apart & (v == a.v), a.w, np.where(apart & (v == b.v), b.w, known.w))
    return Known(known.v, known.e, w)


def extremum(t: Tensor, x: Known) -> Known:
    """max, min and peak: off by at most what the candidates are; a sure winner keeps its label."""
    rule = array_rule(t, np)
    axes = tuple(t.attrs["axes"])
    v = np.asarray(rule(x.v))
    if x.v.dtype.kind != "f":
        return Known(v, rule_sum(x.e, axes), labels(v.shape))
    e = np.maximum(distance(np.asarray(rule(x.v + x.e)), v), distance(np.asarray(rule(x.v - x.e)), v))
    sign = -1.0 if t.prim.name == "min" else 1.0
    at_least = np.max(sign * x.v - x.e, axis=axes, keepdims=True)
    candidate = sign * x.v + x.e >= at_least
    winner = np.max(np.where(candidate, x.w, np.iinfo(np.int64).min), axis=axes, keepdims=True)
    other = np.min(np.where(candidate, x.w, np.iinfo(np.int64).max), axis=axes, keepdims=True)
    sure = winner == other
    known = bounded(v, e)
    return Known(known.v, known.e, np.where(sure, winner, known.w))


def rule_sum(e: Array, axes: tuple[int, ...]) -> Array:
    """The sum of errors over axes that stay."""
    return np.add.reduce(e, axes, keepdims=True)


def fold(t: Tensor, x: Known) -> Known:
    """sum, prod, max, min, peak."""
    if t.prim.chooses:
        return extremum(t, x)
    axes = tuple(t.attrs["axes"])
    v = np.asarray(array_rule(t, np)(x.v))
    if v.dtype.kind != "f":
        return Known(v, np.where(rule_sum(x.e, axes) > 0, np.inf, 0.0), labels(v.shape))
    n = int(np.prod([x.v.shape[a] for a in axes], dtype=np.int64))
    size = np.abs(x.v)
    if t.prim.name == "sum":
        total = rule_sum(size + x.e, axes)
        if not np.any(x.e > 0) and np.all(np.isfinite(x.v)) and sums_exactly(total, x.v):
            return bounded(v, 0.0)
        return bounded(v, rule_sum(x.e, axes) + max(n - 1, 0) * U * total + TINY * (n > 1))
    grown = np.multiply.reduce(size + x.e, axes, keepdims=True)
    whole = not np.any(x.e > 0) and bool(np.all(x.v == np.rint(x.v)))
    if whole and sums_exactly(np.multiply.reduce(np.maximum(size, 1), axes, keepdims=True), x.v):
        return bounded(v, 0.0)
    e = grown - np.abs(v) + max(n - 1, 0) * U * grown
    return bounded(v, e + on_the_way(x, axes, n))


def on_the_way(x: Known, axes: tuple[int, ...], n: int) -> Array:
    """What `n` factors may lose in some order: a partial product overflows, or is 0 before large factors come."""
    largest = np.multiply.reduce(np.maximum(np.abs(x.v) + x.e, 1.0), axes, keepdims=True)
    least = np.multiply.reduce(np.minimum(np.maximum(np.abs(x.v) - x.e, 0.0), 1.0), axes, keepdims=True)
    return np.where(largest > LARGEST, np.inf, TINY * np.where(least < TINY, max(n - 1, 1) * largest, 1.0))


@dataclass(frozen=True, slots=True, eq=False)
class Arrived:
    """What a scatter adds up at each place: the sum of the sizes, how many terms, and all terms."""

    size: Array
    count: Array
    terms: Array

    def viewed(self, t: Tensor) -> Arrived:
        """The same after a view."""
        rule = array_rule(t, np)
        return Arrived(np.asarray(rule(self.size)), np.asarray(rule(self.count)), self.terms)

    def onto(self, y: Known, base: Known) -> Known:
        """`y` = the sums + `base`, where the terms may be added to `base` one by one, as XLA does it."""
        size = self.size + np.abs(base.v) + base.e
        if sums_exactly(size, np.concatenate([self.terms, base.v.reshape(-1)])) and not np.any(y.e > 0):
            return y
        return Known(y.v, y.e + np.where(self.count > 0, self.count * U * size, 0.0), y.w)


def arrived(t: Tensor, x: Known, i: Known) -> Arrived:
    """Of a scatter."""
    rule = array_rule(t, np)
    size, count = (np.asarray(rule(part, i.v)) for part in (np.abs(x.v) + x.e, np.ones(x.v.shape)))
    return Arrived(size, count, x.v.reshape(-1))


def product(t: Tensor, a: Known, b: Known) -> Known:
    """matmul, also in parts."""
    rule = array_rule(t, np)
    v = np.asarray(rule(a.v, b.v))
    k = a.v.shape[-1]
    size_a, size_b = np.abs(a.v), np.abs(b.v)
    total = np.asarray(rule(size_a + a.e, size_b + b.e))
    if not np.any(a.e > 0) and not np.any(b.e > 0) and _grid(a.v, b.v, total):
        return bounded(v, 0.0)
    brought = rule(a.e, size_b) + rule(size_a, b.e) + rule(a.e, b.e)
    return bounded(v, brought + k * U * total + TINY)


def _grid(a: Array, b: Array, total: Array) -> bool:
    """Are all products multiples of one power of two, so small that every sum of them is exact?"""
    for scale in (1.0, 2.0**5):
        if np.all(a * scale == np.rint(a * scale)) and np.all(b * scale == np.rint(b * scale)):
            return bool(np.all(total * scale * scale < 2.0**24))
    return False


def moved(t: Tensor, xs: Sequence[Known]) -> Known:
    """Views and packs: elements with their errors and labels; what a view fills in is an exact 0 of label 0."""
    rule = array_rule(t, np)
    v, e, w = (np.asarray(rule(*[getattr(x, part) for x in xs])) for part in ("v", "e", "w"))
    return Known(v, e, w)


def gathered(t: Tensor, x: Known, i: Known) -> Known:
    """Elements at sure places; an unsure place may hold anything."""
    rule = array_rule(t, np)
    v, e, w = (np.asarray(rule(part, i.v)) for part in (x.v, x.e, x.w))
    return Known(v, np.where(i.e > 0, np.inf, e), np.where(i.e > 0, -1, w))


def scattered(t: Tensor, x: Known, i: Known) -> Known:
    """Sums of what arrives at each place."""
    rule = array_rule(t, np)
    v = np.asarray(rule(x.v, i.v))
    if np.any(i.e > 0):
        return Known(v, np.full(v.shape, np.inf), labels(v.shape))
    if v.dtype.kind != "f":
        return Known(v, np.asarray(rule(x.e, i.v)), labels(v.shape))
    total = np.asarray(rule(np.abs(x.v) + x.e, i.v))
    if not np.any(x.e > 0) and np.all(np.isfinite(x.v)) and sums_exactly(total, x.v):
        return bounded(v, 0.0)
    count = np.asarray(rule(np.ones(x.v.shape), i.v))
    return bounded(v, np.asarray(rule(x.e, i.v)) + count * U * total + TINY * (count > 0))
