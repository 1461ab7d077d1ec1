"""Optimizers, and the transforms from which `chain` and `custom` make optimizers."""

from typing import TYPE_CHECKING

from tracegrad import foreign, lr
from tracegrad.optim.adafactor import *
from tracegrad.optim.adaptive import *
from tracegrad.optim.arena import *
from tracegrad.optim.gradients import *
from tracegrad.optim.optimizer import *
from tracegrad.optim.recipes import *
from tracegrad.optim.scaling import *
from tracegrad.optim.transform import *

if not TYPE_CHECKING:  # type checkers export all that star imports bring, and are to report unknown names themselves
    __all__ = sorted([name for name, x in dict(globals()).items() if name[0] != "_" and hasattr(x, "__module__")])

    def __getattr__(name):
        raise foreign.no_such_name("tracegrad.optim", name, {"optim": __all__, "lr": lr.__all__})
