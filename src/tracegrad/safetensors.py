"""Read and write safetensors files, strictly: nothing of a file is used before all of its header is validated.

Format: 8 bytes little-endian header length, a JSON header, then the bytes of the tensors without gaps.
Source: https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, cast

from tracegrad.arrays import np
from tracegrad.errors import DTypeError, InputError

Array = Any
MAX_HEADER = 100_000_000  # bytes; the reference implementation refuses more
READS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "u1"}
WRITES = {"float32": "F32", "int32": "I32"}


class File(NamedTuple):
    """What a safetensors file holds."""

    tensors: dict[str, Array]
    metadata: dict[str, str]


class _Entry(NamedTuple):
    """One tensor of a header."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    begin: int
    end: int


def read(path: str | os.PathLike[str]) -> File:
    """The tensors and the metadata of a file.

    Returns: arrays of the file's dtype and shape; BF16 as float32, which holds every such value.
    Raises:  InputError for anything the format forbids; FileNotFoundError and the like from the system.
    """
    with open(path, "rb") as f:
        size = os.fstat(f.fileno()).st_size
        try:
            entries, metadata, start = _header(f, size)
            f.seek(start)
            data = f.read(size - start)
            if len(data) != size - start:
                raise InputError("the file became shorter while it was read")
            return File({e.name: _array(e, data) for e in entries}, metadata)
        except InputError as e:
            raise InputError(f"{os.fspath(path)} is not a valid safetensors file: {e}") from None


def write(
    path: str | os.PathLike[str], tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Write float32 and int32 arrays, in the order given. The file appears whole or not at all.

    Raises: DTypeError for other dtypes; InputError for metadata that is not text.
    """
    replace_file(path, parts(tensors, metadata))


def parts(tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> list[bytes]:
    """What `write` writes, in order."""
    header: dict[str, Any] = {}
    if metadata:
        if not all(isinstance(k, str) and isinstance(v, str) for k, v in metadata.items()):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError("the metadata of a safetensors file maps text to text")
        header["__metadata__"] = dict(metadata)
    blobs: list[bytes] = []
    offset = 0
    for name, value in tensors.items():
        x = np.asarray(value)
        if x.dtype.name not in WRITES:
            raise DTypeError(f"{name}: {x.dtype.name} is not written; use float32 or int32")
        if name == "__metadata__":
            raise InputError("a tensor cannot be named __metadata__")
        blob = x.astype(x.dtype.newbyteorder("<"), order="C").tobytes()
        header[name] = {
            "dtype": WRITES[x.dtype.name],
            "shape": list(x.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        offset += len(blob)
        blobs.append(blob)
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # the data begin at a multiple of 8
    return [len(text).to_bytes(8, "little"), text, *blobs]


def replace_file(path: str | os.PathLike[str], parts: Iterable[bytes]) -> None:
    """Write a file so that a crash leaves the old one or the new one, never half of it."""
    target = os.path.realpath(path)
    folder = os.path.dirname(target)
    if not os.path.isdir(folder):
        raise FileNotFoundError(errno.ENOENT, "no such folder to write to", folder)
    partial = f"{target}.{os.urandom(4).hex()}.part"
    try:
        with open(partial, "xb") as f:
            f.writelines(parts)
            f.flush()
            os.fsync(f.fileno())
        os.replace(partial, target)
    except BaseException:
        if os.path.exists(partial):
            os.unlink(partial)
        raise


def _header(f: Any, size: int) -> tuple[list[_Entry], dict[str, str], int]:
    """The validated entries, the metadata, and where the data begin."""
    if size < 8:
        raise InputError(f"{size} bytes are too short for the header's length")
    length = int.from_bytes(f.read(8), "little")
    if length > MAX_HEADER or 8 + length > size:
        raise InputError(f"the header is said to have {length} bytes, the file has {size}")
    text = f.read(length)
    if not text.startswith(b"{"):
        raise InputError("the header does not begin with {")
    try:
        parsed = json.loads(text.decode("utf-8"), object_pairs_hook=_no_duplicates)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError, ValueError) as e:
        if isinstance(e, InputError):
            raise
        raise InputError(f"the header is not JSON: {e}") from None
    header = cast("dict[str, Any]", parsed)
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in cast("dict[str, Any]", metadata).values()):
        raise InputError("__metadata__ does not map text to text")
    entries = [_entry(name, info) for name, info in header.items()]
    _check_layout(entries, size - 8 - length)
    return entries, cast("dict[str, str]", metadata), 8 + length


def _no_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    out = dict(pairs)
    if len(out) != len(pairs):
        names = [name for name, _ in pairs]
        raise InputError(f"the header names {next(n for n in names if names.count(n) > 1)!r} twice")
    return out


def _entry(name: str, info: Any) -> _Entry:
    if not isinstance(info, dict) or set(cast("dict[str, Any]", info)) != {"dtype", "shape", "data_offsets"}:
        raise InputError(f"{name}: an entry has exactly dtype, shape and data_offsets")
    row = cast("dict[str, Any]", info)
    dtype, shape, offsets = row["dtype"], row["shape"], row["data_offsets"]
    if not isinstance(dtype, str) or dtype not in READS:
        raise InputError(f"{name}: dtype {dtype!r} is not one of {', '.join(READS)}")
    if not _naturals(shape):
        raise InputError(f"{name}: shape {shape!r} is not a list of sizes")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise InputError(f"{name}: data_offsets {offsets!r} are not [begin, end]")
    needed = math.prod(shape) * np.dtype(READS[dtype]).itemsize
    if offsets[1] - offsets[0] != needed:
        raise InputError(f"{name}: {dtype}{shape} takes {needed} bytes, its offsets give {offsets[1] - offsets[0]}")
    return _Entry(name, dtype, tuple(shape), offsets[0], offsets[1])


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in cast("list[Any]", value))


def _check_layout(entries: list[_Entry], available: int) -> None:
    """The tensors must cover the data exactly: no overlap, no gap, nothing left over."""
    at = 0
    for e in sorted(entries, key=lambda e: (e.begin, e.end)):
        if e.end > available:
            raise InputError(f"{e.name}: its bytes end at {e.end}, the data have {available}")
        if e.begin != at:
            what = "overlap those of another tensor" if e.begin < at else "leave a gap"
            raise InputError(f"{e.name}: its bytes begin at {e.begin} and {what}; expected {at}")
        at = e.end
    if at != available:
        raise InputError(f"{available - at} bytes after the last tensor belong to none")


def _array(e: _Entry, data: bytes) -> Array:
    x = np.frombuffer(data, dtype=READS[e.dtype], count=math.prod(e.shape), offset=e.begin).reshape(e.shape)
    if e.dtype == "BF16":
        return (x.astype(np.uint32) << 16).view(np.float32)
    if e.dtype == "BOOL":
        if x.size and int(x.max()) > 1:
            raise InputError(f"{e.name}: a BOOL byte is {int(x.max())}")
        return x.astype(np.bool_)
    return x.astype(x.dtype.newbyteorder("="))
