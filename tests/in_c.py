"""What the C renderer makes of a function of arrays: its text, and its results.

Without the fixture in_c_alone, tests have no compiler, and the results are NumPy's.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import tracegrad as tg
from models import build_forward
from tracegrad.dtypes import DType, TensorType, f32
from tracegrad.program import Program
from tracegrad.runtime.c_compiler import VARIABLE
from tracegrad.runtime.cpu import CpuSession


class SessionInC(CpuSession):
    """A session that computes in C or fails. The check warns once a machine; later, NumPy would compute silently."""

    def _is_wrong(self, program: Program, libraries: Sequence[Any]) -> bool:
        assert not super()._is_wrong(program, libraries), "C computes wrongly"
        return False


class One(tg.Module):
    """A model has a parameter."""

    def __init__(self) -> None:
        self.w = self.param((1,))


def text(fn: Callable[..., Any], *shapes: tuple[int, ...]) -> str:
    """The C functions of `fn`."""
    types = {f"x{k}": TensorType(f32, s) for k, s in enumerate(shapes)}
    built = build_forward(One(), lambda m, **xs: fn(*xs.values()), types)
    return "\n".join(f for k in built.program.kernels for f in k.texts["c"].functions)


def computed(fn: Callable[..., Any], *arrays: Any, dtype: DType = f32) -> Any:
    """What C gives."""
    return of_each(fn, [arrays], dtype)[0]


def of_each(fn: Callable[..., Any], several: Sequence[Sequence[Any]], dtype: DType = f32) -> list[Any]:
    """What C gives for each list of arrays. They have the same shapes, so one program computes all."""
    types = {f"x{k}": TensorType(dtype, x.shape) for k, x in enumerate(several[0])}
    forward = lambda m, **xs: fn(*xs.values())
    with tg.compile_forward(model=One(), forward=forward, inputs=types, device="cpu", seed=0) as f:
        found = [f.run(dict(zip(types, arrays, strict=True))).output for arrays in several]
        assert os.environ[VARIABLE] == "off" or "compiled by" in f.device.description
    return found
