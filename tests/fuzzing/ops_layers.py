"""Layers of `nn` whose weights are arguments, and `tg.linalg`, as steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from fuzzing.drawing import Pool
from fuzzing.table import Drawn, NoCounterpartError, Op, register
from tracegrad import nn
from tracegrad.nn.module import named_parameters

ORDERS = (1, 2, 3, 5, 7, 15, 16, 17, 33)  # of matrices: factors go by blocks of 16
RECURRENT = {"RNN": "RNN", "GRU": "GRU", "LSTM": "LSTM"}
Choice = tuple[tuple[int, ...], dict[str, Any], tuple[int, ...]]  # arguments of a layer, and the shape of its input


def _recurrent(pool: Pool) -> Choice:
    taken, hidden, one_way = pool.one((1, 3, 5)), pool.one((1, 2, 5, 7)), not pool.chance(4)
    return (taken, hidden), {} if one_way else {"bidirectional": True}, (pool.one((1, 3)), pool.one((1, 2, 5)), taken)


def _attention(pool: Pool) -> Choice:
    heads, width = pool.one((1, 2, 3)), pool.one((1, 2, 5))
    how = {"bias": False, "causal": bool(pool.below(2)), "kv_heads": pool.one((1, heads))}
    return (heads * width, heads), how, (pool.one((1, 2)), pool.one((1, 3, 7, 17)), heads * width)


def _grouped(pool: Pool) -> Choice:
    groups, each = pool.one((1, 2, 3)), pool.one((1, 2, 3))
    return (groups, groups * each), {}, (pool.one((1, 2)), groups * each, pool.one((2, 3, 7)), pool.one((1, 5)))


def _same(pool: Pool) -> Choice:
    groups, size, dilation = pool.one((1, 2)), pool.one((1, 3, 5)), pool.one((1, 1, 2))
    how = {"padding": "same", "dilation": dilation, "groups": groups}
    return (2 * groups, 3 * groups, size), how, (pool.one((1, 2)), 2 * groups, pool.one((5, 9, 16)))


KINDS: dict[str, Callable[[Pool], Choice]] = {
    "RNN": _recurrent, "GRU": _recurrent, "LSTM": _recurrent, "MultiheadAttention": _attention, "GroupNorm": _grouped,
    "Conv1d": _same,
}  # fmt: skip


@cache
def made(kind: str, taken: tuple[int, ...], how: tuple[tuple[str, Any], ...]) -> Any:
    """A layer. A thread of its own has no trace, in which no parameter can be made."""
    with ThreadPoolExecutor(1) as outside:
        return outside.submit(getattr(nn, kind), *taken, **dict(how)).result()


def _layer(pool: Pool) -> Drawn:
    """A layer, and a value for each of its parameters. Sequences of a recurrent layer can have lengths."""
    kind = pool.one(sorted(KINDS))
    taken, how, shape = KINDS[kind](pool)
    attrs: dict[str, Any] = {"kind": kind, "taken": taken, "how": sorted(how.items()), "lengths": None}
    if kind in RECURRENT and pool.chance(3):
        attrs["lengths"] = [pool.between(1, shape[1]) for _ in range(shape[0])]
    parameters = named_parameters(getattr(nn, kind)(*taken, **how))
    attrs["names"] = list(parameters)
    return (pool.shaped(shape), *(pool.shaped(p.shape, low=-0.5, high=0.5) for p in parameters.values())), attrs


def _applied(
    tg: Any, x: Any, *weights: Any, kind: str, taken: Any, how: Any, lengths: Any, names: Any, layer: Any = None
) -> Any:
    """layer: what stands for it in a text."""
    layer = tg.nn.bound(layer or made(kind, taken, how), dict(zip(names, weights)))
    if kind not in RECURRENT:
        return layer(x)
    return (layer(x) if lengths is None else layer(x, lengths=tg.asarray(list(lengths), tg.i32)))[0]


def _by_torch(torch: Any, x: Any, *weights: Any, kind: str, taken: Any, how: Any, lengths: Any, names: Any) -> Any:
    """PyTorch's recurrent layers, norms of groups and convolutions."""
    if kind == "GroupNorm":
        return torch.nn.functional.group_norm(x, taken[0], *weights)
    if kind == "Conv1d":
        named = dict(how)
        return torch.nn.functional.conv1d(x, *weights, 1, "same", named["dilation"], named["groups"])
    if kind not in RECURRENT or lengths is not None:
        raise NoCounterpartError(kind)
    layer = getattr(torch.nn, kind)(*taken, batch_first=True, dtype=x.dtype, **dict(how))
    theirs = [name for name, _ in layer.named_parameters()]  # both go cell by cell, in the same order
    return torch.func.functional_call(layer, dict(zip(theirs, weights)), (x,))[0]


def _matrix(pool: Pool) -> tuple[int, tuple[int, ...]]:
    n, batch = pool.one(ORDERS), pool.one(((), (), (2,), (1, 3)))
    return pool.shaped((*batch, n, n), low=-1.0, high=1.0), (*batch, n)


def _positive(pool: Pool) -> Drawn:
    x, _ = _matrix(pool)
    return (x,), {}


def _equations(pool: Pool) -> Drawn:
    x, rows = _matrix(pool)
    return (x, pool.shaped((*rows, pool.one((1, 2, 3, 17))))), {"how": pool.one(("solve", "lower", "upper"))}


def _spd(lib: Any, x: Any) -> Any:
    """A positive definite matrix, far from singular."""
    n = x.shape[-1]
    return lib.matmul(x, lib.swapaxes(x, -1, -2)) * (1 / n) + lib.eye(n)


def _regular(lib: Any, x: Any) -> Any:
    n = x.shape[-1]
    return x * (1 / n) + lib.eye(n) * math.sqrt(2)


def _solved(tg: Any, x: Any, b: Any, how: str) -> Any:
    a = _regular(tg, x)
    return tg.linalg.solve(a, b) if how == "solve" else tg.linalg.solve_triangular(a, b, upper=how == "upper")


def _solved_torch(torch: Any, x: Any, b: Any, how: str) -> Any:
    a = _regular(_Doubles(torch), x)
    if how == "solve":
        return torch.linalg.solve(a, b)
    return torch.linalg.solve_triangular((torch.triu if how == "upper" else torch.tril)(a), b, upper=how == "upper")


class _Doubles:
    """PyTorch, whose unit matrix is in float64 as its other values."""

    def __init__(self, torch: Any) -> None:
        self.matmul, self.swapaxes = torch.matmul, torch.swapaxes
        self.eye = lambda n: torch.eye(n, dtype=torch.float64)


register(
    Op("layer", _layer, _applied, _by_torch, None, weight=8),
    Op("cholesky", _positive, lambda tg, x: tg.linalg.cholesky(_spd(tg, x)),
       lambda torch, x: torch.linalg.cholesky(_spd(_Doubles(torch), x)), None),
    Op("inv", _positive, lambda tg, x: tg.linalg.inv(_regular(tg, x)),
       lambda torch, x: torch.linalg.inv(_regular(_Doubles(torch), x)), None),
    Op("solve", _equations, _solved, _solved_torch, None, weight=3),
)  # fmt: skip
