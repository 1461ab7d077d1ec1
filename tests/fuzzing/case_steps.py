"""Rows of the case table as steps: the op on its own operands, at sizes that its row does not have.

A row's shapes are renamed size by size: where it says ((3, 4), (4,)), a step may have ((7, 17), (17,)). Where the row's
function counts on its sizes, and refuses others, the step keeps them.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from all_cases import ALL_CASES
from cases import Case
from cases_nn import FedCase
from fuzzing.drawing import Pool
from fuzzing.program import Input, Program, Step
from fuzzing.table import Drawn, NoCounterpartError, Op, register
from tracegrad.dtypes import TensorType, bool_, f32, i32
from tracegrad.errors import TracegradError
from tracegrad.ir.ambient import tracing
from tracegrad.prims.leaves import leaf

INTERNAL = ("window", "unwindow", "pack", "place", "copy")  # rows of primitives, whose types check less
TURNS = (2, 3, 5, 6, 7, 1, 13, 15, 17, 9, 31)  # sizes of a row; a turn begins at one of them
SIZES = (1, 2, 3, 5, 6, 7, 9, 15, 17)


@cache
def rows() -> dict[str, Case]:
    """By name: those whose inputs alone decide the result, and are not large. PyTorch's functions need no trace."""
    small = [c for c in ALL_CASES if not isinstance(c, FedCase)]
    return {c.name: c for c in small if sum(int(np.prod(s)) for s in c.shapes) <= 3000}


def fits(case: Case, shapes: list[Any], ints: list[Any], bools: list[Any]) -> bool:
    """Does the row's function take these shapes?"""
    types = [*((f32, s) for s in shapes), *((i32, s) for s in ints), *((bool_, s) for s in bools)]
    with tracing():
        try:
            y = case.fn(*(leaf("input", f"x{k}", TensorType(d, tuple(s))) for k, (d, s) in enumerate(types)))
        except (TracegradError, IndexError, ValueError):
            return False
    return y.size <= 4096


def resized(pool: Pool, case: Case) -> tuple[list[Any], list[Any], list[Any]]:
    """The row's shapes with other sizes, if it takes any of three tries."""
    own = [list(case.shapes), [s for s, _ in case.ints], list(case.bools)]
    for _ in range(0 if case.name in INTERNAL else 3):
        names = {1: 1 if pool.below(4) else pool.one(SIZES)}
        new = [[tuple(names.setdefault(n, pool.one(SIZES)) for n in shape) for shape in shapes] for shapes in own]
        if fits(case, *new):
            return new[0], new[1], new[2]
    return own[0], own[1], own[2]


def row_programs(turn: int) -> list[Program]:
    """Every row of the table once, with its gradients, at sizes that `turn` chooses; without rows that refuse them."""
    found: list[Program] = []
    for number, case in enumerate(rows().values()):
        own = [list(case.shapes), [s for s, _ in case.ints], list(case.bools)]
        names = {1: 1}
        for n in (n for shapes in own for shape in shapes for n in shape):
            names.setdefault(n, TURNS[(turn + 3 * len(names) + number) % len(TURNS)])
        new = [[tuple(names[n] for n in shape) for shape in shapes] for shapes in own]
        if case.name in INTERNAL or not fits(case, *new):
            continue
        most = [min(n, *(m for s in new[0] for m in s)) if new[0] else n for _, n in case.ints]
        inputs = [Input("f32", s, "uniform", k, case.low, case.high) for k, s in enumerate(new[0])]
        inputs += [Input("i32", s, "below", k, 0, n) for k, (s, n) in enumerate(zip(new[1], most))]
        inputs += [Input("bool", s, "bools", k) for k, s in enumerate(new[2])]
        step = Step("case", tuple(~k for k in range(len(inputs))), {"name": case.name})
        mode = "gradient" if case.grad and new[0] else "forward"
        found.append(Program(tuple(inputs), (step,), (0,), mode, seed=turn))
    return found


def _draw(pool: Pool) -> Drawn:
    case = rows()[pool.one(sorted(rows()))]
    shapes, ints, bools = resized(pool, case)
    args = [pool.shaped(tuple(s), "f32", case.low, case.high) for s in shapes]
    most = [n for _, n in case.ints]
    if shapes != list(case.shapes):
        most = [min(n, 2, *(m for s in shapes for m in s)) for n in most]
    args += [pool.new("i32", tuple(s), 0, n) for s, n in zip(ints, most)]
    args += [pool.shaped(tuple(s), "bool") for s in bools]
    return tuple(args), {"name": case.name}


def _torch(torch: Any, *xs: Any, name: str) -> Any:
    """PyTorch's side of the row, which may rely on its sizes; NoCounterpartError at others, and where it has none."""
    case = rows()[name]
    own = [*case.shapes, *(s for s, _ in case.ints), *case.bools]
    if case.torch is None or [tuple(x.shape) for x in xs] != own:
        raise NoCounterpartError(name)
    return case.torch(*xs)


register(Op("case", _draw, lambda tg, *xs, name: rows()[name].fn(*xs), _torch, None, weight=60))
