"""Which elements of stored values a node reads: at its own point, of its own row, or others; and what it awaits."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tracegrad import ops
from tracegrad.dtypes import TensorType, f32, i32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.nodes import Tensor, bind
from tracegrad.kernels.reads import base, reads_of, trailing
from tracegrad.prims.folds import SUM, pack
from tracegrad.prims.leaves import leaf
from tracegrad.prims.views import BARRIER

Found = set[int | None]


def x(*shape: int) -> Tensor:
    return leaf("input", "x", TensorType(f32, shape))


# a node of one leaf, and which q it reads the leaf with: element e of the node needs element e // q of the leaf
CASES: dict[str, tuple[Callable[[], Tensor], Found]] = {
    "its own point": (lambda: ops.exp(x(3, 4) * 2.0), {1}),
    "under another shape": (lambda: ops.exp(x(3, 4).reshape(2, 6)), {1}),
    "transposed": (lambda: ops.exp(x(3, 4).swapaxes(0, 1)), {None}),
    "flipped": (lambda: ops.exp(ops.flip(x(3, 4), 1)), {None}),
    "its row": (lambda: ops.exp(x(3, 1).broadcast_to((3, 4))), {4}),
    "its row in a batch": (lambda: ops.exp(x(3, 1, 1).broadcast_to((3, 4, 2))), {8}),
    "one for all": (lambda: ops.exp(x(1, 1).broadcast_to((3, 4))), {12}),
    "its row, of rows of rows": (
        lambda: ops.exp(ops.exp(x(3, 1).broadcast_to((3, 2))).reshape(6, 1).broadcast_to((6, 5))),
        {10},
    ),
    "its column": (lambda: ops.exp(x(4).broadcast_to((3, 4))), {None}),
    "in between": (lambda: ops.exp(x(3, 1, 2).broadcast_to((3, 4, 2))), {None}),
    "around": (lambda: ops.exp(x(1, 3, 1).broadcast_to((2, 3, 4))), {None}),
    "its point, and its row": (lambda: (lambda a: ops.exp(a + a[:, :1].broadcast_to((3, 4))))(x(3, 4)), {1, None}),
    "a row that it folds": (lambda: ops.sum(x(3, 4), 1), {1}),
    "all that it folds": (lambda: ops.sum(x(3, 4)), {1}),
    "a row, beside an axis of 1": (lambda: ops.sum(x(3, 4, 1), 1), {1}),
    "a row, and an axis of 1 before others": (lambda: ops.sum(x(1, 3, 4), (0, 2)), {1}),
    "a column that it folds": (lambda: ops.sum(x(3, 4), 0), {None}),
    "a column of rows of 1": (lambda: ops.sum(x(3, 1), 0), {1}),
    "a transposed row": (lambda: ops.sum(ops.exp(x(3, 4).swapaxes(0, 1)), 1), {None}),
    "a factor": (lambda: x(3, 4) @ leaf("param", "w", TensorType(f32, (4, 2))), {None}),
    "a table": (lambda: ops.embedding(x(3, 4), leaf("input", "at", TensorType(i32, (5,)))), {None}),
    "indices": (
        lambda: ops.embedding(leaf("param", "w", TensorType(f32, (3, 4))), ops.cast(x(5), i32)),
        {4},
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_points_of_a_leaf(name: str) -> None:
    fn, want = CASES[name]
    with tracing():
        node = base(fn())
        found = {t.attrs["name"]: qs for t, qs in reads_of(node, ()).leaves.values()}
    assert found["x"] == want


def test_a_walk_ends_at_what_is_stored() -> None:
    with tracing():
        a = x(3, 4)
        stored = ops.exp(a)
        node = ops.sin(stored) + stored[::-1] + a
        found = reads_of(node, {stored.serial})
        assert found.stored == {stored.serial: {1, None}} and found.waits == set()
        assert [qs for _, qs in found.leaves.values()] == [{1}]
        whole = pack([ops.exp(a), ops.sin(a)])
        found = reads_of(ops.exp(whole), ())
        assert found.stored == {whole.serial: {1}} and not found.leaves


def test_what_is_only_waited_for() -> None:
    """The stored values behind it, however far; nothing is read from them."""
    with tracing():
        a, b = x(3, 4), x(3, 4)
        stored = ops.exp(b)
        behind = ops.sin(ops.cos(stored) * stored)
        whole = pack([b])
        for after, waits in ((stored, {stored}), (behind, {stored}), (whole, {whole}), (b, set[Tensor]())):
            node = ops.sin(bind(BARRIER, a, after))
            found = reads_of(node, {stored.serial})
            assert found.waits == {t.serial for t in waits}
            assert not found.stored and list(found.leaves) == [a.serial]


def test_rows_that_lie_in_one_piece() -> None:
    """Axes of 1 are no matter before or between; of a fold over such axes alone, the others decide."""
    with tracing():
        for shape, axes, one in (
            ((3, 4), (1,), True), ((3, 4), (0,), False), ((3, 4), (0, 1), True), ((3, 1), (0,), True),
            ((1, 4), (0,), False), ((4, 1), (1,), False), ((4, 2), (0,), False), ((2, 3, 4), (1, 2), True),
            ((2, 3, 4), (0, 2), False), ((1, 3, 4), (0, 2), True), ((3, 1, 4), (2,), True),
        ):  # fmt: skip
            assert trailing(bind(SUM, x(*shape), axes=axes)) == one, (shape, axes)
