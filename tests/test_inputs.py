"""Inputs of a call: everything wrong is named at once, and only casts that lose nothing are done."""

from __future__ import annotations

import array
import sys
import threading

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import nn
from tracegrad.engine.inputs import check_inputs, merge
from tracegrad.errors import InputError
from tracegrad.program import Field
from tracegrad.runtime.copy_pool import ALONE, CopyPool
from tracegrad.tuning import POOL_BYTES, POOL_FROM, POOL_SIZES


def f(name="x", dtype="f32", shape=(2,), **spec):
    return Field(name, 0, 0, dtype, shape, spec)


def one(value, **field):
    return check_inputs([f(**field)], {"x": value}, "step")["x"]


@pytest.mark.parametrize(
    ("value", "dtype", "expected"),
    [
        (np.float64([0.1, 2]), "f32", np.float32([0.1, 2])),
        (np.float16([1.5, -2]), "f32", np.float32([1.5, -2])),
        (np.float64([np.nan, np.inf]), "f32", np.float32([np.nan, np.inf])),
        ([1, 2], "f32", np.float32([1, 2])),
        (np.uint8([0, 255]), "f32", np.float32([0, 255])),
        (np.int64([2**24, -(2**30)]), "f32", np.float32([2**24, -(2**30)])),
        (np.bool_([True, False]), "f32", np.float32([1, 0])),
        (np.int64([-5, 2**31 - 1]), "i32", np.int32([-5, 2**31 - 1])),
        (np.uint8([1, 2]), "i32", np.int32([1, 2])),
        ((True, False), "i32", np.int32([1, 0])),
        (np.int64([0, 2**32 - 1]), "u32", np.uint32([0, 2**32 - 1])),
        ([True, False], "bool", np.bool_([True, False])),
        (array.array("f", [1, 2]), "f32", np.float32([1, 2])),
        (memoryview(array.array("i", [1, 2])), "i32", np.int32([1, 2])),
    ],
)
def test_lossless_casts_are_done(value, dtype, expected):
    got = one(value, dtype=dtype)
    assert got.dtype == expected.dtype and got.flags.c_contiguous
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (np.float32([1, 2]), "i32", r"float32 values cannot be converted to i32 without loss; round"),
        ([1.0, 2.0], "u32", "float64 values cannot be converted to u32"),
        (np.int64([2**31, 0]), "i32", "the value 2147483648 of int64 does not fit i32"),
        (np.int64([-1, 0]), "u32", "the value -1 of int64"),
        (np.uint64([2**63, 0]), "i32", "the value 9223372036854775808"),
        ([0, 1], "bool", "compare first"),
        (np.float64([1e300, 0]), "f32", "exceeds the largest f32"),
        (np.int64([2**24 + 1, 0]), "f32", "not exact in f32"),
        (np.int64([2**62 + 1, 0]), "f32", "not exact in f32"),
        ([1j, 2], "f32", "complex128 values cannot be converted to"),
        (["a", "b"], "f32", "cannot be read as an array of numbers"),
        ([None, 2], "f32", "cannot be read as an array of numbers"),
        ([[1, 2], [3]], "f32", "cannot be read as an array"),
        (object(), "f32", "cannot be read"),
    ],
)
def test_other_casts_are_refused(value, dtype, message):
    with pytest.raises(InputError, match=message):
        one(value, dtype=dtype)


def test_everything_wrong_is_named_at_once():
    fields = [f("x"), f("y", "i32"), f("z", shape=(3, 1)), f("missing", shape=())]
    given = {"x": np.zeros(3), "y": np.float32([1, 2]), "z": np.zeros((3, 1)), "extra": 1, "other": 2}
    with pytest.raises(InputError) as e:
        check_inputs(fields, given, "step")
    text = str(e.value)
    for part in (
        "step: 5 problems with the inputs",
        "extra: unknown; inputs are x f32[2], y i32[2], z f32[3,1], missing f32[]",
        "other: unknown",
        "x: expected f32[2], got float64[3]",
        "y: float32 values cannot be converted to i32",
        "missing: missing, expected f32[]",
        "test_inputs.py",
    ):
        assert part in text
    assert "z:" not in text


def test_memory_of_large_copies_is_used_again_when_nobody_has_any_of_it():
    memory = CopyPool()
    x = np.arange(POOL_FROM, dtype=np.float32).reshape(4, -1)
    place = lambda a: a.__array_interface__["data"][0]
    first = memory.copied(x)
    last_row, at = first[3, 1:], place(first)
    np.testing.assert_array_equal(first, x)
    del first
    second = memory.copied(-x.T)  # a view of the first is still held
    assert place(second) != at and second.flags.c_contiguous and second.flags.writeable
    np.testing.assert_array_equal(second, -x.T)
    np.testing.assert_array_equal(last_row, x[3, 1:])
    del last_row
    third = memory.copied(x.view(np.int32))
    assert place(third) == at and third.dtype == np.int32 and third.base is not None
    assert memory.copied(x[0, :8]).base is None  # small ones are plain copies
    many = [memory.copied(x) for _ in range(3 * POOL_BYTES // x.nbytes)]
    del many
    assert sum(len(kept) * size for size, kept in memory._kept.items()) <= POOL_BYTES
    for n in range(3 * POOL_SIZES):
        memory.empty((POOL_FROM + n,), x.dtype)
    assert len(memory._kept) <= POOL_SIZES


def test_no_two_threads_get_the_same_memory():
    shared: list[str] = []

    def copy(memory: CopyPool, k: int) -> None:
        for n in range(40):
            held = [memory.copied(np.full(POOL_FROM, (k + n + i) % 256, np.uint8)) for i in range(3)]
            shared.extend(f"{k} {n} {i}" for i, x in enumerate(held) if (x != (k + n + i) % 256).any())

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for _ in range(10):
            memory = CopyPool()
            threads = [threading.Thread(target=copy, args=(memory, 50 * k)) for k in range(4)]
            for t in threads:
                t.start()
            for t in threads:
                t.join()
    finally:
        sys.setswitchinterval(interval)
    assert not shared and ALONE > 0


def test_the_callers_array_can_be_reused():
    x = np.float32([1, 2])
    got = one(x)
    x[:] = 9
    np.testing.assert_array_equal(got, [1, 2])


def test_index_ranges_name_value_place_and_range():
    with pytest.raises(InputError, match=r"x: value 10 at \[1,0\] is out of range; valid values are 0 to 9"):
        one([[1, 2], [10, 3]], dtype="i32", shape=(2, 2), range=[0, 9])
    with pytest.raises(InputError, match=r"value -1 at \[0\]"):
        one([-1, 3], dtype="i32", range=[0, 9])
    assert one([0, 9], dtype="i32", range=[0, 9]).tolist() == [0, 9]


@pytest.mark.parametrize("batch", [4, None])
def test_columns_that_are_indices_into_tables_of_their_own(batch):
    """The columns of a table of data: each has its own number of categories, and some are numbers."""
    a, b = nn.Embedding(5, 3), nn.Embedding(100, 3)
    forward = lambda m, x: m[0](x[:, 0]) + m[1](x[:, 2]) + tg.cast(x[:, 1:2], tg.f32)
    x = np.array([[4, 1000, 99], [0, -5, 0]] * 3, np.int32)
    with tg.compile_forward(model=[a, b], forward=forward, inputs={"x": tg.i32[batch, 3]}, seed=0, device="cpu") as f:
        for n in (4,) if batch else (2, 6):
            assert f.run(x=x[:n]).output.shape == (n, 3)
            for k, most in ((0, 4), (2, 99)):
                wrong = x[:n].copy()
                wrong[-1, k] = most + 1
                with pytest.raises(InputError, match=rf"value {most + 1} at \[{n - 1},{k}\] .* are 0 to {most}"):
                    _ = f.run(x=wrong).output


def test_a_leading_axis_of_run_steps():
    got = check_inputs([f(shape=(2,)), f("y", shape=())], {"x": np.zeros((3, 2)), "y": 1.0}, "run_steps", lead=3)
    assert got["x"].shape == (3, 2) and got["y"].shape == ()
    with pytest.raises(InputError, match=r"expected f32\[2\] or f32\[3,2\], got float64\[4,2\]"):
        check_inputs([f(shape=(2,))], {"x": np.zeros((4, 2))}, "run_steps", lead=3)


def test_hints():
    with pytest.raises(InputError, match="drop_last"):
        one(np.zeros((1,)))
    with pytest.raises(InputError, match=r"reshape\(-1, 1\)"):
        one(np.zeros(2), shape=(2, 1))


def test_mapping_and_keywords_merge():
    assert merge({"x": 1}, {"y": 2}, "step") == {"x": 1, "y": 2}
    with pytest.raises(InputError, match=r"x given twice"):
        merge({"x": 1}, {"x": 2}, "step")


def test_values_by_position_are_in_the_order_of_inputs():
    known = ("x", "y")
    assert merge(1, {}, "step", (2,), known) == {"x": 1, "y": 2} == merge(1, {"y": 2}, "step", (), known)
    assert merge(None, {}, "step", (), known) == {}
    assert merge([1, 2], {}, "run", (), ("x",)) == {"x": [1, 2]}
    for given, named, said in (
        (
            (1, 2, 3),
            {},
            r"pass step\(x, y\), by name as in step\(x=..., y=...\), or one dict; got 3 values by position",
        ),
        ((1,), {"x": 2}, "x given twice"),
        (((1, 2),), {}, r"got one tuple: write step\(\*batch\)"),
        (("d", 1), {}, "got 'd'"),
        (({"x": 1}, 2), {}, "got a dict and 1 value"),
        ((1, {"y": 1}), {}, "got {'y': 1}"),
        ((None, 1), {}, "got None"),
    ):
        with pytest.raises(InputError, match=said):
            merge(given[0], named, "step", given[1:], known)
    with pytest.raises(InputError, match="there are no inputs; got 1 value"):
        merge(1, {}, "step", (), ())


def test_torch_tensors_are_taken():
    torch = pytest.importorskip("torch")
    got = one(torch.tensor([1.0, 2.0], dtype=torch.float64))
    assert got.tolist() == [1, 2]
    assert one(torch.tensor([1, 2]), dtype="i32").dtype == np.int32
    with pytest.raises(InputError, match=r"x: Tensor cannot be read as an array: .*detach"):
        one(torch.ones(2, requires_grad=True))


def test_half_floats_of_pytorch_that_numpy_lacks_have_a_remedy() -> None:
    torch = pytest.importorskip("torch", reason="PyTorch is not installed")
    with pytest.raises(InputError, match=r"x: .*BFloat16; write x.float\(\)"):
        one(torch.ones(2).bfloat16())


def test_extension_floats_are_taken_everywhere() -> None:
    """bfloat16 arrays have a kind of their own in NumPy, and lend no memory."""
    some = np.array([1.5, -2], pytest.importorskip("ml_dtypes").bfloat16)
    np.testing.assert_array_equal(one(some), [1.5, -2])
    assert tg.tensor(some).dtype is tg.f32 and tg.tensor(some, dtype="float64").numpy().dtype == np.float64
    for y in (
        tg.relu(some),
        tg.tensor([1.0, 2.0]) + some,
        some * tg.tensor([1.0, 0.5]),
        tg.tensor([1.0, 2.0]) * some[0],
    ):
        assert y.dtype is tg.f32
    assert tg.init.literal(some).data == np.float32([1.5, -2]).tobytes()
    graph = tg.trace_forward(model=nn.Linear(1, 1), forward=lambda m, x: x + some, inputs={"x": (2,)})
    (constant,) = [t for t in graph.nodes if t.prim.name == "literal"]
    np.testing.assert_array_equal(np.frombuffer(constant.attrs["data"], np.float32), [1.5, -2])
    x = tg.parameter([1.0, 2.0])
    (x * 3.0).backward(some)
    np.testing.assert_array_equal(x.grad.numpy(), [4.5, -6])
    with pytest.raises(tg.DTypeError, match="values are neither numbers nor truth values"):
        tg.tensor(np.zeros(2, "i4,f4"))
