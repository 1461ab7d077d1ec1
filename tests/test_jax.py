"""device="jax": every op of the table, value and gradient, as XLA computes the graph, against the reference."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from all_cases import ALL_CASES
from cases import Case
from test_kernels import NOTHING, assert_same, graph_of, inputs_of, run
from tracegrad.compiler.pipeline import make_program
from tracegrad.evaluate import evaluate
from tracegrad.runtime.base import Session
from tracegrad.runtime.registry import runtime

jax = pytest.importorskip("jax", reason="JAX is not installed")


@pytest.fixture(scope="module")
def session() -> Iterator[Session]:
    opened = runtime("jax").begin("jax")()
    assert opened is not None
    yield opened
    opened.close()


@pytest.mark.slow  # XLA compiles each of them
@pytest.mark.parametrize("case", ALL_CASES, ids=lambda c: c.name)
def test_jax_computes_every_row(case: Case, session: Session) -> None:
    graph = graph_of(case)
    env = inputs_of(graph, case)
    assert_same(case, graph, env, run(session, make_program(graph, NOTHING, {}, {}), env))


@pytest.mark.slow  # JAX compiles every op of every shape
@pytest.mark.parametrize("case", ALL_CASES, ids=lambda c: c.name)
def test_array_rules_mean_the_same_under_jax(case: Case) -> None:
    graph = graph_of(case)
    env = inputs_of(graph, case)
    values = evaluate(graph.roots, env, jax.numpy)
    assert_same(case, graph, env, {n: np.asarray(x) for n, x in zip(graph.outputs, values, strict=True)})
