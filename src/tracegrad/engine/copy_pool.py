"""Memory for copies of large inputs, used again: the system's fresh pages cost more than the copying.

Around each copy is memory that kernels in C may read, so that they can compute on the copy itself.
"""

from __future__ import annotations

from collections import deque
from sys import getrefcount
from typing import Any

from tracegrad.arrays import HAVE_NUMPY, np
from tracegrad.runtime.storage import MARGIN_BYTES
from tracegrad.tuning import POOL_BYTES, POOL_FROM, POOL_LOOKS, POOL_PIECES

Array = Any
ALIGNED = 64  # bytes of a cache line, at the beginning of which a copy lies


class CopyPool:
    """Copies whose memory is used again once no reference is left to them, nor any view of them. For any thread.

    Python knows: an array counts as one user of the array whose memory it has. To watch for the end of a user instead
    would take as long as all else that is done with one of a few hundred kilobytes.
    """

    def __init__(self) -> None:
        self._kept: dict[int, deque[Array]] = {}  # by size, the next to be looked at first

    def copied(self, x: Array) -> Array:
        """`x` as a contiguous array of its own."""
        if not HAVE_NUMPY or x.nbytes < POOL_FROM:
            return np.array(x, order="C", copy=True)
        memory = self._memory(x.nbytes)
        first = MARGIN_BYTES + -(memory.ctypes.data + MARGIN_BYTES) % ALIGNED
        out = memory[first : first + x.nbytes].view(x.dtype).reshape(x.shape)
        out[...] = x
        return out

    def _memory(self, size: int) -> Array:
        kept = self._kept.get(size)
        if kept is None:
            most = max(POOL_PIECES, POOL_BYTES // size) if size <= POOL_BYTES else 0
            kept = self._kept.setdefault(size, deque(maxlen=most))
        for _ in range(min(len(kept), POOL_LOOKS)):
            memory = _next_if_free(kept, ALONE)
            if memory is not None:
                return memory
        memory = np.empty(MARGIN_BYTES + ALIGNED + size + MARGIN_BYTES, np.uint8)
        if len(kept) < (kept.maxlen or 0):
            kept.append(memory)
        return memory


def _next_if_free(kept: deque[Any], alone: int) -> Any:
    """The next of `kept` if only so many references to it are seen from here. What this holds, other threads see."""
    x = kept[0]
    kept.rotate(-1)
    return x if getrefcount(x) == alone else None


def _alone() -> int:
    """How many `_next_if_free` sees of what nobody has: interpreters differ. None, and nothing is ever used again."""
    kept = deque([object()])
    return next((n for n in range(10) if _next_if_free(kept, n) is not None), 0)


ALONE = _alone()
