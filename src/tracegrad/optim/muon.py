"""Muon: momentum with orthogonalized matrices, and Adam for all other parameters."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from tracegrad.errors import InputError
from tracegrad.hypers import whole
from tracegrad.ir import Tensor, bind
from tracegrad.optim.arena import Slot
from tracegrad.optim.gradients import norm
from tracegrad.optim.scaling import adam_direction, moments, running_mean
from tracegrad.optim.transform import Host, State, Transform
from tracegrad.prims.elementwise import maximum
from tracegrad.prims.folds import MATMUL
from tracegrad.prims.views import permute

# Keller Jordan's quintic, chosen for the largest slope at zero: singular values end between about 0.7 and 1.2
COEFFICIENTS = (3.4445, -4.7750, 2.0315)

AdjustLR = Literal["original", "match_rms_adamw"]
Filter = Callable[[str], bool]


def orthogonalize(x: Tensor, steps: int, eps: Tensor) -> Tensor:
    """Return the nearest matrix with singular values of about 1, by `steps` Newton-Schulz iterations. x: f32[m, n]."""
    a, b, c = COEFFICIENTS
    tall = x.shape[0] > x.shape[1]
    x = permute(x, (1, 0)) if tall else x  # the Gram matrix of the shorter side
    x = x / maximum(norm(x), eps)
    for _ in range(steps):
        gram = bind(MATMUL, x, permute(x, (1, 0)))
        x = a * x + bind(MATMUL, b * gram + c * bind(MATMUL, gram, gram), x)
    return permute(x, (1, 0)) if tall else x


def lr_factor(shape: tuple[int, ...], adjust_lr: AdjustLR) -> float:
    """Return the factor of PyTorch's Muon on the rate, for a matrix [in, out] (in PyTorch [out, in])."""
    rows, columns = shape
    if adjust_lr == "match_rms_adamw":
        return 0.2 * math.sqrt(max(rows, columns))
    return math.sqrt(max(1.0, columns / rows))


def scale_by_muon(
    momentum: float = 0.95,
    nesterov: bool = True,
    eps: float = 1e-7,
    ns_steps: int = 5,
    adjust_lr: AdjustLR = "original",
    only: Filter | None = None,
    adam_lr_scale: float = 1.0,
    beta1: float = 0.9,
    beta2: float = 0.999,
    adam_eps: float = 1e-8,
) -> Transform:
    """Give orthogonalized momentum for matrices, and Adam's direction for other parameters (Jordan et al. 2024).

    Matrices: m <- momentum m + (1 - momentum) g; gives orthogonalize(m) times `lr_factor`. With `nesterov`, the mean
    momentum m + (1 - momentum) g with the new m takes the place of m. Others: Adam's direction times `adam_lr_scale`.
    only: a filter of names: which parameters with two axes are treated as matrices; None means all.
    Raises InputError for an unknown `adjust_lr`.

    >>> optimizer = optim.custom(optim.scale_by_muon(), lr=1e-3)
    """
    if adjust_lr not in ("original", "match_rms_adamw"):
        raise InputError.here(f'adjust_lr must be "original" or "match_rms_adamw", got {adjust_lr!r}')
    ns_steps = whole("ns_steps", ns_steps)

    def is_matrix(slot: Slot) -> bool:
        return len(slot.shape) == 2 and (only is None or only(slot.name))

    def matrix(g: Tensor, m: Tensor, host: Host) -> tuple[Tensor, Tensor]:
        share = host.complement("momentum")
        m = running_mean(m, g, share)
        ahead = running_mean(m, g, share) if nesterov else m
        return orthogonalize(ahead, ns_steps, host.hyper("eps")) * lr_factor(g.shape, adjust_lr), m

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        arena = host.arena
        m_adam, v = moments(state, g, host)
        adam = adam_direction(m_adam, v, host, "adam_eps") * host.hyper("adam_lr_scale")
        directions, means = arena.views(adam), arena.views(m_adam)
        for slot in filter(is_matrix, arena.slots):
            directions[slot.name], means[slot.name] = matrix(arena.view(g, slot), arena.view(state["m"], slot), host)
        return arena.pack(directions), {"m": arena.pack(means), "v": v}

    return Transform.made(
        {"m": 0.0, "v": 0.0}, update, counts=True, momentum=momentum, eps=eps, adam_lr_scale=adam_lr_scale,
        beta1=beta1, beta2=beta2, adam_eps=adam_eps,
    )  # fmt: skip
