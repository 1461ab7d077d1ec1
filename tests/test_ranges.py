"""Which inputs are indices, and into what."""

# Transformed functions have arguments of any type
# pyright: reportUnknownArgumentType=false

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from tracegrad import metrics, ops
from tracegrad.compiler.inputtypes import input_ranges
from tracegrad.dtypes import TensorType, f32, i32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.graph import Graph
from tracegrad.ir.nodes import Tensor
from tracegrad.prims.leaves import leaf

Found = dict[str, dict[str, Any]]
CASES: dict[str, tuple[Callable[[Tensor, Tensor, Tensor], Tensor], Found]] = {
    "no index": (lambda x, i, j: ops.sum(x) + ops.cast(ops.sum(i), f32), {}),
    "of rows": (lambda x, i, j: ops.take(x, i, 0), {"i": {"range": [0, 4]}}),
    "of columns": (lambda x, i, j: ops.take(x, i, 1), {"i": {"range": [0, 2]}}),
    "the smaller last": (lambda x, i, j: ops.take(x, i, 0)[0, 0] + ops.take(x, i, 1)[0, 0], {"i": {"range": [0, 2]}}),
    "the smaller first": (lambda x, i, j: ops.take(x, i, 1)[0, 0] + ops.take(x, i, 0)[0, 0], {"i": {"range": [0, 2]}}),
    "of both": (
        lambda x, i, j: ops.take(x, i, 0)[0, 0] + ops.take(x, j, 1)[0, 0],
        {"i": {"range": [0, 4]}, "j": {"range": [0, 2]}},
    ),
    "a part": (lambda x, i, j: ops.embedding(x, i.reshape(2, 2)[1:].swapaxes(0, 1)), {"i": {"range": [0, 4]}}),
    "computed": (lambda x, i, j: ops.embedding(x, i + 1), {}),
    "compared classes": (
        lambda x, i, j: ops.one_hot(i, 7)[0, 0] + metrics.accuracy(x[:4], i),
        {"i": {"range": [0, 2]}},
    ),
    "counted classes": (
        lambda x, i, j: metrics.confusion_matrix(i, j, 4)[0, 0],
        {"i": {"range": [0, 3]}, "j": {"range": [0, 3]}},
    ),
    "parts of several": (
        lambda x, i, j: ops.take(x, i[:1], 0)[0, 0] + ops.take(x, i[1:2], 1)[0, 0] + ops.take(x, i[3:], 1)[0, 0],
        {
            "i": {
                "range": [0, 4],
                "box": [[0, 0]],
                "others": [{"range": [0, 2], "box": [[1, 1]]}, {"range": [0, 2], "box": [[3, 3]]}],
            }
        },
    ),
    "parts side by side": (
        lambda x, i, j: sum((ops.take(x, i[k], 1)[0] for k in range(3)), start=ops.take(x, i[0], 0)[0]),
        {"i": {"range": [0, 2], "box": [[0, 2]]}},
    ),
    "a part that may be ignored": (
        lambda x, i, j: ops.cross_entropy(x[:4], i, ignore_index=-7) + ops.take(x, i[:2], 1)[0, 0],
        {"i": {"range": [0, 2], "exempt": -7, "others": [{"range": [0, 2], "box": [[0, 1]]}]}},
    ),
    "classes": (lambda x, i, j: ops.cross_entropy(x[:4], i), {"i": {"range": [0, 2]}}),
    "ignored": (
        lambda x, i, j: ops.cross_entropy(x[:4], i, ignore_index=-7),
        {"i": {"range": [0, 2], "exempt": -7}},
    ),
    "in a scan": (
        lambda x, i, j: tg.scan(lambda c, k: (c + ops.take(x, k, 0), None), ops.zeros(3), i)[0],
        {"i": {"range": [0, 4]}},
    ),
    "parts of an iteration": (
        lambda x, i, j: tg.scan(
            lambda c, k: (c + ops.take(x, k[0], 0) + ops.take(x, k[1], 1)[0] + ops.take(x, j[3], 1)[0], None),
            ops.zeros(3),
            leaf("input", "t", TensorType(i32, (6, 2))),
        )[0],
        {
            "t": {"range": [0, 4], "box": [[0, 5], [0, 0]], "others": [{"range": [0, 2], "box": [[0, 5], [1, 1]]}]},
            "j": {"range": [0, 2], "box": [[3, 3]]},
        },
    ),
    "parts behind a reshape": (
        lambda x, i, j: (
            ops.take(x, leaf("input", "t", TensorType(i32, (2, 3, 2))).reshape(-1, 2)[:, 1], 1)[0, 0]
            + ops.take(x, leaf("input", "u", TensorType(i32, (3, 2, 2)))[0].reshape(4)[:2], 0)[0, 0]
            + ops.take(x, leaf("input", "v", TensorType(i32, (3, 2))).reshape(3, 1, 2, 1)[1:, 0, 0, 0], 0)[0, 0]
        ),
        {
            "t": {"range": [0, 2], "box": [[0, 1], [0, 2], [1, 1]]},
            "u": {"range": [0, 4], "box": [[0, 0], [0, 1], [0, 1]]},
            "v": {"range": [0, 4], "box": [[1, 2], [0, 1]]},
        },
    ),
    "around a scan": (
        lambda x, i, j: tg.scan(lambda c, k: (c + ops.sum(ops.take(x, j, 1)) + x[0], k), ops.zeros(3), i)[0],
        {"j": {"range": [0, 2]}},
    ),
    "in a scan in a scan": (
        lambda x, i, j: tg.scan(
            lambda c, k: tg.scan(lambda d, m: (d + ops.take(x, m, 0) + ops.take(x, k, 1)[0], None), c, j),
            ops.zeros(3),
            i,
        )[0],
        {"i": {"range": [0, 2]}, "j": {"range": [0, 4]}},
    ),
    "a carry": (lambda x, i, j: tg.scan(lambda k, e: (k + 1, ops.take(x, k, 0)), i[0], j)[1], {}),
}


@pytest.mark.parametrize("name", CASES)
def test_inputs_that_are_indices(name: str) -> None:
    fn, want = CASES[name]
    with tracing():
        x = leaf("param", "x", TensorType(f32, (5, 3)))
        i, j = (leaf("input", n, TensorType(i32, (4,))) for n in "ij")
        assert input_ranges(Graph({"y": fn(x, i, j)})) == want


X, FAR = np.ones((4, 3), np.float32), np.array([0, 7], np.int32)
TRANSFORMED: dict[str, Callable[[Any, Any], Any]] = {
    "grad": lambda x, i: tg.grad(lambda x, i: tg.sum(tg.take(x, i, 0)))(x, i),
    "vmap": lambda x, i: tg.vmap(lambda k: tg.take(x, k, 0))(i),
    "vmap of classes": lambda x, i: tg.vmap(tg.cross_entropy)(x[:2], i),
    "remat": lambda x, i: tg.remat(lambda i: tg.embedding(x, i))(i),
    "a scan": lambda x, i: tg.grad(lambda x, i: tg.scan(lambda c, k: (c + tg.sum(x[k]), None), 0.0, i)[0])(x, i),
}


@pytest.mark.parametrize("make", [np.asarray, tg.tensor], ids=["arrays", "tensors"])
@pytest.mark.parametrize("name", TRANSFORMED)
def test_transforms_check_the_arguments_that_are_indices(name: str, make: Any) -> None:
    with pytest.raises(IndexError, match=r"an argument: value 7 is out of range; valid are 0 to (3|2)\n  at .*test_ra"):
        TRANSFORMED[name](make(X), make(FAR))
    of_a_part = tg.grad(lambda x, i: tg.sum(tg.take(x, i[:1], 0)))(make(X), make(FAR))
    np.testing.assert_array_equal(np.asarray(of_a_part), [[1, 1, 1], *[[0, 0, 0]] * 3])
    of_none = tg.grad(lambda x, i: tg.sum(tg.take(x, i[1:1], 0)))(make(X), make(FAR))
    np.testing.assert_array_equal(np.asarray(of_none), np.zeros_like(X))
