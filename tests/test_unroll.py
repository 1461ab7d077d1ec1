"""Which short axes array languages unroll: windows and short rows of large kernels, and never those of products."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tracegrad as tg
from test_kernels import NOTHING
from tracegrad.compiler.pipeline import make_program
from tracegrad.dtypes import TensorType, f32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.kernels.axes import unroll
from tracegrad.kernels.form import Kernel
from tracegrad.prims.leaves import leaf
from tracegrad.tuning import C_UNROLLED_ROWS, SHORT_AXIS, UNROLLED, UNROLLED_ROWS, WHOLE_FOLD, WORTH_UNROLLING

LONG = WHOLE_FOLD + 1  # too long a row to unroll as a whole
ENOUGH = UNROLLED_ROWS * WHOLE_FOLD  # rows of that length


def kernel_of(fn: Callable[[Tensor], Tensor], *shape: int) -> Kernel:
    """The form of the one kernel that computes a function."""
    with tracing():
        program = make_program(Graph({"y": fn(leaf("input", "x", TensorType(f32, shape)))}), NOTHING, {}, {})
    (form,) = [f for k in program.kernels for f in k.forms]
    return form


def left(kernel: Kernel) -> tuple[list[int], list[int]]:
    """The sizes of outer and inner axes that loops still run over."""
    new = unroll(kernel)
    return [a.size for a in new.outer if a.size > 1], [a.size for a in new.inner if a.size > 1]


@pytest.mark.parametrize(
    ("fn", "shape", "inner"),
    [
        (lambda x: tg.sum(x, -1), (ENOUGH, WHOLE_FOLD), []),
        (lambda x: tg.sum(x, -1), (ENOUGH - 1, WHOLE_FOLD), [WHOLE_FOLD]),
        (lambda x: tg.sum(x, -1), (UNROLLED_ROWS * LONG, LONG), [LONG]),
        (lambda x: tg.sum(x, (1, 3)), (64, SHORT_AXIS, 64, LONG), [LONG]),
        (lambda x: tg.sum(x, (1, 3)), (64, SHORT_AXIS + 1, 64, LONG), [SHORT_AXIS + 1, LONG]),
    ],
    ids=["short rows", "too few rows", "long rows", "a short axis", "no short axis"],
)
def test_rows_that_are_unrolled(fn: Callable[[Tensor], Tensor], shape: tuple[int, ...], inner: list[int]) -> None:
    kernel = kernel_of(fn, *shape)
    assert kernel.work >= WORTH_UNROLLING
    assert left(kernel)[1] == inner


@pytest.mark.parametrize(
    ("rows", "length", "inner"),
    [(C_UNROLLED_ROWS, 5, []), (C_UNROLLED_ROWS - 1, 5, [5]), (C_UNROLLED_ROWS, LONG, [LONG])],
    ids=["short rows", "too few rows", "long rows"],
)
def test_short_folds_of_small_kernels_that_c_writes_out(rows: int, length: int, inner: list[int]) -> None:
    kernel = kernel_of(lambda x: tg.sum(x, -1), rows, length)
    assert kernel.work < WORTH_UNROLLING
    assert [a.size for a in unroll(kernel, C_UNROLLED_ROWS).inner] == inner
    assert [a.size for a in unroll(kernel).inner] == [length]


def test_small_kernels_and_products_keep_their_loops() -> None:
    small = kernel_of(lambda x: tg.sum(x, -1), 8, 2)
    product = kernel_of(lambda x: x @ tg.transpose(x), WORTH_UNROLLING, 2)
    assert small.work < WORTH_UNROLLING <= product.work
    for kernel in (small, product):
        assert unroll(kernel) is kernel


def test_points_are_unrolled_along_short_axes_up_to_a_number() -> None:
    axes = (SHORT_AXIS,) * 4
    outer, _ = left(kernel_of(lambda x: tg.sin(tg.transpose(x)), *axes, WORTH_UNROLLING))
    copies = SHORT_AXIS ** (4 - (len(outer) - 1))
    assert WORTH_UNROLLING in outer
    assert copies <= UNROLLED < copies * SHORT_AXIS
