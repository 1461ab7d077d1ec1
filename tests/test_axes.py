"""The axes of kernels: as few as the indices allow, and split where an index would divide."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tracegrad as tg
from test_kernels import NOTHING
from tracegrad.compiler.pipeline import make_program
from tracegrad.dtypes import TensorType, f32, i32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.kernels.axes import all_indices
from tracegrad.kernels.expr import Quotient, atoms_of
from tracegrad.kernels.form import Kernel
from tracegrad.prims.leaves import leaf
from tracegrad.transforms.walks import gradients


def x(*shape: int, name: str = "x") -> Tensor:
    return leaf("input", name, TensorType(f32, shape))


def forms(fn: Callable[[], Tensor]) -> list[Kernel]:
    """The kernels that compute a value."""
    with tracing():
        graph = Graph({"y": fn()})
    return [form for k in make_program(graph, NOTHING, {}, {}).kernels for form in k.forms]


def sizes(form: Kernel) -> tuple[list[int], list[int]]:
    return [a.size for a in form.outer if a.size > 1], [a.size for a in form.inner if a.size > 1]


def centred(t: Tensor) -> Tensor:
    return t - tg.max(t, (0, 2), keepdims=True)


# what is computed, and the sizes of its outer and inner axes
CASES: dict[str, tuple[Callable[[], Tensor], list[int], list[int]]] = {
    "all read alike": (lambda: tg.exp(x(4, 6)) + x(4, 6, name="y"), [24], []),
    "axes of 1 between": (lambda: tg.exp(x(4, 1, 6)) + x(4, 1, 6, name="y"), [24], []),
    "a row for all": (lambda: tg.exp(x(4, 6)) + x(6, name="y"), [4, 6], []),
    "a column for all": (lambda: tg.exp(x(4, 6)) + x(4, 1, name="y"), [4, 6], []),
    "the last two alike": (lambda: tg.exp(x(4, 6, 5)) + x(6, 5, name="y"), [4, 30], []),
    "the first two alike": (lambda: tg.exp(x(4, 6, 5)) + x(5, name="y"), [24, 5], []),
    "a transpose": (lambda: tg.exp(tg.swapaxes(x(4, 6), 0, 1)) + x(6, 4, name="y"), [6, 4], []),
    "a transpose, flat": (
        lambda: tg.exp(tg.swapaxes(x(4, 6), 0, 1).reshape(24)) + x(24, name="y"), [6, 4], [],
    ),
    "two transposes, flat": (
        lambda: tg.exp(tg.transpose(x(2, 3, 4), (2, 1, 0)).reshape(24)) + x(24, name="y"), [4, 3, 2], [],
    ),
    "every element twice": (
        lambda: x(5, 1).broadcast_to((5, 2)).reshape(10) + x(10, name="y"), [5, 2], [],
    ),
    "elements in turn": (
        lambda: x(1, 5).broadcast_to((2, 5)).reshape(10) + x(10, name="y"), [2, 5], [],
    ),
    "rows": (lambda: tg.softmax(tg.exp(x(2, 3, 5))), [6], [5]),
    "rows of two axes": (lambda: tg.sum(tg.exp(x(4, 3, 5)), (1, 2)), [4], [15]),
    "columns": (lambda: tg.sum(tg.exp(x(4, 3, 5)), 0), [15], [4]),
    "the middle": (lambda: tg.sum(tg.exp(x(4, 3, 5)), 1), [4, 5], [3]),
    "an axis of 1 that is folded too": (lambda: centred(tg.exp(x(1, 3, 5))), [3], [5]),
    "rows of a transpose, flat": (
        lambda: tg.sum(tg.swapaxes(x(2, 3, 4), 1, 2).reshape(2, 12) * x(2, 12, name="y"), 1), [2], [4, 3],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_axes(name: str) -> None:
    fn, outer, inner = CASES[name]
    (form,) = forms(fn)
    assert sizes(form) == (outer, inner)
    assert not any(isinstance(a, Quotient) for index in all_indices(form) for a in atoms_of(index))


def test_an_axis_is_split_as_finely_as_its_readers_need() -> None:
    """One reads it in two parts, another in two others: each divides the size, neither divides by a remainder."""
    turned = [tg.swapaxes, lambda t, *_: t]
    (form,) = forms(lambda: turned[0](x(4, 6), 0, 1).reshape(24) + tg.swapaxes(x(12, 2, name="y"), 0, 1).reshape(24))
    assert sizes(form)[0] in ([6, 4], [2, 12], [2, 3, 4])
    # what does not divide evenly stays one axis, and the index keeps its quotient
    (form,) = forms(lambda: tg.pad(tg.swapaxes(x(4, 6), 0, 1).reshape(24), [(1, 0)]) + x(25, name="y"))
    assert sizes(form) == ([25], [])


def test_products_and_scatters_have_their_own_groups() -> None:
    (form,) = [f for f in forms(lambda: x(2, 3, 4) @ x(2, 4, 5, name="y")) if f.inner]
    assert sizes(form) == ([2, 3, 5], [4])
    at = TensorType(i32, (7,))
    (form,) = forms(lambda: gradients(tg.sum(tg.embedding(w := x(3, 5), leaf("input", "i", at)) * x(7, 5)), [w])[0])
    assert sizes(form) == ([3, 5], [7])
