"""Optimizers, and the transforms they are chains of."""

from typing import TYPE_CHECKING

from tracegrad import foreign, lr
from tracegrad.optim.adafactor import adafactor, scale_by_adafactor
from tracegrad.optim.arena import Arena, Slot
from tracegrad.optim.gradients import accumulate, clip_by_global_norm, normalize_gradients
from tracegrad.optim.host import Host
from tracegrad.optim.muon import scale_by_muon
from tracegrad.optim.optimizer import Optimizer, Options, adam, adamw, custom, lion, muon, rmsprop, sgd
from tracegrad.optim.scaling import (
    add_decayed_weights,
    scale_by_adam,
    scale_by_lion,
    scale_by_lr,
    scale_by_momentum,
    scale_by_rms,
    track_ema,
)
from tracegrad.optim.transform import PerParameter, Transform, chain

__all__ = [
    "Arena", "Host", "Optimizer", "Options", "PerParameter", "Slot", "Transform", "accumulate", "adafactor", "adam",
    "adamw", "add_decayed_weights", "chain", "clip_by_global_norm", "custom", "lion", "muon", "normalize_gradients",
    "rmsprop", "scale_by_adafactor", "scale_by_adam", "scale_by_lion", "scale_by_lr", "scale_by_momentum",
    "scale_by_muon", "scale_by_rms", "sgd", "track_ema",
]  # fmt: skip

if not TYPE_CHECKING:  # type checkers are to report unknown names themselves

    def __getattr__(name):
        raise foreign.no_such_name("tracegrad.optim", name, {"optim": __all__, "lr": lr.PUBLIC})
