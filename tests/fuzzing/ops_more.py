"""Orders, norms, triangles and diagonals, sums of segments, distances and other sizes of images, as steps."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from fuzzing.drawing import LIMIT, Pool, UnfitError
from fuzzing.ops_shapes import any_dtype, indices
from fuzzing.table import Drawn, Op, register

SORTED = 300  # elements of what is sorted: the reference compares each with many
# Lengths of sorted axes around those where another way to sort is taken, and how many rows there are beside
LENGTHS = (1, 2, 15, 16, 17, 31, 63, 64, 65, 127, 129, 255, 256, 257, 511, 512, 513, 600)
FIRST = (1, 2, 3, 15, 16, 17, 33)  # elements of a topk
BESIDE = ((), (1,), (2,), (3,), (1, 3), (2, 2), (11,), (13,))


def _keys(pool: Pool) -> tuple[int, int]:
    """A value and an axis to sort it along: one that exists, or a new one of a length that matters."""
    if not pool.fresh or pool.below(3):
        x = any_dtype(pool)
        if pool.known[x].v.size > SORTED:
            raise UnfitError
        return x, pool.axis(len(pool.of(x)))
    n, beside = pool.one(LENGTHS), pool.one(BESIDE)
    if n * math.prod(beside) > LIMIT:
        beside = ()
    axis = pool.below(len(beside) + 1)
    shape = (*beside[:axis], n, *beside[axis:])
    dtype = pool.one(("f32", "f32", "i32", "bool"))
    x = pool.new(dtype, shape, 0, pool.one((1, 3, 1000))) if dtype == "i32" else pool.new(dtype, shape)
    return x, axis - len(shape) * pool.below(2)


def _order(pool: Pool) -> Drawn:
    x, axis = _keys(pool)
    return (x,), {"axis": axis, "descending": bool(pool.below(2))}


def _topk(pool: Pool) -> Drawn:
    x, axis = _keys(pool)
    n = pool.of(x)[axis]
    k = pool.one((pool.below(n + 1), *(k for k in (*FIRST, n) if k <= n)))
    return (x,), {"k": k, "axis": axis, "largest": bool(pool.below(2))}


def _order_torch(torch: Any, x: Any, axis: int, descending: bool) -> Any:
    return torch.argsort(x, dim=axis, descending=descending, stable=True).int()


def _topk_torch(torch: Any, x: Any, k: int, axis: int, largest: bool) -> Any:
    """torch.topk promises no order among equal elements, whose gradients then go elsewhere."""
    return torch.sort(x, dim=axis, descending=largest, stable=True)[0].narrow(axis, 0, k)


def _order_jax(jax: Any, x: Any, axis: int, descending: bool) -> Any:
    return jax.numpy.argsort(x, axis, stable=True, descending=descending).astype("int32")


def _sorted_jax(jax: Any, x: Any, axis: int, descending: bool) -> Any:
    return jax.numpy.take_along_axis(x, _order_jax(jax, x, axis, descending), axis)


def _cut_jax(jax: Any, x: Any, k: int, axis: int) -> Any:
    return jax.lax.slice_in_dim(x, 0, k, axis=axis)


def _angle(where: Any, atan2: Any, constant: Any, a: Any, b: Any) -> Any:
    """atan2 whose derivative at (0, 0) is 0; in other libraries it is NaN."""
    zero = (a == 0) & (b == 0)
    return where(zero, constant(atan2(a, b)), atan2(where(zero, 1.0, a), where(zero, 1.0, b)))


def _pair(pool: Pool) -> Drawn:
    a = pool.pick()
    return (a, pool.broadcastable(pool.of(a))), {}


def _norm(pool: Pool) -> Drawn:
    x = pool.pick(rank=1)
    axis = pool.axes(len(pool.of(x)))
    if 0 in pool.of(x):
        raise UnfitError
    return (x,), {"axis": axis, "keepdims": bool(pool.below(2)), "ord": pool.one((1, 2, 2, 3, float("inf")))}


def _norm_torch(torch: Any, x: Any, axis: Any, keepdims: bool, ord: float) -> Any:
    return torch.linalg.vector_norm(x, ord, axis, keepdims)


def _square(pool: Pool) -> Drawn:
    x = pool.pick(rank=2)
    return (x,), {"k": pool.between(-3, 3)}


def _diag(pool: Pool) -> Drawn:
    x = pool.find(lambda k: pool.dtype(k) == "f32" and len(pool.of(k)) in (1, 2) and pool.known[k].v.size <= 50)
    x = pool.new("f32", pool.one(((3, 5), (7,), (6, 2), (1,)))) if x is None else x
    shape = pool.of(x)
    if 0 in shape:
        raise UnfitError
    return (x,), {"k": pool.between(-2, 2) if len(shape) == 1 else pool.between(1 - shape[0], shape[1] - 1)}


def _segments(pool: Pool) -> Drawn:
    x = pool.pick(rank=1)
    n = pool.size()
    return (x, indices(pool, n, pool.of(x)[:1])), {"n": n}


def _segments_torch(torch: Any, x: Any, i: Any, n: int) -> Any:
    return torch.zeros((n, *x.shape[1:]), dtype=x.dtype).index_add(0, i.long(), x)


def _rated_segments(pool: Pool) -> Drawn:
    (x, i), how = _segments(pool)
    if pool.dtype(x) != "f32":
        raise UnfitError
    return (x, i), how


def _segment_max_torch(torch: Any, x: Any, i: Any, n: int) -> Any:
    lowest = torch.full((n, *x.shape[1:]), -float("inf"), dtype=x.dtype)
    at = i.long().reshape(-1, *[1] * (x.ndim - 1)).expand_as(x)
    return lowest.scatter_reduce(0, at, x, "amax")


def _divergence(pool: Pool) -> Drawn:
    x = pool.pick(rank=1)
    if 0 in pool.of(x):
        raise UnfitError
    log = bool(pool.below(2))
    t = pool.shaped(pool.of(x)) if log else pool.shaped(pool.of(x), low=0.1, high=2.0)
    return (x, t), {"reduction": pool.one(("mean", "sum", "none")), "log_target": log}


def _divergence_torch(torch: Any, x: Any, t: Any, reduction: str, log_target: bool) -> Any:
    """PyTorch warns at its own "mean"."""
    y = torch.nn.functional.kl_div(x, t, reduction="none", log_target=log_target)
    return y if reduction == "none" else getattr(torch, reduction)(y)


def _resampled(pool: Pool) -> Drawn:
    mode = pool.one(("nearest", "linear", "bilinear", "trilinear", "bicubic"))
    spatial = {"linear": 1, "bilinear": 2, "trilinear": 3, "bicubic": 2}.get(mode, 1 + pool.below(2))
    sizes = (1, 2, 3, 5, 6, 7, 9)
    x = pool.shaped((pool.one((1, 2)), pool.one((1, 2, 3)), *(pool.one(sizes) for _ in range(spatial))))
    attrs = {"size": tuple(pool.one(sizes) for _ in range(spatial)), "mode": mode}
    return (x,), {**attrs, "align_corners": mode != "nearest" and bool(pool.below(2))}


def _resampled_torch(torch: Any, x: Any, size: Any, mode: str, align_corners: bool) -> Any:
    aligned = None if mode == "nearest" else align_corners
    return torch.nn.functional.interpolate(x, tuple(size), mode=mode, align_corners=aligned)


def _rolled(pool: Pool) -> Drawn:
    """By more than the size of the axis, too, and along several axes, in either order."""
    x = any_dtype(pool)
    rank = len(pool.of(x))
    axes = [a for a in range(rank) if pool.chance(2)] or [rank - 1]
    shift = [pool.between(-9, 9) for _ in axes]
    return (x,), {"shift": shift, "axis": axes[::-1] if shift[0] % 2 else axes}


def _alignment(pool: Pool) -> Drawn:
    """Lengths and labels as inputs; some sequences have no path."""
    steps, n, classes, most = pool.one((1, 2, 5, 7)), pool.one((1, 2, 3)), pool.one((2, 3, 5)), pool.one((0, 1, 2, 3))
    blank = pool.below(classes)
    if not most:
        raise UnfitError
    others = [c for c in range(classes) if c != blank]
    given = {
        "labels": [[pool.one(others) for _ in range(most)] for _ in range(n)],
        "steps": [pool.between(1, steps) for _ in range(n)],
        "counts": [pool.between(0, most) for _ in range(n)],
    }
    x = pool.shaped((steps, n, classes))
    return (x,), {**given, "blank": blank, "reduction": pool.one(("mean", "sum", "none"))}


def _aligned(tg: Any, x: Any, labels: Any, steps: Any, counts: Any, blank: int, reduction: str) -> Any:
    numbers = [np.array(part, np.int32) for part in (labels, steps, counts)]
    return tg.ctc_loss(tg.log_softmax(x, -1), *numbers, blank, reduction, zero_infinity=True)


def _aligned_torch(torch: Any, x: Any, labels: Any, steps: Any, counts: Any, blank: int, reduction: str) -> Any:
    numbers = [torch.tensor(part) for part in (labels, steps, counts)]
    return torch.nn.functional.ctc_loss(torch.log_softmax(x, -1), *numbers, blank, reduction, zero_infinity=True)


register(
    Op("sort", _order, lambda tg, x, axis, descending: tg.sort(x, axis, descending)[0],
       lambda torch, x, axis, descending: torch.sort(x, dim=axis, descending=descending, stable=True)[0], _sorted_jax,
       weight=3),
    Op("argsort", _order, lambda tg, x, axis, descending: tg.argsort(x, axis, descending), _order_torch, _order_jax),
    Op("topk", _topk, lambda tg, x, k, axis, largest: tg.topk(x, k, axis, largest)[0], _topk_torch,
       lambda jax, x, k, axis, largest: _cut_jax(jax, _sorted_jax(jax, x, axis, largest), k, axis), weight=3),
    Op("topk_indices", _topk, lambda tg, x, k, axis, largest: tg.topk(x, k, axis, largest)[1],
       lambda torch, x, k, axis, largest: _order_torch(torch, x, axis, largest).narrow(axis, 0, k),
       lambda jax, x, k, axis, largest: _cut_jax(jax, _order_jax(jax, x, axis, largest), k, axis)),
    Op("roll_several", _rolled, lambda tg, x, shift, axis: tg.roll(x, shift, axis),
       lambda torch, x, shift, axis: torch.roll(x, shift, axis),
       lambda jax, x, shift, axis: jax.numpy.roll(x, shift, axis)),
    Op("ctc_loss", _alignment, _aligned, _aligned_torch, None),
    Op("atan2", _pair, lambda tg, a, b: tg.atan2(a, b),
       lambda torch, a, b: _angle(torch.where, torch.atan2, lambda x: x.detach(), a, b),
       lambda jax, a, b: _angle(jax.numpy.where, jax.numpy.arctan2, jax.lax.stop_gradient, a, b)),
    Op("norm", _norm, lambda tg, x, axis, **how: tg.norm(x, axis, **how), _norm_torch, None),
    Op("triu", _square, lambda tg, x, k: tg.triu(x, k), lambda torch, x, k: torch.triu(x, k),
       lambda jax, x, k: jax.numpy.triu(x, k)),
    Op("diag", _diag, lambda tg, x, k: tg.diag(x, k), lambda torch, x, k: torch.diag(x, k),
       lambda jax, x, k: jax.numpy.diag(x, k)),
    Op("segment_sum", _segments, lambda tg, x, i, n: tg.segment_sum(x, i, n), _segments_torch, None),
    Op("segment_max", _rated_segments, lambda tg, x, i, n: tg.maximum(tg.segment_max(x, i, n), -9.0),
       lambda torch, x, i, n: _segment_max_torch(torch, x, i, n).clamp_min(-9.0), None),
    Op("kl_div", _divergence, lambda tg, x, t, reduction, log_target: tg.kl_div(x, t, reduction, log_target),
       _divergence_torch, None),
    Op("interpolate", _resampled,
       lambda tg, x, size, mode, align_corners: tg.interpolate(x, tuple(size), None, mode, align_corners),
       _resampled_torch, None),
)  # fmt: skip
