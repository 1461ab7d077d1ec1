"""Adafactor: for a matrix it keeps mean squares of rows and columns only, m + n numbers instead of m n."""

from __future__ import annotations

import math
from typing import Unpack

from tracegrad.hypers import AT_LEAST_0, POSITIVE, Range
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.optim.gradients import norm
from tracegrad.optim.optimizer import LR, Chain, Options, recipe
from tracegrad.optim.recipes import decoupled
from tracegrad.optim.scaling import running_mean
from tracegrad.optim.transform import Host, PerParameter, State, Transform
from tracegrad.prims.elementwise import maximum, minimum, pow, rsqrt, sqrt, square
from tracegrad.prims.folds import SUM

__all__ = ["adafactor", "scale_by_adafactor"]

RANGES = {"beta2_decay": Range(high=0.0), "eps1": POSITIVE, "eps2": AT_LEAST_0, "d": Range(1.0)}
EPS_F32 = 2.0**-23
ROWS = PerParameter(lambda shape: (*shape[:-1], 1) if len(shape) > 1 else None)
COLUMNS = PerParameter(lambda shape: (*shape[:-2], 1, shape[-1]) if len(shape) > 1 else None)
VECTORS = PerParameter(lambda shape: shape if len(shape) < 2 else None)


def _mean(x: Tensor, axis: int) -> Tensor:
    """Average along an axis, counted from the end, and keep the axis with length 1."""
    return bind(SUM, x, axes=(x.ndim + axis,)) * (1.0 / x.shape[axis])


def _rms(x: Tensor) -> Tensor:
    return norm(x) * (1.0 / math.sqrt(x.size))


def scale_by_adafactor(
    beta2_decay: float = -0.8, eps1: float = EPS_F32, eps2: float = 1e-3, d: float = 1.0
) -> Transform:
    """Scale the gradient g of each parameter p by running means of g^2 for rows and columns, and by the size of p.

    u  = g / sqrt(v)
    g' = u / max(1, rms(u) / d) * max(eps2, rms(p)) * min(1, 1 / (lr sqrt(step)))

    rms(x) is sqrt(mean(x^2)) over one parameter: d limits rms(u), and eps2 is the least rms(p) that counts. The
    learning rate lr multiplies g' later. `step` counts updates from 1. With s = step^beta2_decay:
    scalars and vectors: v <- (1 - s) v + s g^2
    matrices: r[i] <- (1 - s) r[i] + s mean_j(g[i, j]^2);  c[j] <- (1 - s) c[j] + s mean_i(g[i, j]^2);
              v[i, j] = r[i] c[j] / max(mean(r), eps1)
    more than two axes: each matrix of the last two axes, with an r and c of its own
    The divisor sqrt(v) is at least eps1. As torch.optim.Adafactor (Shazeer & Stern 2018).

    Raises InputError unless all of these hold: beta2_decay < 0, eps1 > 0, eps2 >= 0, d >= 1.

    >>> optim.custom(optim.scale_by_adafactor(eps1=1e-7), lr=1e-2)
    optim.custom(lr=0.01, beta2_decay=-0.8, eps1=1e-07, eps2=0.001, d=1.0)
    """

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        arena = host.arena
        layouts = {name: kept.layout(arena) for name, kept in kinds.items()}
        new = {name: layout.views(state[name]) for name, layout in layouts.items()}
        eps = host.hyper("eps1")
        directions: dict[str, Tensor] = {}
        for slot in arena.slots:
            step = host.steps_of(slot)
            share = pow(step, host.hyper("beta2_decay"))
            x = arena.view(g, slot)
            for name, axis in (("rows", -1), ("columns", -2), ("vectors", None)):
                if slot.name in new[name]:
                    squares = square(x) if axis is None else _mean(square(x), axis)
                    new[name][slot.name] = running_mean(new[name][slot.name], squares, share)
            if slot.name in new["rows"]:
                rows = new["rows"][slot.name]
                v = rows * new["columns"][slot.name] / maximum(_mean(rows, -2), eps)
            else:
                v = new["vectors"][slot.name]
            u = x * rsqrt(maximum(v, eps * eps))
            scale = maximum(_rms(arena.view(p, slot)), host.hyper("eps2"))
            rate = minimum(1.0 / (sqrt(step) * maximum(host.hyper("lr"), 1e-20)), 1.0)
            directions[slot.name] = u * (scale / maximum(_rms(u) / host.hyper("d"), 1.0)) * rate
        return arena.pack(directions), {name: layouts[name].pack(new[name]) for name in kinds}

    kinds = {"rows": ROWS, "columns": COLUMNS, "vectors": VECTORS}
    return Transform.made(kinds, update, ranges=RANGES, counts=True, beta2_decay=beta2_decay, eps1=eps1, eps2=eps2, d=d)


@recipe("weight_decay", flat=False)
def adafactor(
    lr: LR = 0.01,
    beta2_decay: float = -0.8,
    eps1: float = EPS_F32,
    eps2: float = 1e-3,
    d: float = 1.0,
    weight_decay: float = 0.0,
    **options: Unpack[Options],
) -> Chain:
    """Make an Adafactor optimizer: p <- (1 - lr weight_decay) p - lr g', where `scale_by_adafactor` gives g'.

    `scale_by_adafactor` explains beta2_decay, eps1, eps2 and d. The learning rate is at most 1 / sqrt(step). The
    state has m + n numbers for a matrix [m, n], and n for a vector [n].
    weight_decay: does not apply to biases and gains; see `nn.decays`.
    lr, options, errors: see `Options`. As torch.optim.Adafactor.

    >>> optim.adafactor(lr=1e-2, eps1=1e-7)
    optim.adafactor(lr=0.01, beta2_decay=-0.8, eps1=1e-07, eps2=0.001, d=1.0)
    """
    return [scale_by_adafactor(beta2_decay, eps1, eps2, d), *decoupled(weight_decay, options)]
