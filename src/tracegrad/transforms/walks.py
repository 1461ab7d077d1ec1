"""Walk graphs: backwards with VJPs, forwards with JVPs or batching rules."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from tracegrad.errors import TraceError, located
from tracegrad.ir import ambient
from tracegrad.ir.graph import depending
from tracegrad.ir.nodes import Tensor, bind, toposort
from tracegrad.prims.elementwise import VARIABLE
from tracegrad.prims.leaves import const
from tracegrad.prims.rules import spread, zeros_like
from tracegrad.prims.views import broadcast_to, reshape
from tracegrad.refusals import shown


def gradients(y: Tensor, wrt: Sequence[Tensor], scale: Tensor | None = None) -> list[Tensor]:
    """Return d y / d x for each x of `wrt`, times `scale`; zeros where `y` does not depend on x. `y` has rank 0."""
    with ambient.rewriting() as here:
        here.site = y.site
        return cotangents([y], [const(1.0, y.dtype) if scale is None else scale], wrt)


def cotangents(ys: Sequence[Tensor], seeds: Sequence[Tensor], wrt: Sequence[Tensor]) -> list[Tensor]:
    """Return the cotangent of each x of `wrt`, given those of `ys`; zeros where nothing depends on x."""
    with ambient.rewriting():
        found = arriving(ys, seeds, wrt)
        return [broadcast_to(const(0.0), x.shape) if g is None else g for x, g in zip(wrt, found)]


def arriving(ys: Sequence[Tensor], seeds: Sequence[Tensor], wrt: Sequence[Tensor]) -> list[Tensor | None]:
    """Return the same as `cotangents`, with None in place of zeros."""
    order = toposort(ys, min((x.serial for x in wrt), default=0))  # nodes that depend on x have larger serials
    needed = depending(order, wrt, floats=True)  # only nodes between `wrt` and the end
    cts: dict[int, Tensor] = {}
    with ambient.rewriting() as here:
        for y, seed in zip(ys, seeds, strict=True):
            cts[y.serial] = cts[y.serial] + seed if y.serial in cts else seed
        for t in reversed(order):
            ct = cts.get(t.serial)
            if ct is None:
                continue
            here.site = t.site
            for x, g in zip(t.inputs, _pulled(ct, t)):
                if g is not None and x.serial in needed:
                    cts[x.serial] = cts[x.serial] + g if x.serial in cts else g
        return [cts.get(x.serial) for x in wrt]


def _pulled(ct: Tensor, t: Tensor) -> Sequence[Tensor | None]:
    """Return the cotangents of a node's inputs, by its VJP or those of its expansion; () if it has neither."""
    if t.prim.vjp is not None:
        return _by_vjp(ct, t)
    if t.prim.expand is None:
        return ()
    own = [bind(VARIABLE, x) for x in t.inputs]  # one input may depend on another
    return arriving([t.prim.expand(*own, **t.attrs)], [ct], own)


def _by_vjp(ct: Tensor, t: Tensor) -> Sequence[Tensor | None]:
    """Return the cotangents of a node's inputs by its VJP. Raises TraceError unless the row returns one an input."""
    assert t.prim.vjp is not None
    found: Any = t.prim.vjp(ct, t, *t.inputs, **t.attrs)
    if t.prim.family not in ("map", "composite"):  # those that packages can add
        return found
    given = cast("Sequence[Any]", found) if isinstance(found, (tuple, list)) else (found,)
    fit = [g is None or (type(g) is Tensor and g.shape == x.shape) for g, x in zip(given, t.inputs)]
    if given is found and all(fit) and len(given) == len(t.inputs):
        return given
    want = ", ".join([str(x.type) for x in t.inputs])
    got = ", ".join([str(g.type) if isinstance(g, Tensor) else shown(g) for g in given])
    hint = f"got ({got},)" if given is found else f"got {got} alone; write (g,)"
    said = f"{t.prim.name}: its vjp must return a tuple with the cotangent of each input, here of ({want},); {hint}"
    raise TraceError(located(said, t.site))


def tangents(ys: Sequence[Tensor], given: Mapping[Tensor, Tensor]) -> list[Tensor]:
    """Return the tangents of `ys`, given those of some nodes; zeros for a y that depends on none of them."""
    ts = {x.serial: t for x, t in given.items()}

    def rule(t: Tensor) -> Tensor | None:
        if not t.dtype.is_float:
            return None
        own = [ts.get(x.serial) for x in t.inputs]
        return t.prim.jvp(own, t, *t.inputs, **t.attrs) if t.prim.jvp is not None else _transposed(own, t)

    _forwards(ys, ts, rule, lambda t: t.prim.jvp is None and t.prim.vjp is None)
    with ambient.rewriting():
        return [ts[y.serial] if y.serial in ts else zeros_like(y) for y in ys]


def _transposed(ts: Sequence[Tensor | None], y: Tensor) -> Tensor | None:
    """Return the tangent of `y` by its VJP, which is linear in the cotangent: d<vjp(z), ts>/dz, for any z.

    None stands for zeros, also if `y` has no VJP.
    """
    if y.prim.vjp is None:
        return None
    z = bind(VARIABLE, zeros_like(y))
    pairs = [(g, t) for g, t in zip(_by_vjp(z, y), ts) if g is not None and t is not None]
    return arriving([g for g, _ in pairs], [t for _, t in pairs], [z])[0] if pairs else None


def batches(ys: Sequence[Tensor], given: Mapping[Tensor, Tensor], n: int) -> list[Tensor | None]:
    """Return `n` values of each of `ys` along a new axis 0, given those of some nodes; None where all are the same."""
    many = {x.serial: values for x, values in given.items()}

    def rule(t: Tensor) -> Tensor:
        if n == 0:  # rules divide by sizes, and merge the new axis with others
            return const(0.0, t.dtype).broadcast_to((0, *t.shape))
        xs = [many[x.serial] if x.serial in many else reshape(x, (1, *x.shape)) for x in t.inputs]
        assert t.prim.batch is not None, f"{t.prim.name} has neither a batching rule nor an expansion"
        values = t.prim.batch(n, t, *xs, **t.attrs)
        assert values.type == (t.dtype, (n, *t.shape)), f"{t.prim.name}: {n} of {t.type} came out as {values.type}"
        return values

    _forwards(ys, many, rule, lambda t: t.prim.batch is None)
    return [many.get(y.serial) for y in ys]


def repeated(many: Tensor | None, y: Tensor, n: int) -> Tensor:
    """Return the result of `batches` for `y`; if there is one value for all, repeat it `n` times."""
    with ambient.rewriting() as here:
        here.site = y.site
        return spread(n, reshape(y, (1, *y.shape))) if many is None else many


def _forwards(
    ys: Sequence[Tensor],
    found: dict[int, Tensor],
    rule: Callable[[Tensor], Tensor | None],
    expands: Callable[[Tensor], bool],
) -> None:
    """Give a value to every node that depends on a node in `found`: by `rule`, or by the rules of its expansion."""
    if not found:
        return
    with ambient.rewriting() as here:
        for t in toposort(ys, min(found), found):  # nodes that depend on a node have larger serials
            if not any(x.serial in found for x in t.inputs):
                continue
            here.site = t.site
            if t.prim.expand is not None and expands(t):
                inside = t.prim.expand(*t.inputs, **t.attrs)
                _forwards([inside], found, rule, expands)
                value = found.get(inside.serial)
            else:
                value = rule(t)
            if value is not None:
                found[t.serial] = value
