"""Reuse memory for copies of large inputs and for large results: fresh pages from the system cost more than copying.

C kernels can read the memory around each array, so they can compute on the array itself.
"""

from __future__ import annotations

import math
from collections import deque
from sys import getrefcount
from typing import Any

from tracegrad.arrays import HAVE_NUMPY, Array, np
from tracegrad.runtime.memory import AROUND, between_margins
from tracegrad.tuning import POOL_BYTES, POOL_FROM, POOL_LOOKS, POOL_PIECES, POOL_SIZES


class CopyPool:
    """Arrays whose memory is reused once no reference to the array or a view of it is left. Any thread can use a pool.

    A view holds a reference to the array whose memory it uses, so the reference count of that array shows whether its
    memory is free. A finalizer for each view would cost as much as all other work on an array of a few hundred
    kilobytes.
    """

    def __init__(self) -> None:
        self._kept: dict[int, deque[Array]] = {}  # by size, the next one to check first

    def copied(self, x: Array) -> Array:
        """Return `x` as a contiguous array with memory of its own."""
        if not HAVE_NUMPY or x.nbytes < POOL_FROM:
            return np.array(x, order="C", copy=True)
        out = self.empty(x.shape, x.dtype)
        out[...] = x
        return out

    def rows(self, x: Array, at: Array) -> Array:
        """Return the rows `x[at]`. All indices in `at` must be valid."""
        shape = (len(at), *x.shape[1:])
        if not HAVE_NUMPY or math.prod(shape) * x.itemsize < POOL_FROM:
            return x[at]
        return np.take(x, at, axis=0, out=self.empty(shape, x.dtype), mode="clip")  # mode="raise" would copy once more

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Array:
        """Return an array of any values, between margins."""
        size = math.prod(shape) * dtype.itemsize
        return between_margins(self._memory(size), size).view(dtype).reshape(shape)

    def clear(self) -> None:
        """Keep no memory any more. Arrays in use stay valid."""
        self._kept.clear()

    def _memory(self, size: int) -> Array:
        kept = self._kept.get(size)
        if kept is None:
            if len(self._kept) >= POOL_SIZES:
                self._kept.clear()
            most = max(POOL_PIECES, POOL_BYTES // size) if size <= POOL_BYTES else 0
            kept = self._kept.setdefault(size, deque(maxlen=most))
        for _ in range(min(len(kept), POOL_LOOKS)):
            memory = _next_if_free(kept, ALONE)
            if memory is not None:
                return memory
        memory = np.empty(size + AROUND, np.uint8)
        if len(kept) < (kept.maxlen or 0):
            kept.append(memory)
        return memory


def _next_if_free(kept: deque[Any], alone: int) -> Any:
    """Return the next array of `kept` if it has exactly `alone` references, counted here; else None.

    While this function holds its own reference, other threads count one more, so they do not take the same array.
    """
    x = kept[0]
    kept.rotate(-1)
    return x if getrefcount(x) == alone else None


def _alone() -> int:
    """Return how many references `_next_if_free` sees to a free array, which depends on the interpreter.

    The result is 0 if no number up to 9 fits; then no memory is ever reused.
    """
    kept = deque([object()])
    return next((n for n in range(10) if _next_if_free(kept, n) is not None), 0)


ALONE = _alone()
