"""Modules and layers."""

from typing import TYPE_CHECKING

from tracegrad import foreign, ops
from tracegrad.nn.attention import MultiheadAttention, TransformerBlock
from tracegrad.nn.convolutions import Conv1d, Conv2d, Conv3d, ConvTranspose2d
from tracegrad.nn.layers import (
    BatchNorm,
    Dropout,
    Embedding,
    GroupNorm,
    InstanceNorm,
    LayerNorm,
    Linear,
    RMSNorm,
    Sequential,
)
from tracegrad.nn.module import Module, bound, decays, named_parameters, named_states
from tracegrad.nn.recurrent import GRU, LSTM, RNN
from tracegrad.nn.stacking import as_states, stack

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BatchNorm",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose2d",
    "Dropout",
    "Embedding",
    "GroupNorm",
    "InstanceNorm",
    "LayerNorm",
    "Linear",
    "Module",
    "MultiheadAttention",
    "RMSNorm",
    "Sequential",
    "TransformerBlock",
    "as_states",
    "bound",
    "decays",
    "named_parameters",
    "named_states",
    "stack",
]

if not TYPE_CHECKING:  # type checkers are to report unknown names themselves

    def __getattr__(name):
        raise foreign.no_such_name("tracegrad.nn", name, {"nn": __all__, "tg": ops.__all__})
