"""Event files of TensorBoard: records of scalars, written without TensorBoard."""

from __future__ import annotations

import itertools
import math
import os
import platform
import struct
import time
from pathlib import Path
from typing import BinaryIO

POLYNOMIAL = 0x82F63B78  # of CRC-32C, bits reversed
MASK = 0xA282EAD8  # TFRecord adds it to a rotated CRC, because plain CRCs of data that contain CRCs are unreliable
FLUSH_SECONDS = 2.0
VARINT, DOUBLE, BYTES, FLOAT = 0, 1, 2, 5  # wire types of protocol buffers
_numbers = itertools.count()


def _rest(k: int) -> int:
    for _ in range(8):
        k = k >> 1 ^ (POLYNOMIAL if k & 1 else 0)
    return k


TABLE = [_rest(k) for k in range(256)]


def checksum(data: bytes) -> int:
    """Return the masked CRC-32C of `data`, as TFRecord files have it."""
    c = 0xFFFFFFFF
    for byte in data:
        c = c >> 8 ^ TABLE[(c ^ byte) & 255]
    c ^= 0xFFFFFFFF
    return ((c >> 15 | c << 17) + MASK) & 0xFFFFFFFF


def record(data: bytes) -> bytes:
    """Return `data` as one record of a TFRecord file."""
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", checksum(length)) + data + struct.pack("<I", checksum(data))


def _varint(n: int) -> bytes:
    out = bytearray()
    while n > 127:
        out.append(n & 127 | 128)
        n >>= 7
    return bytes([*out, n])


def _field(number: int, wire: int, data: bytes) -> bytes:
    return _varint(number << 3 | wire) + (_varint(len(data)) if wire == BYTES else b"") + data


def _f32(value: float) -> bytes:
    try:
        return struct.pack("<f", value)
    except OverflowError:  # finite, and beyond f32
        return struct.pack("<f", math.copysign(math.inf, value))


def scalar(tag: str, value: float, step: int, seconds: float) -> bytes:
    """Return the message tensorflow.Event of one scalar."""
    one = _field(1, BYTES, tag.encode()) + _field(2, FLOAT, _f32(value))
    return (
        _field(1, DOUBLE, struct.pack("<d", seconds)) + _field(2, VARINT, _varint(step))
        + _field(5, BYTES, _field(1, BYTES, one))
    )  # fmt: skip


class EventFile:
    """A new event file in `folder`, which is made if it does not exist."""

    def __init__(self, folder: Path):
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        host = platform.node() or "host"
        self.path = folder / f"events.out.tfevents.{int(now)}.{host}.{os.getpid()}.{next(_numbers)}"
        self._file: BinaryIO = open(self.path, "wb")  # noqa: SIM115 (closed by close)
        self._flushed = now
        begin = _field(1, DOUBLE, struct.pack("<d", now)) + _field(3, BYTES, b"brain.Event:2")
        self._file.write(record(begin))

    def write(self, tag: str, value: float, step: int) -> None:
        """Write one scalar."""
        now = time.time()
        self._file.write(record(scalar(tag, value, step, now)))
        if now - self._flushed >= FLUSH_SECONDS:
            self.flush()

    def flush(self) -> None:
        """Flush the file, so that TensorBoard sees all records."""
        self._flushed = time.time()
        self._file.flush()

    def close(self) -> None:
        """Write what is left, and close the file."""
        self._file.close()
