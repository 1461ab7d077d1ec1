"""Modules and layers."""

from typing import TYPE_CHECKING

from tracegrad import foreign, ops
from tracegrad.nn.layers import Conv2d, Embedding, LayerNorm, Linear, RMSNorm
from tracegrad.nn.module import Module, bound, decays, named_parameters
from tracegrad.nn.stacking import stack

__all__ = [
    "Conv2d",
    "Embedding",
    "LayerNorm",
    "Linear",
    "Module",
    "RMSNorm",
    "bound",
    "decays",
    "named_parameters",
    "stack",
]

if not TYPE_CHECKING:  # type checkers are to report unknown names themselves

    def __getattr__(name):
        raise foreign.no_such_name("tracegrad.nn", name, {"nn": __all__, "tg": ops.__all__})
