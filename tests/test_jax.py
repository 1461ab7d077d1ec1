"""The same array rules under jax.numpy, value and gradient: one meaning, two array libraries."""

from __future__ import annotations

import numpy as np
import pytest

from all_cases import ALL_CASES
from cases import Case
from test_kernels import assert_same, graph_of, inputs_of
from tracegrad.evaluate import evaluate

jax = pytest.importorskip("jax", reason="JAX is not installed")


@pytest.mark.slow  # JAX compiles every op of every shape
@pytest.mark.parametrize("case", ALL_CASES, ids=lambda c: c.name)
def test_array_rules_mean_the_same_under_jax(case: Case) -> None:
    graph = graph_of(case)
    env = inputs_of(graph, case)
    values = evaluate(graph.roots, env, jax.numpy)
    assert_same(case, graph, env, {n: np.asarray(x) for n, x in zip(graph.outputs, values, strict=True)})
