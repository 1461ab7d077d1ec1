"""Every op of the table: its type rule, its gradient, the gradient of that, and PyTorch's opinion."""

from __future__ import annotations

import re

import pytest

from all_cases import ALL_CASES
from cases import Case
from tracegrad import ops, testing

DIFFERENTIABLE = [c for c in ALL_CASES if c.differentiable]
NO_ROW = {"clamp", "full", "full_like", "ones", "ones_like", "zeros_like"}  # an alias of clip, and constants
by_name = {"argnames": "case", "ids": lambda c: c.name}


def test_names_are_unique() -> None:
    names = [c.name for c in ALL_CASES]
    assert len(set(names)) == len(names), sorted(n for n in names if names.count(n) > 1)


def test_every_public_op_has_a_row() -> None:
    names = " ".join(re.sub("[ -]", "_", c.name) for c in ALL_CASES)
    lacking = [op for op in ops.__all__ if op not in NO_ROW and not re.search(rf"\b{op}(?![a-z0-9])", names)]
    assert not lacking, f"add a Case whose name begins with the op's to tests/cases.py, for {lacking}"


@pytest.mark.parametrize(**by_name, argvalues=ALL_CASES)
def test_type_rule_agrees_with_the_array(case: Case) -> None:
    testing.check_types(case)


@pytest.mark.parametrize(**by_name, argvalues=DIFFERENTIABLE)
def test_vjp_agrees_with_finite_differences(case: Case) -> None:
    testing.check_vjp(case)


@pytest.mark.parametrize(**by_name, argvalues=[c for c in DIFFERENTIABLE if c.second])
def test_second_order_agrees_with_finite_differences(case: Case) -> None:
    testing.check_second_order(case)


@pytest.mark.parametrize(**by_name, argvalues=[c for c in ALL_CASES if c.torch is not None])
def test_values_and_gradients_agree_with_pytorch(case: Case) -> None:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    testing.check_pytorch(case)
