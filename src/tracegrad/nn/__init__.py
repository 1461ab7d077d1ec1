"""Modules and layers."""

from importlib import import_module
from typing import TYPE_CHECKING

from tracegrad import foreign, ops
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
from tracegrad.nn.stacking import as_states, stack

if TYPE_CHECKING:
    from tracegrad.nn.attention import MultiheadAttention, TransformerBlock
    from tracegrad.nn.convolutions import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
    from tracegrad.nn.recurrent import GRU, LSTM, RNN

# Loaded when one of its names is used first
LATER = {
    "attention": ("MultiheadAttention", "TransformerBlock"),
    "convolutions": ("Conv1d", "Conv2d", "Conv3d", "ConvTranspose1d", "ConvTranspose2d", "ConvTranspose3d"),
    "recurrent": ("GRU", "LSTM", "RNN"),
}

__all__ = [
    "GRU",
    "LSTM",
    "RNN",
    "BatchNorm",
    "Conv1d",
    "Conv2d",
    "Conv3d",
    "ConvTranspose1d",
    "ConvTranspose2d",
    "ConvTranspose3d",
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
        for module, names in LATER.items():
            if name in names:
                globals()[name] = value = getattr(import_module(f"tracegrad.nn.{module}"), name)
                return value
        raise foreign.no_such_name("tracegrad.nn", name, {"nn": __all__, "tg": ops.__all__})


def __dir__() -> list[str]:
    return __all__  # for tab completion: also the names that are loaded later
