"""The public functions on tensors, one file a group; `tg.` re-exports them all."""

from tracegrad.ops import (
    activation,
    constants,
    control,
    images,
    indexing,
    linalg,
    losses,
    math,
    norm,
    random,
    reduction,
    shaping,
    windows,
)
from tracegrad.ops import attention as heads  # the module has the name of its function
from tracegrad.ops.activation import *
from tracegrad.ops.attention import *
from tracegrad.ops.constants import *
from tracegrad.ops.control import *
from tracegrad.ops.images import *
from tracegrad.ops.indexing import *
from tracegrad.ops.linalg import *
from tracegrad.ops.losses import *
from tracegrad.ops.math import *
from tracegrad.ops.norm import *
from tracegrad.ops.random import *
from tracegrad.ops.reduction import *
from tracegrad.ops.shaping import *
from tracegrad.ops.windows import *
from tracegrad.prims import elementwise
from tracegrad.prims.elementwise import *

__all__: list[str] = []
__all__ += elementwise.__all__
__all__ += activation.__all__
__all__ += heads.__all__
__all__ += constants.__all__
__all__ += control.__all__
__all__ += images.__all__
__all__ += indexing.__all__
__all__ += linalg.__all__
__all__ += losses.__all__
__all__ += math.__all__
__all__ += norm.__all__
__all__ += random.__all__
__all__ += reduction.__all__
__all__ += shaping.__all__
__all__ += windows.__all__
