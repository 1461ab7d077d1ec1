"""LAMB: AdamW with steps scaled to the length of each parameter, for large batches."""

from __future__ import annotations

from typing import Unpack

from tracegrad.ir import Tensor
from tracegrad.optim.gradients import norm
from tracegrad.optim.optimizer import LR, Chain, Options, recipe
from tracegrad.optim.scaling import add_decayed_weights, scale_by_adam
from tracegrad.optim.transform import Transform
from tracegrad.prims.elementwise import where


def scale_by_trust_ratio() -> Transform:
    """Give g norm(p) / norm(g) for each parameter; g if one of the norms is 0 (You et al. 2020).

    >>> optimizer = optim.custom(optim.chain(optim.scale_by_adam(), optim.scale_by_trust_ratio()), lr=1e-3)
    """

    def trusted(g: Tensor, p: Tensor) -> Tensor:
        step, own = norm(g), norm(p)
        known = (step > 0.0) & (own > 0.0)
        return g * where(known, own / where(known, step, 1.0), 1.0)

    return Transform({}, lambda g, p, state, host: (host.arena.each(trusted, g, p), {}))


@recipe()
def lamb(
    lr: LR = 1e-3,
    weight_decay: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-6,
    **options: Unpack[Options],
) -> Chain:
    """Make a LAMB optimizer (You et al. 2020, algorithm 2): p <- p - lr norm(p) / norm(u) u, for each parameter.

    u = m_hat / (sqrt(v_hat) + eps) + weight_decay p. options, errors: see `Options`.

    >>> optimizer = optim.lamb(lr=1e-3)
    """
    return [scale_by_adam(beta1, beta2, eps), add_decayed_weights(weight_decay), scale_by_trust_ratio()]
