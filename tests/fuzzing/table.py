"""The ops that a step can name: how to draw one, and what computes it in tracegrad, PyTorch and JAX.

`ours(tg, *values, **attrs)`; `torch(torch, *values, **attrs)`; `jax(jax, *values, **attrs)`. None: no counterpart, and
that library is not asked about programs with this op.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from fuzzing.drawing import Pool

Drawn = tuple[tuple[int, ...], dict[str, Any]]  # arguments and attributes of a step


@dataclass(frozen=True)
class Op:
    """One row: a step's name, what draws it, and its meaning in three libraries. `weight`: how often it is drawn."""

    name: str
    draw: Callable[[Pool], Drawn]
    ours: Callable[..., Any]
    torch: Callable[..., Any] | None = None
    jax: Callable[..., Any] | None = None
    weight: int = 2


class NoCounterpartError(Exception):
    """The library has no function for an op of the program."""


OPS: dict[str, Op] = {}


def register(*rows: Op) -> None:
    """Adds rows; a name stands for one op."""
    for row in rows:
        assert row.name not in OPS, row.name
        OPS[row.name] = row
