"""The public functions on tensors, one file per group. `tg.` re-exports all of them."""

from tracegrad.ops import (
    activation,
    constants,
    control,
    convolutions,
    cumulative,
    distances,
    gamma,
    images,
    indexing,
    joining,
    linalg,
    losses,
    math,
    random,
    reduction,
    resampling,
    sampling,
    segments,
    shaping,
    sorting,
    trigonometry,
    windows,
)
from tracegrad.ops import attention as heads  # the module has the same name as its function
from tracegrad.ops import norm as norms  # the module has the same name as a function of another module
from tracegrad.ops.activation import *
from tracegrad.ops.attention import *
from tracegrad.ops.constants import *
from tracegrad.ops.control import *
from tracegrad.ops.convolutions import *
from tracegrad.ops.cumulative import *
from tracegrad.ops.distances import *
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
from tracegrad.ops.sampling import *
from tracegrad.ops.segments import *
from tracegrad.ops.shaping import *
from tracegrad.ops.sorting import *
from tracegrad.ops.trigonometry import *
from tracegrad.ops.windows import *
from tracegrad.prims import elementwise
from tracegrad.prims.elementwise import *

__all__: list[str] = []
__all__ += elementwise.__all__
__all__ += activation.__all__
__all__ += heads.__all__
__all__ += constants.__all__
__all__ += control.__all__
__all__ += convolutions.__all__
__all__ += cumulative.__all__
__all__ += distances.__all__
__all__ += gamma.__all__
__all__ += images.__all__
__all__ += indexing.__all__
__all__ += joining.__all__
__all__ += linalg.__all__
__all__ += losses.__all__
__all__ += math.__all__
__all__ += norms.__all__
__all__ += random.__all__
__all__ += reduction.__all__
__all__ += resampling.__all__
__all__ += sampling.__all__
__all__ += segments.__all__
__all__ += shaping.__all__
__all__ += sorting.__all__
__all__ += trigonometry.__all__
__all__ += windows.__all__
