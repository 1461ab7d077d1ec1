"""The public functions on tensors, one file per group. `tg.` re-exports all of them."""

from typing import TYPE_CHECKING

from tracegrad.ops.activation import *
from tracegrad.ops.attention import *
from tracegrad.ops.constants import *
from tracegrad.ops.control import *
from tracegrad.ops.convolutions import *
from tracegrad.ops.cumulative import *
from tracegrad.ops.distances import *
from tracegrad.ops.extrema import *
from tracegrad.ops.gamma import *
from tracegrad.ops.images import *
from tracegrad.ops.indexing import *
from tracegrad.ops.joining import *
from tracegrad.ops.linalg import *
from tracegrad.ops.losses import *
from tracegrad.ops.math import *
from tracegrad.ops.norm import *
from tracegrad.ops.random import *
from tracegrad.ops.reduction import *
from tracegrad.ops.resampling import *
from tracegrad.ops.shaping import *
from tracegrad.ops.sorting import *
from tracegrad.ops.trigonometry import *
from tracegrad.ops.windows import *
from tracegrad.prims.elementwise import *

if not TYPE_CHECKING:  # type checkers cannot evaluate this list, and export all that star imports bring
    __all__ = [name for name, x in dict(globals()).items() if hasattr(x, "entry")]
