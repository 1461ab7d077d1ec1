"""Adagrad: each element's rate falls with the squares of all its gradients so far."""

from __future__ import annotations

from typing import Unpack

from tracegrad.hypers import AT_LEAST_0, checked
from tracegrad.ir import Tensor
from tracegrad.optim.host import Host
from tracegrad.optim.optimizer import LR, Chain, Options, decoupled, recipe
from tracegrad.optim.transform import State, Transform
from tracegrad.prims.elementwise import sqrt, square

RANGES = {"lr_decay": AT_LEAST_0, "eps": AT_LEAST_0}


def scale_by_adagrad(lr_decay: float = 0.0, initial_accumulator_value: float = 0.0, eps: float = 1e-10) -> Transform:
    """Give g / (sqrt(sum) + eps) / (1 + (step - 1) lr_decay), sum <- sum + g^2. PyTorch's Adagrad (Duchi et al. 2011).

    >>> optimizer = optim.custom(optim.scale_by_adagrad(), lr=1e-2)
    """

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        total = state["sum"] + square(g)
        later = 1.0 + (host.steps - 1.0) * host.hyper("lr_decay")
        return g / (sqrt(total) + host.hyper("eps")) / later, {"sum": total}

    fill = checked("initial_accumulator_value", initial_accumulator_value, AT_LEAST_0, "adagrad")
    return Transform.made({"sum": fill}, update, ranges=RANGES, counts=True, lr_decay=lr_decay, eps=eps)


@recipe("weight_decay")
def adagrad(
    lr: LR = 0.01,
    lr_decay: float = 0.0,
    weight_decay: float = 0.0,
    initial_accumulator_value: float = 0.0,
    eps: float = 1e-10,
    **options: Unpack[Options],
) -> Chain:
    """Make an Adagrad optimizer: p <- p - lr * g / (sqrt(sum of g^2) + eps), see `scale_by_adagrad`.

    weight_decay: an L2 penalty. options, errors: see `Options`. As torch.optim.Adagrad.

    >>> optimizer = optim.adagrad(lr=1e-2)
    """
    return [*decoupled(weight_decay, options), scale_by_adagrad(lr_decay, initial_accumulator_value, eps)]
