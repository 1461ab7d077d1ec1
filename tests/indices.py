"""The meaning of an index, in Python integers."""

from __future__ import annotations

from collections.abc import Mapping

from tracegrad.kernels.expr import Index, Quotient, Var


def evaluate_index(index: Index, env: Mapping[str, int]) -> int:
    """Evaluate an index with Python integers, to compare its normal form with."""
    total = index.const
    for atom, c in index.terms:
        if isinstance(atom, Var):
            n = env[atom.name]
        elif isinstance(atom, Quotient):
            inner = evaluate_index(atom.index, env)
            n = inner % atom.d if atom.mod else inner // atom.d
        else:
            raise ValueError("a dynamic index has no static value")
        total += c * n
    return total
