"""RAdam: Adam whose steps are rectified while the variance of the second moment is still uncertain."""

from __future__ import annotations

from functools import reduce
from typing import Unpack

from tracegrad.ir import Tensor
from tracegrad.optim.host import Host
from tracegrad.optim.optimizer import LR, Chain, Options, recipe, with_decay
from tracegrad.optim.scaling import moments
from tracegrad.optim.transform import State, Transform
from tracegrad.prims.elementwise import expm1, log1p, maximum, minimum, sqrt, square, where
from tracegrad.prims.folds import pack
from tracegrad.prims.views import reshape

LARGEST = 80.0  # exp(80) is finite in f32
CERTAIN = 5.0  # above this length of the average, steps are rectified Adam steps
# x / (e^x - 1) = 1 - x / 2 + x^2 (1/12 - ...): Bernoulli's numbers; relative error 1e-9 up to x = 1
BERNOULLI = (1 / 12, -1 / 720, 1 / 30240, -1 / 1209600, 1 / 47900160)
# 2/c + 2/log(1 - c) - 1 = c (1/6 + ...): Gregory's numbers; error 3e-6 up to c = 0.2
GREGORY = (1 / 6, 1 / 12, 19 / 360, 3 / 80, 863 / 30240)


def average_length(step: Tensor, c: Tensor) -> Tensor:
    """Return 2/c - 1 - 2 step beta2^step / (1 - beta2^step), c = 1 - beta2: how many steps the second moment averages.

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
    """Give Adam's m_hat, divided by a rectified sqrt(v_hat) once v_hat is certain (Liu et al. 2020, algorithm 2).

    With rho = `average_length` and its limit r = 2 / (1 - beta2) - 1, steps with rho > 5 are
    m_hat sqrt((rho - 4) (rho - 2) r / ((r - 4) (r - 2) rho)) sqrt(1 - beta2^step) / (sqrt(v) + eps); others are m_hat.
    As torch.optim.RAdam.

    >>> optimizer = optim.custom(optim.scale_by_radam(), lr=1e-3)
    """

    def update(g: Tensor, p: Tensor, state: State, host: Host) -> tuple[Tensor, State]:
        m, v = moments(state, g, host)
        c = host.complement("beta2")
        # A length above 5 implies a limit above 5. Otherwise the factor is not used, so its value does not matter
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
    """Make a RAdam optimizer: rectified Adam, see `scale_by_radam`. As torch.optim.RAdam.

    decoupled_weight_decay: decay as AdamW, p <- (1 - lr weight_decay) p; else weight_decay is an L2 penalty.
    options, errors: see `Options`.

    >>> optimizer = optim.radam(lr=1e-3)
    """
    return with_decay(scale_by_radam(beta1, beta2, eps), weight_decay, options, decoupled_weight_decay)
