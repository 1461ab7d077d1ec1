"""Modules and layers."""

import importlib
from typing import TYPE_CHECKING

from tracegrad import foreign, ops
from tracegrad.nn.layers import *
from tracegrad.nn.module import *
from tracegrad.nn.stacking import *

if TYPE_CHECKING:
    from tracegrad.nn.attention import *
    from tracegrad.nn.convolutions import *
    from tracegrad.nn.recurrent import *

# Files that are loaded when one of their names is first used
LATER = {
    "attention": "MultiheadAttention TransformerBlock",
    "convolutions": "Conv1d Conv2d Conv3d ConvTranspose1d ConvTranspose2d ConvTranspose3d",
    "recurrent": "GRU LSTM RNN",
}

if not TYPE_CHECKING:  # type checkers export all that star imports bring, and are to report unknown names themselves
    __all__ = [name for name, x in dict(globals()).items() if name[0] != "_" and hasattr(x, "__module__")]
    __all__ = sorted([*__all__, *" ".join(LATER.values()).split()])

    def __getattr__(name):
        for module, names in LATER.items():
            if name in names.split():
                globals()[name] = value = getattr(importlib.import_module(f"tracegrad.nn.{module}"), name)
                return value
        raise foreign.no_such_name("tracegrad.nn", name, {"nn": __all__, "tg": ops.__all__})

    def __dir__():
        return __all__  # for tab completion: also the names that are loaded later
