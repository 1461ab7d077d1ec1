"""The optimizers of gradient and momentum, as chains of transforms. Others are in adaptive.py and adafactor.py."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Unpack, cast

from tracegrad.errors import InputError
from tracegrad.optim import scaling
from tracegrad.optim.optimizer import LR, Chain, Options, recipe
from tracegrad.optim.transform import Transform, check_transform
from tracegrad.patterns import Selection

__all__ = ["adam", "adamw", "custom", "lion", "muon", "rmsprop", "sgd"]


@recipe()
def custom(transform: Transform, lr: LR = 1e-3, **options: Unpack[Options]) -> Chain:
    """Make an optimizer from a transform of your own: p <- p - lr * transform(g) for each parameter p and gradient g.

    transform: a `Transform`, or a `chain` of several. `custom` appends `scale_by_lr`, which multiplies by -lr, unless
               the chain has it. Transforms after `scale_by_lr` get the change of p, and return what to add to p.
    lr, options, errors: see `Options`. As optax.chain(transform, optax.scale_by_learning_rate(lr)).

    >>> sign = optim.Transform({}, lambda g, p, state, host: (tg.sign(g), {}))
    >>> train.replace_model(nn.Linear(2, 1, init=tg.init.ones()), optimizer=optim.custom(sign, lr=0.25))
    >>> r = train.step(x=np.ones((4, 2)), y=np.ones((4, 1))).result()    # train: as in the example of tg.compile
    >>> train.params()["W"]
    array([[0.75],
           [0.75]], dtype=float32)
    """
    check_transform("optim.custom", transform)
    return [replace(transform, bounds=None)]  # the bounds of chains such as L2 before Adam grow by eps at each step


@recipe("momentum", "weight_decay", shaping=("nesterov",))
def sgd(
    lr: LR = 1e-3,
    momentum: float = 0.0,
    nesterov: bool = False,
    weight_decay: float = 0.0,
    **options: Unpack[Options],
) -> Chain:
    """Make an SGD optimizer: g <- g + weight_decay p;  m <- momentum m + g;  p <- p - lr m.

    g is the gradient, p a parameter, and m starts at 0.
    nesterov:     True: p <- p - lr (g + momentum m), with the new m.
    weight_decay: an L2 penalty: adds weight_decay * p to g, except for biases and gains; see `nn.decays`.
    lr, options, errors: see `Options`. Raises InputError for nesterov without momentum. As torch.optim.SGD.

    >>> optim.sgd(lr=0.1, momentum=0.9, nesterov=True)
    optim.sgd(lr=0.1, momentum=0.9, nesterov=True)
    """
    if nesterov and momentum == 0:
        raise InputError.here("sgd: nesterov needs a momentum above 0")
    moving = _unless_off("momentum", momentum, options, scaling.scale_by_momentum(momentum, nesterov))
    return [*decoupled(weight_decay, options), *moving]


@recipe("weight_decay")
def adam(
    lr: LR = 1e-3,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    **options: Unpack[Options],
) -> Chain:
    """Make an Adam optimizer: p <- p - lr * m_hat / (sqrt(v_hat) + eps).

    m_hat = m / (1 - beta1^step), with m <- beta1 m + (1 - beta1) g for the gradient g. `step` counts updates from 1.
    v_hat = v / (1 - beta2^step), with v <- beta2 v + (1 - beta2) g^2. m and v start at 0.
    weight_decay: an L2 penalty: adds weight_decay * p to g, except for biases and gains; see `nn.decays`. `adamw`
                  decays the parameters apart from the gradient.
    lr, options, errors: see `Options`. As torch.optim.Adam (Kingma and Ba 2015).

    >>> optim.adam(lr=1e-3, clip_grad_norm=1.0)
    optim.adam(lr=0.001, clip_grad_norm=1.0, beta1=0.9, beta2=0.999, eps=1e-08)
    """
    return with_decay(scaling.scale_by_adam(beta1, beta2, eps), weight_decay, options, apart=False)


@recipe()
def adamw(
    lr: LR = 1e-3,
    weight_decay: float = 0.01,
    beta1: float = 0.9,
    beta2: float = 0.999,
    eps: float = 1e-8,
    **options: Unpack[Options],
) -> Chain:
    """Make an AdamW optimizer: p <- (1 - lr * weight_decay) p - lr * m_hat / (sqrt(v_hat) + eps).

    m_hat and v_hat are those of `adam`: means of the gradient and of its square, with the factors beta1 and beta2.
    weight_decay: does not apply to biases and gains; see `nn.decays`. A schedule of lr scales the decay, too.
    lr, options, errors: see `Options`. As torch.optim.AdamW (Loshchilov and Hutter 2019).

    >>> optim.adamw(lr=1e-3, weight_decay=0.1)
    optim.adamw(lr=0.001, beta1=0.9, beta2=0.999, eps=1e-08, weight_decay=0.1)
    """
    return [scaling.scale_by_adam(beta1, beta2, eps), scaling.add_decayed_weights(weight_decay)]


@recipe("weight_decay")
def lion(
    lr: LR = 1e-4, beta1: float = 0.9, beta2: float = 0.99, weight_decay: float = 0.0, **options: Unpack[Options]
) -> Chain:
    """Make a Lion optimizer: p <- (1 - lr * weight_decay) p - lr * sign(beta1 m + (1 - beta1) g).

    Then m <- beta2 m + (1 - beta2) g for the gradient g; m starts at 0. The learning rate should be 3 to 10 times
    smaller than for adamw, and weight_decay larger by the same factor (Chen et al. 2023).
    weight_decay: does not apply to biases and gains; see `nn.decays`. lr, options, errors: see `Options`.

    >>> optim.lion(lr=1e-4)
    optim.lion(lr=0.0001, beta1=0.9, beta2=0.99)
    """
    return [scaling.scale_by_lion(beta1, beta2), *decoupled(weight_decay, options)]


@recipe("momentum", "weight_decay", shaping=("centered",))
def rmsprop(
    lr: LR = 1e-2,
    alpha: float = 0.99,
    eps: float = 1e-8,
    weight_decay: float = 0.0,
    momentum: float = 0.0,
    centered: bool = False,
    **options: Unpack[Options],
) -> Chain:
    """Make an RMSprop optimizer: p <- p - lr * g / (sqrt(v) + eps), with a running mean v of g^2.

    alpha:        factor of the mean: v <- alpha v + (1 - alpha) g^2.
    centered:     True: divide by sqrt(v - a^2) + eps instead, the standard deviation; a is the running mean of g.
    momentum:     m <- momentum m + g / (sqrt(v) + eps), and p <- p - lr m.
    weight_decay: an L2 penalty: adds weight_decay * p to g, except for biases and gains; see `nn.decays`.
    lr, options, errors: see `Options`. As torch.optim.RMSprop.

    >>> optim.rmsprop(lr=1e-2)
    optim.rmsprop(lr=0.01, alpha=0.99, eps=1e-08, centered=False)
    """
    moving = _unless_off("momentum", momentum, options, scaling.scale_by_momentum(momentum))
    return [*decoupled(weight_decay, options), scaling.scale_by_rms(alpha, eps, centered), *moving]


@recipe(flat=False, shaping=("nesterov", "ns_steps", "adjust_lr"))
def muon(
    lr: LR = 1e-3,
    weight_decay: float = 0.1,
    momentum: float = 0.95,
    nesterov: bool = True,
    eps: float = 1e-7,
    ns_steps: int = 5,
    adjust_lr: scaling.AdjustLR = "original",
    only: Selection | None = None,
    adam_lr_scale: float = 1.0,
    beta1: float = 0.9,
    beta2: float = 0.999,
    adam_eps: float = 1e-8,
    **options: Unpack[Options],
) -> Chain:
    """Make a Muon optimizer: orthogonalized momentum for matrices, AdamW for other parameters; see `scale_by_muon`.

    only:          the matrices that get Muon, not AdamW: a pattern of names such as "blocks.*", a list of patterns, or
                   a function of the name. None: all. Exclude embeddings and output layers, which do better with Adam.
                   Parameters without two axes get AdamW in any case.
    adjust_lr:     "original": Keller Jordan's factor. "match_rms_adamw": steps as large as AdamW's, so that a learning
                   rate for adamw suits. `scale_by_muon` has both factors.
    adam_lr_scale: parameters of AdamW take steps with the rate lr * adam_lr_scale, but decay with lr.
    weight_decay:  p <- (1 - lr * weight_decay) p, except for biases and gains; see `nn.decays`.
    momentum, nesterov, eps, ns_steps, beta1, beta2, adam_eps: see `scale_by_muon`.
    lr, options, errors: see `Options`. Unlike torch.optim.Muon, it takes all parameters, and orthogonalizes in f32.

    >>> optimizer = optim.muon(lr=1e-3, adjust_lr="match_rms_adamw", only=lambda name: not name.startswith("embed"))
    """
    of_adam = (adam_lr_scale, beta1, beta2, adam_eps)
    core = scaling.scale_by_muon(momentum, nesterov, eps, ns_steps, adjust_lr, only, *of_adam)
    return [core, scaling.add_decayed_weights(weight_decay)]


def decoupled(weight_decay: float, options: Options) -> Chain:
    """Return weight decay as a list of transforms, empty if it is off."""
    return _unless_off("weight_decay", weight_decay, options, scaling.add_decayed_weights(weight_decay))


def with_decay(core: Transform, weight_decay: float, options: Options, apart: bool) -> Chain:
    """Add weight decay to `core`: decoupled, as AdamW (`apart`), or as an L2 penalty on the gradient."""
    decay = decoupled(weight_decay, options)
    return [core, *decay] if apart else [*decay, core]


def _unless_off(name: str, value: float, options: Options, transform: Transform) -> Chain:
    groups: object = options.get("groups")
    of_groups = list(cast("Mapping[Any, object]", groups).values()) if isinstance(groups, Mapping) else []
    return [transform] if value or any(isinstance(x, Mapping) and name in x for x in of_groups) else []
