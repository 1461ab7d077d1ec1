"""Loops in C that end at a size of a call, where an axis has an `end`; see kernels/tails.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from tracegrad.kernels.expr import Value
from tracegrad.kernels.form import Axis, Product
from tracegrad.kernels.triangles import CHOICE
from tracegrad.tuning import LANES


def end_of(a: Axis, lanes: int = 1) -> int | str:
    """Return where a loop over an axis ends: at a multiple of `lanes`, if that is before the size of the axis."""
    if a.end < 0:
        return a.size
    return f"min({int(a.size) // lanes * lanes}L, {_points(a, lanes)})"


def end_of_piece(a: Axis) -> int | str:
    """Return where a loop over a piece of an axis ends: after a whole vector, if that is before its size."""
    return a.size if a.end < 0 else f"min({int(a.size)}L, {_points(a, LANES)})"


def _points(a: Axis, lanes: int) -> str:
    """Return how many points of an axis count, rounded up to a multiple of `lanes`."""
    count = f"(p{a.end}[0] - {a.before})" if a.before else f"p{a.end}[0]"
    return f"(long){count}" if lanes == 1 else f"(long)({count} + {lanes - 1}) / {lanes} * {lanes}"


def ended_axis(axes: Sequence[Axis]) -> Axis | None:
    """Return the last axis whose loops can end before its size."""
    return next((a for a in reversed(axes) if a.end >= 0 and a.size > 1), None)


def plain(axes: Sequence[Axis], but: Axis | None = None) -> tuple[Axis, ...]:
    """Return axes whose loops, except those over one axis, do not end before their sizes."""
    return tuple([a if a is but else replace(a, end=-1) for a in axes])


def without_ends(p: Product) -> Product:
    """Return a product with all of its results."""
    return replace(p, batch=plain(p.batch), m=plain(p.m), n=plain(p.n))


def unmasked(v: Value, k: Axis | None) -> Value:
    """Return x of `where(k < end, x, 0)`, which equals x before the loop over k ends; else the value."""
    if k is not None and v.op == "map" and v.arg[0] == CHOICE and v.args[0].op == "map" and v.args[0].arg[0] == "less":
        at, end = v.args[0].args
        alone = at.op == "index" and at.arg.strides == {k.name: 1} and len(at.arg.terms) == 1 and not at.arg.const
        if alone and end.op == "load" and end.arg[0] == k.end and v.args[2].op == "const" and v.args[2].arg == 0:
            return unmasked(v.args[1], k)
    return v
