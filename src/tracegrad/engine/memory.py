"""Memory for copies of large inputs, used again: the system's fresh pages cost more than the copying."""

from __future__ import annotations

from collections import deque
from typing import Any

from tracegrad.arrays import HAVE_NUMPY, np

Array = Any
LARGE = 1 << 16  # bytes: smaller memory comes back from the allocator as it was
KEPT = 32 << 20  # bytes of one size that are kept while nobody has them


class CopyPool:
    """Copies whose memory is used again once nobody has them, nor any view of them. For any thread."""

    def __init__(self) -> None:
        self._free: dict[int, deque[Array]] = {}  # by size

    def copied(self, x: Array) -> Array:
        """`x` as a contiguous array of its own."""
        if not HAVE_NUMPY or x.nbytes < LARGE:
            return np.array(x, order="C", copy=True)
        free = self._free.setdefault(x.nbytes, deque(maxlen=KEPT // x.nbytes))
        try:
            memory = free.pop()
        except IndexError:
            memory = np.empty(x.nbytes, np.uint8)
        out = np.asarray(_Lease(memory, free)).view(x.dtype).reshape(x.shape)
        out[...] = x
        return out


class _Lease:
    """What an array and all its views hold instead of their memory, and what ends with the last of them."""

    __slots__ = ("__array_interface__", "_free", "_memory")

    def __init__(self, memory: Array, free: deque[Array]) -> None:
        self._memory, self._free = memory, free
        self.__array_interface__ = memory.__array_interface__

    def __del__(self) -> None:
        self._free.append(self._memory)
