"""Reading is strict, writing is atomic, and both agree with the format."""

from __future__ import annotations

import json
import math
import os
import tempfile
import time
import tracemalloc
import zipfile

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tracegrad import safetensors
from tracegrad.errors import DTypeError, InputError


def raw(path, header, data=b"", length=None):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes((len(text) if length is None else length).to_bytes(8, "little") + text + data)
    return path


def entry(dtype="F32", shape=(1,), begin=0, end=4):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": [begin, end]}


def test_round_trip_keeps_arrays_and_metadata(tmp_path):
    tensors = {
        "l1.W": np.arange(6, dtype=np.float32).reshape(2, 3),
        "scalar": np.float32(-0.0),
        "empty": np.zeros((0, 3), np.float32),
        "ids": np.array([-1, 2**31 - 1], np.int32),
        "strided": np.arange(8, dtype=np.float32).reshape(2, 4).T,
        "naïve/名": np.float32([np.nan, np.inf]),
    }
    safetensors.write(tmp_path / "a", tensors, {"step": "3"})
    file = safetensors.read(tmp_path / "a")
    assert file.metadata == {"step": "3"} and list(file.tensors) == list(tensors)
    for name, x in tensors.items():
        got = file.tensors[name]
        assert got.dtype == x.dtype and got.shape == x.shape and got.tobytes() == np.ascontiguousarray(x).tobytes()
        assert got.flags.writeable
    data = (tmp_path / "a").read_bytes()
    assert int.from_bytes(data[:8], "little") % 8 == 0


@pytest.mark.parametrize(
    ("dtype", "array"),
    [
        ("F16", np.float16([1.5, -2])), ("F64", np.float64([1e300, 2])), ("I64", np.int64([2**40, -1])),
        ("U8", np.uint8([0, 255])), ("BOOL", np.bool_([True, False])), ("I32", np.int32([1, 2])),
    ],
)  # fmt: skip
def test_other_dtypes_are_read(tmp_path, dtype, array):
    path = raw(tmp_path / "a", {"x": entry(dtype, array.shape, 0, array.nbytes)}, array.tobytes())
    got = safetensors.read(path).tensors["x"]
    assert got.dtype == array.dtype
    np.testing.assert_array_equal(got, array)


def test_bf16_is_read_as_f32(tmp_path):
    bits = np.array([0x3F80, 0xC000, 0x7F80], "<u2")
    path = raw(tmp_path / "a", {"x": entry("BF16", (3,), 0, 6)}, bits.tobytes())
    np.testing.assert_array_equal(safetensors.read(path).tensors["x"], np.float32([1, -2, np.inf]))


def test_agrees_with_the_reference_implementation(tmp_path):
    reference = pytest.importorskip("safetensors.numpy")
    x = {"a": np.arange(5, dtype=np.float32), "b": np.int32([[1], [2]])}
    safetensors.write(tmp_path / "ours", x, {"k": "v"})
    for name, got in reference.load_file(tmp_path / "ours").items():
        np.testing.assert_array_equal(got, x[name])
    reference.save_file(x, tmp_path / "theirs", {"k": "v"})
    file = safetensors.read(tmp_path / "theirs")
    assert file.metadata == {"k": "v"}
    for name, got in file.tensors.items():
        np.testing.assert_array_equal(got, x[name])


def test_a_file_of_torch_save_is_named(tmp_path) -> None:
    with zipfile.ZipFile(tmp_path / "w.pt", "w") as f:
        f.writestr("data.pkl", b"")
    with pytest.raises(InputError, match=r"w\.pt .* ZIP archive, as torch\.save writes; write tg\.from_torch"):
        safetensors.read(tmp_path / "w.pt")


BAD = [
    ("too short", b"1234", None),
    ("header claims", {}, 10**6),
    ("header claims", {}, 2**63),
    ("does not begin with", b"[1]", None),
    ("not JSON", b'{"a": ', None),
    ("not JSON", b'{"a": "\xff"}', None),
    ("nested more than 3 levels", b'{"a":' + b"[" * 100000 + b"}", None),
    ("twice", b'{"x":1,"x":1}', None),
    ("exactly dtype", {"x": 3}, None),
    ("exactly dtype", {"x": {"dtype": "F32", "shape": [1]}}, None),
    ("exactly dtype", {"x": {**entry(), "more": 1}}, None),
    ("dtype 'F8' is not one of", {"x": entry("F8")}, None),
    ("shape .* is not a list", {"x": entry(shape=[-1])}, None),
    ("shape .* is not a list", {"x": entry(shape=[1.0])}, None),
    ("shape .* is not a list", {"x": entry(shape=[True])}, None),
    ("not .begin, end.", {"x": entry(begin=4, end=0)}, None),
    ("not .begin, end.", {"x": {**entry(), "data_offsets": [0]}}, None),
    ("takes 8 bytes", {"x": entry(shape=(2,))}, None),
    ("takes 4000000000000000000000000 bytes", {"x": entry(shape=(10**24,))}, None),
    ("end at 8", {"x": entry(begin=4, end=8)}, None),
    ("overlap", {"x": entry(), "y": entry()}, None),
    ("follow the last tensor", {}, None),
    ("not map text", {"__metadata__": {"a": 1}, "x": entry()}, None),
    ("not map text", {"__metadata__": 3, "x": entry()}, None),
    ("not map text", {"__metadata__": {"a": {"b": "c"}}, "x": entry()}, None),
    ("has 65 axes; the limit is 64", {"x": entry(shape=(1,) * 65)}, None),
    ("has 100000 axes", {"x": entry(shape=(10**18,) * 100_000)}, None),
    ("sizes that no array can have", {"x": entry(shape=(0, 10**20), end=0), "y": entry()}, None),
    ("sizes that no array can have", {"x": entry(shape=(2**62, 0, 2**62), end=0), "y": entry()}, None),
    ("takes a number of thousands of digits", {"x": entry(shape=(10**4000, 10**4000))}, None),
    ("end at 1000000000004", {"x": entry(begin=10**12, end=10**12 + 4)}, None),
    ("is a list of 100000|a list of 100000 is not", {"x": entry(shape=[-1] * 100_000)}, None),
    ("'dtype' twice", b'{"x":{"dtype":"F32","dtype":"I32","shape":[1],"data_offsets":[0,4]}}', None),
    ("'a' twice", b'{"__metadata__":{"a":"b","a":"c"}}', None),
    ("not JSON", b'{"\\ud800":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}}', None),
    ("holds NaN", b'{"x":{"dtype":"F32","shape":[NaN],"data_offsets":[0,4]}}', None),
    ("digits", b'{"x":{"dtype":"F32","shape":[' + b"1" * 5000 + b'],"data_offsets":[0,4]}}', None),
]


@pytest.mark.parametrize(("message", "header", "length"), BAD)
def test_bad_files_are_refused(tmp_path, message, header, length):
    path = raw(tmp_path / "a", header, b"\0" * 4, length)
    if header == b"1234":
        path.write_bytes(header)
    with pytest.raises(InputError, match=message) as e:
        safetensors.read(path)
    assert str(path) in str(e.value) and len(str(e.value)) < 500 + len(str(path))


@pytest.mark.parametrize(
    "header",
    [
        b"{" + b",".join(b'"x":1' for _ in range(200_000)) + b"}",  # one name, again and again
        b"{" + b",".join(b'"%d":1,"%d":1' % (k, k) for k in range(80_000)) + b"}",
        b'{"a":' + b"[" * 300_000,
        b'{"' + b'\\"' * 200_000,
        json.dumps({str(k): entry(begin=0) for k in range(4000)}).encode(),  # all in one place
        json.dumps({str(k): entry(begin=4 * k, end=4 * k + 4) for k in range(4000, 0, -1)}).encode(),
    ],
    ids=["one name", "pairs", "nested", "quotes", "overlaps", "backwards"],
)
def test_refusing_takes_time_and_memory_in_proportion_to_the_file(tmp_path, header):
    path = raw(tmp_path / "a", header, b"\0" * 4)
    tracemalloc.start()
    began = time.process_time()
    try:
        with pytest.raises(InputError):
            safetensors.read(path)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert time.process_time() - began < 5 and peak < 40 * len(header)


def test_reading_takes_no_more_memory_than_the_file(tmp_path):
    safetensors.write(tmp_path / "a", {str(k): np.zeros((250, 1000), np.float32) for k in range(8)})
    size = (tmp_path / "a").stat().st_size
    tracemalloc.start()
    try:
        file = safetensors.read(tmp_path / "a")
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(x.nbytes for x in file.tensors.values()) == 8_000_000 and peak < size + 100_000


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,) * 64, (2,) * 20, (0, 2**40)])
def test_shapes_that_arrays_can_have_are_read(tmp_path, shape):
    size = 4 * math.prod(shape)
    path = raw(tmp_path / "a", {"x": entry(shape=shape, end=size)}, bytes(size))
    assert safetensors.read(path).tensors["x"].shape == shape


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_what_is_read_is_what_the_reference_implementation_reads(data):
    """Files of random headers, most with a fault: what we take, it takes, and as the same arrays."""
    reference = pytest.importorskip("safetensors.numpy")
    blob = data.draw(hostile_files())
    with tempfile.NamedTemporaryFile() as f:
        f.write(blob)
        f.flush()
        try:
            ours = safetensors.read(f.name)
        except InputError:
            return
    theirs = reference.load(blob)
    assert theirs.keys() == ours.tensors.keys()
    for name, x in ours.tensors.items():
        assert x.shape == theirs[name].shape and x.tobytes() == theirs[name].tobytes()


@st.composite
def hostile_files(draw):
    """Bytes of a file: tensors one behind the other, then some changes."""
    sizes = {"F32": 4, "I32": 4, "F16": 2, "F64": 8, "I64": 8, "U8": 1, "U16": 2}
    names = draw(st.lists(st.text(max_size=4), max_size=4, unique=True))
    rows, at = [], 0
    for name in names:
        dtype = draw(st.sampled_from(list(sizes)))
        shape = draw(st.lists(st.integers(0, 3), max_size=3))
        size = sizes[dtype] * math.prod(shape)
        rows.append([name, {"dtype": dtype, "shape": shape, "data_offsets": [at, at + size]}])
        at += size
    for _ in range(draw(st.integers(0, 2))):
        if rows:
            row = draw(st.sampled_from(rows))[1]
            field = draw(st.sampled_from(list(row)))
            odd = st.sampled_from([[], [0], [2**64], [0, 2**63], [-1], 4, "F32", "BOOL", None, [0, 4], [4, 4], {}])
            row[field] = draw(odd)
    if rows and draw(st.booleans()):
        draw(st.randoms()).shuffle(rows)
    text = "{" + ",".join(f"{json.dumps(n, ensure_ascii=False)}:{json.dumps(r)}" for n, r in rows) + "}"
    header = (text + " " * draw(st.integers(0, 3))).encode("utf-8", "surrogatepass")
    length = len(header) + draw(st.sampled_from([0, 0, 0, 0, 1, -1, 2**40]))
    return max(length, 0).to_bytes(8, "little") + header + bytes(range(256))[:at].ljust(at, b"\1")


def test_gaps_and_bad_booleans_are_refused(tmp_path):
    with pytest.raises(InputError, match="gap"):
        safetensors.read(raw(tmp_path / "a", {"x": entry(begin=4, end=8)}, b"\0" * 8))
    with pytest.raises(InputError, match="BOOL byte is 2"):
        safetensors.read(raw(tmp_path / "a", {"x": entry("BOOL", (1,), 0, 1)}, b"\2"))


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 200), st.integers(0, 255), st.integers(0, 200))
def test_a_damaged_file_never_gives_anything_but_an_input_error(tmp_path_factory, at, byte, cut):
    path = tmp_path_factory.mktemp("d") / "a"
    safetensors.write(path, {"a": np.float32([1, 2]), "b": np.int32([3])}, {"k": "v"})
    data = bytearray(path.read_bytes())
    data[at % len(data)] = byte
    path.write_bytes(bytes(data[: len(data) - (cut if cut < 20 else 0)]))
    try:
        file = safetensors.read(path)
    except InputError:
        return
    assert all(x.dtype.kind in "fiub" for x in file.tensors.values())


def test_writing_is_atomic_and_refuses_other_dtypes(tmp_path):
    path = tmp_path / "a"
    safetensors.write(path, {"x": np.float32([1])})
    before = path.read_bytes()
    with pytest.raises(DTypeError, match="x: float64 cannot be written"):
        safetensors.write(path, {"x": np.float64([1])})
    with pytest.raises(InputError, match="keys and values of type str"):
        safetensors.write(path, {"x": np.float32([1])}, {"step": 3})
    with pytest.raises(InputError, match="__metadata__"):
        safetensors.write(path, {"__metadata__": np.float32([1])})
    assert path.read_bytes() == before and os.listdir(tmp_path) == ["a"]


def test_a_failed_write_leaves_the_old_file(tmp_path, monkeypatch):
    path = tmp_path / "a"
    safetensors.write(path, {"x": np.float32([1])})
    monkeypatch.setattr(os, "replace", lambda *_: (_ for _ in ()).throw(OSError("disk full")))
    with pytest.raises(OSError, match="disk full"):
        safetensors.write(path, {"x": np.float32([2])})
    assert os.listdir(tmp_path) == ["a"] and safetensors.read(path).tensors["x"][0] == 1


def test_a_link_is_followed(tmp_path):
    (tmp_path / "real").write_bytes(b"")
    (tmp_path / "link").symlink_to(tmp_path / "real")
    safetensors.write(tmp_path / "link", {"x": np.float32([1])})
    assert (tmp_path / "link").is_symlink() and safetensors.read(tmp_path / "real").tensors["x"][0] == 1
