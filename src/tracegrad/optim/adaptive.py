"""Optimizers whose rates adapt to each element, or to each parameter: relatives of Adam and of Adagrad."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import reduce
from typing import Unpack

from tracegrad.hypers import AT_LEAST_0, RANGES, SHARE, checked
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.optim.gradients import norm
from tracegrad.optim.optimizer import LR, Chain, Options, recipe
from tracegrad.optim.recipes import decoupled, with_decay
from tracegrad.optim.scaling import add_decayed_weights, moments, running_mean, scale_by_adam
from tracegrad.optim.transform import Host, PerParameter, State, Transform
from tracegrad.prims.elementwise import exp, expm1, log1p, maximum, minimum, sqrt, square, where
from tracegrad.prims.folds import MIN, pack
from tracegrad.prims.views import broadcast_to, reshape

__all__ = [
    "adadelta", "adagrad", "lamb", "nadam", "radam", "scale_by_adadelta", "scale_by_adagrad", "scale_by_nadam",
    "scale_by_radam", "scale_by_trust_ratio",
]  # fmt: skip

ADADELTA = {"rho": SHARE, "eps": AT_LEAST_0}


def scale_by_adadelta(rho: float = 0.9, eps: float = 1e-6) -> Transform:
    """Replace the gradient g by d = sqrt(u + eps) / sqrt(v + eps) g, with running means v of g^2 and u of d^2.

    v <- rho v + (1 - rho) g^2 before the division, and u <- rho u + (1 - rho) d^2 after it. Both start at 0.
    As torch.optim.Adadelta (Zeiler 2012, algorithm 1). Raises InputError unless 0 <= rho < 1 and eps >= 0.

    >>> optim.custom(optim.scale_by_adadelta(), lr=1.0)
    optim.custom(lr=1.0, rho=0.9, eps=1e-06)
    """

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        share, eps_ = host.complement("rho"), host.hyper("eps")
        v = running_mean(state["v"], square(g), share)
        d = sqrt(state["u"] + eps_) / sqrt(v + eps_) * g
        return d, {"v": v, "u": running_mean(state["u"], square(d), share)}

    return Transform.made({"v": 0.0, "u": 0.0}, update, ranges=ADADELTA, rho=rho, eps=eps)


@recipe("weight_decay")
def adadelta(
    lr: LR = 1.0, rho: float = 0.9, eps: float = 1e-6, weight_decay: float = 0.0, **options: Unpack[Options]
) -> Chain:
    """Make an Adadelta optimizer: p <- p - lr sqrt(u + eps) / sqrt(v + eps) g, with running means v and u.

    v <- rho v + (1 - rho) g^2 before the step, and u <- rho u + (1 - rho) d^2 after it, where the step is -lr d. Both
    start at 0.
    weight_decay: an L2 penalty: adds weight_decay * p to g, except for biases and gains; see `nn.decays`.
    lr, options, errors: see `Options`. As torch.optim.Adadelta.

    >>> optim.adadelta(lr=1.0)
    optim.adadelta(lr=1.0, rho=0.9, eps=1e-06)
    """
    return [*decoupled(weight_decay, options), scale_by_adadelta(rho, eps)]


ADAGRAD = {"lr_decay": AT_LEAST_0, "eps": AT_LEAST_0}


def scale_by_adagrad(lr_decay: float = 0.0, initial_accumulator_value: float = 0.0, eps: float = 1e-10) -> Transform:
    """Replace the gradient g by g / (sqrt(s) + eps) / (1 + (step - 1) lr_decay), after s <- s + g^2.

    s begins at `initial_accumulator_value`. `step` counts updates from 1.
    As torch.optim.Adagrad (Duchi et al. 2011). Raises InputError if an argument is negative.

    >>> optim.custom(optim.scale_by_adagrad(), lr=1e-2)
    optim.custom(lr=0.01, lr_decay=0.0, eps=1e-10)
    """

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        total = state["sum"] + square(g)
        later = 1.0 + (host.steps - 1.0) * host.hyper("lr_decay")
        return g / (sqrt(total) + host.hyper("eps")) / later, {"sum": total}

    fill = checked("initial_accumulator_value", initial_accumulator_value, AT_LEAST_0, "adagrad")
    return Transform.made({"sum": fill}, update, ranges=ADAGRAD, counts=True, lr_decay=lr_decay, eps=eps)


@recipe("weight_decay")
def adagrad(
    lr: LR = 0.01,
    lr_decay: float = 0.0,
    weight_decay: float = 0.0,
    initial_accumulator_value: float = 0.0,
    eps: float = 1e-10,
    **options: Unpack[Options],
) -> Chain:
    """Make an Adagrad optimizer: p <- p - lr / (1 + (step - 1) lr_decay) * g / (sqrt(s) + eps), after s <- s + g^2.

    initial_accumulator_value: s before the first step. `step` counts updates from 1.
    weight_decay: an L2 penalty: adds weight_decay * p to g, except for biases and gains; see `nn.decays`.
    lr, options, errors: see `Options`. As torch.optim.Adagrad (Duchi et al. 2011).

    >>> optim.adagrad(lr=1e-2)
    optim.adagrad(lr=0.01, lr_decay=0.0, eps=1e-10)
    """
    return [*decoupled(weight_decay, options), scale_by_adagrad(lr_decay, initial_accumulator_value, eps)]


NADAM = {**RANGES, "momentum_decay": AT_LEAST_0}
LOG_096 = math.log(0.96)
PRODUCT = PerParameter(lambda _: (1,), 1.0)  # one number per parameter, so that freezing keeps it


def scale_by_nadam(
    beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8, momentum_decay: float = 4e-3
) -> Transform:
    """Replace the gradient g by Adam's step with Nesterov's momentum. As torch.optim.NAdam (Dozat 2016).

    g' = (mu' m / (1 - M mu') + (1 - mu) g / (1 - M)) / (sqrt(v_hat) + eps)
    mu = beta1 (1 - 0.96^(step momentum_decay) / 2)

    mu' is the mu of the next step, and M the product of all mu so far. m and v_hat are those of `scale_by_adam`, with
    beta1 and beta2. `step` counts updates from 1. Raises InputError unless 0 <= beta1 < 1, 0 <= beta2 < 1, and `eps`
    and `momentum_decay` are at least 0.

    >>> optim.custom(optim.scale_by_nadam(), lr=2e-3)
    optim.custom(lr=0.002, beta1=0.9, beta2=0.999, eps=1e-08, momentum_decay=0.004)
    """

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        share = host.complement("beta1")
        m, v = moments(state, g, host)
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
        {"m": 0.0, "v": 0.0, "product": PRODUCT}, update, ranges=NADAM, counts=True,
        beta1=beta1, beta2=beta2, eps=eps, momentum_decay=momentum_decay,
    )  # fmt: skip


def _products(old: Tensor, host: Host, factor: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor]:
    """Return M after this step, f32[] or, if parameters count their own steps, f32[n]; and the new state."""
    # all numbers are equal, except for parameters that this loss does not train, where they stay 1
    if host.missed is None:
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
    """Make a NAdam optimizer: Adam with Nesterov's momentum, whose factor grows to beta1; see `scale_by_nadam`.

    beta1, beta2, eps: as for `adam`.
    momentum_decay: Nesterov's factor in each step is beta1 (1 - 0.96^(step momentum_decay) / 2).
    weight_decay: an L2 penalty: adds weight_decay * p to g, except for biases and gains; see `nn.decays`.
    decoupled_weight_decay: True: decay as AdamW instead, p <- (1 - lr weight_decay) p.
    lr, options, errors: see `Options`. As torch.optim.NAdam (Dozat 2016).

    >>> optim.nadam(lr=2e-3)
    optim.nadam(lr=0.002, beta1=0.9, beta2=0.999, eps=1e-08, momentum_decay=0.004, decoupled_weight_decay=False)
    """
    core = scale_by_nadam(beta1, beta2, eps, momentum_decay)
    return with_decay(core, weight_decay, options, decoupled_weight_decay)


LARGEST = 80.0  # exp(80) is finite in f32
CERTAIN = 5.0  # with an average longer than this, RAdam takes rectified Adam steps
# x / (e^x - 1) = 1 - x / 2 + x^2 (1/12 - ...): Bernoulli's numbers; relative error 1e-9 up to x = 1
BERNOULLI = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160)
# 2/c + 2/log(1 - c) - 1 = c (1/6 + ...): Gregory's numbers; error 3e-6 up to c = 0.2
GREGORY = (1 / 6, 1 / 12, 19 / 360, 3 / 80, 863 / 30240)


def average_length(step: Tensor, c: Tensor) -> Tensor:
    """Return 2/c - 1 - 2 step beta2^step / (1 - beta2^step), c = 1 - beta2: the number of steps that v averages.

    A series replaces the formula where f32 would cancel: early steps have a length of about `step`, the difference of
    two numbers around 2/c.
    """
    rate = -log1p(-c)
    y = step * rate
    far = minimum(y, LARGEST)  # where the quotient is 0
    direct = far / expm1(far) - 1.0 + 0.5 * y
    curved = where(y < 1.0, _series(square(y), BERNOULLI), direct)
    offset = where(c < 0.2, _series(c, GREGORY), 2.0 / c - 2.0 / rate - 1.0)
    return step + offset - 2.0 / rate * curved


def _series(x: Tensor, c: tuple[float, ...]) -> Tensor:
    """Return c[0] x + c[1] x^2 + ..."""
    return reduce(lambda total, k: (total + k) * x, reversed(c[:-1]), c[-1] * x)


def scale_by_radam(beta1: float = 0.9, beta2: float = 0.999, eps: float = 1e-8) -> Transform:
    """Replace the gradient g by m_hat in the first steps, later by Adam's step times a factor f < 1.

    rho > 5:   g' = f m_hat / (sqrt(v_hat) + eps_hat),  f = sqrt((rho - 4) (rho - 2) r / ((r - 4) (r - 2) rho))
    otherwise: g' = m_hat

    r = 2 / (1 - beta2) - 1,  rho = r - 2 step beta2^step / (1 - beta2^step),  eps_hat = eps / sqrt(1 - beta2^step).
    rho grows from 1 to r, and with it f to 1: v_hat is uncertain in the first steps.
    m_hat and v_hat are those of `scale_by_adam`. `step` counts updates from 1. As torch.optim.RAdam (Liu et al. 2020).
    Raises InputError unless 0 <= beta1 < 1, 0 <= beta2 < 1 and eps >= 0.

    >>> optim.custom(optim.scale_by_radam(), lr=1e-3)
    optim.custom(lr=0.001, beta1=0.9, beta2=0.999, eps=1e-08)
    """

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        m, v = moments(state, g, host)
        c = host.complement("beta2")
        # If rho is above 5, so is its limit. Otherwise the factor is not used, and its value does not matter
        rho, limit = average_length(host.steps, c), maximum(2.0 / c - 1.0, CERTAIN)
        sure = maximum(rho, CERTAIN)
        rectified = sqrt((sure - 4.0) * (sure - 2.0) * limit / ((limit - 4.0) * (limit - 2.0) * sure))
        adam = _stored(rectified * sqrt(host.bias_correction("beta2")))
        certain = _stored(where(rho > CERTAIN, 1.0, 0.0)) > 0.5
        m_hat = m * (1 / host.bias_correction("beta1"))
        return where(certain, m_hat * adam / (sqrt(v) + host.hyper("eps")), m_hat), {"m": m, "v": v}

    return Transform.made({"m": 0.0, "v": 0.0}, update, counts=True, beta1=beta1, beta2=beta2, eps=eps)


def _stored(x: Tensor) -> Tensor:
    """Store `x` in memory as a pack, so that each element loads the number instead of computing it again."""
    return reshape(pack([reshape(x, (x.size,))]), x.shape)


@recipe("weight_decay", shaping=("decoupled_weight_decay",))
def radam(
    lr: LR = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    decoupled_weight_decay: bool = False,
    **options: Unpack[Options],
) -> Chain:
    """Make a RAdam optimizer: at first Adam without the division by sqrt(v_hat), later Adam's step times a factor.

    The factor is below 1 and grows to 1, so steps are smaller while v_hat is uncertain. See `scale_by_radam`.

    beta1, beta2, eps: as for `adam`.
    weight_decay: an L2 penalty: adds weight_decay * p to g, except for biases and gains; see `nn.decays`.
    decoupled_weight_decay: True: decay as AdamW instead, p <- (1 - lr weight_decay) p.
    lr, options, errors: see `Options`. As torch.optim.RAdam (Liu et al. 2020).

    >>> optim.radam(lr=1e-3)
    optim.radam(lr=0.001, beta1=0.9, beta2=0.999, eps=1e-08, decoupled_weight_decay=False)
    """
    return with_decay(scale_by_radam(beta1, beta2, eps), weight_decay, options, decoupled_weight_decay)


def scale_by_trust_ratio() -> Transform:
    """Replace the update g of each parameter p by g norm(p) / norm(g). If a norm is 0, g stays (You et al. 2020).

    The norm is the Euclidean length over all elements of the parameter. As optax.scale_by_trust_ratio.

    >>> optim.custom(optim.chain(optim.scale_by_adam(), optim.scale_by_trust_ratio()), lr=1e-3)
    optim.custom(lr=0.001, beta1=0.9, beta2=0.999, eps=1e-08)
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
    """Make a LAMB optimizer: p <- p - lr * (norm(p) / norm(u)) * u for each parameter p (You et al. 2020, algorithm 2).

    u = m_hat / (sqrt(v_hat) + eps) + weight_decay * p, where m_hat and v_hat are those of `adam`.
    norm is the Euclidean length over all elements. If norm(p) or norm(u) is 0: p <- p - lr * u.
    beta1, beta2: factors of the running means, as for `adam`.
    weight_decay: does not apply to biases and gains; see `nn.decays`.
    lr, options, errors: see `Options`.

    >>> optim.lamb(lr=1e-3)
    optim.lamb(lr=0.001, beta1=0.9, beta2=0.999, eps=1e-06, weight_decay=0.01)
    """
    return [scale_by_adam(beta1, beta2, eps), add_decayed_weights(weight_decay), scale_by_trust_ratio()]
