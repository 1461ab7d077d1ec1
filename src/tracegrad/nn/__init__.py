"""Modules and layers."""

from tracegrad.nn.layers import Conv2d, Embedding, LayerNorm, Linear, RMSNorm
from tracegrad.nn.module import Module, Parameter, bound, decays, named_parameters
from tracegrad.nn.stacking import stack

__all__ = [
    "Conv2d",
    "Embedding",
    "LayerNorm",
    "Linear",
    "Module",
    "Parameter",
    "RMSNorm",
    "bound",
    "decays",
    "named_parameters",
    "stack",
]
