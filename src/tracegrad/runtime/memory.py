"""Convert between arrays and device memory: f32 is unchanged, all else 32-bit integers, booleans 0 and 1."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Mapping
from typing import Any

from tracegrad.arrays import Array, np
from tracegrad.dtypes import DTYPES
from tracegrad.errors import DeviceError
from tracegrad.program import MARGIN, Field

MARGIN_BYTES = 4 * MARGIN
ALIGNED = 64  # bytes of a cache line, and of the longest vectors: a load across two lines takes twice as long
AROUND = MARGIN_BYTES + ALIGNED + MARGIN_BYTES  # bytes that an array needs besides its own


def with_margins(size: int, dtype: Any) -> Array:
    """Return an array of `size` zeros and one zero more, between margins."""
    n = (size + 1) * np.dtype(dtype).itemsize
    return between_margins(np.zeros(n + AROUND, np.uint8), n).view(dtype)


def between_margins(memory: Array, size: int) -> Array:
    """Return `size` bytes of a memory of `size + AROUND`, with a margin on each side; they begin a cache line."""
    first = MARGIN_BYTES + -(address(memory) + MARGIN_BYTES) % ALIGNED
    return memory[first : first + size]


def to_storage(x: Array, dtype: str) -> Array:
    """Convert `x`, of the given dtype, to the flat form that its buffer stores."""
    flat = np.ascontiguousarray(x).reshape(-1)
    if dtype == "u32":
        return flat.view(np.int32)
    return flat.astype(np.int32) if dtype == "bool" else flat


def lying(flat: Array, field: Field) -> Array:
    """Return a view of the values of `field`, given its whole buffer, in the field's shape; booleans are integers."""
    part = np.asarray(flat)[field.offset : field.offset + field.size]
    return in_shape(part.view(np.uint32) if field.dtype == "u32" else part, field)


def view(base: Array, offset: int, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """Return a strided view of a flat array, with strides in elements."""
    # as_strided takes 20 times as long, and loops need many views: 28 000 for an RNN of length 512
    size = base.itemsize
    return np.ndarray(shape, base.dtype, base, size * offset, [size * s for s in strides])


def in_shape(part: Array, field: Field) -> Array:
    """Return a view of a field's elements in memory in the field's shape."""
    k = field.axis
    if not k:
        return part.reshape(field.shape)
    return part.reshape(field.stored).transpose(*range(1, k + 1), 0, *range(k + 1, len(field.shape)))


def address(x: Array) -> int:
    """Return the address of an array. The buffer protocol takes a tenth of the time, but is for writable arrays."""
    try:
        return ctypes.addressof(ctypes.c_char.from_buffer(x))
    except (TypeError, ValueError, BufferError):  # read-only, with gaps, or empty
        return x.__array_interface__["data"][0]


def readable_around(x: Array, dtype: str) -> bool:
    """Return whether C kernels can read the values in place: in a buffer's form for `dtype`, with margins."""
    memory = x.base
    if type(memory) is not np.ndarray or dtype == "bool" or not (x.flags.c_contiguous and x.flags.aligned):
        return False
    if x.dtype != np.dtype(DTYPES[dtype].numpy) or not memory.flags.c_contiguous:
        return False
    before = address(x) - address(memory)
    return before >= MARGIN_BYTES and before + x.nbytes + MARGIN_BYTES <= memory.nbytes


def taken(part: Array, field: Field) -> Array:
    """Return the values in a view as a separate array."""
    return np.array(part != 0 if field.dtype == "bool" else part, dtype=DTYPES[field.dtype].numpy)


def from_storage(flat: Array, field: Field) -> Array:
    """Return the values of `field` from its whole buffer, as a separate array."""
    return taken(lying(flat, field), field)


def check_memory(sizes: Mapping[str, int], what: str) -> None:
    """Refuse sizes that this machine's memory cannot hold: Linux would grant them, then end the process on use.

    sizes:   bytes, by name.
    Raises:  DeviceError with the largest of them.
    """
    needed, most = sum(sizes.values()), host_memory()
    if most is not None and needed > most:
        largest = max(sizes, key=lambda name: sizes[name])
        raise DeviceError(
            f"{what} takes {needed} bytes, the largest part being {largest!r} with {sizes[largest]}; this machine has "
            f"{most} bytes of memory. Use a smaller model or batch"
        )


def host_memory() -> int | None:
    """Return the bytes of memory and swap space that this process can use; None if the system does not report them."""
    if sys.platform == "emscripten":  # a browser's answer is invented
        return None
    try:
        found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):  # Windows
        return None
    try:
        swap = re.search(r"^SwapTotal: *(\d+) kB", _text("/proc/meminfo"), re.MULTILINE)
        found += int(swap[1]) * 1024 if swap else 0
    except (OSError, ValueError):
        pass
    try:
        return min(found, int(_text("/sys/fs/cgroup/memory.max")))
    except (OSError, ValueError):  # no control group, or one without a limit, which has the text "max"
        return found


def _text(path: str) -> str:
    with open(path, encoding="ascii") as f:
        return f.read()
