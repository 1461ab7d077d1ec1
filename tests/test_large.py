"""Element counts and indices around 2^31: refused with the tensor and the limit, or computed right.

The values are views, so nothing is as large in memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from test_kernels import NOTHING, run
from tracegrad.compiler.pipeline import make_program
from tracegrad.dtypes import TensorType, f32, i32
from tracegrad.errors import ShapeError
from tracegrad.ir.ambient import tracing
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.kernels.lower import LARGEST
from tracegrad.prims.leaves import leaf
from tracegrad.program import Program

WIDE = 2**16


def program_of(fn: Callable[..., Tensor]) -> Program:
    """Of an f32[1] and an i32[3]."""
    with tracing():
        inputs = [leaf("input", "x", TensorType(f32, (1,))), leaf("input", "i", TensorType(i32, (3,)))]
        return make_program(Graph({"y": fn(*inputs[: fn.__code__.co_argcount])}), NOTHING, {}, {})


REFUSED: dict[str, tuple[Callable[..., Tensor], str]] = {
    "result": (lambda x: x.broadcast_to((2**31,)), r"copy: f32\[2147483648\] has 2147483648 elements.*to 2147418112"),
    "rows": (lambda x: tg.sum(x.broadcast_to((2**31, 3)) * 2.0, 1), r"f32\[2147483648,3\] has 6442450944 elements"),
    "last index": (lambda x: x.broadcast_to((LARGEST + 1,)) + 1.0, r"2147418113 elements; kernels count in 32 bits"),
    "matrix": (lambda x: tg.outer(x.broadcast_to((WIDE,)), x.broadcast_to((WIDE,))), r"f32\[65536,65536\]"),
    "coordinates": (lambda x: x + tg.arange(2**31 + 7)[:1], r"arange: 2147483655 coordinates along axis 0"),
    "flat coordinates": (lambda x: x + tg.sum(tg.uniform((WIDE, WIDE))), r"uniform: 4294967296 coordinates"),
    "positions": (lambda x: tg.argmax(x.broadcast_to((2**31 + 3,))), r"argmax: 2147483651 coordinates along axis 0"),
    "classes": (lambda x, i: tg.sum(tg.one_hot(i, 2**31 + 2)) * x, r"2147483650 coordinates along axis 1"),
    "slots": (
        lambda x, i: tg.scatter_add(tg.zeros((2**31 + 2,)), i, x.broadcast_to((3,)) * x),
        r"f32\[2147483650\] has 2147483650 elements",
    ),
    "count": (lambda x: tg.sum(x.broadcast_to((2**31,)) > 0.0), r"sum: 2147483648 booleans can count beyond the "
    "largest i32"),
    "any": (lambda x: tg.any(x.broadcast_to((WIDE, WIDE)) > 0.0), r"any: 4294967296 booleans can count beyond "
    "the largest"),
    "fold": (lambda x: tg.sum(x.broadcast_to((2**60,))), r"1152921504606846976 elements"),
    "inside of a scan": (
        lambda x: tg.repeat(lambda c: tg.sum(tg.sin(c.broadcast_to((2**31, 2))), 1)[:1], 2, x),
        r"f32\[2147483648,2\]",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_32_bits_cannot_count_is_refused(name: str) -> None:
    fn, message = REFUSED[name]
    with pytest.raises(ShapeError, match=message) as e:
        program_of(fn)
    assert "test_large.py" in str(e.value)


COMPUTED: dict[str, tuple[Callable[..., Tensor], Any]] = {
    "split fold": (lambda x: tg.sum(x.broadcast_to((2**31 + 5,)) * 0.5), 2**30),
    "two axes": (lambda x: tg.sum(x.broadcast_to((WIDE, WIDE))), 2**32),
    "mean": (lambda x: tg.mean(x.broadcast_to((WIDE, WIDE))), 1.0),
    "far element": (lambda x: tg.sum(tg.pad(x * 3.0, ((2**31, 0),))), 3.0),
    "one of many": (lambda x: x.broadcast_to((2**33,))[-1] * 2.0, 2.0),
    "pick": (lambda x, i: tg.take(x.broadcast_to((WIDE, WIDE)), i), [1.0, 1.0, 1.0]),
}  # fmt: skip


@pytest.mark.parametrize("name", COMPUTED)
def test_views_beyond_are_computed_where_every_index_fits(name: str, c_session: Any) -> None:
    fn, want = COMPUTED[name]
    program = program_of(fn)
    assert all(k.wgsl for k in program.kernels)
    env = {"x": np.ones(1, np.float32), "i": np.array([0, 2**31 - 1, 7], np.int32)}
    got = run(c_session, program, {f.name: env[f.name] for f in program.inputs})["y"]
    np.testing.assert_allclose(got, want, rtol=1e-4)
