"""Steps that hold a program: checkpoint, grad, jvp, hessian, custom_vjp, vmap and scan, in any combination."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fuzzing.bounds import Known
from fuzzing.drawing import Pool, UnfitError
from fuzzing.table import Op, register

Body = Callable[..., Any]
SECOND = 9  # elements of an argument of a Hessian


def _checkpoint(tg: Any, *xs: Any, body: Body) -> Any:
    return tg.checkpoint(body)(*xs)


def _grad(tg: Any, *xs: Any, body: Body) -> Any:
    return tg.grad(lambda *xs: tg.sum(tg.sin(body(*xs))))(*xs)


def _grad_torch(torch: Any, *xs: Any, body: Body) -> Any:
    return torch.func.grad(lambda *xs: torch.sum(torch.sin(body(*xs))))(*xs)


def _grad_jax(jax: Any, *xs: Any, body: Body) -> Any:
    return jax.grad(lambda *xs: jax.numpy.sum(jax.numpy.sin(body(*xs))))(*xs)


def _jvp(tg: Any, x: Any, t: Any, *rest: Any, body: Body) -> Any:
    return tg.jvp(lambda x: body(x, *rest), (x,), (t,))[1]


def _jvp_torch(torch: Any, x: Any, t: Any, *rest: Any, body: Body) -> Any:
    return torch.func.jvp(lambda x: body(x, *rest), (x.contiguous(),), (t.contiguous(),))[1]


def _jvp_jax(jax: Any, x: Any, t: Any, *rest: Any, body: Body) -> Any:
    return jax.jvp(lambda x: body(x, *rest), (x,), (t,))[1]


def _hessian(tg: Any, x: Any, *rest: Any, body: Body) -> Any:
    return tg.hessian(lambda x: tg.sum(tg.sin(body(x, *rest))))(x)


def _hessian_torch(torch: Any, x: Any, *rest: Any, body: Body) -> Any:
    return torch.func.hessian(lambda x: torch.sum(torch.sin(body(x, *rest))))(x)


def _hessian_jax(jax: Any, x: Any, *rest: Any, body: Body) -> Any:
    return jax.hessian(lambda x: jax.numpy.sum(jax.numpy.sin(body(x, *rest))))(x)


def _halved(tg: Any, x: Any, *rest: Any, body: Body) -> Any:
    """The body, with half of its derivative to `x`, which keeps the value of another function."""

    def own(x: Any) -> Any:
        return body(x, *rest)

    made = tg.custom_vjp(own)
    made.defvjp(lambda x: (own(x), x), lambda x, ct: (tg.vjp(own, x)[1](ct * 0.5)[0],))
    return made(x)


def _halved_plainly(stop: Callable[[Any], Any], x: Any, *rest: Any, body: Body) -> Any:
    rest = tuple(map(stop, rest))
    y = body(x, *rest)
    return y * 0.5 + stop(y) * 0.5


def _vmap(tg: Any, *xs: Any, body: Body, in_axes: Any) -> Any:
    return tg.vmap(body, in_axes)(*xs)


def _vmap_torch(torch: Any, *xs: Any, body: Body, in_axes: Any) -> Any:
    return torch.vmap(body, in_axes)(*xs)


def _vmap_jax(jax: Any, *xs: Any, body: Body, in_axes: Any) -> Any:
    return jax.vmap(body, in_axes)(*xs)


def _scan(tg: Any, c: Any, xs: Any, *rest: Any, body: Body, reverse: bool, rows: bool) -> Any:
    return tg.scan(lambda c, x: body(c, x, *rest), c, xs, reverse=reverse)[rows]


def _scan_torch(torch: Any, c: Any, xs: Any, *rest: Any, body: Body, reverse: bool, rows: bool) -> Any:
    ys = []
    for t in reversed(range(len(xs))) if reverse else range(len(xs)):
        c, y = body(c, xs[t], *rest)
        ys.append(y)
    return torch.stack(ys[::-1] if reverse else ys) if rows else c


def _scan_jax(jax: Any, c: Any, xs: Any, *rest: Any, body: Body, reverse: bool, rows: bool) -> Any:
    return jax.lax.scan(lambda c, x: body(c, x, *rest), c, xs, reverse=reverse)[rows]


def part(known: Known, axis: int | None) -> Known:
    """What a body sees of an argument: its first element along `axis`."""
    if axis is None:
        return known
    return Known(*(np.take(x, 0, axis) for x in (known.v, known.e, known.w)))


def arguments(pool: Pool, op: str) -> tuple[tuple[int, ...], dict[str, Any], list[Known]]:
    """The arguments of a transform, its attributes, and the arguments of its body."""
    first = pool.pick(rank=1 if op in ("vmap", "scan") else 0, most=300)
    if 0 in pool.of(first):
        raise UnfitError
    small = [pool.find(lambda k: 0 < pool.known[k].v.size < 300) for _ in range(pool.below(2))]
    others = [k for k in small if k is not None]
    known = pool.known
    if op == "jvp":
        tangent = pool.shaped(pool.of(first))
        return (first, tangent, *others), {}, [known[first], *(known[k] for k in others)]
    if op == "hessian" and known[first].v.size > SECOND:
        raise UnfitError
    if op == "custom_vjp":
        return (first,), {}, [known[first]]
    if op == "vmap":
        n = pool.of(first)[0]
        axes: list[int | None] = [0]
        axes += [0 if pool.of(k)[:1] == (n,) and pool.chance(2) else None for k in others]
        return (first, *others), {"in_axes": axes}, [part(known[k], a) for k, a in zip((first, *others), axes)]
    if op == "scan":
        if pool.of(first)[0] > 9:
            raise UnfitError
        carry = pool.find(lambda k: pool.dtype(k) == "f32" and k != first and 0 < known[k].v.size < 100)
        carry = pool.shaped(pool.shape(1)) if carry is None else carry
        attrs = {"reverse": bool(pool.below(2)), "rows": bool(pool.below(2))}
        return (carry, first, *others), attrs, [known[carry], part(known[first], 0), *(known[k] for k in others)]
    return (first, *others), {}, [known[k] for k in (first, *others)]


def never(pool: Pool) -> Any:
    """Transforms are drawn with their body, by `grow`."""
    raise UnfitError


register(
    Op("checkpoint", never, _checkpoint, lambda torch, *xs, body: body(*xs),
       lambda jax, *xs, body: jax.checkpoint(body)(*xs), weight=6),
    Op("grad", never, _grad, _grad_torch, _grad_jax, weight=5),
    Op("jvp", never, _jvp, _jvp_torch, _jvp_jax, weight=4),
    Op("hessian", never, _hessian, _hessian_torch, _hessian_jax, weight=4),
    Op("custom_vjp", never, _halved, lambda torch, *xs, body: _halved_plainly(torch.Tensor.detach, *xs, body=body),
       lambda jax, *xs, body: _halved_plainly(jax.lax.stop_gradient, *xs, body=body), weight=4),
    Op("vmap", never, _vmap, _vmap_torch, _vmap_jax, weight=6),
    Op("scan", never, _scan, _scan_torch, _scan_jax, weight=5),
)  # fmt: skip
NESTED = ("checkpoint", "grad", "jvp", "hessian", "custom_vjp", "vmap", "scan")
