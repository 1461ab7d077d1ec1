"""Adadelta: steps in the unit of the parameters, from running means of squares of gradients and of steps."""

from __future__ import annotations

from typing import Unpack

from tracegrad.hypers import AT_LEAST_0, SHARE
from tracegrad.ir import Tensor
from tracegrad.optim.host import Host
from tracegrad.optim.optimizer import LR, Chain, Options, decoupled, recipe
from tracegrad.optim.scaling import running_mean
from tracegrad.optim.transform import State, Transform
from tracegrad.prims.elementwise import sqrt, square

RANGES = {"rho": SHARE, "eps": AT_LEAST_0}


def scale_by_adadelta(rho: float = 0.9, eps: float = 1e-6) -> Transform:
    """Give d = sqrt(u + eps) / sqrt(v + eps) g, with running means v of g^2 and u of d^2 (Zeiler 2012, algorithm 1).

    v includes this step, u does not. As torch.optim.Adadelta.

    >>> optimizer = optim.custom(optim.scale_by_adadelta(), lr=1.0)
    """

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        share, eps_ = host.complement("rho"), host.hyper("eps")
        v = running_mean(state["v"], square(g), share)
        d = sqrt(state["u"] + eps_) / sqrt(v + eps_) * g
        return d, {"v": v, "u": running_mean(state["u"], square(d), share)}

    return Transform.made({"v": 0.0, "u": 0.0}, update, ranges=RANGES, rho=rho, eps=eps)


@recipe("weight_decay")
def adadelta(
    lr: LR = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0, **options: Unpack[Options]
) -> Chain:
    """Make an Adadelta optimizer: p <- p - lr * d, see `scale_by_adadelta`. As torch.optim.Adadelta.

    weight_decay: an L2 penalty. options, errors: see `Options`.

    >>> optimizer = optim.adadelta(lr=1.0)
    """
    return [*decoupled(weight_decay, options), scale_by_adadelta(rho, eps)]
