"""Optimizers, and the transforms from which `chain` and `custom` make optimizers."""

from typing import TYPE_CHECKING

from tracegrad import foreign, lr
from tracegrad.optim.adafactor import adafactor, scale_by_adafactor
from tracegrad.optim.adaptive import (
    adadelta,
    adagrad,
    lamb,
    nadam,
    radam,
    scale_by_adadelta,
    scale_by_adagrad,
    scale_by_nadam,
    scale_by_radam,
    scale_by_trust_ratio,
)
from tracegrad.optim.arena import Arena, Slot
from tracegrad.optim.gradients import accumulate, clip_by_global_norm, normalize_gradients
from tracegrad.optim.optimizer import Optimizer, Options, adam, adamw, custom, lion, muon, rmsprop, sgd
from tracegrad.optim.scaling import (
    add_decayed_weights,
    scale_by_adam,
    scale_by_lion,
    scale_by_lr,
    scale_by_momentum,
    scale_by_muon,
    scale_by_rms,
    track_ema,
)
from tracegrad.optim.transform import Host, PerParameter, Transform, chain

__all__ = [
    "Arena", "Host", "Optimizer", "Options", "PerParameter", "Slot", "Transform", "accumulate", "adadelta",
    "adafactor", "adagrad", "adam", "adamw", "add_decayed_weights", "chain", "clip_by_global_norm", "custom",
    "lamb", "lion", "muon", "nadam", "normalize_gradients", "radam", "rmsprop", "scale_by_adadelta",
    "scale_by_adafactor", "scale_by_adagrad", "scale_by_adam", "scale_by_lion", "scale_by_lr", "scale_by_momentum",
    "scale_by_muon", "scale_by_nadam", "scale_by_radam", "scale_by_rms", "scale_by_trust_ratio", "sgd", "track_ema",
]  # fmt: skip

if not TYPE_CHECKING:  # type checkers are to report unknown names themselves

    def __getattr__(name):
        raise foreign.no_such_name("tracegrad.optim", name, {"optim": __all__, "lr": lr.__all__})
