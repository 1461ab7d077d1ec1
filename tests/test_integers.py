"""Integers and booleans: NumPy's answers to the bit, on the reference, on values, and on every runtime."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad
from test_numerics import computed, reference, runtime  # noqa: F401
from tracegrad import ops as tg
from tracegrad.dtypes import as_dtype, bool_, f32, i32, u32
from tracegrad.prims import elementwise
from tracegrad.runtime.wgpu_session import NativeSession

ENDS = [0, 1, -1, 2, -2, 3, 7, -7, 2**31 - 1, -(2**31), -(2**31) + 1, 65536, -65536, 46341, 12345678, 2**30]
I = np.array(ENDS, np.int32)  # noqa: E741
U = I.view(np.uint32)
A, B = np.repeat(I, I.size), np.tile(I, I.size)
C, D = A[B != -1], B[B != -1]  # NumPy warns of the least integer divided by -1
V, W = A.view(np.uint32), B.view(np.uint32)
P, Q = np.array([False, True, True, False]), np.array([False, True, False, True])
F = np.array([0, -0.0, 0.5, -0.99, 1.5, -1.5, 2.5, 1e9, -1e9, 2147483520, 2147483648, -2147483648, -2147483904,
              4294967040, 4294967296, 1e20, -1e20, np.inf, -np.inf, np.nan, 3e9], "f")  # fmt: skip
NANS = np.array([[1, np.nan, 3, np.nan], [5, 5, 1, 5], [-np.inf] * 4, [np.nan] * 4, [-0.0, 0.0, -0.0, 0.0],
                 [np.inf, 1, np.inf, np.nan]], np.float32)  # fmt: skip
LONG, HIGH = np.tile(I, 37), np.full(50, 2**32 - 1, np.uint32)
Row = tuple[str, Callable[..., Any], Any, tuple[Any, ...]]


def nearest(x: Any, low: int, high: int, dtype: str) -> Any:
    """Truncated, of what is out of range the nearest f32 inside, 0 for NaN."""
    return np.trunc(np.clip(np.nan_to_num(x.astype("f8"), nan=0), low, high)).astype("i8").astype(dtype)


def rows() -> list[Row]:
    """Name, function, what NumPy says, operands."""
    alike = ["add", "subtract", "multiply", "minimum", "maximum", "equal", "not_equal"]
    alike += ["less", "less_equal", "greater", "greater_equal"]
    ours = {"subtract": "sub", "multiply": "mul"}
    found: list[Row] = []
    for name in alike:
        f, g = getattr(tg, ours.get(name, name)), getattr(np, name)
        found += [(name, f, g(A, B), (A, B)), (f"{name} u32", f, g(V, W), (V, W))]
    for p in (0, 1, 2, 3, 5, 31):
        power = lambda x, p=p: x**p
        found += [(f"power {p}", power, I ** np.int32(p), (I,)), (f"power {p} u32", power, U ** np.uint32(p), (U,))]
    for dtype, x, want in [
        (f32, I, I.astype("f4")), (f32, U, U.astype("f4")), (u32, I, U), (i32, U, I), (bool_, I, I != 0),
        (bool_, F, F != 0), (i32, P, P.astype("i4")), (u32, P, P.astype("u4")), (f32, P, P.astype("f4")),
        (i32, F, nearest(F, -(2**31), 2147483520, "i4")), (u32, F, nearest(F, 0, 4294967040, "u4")),
    ]:  # fmt: skip
        found.append((f"{x.dtype} to {dtype}", lambda x, d=dtype: tg.cast(x, d), want, (x,)))
    found += [
        ("neg", tg.neg, -I, (I,)),
        ("abs", tg.abs, np.abs(I), (I,)),
        ("sign", tg.sign, np.sign(I), (I,)),
        ("square", tg.square, I * I, (I,)),
        ("fmod", tg.fmod, np.where(D == 0, C, np.fmod(C.astype("i8"), np.where(D == 0, 1, D))).astype("i4"), (C, D)),
        ("sum", tg.sum, LONG.sum(dtype="i4"), (LONG,)),
        ("sum u32", tg.sum, LONG.view("u4").sum(dtype="u4"), (LONG.view("u4"),)),
        ("sum of bools", tg.sum, np.int32(2), (P,)),
        ("prod", tg.prod, np.prod(np.tile(I[1:9], 5), dtype="i4"), (np.tile(I[1:9], 5),)),
        ("cumsum", tg.cumsum, np.cumsum(LONG, dtype="i4"), (LONG,)),
        ("mean", tg.mean, np.float32(I[:8].mean()), (I[:8],)),
        ("max", tg.max, I.max(), (I,)),
        ("min", tg.min, I.min(), (I,)),
        ("max u32", tg.max, U.max(), (U,)),
        ("min u32", tg.min, HIGH.min(), (HIGH,)),
        ("max of the least", tg.max, I.min(), (np.full(5, I.min()),)),
        ("min of the greatest", tg.min, I.max(), (np.full(50, I.max()),)),
        ("argmax", tg.argmax, np.int32(I.argmax()), (I,)),
        ("argmin u32", tg.argmin, np.int32(U.argmin()), (U,)),
        ("argmax of equals", tg.argmax, np.int32(0), (np.full(5, I.min()),)),
        ("argmax of NaN", lambda x: tg.argmax(x, 1), NANS.argmax(1).astype("i4"), (NANS,)),
        ("argmin of NaN", lambda x: tg.argmin(x, 1), NANS.argmin(1).astype("i4"), (NANS,)),
        ("any", tg.any, np.True_, (I,)),
        ("all", tg.all, np.False_, (I,)),
        ("and", tg.logical_and, P & Q, (P, Q)),
        ("or", tg.logical_or, P | Q, (P, Q)),
        ("not", tg.logical_not, ~P, (P,)),
        ("equal bools", tg.equal, P == Q, (P, Q)),
        ("where", lambda x: tg.where(x > 0, x, -(2**31)), np.where(I > 0, I, I.min()), (I,)),
        ("clip", lambda x: tg.clip(x, -5, 2**31 - 1), np.clip(I, -5, I.max()), (I,)),
        ("least constant", lambda x: x + -(2**31), I + I.min(), (I,)),
        ("greatest constant", lambda x: x + (2**32 - 1), U + np.uint32(2**32 - 1), (U,)),
        ("xor", elementwise.bit_xor, A ^ B, (A, B)),
        *((f"shift {k}", lambda x, k=k: elementwise.shift_right(x, k), U >> np.uint32(k), (U,)) for k in (0, 5, 31)),
    ]
    return found


with np.errstate(all="ignore"):
    ROWS = rows()


def check(values: list[Any]) -> None:
    bad = [
        (name, got, want)
        for (name, _, want, _), got in zip(ROWS, values, strict=True)
        if np.asarray(got).dtype != np.asarray(want).dtype or not np.array_equal(got, want)
    ]
    assert not bad, bad


def all_at_once(*arrays: Any) -> tuple[Any, ...]:
    given = iter(arrays)
    return tuple([fn(*[next(given) for _ in xs]) for _, fn, _, xs in ROWS])


OPERANDS = [x for *_, xs in ROWS for x in xs]


def test_on_every_runtime(runtime: Any) -> None:  # noqa: F811
    check(computed(runtime, all_at_once, *OPERANDS))


def test_on_the_reference() -> None:
    check(reference(all_at_once, *OPERANDS, double=False))


@pytest.mark.filterwarnings("error")
def test_on_values() -> None:
    check([fn(*map(tracegrad.tensor, xs)).numpy() for _, fn, _, xs in ROWS])


def test_denormals_are_true_where_they_are_not_flushed(runtime: Any) -> None:  # noqa: F811
    (got,) = computed(runtime, lambda x: tg.cast(x, bool_), np.array([1e-45, -1e-45, 0, -0.0], np.float32))
    may_flush = isinstance(runtime, NativeSession)
    assert got.tolist() in [[True, True, False, False], *[[False] * 4] * may_flush]


@pytest.mark.parametrize("dtype", ["int32", "uint32"])
def test_scattered_sums_are_exact(runtime: Any, dtype: str) -> None:  # noqa: F811
    """Beyond 2^24, which f32 does not count to."""
    x, at, want = I.view(dtype), np.arange(I.size, dtype=np.int32) % 3, np.zeros(3, dtype)
    np.add.at(want, at, x)
    fn = lambda x, i: tg.scatter_add(tg.zeros((3,), as_dtype(dtype)), i, x)
    np.testing.assert_array_equal(computed(runtime, fn, x, at)[0], want)
    np.testing.assert_array_equal(reference(fn, x, at, double=False)[0], want)
