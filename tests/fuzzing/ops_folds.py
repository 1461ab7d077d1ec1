"""Steps that compute over many elements: reductions over any axes, products, softmax and its kin, norms, losses."""

from __future__ import annotations

import math
from typing import Any

from fuzzing.drawing import Pool, UnfitError
from fuzzing.table import Drawn, Op, register

FOLDS = {"sum": "sum", "mean": "mean", "max": "amax", "min": "amin", "logsumexp": "logsumexp"}
SPECS = ("ij->ji", "ij->", "ii->i", "ij,jk", "ij,jk->ki", "bqd,bkd->bqk", "i,j->ji", "ij,ij->i", "ijk,jl->ikl",
         "...ij,...jk->...ik", "ij,jk,kl->il", "ijk,il,jm->lmk", "ij,k->ijk", "ij,ij->", "ii->", "iij->j", "iji->j",
         "ij,jj->i", "bii,bi->b", "ii,ii->i", "ii,jj->ij", "...ii->...i")  # fmt: skip


def _elements(pool: Pool, x: int, axis: Any) -> int:
    shape = pool.of(x)
    axes = range(len(shape)) if axis is None else (axis,) if isinstance(axis, int) else axis
    return math.prod(shape[a] for a in axes)


def _fold(pool: Pool) -> Drawn:
    x = pool.pick(rank=pool.below(3))
    return (x,), {"axis": pool.axes(len(pool.of(x))), "keepdims": bool(pool.below(2))}


def _choice(pool: Pool) -> Drawn:
    args, attrs = _fold(pool)
    if not _elements(pool, args[0], attrs["axis"]):
        raise UnfitError
    return args, attrs


def _var(pool: Pool) -> Drawn:
    args, attrs = _fold(pool)
    ddof = pool.below(2)
    if _elements(pool, args[0], attrs["axis"]) <= ddof:
        raise UnfitError
    return args, {**attrs, "ddof": ddof}


def _prod(pool: Pool) -> Drawn:
    args, attrs = _fold(pool)
    if _elements(pool, args[0], attrs["axis"]) > 16:
        raise UnfitError
    return args, attrs


def _truths(pool: Pool) -> Drawn:
    x = pool.pick(pool.one(("bool", "i32")))
    return (x,), {"axis": pool.axes(len(pool.of(x))), "keepdims": bool(pool.below(2))}


def _int_fold(pool: Pool) -> Drawn:
    x = pool.pick("i32")
    if 0 in pool.of(x):
        raise UnfitError
    return (x,), {"axis": pool.axes(len(pool.of(x))), "keepdims": bool(pool.below(2))}


def _position(pool: Pool) -> Drawn:
    x = pool.pick(pool.one(("f32", "f32", "i32")), rank=1)
    if 0 in pool.of(x):
        raise UnfitError
    return (x,), {"axis": pool.one((None, pool.axis(len(pool.of(x))))), "keepdims": bool(pool.below(2))}


def _dims(x: Any, axis: Any) -> tuple[int, ...]:
    return tuple(range(x.ndim)) if axis is None else (axis,) if isinstance(axis, int) else axis


def _torch_fold(name: str) -> Any:
    def fold(torch: Any, x: Any, axis: Any, keepdims: bool) -> Any:
        return getattr(torch, name)(x, _dims(x, axis), keepdim=keepdims) if x.ndim else x

    return fold


def _torch_prod(torch: Any, x: Any, axis: Any, keepdims: bool) -> Any:
    for a in sorted((a % x.ndim for a in _dims(x, axis)), reverse=True):
        x = torch.prod(x, a, keepdim=keepdims)
    return x


def _torch_truth(name: str) -> Any:
    def fold(torch: Any, x: Any, axis: Any, keepdims: bool) -> Any:
        for a in sorted((a % x.ndim for a in _dims(x, axis)), reverse=True):
            x = getattr(torch, name)(x, a, keepdim=keepdims)
        return x.bool()

    return fold


def _softmaxes(pool: Pool) -> Drawn:
    x = pool.pick(rank=1)
    if 0 in pool.of(x):
        raise UnfitError
    return (x,), {"axis": pool.axis(len(pool.of(x)))}


def _cumsum(pool: Pool) -> Drawn:
    x = pool.pick(rank=1)
    return (x,), {"axis": pool.axis(len(pool.of(x)))}


def _cumprod(pool: Pool) -> Drawn:
    args, attrs = _cumsum(pool)
    if pool.of(args[0])[attrs["axis"]] > 16:
        raise UnfitError
    return args, attrs


def _matmul(pool: Pool) -> Drawn:
    a = pool.pick(rank=1)
    *_, k = pool.of(a)
    if not k:
        raise UnfitError

    def fits(b: int) -> bool:
        shape = pool.of(b)
        if pool.dtype(b) != "f32" or not shape or shape[-2 if len(shape) > 1 else -1] != k:
            return False
        batch = zip(reversed(pool.of(a)[:-2]), reversed(shape[:-2]))
        return all(n == m or 1 in (n, m) for n, m in batch)

    b = pool.find(fits)
    if b is None or pool.chance(3):
        b = pool.shaped((k, pool.size()) if pool.below(4) else (k,))
    return (a, b), {}


def _einsum(pool: Pool) -> Drawn:
    """Letters get sizes from the values that exist, as far as they fit; the rest are new inputs."""
    spec = pool.one(SPECS)
    sizes: dict[str, int] = {}
    args: list[int] = []
    for term in spec.split("->")[0].split(","):
        letters = term.replace("...", "")

        def fits(k: int, letters: str = letters, known: dict[str, int] = sizes) -> bool:
            shape = pool.of(k)
            found = dict(known)
            return (
                pool.dtype(k) == "f32"
                and len(shape) == len(letters)
                and all(found.setdefault(c, n) == n for c, n in zip(letters, shape))
            )

        k = pool.find(fits)
        if k is None or pool.chance(4):
            k = pool.shaped(tuple(sizes.setdefault(c, pool.one((1, 2, 3, 5, 7))) for c in letters))
        sizes |= dict(zip(letters, pool.of(k)))
        args.append(k)
    if math.prod(sizes.values()) > 20000:
        raise UnfitError
    return tuple(args), {"spec": spec}


def _outer(pool: Pool) -> Drawn:
    a, b = (pool.find(lambda k: pool.dtype(k) == "f32" and len(pool.of(k)) == 1) for _ in range(2))
    if a is None or b is None or pool.known[a].v.size * pool.known[b].v.size > 4096:
        raise UnfitError
    return (a, b), {}


def _normed(pool: Pool) -> Drawn:
    x = pool.pick(rank=1)
    n = pool.of(x)[-1]
    if n < 2 or 0 in pool.of(x):
        raise UnfitError
    return (x, pool.shaped((n,))), {}


def _causal(pool: Pool) -> Drawn:
    x = pool.find(lambda k: pool.dtype(k) == "f32" and len(pool.of(k)) > 1 and pool.of(k)[-1] == pool.of(k)[-2] > 0)
    n = pool.size()
    if n > 65:
        raise UnfitError
    return (pool.shaped((*pool.shape(1)[:1], n, n) if n < 20 else (n, n)) if x is None else x,), {}


def _classes(pool: Pool) -> Drawn:
    x = pool.pick(rank=1)
    *rows, n = pool.of(x)
    if not n or 0 in rows:
        raise UnfitError
    return (x, pool.shaped(tuple(rows), "i32", 0, n)), {
        "reduction": pool.one(("mean", "sum", "none")),
        "label_smoothing": pool.one((0.0, 0.0, 0.25)),
        "ignore_index": pool.one((None, None, pool.below(n))),
    }


def _cross_entropy(torch: Any, x: Any, t: Any, reduction: str, label_smoothing: float, ignore_index: Any) -> Any:
    y = torch.nn.functional.cross_entropy(
        x.reshape(-1, x.shape[-1]), t.reshape(-1).long(), reduction=reduction, label_smoothing=label_smoothing,
        ignore_index=-100 if ignore_index is None else ignore_index)  # fmt: skip
    return y.reshape(t.shape) if reduction == "none" else y


def _pair(pool: Pool) -> Drawn:
    x = pool.pick(rank=1)
    if 0 in pool.of(x):
        raise UnfitError
    return (x, pool.shaped(pool.of(x))), {"reduction": pool.one(("mean", "sum", "none"))}


def _attention(pool: Pool) -> Drawn:
    b, n, m, d, e = (pool.one((1, 2, 3)), *(pool.one((1, 2, 3, 5, 7, 9, 17)) for _ in range(4)))
    causal = bool(pool.below(2))
    m = n if causal else m
    return (pool.shaped((b, n, d)), pool.shaped((b, m, d)), pool.shaped((b, m, e))), {"causal": causal}


def _norm(torch: Any, name: str, x: Any, g: Any) -> Any:
    return getattr(torch.nn.functional, name)(x, (x.shape[-1],), g, eps=1e-3)


def _layer_norm(torch: Any, x: Any, g: Any) -> Any:
    """By its formula: second derivatives of PyTorch 2.13's own are wrong."""
    centred = x - torch.mean(x, -1, keepdim=True)
    return centred * torch.rsqrt(torch.mean(centred**2, -1, keepdim=True) + 1e-3) * g


def _jax_softmax(name: str) -> Any:
    return lambda jax, x, axis: getattr(jax.nn, name)(x, axis)


register(
    *(
        Op(n, _choice if n in ("max", "min", "logsumexp", "mean") else _fold,
           lambda tg, x, axis, keepdims, n=n: getattr(tg, n)(x, axis=axis, keepdims=keepdims), _torch_fold(t),
           None if n == "logsumexp" else
           lambda jax, x, axis, keepdims, n=n: getattr(jax.numpy, n)(x, axis=axis, keepdims=keepdims), weight=5)
        for n, t in FOLDS.items()
    ),
    Op("var", _var, lambda tg, x, axis, keepdims, ddof: tg.var(x, axis=axis, keepdims=keepdims, ddof=ddof),
       lambda torch, x, axis, keepdims, ddof: torch.var(x, _dims(x, axis), correction=ddof, keepdim=keepdims),
       lambda jax, x, axis, keepdims, ddof: jax.numpy.var(x, axis=axis, keepdims=keepdims, ddof=ddof)),
    Op("prod", _prod, lambda tg, x, axis, keepdims: tg.prod(x, axis=axis, keepdims=keepdims), _torch_prod,
       lambda jax, x, axis, keepdims: jax.numpy.prod(x, axis=axis, keepdims=keepdims)),
    *(
        Op(n, _truths, lambda tg, x, axis, keepdims, n=n: getattr(tg, n)(x, axis=axis, keepdims=keepdims),
           _torch_truth(n), lambda jax, x, axis, keepdims, n=n: getattr(jax.numpy, n)(x, axis=axis, keepdims=keepdims))
        for n in ("any", "all")
    ),
    *(
        Op(f"int_{n}", _int_fold, lambda tg, x, axis, keepdims, n=n: getattr(tg, n)(x, axis=axis, keepdims=keepdims),
           lambda torch, x, axis, keepdims, t=t: getattr(torch, t)(x, _dims(x, axis), keepdim=keepdims).int(), None)
        for n, t in (("sum", "sum"), ("max", "amax"), ("min", "amin"))
    ),
    *(
        Op(n, _position, lambda tg, x, axis, keepdims, n=n: getattr(tg, n)(x, axis=axis, keepdims=keepdims), None,
           lambda jax, x, axis, keepdims, n=n: getattr(jax.numpy, n)(x, axis=axis, keepdims=keepdims).astype("int32"))
        for n in ("argmax", "argmin")
    ),
    Op("cumsum", _cumsum, lambda tg, x, axis: tg.cumsum(x, axis), lambda torch, x, axis: torch.cumsum(x, axis),
       lambda jax, x, axis: jax.numpy.cumsum(x, axis), weight=3),
    Op("logcumsumexp", _cumsum, lambda tg, x, axis: tg.logcumsumexp(x, axis),
       lambda torch, x, axis: torch.logcumsumexp(x, axis), lambda jax, x, axis: jax.lax.cumlogsumexp(x, axis % x.ndim)),
    *(
        Op(n, _cumsum, lambda tg, x, axis, n=n: getattr(tg, n)(x, axis),
           lambda torch, x, axis, n=n: getattr(torch, n)(x, axis).values, None)
        for n in ("cummax", "cummin")
    ),
    Op("cumprod", _cumprod, lambda tg, x, axis: tg.cumprod(x, axis), lambda torch, x, axis: torch.cumprod(x, axis),
       lambda jax, x, axis: jax.numpy.cumprod(x, axis)),
    Op("std", _var, lambda tg, x, axis, keepdims, ddof: tg.std(x, axis=axis, keepdims=keepdims, ddof=ddof),
       None, None),
    *(
        Op(n, _pair, lambda tg, x, t, reduction, n=n: getattr(tg, n)(x, t, reduction),
           lambda torch, x, t, reduction, n=n: getattr(torch.nn.functional, n)(x, t, reduction=reduction), None)
        for n in ("l1_loss", "smooth_l1_loss", "huber_loss")
    ),
    Op("softmax", _softmaxes, lambda tg, x, axis: tg.softmax(x, axis),
       lambda torch, x, axis: torch.softmax(x, axis), _jax_softmax("softmax"), weight=3),
    Op("log_softmax", _softmaxes, lambda tg, x, axis: tg.log_softmax(x, axis),
       lambda torch, x, axis: torch.log_softmax(x, axis), _jax_softmax("log_softmax")),
    Op("softmax_causal", _causal, lambda tg, x: tg.softmax_causal(x),
       lambda torch, x: torch.softmax(torch.where(torch.ones(x.shape[-2:]).tril() > 0, x, -torch.inf), -1), None),
    Op("matmul", _matmul, lambda tg, a, b: tg.matmul(a, b), lambda torch, a, b: torch.matmul(a, b),
       lambda jax, a, b: jax.numpy.matmul(a, b), weight=6),
    Op("einsum", _einsum, lambda tg, *xs, spec: tg.einsum(spec, *xs), lambda torch, *xs, spec: torch.einsum(spec, *xs),
       lambda jax, *xs, spec: jax.numpy.einsum(spec, *xs), weight=4),
    Op("outer", _outer, lambda tg, a, b: tg.outer(a, b), lambda torch, a, b: torch.outer(a, b),
       lambda jax, a, b: jax.numpy.outer(a, b)),
    Op("layer_norm", _normed, lambda tg, x, g: tg.layer_norm(x, g, eps=1e-3),
       lambda torch, x, g: _layer_norm(torch, x, g), None),
    Op("rms_norm", _normed, lambda tg, x, g: tg.rms_norm(x, g, eps=1e-3),
       lambda torch, x, g: _norm(torch, "rms_norm", x, g), None),
    Op("cross_entropy", _classes, lambda tg, x, t, **how: tg.cross_entropy(x, t, **how), _cross_entropy, None),
    *(
        Op(n, _pair, lambda tg, x, t, reduction, n=n: getattr(tg, n)(x, t, reduction),
           lambda torch, x, t, reduction, n=n: getattr(torch.nn.functional, n)(x, t, reduction=reduction), None)
        for n in ("mse_loss", "binary_cross_entropy_with_logits")
    ),
    Op("attention", _attention, lambda tg, q, k, v, causal: tg.attention(q, k, v, causal=causal),
       lambda torch, q, k, v, causal: torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal),
       None),
)  # fmt: skip
