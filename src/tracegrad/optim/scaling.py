"""Transforms that turn a gradient into a step."""

from __future__ import annotations

import math
from typing import Literal

from tracegrad.errors import InputError
from tracegrad.hypers import RANGES, checked_whole
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.optim.gradients import norm
from tracegrad.optim.transform import Host, Kept, State, Transform
from tracegrad.patterns import Selection, matcher
from tracegrad.prims.elementwise import maximum, minimum, sign, sqrt, square, where
from tracegrad.prims.folds import MATMUL
from tracegrad.prims.views import permute
from tracegrad.wrong_calls import switch

__all__ = [
    "add_decayed_weights", "scale_by_adam", "scale_by_lion", "scale_by_lr", "scale_by_momentum", "scale_by_muon",
    "scale_by_rms", "track_ema",
]  # fmt: skip

FLUSHED = 2.0**-62  # a device may flush the square of a smaller number to 0


def running_mean(old: Tensor, new: Tensor, share: Tensor) -> Tensor:
    """Return old (1 - share) + new share, in a form that is accurate for a small share."""
    return old + (new - old) * share


def moments(state: State, g: Tensor, host: Host) -> tuple[Tensor, Tensor]:
    """Return Adam's running means of g and of its square."""
    m = running_mean(state["m"], g, host.complement("beta1"))
    return m, running_mean(state["v"], square(g), host.complement("beta2"))


def scale_by_lr() -> Transform:
    """Replace g by -lr * g, where lr is the optimizer's learning rate in this step: the last part of most chains.

    `optim.custom` adds it to a chain without it. As optax.scale_by_learning_rate.

    >>> optim.custom(optim.chain(optim.scale_by_momentum(0.9), optim.scale_by_lr()), lr=0.1)
    optim.custom(lr=0.1, momentum=0.9)
    """
    return Transform(
        {},
        lambda g, p, state, host: (-host.hyper("lr") * g, {}),
        ranges={"lr": RANGES["lr"]},
        bounds=lambda g, p, state, host: (host.hyper("lr") * g, {}),
    )


def add_decayed_weights(weight_decay: float) -> Transform:
    """Add weight_decay * p to g for decayed parameters p. g is the gradient, or the result of the previous transform.

    `nn.decays` says which parameters decay. Before `scale_by_adam` or momentum, this is an L2 penalty. After them, it
    is AdamW's decoupled weight decay, p <- (1 - lr weight_decay) p (Loshchilov & Hutter 2019). Put it before
    `scale_by_lr`, which multiplies by -lr: after it, the decay would make the parameters grow.
    As optax.add_decayed_weights. Raises InputError for a negative `weight_decay`.

    >>> optim.custom(optim.chain(optim.scale_by_adam(), optim.add_decayed_weights(0.01)), lr=1e-3)
    optim.custom(lr=0.001, beta1=0.9, beta2=0.999, eps=1e-08, weight_decay=0.01)
    """

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        arena = host.arena
        if arena.decayed_size == 0:
            return g, {}
        decay = host.hyper("weight_decay")
        if arena.decayed_size == arena.size:
            return g + decay * p, {}
        return g + where(arena.decayed(), decay, 0.0) * p, {}

    def bounds(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        return (g + host.hyper("weight_decay") * p if host.arena.decayed_size else g), {}

    return Transform.made({}, update, bounds, weight_decay=weight_decay)


def scale_by_momentum(momentum: float = 0.9, nesterov: bool = False) -> Transform:
    """Replace the gradient g by m, where m <- momentum * m + g starts at 0.

    nesterov: True: replace g by g + momentum * m, with the new m.

    A momentum of 0 leaves g as it is, and does not change m. As torch.optim.SGD (Polyak 1964; Nesterov 1983).
    Raises InputError for a negative `momentum`.

    >>> optim.custom(optim.scale_by_momentum(0.9), lr=1e-2)
    optim.custom(lr=0.01, momentum=0.9)
    """

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        mu = host.hyper("momentum")
        m = mu * state["momentum"] + g
        return g + mu * m if nesterov else m, {"momentum": where(mu == 0.0, state["momentum"], m)}

    return Transform.made({"momentum": 0.0}, update, update, momentum=momentum)


def adam_direction(m: Tensor, v: Tensor, host: Host, eps: str) -> Tensor:
    """Return m_hat / (sqrt(v_hat) + eps). The hats correct the bias of means that start at 0."""
    # One factor per step and mean: dividing every element took a fifth of an MLP's step on a CPU
    m_hat = m * (1 / host.bias_correction("beta1"))
    v_hat = v * (1 / host.bias_correction("beta2"))
    return m_hat / (sqrt(v_hat) + host.hyper(eps))


def scale_by_adam(beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> Transform:
    """Replace the gradient g by m_hat / (sqrt(v_hat) + eps), with running means of g and g^2 (Kingma & Ba 2015).

    m <- beta1 m + (1 - beta1) g,    m_hat = m / (1 - beta1^step)
    v <- beta2 v + (1 - beta2) g^2,  v_hat = v / (1 - beta2^step)

    m and v start at 0. `step` counts updates from 1. As optax.scale_by_adam. Raises InputError unless 0 <= beta1 < 1,
    0 <= beta2 < 1 and eps >= 0.

    >>> optim.custom(optim.scale_by_adam(beta2=0.99), lr=1e-3)
    optim.custom(lr=0.001, beta1=0.9, beta2=0.99, eps=1e-08)
    """

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        m, v = moments(state, g, host)
        return adam_direction(m, v, host, "eps"), {"m": m, "v": v}

    def bounds(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        m, v = moments(state, g, host)
        return m * (1 / host.bias_correction("beta1")) / host.hyper("eps"), {"m": m, "v": v}

    states: dict[str, Kept] = {"m": 0.0, "v": 0.0}
    return Transform.made(states, update, bounds, counts=True, beta1=beta1, beta2=beta2, eps=eps)


def scale_by_lion(beta1: float = 0.9, beta2: float = 0.99) -> Transform:
    """Replace the gradient g by sign(beta1 m + (1 - beta1) g), with a running mean m of g.

    Then m <- beta2 m + (1 - beta2) g. m starts at 0 (Chen et al. 2023, algorithm 2). Raises InputError unless
    0 <= beta1 < 1 and 0 <= beta2 < 1.

    >>> optim.custom(optim.scale_by_lion(), lr=1e-4)
    optim.custom(lr=0.0001, beta1=0.9, beta2=0.99)
    """

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        m = state["m"]
        direction = sign(running_mean(m, g, host.complement("beta1")))
        return direction, {"m": running_mean(m, g, host.complement("beta2"))}

    return Transform.made({"m": 0.0}, update, update, beta1=beta1, beta2=beta2)


def scale_by_rms(alpha: float = 0.99, eps: float = 1e-8, centered: bool = False) -> Transform:
    """Replace the gradient g by g / (sqrt(v) + eps), after v <- alpha v + (1 - alpha) g^2.

    centered: True: also m <- alpha m + (1 - alpha) g, and divide by sqrt(v - m^2) + eps, the standard deviation.

    v and m start at 0. As torch.optim.RMSprop (Tieleman & Hinton 2012). Raises InputError unless 0 <= alpha < 1 and
    eps >= 0.

    >>> optim.custom(optim.scale_by_rms(), lr=1e-2)
    optim.custom(lr=0.01, alpha=0.99, eps=1e-08)
    """

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        share = host.complement("alpha")
        new: dict[str, Tensor] = {"v": running_mean(state["v"], square(g), share)}
        spread = new["v"]
        if both:
            new["m"] = running_mean(state["m"], g, share)
            spread = maximum(spread - square(new["m"]), 0.0)  # rounding makes it negative where g hardly changes
        return g / (sqrt(spread) + host.hyper("eps")), new

    def bounds(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        share, eps = host.complement("alpha"), host.hyper("eps")
        # v is at least share g^2, unless a device flushes the product to 0
        return minimum(g / eps, (2.0 + FLUSHED / eps) / sqrt(share)), {"v": running_mean(state["v"], square(g), share)}

    both = switch("centered", centered)
    state: dict[str, Kept] = {"v": 0.0, "m": 0.0} if both else {"v": 0.0}
    return Transform.made(state, update, None if both else bounds, alpha=alpha, eps=eps)


def track_ema(decay: float) -> Transform:
    """Keep a running average of the parameters: e <- decay e + (1 - decay) p. Updates stay as they are.

    p are the parameters after the step, and e starts at the parameters before the first step. Put this transform last
    in a chain, after `scale_by_lr`.
    `train.download_params(ema=True)` reads the average, the state "ema". `train` is what `tg.compile` returns.
    As torch.optim.swa_utils.AveragedModel with multi_avg_fn=get_ema_multi_avg_fn(decay), whose average starts at the
    parameters after the first step; Polyak and Juditsky 1992. Raises InputError unless 0 <= decay < 1.

    >>> optim.custom(optim.chain(optim.scale_by_momentum(0.9), optim.scale_by_lr(), optim.track_ema(0.999)), lr=0.1)
    optim.custom(lr=0.1, momentum=0.9, ema=0.999)
    """

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        return g, {"ema": running_mean(state["ema"], p + g, host.complement("ema"))}

    return Transform.made({"ema": "params"}, update, update, ema=decay)


# Keller Jordan's quintic, chosen for the largest slope at zero: singular values end between about 0.7 and 1.2
COEFFICIENTS = (3.4445, -4.7750, 2.0315)

AdjustLR = Literal["original", "match_rms_adamw"]


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
    only: Selection | None = None,
    adam_lr_scale: float = 1.0,
    beta1: float = 0.9,
    beta2: float = 0.999,
    adam_eps: float = 1e-8,
) -> Transform:
    """Replace the gradient g by orthogonalized momentum for matrices, by Adam's step for other parameters.

    Matrices: m <- momentum m + (1 - momentum) g, then g' = f * orthogonalize(m), where orthogonalize gives the nearest
              matrix whose singular values are about 1.
    Other parameters: adam_lr_scale times the result of `scale_by_adam(beta1, beta2, adam_eps)`.

    nesterov:      True orthogonalizes momentum m + (1 - momentum) g, with the new m, instead of m. The m that is kept
                   for the next step is the same.
    eps, ns_steps: of the orthogonalization: the smallest norm to divide by, and the number of Newton-Schulz iterations.
    adjust_lr:     for a matrix [in, out], "original": f = sqrt(max(1, out / in)), the ratio of PyTorch, whose weights
                   are [out, in]; "match_rms_adamw": f = 0.2 sqrt(max(in, out)).
    only:          the matrices to orthogonalize: a pattern of names such as "blocks.*", a list of patterns, or a
                   function of the name. None: all parameters with two axes. Adam takes all others, and also
                   parameters that match but do not have two axes.
    Raises InputError for an unknown `adjust_lr`, for `ns_steps` that is no positive integer, for a negative `momentum`,
    `eps`, `adam_eps` or `adam_lr_scale`, and unless 0 <= beta1 < 1 and 0 <= beta2 < 1.
    As torch.optim.Muon for the matrices (Jordan et al. 2024). PyTorch takes no other parameters.

    >>> optimizer = optim.custom(optim.scale_by_muon(only=lambda name: name != "embed.W"), lr=1e-3)
    """
    if str(adjust_lr) not in ("original", "match_rms_adamw"):
        raise InputError.here(f'adjust_lr must be "original" or "match_rms_adamw", got {adjust_lr!r}')
    ns_steps = checked_whole("ns_steps", ns_steps)
    fits = matcher("*" if only is None else only, "scale_by_muon: only")

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
        for slot in [s for s in arena.slots if len(s.shape) == 2 and fits(s.name)]:
            directions[slot.name], means[slot.name] = matrix(arena.view(g, slot), arena.view(state["m"], slot), host)
        return arena.pack(directions), {"m": arena.pack(means), "v": v}

    return Transform.made(
        {"m": 0.0, "v": 0.0}, update, counts=True, momentum=momentum, eps=eps, adam_lr_scale=adam_lr_scale,
        beta1=beta1, beta2=beta2, adam_eps=adam_eps,
    )  # fmt: skip
