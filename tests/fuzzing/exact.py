"""The float64 reference of a graph, with the error bound of every element of its results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from fuzzing import bounds
from fuzzing.bounds import Array, Known
from fuzzing.halves import KEEPING, Format
from tracegrad.ir.evaluate import array_rule
from tracegrad.ir.nodes import Tensor, toposort
from tracegrad.passes.expand import expand_composites
from tracegrad.prims.leaves import LEAF


@dataclass(frozen=True, eq=False)
class Exact:
    """What a result is in float64, and how far f32 may be from it. Infinite: not compared."""

    value: Array
    allowed: Array


def double(x: Array) -> Array:
    """f32 as float64; other dtypes as they are."""
    x = np.asarray(x)
    return x.astype(np.float64) if x.dtype == np.float32 else x


def references(
    roots: Sequence[Tensor], env: Mapping[str, Array], any_order: bool = False, half: Format | None = None
) -> list[Exact]:
    """Each root in float64. `env` has the leaves by name.

    any_order: `a + b + c` may be added up in another order, as a tape does with gradients that meet
    half:      each value may be stored in this format
    """
    known = {name: bounds.certain(double(x)) for name, x in env.items()}
    adds = additions(roots) if any_order else 0
    return [Exact(k.v, allowed(k)) for k in analysed(roots, known, adds, half)]


def additions(roots: Sequence[Tensor]) -> int:
    """How many additions a graph makes, those of every iteration of a scan included."""
    order = toposort(roots)
    loops = [t.attrs for t in order if t.prim.family == "scan"]
    inner = sum(a["length"] * (additions(a["body"].roots) + len(a["body"].new)) for a in loops)
    return inner + sum(t.prim.name == "add" for t in order)


def allowed(k: Known) -> Array:
    """The bound, and one part in a hundred for what is of second order; the reference rounds in float64 itself."""
    if k.v.dtype.kind != "f":
        return k.e
    size = np.where(np.isfinite(k.v), np.abs(k.v), 0.0)
    return np.where(k.e > 0, k.e * 1.01 + size * 2.0**-40, 0.0)


def analysed(
    roots: Sequence[Tensor], env: Mapping[str, Known], adds: int = 0, half: Format | None = None
) -> list[Known]:
    """What is known of each root. `adds`: of how many terms additions may be sums, in any order."""
    roots = expand_composites(roots)
    with np.errstate(all="ignore"):
        found = walked(roots, env, adds, half)
    return [found[t.serial] for t in roots]


def walked(
    roots: Sequence[Tensor], env: Mapping[str, Known], adds: int = 0, half: Format | None = None
) -> dict[int, Known]:
    """Every node of a graph of primitives, by serial."""
    found: dict[int, Known] = {}
    scattered: dict[int, bounds.Arrived] = {}
    for t in toposort(roots):
        xs = [found[x.serial] for x in t.inputs]
        found[t.serial] = env[t.name] if t.prim is LEAF else node(t, xs, adds, half)
        if t.prim.family == "scatter" and found[t.serial].v.dtype.kind == "f":
            scattered[t.serial] = bounds.arrived(t, *xs)
        elif t.prim.family == "view" and t.inputs[0].serial in scattered:
            scattered[t.serial] = scattered[t.inputs[0].serial].viewed(t)
        elif t.prim.name == "add":
            for x, base in zip(t.inputs, xs[::-1], strict=True):
                if x.serial in scattered:
                    found[t.serial] = scattered[x.serial].onto(found[t.serial], base)
            if adds:
                found[t.serial] = bounds.summed(found[t.serial], xs[0], xs[1], adds)
        if half is not None and t.prim.family not in KEEPING:
            found[t.serial] = half.rounded(found[t.serial])
    return found


def node(t: Tensor, xs: Sequence[Known], adds: int = 0, half: Format | None = None) -> Known:
    """One primitive."""
    family = t.prim.family
    if family == "map":
        return bounds.elementwise(t, xs)
    if family == "fold":
        return bounds.fold(t, xs[0])
    if family in ("view", "pack"):
        return bounds.moved(t, xs)
    if family == "product":
        return bounds.product(t, xs[0], xs[1])
    if family == "gather":
        return bounds.gathered(t, xs[0], xs[1])
    if family == "scatter":
        return bounds.scattered(t, xs[0], xs[1])
    if family == "scan":
        return scanned(t, xs, adds, half)
    if family == "item":
        return xs[0].parts[t.attrs["index"]]
    return bounds.constant(t, double(array_rule(t, np)()))


def scanned(t: Tensor, xs: Sequence[Known], adds: int, half: Format | None) -> Known:
    """All iterations of a scan, one after the other."""
    body: Any = t.attrs["body"]
    n, m, length = len(body.carries), len(body.carries) + len(body.xs), t.attrs["length"]
    carry = list(xs[:n])
    rows: list[list[Known]] = []
    for k in reversed(range(length)) if t.attrs["reverse"] else range(length):
        elements = [Known(x.v[k], x.e[k], x.w[k]) for x in xs[n:m]]
        env = {leaf.name: x for leaf, x in zip(body.leaves, (*carry, *elements, *xs[m:]))}
        found = walked(body.roots, env, adds, half)
        carry = [found[r.serial] for r in body.new]
        rows.append([found[r.serial] for r in body.each])
    if t.attrs["reverse"]:
        rows.reverse()
    each = [stacked(column) for column in zip(*rows)]
    return Known(np.zeros(()), np.zeros(()), np.zeros((), np.int64), (*carry, *each))


def stacked(column: Sequence[Known]) -> Known:
    """What an iteration gives, of all iterations."""
    v, e, w = (np.stack([np.asarray(getattr(k, part)) for k in column]) for part in ("v", "e", "w"))
    return Known(v, e, w)
