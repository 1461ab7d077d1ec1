"""Read and write safetensors files strictly: the whole header is validated before any data are used.

Format: 8 bytes little-endian header length, a JSON header, then the bytes of the tensors without gaps.
Source: https://github.com/huggingface/safetensors
"""

from __future__ import annotations

import math
import os
import sys
import zlib
from collections.abc import Mapping
from io import BufferedReader
from typing import Any, NamedTuple, cast

from tracegrad.arrays import Array, np
from tracegrad.errors import DTypeError, InputError
from tracegrad.files.atomic import open_regular, replace_file
from tracegrad.files.jsontext import dumped, parse, shown

MAX_HEADER = 100_000_000  # bytes; the reference implementation has the same limit
MAX_RANK = 64  # NumPy's limit on axes
DEEPEST = 3  # levels of nesting: the header, an entry, its shape
SUM = "tracegrad_crc32"  # the entry of the metadata with the checksum of all else; files without it are read unchecked
READS = {"F32": "<f4", "F16": "<f2", "BF16": "<u2", "F64": "<f8", "I64": "<i8", "I32": "<i4", "U8": "u1", "BOOL": "u1"}
WRITES = {"float32": "F32", "int32": "I32"}


class File(NamedTuple):
    """The contents of a safetensors file."""

    tensors: dict[str, Array]
    metadata: dict[str, str]


class Entry(NamedTuple):
    """One tensor of a header, with its bytes from `begin` to `end` of the data."""

    begin: int  # first, so that entries sort by their places
    end: int
    name: str
    dtype: str
    shape: tuple[int, ...]


def read(path: str | os.PathLike[str]) -> File:
    """Read the tensors and the metadata of a file.

    The whole header is checked before any tensor is read: its size and nesting, names, keys and dtypes. Shapes have at
    most 64 axes, and offsets cover the data exactly. The arrays take no more memory than the file, except that
    BF16 is read as float32.

    Returns: arrays of the file's dtype and shape; BF16 as float32, which represents every BF16 value.
    Raises:  InputError for anything the format forbids, for checkpoints that do not fit their checksum, and for pipes
             and devices; FileNotFoundError and the like from the system.
    """
    entries, metadata, found = _read(path, True)
    tensors = {e.name: found[e.name] for e in entries}
    if SUM in metadata and metadata[SUM] != checksum(tensors, metadata):
        raise InputError(
            f"{os.fspath(path)} is damaged or was changed; if you did that, take {SUM} out of its metadata"
        )
    return File(tensors, metadata)


def read_header(path: str | os.PathLike[str]) -> tuple[list[Entry], dict[str, str]]:
    """Read names, dtypes and shapes of the tensors, and the metadata, but no values. Checks and raises as `read`."""
    return _read(path, False)[:2]


def _read(path: str | os.PathLike[str], values: bool) -> tuple[list[Entry], dict[str, str], dict[str, Array]]:
    """Return the entries, the metadata, and the arrays if `values` are wanted."""
    with open_regular(path) as f:
        try:
            entries, metadata, start = _header(f, os.fstat(f.fileno()).st_size)
            f.seek(start)
            return entries, metadata, {e.name: _array(e, f) for e in sorted(entries)} if values else {}
        except InputError as e:
            raise InputError(f"{os.fspath(path)} is not a valid safetensors file: {e}") from None


def checksum(tensors: Mapping[str, Array], metadata: Mapping[str, str]) -> str:
    """Return the CRC-32 of names, shapes, values and metadata without `SUM`, in an order that all writers use."""
    total = zlib.crc32(dumped(sorted((k, v) for k, v in metadata.items() if k != SUM)).encode())
    for name, x in sorted((str(n), np.asarray(x)) for n, x in tensors.items()):
        total = zlib.crc32(_stored(x).reshape(-1), zlib.crc32(dumped([name, *x.shape]).encode(), total))
    return str(total)


def _stored(x: Array) -> Array:
    """Return an array in the layout of files. It is copied only if its layout in memory is another one."""
    return x.astype(x.dtype.newbyteorder("<"), order="C", copy=False)


def write(
    path: str | os.PathLike[str], tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None
) -> None:
    """Write float32 and int32 arrays in the given order. The file is written completely or not at all.

    Raises: DTypeError for other dtypes; InputError for metadata that is not text, and for tensors that are not a dict;
            OSError, with the old file unchanged.
    """
    replace_file(path, parts(tensors, metadata))


def parts(tensors: Mapping[str, Array], metadata: Mapping[str, str] | None = None) -> list[bytes]:
    """Return the bytes that `write` writes, in order. Raises DTypeError and InputError as `write`."""
    if not isinstance(tensors, Mapping):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise InputError.here(
            f"safetensors.write: tensors must be a dict of arrays by name, got {type(tensors).__name__}"
        )
    header: dict[str, Any] = {}
    if metadata:
        if not all(isinstance(k, str) and isinstance(v, str) for k, v in metadata.items()):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise InputError("metadata must be a dict with keys and values of type str")
        header["__metadata__"] = dict(metadata)
    blobs: list[bytes] = []
    offset = 0
    for name, value in tensors.items():
        x = np.asarray(value)
        if x.dtype.name not in WRITES:
            raise DTypeError(f"{name}: {x.dtype.name} cannot be written; convert it to float32 or int32")
        if name == "__metadata__":
            raise InputError("a tensor cannot be named __metadata__")
        blob = _stored(x).tobytes()
        header[name] = {
            "dtype": WRITES[x.dtype.name],
            "shape": list(x.shape),
            "data_offsets": [offset, offset + len(blob)],
        }
        offset += len(blob)
        blobs.append(blob)
    try:
        if metadata and SUM in metadata:
            header["__metadata__"][SUM] = checksum(tensors, metadata)
        text = dumped(header, separators=(",", ":"), ensure_ascii=False).encode()
    except UnicodeEncodeError as e:
        raise InputError(f"names and metadata must be text that UTF-8 can hold: {e}") from None
    text += b" " * (-len(text) % 8)  # the data begin at a multiple of 8
    return [len(text).to_bytes(8, "little"), text, *blobs]


def _header(f: BufferedReader, size: int) -> tuple[list[Entry], dict[str, str], int]:
    """Return the validated entries, the metadata, and the offset of the data."""
    if size < 8:
        raise InputError(f"{size} bytes are too short for the header's length")
    head = f.read(8)
    if head.startswith(b"PK\x03\x04"):
        raise InputError("it is a ZIP archive, as torch.save writes; write tg.from_torch(torch.load(path), train)")
    length = int.from_bytes(head, "little")
    if length > min(MAX_HEADER, size - 8):
        raise InputError(f"the header claims {length} bytes, the file has {size}; the limit is {MAX_HEADER}")
    text = f.read(length)
    if not text.startswith(b"{"):
        raise InputError("the header does not begin with {")
    try:
        header: dict[str, Any] = parse(text, DEEPEST)
    except InputError as e:
        raise InputError(f"the header is not valid: {e}") from None
    metadata = header.pop("__metadata__", {})
    if not isinstance(metadata, dict) or not all(isinstance(v, str) for v in cast("dict[str, Any]", metadata).values()):
        raise InputError("__metadata__ does not map text to text")
    entries = [_entry(name, info) for name, info in header.items()]
    _check_layout(entries, size - 8 - length)
    return entries, cast("dict[str, str]", metadata), 8 + length


def _entry(name: str, info: Any) -> Entry:
    """Validate one entry of the header. Messages are short, however long the entry is."""
    who = shown(name)
    if not isinstance(info, dict) or cast("dict[str, Any]", info).keys() != {"dtype", "shape", "data_offsets"}:
        raise InputError(f"{who}: an entry has exactly dtype, shape and data_offsets")
    row = cast("dict[str, Any]", info)
    dtype, shape, offsets = row["dtype"], row["shape"], row["data_offsets"]
    if not isinstance(dtype, str) or dtype not in READS:
        raise InputError(f"{who}: dtype {shown(dtype)} is not one of {', '.join(READS)}")
    if not _naturals(shape):
        raise InputError(f"{who}: shape {shown(shape)} is not a list of sizes")
    if not _naturals(offsets) or len(offsets) != 2 or offsets[0] > offsets[1]:
        raise InputError(f"{who}: data_offsets {shown(offsets)} are not [begin, end]")
    if len(shape) > MAX_RANK:
        raise InputError(f"{who}: the shape has {len(shape)} axes; the limit is {MAX_RANK}")
    itemsize = np.dtype(READS[dtype]).itemsize
    needed = math.prod(shape) * itemsize
    if offsets[1] - offsets[0] != needed:
        given = shown(offsets[1] - offsets[0])
        raise InputError(f"{who}: {dtype}{shown(shape)} takes {shown(needed)} bytes, its offsets give {given}")
    if math.prod(max(n, 1) for n in shape) * max(itemsize, 4) > sys.maxsize:  # a size of 0 would hide huge other sizes
        raise InputError(f"{who}: the shape {shown(shape)} has sizes that no array can have")
    return Entry(offsets[0], offsets[1], name, dtype, tuple(shape))


def _naturals(value: Any) -> bool:
    return isinstance(value, list) and all(type(n) is int and n >= 0 for n in cast("list[Any]", value))


def _check_layout(entries: list[Entry], available: int) -> None:
    """Check that tensors cover the data without overlap, gap or remainder. Raises InputError otherwise."""
    at = 0
    for e in sorted(entries):
        if e.end > available:
            raise InputError(f"{shown(e.name)}: its bytes end at {shown(e.end)}, the data have {available}")
        if e.begin != at:
            what = "overlap those of another tensor" if e.begin < at else "leave a gap"
            raise InputError(f"{shown(e.name)}: its bytes begin at {e.begin} and {what}; expected {at}")
        at = e.end
    if at != available:
        raise InputError(f"{available - at} bytes follow the last tensor")


def _array(e: Entry, f: BufferedReader) -> Array:
    """Read the tensor whose bytes come next."""
    data = bytearray(e.end - e.begin)  # the array uses this memory
    if f.readinto(data) != len(data):
        raise InputError("the file became shorter while it was read")
    x = np.frombuffer(data, dtype=READS[e.dtype]).reshape(e.shape)
    if e.dtype == "BF16":
        return (x.astype(np.uint32) << 16).view(np.float32)
    if e.dtype == "BOOL":
        if x.size and int(x.max()) > 1:
            raise InputError(f"{shown(e.name)}: a BOOL byte is {int(x.max())}")
        return x.astype(np.bool_)
    return x if sys.byteorder == "little" else x.astype(x.dtype.newbyteorder("="))
