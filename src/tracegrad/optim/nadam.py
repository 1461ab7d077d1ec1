"""NAdam: Adam with Nesterov's momentum, whose factor grows over the first steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Unpack

from tracegrad.hypers import AT_LEAST_0, RANGES
from tracegrad.ir import Tensor, bind
from tracegrad.optim.host import Host
from tracegrad.optim.optimizer import LR, Chain, Options, recipe, with_decay
from tracegrad.optim.scaling import running_mean
from tracegrad.optim.transform import PerParameter, State, Transform
from tracegrad.prims.elementwise import exp, sqrt, square
from tracegrad.prims.folds import MIN
from tracegrad.prims.views import broadcast_to, reshape

DECAY = {"momentum_decay": AT_LEAST_0}
LOG_096 = math.log(0.96)
PRODUCT = PerParameter(lambda _: (1,), 1.0)  # one number per parameter, so that freezing keeps it


def scale_by_nadam(
    beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, momentum_decay: float = 4e-3
) -> Transform:
    """Give (mu' m / (1 - M mu') + (1 - mu) g / (1 - M)) / (sqrt(v_hat) + eps) (Dozat 2016). As torch.optim.NAdam.

    mu = beta1 (1 - 0.96^(step momentum_decay) / 2), mu' is the mu of the next step, M is the product of all mu so far.
    m and v are the means of Adam.

    >>> optimizer = optim.custom(optim.scale_by_nadam(), lr=2e-3)
    """

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        share = host.complement("beta1")
        m = running_mean(state["m"], g, share)
        v = running_mean(state["v"], square(g), host.complement("beta2"))
        rate = host.hyper("momentum_decay") * LOG_096

        def factor(step: Tensor) -> Tensor:
            return (1.0 - share) * (1.0 - 0.5 * exp(step * rate))

        mu, ahead = factor(host.steps), factor(host.steps + 1.0)
        product, kept = _products(state["product"], host, factor)
        ahead_share, own_share = ahead / (1.0 - product * ahead), (1.0 - mu) / (1.0 - product)
        v_hat = v * (1 / host.bias_correction("beta2"))
        direction = (m * ahead_share + g * own_share) / (sqrt(v_hat) + host.hyper("eps"))
        return direction, {"m": m, "v": v, "product": kept}

    return Transform.made(
        {"m": 0.0, "v": 0.0, "product": PRODUCT}, update, ranges={**RANGES, **DECAY}, counts=True,
        beta1=beta1, beta2=beta2, eps=eps, momentum_decay=momentum_decay,
    )  # fmt: skip


def _products(old: Tensor, host: Host, factor: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return M after this step, f32[] or, if parameters count their own steps, f32[n]; and the new state."""
    if host.missed is None:  # all numbers are equal but those of holes, which stay 1
        product = reshape(bind(MIN, old, axes=(0,)), ()) * factor(host.step)
        return product, broadcast_to(product, old.shape)
    layout, slots = PRODUCT.layout(host.arena), host.arena.slots
    parts = layout.views(old)
    new = {slot.name: parts[slot.name] * factor(host.steps_of(slot)) for slot in slots}
    spread = {s.name: broadcast_to(reshape(new[s.name], (1,) * len(s.shape)), s.shape) for s in slots}
    return host.arena.pack(spread), layout.pack(new)


@recipe("weight_decay", flat=False, shaping=("decoupled_weight_decay",))
def nadam(
    lr: LR = 2e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum_decay: float = 4e-3,
    decoupled_weight_decay: bool = False,
    **options: Unpack[Options],
) -> Chain:
    """Make a NAdam optimizer: Adam with Nesterov's momentum, see `scale_by_nadam`. As torch.optim.NAdam.

    decoupled_weight_decay: decay as AdamW, p <- (1 - lr weight_decay) p; else weight_decay is an L2 penalty.
    options, errors: see `Options`.

    >>> optimizer = optim.nadam(lr=2e-3)
    """
    core = scale_by_nadam(beta1, beta2, eps, momentum_decay)
    return with_decay(core, weight_decay, options, decoupled_weight_decay)
