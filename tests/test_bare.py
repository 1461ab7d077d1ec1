"""What stands in for NumPy in a browser's Python: the same answers as NumPy where the engine asks."""

from __future__ import annotations

import math
import re
import sys
from typing import Any

import numpy as np
import pytest

from test_layers import MODULES
from tracegrad import bare
from tracegrad.arrays import handed_out
from tracegrad.engine import inputs, params
from tracegrad.engine.results import Captures
from tracegrad.errors import InputError
from tracegrad.program import Field
from tracegrad.runtime import memory

INDEX = {"range": [0, 9], "exempt": -1}
GIVEN: list[tuple[Field, Any]] = [
    (Field("a", 0, 0, "f32", (2, 3)), [[1, 2.5, -0.0], [math.inf, 1e-40, 7]]),
    (Field("a", 0, 0, "f32", ()), 2**24),
    (Field("a", 0, 0, "f32", ()), 2**24 + 1),
    (Field("a", 0, 0, "f32", (2,)), [1e39, 0.0]),
    (Field("a", 0, 0, "f32", (2,)), [math.inf, 0.0]),
    (Field("a", 0, 0, "f32", (3,)), [True, False, True]),
    (Field("a", 0, 0, "f32", (2, 2)), np.arange(4, dtype=np.float32).reshape(2, 2).T),
    (Field("a", 0, 0, "f32", (2,)), np.array([1.5, 2.5], np.float64)),
    (Field("a", 0, 0, "f32", (2,)), [[1.0, 2.0], [3.0]]),
    (Field("a", 0, 0, "f32", (2,)), [1.0, 2.0, 3.0]),
    (Field("a", 0, 0, "i32", (2,)), [1, -5]),
    (Field("a", 0, 0, "i32", (2,)), np.array([1, 2**31], np.int64)),
    (Field("a", 0, 0, "i32", (2,)), [0.5, 1.0]),
    (Field("a", 0, 0, "u32", (2,)), [1, 2**32 - 1]),
    (Field("a", 0, 0, "u32", (1,)), [-1]),
    (Field("a", 0, 0, "bool", (2,)), [True, False]),
    (Field("a", 0, 0, "bool", (2,)), [1, 0]),
    (Field("a", 0, 0, "i32", (2, 2), INDEX), [[1, 9], [-1, 0]]),
    (Field("a", 0, 0, "i32", (2, 2), INDEX), [[1, 9], [10, 0]]),
    (Field("a", 0, 0, "i32", (2, 2), INDEX), [[1, -2], [10, 0]]),
]


@pytest.mark.parametrize(("field", "value"), GIVEN, ids=lambda x: str(x)[:40])
def test_inputs_are_cast_and_refused_as_with_numpy(field: Field, value: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def answer() -> Any:
        try:
            x = inputs.fit_value(field, value)
        except InputError as e:
            return str(e).split(":")[0]
        back = memory.from_storage(memory.to_storage(x, field.dtype), field)
        return x.dtype.name, x.shape, x.tobytes(), back.tobytes()

    want = answer()
    monkeypatch.setattr(inputs, "np", bare)
    monkeypatch.setattr(memory, "np", bare)
    assert answer() == want


INDICES: list[Any] = [
    1, -1, slice(1, None), slice(0, 0), slice(None, None, 2), (0, 1), (..., 1), (..., 0, slice(None), slice(1, 3)),
    (slice(None), 2), (1, ..., slice(None, None, 2)),
]  # fmt: skip


@pytest.mark.parametrize("index", INDICES, ids=str)
def test_indexing_is_numpys(index: Any) -> None:
    x = np.arange(2 * 3 * 4, dtype=np.int32).reshape(2, 3, 4)
    got, want = bare.asarray(x)[index], x[index]
    assert got.shape == want.shape and got.tobytes() == want.tobytes()


@pytest.mark.parametrize("index", [slice(1, 2), (slice(2), slice(1, 3), slice(4)), (slice(1), slice(3), slice(0, 2))])
@pytest.mark.parametrize("whole", [True, False], ids=["number", "array"])
def test_assigning_to_slices_is_numpys(index: Any, whole: bool) -> None:
    x = np.arange(2 * 3 * 4, dtype=np.int32).reshape(2, 3, 4)
    got = bare.array(x)
    values = 9 if whole else -x[index].copy()
    got[index] = values if isinstance(values, int) else bare.asarray(values)
    x[index] = values
    assert got.tobytes() == x.tobytes()


def test_masks_broadcast_as_numpys() -> None:
    for shape in [(3,), (2, 1), (1, 3), (2, 3), ()]:
        x = np.arange(math.prod(shape)).reshape(shape) % 2 == 0
        got = bare.broadcast_to(bare.asarray(x), (2, 3)).shaped()
        np.testing.assert_array_equal(np.asarray(got), np.broadcast_to(x, (2, 3)))
    with pytest.raises(ValueError, match="does not broadcast"):
        bare.broadcast_to(bare.zeros((2,), "bool"), (2, 3))


FLOATS = [[1.0, -0.0, 2.5], [math.nan, 1.0, math.nan], [math.inf, 0.0, 1.0], [math.nan, math.inf, -math.inf]]


@pytest.mark.parametrize("values", FLOATS, ids=str)
def test_numbers_that_are_not_finite_are_counted_as_with_numpy(values: list[float]) -> None:
    field = Field("a", 0, 0, "f32", (3,))
    x = np.array(values, np.float32)
    assert params.not_finite(field, bare.asarray(x), bare) == params.not_finite(field, x)


def test_halves_are_read_as_numpy_reads_them() -> None:
    x = np.array([0.5, -2.0, np.inf, 6e-8], np.float16)
    assert bare.frombuffer(x.tobytes(), dtype="<f2").tolist() == x.astype(np.float32).tolist()


NEED_NUMPY = {
    "runtime.cpu",
    "runtime.c_calls",
    "runtime.doors",
    "runtime.wgpu_session",
    "runtime.wgpu_calls",
    "runtime.wgpu_compiled",
    "runtime.wgpu_program",
    "runtime.wgpu_shared",
    "runtime.wgpu_rings",
    "runtime.draw",
    "runtime.shaped",
}
# Checks of those runtimes
NEED_NUMPY |= {"runtime.inexact", "runtime.points", "runtime.repeated", "runtime.trials", "runtime.verify"}
NEED_NUMPY |= {
    "runtime.cpu_verify",
    "runtime.wgpu_verify",
    "runtime.trial_program",
    "runtime.recorded",
}
NEED_NUMPY |= {"runtime.wgpu_timing", "introspection.profile"}  # what measures devices, which no browser lets Python do
NEED_NUMPY |= {
    "functional",
    "training.data",  # whole arrays, which it shuffles by numpy.random
    "sweeps",
    "sweep_plan",
    "training.validation",  # metrics of a whole validation set, such as the area under a curve
    "runtime.copy_pool",  # asks first whether NumPy is there
    "engine.reference",
    *(m for m in MODULES if m.startswith(("imperative", "runtime.jax"))),
}


def test_it_has_all_that_the_engine_asks_for() -> None:
    missing: list[str] = []
    for name, path in MODULES.items():
        text = path.read_text(encoding="utf-8")
        if "from tracegrad.arrays import" in text and name not in NEED_NUMPY:
            asked = set(re.findall(r"(?<![\w.])np\.(\w+)", text))
            missing += [f"{name}: np.{x}" for x in asked if not hasattr(bare, x)]
    assert not missing, "write these in tracegrad/bare.py, or do without: " + ", ".join(missing)


def test_what_it_lacks_it_says() -> None:
    with pytest.raises(AttributeError, match=r"numpy\.fft: load NumPy"):
        bare.fft  # noqa: B018


def test_results_are_numpy_arrays_where_numpy_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    x = bare.asarray(np.arange(16, dtype=np.float32).reshape(2, 2, 2, 2))
    assert isinstance(handed_out(x), np.ndarray) and handed_out(x).shape == (2, 2, 2, 2)
    heads = Captures({"attention": x.shaped()}).per_head("attention")
    np.testing.assert_array_equal(heads[1], np.asarray(x.shaped())[:, 1])
    monkeypatch.setitem(sys.modules, "numpy", None)
    kept = handed_out(x)
    assert isinstance(kept, memoryview) and kept.shape == (2, 2, 2, 2) and kept[1, 0, 0, 1] == 9.0
