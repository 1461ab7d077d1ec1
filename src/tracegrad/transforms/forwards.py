"""Walk graphs forwards: tangents by each row's JVP, many values at once by its batching rule, and replay."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tracegrad import ambient
from tracegrad.ir import Tensor, rebind, toposort
from tracegrad.prims.leaves import const
from tracegrad.prims.rules import spread, zeros_like
from tracegrad.prims.views import reshape


def tangents(ys: Sequence[Tensor], given: Mapping[Tensor, Tensor]) -> list[Tensor]:
    """Return the tangents of `ys`, given those of some nodes; zeros for a y that depends on none of them."""
    ts = {x.serial: t for x, t in given.items()}

    def rule(t: Tensor) -> Tensor | None:
        if not t.dtype.is_float or t.prim.jvp is None:
            return None
        return t.prim.jvp([ts.get(x.serial) for x in t.inputs], t, *t.inputs, **t.attrs)

    _forwards(ys, ts, rule, lambda t: t.prim.jvp is None)
    with ambient.rewriting():
        return [ts[y.serial] if y.serial in ts else zeros_like(y) for y in ys]


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


def replayed(ys: Sequence[Tensor], stand_ins: Mapping[Tensor, Tensor]) -> list[Tensor]:
    """Recompute `ys` from other values of some nodes."""
    new = {x.serial: value for x, value in stand_ins.items()}
    _forwards(ys, new, lambda t: rebind(t, tuple([new.get(x.serial, x) for x in t.inputs])), lambda t: False)
    return [new.get(y.serial, y) for y in ys]


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
        for t in toposort(ys, min(found), found):  # nodes that depend on a node are newer
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
