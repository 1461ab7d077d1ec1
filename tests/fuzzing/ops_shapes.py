"""Steps that move elements: views, slices with steps, pads, concatenations, gathers and scatters."""

from __future__ import annotations

import math
from typing import Any

from fuzzing.drawing import Pool, UnfitError
from fuzzing.table import Drawn, Op, register


def any_dtype(pool: Pool, rank: int = 1) -> int:
    """Mostly f32, sometimes an integer or boolean value."""
    if pool.chance(6):
        found = pool.find(lambda k: pool.dtype(k) != "f32" and len(pool.of(k)) >= rank)
        if found is not None:
            return found
    return pool.pick(rank=rank)


def _factors(n: int) -> list[int]:
    found, p = [], 2
    while n > 1:
        while n % p == 0:
            found.append(p)
            n //= p
        p += 1
    return found


def _reshape(pool: Pool) -> Drawn:
    x = any_dtype(pool, 0)
    shape = pool.of(x)
    if 0 in shape:
        raise UnfitError
    parts = [1] * pool.between(0, 3) if math.prod(shape) == 1 else [1] * pool.between(1, 4)
    for p in _factors(math.prod(shape)):
        parts[pool.below(len(parts))] *= p
    return (x,), {"shape": parts}


def _permute(pool: Pool) -> Drawn:
    x = any_dtype(pool)
    return (x,), {"axes": [int(a) for a in pool.rng.permutation(len(pool.of(x)))]}


def _broadcast(pool: Pool) -> Drawn:
    x = any_dtype(pool, 0)
    shape = [n if n != 1 else pool.one((1, 2, 3, 5)) for n in pool.of(x)]
    shape = [pool.one((1, 2, 3, 7)) for _ in range(pool.below(2))] + shape
    return (x,), {"shape": shape}


def _slices(pool: Pool) -> Drawn:
    """An index of slices with steps of both signs, integers, None and an ellipsis."""
    x = any_dtype(pool)
    index: list[Any] = []
    for n in pool.of(x):
        kind = pool.below(8)
        if kind == 0 and n:
            index.append(pool.between(-n, n - 1))
        elif kind == 1:
            index.append([None, None, pool.one((-1, 2, -2, 3))])
        elif kind < 5:
            ends = [pool.one((None, pool.between(-n - 1, n + 1))) for _ in range(2)]
            index.append([*ends, pool.one((None, 1, 2, -1, -3))])
        else:
            index.append([None, None, None])
        if pool.chance(12):
            index.append("new")
    return (x,), {"index": index}


def _index(index: Any) -> tuple[Any, ...]:
    return tuple(None if i == "new" else slice(*i) if isinstance(i, tuple) else i for i in index)


def _slices_torch(torch: Any, x: Any, index: Any) -> Any:
    """PyTorch has no negative steps: it picks elements."""
    axis = 0
    for i in _index(index):
        if i is None:
            x, axis = x.unsqueeze(axis), axis + 1
        elif isinstance(i, int):
            x = x.select(axis, i)
        else:
            x = x.index_select(axis, torch.arange(x.shape[axis])[list(range(*i.indices(x.shape[axis])))])
            axis += 1
    return x


def _empty(pool: Pool) -> Drawn:
    """A value without elements."""
    x = pool.pick(rank=1)
    index: list[Any] = [[None, None, None] for _ in pool.of(x)]
    index[pool.below(len(index))] = [0, 0, None]
    return (x,), {"index": index}


def _narrow(pool: Pool) -> Drawn:
    x = any_dtype(pool)
    axis = pool.axis(len(pool.of(x)))
    n = pool.of(x)[axis]
    start = pool.between(0, n)
    return (x,), {"axis": axis, "start": start, "length": pool.between(0 if pool.chance(8) else min(1, n - start),
                                                                       n - start)}  # fmt: skip


def _joined(pool: Pool) -> Drawn:
    """Values that differ in one axis only."""
    x = any_dtype(pool)
    shape, dtype = pool.of(x), pool.dtype(x)
    axis = pool.axis(len(shape))
    at = axis % len(shape)
    values = [x]
    for _ in range(pool.between(1, 3)):
        other = pool.find(
            lambda k: (
                pool.dtype(k) == dtype
                and len(pool.of(k)) == len(shape)
                and all(n == m for d, (n, m) in enumerate(zip(pool.of(k), shape)) if d != at)
            )
        )
        if (other is None or other == x) and pool.fresh and dtype == "f32" and 0 not in shape:
            other = pool.shaped((*shape[:at], pool.size(), *shape[at + 1 :]), dtype)
        values.append(x if other is None else other)
    return tuple(pool.rng.permutation(values).tolist()), {"axis": axis}


def _stack(pool: Pool) -> Drawn:
    x = any_dtype(pool, 0)
    shape, dtype = pool.of(x), pool.dtype(x)
    other = pool.find(lambda k: pool.of(k) == shape and pool.dtype(k) == dtype)
    return (x, x if other is None else other), {"axis": pool.axis(len(shape) + 1)}


def _pad(pool: Pool) -> Drawn:
    x = pool.pick(rank=1)
    widths = [[pool.one((0, 0, 1, 2, 3)), pool.one((0, 0, 1, 2, 5))] for _ in pool.of(x)]
    return (x,), {"widths": widths, "value": pool.one((0.0, 0.0, 3.5, -1.0))}


def _pad_torch(torch: Any, x: Any, widths: Any, value: float) -> Any:
    flat = [w for pair in reversed(widths) for w in pair]
    return torch.nn.functional.pad(x, flat, value=value)


def _flip(pool: Pool) -> Drawn:
    x = any_dtype(pool)
    rank = len(pool.of(x))
    return (x,), {"axis": [a for a in range(rank) if pool.chance(2)] or [rank - 1]}


def _roll(pool: Pool) -> Drawn:
    x = pool.pick(rank=1)
    axis = pool.axis(len(pool.of(x)))
    n = pool.of(x)[axis]
    if n < 2:
        raise UnfitError
    return (x,), {"shift": pool.between(1, n - 1), "axis": axis, "n": n}


def _rolled(tg: Any, x: Any, shift: int, axis: int, n: int) -> Any:
    """np.roll, by two slices that are put together the other way round."""
    return tg.concat([tg.narrow(x, axis, n - shift, shift), tg.narrow(x, axis, 0, n - shift)], axis)


def _repeat(pool: Pool) -> Drawn:
    x = any_dtype(pool)
    return (x,), {"repeats": pool.one((2, 3)), "axis": pool.axis(len(pool.of(x)))}


def _axis(pool: Pool) -> Drawn:
    x = any_dtype(pool)
    return (x,), {"axis": pool.between(0, len(pool.of(x)))}


def _two_axes(pool: Pool) -> Drawn:
    x = any_dtype(pool)
    rank = len(pool.of(x))
    return (x,), {"a": pool.axis(rank), "b": pool.axis(rank)}


def indices(pool: Pool, n: int, shape: tuple[int, ...] | None = None) -> int:
    """i32 of which every element is below `n`."""
    if not n:
        raise UnfitError

    def fits(k: int) -> bool:
        known = pool.known[k]
        alike = shape is None or known.v.shape == shape
        return pool.dtype(k) == "i32" and alike and bool(known.v.size) and not known.e.any() and bool(
            known.v.min() >= 0 and known.v.max() < n
        )  # fmt: skip

    found = pool.find(fits)
    if found is not None and not pool.chance(3):
        return found
    return pool.shaped(pool.shape(pool.one((1, 1, 2))) if shape is None else shape, "i32", 0, n)


def _take(pool: Pool) -> Drawn:
    x = pool.pick(rank=1)
    axis = pool.axis(len(pool.of(x)))
    return (x, indices(pool, pool.of(x)[axis])), {"axis": axis}


def _take_torch(torch: Any, x: Any, i: Any, axis: int) -> Any:
    axis %= x.ndim
    return x[(slice(None),) * axis + (i.long(),)]


def _along(pool: Pool) -> Drawn:
    x = pool.pick(rank=1)
    shape = pool.of(x)
    axis = pool.axis(len(shape))
    at = axis % len(shape)
    return (x, indices(pool, shape[at], (*shape[:at], pool.size(), *shape[at + 1 :]))), {"axis": axis}


def _embedding(pool: Pool) -> Drawn:
    w = pool.find(lambda k: pool.dtype(k) == "f32" and len(pool.of(k)) == 2)
    w = pool.new("f32", pool.shape(2)) if w is None else w
    return (w, indices(pool, pool.of(w)[0])), {}


def _scatter(pool: Pool) -> Drawn:
    x = pool.pick(rank=1)
    shape = pool.of(x)
    axis = pool.axis(len(shape))
    at = axis % len(shape)
    updates = (*shape[:at], pool.size(), *shape[at + 1 :])
    return (x, indices(pool, shape[at], updates), pool.shaped(updates)), {"axis": axis}


def _scatter_rows(pool: Pool) -> Drawn:
    x = pool.pick(rank=1)
    n, *rest = pool.of(x)
    i = indices(pool, n, (pool.size(),))
    return (x, i, pool.shaped((*pool.of(i), *rest))), {}


def _one_hot(pool: Pool) -> Drawn:
    n = pool.size()
    return (indices(pool, n),), {"n": n}


register(
    Op("reshape", _reshape, lambda tg, x, shape: tg.reshape(x, shape), lambda torch, x, shape: x.reshape(shape),
       lambda jax, x, shape: x.reshape(shape), weight=4),
    Op("permute", _permute, lambda tg, x, axes: tg.permute(x, axes), lambda torch, x, axes: x.permute(axes),
       lambda jax, x, axes: x.transpose(axes), weight=4),
    Op("swapaxes", _two_axes, lambda tg, x, a, b: tg.swapaxes(x, a, b), lambda torch, x, a, b: x.swapaxes(a, b),
       lambda jax, x, a, b: x.swapaxes(a, b)),
    Op("broadcast_to", _broadcast, lambda tg, x, shape: tg.broadcast_to(x, shape),
       lambda torch, x, shape: x.broadcast_to(shape), lambda jax, x, shape: jax.numpy.broadcast_to(x, shape), weight=3),
    Op("expand_dims", _axis, lambda tg, x, axis: tg.expand_dims(x, axis), lambda torch, x, axis: x.unsqueeze(axis),
       lambda jax, x, axis: jax.numpy.expand_dims(x, axis)),
    Op("slices", _slices, lambda tg, x, index: x[_index(index)], _slices_torch,
       lambda jax, x, index: x[_index(index)], weight=10),
    Op("empty", _empty, lambda tg, x, index: x[_index(index)], _slices_torch,
       lambda jax, x, index: x[_index(index)], weight=1),
    Op("narrow", _narrow, lambda tg, x, axis, start, length: tg.narrow(x, axis, start, length),
       lambda torch, x, axis, start, length: x.narrow(axis, start, length), None, weight=4),
    Op("concat", _joined, lambda tg, *xs, axis: tg.concat(xs, axis), lambda torch, *xs, axis: torch.cat(xs, axis),
       lambda jax, *xs, axis: jax.numpy.concatenate(xs, axis), weight=8),
    Op("stack", _stack, lambda tg, *xs, axis: tg.stack(xs, axis), lambda torch, *xs, axis: torch.stack(xs, axis),
       lambda jax, *xs, axis: jax.numpy.stack(xs, axis), weight=3),
    Op("pad", _pad, lambda tg, x, widths, value: tg.pad(x, widths, value), _pad_torch,
       lambda jax, x, widths, value: jax.numpy.pad(x, widths, constant_values=value), weight=8),
    Op("flip", _flip, lambda tg, x, axis: tg.flip(x, axis), lambda torch, x, axis: torch.flip(x, axis),
       lambda jax, x, axis: jax.numpy.flip(x, axis), weight=4),
    Op("roll", _roll, _rolled, lambda torch, x, shift, axis, n: torch.roll(x, shift, axis),
       lambda jax, x, shift, axis, n: jax.numpy.roll(x, shift, axis), weight=4),
    Op("repeat", _repeat, lambda tg, x, repeats, axis: tg.repeat(x, repeats, axis),
       lambda torch, x, repeats, axis: torch.repeat_interleave(x, repeats, axis),
       lambda jax, x, repeats, axis: jax.numpy.repeat(x, repeats, axis)),
    Op("take", _take, lambda tg, x, i, axis: tg.take(x, i, axis), _take_torch,
       lambda jax, x, i, axis: jax.numpy.take(x, i, axis), weight=4),
    Op("take_along_axis", _along, lambda tg, x, i, axis: tg.take_along_axis(x, i, axis),
       lambda torch, x, i, axis: torch.take_along_dim(x, i.long(), axis),
       lambda jax, x, i, axis: jax.numpy.take_along_axis(x, i, axis), weight=3),
    Op("embedding", _embedding, lambda tg, w, i: tg.embedding(w, i),
       lambda torch, w, i: torch.nn.functional.embedding(i.long(), w), lambda jax, w, i: w[i], weight=3),
    Op("scatter_add", _scatter, lambda tg, x, i, u, axis: tg.scatter_add(x, i, u, axis),
       lambda torch, x, i, u, axis: x.scatter_add(axis, i.long(), u), None, weight=3),
    Op("scatter_rows", _scatter_rows, lambda tg, x, i, u: tg.scatter_add(x, i, u),
       lambda torch, x, i, u: x.index_add(0, i.long(), u), lambda jax, x, i, u: x.at[i].add(u), weight=3),
    Op("one_hot", _one_hot, lambda tg, i, n: tg.one_hot(i, n),
       lambda torch, i, n: torch.nn.functional.one_hot(i.long(), n).double(),
       lambda jax, i, n: jax.nn.one_hot(i, n)),
    Op("tril", lambda p: ((p.pick(rank=2),), {"k": p.between(-2, 2)}), lambda tg, x, k: tg.tril(x, k),
       lambda torch, x, k: torch.tril(x, k), lambda jax, x, k: jax.numpy.tril(x, k)),
)  # fmt: skip
