"""What is stored, by which rule, and how new states are written in place."""

from __future__ import annotations

import operator
from collections.abc import Callable
from functools import reduce
from typing import Any

import numpy as np
import pytest

import tracegrad as tg
from memory_check import check_memory, planned
from test_kernels import NOTHING, run
from tracegrad.compiler.layout import Persistent
from tracegrad.compiler.pipeline import make_program, optimize
from tracegrad.dtypes import TensorType, f32
from tracegrad.ir.ambient import tracing
from tracegrad.ir.graph import CycleError, Graph, computed_once, postorder
from tracegrad.ir.nodes import Tensor, toposort
from tracegrad.kernels import storage as rules
from tracegrad.kernels.fuse import MAX_BUFFERS
from tracegrad.kernels.storage import Storage, analyse, placed_arrays
from tracegrad.prims.folds import pack
from tracegrad.prims.leaves import leaf
from tracegrad.program import Buffer
from tracegrad.runtime.cpu import CpuSession


def inputs(**shapes: tuple[int, ...]) -> list[Tensor]:
    return [leaf("input", n, TensorType(f32, shape)) for n, shape in shapes.items()]


def long_chain(x: Tensor) -> Tensor:
    for _ in range(80):
        x = tg.sin(x)
    return x


def argmax_of_a_sum(x: Tensor) -> Tensor:
    y = x * 2.0 + 1.0
    return tg.max(y, 1, keepdims=True) * tg.cast(y == tg.max(y, 1, keepdims=True), tg.f32)


RULES: dict[
    str, tuple[Callable[[Any], Any], str, int]
] = {  # rule -> a function of x, f32[32,32], the op that it decides, and how often
    rules.SUMMED: (lambda x: tg.exp(x @ x), "matmul", 1),
    rules.DELIVERED: (lambda x: x + 1.0, "add", 1),
    rules.ONCE: (argmax_of_a_sum, "add", 1),
    rules.DEEP: (long_chain, "sin", 1),
    rules.OPERAND: (lambda x: tg.exp(x) @ x, "exp", 1),
    rules.REPEATED: (lambda x: x * tg.exp(tg.sin(x[:1])), "exp", 1),
    rules.SHARED: (lambda x: tg.sum(tg.exp(tg.sin(x)), 1) + tg.sum(tg.exp(tg.sin(x)), 0), "exp", 1),
    rules.CHEAP: (lambda x: tg.relu(x * 3.0) + 1.0, "mul", 1),
    rules.MADE: (lambda x: x + tg.exp(tg.cast(tg.arange(32), tg.f32)), "exp", 1),
    rules.MOVES: (lambda x: x + x.transpose(), "permute", 1),
    rules.OF_FAMILY["leaf"]: (lambda x: x + 1.0, "leaf", 1),
}


@pytest.mark.parametrize("rule", RULES)
def test_each_rule_decides_a_value(rule: str) -> None:
    fn, op, count = RULES[rule]
    with tracing():
        (x,) = inputs(x=(32, 32))
        storage = optimize(Graph({"y": fn(x)}))
    found = [t for t in storage.order if t.prim.name == op and storage.rules.rule[t.serial] == rule]
    assert len(found) == count
    assert all((t.serial in storage.stored) == (rule in rules.STORING) for t in found)


def test_what_is_stored_is_what_rules_store() -> None:
    with tracing():
        (x,) = inputs(x=(16, 16))
        storage = optimize(Graph({"y": tg.softmax(x @ x) @ tg.layer_norm(x)}))
    assert set(storage.rules.rule) == {t.serial for t in storage.order}
    assert set(storage.stored) == {s for s, rule in storage.rules.rule.items() if rule in rules.STORING}
    assert [t.serial for t in storage.members] == sorted(storage.stored)


def test_both_sides_of_a_comparison_read_one_computation() -> None:
    """Also if the same is added to both sides, and if several folds choose elements of the value."""
    with tracing():
        (x,) = inputs(x=(32, 32))
        y = x * 2.0 + 1.0
        found = [y + 3.0 == tg.max(y, axis, keepdims=True) + 3.0 for axis in (0, 1)]
        other = x * 2.0 < tg.max(y)
    assert computed_once(toposort(found)) == {y.serial}
    assert computed_once(toposort([other])) == set()


@pytest.mark.parametrize(("own", "again"), [(False, True), (True, False)], ids=["another", "the written"])
def test_a_short_fold_is_computed_again_unless_its_array_is_overwritten(own: bool, again: bool) -> None:
    """A workgroup that folds the state would race against others, which overwrite it."""
    with tracing():
        w = leaf("state", "w", TensorType(f32, (300,)))
        (g,) = inputs(g=(300,))
        graph = Graph({}, writes={"w": w - g / (1.0 + tg.sum(tg.square(w if own else g)))})
    assert graph.leaves("state") == [w] and graph.inputs == [g]
    program = make_program(graph, Persistent((Buffer("w", "f32", 300, "state"),)), {}, {})
    assert len(program.dispatches) == (1 if again else 2)


@pytest.mark.parametrize(("many", "again"), [(5, True), (6, False)])
def test_a_short_fold_is_computed_again_if_the_arrays_fit(many: int, again: bool) -> None:
    buffers = [Buffer(f"x{k}", "f32", 300, "state") for k in range(many + 2)]
    with tracing():
        xs = [leaf("state", b.name, TensorType(f32, (300,))) for b in buffers]
        graph = Graph({"y": reduce(operator.mul, xs[2:]) * tg.sum(xs[0] * xs[1])})
    program = make_program(graph, Persistent(tuple(buffers)), {}, {})
    assert len(program.dispatches) == (1 if again else 2)
    assert all(len(k.bindings) <= MAX_BUFFERS for k in program.kernels)


def states(graph: Graph, **values: Any) -> dict[str, Any]:
    """The states of a graph after one run that began with `values`."""
    buffers = tuple(Buffer(n, "f32", x.size, "state") for n, x in values.items())
    program = make_program(graph, Persistent(buffers), {}, {})
    session = CpuSession()
    handle = session.load(program)
    for n, x in values.items():
        session.write(n, x.reshape(-1))
    session.run(handle, [{}])
    return {n: session.read(n).reshape(x.shape) for n, x in values.items()}


def copies(storage: Storage) -> int:
    return sum(t.prim.name == "copy" for t in storage.order)


X, Y = np.arange(12, dtype=np.float32), np.linspace(3, 4, 12, dtype=np.float32)


def test_a_state_read_at_its_own_point_is_written_in_place() -> None:
    with tracing():
        x = leaf("state", "x", TensorType(f32, (12,)))
        graph = Graph({}, writes={"x": x * 2.0})
    assert copies(optimize(graph)) == 0
    np.testing.assert_array_equal(states(graph, x=X)["x"], 2 * X)


def test_a_new_state_and_the_parts_of_a_packed_one_are_computed_into_its_array() -> None:
    with tracing():
        x = leaf("state", "x", TensorType(f32, (12,)))
        new, parts = tg.sin(x) * 2.0, [tg.cos(x) + 1.0, tg.exp(x) + 1.0]
        graph = Graph({}, writes={"x": new, "y": pack(parts)})
    found = placed_arrays(graph)
    assert found.pop(graph.writes["y"].serial) == "y"
    assert found == {new.serial: "x", parts[0].serial: "y", parts[1].serial: "y"}


def test_a_state_read_elsewhere_is_written_by_a_copy() -> None:
    with tracing():
        x, y = (leaf("state", n, TensorType(f32, (12,))) for n in "xy")
        graph = Graph({}, writes={"x": tg.flip(x, 0) + x, "y": y + 1.0})
    assert copies(optimize(graph)) == 1
    found = states(graph, x=X, y=Y)
    np.testing.assert_array_equal(found["x"], X[::-1] + X)
    np.testing.assert_array_equal(found["y"], Y + 1)


def test_states_that_need_each_others_old_values_are_written_by_copies() -> None:
    with tracing():
        x, y = (leaf("state", n, TensorType(f32, (12,))) for n in "xy")
        graph = Graph({"z": x + y}, writes={"x": x + tg.flip(y, 0), "y": y - tg.flip(x, 0)})
    assert copies(optimize(graph)) == 2
    found = states(graph, x=X, y=Y)
    np.testing.assert_array_equal(found["x"], X + Y[::-1])
    np.testing.assert_array_equal(found["y"], Y - X[::-1])
    check_memory(planned(graph, Persistent(tuple(Buffer(n, "f32", 12, "state") for n in "xy"))))


def test_a_result_that_is_a_state_lies_where_the_state_does() -> None:
    with tracing():
        x, y = (leaf("state", n, TensorType(f32, (12,))) for n in "xy")
        new = x + tg.flip(y, 0)
        graph = Graph({"new": new}, writes={"x": new, "y": y - tg.flip(x, 0)})
    assert copies(optimize(graph)) == 2
    np.testing.assert_array_equal(states(graph, x=X, y=Y)["x"], X + Y[::-1])


def test_postorder_knows_cycles() -> None:
    after = {"a": ["b", "c"], "b": ["c"], "c": [], "d": ["e"], "e": ["d"]}
    assert list(postorder(["a"], after.__getitem__)) == ["c", "b", "a"]
    with pytest.raises(CycleError):
        list(postorder(["a", "d"], after.__getitem__))


def test_analysing_changes_nothing() -> None:
    """The same graph gives the same answer, and a settled one needs no more copies."""
    with tracing():
        x, w = inputs(x=(8, 8), w=(8, 8))
        storage = optimize(Graph({"y": tg.tanh(x @ w) @ w}))
    again = analyse(storage.graph)
    assert again.rules == storage.rules and again.array == storage.array
    got = run(
        CpuSession(), make_program(storage.graph, NOTHING, {}, {}), {n: np.eye(8, dtype=np.float32) for n in "xw"}
    )
    np.testing.assert_allclose(got["y"], np.tanh(np.eye(8)), rtol=1e-6)
